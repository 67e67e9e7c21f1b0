import contextvars
import csv
import dataclasses
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import zstandard
from sqlalchemy import Engine, event, insert, select, update
from sqlmodel import col

from logs_ui.recorder import flush, queries, start_run
from logs_ui.recorder.analysis.export.files import _WRITERS, FORMATS, export_run
from logs_ui.recorder.analysis.export.parquet import parquet_writer
from logs_ui.recorder.analysis.frames import RUN_COLUMNS, load_run, load_runs, load_scalars
from logs_ui.recorder.errors import DatabaseError, FilterError, LogsUIError, RunNotFoundError
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, Scored, Sort
from logs_ui.recorder.queries.notebook import Notebook, Subject
from logs_ui.recorder.queries.rollout_columns import COLUMNS, Kind
from logs_ui.recorder.storage.address import Address, as_text, database_address
from logs_ui.recorder.storage.database import disposed, reading_engine, writing_engine
from logs_ui.recorder.storage.tables import EvaluationRow, RolloutPayload, Run
from logs_ui.recorder.vocabulary import Mode, Status, StopReason
from tests.support import factory
from tests.support.changes import interrupt
from tests.support.exhaustive import cases
from tests.support.payloads import pack_content
from tests.support.postgres import DATABASES, fresh_database

csv.field_size_limit(10_000_000)


