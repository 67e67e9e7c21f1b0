"""Finds reward functions that stop giving the share of passed tests that the last observations tell."""

import re

import numpy as np

from logs_ui.recorder.action_text import observed_text
from logs_ui.recorder.diagnosis.answers import text_of
from logs_ui.recorder.diagnosis.card import Card, Run, Texts
from logs_ui.recorder.diagnosis.change_point import above
from logs_ui.recorder.diagnosis.links import ids
from logs_ui.recorder.diagnosis.success import levels
from logs_ui.recorder.diagnosis.wording import figure, percent

_FIRST_READ, _READ = 32, 600  # rollouts, half of which must tell a share; of the last steps, and of those before
_FEW = 48  # of either that tell a share, at least
_NEAR = 0.011  # shares may be told with two decimals
_SAME, _OTHER = 0.9, 0.1  # of those before, that give what is told; of the last ones, that give something else [ours]
_MORE = 3  # times as many as before [ours]
_OF = re.compile(r"(\d{1,5})\s*(?:/|out of|of)\s*(\d{1,5})\s+(?:\w+\s+){0,2}?(?:pass|succeed|ok\b)", re.IGNORECASE)
_PASSED = re.compile(r"(?:(\d{1,5}) failed,?\s*)?(\d{1,5}) passed(?:,?\s*(\d{1,5}) failed)?", re.IGNORECASE)

DEFINITION = (
    "a function gave the share of passed tests in the last observations (7/10 tests passed), or 1 if all pass and 0 "
    f"if not, in {_SAME:.0%} of rollouts, and since a step gives another value in more than {_OTHER:.0%} of the last "
    f"ones, {_MORE} times as often as before; of these and of those before some {_READ} are read."
)


def read_share(text: str) -> float | None:
    """Return the share of passed tests that a text tells last; None for none.

    >>> read_share("7/10 tests passed"), read_share("=== 3 failed, 1 passed in 0.2s ==="), read_share("all passed")
    (0.7, 0.25, None)
    """
    last = max([*_OF.finditer(text), *_PASSED.finditer(text)], key=lambda match: match.end(), default=None)
    if last is None:
        return None
    if last.re is _OF:
        passed, count = int(last[1]), int(last[2])
    else:
        passed = int(last[2])
        count = passed + sum(int(failed) for failed in (last[1], last[3]) if failed)
    return passed / count if 0 < count >= passed else None


def find_told_otherwise(run: Run) -> Card | None:
    """Return the card if a function gave the share of passed tests that the last observation tells, and then something
    else.
    """
    rows, is_last = run.all, run.all.step >= run.rows.steps[0]
    first = [_read_last(texts) for texts in run.sample(is_last, _FIRST_READ).values()]
    if is_last.all() or sum(share is not None for share in first) < len(first) / 2:
        return None
    read = {**run.sample(is_last, _READ), **run.sample(~is_last, _READ)}
    shares = {row: share for row, texts in read.items() if (share := _read_last(texts)) is not None}
    told = np.array([shares.get(row, np.nan) for row in rows.id.tolist()])
    for name, values in rows.values.items():
        is_known = np.isfinite(told) & np.isfinite(values)
        expected = told == 1 if len(levels(values)) == 2 else told
        differs = np.abs(values - expected) > _NEAR
        begun = above(rows.by_step(np.where(is_known, differs, np.nan)), _OTHER / 2)
        late = rows.step >= (begun["since_step"] or rows.steps[-1] + 1)
        now, before = is_known & is_last, is_known & ~late
        if begun["since_step"] is None or min(now.sum(), before.sum()) < _FEW or differs[now].mean() < _OTHER:
            continue
        if not 1 - _SAME <= expected[before].mean() <= _SAME:
            continue  # equal to what is nearly always the same tells nothing
        if differs[before].mean() > min(1 - _SAME, differs[now].mean() / _MORE):
            continue
        odd, usual = now & differs, percent(float(differs[before].mean()))
        means = [figure(float(of[odd].mean())) for of in (expected, values)]
        share = float(differs[now].mean())
        counts = f"{now.sum():,} of the last steps hold results of tests, {before.sum():,} before"
        return Card(
            id="disagreement",
            title=f"{name} differs from the tests' results in the last observations in {percent(share)} of rollouts, "
            f"before step {begun['since_step']:,} in {usual}",
            cost=run.fall.lost * share,
            evidence=(
                f"Of the rollouts that were read {counts}.",
                f"Mean where they differ: expected {means[0]}, {name} {means[1]}.",
            ),
            suggestion="Look at what changed about that step: its values may be in another order than the "
            "completions, or come from other tests.",
            where=ids(rows.id[odd]),
            **begun,
            own=odd[is_last],
            share=share,
            is_setup=True,
            is_loss=False,
        )
    return None


def _read_last(texts: Texts) -> float | None:
    """Return the share that the last observation tells, or the one before it; of a rollout without any, the last
    messages to the model.
    """
    heard = [text for entry in texts.actions if (text := observed_text(entry.get("observation")))]
    heard = heard or [text_of(message) for message in texts.messages if message.get("role") in {"tool", "user"}][1:]
    return next((share for text in reversed(heard[-2:]) if (share := read_share(text)) is not None), None)
