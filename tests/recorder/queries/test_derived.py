"""What the diagnosis works out in numpy, and filters in SQL, is the same."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Engine, update
from sqlmodel import Session, col, insert, select

from logs_ui.recorder import queries
from logs_ui.recorder.analysis.diagnosis_columns import RunColumns
from logs_ui.recorder.diagnosis import CAUSES, Rows, Settings, waterfall
from logs_ui.recorder.diagnosis.checks.policy import lag
from logs_ui.recorder.diagnosis.scale import Scale
from logs_ui.recorder.diagnosis.waterfall import cause_of, causes, judged
from logs_ui.recorder.queries.filters.rollout_filter import parse_where
from logs_ui.recorder.storage.database import disposed, writing_engine
from logs_ui.recorder.storage.tables import EvaluationRow, Run
from logs_ui.recorder.vocabulary import Mode, Status, StopReason
from tests.support import factory
from tests.support.postgres import DATABASES, fresh_database

COUNT = 400


@pytest.fixture(scope="module", params=DATABASES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, int]]:
    folder = tmp_path_factory.mktemp("derived")
    with fresh_database(request.param, folder) as address, disposed(writing_engine(address)) as engine:
        with engine.begin() as connection:
            run_id = factory.insert_rows(connection, rows_of(range(COUNT)))
        yield engine, run_id


def rows_of(numbers: range, seed: int = 0) -> list[dict[str, Any]]:
    """Of every kind, in groups of four."""
    draw = random.Random(seed)

    def row(number: int) -> dict[str, Any]:
        reward = draw.choice([0.0, 0.5, 1.0, 1.0, None])
        return {
            "uid": str(number), "step": 1 + number // 40, "policy_step": draw.choice([0, number // 40]),
            "group": str(number // 4), "generation": number % 4, "created": number,
            "status": draw.choice([*Status, Status.OK, Status.OK, Status.OK]),
            "stop_reason": draw.choice([*StopReason]),
            "reward": reward, "scored": draw.choice([1, 1, 1, None]) if reward is None else 1,
            "rewards": {"a": reward, "b": draw.choice([0.0, None])}, "reward_weights": {"a": 1.0, "b": 0.5},
            "odd_rewards": draw.choice([None, None, None, {"a": "nan"}]), "task": draw.choice(["x", "y", None]),
            "parse_tail": draw.choice([None, 0, 0, 2]), "action_tail": draw.choice([None, 1, 3]),
            "repeats": draw.choice([None, 0.1, 0.6]), "env_steps": draw.choice([None, 0, 4]),
            "completion_key": draw.choice([None, 7, 8, number]),
            "prompt_key": draw.choice([number // 4, number // 4, 3]),
            "staleness": draw.choice([None, None, 3]),
        }  # fmt: skip

    return [row(number) for number in numbers]


def filtered(run: tuple[Engine, int], where: str) -> set[int]:
    engine, run_id = run
    return {it.row.id or 0 for chunk in queries.rollouts(engine, run_id, parse_where(where)) for it in chunk}


def unfinished(run: tuple[Engine, int]) -> set[int]:
    """Those that are stored as running, whatever is shown of them."""
    with Session(run[0]) as session:
        return {it or 0 for it in session.exec(select(EvaluationRow.id).where(EvaluationRow.status == Status.RUNNING))}


def of_group(rows: Rows, figure: Callable[[Any], Any]) -> Any:
    """(N,) what holds of each rollout's group."""
    return np.array([figure(rows.group == group) for group in rows.group])


@pytest.mark.parametrize("cause", range(len(CAUSES)))
def test_causes(run: tuple[Engine, int], cause: int) -> None:
    rows = RunColumns(run[1], Mode.TRAIN).refresh(run[0])
    chosen = judged(rows) & (causes(rows) == cause)
    assert 0 < chosen.sum() < len(rows)
    assert filtered(run, f"cause:{CAUSES[cause].id}") == set(rows.id[chosen].tolist())


def test_one_rollouts_cause_is_told_as_that_of_many(run: tuple[Engine, int]) -> None:
    with Session(run[0]) as session:
        every = list(session.exec(select(EvaluationRow).where(EvaluationRow.mode == Mode.TRAIN)))
    told = {it.id: cause and cause.id for it in every for cause in [cause_of(it)]}
    rows = RunColumns(run[1], Mode.TRAIN).refresh(run[0])
    said = {
        int(row): CAUSES[cause].id for row, cause, can in zip(rows.id, causes(rows), judged(rows), strict=True) if can
    }
    assert {row: cause for row, cause in told.items() if cause} == said
    assert any(it.status == Status.RUNNING and told[it.id] is None for it in every)


