"""Sends what AsyncGRPO's trainer does with its rollouts to the worker's process, which alone writes the run."""

import multiprocessing
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self

from logs_ui.recorder.api.run_record import ChangesJob, numbers
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
class _Error:
    """Holds the trainer's exception as text: its class may not be importable in the worker's process."""

    name: str
    message: str
    trace: str
    is_error: bool  # an `Exception`, and not an interrupt

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
        """Send columns of `Run`, when training begins."""
        self._put("described", columns)

    def logged(self, step: int, values: Mapping[str, Any]) -> None:
        """Send what the trainer logs at a step."""
        # Plain values: the worker's process may lack the class of another one, and could not read the message.
        self._put("logged", step, numbers(values))

    def taken(self, row: RowChange, staleness: int, dropped: str | None) -> None:
        """Send that the trainer took a sample of a row from the worker's queue. `staleness` are the versions by which
        its policy was ahead of the sample's. `dropped` is "stale" or "oversize", or None if it is trained on. A sample
        that is dropped as oversize is sent twice, first with None.
        """
        self._put("taken", row, staleness, dropped)

    def ended(self, error: BaseException | None) -> None:
        """Send that the worker is about to be stopped; `error` is the exception that caused it, or None."""
        self._put("ended", None if error is None else _Error.of(error))

    def received(self) -> list[tuple[Any, ...]]:
        """Return all messages of about a second: their kind, then what was sent. Called in the worker's process."""
        deadline = time.monotonic() + _GATHER_SECONDS
        messages: list[tuple[Any, ...]] = []
        while (left := deadline - time.monotonic()) > 0:
            try:
                messages.append(self._messages.get(timeout=left))
            except queue.Empty:
                break
            if messages[-1][0] == "ended":
                break
        return messages

    def _put(self, *message: object) -> None:
        with suppress(queue.Full):
            self._messages.put_nowait(message)


class TrainerRaised(BaseException):
    """Base class of the exception that is raised in the worker's process for one that ended the training."""


class TrainerListener:
    """Writes what the trainer sends, in a thread of the worker's process, as long as its `with` block runs. At the end
    of the block it raises TrainerRaised if an exception ended the training: its class has the name of that exception,
    and is an `Exception` if that was one.
    """

    def __init__(self, channel: TrainerChannel, run: OpenRun, db: Address, columns: Mapping[str, Any]) -> None:
        """`columns` are the worker's columns of the run; they override the trainer's."""
        self._channel, self._run, self._columns = channel, run, columns
        self._writer = writer_for(db)
        # By uid of the row, since a rollout may be several samples: the row, the largest staleness, and `dropped`.
        self._taken: OrderedDict[str, tuple[RowChange, int, str | None]] = OrderedDict()
        self._pending: set[str] = set()  # uids of the rows that are not written yet
        self._has_ended = False
        self._error: _Error | None = None
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="logs-ui trainer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self._thread.join(_LAST_MESSAGES_SECONDS)
        self._left.set()
        if error is None and self._error is not None:
            raise self._error.raised()

    def _listen(self) -> None:
        while not self._has_ended and not self._left.is_set():
            messages = self._channel.received()
            for message in messages:
                with guard("recording what the trainer sent"):
                    self._receive(*message)
            with guard("recording which samples the trainer took"):
                self._write_taken()
            self._has_ended = messages[-1:] != [] and messages[-1][0] == "ended"

    def _receive(self, kind: str, *sent: Any) -> None:
        match (kind, *sent):
            case ("described", columns):
                config = {**columns["config"], **self._columns["config"]}
                columns = {**columns, **self._columns, "config": config}
                self._writer.put(ChangesJob(lambda: [RunChange(self._run.id, columns)], len(str(columns))))
            case ("logged", step, values):
                self._run.log(step, values)
            case ("taken", row, staleness, dropped):
                # The row is removed and added again, so that the row that was heard of last is forgotten last.
                _, before, dropped_before = self._taken.pop(row.uid, (row, staleness, None))
                self._taken[row.uid] = row, max(before, staleness), dropped or dropped_before
                self._pending.add(row.uid)
            case ("ended", error):
                self._error = error

    def _write_taken(self) -> None:
        if not self._pending:
            return
        samples = [self._taken[uid] for uid in self._pending]
        changes = [
            replace(row, columns={"staleness": staleness} | ({"dropped": dropped} if dropped else {}))
            for row, staleness, dropped in samples
        ]
        self._pending = set()
        while len(self._taken) > _REMEMBERED:
            self._taken.popitem(last=False)
        self._writer.put(ChangesJob(lambda: changes))
