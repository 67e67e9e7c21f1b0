"""Finds a machine whose rollouts do worse than others of the same groups, or than other groups; or whose
completions duplicate each other, while those of the others do not.
"""

from typing import Any, NamedTuple

import numpy as np

from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.card import Below, Card, NotJudged, Outcome, Run, check
from logs_ui.recorder.diagnosis.change_point import above, below
from logs_ui.recorder.diagnosis.checks.never_solved import quote_line
from logs_ui.recorder.diagnosis.contrast import SURER, spread
from logs_ui.recorder.diagnosis.largest_differences import find_largest, list_columns, write_value
from logs_ui.recorder.diagnosis.mean_difference import LEAST_UNITS, Difference, compare, is_beyond_chance
from logs_ui.recorder.diagnosis.measures import dead, duplicated, extent, mean
from logs_ui.recorder.diagnosis.places import MACHINE, columns_of, list_kinds
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Floats, Ints, distinct, means
from logs_ui.recorder.diagnosis.task_families import tasks_recur
from logs_ui.recorder.diagnosis.waterfall import causes, name_causes
from logs_ui.recorder.diagnosis.wording import figure, list_places, percent

_FAR, _BESIDE = 0.2, 0.5  # of the range of rewards; of that within the same groups or tasks, where less differs [ours]
_HEARD = 0.2  # of the rollouts read an error that is quoted [ours]
_ALIKE = _OF_GROUPS, _OF_TASKS = "other rollouts of these groups", "other groups of these tasks"
_DUPLICATES, _RARE = 0.5, 0.1  # of the completions of a machine and of the others are duplicates [ours]
_ROLLOUTS = 32  # that get one value of a function by more than chance [ours]


class _Compared(NamedTuple):
    column: str
    name: str  # of a machine
    strata: Ints  # (A) codes of all rollouts, within which machines are compared
    others: str  # what it is compared with, in words
    difference: Difference
    is_apart: bool  # True if its tasks may differ from those of the others: then only a fall during the run tells
    least: float  # reward that it must get less


def _check(run: Run) -> Outcome:
    rows, far, compared = run.rows, run.threshold("worse_place", _FAR) * spread(run), list[_Compared]()
    is_last, duplicates, repeating = run.all.step >= rows.steps[0], duplicated(rows), list[_Compared]()
    for places, _, column in columns_of(rows, run.labels):
        for strata, others, is_apart in _list_strata(run, column) if MACHINE.search(column) else ():
            least = far * (_BESIDE if others in _ALIKE else 1)
            judged, of_duplicates = (
                [
                    _Compared(column, name, strata, others, difference, is_apart, least)
                    for place, name in enumerate(places.tasks)
                    if (difference := compare(values, places.task == place, rows.group, strata[is_last])) is not None
                    and difference.chance is not None
                ]
                for values in (rows.reward, duplicates)
            )
            compared += judged
            repeating += of_duplicates if not is_apart else []
            if judged:
                break
    limit = SURER / max(len(compared) + len(repeating), 1)
    worse = [
        entry
        for entry in compared
        if (entry.difference.chance or 0.0) <= limit and -entry.difference.value >= entry.least
        if not entry.is_apart or _has_fallen(run, entry, limit / len(run.all.steps))
    ]
    beside = [entry for entry in compared if not entry.is_apart]
    repeated = [
        entry
        for entry in repeating
        if (entry.difference.chance or 0.0) <= limit
        and entry.difference.chosen >= _DUPLICATES
        and entry.difference.others <= _RARE
    ]
    most = max(repeated, key=lambda entry: entry.difference.value, default=None)
    if not worse and most is not None and (card := _make_card_of_duplicates(run, most, duplicates)) is not None:
        return card
    if not worse and not beside:
        return NotJudged("In fewer than five groups did rollouts of one machine meet those of another.")
    if not worse:
        lowest = min(beside, key=lambda entry: entry.difference.value)
        count = sum(entry.column == lowest.column for entry in beside)  # ranks and their hosts are the same machines
        return Below(
            f"Of {count} machines {lowest.name} does worst beside {lowest.others}: "
            f"{figure(lowest.difference.value)} (threshold {figure(-lowest.least)}, beyond chance)."
        )
    # Of ranks and the hosts that they are on, those that are at fault differ most.
    worst = min(worse, key=lambda entry: entry.difference.value)
    return _make_card(run, worst, [entry.name for entry in worse if entry.column == worst.column])


