"""Sends what AsyncGRPO's trainer does with its rollouts to the worker's process, which alone writes the run."""

import multiprocessing
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from logs_ui.recorder.api.run_record import ChangesJob
from logs_ui.recorder.api.start_run import OpenRun
from logs_ui.recorder.delivery.writer import writer_for
from logs_ui.recorder.guard import guard
from logs_ui.recorder.snapshot import error_line, trace
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.changes import RowChange, RunChange

_QUEUED = 10_000  # messages: a worker that reads no more does not fill the trainer's memory
_GATHER_SECONDS = 1.0  # messages of this time are written together
_REMEMBERED = 10_000  # rows: more than any trainer has in flight
_LAST_MESSAGES_SECONDS = 5.0  # the end of the worker waits for the trainer's last messages; TRL kills it after 15


@dataclass(frozen=True)
class _Described:
    columns: dict[str, Any]


@dataclass(frozen=True)
class _Logged:
    step: int
    values: dict[str, float]


@dataclass(frozen=True)
class _Taken:
    """A sample that the trainer took or dropped.

    Attributes:
        row: The row that the sample is of, without columns.
        staleness, dropped: See `trl_async.Listener`.
    """

    row: RowChange
    staleness: int
    dropped: str | None

    def then(self, later: "_Taken") -> "_Taken":
        """Merge this and a later sample of the same row: a rollout may be several samples."""
        return replace(self, staleness=max(self.staleness, later.staleness), dropped=later.dropped or self.dropped)

    @property
    def columns(self) -> dict[str, Any]:
        """The columns to change in the row."""
        return {"staleness": self.staleness} | ({"dropped": self.dropped} if self.dropped else {})


@dataclass(frozen=True)
class _Ended:
    """Says that the training ended."""

    error: "_Error | None"


@dataclass(frozen=True)
class _Error:
    """An exception of the trainer's process, as text: its class may not be importable in the worker's.

    Attributes:
        is_error: True if it is an `Exception`, and not an interrupt.
    """

    name: str
    message: str
    trace: str
    is_error: bool

    @classmethod
    def of(cls, error: BaseException) -> "_Error":
        name = type(error).__name__
        message = error_line(error).removeprefix(name).removeprefix(": ")
        return cls(name, message, trace(error), isinstance(error, Exception))

    def raised(self) -> "TrainerRaised":
        """Return the exception to raise in the worker's process."""
        bases = (TrainerRaised, Exception) if self.is_error else (TrainerRaised,)
        error: TrainerRaised = type(self.name, bases, {})(self.message)
        error.add_note(f"In the trainer's process:\n{self.trace}")
        return error


class TrainerChannel:
    """A queue from the trainer's process to the worker's, which it is pickled to. Sending never waits."""

    def __init__(self) -> None:
        self._messages: multiprocessing.Queue[Any] = multiprocessing.get_context("spawn").Queue(_QUEUED)
        self._messages.cancel_join_thread()  # the trainer's process ends even if nobody reads the queue

    def described(self, columns: dict[str, Any]) -> None:
        """Send columns of the run. `trl_async.Listener` describes this and the other methods."""
        self._put(_Described(columns))

    def logged(self, step: int, values: Mapping[str, Any]) -> None:
        numbers = {
            str(name): float(value)
            for name, value in values.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        self._put(_Logged(step, numbers))

    def taken(self, row: RowChange, staleness: int, dropped: str | None) -> None:
        self._put(_Taken(row, staleness, dropped))

    def ended(self, error: BaseException | None) -> None:
        self._put(_Ended(None if error is None else _Error.of(error)))

    def received(self) -> list[Any]:
        """Return all messages of about a second. Called in the worker's process."""
        until = time.monotonic() + _GATHER_SECONDS
        messages: list[Any] = []
        while (left := until - time.monotonic()) > 0:
            try:
                messages.append(self._messages.get(timeout=left))
            except queue.Empty:
                break
            if isinstance(messages[-1], _Ended):
                break
        return messages

    def _put(self, message: object) -> None:
        try:
            self._messages.put_nowait(message)
        except queue.Full:
            return


class TrainerRaised(BaseException):
    """Base class of the exception that is raised in the worker's process for one that ended the training."""


class TrainerListener:
    """Writes what the trainer sends, in a thread of the worker's process, as long as its `with` block runs.

    Raises:
        TrainerRaised: at the end of the block if an exception ended the training. Its class has the name of that
            exception, and is an `Exception` if that was one.
    """

    def __init__(self, channel: TrainerChannel, run: OpenRun, db: Address, columns: Mapping[str, Any]) -> None:
        """`columns` are the worker's columns of the run; they override the trainer's."""
        self._channel, self._run, self._columns = channel, run, columns
        self._writer = writer_for(db)
        self._taken: OrderedDict[str, _Taken] = OrderedDict()  # by uid of the row: a rollout may be several samples
        self._pending: dict[str, _Taken] = {}  # those that are not written yet, by uid of the row
        self._ended: _Ended | None = None
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="logs-ui trainer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._thread.join(_LAST_MESSAGES_SECONDS)
        self._left.set()
        if error is None and self._ended is not None and self._ended.error is not None:
            raise self._ended.error.raised()

    def _listen(self) -> None:
        while self._ended is None and not self._left.is_set():
            messages = self._channel.received()
            for message in messages:
                with guard("recording what the trainer sent"):
                    self._receive(message)
            with guard("recording which samples the trainer took"):
                self._write_taken()
            ends = [message for message in messages if isinstance(message, _Ended)]
            self._ended = ends[0] if ends else None

    def _receive(self, message: object) -> None:
        match message:
            case _Described(columns):
                config = {**columns["config"], **self._columns["config"]}
                columns = {**columns, **self._columns, "config": config}
                self._writer.put(ChangesJob(lambda: [RunChange(self._run.id, columns)], len(str(columns))))
            case _Logged(step, values):
                self._run.log(step, values)
            case _Taken(row):
                before = self._taken.pop(row.uid, None)
                self._taken[row.uid] = self._pending[row.uid] = message if before is None else before.then(message)
            case _:
                pass

    def _write_taken(self) -> None:
        if not self._pending:
            return
        changes = [replace(taken.row, columns=taken.columns) for taken in self._pending.values()]
        self._pending = {}
        while len(self._taken) > _REMEMBERED:
            self._taken.popitem(last=False)
        self._writer.put(ChangesJob(lambda: changes))
