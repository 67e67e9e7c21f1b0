"""Databases of earlier and later commits: what lacks columns is read as it is, and completed by whoever records."""

import sqlite3
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest
from sqlalchemy import outerjoin, select, text
from sqlmodel import col

from logs_ui.recorder import diagnose, flush, load_run, load_runs, start_run
from logs_ui.recorder.storage import schema
from logs_ui.recorder.storage.address import Address, as_text, shown
from logs_ui.recorder.storage.database import disposed, reading_engine, writing_engine
from logs_ui.recorder.storage.missing_columns import is_outdated
from logs_ui.recorder.storage.tables import EvaluationRow, Run, StepDetails
from logs_ui.recorder.upkeep import check, look_at, merge, prune
from logs_ui.recorder.vocabulary import RunState
from tests.support.command import typed
from tests.support.earlier import LATER_TABLES, column, emptied, later_columns, taken_back
from tests.support.factory import make_run

SCHEMAS = Path(__file__).parent / "schemas"
RUN = "main-run-1234"
LOST = ("run.project", "run.unattributed_scoring", "evaluation_row.cut_limit", "evaluation_row.attributes")


@pytest.fixture
def filled(address: Address) -> Address:
    """With a run of today."""
    with disposed(writing_engine(address)) as engine:
        make_run(engine, uid=RUN, steps=3, state=RunState.FINISHED)
    return address


@pytest.fixture
def earlier(filled: Address) -> Address:
    """Without columns of today."""
    taken_back(filled, map(column, LOST))
    return filled


def record(address: Address, project: str | None = None) -> None:
    prompt = [{"role": "user", "content": "hi"}]
    with start_run("today's", db=as_text(address), project=project) as run, run.rollout(prompt) as row:
        row.score(1.0)
    assert flush()


def read(address: Address, folder: Path) -> list[str]:
    """Everything that is read without a page."""
    db = as_text(address)
    frames = load_run(RUN, db), load_runs(db)
    typed("export", RUN, "--db", db, "--force", "-o", str(folder / "rows.jsonl"))
    report = diagnose(RUN, db=db).as_dict()
    return [*(frame.to_csv() for frame in frames), (folder / "rows.jsonl").read_text(), str(report)]


@pytest.mark.parametrize("lost", ["a few", "all"])
def test_what_it_lacks_is_read_as_not_recorded(filled: Address, tmp_path: Path, lost: str) -> None:
    columns = later_columns() if lost == "all" else [column(name) for name in LOST]
    tables = LATER_TABLES if lost == "all" else ()
    emptied(filled, columns, tables)
    not_recorded = read(filled, tmp_path)
    taken_back(filled, columns, tables)
    assert read(filled, tmp_path) == not_recorded


@pytest.mark.parametrize("address", ["sqlite"], indirect=True)
def test_to_read_it_writes_nothing(earlier: Path) -> None:
    before = earlier.read_bytes()
    load_run(RUN, earlier)
    list(check(earlier))
    assert look_at(earlier).runs == 1
    assert earlier.read_bytes() == before


def test_an_outer_join_without_a_row_has_no_default(filled: Address) -> None:
    taken_back(filled, [column("run.unattributed_scoring")])
    joined = select(col(Run.unattributed_scoring)).select_from(EvaluationRow).outerjoin(Run, col(Run.id) == -1)
    with disposed(reading_engine(filled)) as engine, engine.connect() as connection:
        assert connection.scalars(select(col(Run.unattributed_scoring))).all() == [0]
        assert connection.scalar(joined.limit(1)) is None


@pytest.mark.parametrize("address", ["sqlite"], indirect=True)
def test_a_missing_column_takes_no_index_away(earlier: Path) -> None:
    row = EvaluationRow
    query = select(row).where(col(row.run_id) == 1, col(row.task) == "a", col(row.cut_limit).is_(None))
    with disposed(reading_engine(earlier)) as engine, engine.connect() as connection:
        written = query.compile(engine, compile_kwargs={"literal_binds": True})
        (plan,) = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {written}").all()
    assert "USING INDEX row_by_" in plan[3]


def test_who_records_adds_what_is_missing_and_open_readers_go_on(filled: Address) -> None:
    taken_back(filled, map(column, LOST), ["step_details"])
    with disposed(reading_engine(filled)) as engine:
        of_run = outerjoin(Run, StepDetails, col(StepDetails.run_id) == col(Run.id))
        query = select(col(Run.project), col(StepDetails.step)).select_from(of_run).where(col(Run.id) == 1)
        with engine.connect() as connection:
            assert [tuple(it) for it in connection.execute(query)] == [(None, None)]
        assert not is_outdated(engine)
        record(filled, project="apples")
        with engine.connect() as connection:
            assert [tuple(it) for it in connection.execute(query)] == [(None, None)]
        assert is_outdated(engine)
    assert load_runs(as_text(filled)).project[0] == "apples"
    with disposed(reading_engine(filled)) as engine, engine.connect() as connection:
        assert not schema.missing(connection)


def test_what_a_database_lacks_is_read_once(earlier: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Mock(wraps=schema.missing)
    monkeypatch.setattr(schema, "missing", read)
    with disposed(reading_engine(earlier)) as engine, engine.connect() as connection:
        assert connection.scalars(select(col(Run.project))).all() == [None]
    assert read.call_count == 1


def test_migrate_adds_it_on_request_and_says_so(filled: Address) -> None:
    taken_back(filled, [column("run.project"), column("logs_ui_schema.release")], ["row_tag"], ["row_by_change"])
    said = [typed("db", "migrate", "--db", as_text(filled)).stdout for _ in range(2)]
    assert "".join(said).splitlines() == [
        "added: table row_tag",
        "added: column logs_ui_schema.release",
        "added: column run.project",
        "added: index row_by_change",
        *[f"{shown(filled)} is up to date: schema 1."] * 2,
    ]


def test_what_an_earlier_one_holds_is_merged_and_pruned(filled: Address, tmp_path: Path) -> None:
    taken_back(filled, map(column, LOST), ["row_tag"])
    (merged,) = merge([as_text(filled)], tmp_path / "all.db")
    assert merged.rollouts == len(load_run(RUN, tmp_path / "all.db"))
    assert prune(as_text(filled), run=RUN).rollouts > 0


@pytest.mark.parametrize("dump", sorted(SCHEMAS.glob("*.sql")), ids=lambda path: path.stem)
def test_a_database_that_an_earlier_commit_wrote_opens_and_is_recorded_into(tmp_path: Path, dump: Path) -> None:
    path = tmp_path / "runs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(dump.read_text())
    assert list(load_run("20260101-100000-abcd", path).reward) == [0.0, 1.0]
    record(path)
    assert len(load_runs(path)) == 2


def test_one_of_a_later_commit_is_read_and_recorded_into(filled: Address) -> None:
    with disposed(writing_engine(filled)) as engine, engine.begin() as connection:
        connection.execute(text("ALTER TABLE run ADD COLUMN colour TEXT"))
        connection.execute(text("CREATE TABLE palette (name TEXT)"))
    record(filled)
    assert len(load_runs(as_text(filled))) == 2
