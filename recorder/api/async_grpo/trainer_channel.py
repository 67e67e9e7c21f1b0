"""What AsyncGRPO's trainer makes of the rollouts that its worker's process records: told by the trainer's process, and
written by the worker's, which alone writes the run.
"""

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

_QUEUED = 10_000  # messages; a worker that hears none any more does not fill the trainer's memory
_GATHERED = 1.0  # seconds of messages that are written together
_REMEMBERED = 10_000  # rows: more than any trainer has on its way
_LAST_WORDS = 5.0  # seconds that the end of the worker waits for what the trainer said last; TRL kills it after 15


@dataclass(frozen=True)
class _Described:
    columns: dict[str, Any]


@dataclass(frozen=True)
class _Logged:
    step: int
    values: dict[str, float]


@dataclass(frozen=True)
class _Taken:
    """A sample, and what became of it.

    Attributes:
        row: that it is of, without columns.
        staleness, dropped: see `trl_async.Listener`.
    """

    row: RowChange
    staleness: int
    dropped: str | None

    def then(self, later: "_Taken") -> "_Taken":
        """Of both samples, of one row: a rollout may be several."""
        return replace(self, staleness=max(self.staleness, later.staleness), dropped=later.dropped or self.dropped)

    @property
    def columns(self) -> dict[str, Any]:
        """Of the row."""
        return {"staleness": self.staleness} | ({"dropped": self.dropped} if self.dropped else {})


@dataclass(frozen=True)
class _Ended:
    """Training ended."""

    error: "_Error | None"


@dataclass(frozen=True)
class _Error:
    """An exception of the trainer's process, which this one may not know the class of.

    Attributes:
        is_error: whether it is an `Exception`, rather than an interrupt.
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
        """What to raise here."""
        bases = (TrainerRaised, Exception) if self.is_error else (TrainerRaised,)
        error: TrainerRaised = type(self.name, bases, {})(self.message)
        error.add_note(f"In the trainer's process:\n{self.trace}")
        return error


class TrainerChannel:
    """From the trainer's process to the worker's, which it is pickled to. Telling never waits."""

    def __init__(self) -> None:
        self._messages: multiprocessing.Queue[Any] = multiprocessing.get_context("spawn").Queue(_QUEUED)
        self._messages.cancel_join_thread()  # the trainer's process ends even if nobody listens

    def described(self, columns: dict[str, Any]) -> None:
        """See `trl_async.Listener`, as the others."""
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

    def heard(self) -> list[Any]:
        """All messages of about a second; in the worker's process."""
        until = time.monotonic() + _GATHERED
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
    """Base of what stands for the exception that ended the training, in the worker's process."""


class TrainerListener:
    """Writes what the trainer says, in a thread of the worker's process, while that is within.

    Raises:
        TrainerRaised: on leaving, where an exception ended the training: a class under the name of that exception, an
            Exception where that is one.
    """

    def __init__(self, channel: TrainerChannel, run: OpenRun, db: Address, columns: Mapping[str, Any]) -> None:
        """`columns` of the run stand above what the trainer says."""
        self._channel, self._run, self._columns = channel, run, columns
        self._writer = writer_for(db)
        self._taken: OrderedDict[str, _Taken] = OrderedDict()  # by uid of the row: a rollout may be several samples
        self._pending: dict[str, _Taken] = {}  # likewise; what is not written yet
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
            self._thread.join(_LAST_WORDS)
        self._left.set()
        if error is None and self._ended is not None and self._ended.error is not None:
            raise self._ended.error.raised()

    def _listen(self) -> None:
        while self._ended is None and not self._left.is_set():
            messages = self._channel.heard()
            for message in messages:
                with guard("recording what the trainer said"):
                    self._hear(message)
            with guard("recording what became of samples"):
                self._write_taken()
            ends = [message for message in messages if isinstance(message, _Ended)]
            self._ended = ends[0] if ends else None

    def _hear(self, message: object) -> None:
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
