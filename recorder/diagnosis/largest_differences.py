"""Explains the loss of rollouts that ended normally and scored low, which is the largest bar of most real runs: which
reward function has the headroom, since when, and what differs most over time, within groups, and between environments
or tasks.

It needs no list of faults, so it speaks where no check has a finding. Groups are the independent units, or tasks where
families of tasks are compared; of all that is compared, 5% of what is named may be chance. [ours]
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Run, Trend
from logs_ui.recorder.diagnosis.change_point import change
from logs_ui.recorder.diagnosis.contrast import spread
from logs_ui.recorder.diagnosis.error_lines import read_columns
from logs_ui.recorder.diagnosis.mean_difference import LEAST_UNITS, Difference, chance_limit, compare
from logs_ui.recorder.diagnosis.measures import FEATURES, list_figures, mean, within_groups
from logs_ui.recorder.diagnosis.places import columns_of, describe_switches, evals_of, families_of, tasks_of
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Floats, Ints, Rows, distinct, means
from logs_ui.recorder.diagnosis.success import Success
from logs_ui.recorder.diagnosis.task_families import tasks_recur
from logs_ui.recorder.diagnosis.unparsed_calls import compare_last_answers
from logs_ui.recorder.diagnosis.waterfall import CAUSES, LITTLE, Cause, causes, has_cause, judged, name_causes
from logs_ui.recorder.diagnosis.wording import figure, listed, percent
from logs_ui.recorder.vocabulary import LossCause, StopReason

SCORED_LOW = "scored_low"
"""The id of its card, which is of no diagnostic."""
_ENDED = "Ended below best"
_UNKNOWN = 0.5  # of these rollouts [ours]
_SHARE = 0.1  # of the loss: less needs no explanation
_FUNCTIONS, _LITTLE = 3, 0.02  # reward functions; of the largest shortfall: less is not named
_BEST = 99  # percentile of the rewards
_NAMED, _PLACES, _LOOKED = 2, 3, 20  # figures; tasks; of these, those that are compared for having lost most
_LEAST, _LOW = 0.2, 0.05  # relative difference; of the range of rewards, for a task [ours]
_DEVIATIONS = 0.8  # standard deviations are large, too (Cohen 1988): some figures, such as ratios, are never near 0
_POINT = 0.01  # of a share: a smaller difference is not named [ours]
_HABIT = 1 / 3  # relative difference of a habit that has changed [ours]
_ALL = 0.9  # of the tasks of the side with more are of both: then these are nearly all [ours]


def differences(run: Run, low: Bools, over_time: "Compared | None") -> Iterator[str]:
    """Yield a sentence for each kind of difference, and one for what was compared and does not differ. `low` is (N,)
    True for the rollouts of the last steps whose loss is to be explained; within groups they are compared with better
    ones that ended normally, too.
    """
    alike, sides = [], _low_and_better(run, low, has_cause(run.rows, LossCause.WRONG_ANSWER))
    _, heard = read_columns(run, np.where(sides[0] | sides[1], sides[1], np.nan))
    # Errors of those that get further are left out.
    often = {name: [mean(has[side]) or 0.0 for side in sides] for name, has in heard.items()}
    errors = {name: heard[name] for name, (of_low, of_better) in often.items() if of_low > of_better}
    for sentence, compared in (
        _over_time(over_time),
        _within_groups(run, *sides, list_figures(run.rows), "figures"),
        _within_groups(run, *sides, errors, "errors", 1),
        _by_place(run, *evals_of(run))[:2],
        _by_task(run),
        _by_column(run),
    ):
        if sentence:
            yield sentence
        elif compared:
            alike.append(compared)
    if alike:
        yield f"Compared, no large difference beyond chance: {'; '.join(alike)}."


class Sides(NamedTuple):
    """The first steps and the last, as (N,) columns of the rollouts of all steps."""

    late: Bools  # True for the last steps
    among: Bools  # True for what is compared
    strata: Ints | None  # tasks, if they recur; else evals, if there are several; else None
    unit: str  # what `strata` are: "tasks", "evals", ""
    description: str


def time_sides(run: Run) -> Sides | None:
    """Return what to compare over time; None for a single step. If tasks recur, it is tasks that both sides have: else
    other tasks would look like another policy, as another mix of evals would.
    """
    sides = run.windows
    if sides is None:
        return None
    before, after = sides
    rows, (first, last) = run.all, (f"{side.steps[0]}\u2013{side.steps[-1]}" for side in sides)
    late = rows.step >= after.steps[0]
    among = (rows.step <= before.steps[-1]) | late
    if not tasks_recur(rows):
        if len(rows.present) < 2:
            return Sides(late, among, None, "", f"steps {first} against {last}")
        return Sides(late, among, rows.eval, "evals", f"steps {first} against {last}, same evals, same mix")
    tasks = [set(side.task.tolist()) - {-1} for side in sides]
    both, either = tasks[0] & tasks[1], tasks[0] | tasks[1]
    is_whole = len(both) >= _ALL * max(map(len, tasks))
    mix = "same task mix" if is_whole else f"at the {len(both):,} tasks that both have, of {len(either):,}, same mix"
    description = f"steps {first} against {last}, {mix}"
    return Sides(late, among & np.isin(rows.task, list(both)), rows.task, "tasks", description)


class Compared(NamedTuple):
    """Compares chosen rollouts with others, figure by figure."""

    description: str  # which ones
    columns: Mapping[str, Floats]  # (N,) values by the figure's name; over time, of all steps
    differences: Mapping[str, Difference]  # of those that could be judged
    limit: float  # see `chance_limit`
    # (N,) True for the chosen ones, and for the others, by the figure's name; empty over time.
    sides: Mapping[str, tuple[Bools, Bools]] = MappingProxyType({})
    place: str = ""  # the filter's field, if the columns are categories
    is_share: bool = False  # True if categories are compared by the share that is solved
    untested: int = 0  # number of further categories, which lose less


def compare_over_time(run: Run) -> Compared | None:
    """Compare the first steps with the last, by all columns. None for a single step."""
    sides, rows = time_sides(run), run.all
    if sides is None:
        return None
    columns = list_columns(rows, run.scale.success, name_causes(rows, causes(rows)))
    return Compared(
        sides.description, columns, *_compare_columns(columns, sides.late, rows.group, sides.strata, sides.among)
    )


def list_columns(rows: Rows, success: Success, named: Sequence[Cause] = CAUSES) -> dict[str, Floats]:
    """Return (N,) values of how rollouts end, what reward functions give, and the other figures, by name."""
    cause, has_ended = causes(rows), judged(rows)
    ways = enumerate(named[:-1])  # to end that cost reward by themselves
    ends = {f"{ending.name} (share)": np.where(has_ended, cause == place, np.nan) for place, ending in ways}
    if success.is_defined:
        ends["solved (share)"] = success.outcomes(rows)
    return {"reward": rows.reward, **rows.values, **ends, **list_figures(rows)}


def compare_families(run: Run) -> Compared | None:
    """Compare the outcome of each of the largest families of tasks, in the first steps and in the last: what is solved,
    else the reward. None for a single step, or if names of tasks show no families.
    """
    sides, grouped, success = time_sides(run), run.families, run.scale.success
    if sides is None or grouped is None:
        return None
    sizes = np.bincount(grouped.task[grouped.task >= 0], minlength=len(grouped.tasks))
    values = success.outcomes(run.all) if success.is_defined else run.all.reward
    columns = {
        grouped.tasks[family]: np.where(grouped.task == family, values, np.nan)
        for family in np.argsort(-sizes)[:_LOOKED]
    }
    compared_columns = _compare_columns(columns, sides.late, run.all.group, sides.strata, sides.among)
    return Compared(sides.description, columns, *compared_columns, place="family", is_share=success.is_defined)


def compare_within_groups(run: Run) -> Compared | None:
    """Compare rollouts of low reward with better ones of the same groups; None without any."""
    has_reward = np.isfinite(run.rows.reward)
    low, better = _low_and_better(run, has_reward, has_reward)
    outcomes = {"reward", "solved (share)", *(mark.column.removeprefix("rewards.") for mark in run.scale.success.marks)}
    every = list_columns(run.rows, run.scale.success, name_causes(run.rows, causes(run.rows)))
    columns = {name: values for name, values in every.items() if name not in outcomes}
    compared_columns = _compare_columns(columns, low, run.rows.group, run.rows.group, low | better)
    is_defined = run.scale.success.is_defined
    words = "unsolved against solved" if is_defined else "below against above the mean of the group"
    within = {
        name: _within(values, low, better, run.rows) for name, values in columns.items() if name in compared_columns[0]
    }
    sides = dict.fromkeys(columns, (low, better))
    return Compared(f"{words}, within groups", within, *compared_columns, sides) if compared_columns[0] else None


def _within(values: Floats, low: Bools, better: Bools, rows: Rows) -> Floats:
    """Return (N,) values with the differences between groups taken out; NaN where a group lacks one of the sides."""
    means_of_low, means_of_better = (rows.group_means(np.where(side, values, np.nan)) for side in (low, better))
    has_both = np.isfinite(means_of_low) & np.isfinite(means_of_better)
    comparable = np.where((low | better) & has_both[rows.group], values, np.nan)
    return within_groups(comparable, rows) + (np.nanmean(comparable) if np.isfinite(comparable).any() else 0.0)


def compare_places(run: Run) -> list[Compared]:
    """Compare the outcome, which is what is solved, else the reward, of each eval, family (or task) and value of a
    dataset's column with that of all others.
    """
    success, rows = run.scale.success, run.rows
    values = success.outcomes(rows) if success.is_defined else rows.reward
    comparisons = []
    for (placed, units, _), field in (
        (evals_of(run), "eval"),
        *((family, "family") for family in families_of(run)),
        (tasks_of(run), "task"),
        *((column, column[2]) for column in columns_of(rows, run.labels)),
    ):
        is_known = np.isfinite(values) & (placed.task >= 0)
        compared, places = _compare_each(placed.task[is_known], values[is_known], units[is_known], len(placed.tasks))
        judged = {
            placed.tasks[code]: (code, compared_task)
            for code, compared_task in compared.items()
            if compared_task.chance is not None
        }
        rollouts_of = {name: is_known & (placed.task == place) for name, (place, _) in judged.items()}
        comparisons.append(
            Compared(
                "", dict.fromkeys(judged, values),
                {name: difference for name, (_, difference) in judged.items()}, limit=-1.0,
                sides={name: (mine, is_known & ~mine) for name, mine in rollouts_of.items()}, place=field,
                is_share=success.is_defined,
                untested=places - len(judged),
            )
        )  # fmt: skip
    return comparisons


def _over_time(compared: Compared | None) -> tuple[str, str]:
    if compared is None:
        return "", ""
    largest = _most_different(compared.columns, compared.differences, compared.limit)
    count, changes = (
        len(compared.differences),
        "; ".join(
            f"{name} {write_value(change.others, name)} \u2192 {write_value(change.chosen, name)}"
            for name, change in largest
        ),
    )
    figures = f"{count} figures over time ({compared.description})" if count else ""
    return changes and f"Over time ({compared.description}): {changes}.", figures


def name_changed_habit(run: Run) -> str:
    """Return words on the habit that changed most since the first steps, if it is half as much again or more, as in
    "turns 5.2 \u2192 3"; "" without one.
    """
    sides, rows = time_sides(run), run.all
    if sides is None:
        return ""
    columns = {feature.name: feature.values(rows) for feature in FEATURES if feature.is_habit}
    every, limit = _compare_columns(columns, sides.late, rows.group, sides.strata, sides.among)
    sizes = {
        name: abs(change.value) / max(*change[:2], SAME)
        for name, change in every.items()
        if (change.chance or 0.0) <= limit
    }
    name = max(sizes, key=lambda name: sizes[name], default=None)
    if name is None or sizes[name] < _HABIT:
        return ""
    return f"{name} {figure(every[name].others)} \u2192 {figure(every[name].chosen)}"


def describe_jumped_habits(run: Run, first: int, last: int) -> list[str]:
    """Return sentences on habits that jump so much at one of the steps `first` to `last`, whatever the tasks are: where
    these do not come again, nothing can be compared at the same ones.
    """
    trends = ((feature.name, run.all.by_step(feature.values(run.all))) for feature in FEATURES if feature.is_habit)
    jumps = ((name, trend, jump) for name, trend in trends if (jump := change(trend)) is not None)
    return [
        f"At step {trend[jump.place][0]:,} {name} change from {figure(jump.before)} to {figure(jump.after)}, over all "
        "tasks."
        for name, trend, jump in jumps
        if first <= trend[jump.place][0] <= last
        and abs(jump.after - jump.before) >= _HABIT * max(jump.before, jump.after)
    ]


def _within_groups(
    run: Run, low: Bools, better: Bools, columns: Mapping[str, Floats], kind: str, most: int = _NAMED
) -> tuple[str, str]:
    """Compare low rollouts with better ones of the same groups."""
    group = run.rows.group
    largest, every = find_largest(columns, low, group, group, low | better)
    sentence = "; ".join(
        f"{name} {write_value(difference.chosen, name)}, in better ones {write_value(difference.others, name)}"
        f"{_write_filter(name, difference)}"
        for name, difference in largest[:most]
    )
    compared = [difference for _, difference in largest[:most]] or every.values()
    groups = max((min(difference.groups) for difference in compared), default=0)
    sentence = sentence and f"In low rollouts of {groups} groups: {sentence}."
    return (
        sentence,
        f"{len(every)} {kind if len(every) > 1 else kind[:-1]} within up to {groups} groups" if every else "",
    )


def _low_and_better(run: Run, low: Bools, among: Bools) -> tuple[Bools, Bools]:
    """Return (N,) which of these rollouts are low, and which `among` others are better: unsolved and solved, where that
    is defined, else below and above the mean of their group.
    """
    rows = run.rows
    if run.scale.success.is_defined:
        better = run.scale.success.solved(rows)
        return low & ~better, better & among
    middle = rows.groups.mean[rows.group]
    return low & (rows.reward < middle - SAME), (rows.reward > middle + SAME) & among


def _by_task(run: Run) -> tuple[str, str]:
    """Compare each task with all others; families of tasks, where the names show them and tasks seldom recur."""
    families = [] if tasks_recur(run.all) else families_of(run)
    return _by_place(run, *(families or [tasks_of(run)])[0])[:2]


def _by_column(run: Run) -> tuple[str, str]:
    """Compare each rank, and each value of a dataset's column, with all others; tell of the surest of these columns."""
    columns = columns_of(run.rows, run.labels)
    compared = [_by_place(run, *column, columns=len(columns)) for column in columns]
    findings = [(outcome, name) for outcome, (*_, name) in zip(compared, columns, strict=True) if outcome.sentence]
    count = sum(bool(outcome.compared) for outcome in compared)
    surest = min(findings, key=lambda pair: pair[0].chance, default=None)
    sentence = "" if surest is None else surest[0].sentence + _tell_fall(run, surest[1], surest[0].names)
    return sentence, f"{count} columns of the dataset" if count else ""


