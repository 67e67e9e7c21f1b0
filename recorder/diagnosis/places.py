"""Says where a finding is: the tasks, families of tasks, evals, ranks or values of a dataset's column that hold nearly
all of its rollouts.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Run
from logs_ui.recorder.diagnosis.links import print_column
from logs_ui.recorder.diagnosis.mean_difference import LEAST_UNITS, chance_limit, compare
from logs_ui.recorder.diagnosis.prompt_changes import describe_prompt_changes, prompt_of
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Ints, Rows, distinct
from logs_ui.recorder.diagnosis.wording import list_places, percent
from logs_ui.recorder.vocabulary import Status

_NEARLY_ALL, _RARER = 0.9, 0.25  # of the finding's rollouts are there; as often elsewhere, at most [ours]
_NAMED = 3  # places; settings
_READ = 16  # rollouts of which parameters are read
_VALUES = 200  # of a column: one with more names no places [ours]
MACHINE = re.compile(
    r"(?:(?:(?<!g)host|(?<!ob)server|worker|endpoint|machine|replica|container|gpu|(?<!re)sampler)s?"
    # A node may be one of a graph, and a rank that of an answer.
    r"|(?:^|\.|gpu|node|local|global|world|compute|cluster|worker|server|rollout|actor|env|vllm|slurm|ray|[dt]p)[ _-]?"
    r"(?:rank|node)s?)"
    # It ends so: `server_errors` says what happened there.
    r"(?:[ _.-]?(?:name|id|index|idx|ip|ur[li]|addr(?:ess)?|port|num(?:ber)?|no|type|pool|group|image|version)s?)*"
    r"[ _.-]?\d*$",
    re.IGNORECASE,
)
"""Matches the name of a column that says where a rollout was played."""

Places = tuple[Rows, Ints, str]
"""Rollouts with places as their tasks, the (N,) codes of what is independent there, and the name of such places."""


class Place(NamedTuple):
    """Says where a finding's rollouts are."""

    sentence: str
    share: float  # of the rollouts there
    inside: Bools  # (N,) True for those


def find_place(run: Run, affected: Bools, where: str = "") -> Place | None:
    """Return where a finding's rollouts are; None if they are everywhere. `affected` is (N,) True for those.

    Places are named if each has more than the rest beyond chance, corrected for all that are compared, and the rest
    has hardly any. The coarsest are tried last, and after them ranks and the dataset's columns. What the finding's
    filter `where` names is not tried, and nothing finer.
    """
    kinds = [] if "family:" in where or "eval:" in where else [*families_of(run), evals_of(run)]
    kinds = kinds if "task:" in where or not kinds else [tasks_of(run), *kinds]
    if place := next(filter(None, (_judge_kind(*kind, affected) for kind in kinds)), None):
        return place
    columns = [column for column in columns_of(run.rows, run.labels) if f"{print_column(column[2])}:" not in where]
    return next(filter(None, (_judge_kind(*column, affected, columns=len(columns)) for column in columns)), None)


def place_of(run: Run, card: Card) -> str:
    """Return a sentence on where a finding's rollouts of the last steps are, or else those of all steps, as where the
    last steps have too few tasks of each place; "" if they are everywhere.
    """
    if card.own is None or not card.own.any():
        return ""
    if place := find_place(run, card.own, card.where):
        return place.sentence
    whole = place_of_all(run, card)
    return "" if whole is None else f"Over all steps, {whole.sentence[0].lower()}{whole.sentence[1:]}"


def place_of_all(run: Run, card: Card) -> Place | None:
    """Return where a finding's rollouts of all steps are; None if they are everywhere, or its check does not tell."""
    return None if card.own_of_all is None else find_place(replace(run, rows=run.all), card.own_of_all, card.where)


def describe_switches(run: Run, first: int, last: int) -> list[str]:
    """Return sentences on recorded settings that switch to another value at one of the steps `first` to `last`, between
    which something begins, and on instructions that prompts have on one side alone. Generations' parameters and prompts
    are read of some rollouts of either side: each side has one value.
    """
    sentences = [
        f"At step {switch.step:,} {switch.name} changes from {switch.before} to {switch.after}."
        for switch in run.switches
        if first <= switch.step <= last
    ]
    sides = [run.sample(side, _READ) for side in (run.all.step < first, run.all.step >= last)]
    before, after = (_shared_values([texts.sampling for texts in side.values()]) for side in sides)
    at = f"At step {first:,}" if first == last else f"Between steps {first:,} and {last:,}"
    sentences += [
        f"{at} sampling.{name} changes from {before[name]} to {after[name]}."
        for name in sorted(before.keys() & after.keys())
        if before[name] != after[name]
    ]
    groups = (len(set(run.all.group[np.isin(run.all.id, list(side))])) for side in sides)
    if min(groups) >= LEAST_UNITS:  # fewer may share more of their prompts by chance
        prompts = ([prompt_of(texts) for texts in side.values()] for side in sides)
        sentences += [f"{at} {change}." for change in describe_prompt_changes(*prompts)]
    return sentences[:_NAMED]


