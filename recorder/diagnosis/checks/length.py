"""Rewards that follow the length of an answer."""

from dataclasses import replace

import numpy as np

from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, Trend, since
from logs_ui.recorder.diagnosis.checks.reward_functions import part_of
from logs_ui.recorder.diagnosis.measures import lengths, shares, within_groups
from logs_ui.recorder.diagnosis.rollout_rows import Floats, Rows
from logs_ui.recorder.diagnosis.windows import rise, windows
from logs_ui.recorder.diagnosis.wording import figure
from logs_ui.recorder.settings import SHARE

_R = 0.8
_FEW = 8
_GROWN = 0.2  # of the first steps' length
_LESS = 0.3  # than _R is enough where it holds all along: ours
_PARTS = 5  # of the run, in each of which it must: ours
_MUCH = 0.5  # of the first steps' length, that answers must grow by then: ours
_QUARTERS = 4  # of the way from the worst reward to the best: who is in the same is as good
_ALIKE = 0.25  # r among those: ours
_SHARE = 0.1  # of the reward's variance within groups, that a function which pays for length must have


def correlation(rows: Rows, values: Floats | None = None) -> float:
    """Pearson's r of the reward, or of other values, and `lengths` within groups; NaN where either does not vary."""
    tokens, paid = lengths(rows), rows.reward if values is None else values
    known = np.isfinite(paid) & np.isfinite(tokens)
    if known.sum() < _FEW:
        return float("nan")
    paid = within_groups(np.where(known, paid, np.nan), rows)[known]
    tokens = within_groups(np.where(known, tokens, np.nan), rows)[known]
    norm = float(np.sqrt(np.sum(paid**2) * np.sum(tokens**2)))
    return float(np.sum(paid * tokens)) / norm if norm > 1e-9 else float("nan")


def _by_step(rows: Rows, name: str | None) -> Trend:
    found = []
    for step in rows.steps[-50:]:
        own = rows.where(rows.step == step)
        found.append((int(step), correlation(own, None if name is None else own.parts[name])))
    return tuple((step, r) for step, r in found if np.isfinite(r))


def _paid(run: Run, limit: float) -> tuple[str | None, float, float]:
    """The function that pays for length (None: the reward as a whole does), its r, and its share of the variance."""
    whole = correlation(run.rows)
    if abs(whole) >= limit:
        return None, whole, 1.0
    share = shares(run.rows)
    able = {name: correlation(run.rows, run.rows.parts[name]) for name in share if share[name] >= _SHARE}
    able = {name: r for name, r in able.items() if abs(r) >= limit}
    name = max(able, key=lambda name: abs(able[name]), default=None)
    return (name, able[name], share[name]) if name is not None else (None, float("nan"), 0.0)


def _look(run: Run) -> Card | None:
    limit, found = run.threshold("length", _R), windows(run)
    name, r, share = _paid(run, limit)
    if not abs(r) >= limit and _holds(run, limit - _LESS):
        limit, name, r, share = limit - _LESS, None, correlation(run.rows), 1.0
    if found is None or not abs(r) >= limit:
        return None
    grown = rise(lengths(found[0]), lengths(found[1]))
    if grown.value * r <= 0 or not grown.is_sure or abs(grown.value) <= _GROWN * max(grown.before, 1):
        return None
    if r < 0 and not _costs(run):
        return None
    trend = _by_step(run.all, name)
    middle = float(np.nanmedian(lengths(run.rows)))
    far = lengths(run.rows) >= middle if r > 0 else lengths(run.rows) <= middle
    return Card(
        id="length",
        title=f"{'Longer' if r > 0 else 'Shorter'} answers are paid more, and answers become that",
        cost=run.fall.lost * abs(r) * share,
        evidence=(
            f"Within groups {name or 'reward'} and tokens correlate by r = {figure(r)}."
            + (f" It makes {part_of(share)} of the reward's differences." if name else ""),
            f"Answers went from {figure(grown.before)} to {figure(grown.after)} tokens.",
        ),
        suggestion="Take length out of the reward, or pay for it only where the answer is right.",
        where=_far(run.rows, r),
        trend=trend,
        since_step=since(trend, lambda value: abs(value) >= limit),
        own=far,
    )


def _holds(run: Run, limit: float) -> bool:
    """Whether the reward follows length all along, among equally good rollouts too, and rises with it.

    Where right answers are but longer than wrong ones, length says little among the right, and among the wrong; and
    where another reward function rises too, which does not follow length, more is learnt than to be long.
    """
    found, steps = windows(run), run.all.steps
    if found is None or len(steps) < _PARTS:
        return False
    parts = (run.all.where(np.isin(run.all.step, own)) for own in np.array_split(steps, _PARTS))
    if not all(correlation(part) >= limit for part in parts) or not _among_alike(run.all) >= _ALIKE:
        return False
    before, after = found
    grown, gain = rise(lengths(before), lengths(after)), rise(before.reward, after.reward)
    if not grown.is_sure or grown.value < _MUCH * grown.before or not gain.is_sure or gain.value <= 0:
        return False
    others = [name for name in run.all.values if not correlation(run.all, run.all.values[name]) >= limit]
    rises = [rise(before.values[name], after.values[name]) for name in others]
    return not any(it.is_sure and it.value > 0 for it in rises)


def _among_alike(rows: Rows) -> float:
    """`correlation` among the rollouts of a group in the same quarter of the way from the run's worst reward to its
    best, which are its 1st and 99th percentile: NaN where the reward says only right or wrong.
    """
    known = rows.reward[np.isfinite(rows.reward)]
    if not len(known):
        return float("nan")
    low, high = np.percentile(known, (1, 99)).tolist()
    place = np.searchsorted(np.linspace(low, high, _QUARTERS + 1)[1:-1], rows.reward)
    return correlation(replace(rows, group=_QUARTERS * rows.group + place))


def _far(rows: Rows, r: float) -> str:
    """The longer half, or the shorter."""
    if (rows.turns > 1).any():
        half = lengths(rows) >= np.nanmedian(lengths(rows)) if r > 0 else lengths(rows) <= np.nanmedian(lengths(rows))
        return links.ids(rows.id[half])
    return f"completion_tokens{'>=' if r > 0 else '<='}{np.nanmedian(rows.completion_tokens):g}"


def _costs(run: Run) -> bool:
    """Whether something is lost by it: an answer may well be short. A reward function falls."""
    found = windows(run)
    if found is None:
        return False
    falls = [rise(found[0].values[name], found[1].values[name]) for name in run.all.values]
    return any(fall.is_sure and fall.value < 0 for fall in falls)


DIAGNOSTIC = Diagnostic(
    "length",
    "Length against reward",
    f"Pearson's r within groups of tokens a turn with the reward, or with a function that makes {_SHARE:.0%} or "
    "more of "
    f"its differences: |r| of {_R:g} or more, while answers grow (or shrink, and a reward function falls) by more than "
    f"{_GROWN:.0%}. Or r of {_LESS:g} less in each fifth of the run, and of {_ALIKE:g} among rollouts of a group in "
    f"the same quarter of the reward, while answers grow by {_MUCH:.0%} and the reward with them, and no function "
    "rises that does not follow length.",
    "diagnosis literature: |r| \u2265 0.8 at n \u2265 8; all else ours",
    lambda run: None if np.isfinite(run.rows.completion_tokens).sum() >= _FEW else "completion tokens",
    _look,
    limits=SHARE,
    position=200,
    explained_by=(
        "invalid_reward",
        "task_mix",
        "hacking:weightless",
        "reward_parts:outweighs",
    ),
    is_behaviour=True,
)
