"""The steps that a page of the diagnosis covers: the last ones, as in its cards, or all."""

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from logs_ui.recorder.analysis.diagnose import Diagnosed
from logs_ui.recorder.diagnosis.rollout_rows import Rows
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, check_word, parse_where
from logs_ui.recorder.vocabulary import Mode

LAST, ALL = "last", "all"

Figure = TypeVar("Figure")
_known: "WeakKeyDictionary[Rows, dict[Hashable, Any]]" = WeakKeyDictionary()
_lock = threading.Lock()


def kept(known: Diagnosed, what: Hashable, make: Callable[[], Figure]) -> Figure:
    """Caches what `make` returns for the same rollouts and settings. It must not contain addresses, which depend on the
    request.
    """
    key = (what, repr(known.settings))
    with _lock:
        of_rows = _known.setdefault(known.rows, {})
    if key not in of_rows:
        of_rows[key] = make()
    figure: Figure = of_rows[key]
    return figure


@dataclass(frozen=True)
class StepWindow:
    """Some steps of a run, and the rollouts that ended in them.

    Attributes:
        first, last: None for a run without rollouts.
        is_all: True if they are all of its steps.
        choice: (title, address, is chosen) of each option; empty without a choice.
        sample: see `Report.sample`.
    """

    rows: Rows
    mode: Mode
    first: int | None
    last: int | None
    is_all: bool
    choice: tuple[tuple[str, str, bool], ...]
    sample: str | None = None

    @property
    def said(self) -> str:
        if self.first is None or self.last is None:
            return "no steps"
        return f"step {self.last:,}" if self.first == self.last else f"steps {self.first:,}\u2013{self.last:,}"

    def only(self, where: str = "") -> RolloutFilter:
        """Returns the filter that selects the window's rollouts that match `where`; steps in `where` replace the
        window's.

        Raises:
            FilterError: `where` cannot be read.
        """
        is_open = self.first is None or "step:" in where
        steps = [] if is_open else [f"step:{self.first}..{self.last}"]
        return parse_where(" ".join([where, f"mode:{self.mode}", *steps]))


def window(diagnosed: Diagnosed, mode: Mode, wanted: str, address: Callable[[str], str]) -> StepWindow:
    """Returns the window asked for.

    Args:
        diagnosed: the diagnosis.
        mode: of its rollouts.
        wanted: "", `last` or `all`.
        address: returns the page's address for each of them.

    Raises:
        FilterError: `wanted` is none of these.
    """
    check_word("steps", "steps", wanted or LAST, (LAST, ALL))
    rows, looked_at, sample = diagnosed.rows, diagnosed.report.steps, diagnosed.report.sample
    if looked_at is None:
        return StepWindow(rows, mode, None, None, is_all=True, choice=(), sample=sample)
    first, last = int(rows.steps[0]), int(rows.steps[-1])
    if looked_at[0] <= first:
        return StepWindow(rows, mode, first, last, is_all=True, choice=(), sample=sample)
    is_all = wanted == ALL
    count = int((rows.steps >= looked_at[0]).sum())
    choice = ((f"last {count} steps", address(""), not is_all), ("all steps", address(ALL), is_all))
    if is_all:
        return StepWindow(rows, mode, first, last, is_all=True, choice=choice, sample=sample)
    last_rows = kept(diagnosed, ("window", looked_at), lambda: rows.where(rows.step >= looked_at[0]))
    return StepWindow(last_rows, mode, *looked_at, is_all=False, choice=choice, sample=sample)
