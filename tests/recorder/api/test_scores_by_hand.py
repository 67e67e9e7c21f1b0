"""Rewards, names and times that are given by hand: one rule for all doors, and what is odd costs itself."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logs_ui.recorder import load_run, start_run
from logs_ui.recorder.guard import RAISE_VARIABLE
from logs_ui.recorder.importing.imported import ImportedRollout
from logs_ui.recorder.importing.imported_rows import _rewards

INF, NAN = math.inf, math.nan

Rewards = dict[str, Any]

# What was scored, and the reward, the rewards and the odd ones that are stored.
RULE: list[tuple[float | None, Rewards, float | None, Rewards, Rewards | None]] = [
    (None, {"a": INF, "b": 1.0}, None, {"a": None, "b": 1.0}, {"a": "inf"}),
    (None, {"a": -INF, "b": INF}, None, {"a": None, "b": None}, {"a": "-inf", "b": "inf"}),
    (None, {"a": NAN, "b": 1.0}, 1.0, {"a": None, "b": 1.0}, {"a": "nan"}),
    (None, {"a": NAN, "b": None}, None, {"a": None, "b": None}, {"a": "nan"}),
    (None, {"a": None, "b": 1.0}, 1.0, {"a": None, "b": 1.0}, None),
    (2.0, {"a": INF}, 2.0, {"a": None}, {"a": "inf"}),
    (INF, {"a": 1.0}, None, {"a": 1.0}, {"reward": "inf"}),
    (INF, {"a": INF}, None, {"a": None}, {"a": "inf"}),
]


def scored(db: Path, **given: Any) -> dict[str, Any]:
    with start_run(db=db) as run, run.rollout("p") as row:
        row.score(**given)
    (stored,) = load_run(run.id, db=db).to_dict("records")
    return {str(name): value for name, value in stored.items()}


@pytest.mark.parametrize(("reward", "rewards", "total", "kept", "odd"), RULE)
def test_what_is_not_finite_is_scored_as_a_trainer_scores_it(
    db: Path, reward: float | None, rewards: Rewards, total: float | None, kept: Rewards, odd: Rewards | None
) -> None:
    found = scored(db, reward=reward, rewards=rewards)
    stored = None if math.isnan(found["reward"]) else found["reward"]
    assert (stored, found["rewards"], found["odd_rewards"]) == (total, kept, odd)
    imported = _rewards(ImportedRollout(key="1", prompt=[], completion=[], reward=reward, rewards=rewards), 1)
    assert (imported["reward"], imported["rewards"], imported["odd_rewards"]) == (total, kept, odd)
    if reward is None:  # as TRL sums them
        values = np.array([[NAN if value is None else value for value in rewards.values()]])
        with np.errstate(invalid="ignore"):
            (summed,) = np.where(np.isnan(values).all(axis=1), NAN, np.nansum(values, axis=1))
        assert (summed if math.isfinite(summed) else None) == total


class Untold:
    """It has no text, no number and no truth."""

    def __str__(self) -> str:
        raise OSError("gone")

    __float__ = __bool__ = __hash__ = __repr__ = __str__  # type: ignore[assignment]


@pytest.mark.parametrize("odd", ["x", Untold(), [1], 10**400, object()])
def test_what_cannot_be_converted_costs_itself(db: Path, monkeypatch: pytest.MonkeyPatch, odd: Any) -> None:
    monkeypatch.setenv(RAISE_VARIABLE, "0")
    found = scored(db, reward=odd, rewards={"a": odd, "b": 1.0}, weights={"b": 0.5}, advantage=0.25)
    assert (found["reward"], found["rewards"], found["advantage"]) == (0.5, {"a": None, "b": 1.0}, 0.25)
    found = scored(db, reward=0.5, advantage=odd)
    assert (found["reward"], math.isnan(found["advantage"])) == (0.5, True)
    found = scored(db, rewards={"a": 2.0}, weights={"a": odd})
    assert (found["reward"], found["reward_weights"]) == (2.0, {"a": 1.0})


@pytest.mark.parametrize("name", ["tokens", "max_tokens", "finish", "reward", "done", "seconds", "error"])
def test_what_cannot_be_converted_of_a_turn_costs_itself(db: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(RAISE_VARIABLE, "0")
    with start_run(db=db) as run, run.rollout("p") as row:
        given: dict[str, Any] = {"action": "four", "observation": "yes", "reward": 1.0, "tokens": 1, name: Untold()}
        row.turn("4", **given)
    (stored,) = load_run(run.id, db=db).to_dict("records")
    (entry,) = stored["actions"]
    assert (stored["status"], stored["error"]) == ("ok", None)
    assert (entry["text"], entry["action"], entry["observation"]) == ("4", "four", "yes")
    assert entry["reward"] == (None if name == "reward" else 1.0)


@pytest.mark.parametrize("name", ["task", "group", "eval_name", "metadata"])
@pytest.mark.parametrize("odd", [Untold(), np.arange(3), object(), 3, ["\ud800"], b"\0", True])
def test_a_rollout_is_opened_whatever_names_it(db: Path, monkeypatch: pytest.MonkeyPatch, name: str, odd: Any) -> None:
    monkeypatch.setenv(RAISE_VARIABLE, "0")
    with start_run(db=db, eval_name="mine") as run, run.rollout("p", **{name: odd}) as row:
        row.turn("4")
    (stored,) = load_run(run.id, db=db).to_dict("records")
    assert stored["messages"][-1]["content"] == "4"
    if isinstance(odd, Untold) or name == "metadata":
        with start_run(db=db, eval_name="mine") as run, run.rollout("p"):
            pass
        (usual,) = load_run(run.id, db=db).to_dict("records")
        assert (stored["task"], stored["eval_name"]) == (usual["task"], usual["eval_name"])


def test_seconds_that_nobody_gave_are_missing(db: Path) -> None:
    with start_run(db=db) as run, run.rollout("p") as row:
        row.turn("4", action="4", observation="yes")
        row.turn("5", action="5", observation="no")
    (stored,) = load_run(run.id, db=db).to_dict("records")
    assert [action["seconds"] for action in stored["actions"]] == [None, None]
    assert not any("waiting" in (action["metadata"] or {}) for action in stored["actions"])
    assert math.isnan(stored["seconds"])


def test_seconds_that_were_given_are_kept(db: Path) -> None:
    with start_run(db=db) as run, run.rollout("p") as row:
        row.turn("4", action="4", observation="yes", seconds=0.5)
        row.turn("5", action="5", observation="no")
    (stored,) = load_run(run.id, db=db).to_dict("records")
    assert [action["seconds"] for action in stored["actions"]] == [0.5, None]
    assert stored["seconds"] == pytest.approx(0.5, abs=0.1)
