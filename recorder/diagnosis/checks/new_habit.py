"""Finds a kind of action, or words, that few rollouts had at first and many have now, and that loses."""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import TypeGuard

import numpy as np

from logs_ui.recorder.action_text import observed_text, split_reasoning, tool_of
from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.answers import text_of
from logs_ui.recorder.diagnosis.card import Below, Card, NotJudged, Outcome, Run, Texts, check, needs, uncovered
from logs_ui.recorder.diagnosis.change_point import above, change
from logs_ui.recorder.diagnosis.contrast import CHANCE, SURER
from logs_ui.recorder.diagnosis.largest_differences import time_sides
from logs_ui.recorder.diagnosis.mean_difference import Difference, compare
from logs_ui.recorder.diagnosis.measures import mean
from logs_ui.recorder.diagnosis.waterfall import losses
from logs_ui.recorder.diagnosis.wording import figure, percent

_SHARE, _RARER = 0.2, 3  # of the rollouts; times rarer at first [ours]
_PART = 0.5  # of what all lose more than at first, at least: a habit that costs less does not explain it [ours]
_FIRST_READ, _MOST_READ = 128, 2_500  # rollouts, of the last steps and of others: to find habits; to compare [ours]
_LOOKED = 50  # habits that are compared, those that grew most [ours]
_ACTIONS, _LENGTH = 50, 1_000  # of a rollout; characters of a text [ours]


def _list_habits(texts: Texts) -> Iterator[str]:
    """Yield what a rollout does, as a predicate of rollouts; first what tells more."""
    actions = [action for entry in texts.actions if (action := entry.get("action")) is not None][-_ACTIONS:]
    tools = [tool for action in actions if (tool := tool_of(action)) is not None]
    yield from (f"call {tool}" for tool in tools)
    if tools:
        yield from (f"begin with a call of {tools[0]}", f"end with a call of {tools[-1]}")
    answers = [text_of(message) for message in texts.messages if message.get("role") == "assistant"][-1:]
    for spoken, ending in (
        ([observed_text(action) or "" for action in actions], "in an action"),
        ([split_reasoning(answer)[1] for answer in answers], "in the last answer"),
    ):
        words = [re.findall(r"\b\w{1,40}\b", text[:_LENGTH]) for text in spoken]
        yield from (f"have \u201c{a} {b}\u201d {ending}" for of in words for a, b in pairwise(of))
        yield from (f"have \u201c{word}\u201d {ending}" for of in words for word in of)


