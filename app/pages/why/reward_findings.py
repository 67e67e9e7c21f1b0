"""What can be wrong between reward functions: each thing that is looked for, found or not, with its figures."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from logs_ui.app.pages.why.why_window import Window
from logs_ui.recorder.analysis.diagnose import Diagnosed
from logs_ui.recorder.diagnosis import DIAGNOSTICS, Diagnostic, waterfall
from logs_ui.recorder.diagnosis.card import Run
from logs_ui.recorder.diagnosis.checks.disagreement import against
from logs_ui.recorder.diagnosis.checks.hacking import weightless
from logs_ui.recorder.diagnosis.checks.inconsistent import spreads, twins
from logs_ui.recorder.diagnosis.checks.length import correlation
from logs_ui.recorder.diagnosis.checks.reward_functions import cancels
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Ints
from logs_ui.recorder.diagnosis.tables.training_outcome import exactly
from logs_ui.recorder.diagnosis.windows import rise, windows
from logs_ui.recorder.diagnosis.wording import figure, percent
from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter

_LOOKED_FOR = ("reward_parts", "inconsistent", "disagreement", "hacking", "constant_reward", "length")


@dataclass(frozen=True)
class Said:
    """A sentence; `chosen`: the rollouts that it is of, None where there are none, or no filter says which."""

    text: str
    chosen: RolloutFilter | None = None


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for.

    Attributes:
        name: as a heading.
        state: `found`, `fine`, or `unknown` where what it needs was not recorded.
        said: what was found, in a line.
        lines: the figures that this rests on.
        definition: what was looked for, and whose threshold it is.
        chosen: its rollouts; None where there are none, or no filter says which.
        is_groups: whether it is about the groups that they are in.
    """

    name: str
    state: str
    said: str
    lines: tuple[Said, ...]
    definition: str
    chosen: RolloutFilter | None = None
    is_groups: bool = False


def findings(known: Diagnosed, here: Window) -> list[Finding]:
    """Of the window's rollouts; what was found stands first."""
    if not len(here.rows):
        return []
    scale = known.report.scale
    run = Run(here.rows, known.rows, scale, waterfall(here.rows, scale), known.settings, known.config, known.scalars)
    wanted = [it for name in _LOOKED_FOR for it in DIAGNOSTICS if it.id == name]
    found = [_finding(it, run, here) for it in wanted]
    if len(here.rows.parts) > 1:
        found.insert(1, _cancellation(here))
    return sorted(found, key=lambda it: ("found", "fine", "unknown").index(it.state))


def _finding(it: Diagnostic, run: Run, here: Window) -> Finding:
    definition = f"{it.definition} Threshold: {it.source}."
    lacks = it.missing(run)
    if lacks is not None:
        return Finding(it.name, "unknown", f"Not recorded, or not there: {lacks}.", (), definition)
    card = it.look(run)
    if card is not None:
        evidence = tuple(map(Said, card.evidence))
        return Finding(it.name, "found", card.title, evidence, definition, _read(here, card.where))
    make = _FIGURES.get(it.id)
    lines = tuple(make(run, here)) if make else ()
    return Finding(it.name, "fine", "" if lines else "Nothing found.", lines, definition)


def _read(here: Window, where: str) -> RolloutFilter | None:
    """None of what the language does not know: a reward function may be called anything."""
    try:
        return here.only(where)
    except FilterError:
        return None


def _cancellation(here: Window) -> Finding:
    """Any group is shown; its card waits for a tenth of them."""
    rows, groups = here.rows, cancels(here.rows)
    count, total = int(groups.sum()), len(groups)
    definition = "Groups in which reward functions differ between rollouts, and their weighted sum does not."
    if not count:
        return Finding("Cancellation", "fine", "", (Said(f"In none of {total:,} groups."),), definition)
    said = f"In {count:,} of {total:,} groups reward functions differ, and their sum does not."
    first = np.unique(rows.group, return_index=True)[1][groups]  # any rollout opens its group
    chosen = _only(here, rows.id[first])
    lines = (Said("Every advantage is 0 there: what one function takes, another gives back."),)
    return Finding("Cancellation", "found", said, lines, definition, chosen, is_groups=True)


def _only(here: Window, found: Ints) -> RolloutFilter | None:
    """None of none, and of so many that no address holds them."""
    said = exactly(found)
    return here.only(said) if said else None


def _twins(run: Run, here: Window) -> list[Said]:
    known, same = twins(run.rows)
    found = {name: spreads(values[known], same) for name, values in run.rows.values.items()}
    compared = np.logical_or.reduce([np.isfinite(spread) for spread in found.values()])
    if not compared.any():
        return [Said("No completion was given twice to the same prompt: there is nothing to compare.")]
    differs = np.logical_or.reduce([np.nan_to_num(spread) > SAME for spread in found.values()])
    place: Bools = np.zeros(len(run.rows), bool)
    place[np.flatnonzero(known)[differs]] = True
    whole = f"{compared.sum():,} rollouts have a twin, the same answer to the same prompt"
    if not differs.any():
        return [Said(f"{whole}; all were scored like it.")]
    share = float(differs.sum() / compared.sum())
    said = f"{whole}; {differs.sum():,} of them ({percent(share)}) were scored differently."
    return [Said(said, _only(here, run.rows.id[place]))]


def _environment(run: Run, here: Window) -> list[Said]:
    held = [it for name in run.rows.values if (it := against(run.rows, name)) is not None]
    said = []
    for it in held:
        what = "pairs of a group are in opposite order" if it.is_pairs else "rollouts are judged differently"
        text = f"{it.name}: {percent(it.share)} of {it.compared:,} {what}."
        said.append(Said(text, _only(here, run.rows.id[it.odd])))
    return said or [Said("Too few rollouts have both to compare.")]


def _fallen(run: Run, _: Window) -> list[Said]:
    found, light = windows(run), weightless(run.all)
    if found is None:
        return []
    if not light:
        return [Said("Every reward function counts: none can fall without the reward.")]
    before, after = found
    gain = rise(before.reward, after.reward)
    said = [f"The reward went from {figure(gain.before)} to {figure(gain.after)}, first steps against last."]
    for name in light:
        fall = rise(before.values[name], after.values[name])
        said.append(f"{name}, which hardly counts, from {figure(fall.before)} to {figure(fall.after)}.")
    return [Said(text) for text in said]


def _length(run: Run, _: Window) -> list[Said]:
    r = correlation(run.rows)
    if not np.isfinite(r):
        return [Said("Either does not vary within groups.")]
    return [Said(f"Reward and tokens a turn: r = {figure(r)} within groups.")]


_FIGURES: Mapping[str, Callable[[Run, Window], list[Said]]] = {
    "inconsistent": _twins,
    "disagreement": _environment,
    "hacking": _fallen,
    "length": _length,
}
"""What each says where nothing is wrong."""
