"""`logs-ui db`: what it says of a database, what it finds damaged, runs that are copied, or deleted, whole; and where
others write, too: what waits on disk, who writes on a network file system, and PostgreSQL's locks.
"""

import json
import re
import shlex
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sqlalchemy import URL, Connection, Engine, delete, func, insert, select, text, update
from sqlmodel import col

from logs_ui.recorder import LogsUIError, flush, load_run, load_runs, load_scalars, queries, start_run, trace_env
from logs_ui.recorder.delivery.committer import entry_of
from logs_ui.recorder.errors import RefusedDatabaseError, RunNotFoundError
from logs_ui.recorder.queries.notebook import Notebook, Subject
from logs_ui.recorder.storage import clock, migrations
from logs_ui.recorder.storage.address import Address, as_text, masked_address
from logs_ui.recorder.storage.changes import Source, SourcesChange
from logs_ui.recorder.storage.database import disposed, reading_engine, writing_engine
from logs_ui.recorder.storage.migrations import Migration
from logs_ui.recorder.storage.spool.entry import Entry, encoded
from logs_ui.recorder.storage.spool.files import Spool
from logs_ui.recorder.storage.spool.ingest import Ingester
from logs_ui.recorder.storage.spool.lease import Lease
from logs_ui.recorder.storage.spool_folder import spool_folder
from logs_ui.recorder.storage.sqlite.checkpoints import log_of
from logs_ui.recorder.storage.tables import (
    EvaluationRow,
    PayloadStart,
    RolloutPayload,
    Run,
    Table,
    Tokenizer,
    WriterPosition,
)
from logs_ui.recorder.storage.writes import row_writes, run_writes
from logs_ui.recorder.upkeep import check, delete_run, look_at, merge, prune, vacuum
from logs_ui.recorder.upkeep.delete import _itself
from logs_ui.recorder.upkeep.integrity_check import Finding
from logs_ui.recorder.upkeep.merge import MergedRun
from logs_ui.recorder.upkeep.vacuum import forget_writers
from logs_ui.recorder.vocabulary import RunState, SourceKind
from tests.recorder.capture.test_observed_images import screenshot
from tests.support.changes import interrupt, nth, stored, wait_until
from tests.support.command import typed
from tests.support.factory import make_run_at

PROMPT = [{"role": "user", "content": "hello"}]
UPKEEP = Path(__file__).parents[3] / "docs" / "upkeep.md"


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stock") / "stock.db"
    for seed, uid in enumerate(("one", "two")):
        make_run_at(path, uid=uid, steps=6, groups_per_step=1, state=RunState.FINISHED, seed=seed)
    Notebook(path).note(Subject("one"), "the baseline")
    ((uid,),) = stored(path, "SELECT uid FROM evaluation_row WHERE run_id = 2 LIMIT 1")
    Notebook(path).star(Subject("two", uid), starred=True)
    return path


@pytest.fixture
def copy(stock: Path, tmp_path: Path) -> Path:
    path = tmp_path / "copy.db"
    shutil.copy(stock, path)
    return path


def tables(address: Address) -> dict[str, int]:
    with disposed(reading_engine(address)) as engine, engine.connect() as connection:
        return {table.name: len(connection.execute(select(table)).all()) for table in Table.metadata.sorted_tables}


@pytest.fixture
def _eight_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for most in ("_FIRST", "_MOST"):
        monkeypatch.setattr(f"logs_ui.recorder.upkeep.small_transactions.{most}", 8)


def is_whole(address: Address) -> bool:
    return all(finding.is_whole for finding in check(as_text(address)))


def record_one(db: Address) -> None:
    """Until it is stored, or waits on disk."""
    with start_run(db=as_text(db)) as run, run.rollout(PROMPT) as row:
        row.score(1.0)
    assert flush()


@contextmanager
def recording(db: Address) -> Iterator[None]:
    """A run that has one rollout, and goes on."""
    with start_run("live", db=as_text(db)) as run:
        with run.rollout(PROMPT):
            pass
        assert flush()
        yield
    assert flush()


def same(db: Address, other: Address, run: str) -> None:
    """A run is the same in both, but for the numbers of rollouts, which are a database's own."""
    for load in (load_run, load_scalars):
        ours, theirs = (load(run, as_text(it)).drop(columns="id", errors="ignore") for it in (db, other))
        pd.testing.assert_frame_equal(ours, theirs)


