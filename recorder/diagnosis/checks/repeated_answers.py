"""Finds answers that repeat their own text, and a policy that gives the same answer every time."""

from typing import Any

import numpy as np

from logs_ui.recorder.diagnosis import contrast
from logs_ui.recorder.diagnosis.card import Below, Card, Diagnostic, NotJudged, Outcome, Run, quiet, too_few
from logs_ui.recorder.diagnosis.change_point import above, below
from logs_ui.recorder.diagnosis.contrast import shift
from logs_ui.recorder.diagnosis.entropy import FLOOR, LOW, STEPS, Entropy, entropy, logged
from logs_ui.recorder.diagnosis.entropy import SHARE as ENTROPY_SHARE
from logs_ui.recorder.diagnosis.measures import dead, mean, unsolved_groups
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Floats, Rows, distinct
from logs_ui.recorder.diagnosis.wording import figure, percent
from logs_ui.recorder.settings import SHARE

_SHARE = 0.1
_COMPRESSION, _WORDS, _TRIGRAMS = 10.0, 0.25, 0.5
_HALF = 0.5
_ALIKE = 0.75  # of a group's completions are duplicates: of 8, at most 2 are unlike any other
_DEAD = 0.8  # of such groups have zero variance; else equal completions are not the reason
_FAILED = 0.25  # of the groups: if nearly all are solved, a deterministic policy has learned them
_COLD = 0.3  # temperature [ours]
_NEAR_BEST = 0.2  # of the range of rewards: a policy that solves its tasks may be sure of them [ours]


def _signs(rows: Rows) -> dict[str, Bools]:
    """Return (N,) rollouts that show each sign of repetition, by the filter that selects them."""
    return {
        f"trigram_repeats>={_TRIGRAMS:g}": rows.facts["trigram_repeats"] >= _TRIGRAMS,
        f"distinct_words<={_WORDS:g}": rows.facts["distinct_words"] <= _WORDS,
        f"compression>{_COMPRESSION:g}": rows.facts["compression"] > _COMPRESSION,
    }


def _look_degenerate(run: Run) -> Outcome:
    rows, limit, signs = run.rows, run.threshold("degenerate_text", _SHARE), _signs(run.rows)
    bad: Bools = np.logical_or.reduce(list(signs.values()))
    share = float(bad.mean())
    if share <= limit or contrast.is_fine(run, bad):
        known = ~np.isnan(rows.facts["compression"])
        return too_few(known, "recorded texts") or quiet(share, "of rollouts repeat their own text", limit)
    compression, repeats = rows.facts["compression"][bad], rows.facts["trigram_repeats"][bad]
    evidence = [f"Median compression ratio: {figure(float(np.nanmedian(compression)))}."]
    if (~np.isnan(repeats)).any():
        evidence.append(f"Median share of repeated three-word sequences: {percent(float(np.nanmedian(repeats)))}.")
    return Card(
        id="degenerate_text",
        title=f"{percent(share)} of rollouts repeat their own text",
        cost=contrast.cost(run, bad),
        evidence=tuple(evidence),
        suggestion="Look for a reward that grows with the number of words; lower the learning rate, or add a KL term.",
        where=max(signs, key=lambda sign: int(signs[sign].sum())),
        **above(run.all.by_step(np.logical_or.reduce(list(_signs(run.all).values()))), limit),
        own=bad,
    )


def alike(rows: Rows) -> Floats:
    """Return (G,) share of a group's completions that duplicate another one; NaN for a single one, or if not known."""
    known, count = ~np.isnan(rows.facts["completion_key"]), len(rows.groups.size)
    sizes = np.bincount(rows.group[known], minlength=count)
    kinds = distinct(rows.group[known], rows.facts["completion_key"][known], count=count)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(sizes > 1, (sizes - kinds) / (sizes - 1), np.nan)


def _look_diversity(run: Run) -> Outcome:
    rows, twins, chosen = run.rows, alike(run.rows), _chosen(run)
    sampled = run.all.by_step(-run.all.facts["mean_logprob"])  # in nats per token
    trends = [trend for trend in (logged(run.scalars), sampled) if trend]
    trend = next((it for it in trends if (found := entropy(it)) and found.is_collapsed), trends[-1] if trends else ())
    fallen, share = entropy(trend), mean(twins)
    said = [] if share is None else [f"{percent(share)} of completions duplicate another of their group."]
    source = "the sampler's mean of -log p" if trend is sampled else "logged by the trainer"
    if fallen is not None or trend:
        said.append(f"Entropy ({source}): {fallen.said if fallen else f'{figure(trend[-1][1])} nats per token'}.")
    if not chosen.any():
        if fallen is not None and fallen.is_collapsed:
            begun = below(trend, fallen.limit)
            if not _is_well(run, begun):
                return _collapsed(run, fallen, source, begun)
            said.append("The mean reward still rises, or is near the best.")
        return Below(" ".join(said)) if said else NotJudged("No group has two completions to compare.")
    lost = run.lost * chosen[rows.group]
    temperature = run.config.get("temperature")
    said += [f"Temperature: {figure(temperature)}."] if isinstance(temperature, int | float) else []
    return Card(
        id="diversity",
        title=f"{percent(share or 0.0)} of completions duplicate another in their group",
        cost=float(lost.sum()) / len(rows),
        evidence=tuple(said),
        suggestion="Sample at temperature 1, add an entropy bonus or a KL term, or return to an earlier checkpoint.",
        where="twins>0",
        **above(run.all.by_step(alike(run.all)[run.all.group]), run.threshold("diversity", _HALF)),
        own=lost > 0,
        aspects=("cold",) if _is_cold(run) else (),
        needs=np.inf if _is_cold(run) else None,
    )


