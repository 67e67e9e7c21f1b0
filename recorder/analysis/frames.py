"""Loads rollouts, runs and scalars as pandas DataFrames. `export/files.py` writes rollouts to files.

pandas is imported where it is used, because recording, inside the training process, does not need it.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import Engine

from logs_ui.recorder import queries
from logs_ui.recorder.analysis.chosen_rows import chosen_rows
from logs_ui.recorder.analysis.opened_runs import opened, opened_database
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.labels import tags_in
from logs_ui.recorder.queries import Annotation, Rollout, RunSummary
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, nearest
from logs_ui.recorder.queries.rollout_columns import BY_NAME, COLUMNS, Column, Kind
from logs_ui.recorder.storage.tables import EvaluationRow, Run

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


RUN_COLUMNS = (
    Column("run", Kind.TEXT, "the run's id"),
    Column("name", Kind.TEXT, "the trainer's `run_name`, else the id"),
    Column("project", Kind.TEXT, "as `record(project=...)` or LOGS_UI_PROJECT named it; absent where neither did"),
    Column("state", Kind.TEXT, "`running`, `finished`, `failed`, `interrupted`, or `died` (pages: crashed)"),
    Column("error", Kind.TEXT, "what ended it, in one line"),
    Column("created", Kind.TIME, "when it first reported"),
    Column("heartbeat", Kind.TIME, "when it last reported"),
    Column("finished", Kind.TIME, "when it ended, in whatever way"),
    Column("rollouts", Kind.WHOLE, "number of rollouts"),
    Column("steps", Kind.WHOLE, "the highest step that a rollout has; 0 in an evaluation that names none"),
    Column(
        "reward", Kind.NUMBER, "mean over the last 10 training steps that have one; of an evaluation, over all of it"
    ),
    Column("model", Kind.TEXT, "name or path of the model that is trained, or evaluated"),
    Column("max_steps", Kind.MAYBE_WHOLE, "optimizer steps planned"),
    Column("num_generations", Kind.MAYBE_WHOLE, "completions in a group while training"),
    Column("parent", Kind.TEXT, "id of the run whose checkpoint it continues from"),
    Column("output_dir", Kind.TEXT, "where the trainer writes its checkpoints"),
    Column("host", Kind.TEXT, "host of its first process"),
    Column("pid", Kind.MAYBE_WHOLE, "process id of its first process"),
    Column("git_commit", Kind.TEXT, "commit of the working directory; absent outside a repository"),
    Column("git_dirty", Kind.MAYBE_TRUE, "True if tracked files differed from that commit"),
    Column("config", Kind.NESTED, "the trainer's arguments, or the evaluation's, by name"),
    Column("versions", Kind.NESTED, "versions of Python, TRL, torch, ..., by package"),
    Column("unattributed_calls", Kind.WHOLE, "model and environment calls that could not be matched to a rollout"),
    Column("unattributed_scoring", Kind.WHOLE, "calls of reward functions that could not be matched to a rollout"),
    Column(
        "unattributed_errors", Kind.NESTED, "errors of unattributed calls that failed, each with its number of calls"
    ),
    Column(
        "unseen_sampling", Kind.MAYBE_WHOLE, "rollouts that returned tokens although no call of a model was recorded"
    ),
    Column("recorder_errors", Kind.WHOLE, "failures inside the recorder"),
    Column("dropped", Kind.WHOLE, "changes lost to a full queue or a disk error"),
    Column("dropped_payloads", Kind.WHOLE, "rollouts that lost their messages and tokens to a full queue"),
    Column("pruned", Kind.WHOLE, "rollouts whose messages and tokens `logs-ui prune` deleted"),
)


ARRAYS = {Kind.IDS: np.int32, Kind.LOGPROBS: np.float32, Kind.MASK: np.uint8}

PAYLOAD = frozenset(
    {"messages", "actions", "sampling", "metadata", *(column.name for column in COLUMNS if column.kind in ARRAYS)}
)
"""Names of the columns that are stored in each rollout's payload, which takes longer to read."""

_OF_PEOPLE = frozenset({"tags", "starred", "note"})
_STORED = [column.name for column in COLUMNS if column.name in EvaluationRow.model_fields]

Rows = list[dict[str, Any]]


