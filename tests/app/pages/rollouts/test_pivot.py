"""Rollouts by two of their properties."""

import importlib
from collections import Counter
from collections.abc import Iterator
from statistics import mean
from typing import Any

import pytest
from sqlalchemy import Engine, String, cast, insert, select, update
from sqlmodel import col

from logs_ui.recorder import queries
from logs_ui.recorder.queries import Cell, Dimension, Heading, Measure, pivot
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, parse_where
from logs_ui.recorder.queries.notebook import Notebook, Subject
from logs_ui.recorder.queries.pivot import Pivot
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.database import disposed, reading_engine, writing_engine
from logs_ui.recorder.storage.tables import EvaluationRow, RowTag
from logs_ui.recorder.vocabulary import Mark, RunState, Status
from tests.support import factory
from tests.support.postgres import DATABASES, fresh_database

EVERYTHING = RolloutFilter()


@pytest.fixture(scope="module", params=DATABASES)
def db(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    with fresh_database(request.param, tmp_path_factory.mktemp("pivot")) as address:
        yield address


@pytest.fixture(scope="module")
def engine(db: Address) -> Iterator[Engine]:
    with disposed(writing_engine(db)) as engine:
        factory.make_run(engine, uid="one", steps=43, seed=1, state=RunState.FINISHED)
        factory.make_run(engine, uid="two", steps=6, seed=2)  # silent since long: what runs in it is aborted
        yield engine


def rows(engine: Engine, run_id: int = 1) -> list[EvaluationRow]:
    all_rows: list[EvaluationRow] = []
    after = None
    while True:
        page = queries.page(engine, run_id, EVERYTHING, after=after, limit=500)
        all_rows += page.rows
        after = page.next
        if after is None:
            return all_rows


@pytest.fixture(scope="module")
def stored(engine: Engine) -> list[EvaluationRow]:
    return rows(engine)


def value(row: EvaluationRow, measure: Measure) -> float | None:
    ended = row.status in {Status.OK, Status.ERROR}
    return {
        Measure.COUNT: 1,
        Measure.REWARD: row.reward,
        Measure.TOKENS: row.completion_tokens,
        Measure.TURNS: row.turns,
        Measure.SECONDS: row.seconds,
        Measure.TRUNCATED: float(row.stop_reason == "length") if ended else None,
        Measure.ERRORS: float(row.status == Status.ERROR) if ended else None,
        Measure.SOLVED: None,  # not defined
    }[measure]


@pytest.mark.parametrize("measure", list(Measure))
@pytest.mark.parametrize(
    ("where", "keep"),
    [
        ("", lambda _: True),
        ("step:5..9", lambda row: 5 <= row.step <= 9),
        ("reward>0.2 -stop:length", lambda row: (row.reward or 0) > 0.2 and row.stop_reason != "length"),
    ],
)
def test_a_cell_says_what_its_rollouts_come_to(
    engine: Engine, stored: list[EvaluationRow], measure: Measure, where: str, keep: Any
) -> None:
    table = pivot(engine, 1, parse_where(where), Dimension.TASK, Dimension.STOP, measure)
    selected = [row for row in stored if keep(row)]
    assert table.overall.count == len(selected)
    for (task, stop), cell in table.cells.items():
        of_cell = [row for row in selected if (row.task, row.stop_reason) == (task.value, stop.value)]
        values = [figure for row in of_cell if (figure := value(row, measure)) is not None]
        assert cell.count == len(of_cell)
        assert cell.mean == pytest.approx(mean(values) if values else None)
    assert sum(cell.count for cell in table.cells.values()) == len(selected)
    assert table.of_rows[table.rows[0]].count >= table.of_rows[table.rows[-1]].count


@pytest.mark.parametrize("measure", [Measure.COUNT, Measure.REWARD])
def test_step_statistics_give_the_same_as_the_rows(engine: Engine, measure: Measure) -> None:
    quick = pivot(engine, 1, EVERYTHING, Dimension.STEP, Dimension.MODE, measure)
    slow = pivot(engine, 1, parse_where("seconds>=0"), Dimension.STEP, Dimension.MODE, measure)
    assert [heading.value for heading in quick.rows] == [heading.value for heading in slow.rows]
    for place, cell in slow.cells.items():
        assert quick.cells[place].count == cell.count
        assert quick.cells[place].mean == pytest.approx(cell.mean)


def test_steps_stand_in_at_most_twenty_ranges_that_hold_all_of_them(engine: Engine) -> None:
    table = pivot(engine, 1, EVERYTHING, Dimension.STEP, Dimension.EVAL, Measure.COUNT)
    assert [(step_range.value, step_range.until) for step_range in table.rows][:2] == [(1, 5), (6, 10)]
    assert (table.rows[-1].value, table.rows[-1].until) == (41, 43)
    few = pivot(engine, 1, parse_where("step:3..9"), Dimension.STEP, Dimension.EVAL, Measure.COUNT)
    assert few.rows == [Heading(step) for step in range(3, 10)]
    for heading in table.rows:
        where = parse_where(f"step:{heading.value}..{heading.until}")
        assert table.of_rows[heading].count == queries.count(engine, 1, where).value


def test_families_stand_for_their_tasks(engine: Engine) -> None:
    def counts(families: Any) -> dict[Any, int]:
        table = pivot(engine, 1, EVERYTHING, Dimension.FAMILY, Dimension.STOP, Measure.COUNT, families=families)
        return {heading.value: table.of_rows[heading].count for heading in table.rows}

    tasks = [row.task or "" for row in rows(engine)]
    assert counts(lambda names: [name[:2] for name in names]) == Counter(task[:2] for task in tasks)
    assert counts(lambda _: None) == Counter(tasks), "without families each task is its own"


def test_rollouts_of_a_process_that_died_are_aborted_here_too(engine: Engine) -> None:
    table = pivot(engine, 2, EVERYTHING, Dimension.STATUS, Dimension.STOP, Measure.ERRORS)
    statuses = {str(heading.value): table.of_rows[heading] for heading in table.rows}
    assert "running" not in statuses
    assert statuses["aborted"].count == queries.count(engine, 2, parse_where("status:aborted")).value > 0
    assert statuses["aborted"].mean is None  # it came to no end of its own
    assert statuses["error"].mean == 1
    assert statuses["ok"].mean == 0


def test_a_rollout_counts_with_each_of_its_tags_and_one_without_any_stands_apart(db: Address, engine: Engine) -> None:
    first, second, third = rows(engine)[:3]
    with engine.begin() as connection:
        tags = [{"run_id": 1, "row_id": first.id, "tag": "a"}, {"run_id": 1, "row_id": first.id, "tag": "b"}]
        connection.execute(insert(RowTag), tags)
    book = Notebook(db)
    book.tag(Subject("one", second.uid), "b")
    book.tag(Subject("one", first.uid), "b")  # by both: still once
    book.tag(Subject("two", third.uid), "elsewhere")
    with disposed(reading_engine(db)) as reading:
        table = pivot(reading, 1, EVERYTHING, Dimension.TAG, Dimension.MODE, Measure.COUNT)
    counts = {heading.value: table.of_rows[heading].count for heading in table.rows}
    assert counts == {None: len(rows(engine)) - 2, "a": 1, "b": 2}


def test_what_lies_beyond_the_bounds_is_in_the_sums(address: Address) -> None:
    with disposed(writing_engine(address)) as engine:
        factory.make_run(engine, uid="one", steps=40, state=RunState.FINISHED)
        with engine.begin() as connection:
            task = "task " + cast(col(EvaluationRow.id), String)
            connection.execute(update(EvaluationRow).values(task=task))
            total = len(connection.execute(select(col(EvaluationRow.id))).all())
        table = pivot(engine, 1, EVERYTHING, Dimension.TASK, Dimension.TASK, Measure.COUNT)
        assert (len(table.rows), len(table.columns)) == (queries.MOST_ROWS, queries.MOST_COLUMNS)
        assert (table.rows_beyond, table.columns_beyond) == (total - 50, total - 40)
        assert table.overall == Cell(total, float(total), total)


def test_a_large_run_is_counted_by_its_newest_rollouts(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("logs_ui.recorder.queries.pivot"), "MOST_COUNTED", 100)
    monkeypatch.setattr(importlib.import_module("logs_ui.recorder.queries.pivot"), "LARGE", 100)
    table = pivot(engine, 1, EVERYTHING, Dimension.TASK, Dimension.STOP, Measure.TOKENS)
    newest = rows(engine)[:100]
    assert (table.counted, table.overall.count) == (100, 100)
    assert table.overall.total == sum(row.completion_tokens or 0 for row in newest)
    assert pivot(engine, 1, EVERYTHING, Dimension.STEP, Dimension.MODE, Measure.REWARD).counted is None
    assert pivot(engine, 1, parse_where("step:1"), Dimension.TASK, Dimension.STOP, Measure.TOKENS).counted is None


def test_nothing_matches(engine: Engine) -> None:
    table: Pivot = pivot(engine, 1, parse_where("reward>99"), Dimension.TASK, Dimension.STEP, Measure.REWARD)
    assert (table.rows, table.cells, table.overall) == ([], {}, Cell())


def test_lag_is_that_of_filters(engine: Engine) -> None:
    table = pivot(engine, 1, EVERYTHING, Dimension.LAG, Dimension.MODEL, Measure.COUNT)
    assert table.rows == [Heading(0)]
    assert table.overall.count == queries.count(engine, 1, parse_where("lag:0")).value
    assert table.columns == [Heading("Qwen/Qwen3-0.6B")]


def test_any_column_is_an_axis_or_a_value(engine: Engine) -> None:
    found = rows(engine)
    with engine.begin() as connection:
        for number, row in enumerate(found):
            about = {"difficulty": "hard" if number % 3 else "easy", "level": number % 12}
            connection.execute(update(EvaluationRow).where(col(EvaluationRow.id) == row.id).values(attributes=about))
    all_rows = rows(engine)
    table = pivot(engine, 1, EVERYTHING, "metadata.difficulty", "stop", "rewards.format")
    for (difficulty, stop), cell in table.cells.items():
        of_cell = [row for row in all_rows if (row.attributes or {})["difficulty"] == difficulty.value]
        of_cell = [row for row in of_cell if row.stop_reason == stop.value]
        values = [value for row in of_cell if (value := (row.rewards or {}).get("format")) is not None]
        assert (cell.count, cell.measured) == (len(of_cell), len(values))
        assert cell.mean == pytest.approx(mean(values) if values else None)
    levels = pivot(engine, 1, EVERYTHING, "metadata.level", "metadata.difficulty", "metadata.level")
    assert [heading.value for heading in levels.rows] == [str(level) for level in range(12)]
    assert [levels.of_rows[heading].mean for heading in levels.rows] == list(range(12))
    down = pivot(engine, 1, EVERYTHING, "metadata.level", "mode", "metadata.level", "highest")
    assert [heading.value for heading in down.rows] == [str(level) for level in reversed(range(12))]
    timed_out = pivot(engine, 1, EVERYTHING, "task", "mode", "stop:turn_limit").overall.mean
    assert timed_out == queries.count(engine, 1, parse_where("stop:turn_limit")).value / len(all_rows)
    solved = pivot(engine, 1, EVERYTHING, "task", "mode", "solved", "lowest", (Mark("rewards.solved", 1.0),))
    means = [solved.of_rows[heading].mean for heading in solved.rows]
    assert means == sorted(figure for figure in means if figure is not None)
    assert 0 < (solved.overall.mean or 0) < 1
