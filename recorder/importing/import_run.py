"""Imports rollouts that another trainer or tool wrote, once or for as long as its files grow."""

import os
import sqlite3
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from operator import itemgetter
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple, Self

from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.importing import source_files
from logs_ui.recorder.importing.batch_writer import BatchWriter
from logs_ui.recorder.importing.formats import readers
from logs_ui.recorder.importing.imported_rows import finite_number, row_of, step_of
from logs_ui.recorder.importing.reader import ImportedScalars, ImportOptions, Reader
from logs_ui.recorder.importing.run_registry import RunRegistry
from logs_ui.recorder.importing.source_files import SUFFIXES, FileError, Head, JsonLines, Place, RecordError, odd_lines
from logs_ui.recorder.rows.draft_batches import RowDraft
from logs_ui.recorder.snapshot import error_line, visible
from logs_ui.recorder.snapshot import name as shortened
from logs_ui.recorder.spelling import misspelt, nearest
from logs_ui.recorder.storage.address import absolute, database_address
from logs_ui.recorder.storage.changes import RowChange, ScalarsChange
from logs_ui.recorder.storage.database import disposed, reading_engine, writing_engine
from logs_ui.recorder.storage.file_system import network_kind
from logs_ui.recorder.storage.writes.row_writes import delete_rows
from logs_ui.recorder.upkeep.small_transactions import Progress, unseen
from logs_ui.recorder.vocabulary import RunState

_MOST_BAD = 20  # records that could not be read, with their reasons


class BadRecord(NamedTuple):
    """A record that could not be read: its file, its number from 1 on (0 for the whole file), and the reason."""

    file: str
    number: int
    reason: str

    def place(self) -> str:
        """Return where it is, for people."""
        return visible(self.file) + (f", record {self.number:,}" if self.number else "")


@dataclass
class Imported:
    r"""The result of an import.

    Attributes:
        runs: ids of the runs, for `load_run()`.
        names: of these runs.
        rollouts: number of rollouts that were read and stored. Those that were there already count, too.
        replaced: number of records whose rollouts others of the same import replaced, as they have the same keys.
        notes: what else people should know of the import, in lines.
        new: how many of them were not there before; None if the database lies on a network and was not read.
        formats: number of files by format.
        bad: the first 20 records that could not be read.
        bad_count: number of all of them.
        unknown: files that no reader knows; beside files of a known format without .json, which are mostly settings.
        unused: names in `rewards` and `weights` that no rollout has as a reward, each with what to do instead.

    Examples:
        >>> from pathlib import Path
        >>> from logs_ui.recorder import import_run
        >>> _ = Path("1.jsonl").write_text('{"input": "2 + 3?", "output": "5", "score": 1.0, "step": 1}\nno JSON\n')
        >>> result = import_run("1.jsonl", db="runs.db")
        >>> result.rollouts, result.bad[0].number, result.formats
        (1, 2, {'verl': 1})
    """

    runs: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    rollouts: int = 0
    replaced: int = 0
    notes: list[str] = field(default_factory=list)
    new: int | None = None
    formats: dict[str, int] = field(default_factory=dict)
    bad: list[BadRecord] = field(default_factory=list)
    bad_count: int = 0
    unknown: list[str] = field(default_factory=list)
    unused: dict[str, str] = field(default_factory=dict)


