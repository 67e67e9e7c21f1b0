"""The training's side of the process that writes what it recorded (`helper_process.py`): sends it what was seen, keeps
that until it is durable, and starts another in its place.
"""

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from typing import Any, NamedTuple

from logs_ui.recorder.delivery.committer import Before, Counts
from logs_ui.recorder.delivery.helper.spawn import ProcessBeside
from logs_ui.recorder.delivery.job_queue import Job
from logs_ui.recorder.delivery.wire.wire_jobs import Wire
from logs_ui.recorder.errors import LogsUIError, RefusedDatabaseError
from logs_ui.recorder.guard import RAISE_VARIABLE, guard
from logs_ui.recorder.storage.address import Address, as_text
from logs_ui.recorder.storage.limits import Limits
from logs_ui.recorder.storage.spool.spool_files import new_writer_name

logger = logging.getLogger("logs_ui")

_AT_ONCE = 2  # parcels under way: one is written while the next is made
_FAILURES = 2  # times that it may end before it has written anything more

WRITER_VARIABLE = "LOGS_UI_WRITER"
"""`process`, as by default: what is recorded is written by a process beside the training; `thread`: by one of its
threads, which slows it down.
"""


def is_wanted() -> bool:
    """Whether such a process is to write. Not where this process's interpreter cannot be started once more, as one that
    a program was frozen with, or that another program runs within itself.

    Raises:
        LogsUIError: LOGS_UI_WRITER is neither `process` nor `thread`.
    """
    given = os.environ.get(WRITER_VARIABLE) or "process"
    if given not in {"process", "thread"}:
        raise LogsUIError(f"{WRITER_VARIABLE} is {given[:60]!r}, where process (the default) or thread is needed.")
    can_start = "python" in Path(sys.executable or "").name.lower() and not getattr(sys, "frozen", False)
    return can_start and given == "process"


class Frames:
    """Jobs that are sent together, and written in one transaction.

    Attributes:
        count: changes in them, about.
        lost: further ones that cannot be sent.
        frames: see `Wire`.
    """

    def __init__(self, wire: Wire) -> None:
        self.count = self.lost = 0
        self.frames: list[bytes] = []
        self._wire = wire

    def add(self, job: Job) -> None:
        """All of its changes or none, where it cannot be sent."""
        before = self._wire.refused
        frames, count = self._wire.frames(job)
        self.frames += frames
        self.count += count
        self.lost += self._wire.refused - before

    def close(self) -> int:
        """Returns how many bytes it keeps alive from now on."""
        return sum(map(len, self.frames))


class Sent(NamedTuple):
    """What is not known to be durable yet.

    Attributes:
        number: of the parcel, from 1 on.
        parcel: it.
        counts: that went with it.
        done: to be called once it is, with how many changes of it are not.
    """

    number: int
    parcel: Frames
    counts: Counts
    done: Callable[[int], None]


