"""Stores what an import reads, in transactions of one batch each."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from logs_ui.recorder.api.run_record import ChangesJob
from logs_ui.recorder.delivery.committer import Committer
from logs_ui.recorder.delivery.outlet import Counts
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.storage.address import Address, masked_address
from logs_ui.recorder.storage.limits import Limits

_BATCH, _BATCH_BYTES = 2_048, 32 << 20  # changes in a transaction; bytes of their text


class BatchWriter:
    """Stores one batch while the next is read: packing and SQL release the GIL. One batch waits at most."""

    def __init__(self, address: Address, *, spools_always: bool) -> None:
        """Prepare writing; `spools_always`: through a spool on disk, as where the database lies on a network."""
        self._address = address
        self._committer = Committer(address, Limits.from_environment(), spools_always=spools_always)
        self._thread = ThreadPoolExecutor(1, "logs-ui import")
        self._pending: Future[None] | None = None
        self._changes: list[Any] = []  # Change or RowDraft
        self._bytes = 0

    def append(self, change: Any, size: int = 0) -> None:
        """Take a Change or a RowDraft of so many bytes."""
        self._changes.append(change)
        self._bytes += size

    @property
    def is_full(self) -> bool:
        """Return True if a batch has come together."""
        return len(self._changes) >= _BATCH or self._bytes >= _BATCH_BYTES

    def flush(self, *, and_wait: bool = False) -> None:
        """Have what was read stored, in one transaction, once the batch before it is."""
        if self._pending is not None:
            self._pending.result()
        self._pending = self._thread.submit(self._store, self._changes) if self._changes else None
        self._changes, self._bytes = [], 0
        if and_wait and self._pending is not None:
            self._pending.result()

    def _store(self, changes: list[Any]) -> None:
        parcel = self._committer.parcel()
        parcel.add(ChangesJob(lambda: changes))
        parcel.close()
        parcel.write(Counts(), lambda _: None)

    def tick(self) -> None:
        """Let the committer do what it does from time to time."""
        self._committer.tick(Counts())

    def close(self) -> None:
        """Store what is left, and end. Raise LogsUIError if something could not be stored."""
        try:
            self.flush(and_wait=True)
        finally:
            self._thread.shutdown()
            self._committer.close(10.0)
        if self._committer.dropped:
            raise LogsUIError(
                f"{self._committer.dropped:,} changes could not be written to {masked_address(self._address)}: "
                f"{self._committer.trouble or 'the database refused them'}."
            )
