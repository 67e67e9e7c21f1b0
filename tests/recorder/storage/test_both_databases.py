"""SQLite and PostgreSQL hold the same of the same recording, and answer the same."""

import dataclasses
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Engine, Table, select
from sqlmodel import col

from logs_ui.recorder import flush, load_run, load_runs, load_scalars, queries, record, start_run
from logs_ui.recorder.analysis.diagnosis_columns import RunColumns
from logs_ui.recorder.queries import Dimension, Measure, RunFilter
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, Sort, parse_where
from logs_ui.recorder.storage.address import Address, as_text
from logs_ui.recorder.storage.changes import Batch
from logs_ui.recorder.storage.database import disposed, reading_engine, writing_engine
from logs_ui.recorder.storage.spool.entry import Entry
from logs_ui.recorder.storage.spool.intake import Intake
from logs_ui.recorder.storage.tables import EvaluationRow, Run
from logs_ui.recorder.vocabulary import Mark, Mode, RunState
from tests.support.changes import nth, row
from tests.support.exhaustive import marked_cases
from tests.support.factory import make_run_at
from tests.support.postgres import fresh_database
from tests.support.training import guess_server, make_trainer, sequential, solved

HOSTILE = "NUL \x00 \ud800 \u202e </script> 素 %s %(x)s :y {z} ' \" \\ \\u0000 $1"
LONG = "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=20_000))
FOR_ITSELF = frozenset({"logs_ui_schema", "writer_position"})
TABLES = Run.metadata.tables
CLOCK = {("run", "heartbeat"), ("step_details", "made")}


class Both:
    """A database of each kind. What this process records into SQLite's is written to PostgreSQL's, too."""

    def __init__(self, path: Path, url: Any) -> None:
        self.addresses: tuple[Address, Address] = (path, url)
        self._engine = writing_engine(url)
        self._mirror = Intake(url, lambda: self._engine, "mirror", is_own=True)
        self._take = Intake.take

    def take(self, intake: Intake, entries: Sequence[Entry]) -> int:
        refused = self._take(intake, entries)
        if intake._address == self.addresses[0]:  # rather than what an earlier test left running
            assert self._take(self._mirror, entries) == refused
        return refused

    @property
    def engines(self) -> tuple[Engine, Engine]:
        return reading_engine(self.addresses[0]), reading_engine(self.addresses[1])


@pytest.fixture
def both(tmp_path: Path, postgres_url: Any, monkeypatch: pytest.MonkeyPatch) -> Both:
    made = Both(tmp_path / "a.db", postgres_url)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "none"))  # else what git says of a changed tree comes any time later

    def take(intake: Intake, entries: Sequence[Entry]) -> int:
        return made.take(intake, entries)

    monkeypatch.setattr(Intake, "take", take)
    return made


def stored(engine: Engine, table: Table) -> list[dict[str, Any]]:
    """All rows of a table in their order. In place of a row's number, of which PostgreSQL leaves out some, its uid."""
    order = [column for column in table.columns if column.primary_key]
    with engine.connect() as connection:
        ids = select(TABLES["evaluation_row"].c.id, TABLES["evaluation_row"].c.uid)
        uids = {row_id: uid for row_id, uid in connection.execute(ids)}  # noqa: C416 - rows, typed
        rows = [dict(values) for values in connection.execute(select(table).order_by(*order)).mappings()]
    for values in rows:
        for name in {"id", "row_id"} & values.keys():
            values[name] = uids.get(values[name])
        for name in values.keys() & {column for of_table, column in CLOCK if of_table == table.name}:
            values[name] = None
    return rows


