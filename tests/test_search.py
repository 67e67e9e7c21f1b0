"""Full-text search: what is found, what is not yet, and what the index does where the database is no longer its own."""

import fcntl
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, delete, func, insert, select, update
from sqlmodel import col

from logs_ui.recorder import load_run, queries
from logs_ui.recorder.database import reading_engine, writing_engine
from logs_ui.recorder.errors import DatabaseError
from logs_ui.recorder.filters import parse_where
from logs_ui.recorder.models import EvaluationRow, Mode, RolloutPayload, Run, RunState, Status
from logs_ui.recorder.payload import pack_content
from logs_ui.recorder.search import match_expression, planning, search_state
from logs_ui.recorder.search_index import SearchIndex, catch_up
from logs_ui.recorder.selection import Use, conditions
from logs_ui.recorder.sidecars import SEARCH
from tests import factory

NOW = time.time_ns() // 1000


@dataclass
class Place:
    """A database, and how its texts are indexed and searched."""

    path: Path
    writing: Engine

    def run(self, uid: str = "run", *, state: str = RunState.RUNNING, heard: int | None = None) -> int:
        """Heard of just now, where nothing else is said: this file was read long before its last test runs."""
        heard = time.time_ns() // 1000 if heard is None else heard
        run = {"uid": uid, "name": uid, "created": NOW, "heartbeat": heard, "state": state}
        with self.writing.begin() as connection:
            return factory.insert_run(connection, run)

    def rollout(self, run: int, text: Any, *, changed: int = 1, scored: int | None = NOW, **payload: Any) -> int:
        messages = [{"role": "assistant", "content": text}]
        with self.writing.begin() as connection:
            number = connection.exec_driver_sql("SELECT coalesce(max(id), 0) + 1 FROM evaluation_row").scalar_one()
            row = {
                "id": number, "run_id": run, "uid": str(number), "changed": changed, "eval_name": "e",
                "mode": Mode.TRAIN.value, "step": 1, "policy_step": 0, "group": "g", "generation": 0, "process": 0,
                "status": Status.OK.value, "created": NOW, "scored": scored,
                "reward": None if scored is None else 1.0,
            }  # fmt: skip
            connection.execute(insert(EvaluationRow), row)
            content = pack_content({"messages": messages, **payload})
            connection.execute(insert(RolloutPayload), {"row_id": number, "content": content})
            connection.execute(update(Run).where(col(Run.id) == run).values(changed=changed))
        return int(number)

    def fill(self, **wanted: Any) -> bool:
        engine = reading_engine(self.path)
        try:
            return SearchIndex(self.path, engine.begin).fill(**wanted)
        finally:
            engine.dispose()

    def found(self, run: int, where: str) -> set[int]:
        engine = reading_engine(self.path)
        try:
            page = queries.page(engine, run, parse_where(where), limit=1000)
        finally:
            engine.dispose()
        return {row.id or 0 for row in page.rows}

    def state(self, run: int) -> tuple[int, bool]:
        engine = reading_engine(self.path)
        try:
            with engine.connect() as connection:
                it = search_state(connection, run)
        finally:
            engine.dispose()
        return it.indexed, it.behind


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    engine = writing_engine(tmp_path / "runs.db")
    yield Place(tmp_path / "runs.db", engine)
    engine.dispose()


def test_whatever_was_said_in_a_rollout_is_found(place: Place) -> None:
    run = place.run()
    call = {"id": "call_7", "type": "function", "function": {"name": "search_web", "arguments": '{"q": "kiwi"}'}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Peel the Äpfel"}]},
        {"role": "assistant", "content": None, "reasoning_content": "hmm, plums", "tool_calls": [call]},
    ]
    action = {"text": "press", "action": {"button": "cherry"}, "observation": {"stdout": ["fig", {"more": "lime"}]}}
    row = place.rollout(run, "", messages=messages, actions=[action, {"error": "TimeoutError: date"}])
    place.rollout(run, "nothing of that")
    place.fill()
    for word in ("peel", "ÄPFEL", "apfel", "plums", "search_web", "kiwi", "press", "cherry", "fig", "lime", "date"):
        assert place.found(run, word) == {row}, word
    for name in ("reasoning", "stdout", "button", "call_7", "function"):  # names of fields are no text
        assert place.found(run, name) == set(), name


def test_words_phrases_and_beginnings(place: Place) -> None:
    run = place.run()
    one = place.rollout(run, "the quick brown fox")
    two = place.rollout(run, "a brown quick dog, foxes")
    place.fill()
    assert place.found(run, "quick brown") == {one, two}
    assert place.found(run, '"quick brown"') == {one}
    assert place.found(run, "fox*") == {one, two}
    assert place.found(run, '"brown fo*"') == {one}
    assert place.found(run, "quick -fox") == {two}
    assert place.found(run, "text:fox,dog") == {one, two}