def _tell_fall(run: Run, column: str, names: Sequence[str]) -> str:
    """Say since when rollouts that ended normally get less at these values of a column; "" if they do not."""
    there = has_cause(run.all, LossCause.WRONG_ANSWER) & np.isin(np.array(run.labels_of_all[column], object), names)
    point = change(trend := run.all.by_step(np.where(there, run.all.reward, np.nan)))
    if run.scale.units or point is None or point.after >= point.before:
        return ""
    return f" There it fell from {figure(point.before)} to {figure(point.after)} at step {trend[point.place][0]:,}."


class _Lower(NamedTuple):
    """Says which places of a kind lose more, or how many were compared; neither if none could be."""

    sentence: str = ""
    compared: str = ""
    chance: float = 1.0  # the least probability by chance
    names: Sequence[str] = ()  # of the places that lose more


def _by_place(run: Run, rows: Rows, units: Ints, kind: str, columns: int = 1) -> _Lower:
    """Compare the mean rewards of rollouts that ended normally: those of each of `rows.tasks` with all others. Others
    may get still less, in too few groups to tell. If best rewards differ by environment, losses are compared, as shares
    of these.
    `columns`: as many kinds of places are compared.
    """
    ended = (rows.task >= 0) & np.isfinite(rows.reward) & has_cause(rows, LossCause.WRONG_ANSWER)
    name, sign, values, extent = "mean reward", 1, rows.reward, spread(run)
    if run.scale.units:
        best = run.scale.bests(rows)
        name, sign, values = "mean lost reward", -1, -run.lost
        if (best > 0).all():  # else they have no common measure
            name, values, extent = "mean lost share of the best reward", values / best, 1.0
    task, reward = rows.task[ended], values[ended]
    compared, places = _compare_each(task, reward, units[ended], len(rows.tasks))
    if not compared:
        return _Lower()
    chances = [1.0 if difference.chance is None else difference.chance * columns for difference in compared.values()]
    limit = chance_limit(chances + [1.0] * (places - len(chances)))
    lowest = [
        place
        for place, difference in compared.items()
        if difference.chance is not None and difference.chance * columns <= limit and -difference.value >= _LOW * extent
    ][:_PLACES]
    if not lowest:
        return _Lower(compared=f"{len(compared)} {kind}" + ("" if places == len(compared) else f" of {places}"))
    others = means((~np.isin(task, lowest)).astype(int), reward, 2)[1]
    names = listed([f"{rows.tasks[place]} ({name} {figure(sign * compared[place].chosen)})" for place in lowest])
    elsewhere = f"elsewhere it is {figure(sign * float(others))}"  # all places cannot be below the others
    sentence = f"By {kind}, rollouts that ended normally lose more in {names}; {elsewhere}."
    return _Lower(sentence, "", min(chances), [rows.tasks[place] for place in lowest])


