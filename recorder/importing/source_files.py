"""Finds the files to import, shows readers how they begin, and yields the records of JSONL, JSON and Parquet files.

A file may grow while it is read: only whole lines are taken, and an iterator that came to the end goes on from there.
"""

import json
import re
import sqlite3
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from filecmp import cmp
from functools import cached_property
from glob import glob
from hashlib import blake2b
from itertools import chain
from os.path import commonpath
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple
from zipfile import is_zipfile

import orjson

from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.snapshot import visible

_RECORDS = frozenset({".jsonl", ".ndjson", ".json", ".parquet"})
_TO_LINES = (
    "python -c \"import pandas, sys; pandas.read_%s(sys.argv[1]).to_json(sys.argv[2], orient='records', lines=True)\" "
    "{0} {1}.jsonl"
)
_PICKLE = "a pickle (to read one can run any program: convert only what you trust)"
_FROM_PICKLE = (
    'python -c "import json, sys, torch; [print(json.dumps(it, default=str)) for it in torch.load(sys.argv[1], '
    "weights_only=False)['samples']]\" {0} > {1}.jsonl"
)
_FOREIGN = (  # files of other kinds, by patterns of name and first bytes: what it is, and what converts it
    (r"\.(tar(\.(gz|zst))?|tgz)$", b"", "an archive", "mkdir {1}.unpacked && tar -xf {0} -C {1}.unpacked"),
    (r"\.zip$", b"PK", "an archive", "python -m zipfile -e {0} {1}.unpacked"),
    (r"\.csv$", b"", "CSV", _TO_LINES % "csv"),
    (r"\.tsv$", b"", "TSV", _TO_LINES % "table"),
    ("", b"\x1f\x8b", "packed by gzip", "gzip -dc {0} > {1}.unpacked.jsonl"),
    ("", rb"\x28\xb5\x2f\xfd", "packed by zstd", "zstd -dc {0} > {1}.unpacked.jsonl"),
    ("", rb"\xff\xfe|\xfe\xff", "UTF-16", "iconv -f UTF-16 -t UTF-8 {0} > {1}.utf8.jsonl"),
    ("", rb"[\[{]\0", "UTF-16", "iconv -f UTF-16LE -t UTF-8 {0} > {1}.utf8.jsonl"),
    ("", rb"\0[\[{]", "UTF-16", "iconv -f UTF-16BE -t UTF-8 {0} > {1}.utf8.jsonl"),
    (r"\.(pt|pth|pkl|pickle)$", b"", _PICKLE, _FROM_PICKLE),
    ("", rb"\x80[\2-\5]", _PICKLE, _FROM_PICKLE),
)
_TEXTS = _RECORDS - {".parquet"}
_UNREAD = frozenset({".gz", ".tar", ".tgz", ".zip", ".zst", ".csv", ".tsv", ".pt", ".pth", ".pkl", ".pickle"})  # named
SUFFIXES = frozenset({*_RECORDS, ".db", ".sqlite", ".sqlite3", ".eval"})
_ROTATED = re.compile(r"\.(\d{1,4})$")  # logrotate's app.jsonl.1; a higher number is older
_PATIENCE = 5.0  # seconds for an SQLite file that its program has locked
_BATCH = 256  # rows of Parquet in memory at most
_GROUP, _RATIO = 256 << 20, 64  # bytes of a row group, and how many times the file's size it may be beyond
_IN_MEMORY = 1 << 30  # bytes of a JSON value
_SQLITE = b"SQLite format 3\0"
_MOST = 64 << 20  # bytes of a JSON file
_LONGEST = 64 << 20  # bytes of a line
_PIECE = 1 << 20  # bytes of a longer one that are read at once
_END = 256  # bytes by which a file is known that goes on


class RecordError(LogsUIError):
    """Raised for a record that cannot be read, with the reason in one line, about `it`. Other records are read."""


class FileError(RecordError):
    """Raised for a whole file that is left out."""


