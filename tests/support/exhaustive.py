"""Decides how many cases the tests try that could try many: patterns, seeds and generated values.

`python -m pytest` tries a few of each, `python -m pytest --exhaustive` (`make exhaustive`) all, and runs the tests that
are marked `exhaustive`, too. conftest.py calls `configure` before the first test module is imported, so that parameters
and decorators can use these functions.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import settings

_One = TypeVar("_One")
_is_exhaustive = False

settings.register_profile("quick", max_examples=25, deadline=None)
settings.register_profile("exhaustive", max_examples=200, deadline=None)


def configure(*, exhaustive: bool) -> None:
    """Chooses between a few cases and all, for this process."""
    global _is_exhaustive  # noqa: PLW0603 - one choice for a whole test run
    _is_exhaustive = exhaustive
    settings.load_profile("exhaustive" if exhaustive else "quick")


def examples(number: int) -> int:
    """Return how many examples hypothesis makes where it makes `number` exhaustively: a fifth, but not under ten."""
    return number if _is_exhaustive else min(number, max(10, number // 5))


def cases(every: Sequence[_One], few: int) -> Sequence[_One]:
    """Return the first `few` of these, or all of them."""
    return every if _is_exhaustive else every[:few]


def marked_cases(every: Sequence[Any], few: int, more: int) -> list[Any]:
    """Return the values of a parameter: the first `few` of these, and `more` that are marked `exhaustive`, or all."""
    mark = pytest.mark.exhaustive
    last = few + more
    return [*every[:few], *(pytest.param(case, marks=mark) for case in every[few:last]), *cases(every[last:], 0)]