def _check(run: Run) -> Outcome:
    rows, sides, limit = run.all, time_sides(run), run.threshold("new_habit", _SHARE)
    if sides is None:
        return NotJudged("The run has a single step.")
    lost, late, strata = np.maximum(losses(rows, run.scale), 0.0), sides.late, sides.strata
    # A run that learned first lost less before it fell than in its first steps.
    jump = change(rows.by_step(lost))
    risen = [late | (rows.step < rows.steps[jump.place])] if jump and jump.after > jump.before else []
    falls = [
        (among, compare(np.where(among, lost, np.nan), late, rows.group, strata)) for among in (sides.among, *risen)
    ]
    among, fall = next((pair for pair in falls if _is_sure(pair[1], CHANCE)), (late, None))
    if fall is None:
        return uncovered(run) or Below("No more is lost than before, beyond chance: no habit that spread explains it.")
    early = rows.step <= rows.step[among & ~late].max()
    first, last = (
        [dict.fromkeys(_list_habits(texts)) for texts in run.sample(among & of, _FIRST_READ).values()]
        for of in (~late, late)
    )
    if not any(first) or not any(last):
        return NotJudged("The texts of the rollouts cannot be read.")
    before, now = (Counter(habit for of_one in some for habit in of_one) for some in (first, last))
    share = {habit: times / len(last) for habit, times in now.items()}
    grown = [habit for habit in share if share[habit] >= max(limit, _RARER * before[habit] / len(first))]
    # Of those that the same rollouts have, the first tells most.
    distinct_habits = {tuple(habit in of_one for of_one in last): habit for habit in reversed(grown)}
    chosen = sorted(distinct_habits.values(), key=lambda habit: before[habit] / len(first) - share[habit])[:_LOOKED]
    read = dict[int, Texts]()
    for of in (late, ~late) if chosen else ():  # whole groups
        read |= run.sample(of & (rows.group % (of.sum() // _MOST_READ + 1) == 0), 2 * _MOST_READ)
    is_read, habits = np.isin(rows.id, list(read)), {row: set(_list_habits(texts)) for row, texts in read.items()}
    costly = []
    for habit in chosen:
        has_habit = np.isin(rows.id, [row for row, of_one in habits.items() if habit in of_one])
        rise = compare(np.where(is_read & among, has_habit, np.nan), late, rows.group, strata)
        more = compare(np.where(is_read, lost, np.nan), has_habit, rows.group, rows.group)
        if not (_is_sure(rise, SURER / len(distinct_habits)) and _is_sure(more, SURER / len(distinct_habits))):
            continue
        if rise.chosen >= _RARER * rise.others and rise.value * more.value >= _PART * fall.value:
            costly.append((rise.value * more.value, habit, has_habit, more))
    is_last = rows.step >= run.rows.steps[0]
    # An answer may tell of what went wrong before, so an action goes first.
    worst = max(costly, key=lambda entry: (not entry[1].endswith(" answer"), entry[0]), default=None)
    if worst is None or (mine := float(worst[2][is_read & is_last].mean())) <= limit:
        return Below(f"None of {len(distinct_habits)} habits that spread costs as much as is lost more than before.")
    _, habit, has_habit, more = worst
    earlier, when = float(has_habit[is_read & early].mean()), f"{rows.steps[0]:,}\u2013{rows.step[early].max():,}"
    means = [figure(mean(rows.reward[is_read & of])) for of in (is_last & has_habit, is_last & ~has_habit, early)]
    return Card(
        id="new_habit",
        title=f"{percent(mine)} of rollouts {habit}, {percent(earlier)} in steps {when}",
        cost=mine * more.value,
        than="others of their groups",
        evidence=(
            f"In groups that have both, they lose {figure(more.value)} more than the others.",
            f"Their mean reward is {means[0]}, that of others {means[1]}, of all in steps {when} {means[2]}.",
        ),
        suggestion="Read some beside others of their groups. Unless it only follows from a failure, the policy learned "
        "it: find what paid for it when it began, or return to a checkpoint before that, with a KL term.",
        where=links.ids(rows.id[has_habit & is_last]),
        **above(rows.by_step(np.where(is_read, has_habit, np.nan)), limit),
        own=has_habit[is_last],
        is_least=not is_read[is_last].all(),
    )


def _is_sure(more: Difference | None, most: float) -> TypeGuard[Difference]:
    return more is not None and more.chance is not None and more.chance <= most and more.value > 0


DIAGNOSTIC = check(
    "new_habit",
    "New habit",
    f"Share of rollouts above {_SHARE:.0%} in the last steps that call a tool, begin or end with a call of it, or have "
    f"a word or a pair of words in an action or in the last answer, if it was {_RARER} times rarer before all fell, or "
    "else in the first steps, at the same tasks where these recur; if they lose more than others of their groups; and "
    f"if this makes up at least {_PART:.0%} of what all lose more since. The rise and the loss must have a probability "
    f"below {SURER:.1%} by chance, corrected for the number of habits that spread so. Of these the {_LOOKED} that grew "
    f"most are compared. At most some {_MOST_READ:,} rollouts of the last steps, and as many before, are read. Silent "
    "unless more is lost than before, beyond chance.",
    needs("a rollout", lambda run: len(run.rows)),
    _check,
    needs_calls=True,
)