@pytest.mark.parametrize(
    "text",
    [
        '"',
        '""',
        "a AND",
        "NEAR(a b)",
        "body:x",
        "x^2",
        "*",
        "-",
        "(",
        "a + b",
        "\0",
        "'; DROP TABLE texts",
        "😀",
        "{a}",
    ],
)
def test_no_text_is_an_error(place: Place, text: str) -> None:
    run = place.run()
    row = place.rollout(run, "before " + text + " after")
    place.fill()
    engine = reading_engine(place.path)
    with engine.connect() as connection:
        query = "SELECT rowid FROM search.texts WHERE texts MATCH ?"
        ids = [number for (number,) in connection.exec_driver_sql(query, (match_expression(text),))]
    engine.dispose()
    assert ids in ([], [row])
    assert place.found(run, "before") == place.found(run, "after") == {row}


def test_a_rollout_is_found_once_it_is_scored_and_its_text_is_final(place: Place) -> None:
    run = place.run()
    early = place.rollout(run, "draft", changed=1, scored=None)
    place.rollout(run, "other", changed=2)
    place.fill()
    assert place.found(run, "draft") == set()
    assert place.state(run) == (1, False)
    with place.writing.begin() as connection:
        content = pack_content({"messages": [{"role": "assistant", "content": "final"}]})
        connection.execute(update(RolloutPayload).where(col(RolloutPayload.row_id) == early).values(content=content))
        connection.execute(update(EvaluationRow).where(col(EvaluationRow.id) == early).values(scored=NOW, changed=3))
        connection.execute(update(Run).values(changed=3))
    assert place.state(run) == (1, True)
    place.fill()
    assert place.found(run, "final") == {early}
    assert place.found(run, "draft") == set()
    assert place.state(run) == (2, False)


def test_rollouts_that_will_never_be_scored_are_found_when_their_run_is_silent(place: Place) -> None:
    now = time.time_ns() // 1000
    run = place.run(heard=now - 300_000_000)
    rows = {place.rollout(run, "lost words", scored=None) for _ in range(3)}
    place.fill()
    assert place.found(run, "lost") == set()
    with place.writing.begin() as connection:
        connection.execute(update(Run).values(heartbeat=now - 620_000_000))
    place.fill()
    place.fill()
    assert place.found(run, "lost") == rows
    assert place.state(run) == (3, False)


