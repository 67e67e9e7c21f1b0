"""Counts the truth of generated rollouts, for tests that compare it with what is said."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from logs_ui.recorder.diagnosis.tables.tasks import Label
from logs_ui.recorder.vocabulary import LossCause
from tests.faults.realistic import Truth

ATTEMPTS, EASY = 10, 0.8
SAME = 1e-6

Rollouts = list[Mapping[str, Any]]


def by(key: str, rollouts: Iterable[Mapping[str, Any]]) -> dict[str, Rollouts]:
    """Return the rollouts by their `task`, `family` or `group`."""
    found: dict[str, Rollouts] = defaultdict(list)
    for it in rollouts:
        found[it[key]].append(it)
    return found


def tried(rollouts: Iterable[Mapping[str, Any]]) -> Rollouts:
    """Return the rollouts with a reward."""
    return [it for it in rollouts if it["reward"] is not None]


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def is_dead(group: Rollouts) -> bool:
    """Return True if all rewards of a group are equal, and there are several."""
    rewards = [it["reward"] for it in tried(group)]
    return len(rewards) > 1 and max(rewards) - min(rewards) <= SAME


def label_of(mine: Rollouts) -> Label:
    """Return a task's label: regressed if that was planted, the others by the definitions that the page prints."""
    mine = tried(mine)
    if len(mine) < ATTEMPTS:
        return Label.FEW
    if not any(it["solved"] for it in mine):
        return Label.NEVER
    if any("forgotten" in it["causes"] for it in mine):
        return Label.FORGOTTEN
    begins = sorted(it["step"] for it in mine)[-ATTEMPTS]
    return Label.SATURATED if fmean(it["solved"] for it in mine if it["step"] >= begins) >= EASY else Label.LEARNING


def labels(truth: Truth) -> dict[str, Label]:
    """Return the label of each task."""
    return {task: label_of(mine) for task, mine in by("task", truth.rollouts).items()}


def cause_of(it: Mapping[str, Any]) -> LossCause:
    """Return what ended a rollout."""
    if it["errored"]:
        return LossCause.INFRASTRUCTURE
    if it["reward"] is None:
        return LossCause.INVALID_REWARD
    if it["truncated"]:
        return LossCause.TRUNCATION
    if it["ends_in_streak"] and not it["done"]:
        return LossCause.LOOP
    return LossCause.WRONG_ANSWER


def twins(rollouts: Rollouts) -> tuple[Rollouts, Rollouts]:
    """Return the rollouts that have a duplicate, and those whose scores differ by more than 1% of the range."""
    scores: dict[Any, list[float]] = defaultdict(list)
    for it in rollouts:
        scores[it["task"], it["text"]].append(it["values"]["judge"])
    every = [it["values"]["judge"] for it in rollouts]
    least = 0.01 * (max(every) - min(every))
    found = [(it, scores[it["task"], it["text"]]) for it in rollouts]
    return [it for it, own in found if len(own) > 1], [it for it, own in found if max(own) - min(own) > least]
