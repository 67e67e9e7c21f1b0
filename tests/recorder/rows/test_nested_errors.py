"""An error at any depth of a recorded call counts: an environment that hides it has failed all the same."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from logs_ui.recorder import load_run, start_run, trace_env
from logs_ui.recorder.rows.text_facts import call_facts
from tests.support.late import openenv
from tests.support.rollouts import moody_server


class Game:
    """Plays a server's environment, and swallows what it raises; each method is recorded, too."""

    def __init__(self, url: str, task: str) -> None:
        self.env = openenv.GenericEnvClient(base_url=url).sync()
        self.task = task

    def _tried(self, call: Callable[[], Any]) -> str:
        try:
            return str(call().observation["message"])
        except Exception as error:  # noqa: BLE001 - as a tolerant environment does
            return f"no answer: {type(error).__name__}"

    def reset(self) -> str:
        return self._tried(lambda: self.env.reset(task=self.task))

    def step(self, action: str) -> str:
        return self._tried(lambda: self.env.step({"message": action}))


class Outer:
    """Calls a recorded game in its own."""

    def __init__(self, game: Any) -> None:
        self.game = game

    def reset(self) -> Any:
        return self.game.reset()

    def step(self, action: str) -> Any:
        return self.game.step(action)


def test_an_error_that_an_environment_swallows_is_counted(db: Path) -> None:
    counts = {"fails at reset": (0, 1), "fails at step": (2, 2), "calm": (2, 0)}
    with moody_server() as url, start_run(db=db) as run:
        for task, depth in product(counts, [1, 2]):
            game = Game(url, task)
            env: Any = trace_env(game) if depth == 1 else trace_env(Outer(trace_env(game)))
            with game.env, run.rollout("Play.", task=task) as row:
                env.reset()
                for i in range(counts[task][0]):
                    row.turn(f"go {i}")
                    env.step(f"go {i}")
    rows = load_run(db=db)
    stored = list(zip(rows.task, rows.env_steps, rows.env_errors, strict=True))
    assert sorted(stored) == sorted((task, *count) for task, count in counts.items() for _ in range(2))
    assert len(load_run(db=db, where="env_errors>0")) == 4


def entry(**parts: Any) -> dict[str, Any]:
    names = ("text", "action", "observation", "reward", "done", "metadata", "seconds", "error")
    return {"turn": 1, **dict.fromkeys(names), "action": "go", **parts}


@pytest.mark.parametrize(
    ("entries", "errors"),
    [
        ([entry(error="OSError", observation=None)], 1),
        ([entry(error="ValueError: no", observation={"error": "no"})], 0),  # a tool's answer
        ([entry(metadata={"calls": [entry(error="OSError")] * 3})], 1),  # one action has failed
        ([entry(metadata={"calls": [entry(metadata={"calls": [entry(error="OSError")]})]})], 1),
        ([entry(metadata={"calls": [entry(error="ValueError: no", observation={"error": "no"})]})], 0),
        ([entry(turn=0, action=None, metadata={"calls": [entry(error="OSError")]})], 1),
        ([entry(metadata={"calls": 3}), entry(metadata={"calls": [{"error": "none of ours"}, 4]})], 0),
    ],
)
def test_what_counts(entries: list[dict[str, Any]], errors: int) -> None:
    assert call_facts([], entries, [])["env_errors"] == errors
