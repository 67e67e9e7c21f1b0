"""Sends jobs to the helper process, keeps them until they are durable, and starts another one if it ends too early.

Runs in the training: most of it in the writer's thread, `_heard` in the listener's. `process.py` is the other
side, and lists the messages.
"""

import logging
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from typing import Any

import zstandard

from logs_ui.recorder.delivery.helper.spawn import HelperProcess
from logs_ui.recorder.delivery.job_queue import Job
from logs_ui.recorder.delivery.outlet import Counts, Handover
from logs_ui.recorder.delivery.wire.jobs import Wire
from logs_ui.recorder.errors import LogsUIError, RefusedDatabaseError
from logs_ui.recorder.guard import RAISE_VARIABLE, guard
from logs_ui.recorder.storage.address import Address, as_text
from logs_ui.recorder.storage.changes import EntryNumber
from logs_ui.recorder.storage.clock import now_us
from logs_ui.recorder.storage.limits import Limits
from logs_ui.recorder.storage.portable import IS_WINDOWS
from logs_ui.recorder.storage.spool.entry import Entry, Failures, encoded
from logs_ui.recorder.storage.spool.files import Spool, SpoolFullError, new_writer_name
from logs_ui.recorder.storage.spool_folder import spool_folder

logger = logging.getLogger("logs_ui")

_AT_ONCE = 2  # parcels under way: one is written while the next is made
_FAILURES = 2  # times that a helper process may end before it has written anything more

WRITER_VARIABLE = "LOGS_UI_WRITER"
"""`process` (the default): the helper process writes what is recorded; `thread`: a thread of the training does, which
slows the training down.
"""


def is_wanted() -> bool:
    """Return True if a helper process is to write. It is False also if this process's interpreter cannot be started
    again, as in a frozen program, or one that another program embeds, and on Windows, which has no fork. Raise
    LogsUIError if LOGS_UI_WRITER is neither `process` nor `thread`.
    """
    kind = os.environ.get(WRITER_VARIABLE) or "process"
    if kind not in {"process", "thread"}:
        raise LogsUIError(f"{WRITER_VARIABLE} is {kind[:60]!r}, where process (the default) or thread is needed.")
    can_start = "python" in Path(sys.executable or "").name.lower() and not getattr(sys, "frozen", False)
    return can_start and not IS_WINDOWS and kind == "process"


class SentParcel:
    """Implements `outlet.Parcel`: jobs as frames, see `Wire`, kept until they are durable."""

    def __init__(self, client: "HelperClient", wire: Wire) -> None:
        self.count = self.lost = 0  # about how many changes it has, and how many more cannot be sent
        self.number = 0  # from 1 on, in the order of sending; 0 before
        self.frames: list[bytes] = []
        self.counts = Counts()  # the training's, which were sent with it
        self.done: Callable[[int], None] = lambda _: None  # see `Parcel.write`
        self._client, self._wire = client, wire

    def add(self, job: Job) -> None:
        before = self._wire.refused
        frames, count = self._wire.frames(job)
        self.frames += frames
        self.count += count
        self.lost += self._wire.refused - before

    def close(self) -> int:
        return sum(map(len, self.frames))

    def write(self, counts: Counts, done: Callable[[int], None]) -> None:
        self.counts, self.done = counts, done
        self._client.send(self)


