"""What is said of each step: exact, whatever came in which order, and whatever the writer has stored of it by then."""

import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import URL, Engine, func, select, update
from sqlmodel import col

from logs_ui.recorder import queries
from logs_ui.recorder.queries import Step
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.changes import Batch, RowChange, RunChange
from logs_ui.recorder.storage.database import disposed, writing_engine
from logs_ui.recorder.storage.step_sums import RewardSums
from logs_ui.recorder.storage.tables import EvaluationRow, Run, StepDetails, StepStatistics
from logs_ui.recorder.storage.writes import row_writes, run_writes, step_writes
from logs_ui.recorder.vocabulary import RunState, Status, StopReason
from tests.recorder.queries.query_plans import plans
from tests.support import factory
from tests.support.changes import BEGUN, row
from tests.support.exhaustive import examples

NOW = 1_800_000_000_000_000
LATER = NOW + 10_000_000
FEW = settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
NUMBERS = st.sampled_from([None, -1.5, 0.0, 0.1, 0.5, 1.0, 1.0, 250.0])
COLUMNS = st.fixed_dictionaries(
    {},
    optional={
        "status": st.sampled_from(list(Status)),
        "stop_reason": st.sampled_from(list(StopReason)),
        "reward": NUMBERS,
        "rewards": st.none() | st.dictionaries(st.sampled_from(["a", 'b"c', "d.e"]), NUMBERS),
        "reward_weights": st.none() | st.just({"a": 0.5, 'b"c': -2.0}),
        "turns": st.none() | st.integers(0, 9),
        "completion_tokens": st.none() | st.integers(0, 10_000),
        "seconds": st.none() | st.sampled_from([0.0, 0.25, 80.5]),
    },
)
CHANGES = st.lists(
    st.tuples(st.integers(0, 7), COLUMNS, st.sampled_from([0, 100_000, 700_000, 2_000_000])), min_size=1, max_size=15
)


@pytest.fixture
def engine(address: Address) -> Iterator[Engine]:
    with disposed(writing_engine(address)) as engine:
        yield engine


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Engine]:
    """For what is SQLite's alone."""
    with disposed(writing_engine(tmp_path / "a.db")) as engine:
        yield engine