def load_run(
    run: str = "latest",
    db: str | os.PathLike[str] | None = None,
    *,
    where: str | RolloutFilter | None = None,
    columns: Iterable[str] | None = None,
) -> "pd.DataFrame":
    """Load a run's rollouts, one row each, in the order in which they began.

    The columns are listed in `COLUMNS` and docs/pandas.md; an empty run has them, too. Texts have the dtype `string`,
    counts that may be absent `Int64`, times `datetime64[us, UTC]`, numbers `float64` with NaN if absent. `messages`,
    `actions`, `sampling`, `metadata`, `rewards`, `odd_rewards`, `reward_weights`, `metrics` and `tags` are lists and
    dicts. `prompt_ids`, `completion_ids`, `logprobs` and `mask` are numpy arrays, or None.

    Args:
        run: a run's id, the beginning of one, a name (its newest run), or `latest`.
        db: the database's path or address; LOGS_UI_DB or the user's default by default.
        where: selects rollouts by the dashboard's filter language, as in `"reward<0.2 status:error"`, or by a
            RolloutFilter, whose `sort` is ignored. None for all.
        columns: names of columns, in this order. Columns before `messages` in `COLUMNS` need no payload, and take a
            tenth of the time or less. None for all.

    Raises:
        RunNotFoundError: there is no such run.
        DatabaseError: the database is missing or cannot be read, or a rollout is damaged.
        FilterError: the filter is invalid, or names a task, an eval, ... that the run does not have.
        LogsUIError: there is no column of that name.

    Examples:
        >>> import tempfile
        >>> from logs_ui.recorder import load_run, start_run
        >>> db = f"{tempfile.mkdtemp()}/runs.db"
        >>> with start_run(db=db) as run:
        ...     with run.rollout("What is 1 + 1?", task="sum") as row:
        ...         row.turn("2")
        ...         row.score(1.0)
        >>> frame = load_run(run.id, db, where="task:sum", columns=["task", "reward", "turns"])
        >>> frame.to_dict("records")
        [{'task': 'sum', 'reward': 1.0, 'turns': 1}]
    """
    chosen, wanted = chosen_rows(where, run, db), _chosen_columns(columns)
    with opened(run, db, chosen) as (engine, stored_run):
        if not PAYLOAD.isdisjoint(wanted):
            frame = frame_of(COLUMNS, (row for chunk in chunks(engine, stored_run, chosen) for row in chunk))
        else:
            frame = _headers(engine, stored_run, chosen, {*wanted, "created"})
    if not frame["created"].is_monotonic_increasing:
        # They are read by id. Rows of several threads and processes are not written in the order in which they began.
        frame = frame.sort_values("created", kind="stable", ignore_index=True)
    return frame if columns is None else frame[list(wanted)]


def load_runs(db: str | os.PathLike[str] | None = None) -> "pd.DataFrame":
    """Load all runs, one row each, newest first.

    The columns are listed in `RUN_COLUMNS`, with the dtypes of `load_run`; `git_dirty` is `boolean`, `config` and
    `versions` are dicts.

    Args:
        db: the database's path or address; LOGS_UI_DB or the user's default by default.

    Raises:
        DatabaseError: the database is missing or cannot be read.

    Examples:
        >>> import tempfile
        >>> from logs_ui.recorder import load_runs, start_run
        >>> db = f"{tempfile.mkdtemp()}/runs.db"
        >>> with start_run(db=db) as run:
        ...     with run.rollout("What is 1 + 1?", task="sum") as row:
        ...         row.turn("2")
        ...         row.score(1.0)
        >>> load_runs(db)[["state", "rollouts", "reward"]].to_dict("records")
        [{'state': 'finished', 'rollouts': 1, 'reward': 1.0}]
    """
    with opened_database(db) as engine:
        return frame_of(RUN_COLUMNS, (_run_values(summary) for summary in queries.all_runs(engine)))