class Place(NamedTuple):
    """Says where a record stands."""

    file: Path  # as it can be opened
    name: str  # path relative to the folder of all files, with slashes, without logrotate's number
    id: str  # a hash of the file's name and first record: a copy, or a file that was rotated, has the same
    number: int  # of the record, from 1 on

    @property
    def key(self) -> str:
        """Return the key of a record that has no id of its own."""
        return f"{self.id}-{self.number}"


@dataclass(frozen=True)
class Head:
    """Shows how a file begins, so that readers recognize it."""

    file: Path

    @cached_property
    def magic(self) -> bytes:
        """Return its first 16 bytes; fewer if it is shorter."""
        with self.file.open("rb") as stream:
            return stream.read(16)

    @cached_property
    def _begin(self) -> tuple[Any, str | None]:
        fault = None
        if self.magic.startswith(b"PK") or self.file.suffix == ".tar":
            return None, None  # where files are not compressed, some of their lines can be read as records
        try:
            records = records_of(self.file)
            for _, record in records:
                if not isinstance(record, RecordError):
                    return record, None
                fault = fault or str(record)
            if isinstance(records, JsonLines) and records.is_cut:
                fault = fault or "it is not valid JSON, or cut off before its end"
            if fault and self.magic.split(b"\n")[0].strip() in (b"{", b"["):
                command = f"jq -c . {quote(visible(self.file))} > lines.jsonl"
                fault = f"it is not JSONL: each line must be a JSON value. Convert it: {command}"
        except (OSError, ValueError, RecursionError, LogsUIError) as error:
            fault = str(error) if isinstance(error, LogsUIError) else "it is damaged, or not what its name says"
        return None, fault

    @property
    def record(self) -> Any:
        """Return the first record of a JSONL, JSON or Parquet file, mostly a dict; None if it has none by now."""
        return self._begin[0]

    @property
    def fault(self) -> str | None:
        """Return why a JSONL, JSON, Parquet or zip file has no record; None if it has one, or nothing at all."""
        paths = [quote(visible(path)) for path in (self.file, self.file.with_suffix(""))]
        for name, begin, kind, command in _FOREIGN if self.magic else ():
            if re.match(begin, self.magic) and re.search(name, self.file.name):
                return f"it is {kind}. Convert it, and import the result: {command.format(*paths)}"
        if self.magic.startswith(b"PK") and not is_zipfile(self.file):
            return "it is a zip archive that is damaged, or cut off before its end"
        return self._begin[1] if self.magic and Path(_logical(self.file.name)).suffix in _RECORDS else None

    @property
    def keys(self) -> frozenset[str]:
        """Return the names in the first record; of a Parquet file these are its columns."""
        return frozenset(self.record) if isinstance(self.record, dict) else frozenset()

    @cached_property
    def tables(self) -> frozenset[str]:
        """Return the names of an SQLite file's tables; none if it is no such file."""
        if not self.magic.startswith(_SQLITE):
            return frozenset()
        with closing(open_read_only(self.file)) as connection:
            rows = connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
            return frozenset(name for (name,) in rows)


class SourceFile(NamedTuple):
    """A file that was found: its path, and its `Place.name`."""

    file: Path
    name: str


def find_files(paths: Iterable[str | Path], *, may_lack: bool = False) -> list[SourceFile]:
    """Return the files that paths, folders and globs name, in natural order: step_2 before step_10. Of a folder these
    are all that a reader could read, except hidden ones. Raise LogsUIError if a path names none, unless it may.
    """
    roots: list[Path] = []
    for path in paths:
        matches = [str(path)] if Path(path).exists() else glob(str(path), recursive=True)  # noqa: PTH207 - of any root
        if not matches and not may_lack:
            raise LogsUIError(f"There is nothing at {path}. Name a file, a folder, or a glob in quotes.")
        roots += map(Path, matches)
    folders = [root.absolute() if root.is_dir() else root.absolute().parent for root in roots]
    base = commonpath(folders) if folders else ""
    sources: dict[Path, SourceFile] = {}
    for root in roots:
        for file in [path for path in root.rglob("*") if _may_be_read(path, root)] if root.is_dir() else [root]:
            name = _logical(file.absolute().relative_to(base).as_posix())
            # A file that is found twice, as by a link, is read once.
            sources.setdefault(file.resolve(), SourceFile(file, name))
    return sorted(sources.values(), key=_place)