def check_same(found: Any, expected: Any) -> None:
    """But for the last digits of a sum, which depend on the order in which it was made."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        assert list(found) == list(expected)
        for name in expected:
            check_same(found[name], expected[name])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            check_same(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-12, nan_ok=True)
    else:
        assert found == expected
        assert type(found) is type(expected)


def check_tables(both: Both, *, but: frozenset[str] = frozenset()) -> None:
    one, other = both.engines
    for table in Run.metadata.sorted_tables:
        if table.name not in FOR_ITSELF | but:
            check_same(stored(other, table), stored(one, table))


def check_frames(both: Both, *loads: Callable[..., Any]) -> None:
    for load in loads:
        one, other = (
            load(db=as_text(address)).drop(columns=["id", "heartbeat"], errors="ignore") for address in both.addresses
        )
        assert list(other.columns) == list(one.columns)
        for name in one.columns:
            for expected, found in zip(one[name], other[name], strict=True):
                is_same = found is expected or (isinstance(found, float) and found == expected)  # of zeros, any sign
                if not is_same:
                    np.testing.assert_equal(found, expected)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("in_thread")
def test_a_training_is_the_same_row_for_row(both: Both, tmp_path: Path) -> None:
    def odd(env_reward: list[float], **_: Any) -> list[float | None]:
        return [None, float("nan"), *env_reward[2:]]

    with guess_server() as url:
        rollout_func = record(sequential(url), eval_name="guess", db=as_text(both.addresses[0]))
        settings: dict[str, Any] = {"reward_funcs": [solved, odd], "reward_weights": [1.0, 0.3]}
        make_trainer(rollout_func, tmp_path / "out", **settings, eval_strategy="steps", eval_steps=1).train()
    flush()
    check_tables(both)
    assert len(load_run(db=as_text(both.addresses[0]))) > 16
    check_frames(both, load_run, load_runs, load_scalars)


@pytest.mark.usefixtures("in_thread")
def test_what_is_hard_to_store_is_the_same(both: Both) -> None:
    odd = [None, 0.0, -0.0, 1.0, 1e308, 1e308, -1e308, 1e-308, 5e-324, float("inf"), float("-inf"), float("nan")]
    with start_run(
        HOSTILE, db=as_text(both.addresses[0]), eval_name=HOSTILE, config={HOSTILE: [HOSTILE, 1e300]}
    ) as run:
        for number, reward in enumerate(odd):
            names: dict[str, Any] = {"task": HOSTILE, "group": HOSTILE} if number % 2 else {"task": LONG, "group": LONG}
            with run.rollout(
                HOSTILE, step=2**40 + number % 3, generation=2**33, metadata={HOSTILE: 2**70}, **names
            ) as row:
                row.turn(
                    HOSTILE, action={HOSTILE: HOSTILE}, observation={"x": float("nan"), "y": HOSTILE}, reward=reward
                )
                row.tag(HOSTILE, "a")
                row.metric(HOSTILE, 0.5)
                row.metric("b", float("inf"))
                row.note(**{HOSTILE: HOSTILE})
                row.score(reward, rewards={HOSTILE: reward, "a": 1e200, "b": None}, weights={"a": 1e200})
        run.log(2**40, {HOSTILE: 1.0, "nan": float("nan"), "inf": float("inf")})
        with run.rollout("x", eval_name=LONG) as row:
            row.score(1.0)
    flush()
    check_tables(both, but=frozenset({"step_statistics", "step_details"}))  # sums beyond 1e290 are infinite in one
    check_frames(both, load_run, load_scalars)
    for db in both.engines:
        series = max(
            filter(lambda it: it.eval_name is not None, queries.step_series(db, 1)), key=lambda it: it.rollouts
        )
        assert [step.rollouts for step in queries.steps(db, 1, series)] == [4, 4, 4]


LINES = (
    "",
    "reward>0.2 -stop:length",
    "rewards.solved>=0.5 step>3",
    'task:none,"count lines over 80 characters" error:timeout',
    "cause:truncation,wrong_answer,infrastructure",
    "spread:0 turns>2",
    "lag<1 prompts:1",
    "-status:ok",
    "scored:awaiting,no",
    "status:running",
    "stop:aborted",
    "tag:none -is:starred note:none",
    "since:2026-01-01 until:2026-01-02",
)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, Engine]]:
    """The factory's runs: one that is over, one that goes on, and one whose process died."""
    with fresh_database("postgresql", Path()) as url:
        engines = []
        for address in (tmp_path_factory.mktemp("both") / "a.db", url):
            make_run_at(address, uid="done", steps=13, state=RunState.FINISHED)
            make_run_at(address, uid="live", steps=4, seed=1, heartbeat=2**62)
            make_run_at(address, uid="died", steps=3, seed=2, parent="done")
            engines.append(reading_engine(address))
        yield engines[0], engines[1]
        for engine in engines:
            engine.dispose()


@pytest.mark.parametrize("line", marked_cases(LINES, 4, 4))
def test_a_filter_finds_the_same_in_any_order(filled: tuple[Engine, Engine], line: str) -> None:
    where, every = parse_where(line), (Sort.NEWEST, Sort.LOWEST_REWARD, Sort.LONGEST)
    for run_id, sorts in ((1, every), (2, every[:1]), (3, every[:1])):
        for sort in sorts:
            one, other = (ids_of(db, run_id, replace(where, sort=sort)) for db in filled)
            assert other == one
        check_same(plain(found_of(filled[1], run_id, where)), plain(found_of(filled[0], run_id, where)))


