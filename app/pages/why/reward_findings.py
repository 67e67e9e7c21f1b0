"""Checks the reward functions on one page: each one's result, with its figures."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from logs_ui.app.pages.why.why_tab import StepWindow
from logs_ui.recorder.analysis.diagnose import Diagnosed
from logs_ui.recorder.diagnosis import DIAGNOSTICS, Diagnostic, waterfall
from logs_ui.recorder.diagnosis.card import Run
from logs_ui.recorder.diagnosis.checks.answer_length import correlation
from logs_ui.recorder.diagnosis.checks.contradictions import against, spreads, twins
from logs_ui.recorder.diagnosis.checks.reward_functions import cancels, weightless
from logs_ui.recorder.diagnosis.contrast import rise, windows
from logs_ui.recorder.diagnosis.links import exactly
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Ints
from logs_ui.recorder.diagnosis.wording import figure, percent
from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter

_LOOKED_FOR = ("reward_parts", "inconsistent", "disagreement", "hacking", "constant_reward", "length")


class FindingLine(NamedTuple):
    """Holds a sentence; `chosen` selects its rollouts, None if there are none, or no filter does."""

    text: str
    chosen: RolloutFilter | None = None


class Finding(NamedTuple):
    """Holds the result of one check.

    Attributes:
        state: `found`, `fine`, or `unknown` if its inputs were not recorded.
        lines: the figures behind it.
        definition: the check, and the source of its threshold.
        chosen: its rollouts; None if there are none, or no filter selects them.
        is_groups: True if it is about the groups of these rollouts.
    """

    name: str
    state: str
    said: str
    lines: tuple[FindingLine, ...]
    definition: str
    chosen: RolloutFilter | None = None
    is_groups: bool = False


def findings(known: Diagnosed, here: StepWindow) -> list[Finding]:
    """Runs the checks on the window's rollouts; those that fired come first."""
    if not len(here.rows):
        return []
    scale = known.report.scale
    run = Run(here.rows, known.rows, scale, waterfall(here.rows, scale), known.settings, known.config, known.scalars)
    wanted = [it for name in _LOOKED_FOR for it in DIAGNOSTICS if it.id == name]
    found = [_finding(it, run, here) for it in wanted]
    if len(here.rows.parts) > 1:
        found.insert(1, _cancellation(here))
    return sorted(found, key=lambda it: ("found", "fine", "unknown").index(it.state))


def _finding(it: Diagnostic, run: Run, here: StepWindow) -> Finding:
    definition = f"{it.definition} Threshold: {it.source}."
    lacks = it.missing(run)
    if lacks is not None:
        return Finding(it.name, "unknown", f"Not recorded: {lacks}.", (), definition)
    card = it.look(run)
    if card is not None:
        evidence = tuple(map(FindingLine, card.evidence))
        return Finding(it.name, "found", card.title, evidence, definition, _read(here, card.where))
    make = _FIGURES.get(it.id)
    lines = tuple(make(run, here)) if make else ()
    return Finding(it.name, "fine", "" if lines else "Below threshold.", lines, definition)


def _read(here: StepWindow, where: str) -> RolloutFilter | None:
    """Parses a filter; None if the language cannot express it, since a reward function may have any name."""
    try:
        return here.only(where)
    except FilterError:
        return None


def _cancellation(here: StepWindow) -> Finding:
    """Reports any group that cancels out; the diagnosis' card needs a tenth of them."""
    rows, groups = here.rows, cancels(here.rows)
    count, total = int(groups.sum()), len(groups)
    definition = "Groups in which reward functions differ between rollouts but their weighted sum does not."
    if not count:
        return Finding("Cancellation", "fine", "", (FindingLine(f"None in {total:,} groups."),), definition)
    said = f"In {count:,} of {total:,} groups the reward functions differ but their weighted sum does not."
    first = np.unique(rows.group, return_index=True)[1][groups]  # any rollout opens its group
    chosen = _only(here, rows.id[first])
    lines = (FindingLine("All advantages of these groups are 0: the functions cancel out."),)
    return Finding("Cancellation", "found", said, lines, definition, chosen, is_groups=True)


def _only(here: StepWindow, found: Ints) -> RolloutFilter | None:
    """Returns the filter of some rollouts; None for none, and for too many to list in an address."""
    said = exactly(found)
    return here.only(said) if said else None


def _twins(run: Run, here: StepWindow) -> list[FindingLine]:
    known, same = twins(run.rows)
    found = {name: spreads(values[known], same) for name, values in run.rows.values.items()}
    compared = np.logical_or.reduce([np.isfinite(spread) for spread in found.values()])
    if not compared.any():
        return [FindingLine("No prompt got the same completion twice, so there is nothing to compare.")]
    differs = np.logical_or.reduce([np.nan_to_num(spread) > SAME for spread in found.values()])
    place: Bools = np.zeros(len(run.rows), bool)
    place[np.flatnonzero(known)[differs]] = True
    whole = f"{compared.sum():,} rollouts have a duplicate: the same completion of the same prompt"
    if not differs.any():
        return [FindingLine(f"{whole}; all duplicates got the same score.")]
    share = float(differs.sum() / compared.sum())
    said = f"{whole}; {differs.sum():,} ({percent(share)}) were scored differently."
    return [FindingLine(said, _only(here, run.rows.id[place]))]


def _environment(run: Run, here: StepWindow) -> list[FindingLine]:
    compared = [it for name in run.rows.values if (it := against(run.rows, name)) is not None]
    lines = []
    for it in compared:
        what = "pairs within groups are in the opposite order" if it.is_pairs else "rollouts are judged differently"
        text = f"{it.name}: {percent(it.share)} of {it.compared:,} {what}."
        lines.append(FindingLine(text, _only(here, run.rows.id[it.odd])))
    return lines or [FindingLine("Too few rollouts have both rewards to compare.")]


def _fallen(run: Run, _: StepWindow) -> list[FindingLine]:
    found, light = windows(run), weightless(run.all)
    if found is None:
        return []
    if not light:
        return [FindingLine("Every reward function has weight, so none can fall unnoticed.")]
    before, after = found
    gain = rise(before.reward, after.reward)
    said = [f"Reward, last steps vs first: {figure(gain.before)} to {figure(gain.after)}."]
    for name in light:
        fall = rise(before.values[name], after.values[name])
        said.append(f"{name} (almost no weight): {figure(fall.before)} to {figure(fall.after)}.")
    return [FindingLine(text) for text in said]


def _length(run: Run, _: StepWindow) -> list[FindingLine]:
    r = correlation(run.rows)
    if not np.isfinite(r):
        return [FindingLine("The reward or the length does not vary within groups.")]
    return [FindingLine(f"Reward and tokens per turn: r = {figure(r)} within groups.")]


_FIGURES: Mapping[str, Callable[[Run, StepWindow], list[FindingLine]]] = {
    "inconsistent": _twins,
    "disagreement": _environment,
    "hacking": _fallen,
    "length": _length,
}
"""The figures of each check that did not fire."""
