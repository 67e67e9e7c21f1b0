"""Explains the loss of rollouts that ended normally and scored low, which is the largest bar of most real runs: which
reward function has the headroom, since when, and what differs most over time, within groups, and between environments
or tasks. It needs no list of faults, so it speaks where no check has a finding.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Run, Trend
from logs_ui.recorder.diagnosis.change_point import change
from logs_ui.recorder.diagnosis.contrast import spread
from logs_ui.recorder.diagnosis.error_lines import read_columns
from logs_ui.recorder.diagnosis.largest_differences import (
    NAMED,
    Compared,
    compare_each,
    divide_by_reward,
    find_largest,
    list_most_different,
    write_value,
)
from logs_ui.recorder.diagnosis.mean_difference import Difference, chance_limit
from logs_ui.recorder.diagnosis.measures import FEATURES, list_figures, mean
from logs_ui.recorder.diagnosis.places import columns_of, describe_switches, evals_of, families_of, tasks_of
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Floats, Ints, Rows, means
from logs_ui.recorder.diagnosis.task_families import tasks_recur
from logs_ui.recorder.diagnosis.unparsed_calls import compare_last_answers
from logs_ui.recorder.diagnosis.waterfall import LITTLE, has_cause, judged
from logs_ui.recorder.diagnosis.wording import figure, listed, percent
from logs_ui.recorder.vocabulary import LossCause, StopReason

SCORED_LOW = "scored_low"
"""The id of its card, which is of no diagnostic."""
_ENDED = "Ended below best"
_UNKNOWN = 0.5  # of these rollouts [ours]
_SHARE = 0.1  # of the loss: less needs no explanation
_FUNCTIONS, _LITTLE = 3, 0.02  # reward functions; of the largest shortfall: less is not named
_BEST = 99  # percentile of the rewards
_PLACES, _LOW = 3, 0.05  # tasks that are named; of the range of rewards, for one [ours]


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
    sentences += compare_last_answers(run, *divide_by_reward(run, low, has_cause(rows, LossCause.WRONG_ANSWER)))
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


def differences(run: Run, low: Bools, over_time: Compared | None) -> Iterator[str]:
    """Yield a sentence for each kind of difference, and one for what was compared and does not differ. `low` is (N,)
    True for the rollouts of the last steps whose loss is to be explained; within groups they are compared with better
    ones that ended normally, too.
    """
    alike, sides = [], divide_by_reward(run, low, has_cause(run.rows, LossCause.WRONG_ANSWER))
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


def _over_time(compared: Compared | None) -> tuple[str, str]:
    if compared is None:
        return "", ""
    largest = list_most_different(compared.columns, compared.differences, compared.limit)
    count, changes = (
        len(compared.differences),
        "; ".join(
            f"{name} {write_value(change.others, name)} \u2192 {write_value(change.chosen, name)}"
            for name, change in largest
        ),
    )
    figures = f"{count} figures over time ({compared.description})" if count else ""
    return changes and f"Over time ({compared.description}): {changes}.", figures


def _within_groups(
    run: Run, low: Bools, better: Bools, columns: Mapping[str, Floats], kind: str, most: int = NAMED
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


def _write_filter(name: str, difference: Difference) -> str:
    """Return a filter for the chosen side, as far as the middle between both means divides them; "" without one."""
    field = next((feature.field for feature in FEATURES if feature.name == name), "")
    sign, middle = "<" if difference.value < 0 else ">", (difference.chosen + difference.others) / 2
    return f" ({field}{sign}{middle:.3g})" if field else ""


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
    compared, places = compare_each(task, reward, units[ended], len(rows.tasks))
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
