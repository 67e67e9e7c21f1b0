"""Finds the part of a run (a family of tasks, a value of a column) whose mean reward falls while that of the others
does not. `forgotten` asks for it. Evals are no parts here: each is judged by itself, see `run_checks`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.card import Card, Run
from logs_ui.recorder.diagnosis.change_point import change, fit_ramp
from logs_ui.recorder.diagnosis.contrast import SURER, spread
from logs_ui.recorder.diagnosis.habits import describe_begun
from logs_ui.recorder.diagnosis.mean_difference import LEAST_UNITS, Difference, compare, is_beyond_chance
from logs_ui.recorder.diagnosis.references import list_data_kinds
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Floats, Ints, distinct, means
from logs_ui.recorder.diagnosis.task_families import tasks_recur
from logs_ui.recorder.diagnosis.waterfall import has_cause
from logs_ui.recorder.diagnosis.wording import figure, list_places
from logs_ui.recorder.vocabulary import LossCause

FAR = 0.2  # of the range of rewards: the least fall of a part [ours]
LIKEWISE = 0.25  # of this fall: the largest of the others [ours]
LOOKED = 20  # parts of each kind, the largest [ours]
_NEAR = 2  # steps: parts that fell together are one finding [ours]


class _Steps(NamedTuple):
    """Holds what is compared: steps from `middle` on with those before `begin`. In between a gradual fall goes on."""

    begin: int  # the first step of the fall
    middle: int


class _Fall(NamedTuple):
    field: str  # of the filter
    names: list[str]  # of the parts
    there: Bools  # (A) True for their rollouts, of all steps
    steps: _Steps
    mine: Difference  # the rewards there, later against earlier
    others: Difference  # those of the other rollouts


def find_fallen_part(run: Run) -> Card | None:
    """Return a card on the part that lost most by its fall, and those that fell with it; None without one."""
    every, recurs = run.all, tasks_recur(run.all)
    is_left_out = has_cause(every, LossCause.INFRASTRUCTURE) | (recurs & (every.task < 0))
    reward, kinds = np.where(is_left_out, np.nan, every.reward), list_data_kinds(run)
    falls = [
        fall
        for field, names, codes in kinds
        for part in _list_largest(codes, every.group, len(names))
        if (fall := _find_fall(run, reward, codes == part, (field, [names[part]]))) is not None
    ]
    most_chance = SURER / (max(sum(min(len(names), LOOKED) for _, names, _ in kinds), 1) * len(every.steps))
    sure = [fall for fall in falls if _is_sure(run, reward, fall, [codes for *_, codes in kinds], most_chance)]
    is_last = every.step >= run.rows.steps[0]
    worst = min(sure, key=lambda fall: fall.mine.value * fall.there[is_last].sum(), default=None)
    if worst is None:
        return None
    alike = [
        fall for fall in sure if fall.field == worst.field and abs(fall.steps.middle - worst.steps.middle) <= _NEAR
    ]
    there = np.logical_or.reduce([fall.there for fall in alike])
    mine, others = (_compare_with_before(run, np.where(of, reward, np.nan), worst.steps) for of in (there, ~there))
    if len(alike) > 1 and mine is not None and others is not None:
        names = [name for fall in alike for name in fall.names]
        worst = worst._replace(names=names, there=there, mine=mine, others=others)
    return _make_card(run, worst, reward)


def _list_largest(codes: Ints, units: Ints, count: int) -> Sequence[int]:
    """Return the parts that have the most groups, if two or more have enough of them."""
    groups = distinct(codes[codes >= 0], units[codes >= 0], count=count)
    largest = np.argsort(-groups, kind="stable")[:LOOKED]
    parts: list[int] = largest[groups[largest] >= 2 * LEAST_UNITS].tolist()
    return parts if len(parts) > 1 else []


def _lead_of_others(run: Run, reward: Floats, there: Bools) -> Floats:
    """Return (A) the mean of the other rollouts at the same step less the reward; NaN for other rollouts."""
    place = np.searchsorted(run.all.steps, run.all.step)
    others = means(place, np.where(there, np.nan, reward), len(run.all.steps))[place]
    return np.where(there, others - reward, np.nan)


def _find_fall(run: Run, reward: Floats, there: Bools, named: tuple[str, list[str]]) -> _Fall | None:
    """Return the fall of a part beside the others of the same steps, if it is large and theirs is not."""
    least, trend = FAR * spread(run), run.all.by_step(_lead_of_others(run, reward, there))
    point = change(trend)
    if point is None or point.after - point.before < least:
        return None
    ramp, middle = fit_ramp(trend, point), trend[point.place][0]
    steps = _Steps(middle if ramp is None else min(ramp.begin, middle), middle)
    mine, others = (_compare_with_before(run, np.where(of, reward, np.nan), steps) for of in (there, ~there))
    if mine is None or others is None or -mine.value < least or -others.value > LIKEWISE * -mine.value:
        return None
    return _Fall(*named, there, steps, mine, others)


def _compare_with_before(
    run: Run, values: Floats, steps: _Steps, codes: Ints | None = None, first: int | None = None
) -> Difference | None:
    """Compare (A) values since the middle of a fall, or since a later `first` step, with those before its begin: within
    codes, or else within tasks, if these recur.
    """
    every = run.all
    among = (every.step < steps.begin) | (every.step >= (steps.middle if first is None else max(first, steps.middle)))
    strata = codes if codes is not None else every.task if tasks_recur(every) else None
    return compare(np.where(among, values, np.nan), every.step >= steps.middle, every.group, strata)


def _is_sure(run: Run, reward: Floats, fall: _Fall, kinds: Sequence[Ints], most_chance: float) -> bool:
    """Return True if a fall is beyond chance, lasts, and is as far among the rollouts that ended with an answer: what
    ended otherwise, such as at a limit, has findings of its own. Where tasks come once, others may have come to the
    part: then it must have fallen within the values of each other kind, too, if these can be compared, and its prompts
    must be as long as before.
    """
    mine, least = np.where(fall.there, reward, np.nan), FAR * spread(run)
    last = _compare_with_before(run, mine, fall.steps, first=int(run.rows.steps[0]))
    is_answered = has_cause(run.all, LossCause.WRONG_ANSWER)
    answered = _compare_with_before(run, np.where(is_answered, mine, np.nan), fall.steps)
    # Beside the others a fall is surer than beside its own past, in which the part may have been learned.
    beside = _compare_with_before(run, _lead_of_others(run, reward, fall.there), fall.steps)
    is_sure = is_beyond_chance(beside, most_chance) and is_beyond_chance(fall.mine, SURER)
    if not is_sure or any(of is None or -of.value < least for of in (last, answered)):
        return False
    if tasks_recur(run.all):
        return True
    length = np.where(fall.there, run.all.facts.get("prompt_tokens", np.full(len(run.all), np.nan)), np.nan)
    if is_beyond_chance(_compare_with_before(run, length, fall.steps), SURER):
        return False
    within = (_compare_with_before(run, mine, fall.steps, codes) for codes in kinds)
    return all(
        is_beyond_chance(of, SURER) and -of.value >= least for of in within if of is not None and of.chance is not None
    )


def _make_card(run: Run, fall: _Fall, reward: Floats) -> Card:
    every, (mine, others) = run.all, (fall.mine, fall.others)
    own, begin, recurs = fall.there[every.step >= run.rows.steps[0]], f"{fall.steps.begin:,}", tasks_recur(run.all)
    compared = "at the same tasks" if recurs else "of other tasks, since these seldom recur"
    tasks = "" if recurs else " Look at the order of the data, too: its later tasks may be harder."
    field = "families" if fall.field == "family" and len(fall.names) > 1 else fall.field
    return Card(
        id="forgotten",
        title=f"In {list_places(fall.names, field)} the mean reward fell from {figure(mine.others)} to "
        f"{figure(mine.chosen)}; elsewhere {figure(others.others)} \u2192 {figure(others.chosen)}",
        cost=-mine.value * float(own.mean()),
        than="before",
        evidence=(
            f"Steps {fall.steps.middle:,}\u2013{every.steps[-1]:,} against those before step {begin}, {compared}.",
            f"{int(own.sum()):,} of the {len(own):,} rollouts of the last steps are of this part.",
            *describe_begun(
                run, fall.there & (every.step < fall.steps.begin), fall.there & (every.step >= fall.steps.middle)
            ),
        ),
        suggestion=f"Look first at what changed there around step {begin}: the environment, its tools, tests, the "
        f"reward function.{tasks} If nothing changed, sample these tasks more often.",
        where=links.tasks(fall.names, fall.field),
        trend=every.by_step(np.where(fall.there, reward, np.nan)),
        since_step=fall.steps.begin,
        own=own,
    )
