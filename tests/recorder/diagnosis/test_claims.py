"""The generated shelf: the first finding is what was planted, and each sentence what the generator made.

A sentence that no claim below describes fails: whoever writes a new one says here how to count it.
"""

import math
import operator
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import cache, cached_property, lru_cache
from itertools import combinations
from statistics import fmean, median, pstdev, stdev
from typing import Any, TypeVar

import numpy as np
import orjson
import pytest

from logs_ui.recorder.diagnosis import Card
from logs_ui.recorder.diagnosis.wording import figure, listed, percent
from logs_ui.recorder.rows.task_names import prompt_task
from logs_ui.recorder.vocabulary import FIRST_PROMPT
from tests.faults import Fault
from tests.faults.columns import columns, diagnosed, stop_reason
from tests.faults.policy import RATIO, SAMPLING
from tests.faults.registry import FAULTS, UNEXPLAINED
from tests.faults.runs import Rollout, Run, Turn
from tests.support.exhaustive import marked_cases

GENERATED = [fault for fault in (*FAULTS, *UNEXPLAINED) if fault.made is not None]
SAME = 1e-6
T = TypeVar("T")


def grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    found: dict[Hashable, list[T]] = defaultdict(list)
    for it in items:
        found[key(it)].append(it)
    return list(found.values())


def in_groups(rollouts: Iterable[Rollout]) -> list[list[Rollout]]:
    return grouped(rollouts, lambda it: (it.step, it.group))


def parts(it: Rollout) -> dict[str, float]:
    """Return what each reward function adds to the reward."""
    weights, values = it.weights or {}, it.values or {}
    return {n: v * weights.get(n, 1.0) for n, v in values.items() if v is not None and np.isfinite(v)}


def reward(it: Rollout) -> float | None:
    return sum(parts(it).values()) if parts(it) else None


def rewards(rollouts: Iterable[Rollout]) -> list[float]:
    return [value for it in rollouts if (value := reward(it)) is not None]


def ratio(part: str, whole: str) -> str:
    return percent(int(part) / int(whole))


def means(values: Iterable[float | None]) -> str:
    """Return the mean of what is known, as it is printed."""
    return figure(fmean(it for it in values if it is not None))


def values(rollouts: Iterable[Rollout], name: str) -> list[float]:
    return [(it.values or {})[name] for it in rollouts]  # type: ignore[misc]


def heard(it: Rollout) -> float:
    return sum(turn.reward or 0.0 for turn in it.turns)


def is_equal(group: list[Rollout]) -> bool:
    return len(rewards(group)) > 1 and np.ptp(rewards(group)) <= SAME


def error(it: Rollout) -> str | None:
    return f"RuntimeError: {it.raises}" if it.raises else it.turns[-1].error if it.turns else None


def actions(it: Rollout) -> list[Any]:
    return [turn.action for turn in it.turns if turn.action is not None]


def tail(it: Rollout) -> int:
    """Return how many equal actions end it."""
    backwards = actions(it)[::-1]
    return next((n for n, action in enumerate(backwards) if action != backwards[0]), len(backwards))


def repeats(it: Rollout) -> float:
    """Return the share of actions that were taken before at the same observation, or that go round the same few."""
    before = [None, *(turn.observation for turn in it.turns)]
    pairs = {
        (repr(at), repr(turn.action)) for at, turn in zip(before, it.turns, strict=False) if turn.action is not None
    }
    return max(1 - len(pairs) / len(actions(it)), goes_round(actions(it))) if actions(it) else 0.0


def goes_round(taken: list[Any]) -> float:
    """Return the share of the longest stretch that repeats the same two to four actions."""
    stretches = [
        last - first
        for period in (2, 3, 4)
        for first in range(len(taken))
        for last in range(first + 2 * period, len(taken) + 1)
        if all(taken[at] == taken[at + period] for at in range(first, last - period))
        and len(set(map(repr, taken[first:last]))) > 1
    ]
    return max(stretches, default=0) / max(len(taken), 1)


def is_looping(it: Rollout) -> bool:
    return tail(it) >= 3 or repeats(it) > 0.5


def is_cut(it: Rollout) -> bool:
    return it.stop == "length" or any(turn.finish == "length" for turn in it.turns)


def task(it: Rollout) -> str:
    return it.task or prompt_task(orjson.dumps(it.prompt))


def tasks(rollouts: Iterable[Rollout]) -> dict[str, list[Rollout]]:
    return {task(mine[0]): mine for mine in grouped(rollouts, task)}


def recounted(text: str, entries: Mapping[str, str]) -> str:
    """Return a list of names as it must be, with the names of `text` first: any order of equals is right."""
    first = [re.sub(r" \(.*|\d+ more$", "", it) for it in re.split(", | and ", text)]
    first = [it for it in first if it]
    return listed([*(entries[it] for it in first), *(entries[it] for it in entries if it not in first)])


class Case:
    """A generated run, and what is said of it."""

    def __init__(self, run: Run) -> None:
        self.run, self.report = run, diagnosed(run).report
        assert self.report.steps
        self.last = self.steps(*self.report.steps)
        self.groups = in_groups(self.last)
        self.card: Card

    def steps(self, first: Any, last: Any) -> list[Rollout]:
        return [it for it in self.run.rollouts if int(first) <= it.step <= int(last)]

    @property
    def run_steps(self) -> list[int]:
        return sorted({it.step for it in self.run.rollouts})

    def share(self, is_so: Callable[[Rollout], Any]) -> str:
        return percent(fmean(bool(is_so(it)) for it in self.last))

    @cached_property
    def solved(self) -> Callable[[Rollout], bool]:
        if self.report.scale.success.description == "the environment ended the episode with a reward of 1":
            return lambda it: bool(it.turns) and it.turns[-1].done is True and it.turns[-1].reward == 1
        said = (self.report.scale.success.description or "").removesuffix(", by the function that scores the rollout")
        if self.report.scale.units:  # "web: score ≥ 1; game: not defined"
            evals, _, said = next(part for part in said.split("; ") if "not defined" not in part).partition(": ")
        matches = [re.fullmatch(r"(.+) (\u2265|>) (\S+)", it) for it in said.split(" and ")]
        assert all(matches)
        least = {it[1]: float(it[3]) - SAME * (1 if it[2] == "\u2265" else -1) for it in matches if it}
        return lambda it: (
            (it.eval in evals.split(", ") if self.report.scale.units else True)
            and any(
                ((reward(it) if name == "reward" else (it.values or {}).get(name)) or 0.0) >= value
                for name, value in least.items()
            )
        )

    @cached_property
    def texts(self) -> Mapping[str, Any]:
        """Return what is recorded of the texts of the last steps: counts of words are tested where they are made."""
        rows = columns(self.run)
        return {name: column[rows.step >= self.last[0].step] for name, column in rows.facts.items()}

    @cached_property
    def texts_of(self) -> Mapping[tuple[int, int, int], Mapping[str, Any]]:
        facts = columns(self.run).facts
        names = ("distinct_words", "compression", "trigram_repeats")
        return {
            (it.step, it.group, it.generation): {name: facts[name][place] for name in names}
            for place, it in enumerate(self.run.rollouts)
        }

    @cached_property
    def numbers(self) -> Mapping[int, int]:
        """Return the ids that the rollouts have in filters, by `id`."""
        return {id(rollout): number for number, rollout in enumerate(self.run.rollouts, 1)}

    def of_card(self) -> list[tuple[Rollout, bool]]:
        """Return the rollouts of the last steps, and whether the card is about them."""
        assert self.card.own is not None
        return list(zip(self.last, self.card.own.tolist(), strict=True))


def in_its_eval(case: Case, card: Card) -> Case:
    """Return the case that a card is counted in: for one of an eval that the whole run hides, that eval alone."""
    if not card.eval:
        case.card = card
        return case
    alone = Case(replace(case.run, rollouts=[it for it in case.run.rollouts if it.eval == card.eval]))
    alone.card = next(other for other in alone.report.cards if other.id == card.id)
    assert (card.title, card.evidence) == (f"{card.eval}: {alone.card.title}", alone.card.evidence)
    assert card.share == pytest.approx((alone.card.share or 0.0) * len(alone.last) / len(case.last))
    return alone


# --- What each sentence says. A function returns what the groups of its pattern must be.

Count = Callable[..., tuple[str | None, ...]]


def place(case: Case, _share: str, names: str, _rest: str) -> tuple[str, ...]:
    inside = set(re.split(", | and ", names))
    shares = (fmean(own for it, own in case.of_card() if (task(it) in inside) is is_in) for is_in in (True, False))
    return percent(next(shares)), names, percent(next(shares))


def in_column_of_all(case: Case, column: str, _share: str, value: str, _rest: str) -> tuple[str, ...]:
    sides = [[it for it in case.run.rollouts if (it.metadata[column] == value) is is_in] for is_in in (True, False)]
    inside, rest = (percent(fmean(stop_reason(it) == "length" for it in side)) for side in sides)
    return column, inside, value, rest


def paid_within_groups(case: Case, *_: str) -> tuple[str, ...]:
    """Weights each group by what it tells of the difference: right times wrong, over all."""
    told = list[tuple[float, float, float]]()
    for group in case.groups:
        paid, unpaid = (
            [float(reward(it) or 0.0) for it in group if (given(it) == right(it)) is side] for side in (True, False)
        )
        if paid and unpaid:
            told.append((len(paid) * len(unpaid) / len(group), fmean(paid), fmean(unpaid)))
    whole = sum(weight for weight, *_ in told)
    means_of_sides = [sum(weight * side[i] for weight, *side in told) / whole for i in (0, 1)]
    assert ("hardly" if means_of_sides[0] > means_of_sides[1] else "no") in case.card.title
    return *map(figure, means_of_sides), str(len(told))


def affected(case: Case, text: str) -> tuple[str, ...]:
    every, broken = tasks(case.last), tasks(it for it in case.last if failed(it))
    return (recounted(text, {name: f"{name} ({len(broken[name])} of {len(every[name])})" for name in broken}),)


def errors(case: Case, name: str, _count: str, message: str) -> tuple[str, ...]:
    rollouts = ends_compared(case)[0] if case.card.is_of_evaluations else case.last
    known = [text for it in rollouts if (text := error(it)) and alike(text) == alike(f"{name}: {message}")]
    return name, f"{len(known):,}", message if f"{name}: {message}" in known else ""


def errors_read(case: Case, _: str, name: str, __: str, message: str) -> tuple[str, ...]:
    """Return what a sample must have where each rollout has one error, of one kind."""
    known = [turn.error for it in case.last if not error(it) for turn in it.turns if turn.error]
    read = str(min(32, len(known)))
    return read, name, read, message if f"{name}: {message}" in known else ""


def alike(text: str) -> str:
    """Return an error without its numbers."""
    return re.sub(r"\d+", "0", text)


def failed(it: Rollout) -> bool:
    return bool(it.raises) or any(turn.error for turn in it.turns)


def cut_tokens(case: Case) -> list[int]:
    return [len(it.tokens.completion_ids) for it in case.last if is_cut(it) and it.tokens is not None]


def unscored(case: Case) -> list[Rollout]:
    return [it for it in case.last if it.values is not None and reward(it) is None and not error(it)]


@cache
def stopped(case: Case, name: str) -> list[Rollout]:
    """Return the scored rollouts of families, or of kinds, that a function scored until a step, from that step on."""
    found: list[Rollout] = []
    families = grouped(case.run.rollouts, kind_of)
    for mine in families:
        scored = [it.step for it in mine if name in parts(it)]
        if scored and max(scored) < case.last[-1].step - 1:
            found += [it for it in mine if it.step > max(scored)]
    return found


def all_fail(case: Case, *_: str) -> tuple[str, ...]:
    equal = [group for group in case.groups if is_equal(group)]
    failed = sum(not any(map(case.solved, group)) for group in equal)
    return str(failed), str(len(equal)), str(len(equal) - failed)


def zero_variance(case: Case, _: str, failed: str | None, whole: str | None) -> tuple[str | None, ...]:
    several = [group for group in case.groups if len(rewards(group)) > 1]
    equal = [group for group in several if is_equal(group)]
    share, low = percent(len(equal) / len(several)), min(rewards(case.last))
    if failed is None:
        return share, failed, whole
    number = sum(not any(map(case.solved, group)) and min(rewards(group)) <= low + SAME for group in equal)
    return share, str(number), str(len(equal))


def explained(case: Case, first: str, _all: str, whole: str | None, second: str, _rest: str) -> tuple[Any, ...]:
    rollouts = case.run.rollouts if whole else case.last
    return first, part(rollouts, first), whole, second, part(rollouts, second)


def covariance(rollouts: Iterable[Rollout], name: str) -> float:
    """Return a function's share of the variance of the reward within groups."""
    shares = {"reward": 0.0, name: 0.0}
    for group in (it for it in in_groups(rollouts) if rewards(it)):
        whole = np.array([reward(it) or 0.0 for it in group])
        own = np.array([parts(it).get(name, 0.0) for it in group])
        shares["reward"] += float(((whole - whole.mean()) ** 2).sum())
        shares[name] += float(((own - own.mean()) * (whole - whole.mean())).sum())
    return shares[name] / shares["reward"]


def part(rollouts: Iterable[Rollout], name: str) -> str:
    share = covariance(rollouts, name)
    if share < -SAME:
        return "opposes it"
    return "none" if share < SAME else "all" if share > 1 + SAME else percent(share)


def of_names(names: str, rollouts: Iterable[Rollout]) -> list[Rollout]:
    """Return the rollouts of tasks, or of families, whose names end with a mark."""
    chosen = tuple(re.split(", | and ", names))
    families = tuple(it for it in chosen if not it[-1].isalnum())
    return [it for it in rollouts if task(it) in chosen or task(it).startswith(families)]


def forgotten(case: Case, names: str, *_: str) -> tuple[str, ...]:
    mine = of_names(names, case.run.rollouts)
    sides = [
        [case.solved(it) for it in mine if (it.step < (case.card.since_step or 0)) is first] for first in (True, False)
    ]
    return (
        names,
        *(str(count) for side in sides for count in (sum(side), len(side))),
        case.report.scale.success.description,
    )


@lru_cache(1)
def never(case: Case) -> dict[str, list[Rollout]]:
    """Return the tasks that ten attempts or more did not solve."""
    known = tasks(it for it in case.run.rollouts if reward(it) is not None)
    return {name: mine for name, mine in known.items() if len(mine) >= 10 and not any(map(case.solved, mine))}


def maybe_unsolved(case: Case) -> int:
    """Return how many of these tasks the card's filter leaves out."""
    return sum(name not in case.card.where for name in never(case))


def never_in(case: Case, names: str, _attempts: str, said: str) -> tuple[str, ...]:
    gone = never(case)
    attempts = sum(task(it) in gone for it in case.run.rollouts)
    return recounted(names, {it: it for it in gone}), str(attempts), said


def by_chance(case: Case, _: str) -> tuple[str]:
    """Return how many tasks would stay unsolved if rollouts of a group were independent, as they are here."""
    fails = 1 - fmean(case.solved(it) for it in case.run.rollouts)
    return (f"{sum(fails ** len(mine) for mine in tasks(case.run.rollouts).values()):.0f}",)


def in_place(case: Case, column: str | None, names: str) -> list[Rollout]:
    """Return the rollouts of all steps that are of these values of a column, or of these families."""
    inside = set(re.split(", | and ", names))
    return [
        it
        for it in case.run.rollouts
        if (it.metadata[column] if column else f"{task(it).partition('/')[0]}/") in inside
    ]


def unsolved_place(case: Case, _count: str, column: str | None, names: str, *_: str) -> tuple[str | None, ...]:
    mine = in_place(case, column, names)
    of_mine = set(map(id, mine))
    others = [it for it in case.run.rollouts if id(it) not in of_mine]
    number = len(mine) if not any(map(case.solved, mine)) else -1
    return f"{number:,}", column, names, str(len(tasks(mine))), percent(fmean(map(case.solved, others)))


def rarely_solved_place(
    case: Case, _share: str, _count: str, column: str | None, names: str, *_: str
) -> tuple[str | None, ...]:
    mine = in_place(case, column, names)
    others = set(map(id, case.run.rollouts)) - set(map(id, mine))
    shares = [
        fmean(case.solved(it) for it in case.run.rollouts if (id(it) in others) is side) for side in (False, True)
    ]
    return f"{shares[0]:.1%}", f"{len(mine):,}", column, names, str(len(tasks(mine))), percent(shares[1])


def shared_place(case: Case) -> tuple[list[list[Rollout]], list[list[Rollout]]]:
    """Return the groups of the place that a card names, and the others."""
    match = re.search(r"groups(?: of (?:metadata\.(\S+) )?(.+))?$", case.card.title)
    assert match
    inside = set(map(id, in_place(case, match[1], match[2]) if match[2] else case.run.rollouts))
    groups = in_groups(case.run.rollouts)
    return [it for it in groups if id(it[0]) in inside], [it for it in groups if id(it[0]) not in inside]


def count_solved(case: Case, groups: list[list[Rollout]]) -> Counter[int]:
    """Count groups by how many of their rollouts are solved."""
    return Counter(sum(map(case.solved, it)) for it in groups)


def one_solved(case: Case, _: str, __: str, ___: str, *place: str | None) -> tuple[str | None, ...]:
    mine, _others = shared_place(case)
    return *(f"{it}" for it in (len(mine[0]), count_solved(case, mine)[1], len(mine))), *place


def one_of_independent(case: Case, _: str) -> tuple[str]:
    """Return the highest probability that exactly one of n is solved, over all chances."""
    n = len(case.groups[0])
    return (percent(max(n * p * (1 - p) ** (n - 1) for p in np.linspace(0, 1, 10_001).tolist())),)


def read_error(case: Case, *groups: str, varies: bool = False) -> tuple[str, ...]:
    """Return in how many rollouts of groups with one solved rollout an observation says that another one was first."""
    mine = [it for group in shared_place(case)[0] if sum(map(case.solved, group)) == 1 for it in group]
    counts, texts = list[int](), set[str]()
    for side in (False, True):
        read = sample([it for it in mine if case.solved(it) is side], 32)
        heard = [
            [str(turn.observation) for turn in it.turns if re.search("already|in use", str(turn.observation))]
            for it in read
        ]
        counts, texts = [*counts, sum(map(bool, heard)), len(read)], texts | {text for each in heard for text in each}
    return *map(str, counts), groups[4] if groups[4] in texts and (len(texts) > 1) is varies else ""


def told_error(case: Case, *groups: str, varies: bool = False) -> tuple[str, ...]:
    """Return in how many rollouts of a sample of both sides an observation says this, with any numbers."""
    counts, texts = list[int](), set[str]()
    for side in (True, False):
        read = sample([it for it in case.run.rollouts if it.is_hit is side], 32)
        heard = [[str(turn.observation) for turn in it.turns] for it in read]
        counts += [sum(any(alike(groups[4]) in alike(text) for text in each) for each in heard), len(read)]
        texts |= {text.split("\n")[-1] for each in heard for text in each if alike(groups[4]) in alike(text)}
    return *map(str, counts), groups[4] if (len(texts) > 1) is varies else ""


def hears_error(it: Rollout, line: str) -> bool:
    """Return whether an observation has a line that is like this one, but for what an ellipsis stands for."""
    like = re.escape(line).replace("\u2026", ".*").replace(r"\ .*", ".*")
    return any(re.search(like, told(turn.observation)) for turn in it.turns)


def within(
    groups: Iterable[list[Rollout]], chosen: Callable[[Rollout], bool], value: Callable[[Rollout], float]
) -> Any:
    """Return the means of the chosen rollouts, and of the others of their groups, each group by what it tells."""
    sums, whole = [0.0, 0.0], 0.0
    for group in groups:
        sides = [[value(it) for it in group if chosen(it) is side] for side in (True, False)]
        if all(sides):
            weight = len(sides[0]) * len(sides[1]) / len(group)
            sums = [total + weight * fmean(side) for total, side in zip(sums, sides, strict=True)]
            whole += weight
    return [total / whole for total in sums]


