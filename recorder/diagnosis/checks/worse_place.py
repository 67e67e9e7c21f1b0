"""Finds a machine whose rollouts do far worse than others of the same groups."""

import numpy as np

from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.card import Below, Card, NotJudged, Outcome, Run, check
from logs_ui.recorder.diagnosis.change_point import below
from logs_ui.recorder.diagnosis.contrast import SURER, spread
from logs_ui.recorder.diagnosis.mean_difference import Difference, compare
from logs_ui.recorder.diagnosis.places import MACHINE, columns_of
from logs_ui.recorder.diagnosis.wording import figure, listed

_FAR = 0.2  # of the range of rewards [ours]


def _check(run: Run) -> Outcome:
    rows, least = run.rows, run.threshold("worse_place", _FAR) * spread(run)
    compared = list[tuple[str, str, Difference]]()
    for places, _, column in columns_of(rows, run.labels):
        for place, name in enumerate(places.tasks) if MACHINE.search(column) else ():
            difference = compare(rows.reward, places.task == place, rows.group, rows.group)
            if difference is not None and difference.chance is not None:
                compared.append((column, name, difference))
    if not compared:
        return NotJudged("In fewer than five groups did rollouts of one machine meet those of another.")
    limit = SURER / len(compared)
    worse = [entry for entry in compared if (entry[2].chance or 0.0) <= limit and -entry[2].value >= least]
    if not worse:
        _, name, lowest = min(compared, key=lambda entry: entry[2].value)
        return Below(
            f"Of {len(compared)} machines {name} does worst beside others of the same groups: {figure(lowest.value)} "
            f"(threshold {figure(-least)}, beyond chance)."
        )
    column = min(worse, key=lambda entry: entry[2].value * entry[2].groups[0])[0]
    return _make_card(run, column, [name for of, name, _ in worse if of == column], least)


def _make_card(run: Run, column: str, names: list[str], least: float) -> Outcome:
    rows, every = run.rows, run.all
    own, there = (
        np.isin(np.array(labels, object), names) for labels in (run.labels[column], run.labels_of_all[column])
    )
    now = compare(rows.reward, own, rows.group, rows.group)
    if now is None:
        return None
    others = every.group_means(np.where(there, np.nan, every.reward))[every.group]
    fields = below(every.by_step(np.where(there, every.reward - others, np.nan)), -least)
    first, sentences = fields["since_step"], list[str]()
    if first is not None and first > every.steps[0]:
        before = compare(np.where(every.step < first, every.reward, np.nan), there, every.group, every.group)
        if before is not None:
            sentences = [f"Before step {first:,} it was {figure(before.chosen)}, of others {figure(before.others)}."]
    return Card(
        id="worse_place",
        title=f"In {column} {listed(names)} the mean reward is {figure(now.chosen)}; that of other rollouts of these "
        f"groups is {figure(now.others)}",
        cost=-now.value * float(own.mean()),
        than="others of their groups",
        evidence=(f"{int(own.sum()):,} of {len(rows):,} rollouts are from there.", *sentences),
        suggestion="Look at what runs there: its version, its weights, its logs. Until then leave it out, and mask its "
        "rollouts.",
        where=links.tasks(names, column),
        **fields,
        own=own,
        is_setup=True,
    )  # fmt: skip


DIAGNOSTIC = check(
    "worse_place",
    "Worse machine",
    "A value of a column that is named like a machine (host, rank, worker, server, container and the like), whose "
    f"rollouts get at least {_FAR:.0%} of the range of rewards less than others of the same groups, with a "
    f"probability below {SURER:.1%} of that by chance, corrected for the number of values.",
    lambda run: (
        None
        if any(MACHINE.search(name) and len(set(values)) > 1 for name, values in run.labels.items())
        else "a host or worker in the metadata"
    ),
    _check,
)
