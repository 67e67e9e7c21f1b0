"""Finds recorded settings that have one value at each step, and another from some step on."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from logs_ui.recorder.diagnosis.rollout_rows import Rows, ends

_MOST = 3  # times in a run: a column that changes more often is no setting [ours]


class Switch(NamedTuple):
    """Describes a setting that changes."""

    step: int  # the first one with the other value
    name: str  # as a filter has it
    before: str
    after: str


def list_switches(rows: Rows, labels: Mapping[str, Sequence[str | None]]) -> Iterator[Switch]:
    """Yield the changes of those `labels`, see `Run.labels`, that are settings. Rollouts without a value are left out.
    Yield nothing for a run with a single group at each step: there, each column has one value at each step.
    """
    if len(rows.groups.size) < 2 * len(rows.steps):
        return
    place = np.searchsorted(rows.steps, rows.step)
    for name, values in labels.items():
        codes = {value: code for code, value in enumerate({value for value in values if value is not None})}
        if not 2 <= len(codes) <= _MOST + 1:
            continue
        low, high = ends(
            place, np.array([np.nan if value is None else codes[value] for value in values]), len(rows.steps)
        )
        is_known, texts = np.isfinite(low), list(codes)
        steps, low, high = rows.steps[is_known], low[is_known], high[is_known]
        changes = np.flatnonzero(np.diff(low))
        if (low == high).all() and len(changes) <= _MOST:
            for at in changes.tolist():
                yield Switch(int(steps[at + 1]), name, texts[int(low[at])], texts[int(low[at + 1])])