def load_scalars(run: str = "latest", db: str | os.PathLike[str] | None = None) -> "pd.DataFrame":
    """Load what a run's trainer logged, one row per step that has any values.

    The index is `step`; each name is a `float64` column, in alphabetical order, NaN where nothing was logged.

    Args:
        run: a run's id, the beginning of one, a name (its newest run), or `latest`.
        db: the database's path or address; LOGS_UI_DB or the user's default by default.

    Raises:
        RunNotFoundError: there is no such run.
        DatabaseError: the database is missing or cannot be read.

    Examples:
        >>> import tempfile
        >>> from logs_ui.recorder import load_scalars, start_run
        >>> db = f"{tempfile.mkdtemp()}/runs.db"
        >>> with start_run(db=db) as run:
        ...     run.log(1, {"loss": 0.5})
        ...     run.log(2, {"loss": 0.25})
        >>> load_scalars(run.id, db)["loss"].to_dict()
        {1: 0.5, 2: 0.25}
    """
    import pandas as pd

    with opened(run, db) as (engine, stored_run):
        logged = queries.scalars(engine, stored_run.id or 0)
    by_name: dict[str, dict[int, float | None]] = {}
    for scalar in logged:
        by_name.setdefault(scalar.name, {})[scalar.step] = scalar.value
    steps = pd.Index(sorted({scalar.step for scalar in logged}), dtype="int64", name="step")
    return pd.DataFrame({name: pd.Series(values, steps, "float64") for name, values in by_name.items()}, steps)


def load_image(hash: str, db: str | os.PathLike[str] | None = None) -> bytes:  # noqa: A002
    """Load an image that an observation refers to by `{"$image": hash, "width": ..., "media_type": ...}`.

    Args:
        hash: the value of `$image`.
        db: the database's path or address; LOGS_UI_DB or the user's default by default.

    Returns:
        The bytes of a PNG, JPEG or WebP, as `media_type` says.

    Raises:
        ImageNotFoundError: there is no image with that hash.
        DatabaseError: the database is missing or cannot be read.

    Examples:
        >>> import numpy as np
        >>> from logs_ui.recorder import load_image, load_run, start_run
        >>> with start_run(db="runs.db") as run:
        ...     with run.rollout("Close the window.") as row:
        ...         row.turn("click", observation=np.zeros((16, 16, 3), np.uint8))
        >>> (action,) = load_run(run.id, db="runs.db").actions[0]
        >>> load_image(action["observation"]["$image"], db="runs.db")[1:4]
        b'PNG'
    """
    with opened_database(db, is_waiting=False) as engine:
        return queries.image(engine, hash).data


def chunks(engine: Engine, run: Run, chosen: RolloutFilter) -> Iterator[Rows]:
    """Yield the chosen rollouts in chunks; no chunk is kept while the next one is read."""

    def values(chunk: list[Rollout]) -> Rows:
        annotations = queries.annotations(engine, run, [rollout.row for rollout in chunk])
        return [
            _values(run, rollout_of, annotations.get(rollout_of.row.id or 0, queries.NOTHING)) for rollout_of in chunk
        ]

    return map(values, queries.rollouts(engine, run.id or 0, chosen))


def _of_run(run: Run) -> dict[str, str | None]:
    """Return the columns that are the same for all rollouts of a run."""
    return {"run": run.uid, "project": run.project}


def _values(run: Run, rollout: Rollout, annotation: Annotation) -> dict[str, Any]:
    """Return a rollout's values by column: Python's own, numpy arrays, and times in µs."""
    values: dict[str, Any] = {name: getattr(rollout.row, name) for name in _STORED}
    values |= {name: getattr(rollout, name) for name in ("messages", "actions", "sampling", "metadata")}
    for column in COLUMNS:
        if column.kind in ARRAYS:
            array = getattr(rollout.tokens, column.name, None)
            # A copy: what was unpacked is read-only, and sums of float16 overflow.
            values[column.name] = None if array is None else array.astype(ARRAYS[column.kind])
    # The tags of a pruned rollout are only in its annotation.
    tags = sorted({*tags_in(rollout.metadata), *annotation.all_tags})
    values |= {**_of_run(run), "tags": tags, "starred": annotation.starred, "note": annotation.note}
    return {column.name: values[column.name] for column in COLUMNS}


def _chosen_columns(names: Iterable[str] | None) -> dict[str, Column]:
    """Return the columns by name, in this order; all of them for None. An unknown name raises LogsUIError."""
    for name in names or ():
        if name not in BY_NAME:
            hint = nearest(name, BY_NAME) or "one of docs/pandas.md"
            raise LogsUIError(f"There is no column {name!r}. Try {hint}.")
    return BY_NAME if names is None else {name: BY_NAME[name] for name in names}