def test_filling_goes_on_where_it_was_stopped_and_takes_nothing_twice(place: Place) -> None:
    run = place.run()
    rows = {place.rollout(run, f"common word{i}", changed=i // 90) for i in range(450)}
    steps: list[int] = []
    assert place.fill(grown=steps.append, stopped=lambda: len(steps) == 1)
    assert sum(steps) == place.state(run)[0] == 200
    place.fill(grown=steps.append)
    place.fill(grown=steps.append)
    assert steps[:3] == [200, 200, 50]
    assert sum(steps) == 450
    assert place.found(run, "common") == rows


def test_a_rollout_of_many_megabytes_does_not_hold_up_the_others(place: Place) -> None:
    run = place.run()
    small = place.rollout(run, "small one", changed=1)
    large = place.rollout(run, "needle " + "hay " * 1_100_000, changed=1)
    last = place.rollout(run, "last one", changed=1)
    steps: list[int] = []
    place.fill(grown=steps.append)
    assert [step for step in steps if step] == [2, 1]
    assert place.found(run, "needle") == {large}
    assert place.found(run, "one") == {small, last}


def test_only_one_fills_and_the_others_read(place: Place) -> None:
    run = place.run()
    place.rollout(run, "word")
    place.fill()
    path = SEARCH.path(place.path)
    with path.with_name(path.name + "-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        place.rollout(run, "another", changed=2)
        assert place.fill() is False
        assert len(place.found(run, "word")) == 1
        assert place.state(run) == (1, True)
    assert place.fill() is True
    assert place.state(run) == (2, False)


def test_several_that_want_it_filled_at_once_do_no_harm(place: Place) -> None:
    run = place.run()
    rows = {place.rollout(run, f"word {i}") for i in range(300)}

    def want() -> None:
        engine = reading_engine(place.path)
        catch_up(place.path, engine, run, lambda _done, _total: None)
        engine.dispose()

    threads = [threading.Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert place.found(run, "word") == rows
    assert place.state(run) == (300, False)


def test_filling_never_takes_the_writers_lock(place: Place) -> None:
    run = place.run()
    row = place.rollout(run, "word")
    with place.writing.begin():  # BEGIN IMMEDIATE: whoever would write now has to wait for 30 s
        began = time.monotonic()
        assert place.fill()
        assert time.monotonic() - began < 5
    assert place.found(run, "word") == {row}


def test_an_index_of_another_database_is_made_anew(place: Place, tmp_path: Path) -> None:
    run = place.run("old")
    place.rollout(run, "old words")
    place.fill()
    place.writing.dispose()
    for file in tmp_path.glob("runs.db*"):
        file.unlink()
    time.sleep(0.001)
    other = Place(place.path, writing_engine(place.path))
    run = other.run("new")
    row = other.rollout(run, "new words")
    assert other.found(run, "old") == set()  # before anybody has filled it
    assert other.state(run) == (0, True)
    other.fill()
    assert other.found(run, "words") == {row}
    assert other.found(run, "old") == set()
    other.writing.dispose()


def test_an_index_of_runs_that_are_gone_is_made_anew(place: Place) -> None:
    gone = place.run("gone")
    place.rollout(gone, "gone words")
    place.fill()
    with place.writing.begin() as connection:
        for table in (RolloutPayload, EvaluationRow, Run):
            connection.execute(delete(table))
    run = place.run("next")
    row = place.rollout(run, "next words")
    assert row == 1  # the number that the other one had
    place.fill()
    assert place.found(run, "words") == {row}
    assert place.found(run, "gone") == set()


def test_a_database_that_was_set_back_is_indexed_anew(place: Place, tmp_path: Path) -> None:
    run = place.run()
    place.rollout(run, "first", changed=1)
    place.writing.dispose()
    shutil.copy(place.path, tmp_path / "copy")
    later = Place(place.path, writing_engine(place.path))
    later.rollout(run, "undone", changed=2)
    later.fill()
    later.writing.dispose()
    for file in tmp_path.glob("runs.db*"):
        file.unlink()
    shutil.copy(tmp_path / "copy", place.path)
    back = Place(place.path, writing_engine(place.path))
    back.fill()
    assert back.found(run, "undone") == set()
    assert len(back.found(run, "first")) == 1
    back.writing.dispose()


def test_words_that_most_rollouts_have_are_collected_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logs_ui.recorder.search._FEW", 3)
    run = place.run()
    rows = {place.rollout(run, f"common n{i} {'odd' if i % 2 else 'even'}") for i in range(12)}
    place.fill()
    engine = reading_engine(place.path)
    with engine.connect() as connection:
        for _ in range(2):
            with planning(connection):
                assert {it.id for it in queries.page(connection, run, parse_where("common")).rows} == rows
                both = queries.page(connection, run, parse_where("common even -n4 odd*"))
                assert both.rows == []
                assert queries.count(connection, run, parse_where("common even")).value == 6
                assert queries.count(connection, run, parse_where("-common")).value == 0
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            connection.connection.driver_connection.execute("CREATE TABLE main.x (y)")  # type: ignore[union-attr]
    with engine.connect() as connection:  # what grows meanwhile is seen by the next who asks
        place.rollout(run, "common late", changed=2)
        place.fill()
        with planning(connection):
            assert queries.count(connection, run, parse_where("common")).value == 13
    engine.dispose()


def test_the_smaller_side_leads(place: Place) -> None:
    run = place.run()
    for i in range(9):
        place.rollout(run, f"common n{i}")
    place.fill()
    engine = reading_engine(place.path)

    def plan(where: str) -> str:
        with planning(connection):
            selected = select(func.count()).where(*conditions(run, parse_where(where), Use.NUMBER))
        literal = selected.compile(connection, compile_kwargs={"literal_binds": True})
        steps = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {literal}".replace("%", "%%"))
        return next(str(step.detail) for step in steps if "evaluation_row" in step.detail)

    with engine.connect() as connection:
        assert "INTEGER PRIMARY KEY" in plan("n3")
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("logs_ui.recorder.search._FEW", 3)
            assert "run_id=?" in plan("common")
            assert "INTEGER PRIMARY KEY" in plan("n3 common")
    engine.dispose()


def test_pandas_waits_for_the_index_and_the_file_lies_beside_the_database(place: Place) -> None:
    run = place.run()
    row = place.rollout(run, "look here")
    place.rollout(run, "not there")
    frame = load_run("run", db=place.path, where='"look here"')
    assert list(frame["id"]) == [row]
    assert place.path.with_name("runs.search.db").exists()


def test_an_index_that_cannot_be_written_is_one_clear_line(place: Place) -> None:
    run = place.run()
    place.rollout(run, "word")
    place.path.with_name("runs.search.db").write_bytes(b"somebody else's" * 1000)
    with pytest.raises(DatabaseError, match=r"runs\.search\.db is not an SQLite database"):
        load_run("run", db=place.path, where="word")
    assert len(load_run("run", db=place.path)) == 1