def _missing(run: Run) -> str | None:
    has_texts = (~np.isnan(run.rows.facts["completion_key"])).any()
    return None if has_texts or logged(run.scalars) else "token ids, texts, or the trainer's entropy"


def _collapsed(run: Run, found: Entropy, source: str, begun: dict[str, Any]) -> Card:
    return Card(
        id="diversity",
        title=f"Entropy collapsed: {found.said}",
        cost=run.fall.lost,
        evidence=(f"It is {source}.", "The policy samples almost only its likeliest tokens: it no longer explores."),
        suggestion="Add an entropy bonus or a KL term, lower the learning rate, or return to an earlier checkpoint.",
        where="",
        **begun,
        is_loss=False,
    )


def _is_well(run: Run, begun: dict[str, Any]) -> bool:
    """Return True if the mean reward is near the best, or has risen since the entropy fell: it may have learned."""
    rewards = run.all.reward[np.isfinite(run.all.reward)]
    if run.fall.lost <= _NEAR_BEST * (run.scale.best - float(rewards.min(initial=run.scale.best))):
        return True
    since = run.all.where(run.all.step >= (begun["since_step"] or run.rows.steps[0]))
    is_late = since.step >= since.steps[len(since.steps) // 2]
    gain = shift(since.reward, is_late, since.group)
    return gain.is_sure and gain.value > 0


def _chosen(run: Run) -> Bools:
    """Return (G,) True for groups whose rewards are equal because their completions are.

    If sampling is known to be cold, that is every group with zero variance. If the sampler's log-probs show a
    near-deterministic policy, it is every group with zero variance or duplicate completions.
    """
    twins, is_dead = alike(run.rows), dead(run.rows.groups)
    known, same = ~np.isnan(twins), twins >= _ALIKE
    limit = run.threshold("diversity", _HALF)
    is_alike = known.any() and float(twins[known].mean()) >= limit
    if known.any() and _is_cold(run):
        chosen, is_enough = is_dead, is_alike
    # If the policy samples almost only its likeliest tokens, duplicates follow from that.
    elif is_alike and (surprise := mean(-run.rows.facts["mean_logprob"])) is not None and surprise < FLOOR:
        chosen = is_dead | same
        failed = chosen & unsolved_groups(run.rows, run.scale)
        is_enough = failed.sum() >= _FAILED * known.sum()
    else:
        chosen = is_dead & same
        is_enough = known.any() and same.sum() / known.sum() >= limit and is_dead[same].mean() >= _DEAD
    return chosen & is_enough


def _is_cold(run: Run) -> bool:
    """Return True if sampling is known to be nearly greedy; completions may be equal for other reasons, too."""
    temperature = run.config.get("temperature")
    return isinstance(temperature, int | float) and temperature <= _COLD


DEGENERATE_TEXT = Diagnostic(
    "degenerate_text",
    "Degenerate text",
    f"zlib makes the last 10,000 characters of an answer more than {_COMPRESSION:g} times smaller; or, from 30 words "
    f"on, at most {_WORDS:.0%} of its words are distinct, or {_TRIGRAMS:.0%} of its three-word sequences repeat; in "
    f"more than {_SHARE:.0%} of rollouts, unless they do as well as the others.",
    "slime, rolloutscope",
    lambda run: None if (~np.isnan(run.rows.facts["compression"])).any() else "messages",
    _look_degenerate,
    limits=SHARE,
    position=170,
    explained_by=("infrastructure", "loops", "diversity:cold", "length"),
    is_behaviour=True,
)
DIVERSITY = Diagnostic(
    "diversity",
    "Entropy and diversity",
    f"Groups in which at least {_ALIKE:.0%} of completions duplicate another, from {_HALF:.0%} of groups on, if "
    f"{_DEAD:.0%} of those groups have zero variance, or if the mean of -log p is below {FLOOR:g} and "
    f"{_FAILED:.0%} of groups fail. Or an entropy (the sampler's mean of -log p, else what the trainer logs) below "
    f"half of the first {STEPS} steps' median and {FLOOR:g} nats, or below {ENTROPY_SHARE:.0%} of it and {LOW:g} nats, "
    f"unless the mean reward still rises, or is within {_NEAR_BEST:.0%} of the best.",
    "ours; there is no agreed floor",
    _missing,
    _look_diversity,
    limits=SHARE,
    position=160,
    explained_by=("infrastructure", "parse_failures", "truncation", "loops", "never_acted", "degenerate_text"),
    is_behaviour=True,
)
