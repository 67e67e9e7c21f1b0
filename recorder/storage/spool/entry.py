"""Defines an entry, a numbered batch of changes, and encodes it as bytes, so that it can wait in the spool."""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import zstandard

from logs_ui.recorder.guard import guard
from logs_ui.recorder.snapshot import text
from logs_ui.recorder.storage.changes import Batch, EntryNumber


@dataclass(frozen=True)
class Failures:
    """Failures of a process to record, as they are counted on one of its runs."""

    run: str  # uid of that run; empty until the entry's frames are decoded
    errors: int  # since the last report
    dropped: int  # changes that were lost since then
    last: str | None  # the latest error, in one line; None if there was none


@dataclass(frozen=True)
class Entry:
    """Holds a numbered batch, with heartbeats and failure counts; it is stored in one transaction."""

    number: EntryNumber
    made: int  # in µs since 1970
    batch: Batch = field(default_factory=Batch)
    alive: tuple[str, ...] = ()  # uids of the runs for which it is a heartbeat
    failures: tuple[Failures, ...] = ()  # failures of the process since its last report
    frames: tuple[bytes, ...] = ()  # jobs as bytes, see `Wire`; an `EntryOf` makes them the batch

    @property
    def uids(self) -> set[str]:
        """Return the uids of all runs that the entry mentions."""
        return self.batch.uids | {*self.alive} | {failures.run for failures in self.failures}


EntryOf = Callable[[Entry], Entry]
"""Makes the batch of an entry that has frames only: `delivery/committer.py` knows how."""


def joined(entries: Sequence[Entry]) -> Entry:
    """Merge consecutive entries of one process into one entry with the same effect. It has the last one's number."""
    last = entries[-1]
    if len(entries) == 1:
        return last
    alive = {uid: None for entry in entries for uid in entry.alive}
    failures = tuple(counts for entry in entries for counts in entry.failures)
    batch = Batch.joined(entry.batch for entry in entries)
    return Entry(last.number, last.made, batch, tuple(alive), failures)


def encoded(entry: Entry) -> tuple[bytes, int]:
    """Encode an entry as MessagePack.

    A change that cannot be encoded is tried again without its payload, and is left out if that fails, too. Lone
    surrogates, which UTF-8 cannot represent, are replaced, as they are in columns of the database. Return the bytes,
    and the number of changes that were left out.
    """
    try:
        return _encode(entry), 0
    except Exception as error:  # noqa: BLE001 - whatever one row contains, the others must be kept
        guard.caught("encoding a batch for the spool", error)
    pieces = [(piece, _first_encodable(piece)) for piece in entry.batch.split()]
    encodable = [smaller for _, smaller in pieces if smaller is not None]
    batch = Batch.joined(encodable)
    return _encode(replace(entry, batch=batch)), len(pieces) - len(encodable)


def decoded(data: bytes, entry_of: EntryOf) -> Entry:
    """Decode an entry; one with frames is compressed. Raise msgspec.DecodeError if another version wrote it."""
    if not data.startswith(zstandard.FRAME_HEADER):
        return _decoder.decode(data)
    return entry_of(_decoder.decode(zstandard.decompress(data)))


def _first_encodable(piece: Batch) -> Batch | None:
    for attempt in (piece, piece.without_payload()):
        try:
            _encode(attempt)
        except Exception as error:  # noqa: BLE001
            guard.caught("encoding one row for the spool", error)
        else:
            return attempt
    return None


def _encode(value: Entry | Batch) -> bytes:
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:  # only then walk through all values, which is slow
        return _encoder.encode(_spelt(msgspec.to_builtins(value, builtin_types=(bytes,), enc_hook=_plain)))


def _spelt(value: Any) -> Any:
    """Replace lone surrogates in all strings of a nested value."""
    if isinstance(value, dict):
        return {_spelt(key): _spelt(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_spelt, value))
    return text(value) if isinstance(value, str) else value


def _plain(value: Any) -> Any:
    """Convert NumPy scalars, enum members and subclasses of int, float, str and bytes for MessagePack."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, enum.Enum):
        return value.value
    for kind in (int, float, str, bytes):
        if isinstance(value, kind):
            plain: Callable[[Any], Any] = kind
            return plain(value)
    raise TypeError(f"{type(value).__name__} cannot be stored in a column")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_decoder = msgspec.msgpack.Decoder(Entry)
