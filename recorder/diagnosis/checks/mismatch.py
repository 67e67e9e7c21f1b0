"""Finds a trainer and a sampler that disagree on the log-probs of the sampled tokens."""

from collections.abc import Callable

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, Trend, since
from logs_ui.recorder.diagnosis.rollout_rows import Rows
from logs_ui.recorder.diagnosis.wording import figure, percent
from logs_ui.recorder.settings import FROM_NOTHING

_DIFFERENCE = "sampling/sampling_logp_difference/mean"
_RATIO = "sampling/importance_sampling_ratio/"
_MEAN = 0.05  # nats: mean exp|Δ| of 1.05
_LEAST_RATIO = 0.5  # of a mean that is 1 if both agree [ours]
_ENTROPY = 0.5  # share of the trainer's entropy [ours]
_LEAST_ENTROPY = 0.1  # nats
_ERRORS = 3.0  # standard errors


def _look(run: Run) -> Card | None:
    return _logged(run) or _by_ratio(run) or _by_entropy(run)


def _logged(run: Run) -> Card | None:
    whole = run.scalars.get(_DIFFERENCE, ())
    limit = run.threshold("mismatch", _MEAN)
    mean = _mean(run.recent(whole))
    if not mean > limit:
        return None
    said = [f"Mean |log p (trainer) - log p (sampler)|: {figure(mean)} nats per token."]
    ratios = run.recent(run.scalars.get(f"{_RATIO}min", ()))
    said += [f"Smallest importance-sampling ratio: {figure(min(value for _, value in ratios))}."] if ratios else []
    return _card(run, f"{figure(mean)} nats per token", said, whole, lambda value: value > limit)


def _by_ratio(run: Run) -> Card | None:
    """Judge by the mean importance-sampling ratio: it should be 1, and falls because ratios are capped or set to 0."""
    whole = run.scalars.get(f"{_RATIO}mean", ())
    mean = _mean(run.recent(whole))
    if not mean < _LEAST_RATIO:
        return None
    said = [f"If both agree it is 1. The loss is weighted by it: {percent(1 - mean)} of the gradient is lost."]
    title = f"the mean importance-sampling ratio is {figure(mean)}"
    return _card(run, title, said, whole, lambda value: value < _LEAST_RATIO)


def _by_entropy(run: Run) -> Card | None:
    """Judge by the entropy: for on-policy samples, the sampler's mean of -log p equals it in expectation.

    Only at temperature 1: samplers leave the temperature out of their log-probs, and the trainer does not. Both are
    means over tokens, so a long answer counts more than a short one.
    """
    if run.config.get("temperature", 1.0) != 1.0:
        return None
    entropies = dict(run.scalars.get("entropy", ()))
    sampled = dict(_surprise(run.all))
    whole = tuple((step, sampled[step] - entropies[step]) for step in sorted(entropies.keys() & sampled.keys()))
    recent = run.recent(whole)
    if not recent:
        return None
    entropy = _mean(tuple((step, entropies[step]) for step, _ in recent))
    limit = max(_ENTROPY * entropy, _LEAST_ENTROPY)
    mean = _mean(recent)
    between = float(np.std([value for _, value in recent])) / np.sqrt(len(recent))
    error = max(between, _error(run.all.where(np.isin(run.all.step, [step for step, _ in recent]))))
    if not (abs(mean) > limit and abs(mean) > _ERRORS * error and np.isfinite(mean)):
        return None
    nll, own = figure(entropy + mean), figure(entropy)
    said = [
        f"The sampler's mean of -log p is {nll} nats per token; the trainer's entropy over the same tokens is {own}."
    ]
    said += ["For on-policy samples the two are equal in expectation."]
    title = f"sampler NLL {nll} vs trainer entropy {own} nats per token"
    return _card(run, title, said, whole, lambda value: abs(value) > limit)


def _surprise(rows: Rows) -> Trend:
    """Return the mean of -log p over each step's sampled tokens; steps without any are left out."""
    surprise, tokens = -rows.facts["mean_logprob"], rows.completion_tokens
    known = np.isfinite(surprise) & (tokens > 0)
    sums = rows.by_step(np.where(known, surprise * tokens, np.nan))
    counts = rows.by_step(np.where(known, tokens, np.nan))
    return tuple((step, total / count) for (step, total), (_, count) in zip(sums, counts, strict=True))


def _error(rows: Rows) -> float:
    """Return the standard error of the mean over tokens, clustered by rollout (ratio estimator, Cochran 1977)."""
    surprise, tokens = -rows.facts["mean_logprob"], rows.completion_tokens
    known = np.isfinite(surprise) & (tokens > 0)
    surprise, tokens = surprise[known], tokens[known]
    mean = np.average(surprise, weights=tokens)
    return float(np.sqrt(np.sum((tokens * (surprise - mean)) ** 2)) / np.sum(tokens))


def _card(run: Run, title: str, said: list[str], trend: Trend, is_bad: Callable[[float], bool]) -> Card:
    return Card(
        id="mismatch",
        title=f"Trainer/sampler mismatch: {title}",
        cost=run.fall.lost,
        evidence=tuple(said),
        suggestion="Sample with the weights, dtype and temperature that are trained, and return the ids and log-probs "
        "that were sampled: re-tokenised text may not match.",
        where="",
        trend=trend,
        since_step=since(trend, is_bad),
        stops_learning=True,
    )


def _mean(trend: Trend) -> float:
    return float(np.mean([value for _, value in trend])) if trend else float("nan")


def _missing(run: Run) -> str | None:
    by_entropy = run.scalars.get("entropy") and _surprise(run.rows)
    if run.scalars.get(_DIFFERENCE) or run.scalars.get(f"{_RATIO}mean") or by_entropy:
        return None
    return f"the trainer's {_DIFFERENCE}"


DIAGNOSTIC = Diagnostic(
    "mismatch",
    "Trainer/sampler mismatch",
    f"Mean |Δ log p| over the trained tokens, as the trainer logs it, above {_MEAN:g} nats (mean exp|Δ| above 1.05). "
    f"Or a mean importance-sampling ratio below {_LEAST_RATIO:g}. Or a sampler's mean of -log p that differs from the "
    f"trainer's entropy by more than {_ENTROPY:.0%} of that, {_LEAST_ENTROPY:g} nats, and {_ERRORS:g} standard errors.",
    "NeMo-RL; the thresholds of ratios and entropy are ours",
    _missing,
    _look,
    limits=FROM_NOTHING,
    position=40,
)