@pytest.fixture(scope="module", params=DATABASES)
def db(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A run that is under way, one that has not begun, and one of values that are hard to write down."""
    with fresh_database(request.param, tmp_path_factory.mktemp("frames")) as address:
        _fill(address)
        yield as_text(address)


def _fill(address: Address) -> None:
    with disposed(writing_engine(address)) as engine:
        factory.make_run(engine, uid="hard", steps=1)
        factory.make_run(engine, uid="under-way", steps=11, seed=3, created=factory.START_US + 2)
        with engine.begin() as connection:
            plain = {"heartbeat": 1, "state": "running", "config": {}, "versions": {}, "changed": 0}
            connection.execute(insert(Run), {"uid": "empty", "name": "empty", "created": 1, **plain})
            hard = factory.ROW | {
                "run_id": 1, "uid": "hard", "eval_name": "=1+1", "group": "-5", "task": '@x,"y"\nz ü 素', "created": 0,
                "reward": -0.1 - 0.2, "advantage": float("inf"), "rewards": {"=f": -1.0, "none": None},
            }  # fmt: skip
            connection.execute(insert(EvaluationRow), hard)


@pytest.fixture(scope="module")
def frame(db: str) -> pd.DataFrame:
    return load_run("under-way", db)


@pytest.fixture
def rollouts(db: str) -> Iterator[list[queries.Rollout]]:
    """The same as the database has them, in the order in which they began."""
    with disposed(reading_engine(database_address(db))) as engine:
        run_id = queries.find_run(engine, "under-way").id or 0
        found = [rollout for chunk in queries.rollouts(engine, run_id, RolloutFilter()) for rollout in chunk]
        yield sorted(found, key=lambda rollout: rollout.row.created)


DTYPES = {Kind.TEXT: "string", Kind.NUMBER: "float64", Kind.TIME: "datetime64[us, UTC]"}
DTYPES |= {Kind.WHOLE: "int64", Kind.MAYBE_WHOLE: "Int64", Kind.TRUE: "bool", Kind.MAYBE_TRUE: "boolean"}
PAGE = (Path(__file__).parents[3] / "docs" / "pandas.md").read_text("utf-8")


def test_a_frame_has_what_the_database_has(frame: pd.DataFrame, rollouts: list[queries.Rollout]) -> None:
    assert list(frame["id"]) == [rollout.row.id for rollout in rollouts]
    assert set(frame["run"]) == {"under-way"}
    for name in ("step", "group", "task", "status", "message_count"):
        assert list(frame[name]) == [getattr(rollout.row, name) for rollout in rollouts]
    for name in ("stop_reason", "error", "turns", "completion_tokens", "reward", "advantage", "seconds"):
        values = [None if pd.isna(value) else value for value in frame[name]]
        assert values == [getattr(rollout.row, name) for rollout in rollouts]
    for name in ("messages", "actions", "sampling", "metadata"):
        assert list(frame[name]) == [getattr(rollout, name) for rollout in rollouts]
    assert list(frame["rewards"]) == [rollout.row.rewards for rollout in rollouts]


def test_tokens_are_arrays_that_can_be_worked_with(frame: pd.DataFrame, rollouts: list[queries.Rollout]) -> None:
    done = next(i for i, rollout in enumerate(rollouts) if rollout.tokens is not None)
    running = next(i for i, rollout in enumerate(rollouts) if rollout.tokens is None)
    row, tokens = frame.iloc[done], rollouts[done].tokens
    assert tokens is not None
    np.testing.assert_array_equal(row["completion_ids"], tokens.completion_ids)
    np.testing.assert_array_equal(row["logprobs"], np.asarray(tokens.logprobs, np.float32))
    assert row["logprobs"].dtype == np.float32
    assert row["mask"].sum() == row["completion_tokens"]
    assert row["prompt_ids"].flags.writeable  # a frame is the caller's own
    assert (frame.iloc[running]["completion_ids"], frame.iloc[running]["mask"]) == (None, None)


def test_times_are_exact_and_absent_ones_nat(frame: pd.DataFrame, rollouts: list[queries.Rollout]) -> None:
    assert [moment.value // 1000 for moment in frame["created"]] == [rollout.row.created for rollout in rollouts]
    assert list(frame["scored"].isna()) == [rollout.row.scored is None for rollout in rollouts]
    assert frame["scored"].isna().any()
    assert frame["created"].iloc[0] == pd.Timestamp("2026-01-01 10:00:00.000002", tz="UTC")


@pytest.mark.parametrize("run", ["under-way", "empty"])
def test_a_frame_always_has_all_columns_of_the_same_types(db: str, run: str) -> None:
    frame = load_run(run, db)
    assert list(frame.columns) == [column.name for column in COLUMNS]
    for column in COLUMNS:
        assert str(frame.dtypes[column.name]) == DTYPES.get(column.kind, "object"), column.name
    assert len(frame) == (0 if run == "empty" else 140)


def test_the_newest_run_of_the_database_in_the_environment_is_the_default(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGS_UI_DB", db)
    assert set(load_run()["run"]) == {"under-way"}


def test_a_filter_selects_rows_but_does_not_sort_them(db: str, frame: pd.DataFrame) -> None:
    where = RolloutFilter(modes=("train",), reward_min=0.0, sort=Sort.HIGHEST_REWARD)
    found = load_run("under-way", db, where=where)
    expected = frame[(frame["mode"] == "train") & (frame["reward"] >= 0.0)]
    assert 0 < len(found) < len(frame)
    assert list(found["id"]) == list(expected["id"])


def test_rows_come_in_the_order_in_which_they_began(frame: pd.DataFrame) -> None:
    assert not frame["id"].is_monotonic_increasing  # as rows of several processes
    assert frame["created"].is_monotonic_increasing
    assert list(frame.index) == list(range(140))
    together = frame.groupby("created")["id"]
    assert together.count().max() > 1
    assert together.apply(lambda ids: ids.is_monotonic_increasing).all()


def test_what_cannot_be_loaded_says_why(db: str, tmp_path: Path) -> None:
    with pytest.raises(RunNotFoundError, match="did you mean 'empty'"):
        load_run("emtpy", db)
    for run in (None, 0, ""):
        said = rf"^{run!r} names no run\. Give a run's id, the beginning of one, a name, or 'latest'\.$"
        with pytest.raises(RunNotFoundError, match=said):
            load_run(run, db)  # type: ignore[arg-type]
    with pytest.raises(DatabaseError, match="There is no database at"):
        load_run("latest", tmp_path / "nowhere.db")
    with pytest.raises(FilterError, match="this run has no task 'x'"):
        load_run("under-way", db, where=RolloutFilter(tasks=("x",)))


def test_runs_are_a_frame_of_all_that_is_known_of_them(db: str) -> None:
    runs = load_runs(db)
    assert list(runs.columns) == [column.name for column in RUN_COLUMNS]
    for column in RUN_COLUMNS:
        assert str(runs.dtypes[column.name]) == DTYPES.get(column.kind, "object"), column.name
    assert list(runs["run"]) == ["under-way", "hard", "empty"]
    run = runs.iloc[0]
    assert (run["rollouts"], run["steps"], run["host"], bool(run["git_dirty"])) == (140, 11, "trainer-0", True)
    assert (run["config"]["seed"], run["versions"]["trl"]) == (3, "1.16.0")
    assert run["created"] == pd.Timestamp("2026-01-01 10:00:00.000002", tz="UTC")
    empty = runs.iloc[2]
    assert empty["rollouts"] == 0
    assert all(pd.isna(empty[name]) for name in ("reward", "model", "max_steps", "git_dirty", "finished", "error"))


def test_scalars_are_a_frame_by_step_and_name(db: str) -> None:
    scalars = load_scalars("under-way", db)
    with disposed(reading_engine(database_address(db))) as engine:
        logged = queries.scalars(engine, queries.find_run(engine, "under-way").id or 0)
    assert scalars.index.name == "step"
    assert list(scalars.index) == sorted({scalar.step for scalar in logged})
    assert list(scalars.columns) == sorted({scalar.name for scalar in logged})
    assert set(scalars.dtypes.astype(str)) == {"float64"}
    for scalar in logged:
        value = scalars[scalar.name][scalar.step]
        assert value == scalar.value or (scalar.value is None and np.isnan(value))
    assert scalars["kl"].isna().any()
    empty = load_scalars("empty", db)
    assert (empty.shape, empty.index.name) == ((0, 0), "step")


@pytest.mark.parametrize("blob", ["content", "tokens"])
@pytest.mark.parametrize("damage", [b"", b"no zstd", pack_content({})[:-1], zstandard.compress(b"[1]")])
def test_a_damaged_rollout_is_named_in_one_line(tmp_path: Path, blob: str, damage: bytes) -> None:
    path = tmp_path / "a.db"
    with disposed(writing_engine(path)) as engine:
        factory.make_run(engine, steps=1)
        with engine.begin() as connection:
            connection.execute(update(RolloutPayload).where(col(RolloutPayload.row_id) == 7).values({blob: damage}))
    for ask in (lambda: load_run(db=path), lambda: export_run("latest", "csv", tmp_path / "a.csv", path)):
        with pytest.raises(LogsUIError, match=r"rollout 7 is damaged") as caught:
            ask()
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "a.csv").exists()


def read(path: Path, format: str) -> list[dict[str, Any]]:  # noqa: A002
    """The file's rows, all values as `load_run` has them, but for None in place of NaN, and lists of arrays."""
    if format == "jsonl":
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    if format == "csv":
        with path.open(encoding="utf-8", newline="") as file:
            rows: list[dict[str, Any]] = list(csv.DictReader(file))
    else:
        rows = pq.read_table(path).to_pylist()
    parsed = {Kind.NESTED} if format == "parquet" else {Kind.NESTED, Kind.IDS, Kind.LOGPROBS, Kind.MASK}
    for row in rows:
        for column in COLUMNS:
            value = row[column.name]
            if value == "":
                row[column.name] = None
            elif value is not None and column.kind in parsed:
                row[column.name] = json.loads(value)
            elif format == "csv" and column.kind == Kind.TRUE:
                row[column.name] = {"true": True, "false": False}[value]
            elif format == "csv" and column.kind in {Kind.WHOLE, Kind.MAYBE_WHOLE}:
                row[column.name] = int(value)
            elif format == "csv" and column.kind == Kind.NUMBER:
                row[column.name] = float(value)
    return rows


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_has_what_the_frame_has(db: str, frame: pd.DataFrame, tmp_path: Path, format: Any) -> None:  # noqa: A002
    output = tmp_path / "rollouts"
    seen: list[tuple[int, int]] = []
    assert export_run("under-way", format, output, db, progress=lambda done, total: seen.append((done, total))) == 140
    assert seen[-1] == (140, 140)
    rows = read(output, format)
    frame = frame.sort_values("id", ignore_index=True)
    assert [row["id"] for row in rows] == list(frame["id"])
    for (_, expected), row in zip(frame.iterrows(), rows, strict=True):
        assert list(row) == [column.name for column in COLUMNS]
        for column in COLUMNS:
            value = expected[column.name]
            if column.kind == Kind.TIME:
                assert pd.Timestamp(row[column.name]) == value or (row[column.name] is None and pd.isna(value))
            elif column.kind in {Kind.IDS, Kind.LOGPROBS, Kind.MASK}:
                got = row[column.name]
                assert (got is None) == (value is None)
                np.testing.assert_array_equal(np.array(got or [], np.float32), [] if value is None else value)
            elif column.kind == Kind.NESTED:
                assert row[column.name] == value
            else:
                assert row[column.name] == (None if pd.isna(value) else value)


@pytest.mark.parametrize("run", ["under-way", "hard", "empty"])
def test_some_columns_are_those_of_all(db: str, run: str) -> None:
    """Without what only a payload has they are read in another way."""
    whole = load_run(run, db)
    headers = [column.name for column in COLUMNS if column.name not in PAYLOAD]
    pd.testing.assert_frame_equal(load_run(run, db, columns=headers), whole[headers])
    pd.testing.assert_frame_equal(load_run(run, db, columns=["reward", "run"]), whole[["reward", "run"]])
    pd.testing.assert_frame_equal(load_run(run, db, columns=["logprobs", "id"]), whole[["logprobs", "id"]])
    with pytest.raises(LogsUIError, match=r"no column 'rewad'\. Try reward"):
        load_run(run, db, columns=["rewad"])


PAYLOAD = {"messages", "actions", "sampling", "metadata", "prompt_ids", "completion_ids", "logprobs", "mask"}


def test_columns_alone_open_no_payload_and_say_what_is_lost_and_tagged(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.db"
    with start_run("lost", db=path) as made, made.rollout("x") as row:
        row.tag("seen")
        row.turn("y")
    open_run = start_run("lost", db=path)
    contextvars.copy_context().run(open_run.rollout("x").__enter__)  # it is never left
    flush()
    engine = writing_engine(path)
    with engine.begin() as connection:
        connection.execute(update(RolloutPayload).values(content=b"damaged"))
    with pytest.raises(DatabaseError):
        load_run(made.id, path)
    marks = load_run(made.id, path, columns=["tags", "starred"]).iloc[0]
    assert marks.to_dict() == {"tags": ["seen"], "starred": False}
    with engine.begin() as connection:  # just before it is read: this process gives signs of life of its own
        connection.execute(update(Run).values(heartbeat=0))
    lost = load_run(open_run.id, path, columns=["status", "stop_reason", "error"]).iloc[0]
    assert (lost["status"], lost["stop_reason"]) == ("aborted", "aborted")
    assert lost["error"] is not None


@contextmanager
def _parameters() -> Iterator[list[int]]:
    """How many each question has that this thread asks meanwhile: another may still write what an earlier test left."""
    numbers: list[int] = []
    here = threading.get_ident()

    def watch(*asked: Any) -> None:
        if threading.get_ident() == here:
            numbers.append(len(asked[3]))

    event.listen(Engine, "before_cursor_execute", watch)
    try:
        yield numbers
    finally:
        event.remove(Engine, "before_cursor_execute", watch)


@pytest.mark.exhaustive
def test_columns_are_those_of_all_however_few_rows_are_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rollouts.db"
    with disposed(writing_engine(path)) as engine:
        factory.make_run(engine, uid="run", steps=11, seed=3)
        factory.make_run(engine, uid="other", steps=1)
        with engine.connect() as connection:
            uids = connection.scalars(select(col(EvaluationRow.uid)).where(col(EvaluationRow.run_id) == 1)).all()
    notes = Notebook(path)
    for number, uid in enumerate(uids[5:60:5]):
        subject = Subject("run", uid)
        notes.star(subject, starred=number % 2 == 0)
        notes.tag(subject, f"seen {number}")
        notes.note(subject, "look again" if number % 3 else "")
    notes.tag(Subject("run"), "of the run")
    headers = [column.name for column in COLUMNS if column.name not in PAYLOAD]
    monkeypatch.setattr(sys.modules["logs_ui.recorder.queries.headers"], "_AT_ONCE", 7)
    for where in (None, "is:starred", "reward<0.5", "step:99"):
        with _parameters() as numbers:
            frame = load_run("run", path, columns=headers, where=where)
        assert max(numbers) < 20, "no question names each rollout"
        pd.testing.assert_frame_equal(frame, load_run("run", path, where=where)[headers])
    assert load_run("run", path, columns=["starred"])["starred"].sum() == 6


def test_an_empty_run_gives_a_file_with_all_columns(db: str, tmp_path: Path) -> None:
    for format in FORMATS:  # noqa: A001
        assert export_run("empty", format, tmp_path / format, db) == 0  # type: ignore[arg-type]
    assert pq.read_table(tmp_path / "parquet").column_names == [column.name for column in COLUMNS]
    assert (tmp_path / "csv").read_text().strip().split(",") == [column.name for column in COLUMNS]
    assert (tmp_path / "jsonl").read_bytes() == b""


def test_a_spreadsheet_shows_formulas_and_does_not_run_them(db: str, tmp_path: Path) -> None:
    export_run("hard", "csv", tmp_path / "hard.csv", db)
    with (tmp_path / "hard.csv").open(encoding="utf-8", newline="") as file:
        row = list(csv.DictReader(file))[-1]
    assert row["eval_name"] == "'=1+1"
    assert row["group"] == "'-5"
    assert row["task"] == '\'@x,"y"\nz ü 素'
    assert float(row["reward"]) == -0.1 - 0.2  # a negative number stays a number
    assert json.loads(row["rewards"]) == {"=f": -1.0, "none": None}
    export_run("hard", "parquet", tmp_path / "hard.parquet", db)
    assert pq.read_table(tmp_path / "hard.parquet").to_pylist()[-1]["eval_name"] == "=1+1"


def test_a_file_that_cannot_be_written_leaves_nothing_behind(db: str, tmp_path: Path) -> None:
    (tmp_path / "old.csv").write_text("old")
    for output in (tmp_path / "missing" / "a.csv", tmp_path / "old.csv" / "a.csv", tmp_path):
        with pytest.raises(LogsUIError, match=str(output)) as caught:
            export_run("under-way", "csv", output, db)
        assert "\n" not in str(caught.value)

    with pytest.raises(KeyboardInterrupt):
        export_run("under-way", "csv", tmp_path / "old.csv", db, progress=interrupt)
    assert (tmp_path / "old.csv").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["old.csv"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("db", ["sqlite"], indirect=True)  # whose process takes a second
@pytest.mark.parametrize("format", cases(FORMATS, 1))
def test_a_full_disk_names_the_file_and_leaves_nothing_behind(db: str, tmp_path: Path, format: str) -> None:  # noqa: A002
    """A limit on a file's size answers writes as a full disk does: with an OSError, in the middle."""
    code = f"""
import resource, signal, sys
from pathlib import Path
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.analysis.export.files import export_run
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (36_864, 36_864))  # room for the 32 kB of SQLite's own -shm file
try:
    export_run("under-way", {format!r}, Path({str(tmp_path / "out")!r}), {db!r})
except LogsUIError as error:
    print(type(error).__name__, error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == f"LogsUIError {tmp_path / 'out'} cannot be written: File too large. Name another file.\n"
    assert list(tmp_path.iterdir()) == []


def test_an_export_replaces_the_file_that_a_link_points_at(db: str, tmp_path: Path) -> None:
    (tmp_path / "real.jsonl").write_text("old")
    (tmp_path / "link.jsonl").symlink_to("real.jsonl")
    export_run("under-way", "jsonl", tmp_path / "link.jsonl", db)
    assert (tmp_path / "link.jsonl").is_symlink()
    assert len((tmp_path / "real.jsonl").read_text().splitlines()) == 140


@pytest.mark.exhaustive
def test_an_export_takes_no_more_memory_for_more_rollouts(tmp_path: Path) -> None:
    """By the peak of a process that does nothing else; rollouts of 80 kB of messages each."""
    content = pack_content({"messages": [{"role": "user", "content": str(i) * 100} for i in range(200)]})
    with disposed(writing_engine(tmp_path / "m.db")) as engine:
        for uid, rows in (("small", 500), ("large", 2000)):
            run_id = factory.make_run(engine, uid=uid, steps=1, groups_per_step=1, generations=1)
            plain = factory.ROW | {"run_id": run_id, "group": uid, "message_count": 200}
            with engine.begin() as connection:
                ids = range(run_id * 10_000, run_id * 10_000 + rows)
                rows_of_steps = [{**plain, "id": i, "uid": str(i), "step": i // 10} for i in ids]
                connection.execute(insert(EvaluationRow), rows_of_steps)
                connection.execute(insert(RolloutPayload), [{"row_id": i, "content": content} for i in ids])
    code = """
import resource, sys
from pathlib import Path
from logs_ui.recorder import export_partitions, export_run
if sys.argv[4] == "file":
    export_run(sys.argv[1], "parquet", Path(sys.argv[2]), sys.argv[3])
else:
    export_partitions(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    peaks = []
    for uid, kind in (("small", "file"), ("large", "file"), ("large", "folder")):
        command = [sys.executable, "-c", code, uid, str(tmp_path / kind), str(tmp_path / "m.db"), kind]
        peaks.append(int(subprocess.run(command, capture_output=True, check=True).stdout))
    assert max(peaks) < peaks[0] * 1.3


@pytest.mark.exhaustive
def test_rollouts_that_are_read_apart_share_a_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each group pyarrow keeps something until the file is whole, and few of them are read sooner."""
    factory.make_run_at(tmp_path / "m.db", uid="run", steps=40)
    files: list[pq.FileMetaData] = []
    for group_bytes in (64 << 20, 200_000):
        monkeypatch.setitem(_WRITERS, "parquet", partial(parquet_writer, group_bytes=group_bytes))
        export_run("run", "parquet", tmp_path / "run.parquet", tmp_path / "m.db")
        files.append(pq.read_metadata(tmp_path / "run.parquet"))
    assert files[0].num_rows == files[1].num_rows > 200, "more than are read at once"
    assert files[0].num_row_groups == 1 < files[1].num_row_groups


def test_each_part_of_a_filter_and_each_of_its_words_is_in_the_docs() -> None:
    (table,) = re.findall(r"\| given \| selects \|\n(.*?)\n\n", PAGE, re.DOTALL)
    words = [word.value for words in (Mode, Status, StopReason, Scored) for word in words]
    for name in [*words, *(part.name for part in dataclasses.fields(RolloutFilter))]:
        assert f"`{name}`" in table


def test_the_code_in_the_docs_runs(
    db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOGS_UI_DB", db)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) >= 5
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)  # noqa: S102 - our own
    assert "assistant" in capsys.readouterr().out