def near(texts: Iterable[str], values: Iterable[float]) -> list[str]:
    """Return the texts where a sample may have them and all have these values, else the values."""
    pairs = zip(texts, values, strict=True)
    return [
        text if abs(float(text.removesuffix("%")) / (100 if "%" in text else 1) - value) < 0.1 + 0.1 * abs(value)
        else f"{value}"
        for text, value in pairs
    ]  # fmt: skip


def told_in_groups(case: Case, count: str, line: str, *shares: str) -> tuple[str, ...]:
    """Return the same of all groups, of which some were read, as far as it is near."""
    low, better = (set(map(id, side)) for side in sides_of(case))
    both = [[it for it in group if id(it) in low | better] for group in case.groups]
    groups = sum(0 < sum(id(it) in low for it in group) < len(group) for group in both)
    values = within(both, lambda it: id(it) in low, lambda it: float(hears_error(it, line)))
    return count if 5 <= int(count) <= groups else str(groups), line, *near(shares, values)


def differ_most(case: Case, text: str) -> tuple[str]:
    """Return what the generator measured, or which errors were heard, of all groups, as far as it is near."""
    name, low = new_value(case)
    said = []
    for part in text.split(" and "):
        label, *shown = re.findall(r"(.+) \((\S+), others (\S+)\)", part)[0]
        line = "".join(re.findall("\u201c(.*)\u201d", label))
        metric = label.removeprefix("metrics.")
        means_of = within(
            case.groups,
            lambda it: values([it], name)[0] == low,
            lambda it: float(hears_error(it, line) if line else it.metadata["metrics"][metric]),  # noqa: B023
        )
        mine, others = near(shown, means_of)
        said.append(f"{label} ({mine}, others {others})")
    return (" and ".join(said),)


def like_others(case: Case, count: str, names: str) -> tuple[str | None, ...]:
    more = re.findall(r"and (\d+) more$", names)
    return "" if are_alike(case) else str(3 + int(more[0])), names


@lru_cache(1)
def hopeless(case: Case, title: str) -> set[str]:
    """Return the tasks of the place that a card names, else those that are never solved."""
    match = re.match(r"\S+ of the \S+ rollouts of (?:metadata\.(\S+) )?(.+) \(", title)
    return set(tasks(in_place(case, match[1], match[2]))) if match else set(never(case))


def is_hopeless(case: Case) -> Callable[[Rollout], bool]:
    return lambda it: task(it) in hopeless(case, case.card.title)


def unsolved_from(case: Case, column: str, level: str, _: str) -> tuple[str, ...]:
    levels = {float(it.metadata[column]) for it in case.run.rollouts if case.solved(it)}
    first = min(float(it.metadata[column]) for it in case.run.rollouts if it.metadata[column] > max(levels))
    lower = [case.solved(it) for it in case.run.rollouts if it.metadata[column] < float(level)]
    return column, f"{first:g}", percent(fmean(lower))


def by_family(rollouts: Iterable[Rollout]) -> dict[str, list[Rollout]]:
    return {
        task(mine[0]).partition("/")[0] + "/": mine for mine in grouped(rollouts, lambda it: task(it).split("/")[0])
    }


def mixes(case: Case, *steps: str) -> tuple[str, str]:
    """Return the change of the mean reward within tasks, and by their mix (Kitagawa), of four steps' numbers."""
    after, before = tasks(case.steps(*steps[:2])), tasks(case.steps(*steps[2:]))
    if not after.keys() & before.keys():
        after, before = (by_family(case.steps(*span)) for span in (steps[:2], steps[2:]))
    shared = [name for name in after if name in before]
    sizes = [sum(len(side[name]) for name in shared) for side in (before, after)]
    within = mix = 0.0
    for name in shared:
        w0, w1 = len(before[name]) / sizes[0], len(after[name]) / sizes[1]
        m0, m1 = (fmean(rewards(side[name])) for side in (before, after))
        within, mix = within + (m1 - m0) * (w0 + w1) / 2, mix + (w1 - w0) * (m0 + m1) / 2
    return figure(within), figure(mix)


def course(case: Case, *groups: str) -> tuple[str, ...]:
    """Return a function's mean and the reward's, in the first steps and the last."""
    last, first = case.steps(*groups[:2]), case.steps(*groups[2:4])
    name = groups[4]
    return (
        *groups[:5], means(values(first, name)), means(values(last, name)),
        means(rewards(first)), means(rewards(last)),
    )  # fmt: skip


def out_of_turns(it: Rollout) -> bool:
    return stop_reason(it) == "turn_limit"


def most_often(case: Case, *groups: str) -> tuple[str, ...]:
    ended = {name: fmean(map(out_of_turns, mine)) for name, mine in tasks(case.last).items()}
    assert min(ended[name] for name in groups[::2]) >= sorted(ended.values())[-len(groups[::2]) :][0]
    return tuple(text for name in groups[::2] for text in (name, percent(ended[name])))


def sampled_same(case: Case, name: str) -> list[list[float]]:
    """Return the values that a function gave to each completion that there is twice, of the same prompt and task."""
    same: dict[Any, list[float]] = defaultdict(list)
    for it in case.last:
        assert it.tokens is not None
        key = task(it), it.tokens.prompt_ids.tolist().__repr__(), it.tokens.completion_ids.tolist().__repr__()
        same[key].append((it.values or {})[name] or 0.0)
    return [given for given in same.values() if len(given) > 1]


def scored_differently(case: Case, *_: str) -> tuple[str, ...]:
    name = case.card.title.split(" scores ")[0]
    known = np.array(values(case.last, name))
    same = sampled_same(case, name)
    odd = [given for given in same if np.ptp(given) > 0.01 * np.ptp(known)]
    return str(sum(map(len, same))), str(sum(map(len, odd)))


def completions_scored_differently(case: Case, name: str, *_: str) -> tuple[str, ...]:
    known, same = np.array(values(case.last, name)), sampled_same(case, name)
    return name, str(sum(np.ptp(given) > 0.01 * np.ptp(known) for given in same)), str(len(same))


def of_one_completion(case: Case, _count: str, name: str, *_: str) -> tuple[str, ...]:
    given = {(str(len(set(it))), name, figure(min(it)), figure(max(it))) for it in sampled_same(case, name)}
    return next(iter(it for it in given if it[0] == _count and it[2:] == _), ())


def stds(case: Case) -> list[float]:
    """Return the mean standard deviation within groups of each step."""
    by_step = grouped(case.run.rollouts, lambda it: it.step)
    groups = ([pstdev(rewards(it)) for it in grouped(step, lambda it: it.group)] for step in by_step)
    return [float(np.average(step)) for step in groups]


def has_several_prompts(group: list[Rollout]) -> bool:
    return len({(it.task, it.tokens and tuple(it.tokens.prompt_ids.tolist())) for it in group}) > 1


def shares_prompt(case: Case) -> list[bool]:
    """Return of each rollout of the last steps whether rollouts of other tasks have its prompt."""
    of: dict[Any, set[str]] = defaultdict(set)
    for it in case.last:
        assert it.tokens is not None
        of[tuple(it.tokens.prompt_ids.tolist())].add(task(it))
    return [len(of[tuple(it.tokens.prompt_ids.tolist())]) > 1 for it in case.last if it.tokens is not None]


def cancels(group: list[Rollout]) -> bool:
    columns_of = zip(*(parts(it).values() for it in group), strict=True)
    return is_equal(group) and any(np.ptp(column) > SAME for column in columns_of)


def lag(it: Rollout) -> float:
    return float(
        it.staleness
        if it.staleness is not None
        else max(it.step - (it.step if it.policy_step is None else it.policy_step) - 1, 0)
    )


def correlation(case: Case, name: str) -> float:
    pairs = list[Any]()
    for group in case.groups:
        tokens = [(sum(turn.tokens or 0 for turn in it.turns) / len(it.turns)) or length(it) for it in group]
        paid = [reward(it) if name == "reward" else parts(it)[name] for it in group]
        pairs += zip(np.subtract(tokens, np.mean(tokens)), np.subtract(paid, np.mean(paid)), strict=True)  # type: ignore[arg-type]
    return float(np.corrcoef(np.array(pairs).T)[0, 1])


def follows_function(case: Case, name: str) -> str:
    """Return the correlation of the reward and a function within groups."""
    sides = [(np.array(rewards(group)), np.array([parts(it)[name] for it in group])) for group in case.groups]
    x, y = (np.concatenate([side - side.mean() for side in of]) for of in zip(*sides, strict=True))
    return figure(float(np.corrcoef(x, y)[0, 1]))


def regressed(case: Case, *_: str) -> tuple[str, ...]:
    before, since = re.findall(r"\d+ of \d+", case.card.evidence[0])
    names = re.split(", | and ", case.card.evidence[0].split(":")[0])
    shares = (ratio(*it.split(" of ")) for it in (since, before))
    key = task if names[0][-1].isalnum() else lambda it: task(it).partition("/")[0]
    of_all = grouped((it for it in case.run.rollouts if reward(it) is not None), key)
    number = sum(sum(it.step > mine[0].step for it in mine) >= 10 for mine in of_all)
    return str(len(names)), str(number), *shares


