"""Checks the reward functions on one page: each one's result, with its figures."""

from typing import NamedTuple

import numpy as np

from logs_ui.app.pages.why.tab import StepWindow
from logs_ui.app.web.urls import LONGEST
from logs_ui.recorder.analysis.diagnose import Diagnosed
from logs_ui.recorder.diagnosis import DIAGNOSTICS, Card, Diagnostic, waterfall
from logs_ui.recorder.diagnosis.card import Run, finite
from logs_ui.recorder.diagnosis.checks.reward_functions import cancels
from logs_ui.recorder.diagnosis.links import exactly
from logs_ui.recorder.diagnosis.run_checks import judge
from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter

_LOOKED_FOR = ("reward_parts", "inconsistent", "disagreement", "hacking", "constant_reward", "proxy", "length")
_STATES = ("found", "below", "not_judged", "not_recorded")


class Finding(NamedTuple):
    """Holds the result of one check."""

    name: str
    state: str  # `found`, or a state of `Checked`
    said: str
    lines: tuple[str, ...]  # the figures behind it
    definition: str  # the check, and the source of its threshold
    chosen: RolloutFilter | None = None  # its rollouts; None if there are none, or no filter selects them
    is_groups: bool = False  # True if it is about the groups of these rollouts

    @property
    def icon(self) -> str:
        return {"found": "triangle-alert", "below": "check"}.get(self.state, "circle-help")

    @property
    def result(self) -> str:
        return "below threshold" if self.state == "below" else self.state.replace("_", " ")


def findings(known: Diagnosed, here: StepWindow) -> list[Finding]:
    """Run the checks on the window's rollouts; those that fired come first."""
    if not len(here.rows):
        return []
    scale = known.report.scale
    fall, part = waterfall(here.rows, scale), known.report.attributed
    run = Run(here.rows, known.rows, scale, fall, known.settings, known.config, finite(known.scalars), part)
    wanted = [it for name in _LOOKED_FOR for it in DIAGNOSTICS if it.id == name]
    found = [_finding(it, run, here) for it in wanted]
    if len(here.rows.parts) > 1:
        found.insert(1, _cancellation(here))
    return sorted(found, key=lambda it: _STATES.index(it.state))


def _finding(it: Diagnostic, run: Run, here: StepWindow) -> Finding:
    definition = f"{it.definition} Threshold: {it.source}."
    found = judge(it, run)
    if isinstance(found, Card):
        return Finding(it.name, "found", found.title, found.evidence, definition, _read(here, found.where))
    said = f"Not recorded: {found.said}." if found.state == "not_recorded" else found.said
    return Finding(it.name, found.state, said, (), definition, _read(here, found.where) if found.where else None)


def _read(here: StepWindow, where: str) -> RolloutFilter | None:
    """Parse a filter; None if it is too long for an address, or the language cannot express it, since a reward
    function may have any name.
    """
    try:
        return here.only(where) if len(where) <= LONGEST else None
    except FilterError:
        return None


def _cancellation(here: StepWindow) -> Finding:
    """Report any group that cancels out; the diagnosis' card needs a tenth of them."""
    rows, groups = here.rows, cancels(here.rows)
    count, total = int(groups.sum()), len(groups)
    definition = "Groups in which reward functions differ between rollouts but their weighted sum does not."
    if not count:
        return Finding("Cancellation", "below", "", (f"None in {total:,} groups.",), definition)
    said = f"In {count:,} of {total:,} groups the reward functions differ but their weighted sum does not."
    first = np.unique(rows.group, return_index=True)[1][groups]  # any rollout opens its group
    where = exactly(rows.id[first])  # empty for too many to list in an address
    lines = ("All advantages of these groups are 0: the functions cancel out.",)
    chosen = here.only(where) if where else None
    return Finding("Cancellation", "found", said, lines, definition, chosen, is_groups=True)
