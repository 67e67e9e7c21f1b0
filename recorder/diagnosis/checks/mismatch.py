"""Trainer and sampler that do not agree on the log-probs of what was sampled."""

from collections.abc import Callable

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, Trend, since
from logs_ui.recorder.diagnosis.rollout_rows import Rows
from logs_ui.recorder.diagnosis.wording import figure, percent
from logs_ui.recorder.settings import FROM_NOTHING

_DIFFERENCE = "sampling/sampling_logp_difference/mean"
_RATIO = "sampling/importance_sampling_ratio/"
_MEAN = 0.05  # nats: mean exp|Δ| of 1.05
_LEAST_RATIO = 0.5  # ours: of a mean that is 1 where both agree
_ENTROPY = 0.5  # ours: share of the trainer's entropy
_LEAST_ENTROPY = 0.1  # nats
_ERRORS = 3.0  # standard errors


def _look(run: Run) -> Card | None:
    return _logged(run) or _by_ratio(run) or _by_entropy(run)


def _logged(run: Run) -> Card | None:
    whole = run.scalars.get(_DIFFERENCE, ())
    limit = run.threshold("mismatch", _MEAN)
    mean = _mean(_recent(run, whole))
    if not mean > limit:
        return None
    said = [f"Mean |log p of the trainer less that of the sampler| is {figure(mean)} nats a token."]
    ratios = _recent(run, run.scalars.get(f"{_RATIO}min", ()))
    said += (
        [f"The smallest importance-sampling ratio is {figure(min(value for _, value in ratios))}."] if ratios else []
    )
    return _card(
        run, f"Trainer and sampler disagree by {figure(mean)} nats a token", said, whole, lambda value: value > limit
    )


def _by_ratio(run: Run) -> Card | None:
    """A ratio that is capped, or set to 0 where it was beyond the cap: its mean falls where it should be 1."""
    whole = run.scalars.get(f"{_RATIO}mean", ())
    mean = _mean(_recent(run, whole))
    if not mean < _LEAST_RATIO:
        return None
    said = [f"Where both agree it is 1. Rollouts are weighed by it: {percent(1 - mean)} of what they teach is lost."]
    title = f"Trainer and sampler disagree: importance-sampling ratios are {figure(mean)} at the mean"
    return _card(run, title, said, whole, lambda value: value < _LEAST_RATIO)


def _by_entropy(run: Run) -> Card | None:
    """The mean of -log p over what one samples is, at the mean, one's own entropy: the sampler's log-probs must be near
    the entropy that the trainer works out over the same tokens. Not at another temperature, which samplers leave out of
    their log-probs and the trainer does not. Both are means over tokens: a long answer counts more than a short one.
    """
    if run.config.get("temperature", 1.0) != 1.0:
        return None
    entropies = dict(run.scalars.get("entropy", ()))
    sampled = dict(_surprise(run.all))
    whole = tuple((step, sampled[step] - entropies[step]) for step in sorted(entropies.keys() & sampled.keys()))
    recent = _recent(run, whole)
    if not recent:
        return None
    entropy = _mean(tuple((step, entropies[step]) for step, _ in recent))
    limit = max(_ENTROPY * entropy, _LEAST_ENTROPY)
    mean = _mean(recent)
    between = float(np.std([value for _, value in recent])) / np.sqrt(len(recent))
    error = max(between, _error(run.all.where(np.isin(run.all.step, [step for step, _ in recent]))))
    if not (abs(mean) > limit and abs(mean) > _ERRORS * error and np.isfinite(mean)):
        return None
    said = [
        (
            f"Mean of -log p of what was sampled, by the sampler, is {figure(entropy + mean)} nats a token; the "
            f"trainer's entropy over the same tokens is {figure(entropy)}."
        ),
        "One's own samples have the first equal to the second, but for chance.",
    ]
    title = f"Trainer and sampler disagree: by {figure(abs(mean))} nats in what the same tokens' entropy is"
    return _card(run, title, said, whole, lambda value: abs(value) > limit)


def _surprise(rows: Rows) -> Trend:
    """Mean of -log p over each step's sampled tokens; steps without any are left out."""
    surprise, tokens = -rows.facts["mean_logprob"], rows.completion_tokens
    known = np.isfinite(surprise) & (tokens > 0)
    sums = rows.by_step(np.where(known, surprise * tokens, np.nan))
    counts = rows.by_step(np.where(known, tokens, np.nan))
    return tuple((step, total / count) for (step, total), (_, count) in zip(sums, counts, strict=True))


def _error(rows: Rows) -> float:
    """Standard error of the mean over tokens, of which those of one rollout go together (Cochran 1977, of ratios)."""
    surprise, tokens = -rows.facts["mean_logprob"], rows.completion_tokens
    known = np.isfinite(surprise) & (tokens > 0)
    surprise, tokens = surprise[known], tokens[known]
    mean = np.average(surprise, weights=tokens)
    return float(np.sqrt(np.sum((tokens * (surprise - mean)) ** 2)) / np.sum(tokens))


def _card(run: Run, title: str, said: list[str], trend: Trend, is_bad: Callable[[float], bool]) -> Card:
    return Card(
        id="mismatch",
        title=title,
        cost=run.fall.lost,
        evidence=tuple(said),
        suggestion="Sample with the weights, dtype and temperature that are trained, and hand over the ids and "
        "log-probs of what was sampled: those of a text that is encoded anew may differ.",
        where="",
        trend=trend,
        since_step=since(trend, is_bad),
        stops_learning=True,
    )


def _recent(run: Run, trend: Trend) -> Trend:
    """Of the steps that are looked at; the last one before where nothing was logged at those."""
    known = tuple(point for point in trend if np.isfinite(point[1]))
    return tuple(point for point in known if point[0] >= run.rows.steps[0]) or known[-1:]


def _mean(trend: Trend) -> float:
    """NaN of none."""
    return float(np.mean([value for _, value in trend])) if trend else float("nan")


def _missing(run: Run) -> str | None:
    by_entropy = run.scalars.get("entropy") and _surprise(run.rows)
    if run.scalars.get(_DIFFERENCE) or run.scalars.get(f"{_RATIO}mean") or by_entropy:
        return None
    return f"the trainer's {_DIFFERENCE}"


DIAGNOSTIC = Diagnostic(
    "mismatch",
    "Trainer against sampler",
    f"Mean |Δ log p| over the trained tokens, as the trainer logs it, above {_MEAN:g} nats: mean exp|Δ| above 1.05. Or "
    f"its importance-sampling ratios below {_LEAST_RATIO:g} at the mean; or the sampler's mean of -log p over its "
    f"tokens further from the trainer's entropy than {_ENTROPY:.0%} of that, {_LEAST_ENTROPY:g} nats, and {_ERRORS:g} "
    "standard errors.",
    "NeMo-RL; of ratios and entropy ours",
    _missing,
    _look,
    limits=FROM_NOTHING,
    position=40,
)
