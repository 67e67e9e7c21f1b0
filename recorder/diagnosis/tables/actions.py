"""Counts rollouts by what they did in their environments."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from logs_ui.recorder.diagnosis.links import selecting
from logs_ui.recorder.diagnosis.measures import mean
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Floats, Rows, means
from logs_ui.recorder.diagnosis.scale import Scale
from logs_ui.recorder.queries.filters.terms import print_name
from logs_ui.recorder.vocabulary import LOOP, REPEATS

_MOST, OCCUR = 0.5, 0.8  # of the actions that do not occur in an answer; of the others, which must occur [ours]


@dataclass(frozen=True)
class Habit:
    """A behaviour of rollouts that a column shows."""

    id: str
    name: str
    meaning: str
    column: str  # a name in `Rows.facts`
    where: str  # the filter that selects its rollouts
    has: Callable[[Floats], Bools]  # returns True for values that show it


HABITS = (
    Habit("never_acted", "never act", "Not one action reached the environment.", "env_steps", "env_steps:0",
          lambda values: values == 0),
    Habit("env_errors", "have a call that raised", "At least one call to the environment raised, or one within it. An"
          " error that only an observation tells of does not count.", "env_errors", "env_errors>0",
          lambda values: values > 0),
    Habit("unparsed", "answer without an action", "At least one answer of the model gave no action. Of those who"
          " act by calling tools, the last answer may do so.", "parse_failures",
          "parse_failures>0", lambda values: values > 0),
    Habit("streak", f"repeat an action {LOOP} times in a row", "Equal actions, one right after the other, anywhere.",
          "action_streak", f"action_streak>={LOOP}", lambda values: values >= LOOP),
    Habit("loops", "repeat the same actions", f"They end with {LOOP} equal actions in a row, or took more than"
          f" {REPEATS:.0%} of their actions before at the same observation: what the finding on loops counts.",
          "action_tail", "", lambda values: values > 0),
    Habit("no_tool", "call no tool", "No tool call in the model's messages, while other rollouts make some.",
          "tool_calls", "tool_calls:0", lambda values: values == 0),
)  # fmt: skip
"""In the order in which a page shows them."""


@dataclass(frozen=True)
class HabitFound:
    """A habit, with the number of rollouts that have it."""

    habit: Habit
    rollouts: int
    recorded: int  # number of rollouts for which the column is recorded
    mean: float | None  # mean reward of rollouts with the habit; None without any
    mean_others: float | None  # mean reward of the others; None without any

    @property
    def others(self) -> int:
        """Number of the rollouts that do not have it."""
        return self.recorded - self.rollouts


@dataclass(frozen=True)
class Tally:
    """The rollouts that have one value of a column."""

    value: str | None  # None for rollouts without a recorded action
    rollouts: int
    mean: float | None  # their mean reward; None without any
    scored: int  # how many of them count as solved or not
    solved: int | None  # how many of these solved their task; None if what counts as solved is not defined


class Fallback(NamedTuple):
    """The action that the loop sends if it finds none in an answer."""

    action: str
    others: float  # the share of its other actions that occur in the answer before them, about
    occurring: float  # the same of all actions, exactly

    @property
    def where(self) -> str:
        return f"unsaid_action:{print_name(self.action)}"

    def sent(self, rows: Rows) -> Floats:
        """Return (N,) how often it was sent; NaN if that is not known."""
        return np.where(rows.facts["unsaid_action"] == self.action, 1.0, 0.0) * rows.facts["unsaid_actions"]


def fallback_of(rows: Rows) -> Fallback | None:
    """Return the loop's fallback: most of the actions that do not occur in the answer before them, while others do.

    None if there is none, or if it is sent only once, as the last action: the loop ends the episode with it then.
    """
    unsaid, steps = rows.facts["unsaid_actions"], rows.facts["env_steps"]
    names, codes = np.unique([str(action or "") for action in rows.facts["unsaid_action"]], return_inverse=True)
    # Of the unsaid actions of a rollout only the most frequent one is stored, so all of them are counted under that
    # one.
    sums, occurring = np.bincount(codes, np.nan_to_num(unsaid)), float(np.nansum(steps - unsaid))
    if not occurring or not sums.any():
        return None
    top = int(np.argmax(sums))
    others = occurring / (occurring + float(sums.sum() - sums[top]))
    fallback = Fallback(str(names[top]), others, occurring / (occurring + float(sums.sum())))
    mine = (codes == top) & (unsaid > 0)
    closing = mine & (unsaid == 1) & (rows.facts["last_action"] == fallback.action)
    is_one = sums[top] >= _MOST * sums.sum() and closing.sum() < OCCUR * mine.sum()
    return fallback if is_one and fallback.others >= OCCUR else None


def loop_kinds(rows: Rows) -> dict[str, Bools]:
    """Return (N,) True for rollouts that end with LOOP equal actions in a row, and for those with a share above REPEATS
    repeated at a known observation, by the filters that select them. A streak before the end was left behind.
    """
    return {
        f"action_tail>={LOOP}": rows.facts["action_tail"] >= LOOP,
        f"repeats>{REPEATS:g}": rows.facts["repeats"] > REPEATS,
    }


def looping(rows: Rows) -> Bools:
    """Return (N,) True for rollouts with either kind of loop."""
    at_end, around = loop_kinds(rows).values()
    return at_end | around


def habits(rows: Rows) -> list[HabitFound]:
    """Return the habits for which anything is recorded."""
    occurring, fallback = [], fallback_of(rows)
    for habit in HABITS:
        values = rows.facts[habit.column]
        if habit.id == "unparsed" and fallback is not None:
            sent = fallback.sent(rows)
            kinds, values = {habit.where: values > 0, fallback.where: sent > 0}, np.fmax(values, sent)
            habit = replace(habit, where=selecting(rows.id, values > 0, kinds))  # noqa: PLW2901
        if habit.id == "loops":
            kinds, values = loop_kinds(rows), np.where(np.isnan(values), np.nan, looping(rows))
            habit = replace(habit, where=selecting(rows.id, looping(rows), kinds))  # noqa: PLW2901
        is_known = ~np.isnan(values)
        has = is_known & habit.has(values)
        if is_known.any() and not (habit.id == "no_tool" and has[is_known].all()):
            rewards = mean(rows.reward[has]), mean(rows.reward[is_known & ~has])
            occurring.append(HabitFound(habit, int(has.sum()), int(is_known.sum()), *rewards))
    return occurring


def tallies(rows: Rows, scale: Scale, column: str) -> list[Tally]:
    """Return the rollouts by the texts of a column, most frequent first."""
    values, is_told = rows.facts[column].tolist(), scale.success.is_defined
    places = {name: place for place, name in enumerate(dict.fromkeys(values))}
    code = np.fromiter(map(places.__getitem__, values), np.int64, len(values))
    has = np.isfinite(rows.reward)
    counts = [
        np.bincount(code[of], minlength=len(places))
        for of in (has | True, has & scale.success.countable(rows), has & scale.success.solved(rows))
    ]
    mean_of = means(code, rows.reward, len(places))
    counted = [
        Tally(name, int(n), None if np.isnan(average) else float(average), int(scored), int(wins) if is_told else None)
        for name, average, n, scored, wins in zip(places, mean_of, *counts, strict=True)
    ]
    return sorted(counted, key=lambda tally: -tally.rollouts)
