"""Machines whose clocks differ: who is alive is told by the clock that all have in common."""

import os
import time
from pathlib import Path

import pytest
from sqlalchemy import URL, Engine, text

from logs_ui.app.web.page_cache import figure
from logs_ui.recorder import queries
from logs_ui.recorder.queries import RunFilter
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter
from logs_ui.recorder.storage import clock
from logs_ui.recorder.storage.changes import Batch, RunChange
from logs_ui.recorder.storage.database import reading_engine, writing_engine
from logs_ui.recorder.storage.spool.intake import Intake
from logs_ui.recorder.storage.spool.spool_entry import Entry, encoded
from logs_ui.recorder.storage.spool.spool_files import Spool
from logs_ui.recorder.storage.spool.spool_ingest import Ingester
from logs_ui.recorder.storage.spool_folder import spool_folder
from logs_ui.recorder.storage.tables import Run
from tests.support.entries import nth

HOUR = 3_600_000_000  # µs


@pytest.fixture(params=[-HOUR, HOUR], ids=["behind", "ahead"])
def off(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """This process's clock is so many µs off from now on."""
    real, by = time.time_ns, request.param
    monkeypatch.setattr(time, "time_ns", lambda: real() + by * 1000)
    monkeypatch.setattr(time, "time", lambda: (real() + by * 1000) / 1e9)
    return int(by)


def recorded(engine: Engine, address: URL | Path) -> None:
    """A run that goes on, by a process of this clock."""
    begun = Batch([RunChange("r", {"name": "r", "created": _now(), "heartbeat": _now()})])
    Intake(address, lambda: engine, "w", is_own=True).take([Entry(nth(1), _now(), begun, ("r",))])


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


def test_a_dashboard_whose_clock_is_off_asks_the_server(postgres_url: URL, off: int) -> None:
    writing = writing_engine(postgres_url)
    recorded(writing, postgres_url)
    engine = reading_engine(postgres_url)
    assert abs(clock.now(engine) - _now()) > HOUR // 2
    assert states(engine) == {"running"}
    with writing.begin() as connection:
        connection.execute(text("UPDATE run SET heartbeat = heartbeat - 120000000"))
    assert states(engine) == {"died"}
    engine.dispose()
    writing.dispose()
    assert off


@pytest.mark.parametrize(("silent", "asked"), [(0, 1), (40, 2)])
def test_what_may_be_taken_for_dead_at_any_moment_is_asked_anew_whatever_the_clock_says(
    postgres_url: URL, off: int, silent: int, asked: int
) -> None:
    writing = writing_engine(postgres_url)
    recorded(writing, postgres_url)
    with writing.begin() as connection:
        connection.execute(text("UPDATE run SET heartbeat = heartbeat - :by"), {"by": silent * 1_000_000})
        summary = queries.run_summary(connection, 1)
        times: list[int] = []

        def ask(*_: object) -> None:
            times.append(1)

        for _ in range(2):
            figure(connection, summary, ask, RolloutFilter())
    assert len(times) == asked
    writing.dispose()
    assert off


def test_a_recorder_whose_clock_is_off_is_heard_of_by_the_servers(postgres_url: URL, off: int) -> None:
    engine = writing_engine(postgres_url)
    recorded(engine, postgres_url)
    ended = Batch([RunChange("r", {"state": "finished", "finished": _now(), "heartbeat": _now()})])
    for batch in (Batch(), ended):
        Intake(postgres_url, lambda: engine, "another", is_own=True).take(
            [Entry(nth(1 + len(batch.runs)), _now(), batch)]
        )
        assert abs(clock.now(engine) - _run(engine).heartbeat) < 60_000_000
    engine.dispose()
    assert off


@pytest.mark.parametrize("by", [-HOUR, HOUR])
def test_of_a_process_whose_file_is_taken_in_the_file_systems_clock_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: int
) -> None:
    monkeypatch.setenv("LOGS_UI_FILE_SYSTEM", "network")
    db = tmp_path / "a.db"
    spool = Spool(spool_folder(db), "far", 1 << 20)
    theirs = _now() + by  # by the clock of their machine
    begun = Batch([RunChange("r", {"name": "r", "created": theirs, "heartbeat": theirs})])
    for number, entry in enumerate([Entry(nth(1), theirs, begun, ("r",)), Entry(nth(2), theirs, Batch(), ("r",))], 1):
        spool.append(nth(number), encoded(entry)[0])
    ingester = Ingester(db)
    assert ingester.take_in().entries == 2
    engine = reading_engine(db)
    assert states(engine) == {"running"}
    assert abs(_now() - _run(engine).heartbeat) < 30_000_000
    engine.dispose()


def test_of_one_that_has_died_its_last_word_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGS_UI_FILE_SYSTEM", "network")
    db = tmp_path / "a.db"
    spool = Spool(spool_folder(db), "far", 1 << 20)
    begun = Batch([RunChange("r", {"name": "r", "created": _now() + HOUR, "heartbeat": _now() + HOUR})])
    spool.append(nth(1), encoded(Entry(nth(1), _now() + HOUR, begun, ("r",)))[0])
    (file,) = spool_folder(db).iterdir()
    os.utime(file, (time.time() - 300, time.time() - 300))
    Ingester(db).take_in()
    engine = reading_engine(db)
    assert states(engine) == {"died"}
    engine.dispose()


def _run(engine: Engine) -> Run:
    return queries.find_run(engine, "r")


def _now() -> int:
    return time.time_ns() // 1000
