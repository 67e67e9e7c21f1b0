"""Writes a run's rollouts to a Parquet, CSV or JSONL file, or as other tools read them."""

import csv
import io
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

import orjson
from sqlalchemy import Engine

from logs_ui.recorder import queries
from logs_ui.recorder.analysis.chosen_rows import chosen_rows
from logs_ui.recorder.analysis.export.atif import trial
from logs_ui.recorder.analysis.export.evaluation_rows import evaluation_row
from logs_ui.recorder.analysis.export.exported import Exported, iso
from logs_ui.recorder.analysis.export.otlp import sending, trace
from logs_ui.recorder.analysis.export.parquet import Write, parquet_writer
from logs_ui.recorder.analysis.export.verifiers_episodes import episode
from logs_ui.recorder.analysis.frames import Rows, chunks
from logs_ui.recorder.analysis.opened_runs import opened
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, nearest
from logs_ui.recorder.queries.rollout_columns import COLUMNS, Column, Kind
from logs_ui.recorder.storage.tables import Run

FORMATS = ("parquet", "csv", "jsonl")
_SHAPES = {"verifiers": episode, "atif": trial, "eval-protocol": evaluation_row, "otlp": trace}

_GROUP_BYTES = 64 << 20  # some 2,000 rollouts with their tokens: a million then leave 400 row groups to remember
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def export_run(
    run: str,
    format: Literal["parquet", "csv", "jsonl", "verifiers", "atif", "eval-protocol", "otlp"],  # noqa: A002
    output: Path | str,
    db: str | os.PathLike[str] | None = None,
    *,
    where: str | RolloutFilter | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write a run's rollouts to a file. Memory does not grow with the run, and the file is written whole or not at all.

    The columns of `parquet`, `csv` and `jsonl` are those of `load_run`. Lists and dicts are JSON text in CSV and
    Parquet; token arrays are lists in Parquet, and JSON text in CSV. Times are timestamps in Parquet, else ISO 8601.
    In CSV, a text that a spreadsheet would run as a formula gets a leading `'`. A server keeps what it took before an
    error.

    Args:
        run: a run's id, the beginning of one, a name (its newest run), or `latest`.
        format: `parquet`, `csv` or `jsonl`; or what other tools read, as docs/pandas.md describes it: `verifiers`,
            `eval-protocol` and `otlp`, a JSON object per line, and `atif`, a folder.
        output: the file's path; an existing file is replaced. The path of a folder that is empty, or not there, for
            `atif`. For `otlp` also the address of a server, as in `http://127.0.0.1:4318/v1/traces`.
        db: the database's path or address; LOGS_UI_DB or the user's default by default.
        where: selects rollouts, as in `load_run`; None takes all.
        progress: called with the number of rollouts written so far, and of all.

    Returns:
        The number of rollouts that were written.

    Raises:
        RunNotFoundError: there is no such run.
        DatabaseError: the database is missing or cannot be read, or a rollout is damaged.
        FilterError: the filter is invalid, or names a task, an eval, ... that the run does not have.
        LogsUIError: the file cannot be written, the folder is not empty, the format is unknown, or a server did not
            take all rollouts.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from logs_ui.recorder import export_run, start_run
        >>> folder = Path(tempfile.mkdtemp())
        >>> with start_run(db=folder / "runs.db") as run:
        ...     with run.rollout("What is 1 + 1?") as row:
        ...         row.turn("2")
        ...         row.score(1.0)
        >>> export_run(run.id, "csv", folder / "rollouts.csv", folder / "runs.db", where="reward>=1")
        1
    """
    _check_format(format, (*FORMATS, *_SHAPES))
    if format in ("parquet", "csv", "jsonl"):
        with _replaced(Path(output)) as file:
            return write_run(run, format, file, db, where=where, progress=progress, name=str(output))
    chosen = chosen_rows(where, run, db)
    with opened(run, db, chosen) as (engine, stored_run), _shaped(format, output, stored_run) as write:
        return hand_over(engine, stored_run, chosen, write, progress)


def write_run(
    run: str,
    format: Literal["parquet", "csv", "jsonl"],  # noqa: A002
    file: BinaryIO,
    db: str | os.PathLike[str] | None = None,
    *,
    where: str | RolloutFilter | None = None,
    progress: Callable[[int, int], None] | None = None,
    name: str = "The file",
) -> int:
    """Write as `export_run` does, into an open file. `name` is its name in messages; `progress` may raise to stop."""
    _check_format(format)
    chosen = chosen_rows(where, run, db)
    with opened(run, db, chosen) as (engine, stored_run), errors_of(name), _WRITERS[format](file, COLUMNS) as write:
        return hand_over(engine, stored_run, chosen, write, progress)


def write_table(format: str, output: Path, columns: tuple[Column, ...], rows: Iterable[dict[str, Any]]) -> None:  # noqa: A002
    """Write rows of other columns, as `export_run` writes a run's.

    Raises:
        LogsUIError: the file cannot be written, or the format is unknown.
    """
    _check_format(format)
    with _replaced(output) as file, errors_of(str(output)), _WRITERS[format](file, columns) as write:
        write(list(rows))


def hand_over(
    engine: Engine, run: Run, chosen: RolloutFilter, write: Write, progress: Callable[[int, int], None] | None
) -> int:
    """Write the chosen rollouts, chunk by chunk, and return their number."""
    done = 0
    total = queries.exact_count(engine, run.id or 0, chosen)
    for chunk in chunks(engine, run, chosen):
        write(chunk)
        done += len(chunk)
        if progress is not None:
            progress(done, max(done, total))  # more may have been written since they were counted
        del chunk  # before the next is read
    return done


def _check_format(format: str, formats: Iterable[str] = FORMATS) -> None:  # noqa: A002
    """Raise LogsUIError if there is no such format."""
    if format not in formats:
        hint = nearest(format, formats) or ", ".join(formats)
        raise LogsUIError(f"There is no format {format!r} to export to. Try {hint}.")


@contextmanager
def errors_of(name: str) -> Iterator[None]:
    """Turn an OSError into a LogsUIError that says which file or folder cannot be written."""
    try:
        yield
    except OSError as error:
        raise LogsUIError(f"{name} cannot be written: {error.strerror or error}. Name another file.") from error


@contextmanager
def _replaced(output: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces `output` once it is complete. Raise LogsUIError if it cannot be written."""
    target = Path(output).expanduser().resolve()  # follows links
    if target.exists() and not target.is_file():
        raise LogsUIError(f"{output} is not a file. Name a file to export to.")
    with errors_of(str(output)), replaced(target, target) as part, part.open("xb") as file:
        yield file


@contextmanager
def _new_folder(output: Path) -> Iterator[Path]:
    """Create a folder that becomes `output` once it is complete. Raise LogsUIError if there is something already."""
    target = output.expanduser().resolve()
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise LogsUIError(f"{output} already exists. Name a new folder, or an empty one.")
    with errors_of(str(output)), replaced(target, target) as folder:
        folder.mkdir()
        yield folder


@contextmanager
def replaced(target: Path, outermost: Path) -> Iterator[Path]:
    """Yield the path of a file or folder to write, which replaces `target` once it is complete. It is made beside
    `outermost`, which may be `target` or contain it, where no reader looks.
    """
    scratch = outermost.with_name(f"{outermost.name}.{secrets.token_hex(4)}.part")
    try:
        scratch.mkdir()
        yield scratch / "new"
        target.parent.mkdir(exist_ok=True)
        # A folder cannot replace one that has files, so the former one is moved away first.
        if target.is_dir():
            target.rename(scratch / "old")
        (scratch / "new").replace(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _shaped(format: str, output: Path | str, run: Run) -> Iterator[Write]:  # noqa: A002
    """Yield a function that writes rollouts as another tool reads them, to a file, a folder or a server."""
    with ExitStack() as stack:
        put: Callable[[Any], object]
        if format == "otlp" and str(output).startswith(("http://", "https://")):
            put = stack.enter_context(sending(str(output)))
        elif format == "atif":
            put = partial(_write_files, stack.enter_context(_new_folder(Path(output))))
        else:
            file = stack.enter_context(_replaced(Path(output)))

            def put(shaped: Any) -> object:
                # Not by orjson: NaN stays NaN, as verifiers and Eval Protocol write and read it.
                return file.write(json.dumps(shaped, ensure_ascii=False).encode() + b"\n")

        def write(rows: Rows) -> None:
            for row in rows:
                put(_SHAPES[format](Exported(row, run)))

        yield write


def _write_files(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


@contextmanager
def _csv_writer(file: BinaryIO, columns: tuple[Column, ...]) -> Iterator[Write]:
    def write(rows: Rows) -> None:
        text = io.StringIO(newline="")
        csv.writer(text).writerows([_cell(row[column.name], column.kind) for column in columns] for row in rows)
        file.write(text.getvalue().encode())

    file.write((",".join(column.name for column in columns) + "\r\n").encode())
    yield write


@contextmanager
def _jsonl_writer(file: BinaryIO, columns: tuple[Column, ...]) -> Iterator[Write]:
    times = [column.name for column in columns if column.kind == Kind.TIME]

    def write(rows: Rows) -> None:
        for row in rows:
            texts = {name: None if row[name] is None else iso(row[name]) for name in times}
            file.write(_json(row | texts) + b"\n")

    yield write


_WRITERS: dict[str, Callable[[BinaryIO, tuple[Column, ...]], AbstractContextManager[Write]]] = {
    "parquet": partial(parquet_writer, group_bytes=_GROUP_BYTES),
    "csv": _csv_writer,
    "jsonl": _jsonl_writer,
}


def _cell(value: Any, kind: Kind) -> Any:
    """Return a CSV cell: numbers stay numbers, and a text that looks like a formula is escaped."""
    if value is None:
        return ""
    if kind == Kind.TEXT:
        return f"'{value}" if value.startswith(_FORMULA) else value
    if kind == Kind.TIME:
        return iso(value)
    return value if kind in {Kind.WHOLE, Kind.MAYBE_WHOLE, Kind.NUMBER} else _json(value).decode()


def _json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