def reused(case: Case) -> float:
    """Return by how many versions a batch is older on average, as it is used for several steps."""
    of = {"steps_per_generation": 1, "num_iterations": 1, "gradient_accumulation_steps": 1} | dict(case.run.config)
    return float(max(of["steps_per_generation"] * of["num_iterations"] // of["gradient_accumulation_steps"], 1) - 1) / 2


def logged(case: Case, name: str) -> float:
    """Return the largest value of the last steps; the mean of what is an average already is that of one value."""
    points = [value for step, value in case.run.scalars.get(name, {}).items() if step >= case.last[0].step]
    return max(points) if points else float(case.run.config[name])


def mismatch(case: Case, _: str) -> tuple[str, ...]:
    points = case.run.scalars[SAMPLING].items()
    return (means(value for step, value in points if step >= case.last[0].step),)


def mismatch_of_sampler(case: Case, *_: str) -> tuple[str, ...]:
    hits, others = ([it for it in case.last if it.is_hit is side] for side in (True, False))
    apart, beside = (
        means(
            it.metadata["metrics"]["sampling_logp_difference"] if "metrics" in it.metadata else lag(it) for it in side
        )
        for side in (hits, others)
    )
    samplers = {it.metadata["sampler"] for it in hits}
    return *mismatch(case, ""), apart, " or ".join(samplers), beside


def grown(case: Case, *_: str) -> tuple[str, ...]:
    """Return the ends of a mismatch that rises, of a policy that samples as ever."""
    points = sorted(case.run.scalars[SAMPLING].items())
    assert points[0][1] < 0.1 * points[-1][1]
    assert abs(fmean(rewards(windows(case)[0])) - fmean(rewards(windows(case)[1]))) < 0.1
    return figure(float(np.median([value for _, value in points[:3]]))), "3", mismatch(case, "")[0]


def kl_alone(case: Case, *_: str) -> tuple[str, ...]:
    """Return the mean KL of the first steps and of the last, if neither rewards nor lengths moved by three errors."""
    sides = windows(case)
    for measure in (rewards, lambda group: [length(it) for it in group]):
        first, last = ([fmean(measure(group)) for group in in_groups(side)] for side in sides)
        assert abs(fmean(first) - fmean(last)) <= 3 * math.hypot(*(stdev(it) / len(it) ** 0.5 for it in (first, last)))
    steps = [{it.step for it in side} for side in sides]
    return tuple(figure(fmean(kl for step, kl in case.run.scalars["kl"].items() if step in of)) for of in steps)


def unchanged(case: Case, *said: str) -> tuple[str, ...]:
    """Return the steps that are compared; what did not change is as it is said."""
    ends = [str(end) for side in windows(case) for end in (min(it.step for it in side), max(it.step for it in side))]
    return *ends, *said[4:]


def broken(case: Case, name: str) -> tuple[str, ...]:
    """Return the name of a logged figure, how many steps it is no number up to the last, the first, and that before."""
    steps = [step for step, value in case.run.scalars[name].items() if not np.isfinite(value)]
    finite = [step for step, value in case.run.scalars[name].items() if np.isfinite(value)]
    assert steps[0] > finite[-1]
    return name, str(len(steps)), str(steps[0]), str(finite[-1])


def names_of_broken(case: Case, _: str) -> tuple[str, ...]:
    logged = {name: [*points.values()][-1] for name, points in case.run.scalars.items()}
    names = [it for it in ("loss", "grad_norm", "kl", "entropy") if not np.isfinite(logged.get(it, 0.0))]
    return (" and ".join(", ".join(names).rsplit(", ", 1)),)


def surprise(case: Case, *, per_rollout: bool = False) -> float:
    """Return the mean of -log p over the sampled tokens; or of the means of the last step's rollouts."""
    kept = [it.tokens.logprobs for it in case.last if it.tokens is not None and it.tokens.logprobs is not None]
    if per_rollout:
        kept = [it.tokens.logprobs for it in case.steps(case.last[-1].step, case.last[-1].step) if it.tokens]  # type: ignore[misc]
        return fmean(-float(np.nanmean(it)) for it in kept)
    return -float(np.nanmean(np.concatenate(kept)))


def entropies(case: Case, *_: str) -> tuple[str, str, str]:
    """Return the sampler's entropy at the last 3 steps, its share of the median at the first 10, and that."""
    steps = grouped(case.run.rollouts, lambda it: it.step)
    logprobs = [[it.tokens.logprobs for it in step if it.tokens and it.tokens.logprobs is not None] for step in steps]
    means = [fmean(-float(np.nanmean(it)) for it in step) for step in logprobs]
    now, before = fmean(means[-3:]), float(np.median(means[:10]))
    return figure(now), percent(now / before), figure(before)


def updates(case: Case, said: str) -> tuple[str]:
    """Return the named scalars, each with its medians before the card's step and at the last steps."""
    since, pairs = case.card.since_step or 0, list[str]()
    for name in re.findall(r"(\S+) \S+ \u2192", said):
        points = case.run.scalars[name]
        before = [abs(value) for step, value in points.items() if step < since]
        now = [abs(value) for step, value in points.items() if step >= max(since, case.last[0].step)]
        assert median(now) > 10 * median(before)
        pairs.append(f"{name} {figure(median(before))} \u2192 {figure(median(now))}")
    return ("; ".join(pairs),)


def windows(case: Case) -> tuple[list[Rollout], list[Rollout]]:
    """Return the first steps and as many last ones, or the first and the last third of a short run."""
    steps = sorted({it.step for it in case.run.rollouts})
    count = len({it.step for it in case.last})
    count = count if 2 * count <= len(steps) else max(len(steps) // 3, 1)
    return case.steps(steps[0], steps[count - 1]), case.steps(steps[-count], steps[-1])


def sides_of_course(case: Case) -> tuple[list[Rollout], list[Rollout]]:
    """Return the earlier and the later ones of the steps that the card says it compares."""
    later, last, first, before = map(int, re.findall(r"\d+", case.card.evidence[0])[:4])
    return case.steps(first, before), case.steps(later, last)


def agree_within(case: Case, side: list[Rollout], *names: str) -> str:
    """Return the correlation of two functions within groups, without rollouts that get the least of both."""
    least = [min(values(case.run.rollouts, n)) for n in names]
    some = [it for it in side if any(values([it], n)[0] > low for n, low in zip(names, least, strict=True))]
    columns = [
        [values([it], n)[0] - fmean(values(group, n)) for group in in_groups(some) for it in group] for n in names
    ]
    return figure(float(np.corrcoef(columns[0], columns[1])[0, 1]))


def length(it: Rollout) -> float:
    assert it.tokens is not None
    ids = it.tokens.completion_ids if it.tokens.mask is None else it.tokens.completion_ids[it.tokens.mask != 0]
    return len(ids) / max(len(it.turns), 1)


def grows(case: Case) -> bool:
    first, last = (fmean(map(length, side)) for side in windows(case))
    return last > first and correlation(case, "reward") > 0


def weight(case: Case, name: str) -> float:
    return (case.last[0].weights or {}).get(name, 1.0)


def room(case: Case, name: str) -> str:
    given = [parts(it)[name] for it in case.run.rollouts]
    most = max(given) if np.ptp(given) > 0 or max(given) > 0 else weight(case, name)
    return figure(max(most, 0.0) - fmean(parts(it)[name] for it in case.last))


def low_at(case: Case, _share: str, name: str, _low: str, payer: str | None, _high: str | None) -> tuple[Any, ...]:
    """Return the share of rollouts at a function's last mean or below, and at half of the rise of another or above."""
    first, last = sides_of_course(case)
    low = fmean(values(last, name))
    high = 0.0 if payer is None else fmean(fmean(values(side, payer)) for side in (first, last))

    def is_low(rollout: Rollout) -> bool:
        is_paid = payer is None or values([rollout], payer)[0] >= high - SAME
        return is_paid and values([rollout], name)[0] <= low + SAME

    return case.share(is_low), name, figure(low), payer, payer and figure(high)


def longer(case: Case, *_: str) -> tuple[str, str]:
    """Return the share of rollouts of the median's length or more, or of twice the first length or more."""
    first = fmean(map(length, windows(case)[0]))
    least = 2 * first if case.card.title.startswith("Answers grow") else median(map(length, case.last))
    return case.share(lambda rollout: length(rollout) >= least), f"{math.ceil(least):,}"


def hacked(case: Case, name: str, how: str) -> tuple[str, ...]:
    sides = sides_of_course(case)
    assert fmean(rewards(sides[1])) > fmean(rewards(sides[0]))
    assert fmean(values(sides[1], name)) < fmean(values(sides[0], name))
    first, last = ({it: fmean(parts(r)[it] for r in side) for it in parts(side[0])} for side in sides)
    payer = max(first, key=lambda it: last[it] - first[it])
    return name, how if how.startswith("which") else f"and {payer} rises instead"


def light(case: Case) -> tuple[str, ...]:
    name = re.findall(r"while (\S+) falls", case.card.title)[0]
    ranges = {it: float(np.ptp([parts(r)[it] for r in case.run.rollouts])) for it in parts(case.last[0])}
    return figure(weight(case, name)), percent(ranges[name] / sum(ranges.values()))


def apart(case: Case, name: str) -> list[Rollout]:
    """Return the rollouts on which a function and the environment disagree: in any pair, where they are graded."""
    if {heard(it) for it in case.last} <= {0.0, 1.0}:
        return [it for it in case.last if abs(heard(it) - values([it], name)[0]) > 0.5]
    return [it for group in case.groups for it in group if any(ordered(it, other, name) < 0 for other in group)]


def ordered(a: Rollout, b: Rollout, name: str) -> float:
    return float(np.sign(heard(a) - heard(b)) * np.sign(values([a], name)[0] - values([b], name)[0]))


def pairs(case: Case, name: str) -> list[float]:
    found = (ordered(a, b, name) for group in case.groups for a, b in combinations(group, 2))
    return [it for it in found if it]


def replaced(case: Case) -> tuple[list[Rollout], list[Rollout]]:
    """Return the rollouts of tasks that only the first steps have, and of those that only the last have."""
    first, last = windows(case)
    return [it for it in first if task(it) not in tasks(last)], [it for it in last if task(it) not in tasks(first)]


def often(side: list[Rollout], name: str) -> str:
    return percent(len(of_names(name, side)) / len(side))


def unparsed(it: Rollout) -> int:
    return sum(turn.action is None and turn.finish != "length" for turn in it.turns)


def streak(it: Rollout) -> int:
    return max(map(len, "".join("x" if turn.action is None else " " for turn in it.turns).split()), default=0)


def unsaid(turn: Turn) -> bool:
    return turn.action is not None and spoken(turn) not in turn.text


def spoken(turn: Turn) -> str:
    """Return an action as an answer writes it."""
    return str(next(iter(turn.action.values())) if isinstance(turn.action, dict) else turn.action)


def turns(case: Case) -> list[Turn]:
    return [turn for it in case.last for turn in it.turns]


def duplicates(case: Case) -> float:
    """Return the share of completions that are like another one of their group."""
    each = [[tuple(it.tokens.completion_ids.tolist()) for it in group if it.tokens] for group in case.groups]
    return fmean(group.count(it) > 1 for group in each for it in group)


def completion(it: Rollout) -> Hashable:
    return it.tokens and tuple(it.tokens.completion_ids.tolist())


def same_paid(case: Case) -> tuple[str, ...]:
    """Return the mean reward of the card's rollouts, which loop or are like others of their group, and of the rest."""
    is_twin = {
        id(it): completion(it) is not None and [*map(completion, group)].count(completion(it)) > 1
        for group in case.groups
        for it in group
    }
    chosen = {id(it): is_twin[id(it)] if case.card.id == "diversity" else is_looping(it) for it in case.last}
    return tuple(means(reward(it) or 0.0 for it in case.last if chosen[id(it)] is side) for side in (True, False))


def repeating(case: Case) -> Any:
    texts = case.texts
    return (texts["trigram_repeats"] >= 0.5) | (texts["distinct_words"] <= 0.25) | (texts["compression"] > 10)


def ended(it: Rollout) -> bool:
    """Return whether nothing but its reward says that a rollout went wrong."""
    odd = (
        {"length", "no_action", "turn_limit"}
        if not is_looping(it)
        else {"length", "no_action", "turn_limit", "not_recorded"}
    )
    is_idle = not actions(it) and any(turn.is_move for turn in it.turns)
    return not (error(it) or reward(it) is None or str(stop_reason(it)) in odd or is_idle)


def best_of(case: Case, it: Rollout) -> float:
    return next((unit.best for unit in case.report.scale.units if unit.name == it.eval), case.report.scale.best)


def short(case: Case, it: Rollout) -> float:
    """Return the reward that a rollout lost."""
    return max(best_of(case, it) - (reward(it) or 0.0), 0.0)


def of_loss(case: Case, _share: str, *name: str) -> tuple[str, ...]:
    lost = [(short(case, it), ended(it)) for it in case.last]
    return percent(sum(it for it, is_low in lost if is_low) / sum(it for it, _ in lost)), *name


def share_of_others(it: Rollout) -> float | None:
    """Return the share of the answers' letters whose name in Unicode does not begin with LATIN."""
    letters = [letter for turn in it.turns for letter in turn.text if letter.isalpha()]
    return fmean(not unicodedata.name(letter).startswith("LATIN") for letter in letters) if letters else None


def is_solved(case: Case, it: Rollout) -> float | None:
    """Return None for a rollout of an eval in which solved is not defined."""
    success = case.report.scale.success
    known = {mark.eval for mark in success.marks} if case.report.scale.units else {it.eval}
    return float(success.is_defined and case.solved(it)) if it.eval in known else None


def figures(case: Case, it: Rollout) -> dict[str, float]:
    """Return what differences may name, of one rollout."""
    texts = case.texts_of[it.step, it.group, it.generation]
    tokens = float("nan") if it.tokens is None else length(it) * max(len(it.turns), 1)
    return {
        **(it.values or {}),
        "reward": reward(it),
        "tokens per turn": tokens / max(len(it.turns), 1),
        "sampled tokens": tokens,
        "turns": len(it.turns),
        "environment steps": len(actions(it)),
        "tool calls": sum(isinstance(sent, dict) and sent.keys() == {"name", "arguments"} for sent in actions(it)),
        "tool calls without an environment step": 0.0,  # in these runs each action has its turn, and is sent
        "failed actions": sum(turn.error is not None for turn in it.turns),
        "the share of different words": texts["distinct_words"],
        "the repetitiveness (compression ratio)": texts["compression"],
        "the share of three-word sequences that repeat": texts["trigram_repeats"],
        "the share of letters that are not Latin": share_of_others(it),
        "solved (share)": is_solved(case, it),
        "turn limit (share)": float(out_of_turns(it)),
        "truncated (share)": float(it.stop == "length"),
        "no action parsed (share)": float(it.turns[-1].action is None and it.stop == "no_action"),
    }


def compared(
    case: Case, name: str, chosen: list[Rollout], others: list[Rollout], stratum: Callable[[Rollout], Hashable]
) -> tuple[str, str]:
    """Return the two means of a figure, over the strata that both sides have, each weighted by what it tells."""
    sums, whole = [0.0, 0.0], 0.0
    for one in {stratum(it) for it in chosen}:
        each = [[figures(case, it).get(name) for it in side if stratum(it) == one] for side in (chosen, others)]
        sides = [[value for value in side if value is not None] for side in each]
        if all(sides):
            weight = len(sides[0]) * len(sides[1]) / (len(sides[0]) + len(sides[1]))
            sums, whole = (
                [total + weight * fmean(side) for total, side in zip(sums, sides, strict=True)],
                whole + weight,
            )
    shown = percent if name.endswith("(share)") or name.startswith("the share of ") else figure
    return shown(sums[0] / whole), shown(sums[1] / whole)


def over_time(case: Case, *groups: str) -> tuple[str, ...]:
    first, last, text = case.steps(*groups[:2]), case.steps(*groups[2:4]), groups[-1]
    is_of_tasks, is_of_evals = (len(groups) == 6 and unit in groups[4] for unit in ("task", "evals"))
    by = task if is_of_tasks else (lambda it: it.eval) if is_of_evals else lambda _: 0
    said = []
    for part in text.split("; "):
        name = re.findall(r"(.+) \S+ \u2192 ", part)[0]
        now, before = compared(case, name, last, first, by)
        said.append(f"{name} {before} \u2192 {now}")
    return *groups[:-1], "; ".join(said)


def sides_of(case: Case) -> tuple[list[Rollout], list[Rollout]]:
    """Return the low rollouts of the last steps that ended normally, and the better ones."""
    low = [it for it in case.last if ended(it) and short(case, it) > SAME]
    if case.report.scale.success.is_defined:
        low, better = [it for it in low if not case.solved(it)], [it for it in case.last if case.solved(it)]
    else:
        means_of = {(it.step, it.group): fmean(rewards(group)) for group in case.groups for it in group}
        better = [it for it in case.last if (reward(it) or 0.0) > means_of[it.step, it.group] + SAME]
        low = [it for it in low if (reward(it) or 0.0) < means_of[it.step, it.group] - SAME]
    return low, better


FIELDS = {"compression": "the repetitiveness (compression ratio)"}
FIELDS |= {"non_latin": "the share of letters that are not Latin"}
FIELDS |= {"distinct_words": "the share of different words"}
FIELDS |= {"trigram_repeats": "the share of three-word sequences that repeat"}


def filtered(case: Case, name: str, text: str, low: list[Rollout], better: list[Rollout]) -> str:
    """Return the filter at the end of the text, if it selects low rollouts more often than better ones."""
    said = re.search(r" \((\w+)([<>])([\d.]+)\)$", text)
    if said is None:
        return "" if name not in FIELDS.values() else "no filter"
    field, sign, limit = said.groups()
    less = -1 if sign == "<" else 1
    of_low, of_better = (
        fmean(
            less * figures(case, it)[name] > less * float(limit) for it in side if figures(case, it)[name] is not None
        )
        for side in (low, better)
    )
    return said[0] if FIELDS[field] == name and of_low > of_better else "another filter"


def in_groups_of(case: Case, count: str, text: str) -> tuple[str, ...]:
    low, better = sides_of(case)
    said = []
    for part in text.split("; "):
        name = re.findall(r"(.+) \S+, in better ones ", part)[0]
        mine, theirs = compared(case, name, low, better, lambda it: (it.step, it.group))
        said.append(f"{name} {mine}, in better ones {theirs}{filtered(case, name, part, low, better)}")
    both = {(it.step, it.group) for it in low} & {(it.step, it.group) for it in better}
    return str(len(both)), "; ".join(said)


def lose_more(case: Case, text: str, _elsewhere: str) -> tuple[str, ...]:
    names = re.findall(r"(?:^| and |, )(.+?) \(mean ", text)
    if "mean lost share" in text:
        return more_lost_of_best(case, names, text)
    return more_lost((tasks if names[0][-1].isalnum() else by_family)(filter(ended, case.last)), names, text)


def more_lost_of_best(case: Case, names: list[str], text: str) -> tuple[str, str]:
    """Return the same of evals, or of families of one each: of the best reward there, the share that is lost."""
    is_of_evals = all(name[-1].isalnum() for name in names)

    def key(it: Rollout) -> str:
        return it.eval or "" if is_of_evals else re.split(r"\d", task(it))[0]

    mine = {key(it[0]): [short(case, each) / best_of(case, each) for each in it]
            for it in grouped(filter(ended, case.last), key)}  # fmt: skip
    rest = fmean(value for name, of in mine.items() if name not in names for value in of)
    lower = {
        it: f"{it} (mean lost share of the best reward {means(mine[it])})" for it in names if fmean(mine[it]) > rest
    }
    return recounted(text, lower), figure(rest)


def lose_more_in_evals(case: Case, text: str, _elsewhere: str) -> tuple[str, ...]:
    names = re.findall(r"(?:^| and |, )(.+?) \(mean ", text)
    if "mean lost share" in text:
        return more_lost_of_best(case, names, text)
    return more_lost(
        {it[0].eval or "": it for it in grouped(filter(ended, case.last), lambda it: it.eval)}, names, text
    )


def more_lost(mine: Mapping[str, list[Rollout]], names: list[str], text: str) -> tuple[str, str]:
    """Return the places that are named, each of which must get less than the rest, and what the rest gets."""
    rest = fmean(value for name, of in mine.items() if name not in names for value in rewards(of))
    lower = {it: f"{it} (mean reward {means(rewards(mine[it]))})" for it in names if fmean(rewards(mine[it])) < rest}
    return recounted(text, lower), figure(rest)


def of_machine(case: Case, column: str, text: str, *steps: str) -> tuple[str, ...]:
    """Return the mean rewards of machines and of others, in the last steps, or before a step: of others of their
    groups, or of other groups, of the same families if the card says so.
    """
    names = set(re.split(", | and ", text))
    chosen = case.steps(1, int(steps[0]) - 1) if steps else case.last
    mine, others = ([it for it in chosen if (it.metadata[column] in names) is side] for side in (True, False))
    if "rollouts of these groups" in case.card.title:
        return compared(case, "reward", mine, others, lambda it: (it.step, it.group))
    return compared(case, "reward", mine, others, kind_of if "these families" in case.card.title else lambda _: 0)


def fell_in(case: Case, place: str, *_: str) -> tuple[str, ...]:
    """Return the mean reward of a part before a step and since, and that of the others, at the same tasks if these
    recur.
    """
    since, _last, begin = map(int, re.findall(r"\d+", case.card.evidence[0]))
    is_there = place_in(place)
    levels: list[str] = []
    for of in (True, False):
        mine = [it for it in case.run.rollouts if (is_there(it) == place.removeprefix("family ")) is of]
        late, early = [it for it in mine if it.step >= since], [it for it in mine if it.step < begin]
        by = task if case.card.evidence[0].endswith("at the same tasks.") else lambda _: 0
        levels += compared(case, "reward", early, late, by)
    return place, *levels


def since_fall(case: Case, middle: str, *_: str, recur: bool) -> tuple[str, ...]:
    """Return the steps that are compared, if tasks do recur as it says."""
    groups = {(it.step, it.group): task(it) for it in case.run.rollouts}
    assert (len({*groups.values()}) < len(groups)) is recur
    assert int(middle) >= (case.card.since_step or 0)
    return middle, str(max(it.step for it in case.run.rollouts)), str(case.card.since_step)


def from_there(case: Case, *_: str) -> tuple[str, ...]:
    title = case.card.title
    place = title.removeprefix("In ").split(" the mean reward fell")[0] if " the mean reward fell" in title else ""
    column, names = ("", "") if place else machine_of(case)
    is_there = place_in(place) if place else lambda it: it.metadata[column]
    mine = {place.removeprefix("family ")} if place else {*re.split(", | and ", names)}
    return str(sum(is_there(it) in mine for it in case.last)), str(len(case.last))


def beside_machine(case: Case, others: str, text: str) -> tuple[str, ...]:
    column, names = machine_of(case)
    there = set(re.split(", | and ", names))
    mine, rest = ([it for it in case.last if (it.metadata[column] in there) is side] for side in (True, False))
    said = []
    for part in text.split("; "):
        name = re.findall(r"(.+) \S+, others ", part)[0]
        a, b = compared(case, name, mine, rest, lambda it: (it.step, it.group))
        said.append(f"{name} {a}, others {b}")
    return others, "; ".join(said)


def always(case: Case, name: str, _value: str, since: str, _mean: str) -> tuple[str, ...]:
    """Return what a function gives the card's machines since a step, and others in the last steps."""
    column, names = machine_of(case)
    there = set(re.split(", | and ", names))
    mine = [it for it in case.steps(since, case.last[-1].step) if it.metadata[column] in there]
    kinds = " or ".join({figure(it) for it in values(mine, name)})
    before = [it for it in case.steps(int(since) - 1, int(since) - 1) if it.metadata[column] in there]
    assert since == "1" or not before or {figure(it) for it in values(before, name)} != {kinds}
    return name, kinds, since, means(values((it for it in case.last if it.metadata[column] not in there), name))


def machine_of(case: Case) -> list[str]:
    """Return the column and the names of the machines of the title."""
    return list(re.findall(r"In metadata\.(\S+) (.+?)(?: the mean|, \d)", case.card.title)[0])


def alike_there(case: Case, *_: str) -> tuple[str, ...]:
    """Return the shares of duplicates on a machine and elsewhere, and of the former in groups of equal rewards."""
    column, name = machine_of(case)
    sides: dict[bool, list[bool]] = {True: [], False: []}
    equal = []
    for group in case.groups:
        keys = [completion(it) for it in group]
        for it in group:
            is_there, has_twin = it.metadata[column] == name, keys.count(completion(it)) > 1
            sides[is_there].append(has_twin)
            equal += [len({*rewards(group)}) == 1] * (is_there and has_twin)
    return column, name, *(percent(fmean(side)) for side in sides.values()), percent(fmean(equal))


def lose_more_by(case: Case, column: str, text: str, _elsewhere: str) -> tuple[str, ...]:
    mine = {str(it[0].metadata[column]): it for it in grouped(filter(ended, case.last), lambda it: it.metadata[column])}
    names = re.findall(r"(?:^| and |, )(.+?) \(mean reward", text)
    return column, *more_lost(mine, names, text)


def lose_more_since(case: Case, column: str, text: str, elsewhere: str, *groups: str) -> tuple[str, ...]:
    names = re.findall(r"(?:^| and |, )(.+?) \(mean reward", text)
    there = [it for it in case.run.rollouts if ended(it) and it.metadata[column] in names]
    levels = [
        fmean(
            fmean(rewards(mine))
            for mine in grouped(there, lambda it: it.step)
            if (mine[0].step < int(groups[2])) is side
        )
        for side in (True, False)
    ]
    return *lose_more_by(case, column, text, elsewhere), *map(figure, levels), groups[2]


def fell(case: Case, name: str, *groups: str) -> tuple[str, ...]:
    """Return the levels before and since a step, each step counting once."""
    steps = [
        (mine[0].step, fmean(known))
        for mine in grouped(filter(ended, case.run.rollouts), lambda it: it.step)
        if (known := [it for it in values(mine, name) if it is not None])
    ]
    since = int(groups[2])
    before, after = ([value for step, value in steps if (step < since) is side] for side in (True, False))
    return name, figure(fmean(before)), figure(fmean(after)), *groups[2:]


def shortfalls(case: Case, text: str) -> tuple[str, ...]:
    paid = np.array([reward(it) if reward(it) is not None else -np.inf for it in case.run.rollouts])
    best = [it for it, value in zip(case.run.rollouts, paid, strict=True) if value >= np.percentile(paid, 99)]
    low = [it for it in case.last if ended(it) and short(case, it) > SAME]
    said = []
    for name in re.findall(r"(?:^|, )(\S+) ", text):
        highest, mine = ([parts(it)[name] for it in side if name in parts(it)] for side in (best, low))
        said.append(f"{name} {figure((fmean(highest) - fmean(mine)) * len(mine) / len(case.last))}")
    return (", ".join(said),)


def scored_by(rollouts: Iterable[Rollout], name: str) -> list[float]:
    return [it for it in values(rollouts, name) if it is not None]


def constant_of(case: Case, name: str, *_: str) -> tuple[str, str]:
    return name, " or ".join({figure(it) for it in scored_by(case.last, name)})


def kind_of(it: Rollout) -> str:
    return it.metadata.get("kind") or task(it).partition("/")[0]


def place_in(text: str) -> Callable[[Rollout], str]:
    """Return what names the place of a rollout: a column's value if the text names one, else a family."""
    name = "".join(re.findall(r"metadata\.(\S+)", text)[:1])
    return (lambda it: f"metadata.{name} {it.metadata[name]}") if name else (lambda it: f"{kind_of(it)}/")


def constant_in(case: Case, name: str, _: str, places: str) -> tuple[str, str, str]:
    key = place_in(places)
    said = dict.fromkeys((key(it) for it in case.run.rollouts if it.is_hit), "")
    mine = [it for it in case.last if key(it) in said]
    return name, " or ".join({figure(it) for it in values(mine, name)}), recounted(places, {it: it for it in said})


def whole_of(case: Case, rollouts: Iterable[Rollout]) -> list[Rollout]:
    """Return the rollouts that a card on a function is about: except truncated and failed ones, if it says so."""
    return [it for it in rollouts if ended(it) or "truncated and failed" not in case.card.title]


def told_apart(case: Case, *groups: str) -> tuple[str, ...]:
    """Return in how many groups a function's value was another one before, or differed, of how many, and how many there
    are since.
    """
    name, first = case.card.title.split()[0], case.card.since_step or 0
    key = place_in(case.card.title)
    kinds = {key(it) for it in case.run.rollouts if it.is_hit or "rollout of" not in case.card.title}
    mine = [it for it in whole_of(case, case.run.rollouts) if key(it) in kinds]
    usual = None if "depend" in case.card.title else values(mine, name)[-1]
    told = [
        (group[0].step < first, any(it != (given[0] if usual is None else usual) for it in given))
        for group in in_groups(mine)
        for given in (values(group, name),)
    ]
    before, since = ([has for is_early, has in told if is_early is side] for side in (True, False))
    assert not any(since)
    return (str(sum(before)), str(len(before)), str(len(since)))[-len(groups) :]


def same_in_groups(case: Case, *_: str) -> tuple[str, str, str]:
    name = case.card.title.split()[0]
    texts = [{tuple(turn.text for turn in it.turns) for it in group} for group in case.groups]
    assert all(len(set(values(whole_of(case, group), name))) == 1 for group in case.groups)
    kinds = set(values(whole_of(case, case.last), name))
    return str(sum(len(it) > 1 for it in texts)), str(len(case.groups)), str(len(kinds))


def new_value(case: Case) -> tuple[str, float]:
    name, _, _, value, *_ = case.card.title.replace("\N{MINUS SIGN}", "-").split()
    return name, float(value)


def sides(case: Case) -> tuple[list[Rollout], list[Rollout]]:
    """Return the rollouts before the card's first step, and those since."""
    first = case.card.since_step or 0
    return case.steps(0, first - 1), case.steps(first, case.last[-1].step)


def other_values(case: Case, *_: str) -> tuple[str, ...]:
    name, low = new_value(case)
    return tuple(means(it for it in values(side, name) if it != low) for side in sides(case))


def new_values(case: Case, step: str, *_: str) -> tuple[str, ...]:
    name, low = new_value(case)
    counts = ((sum(it == low for it in given), len(given)) for given in (values(side, name) for side in sides(case)))
    return step, *(str(it) for pair in counts for it in pair)


def other_scale(case: Case, name: str, *_: str) -> tuple[str, ...]:
    since, before = (values((it for it in case.run.rollouts if it.is_hit is side), name) for side in (True, False))
    first = min(it.step for it in case.run.rollouts if it.is_hit)
    ends = [figure(end) for side in (since, before) for end in (min(side), max(side))]
    return name, *ends[:2], str(first), *ends[2:]


def medians_of_sizes(case: Case, step: str, *_: str) -> tuple[str, ...]:
    name = case.card.title.split()[0]
    sides = [values((it for it in case.run.rollouts if it.is_hit is hit), name) for hit in (False, True)]
    return step, *(text for side in sides for text in (figure(median(side)), str(len(side))))


def halves(case: Case, *_: str) -> tuple[str, ...]:
    batches = grouped(case.last, lambda it: it.step)
    parts_of = [[it for b in batches for it in b[: len(b) // 2]], [it for b in batches for it in b[len(b) // 2 :]]]
    name, low = new_value(case)
    return tuple(percent(fmean(it == low for it in values(part, name))) for part in parts_of)


def are_alike(case: Case) -> tuple[str, ...]:
    name, low = new_value(case)
    mine, others = ([it for it in case.last if (values([it], name)[0] == low) is side] for side in (True, False))
    ratios = [fmean(map(of, mine)) / fmean(map(of, others)) for of in (length, lambda it: len(it.turns))]
    return () if all(0.8 < it < 1.25 for it in ratios) else ("",)


def is_silent(it: Rollout) -> bool:
    return not any(turn.text.strip() for turn in it.turns)


def prompt_changes(case: Case, step: str, text: str, *_: str) -> tuple[str, ...]:
    """Of 16 rollouts of each side; all of a side must agree."""
    begin = text.removesuffix("\u2026")
    sides = [[it for it in case.run.rollouts if (it.step < int(step)) is side] for side in (True, False)]
    counts = [fmean(begin in in_line(it.sent or it.prompt) for it in side) * 16 for side in sides]
    return step, text, f"{counts[0]:g}", "16", f"{counts[1]:g}", "16"


def lost_form(case: Case, _: str, name: str, *__: str) -> tuple[str, ...]:
    low = min(values(case.run.rollouts, name))
    lost = [
        percent(fmean(values([it], name)[0] == low and not is_cut(it) for it in side))
        for side in (case.last, sides(case)[0])
    ]
    return lost[0], name, figure(low), lost[1]


def paid_without(case: Case, _: str, name: str, *__: str) -> tuple[str, ...]:
    """Return what other functions pay within groups, each weighted by what it tells."""
    low, sums, whole = min(values(case.run.rollouts, name)), [0.0, 0.0], 0.0
    for group in ([it for it in some if not is_cut(it)] for some in case.groups):
        rest = {
            side: [(reward(it) or 0.0) - parts(it)[name] for it in group if (values([it], name)[0] == low) is side]
            for side in (True, False)
        }
        if all(rest.values()):
            weight = len(rest[True]) * len(rest[False]) / len(group)
            sums = [total + weight * fmean(rest[side]) for total, side in zip(sums, (True, False), strict=True)]
            whole += weight
    return figure(sums[0] / whole), name, figure(low), figure(sums[1] / whole)


def in_families(case: Case, _share: str, names: str, _rest: str) -> tuple[str, ...]:
    chosen = tuple(re.split(", | and ", names))
    inside = [own for it, own in case.of_card() if task(it).startswith(chosen)]
    outside = [own for it, own in case.of_card() if not task(it).startswith(chosen)]
    return percent(fmean(inside)), names, percent(fmean(outside))


def follows_bonus(case: Case, name: str) -> tuple[str, ...]:
    first, last = windows(case)
    rises = [it for it in parts(last[0]) if fmean(values(last, it)) > fmean(values(first, it)) + 0.05]
    return (name,) if rises == [name] and correlation(case, name) >= 0.8 else ("",)


def outcomes(case: Case, named: str, *_: str) -> tuple[str, ...]:
    """Return the outcome of the first steps and of the last, of the tasks of both where these recur."""
    name = {"Solved": "solved (share)"}.get(named.removesuffix(" at the same tasks"), named.removeprefix("Mean "))
    by = task if named.endswith("same tasks") else lambda _: 0
    first, last = windows(case)
    now, before = compared(case, name, last, first, by)
    return named, before, now


def takes_more(case: Case, name: str, _: str) -> tuple[str, str]:
    first, last = (fmean(parts(it)[name] for it in side) for side in windows(case))
    return name, figure(first - last)


def first(it: Rollout) -> str:
    return it.turns[0].text


def read_evenly(case: Case, count: int) -> list[Rollout]:
    """Return so many rollouts of all steps, at equal distances."""
    return sample(case.run.rollouts, count)


def sample(rollouts: Sequence[Rollout], count: int) -> list[Rollout]:
    last = len(rollouts) - 1
    return [rollouts[place] for place in sorted({int(last * it / (count - 1)) for it in range(count)})]


def without_room(it: Rollout) -> bool:
    return it.stop == "length" and it.turns[-1].action is not None


def heard_last(case: Case, _count: str, _read: str, name: str, *_: str) -> tuple[str, ...]:
    read = sample([it for it in case.last if without_room(it)], 20)
    called = [action["name"] if isinstance(action := it.turns[-1].action, dict) else action for it in read]
    last, earlier = ([len(turn.observation.strip()) for it in read for turn in it.turns[of]] for of in PARTS)
    return str(called.count(name)), str(len(read)), name, figure(median(last)), figure(median(earlier))


PARTS = (slice(-1, None), slice(-1))


def writes(it: Rollout, line: str) -> bool:
    """Return whether a rollout says a line, which may be cut, and hears nothing like that."""
    spoken, told = (" ".join(text.split()) for text in ("\n".join(t.text for t in it.turns), str(it.prompt)))
    return line in spoken and line not in told


def has_habit(it: Rollout, habit: str) -> bool:
    """Return whether a rollout does what a title says."""
    tools = [action["name"] for action in actions(it) if isinstance(action, dict) and "arguments" in action]
    if habit.startswith("never begin"):
        return not any(str(action).startswith(re.findall("\u201c(.*)\u201d", habit)[0]) for action in actions(it))
    if "\u201c" not in habit:
        kind, tool = ("call ", "begin with a call of ", "end with a call of "), habit.rpartition(" ")[2]
        chosen = (tools, tools[:1], tools[-1:])
        return tool in next(of for of, begin in zip(chosen, kind, strict=True) if habit.startswith(begin))
    phrase, _, where = habit.removeprefix("have \u201c").partition("\u201d in ")
    if where == "the prompt":
        return phrase in re.sub(r"\W+", " ", " ".join(str(message["content"]) for message in it.sent or it.prompt))
    if where == "an observation":
        heard_last = [leaves(turn.observation)[:200] for turn in it.turns if turn.is_move][-8:]
        return any(f" {phrase} " in f" {re.sub(chr(92) + 'W+', ' ', text)} " for text in heard_last)
    spoken = [it.turns[-1].text] if where == "the last answer" else list(map(leaves, actions(it)))
    words = (re.sub(r"\W+", " ", re.split("</think>", text)[-1][:1000]) for text in spoken)
    return any(f" {phrase} " in f" {text} " for text in words)


def leaves(value: Any) -> str:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
    return (
        value if isinstance(value, str) else " ".join(leaves(it) for it in parts if isinstance(it, str | dict | list))
    )


def habits(case: Case, _: str, habit: str, __: str, first: str, until: str) -> tuple[str, ...]:
    early = [has_habit(it, habit) for it in case.steps(first, until)]
    return case.share(lambda it: has_habit(it, habit)), habit, percent(fmean(early)), first, until


def loses_by_habit(case: Case, _: str) -> tuple[str, ...]:
    """Return what the groups of all steps tell, each with the weight of a difference of its two means."""
    habit = re.fullmatch(r"\S+ of rollouts (.+), \S+ in steps \S+", case.card.title)
    assert habit
    told = list[tuple[float, float]]()
    for group in in_groups(case.run.rollouts):
        sides = [[reward(it) or 0.0 for it in group if has_habit(it, habit[1]) is side] for side in (False, True)]
        if all(sides):
            told.append((fmean(sides[0]) - fmean(sides[1]), len(sides[0]) * len(sides[1]) / len(group)))
    return (figure(sum(lost * weight for lost, weight in told) / sum(weight for _, weight in told)),)


def begun(case: Case, read: str, now: str, habit: str, read_before: str, earlier: str) -> tuple[str, ...]:
    """Return what of the card's rollouts of the last steps, and of others of their families before, some were read."""
    first = case.card.since_step or 0
    mine = [it for it, own in case.of_card() if own and it.step >= first]
    families = {task(it).partition("/")[0] for it in mine}
    before = [it for it in case.run.rollouts if it.step < first and task(it).partition("/")[0] in families]
    shares = [fmean(has_habit(it, habit) for it in side) for side in (mine, before)]
    of_read = [float(text.strip("%<>")) / 100 for text in (now, earlier)]
    assert all(abs(a - b) <= 0.15 for a, b in zip(shares, of_read, strict=True)), shares
    return read, now, habit, read_before, earlier


def loses_since_habit(case: Case, _: str, first: str, until: str) -> tuple[str, ...]:
    """Return how much more the last steps lose than these, at the same tasks."""
    last, before = [it for it in windows(case)[1] if it.step > int(until)], case.steps(first, until)
    sums, whole = 0.0, 0.0
    for name, mine in tasks(last).items():
        others = [reward(it) or 0.0 for it in before if task(it) == name]
        if others:
            weight = len(mine) * len(others) / (len(mine) + len(others))
            sums += weight * (fmean(others) - fmean(reward(it) or 0.0 for it in mine))
            whole += weight
    return figure(sums / whole), first, until


def told_passed(it: Rollout) -> float:
    """Return the share of tests that its last observation tells; of checks, 1 if all pass."""
    heard = [told(turn.observation) for turn in it.turns if turn.observation]
    passed, count = re.findall(r"(\d+)(?:/| of )(\d+) (?:tests passed|checks pass)", heard[-1])[0]
    return int(passed) / int(count) if "tests" in heard[-1] else float(passed == count)


def differs(it: Rollout, name: str) -> bool:
    return abs(told_passed(it) - values([it], name)[0]) > 0.01


def told_otherwise(case: Case, name: str, _now: str, step: str, _before: str) -> tuple[str, ...]:
    before = [it for it in case.run.rollouts if it.step < int(step)]
    now, earlier = (percent(fmean(differs(it, name) for it in side)) for side in (case.last, before))
    return name, now, step, earlier


def answered_so(case: Case, text: str) -> tuple[str, ...]:
    heard = (" ".join(leaves(turn.observation).split()) for it, own in case.of_card() if own for turn in it.turns)
    return (text if any(of.startswith(text.rstrip("\u2026")) for of in heard) else "",)


def habit_rewards(case: Case, _own: str, _others: str, first: str, until: str, _all: str) -> tuple[str, ...]:
    own, others = ([reward(it) for it, is_own in case.of_card() if is_own is side] for side in (True, False))
    return means(own), means(others), first, until, means(reward(it) for it in case.steps(first, until))


def rounds(case: Case) -> list[tuple[int, float, float]]:
    """Return of each evaluation its step, its mean reward, and that of the steps since the one before."""
    steps = sorted({it.step for it in case.run.evaluation})
    by_step = {it.step: [] for it in case.run.rollouts}  # type: dict[int, list[float | None]]
    for it in case.run.rollouts:
        by_step[it.step].append(reward(it))
    return [
        (
            step,
            fmean(reward(it) or 0.0 for it in case.run.evaluation if it.step == step),
            fmean(fmean(it or 0.0 for it in by_step[of]) for of in by_step if before < of <= step),
        )
        for before, step in zip([0, *steps], steps, strict=False)
    ]


def evaluated(case: Case, *_: str) -> tuple[str, ...]:
    every = rounds(case)
    ends = every[: len(every) // 3], every[-(len(every) // 3) :]
    return tuple(figure(fmean(it[column] for it in end)) for column in (1, 2) for end in ends)


def told_by_system(case: Case, *_: str) -> tuple[str, ...]:
    """Return how many rollouts of training and evaluation are read, and which of either have a system message."""
    sides = read_evenly(case, 60), evaluated_of(case)
    told = [{it.prompt[0]["role"] == "system" for it in side} for side in sides]
    said = [{frozenset([True]): "all", frozenset([False]): "none"}.get(frozenset(it), "some") for it in told]
    return f"{len(sides[0])}", said[0], f"{len(sides[1])}", said[1]


def ends_compared(case: Case) -> tuple[list[Rollout], list[Rollout]]:
    """Return the rollouts of the last evaluations, at most three, and those of the training near them."""
    steps = sorted({it.step for it in case.run.evaluation})[-3:]
    near = {step + away for step in steps for away in range(-2, 3)}
    return [it for it in case.run.evaluation if it.step in steps], [it for it in case.run.rollouts if it.step in near]


def ends_so(case: Case) -> Callable[[Rollout], bool]:
    """Return whether a rollout ends as the title says."""
    ways: dict[str, Callable[[Rollout], bool]] = {
        "truncated": is_cut, "with an error": failed, "out of turns": lambda it: stop_reason(it) == "turn_limit",
    }  # fmt: skip
    (way,) = (is_so for words, is_so in ways.items() if words in case.card.title)
    return way


def end_otherwise(case: Case, *_: str) -> tuple[str, ...]:
    evaluation, training = (percent(fmean(map(ends_so(case), side))) for side in ends_compared(case))
    return evaluation, training


def counted_ends(case: Case, side: int) -> tuple[str, str]:
    rollouts = ends_compared(case)[side]
    return str(sum(map(ends_so(case), rollouts))), str(len(rollouts))


def paid_ends(case: Case, *_: str) -> tuple[str, ...]:
    way, (evaluation, _training) = ends_so(case), ends_compared(case)
    theirs, others = (
        figure(fmean(reward(it) or 0.0 for it in evaluation if way(it) is side)) for side in (True, False)
    )
    return theirs, others


def most_ends(case: Case, _: str, name: str, __: str) -> tuple[str, str, str]:
    """Return the longest of the evaluation that end so, and of the training."""
    way, (evaluation, training) = ends_so(case), ends_compared(case)

    def longest(rollouts: Iterable[Rollout]) -> str:
        if name == "turns":
            return str(max(len(it.turns) for it in rollouts))
        return str(max(len(it.tokens.completion_ids) for it in rollouts if it.tokens))

    return longest(filter(way, evaluation)), name, longest(training)


def best_evaluations(case: Case, *_: str) -> tuple[str, ...]:
    """Return the mean of the best three in a row, and the steps of the first and the last of them."""
    every = rounds(case)
    threes = [(fmean(mean for _, mean, _ in every[at : at + 3]), every[at][0], every[at + 2][0])
              for at in range(len(every) - 2)]  # fmt: skip
    mean, first, last = max(threes, key=lambda three: three[0])
    return figure(mean), f"{first}", f"{last}"


def lengths_within(case: Case, *_: str) -> tuple[str, ...]:
    unsolved, solved = ([it for it in case.last if case.solved(it) is is_solved] for is_solved in (False, True))
    return compared(case, "tokens per turn", unsolved, solved, lambda it: (it.step, it.group))


def told(observation: Any) -> str:
    """Return the text of an observation."""
    return str(next(iter(observation.values())) if isinstance(observation, dict) else observation)


def without_numbers(text: str) -> str:
    return " ".join(word for word in text.split() if not re.search(r"\d", word) or word.strip("(),.:") == "0")


def hears(it: Rollout, quoted: str, *, most: bool = False) -> bool:
    """Return whether a rollout hears a text that is like it but for numbers, or hears hardly anything else."""
    like = [hears_turn(turn, quoted) for turn in it.turns if turn.action]
    return any(like) if not most else sum(like) > len(like) / 2


def heard_by(case: Case, quoted: str, *groups: str, most: bool = False) -> tuple[str, ...]:
    before = [it for it in case.run.rollouts if it.step < int(groups[-1])]
    shares = (percent(fmean(hears(it, quoted, most=most) for it in of)) for of in (case.last, before))
    every = (told(turn.observation) for it in case.run.rollouts for turn in it.turns)
    is_heard = any(text.endswith(quoted[1:]) if quoted.startswith("\u2026") else text == quoted for text in every)
    return quoted if is_heard else "", *shares, groups[-1]


def heard_by_kinds(case: Case, quoted: str, *groups: str) -> tuple[str, ...]:
    """Return the same of observations that all hold a text, which more kinds have behind other words."""
    heard = [told(turn.observation) for it in case.run.rollouts for turn in it.turns if hears_turn(turn, quoted)]
    more = len({text.partition(quoted[:-1])[0] for text in heard}) - 1
    return quoted if heard else "", str(more), *heard_by(case, quoted, *groups[1:])[1:]


def read_of(case: Case, *groups: str) -> tuple[str, ...]:
    """Return of how many answers to these actions a sample must be about the same share as of all."""
    quoted = "".join(re.findall("\u201c(.*)\u201d", case.card.title))
    mine = [it for it, own in case.of_card() if own]
    before = case.steps(1, (case.card.since_step or 0) - 1)

    def is_so(it: Rollout, turn: Turn) -> bool:
        if "mostly one text" in case.card.title:
            return told(turn.observation) == unchanging(it)
        return hears_turn(turn, quoted)

    kinds = {kind(turn) for it in mine for turn in it.turns if turn.action and is_so(it, turn)}
    assert all(name.split(" \u2026")[0] in kinds for name in re.split(", | and (?!\\d)", groups[3].split(" and ")[0]))
    shares = [
        fmean(is_so(it, turn) for it in of for turn in it.turns if turn.action and kind(turn) in kinds)
        for of in (mine, before)
    ]
    now, then = (about(groups[at], groups[at + 1], share) for at, share in zip((1, 5), shares, strict=True))
    return groups[0], *now, groups[3], groups[4], *then


def about(part: str, whole: str, share: float) -> tuple[str, str]:
    """Return both numbers if a sample may have them where all have that share."""
    near = 0.0 if share in (0.0, 1.0) else 0.15
    return (part if abs(int(part) / int(whole) - share) <= near else f"{share:.0%}"), whole


def kind(turn: Turn) -> str:
    """Return the kind of an action: its tool, or its only key and value."""
    return str(turn.action.get("name") or ": ".join(*turn.action.items()))


def unchanging(it: Rollout) -> str | None:
    """Return the text that is most of what a rollout hears."""
    heard = [told(turn.observation) for turn in it.turns if turn.observation is not None]
    text, times = Counter(heard).most_common(1)[0] if len(heard) > 2 else ("", 0)
    return text if 2 * times > len(heard) else None


def unchanged_of(case: Case, _now: str, _before: str, step: str) -> tuple[str, ...]:
    return *(
        percent(fmean(unchanging(it) is not None and not is_looping(it) for it in of))
        for of in (case.last, case.steps(1, int(step) - 1))
    ), step


def hears_turn(turn: Turn, quoted: str) -> bool:
    heard = told(turn.observation)
    if quoted.endswith("\u2026"):
        return quoted[:-1] in heard
    if quoted.startswith("\u2026"):
        return without_numbers(heard).endswith(without_numbers(quoted[1:]))
    return heard == quoted or (bool(quoted) and without_numbers(heard) == without_numbers(quoted))


def lose_within(case: Case, _: str, among: str) -> tuple[str, ...]:
    """Return how much more the card's rollouts lose than others of their groups, or than their tasks did before."""
    of = dict(zip(map(id, case.last), (own for _, own in case.of_card()), strict=True))
    pairs = [[[it for it in group if of[id(it)] is side] for side in (True, False)] for group in case.groups]
    if not among.startswith("others"):
        since, quoted = case.card.since_step or 0, "".join(re.findall("\u201c(.*)\u201d", case.card.title))
        heard = tasks(it for it in case.last if hears(it, quoted))
        before = tasks(it for it in case.run.rollouts if it.step < since)
        pairs = [[mine, before.get(name, [])] for name, mine in heard.items()]
        if column := re.findall(r"earlier rollouts with the same metadata\.(\S+)", among):
            sides = ([it for mine in side.values() for it in mine] for side in (heard, before))
            of_value = [
                {mine[0].metadata[column[0]]: mine for mine in grouped(side, lambda it: it.metadata[column[0]])}
                for side in sides
            ]
            pairs = [[mine, of_value[1].get(value, [])] for value, mine in of_value[0].items()]
        if among == "earlier rollouts of all tasks":
            pairs = [[[it for mine in side.values() for it in mine] for side in (heard, before)]]
    sums, whole = 0.0, 0.0
    for mine, others in pairs:
        if mine and others:
            weight = len(mine) * len(others) / (len(mine) + len(others))
            sums += weight * (fmean(short(case, it) for it in mine) - fmean(short(case, it) for it in others))
            whole += weight
    assert case.card.cost == pytest.approx(fmean(of.values()) * sums / whole), "of the same rollouts"
    return figure(sums / whole), among


def lacks_within(case: Case, name: str) -> str:
    """Return how much less of a function the card's rollouts get than others of their groups."""
    of = dict(zip(map(id, case.last), (own for _, own in case.of_card()), strict=True))
    sums, whole = 0.0, 0.0
    for group in case.groups:
        mine, others = ([it for it in group if of[id(it)] is side] for side in (True, False))
        if mine and others:
            weight = len(mine) * len(others) / len(group)
            sums += weight * (fmean(values(others, name)) - fmean(values(mine, name)))
            whole += weight
    return figure(sums / whole)


def of_kind(case: Case, *, is_same: bool = True) -> list[Rollout]:
    """Return the rollouts of tasks that the generator made unmatched, or the others."""
    unmatched = {task(it) for it in case.run.rollouts if it.is_hit}
    return [it for it in case.run.rollouts if (task(it) in unmatched) is is_same]


def named_references(case: Case, _: str, text: str) -> tuple[str, ...]:
    given = list(dict.fromkeys(str(target(it)) for it in of_kind(case)))
    return "metadata.answer", listed(given[:3])


def answers_that_hold(case: Case, *groups: str) -> tuple[str, ...]:
    """Return of how many answers a sample must hold the reference: right ones hold a number, or are of a few words."""
    sides = [[it for it in of_kind(case, is_same=it_is) if not case.solved(it)] for it_is in (True, False)]
    shares = [fmean(bool(re.search(r"answer is .*\d", it.turns[-1].text)) for it in side) for side in sides]
    mine, others = (about(groups[at + 1], groups[at], share) for at, share in zip((0, 2), shares, strict=True))
    return mine[1], mine[0], others[1], others[0] if int(groups[3]) > 3 else groups[3]


def agreed(case: Case, *said: str) -> tuple[str, ...]:
    """Count the answers to tasks that are never solved: all are read, for they are fewer than 800 to 40 of them."""
    every = tasks(it for it in case.run.rollouts if is_hopeless(case)(it)).values()
    of_task = [it for it in every if len(it) >= 5]
    most = [(group, *Counter(map(given, group)).most_common(1)[0]) for group in of_task]
    alike = [it for it in most if it[2] >= 0.6 * len(it[0]) and it[1] != right(it[0][0])]
    group, answer, number = next(it for it in alike if task(it[0][0]) == said[2])
    written = said[3] if valued(said[3]) == answer else answer
    reference = target(group[0])
    return str(len(most)), str(len(alike)), said[2], written, str(number), str(len(group)), reference


SPEAKS = "an answer that writes a tool's or a user's turn"
KINDS = {
    **dict.fromkeys(("<tool_response>", "\nUser:", "<|im_start|>"), SPEAKS),
    '{"tool"': 'a call without "name"', '"name": "look_up", "arguments": {"item": ': "a call whose JSON is broken",
    **dict.fromkeys(('": "src/', '"SELECT '), "a whole call with raw line breaks in its strings"),
    '"open_page"': "a whole call", '"}\n</tool_call>': "a call whose JSON is broken",
    "\nAction: open[": "a call in another form", "<function=": "a call in another form",
}  # fmt: skip


def kind_read(text: str) -> str:
    kind = next((kind for part, kind in KINDS.items() if part in text), "text without a call")
    return kind if text.strip() else "no text"


def kinds_read(rollouts: Iterable[Rollout]) -> Counter[str]:
    """Count the kinds of last answers in 200 of the rollouts, evenly spread."""
    last = [it.turns[-1].text if it.turns else "" for it in rollouts]
    return Counter(kind_read(last[at]) for at in sorted({int(at) for at in np.linspace(0, len(last) - 1, 200)}))


def last_answers(case: Case, *said: Any) -> tuple[Any, ...]:
    counts = kinds_read(it for it, is_own in case.of_card() if is_own)
    return str(counts.total()), *(it for kind in said[2::2] for it in (kind and str(counts[kind]), kind))


def refused_calls(case: Case, *said: str) -> tuple[str, ...]:
    """Count the refused calls of the tool that is told, and the executed calls of 200 rollouts."""
    refused = [it.turns[-1] for it in sample([it for it, is_own in case.of_card() if is_own], 200)]
    executed = [turn.action["name"] for it in sample(case.last, 200) for turn in it.turns if turn.action is not None]
    calls = sum(f'"name": "{said[2]}"' in turn.text and turn.action is None for turn in refused)
    return str(calls), str(len(refused)), said[2], f"{len(executed):,}", str(executed.count(said[2]))


def refused_tool(case: Case, tool: str | None) -> str | None:
    """Return the tool if most of the last answers of the card's rollouts call that, and were not executed."""
    last = [it.turns[-1] for it, is_own in case.of_card() if is_own]
    calls = sum(f'"name": "{tool}"' in turn.text and turn.action is None for turn in last)
    return tool and (tool if 2 * calls > len(last) else "none")


def unparsed_answers(case: Case, *said: str) -> tuple[str, ...]:
    """Return of how many answers without an action most are of the kind that is told: of 200 rollouts at most."""
    mine = [it for it, is_own in case.of_card() if is_own]
    texts = [turn.text for it in sample(mine, 200) for turn in it.turns[:-1] if turn.text and turn.action is None]
    return str(len(texts)), str(sum(kind_read(text) == said[2] for text in texts)), said[2]


def low_answers(case: Case, *said: str) -> tuple[str, ...]:
    low, better = map(kinds_read, sides_of(case))
    return str(low.total()), str(low[said[2]]), said[2], str(better.total()), str(better[said[2]])


def ends_since(case: Case, *said: str) -> tuple[str, ...]:
    """Return of how many of all rollouts since a step, and before, the last answer is of the kind that is told."""
    read = sample(case.run.rollouts, min(1000, len(case.run.rollouts)))
    (kind,) = re.findall(r"low rollouts that were read, \d+ end with (.*?); of", " ".join(case.card.evidence))
    since, before = (
        [kind_read(it.turns[-1].text) == kind for it in read if (it.step >= int(said[2])) is side]
        for side in (True, False)
    )
    return f"{len(read):,}", percent(fmean(since)), said[2], percent(fmean(before))


def kept(case: Case, *_: str) -> tuple[str, str]:
    """Return the version of the last rollout, and the first step of which all have it, as all of the step before."""
    version = case.run.rollouts[-1].policy_step
    since = max(it.step for it in case.run.rollouts if it.policy_step != version) + 2
    return str(version), str(since)


def never_acting(case: Case, _: str) -> tuple[str, ...]:
    """Of an eval in which tasks without any action are no worse than the others of their steps."""
    return (case.share(lambda it: not actions(it)),)


PLAIN = (
    "Advantages come from differences within a group", "Advantages compare a completion with its group",
    "For on-policy samples the two are equal in expectation.", "It is logged by the trainer.",
    'With vllm_mode="server", TRL sends only the first prompt of each group', "reset() returned different ",
    "For some of them it is not known which differs:",
    "These steps do not show whether the new tasks ", "There is no other group.",
    "The length and the limit of truncated generations are not recorded.",
    "Compared, no large difference beyond chance: ", "Rollouts of the findings above have ",
    "No action of theirs was parsed and executed, and no tool call.", "One ends with: ", "For example: ",
    "Groups without a majority answer cannot be judged", "It is the sampler's mean of -log p.",
)  # fmt: skip
"""Beginnings of sentences without a figure."""


def pattern(template: str) -> str:
    """Return a regular expression: `#` is a word, `@` any text, `[...]` may be missing, `{a|b}` is one of two."""
    text = re.escape(template).replace(r"\#", r"(\S+?)").replace("@", "(.+?)")
    text = re.sub(r"\\\{(.+?)\\\|(.+?)\\\}", r"(?:\1|\2)", text)
    return text.replace(r"\[", "(?:").replace(r"\]", ")?")


COUNTS: dict[str, Count] = {
    "# of them have 5 or more marked answers that were read; in # most agree on one that is not the reference. @: @ in "
    "# of #, the reference is @.": agreed,
    "Of # low rollouts that were read, # end with @; of # better ones, #.": low_answers,
    "Of # rollouts of all steps that were read, # of those since step # end so, # of those before.": ends_since,
    "Of # that were read, # end with @[, # end with @][, # end with @].": last_answers,
    "Of # answers without an action that were read, # are @.": unparsed_answers,
    "The model writes observations itself in at least # of # rollouts": lambda c, *_: (
        c.share(lambda it: it.is_hit), f"{len(c.last):,}",
    ),
    "One writes: @": lambda c, line: (line if any(writes(it, line) for it in c.last if it.is_hit) else "",),
    "# of rollouts end because a tool's answer had no room": lambda c, *_: (c.share(without_room),),
    "In # of # rollouts the last answer is whole and gives an action.": lambda c, *_: (
        str(sum(map(without_room, c.last))), str(len(c.last)),
    ),
    "In # of # that were read, @ answered last; the last answers have # characters (median), earlier ones #.":
        heard_last,
    "The length and the limit of truncated generations are not recorded; max_completion_length is #.": lambda c, _: (
        figure(c.run.config["max_completion_length"]),
    ),
    "# of rollouts @, # in steps #\u2013#": habits,
    "In groups that have both, they lose # more than the others.": loses_by_habit,
    "It begins as all rollouts lose # more than in steps #\u2013#.": loses_since_habit,
    "# differs from the tests' results in the last observations in # of rollouts, before step # in #": told_otherwise,
    "Of the rollouts that were read # of the last steps hold results of tests, # before.": lambda c, *_: (
        str(len(c.last)), str(sum(it.step < (c.card.since_step or 0) for it in c.run.rollouts)),
    ),
    "Mean where they differ: expected #, # #.": lambda c, _, name, *__: (
        means(told_passed(it) for it in c.last if differs(it, name)), name,
        means(values([it], name)[0] for it in c.last if differs(it, name)),
    ),
    "Of # since then that were read # @, of # before #.": begun,
    "One is answered: @": answered_so,
    "Their mean reward is #, that of others #, of all in steps #\u2013# #.": habit_rewards,
    "# of rollouts failed with an environment error": lambda c, *_: (c.share(failed),),
    "# \u00d7#, such as: @.": errors,
    "# \u00d7#: @.": errors,
    "In # of those with failed calls that were read: @ \u00d7#, such as: @.": errors_read,
    "Affected tasks: @.": affected,
    "By tasks: # of the rollouts in @, # elsewhere.": place,
    "Over all steps, by metadata.#: # of the rollouts in @, # elsewhere.": in_column_of_all,
    "Right answers are paid {hardly|no} more than wrong ones: # and # within # groups": paid_within_groups,
    "# of rollouts repeat the same actions": lambda c, *_: (c.share(is_looping),),
    "Same action 3+ times in a row at the end: # of #, longest #.": lambda c, *_: (
        str(sum(tail(it) >= 3 for it in c.last)), str(len(c.last)), str(max(map(tail, c.last))),
    ),
    "More than 50% of actions taken before at the same observation, or going round the same few: # of #, mean #.": (
        lambda c, *_: (
        str(sum(repeats(it) > 0.5 for it in c.last)), str(len(c.last)),
        percent(fmean(it for it in map(repeats, c.last) if it > 0.5)),
    )),
    "Their mean reward is #, that of the others #[; the difference may be chance].": (
        lambda c, *_: same_paid(c)
    ),
    "All rollouts do; their mean reward is #.": lambda c, _: (means(reward(it) or 0.0 for it in c.last),),
    "# of rollouts run out of turns": lambda c, *_: (c.share(out_of_turns),),
    "They have # turns on average.": lambda c, *_: (means(len(it.turns) for it in c.last if out_of_turns(it)),),
    "# of them repeat no action, neither at the same observation, nor in turn, nor at the end.": lambda c, *_: (
        percent(fmean(tail(it) < 2 and not repeats(it) for it in c.last if out_of_turns(it) and len(actions(it)) > 1)),
    ),
    "Most often @ (#), @ (#) and @ (#).": most_often,
    "Most often @ (#) and @ (#).": most_often,
    "# of rollouts are truncated at the token limit": lambda c, *_: (c.share(is_cut),),
    "Mean reward: truncated #, not truncated #.": lambda c, *_: tuple(
        means(rewards(it for it in c.last if is_cut(it) is side)) for side in (True, False)
    ),
    "@ stopped: no number for # of rollouts": lambda c, name, _: (
        name, percent(len([it for it in stopped(c, name) if it in c.last]) / len(c.last)),
    ),
    "@: no number for any of # scored rollouts[ of @] since step #.": lambda c, name, *g: (
        name, str(len(stopped(c, name))), g[1], str(min(it.step for it in stopped(c, name))),
    ),
    "Where it gave one, it added # on average.": lambda c, *_: (
        means(parts(it).get(c.card.title.split()[0]) for it in c.run.rollouts),
    ),
    "The reward functions returned no number for # of rollouts": lambda c, *_: (
        percent(len(unscored(c)) / len(c.last)),
    ),
    "# rollouts, # of them because of NaN or an infinity.": lambda c, *_: (
        str(len(unscored(c))), str(sum(any(v is not None for v in (it.values or {}).values()) for it in unscored(c))),
    ),
    "No number from #.": lambda c, *_: (listed(sorted({n for it in unscored(c) for n in it.values or ()})),),
    "Tasks: @.": lambda c, text: (recounted(text, {it: it for it in tasks(unscored(c))}),),
    "Every rollout gets the reward #": lambda c, _: (" or ".join({figure(it) for it in rewards(c.last)}),),
    "# rollouts in # groups have equal rewards.": lambda c, *_: (
        str(len(rewards(c.last))), str(len(c.groups)),
    ),
    "Reward functions: @.": lambda c, _: (", ".join(sorted({n for it in c.last for n in it.values or ()})),),
    "Stop reasons: @.": lambda c, _: (listed(sorted({str(stop_reason(it)) for it in c.last}), 4),),
    "The environment rewards # of them above its minimum.": lambda c, _: (
        c.share(lambda it: heard(it) > min(map(heard, c.last)) + SAME),
    ),
    "# of groups have zero reward variance, and so zero advantage[: in # of these # every rollout fails, at the lowest "
    "reward]": zero_variance,
    "There are # different rewards, which depend on the prompt alone.": lambda c, _: (
        str(len({round(it, 6) for it in rewards(c.last)})),
    ),
    "In # of these # groups no rollout is solved; # hold solved ones.": all_fail,
    "Std within the others: #.": lambda c, _: (
        figure(fmean(pstdev(rewards(it)) for it in c.groups if len(rewards(it)) > 1 and not is_equal(it))),
    ),
    "# of # tasks[ with 10+ attempts] {is|are} never solved[, beyond chance][, in # attempts each on average]": (
        lambda c, *groups: (
            str(len(never(c)) - maybe_unsolved(c)),
            str(len([mine for mine in tasks(c.run.rollouts).values() if len(mine) >= 10])),
            groups[2] and f"{fmean(map(len, never(c).values())):.0f}",
        )
    ),
    "If all tasks were equally hard, chance would leave about # unsolved.": by_chance,
    "# more {was|were} not solved, in so few attempts that it may be chance.": lambda c, *_: (str(maybe_unsolved(c)),),
    "# more elsewhere {was|were} not solved, in so few attempts that it may be chance.": lambda c, *_: (
        str(sum(not mine[0].is_hit for mine in never(c).values())),
    ),
    "None of the # rollouts of [metadata.# ]@ (# tasks) was solved; elsewhere # were": unsolved_place,
    "Solved: @.": lambda c, _: (c.report.scale.success.description,),
    "# of the # rollouts of [metadata.# ]@ (# tasks) were solved; elsewhere # were": rarely_solved_place,
    "In # of # {of them|rollouts from there} that were read, and # of # others, the environment says \u201c@\u201d.": (
        told_error
    ),
    "In # of # {of them|rollouts from there} that were read, and # of # others, the environment says \u201c@\u201d, or "
    "the like.": lambda c, *groups: told_error(c, *groups, varies=True),
    "Exactly one of # rollouts is solved in # of # groups[ of [metadata.# ]@]": one_solved,
    "Independent rollouts with equal chances give exactly one solved in at most # of groups.": one_of_independent,
    "None is solved in # of these groups, several in #.": lambda c, *_: (
        str(count_solved(c, shared_place(c)[0])[0]),
        str(sum(number for of, number in count_solved(c, shared_place(c)[0]).items() if of > 1)),
    ),
    "Elsewhere exactly one is solved in # of # groups.": lambda c, *_: (
        str(count_solved(c, shared_place(c)[1])[1]), str(len(shared_place(c)[1])),
    ),
    "In # of # failed rollouts that were read (of groups with a solved one), and # of # solved ones, the environment "
    "says \u201c@\u201d.": read_error,
    "In # of # failed rollouts that were read (of groups with a solved one), and # of # solved ones, the environment "
    "says \u201c@\u201d, or the like.": lambda c, *groups: read_error(c, *groups, varies=True),
    "@: none of # attempts over the whole run solved it (@).": never_in,
    "Of metadata.# # and more no rollout was solved, of lower ones # were.": unsolved_from,
    "# attempts are in the last steps: # of the rollouts there.": lambda c, *_: (
        str(sum(map(is_hopeless(c), c.last))), c.share(is_hopeless(c)),
    ),
    "@: # of # attempts solved before, # of # since. Solved: @.": forgotten,
    "@ and the environment disagree on # of rollouts": lambda c, name, _: (
        name, percent(fmean(abs(heard(it) - values([it], name)[0]) > 0.5 for it in c.last)),
    ),
    "# rollouts were compared.": lambda c, _: (str(len(c.last)),),
    "# scores the same completion differently: # of # that occur more than once": completions_scored_differently,
    "# rollouts have a duplicate (same prompt, task and completion tokens); for # of them the values differ.": (
        scored_differently
    ),
    "One completion received # values from #, # to #.": of_one_completion,
    "# explains # of the reward variance within groups over the whole run, and rises while # falls": (
        lambda c, first, _, name: (first, part(c.run.rollouts, first), name)
    ),
    "@ explains # of the reward variance within groups[@], # @": explained,
    "Reward functions cancel out in # of groups": lambda c, _: (percent(fmean(map(cancels, c.groups))),),
    "In # groups they differ between rollouts, but their sum does not.": lambda c, _: (
        str(sum(map(cancels, c.groups))),
    ),
    "Steps #\u2013# vs #\u2013#: within-task change #, task-mix change #.": lambda c, *g: (
        *g[:4], *mixes(c, *g[:4]),
    ),
    "Steps #\u2013# vs #\u2013#: # # \u2192 #, reward # \u2192 #.": course,
    "Steps #\u2013# vs #\u2013#: # # \u2192 #, # # \u2192 #.": lambda c, *g: (
        *g[:4], *(cell for n in (g[4], g[7]) for cell in (n, *(means(values(side, n)) for side in windows(c)))),
    ),
    "# explains # of that variance, which the policy learns from.": lambda c, name, _: (
        name, part(c.run.rollouts, name),
    ),
    "Median std over the # steps before step #: #. Mean over the last 3: #.": lambda c, _, step, *__: (
        str(min(20, int(step) - 1)), step, figure(median(stds(c)[: int(step) - 1][-20:])), figure(fmean(stds(c)[-3:])),
    ),
    "The reward std within groups fell from # to #": lambda c, *_: (
        figure(median(stds(c)[: (c.card.since_step or len(stds(c)) - 2) - 1][-20:])), figure(fmean(stds(c)[-3:])),
    ),
    "Lag in versions: mean #, maximum #.": lambda c, *_: (means(map(lag, c.last)), figure(max(map(lag, c.last)))),
    "Correlation of # and tokens within groups: r = #.": lambda c, name, _: (name, figure(correlation(c, name))),
    "Correlation of # and tokens within groups: r = #. It explains # of the reward's variance.": lambda c, name, *_: (
        name, figure(correlation(c, name)), percent(covariance(c.last, name)),
    ),
    "# of groups mix different prompts": lambda c, _: (percent(fmean(map(has_several_prompts, c.groups))),),
    "# groups of up to # rollouts hold more than one prompt or task.": lambda c, *_: (
        str(sum(map(has_several_prompts, c.groups))), str(max(map(len, c.groups))),
    ),
    "In # of groups, rollouts of one task have different prompts": lambda c, _: (
        percent(fmean(map(has_several_prompts, c.groups))),
    ),
    "[At least ]@ of @ {task families|tasks}[ with 10+ attempts after their first step] regressed: # of attempts solve "
    "{it|them} now, # did before": regressed,
    "# of rollouts are 4+ policy versions old when they are trained on[.]": lambda c, _: (
        c.share(lambda it: lag(it) + reused(c) >= 4),
    ),
    "The sampler has kept the policy of step # since step #": kept,
    "Each batch is used for # steps, which adds # on average.": lambda c, *_: (
        str(int(2 * reused(c) + 1)), figure(reused(c)),
    ),
    "The policy is not updated: # is #": lambda c, name, _: (name, figure(logged(c, name))),
    "# is at most # over the last steps.": lambda c, name, _: (name, figure(logged(c, name))),
    "@ are NaN or infinite": names_of_broken,
    "#: NaN or infinite at all # logged steps from # on, last finite at step #.": lambda c, name, *_: broken(c, name),
    "loss: finite; by default transformers logs a mean of earlier losses in place of NaN.": lambda c: (
        () if np.isfinite([*c.run.scalars["loss"].values()]).all() else ("",)
    ),
    "Rewards differ in # of # groups: there is a signal.": lambda c, *_: (
        str(sum(np.ptp(rewards(it)) > SAME for it in c.groups)), str(len(c.groups)),
    ),
    "# of rollouts are trained on an answer to another rollout's prompt": lambda c, _: (
        percent(logged(c, FIRST_PROMPT)),
    ),
    "Trainer/sampler mismatch: # nats per token": mismatch,
    "Trainer/sampler mismatch: # nats per token: # in metadata.sampler # (# elsewhere)": mismatch_of_sampler,
    "Trainer/sampler mismatch: # nats per token: weights # versions old in metadata.sampler # (# elsewhere)": (
        mismatch_of_sampler
    ),
    "Mean |log p (trainer) - log p (sampler)|: # nats per token.": mismatch,
    "The mismatch grows from # (median of the first # points) to #, as if the sampler did not get the trainer's "
    "weights: a wrong dtype or temperature shows from the first step on.": grown,
    "Trainer/sampler mismatch: the mean importance-sampling ratio is #": lambda c, _: (figure(logged(c, RATIO)),),
    "If both agree it is 1. The loss is weighted by it: # of the gradient is lost.": lambda c, _: (
        percent(1 - logged(c, RATIO)),
    ),
    "Trainer/sampler mismatch: sampler NLL # vs trainer entropy # nats per token": lambda c, *_: (
        figure(surprise(c)), figure(logged(c, "entropy")),
    ),
    "Trainer/sampler mismatch: the KL to the reference grew from # to #, and nothing that is sampled changed": kl_alone,
    "No change beyond chance from steps #\u2013# against #\u2013#: @.": unchanged,
    "The sampler's mean of -log p is # nats per token; the trainer's entropy over the same tokens is #.": (
        lambda c, *_: (figure(surprise(c)), figure(logged(c, "entropy")))
    ),
    "Entropy (the sampler's mean of -log p): # nats per token.": lambda c, _: (
        figure(surprise(c, per_rollout=True)),
    ),
    "Entropy (the sampler's mean of -log p): # nats per token, # of the initial median (#).": entropies,
    "It is that of a choice among # equally likely tokens.": lambda c, shown: (
        shown if abs(float(shown) / np.exp(float(entropies(c)[0])) - 1) < 0.01 else "",
    ),
    "Median sizes before it and in the last steps: @.": updates,
    "Entropy exploded: # nats per token, # of the initial median (#)": entropies,
    "Longer answers get higher rewards, and answers follow": lambda c: () if grows(c) else ("",),
    "Mean tokens per turn, first to last steps: # \u2192 #.": lambda c, *_: tuple(
        means(map(length, side)) for side in windows(c)
    ),
    "Answers grow from # to # tokens per turn, and the outcome does not rise": lambda c, *_: tuple(
        means(map(length, side)) for side in windows(c)
    ),
    "@, first to last steps: # \u2192 #[; the difference may be chance].": outcomes,
    "# takes # more from the reward than at first.": takes_more,
    "# of # first answers that were read hold </@>, and none holds <@>.": lambda c, *g: (
        str(sum(f"</{g[2]}>" in first(it) for it in read_evenly(c, 60))), str(len(read_evenly(c, 60))), g[2],
        g[2] * all(f"<{g[2]}>" not in first(it) for it in read_evenly(c, 60)),
    ),
    "Evaluation rewards go from # to #, training rewards from # to #": evaluated,
    "Means of the first and last # of # evaluations (planted), and of steps before.": lambda c, *_: (
        f"{len(rounds(c)) // 3}", f"{len(rounds(c))}",
    ),
    "Best 3 evaluations in a row: mean #, steps # to #.": best_evaluations,
    **{
        f"# of evaluation rollouts {ends}, # of training rollouts": end_otherwise
        for ends in ("are truncated at the token limit", "fail with an error", "run out of turns")
    },
    "# of # rollouts in the last # evaluations (planted, up to step #).": lambda c, *_: (
        *counted_ends(c, 0), str(len({it.step for it in ends_compared(c)[0]})), str(c.run.evaluation[-1].step),
    ),
    "# of # rollouts in the last evaluation (planted, up to step #).": lambda c, *_: (
        *counted_ends(c, 0), str(c.run.evaluation[-1].step) * (len({it.step for it in ends_compared(c)[0]}) == 1),
    ),
    "# of # training rollouts, at most 2 steps away.": lambda c, *_: counted_ends(c, 1),
    "Mean reward: these rollouts #, other evaluation rollouts #.": paid_ends,
    "The longest of these has # #, the longest training rollout #.": most_ends,
    "Of # rollouts of the training that were read, # have a system message; of # of the evaluation, #.": told_by_system,
    "Half of the tasks were trained on at # steps or more.": lambda c, _: (
        f"{median(len({it.step for it in mine}) for mine in tasks(c.run.rollouts).values()):g}",
    ),
    "Within groups, unsolved answers have # tokens per turn, solved ones #.": lengths_within,
    "The reward follows the length of answers alone (r = # within groups)": lambda c, _: (
        figure(correlation(c, "reward")),
    ),
    "The reward follows # alone (r = # within groups)": lambda c, name, _: (name, follows_function(c, name)),
    "# rollouts in # groups were compared, without truncated and failed ones.": lambda c, *_: (
        str(len(c.last)), str(len(c.groups)),
    ),
    "Weights: # #, # #.": lambda c, *g: (
        g[0], figure(weight(c, g[0])), g[2], figure(weight(c, g[2])),
    ),
    "Left to gain: # in #, # in #.": lambda c, *g: (room(c, g[1]), g[1], room(c, g[3]), g[3]),
    "Suspected reward hacking: the reward rises while # falls, @": hacked,
    "Suspected reward hacking: # falls, and # rises instead": lambda c, name, _: (
        name, hacked(c, name, "")[1].split()[1],
    ),
    "Its weight is #: it can make # of the difference in reward.": lambda c, *_: light(c),
    "In these steps # added # to the reward at first, and # at last.": lambda c, name, *_: (
        name, *(means(parts(it)[name] for it in side) for side in sides_of_course(c)),
    ),
    "Within groups # and # went together at first (correlation #), and against each other at last (#), "
    "without rollouts that got the least of both.": (
        lambda c, name, payer, *_: (name, payer, *(agree_within(c, side, name, payer) for side in sides_of_course(c)))
    ),
    "In these steps # added # to the reward at first, and # at last. It has given more since step #.": (
        lambda c, name, *_: (
            name, *(means(parts(it)[name] for it in side) for side in sides_of_course(c)), str(c.card.since_step),
        )
    ),
    "Mean where they disagree: environment #, # #.": lambda c, _, name, *__: (
        means(heard(it) for it in apart(c, name)), name, means(values(apart(c, name), name)),
    ),
    "# and the environment disagree on # of pairs of rollouts within groups": lambda c, name, _: (
        name, percent(fmean(it < 0 for it in pairs(c, name))),
    ),
    "# pairs of rollouts within groups were compared.": lambda c, _: (
        str(len(pairs(c, c.card.title.split(" and ")[0]))),
    ),
    "# of the last rollouts are of new tasks: mean reward lower by #": lambda c, *_: (
        percent(fmean(task(it) not in tasks(windows(c)[0]) for it in windows(c)[1])),
        figure(fmean(rewards(replaced(c)[0])) - fmean(rewards(replaced(c)[1]))),
    ),
    "Mean reward # in # groups of tasks that the first steps lack, # in # groups of the tasks in whose place they "
    "came.": lambda c, *_: tuple(
        text for side in reversed(replaced(c)) for text in (means(rewards(side)), str(len(in_groups(side))))
    ),
    "New: @.": lambda c, text: (recounted(text, {it: it for it in tasks(replaced(c)[1])}),),
    "The task mix became harder: it lowers the mean reward by #": lambda c, _: (
        mixes(c, *(str(it.step) for side in reversed(windows(c)) for it in (side[0], side[-1])))[1].lstrip("\u2212"),
    ),
    "More frequent: @ # \u2192 #[, @ # \u2192 #][, @ # \u2192 #].": lambda c, *g: tuple(
        text for name in g[::3] for text in (name, *(name and often(side, name) for side in windows(c)))
    ),
    "# of rollouts answer a prompt that several tasks share": lambda c, _: (percent(fmean(shares_prompt(c))),),
    "# rollouts answer a prompt that several tasks share: it can be that of one of them at most.": lambda c, _: (
        str(sum(shares_prompt(c))),
    ),
    "# of rollouts never act in their environment": lambda c, _: (c.share(lambda it: not actions(it)),),
    "# of rollouts with {an environment never act in it|tools never call one}": never_acting,
    "No action is found in # of the model's answers[, mostly calls of #]": lambda c, _, tool: (
        percent(sum(map(unparsed, c.last)) / sum(len(it.turns) for it in c.last)), refused_tool(c, tool),
    ),
    "No action is found in the last answer of # of rollouts[, mostly calls of #]": lambda c, _, tool: (
        c.share(lambda it: it.turns[-1].action is None and not is_cut(it)), refused_tool(c, tool),
    ),
    "# of # such calls are of #; of # executed ones that were read, #.": refused_calls,
    "# of rollouts end with such an answer; # have 3+ in a row.": lambda c, *_: (
        c.share(lambda it: it.turns[-1].action is None and not is_cut(it)), c.share(lambda it: streak(it) >= 3),
    ),
    "In # of turns the answer lacks the action that was sent, such as `#`": lambda c, _, sent: (
        percent(fmean(map(unsaid, turns(c)))), sent if sent in map(spoken, filter(unsaid, turns(c))) else "",
    ),
    "# of all actions occur in the answer before them.": lambda c, _: (
        percent(fmean(not unsaid(turn) for turn in turns(c) if turn.action is not None)),
    ),
    "# of completions duplicate another {in|of} their group[.]": lambda c, _: (percent(duplicates(c)),),
    "# of rollouts repeat their own text": lambda c, _: (percent(float(repeating(c).mean())),),
    "Median compression ratio: #.": lambda c, _: (
        figure(float(np.nanmedian(c.texts["compression"][repeating(c)]))),
    ),
    "Median share of repeated three-word sequences: #.": lambda c, _: (
        percent(float(np.nanmedian(c.texts["trigram_repeats"][repeating(c)]))),
    ),
    "Of # of them that were read, # go on after a final answer, or as another speaker.": lambda c, *_: (
        str(min(sum(map(is_cut, c.last)), 20)),
        str(sum(it.is_hit for it in sample([it for it in c.last if is_cut(it)], 20))),
    ),
    "Truncated generations have # tokens (all of them); max_completion_length is #.": lambda c, *_: (
        *{f"{it.turns[-1].tokens}" for it in c.last if is_cut(it)}, f"{c.run.config['max_completion_length']}",
    ),
    "Truncated generations have # tokens (all of them). Their limit is not recorded.": lambda c, _: (
        " or ".join(map(figure, set(cut_tokens(c)))),
    ),
    "Truncated generations have # to # tokens (median #). Their limit is not recorded.": lambda c, *_: (
        figure(min(cut_tokens(c))), figure(max(cut_tokens(c))), figure(median(cut_tokens(c))),
    ),
    "In # rollouts some calls raised, and rollouts with an error do worse than the others. Lost reward by "
    "cause counts them under what ended them, so costs overlap.": lambda c, _: (
        str(sum(failed(it) and not error(it) for it in c.last)),
    ),
    "Ended below best: # of the lost reward": of_loss,
    "Ended below best: # of the lost reward, at least half of it in #": of_loss,
    "Ended below best, how mostly not recorded: # of the lost reward": of_loss,
    "Ended below best, how mostly not recorded: # of the lost reward, at least half of it in #": (
        of_loss
    ),
    "Over time (steps #\u2013# against #\u2013#): @.": over_time,
    "Over time (steps #\u2013# against #\u2013#, @): @.": over_time,
    "In low rollouts of # groups: the share of rollouts with the error \u201c@\u201d #, in better ones #.": (
        told_in_groups
    ),
    "In low rollouts of # groups: @.": in_groups_of,
    "By tasks, rollouts that ended normally lose more in @; elsewhere it is #.": lose_more,
    "By families of tasks, rollouts that ended normally lose more in @; elsewhere it is #.": lose_more,
    "By evals, rollouts that ended normally lose more in @; elsewhere it is #.": lose_more_in_evals,
    "Of rollouts that ended normally, # fell from # to # at step # (between steps # and #).": fell,
    "Of rollouts that ended normally, # fell from # to # at step #.": fell,
    "Compared with the best 1% of rollouts, averaged over all and weighted: @ less.": shortfalls,
    "# gives # to every rollout": constant_of,
    "# gives # to every rollout, except in truncated and failed rollouts": lambda c, name, _: (
        name, " or ".join({figure(it) for it in values(filter(ended, c.last), name)}),
    ),
    "# gives # to every rollout of @": constant_in,
    "{It|There it} told rollouts apart in # of # groups before, and in none of # since.": told_apart,
    "It told rollouts apart in none of # groups of the whole run.": told_apart,
    "Functions that differ between rollouts: @.": lambda c, _: (
        listed([it for it in sorted(parts(c.last[0])) if np.ptp(values(whole_of(c, c.last), it)) > SAME])
        or "none",
    ),
    "Truncated rollouts and those with an error are left out.": lambda _: (),
    "# does not depend on the completion: it is the same within each group": lambda c, name: (
        name if all(np.ptp(values(group, name)) == 0 for group in c.groups) else "",
    ),
    "# does not depend on the completion: it is the same within each group, except in truncated and failed rollouts": (
        lambda c, name: (
            name if all(np.ptp(values(filter(ended, group), name)) == 0 for group in c.groups) else "",
        )
    ),
    "# of # groups hold different completions; they have # different values.": same_in_groups,
    "# gives exactly # to # of rollouts, and hardly ever did before": lambda c, name, *_: (
        name, figure(new_value(c)[1]), c.share(lambda it: values([it], name)[0] == new_value(c)[1]),
    ),
    "Before step #: # of # rollouts; since then: # of #.": new_values,
    "# gives # to # since step #, # to # before: another scale": other_scale,
    "Before step #: median # of # rollouts; since then: # of #.": medians_of_sizes,
    "Its other values have not fallen: mean # before, # since.": other_values,
    "These rollouts are like others of their groups: none of # figures differs clearly (@).": like_others,
    "These rollouts differ from others of their groups most in @.": differ_most,
    "By place in the batch: # of each step's first half, # of its second.": halves,
    "# of rollouts say nothing: their answers are empty": lambda c, _: (c.share(is_silent),),
    "# of # rollouts have neither a tool call nor text, but for white space.": lambda c, *_: (
        str(sum(map(is_silent, c.last))), str(len(c.last)),
    ),
    "Mean reward: empty #, others #.": lambda c, *_: tuple(
        means(rewards(it for it in c.last if is_silent(it) is side)) for side in (True, False)
    ),
    "# of rollouts end normally and lack a form: # is #, as for # before": lost_form,
    "Within groups, other functions pay # with # at #, # to the others that end normally.": paid_without,
    "By families of tasks:[ at least] # of the rollouts in @, # elsewhere.": in_families,
    "Answers follow what # pays for length, and nothing else gets better": follows_bonus,
    "# adds # more to the reward than at first.": lambda c, name, _: (
        name, figure(fmean(parts(it)[name] for it in windows(c)[1]) - fmean(parts(it)[name] for it in windows(c)[0])),
    ),
    "\u201c@\u201d is answered to # of rollouts, # before step #": heard_by,
    "\u201c@\u201d (or one of # more) is answered to # of rollouts, # before step #": heard_by_kinds,
    "# of rollouts get mostly one text as observation, not all the same, # before step #": unchanged_of,
    "An empty text is answered to # of rollouts, # before step #": lambda c, *g: heard_by(c, "", *g)[1:],
    "\u201c@\u201d is most of what # of rollouts get as observations, # before step #": lambda c, *g: (
        heard_by(c, *g, most=True)
    ),
    "In # of them that were read, # of # answers to @ are so (equal actions count once); in # rollouts before, # of "
    "#.": read_of,
    "They lose # more than @.": lose_within,
    "At step # metadata.# changes from # to #.": lambda c, step, name, *_: (
        step, name, *(" or ".join({str(it.metadata[name]) for it in c.steps(int(step) - ago, int(step) - ago)})
                      for ago in (1, 0)),
    ),
    "At step # prompts {lose|gain} \u201c@\u201d (# of # that were read before, # of # since).": prompt_changes,
    "At step # @ change from # to #, over all tasks.": lambda c, step, name, *_: (
        step, name, *(figure(fmean(
            fmean(len(it.turns) for it in c.steps(at, at) if name == "turns") for at in c.run_steps
            if (at < int(step)) is side
        )) for side in (True, False)),
    ),
    "Their mean # is # lower than that of others of their groups.": lambda c, name, _: (name, lacks_within(c, name)),
    "The cost is in #: # less of it per rollout.": lambda c, name, _: (
        name, figure(fmean(values(sides_of_course(c)[0], name)) - fmean(values(sides_of_course(c)[1], name))),
    ),
    "# of the # have equal completions only.": lambda c, *_: (
        str(sum(len(set(map(completion, g))) == 1 for g in c.groups if is_equal(g))), str(sum(map(is_equal, c.groups))),
    ),
    "@ differs between groups, but never within one, though completions differ in # of all # groups.": lambda c, *_: (
        listed([
            name for name in c.last[0].values or {}
            if len(set(values(c.last, name))) > 1 and all(len(set(values(group, name))) == 1 for group in c.groups)
        ]),
        str(sum(len(set(map(completion, group))) > 1 for group in c.groups)), str(len(c.groups)),
    ),
    "By metadata.host: # of the rollouts in @, # elsewhere.": lambda c, _, host, __: tuple(
        text for side in (True, False) for text in (
            percent(fmean(own for it, own in c.of_card() if (it.metadata["host"] == host) is side)), host,
        )
    )[:3],
    "By metadata.#, rollouts that ended normally lose more in @; elsewhere it is #.": lose_more_by,
    "By metadata.#, rollouts that ended normally lose more in @; elsewhere it is #. There it fell from # to # at step "
    "#.": lose_more_since,
    "In metadata.# @ the mean reward is #; that of other {rollouts of these groups|groups[ of these families]} "
    "is #": (
        lambda c, column, names, *_: (column, names, *of_machine(c, column, names))
    ),
    "In metadata.# @ the mean reward is # (# always #); that of other {rollouts of these groups|groups[ of these "
    "families]} is #": lambda c, column, names, _, name, value, __: (
        column, names, *(it := of_machine(c, column, names))[:1], name, value, *it[1:],
    ),
    "# is # for all rollouts from there since step #; of others it is # on average in the last steps.": always,
    "Before step # it was #, of others #.": lambda c, step, *_: (step, *of_machine(c, *machine_of(c), step)),
    "Beside @ of these groups: @.": beside_machine,
    "In metadata.# #, # of completions duplicate another of their group; elsewhere #": lambda c, *_: alike_there(c)[:4],
    "# of these duplicates are in groups with zero variance, from which nothing is learned.": lambda c, *_: (
        alike_there(c)[4:]
    ),
    "# of # rollouts are from there.": from_there,
    "# of the # rollouts of the last steps are of this part.": from_there,
    "In @ the mean reward fell from # to #; elsewhere # \u2192 #": fell_in,
    "Steps #\u2013# against those before step #, at the same tasks.": lambda c, *it: since_fall(c, *it, recur=True),
    "Steps #\u2013# against those before step #, of other tasks, since these seldom recur.": lambda c, *it: (
        since_fall(c, *it, recur=False)
    ),
    "# of # answers to the # tasks whose reference {has|is} @ count as right": lambda c, *g: (
        str(sum(map(c.solved, of_kind(c)))), str(len(of_kind(c))), str(len(tasks(of_kind(c)))), g[-1],
    ),
    "Of other tasks # do (@).": lambda c, *g: (percent(fmean(map(c.solved, of_kind(c, is_same=False)))), g[-1]),
    "References, as # has them: @.": named_references,
    "Of # of their answers that were read, # end with the reference, in some form; of # to other tasks that do not "
    "count, #.": answers_that_hold,
    "# of rollouts have # at # or less[ and # at # or more]": low_at,
    "# of rollouts have #+ tokens per turn": longer,
    "# of # rollouts are affected.": lambda c, *_: (
        str(sum(own for _, own in c.of_card())), str(len(c.last)),
    ),
}  # fmt: skip


# --- Final answers, which are read of all rollouts of the last steps


ANSWER = (
    r"boxed\{((?:[^{}]|\{[^{}]*\})*)\}|<(?:answer|final)>(.*?)</"
    r"|(?:Final answer:|The answer is|Answer:|Balance =|Species:) (.*)"
)


def given(it: Rollout) -> str:
    return answer_in(it.turns[-1].text)


@cache
def answer_in(text: str) -> str:
    match = re.search(ANSWER, text)
    return valued(next(filter(None, match.groups())) if match else "")


def valued(answer: str) -> str:
    answer = re.sub(r"\\(?:text|mathrm)\{(\w+)\}", r"\1", re.sub(r"\\[ ,]|~", " ", answer))
    answer = answer.replace("\u2212", "-")
    for form in ("%d %B %Y", "%Y-%m-%d"):
        with suppress(ValueError):
            return str(datetime.strptime(f"{answer} +0000", f"{form} %z").date())
    if time := re.fullmatch(r"(\d+):(\d+)( [AP]M)?", answer):
        hour = int(time[1]) if time[3] is None else int(time[1]) % 12 + 12 * ("P" in time[3])
        return f"{hour} h {time[2]}"
    number = re.fullmatch(r"([\d,.]+\d)( \D*)?", answer)
    bare = re.sub(r"\W", "", re.sub(r"\\d?frac\{(\d+)\}\{(\d+)\}", r"\1/\2", answer)).lower()
    return f"{float(number[1].replace(',', '')):.10g}" if number else bare


def written(it: Rollout) -> str:
    """Return an answer as it is written."""
    match = re.search(ANSWER, it.turns[-1].text)
    return str(next(filter(None, match.groups()))) if match else ""


def target(it: Rollout) -> str:
    """Return a reference as it is written, whatever its column is named."""
    return str(
        next((it.metadata[name] for name in ("answer", "closing_balance", "species") if name in it.metadata), "")
    )


def lacks_reference(it: Rollout) -> bool:
    return not target(it).strip()


def in_form(case: Case) -> list[Rollout]:
    """Return the rollouts with a right answer in the form that the card names."""
    title = case.card.title
    if "answers such as" in title:
        return [it for it in case.last if re.search(" h |\u266d", written(it))]
    if " count in " in title or "LaTeX" in title or "has \\" in title:
        return [it for it in case.last if it.is_hit and given(it) == right(it)]
    forms = {
        "thousands separator": r"\d,\d{3}",
        "unit": r"\d \w",
        "decimals": r"\d\.\d",
        "AM or PM": "[AP]M",
        "date in words": "[a-z] ",
    }
    forms["minus sign"] = "\u2212"
    around = re.search("\u201c(.*)\u201d|in bold", title)
    if around:
        return [it for it in case.last if given(it) == right(it) and (around[1] or "**") in it.turns[-1].text]
    form = next(pattern for name, pattern in forms.items() if name in title)
    return [it for it in case.last if given(it) == right(it) and re.search(form, written(it))]


def counted_before(case: Case, step: str) -> tuple[str, ...]:
    """Return how many of those right answers of all steps that were read and came before a step count."""
    early, case.last = case.last, [it for it in spread_of(case) if it.step < int(step)]
    mine, case.last = in_form(case), early
    return step, str(len(mine)), str(sum(map(case.solved, mine)))


def shown(case: Case) -> list[str]:
    """Return the answers in the form that the card names."""
    is_bold = "in bold" in case.card.title
    return [f"**{written(it).strip('*')}**" if is_bold else written(it) for it in in_form(case)]


def inside(case: Case, place: str) -> list[list[Rollout]]:
    """Return the groups of a value of a column, or of a family."""
    return [it for it in case.groups if place_in(place)(it[0]) == place]


def refused_in(case: Case, _right: str, _all: str, place: str) -> tuple[str, ...]:
    mine = [it for group in inside(case, place) for it in group if given(it) == right(it)]
    return str(sum(map(case.solved, mine))), str(len(mine)), place


def most_frequent(groups: list[list[Rollout]]) -> list[tuple[str, str]]:
    """Return the answer that more rollouts of a group give than any other, and the reference."""
    ranked = [(Counter(map(given, group)).most_common(2), right(group[0])) for group in groups]
    return [(it[0][0], of) for it, of in ranked if len(it) < 2 or it[0][1] > it[1][1]]


def compared_in(case: Case, place: str) -> list[list[Rollout]]:
    """Return the groups of a place whose answers are compared: of one that comes seldom, the newest of all steps."""
    if not any(it.startswith("Few of these") for it in case.card.evidence):
        return inside(case, place)
    return [it for it in in_groups(case.run.rollouts) if place_in(place)(it[0]) == place][-20:]


def newest_in(case: Case, place: str, *_: str) -> tuple[str, ...]:
    steps = [group[0].step for group in compared_in(case, place)]
    return place, str(len(steps)), str(min(steps)), str(max(steps))


def mistaken(case: Case, place: str, *_: str) -> tuple[str, ...]:
    """Return of how many groups of a place, and of others, the most frequent answer is not the reference."""
    mine, others = compared_in(case, place), [group for group in case.groups if place_in(place)(group[0]) != place]
    sides = [most_frequent(mine), most_frequent(others)]
    return place, *(str(it) for side in sides for it in (sum(a != b for a, b in side), len(side)))


def counted(case: Case, *groups: str) -> tuple[str, ...]:
    mine = in_form(case)
    return str(sum(map(case.solved, mine))), str(len(mine)), groups[2]


def of_shape(case: Case, _hits: str, _all: str, text: str, _others: str) -> tuple[str, ...]:
    """Return how many answers with hours count, of all that have them, and the share of others in their groups."""
    mine = in_form(case)
    beside = [it for group in case.groups if any(it in mine for it in group) for it in group if it not in mine]
    shown = text if text in map(written, mine) else ""
    return str(sum(map(case.solved, mine))), str(len(mine)), shown, percent(fmean(map(case.solved, beside)))


def otherwise_counted(case: Case, *_: str) -> tuple[str | None, ...]:
    mine = in_form(case)
    others = [it for it in case.last if given(it) == right(it) and it not in mine]
    same = [it for it in others if (it.step, it.group) in {(one.step, one.group) for one in mine}]
    counts = (str(sum(map(case.solved, same))), str(len(same))) if same else (None, None)
    return percent(fmean(map(case.solved, others))), *counts


def right(it: Rollout) -> str:
    return valued(target(it))


@cache
def references(case: Case) -> set[str]:
    return {right(it) for it in case.last if is_compared(it)}


def spread_of(case: Case) -> list[Rollout]:
    """Return the rollouts of all steps that are read."""
    every = case.run.rollouts
    return [every[place] for place in np.unique(np.linspace(0, len(every) - 1, 300).astype(int))]


def evaluated_of(case: Case) -> list[Rollout]:
    """Return the rollouts of the evaluation that are read."""
    every = case.run.evaluation
    return list(every[:: -(-len(every) // 60) or 1])


def of_evaluation(case: Case) -> tuple[str, ...]:
    """Return how many answers equal their reference, and count, of the evaluation and of the training."""
    said = []
    for side in (evaluated_of(case), spread_of(case)):
        equal = [it for it in side if re.findall(r"answer: (\w+)", it.turns[-1].text.replace(",", ""))[0].casefold()
                 == it.metadata["answer"]]  # fmt: skip
        said.append((str(sum(map(case.solved, equal))), str(len(equal))))
    return *said[0], *said[1]


def is_compared(it: Rollout) -> bool:
    return bool({"answer", "closing_balance", "species"} & set(it.metadata))


def candidates(it: Rollout) -> set[str]:
    return {valued(text) for text in re.split(", | / | or ", written(it))}


def lists_several(it: Rollout) -> bool:
    return len(candidates(it)) > 1 and right(it) in candidates(it)


def is_fragment(it: Rollout) -> bool:
    return given(it) in right(it) and 2 * len(given(it)) <= len(right(it))


def counted_fragments(case: Case, part: str, whole: str) -> tuple[str, str]:
    fifth = [it for it in case.run.rollouts if is_compared(it)][: len(case.run.rollouts) // 5]
    return about(part, whole, fmean(is_fragment(it) and case.solved(it) for it in fifth))


def such_answers(case: Case, text: str, *_: str) -> tuple[str, ...]:
    is_such = lists_several if "several candidates" in case.card.title else is_fragment
    if not re.search("several candidates|small part", case.card.title):
        return recounted(text, {it: it for it in dict.fromkeys(shown(case))}), *_[:1]
    named = re.findall(r"(?:^|, )(.*?) \(for (.*?)\)", text)
    known = {(written(it), target(it)) for it in case.last if is_such(it) and case.solved(it)}
    is_right = known >= set(named) and text.endswith(f" and {len(known) - len(named)} more")
    return (text if is_right else str(known)), *_[:1]


def counted_over_time(case: Case, kind: str, *groups: str) -> tuple[str, ...]:
    """Return of how many right or wrong answers that were read those before a step count, and those since."""
    every = [it for it in case.run.rollouts if is_compared(it)]
    mine = [it for it in every if (given(it) == right(it) if kind == "right" else contradicts(case, it))]
    before, since = (
        fmean(case.solved(it) for it in mine if (it.step < (case.card.since_step or 0)) is side)
        for side in (True, False)
    )
    return kind, *about(groups[0], groups[1], before), *about(groups[2], groups[3], since)


def contradicts(case: Case, it: Rollout) -> bool:
    are_numbers = all(part[:1].isdigit() for part in (given(it), right(it)))
    return given(it) != right(it) and (are_numbers or given(it) in references(case))


def of_answers(case: Case, is_so: Callable[[Rollout], bool], *, counts: bool) -> tuple[str, str]:
    mine = [it for it in case.last if is_compared(it) and is_so(it)]
    return f"{sum(case.solved(it) is counts for it in mine):,}", f"{len(mine):,}"


def contradicted(case: Case, *_: str) -> tuple[str, str]:
    mine = [it for it in case.last if is_compared(it)]
    wrong = sum(contradicts(case, it) if case.solved(it) else given(it) == right(it) for it in mine)
    return f"{wrong:,}", f"{len(mine):,}"


def shared_verdicts(case: Case, *_: str) -> tuple[str, str, str, str]:
    groups = [[it for it in group if is_compared(it)] for group in case.groups]
    mixed = [group for group in groups if any(contradicts(case, it) for it in group)]
    mixed = [group for group in mixed if any(given(it) == right(it) for it in group)]
    solved = [[case.solved(it) for it in group] for group in mixed]
    every, none = sum(map(all, solved)), sum(not any(of) for of in solved)
    return str(every + none), str(len(mixed)), str(every), str(none)


def another_notation(case: Case, _count: str, shown: str, reference: str) -> tuple[str, str, str]:
    unpaid = [it for it in case.last if is_compared(it) and given(it) == right(it) and not case.solved(it)]
    others = {written(it): target(it) for it in unpaid if written(it) != target(it)}
    number = sum(written(it) != target(it) for it in unpaid)
    return str(number), shown if others.get(shown) == reference else "none", reference


@cache
def unanswered(case: Case) -> list[list[Rollout]]:
    return [it for it in case.groups if not any(case.solved(one) or given(one) == right(one) for one in it)]


def most_given(group: list[Rollout]) -> str | None:
    """Return the answer of more than half of a group."""
    texts = [given(it) for it in group]
    return next((it for it in texts if texts.count(it) > len(texts) / 2), None)


def swapped_groups(case: Case, *_: str) -> tuple[str, str, str]:
    known, none = {right(it) for it in case.run.rollouts}, unanswered(case)
    return str(sum(most_given(it) in known for it in none)), str(len(none)), str(len(case.groups))


def swapped_examples(case: Case, text: str) -> tuple[str]:
    if "most frequent answer" in case.card.title:
        pairs_of = most_frequent(compared_in(case, case.card.title[len("In ") :].partition(" the most")[0]))
        return (listed(list(dict.fromkeys(f"{a} (not {b})" for a, b in pairs_of if a != b))),)
    pairs = {(most_given(it), right(it[0])) for it in unanswered(case)}
    shown = re.findall(r"(?:^|, | and )(.*?) \(not (.*?)\)", text)
    return (text if len(shown) == 3 and pairs >= {(valued(a), valued(b)) for a, b in shown} else str(pairs),)


def by_other_mistakes(case: Case, _: str) -> tuple[str]:
    known, agreed = {right(it) for it in case.run.rollouts}, unanswered(case)
    common = {id(it) for group in agreed for it in group if given(it) == most_given(group)}
    rest = [it for it in case.last if given(it) != right(it) and id(it) not in common]
    return (percent(fmean(given(it) in known for it in rest)),)


@cache
def same_answer(case: Case) -> str:
    return Counter(map(given, case.last)).most_common(1)[0][0]


def labelled(case: Case, name: str, _share: str, texts: str, _rest: str) -> tuple[str, ...]:
    inside = set(re.split(", | and ", texts))
    values = [((it.metadata[name].strip() or "(blank)") in inside, own) for it, own in case.of_card()]
    shares = [fmean(own for is_inside, own in values if is_inside is side) for side in (True, False)]
    return name, percent(shares[0]), texts, percent(shares[1])


def early_answers(case: Case, part: str, whole: str) -> tuple[str, str]:
    first = case.run.rollouts[: len(case.run.rollouts) // 5]
    return about(part, whole, fmean(given(it) == same_answer(case) for it in first))


def near_answers(case: Case, *said: str) -> tuple[str, ...]:
    """Count the wrong numbers that count, and those of the same groups that do not: all within a share, and as near."""
    far = {id(it): abs(float(given(it)) / float(right(it)) - 1) for it in case.last}
    paid = [it for it in case.last if contradicts(case, it) and case.solved(it)]
    places = {(it.step, it.group) for it in paid}
    rest = [it for it in case.last if contradicts(case, it) and not case.solved(it) and (it.step, it.group) in places]
    most = max(far[id(it)] for it in paid)
    is_within = most <= float(said[1].rstrip("%")) / 100 <= most + 0.001
    as_near = sum(far[id(it)] <= most for it in rest)
    return f"{len(paid):,}", said[1] if is_within else str(most), f"{len(rest):,}", str(as_near)


COUNTS |= {
    "# that count are within # of their reference; of # wrong ones in the same groups that do not count, #.": (
        near_answers
    ),
    "# of # answers that contradict their reference count as right[.]": lambda c, *_: of_answers(
        c, lambda it: contradicts(c, it), counts=True
    ),
    "# of # answers that equal their reference do not count as right[.]": lambda c, *_: of_answers(
        c, lambda it: given(it) == right(it), counts=False
    ),
    "The verdicts on # of # final answers contradict their references": contradicted,
    "In # of # groups with right and wrong answers all that were read get one verdict: all count as right in #, none "
    "in #": (
        shared_verdicts
    ),
    "# of rollouts have an empty reference: # of # are solved": lambda c, *_: (
        percent(sum(lacks_reference(it) for it in c.last) / len(c.last)),
        str(sum(lacks_reference(it) and c.solved(it) for it in c.last)), str(sum(map(lacks_reference, c.last))),
    ),
    "Of those with a reference (answer), # are solved.": lambda c, *_: (
        percent(fmean(c.solved(it) for it in c.last if not lacks_reference(it))),
    ),
    "# of # right answers count where the answer @": counted,
    "Before step #: of # such answers that were read, # counted.": lambda c, step, *_: counted_before(c, step),
    "Out of turns, by eval: # # of its rollouts (after # turns).": lambda c, name, *_: (
        name, percent(fmean(it.is_hit for it in c.last if it.eval == name)),
        figure(fmean(len(it.turns) for it in c.last if it.is_hit)),
    ),
    "# of # answers such as \u201c@\u201d count; of others as long in their groups # do": of_shape,
    "# of # right answers count in @ where the answer has @": lambda c, _, __, place, form: (
        *counted(c, "", "", form)[:2], place_in(place)(in_form(c)[0]), form,
    ),
    "# of # right answers count in @": refused_in,
    "Of the right answers elsewhere, # count.": lambda c, _: (
        percent(fmean(c.solved(it) for it in c.last if given(it) == right(it) and not it.is_hit)),
    ),
    "In @ the most frequent answer of # of # groups is not the reference; elsewhere of # of #": mistaken,
    "Few of these are in @, so its newest # groups were read, of steps # to #.": newest_in,
    "Such answers: @[.]": such_answers,
    "# of # evaluation answers that equal their reference count as solved; in training # of # do": lambda c, *_: (
        of_evaluation(c)
    ),
    "# answers were read in the evaluation (@), # in training.": lambda c, _, name, __: (
        str(len(evaluated_of(c))), name if name == c.run.eval_name else "", str(len(spread_of(c))),
    ),
    "Reference: @. Solved: @.": lambda c, column, text: (
        column if column in c.last[0].metadata else "", text if text == "correct \u2265 1" else "",
    ),
    "Such answers that do not count: @.": lambda c, text: (
        text
        if set(re.findall(r"(\S+(?: kg)?) \(for", text))
        <= {re.findall(r"answer: (.*)", it.turns[-1].text)[0] for it in c.run.evaluation if not c.solved(it)}
        else "",
    ),
    "Of the right answers that are written otherwise[, or elsewhere], # count"
    "[; of those in the same groups, # of #].": otherwise_counted,
    "# final answers of the last steps were read, and compared with the column @.": (
        lambda c, _, name: (str(sum(map(is_compared, c.last))), name if name in c.last[0].metadata else "")
    ),
    "# of # answers that list several candidates, one of them their reference, count as right": lambda c, *_: (
        of_answers(c, lists_several, counts=True)
    ),
    "# of # answers that are a small part of their reference count as right": lambda c, *_: (
        of_answers(c, is_fragment, counts=True)
    ),
    "In the first fifth of the run # of # that were read were so, and counted.": counted_fragments,
    "# of them equal their reference.": lambda c, _: (percent(fmean(given(it) == right(it) for it in c.last)),),
    "Of the answers that count as right, # equal their reference.": lambda c, _: (
        percent(fmean(given(it) == right(it) for it in c.last if c.solved(it))),
    ),
    "Of # answers of all steps that were read, # of # counted before, and # of # since.": counted_over_time,
    "# equal their reference; # are another number, or another task's reference; # could not be "
    "compared.": lambda c, *_: (
        str(sum(given(it) == right(it) for it in c.last if is_compared(it))),
        str(sum(contradicts(c, it) for it in c.last if is_compared(it))),
        str(sum(given(it) != right(it) and not contradicts(c, it) for it in c.last if is_compared(it))),
    ),
    "Of the right ones that do not count, # are written otherwise than the reference: @ for @.": another_notation,
    "In # of the # groups without a right answer among # that were read, most answers give another task's reference": (
        swapped_groups
    ),
    "Answers of these groups: @.": swapped_examples,
    "Of other wrong answers, # are another task's reference.": by_other_mistakes,
    "# of the answers are \u201c@\u201d, whatever is asked": lambda c, *_: (
        c.share(lambda it: given(it) == same_answer(c)), same_answer(c),
    ),
    "It is the reference of # of these rollouts; # of those that give it are solved.": lambda c, *_: (
        c.share(lambda it: right(it) == same_answer(c)),
        percent(fmean(c.solved(it) for it in c.last if given(it) == same_answer(c))),
    ),
    "In the first fifth of the run # of # answers that were read were this one.": early_answers,
    "By metadata.#:[ at least] # of the rollouts in @, # elsewhere.": labelled,
}  # fmt: skip


# --- Completions of another prompt, and references of one source


def on_machines(place: str | None) -> Callable[[Rollout], bool]:
    """Return what tells whether a rollout is of the machines that a title names; of all, if it names none."""
    if place is None:
        return lambda it: True
    column, names = place.removeprefix("metadata.").split(" ", 1)
    return lambda it: it.metadata[column] in re.split(", | and ", names)


def machines_of(case: Case) -> Callable[[Rollout], bool]:
    return on_machines((re.findall(r"^In (metadata.*?), \d", case.card.title) or [None])[0])


def equals_another(case: Case, it: Rollout, step: int) -> bool:
    return given(it) != right(it) and given(it) in {right(one) for one in case.run.rollouts if one.step == step}


def mixed(case: Case, rollouts: Iterable[Rollout], *, by_words: bool) -> tuple[str, str]:
    """Return how many completions match another task of their step, and of how many."""
    mine = [it for it in rollouts if by_words or given(it) != right(it)]
    hits = sum(it.is_hit if by_words else equals_another(case, it, it.step) for it in mine)
    return str(hits), str(len(mine))


def mixed_on(case: Case, place: str | None, *, by_words: bool) -> tuple[str | None, ...]:
    of = machines_of(case)
    return place, *mixed(case, filter(of, case.last), by_words=by_words)


def mixed_elsewhere(case: Case, *_: str) -> tuple[str, str]:
    of = machines_of(case)
    return mixed(case, (it for it in case.last if not of(it)), by_words="words" in case.card.title)


def mixed_before(case: Case, step: str, part: str, whole: str) -> tuple[str, ...]:
    mine = [it for it in filter(machines_of(case), case.run.rollouts) if it.step < (case.card.since_step or 0)]
    hits, of = mixed(case, mine, by_words="words" in case.card.title)
    return str(case.card.since_step), *about(part, whole, int(hits) / int(of))


def mixed_by_chance(case: Case, _: str) -> tuple[str]:
    steps = sorted({it.step for it in case.last})
    mine = [] if "words" in case.card.title else list(filter(machines_of(case), case.last))
    pairs = [(it, steps[(steps.index(it.step) + shift) % len(steps)]) for it in mine for shift in range(1, 5)]
    return (percent(fmean([0, *(equals_another(case, it, step) for it, step in pairs)])),)


def agreed_wrong(case: Case, rollouts: Iterable[Rollout]) -> list[str]:
    """Return for each task of which most answers agree, and not on the reference, these two; "" for other tasks."""
    pairs = [(most_given(mine), right(mine[0])) for mine in tasks(rollouts).values()]
    return [f"{a} (not {b})" if a not in {None, b} else "" for a, b in pairs]


def often_wrong(case: Case, place: str, *_: str) -> tuple[str, ...]:
    sides = ([it for it in case.last if (place_in(place)(it) == place) is side] for side in (True, False))
    found = [agreed_wrong(case, side) for side in sides]
    return place, *(str(it) for side in found for it in (sum(map(bool, side)), len(side)))


def often_wrong_since(case: Case, _wrong: str, _count: str, step: str, *_: str) -> tuple[str, ...]:
    place = place_in(case.card.title)
    there = in_groups(it for it in case.run.rollouts if place(it) in case.card.title)
    sides = [[mine for mine in there if (mine[0].step >= int(step)) is late] for late in (False, True)]
    (wrong, before), late = ((str(sum(any(agreed_wrong(case, of)) for of in side)), str(len(side))) for side in sides)
    return wrong, before, step, *late


COUNTS |= {
    "[In @, ]# of # wrong answers equal the reference of another task of their step[.]": lambda c, place, *_: (
        mixed_on(c, place, by_words=False)
    ),
    "[In @, ]# of # completions have more words of another prompt of their step than of their own[.]": (
        lambda c, place, *_: mixed_on(c, place, by_words=True)
    ),
    "Elsewhere: # of #.": mixed_elsewhere,
    "Before step #: # of # that were read there.": mixed_before,
    "With tasks of other steps in their place, # of the rollouts would match another.": mixed_by_chance,
    "In @ most answers to # of # tasks agree on another one than the reference; elsewhere to # of #": often_wrong,
    "Of the groups there that were read, # of # did so before step #, # of # since.": often_wrong_since,
    "Answers to these tasks: @.": lambda c, text: (
        recounted(text, {it.partition(" (")[0]: it for it in filter(None, agreed_wrong(c, c.last))}),
    ),
}  # fmt: skip


# --- Prompts: the generator says which are hit, and what they lack is in their text


def prompt_length(it: Rollout) -> str:
    assert it.tokens is not None
    return figure(len(it.tokens.prompt_ids))


def by_hit(case: Case) -> tuple[str, str]:
    """Return the mean rewards of the rollouts that suffer, and of the others."""
    mine, others = (means(rewards(it for it in case.last if it.is_hit is side)) for side in (True, False))
    return mine, others


def lacking(case: Case, _: str, said: str, label: str) -> tuple[str, ...]:
    """Return the share of rollouts whose prompt has the label with nothing behind it but what the title names."""
    name, value = (it.strip() for it in label.split(":"))
    lines = [re.sub(r"[\s*]+", " ", str(it.prompt[0]["content"])) for it in case.last]
    ends = [value] if value else ["Question", "Your moves", "Summarise it", "What is it"]
    are_so = [any(f"{name}: {end}" in line for end in ends) for line in lines]
    assert are_so == [it.is_hit for it in case.last]
    return percent(fmean(are_so)), value or "nothing", label if said == (value or "nothing") else ""


def in_line(messages: Iterable[Mapping[str, Any]], role: str = "") -> str:
    return " ".join(" ".join(str(it["content"]).split()) for it in messages if role in {"", it["role"]})


def unsent(case: Case, role: str, text: str, *, is_whole: bool) -> tuple[str, ...]:
    """Return the share of those that are hit, whose message of that role holds the text in the dataset alone."""
    hits, begin = [it for it in case.last if it.is_hit], text.removesuffix("\u2026")
    assert all(begin in in_line(it.prompt, role) and begin not in in_line(it.sent or ()) for it in hits)
    assert any(in_line(it.sent or (), role) for it in hits) is not is_whole
    return case.share(lambda it: it.is_hit), role, text


def lacks_message(case: Case, _: str, role: str, text: str) -> tuple[str, ...]:
    """Return the share of those that are hit, whose first message of that role is not in what was sent."""
    hits, begin = [it for it in case.last if it.is_hit], text.removesuffix("\u2026")
    lost = [next(message["content"] for message in it.prompt if message["role"] == role) for it in hits]
    assert not any(of in in_line(it.sent or ()) for of, it in zip(lost, hits, strict=True))
    is_one = any(" ".join(of.split()).startswith(begin) for of in lost)
    return case.share(lambda it: it.is_hit), role, text if is_one else ""


def lacks_column(case: Case, _: str, name: str, text: str) -> tuple[str, ...]:
    """Return the share of those that are hit, in whose prompt the text of a column does not stand, as in others."""
    begin = text.removesuffix("\u2026")
    for it in case.last:
        value = it.metadata["dataset"][name]
        assert it.is_hit is not any(value in str(message["content"]) for message in it.prompt)
    is_one = any(it.metadata["dataset"][name].startswith(begin) for it in case.last if it.is_hit)
    return case.share(lambda it: it.is_hit), name, text if is_one else ""


def sent_whole(case: Case, of_message: Callable[[Mapping[str, Any]], bool]) -> tuple[str, ...]:
    """Return how many have such a message: of those that are hit, and of the others."""
    sides = [[it for it in case.run.rollouts if it.is_hit is side] for side in (True, False)]
    have = [sum(any(map(of_message, it.sent or ())) for it in side) * 32 / len(side) for side in sides]
    return f"{have[0]:g}", "32", f"{have[1]:g}", "32"


def loses_more(case: Case, name: str) -> float:
    """Return how much more those that are hit lose, per rollout: within tasks each one counts by what it tells."""
    hits, is_of_tasks = [it for it in case.last if it.is_hit], name == "others at the same tasks"
    others = [it for it in (case.run.rollouts if is_of_tasks else case.last) if not it.is_hit]
    total = weights = 0.0
    for of in {task(it) if is_of_tasks else "" for it in hits}:
        mine, rest = ([short(case, it) for it in side if not of or task(it) == of] for side in (hits, others))
        weight = len(mine) * len(rest) / (len(mine) + len(rest))
        total, weights = total + weight * (fmean(mine) - fmean(rest)) if weight else total, weights + weight
    return total / weights


def loses_unsent(case: Case) -> tuple[float, ...]:
    return (fmean(it.is_hit for it in case.last) * loses_more(case, case.card.than),)


COUNTS |= {
    "# of rollouts are not sent one of the dataset's # messages (such as \u201c@\u201d)": lacks_message,
    "Of their prompts that were read, # of # lack a whole message, and have nothing in its place; the others have all "
    "messages.": lambda *_: ("32", "32"),
    "# of rollouts are not sent the dataset's # message (\u201c@\u201d)": lambda c, _, *it: (
        unsent(c, *it, is_whole=True)
    ),
    "# of rollouts are not sent a line of the dataset's # message (\u201c@\u201d)": lambda c, _, *it: (
        unsent(c, *it, is_whole=False)
    ),
    "Of their prompts that were read, # of # have a system message; of those of others, # of # do.": lambda c, *_: (
        sent_whole(c, lambda it: it["role"] == "system")
    ),
    "Of their prompts that were read, # of # hold this line; of those of others, # of # do.": lambda c, *_: (
        sent_whole(c, lambda it: "\nEnd with a line" in it["content"])
    ),
    "Each loses # more on average than {others at the same tasks|other rollouts}.": lambda c, _: (
        figure(loses_more(c, c.card.than)),
    ),
    "# of prompts are cut at max_prompt_length (# tokens)": lambda c, *_: (
        c.share(lambda it: it.is_hit), figure(c.run.config["max_prompt_length"]),
    ),
    "# of prompts have exactly # tokens, none has more: they seem to be cut": lambda c, *_: (
        c.share(lambda it: it.is_hit), figure(max(len(it.tokens.prompt_ids) for it in c.last if it.tokens)),
    ),
    "# of # prompts, of # tasks, have exactly # tokens; the longest other one has #.": lambda c, *_: (
        str(sum(it.is_hit for it in c.last)), str(len(c.last)), str(len(tasks(it for it in c.last if it.is_hit))),
        " or ".join({prompt_length(it) for it in c.last if it.is_hit}),
        figure(max(len(it.tokens.prompt_ids) for it in c.last if it.tokens and not it.is_hit)),
    ),
    "Mean reward: cut #, others #.": lambda c, *_: by_hit(c),
    "In # of rollouts the message before the model begins is empty": lambda c, _: (c.share(lambda it: it.is_hit),),
    "# of rollouts are in their groups: one with an infinity gets no finite advantages.": lambda c, _: (
        percent(
            sum(len(group) for group in c.groups if any(it.is_hit for it in group)) / sum(map(len, c.groups))
        ),
    ),
    "In # of rollouts the prompt lacks the dataset's # (\u201c@\u201d)": lacks_column,
    "Of # prompts that were read and have a #, each of another group, # hold its beginning, and # do not.": (
        lambda c, _, name, *__: (str(len(c.groups)), name, str(sum(not group[0].is_hit for group in c.groups)),
        str(sum(group[0].is_hit for group in c.groups)))
    ),
    "Mean reward: without it #, others #.": lambda c, *_: by_hit(c),
    "In # of rollouts the prompt says @ where a value belongs (\u201c@\u201d)": lacking,
    "Of # prompts that were read, each of another group, # say so.": lambda c, *_: (
        str(len(c.groups)), str(sum(group[0].is_hit for group in c.groups)),
    ),
    "# of the others have a value there.": lambda c, _: (str(sum(not group[0].is_hit for group in c.groups)),),
    "Mean reward: with it #, others #.": lambda c, *_: by_hit(c),
}  # fmt: skip


# --- What a card costs, and which rollouts its filter opens


def loses(case: Case) -> tuple[float, ...]:
    """Return what the card's rollouts lose more than the others, and what they lose, per rollout of the last steps."""
    own, others = (
        [short(case, rollout) for rollout, is_own in case.of_card() if is_own is side] for side in (True, False)
    )
    share = len(own) / len(case.last)
    return share * (fmean(own) - fmean(others or [0.0])), share * fmean(own)


def loses_signal(case: Case) -> tuple[float, ...]:
    """Return the loss of all rollouts, times the share of groups in which functions cancel out."""
    share, lost = fmean(map(cancels, case.groups)), fmean(short(case, rollout) for rollout in case.last)
    return (share * lost,) if "cancel" in case.card.title else ()


COSTS: dict[str, Callable[[Case], tuple[float, ...]]] = {
    **dict.fromkeys(("loops", "truncation", "empty_answers", "cut_prompts", "unfilled_prompts", "lost_format"), loses),
    **dict.fromkeys(("never_acted", "parse_failures", "degenerate_text", "never_matches"), loses),
    "reward_parts": loses_signal,
    "unsent_prompts": loses_unsent,
}
"""Returns what a card may cost, by its id: nothing where that is not counted."""


def cause(rollout: Rollout) -> str:
    if error(rollout):
        return "infrastructure"
    return "invalid_reward" if reward(rollout) is None else "wrong_answer" if ended(rollout) else "another"


COLUMNS: dict[str, Callable[[Rollout], Any]] = {
    "step": lambda rollout: rollout.step,
    "eval": lambda rollout: rollout.eval,
    "reward": reward,
    "task": task,
    "family": lambda rollout: f"{task(rollout).partition('/')[0]}/",
    "stop": stop_reason,
    "cause": cause,
    "action_tail": tail,
    "repeats": repeats,
    "env_steps": lambda rollout: len(actions(rollout)) or None,
    "prompt_tokens": lambda rollout: rollout.tokens and len(rollout.tokens.prompt_ids),
}
"""Returns a rollout's value by the filter's name of its column."""

SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def opens(case: Case, rollout: Rollout, where: str) -> bool:
    """Return whether a filter selects a rollout."""
    terms = re.findall(r"(-?)(\w+)(?:\.(\w+))?([:<>]=?)((?:\"[^\"]*\"|[^\s\"])+)", where)
    return all(
        has(value_of(case, rollout, name, key), sign, text) is not bool(minus) for minus, name, key, sign, text in terms
    )


def value_of(case: Case, rollout: Rollout, name: str, key: str) -> Any:
    if key:
        return {"rewards": rollout.values or {}, "metadata": rollout.metadata}[name].get(key)
    return case.numbers[id(rollout)] if name == "id" else COLUMNS[name](rollout)


def has(value: Any, sign: str, text: str) -> bool:
    """Return whether a value is what a term says: `>=2`, `:none`, `:a,"b c"` or `:3..5,7`."""
    if value is None or text == "none":
        return value is None and text == "none"
    if sign != ":":
        return bool(SIGNS[sign](value, float(text)))
    entries = [entry.strip('"') for entry in re.findall(r"\"[^\"]*\"|[^,]+", text)]
    if isinstance(value, str):
        return value in entries
    return any(float(entry.split("..")[0]) <= value <= float(entry.split("..")[-1]) for entry in entries)


CLAIMS = {re.compile(pattern(template)): count for template, count in COUNTS.items()}


def choose_variants(faults: Iterable[Fault]) -> list[Any]:
    """Return the first variant of each check, eight healthy ones and, marked, the first of each other cause; all of
    them with `--exhaustive`.
    """
    causes = grouped(faults, lambda fault: fault.id.partition(":")[0])
    firsts = grouped((cause[0] for cause in causes), lambda fault: fault.expected or "")
    few = [fault for of_check in firsts for fault in of_check[: 1 if of_check[0].expected else 8]]
    more = [fault for of_check in firsts for fault in of_check if fault not in few]
    return marked_cases([*few, *more, *(fault for cause in causes for fault in cause[1:])], len(few), len(more))


@pytest.fixture(scope="module", params=choose_variants(GENERATED), ids=lambda fault: fault.id)
def planted(request: pytest.FixtureRequest) -> tuple[Fault, Case]:
    fault: Fault = request.param
    assert fault.made is not None
    return fault, Case(fault.made())


def test_the_first_card_names_what_was_planted(planted: tuple[Fault, Case]) -> None:
    fault, case = planted
    assert not case.report.warming_up
    cards = [(card.id, card.cost, card.title) for card in case.report.cards]
    assert (cards[0][0] if cards else None) == fault.expected, cards


def test_each_sentence_is_what_the_generator_made(planted: tuple[Fault, Case]) -> None:
    _, case = planted
    wrong = []
    for card in filter(None, (*case.report.cards, case.report.scored_low)):
        mine = in_its_eval(case, card)
        for sentence in (mine.card.title, *card.evidence, *[card.extent] * bool(card.clause)):
            if sentence.startswith(PLAIN):
                continue
            match = next(filter(None, (it.fullmatch(sentence) for it in CLAIMS)), None)
            assert match, f"how to count {sentence!r}?"
            count = CLAIMS[match.re]
            if (counted := count(mine, *match.groups())) != match.groups():
                wrong.append(f"{sentence!r} is {counted}")
    assert wrong == []


def test_each_card_costs_what_its_rollouts_lose(planted: tuple[Fault, Case]) -> None:
    _, case = planted
    for card in case.report.cards:
        mine = in_its_eval(case, card)
        known = COSTS[card.id](mine) if card.id in COSTS and card.cost is not None else ()
        part = len(mine.last) / len(case.last)
        assert not known or any(card.cost == pytest.approx(cost * part) for cost in known), card.title


def test_last_answers_are_read_where_most_lack_an_action(planted: tuple[Fault, Case]) -> None:
    _, case = planted
    for card in (card for card in case.report.cards if card.id == "parse_failures"):
        case.card = card
        own = [rollout for rollout, is_own in case.of_card() if is_own]
        lack = sum(rollout.turns[-1].action is None and not is_cut(rollout) for rollout in own)
        is_read = any("that were read" in sentence and " end with " in sentence for sentence in card.evidence)
        assert is_read is (2 * lack >= len(own)), card.evidence


def test_each_filter_opens_the_rollouts_of_its_card(planted: tuple[Fault, Case]) -> None:
    _, case = planted
    for card in case.report.cards:
        names = re.findall(r"(?:^|\s)-?(\w+)[.:<>]", re.sub(r"\"[^\"]*\"", "", card.where))
        if {*names} <= {"id", "rewards", "metadata", *COLUMNS}:  # others are counted while a run is recorded
            opened = [opens(case, rollout, card.where) for rollout in case.last]
            assert card.own is None or opened == card.own.tolist(), card.where
            # One about all rollouts, or about those after NaN, may open the step at which to look.
            later = [rollout.step > (card.since_step or 0) for rollout in case.last]
            expected = fmean(later if card.id == "not_finite" else opened)
            assert card.share == 1.0 or card.share == pytest.approx(expected), card.where


def test_the_task_that_loses_most_is_named() -> None:
    (fault,) = (fault for fault in GENERATED if fault.id == "forgotten task")
    assert fault.made is not None
    card = diagnosed(fault.made()).report.scored_low
    assert card is not None
    assert (
        "By tasks, rollouts that ended normally lose more in task 1 (mean reward 0); elsewhere it is 0.533."
        in card.evidence
    )
