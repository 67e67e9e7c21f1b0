"""Rollouts that differ, and a policy that does not move."""

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, since
from logs_ui.recorder.diagnosis.dead_groups import SAME
from logs_ui.recorder.diagnosis.say import figure

_GRADIENT, _RATE = 1e-8, 1e-12


def _look(run: Run) -> Card | None:
    first = run.rows.steps[0]
    still = {
        name: [value for step, value in run.scalars.get(name, ()) if step >= first]
        for name in ("grad_norm", "learning_rate")
    }
    limits = {"grad_norm": _GRADIENT, "learning_rate": _RATE}
    stopped = [name for name, values in still.items() if values and max(values) <= limits[name]]
    if not stopped or float(run.rows.groups.std.max()) <= SAME:  # without a spread there is nothing to learn
        return None
    name = stopped[0]
    trend = run.scalars[name]
    return Card(
        id="no_update",
        title=f"The policy does not move: {name} is {figure(max(still[name]))}",
        cost=run.fall.lost,
        evidence=tuple(f"{name} of the last steps is at most {figure(max(still[name]))}." for name in stopped),
        suggestion="Look at the learning rate and its schedule, at frozen parameters, at masks that leave nothing.",
        where="",
        trend=trend,
        since_step=since(trend, lambda value: value <= limits[name]),
    )


DIAGNOSTIC = Diagnostic(
    "no_update",
    "Policy does not move",
    f"Gradient norm of at most {_GRADIENT:g} or learning rate of at most {_RATE:g}, while rewards differ.",
    "ours",
    lambda run: None if run.scalars.get("grad_norm") or run.scalars.get("learning_rate") else "the trainer's grad_norm",
    _look,
)
