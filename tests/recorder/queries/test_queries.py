import dataclasses
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, insert, select, update
from sqlmodel import col

from logs_ui.recorder import queries
from logs_ui.recorder.errors import FilterError, RolloutNotFoundError, RunNotFoundError
from logs_ui.recorder.queries import Count, Cursor
from logs_ui.recorder.queries.filters.fields import FIELDS, Kind
from logs_ui.recorder.queries.filters.rollout_filter import Order, RolloutFilter, Scored, Sort, parse_where
from logs_ui.recorder.queries.filters.terms import Range, Term, Value
from logs_ui.recorder.queries.sql.liveness import DIED_AFTER_US
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.database import disposed, reading_engine, writing_engine
from logs_ui.recorder.storage.tables import EvaluationRow, RolloutPayload, Run, Scalar, StepStatistics
from logs_ui.recorder.vocabulary import Mode, RunState, Status, StopReason
from tests.recorder.queries.query_plans import plans
from tests.support import factory
from tests.support.exhaustive import examples
from tests.support.payloads import pack_content
from tests.support.postgres import DATABASES, fresh_database

EVERYTHING = RolloutFilter()
PLAIN = {"mode": "train", "eval_name": "one", "status": "ok", "stop_reason": None, "created": 0, "group": "g"}
FAILURES = ("environment_error", "timeout", "at_capacity", "exception", "aborted")
UNDER_WAY = {"state": "running", "heartbeat": time.time_ns() // 1000 + 3_600_000_000}
FEW = settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """As `database`, for what is SQLite's alone."""
    with filled(tmp_path_factory.mktemp("queries") / "rollouts.db") as engine:
        yield engine


@pytest.fixture(scope="module", params=DATABASES)
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Three runs as they come from the factory, and those that single tests add."""
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite")
        return
    with fresh_database(request.param, tmp_path_factory.mktemp("queries")) as address, filled(address) as engine:
        yield engine


@contextmanager
def filled(address: Address) -> Iterator[Engine]:
    with disposed(writing_engine(address)) as engine:
        factory.make_run(engine, uid="alpha-1", name="first", steps=12, seed=1, state=RunState.FINISHED)
        factory.make_run(engine, uid="alpha-2", name="second", steps=11, seed=2, created=factory.START_US + 1)
        factory.make_run(engine, uid="beta", name="second", steps=2, seed=3, created=factory.START_US + 2)
        yield engine


@pytest.fixture(scope="module")
def run_id(database: Engine) -> int:
    """Of `alpha-2`, which is under way."""
    return queries.find_run(database, "alpha-2").id or 0


@pytest.fixture(scope="module")
def rows(database: Engine, run_id: int) -> list[EvaluationRow]:
    return everything_of(database, run_id)


def everything_of(engine: Engine, run_id: int) -> list[EvaluationRow]:
    return [rollout.row for chunk in queries.rollouts(engine, run_id, EVERYTHING) for rollout in chunk]


# The same by hand, in Python: what the SQL is held against.


def matches(row: EvaluationRow, where: RolloutFilter, *, alive: bool = False) -> bool:
    return all(holds(term, row, alive=alive) for term in where.terms)


def is_within(value: float, it: Range, *, exactly: bool) -> bool:
    """Numbers that are not whole count as equal where they are as good as that."""

    def is_it(end: float) -> bool:
        return value == end if exactly else abs(value - end) <= max(1e-9, 1e-6 * abs(end))

    above = it.low is None or (is_it(it.low) and not it.above) or (value > it.low and not is_it(it.low))
    below = it.high is None or (is_it(it.high) and not it.below) or (value < it.high and not is_it(it.high))
    return above and below


def holds(term: Term, row: EvaluationRow, *, alive: bool) -> bool:
    of_row: Any = getattr(row, FIELDS[term.field].column or term.field)
    if term.field == "scored":
        of_row = scored_of(row, alive=alive)
    if term.key is not None:
        of_row = (of_row or {}).get(term.key)

    def is_it(value: Value) -> bool:
        if value is None or of_row is None:
            return value is None and of_row is None
        if isinstance(value, Range):
            return is_within(of_row, value, exactly=FIELDS[term.field].kind != Kind.NUMBER)
        return value.lower() in of_row.lower() if term.field == "error" else of_row == value

    failed = term.field == "error" and row.stop_reason in FAILURES and row.stop_reason in term.values
    return (any(is_it(value) for value in term.values) or failed) != term.negated


def scored_of(row: EvaluationRow, *, alive: bool) -> str | None:
    """In a run that is over nothing is awaited."""
    if row.reward is not None:
        return Scored.YES
    if row.status not in {Status.OK, Status.ERROR}:
        return None
    awaited = alive and row.scored is None and row.stop_reason != StopReason.EXCEPTION
    return Scored.AWAITING if awaited else Scored.NO


def in_order(rows: list[EvaluationRow], sort: Order) -> list[int]:
    keys: dict[Order, tuple[str, bool]] = {
        Sort.NEWEST: ("id", True),
        Sort.OLDEST: ("id", False),
        Sort.LOWEST_REWARD: ("reward", False),
        Sort.HIGHEST_REWARD: ("reward", True),
        Sort.LONGEST: ("completion_tokens", True),
        Sort.SLOWEST: ("seconds", True),
    }
    key, descending = keys[sort]
    have = [row for row in rows if getattr(row, key) is not None]
    lack = [row for row in rows if getattr(row, key) is None]
    for part in (have, lack):  # the newest of those that are equal first
        part.sort(key=lambda row: row.id or 0, reverse=sort != Sort.OLDEST)
    have.sort(key=lambda row: getattr(row, key), reverse=descending)
    return [row.id or 0 for row in have + lack]


def walk(engine: Engine, run_id: int, where: RolloutFilter, limit: int) -> list[int]:
    """The ids of all pages, one after the other."""
    ids: list[int] = []
    after: Cursor | None = None
    for _ in range(1000):
        page = queries.page(engine, run_id, where, after=after, limit=limit)
        assert page.next is None or len(page.rows) == limit
        ids += [row.id or 0 for row in page.rows]
        after = page.next
        if after is None:
            return ids
    raise AssertionError("the pages have no end")


FEW_REWARDS = st.sampled_from([None, -1.5, -0.0, 0.0, 1e-300, 0.5, 1.0, float("inf")])
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "reward": FEW_REWARDS,
            "scored": st.sampled_from([None, 5]),
            "completion_tokens": st.sampled_from([None, 0, 7, 512]),
            "seconds": st.sampled_from([None, 0.0, 0.25, 3.5]),
            "status": st.sampled_from(list(Status)),
            "stop_reason": st.sampled_from([None, *StopReason]),
            "step": st.integers(1, 4),
            "task": st.sampled_from([None, "a", "b", "ü 素"]),
            "mode": st.sampled_from(list(Mode)),
            "eval_name": st.sampled_from(["one", "two"]),
            "created": st.integers(10, 15),
            "group": st.sampled_from(["g1", "g2"]),
            "turns": st.sampled_from([None, 1, 4]),
            "error": st.sampled_from([None, "TimeoutError: 30% of_it", "other"]),
            "rewards": st.sampled_from([None, {"a": 0.5, "b": None}, {"a": 1, "b": 2.0}]),
        }
    ).map(lambda row: row | ({"stop_reason": None} if row["status"] == Status.RUNNING else {})),
    max_size=25,
)


def a_subset(values: list[str]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.just(()) | st.lists(st.sampled_from(values), max_size=2).map(tuple)


def a_range(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, Any]]:
    both = st.tuples(values, values).map(lambda pair: tuple(sorted(pair)))
    return st.just((None, None)) | both | values.map(lambda low: (low, None)) | values.map(lambda high: (None, high))


LINES = (
    "-status:ok", "-status:running", "-status:aborted,error", "stop:none", "-stop:aborted", "stop:aborted,length",
    "-eval:one", "stop:none,done", "-scored:yes", "-scored:awaiting,no", "task:none", "task:none,a", "-task:b",
    "-mode:eval", "reward<0.5", "reward>0", "reward>-1.5 reward<1", "-reward<0.5", "reward:none", "-reward:none",
    "reward:0,1..2", "step:1,3", "-step:2..3", "step:1..2,4..", "turns>1", "turns:none", "-turns:4", "rewards.a<1",
    "-rewards.a:none", "rewards.b:none", "error:timeout", "error:aborted", "-error:none", "error:none",
    'error:"30% of_it"', 'error:"the process"', "error:0_it", "group:g1,g2", "-group:g1", "completion_tokens>=7",
    "seconds<3 -seconds:0", "model:none", "id>0",
)  # fmt: skip


@st.composite
def filters(draw: st.DrawFn) -> RolloutFilter:
    step, reward = draw(a_range(st.integers(0, 5))), draw(a_range(st.sampled_from([-2.0, -0.5, 0.0, 0.5, 1.0])))
    time, lines = draw(a_range(st.integers(9, 16))), st.sampled_from(LINES)
    made = RolloutFilter(
        evals=draw(a_subset(["one", "two"])),
        modes=draw(a_subset([*Mode])),
        statuses=draw(a_subset([*Status])),
        stop_reasons=draw(a_subset([*StopReason])),
        scored=draw(a_subset([*Scored])),
        tasks=draw(a_subset(["a", "b", "ü 素"])),
        group=draw(st.sampled_from([None, None, "g1"])),
        step_min=step[0],
        step_max=step[1],
        reward_min=reward[0],
        reward_max=reward[1],
        since=time[0],
        until=time[1],
        sort=draw(st.sampled_from(Sort)),
    )
    try:
        return made.with_terms(*parse_where(" ".join(draw(st.lists(lines, max_size=2)))).terms)
    except FilterError:  # what was drawn excludes one another
        return made


def add_run(engine: Engine, made: list[dict[str, Any]], *, alive: bool = False) -> int:
    """A run of exactly these rows, under a uid of its own; long over, or under way."""
    with engine.begin() as connection:
        number = len(connection.execute(select(col(Run.id))).all())
        run: dict[str, Any] = {"uid": f"zz-{number}", "name": "made", "changed": 0} | (UNDER_WAY if alive else {})
        run_id = factory.insert_rows(connection, made, **run)
        if made:
            steps = {(row["mode"], row["eval_name"], row["step"]) for row in made}
            connection.execute(insert(StepStatistics), [sums_of(run_id, key, made) for key in steps])
    return run_id


def sums_of(run_id: int, key: tuple[str, str, int], made: list[dict[str, Any]]) -> dict[str, Any]:
    mine = [row for row in made if (row["mode"], row["eval_name"], row["step"]) == key]
    rewards = [row["reward"] for row in mine if row["reward"] is not None]
    return {
        "run_id": run_id, "mode": key[0], "eval_name": key[1], "step": key[2],
        "rollouts": len(mine), "scored": len(rewards), "reward_sum": sum(rewards),
        "errors": sum(row["status"] == Status.ERROR for row in mine),
        "truncated": sum(row["stop_reason"] == StopReason.LENGTH for row in mine),
    }  # fmt: skip


@FEW
@given(made=ROWS, where=filters(), alive=st.booleans(), limit=st.integers(1, 7))
def test_pages_counts_exports_neighbours_and_facets_of_any_filter_are_those_that_python_selects(
    database: Engine, made: list[dict[str, Any]], where: RolloutFilter, limit: int, *, alive: bool
) -> None:
    run_id = add_run(database, made, alive=alive)
    rows = everything_of(database, run_id)
    selected = [row for row in rows if matches(row, where, alive=alive)]
    ids = in_order(selected, where.sort)
    assert walk(database, run_id, where, limit) == ids
    assert queries.count(database, run_id, where) == Count(len(selected), exact=True)
    rewards = [row.reward for row in selected if row.reward is not None]
    mean = queries.mean_reward(database, run_id, where)
    assert mean == (pytest.approx(np.mean(rewards)) if rewards else None)
    exported = [rollout.row.id for chunk in queries.rollouts(database, run_id, where, chunk=4) for rollout in chunk]
    assert exported == [row.id for row in selected]
    for row in selected[:3]:
        newer = sum((other.id or 0) > (row.id or 0) for other in selected)
        assert queries.new_since(database, run_id, where, row.id or 0) == Count(newer, exact=True)
    for row in rows[:4]:
        found = queries.neighbours(database, run_id, where, row)
        # A row that is not in the filter stands where it would stand.
        with_it = in_order([*(other for other in selected if other is not row), row], where.sort)
        place = with_it.index(row.id or 0)
        assert found.previous == (with_it[place - 1] if place else None)
        assert found.next == (with_it[place + 1] if place + 1 < len(with_it) else None)
        assert found.position == (place + 1 if row.id in ids else None)
        assert (found.inside, found.count) == (row.id in ids, Count(len(ids), exact=True))
    facets = queries.facets(database, run_id, where)
    for name, value_of in FACETS.items():
        others = where.without(name)
        expected = Counter(value_of(row, alive) for row in rows if matches(row, others, alive=alive))
        known = {value_of(row, alive) for row in rows}
        del expected[None]
        counted = dict(getattr(facets, FACET_NAMES.get(name, name)))
        assert counted == dict.fromkeys([*where.words(name), *known - {None}], 0) | expected


FACET_NAMES = {"eval": "evals", "mode": "modes", "status": "statuses", "stop": "stop_reasons", "task": "tasks"}
FACETS: dict[str, Callable[[EvaluationRow, bool], str | None]] = {
    "eval": lambda row, _: row.eval_name,
    "mode": lambda row, _: row.mode,
    "status": lambda row, _: row.status,
    "stop": lambda row, _: row.stop_reason,
    "scored": lambda row, alive: scored_of(row, alive=alive),
    "task": lambda row, _: row.task,
}


@FEW
@given(made=ROWS, where=filters(), bins=st.integers(1, 9))
def test_the_bins_of_a_histogram_hold_the_rewards_between_their_edges(
    database: Engine, made: list[dict[str, Any]], where: RolloutFilter, bins: int
) -> None:
    run_id = add_run(database, made)
    rows = everything_of(database, run_id)
    others = where.without("reward")
    finite = [(row, row.reward) for row in rows if row.reward is not None and np.isfinite(row.reward)]
    rewards = [reward for row, reward in finite if matches(row, others)]
    found = queries.reward_histogram(database, run_id, where, bins)
    if not rewards:
        assert found is None
        return
    assert found is not None
    high = found.low + bins * found.width
    ends = [reward for _, reward in finite]
    assert found.low <= min(ends)
    assert high == pytest.approx(max(ends) if min(ends) < max(ends) else max(ends) + 0.5)
    expected = [0] * bins
    for reward in rewards:
        expected[min(int((reward - found.low) / found.width), bins - 1)] += 1
    assert list(found.counts) == expected


def test_a_running_run_without_a_sign_of_life_has_died(database: Engine) -> None:
    heartbeat = queries.find_run(database, "alpha-2").heartbeat
    run_id = queries.find_run(database, "alpha-2").id or 0
    late = heartbeat + DIED_AFTER_US
    assert queries.run_summary(database, run_id, now=late).state == "running"
    assert queries.run_summary(database, run_id, now=late + 1).state == "died"
    states = {summary.run.uid: summary.state for summary in queries.all_runs(database, now=late + 1)}
    assert states["alpha-1"] == "finished"
    assert states["alpha-2"] == "died"


def test_a_summary_agrees_with_the_rows(database: Engine, run_id: int, rows: list[EvaluationRow]) -> None:
    found = queries.run_summary(database, run_id)
    train = [row for row in rows if row.mode == Mode.TRAIN and row.reward is not None]
    steps = sorted({row.step for row in train})
    recent = [row.reward for row in train if row.step in steps[-10:]]
    assert found.rollouts == len(rows)
    assert found.steps == max(row.step for row in rows)
    assert found.reward == pytest.approx(np.mean([reward for reward in recent if reward is not None]))
    assert [step for step, _ in found.reward_curve] == steps
    for step, mean in found.reward_curve:
        assert mean == pytest.approx(
            np.mean([row.reward for row in train if row.step == step and row.reward is not None])
        )
    finished = [row for row in rows if row.status in {Status.OK, Status.ERROR}]
    assert len(finished) < len(rows)
    assert found.errors == pytest.approx(sum(row.status == Status.ERROR for row in rows) / len(finished))
    assert found.truncated == pytest.approx(sum(row.stop_reason == StopReason.LENGTH for row in rows) / len(finished))
    assert found.eval_names == (factory.EVAL_NAME, factory.HELD_OUT)


def evaluated(step: int, reward: float | None, mode: str = "eval") -> dict[str, Any]:
    return PLAIN | {"mode": mode, "eval_name": "sums", "step": step, "reward": reward}


CHECKPOINTS = tuple((step, step / 10) for step in range(1, 21))


@pytest.mark.parametrize(
    ("made", "kind", "steps", "reward", "curve"),
    [
        ([evaluated(0, 1.0), evaluated(0, 0.5), evaluated(0, None)], (True, False), 0, 0.75, ((0, 0.75),)),
        ([evaluated(*point) for point in CHECKPOINTS], (True, True), 20, pytest.approx(1.05), CHECKPOINTS),
        ([evaluated(0, 1.0), evaluated(1, 0.5, "train")], (False, True), 1, 0.5, ((1, 0.5),)),
        ([], (False, True), 0, None, ()),
        ([PLAIN | {"step": 1, "status": Status.RUNNING, "reward": None}], (False, True), 1, None, ()),
        ([PLAIN | {"step": 1, "status": Status.ABORTED, "reward": None}], (False, True), 1, None, ()),
    ],
    ids=["an evaluation", "one of many checkpoints", "a training", "nothing", "running", "aborted"],
)
def test_a_summary_is_of_the_training_or_of_all_that_is_evaluated(
    database: Engine, made: list[dict[str, Any]], kind: tuple[bool, bool], steps: int, reward: Any, curve: Any
) -> None:
    found = queries.run_summary(database, add_run(database, made))
    assert (found.rollouts, (found.is_evaluation, found.has_steps), found.steps) == (len(made), kind, steps)
    assert (found.reward, found.reward_curve) == (reward, curve)
    none_ended = all(row["status"] != Status.OK for row in made)
    assert (found.truncated, found.errors) == ((None, None) if none_ended else (0.0, 0.0))


def test_a_training_that_is_evaluated_before_its_first_step_is_a_training(database: Engine) -> None:
    run_id = add_run(database, [evaluated(0, 1.0)])
    with database.begin() as connection:
        connection.execute(update(Run).where(col(Run.id) == run_id).values(max_steps=100))
    found = queries.run_summary(database, run_id)
    assert (found.is_evaluation, found.has_steps, found.reward, found.reward_curve) == (False, True, None, ())


def test_runs_come_newest_first_and_alike_in_list_and_detail(database: Engine) -> None:
    found = queries.all_runs(database, now=0)
    created = [summary.run.created for summary in found]
    assert created == sorted(created, reverse=True)
    for summary in found[:3]:
        alone = queries.run_summary(database, summary.run.id or 0, now=0)
        assert dataclasses.replace(alone, run=summary.run) == summary


@pytest.mark.parametrize(
    ("alive", "ids"), [(False, ([2], [], [0, 1, 3, 4])), (True, ([2], [0, 3], [1, 4]))], ids=["over", "living"]
)
def test_what_is_awaited_in_a_living_run_is_not_scored_in_one_that_is_over(
    database: Engine, ids: tuple[list[int], ...], *, alive: bool
) -> None:
    rows: list[dict[str, Any]] = [
        {"status": "ok", "stop_reason": "done"},
        {"status": "ok", "stop_reason": "done", "scored": 5},  # all reward functions returned None
        {"status": "ok", "stop_reason": "done", "scored": 5, "reward": 0.5},
        {"status": "error", "stop_reason": "environment_error"},
        {"status": "error", "stop_reason": "exception"},  # the trainer got nothing to score
        {"status": "running"},
    ]
    plain = PLAIN | {"step": 1, "reward": None, "scored": None}
    run_id = add_run(database, [plain | row for row in rows], alive=alive)
    words = (Scored.YES, Scored.AWAITING, Scored.NO)
    first = everything_of(database, run_id)[0].id or 0
    found = [walk(database, run_id, RolloutFilter(scored=(word,), sort=Sort.OLDEST), 9) for word in words]
    assert tuple([row - first for row in of_word] for of_word in found) == ids
    counted = dict(queries.facets(database, run_id, EVERYTHING).scored)
    assert tuple(counted.get(word, 0) for word in words) == tuple(map(len, ids))


LOST = {"mode": "train", "eval_name": "one", "created": 20, "group": "g", "step": 1, "status": "running"}
LOST |= {"stop_reason": None, "error": None, "reward": None}


@pytest.mark.parametrize(
    ("run", "lost"),
    [
        (UNDER_WAY, False),
        (UNDER_WAY | {"heartbeat": 0}, True),
        (UNDER_WAY | {"state": "finished", "finished": 30}, True),
        (UNDER_WAY | {"state": "failed", "finished": 30}, True),
        (UNDER_WAY | {"state": "finished", "finished": 10}, False),  # an evaluation after the training
        (UNDER_WAY | {"state": "finished", "finished": 10, "heartbeat": 0}, True),
    ],
)
def test_what_a_dead_process_ran_is_aborted_to_all(database: Engine, run: dict[str, Any], *, lost: bool) -> None:
    done = LOST | {"status": "ok", "stop_reason": "done", "reward": 1.0}
    run_id = add_run(database, [LOST, LOST | {"error": "said before", "reward": 0.5}, done])
    with database.begin() as connection:
        connection.execute(update(Run).where(col(Run.id) == run_id).values(**run))
    row, _, other = rows = everything_of(database, run_id)
    shown = (
        ("aborted", "aborted", "The process ended in the middle of the rollout") if lost else ("running", None, None)
    )
    both = [shown, (*shown[:2], "said before")]
    found = [
        rows,
        queries.page(database, run_id, RolloutFilter(sort=Sort.OLDEST)).rows,
        sorted(queries.group_rows(database, run_id, row.id or 0), key=lambda it: it.id or 0),
    ]
    found.append([queries.rollout(database, run_id, each.id or 0).row for each in rows])
    for each in found:
        assert [(it.status, it.stop_reason, it.error) for it in each] == [*both, ("ok", "done", None)]
    one = RolloutFilter(statuses=(shown[0],))
    reasons = [RolloutFilter(stop_reasons=("aborted",))] if lost else []
    for where in (one, RolloutFilter(statuses=(shown[0], "error")), *reasons):
        assert walk(database, run_id, where, 1) == [rows[1].id, row.id]
        assert queries.count(database, run_id, where).value == queries.exact_count(database, run_id, where) == 2
        assert queries.mean_reward(database, run_id, where) == 0.5
        assert queries.new_since(database, run_id, where, row.id or 0).value == 1
        beside = queries.neighbours(database, run_id, where, row)
        assert (beside.inside, beside.previous, beside.next, beside.count.value) == (True, rows[1].id, None, 2)
        assert not queries.neighbours(database, run_id, where, other).inside
    assert walk(database, run_id, RolloutFilter(statuses=("running" if lost else "aborted",)), 1) == []
    facets = queries.facets(database, run_id, one)
    assert dict(facets.statuses) == {shown[0]: 2, "ok": 1}
    assert facets.stop_reasons == ([("done", 0), ("aborted", 2)] if lost else [("done", 0)])
    assert facets.scored == [("yes", 1)]
    summary = queries.run_summary(database, run_id)
    assert (summary.rollouts, summary.truncated, summary.errors) == (3, 0.0, 0.0), "shares of those that ended"
    with database.connect() as connection:
        stored = connection.scalars(select(col(EvaluationRow.status)).where(col(EvaluationRow.run_id) == run_id))
        assert sorted(stored) == ["ok", "running", "running"], "nothing is written"


def test_long_curves_are_thinned_but_keep_their_ends(database: Engine) -> None:
    run_id = add_run(database, [PLAIN | {"step": step, "reward": step / 2} for step in range(1, 502)])
    with database.begin() as connection:
        values = [{"run_id": run_id, "step": step, "name": "loss", "value": step / 2} for step in range(1, 1002)]
        connection.execute(insert(Scalar), values)
    curve = queries.run_summary(database, run_id).reward_curve
    assert len(curve) == 120
    assert (curve[0], curve[-1]) == ((1, 0.5), (501, 250.5))
    assert all(mean == step / 2 for step, mean in curve)
    assert len(set(curve)) == 120
    (loss,) = queries.scalar_curves(database, run_id, points=100)
    assert 90 <= len(loss.points) <= 101
    assert (loss.points[0], loss.points[-1]) == ((1, 0.5), (1001, 500.5))


def test_large_rollouts_are_read_a_few_at_a_time(database: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = add_run(database, [PLAIN | {"step": 1, "reward": float(i)} for i in range(12)])
    rows = everything_of(database, run_id)
    large = pack_content({"messages": [{"role": "user", "content": "again " * 10_000}]})
    assert len(large) < 1_000, "60 kB that are packed into next to nothing"
    with database.begin() as connection:
        connection.execute(insert(RolloutPayload), [{"row_id": row.id, "content": large} for row in rows[:9]])
    monkeypatch.setattr(queries.rollout_list, "_CHUNK_BYTES", 100_000)
    chunks = list(queries.rollouts(database, run_id, RolloutFilter(step_min=1, step_max=2)))
    assert [len(chunk) for chunk in chunks] == [2, 2, 2, 2, 4]
    assert [rollout.row.id for chunk in chunks for rollout in chunk] == [row.id for row in rows]


def test_a_run_is_found_by_uid_before_name_before_beginning(tmp_path: Path) -> None:
    names = {"a-1": "x", "b-1": "a", "c-1": "a-1", "latest-1": "latest", "d": "twice", "e": "twice"}
    found = {"a-1": "a-1", "latest": "e", "a": "b-1", "b": "b-1", "c": "c-1", "twice": "e"}
    with disposed(writing_engine(tmp_path / "runs.db")) as engine:
        with engine.begin() as connection:
            for created, (run, name) in enumerate(names.items()):
                factory.insert_run(connection, {"uid": run, "name": name, "created": created, "heartbeat": 0})
        assert {asked: queries.find_run(engine, asked).uid for asked in found} == found


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("alpha", "Several runs begin with 'alpha': alpha-2, alpha-1. Give more of one."),
        ("alpha-3", "There is no run 'alpha-3': did you mean 'alpha-"),
        ("ALPHA-1", "did you mean 'alpha-1'?"),
        ("frist", "did you mean 'first'?"),
        ("", "There is no run ''"),
        ("%", "There is no run '%': the newest is 'beta'"),
        ("x'; DROP TABLE run; --", "There is no run"),
    ],
)
def test_a_run_that_is_not_found_is_named_with_the_nearest(database: Engine, asked: str, message: str) -> None:
    with pytest.raises(RunNotFoundError) as caught:
        queries.find_run(database, asked)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_database_says_so(tmp_path: Path) -> None:
    with disposed(writing_engine(tmp_path / "empty.db")) as engine:
        assert queries.all_runs(engine) == []
        with pytest.raises(RunNotFoundError, match="No run is recorded"):
            queries.find_run(engine, "latest")
        with pytest.raises(RunNotFoundError):
            queries.run_summary(engine, 1)
        assert queries.page(engine, 1, EVERYTHING) == queries.Page([], None)
        assert queries.known_values(engine, 1) == {"eval": [], "task": []}


def test_known_values_are_the_distinct_ones_in_order(database: Engine, run_id: int, rows: list[EvaluationRow]) -> None:
    found = queries.known_values(database, run_id)
    assert found["eval"] == sorted({row.eval_name for row in rows})
    assert found["task"] == sorted({row.task for row in rows if row.task is not None})
    assert factory.HOSTILE_TASK in found["task"]


def test_a_rollout_comes_with_all_that_was_recorded(database: Engine, rows: list[EvaluationRow]) -> None:
    row = next(row for row in rows if row.status == Status.OK and row.turns == 3)
    found = queries.rollout(database, row.run_id, row.id or 0)
    assert found.row == row
    assert [message["role"] for message in found.messages[:3]] == ["system", "user", "assistant"]
    assert [action["turn"] for action in found.actions] == list(range(len(found.actions)))
    assert found.sampling["temperature"] == 1.0
    assert found.tokens is not None
    assert len(found.tokens.completion_ids) == (row.completion_tokens or 0) + (row.env_tokens or 0)
    never_returned = next(row for row in rows if row.returned is None)
    assert queries.rollout(database, row.run_id, never_returned.id or 0).tokens is None


def test_a_rollout_of_another_run_is_not_found(database: Engine, rows: list[EvaluationRow]) -> None:
    with pytest.raises(RolloutNotFoundError):
        queries.rollout(database, rows[0].run_id + 1, rows[0].id or 0)


def test_a_group_comes_whole(database: Engine, run_id: int, rows: list[EvaluationRow]) -> None:
    found = queries.group_rows(database, run_id, rows[-1].id or 0)
    assert sorted(row.generation for row in found) == [0, 1, 2, 3]
    assert {row.group for row in found} == {rows[-1].group}


def test_the_curves_of_what_the_trainer_logs(database: Engine, run_id: int) -> None:
    logged = [(scalar.name, scalar.step, scalar.value) for scalar in queries.scalars(database, run_id)]
    curves = queries.scalar_curves(database, run_id)
    assert [(curve.name, step, value) for curve in curves for step, value in curve.points] == logged
    assert {"loss", "kl", "reward"} <= {curve.name for curve in curves}
    assert dict(next(curve.points for curve in curves if curve.name == "kl"))[1] is None
    assert queries.last_logged_step(database, run_id) == max(step for _, step, _ in logged)
    bare = add_run(database, [])
    assert (queries.scalar_curves(database, bare), queries.last_logged_step(database, bare)) == ([], None)


def test_a_count_stops_at_the_cap(database: Engine, monkeypatch: pytest.MonkeyPatch, run_id: int) -> None:
    for module in (queries.common, queries.rollout_list):
        monkeypatch.setattr(module, "COUNT_CAP", 20)
    assert queries.count(database, run_id, EVERYTHING) == Count(20, exact=False)
    last = queries.page(database, run_id, EVERYTHING, limit=40).rows[-1]
    found = queries.neighbours(database, run_id, EVERYTHING, last)
    assert found.position is None
    assert found.count == Count(20, exact=False)


def test_a_reward_that_arrives_late_changes_no_other_page(database: Engine) -> None:
    run_id = add_run(database, [PLAIN | {"step": 1, "reward": None} for _ in range(10)])
    first = queries.page(database, run_id, RolloutFilter(sort=Sort.HIGHEST_REWARD), limit=4)
    with database.begin() as connection:
        connection.execute(
            update(EvaluationRow).where(col(EvaluationRow.id) == first.rows[0].id).values(reward=1.0, changed=5)
        )
    second = queries.page(database, run_id, RolloutFilter(sort=Sort.HIGHEST_REWARD), after=first.next, limit=10)
    assert {row.id for row in first.rows} | {row.id for row in second.rows} == {
        row.id for row in everything_of(database, run_id)
    }


@pytest.mark.parametrize(
    ("where", "index"),
    [
        (RolloutFilter(), "row_by_id (run_id=? AND id<?)"),
        (RolloutFilter(step_min=3), "row_by_id (run_id=? AND id<?)"),
        (RolloutFilter(step_min=3, step_max=9000, reward_min=0.5, since=5), "row_by_id (run_id=? AND id<?)"),
        (RolloutFilter(modes=("train",), evals=("one",), stop_reasons=("length",)), "row_by_id (run_id=?"),
        (RolloutFilter(statuses=("ok",)), "row_by_id (run_id=?"),
        (RolloutFilter(statuses=("error",)), "row_not_ok (run_id=? AND status=? AND id<?)"),
        (RolloutFilter(tasks=("a",)), "row_by_task (run_id=? AND task=? AND id<?)"),
        (RolloutFilter(sort=Sort.HIGHEST_REWARD), "row_by_reward (run_id=? AND reward=? AND id<?)"),
        (RolloutFilter(sort=Sort.LOWEST_REWARD), "row_by_reward (run_id=? AND reward=? AND id<?)"),
        (RolloutFilter(group="g"), "row_by_group (group=?"),
        (parse_where("turns>3 -eval:one -task:a"), "row_by_id (run_id=? AND id<?)"),
        (parse_where("reward<0.5 -stop:length error:none"), "row_by_id (run_id=? AND id<?)"),
        (parse_where("task:none,a step>3 rewards.a<1"), "row_by_id (run_id=? AND id<?)"),
        (parse_where("task:none"), "row_by_task (run_id=? AND task=? AND id<?)"),
        (
            dataclasses.replace(parse_where("-stop:length -status:running"), sort=Sort.LOWEST_REWARD),
            "row_by_reward (run_id=? AND reward=?",
        ),
        (parse_where("id:7"), "INTEGER PRIMARY KEY (rowid=?)"),
    ],
)
def test_a_page_is_read_in_an_index_order(sqlite: Engine, where: RolloutFilter, index: str) -> None:
    key = 0.5 if "reward" in where.sort.value else None
    explained = plans(sqlite, lambda: queries.page(sqlite, 2, where, after=Cursor(key, 40), limit=1_000))
    assert index in explained[0]
    assert not [plan for plan in explained if "TEMP B-TREE" in plan or "SCAN evaluation_row" in plan]


@pytest.mark.parametrize(
    ("where", "index"),
    [
        (RolloutFilter(step_min=3, step_max=5, statuses=("ok",), reward_min=0.5), "COVERING INDEX row_by_step"),
        (RolloutFilter(evals=("one",), tasks=("a",), reward_min=0.5), "COVERING INDEX row_by_kind"),
        (RolloutFilter(stop_reasons=("length",)), "COVERING INDEX row_by_"),
        (RolloutFilter(since=1, reward_min=0.5), "COVERING INDEX row_by_kind"),
        (RolloutFilter(tasks=("a",)), "COVERING INDEX row_by_"),
        (RolloutFilter(statuses=("error", "running")), "row_not_ok"),
        (RolloutFilter(stop_reasons=("aborted",)), "COVERING INDEX row_by_kind"),
        (parse_where("reward<0.5"), "COVERING INDEX row_by_reward (run_id=? AND reward<?)"),
        (parse_where("reward>0.1 reward<=0.5"), "COVERING INDEX row_by_reward (run_id=? AND reward>? AND reward<?)"),
        (parse_where("-status:ok"), "row_not_ok"),
        (parse_where("-stop:length -task:a reward<0.5"), "COVERING INDEX row_by_kind"),
        (parse_where("step:3,5 reward<0.5"), "COVERING INDEX row_by_step"),
        (parse_where("group:g,h"), "row_by_group (group=?)"),
    ],
)
def test_a_count_reads_no_table(sqlite: Engine, where: RolloutFilter, index: str) -> None:
    explained = plans(sqlite, lambda: queries.count(sqlite, 2, where))
    assert index in explained[0]


@pytest.mark.parametrize("statuses", [("running",), ("aborted",), ("running", "aborted")])
@pytest.mark.parametrize("sort", Sort)
def test_the_few_that_did_not_end_are_found_by_status(sqlite: Engine, statuses: tuple[str, ...], sort: Sort) -> None:
    where = RolloutFilter(statuses=statuses, sort=sort)
    asked = (
        lambda: queries.page(sqlite, 2, where),
        lambda: queries.count(sqlite, 2, where),
        lambda: list(queries.rollouts(sqlite, 2, where)),
    )
    for ask in asked:
        assert "row_not_ok (run_id=? AND status=?" in plans(sqlite, ask)[0]


def test_a_narrow_range_of_steps_is_read_from_its_index(sqlite: Engine) -> None:
    where = RolloutFilter(step_min=3, step_max=5, statuses=("ok",), reward_min=0.5)
    page, *_ = plans(sqlite, lambda: queries.page(sqlite, 2, where))
    _, counted, *_ = plans(sqlite, lambda: queries.facets(sqlite, 2, where))
    for plan in (page, counted):
        assert "row_by_step (run_id=? AND step>? AND step<?)" in plan


def test_facets_and_histogram_read_indexes_alone(sqlite: Engine) -> None:
    where = RolloutFilter(statuses=("ok",), reward_min=0.1)
    awaited, counted, lost, *whole = plans(sqlite, lambda: queries.facets(sqlite, 2, where))
    assert "row_by_reward (run_id=? AND reward=?)" in awaited
    assert "COVERING INDEX row_by_kind" in counted
    assert "row_not_ok (run_id=? AND status=?)" in lost
    assert len(whole) == 3, "the run's own values, as the filter has a range"
    assert not [plan for plan in (counted, *whole) if "TEMP B-TREE" in plan]
    ends, bins = plans(sqlite, lambda: queries.reward_histogram(sqlite, 2, where))
    assert ends.count("COVERING INDEX row_by_reward") == 2
    assert "COVERING INDEX" in bins


def test_a_reward_is_found_by_what_it_reads_as(database: Engine) -> None:
    """A trainer's are float32, or sums: neither is the number that a person writes."""
    values = [float(np.float32(0.3)), 0.1 + 0.2]
    run_id = add_run(database, [PLAIN | {"step": 1, "reward": it, "rewards": {"a": it}} for it in values])
    both = ("reward=0.3", "reward<=0.3", "reward>=0.3", "rewards.a:0..0.3")
    none = ("reward<0.3", "reward>0.3", "-reward:0.3", "rewards.a>0.3")
    counts = {where: queries.count(database, run_id, parse_where(where)).value for where in both + none}
    assert counts == dict.fromkeys(both, 2) | dict.fromkeys(none, 0)


@pytest.mark.parametrize(("steps", "added_up"), [(100, 101), (1_250, 1_250)])
def test_the_totals_of_forty_thousand_rollouts_are_not_added_up_for_every_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, added_up: int
) -> None:
    monkeypatch.setattr(sys.modules["logs_ui.recorder.queries.runs"], "_REST", 1e9)
    with disposed(writing_engine(tmp_path / "runs.db")) as writer:
        of_step = {"run_id": 1, "mode": "train", "eval_name": "e", "reward_sum": 1.0, "errors": 0, "truncated": 0}
        of_step |= {"rollouts": 32, "scored": 32}
        with writer.begin() as connection:
            factory.insert_run(connection, {"uid": "run", "name": "run", "created": 1, "heartbeat": 1})
            connection.execute(insert(StepStatistics), [of_step | {"step": step + 1} for step in range(steps)])
        with disposed(reading_engine(tmp_path / "runs.db")) as reader:
            assert queries.run_summary(reader, 1).rollouts == 32 * steps
            with writer.begin() as connection:
                connection.execute(insert(StepStatistics), of_step | {"step": steps + 1})
                connection.execute(update(Run).values(changed=col(Run.changed) + 1))
            assert queries.run_summary(reader, 1).rollouts == 32 * added_up
