"""What is looked at only in part of a run that is large, and says so. How large that is, is set lower here."""

import importlib
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, update
from sqlmodel import col
from starlette.testclient import TestClient

from logs_ui.app import remembered
from logs_ui.app.main import create_app
from logs_ui.recorder import queries
from logs_ui.recorder.database import reading_engine, writing_engine
from logs_ui.recorder.diagnose import diagnose
from logs_ui.recorder.filters import RolloutFilter, Sort, parse_where
from logs_ui.recorder.models import EvaluationRow, Mode, Run, RunState
from logs_ui.recorder.queries import Cursor, RunColumns
from tests.factory import make_run

STEPS, WINDOW = 40, 100
ALL = RolloutFilter()


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """40 steps of 12 rollouts, and 8 more after every tenth."""
    path = tmp_path / "large.db"
    engine = writing_engine(path)
    make_run(engine, uid="large", steps=STEPS, state=RunState.FINISHED)
    engine.dispose()
    return path


@pytest.fixture
def reader(db: Path) -> Iterator[Engine]:
    engine = reading_engine(db)
    yield engine
    engine.dispose()


@pytest.fixture(autouse=True)
def _low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    of = importlib.import_module
    for module in ("common", "columns", "pivot", "rows"):
        for name, value in (("LARGE", 200), ("WINDOW", WINDOW), ("SAMPLED", 100)):
            if hasattr(of(f"logs_ui.recorder.queries.{module}"), name):
                monkeypatch.setattr(of(f"logs_ui.recorder.queries.{module}"), name, value)
    monkeypatch.setattr(queries, "LARGE", 200)
    monkeypatch.setattr(queries, "WINDOW", WINDOW)
    monkeypatch.setattr(of("logs_ui.recorder.queries.rows"), "_FIRST_PART", 10)


def ids(page: queries.Page) -> list[int]:
    return [row.id or 0 for row in page.rows]


@pytest.mark.parametrize("where", ["turns>=2", "turns>=99", "error:timeout", "turns>=2 step:3.."])
@pytest.mark.parametrize("sort", [Sort.NEWEST, Sort.OLDEST])
def test_looking_through_a_run_in_parts_finds_what_one_look_does(reader: Engine, where: str, sort: Sort) -> None:
    chosen = RolloutFilter(terms=parse_where(where).terms, sort=sort)
    after: Cursor | None = None
    found: list[int] = []
    while True:
        page = queries.page_in_time(reader, 1, chosen, after=after, limit=7, seconds=60.0)
        found += ids(page)
        after = page.next
        if after is None:
            break
    assert found == ids(queries.page(reader, 1, chosen, limit=10_000))


def test_what_is_not_found_in_time_goes_on_where_it_ended(reader: Engine) -> None:
    chosen, after, parts = parse_where("turns>=99"), None, 0
    while True:
        page = queries.page_in_time(reader, 1, chosen, after=after, limit=7, seconds=0.0)
        assert page.rows == []
        after, parts = page.next, parts + 1
        if after is None:
            break
        assert page.looked_at == 10
    assert parts > 10


def test_an_order_that_no_index_has_is_of_the_newest_rollouts(reader: Engine) -> None:
    newest = queries.page(reader, 1, ALL, limit=WINDOW).rows
    found = queries.page_in_time(reader, 1, RolloutFilter(sort=Sort.LONGEST), limit=5)
    assert found.looked_at == WINDOW
    longest = sorted((row.completion_tokens or 0 for row in newest), reverse=True)[:5]
    assert [row.completion_tokens for row in found.rows] == longest


def test_what_no_index_has_is_counted_in_the_newest_rollouts_of_the_filters_steps(reader: Engine) -> None:
    for where, step_max in (("turns>=1", STEPS), ("turns>=1 step:0..600", 600), ("turns>=1 step:..20", 20)):
        chosen = parse_where(where)
        rows = queries.page(reader, 1, RolloutFilter(step_max=step_max), limit=WINDOW).rows
        span = queries.window(reader, 1, chosen)
        expected = sum((row.turns or 0) >= 1 for row in rows)
        assert queries.count(reader, 1, chosen, span=span) == queries.Count(expected, exact=False)


def test_pages_say_what_they_looked_at(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with TestClient(create_app(db), base_url="http://127.0.0.1") as client:
        assert "in the newest 100" in client.get("/runs/large?where=turns%3E%3D1").text
        assert "in the newest" not in client.get("/runs/large").text
        assert "100 newest rollouts" in client.get("/runs/large?sort=longest").text
        monkeypatch.setattr(queries, "page_in_time", partial(queries.page_in_time, seconds=0.0))
        none = client.get("/runs/large?where=turns%3E%3D99").text
    assert "None found yet" in none
    assert "Look further" in none


def test_a_figure_of_a_large_run_that_took_long_is_shown_for_a_while(db: Path) -> None:
    writer, asked = writing_engine(db), 0

    def slow(_: Any, __: int, chosen: RolloutFilter) -> int:
        nonlocal asked
        asked += 1
        time.sleep(0.05)
        return asked

    engine = reading_engine(db)
    for changed in (1, 2):
        with writer.begin() as connection:
            connection.execute(update(Run).values(changed=col(Run.changed) + changed))
        with engine.begin() as connection:
            summary = queries.run_summary(connection, 1)
            assert remembered.figure(connection, summary, slow, ALL) == 1
    with writer.begin() as connection:
        connection.execute(update(Run).values(state=RunState.FAILED))
    with engine.begin() as connection:
        assert remembered.figure(connection, queries.run_summary(connection, 1), slow, ALL) == 2
    engine.dispose()
    writer.dispose()


def test_a_diagnosis_reads_the_newest_steps_and_some_of_those_before(db: Path) -> None:
    engine = reading_engine(db)
    columns = RunColumns(1, Mode.TRAIN)
    rows = columns.refresh(engine)
    sample = columns.sample
    assert sample is not None
    steps = set(rows.steps.tolist())
    assert steps == {step for step in range(1, STEPS + 1) if step >= sample.recent or step % sample.every == 0}
    assert 60 <= len(rows) <= 200
    report = diagnose("large", db)
    assert report.sample == str(sample)
    assert f"all steps from {sample.recent} on" in str(report)
    engine.dispose()


def test_a_diagnosis_of_a_large_run_follows_its_changes(db: Path) -> None:
    engine, writer = reading_engine(db), writing_engine(db)
    columns = RunColumns(1, Mode.TRAIN)
    last = int(columns.refresh(engine).id[-1])
    with writer.begin() as connection:
        connection.execute(update(Run).values(changed=col(Run.changed) + 1))
        changed = queries.last_change(connection, 1)
        connection.execute(
            update(EvaluationRow).where(col(EvaluationRow.id) == last).values(reward=7.5, changed=changed)
        )
    rows = columns.refresh(engine)
    assert rows.reward[rows.id == last].tolist() == [7.5]
    writer.dispose()
    engine.dispose()
