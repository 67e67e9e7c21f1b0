"""Schemas that are older or newer than the program: what goes on, what stops, and what brings a database up to date.

No migration is released yet; those here are invented.
"""

import itertools
import os
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from importlib.metadata import version
from pathlib import Path
from unittest.mock import Mock

import pytest
from sqlalchemy import Column, Connection, Index, Integer, MetaData, Table, Text, inspect, outerjoin, select, text
from sqlmodel import col

from logs_ui.recorder import OpenRun, diagnose, flush, load_run, load_runs, start_run
from logs_ui.recorder.delivery import writer
from logs_ui.recorder.errors import LogsUIError, RefusedDatabaseError
from logs_ui.recorder.guard import RAISE_VARIABLE
from logs_ui.recorder.storage import migrations, schema
from logs_ui.recorder.storage.address import Address, as_text, db_option, masked_address
from logs_ui.recorder.storage.database import (
    disposed,
    migrating_engine,
    reading_engine,
    refuse_hopeless,
    writing_engine,
)
from logs_ui.recorder.storage.migrations import Migration, add_column
from logs_ui.recorder.storage.missing_columns import is_outdated
from logs_ui.recorder.storage.tables import EvaluationRow, Run, StepDetails
from logs_ui.recorder.upkeep import check, look_at, merge, prune
from logs_ui.recorder.upkeep.migrate import migrate_database
from logs_ui.recorder.vocabulary import RunState
from tests.support.changes import in_child, stored
from tests.support.command import typed
from tests.support.earlier import LATER_TABLES, column, emptied, later_columns, taken_back
from tests.support.factory import make_run

SCHEMAS = Path(__file__).parent / "schemas"
"""Of each release an SQLite database's dump, as `sqlite3 runs.db .dump` writes it: `0.1.0.sql`."""


def of_newer(build: MetaData) -> Table:
    run: Table = Run.__table__.to_metadata(build)  # type: ignore[attr-defined]
    run.append_column(Column("colour", Text, server_default="grey", nullable=False))
    return run


def adds(connection: Connection) -> None:
    build = MetaData()
    add_column(connection, of_newer(build).c.colour)
    Table("palette", build, Column("name", Text, primary_key=True), Column("uses", Integer)).create(connection)
    Index("run_by_colour", build.tables["run"].c.colour).create(connection)


def adds_more(connection: Connection) -> None:
    connection.exec_driver_sql("CREATE TABLE more (x INTEGER)")


def breaks(connection: Connection) -> None:
    connection.exec_driver_sql("UPDATE run SET name = upper(name)")


ADDITIVE = Migration(2, "colours of runs", adds, oldest_reader=1, oldest_writer=1)
BREAKING = Migration(2, "names in capitals", breaks, oldest_reader=2, oldest_writer=2)


