"""Exports in progress: each runs in its own thread and writes to an unnamed temporary file, so that nothing is left
behind however the process ends.
"""

import logging
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Literal, cast

from logs_ui.recorder.analysis.export.files import write_run
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter
from logs_ui.recorder.storage.address import Address, as_text

MOST = 8
"""Maximum number of exports; a further one replaces the oldest finished one."""

_log = logging.getLogger(__name__)
_KEPT_SECONDS = 3600.0
_BLOCK = 1 << 20  # bytes that are read of a file at a time

Format = Literal["parquet", "csv", "jsonl"]


class ExportNotFoundError(LogsUIError):
    """There is no such export any more."""


class TooManyExportsError(LogsUIError):
    """The maximum number of exports is running."""


class _CancelledError(Exception):
    """The export was cancelled."""


@dataclass
class Job:
    """Runs one export."""

    id: str  # a random id that cannot be guessed
    run: str
    format: Format
    name: str  # file name of the download
    begin_time: float
    # `done` and `total`: rollouts written, and to write; 0 before they are counted.
    done: int = 0
    total: int = 0
    size: int | None = None  # in bytes; None until the file is complete
    trouble: str | None = None  # the error that ended it, in one line; None without one
    is_cancelled: bool = False
    _file: BinaryIO = field(default_factory=lambda: cast("BinaryIO", tempfile.TemporaryFile()), repr=False)  # noqa: SIM115
    _ended: threading.Event = field(default_factory=threading.Event, repr=False)

    @property
    def is_over(self) -> bool:
        return self._ended.is_set()

    def wait(self, seconds: float) -> None:
        """Wait until it has ended, or the time is over."""
        self._ended.wait(seconds)

    def blocks(self) -> Iterator[bytes]:
        """Yield the whole file; several readers may do so at once."""
        number = os.dup(self._file.fileno())
        try:
            at = 0
            while block := os.pread(number, _BLOCK, at):
                yield block
                at += len(block)
        finally:
            os.close(number)

    def make(self, db: Address, chosen: RolloutFilter) -> None:
        """Write the file."""
        try:
            self.done = write_run(self.run, self.format, self._file, as_text(db), where=chosen, progress=self._show)
            self._file.flush()
            self.size = os.fstat(self._file.fileno()).st_size
        except _CancelledError:
            self._file.close()
        except LogsUIError as error:
            self.trouble = str(error)
            self._file.close()
        except Exception as error:  # noqa: BLE001 - the page waits for it, whatever it is
            _log.exception("%s could not be made", self.name)
            self.trouble = f"{type(error).__name__}: {error}. The traceback is in the log of logs-ui."
            self._file.close()
        finally:
            self._ended.set()

    def cancel(self) -> None:
        """Cancel the export; its file disappears when the last reader is done."""
        self.is_cancelled = True
        if self.is_over:
            self._file.close()

    def _show(self, done: int, total: int) -> None:
        if self.is_cancelled:
            raise _CancelledError
        self.done, self.total = done, total


class Jobs:
    """Runs the exports of one dashboard."""

    def __init__(self, db: Address) -> None:
        self._db = db
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}

    def start(self, run_uid: str, format: Format, name: str, chosen: RolloutFilter) -> Job:  # noqa: A002
        """Start an export. Raise TooManyExportsError."""
        job = Job(secrets.token_urlsafe(12), run_uid, format, name, time.monotonic())
        with self._lock:
            expiry = time.monotonic() - _KEPT_SECONDS
            ended = [other for other in self._jobs.values() if other.is_over]
            excess = max(0, len(self._jobs) + 1 - MOST)
            if excess > len(ended):
                raise TooManyExportsError(f"{MOST} exports are running: wait for one, or cancel it.")
            old_ids = [other.id for i, other in enumerate(ended) if i < excess or other.begin_time < expiry]
            self._jobs[job.id] = job
        for old_id in old_ids:
            self.cancel(old_id)
        threading.Thread(target=job.make, args=(self._db, chosen), name="logs-ui-export", daemon=True).start()
        return job

    def find(self, run_uid: str, job_id: str) -> Job | None:
        """Return an export; None if it was cancelled or has expired."""
        job = self._jobs.get(job_id)
        return job if job and job.run == run_uid else None

    def cancel(self, job_id: str) -> None:
        with self._lock:
            job = self._jobs.pop(job_id, None)
        if job is not None:
            job.cancel()

    def close(self) -> None:
        """Cancel all exports."""
        for job_id in list(self._jobs):
            self.cancel(job_id)
