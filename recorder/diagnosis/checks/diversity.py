"""Finds a policy that gives the same answer every time."""

from typing import Any

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, Trend, since
from logs_ui.recorder.diagnosis.measures import ENTROPY_FLOOR, ENTROPY_SHARE, ENTROPY_STEPS, dead
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Floats, Rows
from logs_ui.recorder.diagnosis.waterfall import losses
from logs_ui.recorder.diagnosis.wording import figure, percent
from logs_ui.recorder.settings import SHARE

_HALF = 0.5
_ALIKE = 0.75  # of a group's completions are duplicates: of 8, at most 2 are unlike any other
_DEAD = 0.8  # of such groups have zero variance; else equal completions are not the reason
_FAILED = 0.25  # of the groups: if nearly all are solved, a deterministic policy has learned them
_COLD = 0.3  # temperature [ours]


def alike(rows: Rows) -> Floats:
    """(G,) share of a group's completions that duplicate another one; NaN for a single one, or if not known."""
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
        title=f"{percent(share)} of completions duplicate another in their group" if chosen.any() else _COLLAPSED,
        cost=float(lost.sum()) / len(rows),
        evidence=(
            f"{percent(share)} of completions have the same tokens as another one of their group.",
            *_heat(run, trend),
        ),
        suggestion="Sample at temperature 1, add an entropy bonus or a KL term, or return to an earlier checkpoint.",
        where="twins>0" if chosen.any() else "spread:0",
        trend=trend,
        since_step=since(trend, lambda value: value < ENTROPY_FLOOR),
        own=lost > 0,
        aspects=("cold",) if _is_cold(run) else (),
        needs=np.inf if _is_cold(run) else None,
    )


def _chosen(run: Run) -> Bools:
    """(G,) True for groups whose rewards are equal because their completions are.

    If sampling is known to be cold, that is every group with zero variance. If the sampler's log-probs show a
    near-deterministic policy, it is every group with zero variance or duplicate completions.
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


_COLLAPSED = "Entropy collapsed: the policy samples almost only its likeliest tokens"


def _entropies(rows: Rows) -> Trend:
    """Return the mean of -log p of the sampled tokens by step, in nats per token."""
    return rows.by_step(-rows.facts["mean_logprob"])


def _temperature(run: Run) -> float | None:
    value: Any = run.config.get("temperature")
    return float(value) if isinstance(value, int | float) else None


def _is_cold(run: Run) -> bool:
    """Return True if sampling is known to be nearly greedy; completions may be equal for other reasons, too."""
    temperature = _temperature(run)
    return temperature is not None and temperature <= _COLD


def _is_certain(run: Run) -> bool:
    """Return True if the policy samples almost only its likeliest tokens: duplicates then follow from that."""
    values = run.rows.facts["mean_logprob"]
    known = values[~np.isnan(values)]
    return len(known) > 0 and float(-known.mean()) < ENTROPY_FLOOR


def _heat(run: Run, trend: Trend) -> list[str]:
    temperature = _temperature(run)
    said = [f"Entropy (the sampler's mean of -log p): {figure(trend[-1][1])} nats per token."] if trend else []
    return said + ([] if temperature is None else [f"Temperature: {figure(temperature)}."])


def _fallen(trend: Trend) -> bool:
    """Return True if the entropy is below half of its median over the first steps, and below the floor."""
    if len(trend) <= ENTROPY_STEPS:
        return False
    before = float(np.median([value for _, value in trend[:ENTROPY_STEPS]]))
    now = float(np.mean([value for _, value in trend[-3:]]))
    return now < ENTROPY_SHARE * before and now < ENTROPY_FLOOR


DIAGNOSTIC = Diagnostic(
    "diversity",
    "Entropy and diversity",
    f"Groups in which at least {_ALIKE:.0%} of completions duplicate another, from {_HALF:.0%} of groups on, if "
    f"{_DEAD:.0%} of those groups have zero variance, or if the mean of -log p is below {ENTROPY_FLOOR:g} and "
    f"{_FAILED:.0%} of groups fail; or a mean of -log p below half of the first {ENTROPY_STEPS} steps' median and "
    f"below {ENTROPY_FLOOR:g}.",
    "ours; there is no agreed floor",
    lambda run: None if (~np.isnan(run.rows.facts["completion_key"])).any() else "token ids, or texts",
    _look,
    limits=SHARE,
    position=160,
    explained_by=("infrastructure", "parse_failures", "truncation", "loops", "never_acted", "degenerate_text"),
    is_behaviour=True,
)
