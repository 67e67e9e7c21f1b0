"""What is to be written, as plain values: one change each, and many of them as the batch of one transaction."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

from logs_ui.recorder.vocabulary import SourceKind

_run_of = attrgetter("run")
_CHANGE_BYTES = 1_400  # of a row's columns; measured


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
"""The position of a writer of which nothing is stored."""


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
        """What stands in its place."""
        return {"$image": self.hash, "width": self.width, "height": self.height, "media_type": self.media_type}


@dataclass(frozen=True)
class Source:
    """A part as it is stored. `text` is None where there is none, or where it is not to be kept."""

    kind: SourceKind
    name: str
    text: str | None
    weight: float | None = None


@dataclass(frozen=True)
class RunChange:
    """Columns of a run, made or changed. The first one of a run needs all that have no default.

    Attributes:
        unattributed_calls, dropped_payloads: added to those that the run has.
        resumes: output folder of a training that goes on; the newest other run that wrote there becomes the parent.
    """

    uid: str
    columns: Mapping[str, Any]
    unattributed_calls: int = 0
    resumes: str | None = None
    dropped_payloads: int = 0


@dataclass(slots=True)  # not frozen: that costs four times as much
class RowChange:
    """Columns of a row, made or changed; those that are not named stay as they are. Nobody changes it once it is made.

    Attributes:
        identity: the columns without default, the same in each change of the row, so that any of them can come first.
        content, tokens: packed payload; None leaves what is there.
        content_start, tokens_start: id of what the payload begins with, see `PayloadStart`; None where it has all.
        images: those that the content refers to, and that may not be stored yet.
        tags: those that it has now, beside those that are there.
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
        """Both as one."""
        return RowChange(  # by hand, as `replace` takes three times as long
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
    """Figures that the trainer logged at a step."""

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
    """What a run is made of beside its arguments; one of the same kind and name takes the place of what is there."""

    run: str
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class StartChange:
    """A `PayloadStart`, which rows of the same batch name."""

    id: int
    data: bytes


Change = RunChange | RowChange | ScalarsChange | TokenizerChange | SourcesChange | StartChange


def kept_bytes(change: Change) -> int:
    """About how many a change keeps alive. Images have bounds of their own."""
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
    """Changes for one transaction: at most one for each row."""

    runs: list[RunChange] = field(default_factory=list)
    rows: list[RowChange] = field(default_factory=list)
    scalars: list[ScalarsChange] = field(default_factory=list)
    tokenizers: list[TokenizerChange] = field(default_factory=list)
    sources: list[SourcesChange] = field(default_factory=list)
    starts: list[StartChange] = field(default_factory=list)

    @property
    def uids(self) -> set[str]:
        """Of the runs that it is about."""
        return {*(run.uid for run in self.runs), *map(_run_of, chain(self.rows, self.scalars, self.sources))}

    @classmethod
    def merged(cls, changes: Iterable[Change]) -> "Batch":
        """Several changes of one row become one."""
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
        """Several, in their order, as one."""
        return cls.merged(change for one in batches for kind in fields(one) for change in getattr(one, kind.name))

    @property
    def size(self) -> int:
        """About how many bytes it keeps alive."""
        changes: list[Change] = [*self.runs, *self.rows, *self.scalars, *self.tokenizers, *self.sources]
        changes += self.starts
        return sum(map(kept_bytes, changes))

    def split(self) -> Iterable["Batch"]:
        """The same in pieces that fail on their own, in an order that keeps references whole, and in which no process
        waits for another that waits for it.
        """
        yield from (Batch(runs=[change]) for change in self.runs)
        yield from (Batch(starts=[change]) for change in sorted(self.starts, key=attrgetter("id")))
        yield from (Batch(rows=[change]) for change in self.rows)
        yield from (Batch(scalars=[change]) for change in self.scalars)
        yield from (Batch(tokenizers=[change]) for change in self.tokenizers)
        yield from (Batch(sources=[change]) for change in self.sources)

    def without_payload(self) -> "Batch":
        """What is left to try for a row that the database refuses."""
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
