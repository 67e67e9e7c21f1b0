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
    sentence: str
    lines: tuple[str, ...]  # the figures behind it
    definition: str  # the check, and the source of its threshold
    rollout_filter: RolloutFilter | None = None  # its rollouts; None if there are none, or no filter selects them
    is_groups: bool = False  # True if it is about the groups of these rollouts

    @property
    def icon(self) -> str:
        return {"found": "triangle-alert", "below": "check"}.get(self.state, "circle-help")

    @property
    def result(self) -> str:
        return "below threshold" if self.state == "below" else self.state.replace("_", " ")


def findings(diagnosis: Diagnosed, window: StepWindow) -> list[Finding]:
    """Run the checks on the window's rollouts; those that fired come first."""
    if not len(window.rows):
        return []
    scale = diagnosis.report.scale
    fall, part = waterfall(window.rows, scale), diagnosis.report.attributed
    run = Run(
        window.rows, diagnosis.rows, scale, fall, diagnosis.settings, diagnosis.config, finite(diagnosis.scalars), part
    )
    diagnostics = [diagnostic for name in _LOOKED_FOR for diagnostic in DIAGNOSTICS if diagnostic.id == name]
    results = [_finding(diagnostic, run, window) for diagnostic in diagnostics]
    if len(window.rows.parts) > 1:
        results.insert(1, _cancellation(window))
    return sorted(results, key=lambda finding: _STATES.index(finding.state))


def _finding(diagnostic: Diagnostic, run: Run, window: StepWindow) -> Finding:
    definition = f"{diagnostic.definition} Threshold: {diagnostic.source}."
    judgement = judge(diagnostic, run)
    if isinstance(judgement, Card):
        return Finding(
            diagnostic.name,
            "found",
            judgement.title,
            judgement.evidence,
            definition,
            _parse_filter(window, judgement.where),
        )
    sentence = f"Not recorded: {judgement.said}." if judgement.state == "not_recorded" else judgement.said
    return Finding(
        diagnostic.name,
        judgement.state,
        sentence,
        (),
        definition,
        _parse_filter(window, judgement.where) if judgement.where else None,
    )


def _parse_filter(window: StepWindow, where: str) -> RolloutFilter | None:
    """Parse a filter; None if it is too long for an address, or the language cannot express it, since a reward
    function may have any name.
    """
    try:
        return window.make_filter(where) if len(where) <= LONGEST else None
    except FilterError:
        return None


def _cancellation(window: StepWindow) -> Finding:
    """Report any group that cancels out; the diagnosis' card needs a tenth of them."""
    rows, groups = window.rows, cancels(window.rows)
    count, total = int(groups.sum()), len(groups)
    definition = "Groups in which reward functions differ between rollouts but their weighted sum does not."
    if not count:
        return Finding("Cancellation", "below", "", (f"None in {total:,} groups.",), definition)
    sentence = f"In {count:,} of {total:,} groups the reward functions differ but their weighted sum does not."
    first_rows = np.unique(rows.group, return_index=True)[1][groups]  # any rollout opens its group
    where = exactly(rows.id[first_rows])  # empty for too many to list in an address
    lines = ("All advantages of these groups are 0: the functions cancel out.",)
    rollout_filter = window.make_filter(where) if where else None
    return Finding("Cancellation", "found", sentence, lines, definition, rollout_filter, is_groups=True)
