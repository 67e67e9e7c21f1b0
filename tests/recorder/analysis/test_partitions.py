import re
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest
from sqlalchemy import update
from sqlmodel import col

from logs_ui.recorder import export_partitions, export_run, load_run
from logs_ui.recorder.analysis.export import partitions
from logs_ui.recorder.errors import FilterError, LogsUIError
from logs_ui.recorder.queries.rollout_columns import COLUMNS
from logs_ui.recorder.storage.database import disposed, writing_engine
from logs_ui.recorder.storage.tables import EvaluationRow, Run
from tests.app.commands.test_cli import refused
from tests.support import factory
from tests.support.changes import interrupt
from tests.support.command import typed

Tables = duckdb.DuckDBPyConnection


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("partitions") / "rollouts.db"
    factory.make_run_at(path, uid="other", steps=1)
    factory.make_run_at(path, uid="long", steps=11, seed=3, created=factory.START_US + 2)
    return path


@pytest.fixture(scope="module")
def frame(db: Path) -> pd.DataFrame:
    return load_run("long", db)


@pytest.fixture
def tables() -> Tables:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_duckdb_reads_one_partition_and_finds_what_pandas_finds(
    db: Path, frame: pd.DataFrame, tmp_path: Path, tables: Tables
) -> None:
    assert export_partitions("long", tmp_path / "out", db) == len(frame)
    assert files_of(tmp_path / "out") == sorted(
        f"run=long/step={step}/part-0.parquet" for step in frame["step"].unique()
    )
    query = f"""
        SELECT task, stop_reason, count(*) AS rollouts, avg(reward) AS reward,
            avg(CAST(rewards ->> 'solved' AS DOUBLE)) AS solved, sum(len(completion_ids)) AS tokens
        FROM '{tmp_path}/out/**/*.parquet' WHERE run = 'long' AND step = 7 GROUP BY ALL ORDER BY ALL
    """  # noqa: S608 - a path of this test's
    (plan,) = tables.execute(f"EXPLAIN ANALYZE {query}").df()["explain_value"]
    assert "Scanning Files: 1/11" in plan
    found = tables.execute(query).df()
    step = frame[frame["step"] == 7].copy()
    step["solved"] = [values and values["solved"] for values in step["rewards"]]
    step["tokens"] = step["completion_ids"].map(len)
    wanted = step.groupby(["task", "stop_reason"], as_index=False).agg(
        rollouts=("id", "size"), reward=("reward", "mean"), solved=("solved", "mean"), tokens=("tokens", "sum")
    )
    pd.testing.assert_frame_equal(found, wanted.sort_values(["task", "stop_reason"]), check_dtype=False)


@pytest.mark.parametrize("by", ["step", "step:4"])
def test_every_column_of_load_run_is_there_by_its_name_and_type(db: Path, tmp_path: Path, by: str) -> None:
    export_partitions("long", tmp_path / "parts", db, by=by)
    export_run("long", "parquet", tmp_path / "whole.parquet", db)
    names = [column.name for column in COLUMNS if column.name not in {"run", "step"}]  # these name the folders
    parts, whole = (
        pd.read_parquet(tmp_path / it)[names].sort_values("id", ignore_index=True) for it in ("parts", "whole.parquet")
    )
    pd.testing.assert_frame_equal(parts, whole)
    assert len(pd.read_parquet(tmp_path / "parts", filters=[("step", "==", 7)])) == 12


def test_several_steps_share_a_partition(db: Path, frame: pd.DataFrame, tmp_path: Path, tables: Tables) -> None:
    export_partitions("long", tmp_path, db, by="step:4")
    assert files_of(tmp_path) == [f"run=long/step_from={step}/part-0.parquet" for step in (0, 4, 8)]
    query = f"SELECT step_from, min(step), max(step), count(*) FROM '{tmp_path}/**/*.parquet' GROUP BY 1 ORDER BY 1"  # noqa: S608
    assert tables.execute(query).fetchall() == [
        (start, max(start, 1), min(start + 3, 11), int(frame["step"].between(start, start + 3).sum()))
        for start in (0, 4, 8)
    ]


def test_rows_that_lie_far_apart_get_a_further_part(
    db: Path, frame: pd.DataFrame, tmp_path: Path, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "_OPEN", 1)
    monkeypatch.setattr("logs_ui.recorder.analysis.export.files.chunks", interleaved)
    export_partitions("long", tmp_path, db, by="step:4")
    assert "run=long/step_from=8/part-1.parquet" in files_of(tmp_path)
    ids = tables.execute(f"SELECT id FROM '{tmp_path}/**/*.parquet' ORDER BY id").fetchall()  # noqa: S608
    assert [row[0] for row in ids] == sorted(frame["id"])