def _find_begin(run: Run, there: Bools, strata: Ints, least: float) -> dict[str, Any]:
    """Return the fields of a card that say since when the rollouts of which (A) `there` is True do far worse."""
    every = run.all
    # Other groups are compared at the same step: all may get better.
    place = strata if strata is every.group else np.searchsorted(every.steps, every.step)
    others = means(place, np.where(there, np.nan, every.reward), int(place.max()) + 1)[place]
    return below(every.by_step(np.where(there, every.reward - others, np.nan)), -least)


def _has_fallen(run: Run, entry: _Compared, limit: float) -> bool:
    """Return True if a machine did about as well as the others before a step, and far worse than before and than they
    since; so, too, within evals, families and the values of each column, which it may get in other shares since then;
    and if its prompts are as long as those of the others.
    """
    every, reward = run.all, run.all.reward
    there = np.array([label == entry.name for label in run.labels_of_all[entry.column]])
    late = every.step >= (_find_begin(run, there, entry.strata, entry.least)["since_step"] or 0)
    before = compare(np.where(late, np.nan, reward), there, every.group, entry.strata)
    if before is None or before.chance is None or before.value <= -entry.least / 2:
        return False
    length = every.facts.get("prompt_tokens", np.full(len(every), np.nan))
    longer = compare(np.where(late, length, np.nan), there, every.group)
    if longer is not None and (longer.chance or 0.0) <= SURER:  # other tasks come there
        return False
    most = len(np.unique(every.group[there])) // LEAST_UNITS  # values: of more, few come again
    kinds = [codes for field, names, codes in list_kinds(run) if len(names) <= most and not MACHINE.search(field)]
    return all(
        is_beyond_chance(difference, limit) and -difference.value >= entry.least
        for codes in (entry.strata, *kinds)
        for difference in (
            compare(np.where(there, reward, np.nan), late, every.group, codes),
            compare(np.where(late, reward, np.nan), there, every.group, codes),
        )
    )  # fmt: skip


def _list_strata(run: Run, column: str) -> list[tuple[Ints, str, bool]]:
    """Return (A) codes of all rollouts within which machines compare, words for the others, and True if only a fall
    tells: groups; and where these are whole on one machine, tasks, else families of tasks or evals. A machine may
    always play the same tasks, such as the server of a site: unless some tasks come on several, and in the last steps,
    since over more of them a machine's name may change, only a fall tells, if tasks come once. A rank gets what is
    dealt to it.
    """
    rows, of_groups, is_rank = run.all, (run.all.group, _OF_GROUPS, False), column == "rank"
    dealt, labels = (rows, run.labels_of_all[column]) if is_rank else (run.rows, run.labels[column])
    codes = np.unique([label or "" for label in labels], return_inverse=True)[1]
    is_known = np.array([label is not None for label in labels]) & (dealt.task >= 0)
    moved, recurring = (
        int((distinct(dealt.task[is_known], of[is_known], count=len(rows.tasks)) > 1).sum())
        for of in (codes, dealt.group)
    )
    is_apart = moved < LEAST_UNITS and not (is_rank and recurring < LEAST_UNITS)
    if tasks_recur(rows if is_apart else run.rows):
        return [of_groups] if is_apart else [of_groups, (rows.task + 1, _OF_TASKS, False)]
    placed = run.families
    if placed is None:
        return [of_groups, (rows.eval, "other groups", is_apart)]
    return [of_groups, (placed.task + 1, "other groups of these families", is_apart)]