def found_of(db: Engine, run_id: int, where: RolloutFilter) -> list[Any]:
    marks = (Mark("rewards.solved", 1.0), Mark("reward", 0.5))
    return [
        queries.reward_ends(db, run_id),
        queries.facets(db, run_id, where),
        queries.reward_histogram(db, run_id, where),
        queries.mean_reward(db, run_id, where),
        queries.new_groups(db, run_id, where, 20),
        queries.newest_groups(db, run_id, where, marks, limit=7),
        queries.survey(db, run_id, where, marks),
    ]


@pytest.mark.exhaustive
def test_all_else_that_is_asked_is_answered_alike(filled: tuple[Engine, Engine]) -> None:
    for ask in QUESTIONS:
        check_same(plain(ask(filled[1])), plain(ask(filled[0])))
    for dimension in Dimension:
        for other in (Dimension.STEP, Dimension.TAG):
            for measure in (Measure.COUNT, Measure.REWARD, Measure.SECONDS):
                one, two = (queries.pivot(db, 1, RolloutFilter(), dimension, other, measure) for db in filled)
                check_same(plain(vars(two) | {"cells": None}), plain(vars(one) | {"cells": None}))
                assert two.cells.keys() == one.cells.keys()
    for mode in Mode:
        columns = [vars(RunColumns(1, mode).refresh(db)) for db in filled]
        for of_one in columns:  # numbers are given to what has a name as it is met
            of_one["group"] = sorted(np.unique(of_one["group"], return_index=True)[1])
            for number, names in (("task", "tasks"), ("eval", "evals")):
                of_one[number] = [None if it < 0 else of_one[names][it] for it in of_one[number]]
                of_one[names] = sorted(of_one[names], key=str)
        for name, values in columns[0].items():
            np.testing.assert_equal(columns[1][name], values)


WORDS = ("shell", "1e-06", "learning_rate=0.000001", "seed=2", "trl=1.16", "QWEN", "bf16=none")
QUESTIONS: list[Callable[[Engine], Any]] = [
    lambda db: [vars(it) | {"run": it.run.uid} for it in queries.all_runs(db, now=0)],
    lambda db: [queries.step_series(db, run_id) for run_id in (1, 2, 3)],
    lambda db: [queries.mean_rewards(db, 1, mode) for mode in Mode],
    lambda db: [queries.steps(db, run_id, of, most=9) for run_id in (1, 3) for of in queries.step_series(db, run_id)],
    lambda db: [
        queries.lowest_tasks(db, 1, of, *span, 3) for of in queries.step_series(db, 1) for span in ((1, 13), (2, 9))
    ],
    lambda db: queries.known_values(db, 1, ("eval", "task", "tag", "model", "rewards", "metrics")),
    lambda db: queries.scalar_curves(db, 1, points=7),
    lambda db: [replace(it, when=None) for it in queries.scalar_points(db, 1, Mode.TRAIN, "reward", 5)],
    lambda db: [replace(it, when=None) for it in queries.reward_points(db, 1, Mode.TRAIN, 5)],
    lambda db: [replace(it, when=None) for it in queries.figure_points(db, 1, Mode.TRAIN, "rewards.solved", 5)],
    lambda db: queries.scalar_names(db, 1),
    lambda db: {
        task: sorted(groups, key=lambda it: (it.scored, it.solved or 0, round(it.reward_sum, 9)))
        for task, groups in queries.task_results(
            db, 1, Mode.TRAIN, (1, 12), [Mark("rewards.solved", 0.5), Mark("reward", 1)]
        ).items()
    },
    lambda db: queries.step_sizes(db, 1, Mode.TRAIN),
    lambda db: [vars(queries.count_runs(db, RunFilter(words=tuple(words)))) for words in ([], *map(str.split, WORDS))],
    lambda db: queries.run_marks(db, (1, 2, 3)),
]


def ids_of(db: Engine, run_id: int, where: RolloutFilter) -> list[int | None]:
    found: list[int | None] = []
    after = None
    while True:
        page = queries.page(db, run_id, where, after=after, limit=37)
        found += [row.id for row in page.rows]
        after = page.next
        if after is None:
            return found


def plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: plain(held) for name, held in vars(value).items()}
    if isinstance(value, dict):
        return {name: plain(held) for name, held in sorted(value.items(), key=str)}
    if isinstance(value, list | tuple):
        return [plain(held) for held in value]
    return value