def _headers(engine: Engine, run: Run, chosen: RolloutFilter, wanted: Collection[str]) -> "pd.DataFrame":
    """Return the frame of columns that need no payload."""
    columns = tuple(column for column in COLUMNS if column.name in wanted)
    parts: dict[str, list[Any]] = {column.name: [] for column in columns}
    ids: list[int] = []
    for chunk in queries.headers(engine, run.id or 0, chosen, [name for name in _STORED if name in parts]):
        ids += chunk["id"]
        values = {**chunk, **{name: [value] * len(chunk["id"]) for name, value in _of_run(run).items()}}
        for column in columns:
            if column.name not in _OF_PEOPLE:
                parts[column.name].append(_part(values[column.name], column.kind))
    if not _OF_PEOPLE.isdisjoint(wanted):
        annotated = queries.annotations_between(engine, run, ids[0], ids[-1]) if ids else {}
        annotations = [annotated.get(row_id, queries.NOTHING) for row_id in ids]
        of_people: dict[str, list[Any]] = {
            "tags": [[] if annotation is queries.NOTHING else list(annotation.all_tags) for annotation in annotations],
            "starred": [annotation.starred for annotation in annotations],
            "note": [annotation.note for annotation in annotations],
        }
        parts |= {
            column.name: [_part(of_people[column.name], column.kind)] for column in columns if column.name in _OF_PEOPLE
        }
    return _frame(columns, parts)


def _run_values(summary: RunSummary) -> dict[str, Any]:
    counted = {name: getattr(summary, name) for name in ("state", "rollouts", "steps", "reward")}
    stored = {column.name: getattr(summary.run, column.name, None) for column in RUN_COLUMNS}
    return stored | counted | {"run": summary.run.uid}


def frame_of(columns: tuple[Column, ...], rows: Iterable[dict[str, Any]]) -> "pd.DataFrame":
    """Return rows as a DataFrame with the dtypes of docs/pandas.md."""
    values: dict[str, list[Any]] = {column.name: [] for column in columns}
    for row in rows:
        for name, value in row.items():
            values[name].append(value)
    return _frame(columns, {column.name: [_part(values.pop(column.name), column.kind)] for column in columns})


@cache
def arrow_types() -> "dict[Kind, pa.DataType]":
    """Return the Arrow types of the kinds that fit into one array; the others stay Python objects."""
    import pyarrow as pa

    return {
        Kind.TEXT: pa.string(),
        Kind.WHOLE: pa.int64(),
        Kind.MAYBE_WHOLE: pa.int64(),
        Kind.NUMBER: pa.float64(),
        Kind.TRUE: pa.bool_(),
        Kind.MAYBE_TRUE: pa.bool_(),
        Kind.TIME: pa.timestamp("us", tz="UTC"),
    }


def _part(values: Sequence[Any], kind: Kind) -> "pa.Array | Sequence[Any]":
    """Return a column's values, as an Arrow array if its kind has an Arrow type."""
    import pyarrow as pa

    packed = arrow_types().get(kind)
    return values if packed is None else pa.array(values, packed)


def _frame(columns: tuple[Column, ...], parts: dict[str, list[Any]]) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame({column.name: _series(parts.pop(column.name), column.kind) for column in columns})


def _series(parts: list[Any], kind: Kind) -> "pd.Series[Any]":
    import pandas as pd
    import pyarrow as pa

    packed = arrow_types().get(kind)
    if packed is None:
        return pd.Series([value for part in parts for value in part], dtype="object")
    whole = pa.chunked_array(parts, packed)
    if kind == Kind.TIME:
        return pd.Series(whole.to_numpy()).dt.tz_localize("UTC")
    if kind == Kind.TEXT:  # in one piece, which is faster in pandas; large_string holds more than 2 GB
        whole = whole.cast(pa.large_string()).combine_chunks()
    nullable = {Kind.TEXT: pd.StringDtype, Kind.MAYBE_WHOLE: pd.Int64Dtype, Kind.MAYBE_TRUE: pd.BooleanDtype}
    dtype: Any = nullable[kind]() if kind in nullable else None
    return pd.Series(whole.to_numpy() if dtype is None else dtype.__from_arrow__(whole))