@pytest.mark.exhaustive
def test_a_merged_run_is_the_same_and_there_is_one_of_it(stock: Path, address: Address) -> None:
    merged = merge([stock], as_text(address))
    assert [(it.uid, it.was_there, it.rollouts) for it in merged] == [("one", False, 24), ("two", False, 24)]
    for run in ("one", "two"):
        same(stock, address, run)
    again = merge([stock], as_text(address))
    assert [(it.uid, it.was_there, it.rollouts) for it in again] == [("one", True, 0), ("two", True, 0)]
    own = {"step_details": 0, "logs_ui_schema": 0}
    assert tables(address) | own == tables(stock) | own
    assert list(load_run("two", as_text(address)).starred).count(True) == 1
    assert is_whole(address)


@pytest.mark.exhaustive
def test_to_postgresql_and_back_nothing_is_lost(stock: Path, postgres_url: Address, tmp_path: Path) -> None:
    merge([stock], as_text(postgres_url), run=["one"])
    merge([as_text(postgres_url)], tmp_path / "back.db")
    assert list(load_runs(tmp_path / "back.db").run) == ["one"]
    same(stock, tmp_path / "back.db", "one")
    raw = "SELECT uid, rewards, odd_rewards, metrics FROM evaluation_row WHERE run_id = 1 ORDER BY uid"
    assert stored(tmp_path / "back.db", raw) == stored(stock, raw), "as it is stored: a JSON null is no NULL"


@pytest.mark.exhaustive
def test_a_run_that_goes_on_is_brought_up_to_date_and_an_old_copy_puts_nothing_back(tmp_path: Path) -> None:
    live, old, all_runs = tmp_path / "live.db", tmp_path / "old.db", tmp_path / "all.db"
    with start_run("on", db=live) as run:
        with run.rollout(PROMPT, task="1") as first:
            first.turn("a")
            first.score(1.0)
        assert flush()
        with closing(sqlite3.connect(live)) as connection:
            connection.execute("VACUUM INTO ?", [str(old)])
        merge([live], all_runs)
        with run.rollout(PROMPT, task="2") as second:
            second.turn("b")
            second.score(0.0)
    assert flush()
    (merged,) = merge([live], all_runs)
    assert (merged.was_there, merged.rollouts) == (True, 1)
    same(live, all_runs, "on")
    assert load_runs(all_runs).state[0] == "finished"
    merge([old], all_runs)
    same(live, all_runs, "on")
    assert load_runs(all_runs).state[0] == "finished"


def test_what_hosts_wrote_of_one_run_becomes_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGS_UI_RUN", "shared")
    for host in ("a", "b"):
        with start_run(db=tmp_path / f"{host}.db") as run, run.rollout(PROMPT, group=host, task=host) as row:
            row.score(1.0)
        assert flush()
    found = merge([tmp_path / "a.db", tmp_path / "b.db"], tmp_path / "all.db", run=["shared"])
    assert found == [MergedRun("shared", was_there=False, rollouts=2)], "counted once"
    (run_line,) = load_runs(tmp_path / "all.db").to_dict("records")
    assert (run_line["run"], run_line["rollouts"]) == ("shared", 2)
    assert set(load_run("shared", tmp_path / "all.db").task) == {"a", "b"}


def test_images_come_along(tmp_path: Path) -> None:
    class Screens:
        def reset(self) -> dict[str, object]:
            return {"screen": screenshot()}

    env = trace_env(Screens())
    with start_run("shots", db=tmp_path / "a.db") as run:
        for _ in range(2):
            with run.rollout(PROMPT):
                env.reset()
    assert flush()
    merge([tmp_path / "a.db"], tmp_path / "b.db")
    assert tables(tmp_path / "b.db")["image"] == 1
    assert is_whole(tmp_path / "b.db")


@pytest.mark.exhaustive
def test_pruned_text_is_neither_put_back_by_a_copy_nor_taken_from_one(stock: Path, tmp_path: Path) -> None:
    merge([stock], tmp_path / "a.db")
    prune(tmp_path / "a.db", run="one")
    merge([stock], tmp_path / "a.db")
    assert load_run("one", tmp_path / "a.db").pruned.notna().all()
    merge([stock], tmp_path / "b.db")
    merge([tmp_path / "a.db"], tmp_path / "b.db")
    same(stock, tmp_path / "b.db", "one")