def _make_card(run: Run, worst: _Compared, names: list[str]) -> Outcome:
    rows, every, strata, column = run.rows, run.all, worst.strata, worst.column
    own, there = (
        np.isin(np.array(labels, object), names) for labels in (run.labels[column], run.labels_of_all[column])
    )
    now = compare(rows.reward, own, rows.group, strata[every.step >= rows.steps[0]])
    if now is None:
        return None
    fields = _find_begin(run, there, strata, worst.least)
    found = (_find_constant(run, name, own, there) for name in rows.values)
    last = (fields["since_range"] or (0, fields["since_step"] or every.steps[-1]))[1]
    constant = [entry for entry in found if entry is not None and entry[-1] <= last]
    if constant:  # that tells better when it began: the others may rise
        fields |= {"since_step": min(since for *_, since in constant), "since_range": None}
    first, sentences = fields["since_step"], list[str]()
    has_begun = first is not None and first > every.steps[0]
    if has_begun:
        before = compare(np.where(every.step < first, every.reward, np.nan), there, every.group, strata)
        if is_beyond_chance(before, SURER) and before.value <= -worst.least:  # others got less then, too
            fields |= {"since_step": int(every.steps[0]), "since_range": None}
            has_begun = False
        elif before is not None:
            sentences = [f"Before step {first:,} it was {figure(before.chosen)}, of others {figure(before.others)}."]
    sentences += [
        f"{name} is {value} for all rollouts from there since step {since:,}; of others it is {mean_of_others} on "
        "average in the last steps."
        for name, value, mean_of_others, since in constant
    ]
    sentences.append(_name_differences(run, own, strata[every.step >= rows.steps[0]], worst.others))
    since = every.step >= (first or 0)
    words = "rollouts from there that were read", "others"
    sentences.append(quote_line(run, there & since, ~there & since, words=words, least=_HEARD)[1])
    always = ", ".join(f"{name} always {value}" for name, value, *_ in constant) if len(rows.values) > 1 else ""
    # What is so of other tasks, and from the first step on, may be the tasks'.
    is_there = worst.others in _ALIKE or has_begun or bool(constant)
    changed = "; and whether other tasks come there since" if worst.is_apart else ""
    there_mean = f"{figure(now.chosen)}{always and f' ({always})'}"
    return Card(
        id="worse_place",
        title=f"In {column} {list_places(names)} the mean reward is {there_mean}; that of {worst.others} is "
        f"{figure(now.others)}",
        cost=-now.value * float(own.mean()),
        than=worst.others,
        evidence=(f"{int(own.sum()):,} of {len(rows):,} rollouts are from there.", *filter(None, sentences)),
        suggestion=f"Look at what runs there: its version, its weights, its logs{changed}. Until then leave it out, "
        "and mask its rollouts."
        if is_there
        else "Look at what runs there: its version, its weights, its logs; or its tasks are harder.",
        where=links.tasks(names, column),
        **fields,
        own=own,
        is_setup=is_there,
    )  # fmt: skip