def import_run(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    run: str | None = None,
    rewards: Sequence[str] | None = None,
    weights: Mapping[str, float] | None = None,
    format: str | None = None,  # noqa: A002 - as in export_run()
    mapping: str | os.PathLike[str] | None = None,
    strict: bool = False,
    db: str | os.PathLike[str] | None = None,
    progress: Progress = unseen,
) -> Imported:
    r"""Import the rollouts that another trainer or tool wrote, so that every page and check works on them.

    The content shows the format. An import that is repeated adds nothing; files that have grown add what is new.

    Args:
        path: A file, a folder or a glob, or several of them. Files of one format are one run, unless they name runs of
            their own.
        run: Name of the run, which then has all files; imports with the same name are one run. None takes the run's
            own id, else the name and the first record of the first file: a copy under the same names is the same run.
        rewards: Names of the columns that are rewards. None takes those that the format names as such.
        weights: Weight by reward; 1 for one that is missing. None takes the file's, else 1.
        format: Name of the format, such as "verl". None recognizes it.
        mapping: A TOML file that names the columns of any other JSONL, JSON or Parquet file; None without.
            `logs-ui import --suggest` prints one.
        strict: True to stop at the first record that cannot be read. Such a record is else counted and left out.
        db: Path or URL of the database; None as in `load_run()`.
        progress: Called with the name of the work, bytes read, and bytes there are.

    Raises:
        LogsUIError: There is nothing at a path, or no file is of a known format; or, if `strict`, a record cannot be
            read.
        DatabaseError: The database cannot be written.

    Examples:
        >>> import json
        >>> from pathlib import Path
        >>> from logs_ui.recorder import import_run, load_run
        >>> folder = Path("rollouts")
        >>> folder.mkdir()
        >>> row = {"input": "user\n2 + 3?\nassistant\n", "output": "5", "gts": "5", "score": 1.0, "step": 1}
        >>> _ = (folder / "1.jsonl").write_text(json.dumps(row) + "\n")  # as verl writes it
        >>> result = import_run(folder, db="runs.db")
        >>> load_run(result.runs[0], db="runs.db")[["step", "reward"]]
           step  reward
        0     1     1.0
    """
    paths = [path] if isinstance(path, str | os.PathLike) else path
    options = ImportOptions(rewards, weights or {}, None if mapping is None else Path(mapping))
    with Importer(paths, options, run=run, format=format, strict=strict, db=db, progress=progress) as importer:
        importer.take()
    return importer.result


@dataclass
class _File:
    """Says how far a file was read."""

    source: source_files.SourceFile
    before: str = ""  # id of what stood at its path before
    rollouts_before: int = 0  # of that
    stale: set[tuple[str, str]] = field(default_factory=set)  # run and key of each of them, if files are followed
    keys: set[tuple[str, str]] = field(default_factory=set)  # of those that were read
    reader: Reader | None = None  # None if no reader knows it
    lines: JsonLines | None = None  # which goes on where it ended
    number: int = 0  # of the last record that was counted
    twin: "_File | None" = None  # the first file with the same id, of which it is mostly a copy
    id: str = ""
    last_state: tuple[int, int] = (0, 0)  # its `state` when it was read last
    counts: Counter[str] = field(default_factory=Counter)  # its share of the result's counts
    whole_counts: Counter[str] = field(default_factory=Counter)  # the same, without a last line that has no end yet

    def state(self) -> tuple[int, int]:
        """Return its size, and when it was written last, in ns since the epoch; with SQLite's log."""
        statuses = []
        for path in (self.source.file, Path(f"{self.source.file}-wal")):
            with suppress(FileNotFoundError):  # it may be deleted at any time
                statuses.append(path.stat())
        return sum(status.st_size for status in statuses), max((status.st_mtime_ns for status in statuses), default=0)

    def is_replaced(self) -> bool:
        """Return True if it was written anew since it was read."""
        return self.last_state != self.state() and (self.lines is None or not self.lines.goes_on(self.source.file))


