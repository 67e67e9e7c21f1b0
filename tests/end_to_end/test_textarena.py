"""The example's game of TextArena's."""

import random
from typing import Any

import pytest


@pytest.fixture
def game() -> Any:
    pytest.importorskip("textarena", reason="textarena is not installed")
    from examples.textarena_env import TextArenaGame

    return TextArenaGame()


def secret(game: Any, seed: int) -> int:
    """Found as a player would: by the hints."""
    low, high = 1, 20
    assert "between 1 and 20" in game.reset(seed=seed)
    while game.alive:
        guess = (low + high) // 2
        answer = game.step(f"[{guess}]")
        low, high = (guess + 1, high) if "higher" in answer else (low, guess - 1)
    assert (game.reward, "Congratulations" in answer) == (1.0, True)
    return guess


def test_a_game_is_won_by_its_hints_and_a_seed_begins_the_same_game(game: Any) -> None:
    secrets = [secret(game, seed) for seed in range(6)]
    assert secrets == [secret(game, seed) for seed in range(6)]
    assert len(set(secrets)) > 1


def test_a_game_leaves_the_training_s_random_numbers_alone(game: Any) -> None:
    random.seed(7)
    expected = [random.random() for _ in range(2)]
    random.seed(7)
    game.reset(seed=1)
    first = random.random()
    game.step("[1]")
    assert [first, random.random()] == expected


def test_two_moves_that_break_the_rules_end_it(game: Any) -> None:
    game.reset(seed=1)
    assert "invalid move" in game.step("I guess")
    assert (game.alive, game.reward) == (True, 0.0)
    assert "Invalid Move" in game.step("I guess")
    assert not game.alive
    with pytest.raises(RuntimeError, match="call reset"):
        game.step("[1]")