def _make_card_of_duplicates(run: Run, entry: _Compared, duplicates: Floats) -> Card | None:
    """Return the card on a machine whose completions duplicate each other; None if its tasks may be others than those
    of the other machines, and make it so from the first step on.
    """
    rows, every, column = run.rows, run.all, entry.column
    there, there_of_all = (
        np.array([label == entry.name for label in labels[column]]) for labels in (run.labels, run.labels_of_all)
    )
    fields = above(every.by_step(np.where(there_of_all, duplicated(every), np.nan)), _DUPLICATES)
    if entry.others not in _ALIKE and (fields["since_step"] or 0) <= every.steps[0]:
        return None
    here, elsewhere = (mean(duplicates[of]) or 0.0 for of in (there, ~there))
    own = there & (duplicates == 1)
    equal = float((dead(rows.groups)[rows.group] & own).sum() / max(own.sum(), 1))
    sentence = f"{percent(equal)} of these duplicates are in groups with zero variance, from which nothing is learned."
    return Card(
        id="worse_place",
        title=f"In {column} {list_places([entry.name])}, {percent(here)} of completions duplicate another of their "
        f"group; elsewhere {percent(elsewhere)}",
        cost=float(run.lost[own].sum()) / len(rows),
        evidence=(f"{int(there.sum()):,} of {len(rows):,} rollouts are from there.", *[sentence] * (equal > 0)),
        suggestion="Compare its sampling parameters with those of the others: temperature, top_p, seed. Does a cache "
        "answer there?",
        where=f"twins>0 {links.tasks([entry.name], column)}",
        **fields,
        own=own,
        is_setup=True,
        is_loss=False,  # equal completions are no worse, but teach nothing
    )


def _name_differences(run: Run, own: Bools, strata: Ints, others: str) -> str:
    """Say in which figures but rewards rollouts from there differ most from others; "" without one."""
    rows, success = run.rows, run.scale.success
    columns = list_columns(rows, success, name_causes(rows, causes(rows)))
    for outcome in ("reward", "solved (share)", *rows.values):
        columns.pop(outcome, None)
    largest, _ = find_largest(columns, own, rows.group, strata, np.isfinite(rows.reward))
    parts = [
        f"{name} {write_value(difference.chosen, name)}, others {write_value(difference.others, name)}"
        for name, difference in largest
    ]
    return f"Beside {others}: {'; '.join(parts)}." if parts else ""


def _find_constant(run: Run, name: str, own: Bools, there: Bools) -> tuple[str, str, str, int] | None:
    """Return name and value of a reward function that gives all last rollouts there one value, its mean over others,
    which is more beyond chance, and since when it does; else None. `there`: (A) True for those of all steps.
    """
    every, values, of = run.all, run.rows.values[name], own & np.isfinite(run.rows.values[name])
    difference = compare(run.rows.parts[name], own, run.rows.group)
    if not is_beyond_chance(difference, SURER, sign=-1):
        return None
    if of.sum() < _ROLLOUTS or extent(values[of]) > SAME:
        return None
    value, others = float(values[of][0]), float(np.nanmean(values[~own]))
    before = every.step[there & (np.abs(every.values[name] - value) > SAME)].max(initial=-1)
    return name, figure(value), figure(others), int(every.steps[every.steps > before][0])


DIAGNOSTIC = check(
    "worse_place",
    "Worse machine",
    "A value of a column that is named like a machine (host, rank, worker, server, container and the like), whose "
    f"rollouts get at least {_FAR * _BESIDE:.0%} of the range of rewards less than others of the same groups, with a "
    f"probability below {SURER:.1%} of that by chance, corrected for the number of values. Where each group is whole "
    "on one machine, groups are compared: at the same tasks if these recur, else in the same families or evals; only "
    f"if {LEAST_UNITS} tasks or more of the last steps came on several machines, or, of ranks, if fewer came again. "
    "Else a machine is named only if it did less than half as much worse before some step, and since then does as much "
    "worse than before and than the others, also within evals, families and the values of each column; if most tasks "
    "come once, and its prompts are as long as theirs. "
    "If a reward function gives all last rollouts there one value, it began when it did. An error is quoted that "
    f"{_HEARD:.0%} of its rollouts read, and hardly any others. If none is found so: a machine of whose completions "
    f"{_DUPLICATES:.0%} or more duplicate another one of their group, and of those of the others {_RARE:.0%} or fewer, "
    "by the same comparisons; in families or evals only if that began during the run. It is no fault of the set-up "
    "where other tasks are compared, from the first step on, and no function is so.",
    lambda run: (
        None
        if any(MACHINE.search(name) and len(set(values)) > 1 for name, values in run.labels.items())
        else "a host or worker in the metadata"
    ),
    _check,
)
