"""Upkeep where others write, too: what waits on disk, who writes on a network file system, and PostgreSQL's locks."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import URL, Connection, Engine, func, select, text, update
from sqlmodel import col

from logs_ui.recorder import LogsUIError, flush, load_runs, queries, start_run
from logs_ui.recorder.delivery.committer import entry_of
from logs_ui.recorder.storage.address import as_text
from logs_ui.recorder.storage.changes import Source, SourcesChange
from logs_ui.recorder.storage.database import disposed, writing_engine
from logs_ui.recorder.storage.spool.lease import Lease
from logs_ui.recorder.storage.spool.spool_entry import Entry, encoded
from logs_ui.recorder.storage.spool.spool_files import Spool
from logs_ui.recorder.storage.spool.spool_ingest import Ingester
from logs_ui.recorder.storage.spool_folder import spool_folder
from logs_ui.recorder.storage.sqlite.checkpoints import log_of
from logs_ui.recorder.storage.tables import EvaluationRow, Run, WriterPosition
from logs_ui.recorder.storage.writes import run_writes
from logs_ui.recorder.upkeep import delete_run, look_at, merge, prune, vacuum
from logs_ui.recorder.upkeep.delete import _itself
from logs_ui.recorder.vocabulary import RunState, SourceKind
from tests.support.changes import nth, stored
from tests.support.factory import make_run_at

PROMPT = [{"role": "user", "content": "hello"}]


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """A finished run of 24 rollouts."""
    path = tmp_path / "a.db"
    make_run_at(path, uid="one", steps=6, groups_per_step=1, state=RunState.FINISHED)
    return path


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGS_UI_FILE_SYSTEM", "network")
    monkeypatch.setattr("logs_ui.recorder.upkeep.small_transactions._PATIENCE", 0.2)


def positions(db: Path) -> int:
    with disposed(writing_engine(db)) as engine, engine.connect() as connection:
        found = connection.scalar(select(func.count()).select_from(WriterPosition))
    return found or 0


@pytest.mark.usefixtures("network")
def test_commands_work_with_what_waits_on_disk(tmp_path: Path) -> None:
    db, other = tmp_path / "a.db", tmp_path / "b.db"
    with start_run("new", db=db) as run:
        for _ in range(2):
            with run.rollout(PROMPT) as row:
                row.turn("hi")
                row.score(1.0)
    assert flush()
    assert not db.exists()
    assert [it.rollouts for it in merge([db], other)] == [2]
    assert (positions(db), positions(other)) == (1, 0), "each database's own"
    db.unlink()
    assert look_at(db).rollouts == 2
    db.unlink()
    assert prune(db, run="new", dry_run=True).rollouts == 2


def test_a_run_of_which_some_waits_on_disk_is_not_deleted(db: Path) -> None:
    spool = Spool(spool_folder(db), "p", 1 << 30)
    spool.append(nth(1), encoded(Entry(nth(1), 1, alive=("one",)))[0])
    for dry_run in (True, False):
        with pytest.raises(LogsUIError, match=r"Part of run one still waits in .*p\.000001\.spool: storing it"):
            delete_run("one", db, dry_run=dry_run)
    spool.close()
    assert delete_run("one", db).rollouts == 24
    assert Ingester(db, entry_of).take_in().entries == 0
    assert load_runs(db).empty


def test_a_file_that_is_moved_meanwhile_gets_its_log(db: Path) -> None:
    archive = db.with_name("archive.db")

    def move(*_: object) -> None:
        if db.exists():
            db.rename(archive)

    with pytest.raises(LogsUIError, match=r"a\.db was moved or replaced just now\. Try again\."):
        delete_run("one", db, progress=move)
    assert not log_of(db).exists()
    assert stored(archive, "SELECT count(*) FROM evaluation_row") == [(0,)]


@pytest.mark.usefixtures("network")
def test_on_a_network_file_system_a_command_waits_for_who_takes_in(db: Path) -> None:
    spool_folder(db).mkdir()
    commands: list[Callable[[], object]] = [
        lambda: prune(db, run="one"),
        lambda: delete_run("one", db),
        lambda: vacuum(db),
        lambda: merge([db], db.with_name("b.db")),
    ]
    spool_folder(db.with_name("b.db")).mkdir()
    with Lease(spool_folder(db) / "ingester").held(), Lease(spool_folder(db.with_name("b.db")) / "ingester").held():
        for command in commands:
            with pytest.raises(LogsUIError, match=r"Another process has been writing .* for a long time"):
                command()
    assert prune(db, run="one").rollouts == 24
    assert not spool_folder(db).exists()


@pytest.mark.usefixtures("network")
def test_on_a_network_file_system_a_command_is_alone_or_stops(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logs_ui.recorder.upkeep.small_transactions._FIRST", 8)
    monkeypatch.setattr("logs_ui.recorder.upkeep.small_transactions._MOST", 8)
    path = spool_folder(db) / "ingester"

    def taken_over(what: str, _done: int, _total: int) -> None:
        if what == "pruning":
            with Lease(path).held() as is_held:
                assert not is_held
            path.write_text("another")

    with pytest.raises(LogsUIError, match=r"Another process writes .* now, because this one"):
        prune(db, run="one", progress=taken_over)
    path.unlink()
    assert prune(db, run="one").rollouts == 16


def wait_for_lock(engine: Engine) -> None:
    """Until somebody waits for one of the database's."""
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    deadline = time.monotonic() + 240
    while True:
        with engine.connect() as connection:
            if connection.scalar(waiting):
                return
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.exhaustive
def test_a_deletion_and_a_writer_do_not_wait_for_each_other(postgres_url: URL) -> None:
    engine = writing_engine(postgres_url)
    with engine.begin() as connection:
        ids = run_writes.run_ids(connection, ["a", "b"], 1)
    run = queries.find_run(engine, "a")

    def delete() -> None:
        with engine.begin() as connection:
            _itself(connection, run)

    deleting = threading.Thread(target=delete)
    with engine.begin() as connection:
        run_writes.take_runs(connection, ids.values())
        deleting.start()
        wait_for_lock(engine)
        run_writes.write_sources(connection, [SourcesChange("b", (Source(SourceKind.REWARD, "r", "text", None),))], ids)
    deleting.join()
    assert list(load_runs(as_text(postgres_url)).run) == ["b"]
    engine.dispose()