@contextmanager
def program_of(*steps: Migration) -> Iterator[None]:
    """A newer program, which has these migrations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrations, "MIGRATIONS", steps)
        yield


def stamp(address: Address) -> tuple[int, int, int]:
    with disposed(migrating_engine(address)) as engine, engine.connect() as connection:
        found = schema.stamp_of(connection)
    return found.version, found.oldest_reader, found.oldest_writer


def shape(address: Address) -> dict[str, tuple[set[str], set[str]]]:
    """Columns and indexes by table."""
    with disposed(migrating_engine(address)) as engine, engine.connect() as connection:
        looked = inspect(connection)
        return {
            table: (
                {f"{it['name']} {it['type']} {it['nullable']}" for it in looked.get_columns(table)},
                {f"{it['name']} {it['column_names']}" for it in looked.get_indexes(table)},
            )
            for table in looked.get_table_names()
        }


def rollout(run: OpenRun, reward: float) -> None:
    with run.rollout([{"role": "user", "content": "hi"}]) as row:
        row.score(reward)


def record(address: Address, name: str = "run", project: str | None = None) -> None:
    with start_run(name, db=as_text(address), project=project) as run:
        rollout(run, 1.0)
    assert flush()


@pytest.fixture
def made(address: Address, monkeypatch: pytest.MonkeyPatch) -> Address:
    monkeypatch.setattr(writer, "_by_address", {})  # one that has given up flushes no more
    writing_engine(address).dispose()
    return address


def test_an_additive_migration_stops_nobody_who_records_by_an_older_program(made: Address) -> None:
    with start_run("old", db=as_text(made)) as run:
        rollout(run, 0.0)
        assert flush()
        said = []
        with program_of(ADDITIVE):
            assert migrate_database(as_text(made), applied=lambda step: said.append(step.what)) == 2
        assert said == ["colours of runs"]
        rollout(run, 1.0)
    assert flush()
    assert stamp(made) == (2, 1, 1)
    assert list(load_run("old", as_text(made)).reward) == [0.0, 1.0]
    record(made, "another of the old program's")
    assert len(load_runs(as_text(made))) == 2
    assert stored(made, "SELECT DISTINCT colour FROM run") == [("grey",)]


def test_a_recorder_stops_with_one_line_where_its_database_has_outgrown_it(
    made: Address, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)
    with start_run("old", db=as_text(made)) as run:
        rollout(run, 0.0)
        assert flush()
        with program_of(BREAKING), disposed(migrating_engine(made)) as engine:
            list(schema.migrate(engine, lambda *_: None))  # as of somebody who takes it for dead
        rollout(run, 1.0)
        assert not flush(10)
    (line,) = [it for it in caplog.messages if "schema" in it]
    assert f"{masked_address(made)} was brought to schema 2 meanwhile, which takes a newer logs-ui to write" in line
    assert f"pip install -U 'logs-ui>={version('logs-ui')}' Your training goes on; recording has stopped." in line
    with pytest.raises(RefusedDatabaseError, match=r"newer logs-ui \(schema 2, this one knows 1\)\. Upgrade"):
        reading_engine(made)
    with pytest.raises(RefusedDatabaseError, match="newer logs-ui"):
        refuse_hopeless(made)


def test_a_newer_recorder_brings_up_to_date_what_stops_nobody_and_a_reader_names_the_command(made: Address) -> None:
    record(made)
    with program_of(ADDITIVE):
        with pytest.raises(RefusedDatabaseError) as caught:
            reading_engine(made)
        command = f"Bring it up to date: logs-ui db migrate{db_option(made)}"
        assert str(caught.value) == f"{masked_address(made)} has schema 1, and this logs-ui works with 2. {command}"
        writing_engine(made).dispose()
        reading_engine(made).dispose()
    assert stamp(made) == (2, 1, 1)
    assert len(load_run("run", as_text(made))) == 1


def test_what_breaks_older_recorders_is_asked_for_by_a_person_and_waits_for_them(made: Address) -> None:
    with start_run("old", db=as_text(made)) as run:
        rollout(run, 0.0)
        assert flush()
        with program_of(BREAKING):
            later = "once no run is recorded into it any more: logs-ui db migra"
            with pytest.raises(RefusedDatabaseError, match=later):
                writing_engine(made)
            said = r"cannot be brought to schema 2 \(names in capitals\) while run .* is being recorded into it"
            with pytest.raises(LogsUIError, match=said):
                migrate_database(as_text(made))
    assert flush()
    assert stamp(made) == (1, 1, 1)
    with program_of(BREAKING):
        assert migrate_database(as_text(made)) == 2
        assert stamp(made) == (2, 2, 2)


def killed(connection: Connection) -> None:
    adds(connection)
    os._exit(0)


def test_a_migration_that_is_killed_half_way_leaves_what_was_there(made: Address) -> None:
    record(made)
    assert stamp(made) == (1, 1, 1), "of a new database"
    before = shape(made)
    with program_of(Migration(2, "half of it", killed, oldest_reader=1, oldest_writer=1)):
        in_child(lambda: migrate_database(as_text(made)) == 2)
    assert shape(made) == before
    assert stamp(made) == (1, 1, 1)
    with program_of(ADDITIVE):
        assert migrate_database(as_text(made)) == 2
    assert len(load_run("run", as_text(made))) == 1


def test_of_two_that_migrate_at_once_one_does_each_step(made: Address) -> None:
    third = Migration(3, "more", adds_more, oldest_reader=1, oldest_writer=1)
    together = threading.Barrier(3)
    taken_back(made, [column("run.project")])

    def migrate() -> int:
        together.wait()
        return migrate_database(as_text(made))

    with program_of(ADDITIVE, third), ThreadPoolExecutor(3) as pool:
        reached = [pool.submit(migrate) for _ in range(3)]
    assert [it.result() for it in reached] == [3, 3, 3]
    assert stamp(made) == (3, 1, 1)


def test_a_column_that_must_have_a_value_is_left_to_its_migration(made: Address) -> None:
    taken_back(made, [column("run.name"), column("run.project")])

    def names(connection: Connection) -> None:
        name = Column("name", Text, nullable=False, server_default="?")
        add_column(connection, Table("run", MetaData(), name).c.name)

    with program_of(Migration(2, "names", names, oldest_reader=1, oldest_writer=1)):
        assert migrate_database(as_text(made)) == 2
    record(made)


def test_what_a_migration_adds_is_as_it_is_made(made: Address) -> None:
    with program_of(ADDITIVE):
        migrate_database(as_text(made))
    build = MetaData()
    Index("run_by_colour", of_newer(build).c.colour)
    with disposed(migrating_engine(made)) as engine, engine.begin() as connection:
        columns = [it["name"] for it in inspect(connection).get_columns("run")]
        connection.exec_driver_sql("INSERT INTO run (uid, name, created, heartbeat) VALUES ('a', 'a', 1, 1)")
        assert connection.exec_driver_sql("SELECT colour FROM run").scalar() == "grey"
    assert columns == [column.name for column in build.tables["run"].columns]
    assert "run_by_colour ['colour']" in shape(made)["run"][1]
    assert "palette" in shape(made)


def dumped(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        return "\n".join(connection.iterdump())


@pytest.mark.parametrize("release", ["this build", *sorted(path.stem for path in SCHEMAS.glob("*.sql"))])
def test_every_released_schema_becomes_this_one(tmp_path: Path, release: str) -> None:
    new, old = tmp_path / "new.db", tmp_path / "old.db"
    writing_engine(new).dispose()
    dump = dumped(new) if release == "this build" else (SCHEMAS / f"{release}.sql").read_text()
    with closing(sqlite3.connect(old)) as connection:
        connection.executescript(dump)
    assert migrate_database(old) == schema.newest_schema()
    assert shape(old) == shape(new)
    assert stamp(old) == stamp(new)


def test_migrations_are_numbered_in_order_and_never_more_lenient_than_before() -> None:
    steps = migrations.MIGRATIONS
    assert [step.number for step in steps] == list(range(2, len(steps) + 2))
    for before, after in itertools.pairwise(steps):
        assert after.oldest_reader >= before.oldest_reader
        assert after.oldest_writer >= before.oldest_writer
    assert schema.newest_schema() == 1 + len(steps)


RUN = "main-run-1234"
LOST = ("run.project", "run.unattributed_scoring", "evaluation_row.cut_limit", "evaluation_row.attributes")


@pytest.fixture
def filled(address: Address) -> Address:
    with disposed(writing_engine(address)) as engine:
        make_run(engine, uid=RUN, steps=3, state=RunState.FINISHED)
    return address


@pytest.fixture
def earlier(filled: Address) -> Address:
    taken_back(filled, map(column, LOST))
    return filled


def read(address: Address, folder: Path) -> list[str]:
    """Everything that is read without a page."""
    db = as_text(address)
    frames = load_run(RUN, db), load_runs(db)
    typed("export", RUN, "--db", db, "--force", "-o", str(folder / "rows.jsonl"))
    report = diagnose(RUN, db=db).as_dict()
    return [*(frame.to_csv() for frame in frames), (folder / "rows.jsonl").read_text(), str(report)]


@pytest.mark.exhaustive
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
        *[f"{masked_address(filled)} is up to date: schema 1."] * 2,
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
