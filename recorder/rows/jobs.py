"""Defines the jobs of a rollout function call: one for each moment of its life at which something is to be written.

A job is made in the training, and only holds recorded data. `changes.py` turns it into changes where rows are
written. A training with a helper process does not load that file, nor attribution, parsing and packing.
"""

from collections.abc import Mapping
from math import isfinite, isnan, nan
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import replace

from logs_ui.recorder.capture.calls import CallRecords
from logs_ui.recorder.capture.rollout_output import Output
from logs_ui.recorder.rows.rollout_call import RolloutCall
from logs_ui.recorder.rows.task_names import prompt_task
from logs_ui.recorder.snapshot import error_line, trace
from logs_ui.recorder.storage.clock import now_us
from logs_ui.recorder.vocabulary import Status, StopReason

_TEXT_DROPPED = "logs-ui dropped its text: what waited to be written took too much memory"
_ERROR_SHOWN = 200  # characters of a row's own error that are kept before _TEXT_DROPPED
_HEADER_BYTES = 500  # measured
_COLUMN_BYTES = 100  # measured
_QUICK_BYTES = 1 << 20  # of JSON that is parsed in the caller's thread: some milliseconds
_REWARDS = ("env_reward", "reward", "rewards", "eval_score")


class RowsJob(Struct, array_like=True, eq=False):
    """Describes a job about the rows of one call; `changes.changes_of` turns it into changes."""

    call: RolloutCall

    def plain(self) -> Self:
        """Return a copy that MessagePack can encode; here without texts and calls."""
        return replace(self, call=self.call.carrying(CallRecords(), texts=False))

    def without_payload(self) -> Any:
        """Return what is written if the job's text has no room in the queue; here the job itself, which has none."""
        return self


class EndedJob(RowsJob):
    """A job of rows whose rollout function has returned or raised."""

    def plain(self) -> Self:
        return replace(self, call=self.call.carrying(self.call.calls.plain()))


class RunningJob(RowsJob, tag="running"):
    """Rows while the function runs; attribution is provisional. Writes nothing if the function has returned by then:
    the next job covers it. The first time it only announces that the rows exist, since most rows end before there is
    more to write; but not if the user's `edit` has to see them first.
    """

    are_there: bool = False  # True once the rows were announced

    @property
    def size(self) -> int:
        """Return a small number: the running function keeps the calls alive, not this job."""
        return 1_000

    @property
    def is_over(self) -> bool:
        return self.call.settled

    def only_announces(self) -> bool:
        """Return True if only the rows' existence is to be written now. Call it once for each writing."""
        first, self.are_there = not self.are_there, True
        return first and self.call.options.edit is None

    def plain(self) -> "RunningJob":
        if self.only_announces():
            return RunningJob(super().plain().call)
        return RunningJob(self.call.carrying(self.call.so_far().plain()), are_there=True)


class ReturnedJob(EndedJob, tag="returned"):
    """Rows whose rollout function returned, at `returned` (µs since the epoch), an output that the trainer accepts. If
    reward functions called something, the rows are written once more, with those calls.
    """

    output: Output
    returned: int
    scoring: CallRecords | None = None  # calls of reward functions; None the first time
    functions: dict[int, str] = {}  # their names, by the strand that each ran in
    completions: bytes = b"[]"  # JSON of the (N) completions, as they got them

    @property
    def size(self) -> int:
        scored = 0 if self.scoring is None else self.scoring.size + len(self.completions)
        return self.output.size + self.call.size + scored

    def plain(self) -> "ReturnedJob":
        plain = super().plain()
        return plain if self.scoring is None else replace(plain, scoring=self.scoring.plain())

    def without_payload(self) -> "HeaderJob | ColumnsJob":
        """Keep their token counts, their own rewards, and when they returned."""
        if self.scoring is not None:  # they are written already
            self.call.drop_text()
            return ColumnsJob(self.call, [{} for _ in self.call.prompts])
        rows = range(len(self.call.prompts))
        return HeaderJob.of(self.call, [_header(self.output, index, {"returned": self.returned}) for index in rows])


class FinishedJob(EndedJob, tag="finished"):
    """A rollout of an explicit run (`start_run`) that came to its end."""

    output: Output | None  # its tokens, if they were reported
    metadata: bytes  # JSON
    ended: dict[str, Any]  # the columns about its end that the user reported
    returned: int

    @property
    def size(self) -> int:
        return self.call.size + len(self.metadata) + (self.output.size if self.output else 0)

    def without_payload(self) -> "HeaderJob":
        """Keep its token counts and its end."""
        return HeaderJob.of(self.call, [_header(self.output, 0, {**self.ended, "returned": self.returned})])