def _compare_each(task: Ints, values: Floats, units: Ints, count: int) -> tuple[dict[int, Difference], int]:
    """Compare each of the places that lose most with all others; also return the number of places that have enough
    independent units. None are compared of fewer than two.
    """
    places = np.flatnonzero(distinct(task, units, count=count) >= LEAST_UNITS)
    if len(places) < 2:
        return {}, len(places)
    lost = np.bincount(task, float(values.mean()) - values, count)
    worst = places[np.argsort(-lost[places], kind="stable")][:_LOOKED]
    difference_of = {place: compare(values, task == place, units) for place in worst.tolist()}
    return {place: difference for place, difference in difference_of.items() if difference is not None}, len(places)


def find_largest(
    columns: Mapping[str, Floats], chosen: Bools, units: Ints, strata: Ints | None, among: Bools
) -> tuple[list[tuple[str, Difference]], dict[str, Difference]]:
    """Return the differences that are surest, and those of all columns that could be compared."""
    every, limit = _compare_columns(columns, chosen, units, strata, among)
    return _most_different(columns, every, limit), every


def _compare_columns(
    columns: Mapping[str, Floats], chosen: Bools, units: Ints, strata: Ints | None, among: Bools
) -> tuple[dict[str, Difference], float]:
    """Return the difference of each column that can be judged, and the limit of their `chance`."""
    every = {name: compare(np.where(among, values, np.nan), chosen, units, strata) for name, values in columns.items()}
    judged = {
        name: difference
        for name, difference in every.items()
        if difference is not None and difference.chance is not None
    }
    return judged, chance_limit([difference.chance or 0.0 for difference in judged.values()])