def _shared_values(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the numbers and texts that all entries have."""
    values = {
        name: value for name, value in (entries[0] if entries else {}).items() if isinstance(value, str | float | int)
    }
    return {name: value for name, value in values.items() if all(entry.get(name) == value for entry in entries)}


def _judge_kind(rows: Rows, units: Ints, kind: str, affected: Bools, columns: int = 1) -> Place | None:
    """Return the place if the finding is in some of `rows.tasks`; `columns`: as many kinds of places are tried."""
    has_task = rows.task >= 0
    task, chosen = rows.task[has_task], affected[has_task]
    places = np.flatnonzero(distinct(task, units[has_task], count=len(rows.tasks)) >= LEAST_UNITS)
    often = np.bincount(task[chosen], minlength=len(rows.tasks))
    frequent = places[np.argsort(-often[places], kind="stable")][:_NAMED].tolist()
    if often[frequent].sum() < _NEARLY_ALL * affected.sum():
        return None
    compared = [(place, compare(chosen.astype(float), task == place, units[has_task])) for place in frequent]
    sure = [
        (place, difference, difference.chance * columns)
        for place, difference in compared
        if difference is not None and difference.chance is not None
    ]
    limit = chance_limit([chance for *_, chance in sure] + [1.0] * (len(places) - len(frequent)))
    significant = [place for place, difference, chance in sure if chance <= limit and difference.value > 0]
    inside = np.isin(task, significant)
    if not significant or inside.all() or chosen[inside].sum() < _NEARLY_ALL * affected.sum():
        return None
    share, rest = float(chosen[inside].mean()), float(chosen[~inside].mean())
    if rest > _RARER * share:
        return None
    names = list_places([rows.tasks[place] for place in significant])
    sentence = f"By {kind}: {percent(share)} of the rollouts in {names}, {percent(rest)} elsewhere."
    return Place(sentence, share, np.isin(rows.task, significant))


def tasks_of(run: Run) -> Places:
    """Return the rollouts of the last steps with what is independent in their tasks."""
    return run.rows, run.rows.group, "tasks"


def families_of(run: Run) -> list[Places]:
    """Return the same with families as tasks; none if names show none."""
    grouped, is_last = run.families, run.all.step >= run.rows.steps[0]
    return [] if grouped is None else [(grouped.where(is_last), run.rows.task, "families of tasks")]


def evals_of(run: Run) -> Places:
    """Return the same with evals as tasks."""
    rows = run.rows
    has_tasks = len(np.unique(rows.task)) >= 2 * LEAST_UNITS
    return replace(rows, task=rows.eval, tasks=rows.evals), rows.task if has_tasks else rows.group, "evals"


def columns_of(rows: Rows, labels: Mapping[str, Sequence[str | None]]) -> list[Places]:
    """Return the same with ranks, and with the values of each of the dataset's columns, as tasks. What varies within a
    group may follow from what a rollout did, and is no place, unless its name is that of a machine.
    """
    places = list[Places]()
    for name, values in labels.items():
        names = sorted({value for value in values if value is not None})
        if not 2 <= len(names) <= _VALUES:
            continue
        number = {value_name: place for place, value_name in enumerate(names)}
        codes = np.array([-1 if value is None else number[value] for value in values], np.int64)
        is_known = (codes >= 0) | (rows.status != Status.ERROR)  # a rollout that raised may lack its columns
        is_of_group, is_of_task = (
            bool((distinct(units[of], codes[of], count=int(units.max()) + 1) <= 1).all())
            for units in (rows.group, rows.task)
            for of in [is_known & (units >= 0)]
        )
        if is_of_group or MACHINE.search(name):
            has_tasks = is_of_task and (rows.task >= 0).all()
            places.append((replace(rows, task=codes, tasks=names), rows.task if has_tasks else rows.group, name))
    return places


def list_kinds(run: Run) -> list[tuple[str, Sequence[str], Ints]]:
    """Return a filter's field, its values, and the (N,) codes of rollouts, -1 for none, of evals, of families of tasks,
    and of the values of each column, of the whole run.
    """
    rows, families = run.all, run.families
    kinds = [("eval", rows.evals, rows.eval)] + (
        [] if families is None else [("family", families.tasks, families.task)]
    )
    return kinds + [(column, of.tasks, of.task) for of, _, column in columns_of(rows, run.labels_of_all)]


def list_parts(run: Run) -> list[tuple[Sequence[str], Ints]]:
    """Return names for a sentence, and codes, of the whole run ("") and of the same as `list_kinds`."""
    kinds = [("" if field in {"eval", "family"} else field, names, codes) for field, names, codes in list_kinds(run)]
    places = [([list_places([name], column) for name in names], codes) for column, names, codes in kinds]
    return [([""], np.zeros(len(run.all), np.int64)), *places]
