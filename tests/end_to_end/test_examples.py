"""Each example runs as its first lines say, is recorded, and every page of the dashboard can show it."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from starlette.testclient import TestClient

from logs_ui.app.main import create_app
from logs_ui.recorder import flush, load_run, load_runs
from tests.support.miniwob import miniwob_server


def ran(name: str, db: Path, *options: str, steps: int) -> list[pd.DataFrame]:
    """The rollouts of each run that the example recorded, the latest first. In this process, which saves seconds."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", [name, "--steps", str(steps), "--db", str(db), *options])
        importlib.import_module(f"examples.{name}").main()
    assert flush()
    runs = load_runs(db=db)
    assert set(runs.state) == {"finished"}
    assert (runs.unattributed_calls.sum(), runs.recorder_errors.sum(), runs.dropped.sum()) == (0, 0, 0)
    return [load_run(run, db=db) for run in runs.run]


def shown(db: Path) -> None:
    """Every page of every run, and a rollout of each task."""
    with TestClient(create_app(db), base_url="http://127.0.0.1") as client:
        for run in load_runs(db=db).run:
            rollouts = load_run(run, db=db)
            pages = ["/", f"/runs/{run}", f"/runs/{run}/overview"]
            pages += [f"/runs/{run}/rollouts/{one}" for one in rollouts.groupby("task").id.first()]
            for page in pages:
                reply = client.get(page)
                assert reply.status_code == 200, page


@pytest.mark.exhaustive
def test_echo(tmp_path: Path) -> None:
    (rollouts,) = ran("echo", tmp_path / "a.db", steps=3)
    assert len(rollouts) == 24
    assert set(rollouts.stop_reason) == {"done"}
    assert [one[-1]["action"]["message"] for one in rollouts.actions] == [
        one[-1]["content"] for one in rollouts.messages
    ]
    shown(tmp_path / "a.db")


@pytest.mark.exhaustive
def test_two_environments(tmp_path: Path) -> None:
    (rollouts,) = ran("environments", tmp_path / "a.db", steps=3)
    assert "echo" in set(rollouts.task)
    assert len(set(rollouts.task)) > 1
    assert {one["environment"] for one in rollouts.metadata} == {"echo", "words"}
    shown(tmp_path / "a.db")


@pytest.mark.exhaustive
def test_a_text_game(tmp_path: Path) -> None:
    (rollouts,) = ran("text_game", tmp_path / "a.db", steps=3)
    assert set(rollouts.stop_reason) <= {"done", "turn_limit", "length", "no_action"}
    assert rollouts.turns.max() > 1
    shown(tmp_path / "a.db")


@pytest.mark.exhaustive
def test_an_evaluation_before_and_after_the_training_on_it(tmp_path: Path) -> None:
    after, training, before = ran("evaluate_then_train", tmp_path / "a.db", steps=3)
    assert [set(one["mode"]) for one in (after, training, before)] == [{"eval"}, {"train"}, {"eval"}]
    assert {name for one in (after, training, before) for name in one.eval_name} == {"sums"}
    assert len(before) == len(after) == 36
    shown(tmp_path / "a.db")


@pytest.fixture(scope="module")
def miniwob() -> Iterator[str]:
    with miniwob_server("--sessions", "4", "--settle", "0.1") as url:
        yield url


@pytest.mark.exhaustive
def test_web_pages_task_after_task(tmp_path: Path, miniwob: str) -> None:
    (rollouts,) = ran("browsergym", tmp_path / "a.db", "--url", miniwob, steps=2)
    assert set(rollouts.task) == {"click-test", "click-test-2", "focus-text"}
    assert rollouts.groupby("group").task.nunique().max() == 1
    assert rollouts.reward.max() == 1.0
    shown(tmp_path / "a.db")


@pytest.mark.exhaustive
def test_web_pages_in_openenvs_harness(tmp_path: Path, miniwob: str) -> None:
    (rollouts,) = ran("harness", tmp_path / "a.db", "--url", miniwob, steps=2)
    assert set(rollouts.task) == {"click-test", "click-test-2", "focus-text"}
    assert any("tool_calls" in message for message in rollouts.messages.iloc[0])
    assert rollouts.reward.max() == 1.0
    shown(tmp_path / "a.db")
