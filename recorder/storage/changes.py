"""Defines changes of rows, runs and steps as plain values, and batches: the changes of one transaction."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

from logs_ui.recorder.vocabulary import SourceKind

_run_of = attrgetter("run")
_CHANGE_BYTES = 1_400  # memory of a row's columns; measured


class EntryNumber(NamedTuple):
    """Numbers the entries of one writer, in the order in which they are to be stored."""

    parcel: int = 0  # of the training, from 1 on, that the entry holds or follows; 0 if the training itself writes
    # Counts the helper processes, from 0 on; 0 for a parcel, so that it is stored once, whichever process stores it.
    process: int = 0
    n: int = 0  # 0 for a parcel; counts the entries that follow it, such as heartbeats


NO_ENTRY = EntryNumber()
"""The position of a writer that has no stored entry."""


@dataclass(frozen=True, slots=True)
class StoredImage:
    """Holds a PNG, JPEG or WebP."""

    hash: str  # sha256 of `data`, in hexadecimal
    media_type: str  # "image/png", "image/jpeg" or "image/webp"
    width: int
    height: int
    data: bytes

    @property
    def reference(self) -> dict[str, Any]:
        """Return the JSON value that replaces the image in a message."""
        return {"$image": self.hash, "width": self.width, "height": self.height, "media_type": self.media_type}


@dataclass(frozen=True)
class Source:
    """Describes a source of a run, such as a reward function. `text` is None if there is none, or it is not stored."""

    kind: SourceKind
    name: str
    text: str | None
    weight: float | None = None


@dataclass(frozen=True)
class RunChange:
    """Sets columns of a new or changed run. The first change of a run must have all columns that have no default."""

    uid: str
    columns: Mapping[str, Any]
    unattributed_calls: int = 0  # added to the run's count
    # Output folder of a resumed training; the newest other run that wrote there becomes the parent.
    resumes: str | None = None
    dropped_payloads: int = 0  # added to the run's count
    unattributed_scoring: int = 0  # added to the run's count
    unattributed_errors: Mapping[str, int] = field(default_factory=dict)  # added to the run's counts, by error
    unseen_sampling: int = 0  # added to the run's count


@dataclass(slots=True)  # not frozen: that costs four times as much
class RowChange:
    """Sets columns of a new or changed row; columns that are not given keep their values.

    `rows/draft_batches.py` adds measured columns and payloads before it is in a batch; then nothing changes it.
    """

    run: str
    uid: str
    # The columns without default. Each change of a row has the same, so that any change can be stored first.
    identity: Mapping[str, Any]
    columns: Mapping[str, Any]
    content: bytes | None = None  # packed payload; None keeps the stored one
    tokens: bytes | None = None  # as content
    images: tuple[StoredImage, ...] = ()  # of the content, which may not be stored yet
    tags: tuple[str, ...] = ()  # added to the row's tags
    content_start: int | None = None  # id of the payload's start, see `PayloadStart`; None if the payload is complete
    tokens_start: int | None = None

    def then(self, later: "RowChange") -> "RowChange":
        """Merge a later change of the same row into this one."""
        # A start belongs to its payload, so both are taken from the same change.
        return RowChange(  # not by `replace`, which takes three times as long
            later.run,
            later.uid,
            later.identity,
            {**self.columns, **later.columns},
            later.content or self.content,
            later.tokens or self.tokens,
            self.images + later.images,
            later.tags or self.tags,
            later.content_start if later.content else self.content_start,
            later.tokens_start if later.tokens else self.tokens_start,
        )


@dataclass(frozen=True)
class ScalarsChange:
    """Stores figures that the trainer logged at a step, by name."""

    run: str
    step: int
    values: Mapping[str, float | None]


@dataclass(frozen=True)
class TokenizerChange:
    """Stores a tokenizer's JSON, by its hash."""

    hash: str
    json: str


@dataclass(frozen=True)
class SourcesChange:
    """Stores sources of a run. A source replaces a stored one of the same kind and name."""

    run: str
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class PayloadStartChange:
    """A `PayloadStart` that rows of the same batch refer to."""

    id: int
    data: bytes


Change = RunChange | RowChange | ScalarsChange | TokenizerChange | SourcesChange | PayloadStartChange
_LISTS = {RunChange: "runs", ScalarsChange: "scalars", TokenizerChange: "tokenizers", SourcesChange: "sources"}


def kept_bytes(change: Change) -> int:
    """Estimate the bytes of memory that a change occupies. Images are not counted: they are bounded elsewhere."""
    match change:
        case RowChange():
            return _CHANGE_BYTES + len(change.content or b"") + len(change.tokens or b"")
        case PayloadStartChange():
            return len(change.data)
        case TokenizerChange():
            return len(change.json)
        case SourcesChange():
            return _CHANGE_BYTES + sum(len(source.text or "") for source in change.sources)
        case _:
            return _CHANGE_BYTES


@dataclass(frozen=True)
class Batch:
    """Changes for one transaction, with at most one change per row."""

    runs: list[RunChange] = field(default_factory=list)
    rows: list[RowChange] = field(default_factory=list)
    scalars: list[ScalarsChange] = field(default_factory=list)
    tokenizers: list[TokenizerChange] = field(default_factory=list)
    sources: list[SourcesChange] = field(default_factory=list)
    starts: list[PayloadStartChange] = field(default_factory=list)  # of payloads; spools on disk have this key

    @property
    def uids(self) -> set[str]:
        """Return the uids of all runs that the batch changes."""
        return {*(run.uid for run in self.runs), *map(_run_of, chain(self.rows, self.scalars, self.sources))}

    @classmethod
    def merged(cls, changes: Iterable[Change]) -> "Batch":
        """Make a batch of changes, and merge several changes of one row into one."""
        batch = cls()
        rows: dict[tuple[str, str], RowChange] = {}
        starts_by_id: dict[int, PayloadStartChange] = {}
        for change in changes:
            match change:
                case RowChange():
                    key = (change.run, change.uid)
                    rows[key] = rows[key].then(change) if key in rows else change
                case PayloadStartChange():
                    starts_by_id[change.id] = change
                case _:
                    getattr(batch, _LISTS[type(change)]).append(change)
        batch.starts.extend(starts_by_id.values())
        batch.rows.extend(rows.values())
        return batch

    @classmethod
    def joined(cls, batches: Iterable["Batch"]) -> "Batch":
        """Merge batches, in their order, into one."""
        return cls.merged(change for batch in batches for change in batch.changes())

    def changes(self) -> Iterator[Change]:
        """Yield all changes. A change comes after those that it refers to."""
        return chain(self.runs, self.starts, self.rows, self.scalars, self.tokenizers, self.sources)

    @property
    def size(self) -> int:
        """Return the estimated bytes of memory that the batch occupies."""
        return sum(map(kept_bytes, self.changes()))

    def split(self) -> Iterable["Batch"]:
        """Yield batches of one change each, so that one can fail alone.

        Their order, that of `changes`, is the same in all processes, so that their locks cause no deadlock.
        """
        ordered = replace(self, starts=sorted(self.starts, key=attrgetter("id")))
        return (Batch.merged([change]) for change in ordered.changes())

    def without_payload(self) -> "Batch":
        """Return the batch without payloads, images, tags and previews, to try again after the database refused it."""
        rows = [
            replace(
                row,
                content=None,
                content_start=None,
                tokens=None,
                tokens_start=None,
                images=(),
                tags=(),
                columns={**row.columns, "preview": None, "error": "not storable"},
            )
            for row in self.rows
        ]
        return replace(self, rows=rows)
