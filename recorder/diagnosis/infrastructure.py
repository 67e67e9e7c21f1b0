"""Rollouts that the environment, or what runs it, broke."""

from collections import Counter

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, since
from logs_ui.recorder.diagnosis.rows import Floats, Rows
from logs_ui.recorder.diagnosis.say import listed, percent
from logs_ui.recorder.diagnosis.waterfall import CAUSES, causes

_SHARE = 0.05
_CAUSE = next(place for place, cause in enumerate(CAUSES) if cause.id == "infrastructure")


def _broken(rows: Rows) -> Floats:
    broken: Floats = (causes(rows) == _CAUSE).astype(float)
    return broken


def _look(run: Run) -> Card | None:
    rows, limit = run.rows, run.threshold("infrastructure", _SHARE)
    broken = _broken(rows) > 0
    share = float(broken.mean())
    if share <= limit:
        return None
    kinds = Counter(str(error).partition(":")[0] for error in rows.error[broken] if error)
    tasks = Counter(rows.tasks[task] for task in rows.task[broken] if task >= 0)
    trend = run.all.by_step(_broken(run.all))
    said = [f"{count} times {kind}." for kind, count in kinds.most_common(3)]
    worst = [f"{name} ({count})" for name, count in tasks.most_common(3)]
    said += [f"Of {len(tasks)} tasks, most often {listed(worst)}."] if worst else []
    return Card(
        id="infrastructure",
        title=f"The environment broke {percent(share)} of rollouts",
        cost=run.cost_of("infrastructure"),
        evidence=tuple(said),
        suggestion="Mend the environment, or leave these rollouts out of the loss: the fault is not the policy's.",
        where="cause:infrastructure",
        is_part=True,
        trend=trend,
        since_step=since(trend, lambda value: value > limit),
        explains=("invalid_reward", "never_solved", "dead_groups"),
    )


DIAGNOSTIC = Diagnostic(
    "infrastructure",
    "Environment and infrastructure",
    f"Share of rollouts that ended by an error, a timeout or a full server, above {_SHARE:.0%}.",
    "prime-rl",
    lambda run: None if len(run.rows) else "a rollout",
    _look,
)
