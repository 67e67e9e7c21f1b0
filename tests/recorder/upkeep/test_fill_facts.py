"""`logs-ui db migrate --facts`: facts from stored texts are those that the recorder computes, and no others."""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlmodel import col
from typer.testing import CliRunner

from logs_ui.app.commands.cli import app
from logs_ui.recorder import flush, import_run, start_run, trace_env
from logs_ui.recorder.rows.text_facts import FACTS, TEXTS
from logs_ui.recorder.storage.address import Address, as_text
from logs_ui.recorder.storage.database import disposed, reading_engine
from logs_ui.recorder.storage.tables import EvaluationRow
from logs_ui.recorder.upkeep import prune
from logs_ui.recorder.upkeep.fill_facts import fill_facts
from tests.recorder.storage.test_migrations import SCHEMAS
from tests.support.earlier import column, emptied, taken_back

UNSEEN = {"cut_tokens", "cut_limit", "no_room", "asked_key"}
"""Facts of model calls and of the dataset, which are not among the texts."""
COMPUTED = tuple(name for name in (*FACTS, *TEXTS) if name not in UNSEEN)
COLUMNS = [column(f"evaluation_row.{name}") for name in COMPUTED]
ASKED = [{"role": "user", "content": "Where is the largest file, and how large is it?"}]
LOOP = (
    "I list the files again, and then once more, until I know each of them by its name and by its size in bytes. " * 4
)


class Shell:
    def reset(self) -> str:
        return "ready"

    def step(self, command: str) -> dict[str, Any]:
        done = command == "du"
        return {"observation": {"correct": done} if done else "no", "reward": float(done), "done": done}


def recorded(address: Address) -> None:
    with start_run("made", db=as_text(address)) as run:
        for tokens in (False, True):
            for commands in (["ls", "ls", "ls"], ["pwd", "ls", "pwd", "ls", "du"]):
                env = trace_env(Shell())
                with run.rollout(ASKED) as row:
                    env.reset()
                    for command in commands:
                        row.turn(f"{LOOP} {command if command != 'pwd' else 'Where am I?'}", finish="length")
                        env.step(command)
                    row.turn("Nothing more.", finish="stop")
                    if tokens:
                        row.tokens([1, 2, 3], [4, 5, 6], logprobs=[-0.5, -1.25, -2.0])
                    row.score(1.0)
            with run.rollout([*ASKED, {"role": "assistant", "content": "I do not know."}]) as row:
                row.turn("It is a film.", action={"name": "find", "arguments": {"size": 3}}, error="no such file")
                row.score(0.0)
    assert flush()


def facts(address: Address, names: Iterable[str] = COMPUTED) -> list[tuple[Any, ...]]:
    rows = select(*(col(getattr(EvaluationRow, name)) for name in names)).order_by(col(EvaluationRow.id))
    with disposed(reading_engine(address)) as engine, engine.connect() as connection:
        return [tuple(row) for row in connection.execute(rows)]


def test_they_are_those_that_the_recorder_computes(address: Address) -> None:
    recorded(address)
    before = facts(address)
    seen = {name for name, *values in zip(COMPUTED, *before, strict=True) if {*values} - {None}}
    assert seen == {*COMPUTED}
    taken_back(address, COLUMNS)
    assert fill_facts(as_text(address)) == 6
    assert facts(address) == before
    assert fill_facts(as_text(address)) == 0
    assert facts(address) == before


def test_what_a_recorder_of_today_left_open_stays_so(address: Address) -> None:
    recorded(address)
    before = facts(address)
    assert fill_facts(as_text(address)) == 0
    assert facts(address) == before


def test_pruned_imported_and_running_ones_stay_as_they_are(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    recorded(db)
    prune(db, where="reward<1")
    (tmp_path / "1.jsonl").write_text('{"input": "a", "output": "b", "score": 1.0, "step": 1}\n')
    import_run(tmp_path / "1.jsonl", db=db)
    emptied(db, COLUMNS)
    with start_run("now", db=db) as run, run.rollout(ASKED) as row:
        row.turn("I think.")
        assert fill_facts(db) == 4
    assert [row[0] for row in facts(db, ["env_steps"])] == [3, 5, None, 3, 5, None, None, None]


def test_whether_a_tool_had_to_be_called_is_not_stored(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    with start_run("tools", db=db) as run, run.rollout(ASKED) as row:
        row.turn("First a look.", action={"name": "find", "arguments": {}}, observation="a.txt", finish="stop")
        row.turn("Let me think.", finish="stop")
        row.turn("It is a.txt.", finish="stop")
    assert flush()
    emptied(db, COLUMNS)
    fill_facts(db)
    assert facts(db, ["parse_failures", "tool_calls", "env_steps"]) == [(None, 1, 1)]


def test_the_command_adds_columns_and_computes_what_an_earlier_commit_did_not(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    with closing(sqlite3.connect(db)) as connection:
        connection.executescript((SCHEMAS / "0.0.1-0d69570.sql").read_text())
        connection.execute("ALTER TABLE evaluation_row DROP COLUMN env_success")
    said = [CliRunner().invoke(app, ["db", "migrate", "--facts", "--db", str(db)]).output for _ in range(2)]
    assert "added: column evaluation_row.env_success" in said[0].splitlines()
    assert said[0].splitlines()[-2:] == [
        f"{db} is up to date: schema 1.",
        "Facts of 2 rollouts computed from their texts.",
    ]
    assert said[1].splitlines()[-1] == "Facts of 0 rollouts computed from their texts."
    assert facts(db, ["env_success"]) == [(None,), (1,)]


def test_a_training_goes_on_and_interruptions_cost_nothing(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(address)
    before = facts(address)
    emptied(address, COLUMNS)
    monkeypatch.setattr("logs_ui.recorder.upkeep.fill_facts._AT_ONCE", 2)

    def interrupt(_what: str, done: int, _total: int) -> None:
        with run.rollout(ASKED) as row:
            row.score(0.5)
        assert flush()
        if done == 2:
            raise KeyboardInterrupt

    with start_run("beside", db=as_text(address)) as run:
        with pytest.raises(KeyboardInterrupt):
            fill_facts(as_text(address), progress=interrupt)
        assert facts(address)[:3] == [*before[:2], (None,) * len(COMPUTED)]
        assert fill_facts(as_text(address), progress=lambda *_: None) == 4
    assert facts(address)[:6] == before