def _most_different(
    columns: Mapping[str, Floats], every: Mapping[str, Difference], limit: float
) -> list[tuple[str, Difference]]:
    """Return those differences beyond chance that are large, the surest first; of equal columns, one."""
    large = {
        name: compared_column
        for name, compared_column in every.items()
        if (compared_column.chance or 0.0) <= limit and _is_large(compared_column, name, columns[name])
    }
    different: list[tuple[str, Difference]] = []
    for name, difference in sorted(large.items(), key=lambda pair: -abs(pair[1].t)):
        if not any(np.array_equal(columns[name], columns[other], equal_nan=True) for other, _ in different):
            different.append((name, difference))
    return different[:_NAMED]


def _is_large(difference: Difference, name: str, values: Floats) -> bool:
    size, highest = abs(difference.value), max(abs(difference.chosen), abs(difference.others))
    least = min(_LEAST * highest, max(_DEVIATIONS * float(np.nanstd(values)), SAME))
    return size >= max(least, _POINT * is_share_name(name))


def is_share_name(name: str) -> bool:
    """Return True if a figure's name, which is no reward function's, is that of a share, 0 to 1."""
    return name.endswith("(share)") or name.startswith("the share of ")


def write_value(value: float, name: str) -> str:
    """Write a figure of this name: a share in percent."""
    return percent(value) if is_share_name(name) else figure(value)


