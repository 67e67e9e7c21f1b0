"""Rewards that follow the length of an answer."""

import numpy as np

from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, Trend, since
from logs_ui.recorder.diagnosis.reward_parts import shares, within_groups
from logs_ui.recorder.diagnosis.rows import Floats, Rows
from logs_ui.recorder.diagnosis.say import figure, percent
from logs_ui.recorder.diagnosis.windows import rise, windows

_R = 0.8
_FEW = 8
_GROWN = 0.2  # of the first steps' length
_SHARE = 0.1  # of the reward's variance within groups, that a function which pays for length must have


def lengths(rows: Rows) -> Floats:
    """(N,) tokens that the model sampled, for each of its turns: an episode that lasts longer is no longer answer."""
    return rows.completion_tokens / np.where(rows.turns > 1, rows.turns, 1.0)


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
    if found is None or not abs(r) >= limit:
        return None
    grown = rise(*(lengths(rows) for rows in found))
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
            + (f" It makes {percent(share)} of the reward's differences." if name else ""),
            f"Answers went from {figure(grown.before)} to {figure(grown.after)} tokens.",
        ),
        suggestion="Take length out of the reward, or pay for it only where the answer is right.",
        where=_far(run.rows, r),
        trend=trend,
        since_step=since(trend, lambda value: abs(value) >= limit),
        explains=("truncation", "reward_parts", "degenerate_text", "hacking", "never_solved", "forgotten"),
        own=far,
    )


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
    falls = [rise(*(rows.values[name] for rows in found)) for name in run.all.values]
    return any(fall.is_sure and fall.value < 0 for fall in falls)


DIAGNOSTIC = Diagnostic(
    "length",
    "Length against reward",
    f"Pearson's r within groups of tokens a turn with the reward, or with a function that makes {_SHARE:.0%} or "
    "more of "
    f"its differences: |r| of {_R:g} or more, while answers grow (or shrink, and a reward function falls) by more than "
    f"{_GROWN:.0%}.",
    "diagnosis literature: |r| \u2265 0.8 at n \u2265 8; of growth and share ours",
    lambda run: None if np.isfinite(run.rows.completion_tokens).sum() >= _FEW else "completion tokens",
    _look,
)
