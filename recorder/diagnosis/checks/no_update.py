"""Finds a policy that is not updated although rewards differ."""

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, Trend, since
from logs_ui.recorder.diagnosis.measures import FIRST_KL, STANDSTILL
from logs_ui.recorder.diagnosis.rollout_rows import SAME
from logs_ui.recorder.diagnosis.wording import figure


def _recent(run: Run, name: str) -> list[float]:
    """Return what was logged at the last steps, else the latest value before them.

    A learning rate that was never logged is taken from the trainer's arguments.
    """
    trend, given = run.scalars.get(name, ()), run.config.get(name)
    recent = [value for _, value in run.recent(trend)]
    if not recent and name == "learning_rate" and isinstance(given, int | float):
        return [float(given)]
    if name == "kl" and (np.isfinite([value for _, value in trend]).sum() <= FIRST_KL or not run.config.get("beta", 1)):
        return []  # with a weight of 0 the trainer does not compute it
    return recent


def _look(run: Run) -> Card | None:
    spread = run.rows.groups.std
    if not (spread[np.isfinite(spread)] > SAME).any():  # if all rewards are equal there is nothing to learn
        return None
    found = {name: values for name in STANDSTILL if (values := _recent(run, name))}
    stopped = [name for name, values in found.items() if max(np.abs(values)) <= STANDSTILL[name]]
    if not stopped:
        return None
    name = stopped[0]
    trend: Trend = run.scalars.get(name, ())
    said = [f"{it} is at most {figure(max(np.abs(found[it])))} over the last steps." for it in stopped]
    clip = run.scalars.get("clip_ratio/region_mean", run.scalars.get("clip_ratio", ()))
    clipped = [value for step, value in clip if step >= run.rows.steps[0]]
    if clipped and max(clipped) == 0:
        said.append("No token was clipped.")
    return Card(
        id="no_update",
        title=f"The policy is not updated: {name} is {figure(max(np.abs(found[name])))}",
        cost=run.fall.lost,
        evidence=(*said, f"Rewards differ in {int((spread > SAME).sum())} of {len(spread)} groups: there is a signal."),
        suggestion="Check the learning rate and its schedule, frozen parameters, and masks that leave no tokens.",
        where="",
        trend=trend,
        since_step=since(trend, lambda value: abs(value) <= STANDSTILL[name]),
        stops_learning=True,
    )


DIAGNOSTIC = Diagnostic(
    "no_update",
    "Policy not updating",
    "Over the last steps a learning rate of at most {learning_rate:g}, a gradient norm of at most {grad_norm:g}, or a "
    "KL to the reference of at most {kl:g}, while rewards differ within groups.".format_map(STANDSTILL),
    "ours",
    lambda run: None if any(_recent(run, name) for name in STANDSTILL) else "the trainer's learning_rate or grad_norm",
    _look,
    position=60,
)