def _write_filter(name: str, difference: Difference) -> str:
    """Return a filter for the chosen side, as far as the middle between both means divides them; "" without one."""
    field = next((feature.field for feature in FEATURES if feature.name == name), "")
    sign, middle = "<" if difference.value < 0 else ">", (difference.chosen + difference.others) / 2
    return f" ({field}{sign}{middle:.3g})" if field else ""


def scored_low(run: Run, cards: Sequence[Card], over_time: Compared | None) -> tuple[Card | None, float]:
    """Return the card on this loss, and how much of it the rollouts of no other card hold, in reward per rollout; 0 if
    the rollouts of one card lose more than that.

    None for the card if it is less than a tenth of the loss, if the run does well, or if there is no scale.
    """
    fall, rows = run.fall, run.rows
    cost = run.cost_of(LossCause.WRONG_ANSWER)
    if run.scale.is_flat or fall.lost <= LITTLE * abs(fall.best) or cost < _SHARE * fall.lost:
        return None, 0.0
    low = judged(rows) & has_cause(rows, LossCause.WRONG_ANSWER) & (run.lost > SAME)
    every, explained_ids = np.ones(len(rows), bool), {name for card in cards for name in card.explains}
    causes = [card for card in cards if card.cost is not None and card.id not in explained_ids]
    owned = [every if cause.own is None else cause.own for cause in causes]
    explained = np.logical_or.reduce([~every, *owned])
    left = cost * float(run.lost[low & ~explained].sum()) / max(float(run.lost[low].sum()), SAME)
    most_of_one = max((float(run.lost[rollouts & judged(rows)].sum()) for rollouts in owned), default=0.0) / int(
        judged(rows).sum()
    )
    is_mix = len(rows.present) > 1 or len(run.scale.units) > 1  # each may have functions of its own
    functions = [] if is_mix else _shortfalls(run, low)
    # The best rollouts are not those of a best reward that was set.
    is_most = len(functions) > 1 and functions[0][1] >= cost / 2 and run.settings.max_reward is None
    most = f", at least half of it in {functions[0][0]}" if is_most else ""
    parts = ", ".join(f"{name} {figure(less)}" for name, less in functions)
    sentences = [f"Compared with the best 1% of rollouts, averaged over all and weighted: {parts} less."] * (
        len(functions) > 1
    )
    name = functions[0][0] if functions else "the reward"
    values = run.all.values.get(name, run.all.reward)
    trend = run.all.by_step(np.where(has_cause(run.all, LossCause.WRONG_ANSWER), values, np.nan))
    sentences += [*_change(run, trend, name), *differences(run, low, over_time)]
    sentences += compare_last_answers(run, *_low_and_better(run, low, has_cause(rows, LossCause.WRONG_ANSWER)))
    if left < cost - SAME and all(cause.own is not None for cause in causes):
        sentences.append(f"Rollouts of the findings above have {percent(1 - left / cost)} of this lost reward.")
    is_unknown = (rows.stop_reason[low] == StopReason.NOT_RECORDED).mean() > _UNKNOWN
    ended = "Ended below best, how mostly not recorded" if is_unknown else _ENDED
    card = Card(
        id=SCORED_LOW,
        title=f"{ended}: {percent(cost / (fall.lost + fall.above))} of the lost reward{most}",
        cost=cost,
        evidence=tuple(sentences),
        suggestion="Compare the best with the worst rollout of a group: its page shows where they diverge.",
        where=f"cause:{LossCause.WRONG_ANSWER} {run.scale.below}",
        is_part=True,
        trend=trend,
        own=low,
    )
    return card, left if left > most_of_one else 0.0