@pytest.mark.exhaustive
def test_what_is_written_while_a_merge_reads_stays(
    db: Path, postgres_url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ends, and a rollout that gets its reward: the copy of an hour ago has neither."""
    monkeypatch.setattr("logs_ui.recorder.upkeep.small_transactions._FIRST", 8)
    monkeypatch.setattr("logs_ui.recorder.upkeep.small_transactions._MOST", 8)
    with disposed(writing_engine(db)) as writing:
        row = EvaluationRow
        with writing.begin() as connection:
            connection.execute(update(Run).values(state=RunState.RUNNING, heartbeat=1))
        merge([db], as_text(postgres_url))
        with writing.begin() as connection:
            connection.execute(update(row).values(scored=None, reward=None, advantage=None, preview="older"))
    with disposed(writing_engine(postgres_url)) as engine:
        with engine.begin() as connection:
            connection.execute(update(row).values(scored=None, reward=None, advantage=None))
        run_id = queries.find_run(engine, "one").id or 0
        writers: list[threading.Thread] = []

        def written_meanwhile(write: Callable[[Connection], None]) -> None:
            began = threading.Event()

            def transact() -> None:
                with engine.begin() as connection:
                    run_writes.take_runs(connection, [run_id])
                    write(connection)
                    began.set()
                    wait_for_lock(engine)

            writers.append(threading.Thread(target=transact))
            writers[-1].start()
            assert began.wait(240)

        def score(connection: Connection) -> None:
            connection.execute(update(row).values(scored=1, reward=0.5))

        def end(connection: Connection) -> None:
            connection.execute(update(Run).values(state=RunState.FINISHED, heartbeat=2))

        def progress(_what: str, done: int, _total: int) -> None:
            if done == 8:
                written_meanwhile(score)

        written_meanwhile(end)
        merge([db], as_text(postgres_url), progress=progress)
        for writer in writers:
            writer.join()
        with engine.connect() as connection:
            assert connection.scalar(select(col(Run.state))) == RunState.FINISHED
            assert connection.scalar(select(func.count()).where(col(row.reward) == 0.5)) == 24
        assert len(writers) == 2


@pytest.mark.exhaustive
def test_notes_and_index_are_vacuumed_too(postgres_url: URL) -> None:
    names = ("public.run", "notes.note", "search.texts")
    with disposed(writing_engine(postgres_url)) as engine:

        def files() -> list[int]:
            with engine.connect() as connection:
                return [connection.scalar(text(f"SELECT pg_relation_filenode('{it}')")) or 0 for it in names]

        before = files()
        vacuum(as_text(postgres_url))
        assert not set(before) & set(files())
