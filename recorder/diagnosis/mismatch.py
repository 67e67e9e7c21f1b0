"""Trainer and sampler that do not agree on the log-probs of what was sampled."""

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, Trend, since
from logs_ui.recorder.diagnosis.say import figure

_DIFFERENCE = "sampling/sampling_logp_difference/mean"
_RATIO = "sampling/importance_sampling_ratio/min"
_MEAN = 0.05  # nats: mean exp|Δ| of 1.05


def _look(run: Run) -> Card | None:
    trend = _recent(run, run.scalars.get(_DIFFERENCE, ()))
    limit = run.threshold("mismatch", _MEAN)
    if not trend or sum(value for _, value in trend) / len(trend) <= limit:
        return None
    mean = sum(value for _, value in trend) / len(trend)
    ratios = _recent(run, run.scalars.get(_RATIO, ()))
    said = [f"Mean |log p of the trainer less that of the sampler| is {figure(mean)} nats a token."]
    said += (
        [f"The smallest importance-sampling ratio is {figure(min(value for _, value in ratios))}."] if ratios else []
    )
    whole = run.scalars[_DIFFERENCE]
    return Card(
        id="mismatch",
        title=f"Trainer and sampler disagree by {figure(mean)} nats a token",
        cost=run.fall.lost,
        evidence=tuple(said),
        suggestion="Sample with the weights, dtype and temperature that are trained, and hand over the ids "
        "that were sampled: those of a text that is encoded anew may differ.",
        where="",
        trend=whole,
        since_step=since(whole, lambda value: value > limit),
    )


def _recent(run: Run, trend: Trend) -> Trend:
    return tuple(point for point in trend if point[0] >= run.rows.steps[0])


DIAGNOSTIC = Diagnostic(
    "mismatch",
    "Trainer against sampler",
    f"Mean |Δ log p| over the trained tokens, as the trainer logs it, above {_MEAN:g}: mean exp|Δ| above 1.05.",
    "NeMo-RL",
    lambda run: None if run.scalars.get(_DIFFERENCE) else f"the trainer's {_DIFFERENCE}",
    _look,
)