class FailedJob(EndedJob, tag="failed"):
    """Rows whose rollout function raised, or returned an output that the trainer does not accept."""

    error: str
    trace: str | None
    status: Status
    returned: int
    metadata: bytes = b"{}"  # JSON, of a rollout of an explicit run

    @classmethod
    def of(cls, call: RolloutCall, error: BaseException, metadata: bytes = b"{}") -> "FailedJob":
        """Make the job of an exception. An interrupt aborts the rows; any other exception is their error."""
        status = Status.ERROR if isinstance(error, Exception) else Status.ABORTED
        return cls(call, error_line(error), trace(error), status, now_us(), metadata)

    @property
    def size(self) -> int:
        return len(self.trace or "") + len(self.metadata) + self.call.size

    def without_payload(self) -> "HeaderJob":
        """Keep their error, its traceback, and when it happened."""
        error = f"{self.error[:_ERROR_SHOWN]} ({_TEXT_DROPPED})"
        headers = [self.ended(index) | {"error": error} for index in range(len(self.call.prompts))]
        return HeaderJob.of(self.call, headers, self.trace)

    def ended(self, index: int) -> dict[str, Any]:
        """Return the columns of row `index` about its end."""
        return {
            "returned": self.returned,
            "status": self.status,
            "error": self.error,
            "stop_reason": StopReason.EXCEPTION if self.status == Status.ERROR else StopReason.ABORTED,
            "task": self.call.tasks[index] or prompt_task(self.call.prompts[index]),
        }


class HeaderJob(RowsJob, tag="header"):
    """Rows that ended, and whose text had no room in the queue: the (N) rows' columns that are known without it, and
    the traceback of what ended them; None if they returned.
    """

    headers: list[dict[str, Any]]
    trace: str | None = None

    @classmethod
    def of(cls, call: RolloutCall, headers: list[dict[str, Any]], trace: str | None = None) -> "HeaderJob":
        """Make the job, and release the call's text."""
        call.drop_text()
        return cls(call, headers, trace)

    def plain(self) -> "HeaderJob":
        return replace(self, call=self.call.carrying(CallRecords()))

    @property
    def size(self) -> int:
        return self.call.size + _HEADER_BYTES * len(self.headers) + len(self.trace or "")


class ColumnsJob(RowsJob, tag="columns"):
    """The (N) rows' columns that are known only later: rewards, advantages."""

    columns: list[dict[str, Any]]

    @property
    def size(self) -> int:
        return sum(2 * _COLUMN_BYTES + _COLUMN_BYTES * len(columns) for columns in self.columns)


def rollout_reward(extras: Mapping[str, Any]) -> float | None:
    """Return the reward that the function itself returned, under any of its usual names; None if there is none."""
    for name in _REWARDS:
        value = extras.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return None


def reward_columns(
    reward: float | None, rewards: Mapping[str, float | None] | None, weights: Mapping[str, float]
) -> dict[str, Any]:
    """Return the columns of a row's total `reward`, or else of the weighted sum of `rewards`, as TRL adds them up: of
    those that are neither None nor NaN. What is not finite is no reward, and is among the `odd_rewards`.
    """
    numbers = {name: float(value) for name, value in (rewards or {}).items() if value is not None}
    odd = {name: str(value) for name, value in numbers.items() if not isfinite(value)}
    if reward is not None and not isfinite(reward) and str(reward) not in odd.values():
        odd["reward"] = str(reward)
    weighted = [value * weights.get(name, 1.0) for name, value in numbers.items()]
    counted = [value for value in weighted if not isnan(value)]
    total = reward if reward is not None else sum(counted) if counted else nan
    columns: dict[str, Any] = {"reward": float(total) if isfinite(total) else None}
    if rewards is not None:
        columns["rewards"] = {name: numbers[name] if name in numbers and name not in odd else None for name in rewards}
        columns["reward_weights"] = {name: weights.get(name, 1.0) for name in rewards}
    return {**columns, "odd_rewards": odd or None}


def _header(output: Output | None, index: int, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of row `index` without its text: `columns`, and those that are quickly read from `output`."""
    header: dict[str, Any] = {"error": _TEXT_DROPPED, **columns}
    if output is not None:
        header |= output.lengths(index)
        if len(output.others) <= _QUICK_BYTES:
            header["rollout_reward"] = rollout_reward(output.extras(index))
    return header
