"""Machines whose clocks differ: who is alive is told by the clock that all have in common."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from sqlalchemy import URL, Engine, text

from logs_ui.app.web.page_cache import figure
from logs_ui.recorder import queries
from logs_ui.recorder.delivery.committer import entry_of
from logs_ui.recorder.queries import RunFilter
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter
from logs_ui.recorder.storage import clock
from logs_ui.recorder.storage.changes import Batch, RunChange
from logs_ui.recorder.storage.database import disposed, reading_engine, writing_engine
from logs_ui.recorder.storage.spool.entry import Entry, encoded
from logs_ui.recorder.storage.spool.files import Spool
from logs_ui.recorder.storage.spool.ingest import Ingester
from logs_ui.recorder.storage.spool.intake import Intake
from logs_ui.recorder.storage.spool_folder import spool_folder
from tests.support.changes import nth

HOUR = 3_600_000_000  # µs


@pytest.fixture(params=[-HOUR, HOUR], ids=["behind", "ahead"])
def off(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    real, by = time.time_ns, request.param
    monkeypatch.setattr(time, "time_ns", lambda: real() + by * 1000)
    monkeypatch.setattr(time, "time", lambda: (real() + by * 1000) / 1e9)


@pytest.fixture
def engine(postgres_url: URL) -> Iterator[Engine]:
    """To write with; a run goes on, by a process of this clock."""
    with disposed(writing_engine(postgres_url)) as engine:
        take(engine, "w", Entry(nth(1), _now(), Batch([_begun(_now())]), ("r",)))
        yield engine


def take(engine: Engine, writer: str, entry: Entry) -> None:
    Intake(engine.url, lambda: engine, writer, is_own=True).take([entry])


def _begun(at: int) -> RunChange:
    return RunChange("r", {"name": "r", "created": at, "heartbeat": at})


def states(engine: Engine) -> set[str]:
    """Of the one run, by all that tell it."""
    run = queries.find_run(engine, "r")
    run_id = run.id or 0
    (listed,) = queries.list_runs(engine, RunFilter(), limit=9).runs
    (of_all,) = queries.all_runs(engine)
    return {
        queries.state_of(run, queries.now(engine)),
        queries.run_summary(engine, run_id).state,
        listed.summary.state,
        of_all.state,
        str(queries.run_marks(engine, [run_id])[0][-1]),
        *queries.count_runs(engine, RunFilter()).states,
        *(it.summary.state for it in queries.these_runs(engine, [run_id])),
    }


@pytest.mark.usefixtures("off")
def test_a_dashboard_whose_clock_is_off_asks_the_server(engine: Engine) -> None:
    assert abs(clock.now(engine) - _now()) > HOUR // 2
    for seconds, state in ((0, "running"), (120, "died")):
        _silence(engine, seconds)
        assert states(engine) == {state}


@pytest.mark.usefixtures("off")
@pytest.mark.parametrize(("silent", "asked"), [(0, 1), (40, 2)])
def test_what_may_be_dead_at_any_moment_is_asked_anew(engine: Engine, silent: int, asked: int) -> None:
    _silence(engine, silent)
    ask = Mock()
    with engine.begin() as connection:
        summary = queries.run_summary(connection, 1)
        for _ in range(2):
            figure(connection, summary, ask, RolloutFilter())
    assert ask.call_count == asked


@pytest.mark.usefixtures("off")
def test_a_recorder_whose_clock_is_off_is_heard_of_by_the_servers(engine: Engine) -> None:
    ended = Batch([RunChange("r", {"state": "finished", "finished": _now(), "heartbeat": _now()})])
    for number, batch in enumerate((Batch(), ended), 1):
        take(engine, "another", Entry(nth(number), _now(), batch))
        assert abs(clock.now(engine) - queries.find_run(engine, "r").heartbeat) < 60_000_000


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOGS_UI_FILE_SYSTEM", "network")
    return tmp_path / "a.db"


def write_file(db: Path, *entries: Entry) -> Path:
    """Of a process on another machine, which lives; return its file."""
    spool = Spool(spool_folder(db), "far", 1 << 20)
    for number, entry in enumerate(entries, 1):
        spool.append(nth(number), encoded(entry)[0])
    (file,) = spool_folder(db).iterdir()
    return file


@pytest.mark.parametrize("by", [-HOUR, HOUR])
def test_of_a_process_whose_file_is_taken_in_the_file_systems_clock_counts(db: Path, by: int) -> None:
    theirs = _now() + by  # by the clock of their machine
    begun = Entry(nth(1), theirs, Batch([_begun(theirs)]), ("r",))
    write_file(db, begun, Entry(nth(2), theirs, Batch(), ("r",)))
    assert Ingester(db, entry_of).take_in().entries == 2
    with disposed(reading_engine(db)) as engine:
        assert states(engine) == {"running"}
        assert abs(_now() - queries.find_run(engine, "r").heartbeat) < 30_000_000


def test_of_one_that_has_died_its_last_word_counts(db: Path) -> None:
    theirs = _now() + HOUR
    file = write_file(db, Entry(nth(1), theirs, Batch([_begun(theirs)]), ("r",)))
    os.utime(file, (time.time() - 300, time.time() - 300))
    Ingester(db, entry_of).take_in()
    with disposed(reading_engine(db)) as engine:
        assert states(engine) == {"died"}


def _silence(engine: Engine, seconds: int) -> None:
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE run SET heartbeat = heartbeat - {seconds * 1_000_000}"))  # noqa: S608


def _now() -> int:
    return time.time_ns() // 1000