def are_apart(file: Path, other: Path) -> bool:
    """Return True if two files exist and differ: neither is a copy of the other, nor what was rotated from it."""
    try:
        return _logical(str(file)) != _logical(str(other)) and not cmp(file, other, shallow=False)
    except OSError:
        return False


def file_id(name: str, first: Any) -> str:
    """Return the `Place.id` of a file, from its name and its first record."""
    data = first if isinstance(first, bytes) else repr(first).encode(errors="surrogatepass")
    return blake2b(b"\0".join([name.encode(errors="surrogatepass"), data]), digest_size=8).hexdigest()


def records_of(file: Path) -> Iterable[tuple[int, Any]]:
    """Return the records of a JSONL, JSON or Parquet file with their numbers, from 1 on. In place of one that is no
    JSON there is a RecordError.
    """
    if file.suffix == ".parquet":
        return parquet_rows(file)
    return JsonLines(file) if _has_lines(file) else _json_items(file)


def open_read_only(file: Path) -> sqlite3.Connection:
    """Open an SQLite file for reading, with what its `-wal` has."""
    connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=_PATIENCE)
    connection.row_factory = sqlite3.Row
    return connection


def json_value(data: bytes) -> Any:
    """Decode JSON, also with a byte order mark, the constants NaN and Infinity, and lone surrogates, which Python's
    writers make. Raise ValueError, and RecordError before more than 1 GiB of memory is taken: a file or a line, which
    has 64 MiB at most, could become a hundred times as much by many small values, whose number is bounded.
    """
    if 240 * len(data) > _IN_MEMORY:  # else it cannot be
        lists, objects, values = map(data.count, (b"[", b"{", b","))  # at most: texts have these, too
        if 64 * lists + 240 * objects + 48 * values > _IN_MEMORY:
            raise RecordError(f"its values would take more than {_IN_MEMORY >> 20:,} MiB in memory")
    data = data.removeprefix(BOM_UTF8)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data.decode(errors="surrogateescape"))


