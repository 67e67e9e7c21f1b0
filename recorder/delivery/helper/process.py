"""Runs in the helper process, which writes what a training records, so that attribution, encoding, compression and SQL
take no time of the training's interpreter and core. It never runs the user's code. It ends with the training, once all
that it received is written, or it makes no more progress.

`client.py` is the other side. Messages are MessagePack lists; the first item names the kind. It receives, each
with the lengths of the frames that follow it, in bundles, as the last item,
    open      address, limits, True if it always spools, what it continues from: see `Handover`
    tokenizers  frames of them
    parcel    number, counts of what the training failed to record; frames of jobs
    counts    those counts
    hurry     True while the training may end at any time
    settle
and sends
    started   its number (PID): it can write now
    done      a parcel's number, failures in this process, changes dropped by it, the folder where entries wait, uids
              of the runs that go on
    log       level, text
    refused   why the database can never be written
    settled
    closed    why the database cannot be written now, the folder where entries wait
"""

import logging
import os
import queue
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Engine, event

from logs_ui.recorder.delivery.committer import Committer
from logs_ui.recorder.delivery.helper import pipe
from logs_ui.recorder.delivery.outlet import Counts, Handover
from logs_ui.recorder.delivery.wire.jobs import Wire
from logs_ui.recorder.errors import RefusedDatabaseError
from logs_ui.recorder.guard import guard
from logs_ui.recorder.storage.address import database_address
from logs_ui.recorder.storage.limits import Limits

_TICK = 0.2  # seconds
_NICENESS = 5  # the training goes first if there are too few cores
_STEPS = 100_000  # instructions of SQLite between two reports of progress: some milliseconds
_LEAST_PATIENCE = 2.0  # seconds without progress, once the training has ended


def main(descriptor: int) -> None:
    """Serve the training at the other end of a connection, until that ends."""
    for name in ("SIGINT", "SIGHUP", "SIGTERM"):  # they are meant for the training; this process ends after it
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    os.nice(_NICENESS)
    connection = Connection(descriptor)
    training = _Training(connection)
    logging.getLogger().addHandler(training)
    # The first message is always "open".
    _, *opening = pipe.received(connection)
    work = _Work(training, *opening)
    # Statements, and SQLite's own steps within one, count as progress: see `_give_up_without_progress`.
    event.listen(Engine, "connect", partial(_watch, work.go_on))
    event.listen(Engine, "after_cursor_execute", work.go_on)
    training.send("started", os.getpid())
    # A reader of the training's stderr would wait for this process's end.
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stderr.fileno())
    threading.Thread(target=work.listen, args=(connection,), name="logs-ui listener", daemon=True).start()
    work.do()
    os._exit(0)  # other threads may still run, but all is written


def _watch(go_on: Callable[[], None], connection: Any, _: Any) -> None:
    """Make SQLite report progress during a statement. PostgreSQL cannot: what takes it too long goes to the disk."""
    if isinstance(connection, sqlite3.Connection):
        connection.set_progress_handler(go_on, _STEPS)


class _Training(logging.Handler):
    """Sends messages and log records to the training. Does nothing once the training has ended."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(logging.WARNING)
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, *message: Any) -> None:
        with suppress(OSError), self._sending:
            self._connection.send_bytes(msgspec.msgpack.encode(message))

    def emit(self, record: logging.LogRecord) -> None:
        self.send("log", record.levelno, self.format(record))


class _Work:
    """Does what the training asks for, in order, in the main thread, while another thread listens."""

    def __init__(
        self, training: _Training, address: str, limits: list[Any], spools_always: bool, before: list[Any]  # noqa: FBT001
    ) -> None:  # fmt: skip
        self._training, self._limits = training, Limits(*limits)
        self._wire = Wire()
        handover = Handover(*before)
        self._counts = Counts(*handover.counted)  # of the training
        handover = handover._replace(counted=self._counts)
        self._writer = Committer(database_address(address), self._limits, spools_always=spools_always, before=handover)
        self._messages: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()
        self._progress = time.monotonic()  # when a parcel last came, or some of it was done, or the training ended
        self._refused = False

    def listen(self, connection: Connection) -> None:
        """Queue messages until the training sends no more, or ends."""
        # When the loop ends, the training has: what is queued is then written in a hurry, and None ends `do`.
        with suppress(EOFError, OSError):
            while message := pipe.received(connection):
                if message[0] == "hurry":  # at once, not after the messages that it is to hurry
                    self._writer.hurry(hurried=message[1])
                else:
                    self._progress = time.monotonic()
                    self._messages.put(message)
        self._writer.hurry(hurried=True)
        self._messages.put(None)
        self._progress = time.monotonic()
        self._give_up_without_progress()

    def do(self) -> None:
        """Handle all messages, and what is due now and then."""
        next_tick = 0.0
        goes_on = True
        while goes_on and not self._refused:
            # A message and the tick each have a guard of their own: the failure of one does not keep the other from its
            # turn.
            with guard("writing what was recorded"), suppress(queue.Empty), self._refusing():
                goes_on = self._do(self._messages.get(timeout=_TICK))
            if time.monotonic() >= next_tick:
                with guard("writing what was recorded"), self._refusing():
                    self._writer.tick(self._all_counts())
                next_tick = time.monotonic() + _TICK
        waiting = self._waiting
        self._writer.close()
        self._training.send("closed", self._writer.trouble, waiting)

    def _do(self, message: list[Any] | None) -> bool:
        """Handle one message; return True if more may come."""
        match message:
            case None:
                return False
            case ["tokenizers", *frames]:
                for frame in frames:
                    self._wire.job(frame)
            case ["settle"]:
                try:
                    self._writer.settle()
                finally:
                    self._training.send("settled")
            case ["counts", counts]:
                self._counts = Counts(*counts)
            case ["parcel", number, counts, *frames]:
                self._counts = Counts(*counts)
                self._writer.commit_frames(self._wire, number, self._each(frames), self._all_counts)
                self.go_on()
                dropped, alive = self._writer.dropped, self._writer.alive
                self._training.send("done", number, guard.errors, dropped, self._waiting, alive)
        return True

    def _each(self, frames: list[bytes]) -> Iterator[bytes]:
        for frame in frames:
            yield frame
            self.go_on()

    def go_on(self, *_: Any) -> None:
        """Note that there is progress."""
        self._progress = time.monotonic()

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except RefusedDatabaseError as error:
            self._refused = True
            self._training.send("refused", str(error))

    @property
    def _waiting(self) -> str | None:
        folder = self._writer.waiting
        return None if folder is None else str(folder)

    def _all_counts(self) -> Counts:
        """Return the training's counts, with the failures of this process added."""
        theirs = self._counts
        return theirs._replace(errors=theirs.errors + guard.errors, last=guard.last or theirs.last)

    def _give_up_without_progress(self) -> None:
        """End this process if neither database nor disk takes what is left."""
        patience = max(self._limits.end_seconds, _LEAST_PATIENCE)
        while time.monotonic() - self._progress < patience:
            time.sleep(_TICK)
        self._training.send("closed", self._writer.trouble or "it takes too long", self._waiting)
        os._exit(1)
