"""Rewards, names and times that are given by hand: one rule for all doors, and what is odd costs itself."""

import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logs_ui.recorder import start_run
from logs_ui.recorder.guard import RAISE_VARIABLE
from logs_ui.recorder.importing.imported_rows import _rewards
from logs_ui.recorder.importing.reader import ImportedRollout
from tests.support.stored import rows_of

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


def scored(db: Path, *scores: dict[str, Any]) -> list[Any]:
    """Return the rows of one run that are scored so."""
    with start_run(db=db) as run:
        for given in scores:
            with run.rollout("p") as row:
                row.score(**given)
    return rows_of(db)


def test_what_is_not_finite_is_scored_as_a_trainer_scores_it(db: Path) -> None:
    rows = scored(db, *({"reward": reward, "rewards": rewards} for reward, rewards, *_ in RULE))
    for row, (reward, rewards, total, kept, odd) in zip(rows, RULE, strict=True):
        stored = None if math.isnan(row["reward"]) else row["reward"]
        assert (stored, row["rewards"], row["odd_rewards"]) == (total, kept, odd)
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


def test_what_cannot_be_converted_costs_itself(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RAISE_VARIABLE, "0")
    for odd in ("x", Untold(), [1], 10**400, object()):
        whole, advantage, weight = scored(
            db,
            {"reward": odd, "rewards": {"a": odd, "b": 1.0}, "weights": {"b": 0.5}, "advantage": 0.25},
            {"reward": 0.5, "advantage": odd},
            {"rewards": {"a": 2.0}, "weights": {"a": odd}},
        )
        assert (whole["reward"], whole["rewards"], whole["advantage"]) == (0.5, {"a": None, "b": 1.0}, 0.25)
        assert (advantage["reward"], math.isnan(advantage["advantage"])) == (0.5, True)
        assert (weight["reward"], weight["reward_weights"]) == (2.0, {"a": 1.0})


def test_what_cannot_be_converted_of_a_turn_costs_itself(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RAISE_VARIABLE, "0")
    names = ["tokens", "max_tokens", "finish", "reward", "done", "seconds", "error"]
    with start_run(db=db) as run:
        for name in names:
            with run.rollout("p") as row:
                given: dict[str, Any] = {"action": "four", "observation": "yes", "reward": 1.0, "tokens": 1}
                row.turn("4", **given | {name: Untold()})
    for name, stored in zip(names, rows_of(db), strict=True):
        (entry,) = stored["actions"]
        assert (stored["status"], stored["error"]) == ("ok", None)
        assert (entry["text"], entry["action"], entry["observation"]) == ("4", "four", "yes")
        assert entry["reward"] == (None if name == "reward" else 1.0)


def test_a_rollout_is_opened_whatever_names_it(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RAISE_VARIABLE, "0")
    odd = [Untold(), np.arange(3), object(), 3, ["\ud800"], b"\0", True]
    names: list[tuple[str, Any]] = [*product(["task", "group", "eval_name", "metadata"], odd)]
    with start_run(db=db, eval_name="mine") as run:
        for name, value in names:
            with run.rollout("p", **{name: value}) as row:
                row.turn("4")
        with run.rollout("p"):
            pass
    *rows, usual = rows_of(db)
    for (name, value), stored in zip(names, rows, strict=True):
        assert stored["messages"][-1]["content"] == "4"
        if isinstance(value, Untold) or name == "metadata":
            assert (stored["task"], stored["eval_name"]) == (usual["task"], usual["eval_name"])


@pytest.mark.parametrize("seconds", [None, 0.5])
def test_seconds_are_those_that_were_given(db: Path, seconds: float | None) -> None:
    with start_run(db=db) as run, run.rollout("p") as row:
        row.turn("4", action="4", observation="yes", seconds=seconds)
        row.turn("5", action="5", observation="no")
    (stored,) = rows_of(db)
    assert [action["seconds"] for action in stored["actions"]] == [seconds, None]
    assert not any("waiting" in (action["metadata"] or {}) for action in stored["actions"])
    assert math.isnan(stored["seconds"]) if seconds is None else 0.5 <= stored["seconds"] < 60
