"""Every SELECT. Connections come from `database.py`; pages, pandas and the command line read through here alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine

from logs_ui.recorder.filters import RolloutFilter
from logs_ui.recorder.models import EvaluationRow, Run, Scalar, StepStatistics
from logs_ui.recorder.payload import Tokens

COUNT_CAP = 10_000
"""Counts stop here (`Count.exact` is then False): at a million rows an exact one takes 260 ms, a capped one 1.5."""

DIED_AFTER_US = 60_000_000
"""A running run without a sign of life for this long is shown as died; the writer gives one every 5 s."""


@dataclass(frozen=True)
class RunSummary:
    """A run as the list of runs shows it.

    Attributes:
        state: `running`, `finished`, `failed` or `died`.
        rollouts: how many there are; over all modes.
        steps: highest step seen; 0 before the first.
        reward: mean over the last 10 train steps that have one, weighted by rollouts; None where none has.
        reward_curve: one (step, mean reward) for each train step that has one, thinned to at most 120 points.
        truncated, errors: shares of all rollouts, 0 to 1; None without rollouts.
    """

    run: Run
    state: str
    rollouts: int
    steps: int
    reward: float | None
    reward_curve: tuple[tuple[int, float], ...]
    truncated: float | None
    errors: float | None
    eval_names: tuple[str, ...]


@dataclass(frozen=True)
class Count:
    """How many rows; at least `value` where not exact."""

    value: int
    exact: bool


@dataclass(frozen=True)
class Cursor:
    """Where a page ended: the sort key and the id of its last row. `key` is None for rows that lack the key: they come last."""

    key: float | int | None
    id: int


@dataclass(frozen=True)
class Page:
    """Some rows in order, and where the next begins (None at the end)."""

    rows: list[EvaluationRow]
    next: Cursor | None


@dataclass(frozen=True)
class Facets:
    """How many rows each value would give under the other parts of the filter; (value, count), known order first.

    `tasks` holds the 50 most frequent.
    """

    evals: list[tuple[str, int]]
    modes: list[tuple[str, int]]
    statuses: list[tuple[str, int]]
    stop_reasons: list[tuple[str, int]]
    tasks: list[tuple[str, int]]


@dataclass(frozen=True)
class Histogram:
    """Rewards in bins of equal width: `counts[i]` of [low + i*width, low + (i+1)*width), the last one closed."""

    low: float
    width: float
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Rollout:
    """One row with all that was recorded of it.

    Attributes:
        messages: OpenAI's chat form: role, content, optionally reasoning_content, tool_calls, name.
        actions: dicts of turn, text, action, observation, reward, done, metadata, seconds, error. Turn 0 is the reset.
        sampling: parameters of its generations.
        metadata: what else is known (attribution, traceback, extra fields of the rollout function, ...).
        tokens: None before it returned.
    """

    row: EvaluationRow
    messages: list[dict[str, Any]]
    actions: list[dict[str, Any]]
    sampling: dict[str, Any]
    metadata: dict[str, Any]
    tokens: Tokens | None


@dataclass(frozen=True)
class Neighbours:
    """A rollout's place within a filter's order: ids of the one before and after (None at the ends), `position` from 1
    (None where the rollout is not in the filter, or beyond COUNT_CAP), and the count."""

    previous: int | None
    next: int | None
    position: int | None
    count: Count


def all_runs(engine: Engine) -> list[RunSummary]:
    """Newest first."""
    raise NotImplementedError


def find_run(engine: Engine, name: str) -> Run:
    """By uid, a unique prefix of one, a name (the newest of that name), or `latest`. In that order.

    Raises:
        RunNotFoundError: none, or several by prefix; names the nearest.
    """
    raise NotImplementedError


def run_summary(engine: Engine, run_id: int) -> RunSummary:
    raise NotImplementedError


def known_values(engine: Engine, run_id: int) -> dict[str, list[str]]:
    """The run's distinct `eval` and `task` values (a loose index scan: never a DISTINCT over all rows)."""
    raise NotImplementedError


def page(engine: Engine, run_id: int, filter: RolloutFilter, *, after: Cursor | None = None, limit: int = 50) -> Page:  # noqa: A002
    """Keyset paging on (sort key, id); rows without the sort key come last, by id."""
    raise NotImplementedError


def count(engine: Engine, run_id: int, filter: RolloutFilter) -> Count:  # noqa: A002
    raise NotImplementedError


def mean_reward(engine: Engine, run_id: int, filter: RolloutFilter) -> float | None:  # noqa: A002
    raise NotImplementedError


def facets(engine: Engine, run_id: int, filter: RolloutFilter) -> Facets:  # noqa: A002
    raise NotImplementedError


def reward_histogram(engine: Engine, run_id: int, filter: RolloutFilter, bins: int = 24) -> Histogram | None:  # noqa: A002
    """Under the filter less its reward range; None where no row has a reward. The bins span the run's own rewards."""
    raise NotImplementedError


def rollout(engine: Engine, run_id: int, row_id: int) -> Rollout:
    """Raises RolloutNotFoundError."""
    raise NotImplementedError


def neighbours(engine: Engine, run_id: int, filter: RolloutFilter, row: EvaluationRow) -> Neighbours:  # noqa: A002
    raise NotImplementedError


def group_of(engine: Engine, row: EvaluationRow) -> list[EvaluationRow]:
    """All rows of its group, by generation."""
    raise NotImplementedError


def last_change(engine: Engine, run_id: int) -> int:
    """The run's `changed`: when it has not moved, nothing has. One look-up by primary key."""
    raise NotImplementedError


def new_since(engine: Engine, run_id: int, filter: RolloutFilter, row_id: int) -> Count:  # noqa: A002
    """How many rows of the filter have a higher id."""
    raise NotImplementedError


def step_statistics(engine: Engine, run_id: int) -> list[StepStatistics]:
    """By mode, eval, step."""
    raise NotImplementedError


def scalars(engine: Engine, run_id: int) -> list[Scalar]:
    """By name, step."""
    raise NotImplementedError


def rollouts(engine: Engine, run_id: int, filter: RolloutFilter, *, chunk: int = 500) -> Iterator[list[Rollout]]:  # noqa: A002
    """All of them, oldest first, in short reads of `chunk` rows: a long one would pin the write-ahead log."""
    raise NotImplementedError


