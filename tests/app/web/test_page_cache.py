"""The cache of a run's figures holds them no longer than they are true."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select, update
from sqlmodel import col

from logs_ui.app.web import page_cache
from logs_ui.recorder import queries
from logs_ui.recorder.queries import Count, Database
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, Sort, parse_where
from logs_ui.recorder.storage.database import disposed, reading_engine, writing_engine
from logs_ui.recorder.storage.tables import EvaluationRow, Run
from logs_ui.recorder.vocabulary import RunState, Status
from tests.support.factory import make_run

EVERYTHING = RolloutFilter()


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Engine]:
    with disposed(writing_engine(tmp_path / "runs.db")) as engine:
        make_run(engine, uid="ended", steps=2, state=RunState.FINISHED)
        make_run(engine, uid="alive", steps=2, heartbeat=time.time_ns() // 1000)
        yield engine


@pytest.fixture
def reader(writer: Engine, tmp_path: Path) -> Iterator[Engine]:
    with disposed(reading_engine(tmp_path / "runs.db")) as engine:
        yield engine


class Counting:
    """Counts rollouts, and how often it is asked to."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, db: Database, run_id: int, chosen: RolloutFilter) -> Count:
        self.asked += 1
        return queries.count(db, run_id, chosen)


def figure(reader: Engine, uid: str, ask: Counting, where: str | RolloutFilter = "") -> int:
    """As a page asks for it: in one transaction with the run's summary."""
    chosen = parse_where(where) if isinstance(where, str) else where
    with reader.begin() as connection:
        run = queries.find_run(connection, uid)
        summary = queries.run_summary(connection, run.id or 0)
        return page_cache.figure(connection, summary, ask, chosen).value


def change(writer: Engine, uid: str, **columns: Any) -> None:
    with writer.begin() as connection:
        connection.execute(update(Run).where(col(Run.uid) == uid).values(**columns))


def test_an_answer_is_remembered_for_each_filter_whatever_its_order(reader: Engine) -> None:
    ask = Counting()
    answers = {figure(reader, "ended", ask) for _ in range(3)} | {figure(reader, "ended", ask, "status:ok")}
    answers.add(figure(reader, "ended", ask, RolloutFilter(sort=Sort.SLOWEST)))
    assert ask.asked == len(answers) == 2


def test_of_a_run_that_has_changed_it_is_asked_anew(writer: Engine, reader: Engine) -> None:
    ask = Counting()
    before = figure(reader, "alive", ask, "status:ok")
    of_run = col(EvaluationRow.run_id) == select(col(Run.id)).where(col(Run.uid) == "alive").scalar_subquery()
    with writer.begin() as connection:
        connection.execute(update(EvaluationRow).where(of_run).values(status=Status.ERROR))
        connection.execute(update(Run).where(col(Run.uid) == "alive").values(changed=col(Run.changed) + 1))
    assert before > 0
    assert figure(reader, "alive", ask, "status:ok") == 0
    assert figure(reader, "ended", ask, "status:ok") > 0


def test_what_ran_is_aborted_as_soon_as_the_run_has_died(writer: Engine, reader: Engine) -> None:
    ask = Counting()
    running = figure(reader, "alive", ask, "status:running")
    assert running > 0
    change(writer, "alive", heartbeat=time.time_ns() // 1000 - 300_000_000)
    assert figure(reader, "alive", ask, "status:running") == 0
    assert figure(reader, "alive", ask, "status:aborted") >= running
    change(writer, "alive", heartbeat=time.time_ns() // 1000)
    assert figure(reader, "alive", ask, "status:running") == running
    change(writer, "alive", state=RunState.FINISHED, finished=time.time_ns() // 1000)
    assert figure(reader, "alive", ask, "status:running") == 0


def test_nothing_is_remembered_of_a_run_that_may_be_taken_for_dead_meanwhile(writer: Engine, reader: Engine) -> None:
    ask = Counting()
    change(writer, "alive", heartbeat=time.time_ns() // 1000 - 50_000_000)
    assert figure(reader, "alive", ask) == figure(reader, "alive", ask)
    assert ask.asked == 2


@pytest.mark.parametrize(
    "where", ["is:starred", "-note:none", "tag:seen", "-tag:seen", "words", "status:ok -is:starred"]
)
def test_what_readers_and_the_index_change_is_asked_each_time(reader: Engine, where: str) -> None:
    ask = Counting()
    for _ in range(2):
        figure(reader, "ended", ask, where)
    assert ask.asked == 2


def test_it_does_not_grow_without_end(reader: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "_FIGURES", 5)
    monkeypatch.setattr(page_cache, "_RUNS", 1)
    ask = Counting()
    for step in range(20):
        figure(reader, "ended", ask, f"step:{step}")
    figure(reader, "alive", ask)
    (known,) = page_cache._known[reader].values()
    assert len(known) == 1
    figure(reader, "ended", ask, "step:19")
    assert ask.asked == 22


def test_what_every_page_shows_is_remembered_however_many_filters_follow(
    reader: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache, "_FIGURES", 3)
    every, some = Counting(), Counting()
    for step in range(9):
        figure(reader, "ended", every)
        figure(reader, "ended", some, f"step:{step}")
    assert (every.asked, some.asked) == (1, 9)
    figure(reader, "ended", some, "step:0")
    assert some.asked == 10, "the others were let go of"


def test_a_page_lets_go_of_none_while_another_moves_one(reader: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, gone, is_over = Counting(), threading.Event(), threading.Event()

    class Known(dict[Any, Any]):
        """Where one is let go of, another page comes, and is held in the middle of moving one."""

        def __iter__(self) -> Iterator[Any]:
            keys = super().__iter__()
            other.start()
            gone.wait(0.5)
            return keys

        def pop(self, *args: Any) -> Any:
            found = super().pop(*args)
            gone.set()
            assert is_over.wait(240)
            return found

    monkeypatch.setattr(page_cache, "_FIGURES", 2)
    figure(reader, "ended", ask, "step:0")
    figure(reader, "ended", ask, "step:1")
    runs = page_cache._known[reader]
    runs["ended"] = Known(runs["ended"])
    other = threading.Thread(target=figure, args=(reader, "ended", ask, "step:1"))
    try:
        figure(reader, "ended", ask, "step:2")
    finally:
        is_over.set()
        other.join(240)
    assert (len(runs["ended"]), ask.asked) == (2, 3)


def test_facets_are_those_that_are_asked_for_at_once(reader: Engine) -> None:
    with reader.begin() as connection:
        summary = queries.run_summary(connection, queries.find_run(connection, "ended").id or 0)
        for chosen in (EVERYTHING, parse_where("status:ok reward>0"), parse_where("words stop:done")):
            expected = queries.facets(connection, summary.run.id or 0, chosen)
            assert page_cache.facets(connection, summary, chosen) == expected
