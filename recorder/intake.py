"""Takes the entries of one process into a database, each exactly once: how far it has come is written in the same
transaction.
"""

import time
from collections.abc import Callable, Sequence

from sqlalchemy import Connection, Engine

from logs_ui.recorder import schema, store
from logs_ui.recorder.address import Address, shown
from logs_ui.recorder.database import errors_in_plain_words, is_disk_trouble
from logs_ui.recorder.entry import Entry, joined
from logs_ui.recorder.errors import DatabaseError
from logs_ui.recorder.guard import guard
from logs_ui.recorder.store import Batch

Runs = dict[str, int]
"""Ids of runs, by uid."""


class Intake:
    """Of one process, into one database.

    Attributes:
        running: whether a run that the process keeps alive may go on, as far as the database knows.
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
        self._address, self._engine, self._writer, self._is_own = address, engine, writer, is_own
        self._runs: Runs = {}  # that the process wrote to, as committed

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

    def _transact(self, entries: Sequence[Entry], write: Callable[[Connection, Entry], tuple[Runs, int]]) -> int:
        """What it found out is kept only once it is committed."""
        try:
            with self._engine().begin() as connection:
                schema.refuse_outgrown(shown(self._address), connection)
                fresh = [entry for entry in entries if store.advance(connection, self._writer, entry.number)]
                if not fresh:
                    self.running = self.running or any(entry.batch.uids for entry in entries)
                    return 0
                entry = joined(fresh)
                runs, refused = write(connection, entry)
                running = self.running or bool(entry.batch.uids)
                if entry.alive:
                    ids = [runs[uid] for uid in entry.alive if uid in runs]
                    running = store.write_heartbeat(connection, ids, self._heard(entry))
        except Exception as error:
            if is_disk_trouble(error):
                with errors_in_plain_words(self._address):
                    raise
            raise
        self._runs, self.running = runs, running
        return refused

    def _heard(self, entry: Entry) -> int:
        """When the process was last alive, in µs, as far as the entry tells."""
        return time.time_ns() // 1000 if self._is_own else entry.made

    def _write_together(self, connection: Connection, entry: Entry) -> tuple[Runs, int]:
        runs = self._known(connection, entry, self._runs, entry.uids)
        self._write(connection, entry, entry.batch, runs)
        self._finish(connection, entry, runs, 0)
        return runs, 0

    def _write_one_by_one(self, connection: Connection, entry: Entry) -> tuple[Runs, int]:
        runs, refused = self._runs, 0

        def write(attempt: Batch) -> Runs:
            known = self._known(connection, entry, runs, attempt.uids)
            self._write(connection, entry, attempt, known)
            return known

        for single in entry.batch.split():
            attempts = (_tried(connection, write, attempt) for attempt in (single, single.without_payload()))
            written = next((known for known in attempts if known is not None), None)
            refused += written is None
            runs = written or runs
        runs = self._known(connection, entry, runs, entry.uids - entry.batch.uids)
        self._finish(connection, entry, runs, refused)
        return runs, refused

    def _known(self, connection: Connection, entry: Entry, runs: Runs, uids: set[str]) -> Runs:
        known = runs | store.run_ids(connection, uids - runs.keys(), self._heard(entry))
        store.take_runs(connection, known.values())
        return known

    def _write(self, connection: Connection, entry: Entry, batch: Batch, runs: Runs) -> None:
        store.write_runs(connection, batch.runs)
        store.write_rows(connection, batch.rows, runs, self._heard(entry))
        store.write_tokenizers(connection, batch.tokenizers)
        store.write_scalars(connection, batch.scalars, runs)
        store.write_sources(connection, batch.sources, runs)

    def _finish(self, connection: Connection, entry: Entry, runs: Runs, refused: int) -> None:
        store.write_details(connection, entry.batch, runs, time.time_ns() // 1000)
        for told in entry.failures:
            store.count_failures(connection, runs[told.run], errors=told.errors, dropped=told.dropped, last=told.last)
        if refused and runs and not self._is_own:  # the process itself tells with its next entry
            store.count_failures(connection, max(runs.values()), errors=refused, dropped=refused, last=guard.last)


def _tried(connection: Connection, write: Callable[[Batch], Runs], batch: Batch) -> Runs | None:
    """None where the database refuses it, which leaves the rest of the transaction as it was."""
    savepoint = connection.begin_nested()
    try:
        runs = write(batch)
    except Exception as error:
        if is_disk_trouble(error):
            raise  # the whole transaction's: there may be no savepoint any more
        savepoint.rollback()
        guard.caught("writing one row", error)
        return None
    savepoint.commit()
    return runs
