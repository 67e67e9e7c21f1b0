"""Counts for what is said of tasks, and of the places where rollouts lose more."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from statistics import fmean

import numpy as np

from logs_ui.recorder.diagnosis.wording import figure, percent
from tests.faults.runs import Rollout
from tests.recorder.diagnosis.claims.case import (
    SAME,
    Case,
    Count,
    alike,
    best_of,
    compared,
    completion,
    ended,
    errors,
    figures,
    given,
    grouped,
    has_habit,
    hears_error,
    in_groups,
    in_line,
    kind_of,
    kind_read,
    kinds_read,
    means,
    near,
    parts,
    place,
    place_in,
    recounted,
    reward,
    rewards,
    right,
    sample,
    short,
    target,
    task,
    tasks,
    valued,
    values,
    windows,
    within,
)


def ratio(part: str, whole: str) -> str:
    return percent(int(part) / int(whole))


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


def told_in_groups(case: Case, count: str, line: str, *shares: str) -> tuple[str, ...]:
    """Return the same of all groups, of which some were read, as far as it is near."""
    low, better = (set(map(id, side)) for side in sides_of(case))
    both = [[it for it in group if id(it) in low | better] for group in case.groups]
    groups = sum(0 < sum(id(it) in low for it in group) < len(group) for group in both)
    values = within(both, lambda it: id(it) in low, lambda it: float(hears_error(it, line)))
    return count if 5 <= int(count) <= groups else str(groups), line, *near(shares, values)


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


def regressed(case: Case, *_: str) -> tuple[str, ...]:
    before, since = re.findall(r"\d+ of \d+", case.card.evidence[0])
    names = re.split(", | and ", case.card.evidence[0].split(":")[0])
    shares = (ratio(*it.split(" of ")) for it in (since, before))
    key = task if names[0][-1].isalnum() else lambda it: task(it).partition("/")[0]
    of_all = grouped((it for it in case.run.rollouts if reward(it) is not None), key)
    number = sum(sum(it.step > mine[0].step for it in mine) >= 10 for mine in of_all)
    return str(len(names)), str(number), *shares


def replaced(case: Case) -> tuple[list[Rollout], list[Rollout]]:
    """Return the rollouts of tasks that only the first steps have, and of those that only the last have."""
    first, last = windows(case)
    return [it for it in first if task(it) not in tasks(last)], [it for it in last if task(it) not in tasks(first)]


def often(side: list[Rollout], name: str) -> str:
    return percent(len(of_names(name, side)) / len(side))


def of_loss(case: Case, _share: str, *name: str) -> tuple[str, ...]:
    lost = [(short(case, it), ended(it)) for it in case.last]
    return percent(sum(it for it, is_low in lost if is_low) / sum(it for it, _ in lost)), *name


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


def is_in(place: str) -> Callable[[Rollout], bool]:
    """Return what tells the rollouts of some families, or of some values of a column."""
    key, before = place_in(place), "".join(re.findall(r"\A(?:family|families|metadata\.\S+) ", place))
    parts = re.split(", | and ", place.removeprefix(before))
    return lambda it: key(it).removeprefix(before) in parts


def fell_in(case: Case, place: str, *_: str) -> tuple[str, ...]:
    """Return the mean reward of a part before a step and since, and that of the others, at the same tasks if these
    recur.
    """
    since, _last, begin = map(int, re.findall(r"\d+", case.card.evidence[0]))
    levels: list[str] = []
    for of in (True, False):
        mine = [it for it in case.run.rollouts if is_in(place)(it) is of]
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
    part, fell = case.card.title.removeprefix("In ").partition(" the mean reward fell")[:2]
    named = part if fell else "metadata.{} {}".format(*machine_of(case))
    return str(sum(map(is_in(named), case.last))), str(len(case.last))


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


def prompt_changes(case: Case, step: str, text: str, *_: str) -> tuple[str, ...]:
    """Of 16 rollouts of each side; all of a side must agree."""
    begin = text.removesuffix("\u2026")
    sides = [[it for it in case.run.rollouts if (it.step < int(step)) is side] for side in (True, False)]
    counts = [fmean(begin in in_line(it.sent or it.prompt) for it in side) * 16 for side in sides]
    return step, text, f"{counts[0]:g}", "16", f"{counts[1]:g}", "16"


def in_families(case: Case, _share: str, names: str, _rest: str) -> tuple[str, ...]:
    chosen = tuple(re.split(", | and ", names))
    inside = [own for it, own in case.of_card() if task(it).startswith(chosen)]
    outside = [own for it, own in case.of_card() if not task(it).startswith(chosen)]
    return percent(fmean(inside)), names, percent(fmean(outside))


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


def labelled(case: Case, name: str, _share: str, texts: str, _rest: str) -> tuple[str, ...]:
    inside = set(re.split(", | and ", texts))
    values = [((it.metadata[name].strip() or "(blank)") in inside, own) for it, own in case.of_card()]
    shares = [fmean(own for is_inside, own in values if is_inside is side) for side in (True, False)]
    return name, percent(shares[0]), texts, percent(shares[1])


COUNTS: dict[str, Count] = {
    "# of them have 5 or more marked answers that were read; in # most agree on one that is not the reference. @: @ in "
    "# of #, the reference is @.": agreed,
    "Of # low rollouts that were read, # end with @; of # better ones, #.": low_answers,
    "Of # rollouts of all steps that were read, # of those since step # end so, # of those before.": ends_since,
    "Of # since then that were read # @, of # before #.": begun,
    "# \u00d7#: @.": errors,
    "By tasks: # of the rollouts in @, # elsewhere.": place,
    "# of # tasks[ with 10+ attempts] {is|are} never solved[, beyond chance][, in # attempts each on average]": (
        lambda c, *groups: (
            str(len(never(c)) - maybe_unsolved(c)),
            str(len([mine for mine in tasks(c.run.rollouts).values() if len(mine) >= 10])),
            groups[2] and f"{fmean(map(len, never(c).values())):.0f}",
        )
    ),
    "If all tasks were equally hard, chance would leave about # unsolved.": by_chance,
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
    "Steps #\u2013# vs #\u2013#: within-task change #, task-mix change #.": lambda c, *g: (
        *g[:4], *mixes(c, *g[:4]),
    ),
    "[At least ]@ of @ {task families|tasks}[ with 10+ attempts after their first step] regressed: # of attempts solve "
    "{it|them} now, # did before": regressed,
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
    "By families of tasks:[ at least] # of the rollouts in @, # elsewhere.": in_families,
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
    "By metadata.#:[ at least] # of the rollouts in @, # elsewhere.": labelled,
}  # fmt: skip
