"""What one transaction writes, as a value that can wait on disk until there is a database to write it to."""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from logs_ui.recorder.guard import guard
from logs_ui.recorder.snapshot import text
from logs_ui.recorder.storage.changes import Batch, EntryNumber


@dataclass(frozen=True)
class Failures:
    """How often a process failed to record, as far as a run has to be told.

    Attributes:
        run: uid of that run.
        errors, dropped: since it was told before.
        last: the latest error, in one line; None while there was none.
    """

    run: str
    errors: int
    dropped: int
    last: str | None


@dataclass(frozen=True)
class Entry:
    """Attributes:
    number: see there.
    made: when, in µs since 1970.
    batch: what is recorded.
    alive: uids of the runs whose heartbeat it is.
    failures: of the process.
    """

    number: EntryNumber
    made: int
    batch: Batch = field(default_factory=Batch)
    alive: tuple[str, ...] = ()
    failures: tuple[Failures, ...] = ()

    @property
    def uids(self) -> set[str]:
        """Of all runs that it is about."""
        return self.batch.uids | {*self.alive} | {told.run for told in self.failures}


def joined(entries: Sequence[Entry]) -> Entry:
    """Of one process, in their order, as one that does the same."""
    last = entries[-1]
    if len(entries) == 1:
        return last
    alive = {uid: None for entry in entries for uid in entry.alive}
    failures = tuple(told for entry in entries for told in entry.failures)
    batch = Batch.joined(entry.batch for entry in entries)
    return Entry(last.number, last.made, batch, tuple(alive), failures)


def encoded(entry: Entry) -> tuple[bytes, int]:
    """As MessagePack, and how many changes cannot be written so: those are left out, or all but their columns. Lone
    surrogates, which UTF-8 cannot hold, are replaced, as a database's columns have it.
    """
    try:
        return _encode(entry), 0
    except Exception as error:  # noqa: BLE001 - whatever a row holds, the others must be kept
        guard.caught("putting a batch on disk", error)
    pieces = [(piece, _first_encodable(piece)) for piece in entry.batch.split()]
    kept = [found for _, found in pieces if found is not None]
    batch = Batch.joined(kept)
    return _encode(replace(entry, batch=batch)), len(pieces) - len(kept)


def decoded(data: bytes) -> Entry:
    """Raises msgspec.DecodeError: another version of logs-ui wrote it, or nobody."""
    return _decoder.decode(data)


def _first_encodable(piece: Batch) -> Batch | None:
    for attempt in (piece, piece.without_payload()):
        try:
            _encode(attempt)
        except Exception as error:  # noqa: BLE001
            guard.caught("putting one row on disk", error)
        else:
            return attempt
    return None


def _encode(value: Entry | Batch) -> bytes:
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_spelt(msgspec.to_builtins(value, builtin_types=(bytes,), enc_hook=_plain)))


def _spelt(value: Any) -> Any:
    """With a sign in place of each lone surrogate."""
    if isinstance(value, dict):
        return {_spelt(key): _spelt(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_spelt, value))
    return text(value) if isinstance(value, str) else value


def _plain(value: Any) -> Any:
    """Of a subclass of what MessagePack holds, which databases take as it is."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, enum.Enum):
        return value.value
    for kind in (int, float, str, bytes):
        if isinstance(value, kind):
            plain: Callable[[Any], Any] = kind
            return plain(value)
    raise TypeError(f"{type(value).__name__} is no value of a column")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_decoder = msgspec.msgpack.Decoder(Entry)