def interleaved(*given: Any) -> Any:
    """What is read, some rows at a time, those of early and late steps in turn."""
    from logs_ui.recorder.analysis.frames import chunks

    rows = [row for chunk in chunks(*given) for row in chunk]
    yield from (rows[start::20] for start in range(20))


@pytest.mark.exhaustive
def test_two_runs_stand_in_one_folder_and_one_is_replaced_only_when_told_to(
    db: Path, frame: pd.DataFrame, tmp_path: Path, tables: Tables
) -> None:
    for run in ("long", "other"):
        assert typed("export", run, "-o", tmp_path, "--db", db, "--partition-by", "step").returncode == 0
    count = f"SELECT run, count(*) FROM '{tmp_path}/**/*.parquet' GROUP BY run ORDER BY run"  # noqa: S608
    assert tables.execute(count).fetchall() == [("long", len(frame)), ("other", len(load_run("other", db)))]
    with pytest.raises(LogsUIError, match=r"run=other already exists\. Name another folder, or replace it"):
        export_partitions("other", tmp_path, db)
    assert export_partitions("other", tmp_path, db, where="status:ok", replace=True) > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run=long", "run=other"]
    ok = load_run("other", db, where="status:ok")
    assert tables.execute(count).fetchall() == [("long", len(frame)), ("other", len(ok))]


def test_an_export_that_ends_too_early_leaves_the_folder_as_it_was(db: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        export_partitions("long", tmp_path / "out", db, progress=interrupt)
    assert list(tmp_path.iterdir()) == []
    export_partitions("long", tmp_path / "out", db, by="step:100")
    with pytest.raises(KeyboardInterrupt):
        export_partitions("long", tmp_path / "out", db, progress=interrupt, replace=True)
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]
    assert files_of(tmp_path / "out") == ["run=long/step_from=0/part-0.parquet"]


def test_a_run_whose_name_is_no_folders_is_found_by_it(tmp_path: Path, tables: Tables) -> None:
    with disposed(writing_engine(tmp_path / "rollouts.db")) as engine:
        factory.make_run(engine, uid="odd", steps=1)
        with engine.begin() as connection:
            connection.execute(update(Run).values(uid="../a b=ü/*"))
            connection.execute(update(EvaluationRow).values(step=-3))
            connection.execute(update(EvaluationRow).where(col(EvaluationRow.generation) == 0).values(step=3))
    export_partitions("latest", tmp_path / "out", tmp_path / "rollouts.db", by="step:4")
    query = f"SELECT DISTINCT run, step_from, step FROM '{tmp_path}/out/**/*.parquet' ORDER BY step"  # noqa: S608
    assert tables.execute(query).fetchall() == [("../a b=ü/*", -4, -3), ("../a b=ü/*", 0, 3)]


@pytest.mark.parametrize("page", ["pandas.md", "cluster.md"])
def test_the_docs_own_queries_run(
    page: str, db: Path, frame: pd.DataFrame, tmp_path: Path, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On runs whose steps they ask for."""
    text = (Path(__file__).parents[3] / "docs" / page).read_text(encoding="utf-8")
    (query,) = re.findall(r'duckdb\.sql\("""\n(.*?)"""\)', text, re.DOTALL)
    for run in ("long", "other"):
        export_partitions(run, tmp_path / "rollouts", db)
    monkeypatch.chdir(tmp_path)
    found = tables.execute(query.replace("190 AND 199", "0 AND 99")).df()
    wanted = frame if page == "pandas.md" else frame[frame["mode"] == "train"]
    counts = found.groupby("task")["rollouts"].sum()
    assert (counts >= wanted.groupby("task").size()[counts.index]).all()
    assert found["reward"].notna().any()


def test_what_cannot_be_partitioned_says_so_in_a_line(db: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for by in ("steps", "step:", "step:0", "step:-1", "step:1e3", "run"):
        with pytest.raises(LogsUIError, match=f"no partition by '{by}'. Write step, or step:100 for a hundred"):
            export_partitions("long", tmp_path / "out", db, by=by)
    with pytest.raises(LogsUIError, match=r"file is not a folder\. Name one to export to"):
        export_partitions("long", tmp_path / "file", db)
    with pytest.raises(LogsUIError, match=r"no/out cannot be written: No such file or directory"):
        export_partitions("long", tmp_path / "no" / "out", db)
    with pytest.raises(FilterError):
        export_partitions("long", tmp_path / "out", db, where="status:eror")
    said = refused("export", "long", "-o", tmp_path / "out", "--db", db, "--partition-by", "step", "-f", "csv")
    assert "Only Parquet can be partitioned: leave out --partition-by or --format csv." in said
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
