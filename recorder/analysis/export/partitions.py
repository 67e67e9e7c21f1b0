"""Writes a run's rollouts to a folder of Parquet files, partitioned by steps in Hive's layout."""

import os
import re
import secrets
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Self
from urllib.parse import quote

from logs_ui.recorder.analysis.export.export_files import errors_of, hand_over
from logs_ui.recorder.analysis.export.parquet import Write, parquet_writer
from logs_ui.recorder.analysis.frames import Rows, chosen_rows, opened
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter
from logs_ui.recorder.queries.rollout_columns import COLUMNS

_OPEN = 128  # files at once: rows are nearly ordered by step, but processes may be many steps apart


@dataclass(frozen=True)
class Partitioning:
    """A rule that divides a run's rollouts into partitions.

    Attributes:
        steps: optimizer steps per partition. One gives folders `step=7`, ...; more give `step_from=100`, ..., named by
            the lowest step that the partition may contain.
    """

    steps: int = 1

    @classmethod
    def parse(cls, written: str) -> Self:
        """Parse `step`, or `step:100` for a hundred steps per partition.

        Raises:
            LogsUIError: it is neither.
        """
        found = re.fullmatch(r"step(?::0*([1-9]\d{0,17}))?", written, re.ASCII)
        if found is None:
            raise LogsUIError(
                f"There is no partition by {written!r}. Write step, or step:100 for a hundred steps in each."
            )
        return cls(int(found[1] or 1))

    @property
    def column(self) -> str:
        """The column that the folders are named by."""
        return "step" if self.steps == 1 else "step_from"

    @property
    def elsewhere(self) -> frozenset[str]:
        """The columns that are in the folders' names and not in the files: readers add them."""
        return frozenset({"run", self.column})

    def of(self, step: int) -> int:
        """Return the lowest step of the partition of a step."""
        return step - step % self.steps


def export_partitions(
    run: str,
    output: Path,
    db: str | os.PathLike[str] | None = None,
    *,
    by: str = "step",
    where: str | RolloutFilter | None = None,
    replace: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write a run's rollouts to Parquet files by step, as `output/run=ID/step=7/part-0.parquet`.

    The folder `output/run=ID` is written whole or not at all, and memory does not grow with the run. `output` may hold
    several runs. Columns and types are those of `export_run`'s Parquet. A partition usually has one file; rows that lie
    far apart in the database are in `part-1.parquet`, ...

    Args:
        run: see `export_run`.
        output: a folder, which is created if it is missing.
        db: see `export_run`.
        by: `step`, or `step:100` for a hundred steps per partition: `output/run=ID/step_from=300/part-0.parquet`.
        where: see `export_run`.
        replace: True to replace the run's folder if it exists.
        progress: see `export_run`.

    Returns:
        The number of rollouts that were written.

    Raises:
        RunNotFoundError, DatabaseError, FilterError: see `export_run`.
        LogsUIError: the folder cannot be written, or exists and may not be replaced, or `by` is invalid.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from logs_ui.recorder import export_partitions, start_run
        >>> folder = Path(tempfile.mkdtemp())
        >>> with start_run(db=folder / "runs.db") as run:
        ...     with run.rollout("What is 1 + 1?", step=7) as row:
        ...         row.score(1.0)
        >>> export_partitions(run.id, folder / "lake", folder / "runs.db")
        1
        >>> [path.parent.name for path in (folder / "lake").rglob("*.parquet")]
        ['step=7']
    """
    chosen, partitioning = chosen_rows(where), Partitioning.parse(by)
    with opened(run, db, chosen) as (engine, found), errors_of(str(output)):
        target = Path(output).expanduser().resolve() / f"run={quote(found.uid, safe='')}"
        if not target.parent.is_dir() and target.parent.exists():
            raise LogsUIError(f"{output} is not a folder. Name one to export to.")
        if target.exists() and not replace:
            raise LogsUIError(f"{target} is there already. Name another folder, or replace it with --force.")
        with _replaced_folder(target) as folder, _parts(folder, partitioning) as write:
            return hand_over(engine, found, chosen, write, progress)


@contextmanager
def _replaced_folder(target: Path) -> Iterator[Path]:
    """Create a folder beside `target`'s parent, where no reader looks; it replaces `target` once it is complete."""
    scratch = target.parent.with_name(f"{target.parent.name}.{secrets.token_hex(4)}.part")
    try:
        scratch.mkdir()
        (made := scratch / "new").mkdir()
        yield made
        target.parent.mkdir(exist_ok=True)
        if target.exists():
            target.rename(scratch / "old")
        made.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _parts(folder: Path, by: Partitioning) -> Iterator[Write]:
    """Yield a function that writes rows of any steps to the files of their partitions."""
    files: OrderedDict[int, _Part] = OrderedDict()  # least recently written first
    counts: dict[int, int] = {}

    def write(rows: Rows) -> None:
        def of_row(row: dict[str, object]) -> int:
            return by.of(int(str(row["step"])))

        for key, some in groupby(sorted(rows, key=of_row), of_row):
            if key not in files:
                files[key] = _Part(folder / f"{by.column}={key}" / f"part-{counts.get(key, 0)}.parquet", by)
                counts[key] = counts.get(key, 0) + 1
            files.move_to_end(key)
            files[key].write(list(some))
            if len(files) > _OPEN:
                files.popitem(last=False)[1].close()

    try:
        yield write
    finally:
        for part in files.values():
            part.close()


class _Part:
    """One open Parquet file of a partition."""

    def __init__(self, path: Path, by: Partitioning) -> None:
        path.parent.mkdir(exist_ok=True)
        columns = tuple(column for column in COLUMNS if column.name not in by.elsewhere)
        self._stack = ExitStack()
        file = self._stack.enter_context(path.open("xb"))
        self.write: Write = self._stack.enter_context(parquet_writer(file, columns))

    def close(self) -> None:
        self._stack.close()