class Importer:
    """Reads files and writes their rollouts. `take()` reads what is new since last time; `close()` ends the runs."""

    def __init__(
        self, paths: Sequence[str | os.PathLike[str]], options: ImportOptions, *, run: str | None = None,
        format: str | None = None, strict: bool = False, db: str | os.PathLike[str] | None = None,  # noqa: A002
        is_followed: bool = False, progress: Progress = unseen,
    ) -> None:  # fmt: skip
        """Open the database; it is created if it is missing. Raise as `import_run`.

        If files are followed, they may grow and come later: then a line without an end, and a path without a file, are
        no faults.
        """
        self.result = Imported()
        self._paths = [Path(path).expanduser() for path in paths]
        self._options, self._is_strict, self._progress = options, strict, progress
        self._is_followed = is_followed
        kinds = {reader.name: reader for reader in readers()}
        name = format or ("map" if options.mapping else None)
        if name is not None and name not in kinds:
            raise misspelt("as", f"--as {name}: unknown format", name, [*kinds])
        if options.mapping is not None and not options.mapping.exists():
            raise LogsUIError(f"There is no {options.mapping}.")
        self._forced_reader = kinds[name] if name else None
        self._readers: dict[type[Reader], Reader] = {}
        self._files: dict[tuple[int, int], _File] = {}  # by device and inode: a rotated file keeps them
        self._ids: dict[str, _File] = {}
        self._unknown: dict[str, tuple[Path, str | None]] = {}  # files that no reader knows, and their faults, by name
        self._rewards, self._numeric_names = set[str](), set[str]()  # names of rewards, and of these and metrics
        source_files.find_files(self._paths, may_lack=is_followed)  # raises before a database is made
        self._address = absolute(database_address(db))
        writing_engine(self._address).dispose()  # raises if it cannot be written
        self._engine = reading_engine(self._address)  # kept: files may have thousands of runs
        self._is_remote = isinstance(self._address, Path) and network_kind(self._address) is not None
        self._writer = BatchWriter(self._address, spools_always=self._is_remote)
        stored_before = None if self._is_remote else self._engine
        self._runs = RunRegistry(run, self._paths[0], stored_before, self._writer.append)
        # Where the sources' own keys were read, by hash of run and key; of many, it is a temporary file.
        self._places = sqlite3.connect("", isolation_level=None)
        self._places.execute("CREATE TABLE place (key INTEGER PRIMARY KEY, name TEXT)")

    def take(self) -> None:
        """Read and store what is new. Raise LogsUIError as `import_run`."""
        self._places.execute("DELETE FROM place")
        sources = source_files.find_files(self._paths, may_lack=self._is_followed)
        files = [(file, reader) for file in map(self._open_file, sources) if file and (reader := file.reader)]
        self.result.formats = dict(Counter(reader.name for _, reader in files))
        # Beside files that are known, those are mostly settings and logs of the same program.
        unknown = self._unknown.items()
        self.result.unknown = [name for name, (path, fault) in unknown if fault or not files or path.suffix != ".json"]
        if not files and not self._is_followed:
            raise LogsUIError(self._why_none())
        ends = [0, *accumulate(file.state()[0] for file, _ in files)]
        for (file, reader), begin in zip(files, ends, strict=False):
            self._read_file(file, reader, begin, ends[-1])
        self._writer.flush(and_wait=True)
        self.result.notes += [
            note for reader in self._readers.values() for note in reader.notes if note not in self.result.notes
        ]
        self._writer.tick()
        self._list_runs()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.close(error)

    def close(self, error: BaseException | None = None) -> None:
        """Write that the runs ended, with what ended them, and close the database."""
        state = RunState.FINISHED
        if error is not None:
            state = RunState.INTERRUPTED if isinstance(error, KeyboardInterrupt) else RunState.FAILED
        try:
            self._list_runs()
            self._runs.end(state, None if error is None else error_line(error))
        finally:
            self._places.close()
            self._writer.close()
        if not self._is_remote:
            self.result.new = self._runs.count_new()
        self._engine.dispose()
        self.result.unused = self._hints_for_unused() if self.result.rollouts else {}

    def _list_runs(self) -> None:
        self.result.runs, self.result.names = [*self._runs.names], [*self._runs.names.values()]

    def _hints_for_unused(self) -> dict[str, str]:
        hints = {}
        for name in {*(self._options.rewards or ()), *self._options.weights} - self._rewards:
            near = nearest(name, self._numeric_names)
            if name in self._numeric_names:
                hints[name] = f"it is a metric until --rewards names it, too: --rewards {name}"
            elif near:
                hints[name] = f"did you mean {near!r}?"
            else:
                hints[name] = f"there are {', '.join(sorted(self._numeric_names)[:12]) or 'none'}"
        return hints

    def _open_file(self, source: source_files.SourceFile) -> _File | None:
        """Return how far a file was read; None if it was deleted meanwhile."""
        with suppress(FileNotFoundError):
            status = source.file.stat()
            key = status.st_dev, status.st_ino
            file = self._files.get(key) or _File(source)
            was_here, file.source = file.source.file == source.file, source  # it may have been renamed
            if key not in self._files or file.is_replaced():
                new = _File(source)
                # What a file gave before it was written anew is not counted any more, and deleted if it is gone.
                if was_here:
                    new.before, new.rollouts_before = file.id or file.before, file.counts["rollouts"]
                    new.stale = file.keys | file.stale
                    self._uncount(file, Counter())
                    self.result.bad = [bad for bad in self.result.bad if bad.file != source.name]
                file = self._files[key] = new
                try:
                    file.reader = self._reader_of(source)
                except (FileNotFoundError, LogsUIError):  # the latter are of a mapping
                    raise
                except Exception as error:  # noqa: BLE001 - a file may contain anything
                    self._leave_out(file, Place(*source, "", 0), f"the file cannot be read: {_reason(error)}")
                if file.reader is None:  # it is not looked at again until it changes
                    file.last_state = file.state()
            return file
        return None

    def _uncount(self, file: _File, remaining: Counter[str]) -> None:
        """Take back what was counted of a file, except what remains, as it is read again."""
        self.result.rollouts -= file.counts["rollouts"] - remaining["rollouts"]
        self.result.bad_count -= file.counts["bad"] - remaining["bad"]
        file.counts = remaining.copy()

    def _reader_of(self, source: source_files.SourceFile) -> Reader | None:
        head = Head(source.file)
        if "logs_ui_schema" in head.tables:  # our own database may lie beside them
            return None
        kind = self._forced_reader or next((reader for reader in readers() if reader.recognizes(head)), None)
        if kind is None:
            if head.magic:
                self._unknown[source.name] = source.file, head.fault
            return None
        self._unknown.pop(source.name, None)  # it was empty, or cut off, when it was looked at before
        if kind not in self._readers:
            self._readers[kind] = kind(self._paths[0], self._options)
        return self._readers[kind]

    def _why_none(self) -> str:
        for file, fault in self._unknown.values():
            if fault:
                return f"{visible(file)}: {fault}"
        if self.result.bad:
            return f"{visible(self.result.bad[0].file)}: {self.result.bad[0].reason}."
        if not self._unknown:
            kinds = ", ".join(sorted(SUFFIXES))
            return f"{visible(self._paths[0])} holds nothing to read: no file of {kinds}, or only empty ones."
        head = Head(next(iter(self._unknown.values()))[0])
        path = quote(visible(head.file))
        keys = head.keys | head.tables
        candidates = [(reader, marks) for reader in readers() for marks in reader.alternatives()]
        near, marks = max(candidates, key=lambda pair: len(pair[1] & keys) / len(pair[1]))
        has = f": it has {_list_names(sorted(keys))}" if keys else ""
        missing = _list_names(sorted(marks - keys))
        lacks = f"it lacks {missing}" if missing else "the file's name or kind is another"
        lacking = f"Nearest is {near.name} ({near.marks}): {lacks}."
        return "\n".join((
            f"No reader knows {', '.join(map(visible, [*self._unknown][:3]))}{has}.",
            lacking if marks & keys else "It has no key by which a format is known: docs/import.md lists them.",
            f"Name the format with --as, or columns: logs-ui import --suggest {path} > mapping.toml",
        ))  # fmt: skip

    def _read_file(self, file: _File, reader: Reader, begin: int, total: int) -> None:
        """Read what is new in a file. `begin` and `total` are bytes of the files before it, and of all files."""
        if file.last_state == (state := file.state()):
            return
        file.last_state = state
        # A last line without an end is read once more when it has its end, so what it gave is not counted any more.
        self._uncount(file, file.whole_counts)
        place = Place(*file.source, file.id, 0)
        for number, record in self._records_of(file, reader):
            file.whole_counts = file.counts.copy()
            if not file.id and not isinstance(record, RecordError):
                file.id = self._id_of(file, record)
            place = Place(*file.source, file.id, number)
            for outcome in self._changes_of(reader, record, place, state[1] // 1_000):
                self._add_outcome(file, place, outcome)
                if self._writer.is_full:
                    self._writer.flush()
                    self._progress("importing", begin + (file.lines.offset if file.lines else 0), total)
        # If the last line has its end, what it gave stays counted, too.
        if file.lines is None or file.lines.number >= place.number:
            file.whole_counts = file.counts.copy()
        if odd := file.lines.odd if file.lines else odd_lines(file.source.file):
            line = f"{visible(place.name)}: bytes that are not UTF-8 are shown as \ufffd in "
            self.result.notes = [note for note in self.result.notes if not note.startswith(line)]
            self.result.notes.append(f"{line}{odd:,} line{'s' * (odd > 1)}. iconv converts it to UTF-8.")
        self._delete_stale(file)
        if file.lines is not None and file.lines.is_cut and not self._is_followed:
            self._leave_out(file, place._replace(number=file.lines.number + 1), "it is cut off before its end")

    def _records_of(self, file: _File, reader: Reader) -> Iterator[tuple[int, Any]]:
        """Yield new records with their numbers; a RecordError in place of what cannot be read on."""
        number = 0
        try:
            records = file.lines or reader.records(file.source.file)
            if isinstance(records, JsonLines):
                file.lines, records.file = records, file.source.file
            for number, record in records:
                yield number, record
        except Exception as error:  # noqa: BLE001 - a file may contain anything
            where = "reading it stopped here" if number else "the file cannot be read"
            yield number + 1, (RecordError if number else FileError)(f"{where}: {_reason(error, reader)}")

    def _delete_stale(self, file: _File) -> None:
        """Delete the rollouts that a file had before it was written anew, unless it or another file has them."""
        if not file.stale or file.id != file.before or self._is_remote:
            return
        gone = sorted(file.stale.difference(*(other.keys for other in self._files.values())))
        file.stale = set()
        self._writer.flush(and_wait=True)
        with disposed(writing_engine(self._address)) as engine, engine.begin() as connection:
            for uid, keys in groupby(gone, itemgetter(0)):
                delete_rows(connection, uid, [key for _, key in keys])

    def _add_outcome(self, file: _File, place: Place, outcome: RowDraft | ScalarsChange | RecordError) -> None:
        if isinstance(outcome, RecordError):
            self._leave_out(file, place._replace(number=0) if isinstance(outcome, FileError) else place, str(outcome))
            return
        arrays = vars(outcome.tokens).values() if isinstance(outcome, RowDraft) and outcome.tokens else ()
        size = sum(array.nbytes for array in arrays if array is not None)
        self._writer.append(outcome, size + (len(outcome.content) if isinstance(outcome, RowDraft) else 0))
        if isinstance(outcome, RowDraft):
            change = outcome.change
            self._runs.widen(change.run, change.columns["created"], change.columns["returned"])
            if self._options.rewards or self._options.weights:
                self._rewards |= {*(change.columns.get("rewards") or ())}
                self._numeric_names |= self._rewards | {*(change.columns["metrics"] or ())}
            if self._is_followed:
                file.keys.add((change.run, change.uid))
            if self._is_first(file, place, change):
                self.result.rollouts += 1
                file.counts["rollouts"] += 1
                file.number = place.number

    def _is_first(self, file: _File, place: Place, change: RowChange) -> bool:
        """Return False, and say so, if a rollout replaces another of this import. Raise LogsUIError if strict."""
        # The key of a place is its own, but for a copy of the file, which is the same rollouts.
        if file.twin and place.number <= file.twin.number:
            return False
        if file.reader is None or (place.id and change.uid.startswith(place.id)):
            return True
        key, record_name = hash((change.run, change.uid)), f"record {place.number} of {visible(place.name)}"
        self._places.execute("INSERT OR IGNORE INTO place VALUES (?, ?)", (key, record_name))
        (first,) = self._places.execute("SELECT name FROM place WHERE key = ?", (key,)).fetchone()
        if first == record_name or file.reader.may_repeat:
            return bool(first == record_name)
        text = visible(shortened(change.uid))
        line = f"{visible(place.name)}, record {place.number}: it has the key {text!r} of {first}, too, and replaces it"
        line += ". Map another column to `key`, or none" if file.reader.name == "map" else ""
        if self._is_strict:
            raise LogsUIError(f"{line}. Without --strict the later one is taken.")
        self.result.replaced += 1
        if self.result.replaced == 1:
            self.result.notes.append(f"{line}.")
        return False

    def _id_of(self, file: _File, record: Any) -> str:
        """Return the `Place.id` of a file that begins with a record: JSONL that is written anew at its path has that of
        what was there, and files that only begin alike are told apart by their folders.
        """
        path, before = file.source.file, self._ids.get(file.before)
        file_id = file.before
        # TRL writes its Parquet anew for the evaluation of a step: that does not replace the training's rollouts.
        # The shortest name that tells the file from others which begin alike: its own, with folders, or its whole path.
        if file.lines is None or before is None or before.source.file != path:
            for name in (Path(file.source.name).name, file.source.name, str(path.absolute())):
                file_id = source_files.file_id(name, record)
                other = self._ids.get(file_id)
                if other is None or not source_files.are_apart(other.source.file, path):
                    break
        # Another file stands at the path: the rollouts of the earlier one stay, and count again.
        if file_id != file.before:
            self.result.rollouts += file.rollouts_before
        other = self._ids.get(file_id)
        if other and other is not file:
            if other.source.file != path:
                file.twin = other.twin or other
            else:  # another file was moved to its place
                file.before, file.stale, other.keys = file_id, file.stale | other.keys, set()
                self._uncount(other, Counter())
        self._ids[file_id] = file
        return file_id

    def _changes_of(
        self, reader: Reader, record: Any, place: Place, written: int
    ) -> Iterator[RowDraft | ScalarsChange | RecordError]:
        """Yield the changes of one record of a file that was written then (µs). A fault yields a RecordError."""
        try:
            for item in [record] if isinstance(record, RecordError) else reader.rollouts(record, place):
                if isinstance(item, RecordError):
                    yield item
                    continue
                uid = self._runs.find_run(reader, item, place, written)
                if isinstance(item, ImportedScalars):
                    numbers = {
                        name: value for name, value in item.values.items() if isinstance(value, int | float | None)
                    }
                    values = {shortened(name): finite_number(value) for name, value in numbers.items()}
                    yield ScalarsChange(uid, step_of(item), values)
                else:
                    yield row_of(item, uid, *self._runs.place_in_group(uid, item), written, reader.name)
        except Exception as error:  # noqa: BLE001 - a file may contain anything
            yield RecordError(_reason(error, reader))

    def _leave_out(self, file: _File, place: Place, reason: str) -> None:
        """Count a record that cannot be read. Raise LogsUIError if that stops the import."""
        bad = BadRecord(place.name, place.number, reason)
        if self._is_strict:
            raise LogsUIError(f"{bad.place()}: {bad.reason}. Without --strict it is left out.")
        self.result.bad_count += 1
        file.counts["bad"] += 1
        if len(self.result.bad) < _MOST_BAD and bad not in self.result.bad:
            self.result.bad.append(bad)


def _list_names(names: Sequence[str]) -> str:
    return ", ".join(f"`{visible(name[:40])}`" for name in names[:8]) + (" ..." if len(names) > 8 else "")


def _reason(error: Exception, reader: Reader | None = None) -> str:
    """Return why a file or a record cannot be read, in a line without the words of Python's errors."""
    if isinstance(error, LogsUIError):
        return " ".join(str(error).split())[:200]
    if isinstance(error, KeyError) and error.args:
        return f"it lacks `{visible(str(error.args[0])[:80])}`"
    if reader is not None and not isinstance(error, OSError | sqlite3.Error | zipfile.BadZipFile):
        return f"it is not as {reader.title} writes it"
    if "locked" in str(error):
        return "another program has it locked"
    if isinstance(error, PermissionError):
        return "its permissions do not let it be read"
    return "it is damaged, or not what its name says"
