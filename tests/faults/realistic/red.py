"""Names the statements about realistic runs that are still false, so that the tests of the others can run."""

from collections.abc import Iterable

import pytest

from tests.faults.realistic import Realistic

RED: dict[str, dict[str, tuple[str, ...]]] = {}
"""Ids of runs, by test (its name without `test_`) and by what will mend them. Remove what passes."""


def of(test: str, runs: Iterable[Realistic]) -> pytest.MarkDecorator:
    """Return the parameters of a test: runs. Those that still fail are expected to."""
    red = {name: f"issue: {item}" for item, names in RED.get(test, {}).items() for name in names}
    marks = {name: pytest.mark.xfail(strict=True, reason=reason) for name, reason in red.items()}
    given = [pytest.param(run, id=run.id, marks=marks.get(run.id, ())) for run in runs]
    return pytest.mark.parametrize("run", given)
