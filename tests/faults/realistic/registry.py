"""All runs of the second shelf."""

from collections.abc import Iterable, Sequence

import pytest

from tests.faults.realistic import Realistic, agents, questions, worlds
from tests.support import exhaustive

RUNS: tuple[Realistic, ...] = (*agents.RUNS, *questions.RUNS, *worlds.RUNS)

PAGES: tuple[Realistic, ...] = (agents.LONG,)
"""Runs for tests of pages; they are too small to be diagnosed."""

_FIRST = ("shaped-regressed", "vlm-healthy", "judge-length", "mix-unscored")
"""Runs that every suite records; that takes little. The others, as agents with tools, are recorded exhaustively."""
_LARGE = ("coding", "web")
"""Kinds that take a second to generate: they are judged exhaustively."""


def each(runs: Iterable[Realistic]) -> pytest.MarkDecorator:
    """Return the parameters of a test that judges runs from columns: six, and all but large ones marked."""
    ordered = sorted(runs, key=lambda run: run.kind in _LARGE)
    small = max(sum(run.kind not in _LARGE for run in ordered), 1)
    return _parameters(exhaustive.marked_cases(ordered, 6, max(small - 6, 0)))


def of(runs: Iterable[Realistic], few: int = len(_FIRST)) -> pytest.MarkDecorator:
    """Return the parameters of a test that reads recorded runs: a few."""
    ordered = sorted(runs, key=lambda run: _FIRST.index(run.id) if run.id in _FIRST else len(_FIRST))
    return _parameters(exhaustive.cases(ordered, min(max(sum(run.id in _FIRST for run in ordered), 1), few)))


def _parameters(runs: Sequence[Realistic]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("run", runs, ids=lambda run: run.id)
