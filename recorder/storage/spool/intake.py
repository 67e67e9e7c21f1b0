"""Takes the entries of one process into a database, each exactly once: how far it has come is written in the same
transaction.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn, TypeVar

from sqlalchemy import Connection, Engine

from logs_ui.recorder.errors import DatabaseError
from logs_ui.recorder.guard import guard
from logs_ui.recorder.snapshot import error_line
from logs_ui.recorder.storage import clock, schema
from logs_ui.recorder.storage.address import Address, shown
from logs_ui.recorder.storage.changes import Batch
from logs_ui.recorder.storage.clock import now_us
from logs_ui.recorder.storage.database import errors_in_plain_words, is_rows_fault
from logs_ui.recorder.storage.spool.spool_entry import Entry, Failures, joined
from logs_ui.recorder.storage.writes import row_writes, run_writes, step_writes

T = TypeVar("T")

Runs = dict[str, int]
"""Ids of runs, by uid."""


class Intake:
    """Of one process, into one database.

    Attributes:
        running: whether a run that the process keeps alive may go on, as far as the database knows.
        silence: asked in each transaction of a process that is not this one, for how many µs it has written nothing,
            whatever its clock says. None: its entries' own times count.
    """

    def __init__(self, address: Address, engine: Callable[[], Engine], writer: str, *, is_own: bool) -> None:
        """What it is about.

        Args:
            address: of the database.
            engine: gives it opened for writing.
            writer: the process's name: see `spool.new_writer_name`.
            is_own: whether it is this process, which is alive, whenever its entries were made.
        """
        self.running = False
        self.silence: Callable[[], int] | None = None
        self._address, self._engine, self._writer, self._is_own = address, engine, writer, is_own

    def take(self, entries: Sequence[Entry]) -> int:
        """Writes those of some entries that are not in already, in one transaction. What of them the database refuses
        is left out: the others get in.

        Args:
            entries: in their order, and none left out between them.

        Returns:
            How many changes were refused, even without their text.

        Raises:
            RefusedDatabaseError: the database can never be written.
            DatabaseError: it cannot be written now. Try them again, even where the connection broke at the end.
        """
        try:
            return self._transact(entries, self._write_together)
        except DatabaseError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a row holds, the others must get in
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
        """What it found out is kept only once it is committed. Ids of runs are not: others delete runs, and files."""
        try:
            with self._engine().begin() as connection:
                schema.refuse_outgrown(shown(self._address), connection)
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
            if not is_rows_fault(error):
                self._give_up_for_now(error)
            raise
        self.running = running
        return refused

    def _give_up_for_now(self, error: Exception) -> NoReturn:
        try:
            with errors_in_plain_words(self._address):
                raise error
        except type(error):  # it has no words for that
            raise DatabaseError(f"{shown(self._address)} cannot be written now: {error_line(error)}.") from error

    def _heard(self, connection: Connection, entry: Entry) -> int | None:
        """When the process was last alive, in µs, by the database's clock, as far as can be told; None for now."""
        if self._is_own:
            return None
        return entry.made if self.silence is None else clock.now(connection) - self.silence()

    def _write_together(self, connection: Connection, entry: Entry, heard: int | None) -> tuple[Runs, int]:
        runs = self._known(connection, entry, entry.uids, heard)
        self._write(connection, entry.batch, runs, heard)
        self._finish(connection, entry, runs, 0)
        return runs, 0

    def _write_one_by_one(self, connection: Connection, entry: Entry, heard: int | None) -> tuple[Runs, int]:
        runs = _tried(connection, lambda: self._known(connection, entry, entry.uids, heard)) or {}
        refused = 0

        def write(attempt: Batch) -> Runs:
            known = runs | self._known(connection, entry, attempt.uids - runs.keys(), heard)
            self._write(connection, attempt, known, heard)
            return known

        for single in entry.batch.split():
            attempts = (_tried(connection, partial(write, attempt)) for attempt in (single, single.without_payload()))
            written = next((known for known in attempts if known is not None), None)
            refused += written is None
            runs = written or runs
        self._finish(connection, entry, runs, refused)
        return runs, refused

    def _known(self, connection: Connection, entry: Entry, uids: set[str], heard: int | None) -> Runs:
        """Those of some runs, which are this transaction's from now on. One that was deleted is not made anew by a
        heartbeat.
        """
        made = uids - {*entry.alive} | uids & entry.batch.uids
        known = run_writes.run_ids(connection, made, heard)
        known |= run_writes.known_runs(connection, uids - made)
        run_writes.take_runs(connection, known.values())
        return known

    def _write(self, connection: Connection, batch: Batch, runs: Runs, heard: int | None) -> None:
        run_writes.write_runs(connection, batch.runs, heard)
        row_writes.write_starts(connection, batch.starts)
        row_writes.write_rows(connection, batch.rows, runs, heard)
        run_writes.write_tokenizers(connection, batch.tokenizers)
        run_writes.write_scalars(connection, batch.scalars, runs)
        run_writes.write_sources(connection, batch.sources, runs)

    def _finish(self, connection: Connection, entry: Entry, runs: Runs, refused: int) -> None:
        """Nothing of it costs what the entry recorded."""
        now = now_us()
        _tried(connection, lambda: step_writes.write_details(connection, entry.batch, runs, now))
        told = [*entry.failures]
        if refused and runs and not self._is_own:  # the process itself tells with its next entry
            told.append(Failures(max(runs, key=runs.__getitem__), refused, refused, guard.last))
        for failures in told:
            if failures.run in runs:
                _count(connection, runs[failures.run], failures)


def _count(connection: Connection, run_id: int, told: Failures) -> None:
    """Without the words where the database refuses those."""

    def count(last: str | None) -> bool:
        run_writes.count_failures(connection, run_id, errors=told.errors, dropped=told.dropped, last=last)
        return True

    if not _tried(connection, lambda: count(told.last)):
        _tried(connection, lambda: count(None))


def _tried(connection: Connection, write: Callable[[], T]) -> T | None:
    """None where the database refuses it, which leaves the rest of the transaction as it was."""
    savepoint = connection.begin_nested()
    try:
        written = write()
    except Exception as error:
        if not is_rows_fault(error):
            raise  # the whole transaction's: there may be no savepoint any more
        savepoint.rollback()
        guard.caught("writing one row", error)
        return None
    savepoint.commit()
    return written
