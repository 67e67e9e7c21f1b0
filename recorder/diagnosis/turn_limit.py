"""Episodes that the rollout function gives up before the environment is done."""

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, since
from logs_ui.recorder.diagnosis.loops import looping
from logs_ui.recorder.diagnosis.say import figure, percent
from logs_ui.recorder.models import StopReason

_SHARE = 0.2


def _look(run: Run) -> Card | None:
    rows, limit = run.rows, run.threshold("turn_limit", _SHARE)
    ended = rows.stop_reason == StopReason.TURN_LIMIT
    share = float(ended.mean())
    if share <= limit or run.cost_of("loop") <= 0:
        return None
    trend = run.all.by_step((run.all.stop_reason == StopReason.TURN_LIMIT).astype(float))
    alone = ended & ~looping(rows)
    return Card(
        id="turn_limit",
        title=f"{percent(share)} of rollouts run out of turns",
        cost=run.cost_of("loop"),
        evidence=(
            f"They have {figure(float(rows.turns[ended].mean()))} turns at the mean.",
            f"{percent(float(alone.sum() / ended.sum()))} of them did not go round in circles.",
        ),
        suggestion="Allow more turns, or make the task smaller: nothing after the last turn is ever rewarded.",
        where="stop:turn_limit",
        is_part=True,
        trend=trend,
        since_step=since(trend, lambda value: value > limit),
        explains=("dead_groups", "never_solved"),
    )


DIAGNOSTIC = Diagnostic(
    "turn_limit",
    "Turn limit",
    f"Share of rollouts whose environment would have gone on, above {_SHARE:.0%}.",
    "NeMo Gym PR 1304; the threshold is ours",
    lambda run: None if (run.rows.stop_reason != StopReason.NOT_RECORDED).any() else "why rollouts ended",
    _look,
)
