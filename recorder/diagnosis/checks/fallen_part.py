"""Finds the part of a run (a family of tasks, a value of a column) whose mean reward falls while that of the others
does not. It is no check of its own: `forgotten` asks for it. Each eval is judged by itself, see `run_checks`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.card import Card, Run
from logs_ui.recorder.diagnosis.change_point import change, fit_ramp
from logs_ui.recorder.diagnosis.contrast import SURER, spread
from logs_ui.recorder.diagnosis.habits import describe_begun
from logs_ui.recorder.diagnosis.mean_difference import LEAST_UNITS, Difference, compare
from logs_ui.recorder.diagnosis.measures import mean
from logs_ui.recorder.diagnosis.places import MACHINE, list_kinds
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Floats, Ints, distinct, means
from logs_ui.recorder.diagnosis.task_families import tasks_recur
from logs_ui.recorder.diagnosis.waterfall import has_cause
from logs_ui.recorder.diagnosis.wording import figure, list_places
from logs_ui.recorder.vocabulary import LossCause

FAR = 0.2  # of the range of rewards, that a part falls [ours]
LIKEWISE = 0.25  # of its fall, that the others may fall, too [ours]
_NEAR = 2  # steps: parts that fell together are one finding [ours]
LOOKED = 20  # parts of each kind, the largest [ours]


class _Fall(NamedTuple):
    field: str  # of the filter
    names: list[str]  # of the parts
    there: Bools  # (A) True for its rollouts, of all steps
    begin: int  # the first step of the fall, which may be gradual
    middle: int  # the step that divides what is compared
    here: Difference  # since that step against before
    rest: Difference  # the same of the others
    beside: Difference | None  # the same of its rewards less the means of the others at their steps


def find_fallen_part(run: Run) -> Card | None:
    """Return a card on the part that lost most by its fall; None without one."""
    every, rows = run.all, run.rows
    reward = np.where(has_cause(every, LossCause.INFRASTRUCTURE), np.nan, every.reward)
    kinds = [(field, names, codes) for field, names, codes in list_kinds(run)[1:] if not MACHINE.search(field)]
    falls = [
        fall
        for field, names, codes in kinds
        for part in _list_largest(codes, every.group, len(names))
        if (fall := _find_fall(run, reward, codes == part, (field, [names[part]]))) is not None
    ]
    is_last = every.step >= rows.steps[0]
    count = sum(min(len(names), LOOKED) for _, names, _ in kinds)
    limit = SURER / (max(count, 1) * len(every.steps))
    sure = [fall for fall in falls if _is_sure(run, reward, fall, [codes for *_, codes in kinds], limit)]
    worst = min(sure, key=lambda fall: fall.here.value * fall.there[is_last].sum(), default=None)
    if worst is None:
        return None
    alike = [fall for fall in sure if fall.field == worst.field and abs(fall.middle - worst.middle) <= _NEAR]
    there, late = np.logical_or.reduce([fall.there for fall in alike]), every.step >= worst.middle
    here, rest = _compare_sides(run, reward, there, late)
    if len(alike) > 1 and here is not None and rest is not None:
        names = [name for fall in alike for name in fall.names]
        worst = worst._replace(names=names, there=there, here=here, rest=rest)
    return _make_card(run, worst, worst.there[is_last], reward)


def _list_largest(codes: Ints, units: Ints, count: int) -> Sequence[int]:
    """Return the parts that have the most groups, and groups enough on both sides of some step."""
    groups = distinct(codes[codes >= 0], units[codes >= 0], count=count)
    largest = np.argsort(-groups, kind="stable")[:LOOKED]
    parts: list[int] = largest[groups[largest] >= 2 * LEAST_UNITS].tolist()
    return parts if len(parts) > 1 else []


def _find_fall(run: Run, reward: Floats, there: Bools, named: tuple[str, list[str]]) -> _Fall | None:
    """Return the fall of a part beside the others of the same steps, if it is large and theirs is not."""
    every, least = run.all, FAR * spread(run)
    place = np.searchsorted(every.steps, every.step)
    others = means(place, np.where(there, np.nan, reward), len(every.steps))[place]
    trend = every.by_step(np.where(there, others - reward, np.nan))
    point = change(trend)
    if point is None or point.after - point.before < least:
        return None
    ramp = fit_ramp(trend, point)
    here, rest = _compare_sides(run, reward, there, every.step >= trend[point.place][0])
    if here is None or rest is None or -here.value < least or -rest.value > LIKEWISE * -here.value:
        return None
    middle = trend[point.place][0]
    begin, strata = middle if ramp is None else ramp.begin, every.task if tasks_recur(every) else None
    beside = compare(np.where(there, reward - others, np.nan), every.step >= middle, every.group, strata)
    return _Fall(*named, there, begin, middle, here, rest, beside)


def _compare_sides(run: Run, reward: Floats, there: Bools, late: Bools) -> tuple[Difference | None, Difference | None]:
    """Compare the rewards of a part, and those of the others, of later steps with those of earlier ones."""
    strata = run.all.task if tasks_recur(run.all) else None
    mine, others = (compare(np.where(of, reward, np.nan), late, run.all.group, strata) for of in (there, ~there))
    return mine, others


def _is_sure(run: Run, reward: Floats, fall: _Fall, kinds: Sequence[Ints], limit: float) -> bool:
    """Return True if a fall is beyond chance, and lasts. Where tasks come once, others may have come to the part: then
    it must have fallen as surely within the values of each other kind of parts, and its prompts be as long as before.
    """
    every, last, late = run.all, run.rows.steps[0], run.all.step >= fall.middle
    now = mean(reward[fall.there & (every.step >= last)])
    if now is None or fall.here.others - now < FAR * spread(run):
        return False
    # Beside the others a fall is surer than beside its own past, in which the part may have been learned.
    if not (_is_beyond(fall.beside, limit) and _is_beyond(fall.here, SURER)):
        return False
    if tasks_recur(every):
        return True
    there = np.where(fall.there, reward, np.nan)
    length = every.facts.get("prompt_tokens", np.full(len(every), np.nan))
    longer = compare(np.where(fall.there, length, np.nan), late, every.group)
    if longer is not None and (longer.chance or 0.0) <= SURER:
        return False
    within = (compare(there, late, every.group, codes + 1) for codes in kinds)
    return all(of is not None and _is_beyond(of, SURER) and -of.value >= FAR * spread(run) for of in within)


def _is_beyond(difference: Difference | None, most: float) -> bool:
    return difference is not None and difference.chance is not None and difference.chance <= most


def _make_card(run: Run, fall: _Fall, own: Bools, reward: Floats) -> Card:
    every, place = run.all, list_places(fall.names, fall.field)
    late, (here, rest) = every.step >= fall.middle, (fall.here, fall.rest)
    compared = "at the same tasks" if tasks_recur(every) else "whose tasks seldom recur"
    return Card(
        id="forgotten",
        title=f"In {place} the mean reward fell from {figure(here.others)} to {figure(here.chosen)}; elsewhere "
        f"{figure(rest.others)} \u2192 {figure(rest.chosen)}",
        cost=-here.value * float(own.mean()),
        than="before",
        evidence=(
            f"Steps {fall.middle:,}\u2013{every.steps[-1]:,} against those before, {compared}.",
            f"{int(own.sum()):,} of {len(own):,} rollouts are from there.",
            *describe_begun(run, fall.there & ~late, fall.there & late),
        ),
        suggestion=f"Look first at what changed there about step {fall.begin:,}: the environment, its tools, tests, "
        "the reward function. Else sample these tasks more often.",
        where=links.tasks(fall.names, fall.field),
        trend=every.by_step(np.where(fall.there, reward, np.nan)),
        since_step=fall.begin,
        own=own,
    )