def change(run: str, number: int, columns: dict[str, Any]) -> RowChange:
    """Of one of eight rows: four groups, in two steps."""
    place: dict[str, Any] = {"step": 1 + number % 2, "group": f"{run}/{number % 4}", "generation": number // 4}
    return replace(row(str(number), columns, **place), run=run)


def written(engine: Engine, batch: Batch, now: int) -> int:
    """As the writer's thread does it; returns the run's id."""
    with engine.begin() as connection:
        ids = run_writes.run_ids(connection, batch.uids, now)
        run_writes.write_runs(connection, batch.runs)
        row_writes.write_rows(connection, batch.rows, ids, now)
        step_writes.write_details(connection, batch, ids, now)
    return next(iter(ids.values()))


def rows_of(engine: Engine, run_id: int) -> list[EvaluationRow]:
    table = EvaluationRow.metadata.tables["evaluation_row"]
    with engine.connect() as connection:
        of_run = connection.execute(select(table).where(table.c.run_id == run_id)).mappings()
        return [EvaluationRow(**values) for values in of_run]


def by_hand(rows: list[EvaluationRow]) -> list[Step]:
    """What `queries.steps` is to say of one series."""
    steps = sorted({row.step for row in rows})
    return [_step(step, [row for row in rows if row.step == step]) for step in steps]


def _step(step: int, rows: list[EvaluationRow]) -> Step:
    rewards = [row.reward for row in rows if row.reward is not None]
    groups = {it.group: [other.reward for other in rows if other.group == it.group] for it in rows}
    scored = ([reward for reward in of_group if reward is not None] for of_group in groups.values())
    several = [values for values in scored if len(values) > 1]
    measures: dict[str, Any] = {}
    for name, column in (("tokens", "completion_tokens"), ("turns", "turns"), ("seconds", "seconds")):
        known = [getattr(row, column) for row in rows if getattr(row, column) is not None]
        measures |= {f"{name}_known": len(known), f"{name}_sum": sum(known)}
    return Step(
        step=step,
        rollouts=len(rows),
        scored=len(rewards),
        reward_sum=sum(rewards),
        statuses=dict(Counter(row.status for row in rows)),
        stop_reasons=dict(Counter(row.stop_reason for row in rows if row.stop_reason is not None)),
        reward_p10=float(np.quantile(rewards, 0.1)) if rewards else None,
        reward_p90=float(np.quantile(rewards, 0.9)) if rewards else None,
        groups=len(several),
        dead_groups=sum(max(values) - min(values) <= 1e-6 for values in several),
        rewards={name: _sums(name, rows) for row in rows for name in row.rewards or {}},
        **measures,
    )


def _sums(name: str, rows: list[EvaluationRow]) -> RewardSums:
    given = [(row, (row.rewards or {}).get(name)) for row in rows]
    known = [(row, value) for row, value in given if value is not None]
    counted = [value * (row.reward_weights or {}).get(name, 1.0) for row, value in known if row.reward is not None]
    total = sum(value for _, value in known) if known else None
    return RewardSums(len(known), total, sum(counted))


def assert_equal(found: list[Step], expected: list[Step]) -> None:
    assert [step.step for step in found] == [step.step for step in expected]
    for one, other in zip(found, expected, strict=True):
        for name, value in vars(other).items():
            said = getattr(one, name)
            if name != "rewards":
                assert said == (pytest.approx(value) if isinstance(value, float) else value), (one.step, name)
                continue
            assert said.keys() == value.keys()
            for function, sums in value.items():
                assert said[function] == pytest.approx(sums), (one.step, function)


@FEW
@given(changes=CHANGES)
def test_steps_are_exact_after_each_change(sqlite: Engine, changes: list[tuple[int, dict[str, Any], int]]) -> None:
    check_steps(sqlite, changes)


@pytest.mark.exhaustive
@settings(FEW, max_examples=6)
@given(changes=CHANGES)
def test_steps_are_exact_on_postgresql(postgres_url: URL, changes: list[tuple[int, dict[str, Any], int]]) -> None:
    with disposed(writing_engine(postgres_url)) as engine:
        check_steps(engine, changes)


def check_steps(engine: Engine, changes: list[tuple[int, dict[str, Any], int]]) -> None:
    uid, now = f"r{time.perf_counter_ns()}", NOW
    for number, columns, wait in changes:
        now += wait
        run_id = written(engine, Batch(rows=[change(uid, number, columns)]), now)
        with engine.begin() as connection:  # nothing is lost while the run is heard of
            connection.execute(update(Run).where(col(Run.id) == run_id).values(heartbeat=2**62))
        (series,) = queries.step_series(engine, run_id)
        assert_equal(queries.steps(engine, run_id, series), by_hand(rows_of(engine, run_id)))


def stale(engine: Engine) -> int:
    query = select(func.count()).select_from(StepStatistics).where(col(StepStatistics.stale))
    with engine.connect() as connection:
        return connection.scalar(query) or 0


def made(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return [*connection.scalars(select(col(StepDetails.made)))]


def test_details_are_made_at_most_once_a_second_and_at_the_end(engine: Engine) -> None:
    written(engine, Batch(rows=[change("r", 0, {"reward": 1.0})]), NOW)
    assert stale(engine) == 0
    for wait in (100_000, 900_000):
        written(engine, Batch(rows=[change("r", 0, {"reward": 0.5})]), NOW + wait)
        assert stale(engine) == 1
    assert made(engine) == [NOW]
    written(engine, Batch(rows=[change("r", 1, {})]), NOW + 1_100_000)
    assert stale(engine) == 0, "also what changed before, and is not in this batch"
    assert made(engine) == [NOW + 1_100_000] * 2
    written(engine, Batch(rows=[change("r", 1, {"turns": 2})]), NOW + 1_200_000)
    assert stale(engine) == 1
    written(engine, Batch(runs=[RunChange("r", {"state": "finished", "finished": NOW})]), NOW + 1_300_000)
    assert stale(engine) == 0


def test_details_of_a_large_step_are_made_less_often(engine: Engine) -> None:
    written(engine, Batch(rows=[row(str(i), step=1) for i in range(1_000)]), NOW)
    assert stale(engine) == 0
    for wait, is_due in ((1_050_000, False), (1_100_000, True)):  # a tenth of a second more for a thousand rollouts
        written(engine, Batch(rows=[row("0", {"reward": 0.5})]), NOW + wait)
        assert stale(engine) == (not is_due)


def test_details_are_made_after_the_clock_was_set_back(engine: Engine) -> None:
    written(engine, Batch(rows=[change("r", 0, {})]), NOW)
    for reward, back, ends in ((0.5, 3_600_000_000, []), (0.25, 3_600_500_000, [RunChange("r", {"finished": NOW})])):
        written(engine, Batch(ends, [change("r", 0, {"reward": reward})]), NOW - back)
        assert stale(engine) == 0


def test_what_is_stale_is_found_in_its_index(sqlite: Engine) -> None:
    statement = str(step_writes._stale_steps().compile(dialect=sqlite.dialect))
    with sqlite.connect() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", (1, *[0] * 7)).all()
    assert "step_stale" in str(plan)


def test_a_sum_beyond_all_numbers_is_none_and_breaks_nothing(engine: Engine) -> None:
    rows = [change("r", i, {"reward": 1.7e308, "rewards": {"a": 1.7e308}}) for i in (0, 2)]
    run_id = written(engine, Batch(rows=rows), NOW)
    (series,) = queries.step_series(engine, run_id)
    (found,) = queries.steps(engine, run_id, series)
    assert found.rewards == {"a": RewardSums(2, None, None)}
    assert math.isinf(found.reward_sum)


def test_of_many_steps_every_nth_is_given_and_the_last(engine: Engine) -> None:
    run_id = factory.make_run(engine, steps=23, groups_per_step=1, generations=2, state=RunState.FINISHED)
    train, held_out = queries.step_series(engine, run_id)
    assert (train.mode, held_out.mode, train.steps, held_out.first, held_out.last) == ("train", "eval", 23, 10, 20)
    assert [step.step for step in queries.steps(engine, run_id, train)] == list(range(1, 24))
    few = queries.steps(engine, run_id, train, most=6)
    assert [step.step for step in few] == [1, 5, 9, 13, 17, 21, 23]
    assert few == [step for step in queries.steps(engine, run_id, train) if step in few]
    assert [step.step for step in queries.last_steps(engine, run_id, train, 3)] == [21, 22, 23]


def test_the_last_steps_are_those_with_a_reward_and_what_runs_after_them(engine: Engine) -> None:
    run_id = factory.make_run(engine, steps=5, groups_per_step=1, generations=4, heartbeat=2**62)
    (series,) = queries.step_series(engine, run_id)
    found = queries.last_steps(engine, run_id, series, 2)
    assert [(step.step, step.scored > 0) for step in found] == [(3, True), (4, True), (5, False)]
    with engine.begin() as connection:
        connection.execute(update(StepStatistics).values(scored=0))
    assert [step.step for step in queries.last_steps(engine, run_id, series, 2)] == [4, 5]


def test_what_ran_when_its_process_died_was_aborted(engine: Engine) -> None:
    alive = factory.make_run(engine, uid="alive", steps=3, heartbeat=2**62)
    dead = factory.make_run(engine, uid="dead", steps=3)
    last = {}
    for run_id in (alive, dead):
        (series,) = queries.step_series(engine, run_id)
        last[run_id] = queries.steps(engine, run_id, series)[-1]
    running = last[alive].statuses["running"]
    assert running > 0
    assert last[dead].statuses == {**last[alive].statuses, "running": 0, "aborted": running}
    assert last[dead].stop_reasons == {**last[alive].stop_reasons, "aborted": running}


def test_the_lowest_tasks_agree_with_the_rows(engine: Engine) -> None:
    run_id = factory.make_run(engine, steps=12, state=RunState.FINISHED)
    (series, _) = queries.step_series(engine, run_id)
    for first, last in ((3, 9), (series.first, series.last)):
        rows = [it for it in rows_of(engine, run_id) if it.mode == "train" and first <= it.step <= last]
        tasks = {task: [it.reward for it in rows if it.task == task] for task in {it.task for it in rows}}
        known = {task: [reward for reward in rewards if reward is not None] for task, rewards in tasks.items()}
        expected = sorted((float(np.mean(known[task])), task, len(tasks[task]), len(known[task])) for task in tasks)
        found = queries.lowest_tasks(engine, run_id, series, first, last, limit=3)
        assert [(it.task, it.rollouts, it.scored) for it in found] == [values[1:] for values in expected[:3]]
        assert [it.mean for it in found] == pytest.approx([values[0] for values in expected[:3]])


def test_a_run_without_rollouts_has_no_series(engine: Engine) -> None:
    assert queries.step_series(engine, written(engine, Batch(runs=[BEGUN]), NOW)) == []


@pytest.mark.parametrize(
    ("asked", "mark", "index"),
    [
        (queries.steps, "evaluation_row.created <=", "row_not_ok"),
        (lambda db, run, of: queries.lowest_tasks(db, run, of, 2, 2, 8), "avg(", "row_by_step"),
        (lambda db, run, of: queries.lowest_tasks(db, run, of, 1, 3, 8), "avg(", "COVERING INDEX row_by_kind"),
    ],
)
def test_rows_are_read_from_the_index_that_has_the_fewest(sqlite: Engine, asked: Any, mark: str, index: str) -> None:
    run_id = factory.make_run(sqlite, steps=3)
    (series,) = queries.step_series(sqlite, run_id)
    (plan,) = plans(sqlite, lambda: asked(sqlite, run_id, series), mark)
    assert index in plan