class HelperClient:
    """Implements `outlet.Outlet` by a helper process."""

    def __init__(self, address: Address, limits: Limits, *, spools_always: bool) -> None:
        """Start nothing."""
        self.handover = Handover(new_writer_name())  # the state that a replacement continues from
        self.is_hurried = False  # see `hurry`
        self.is_closed = False  # True if no more is sent, and what is not durable goes into the spool
        self.has_failed = False  # True if none can be started, or all is closed: the writer's thread does the rest
        self.outstanding: deque[SentParcel] = deque()  # sent, and not known to be durable, in order
        self.trouble: str | None = None  # why the database cannot be written now; None if no reason is known
        self.waiting: Path | None = None  # the folder in which entries wait for the database; None if none do
        self.dropped = 0  # number of changes that were handed over and will never be written
        self._spool = Spool(spool_folder(address), self.handover.name, limits.spool_bytes, 10**6)  # after any helper's
        self._opening = [as_text(address), list(astuple(limits)), spools_always]
        self._folder: Path | None = None  # relative paths are resolved here, even if the training changes its folder
        with suppress(OSError):  # it may have been deleted
            self._folder = Path.cwd()
        self._wire = Wire()
        self._number = 0  # of the last parcel
        self._counted = Counts()  # the counts that were last sent
        self._errors = 0  # failures that the present process has reported
        self._failures = 0  # see _FAILURES
        self._ended_at = (0, 0)  # the parcel at which the last process ended, and how many processes did there
        self._gave_up = False  # True if a parcel was given up since one was last written
        self._dropped_before = 0  # by the processes before
        self._refused: str | None = None
        self._process: HelperProcess | None = None
        self._condition = threading.Condition()

    @property
    def pid(self) -> int | None:
        """Return the PID of the helper process; None until it can write."""
        return None if self._process is None else self._process.pid

    def parcel(self) -> SentParcel:
        return SentParcel(self, self._wire)

    def send(self, parcel: SentParcel) -> None:
        """Send a closed parcel, and wait until no more than one other is on its way; not while hurried, since what
        has not been sent yet would end with the training. If the helper process has failed, the parcel stays
        `outstanding`. Raise as `Parcel.write`.
        """
        with self._condition:
            self._number += 1
            parcel.number = self._number
            self.outstanding.append(parcel)
        # A replacement is sent all outstanding parcels, this one included.
        self._counted = parcel.counts
        if not self._is_restarted():
            self._send("parcel", parcel.number, parcel.counts, frames=parcel.frames)
        while not self.has_failed and not self._waited_for_room():
            self._is_restarted()
        self._raise_refusal()
        self._put_on_disk()

    def tick(self, counts: Counts) -> None:
        """Replace a helper process that has ended, and report changed counts."""
        self._raise_refusal()
        self._put_on_disk()
        if self._process is None:
            return
        # While hurried, a process that has ended is replaced only if it has left something to write.
        if not self._process.is_running and (self.outstanding or not self.is_hurried):
            self._is_restarted()
        if counts != self._counted:
            self._counted = counts
            self._send("counts", counts)

    def hurry(self, *, hurried: bool) -> None:
        with self._condition:
            self.is_hurried = hurried
            self._condition.notify_all()
        if self._process is not None:
            self._process.send_soon("hurry", hurried)

    def settle(self, seconds: float) -> None:
        process = self._process
        if process is not None and process.is_running:
            process.is_settled = False
            process.send_soon("settle")
            with self._condition:
                self._condition.wait_for(lambda: process.is_settled or not process.is_running, seconds)

    def close(self, seconds: float) -> None:
        # From here on the writer's thread puts what is not durable on disk, see `_put_on_disk`.
        self.is_closed = self.has_failed = True  # it is not replaced
        process = self._process
        if process is not None:
            process.end_sending()
            with self._condition:
                self._condition.wait_for(lambda: not process.is_running, seconds)

    def abandon(self) -> Any:
        return self._process

    def tokenizers(self) -> list[bytes]:
        """Return frames of the tokenizers that were sent."""
        return self._wire.tokenizers()

    def _waited_for_room(self) -> bool:
        """Wait until another parcel may be made, and return True; return False if the process has ended before."""
        process = self._process

        def has_room() -> bool:
            return self._refused is not None or self.is_hurried or len(self.outstanding) < _AT_ONCE

        with self._condition:
            self._condition.wait_for(lambda: has_room() or process is None or not process.is_running)
            return has_room()

    def _is_restarted(self) -> bool:
        """Return True if a process was started now, and all outstanding parcels were sent to it."""
        while not self.has_failed and (self._process is None or not self._process.is_running):
            if self._process is not None:
                self._failures += 1
                if self._failures == 1:
                    logger.warning(
                        "logs-ui: the helper process that writes what is recorded%s has ended too early, for instance "
                        "because it was killed or memory ran out. Nothing is lost: another takes its place.",
                        "" if self.pid is None else f" ({self.pid})",
                    )
                self._give_up_what_ends_it()
            if self._failures > _FAILURES or not self._is_started():
                self.has_failed = True
                return False
            # The new process is sent all that the ended one may not have stored; tokenizers first, to which the parcels
            # refer.
            self._send("tokenizers", frames=self.tokenizers())
            for parcel in list(self.outstanding):
                self._send("parcel", parcel.number, parcel.counts, frames=parcel.frames)
            self._send("counts", self._counted)
            return True
        return False

    def _is_started(self) -> bool:
        self._errors, self._dropped_before = 0, self.dropped
        try:
            self._process = HelperProcess(self._heard, self._condition, self._folder)
        except OSError as error:
            logger.debug("logs-ui: the helper process does not start: %s", error)
            return False
        self._send("open", *self._opening, self.handover)
        self.handover = self.handover._replace(processes=self.handover.processes + 1)
        if self.is_hurried:
            self._send("hurry", True)
        return True

    def _send(self, *message: Any, frames: Sequence[bytes] = ()) -> None:
        if self._process is not None and not self.is_closed:
            self._process.send(message, frames)

    def _heard(self, message: list[Any]) -> None:
        """Run in the listener's thread, under the condition's lock."""
        match message:
            case ["done", number, errors, dropped, waiting, alive]:
                self._failures, self._gave_up = 0, False
                self.dropped = self._dropped_before + dropped
                self.waiting = None if waiting is None else Path(waiting)
                # They are counted on the run anyway; here they make our own tests fail.
                if os.environ.get(RAISE_VARIABLE) == "1":
                    guard.errors += errors - self._errors
                self._errors = errors
                # All parcels up to this number are durable: a replacement continues behind them, with what was counted
                # by then.
                while self.outstanding and self.outstanding[0].number <= number:
                    parcel = self.outstanding.popleft()
                    self.handover = self.handover._replace(number=parcel.number, counted=parcel.counts, alive=alive)
                    parcel.done(parcel.lost)
            case ["refused", why]:
                self._refused = why
            case ["closed", trouble, waiting]:
                self.trouble, self.waiting = trouble, None if waiting is None else Path(waiting)
        # This process may have put parcels on disk itself, which the helper process does not know.
        if self._spool:
            self.waiting = self._spool.folder

    def _put_on_disk(self) -> None:
        """Put outstanding parcels into the spool. By its number, one that is written meanwhile is stored once only."""
        for parcel in list(self.outstanding) if self.is_closed else ():
            (errors, dropped, last), counted = parcel.counts, self.handover.counted
            failures = (Failures("", errors - counted.errors, dropped - counted.dropped, last),)
            number, frames = EntryNumber(parcel.number), (*self.tokenizers(), *parcel.frames)
            entry = Entry(number, now_us(), failures=failures, frames=frames)
            try:
                self._spool.append(number, zstandard.compress(encoded(entry)[0], 1))
            except (OSError, SpoolFullError) as error:
                why = str(error) or "LOGS_UI_SPOOL_MB is reached"
                self.trouble = self.trouble or f"{self._spool.folder} takes no more: {why}."
                return
            # On disk the parcel is as durable as if the helper process had written it.
            with self._condition:
                self._heard(["done", parcel.number, self._errors, self.dropped - self._dropped_before, None, []])
        if self._spool and self._process is not None and self._process.is_running and self.pid is not None:
            with suppress(ProcessLookupError):  # it may have ended by itself since
                os.kill(self.pid, signal.SIGKILL)  # what it has is on disk, and waits for the end of its lock

    def _raise_refusal(self) -> None:
        if self._refused is not None:
            raise RefusedDatabaseError(self._refused)

    def _give_up_what_ends_it(self) -> None:
        """Drop the parcel at which helper processes end again and again, as it crashes compiled code: it must not be
        tried in the training itself. Not if no parcel was written yet, nor for a second one: then the parcel is not
        the cause.
        """
        if self.pid is None or not self.outstanding:
            return
        number, times = self._ended_at
        parcel = self.outstanding[0]
        self._ended_at = parcel.number, times + 1 if number == parcel.number else 1
        if self._ended_at[1] <= _FAILURES or self._gave_up or not self.handover.number:
            return
        self.outstanding.popleft()
        self._failures, self._gave_up = 0, True
        lost = parcel.count + parcel.lost
        times = self._ended_at[1]
        message = (
            f"{lost} recorded changes were given up: the helper process ended {times} times while it was writing them"
        )
        guard.caught("writing what was recorded", LogsUIError(message))
        parcel.done(lost)
