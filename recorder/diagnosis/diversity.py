"""A policy that says the same every time."""

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, Trend, since
from logs_ui.recorder.diagnosis.rows import Floats, Rows
from logs_ui.recorder.diagnosis.say import figure, percent
from logs_ui.recorder.diagnosis.waterfall import losses

_HALF = 0.5
_FIRST = 10  # steps
_FLOOR = 0.02  # nats: a policy that takes its likeliest token 99 times of 100


def alike(rows: Rows) -> Floats:
    """(G,) share of a group's completions that are another one's twin; NaN of a single one, or where not known."""
    keys = rows.facts["completion_key"]
    pairs = np.stack([rows.group.astype(float), keys], 1)[~np.isnan(keys)]
    count = len(rows.groups.size)
    sizes = np.bincount(pairs[:, 0].astype(np.int64), minlength=count)
    distinct = np.bincount(np.unique(pairs, axis=0)[:, 0].astype(np.int64), minlength=count)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(sizes > 1, (sizes - distinct) / (sizes - 1), np.nan)


def _entropies(rows: Rows) -> Trend:
    return rows.by_step(-rows.facts["mean_logprob"])


def _look(run: Run) -> Card | None:
    rows = run.rows
    twins = alike(rows)
    share = float(np.nanmean(twins)) if (~np.isnan(twins)).any() else 0.0
    trend = _entropies(run.all)
    fallen = _fallen(trend)
    if share < run.threshold("diversity", _HALF) and not fallen:
        return None
    lost = np.maximum(losses(rows, run.scale), 0)
    cost = float(lost.mean()) * max(share, _HALF if fallen else 0.0)
    temperature = run.config.get("temperature")
    said = [f"{percent(share)} of a group's completions repeat another one word by word."]
    said += [f"Entropy, as the sampler's mean of -log p, is {figure(trend[-1][1])} nats a token."] if trend else []
    said += [f"temperature is {figure(float(temperature))}."] if isinstance(temperature, int | float) else []
    return Card(
        id="diversity",
        title=f"Completions of a group are alike: {percent(share)} are twins",
        cost=cost,
        evidence=tuple(said),
        suggestion="Sample at temperature 1, add an entropy bonus or a KL term, or go back to an earlier checkpoint.",
        where="group_twins>0",
        trend=trend,
        since_step=since(trend, lambda value: value < _FLOOR) if trend else None,
        explains=("dead_groups", "never_solved", "loops", "signal_cliff"),
    )


def _fallen(trend: Trend) -> bool:
    """Whether the entropy is below half of its median over the first steps, and below the floor."""
    if len(trend) <= _FIRST:
        return False
    before = float(np.median([value for _, value in trend[:_FIRST]]))
    now = float(np.mean([value for _, value in trend[-3:]]))
    return now < _HALF * before and now < _FLOOR


DIAGNOSTIC = Diagnostic(
    "diversity",
    "Entropy and diversity",
    f"Share of a group's completions that are equal, from {_HALF:.0%} on; or the mean of -log p below half of the "
    f"first {_FIRST} steps' median and below {_FLOOR:g}.",
    "ours; there is no agreed floor",
    lambda run: None if (~np.isnan(run.rows.facts["completion_key"])).any() else "token ids",
    _look,
)