def test_merging_refuses_what_makes_no_sense(stock: Path, tmp_path: Path) -> None:
    with pytest.raises(LogsUIError, match="is the database to merge into"):
        merge([stock], stock)
    with pytest.raises(RunNotFoundError, match="did you mean 'one'"):
        merge([stock], tmp_path / "a.db", run=["two", "onne"])
    with pytest.raises(LogsUIError, match="There is no database at"):
        merge([tmp_path / "none.db"], tmp_path / "a.db")
    assert list(tmp_path.iterdir()) == [], "and leaves nothing behind"


def test_a_run_that_is_named_is_taken_from_the_sources_that_have_it(stock: Path, tmp_path: Path) -> None:
    writing_engine(tmp_path / "empty.db").dispose()
    found = merge([tmp_path / "empty.db", stock], tmp_path / "all.db", run=["two", "two"])
    assert found == [MergedRun("two", was_there=False, rollouts=24)]
    assert merge([tmp_path / "empty.db"], tmp_path / "none.db") == []
    assert not (tmp_path / "none.db").exists()


def test_a_deleted_run_leaves_nothing_and_takes_nothing_of_others(stock: Path, address: Address) -> None:
    merge([stock], as_text(address))
    load_run("two", as_text(address), where='"home"')  # indexes it
    merge([stock], as_text(address), run=["two"])
    before = tables(address)
    assert delete_run("one", as_text(address), dry_run=True).rollouts == 24
    assert tables(address) == before
    gone = delete_run("one", as_text(address))
    assert (gone.run, gone.rollouts, gone.said) == ("one", 24, 1)
    after = tables(address)
    halves = ("evaluation_row", "rollout_payload", "run", "step_statistics", "scalar")
    assert {name: after[name] for name in halves} == {name: before[name] // 2 for name in halves}
    assert after["tokenizer"] == 1
    same(stock, address, "two")
    assert list(load_run("two", as_text(address), where='"home"').id)
    delete_run("two", as_text(address))
    assert sum(tables(address).values()) == 1  # what says the schema
    assert is_whole(address)
    merge([stock], as_text(address))
    assert not load_run("two", as_text(address), where='"home"').empty
    assert not load_run("two", as_text(address)).starred.all()


def test_a_run_that_is_recorded_is_not_deleted(address: Address) -> None:
    with recording(address), pytest.raises(LogsUIError, match=r"is being recorded now\. Wait for its end, or end it"):
        delete_run("live", as_text(address))
    assert delete_run("live", as_text(address)).rollouts == 1


@pytest.mark.usefixtures("_eight_at_once")
def test_a_deletion_that_is_stopped_goes_on_when_it_is_asked_again(copy: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        delete_run("one", copy, progress=interrupt)
    assert len(load_run("one", copy)) == 16
    delete_run("one", copy)
    assert list(load_runs(copy).run) == ["two"]


def test_vacuum_gives_room_back(stock: Path, address: Address) -> None:
    merge([stock], as_text(address))
    prune(as_text(address), run=["one", "two"])
    kept = load_run("one", as_text(address))
    found = vacuum(as_text(address))
    assert (found.skipped, found.after < found.before) == ((), True)
    pd.testing.assert_frame_equal(load_run("one", as_text(address)), kept)
    assert look_at(as_text(address)).free == 0


def test_vacuum_forgets_processes_that_wrote_last_long_ago_and_whose_spools_are_gone(address: Address) -> None:
    spool = Spool(spool_folder(address), "waits", 1 << 20)
    spool.append(nth(1), b"not read here")
    with disposed(writing_engine(address)) as engine, engine.begin() as connection:
        month_ago = clock.now(connection) - 30 * 86_400_000_000
        for writer, at in {"old": month_ago - 9_000_000, "waits": 1, "new": month_ago + 3_600_000_000}.items():
            connection.execute(insert(WriterPosition).values(writer=writer, parcel=0, process=0, n=1, written=at))
        row_writes.advance(connection, "now", nth(1))
    forget_writers(address)
    assert {writer for (writer,) in stored(address, "SELECT writer FROM writer_position")} == {"waits", "new", "now"}
    spool.remove()


def test_vacuum_refuses_while_a_run_records_and_without_room(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way = r"cannot be vacuumed while run .* is being recorded into it\. Wait"
    with recording(copy), pytest.raises(LogsUIError, match=under_way):
        vacuum(copy)
    full = shutil.disk_usage(copy.parent)._replace(free=10_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with pytest.raises(LogsUIError, match=r"needs 1 MB of free disk space, but only 0 MB are free\. Free some"):
        vacuum(copy)


def test_a_vacuum_that_is_stopped_leaves_the_database_as_it_was(copy: Path) -> None:
    prune(copy, run=["one", "two"])
    before = tables(copy)

    with pytest.raises(KeyboardInterrupt):
        vacuum(copy, progress=interrupt)
    assert tables(copy) == before
    assert all(finding.is_whole for finding in check(copy, thorough=True))


def damaged(path: Path) -> list[Finding]:
    return [finding for finding in check(path) if not finding.is_whole]


def change(address: Address, *statements: Any) -> None:
    with disposed(writing_engine(address)) as engine, engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
        for statement in statements:
            connection.execute(statement)


def test_what_is_referred_to_and_lost_is_counted(copy: Path) -> None:
    change(copy, delete(EvaluationRow).where(col(EvaluationRow.id) == 3), delete(Tokenizer))
    said = [finding.said for finding in damaged(copy)]
    assert said[0].startswith("1 of rollout_payload, 2 of run refer to something that is missing. Copy what is whole")


def test_a_prompt_that_no_rollout_has_any_more_is_told_and_pruned(address: Address) -> None:
    db, long = as_text(address), [{"role": "user", "content": "".join(map(chr, range(300, 1500)))}]
    with start_run("shared", db=db) as run:
        for _ in range(2):
            with run.rollout(long) as row:
                row.turn("there")
    assert flush()
    assert look_at(db).prompts == 1
    change(address, update(RolloutPayload).values(content=None, content_start=None))
    (said,) = (it.said for it in check(db) if it.what == "prompts")
    assert said.startswith("1 shared prompts are used by no rollout any more; logs-ui prune --db ")
    gone = prune(db, run="shared", keep="nothing")
    assert gone.prompt_bytes > 600
    assert not [it for it in check(db) if it.what == "prompts"]


def test_pages_that_are_overwritten_are_found(copy: Path) -> None:
    pages = copy.read_bytes()
    middle = len(pages) // 2 // 4096 * 4096
    copy.write_bytes(pages[:middle] + b"\xa5" * 8192 + pages[middle + 8192 :])
    found = damaged(copy)
    assert found[0].what == "pages"
    assert found[0].said.startswith(("damaged: ", "cannot be read: database disk image is malformed"))
    assert "Restore it from a copy" in found[0].said


def test_info_says_what_there_is(stock: Path, address: Address) -> None:
    merge([stock], as_text(address))
    prune(as_text(address), run="one")
    found = look_at(as_text(address))
    assert (found.runs, found.rollouts, found.pruned, found.images) == (2, 48, 24, 0)
    assert found.where == masked_address(address)
    assert found.engine.startswith("SQLite 3." if isinstance(address, Path) else "PostgreSQL 1")
    assert found.under_way == []
    assert found.bytes > 24_000
    with recording(address):
        assert len(look_at(as_text(address)).under_way) == 1


def test_copied_commands_name_a_path_with_a_blank(stock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db, away = tmp_path / "my runs" / "a.db", tmp_path / "my runs" / "b.db"
    merge([stock], db)
    change(db, delete(Tokenizer), insert(PayloadStart).values(id=1, data=b"used by nobody"))
    monkeypatch.setenv("LOGS_UI_FILE_SYSTEM", "network")
    record_one(db)
    record_one(away)
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "MIGRATIONS", (Migration(2, "more", lambda _: None, 1, 1),))
        with pytest.raises(RefusedDatabaseError) as behind:
            reading_engine(db)
    said = [
        *(finding.said for finding in check(db)),
        typed("db", "check", "--db", away).stderr,
        str(behind.value),
        typed("prune", "--db", db, "--run", "one", "--yes").stdout,
    ]
    commands = [
        shlex.split(it) for text in said for it in re.findall(r"logs-ui (?:db|prune) .*?(?= deletes|\n|$)", text)
    ]
    named = {
        (words[2 - (words[1] == "prune")], words[words.index("--db") + 1 if "--db" in words else 3])
        for words in commands
    }
    assert named == {(name, str(db)) for name in ("prune", "merge", "ingest", "migrate", "vacuum")} | {
        ("ingest", str(away))
    }


def test_what_waits_before_the_first_ingest_is_not_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGS_UI_FILE_SYSTEM", "network")
    monkeypatch.setenv("LOGS_UI_RUN", "far")
    db, folder = tmp_path / "a.db", tmp_path / "a.db-spool"
    assert typed("db", "ingest", "--db", db).stdout == f"Nothing waits for {db} in {folder}.\n"
    for number in range(3):
        record_one(db)
        if number == 0:
            told = typed("db", "check", "--db", db)
            assert told.returncode == 1
            assert told.stderr.endswith(
                f"There is no database at {db}. Recorded rollouts wait in {folder}. Store them with: "
                f"logs-ui db ingest --db {db}\n"
            )
            assert "rollouts        1\n" in typed("db", "info", "--db", db).stdout
        elif number == 1:
            assert f"ok   spool: some entries wait in {folder}, unchecked. " in typed("db", "check", "--db", db).stdout
            assert "far.2   1 rollout" in typed("prune", "--run", "far.2", "--db", db).stdout
        else:
            assert "far.3  new, 1 rollout\n" in typed("db", "merge", db, "--into", tmp_path / "b.db").stdout
    record_one(db)
    assert typed("db", "ingest", "--db", db).stdout == f"1 change of rollouts stored in {db}.\n"


def test_the_commands_as_they_are_typed(stock: Path, tmp_path: Path) -> None:
    db = tmp_path / "all.db"
    done = typed("db", "merge", stock, "--into", db)
    assert done.stdout == f"one  new, 24 rollouts\ntwo  new, 24 rollouts\n2 runs merged into {db}.\n", done.stderr
    said = typed("db", "info", "--db", db).stdout
    assert f"database        {db}\n" in said
    assert "recording now   nothing\n" in said
    assert json.loads(typed("db", "info", "--db", db, "--json").stdout)["rollouts"] == 48
    assert "schema 1" in typed("db", "migrate", "--db", db).stdout
    asked = typed("db", "delete", "one", "--db", db)
    assert asked.stdout.endswith("Nothing was changed. To do it, add --yes.\n")
    assert typed("db", "delete", "one", "--yes", "--db", db).stdout.endswith("Run one is deleted.\n")
    assert " now.\n" in typed("db", "vacuum", "--db", db).stdout
    whole = typed("db", "check", "--db", db)
    assert (whole.returncode, whole.stderr) == (0, "")
    assert "ok   references: all there\n" in whole.stdout
    with closing(sqlite3.connect(db)) as connection:
        connection.execute("DELETE FROM evaluation_row WHERE id = 30")
        connection.commit()
    broken = typed("db", "check", "--db", db)
    assert broken.returncode == 1
    assert f"$ logs-ui db check --db runs.db\n{broken.stdout}```".replace(str(db), "runs.db") in UPKEEP.read_text()
    assert json.loads(typed("db", "check", "--db", db, "--json").stdout)[-1]["is_whole"] is False


@pytest.fixture
def db(tmp_path: Path) -> Path:
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
    with Lease(spool_folder(db) / "ingester").hold(), Lease(spool_folder(db.with_name("b.db")) / "ingester").hold():
        for command in commands:
            with pytest.raises(LogsUIError, match=r"Another process has been writing .* for a long time"):
                command()
    assert prune(db, run="one").rollouts == 24
    assert not spool_folder(db).exists()


@pytest.mark.usefixtures("network", "_eight_at_once")
def test_on_a_network_file_system_a_command_is_alone_or_stops(db: Path) -> None:
    path = spool_folder(db) / "ingester"

    def taken_over(what: str, _done: int, _total: int) -> None:
        if what == "pruning":
            with Lease(path).hold() as is_held:
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

    def is_so() -> bool:
        with engine.connect() as connection:
            return bool(connection.scalar(waiting))

    wait_until(is_so)


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
@pytest.mark.usefixtures("_eight_at_once")
def test_what_is_written_during_a_merge_stays(db: Path, postgres_url: URL) -> None:
    """A run that ends, and a rollout that gets its reward: the copy of an hour ago has neither."""
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
