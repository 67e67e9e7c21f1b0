"""Defines changes of rows, runs and steps as plain values, and batches: the changes of one transaction."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

from logs_ui.recorder.vocabulary import SourceKind

_run_of = attrgetter("run")
_CHANGE_BYTES = 1_400  # memory of a row's columns; measured


class EntryNumber(NamedTuple):
    """Numbers the entries of one writer, in the order in which they are to be stored.

    Attributes:
        parcel: of the training, from 1 on, that the entry holds or follows; 0 if the training itself writes.
        process: counts the helper processes of the training, from 0 on; 0 for a parcel, whichever process stores it,
            so that it is stored once.
        n: 0 for a parcel; counts the entries that follow it, such as heartbeats.
    """

    parcel: int = 0
    process: int = 0
    n: int = 0


NO_ENTRY = EntryNumber()
"""The position of a writer that has no stored entry."""


@dataclass(frozen=True, slots=True)
class StoredImage:
    """A PNG, JPEG or WebP.

    Attributes:
        hash: sha256 of `data`, in hexadecimal.
        media_type: "image/png", "image/jpeg" or "image/webp".
    """

    hash: str
    media_type: str
    width: int
    height: int
    data: bytes

    @property
    def reference(self) -> dict[str, Any]:
        """The JSON value that replaces the image in a message."""
        return {"$image": self.hash, "width": self.width, "height": self.height, "media_type": self.media_type}


@dataclass(frozen=True)
class Source:
    """A source of a run, such as a reward function. `text` is None if there is none, or if it must not be stored."""

    kind: SourceKind
    name: str
    text: str | None
    weight: float | None = None


@dataclass(frozen=True)
class RunChange:
    """Columns of a new or changed run. The first change of a run must have all columns that have no default.

    Attributes:
        unattributed_calls, dropped_payloads: added to the run's counts.
        resumes: output folder of a resumed training; the newest other run that wrote there becomes the parent.
    """

    uid: str
    columns: Mapping[str, Any]
    unattributed_calls: int = 0
    resumes: str | None = None
    dropped_payloads: int = 0


@dataclass(slots=True)  # not frozen: that costs four times as much
class RowChange:
    """Columns of a new or changed row; columns that are not given keep their values. Treat it as immutable.

    Attributes:
        identity: the columns without default. They are the same in each change of a row, so that any change can be
            stored first.
        content, tokens: packed payload; None keeps the stored one.
        content_start, tokens_start: id of the payload's start, see `PayloadStart`; None if the payload is complete.
        images: images in the content that may not be stored yet.
        tags: tags to add to the row's tags.
    """

    run: str
    uid: str
    identity: Mapping[str, Any]
    columns: Mapping[str, Any]
    content: bytes | None = None
    tokens: bytes | None = None
    images: tuple[StoredImage, ...] = ()
    tags: tuple[str, ...] = ()
    content_start: int | None = None
    tokens_start: int | None = None

    def then(self, later: "RowChange") -> "RowChange":
        """Merges a later change of the same row into this one."""
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
    """Figures that the trainer logged at a step, by name."""

    run: str
    step: int
    values: Mapping[str, float | None]


@dataclass(frozen=True)
class TokenizerChange:
    """A tokenizer's JSON, by its hash."""

    hash: str
    json: str


@dataclass(frozen=True)
class SourcesChange:
    """Sources of a run. A source replaces a stored one of the same kind and name."""

    run: str
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class StartChange:
    """A `PayloadStart` that rows of the same batch refer to."""

    id: int
    data: bytes


Change = RunChange | RowChange | ScalarsChange | TokenizerChange | SourcesChange | StartChange


def kept_bytes(change: Change) -> int:
    """Estimates the bytes of memory that a change occupies. Images are not counted: they are bounded elsewhere."""
    match change:
        case RowChange():
            return _CHANGE_BYTES + len(change.content or b"") + len(change.tokens or b"")
        case StartChange():
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
    starts: list[StartChange] = field(default_factory=list)

    @property
    def uids(self) -> set[str]:
        """The uids of all runs that the batch changes."""
        return {*(run.uid for run in self.runs), *map(_run_of, chain(self.rows, self.scalars, self.sources))}

    @classmethod
    def merged(cls, changes: Iterable[Change]) -> "Batch":
        """Makes a batch of changes, and merges several changes of one row into one."""
        batch = cls()
        rows: dict[tuple[str, str], RowChange] = {}
        starts: dict[int, StartChange] = {}
        for change in changes:
            match change:
                case RowChange():
                    key = (change.run, change.uid)
                    rows[key] = rows[key].then(change) if key in rows else change
                case RunChange():
                    batch.runs.append(change)
                case ScalarsChange():
                    batch.scalars.append(change)
                case TokenizerChange():
                    batch.tokenizers.append(change)
                case SourcesChange():
                    batch.sources.append(change)
                case StartChange():
                    starts[change.id] = change
        batch.starts.extend(starts.values())
        batch.rows.extend(rows.values())
        return batch

    @classmethod
    def joined(cls, batches: Iterable["Batch"]) -> "Batch":
        """Merges batches, in their order, into one."""
        return cls.merged(change for one in batches for kind in fields(one) for change in getattr(one, kind.name))

    @property
    def size(self) -> int:
        """The estimated bytes of memory that the batch occupies."""
        changes: list[Change] = [*self.runs, *self.rows, *self.scalars, *self.tokenizers, *self.sources]
        changes += self.starts
        return sum(map(kept_bytes, changes))

    def split(self) -> Iterable["Batch"]:
        """Yields batches of one change each, so that one can fail alone.

        A change comes after those that it refers to. The order is the same in all processes, so that their locks cause
        no deadlock.
        """
        yield from (Batch(runs=[change]) for change in self.runs)
        yield from (Batch(starts=[change]) for change in sorted(self.starts, key=attrgetter("id")))
        yield from (Batch(rows=[change]) for change in self.rows)
        yield from (Batch(scalars=[change]) for change in self.scalars)
        yield from (Batch(tokenizers=[change]) for change in self.tokenizers)
        yield from (Batch(sources=[change]) for change in self.sources)

    def without_payload(self) -> "Batch":
        """Returns the batch without payloads, images, tags and previews, to try again after the database refused it."""
        kept = [
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
        return replace(self, rows=kept)