def test_a_share_of_the_waterfall_opens_its_rollouts(run: tuple[Engine, int]) -> None:
    rows = RunColumns(run[1], Mode.TRAIN).refresh(run[0])
    fall = waterfall(rows, Scale.of(rows, Settings()))
    assert len(fall.shares) == len(CAUSES)
    for share in fall.shares:
        assert len(filtered(run, share.where)) == share.rollouts


def test_figures_of_a_group(run: tuple[Engine, int]) -> None:
    rows = RunColumns(run[1], Mode.TRAIN).refresh(run[0])
    groups = rows.groups
    dead = ((groups.size > 1) & (groups.high - groups.low <= 1e-6))[rows.group]
    running = unfinished(run)  # of the same groups, and none of the diagnosis' rows
    assert dead.any()
    assert filtered(run, "spread:0") - running == set(rows.id[dead].tolist())
    single = (groups.size < 2)[rows.group]
    assert filtered(run, "spread:none") - running == set(rows.id[single].tolist())
    mixed = of_group(rows, lambda own: len(set(rows.facts["prompt_key"][own])) > 1)
    assert filtered(run, "prompts>1") - running == set(rows.id[mixed].tolist())
    assert filtered(run, "prompts>1 step:3..4") - running == set(rows.id[mixed & np.isin(rows.step, (3, 4))].tolist())
    keys = rows.facts["completion_key"]
    twins = np.array([np.sum((rows.group == g) & (keys == key)) > 1 for g, key in zip(rows.group, keys, strict=True)])
    assert filtered(run, "twins>0") - running == set(rows.id[twins].tolist())


def test_lag(run: tuple[Engine, int]) -> None:
    rows = RunColumns(run[1], Mode.TRAIN).refresh(run[0])
    chosen = lag(rows) >= 2
    assert 0 < chosen.sum() < len(rows)
    assert filtered(run, "lag>=2") - unfinished(run) == set(rows.id[chosen].tolist())


def test_columns_are_kept_up_as_if_they_were_read_anew(tmp_path: Path) -> None:
    engine = writing_engine(tmp_path / "a.db")
    with engine.begin() as connection:
        run_id = factory.insert_rows(connection, rows_of(range(0, COUNT, 2)), state="running")
    kept = RunColumns(run_id, Mode.TRAIN)
    same(kept.refresh(engine), RunColumns(run_id, Mode.TRAIN).refresh(engine))
    assert kept.refresh(engine) is kept.refresh(engine), "nothing has changed"
    row = EvaluationRow
    with Session(engine) as session:
        more = {**factory.ROW, "run_id": run_id, "changed": 2}
        session.execute(insert(row), [more | it for it in rows_of(range(1, COUNT, 2), seed=1)])
        anew = {"changed": 2, "reward": 0.25, "task": "z", "rewards": {"c": 0.25}, "status": Status.OK}
        session.execute(update(row).where(col(row.uid).in_(["0", "10", "100"])).values(**anew))
        session.execute(update(Run).values(changed=2))
        session.commit()
    rows = kept.refresh(engine)
    fresh = RunColumns(run_id, Mode.TRAIN).refresh(engine)
    same(rows, fresh)
    assert len(rows) > COUNT / 2
    assert [rows.tasks[task] for task in rows.task[rows.reward == 0.25]] == ["z"] * 3
    assert np.array_equal(rows.parts["c"][rows.reward == 0.25], [0.25] * 3)


def same(rows: Rows, fresh: Rows) -> None:
    for name in ("id", "step", "status", "odd", "scored"):
        assert np.array_equal(getattr(rows, name), getattr(fresh, name)), name
    for name in ("reward", "staleness"):
        assert np.array_equal(getattr(rows, name), getattr(fresh, name), equal_nan=True), name
    for name, values in fresh.parts.items():
        assert np.array_equal(rows.parts[name], values, equal_nan=True), name
    assert [rows.tasks[t] if t >= 0 else None for t in rows.task] == [
        fresh.tasks[t] if t >= 0 else None for t in fresh.task
    ]
    together = {pair: len({*pair}) for pair in zip(rows.group.tolist(), fresh.group.tolist(), strict=True)}
    assert len(together) == len(rows.groups.size) == len(fresh.groups.size), "the same groups"
