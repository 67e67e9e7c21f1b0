"""Writes a run's rollouts to a folder of Parquet files, partitioned by steps in Hive's layout."""

import os
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from logs_ui.recorder.analysis.chosen_rows import chosen_rows
from logs_ui.recorder.analysis.export.files import errors_of, hand_over, replaced
from logs_ui.recorder.analysis.export.parquet import Write, parquet_writer
from logs_ui.recorder.analysis.frames import Rows
from logs_ui.recorder.analysis.opened_runs import opened
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter
from logs_ui.recorder.queries.rollout_columns import COLUMNS

_OPEN = 128  # files at once: rows are nearly ordered by step, but processes may be many steps apart


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
    chosen, steps = chosen_rows(where, run, db), re.fullmatch(r"step(?::0*([1-9]\d{0,17}))?", by, re.ASCII)
    if steps is None:
        raise LogsUIError(f"There is no partition by {by!r}. Write step, or step:100 for a hundred steps in each.")
    with opened(run, db, chosen) as (engine, stored_run), errors_of(str(output)):
        target = Path(output).expanduser().resolve() / f"run={quote(stored_run.uid, safe='')}"
        if not target.parent.is_dir() and target.parent.exists():
            raise LogsUIError(f"{output} is not a folder. Name one to export to.")
        if target.exists() and not replace:
            raise LogsUIError(f"{target} already exists. Name another folder, or replace it with --force.")
        with replaced(target, target.parent) as folder, _parts(folder, int(steps[1] or 1)) as write:
            return hand_over(engine, stored_run, chosen, write, progress)


@contextmanager
def _parts(folder: Path, steps: int) -> Iterator[Write]:
    """Yield a function that writes rows of any steps to the files of their partitions, of so many steps each.

    A folder is named by its step, or by the lowest step that the partition may contain.
    """
    name = "step" if steps == 1 else "step_from"
    columns = tuple(
        column for column in COLUMNS if column.name not in {"run", name}
    )  # readers take these from the folders' names
    files: OrderedDict[int, tuple[Write, ExitStack]] = OrderedDict()  # least recently written first
    counts = Counter[int]()
    folder.mkdir()

    def lowest(row: dict[str, Any]) -> int:
        return int(row["step"]) // steps * steps

    def write(rows: Rows) -> None:
        for key, some in groupby(sorted(rows, key=lowest), lowest):
            if key not in files:
                path, stack = folder / f"{name}={key}" / f"part-{counts[key]}.parquet", ExitStack()
                path.parent.mkdir(exist_ok=True)
                counts[key] += 1
                files[key] = stack.enter_context(parquet_writer(stack.enter_context(path.open("xb")), columns)), stack
            files.move_to_end(key)
            files[key][0](list(some))
            if len(files) > _OPEN:
                files.popitem(last=False)[1][1].close()

    try:
        yield write
    finally:
        for _, stack in files.values():
            stack.close()
