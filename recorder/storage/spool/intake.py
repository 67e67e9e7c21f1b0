"""Stores the entries of one process in a database, each exactly once.

The number of the last entry is stored in the same transaction. An entry that is tried again, for example because the
connection broke during the commit, is skipped if its number is already there.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection, Engine

from logs_ui.recorder.errors import DatabaseError
from logs_ui.recorder.guard import guard
from logs_ui.recorder.snapshot import error_line
from logs_ui.recorder.storage import clock, schema
from logs_ui.recorder.storage.address import Address, masked_address
from logs_ui.recorder.storage.changes import Batch
from logs_ui.recorder.storage.clock import now_us
from logs_ui.recorder.storage.database import errors_in_plain_words, is_rows_fault
from logs_ui.recorder.storage.spool.entry import Entry, Failures, joined
from logs_ui.recorder.storage.writes import row_writes, run_writes, step_writes

T = TypeVar("T")

Runs = dict[str, int]
"""Maps the uid of each run to its id in the database."""


class Intake:
    """Stores the entries of one process in one database."""

    def __init__(self, address: Address, engine: Callable[[], Engine], writer: str, *, is_own: bool) -> None:
        """Open nothing yet; `engine` returns the database, opened for writing. `writer` is a name as
        `files.new_writer_name` makes it. With `is_own`, the process is alive even if its entries are old.
        """
        self.running = False  # True if, according to the database, a run that the process keeps alive still goes on
        # Returns for how many µs another process has written nothing, independently of that process's clock. It is
        # called in each transaction. If it is None, the times in the entries are used.
        self.silence: Callable[[], int] | None = None
        self._address, self._engine, self._writer, self._is_own = address, engine, writer, is_own

    def take(self, entries: Sequence[Entry]) -> int:
        """Store entries in one transaction, except those that are stored already.

        If the database refuses a change, all changes are tried one by one, and only the refused ones are left out.
        Return how many were refused even without their payload. The entries are in the order of their numbers, without
        gaps. After a DatabaseError it is safe to try the same ones again, even if the connection broke during the
        commit; not after a RefusedDatabaseError: the database can never be written.
        """
        try:
            return self._transact(entries, self._write_together)
        except DatabaseError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever one row contains, the others must be stored
            guard.caught("writing a batch", error)
        try:
            return self._transact(entries, self._write_one_by_one)
        except DatabaseError:
            raise
        except Exception as error:  # noqa: BLE001
            guard.caught("writing a batch row by row", error)
            return sum(1 for entry in entries for _ in entry.batch.split())

    def _transact(
        self, entries: Sequence[Entry], write: Callable[[Connection, Entry, int | None], tuple[Runs, int]]
    ) -> int:
        """Store entries by `write` in one transaction, and return the number of refused changes.

        `running` is set only after the commit. Ids of runs are looked up again each time, because other processes
        delete runs, and people delete the database's file.
        """
        try:
            with self._engine().begin() as connection:
                schema.refuse_outgrown(masked_address(self._address), connection)
                fresh = [entry for entry in entries if row_writes.advance(connection, self._writer, entry.number)]
                if not fresh:
                    self.running = self.running or any(entry.batch.uids for entry in entries)
                    return 0
                entry = joined(fresh)
                heard = self._heard(connection, entry)
                runs, refused = write(connection, entry, heard)
                running = self.running or bool(entry.batch.uids)
                if entry.alive:
                    ids = [runs[uid] for uid in entry.alive if uid in runs]
                    running = run_writes.write_heartbeat(connection, ids, heard)
        except Exception as error:
            if is_rows_fault(error):
                raise
            # Raised again inside, the error leaves as a DatabaseError in plain words, unless there are none for it.
            try:
                with errors_in_plain_words(self._address):
                    raise
            except type(error):  # there is no plain wording for this error
                raise DatabaseError(
                    f"{masked_address(self._address)} cannot be written now: {error_line(error)}."
                ) from error
        self.running = running
        return refused

    def _heard(self, connection: Connection, entry: Entry) -> int | None:
        """Return when the process was last known to be alive, in µs; None means now. The time is by the database's
        clock, or, if `silence` is None, by that of the process.
        """
        if self._is_own:
            return None
        return entry.made if self.silence is None else clock.now(connection) - self.silence()

    def _write_together(self, connection: Connection, entry: Entry, heard: int | None) -> tuple[Runs, int]:
        runs = self._find_or_create_runs(connection, entry, entry.uids, heard)
        self._write(connection, entry.batch, runs, heard)
        self._finish(connection, entry, runs, 0)
        return runs, 0

    def _write_one_by_one(self, connection: Connection, entry: Entry, heard: int | None) -> tuple[Runs, int]:
        runs = _tried(connection, lambda: self._find_or_create_runs(connection, entry, entry.uids, heard)) or {}
        refused = 0

        def write(attempt: Batch) -> Runs:
            ids = runs | self._find_or_create_runs(connection, entry, attempt.uids - runs.keys(), heard)
            self._write(connection, attempt, ids, heard)
            return ids

        for single in entry.batch.split():
            # A generator: the batch without payload is tried only if the whole one was refused.
            attempts = (_tried(connection, partial(write, attempt)) for attempt in (single, single.without_payload()))
            written = next((ids for ids in attempts if ids is not None), None)
            refused += written is None
            runs = written or runs
        self._finish(connection, entry, runs, refused)
        return runs, refused

    def _find_or_create_runs(self, connection: Connection, entry: Entry, uids: set[str], heard: int | None) -> Runs:
        """Look up run ids, lock the runs, and create missing ones. A heartbeat does not re-create a deleted run."""
        # All runs that the entry mentions, except for those that it has nothing but a heartbeat for.
        missing = uids - {*entry.alive} | uids & entry.batch.uids
        ids = run_writes.run_ids(connection, missing, heard)
        ids |= run_writes.known_runs(connection, uids - missing)
        run_writes.take_runs(connection, ids.values())
        return ids

    def _write(self, connection: Connection, batch: Batch, runs: Runs, heard: int | None) -> None:
        run_writes.write_runs(connection, batch.runs, heard)
        row_writes.write_payload_starts(connection, batch.starts)
        row_writes.write_rows(connection, batch.rows, runs, heard)
        run_writes.write_tokenizers(connection, batch.tokenizers)
        run_writes.write_scalars(connection, batch.scalars, runs)
        run_writes.write_sources(connection, batch.sources, runs)

    def _finish(self, connection: Connection, entry: Entry, runs: Runs, refused: int) -> None:
        """Write step details and failure counts. If the database refuses these, the changes are still stored."""
        now = now_us()
        _tried(connection, lambda: step_writes.write_details(connection, entry.batch, runs, now))
        reports = [*entry.failures]
        if refused and runs and not self._is_own:  # this process reports its own failures in its next entry
            reports.append(Failures(max(runs, key=runs.__getitem__), refused, refused, guard.last))
        for failures in reports:
            if failures.run in runs:
                _count(connection, runs[failures.run], failures)


def _count(connection: Connection, run_id: int, failures: Failures) -> None:
    """Add failures to a run's counts; leave out the text of the last error if the database refuses it."""

    def count(last: str | None) -> bool:
        run_writes.count_failures(connection, run_id, errors=failures.errors, dropped=failures.dropped, last=last)
        return True

    if not _tried(connection, lambda: count(failures.last)):
        _tried(connection, lambda: count(None))


def _tried(connection: Connection, write: Callable[[], T]) -> T | None:
    """Call `write` in a savepoint. Return None if the database refuses it; the rest of the transaction is kept."""
    savepoint = connection.begin_nested()
    try:
        written = write()
    except Exception as error:
        if not is_rows_fault(error):
            raise  # the whole transaction failed: the savepoint may be gone
        savepoint.rollback()
        guard.caught("writing one row", error)
        return None
    savepoint.commit()
    return written
