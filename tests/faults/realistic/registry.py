"""All runs of the second shelf."""

from collections.abc import Iterable

import pytest

from tests.faults.realistic import Realistic, agents, questions, worlds
from tests.support import exhaustive

RUNS: tuple[Realistic, ...] = (*agents.RUNS, *questions.RUNS, *worlds.RUNS)

PAGES: tuple[Realistic, ...] = (agents.LONG,)
"""Runs for tests of pages; they are too small to be diagnosed."""

_FIRST = ("gsm8k-healthy", "gsm8k-drowned", "judge-length", "shaped-regressed", "mix-unscored")
"""Runs that every suite makes; they are made quickly. The others, as agents with tools, are made exhaustively."""


def of(runs: Iterable[Realistic], few: int = len(_FIRST)) -> pytest.MarkDecorator:
    """Return the parameters of a test: the runs, or a few of them."""
    ordered = sorted(runs, key=lambda run: run.id not in _FIRST)
    chosen = exhaustive.cases(ordered, min(max(sum(run.id in _FIRST for run in ordered), 1), few))
    return pytest.mark.parametrize("run", chosen, ids=lambda run: run.id)
