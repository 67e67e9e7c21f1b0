"""A policy that says the same every time."""

from typing import Any

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, Trend, since
from logs_ui.recorder.diagnosis.measures import ENTROPY_FLOOR, ENTROPY_SHARE, ENTROPY_STEPS, dead
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Floats, Rows
from logs_ui.recorder.diagnosis.waterfall import losses
from logs_ui.recorder.diagnosis.wording import figure, percent
from logs_ui.recorder.settings import SHARE

_HALF = 0.5
_ALIKE = 0.75  # of a group's completions that are twins: at most 2 of 8 are their own
_DEAD = 0.8  # of such groups get one reward; else it is not because they are alike
_FAILED = 0.25  # of the groups: where nearly all are solved, a certain policy has learned them
_COLD = 0.3  # temperature: ours


def alike(rows: Rows) -> Floats:
    """(G,) share of a group's completions that are another one's twin; NaN of a single one, or where not known."""
    keys = rows.facts["completion_key"]
    pairs = np.stack([rows.group.astype(float), keys], 1)[~np.isnan(keys)]
    count = len(rows.groups.size)
    sizes = np.bincount(pairs[:, 0].astype(np.int64), minlength=count)
    distinct = np.bincount(np.unique(pairs, axis=0)[:, 0].astype(np.int64), minlength=count)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(sizes > 1, (sizes - distinct) / (sizes - 1), np.nan)


def _look(run: Run) -> Card | None:
    rows, trend = run.rows, _entropies(run.all)
    twins, chosen = alike(rows), _chosen(run)
    lost = np.maximum(losses(rows, run.scale), 0) * chosen[rows.group]
    if not chosen.any() and _fallen(trend):
        lost = np.maximum(losses(rows, run.scale), 0) * dead(rows.groups)[rows.group]
    if not lost.any():
        return None
    share = float(np.nanmean(twins)) if (~np.isnan(twins)).any() else 0.0
    return Card(
        id="diversity",
        title=f"Completions of a group are alike: {percent(share)} are twins" if chosen.any() else _CERTAIN,
        cost=float(lost.sum()) / len(rows),
        evidence=(f"{percent(share)} of a group's completions repeat another one word by word.", *_heat(run, trend)),
        suggestion="Sample at temperature 1, add an entropy bonus or a KL term, or go back to an earlier checkpoint.",
        where="twins>0" if chosen.any() else "spread:0",
        trend=trend,
        since_step=since(trend, lambda value: value < ENTROPY_FLOOR),
        own=lost > 0,
        aspects=("cold",) if _is_cold(run) else (),
        needs=np.inf if _is_cold(run) else None,
    )


def _chosen(run: Run) -> Bools:
    """(G,) that got one reward since they said one thing; all that got one where it is known to be sampled cold; where
    the sampler's log-probs show a certain policy, all that got one reward or said one thing.
    """
    twins, is_dead = alike(run.rows), dead(run.rows.groups)
    known, same = ~np.isnan(twins), twins >= _ALIKE
    limit = run.threshold("diversity", _HALF)
    none: Bools = np.zeros(len(twins), bool)
    if not known.any():
        return none
    if _is_cold(run):
        return is_dead if float(twins[known].mean()) >= limit else none
    if _is_certain(run) and float(twins[known].mean()) >= limit:
        chosen = is_dead | same
        failed = chosen & (run.rows.groups.mean < run.scale.solved - SAME)
        return chosen if failed.sum() >= _FAILED * known.sum() else none
    many = float(same.sum() / known.sum()) >= limit
    return is_dead & same if many and float(is_dead[same].mean()) >= _DEAD else none


_CERTAIN = "The policy has become certain: it hardly samples anything but its likeliest tokens"


def _entropies(rows: Rows) -> Trend:
    """Of each step the mean of -log p over what was sampled, in nats a token."""
    return rows.by_step(-rows.facts["mean_logprob"])


def _temperature(run: Run) -> float | None:
    value: Any = run.config.get("temperature")
    return float(value) if isinstance(value, int | float) else None


def _is_cold(run: Run) -> bool:
    """Whether it is known to be sampled without chance: completions may also be alike for all kinds of reasons."""
    temperature = _temperature(run)
    return temperature is not None and temperature <= _COLD


def _is_certain(run: Run) -> bool:
    """Whether it hardly samples anything but its likeliest tokens, whatever it is asked to: then twins come of that."""
    values = run.rows.facts["mean_logprob"]
    known = values[~np.isnan(values)]
    return len(known) > 0 and float(-known.mean()) < ENTROPY_FLOOR


def _heat(run: Run, trend: Trend) -> list[str]:
    temperature = _temperature(run)
    said = [f"Entropy, as the sampler's mean of -log p, is {figure(trend[-1][1])} nats a token."] if trend else []
    return said + ([] if temperature is None else [f"temperature is {figure(temperature)}."])


def _fallen(trend: Trend) -> bool:
    """Whether the entropy is below half of its median over the first steps, and below the floor."""
    if len(trend) <= ENTROPY_STEPS:
        return False
    before = float(np.median([value for _, value in trend[:ENTROPY_STEPS]]))
    now = float(np.mean([value for _, value in trend[-3:]]))
    return now < ENTROPY_SHARE * before and now < ENTROPY_FLOOR


DIAGNOSTIC = Diagnostic(
    "diversity",
    "Entropy and diversity",
    f"Groups of which {_ALIKE:.0%} or more of the completions are another one's twin, from {_HALF:.0%} of groups on, "
    f"while {_DEAD:.0%} of those groups get one reward, or whatever they get where the mean of -log p is below "
    f"{ENTROPY_FLOOR:g} and {_FAILED:.0%} of groups fail; or the mean of -log p below half of the first "
    f"{ENTROPY_STEPS} steps' median and below {ENTROPY_FLOOR:g}.",
    "ours; there is no agreed floor",
    lambda run: None if (~np.isnan(run.rows.facts["completion_key"])).any() else "token ids, or texts",
    _look,
    limits=SHARE,
    position=160,
    explained_by=(
        "infrastructure",
        "parse_failures",
        "truncation",
        "loops",
        "never_acted",
        "degenerate_text",
    ),
    is_behaviour=True,
)