def test_what_waited_on_disk_does_not_set_a_heartbeat_back(address: Address) -> None:
    with disposed(writing_engine(address)) as engine:
        for made in (2, 1):
            old = Entry(nth(3 - made), made, Batch(rows=[row("0")]), ("r",))
            Intake(address, lambda: engine, "w", is_own=False).take([old])
            assert queries.find_run(engine, "r").heartbeat == 2


RANK = """
import random, sys
from dataclasses import replace
from logs_ui.recorder.storage.address import database_address
from logs_ui.recorder.capture.observed_images import StoredImage
from logs_ui.recorder.vocabulary import SourceKind
from logs_ui.recorder.capture.source_code import Source
from logs_ui.recorder.storage.changes import RunChange, SourcesChange, TokenizerChange
from logs_ui.recorder.delivery.writer import Writer
from tests.support.changes import job, row

writer, rank = Writer(database_address(sys.argv[1])), sys.argv[2]
dice = random.Random(rank)
runs = dice.sample(["a", "b"], 2)
images = [StoredImage(f"{i:064}", "image/png", 1, 1, bytes(9)) for i in range(9)]
for run in runs:
    writer.put(job(RunChange(run, {"name": run, "created": 1, "heartbeat": 1})))
for number in range(16):
    begun, done = [TokenizerChange(f"{i}", "{}") for i in dice.sample(range(5), 2)], []
    for run in dice.sample(runs, 2):
        place = {"group": f"{run}/{number}", "process": int(rank), "generation": int(rank), "step": number // 8}
        began = row(f"{rank}/{number}", {"status": "running"}, b"content", **place, created=number)
        began = replace(began, run=run, images=tuple(dice.sample(images, 3)), tags=("tag",))
        begun.append(began)
        begun.append(SourcesChange(run, tuple(Source(SourceKind.REWARD, t, t, 1.0) for t in dice.sample("pqrst", 3))))
        columns = {"status": "ok", "reward": 0.5, "rewards": {"f": 0.5}}
        done.append(replace(began, columns=columns, content=None, images=(), tags=()))
    for changes in (begun, done):
        writer.put(job(*changes))
        writer.flush()
assert writer.flush(60)
"""


@pytest.mark.exhaustive
def test_processes_that_write_the_same_runs_lose_nothing_and_a_reader_misses_nothing(address: Address) -> None:
    writing_engine(address).dispose()
    command = [sys.executable, "-c", RANK, as_text(address)]
    thread = {**os.environ, "LOGS_UI_WRITER": "thread"}  # a helper process for each would take a second more
    ranks = [
        subprocess.Popen([*command, str(rank)], stderr=subprocess.PIPE, text=True, env=thread) for rank in range(3)
    ]
    reader = reading_engine(address)
    seen: defaultdict[str, set[str]] = defaultdict(set)
    last: defaultdict[str, int] = defaultdict(int)
    is_over = False
    while not is_over:
        is_over = all(rank.poll() is not None for rank in ranks)
        with reader.connect() as connection:
            # The ids are whatever the database gave: where two ranks begin a run at once, PostgreSQL leaves one out.
            for run_id, run in connection.execute(select(col(Run.id), col(Run.uid))).all():
                columns = (col(EvaluationRow.changed), col(EvaluationRow.uid), col(EvaluationRow.status))
                new = connection.execute(
                    select(*columns).where(col(EvaluationRow.run_id) == run_id, columns[0] > last[run])
                ).all()
                seen[run].update(uid for _, uid, status in new if status == "ok")
                last[run] = max((changed for changed, *_ in new), default=last[run])
        time.sleep(0.02)
    assert [rank.communicate()[1] for rank in ranks] == [""] * 3
    everything = {f"{rank}/{number}" for rank in range(3) for number in range(16)}
    assert seen == {"a": everything, "b": everything}
    with reader.connect() as connection:
        run_ids = connection.execute(select(TABLES["run"].c.id)).scalars().all()
    for run_id in run_ids:
        rows = [row for row in stored(reader, TABLES["evaluation_row"]) if row["run_id"] == run_id]
        assert len(rows) == len(everything)
        assert {(row["status"], row["reward"]) for row in rows} == {("ok", 0.5)}
        (series,) = queries.step_series(reader, run_id)
        assert [(step.rollouts, step.scored) for step in queries.steps(reader, run_id, series)] == [(24, 24)] * 2
    runs = [(row["uid"], row["recorder_errors"], row["dropped"]) for row in stored(reader, TABLES["run"])]
    assert sorted(runs) == [("a", 0, 0), ("b", 0, 0)]
    reader.dispose()