class JsonLines:
    """Yields the records of a JSONL file. Iterated again, it goes on with what was added. A last line without its end
    is taken if it is whole JSON, and once more when it has its end.

    Attributes:
        file: its path.
        offset: bytes of the lines that were read with their ends.
        number: of these lines; empty ones count.
        is_cut: True if the file ends in the middle of a line.
        odd: number of lines that were read and are not UTF-8.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.offset = self.number = self.odd = 0
        self.is_cut = False
        self._end = b""  # of what was read

    def goes_on(self, file: Path) -> bool:
        """Return True if a file has what was read, at the same place."""
        with file.open("rb") as stream:
            stream.seek(self.offset - len(self._end))
            return stream.read(len(self._end)) == self._end

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """Yield number and record of each line; a RecordError for one that is no JSON, or too long."""
        self.is_cut = False
        with self.file.open("rb") as stream:  # not kept open: a run may have thousands of files
            stream.seek(self.offset)
            while line := stream.readline(_LONGEST + 1):
                size, end = len(line), line[-_END:]
                if size > _LONGEST:  # none of it is kept
                    line = b"too long"
                    while not end.endswith(b"\n") and (piece := stream.readline(_PIECE)):
                        size, end = size + len(piece), piece[-_END:]
                content, is_ended = line.strip(), end.endswith(b"\n")
                try:
                    record = json_value(content) if content and size <= _LONGEST else None
                except RecordError as error:
                    record = error
                except (ValueError, RecursionError):
                    if not is_ended:
                        self.is_cut = True
                        return
                    record = RecordError("it is not valid JSON")
                if size > _LONGEST:
                    record = RecordError(f"its line has more than {_LONGEST >> 20} MiB")
                if content:
                    yield self.number + 1, record
                self.odd += not is_utf8(content)
                if is_ended:
                    self.offset, self._end = self.offset + size, end
                    self.number += 1


def odd_lines(file: Path) -> int:
    """Return the number of lines of a JSON file that are not UTF-8."""
    with file.open("rb") as stream:
        return sum(not is_utf8(line) for line in stream) if file.suffix in _TEXTS else 0


def is_utf8(data: bytes) -> bool:
    """Return True if bytes are text in UTF-8."""
    try:
        return data.isascii() or bool(data.decode())
    except UnicodeDecodeError:
        return False


def _has_lines(file: Path) -> bool:
    """Return True if a file has a JSON value in each line, rather than one over several lines, or a list of all."""
    with file.open("rb") as stream:
        lines = [stream.readline(_LONGEST).strip(), stream.readline(_LONGEST).strip()]
    if len(lines[0]) == _LONGEST:  # it is refused, without being read
        return file.suffix != ".json"
    # A first line that is whole JSON is a record if another line follows, or if it is an object and the file is not
    # named `.json`. If it is no JSON, a file of another name has lines, the first one damaged, unless all is one value.
    with suppress(ValueError, RecursionError, RecordError):
        first, is_more = json_value(lines[0]), bool(lines[1])
        return is_more or (isinstance(first, dict) and file.suffix != ".json")
    with suppress(ValueError, RecursionError, RecordError):
        return file.suffix != ".json" and not (file.stat().st_size <= _MOST and json_value(file.read_bytes()))
    return file.suffix != ".json"


def _json_items(file: Path) -> Iterator[tuple[int, Any]]:
    if file.stat().st_size > _MOST:
        raise LogsUIError(f"{file} has more than {_MOST >> 20} MiB in one JSON value. Convert it to JSONL.")
    try:
        value = json_value(file.read_bytes())
    except (ValueError, RecursionError):
        raise RecordError("it is not valid JSON, or cut off before its end") from None
    columns, rows = (value.get(name) if isinstance(value, dict) else None for name in ("columns", "data"))
    if isinstance(columns, list) and isinstance(rows, list):  # a table of W&B
        value = [dict(zip(map(str, columns), row, strict=False)) if isinstance(row, list) else row for row in rows]
    yield from enumerate(value if isinstance(value, list) else [value], 1)


def parquet_rows(file: Path, *columns: str) -> Iterator[tuple[int, Any]]:
    """Yield the rows of a Parquet file as `records_of`, with these of its columns; with all if none are named. Raises
    RecordError if a row group says that it unpacks to more than 256 MiB and 64 times the file. A batch has so many rows
    as fit into 256 MiB if each is as large as a dictionary could make it.
    """
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as table:
        groups = map(table.metadata.row_group, range(table.metadata.num_row_groups))
        parts = [map(group.column, range(group.num_columns)) for group in groups]
        sizes = [[max(part.total_uncompressed_size, 8 * part.num_values) for part in group] for group in parts]
        if max(map(sum, sizes), default=0) > max(_GROUP, _RATIO * file.stat().st_size):
            raise RecordError(f"its rows would take more than {_RATIO} times the file's size in memory")
        rows = min(_BATCH, max(1, _GROUP // max([1, *chain(*sizes)])))
        batches = table.iter_batches(rows, columns=columns or None)
        yield from enumerate((row for batch in batches for row in batch.to_pylist()), 1)


def _may_be_read(file: Path, root: Path) -> bool:
    if any(part.startswith(".") for part in file.relative_to(root).parts) or not file.is_file():
        return False
    return Path(_logical(file.name)).suffix in SUFFIXES | _UNREAD


def _logical(name: str) -> str:
    return _ROTATED.sub("", name)


def _place(source: SourceFile) -> tuple[list[tuple[int, str]], int]:
    """Return where a file stands among others: step_2 before step_10, and older ones of a rotated file first."""
    rotated = _ROTATED.search(source.file.name)
    parts = re.split(r"(\d+)", _logical(str(source.file)))
    # Pairs, so that numbers are compared as numbers, and never with texts.
    natural = [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
    return natural, -int(rotated[1]) if rotated else 0