class Helper:
    """Of one process, for one database. `parcel`, `write` and `tick` are for the writer's thread, the rest for any.

    Attributes:
        before: what whoever takes the process's place goes on from.
        is_hurried: see `hurry`.
        has_failed: whether it cannot be had: then others must write what is `outstanding`.
        outstanding: what was sent and is not durable yet, in order.
        trouble: why the database cannot be written; None where it can, as far as is known.
        waiting: where entries wait on disk for the database; None where none do.
        dropped: changes that it, and those before it, could not write.
    """

    def __init__(self, address: Address, limits: Limits, *, spools_always: bool) -> None:
        """Starts nothing."""
        self.before = Before(new_writer_name(), 0, 0, Counts(0, 0, None), [])
        self.is_hurried = False
        self.has_failed = False
        self.outstanding: deque[Sent] = deque()
        self.trouble: str | None = None
        self.waiting: Path | None = None
        self.dropped = 0
        self._opening = [as_text(address), list(astuple(limits)), spools_always]
        self._limits = limits
        self._folder: Path | None = None  # of relative paths, wherever the training goes
        with suppress(OSError):  # it may have been deleted
            self._folder = Path.cwd()
        self._wire = Wire()
        self._number = 0  # of the last parcel
        self._told = Counts(0, 0, None)
        self._errors = 0  # in the process that runs now
        self._failures = 0  # see _FAILURES
        self._ended_at = (0, 0)  # number of the parcel that it was at when it last ended, and how many times it was
        self._gave_up = False  # a parcel, since one was last written
        self._dropped_before = 0  # by the processes before
        self._refused: str | None = None
        self._process: ProcessBeside | None = None
        self._condition = threading.Condition()

    @property
    def pid(self) -> int | None:
        """Of the process; None until it can write."""
        return None if self._process is None else self._process.pid

    def parcel(self) -> Frames:
        """For jobs to be written next."""
        return Frames(self._wire)

    def write(self, parcel: Frames, counts: Counts, done: Callable[[int], None]) -> None:
        """Sends it; waits until there is no more than one other on its way, unless the training may end at any time:
        what is here then ends with it. Where the process has failed, what is sent stays `outstanding`.

        Args:
            parcel: closed.
            counts: of the training's process.
            done: called, mostly in another thread, once it is durable, or what of it can be: with how many changes are
                lost beside those that are `dropped`.

        Raises:
            RefusedDatabaseError: the database can never be written.
        """
        with self._condition:
            self._number += 1
            self.outstanding.append(Sent(self._number, parcel, counts, done))
        self._told = counts
        if not self._is_restarted():
            self._send("parcel", self._number, counts, frames=parcel.frames)
        while not self.has_failed and not self._waited_for(lambda: self.is_hurried or len(self.outstanding) < _AT_ONCE):
            self._is_restarted()
        self._raise_refusal()

    def tick(self, counts: Counts) -> None:
        """What is due now and then: another process in the place of one that ended.

        Raises:
            RefusedDatabaseError: as `write`.
        """
        self._raise_refusal()
        if self._process is None:
            return
        if not self._process.is_running and (self.outstanding or not self.is_hurried):
            self._is_restarted()
        if counts != self._told:
            self._told = counts
            self._send("counts", counts)

    def hurry(self, *, hurried: bool) -> None:
        """While the training may end at any time, what cannot be written goes to the disk at once."""
        with self._condition:
            self.is_hurried = hurried
            self._condition.notify_all()
        if self._process is not None:
            self._process.send_soon("hurry", hurried)

    def settle(self, seconds: float) -> None:
        """Waits until all that is committed is in the database's file, so long at most."""
        process = self._process
        if process is not None and process.is_running:
            process.is_settled = False
            process.send_soon("settle")
            with self._condition:
                self._condition.wait_for(lambda: process.is_settled or not process.is_running, seconds)

    def close(self, seconds: float) -> bool:
        """Lets the process end; returns whether it has, after so many seconds. It goes on by itself otherwise."""
        process = self._process
        if process is None:
            return True
        self.is_hurried = True  # no other takes its place but for what is outstanding
        process.send_soon("close")
        with self._condition:
            self._condition.wait_for(lambda: not process.is_running, seconds)
        return not process.is_running

    def abandon(self) -> Any:
        """In a child, after a fork: the process is the parent's. Returns what must be kept, and never be used."""
        return self._process

    def tokenizers(self) -> list[bytes]:
        """Frames of those that were sent."""
        return self._wire.tokenizers()

    def _waited_for(self, is_so: Callable[[], bool]) -> bool:
        """Whether it is, and not only that the process has ended."""
        process = self._process
        with self._condition:
            self._condition.wait_for(
                lambda: is_so() or self._refused is not None or process is None or not process.is_running
            )
            return is_so() or self._refused is not None

    def _is_restarted(self) -> bool:
        """Whether the process was started now, anew or at all, and was sent all that is outstanding."""
        while not self.has_failed and (self._process is None or not self._process.is_running):
            if self._process is not None:
                self._failures += 1
                self._say_ended()
                self._give_up_what_ends_it()
            if self._failures > _FAILURES or not self._is_started():
                self.has_failed = True
                return False
            self._send("tokenizers", frames=self.tokenizers())
            for sent in list(self.outstanding):
                self._send("parcel", sent.number, sent.counts, frames=sent.parcel.frames)
            self._send("counts", self._told)
            return True
        return False

    def _is_started(self) -> bool:
        self._errors, self._dropped_before = 0, self.dropped
        try:
            self._process = ProcessBeside(self._heard, self._condition, self._folder)
        except OSError as error:
            logger.debug("logs-ui: the process that is to write what is recorded does not start: %s", error)
            return False
        self._send("open", *self._opening, list(self.before))
        self.before = self.before._replace(processes=self.before.processes + 1)
        if self.is_hurried:
            self._send("hurry", True)
        return True

    def _send(self, *message: Any, frames: Sequence[bytes] = ()) -> None:
        if self._process is not None:
            self._process.send(message, frames)

    def _heard(self, message: list[Any]) -> None:
        """In the listener's thread, under the condition's lock."""
        match message:
            case ["done", number, errors, dropped, waiting, alive]:
                self._failures, self._gave_up = 0, False
                self.dropped = self._dropped_before + dropped
                self.waiting = None if waiting is None else Path(waiting)
                self._note_errors(errors)
                while self.outstanding and self.outstanding[0].number <= number:
                    sent = self.outstanding.popleft()
                    self.before = self.before._replace(number=sent.number, told=sent.counts, alive=alive)
                    sent.done(sent.parcel.lost)
            case ["refused", why]:
                self._refused = why
            case ["closed", trouble, waiting]:
                self.trouble, self.waiting = trouble, None if waiting is None else Path(waiting)

    def _note_errors(self, errors: int) -> None:
        """They are counted on the run there, and fail the project's own tests here."""
        if os.environ.get(RAISE_VARIABLE) == "1":
            guard.errors += errors - self._errors
        self._errors = errors

    def _raise_refusal(self) -> None:
        if self._refused is not None:
            raise RefusedDatabaseError(self._refused)

    def _say_ended(self) -> None:
        if self._failures <= 1:
            logger.warning(
                "logs-ui: the process that writes what is recorded%s has ended before its time, as where it is killed "
                "or memory runs out. Nothing is lost: another takes its place.",
                "" if self.pid is None else f" ({self.pid})",
            )

    def _give_up_what_ends_it(self) -> None:
        """Again and again, as what crashes compiled code does: that must not be tried in the training itself. Not where
        no parcel was written yet, nor a second one: then it is no parcel that ends the process.
        """
        if self.pid is None or not self.outstanding:
            return
        number, times = self._ended_at
        at = self.outstanding[0]
        self._ended_at = at.number, times + 1 if number == at.number else 1
        if self._ended_at[1] <= _FAILURES or self._gave_up or not self.before.number:
            return
        self.outstanding.popleft()
        self._failures, self._gave_up = 0, True
        lost = at.parcel.count + at.parcel.lost
        guard.caught(
            "writing what was recorded",
            _EndsProcessError(
                f"{lost} recorded changes were given up: the process that was to write them ended {self._ended_at[1]} "
                "times while it was at them"
            ),
        )
        at.done(lost)


class _EndsProcessError(LogsUIError):
    """What cannot be written by any process."""
