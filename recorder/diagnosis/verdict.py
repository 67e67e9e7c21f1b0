"""Judges a run in one line. Its good verdicts need positive evidence, not only a lack of findings, and say what was
found; none calls a run healthy, since a fault that no check knows looks the same.

Such evidence is an outcome that rises beyond chance, with groups as the independent units, or that most rollouts reach.
A reward near the run's own 99th percentile is none: that may be far below what the functions can give; but a reward
of 1 in most rollouts, on a scale from 0 to 1, is. [ours]
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Run
from logs_ui.recorder.diagnosis.change_point import change
from logs_ui.recorder.diagnosis.contrast import SURER, compare_halves, compare_successive, fit_slope, gap
from logs_ui.recorder.diagnosis.largest_differences import Sides, name_changed_habit, time_sides
from logs_ui.recorder.diagnosis.mean_difference import Difference, compare, is_beyond_chance
from logs_ui.recorder.diagnosis.measures import dead, mean
from logs_ui.recorder.diagnosis.outcome import REWARD, SLIGHTLY_MOVED, Mix, is_other_mix, list_other_mixes, outcome_of
from logs_ui.recorder.diagnosis.places import describe_switches, place_of_all
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Floats, Rows
from logs_ui.recorder.diagnosis.task_families import tasks_recur
from logs_ui.recorder.diagnosis.waterfall import LITTLE
from logs_ui.recorder.diagnosis.wording import figure, percent

_SURE, _FALL = 0.05, 0.01  # probability by chance below which a rise is told, and a fall, which is an alarm
_AT_ANY, _FAR = 0.001, 0.1  # the same of a fall at whatever step; of the range of values, that it must be [ours]
_LEFT = 0.1  # of the loss: findings that cost no more do not make a run sick that improves
_FADED = (
    0.8  # of a finding's figure in the first steps: it is no fault of a run that improves; its inverse: it grew [ours]
)
_MIX = "task_mix"  # harder tasks lower rewards, and are no fault
_LEAST = 0.02  # of the range of values: a smaller change does not matter
_MOST = 0.5  # of the rollouts are solved: most reach the outcome; of those of a place: it hits most of them
_NONE = 0.01  # of the rollouts are solved, or fewer: none, but for a lucky one
_NO_FAULT = "No fault found"  # not "healthy": see docs/diagnosis.md, *Blind rounds*
_HALVES = "the first half of their rollouts against the second"
_IDLE = 0.5  # of the groups have equal rewards: this is told of a run that does well [ours]
_EQUAL = 0.95  # of the groups have equal rewards: there is nothing to learn from


class Verdict(NamedTuple):
    """Judges a run in one line.

    Attributes:
        id: `too_early`; `failed` (with its error); `setup` or `fault` (a finding of either kind); `no_reward`;
            `nothing_to_learn` (rewards are equal within groups); `nothing_solved`; `worse`, `level` or `unknown` (no
            trend can be told), each without a known cause; `improving` or `reached` (most rollouts are solved).
        said: the verdict, with its figures.
        card: the id of the card whose title ends `said`; None if it says something else.
    """

    id: str
    said: str
    card: str | None = None

    @property
    def is_good(self) -> bool:
        """True on positive evidence, and if no fault was found that costs much."""
        return self.id in {"improving", "reached"}

    @property
    def is_ill(self) -> bool:
        return self.id in {"failed", "setup", "fault", "worse"}


TOO_EARLY = Verdict("too_early", "Too early to judge: there are not enough rollouts yet")


def verdict(run: Run, cards: Sequence[Card], error: str | None, units: int = 1) -> Verdict:
    """Return the verdict on a run with these findings; `error` is the exception that ended it, None for none. `units`
    is the number of evals that are judged like this, for whose number chance is corrected.
    """
    if error is not None:
        return Verdict("failed", f"The training failed: {error}")
    if cards and cards[0].is_setup and not is_slight(run, cards[0]):
        return Verdict("setup", f"Fault of the set-up: {cards[0].title}", cards[0].id)
    outcome = _outcome(run)
    if cards:
        return _with_findings(run, cards, outcome, _FALL / units)
    if not np.isfinite(run.rows.reward).any():
        return Verdict("no_reward", "No rollout of these steps has a reward")
    return (
        _judge_fall(run, outcome, _FALL / units)
        or _fallen_since(run, outcome, _AT_ANY / units)
        or _without_signal(run, outcome)
        or _judge_small_fall(run, outcome)
        or _judge_reached(run, outcome)
    )


def _with_findings(run: Run, cards: Sequence[Card], outcome: "_Measure", chance: float) -> Verdict:
    is_left = all(not card.eval and (card.may_remain or is_slight(run, card) or _remains(run, card)) for card in cards)
    if is_left and (rise := _find_rise(run, outcome)):
        return Verdict("improving", f"Improving: {rise}; still there: {cards[0].title}", cards[0].id)
    if all(card.id == _MIX for card in cards) and not outcome.is_sure(-1, _SURE):
        if outcome.change is None or outcome.change.chance is None:
            return Verdict("unknown", f"{cards[0].title}; there is too little to judge the policy by", cards[0].id)
        return Verdict("level", f"{cards[0].title}; no fault shows: {outcome.course}", cards[0].id)
    # The rollouts of a finding may be the best ones: without them, a run falls that rises.
    if outcome.is_sure(-1, chance) and _falls_beside(run, cards, chance):
        return Verdict("worse", f"Getting worse, and no finding explains it: {outcome.course}")
    return Verdict("fault", cards[0].title, cards[0].id)


def restate(known: Verdict, *, are_muted: bool) -> Verdict:
    """Return a good verdict without its claim that no fault was found, since the run has findings; with `are_muted` of
    them alone, no further one was.
    """
    if not known.said.startswith(_NO_FAULT):
        return known
    said = known.said.removeprefix(_NO_FAULT)
    bare = said.lstrip(",: ")
    return known._replace(said=f"No further fault found{said}" if are_muted else f"{bare[0].upper()}{bare[1:]}")


def is_slight(run: Run, card: Card) -> bool:
    """Return True if a finding costs little of the loss of the run; one of an eval alone costs much there, and a fault
    of the set-up takes the signal from many rollouts, however little they lose.
    """
    hits_many = card.is_setup and card.own is not None and card.own.any() and card.own.mean() > _LEFT
    return not card.eval and not hits_many and card.cost is not None and card.cost <= _LEFT * run.fall.lost


def fades(run: Run, card: Card, most: float = _FADED) -> bool:
    """Return True if a finding's figure in the last steps is at most this share of that in the first ones: training
    overcomes it. False for faults of the set-up and findings about evaluations.
    """
    sides = run.windows
    if sides is None or card.limit is None or card.is_setup or card.is_of_evaluations:
        return False
    first, last = (set(side.steps.tolist()) for side in sides)
    before, after = (mean(np.array([value for step, value in card.trend if step in of])) for of in (first, last))
    return before is not None and after is not None and after <= most * before


def _remains(run: Run, card: Card) -> bool:
    """Return True if a finding fades; if its rollouts lose no more than the others, if it has not grown."""
    is_harmless = card.own is not None and not card.own.all() and gap(run, card.own) == 0
    return fades(run, card, 1 / _FADED if is_harmless else _FADED) and (is_harmless or not _stays_in_place(run, card))


def _stays_in_place(run: Run, card: Card) -> bool:
    """Return True if a finding hits most rollouts of a place, and does not fade there: in the whole run it fades as
    other places get more of the rollouts.
    """
    place, sides = place_of_all(run, card), run.windows
    if place is None or sides is None or card.own_of_all is None or place.share < _MOST:
        return False
    of_sides = (place.inside & np.isin(run.all.step, side.steps) for side in sides)
    before, after = (mean(card.own_of_all[of].astype(float)) for of in of_sides)
    return before is not None and after is not None and after > _FADED * before


def of_all(run: Run, cards: Sequence[Card], whole: Verdict, environments: Sequence[tuple[str, Verdict]]) -> Verdict:
    """Return the verdict on a run of several evals: that on the first eval that gets worse, else that on the whole run,
    whose `cards` have what else makes an eval sick. Findings that cost little hide no eval that gets worse, and what is
    left in a run that improves may keep an eval from it.
    """
    for name, of in environments if whole.id == "improving" and whole.card is not None else ():
        if of.is_ill and of.card == whole.card and run.rows.in_eval(name).mean() >= _LEFT:
            return Verdict(of.id, f"{name}: {of.said}", of.card)
    costs_little = whole.id == "fault" and all(is_slight(run, card) for card in cards)
    worse = (Verdict(of.id, f"{name}: {of.said}") for name, of in environments if of.id == "worse")
    return whole if whole.is_ill and not costs_little else next(worse, whole)


@dataclass(frozen=True)
class _Measure:
    """A mean over rollouts: in the last steps, and how it changed."""

    name: str
    level: float | None  # of the last steps; None if it is not known there
    change: Difference | None  # from the first steps to the last; None for a single step
    steps: str  # that are compared
    least: float  # a smaller change does not matter
    extent: float  # the range of values, from the 1st to the 99th percentile
    is_share: bool
    column: Floats = field(repr=False, compare=False)  # (N,) of all steps
    alike: str = ""  # what `change` was measured within, if the first steps and the last have other tasks

    def is_sure(self, sign: int, chance: float) -> bool:
        """Return True if it rose (sign 1) or fell (-1) by what matters, and beyond chance."""
        return is_beyond_chance(self.change, chance) and sign * self.change.value >= self.least

    @property
    def now(self) -> str:
        return f"{self.name} {'not known' if self.level is None else self._write(self.level)}"

    @property
    def course(self) -> str:
        return self.now if self.change is None else f"{self.values} ({self.steps})"

    @property
    def values(self) -> str:
        if self.change is None:
            return self.now
        name = f"{self.now}; at the same {self.alike}" if self.alike else self.name
        return f"{name} {self._write(self.change.others)} \u2192 {self._write(self.change.chosen)}"

    def _write(self, value: float) -> str:
        return percent(value) if self.is_share else figure(value)


def _measure(run: Run, name: str, values: Floats, *, is_share: bool = False) -> _Measure:
    """Measure (N,) values of all steps."""
    sides, finite = time_sides(run), values[np.isfinite(values)]
    change = sides and compare(np.where(sides.among, values, np.nan), sides.late, run.all.group, sides.strata)
    extent = float(np.ptp(np.percentile(finite, (1, 99)))) if len(finite) else 0.0
    level, steps, least = mean(values[run.all.step >= run.rows.steps[0]]), sides.description if sides else "", _LEAST
    strata = _list_successive(run, sides, change)
    succession = None if strata is None else compare_successive(run, values, strata.task)
    alike = ""
    unit = "tasks" if strata is run.all else "families"
    if succession is not None:
        change, least = succession.change, _LEAST / (succession.parts - 1)
        steps = f"mean over {succession.parts} parts of the steps, each against the next, same mix"
        alike = unit
    elif strata is not None and (strata is not run.all or change is None):
        change = compare_halves(run, values, strata.task)
        steps, alike = _HALVES, f"{unit} of the last steps"
    least = max(least * extent, SAME)
    return _Measure(name, level, change, steps, least, extent, is_share, values, alike)


def _list_successive(run: Run, sides: Sides | None, change: Difference | None) -> Rows | None:
    """Return the rollouts if the first steps and the last have too few tasks in common to tell a change; those with
    families in place of tasks, if tasks do not recur and the families of the last steps are others; else None.
    """
    if sides is None:
        return None
    if sides.unit == "tasks":
        return run.all if change is None or change.chance is None else None
    families = run.families
    is_other = families is not None and is_other_mix(families.task[sides.among], sides.late[sides.among])
    return families if is_other else None


def _outcome(run: Run, without: Bools | None = None) -> _Measure:
    """Measure what rollouts are to reach. `without`: (N,) True for rollouts of all steps that are left out."""
    name, values, is_share = outcome_of(run)
    if without is not None:
        values = np.where(without, np.nan, values)
    return _measure(run, name, values, is_share=is_share)


def _compare_in_mixes(run: Run, measure: _Measure, *moved: float) -> list[tuple[Mix, Difference | None]]:
    """Return the columns of the dataset that came in another mix at last, and how the measure changed within their
    values; None if the first steps and the last have hardly any value in common. `moved`: see `list_other_mixes`.
    """
    sides = time_sides(run)
    if sides is None:
        return []
    column, group = np.where(sides.among, measure.column, np.nan), run.all.group
    mixes = list_other_mixes(run, sides, *moved)
    return [(mix, compare(column, sides.late, group, mix.codes) if mix.is_shared else None) for mix in mixes]


def _other_mix(run: Run, measure: _Measure, chance: float) -> str:
    """Return words on a column of the dataset whose values came in another mix at last, and within which the measure
    does not fall; "" if there is none. If the first steps and the last have no value in common, only a column that is
    named like difficulty counts.
    """
    for mix, within in _compare_in_mixes(run, measure):
        if within is None:
            if mix.is_difficulty:
                return f"while {mix.name} has other values than at first"
        elif within.chance is not None and not (within.chance < chance and within.value <= -measure.least):
            return f"but not at the same {mix.name}, whose mix changed"
    return ""


def _measure_in_mix(run: Run, measure: _Measure) -> _Measure | None:
    """Return how a measure changed within the values of the column whose mix changed, if it rises within each such
    column; None if there is none. Of a column that is named like difficulty, and of whose values the first steps and
    the last have hardly any in common, the rollouts with each value of the last steps are halved.
    """
    changes = _compare_in_mixes(run, measure, SLIGHTLY_MOVED)
    within = [replace(measure, change=change, alike=mix.name) for mix, change in changes if change is not None]
    within += [
        replace(measure, change=halves, steps=_HALVES, alike=f"{mix.name} of the last steps")
        for mix, _ in changes
        if not mix.is_shared
        and mix.is_difficulty
        and (halves := compare_halves(run, measure.column, mix.codes)) is not None
    ]
    return within[0] if within and all(of.is_sure(1, _SURE) for of in within) else None


def _measure_halves(run: Run, measure: _Measure) -> _Measure | None:
    """Return how a measure changed from the first half of each task's rollouts to the second, if it surely rises: the
    first steps and the last may have few tasks in common. None if it does not, or tasks do not recur.
    """
    if not tasks_recur(run.all) or measure.is_sure(-1, _SURE):
        return None
    halves = compare_halves(run, measure.column, run.all.task)
    within = replace(measure, change=halves, steps=_HALVES, alike="tasks of the last steps")
    return within if within.is_sure(1, _FALL) else None


def _measure_slope(run: Run, measure: _Measure) -> _Measure | None:
    """Return how a measure changed along a line over all steps within tasks, if it surely rises; None if not."""
    line = None if measure.is_sure(-1, _SURE) else fit_slope(run, measure.column)
    within = replace(measure, change=line, steps="a line over all steps", alike="tasks")
    return within if within.is_sure(1, SURER) else None


def _falls_beside(run: Run, cards: Sequence[Card], chance: float) -> bool:
    """Return True if the outcome falls even without the rollouts of all findings. One that is about all rollouts, or
    began during the run, may always be the cause.
    """
    covered = np.zeros(len(run.rows), bool)
    for card in cards:
        if card.own is None or (card.since_step is not None and card.since_step > run.all.steps[0]):
            return False
        covered |= card.own
    outcome = _outcome(run, np.isin(run.all.id, run.rows.id[covered]))
    return outcome.is_sure(-1, chance) and not _other_mix(run, outcome, chance)


def _judge_fall(run: Run, outcome: _Measure, chance: float) -> Verdict | None:
    paid = _measure(run, REWARD, run.all.reward)
    if outcome.is_sure(-1, chance):
        if mix := _other_mix(run, outcome, chance):
            return Verdict("unknown", f"No cause found: {outcome.course}, {mix}")
        rises = ", while the reward rises" if paid.is_sure(1, _SURE) else ""
        habit, switch = name_changed_habit(run), _describe_switch(run, outcome)
        return Verdict(
            "worse", f"Getting worse, cause unknown: {outcome.course}{rises}{habit and f'; {habit}'}{switch}"
        )
    if not paid.is_sure(-1, chance) or _other_mix(run, paid, chance):
        return None
    where = _most_fallen(run, paid)
    if outcome.is_sure(1, _SURE):
        return Verdict("worse", f"The reward falls{where}, while the outcome rises: {paid.values}, {outcome.course}")
    unknown, habit = where or ", cause unknown", name_changed_habit(run)  # the outcome may be known of some only
    return Verdict(
        "worse",
        f"Getting worse{unknown}: {paid.course}; {habit and f'{habit}; '}{outcome.now}{_describe_switch(run, paid)}",
    )


def _fallen_since(run: Run, outcome: _Measure, chance: float) -> Verdict | None:
    """Return the verdict on an outcome that fell at some step to about the first steps' level, as where it had risen
    before: the first steps and the last show nothing of that. None if it did not, or has risen again since.
    """
    rows, jump, sides = run.all, change(run.all.by_step(outcome.column)), time_sides(run)
    if sides is None or jump is None or jump.after >= jump.before or outcome.level is None:
        return None
    since, is_known = int(rows.steps[jump.place]), np.isfinite(outcome.column)
    families = run.families if outcome.alike and not tasks_recur(rows) else None
    strata, unit = (sides.strata, sides.unit) if families is None else (families.task, "families")
    fall = compare(outcome.column, rows.step >= since, rows.group, strata)
    if fall is None or fall.chance is None or fall.chance >= chance or outcome.level > (jump.before + jump.after) / 2:
        return None
    if -fall.value < _FAR * float(np.ptp(outcome.column[is_known])):
        return None
    steps = f"steps {rows.steps[0]}\u2013{rows.steps[jump.place - 1]} against {since}\u2013{rows.steps[-1]}"
    alike = unit and f", same {unit}, same mix"
    fallen = replace(outcome, change=fall, steps=steps + alike, alike="")
    switch = _describe_switch(run, outcome)
    return Verdict("worse", f"Getting worse since step {since:,}, cause unknown: {fallen.course}{switch}")


def _describe_switch(run: Run, measure: _Measure) -> str:
    """Return words on a setting that changes at the step at which a measure does; "" if none is known to."""
    trend = run.all.by_step(measure.column)
    if (jump := change(trend)) is None:
        return ""
    sentence = next(iter(describe_switches(run, trend[jump.first][0], trend[jump.last][0])), "")
    brief = sentence.rpartition(" (")[0] if sentence.endswith(" since).") else sentence[:-1]  # without its counts
    return sentence and f"; {brief[0].lower()}{brief[1:]}"


def _most_fallen(run: Run, paid: _Measure) -> str:
    """Return words that name the reward function which at least half of the fall of the reward is in; "" if there is
    none, or only one function.
    """
    parts = {name: _measure(run, name, values) for name, values in run.all.parts.items()}
    shares = {name: float(np.isfinite(values).mean()) for name, values in run.all.parts.items()}
    falls = {
        name: -part.change.value * shares[name]
        for name, part in parts.items()
        if part.change and part.is_sure(-1, _SURE)
    }
    most = max(falls, key=falls.__getitem__, default=None)
    is_most = most is not None and paid.change is not None and falls[most] >= -paid.change.value / 2
    return f", mostly in {most}" if is_most and len(parts) > 1 else ""


def _without_signal(run: Run, outcome: _Measure) -> Verdict | None:
    """Return the verdict on a run that has nothing to learn from; None for others."""
    if outcome.is_share and outcome.level is not None and outcome.level <= _NONE:
        return Verdict("nothing_solved", f"{percent(outcome.level)} of rollouts are solved; no check found why")
    groups = run.rows.groups
    whole = groups.size > 1
    equal = float(dead(groups)[whole].mean()) if whole.any() and not run.rows.is_evaluation else 0.0
    if equal < _EQUAL or _is_high(run, outcome):
        return None
    return Verdict("nothing_to_learn", f"Nothing to learn: rewards are equal within {percent(equal)} of groups")


def _judge_small_fall(run: Run, outcome: _Measure) -> Verdict | None:
    """Return the verdict on a fall that is too likely by chance for an alarm, and too unlikely for a healthy run."""
    if not outcome.is_sure(-1, _SURE):
        return None
    habit = name_changed_habit(run)
    return Verdict("level", f"No cause found; a fall that may be chance: {outcome.course}{habit and f'; {habit}'}")


def _is_high(run: Run, outcome: _Measure) -> bool:
    """Return True if most rollouts are solved; without an outcome, if most rewards are 1 and none is beyond 0 to 1, or
    the reward is near the best that was set.
    """
    if outcome.is_share:
        return outcome.level is not None and outcome.level >= _MOST
    reward, last = (rewards[np.isfinite(rewards)] for rewards in (run.all.reward, run.rows.reward))
    if outcome.name == REWARD and len(last) and reward.min() >= 0 and reward.max() == 1 and (last == 1).mean() >= _MOST:
        return True
    is_near = run.settings.max_reward is not None and run.fall.lost <= LITTLE * abs(run.fall.best)
    return is_near and outcome.name == REWARD


def _find_rise(run: Run, outcome: _Measure) -> str | None:
    """Return the course of an outcome that rises; None for others. Solved is but a threshold of the values of its
    function, which may rise below it. Another function's rise counts for nothing: the policy may have hacked it.
    """
    if outcome.is_sure(1, _SURE):
        return outcome.course
    measures = (_measure_in_mix, _measure_halves, _measure_slope)
    if within := next(filter(None, (measure(run, outcome) for measure in measures)), None):
        return within.course
    deciding = run.scale.success.find_deciding(run.all)
    if deciding is None or outcome.is_sure(-1, _SURE):
        return None
    graded = _measure(run, f"mean {deciding[0]}", deciding[1])
    return f"{graded.course}, {outcome.values}" if graded.is_sure(1, _SURE) else None


def _describe_reservation(run: Run) -> str:
    """Return words on the reward function that falls most, of its range, while the outcome rises: the policy may have
    learned what another one pays for. Else on groups without variance, if most are: these teach nothing more.
    """
    wanted = [name for name in run.all.values if run.all.weights.get(name, 1.0) >= 0]
    measures = [_measure(run, name, run.all.values[name]) for name in wanted]
    falls = {
        f"{measure.name} falls{measure.values.removeprefix(measure.name)}": -measure.change.value / measure.extent
        for measure in measures
        if measure.change is not None and measure.extent > SAME and measure.is_sure(-1, _FALL)
        if not _other_mix(run, measure, _FALL)
    }
    most = max(falls, key=falls.__getitem__, default="")
    if falls and falls[most] >= _FAR:
        return f"; but {most}"
    whole = run.rows.groups.size > 1
    equal = 0.0 if run.rows.is_evaluation else mean(dead(run.rows.groups)[whole].astype(float)) or 0.0
    return f"; rewards are equal within {percent(equal)} of groups" * (equal >= _IDLE)


def _judge_reached(run: Run, outcome: _Measure) -> Verdict:
    paid = _measure(run, REWARD, run.all.reward)
    if rise := _find_rise(run, outcome):
        return Verdict("improving", f"{_NO_FAULT}, improving: {rise}{_describe_reservation(run)}")
    habit = "" if outcome.alike else name_changed_habit(run)  # another mix of families has other habits
    is_judged = outcome.change is not None and outcome.change.chance is not None
    is_lower = outcome.change is not None and outcome.change.value <= -outcome.least
    if habit and (is_lower or not _is_high(run, outcome)):
        return Verdict("level", f"No cause found; {habit}, at {outcome.course}")
    if _is_high(run, outcome):
        if paid.is_sure(1, _SURE):
            return Verdict("reached", f"{_NO_FAULT}, the reward rises: {outcome.now}, {paid.course}")
        sentence = f"{_NO_FAULT}, no clear change: {outcome.course}" if is_judged else f"{_NO_FAULT}: {outcome.now}"
        return Verdict("reached", f"{sentence}{habit and f'; {habit}'}")
    if is_judged:
        rises = ", while the reward rises" if paid.is_sure(1, _SURE) else ""
        return Verdict("level", f"No cause found; no clear change: {outcome.course}{rises}")
    few = "; too few groups to tell a trend" if outcome.steps and not run.rows.is_evaluation else ""
    return Verdict("unknown", f"No cause found{few}: {outcome.now}")
