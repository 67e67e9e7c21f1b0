"""Defines the jobs of a rollout function call: one for each moment of its life at which something is to be written.

A job is made in the training and only holds what was seen. What becomes of it, `row_changes.py` makes where rows are
written: that file, and attribution, parsing and packing behind it, are not loaded in a training that has a helper
process.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct
from msgspec.structs import replace

from logs_ui.recorder.capture.calls import CallRecords
from logs_ui.recorder.capture.rollout_output import Output
from logs_ui.recorder.rows.rollout_call import RolloutCall
from logs_ui.recorder.rows.task_names import prompt_task
from logs_ui.recorder.snapshot import error_line, trace
from logs_ui.recorder.storage.changes import Change
from logs_ui.recorder.storage.clock import now_us
from logs_ui.recorder.vocabulary import Status, StopReason

if TYPE_CHECKING:
    from logs_ui.recorder.rows.packing import RowDraft

_TEXT_DROPPED = "logs-ui dropped its text: what waited to be written took too much memory"
_ERROR_SHOWN = 200  # characters of a row's own error, beside that
_HEADER_BYTES = 500  # measured
_COLUMN_BYTES = 100  # measured
_QUICK_BYTES = 1 << 20  # of JSON that is read on the caller's thread: some milliseconds
_REWARDS = ("env_reward", "reward", "rewards", "eval_score")


class RowsJob(Struct, array_like=True, eq=False):
    """A job that is about the rows of one call."""

    call: RolloutCall

    def changes(self) -> "Iterable[Change | RowDraft]":
        """Make what is to be written. Loads what makes rows, on first use."""
        from logs_ui.recorder.rows.row_changes import changes_of

        return changes_of(self)

    def plain(self) -> Self:
        """A copy of which MessagePack takes every value; here without texts and calls."""
        return replace(self, call=self.call.carrying(CallRecords(), texts=False))


class EndedJob(RowsJob):
    """A job of rows whose rollout function has returned or raised."""

    def plain(self) -> Self:
        return replace(self, call=self.call.carrying(self.call.calls.plain()))


class RunningJob(RowsJob, tag="running"):
    """Rows while the function runs; which calls are whose is provisional. Writes nothing if the function has returned
    by then: the next job covers it. The first time it only says that the rows exist, since most rows end before there
    is more to say; but not if the user's `edit` has to see them first.

    Attributes:
        are_there: True once that was written.
    """

    are_there: bool = False

    @property
    def size(self) -> int:
        """The calls are kept alive by the function that runs, not by this."""
        return 1_000

    def without_payload(self) -> "RunningJob":
        """Return itself."""
        return self

    @property
    def is_over(self) -> bool:
        """True once the function has returned."""
        return self.call.settled

    def only_announces(self) -> bool:
        """True if nothing but the rows' existence is to be written now; call it once for each writing."""
        first, self.are_there = not self.are_there, True
        return first and self.call.options.edit is None

    def plain(self) -> "RunningJob":
        if self.only_announces():
            return RunningJob(super().plain().call)
        return RunningJob(self.call.carrying(self.call.so_far().plain()), are_there=True)


class ReturnedJob(EndedJob, tag="returned"):
    """Rows whose rollout function returned something that the trainer can take.

    Attributes:
        returned: when, in µs since 1970.
    """

    output: Output
    returned: int

    @property
    def size(self) -> int:
        return self.output.size + self.call.size

    def without_payload(self) -> "HeaderJob":
        """Keep their token counts, their own rewards, and when they returned."""
        rows = range(len(self.call.prompts))
        return HeaderJob.of(self.call, [_header(self.output, i, {"returned": self.returned}) for i in rows])


class FinishedJob(EndedJob, tag="finished"):
    """A rollout of an explicit run (`start_run`) that came to its end.

    Attributes:
        output: its tokens; None if nobody reported them.
        metadata: JSON.
        ended: columns of its end, as the user reported it.
    """

    output: Output | None
    metadata: bytes
    ended: dict[str, Any]
    returned: int

    @property
    def size(self) -> int:
        return self.call.size + len(self.metadata) + (self.output.size if self.output else 0)

    def without_payload(self) -> "HeaderJob":
        """Keep its token counts and its end."""
        return HeaderJob.of(self.call, [_header(self.output, 0, {**self.ended, "returned": self.returned})])


class FailedJob(EndedJob, tag="failed"):
    """Rows whose rollout function raised, or returned what the trainer cannot take."""

    error: str
    trace: str | None
    status: Status
    returned: int

    @classmethod
    def of(cls, call: RolloutCall, error: BaseException) -> "FailedJob":
        """An interrupt aborts the rows; any other exception is their error."""
        status = Status.ERROR if isinstance(error, Exception) else Status.ABORTED
        return cls(call, error_line(error), trace(error), status, now_us())

    @property
    def size(self) -> int:
        return len(self.trace or "") + self.call.size

    def without_payload(self) -> "HeaderJob":
        """Keep their error, its traceback, and when it happened."""
        error = f"{self.error[:_ERROR_SHOWN]} ({_TEXT_DROPPED})"
        headers = [self.ended(i) | {"error": error} for i in range(len(self.call.prompts))]
        return HeaderJob.of(self.call, headers, self.trace)

    def ended(self, i: int) -> dict[str, Any]:
        """Columns of row `i` that tell how it ended."""
        return {
            "returned": self.returned,
            "status": self.status,
            "error": self.error,
            "stop_reason": StopReason.EXCEPTION if self.status == Status.ERROR else StopReason.ABORTED,
            "task": self.call.tasks[i] or prompt_task(self.call.prompts[i]),
        }


class HeaderJob(RowsJob, tag="header"):
    """Rows that ended, and whose text had no room to wait: their columns, as far as these are known without it.

    Attributes:
        headers: (N) columns of each row.
        trace: the traceback of what ended them; None if they returned.
    """

    headers: list[dict[str, Any]]
    trace: str | None = None

    @classmethod
    def of(cls, call: RolloutCall, headers: list[dict[str, Any]], trace: str | None = None) -> "HeaderJob":
        """Releases the call's text."""
        call.drop_text()
        return cls(call, headers, trace)

    def plain(self) -> "HeaderJob":
        return replace(self, call=self.call.carrying(CallRecords()))

    @property
    def size(self) -> int:
        return self.call.size + _HEADER_BYTES * len(self.headers) + len(self.trace or "")

    def without_payload(self) -> "HeaderJob":
        """Return itself."""
        return self


class ColumnsJob(RowsJob, tag="columns"):
    """Figures that came later: rewards, advantages.

    Attributes:
        columns: (N) of each row.
    """

    columns: list[dict[str, Any]]

    @property
    def size(self) -> int:
        return sum(2 * _COLUMN_BYTES + _COLUMN_BYTES * len(columns) for columns in self.columns)

    def without_payload(self) -> "ColumnsJob":
        """Return itself."""
        return self


def rollout_reward(extras: Mapping[str, Any]) -> float | None:
    """The reward that the function itself returned. TRL's and OpenEnv's examples call it env_reward, Eval Protocol
    eval_score.
    """
    for name in _REWARDS:
        value = extras.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return None


def _header(output: Output | None, i: int, known: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of row `i` without its text: what is found quickly in `output`, and what is known."""
    header: dict[str, Any] = {"error": _TEXT_DROPPED, **known}
    if output is not None:
        header |= output.lengths(i)
        if len(output.others) <= _QUICK_BYTES:
            header["rollout_reward"] = rollout_reward(output.extras(i))
    return header