def _shortfalls(run: Run, low: Bools) -> list[tuple[str, float]]:
    """Return (reward function, how much less these rollouts get of it than the best hundredth of the run, per rollout
    looked at), largest first. Rollouts that it gave no number are left out: it did not score them low.
    """
    reward = np.nan_to_num(run.all.reward, nan=-np.inf)
    is_best = reward >= np.percentile(reward, _BEST)
    shortfalls = []
    for name, part in run.rows.parts.items():
        highest, mine = mean(run.all.parts[name][is_best]), mean(part[low])
        if highest is not None and mine is not None:
            shortfalls.append((name, (highest - mine) * float((low & np.isfinite(part)).mean())))
    least = _LITTLE * max((less for _, less in shortfalls), default=0.0)
    return sorted(((name, less) for name, less in shortfalls if less > least), key=lambda pair: -pair[1])[:_FUNCTIONS]


def _change(run: Run, trend: Trend, name: str) -> Iterator[str]:
    """Say since when these rollouts get less, if they do, and which settings changed then."""
    point = change(trend)
    if point is not None and point.after < point.before:
        first, last, step = (trend[place][0] for place in (point.first, point.last, point.place))
        between = f" (between steps {first} and {last})" if first < last else ""
        fell = f"{name} fell from {figure(point.before)} to {figure(point.after)}"
        yield f"Of rollouts that ended normally, {fell} at step {step}{between}."
        yield from describe_switches(run, first, last)
