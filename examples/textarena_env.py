"""A game of TextArena's (`pip install textarena`) as a text environment, and as one for TRL's `environment_factory`.

Games that need no download, no model of their own and no second player: GuessTheNumber, Mastermind, FrozenLake,
LightsOut, 2048, Bandit, Blackjack, Minesweeper, Secretary, Set, Sudoku, TowerOfHanoi (each `-v0`). Those with a
dictionary, such as Wordle and Hangman, download it when they are made.
"""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import textarena

_dice = threading.Lock()


class TextArenaGame:
    """One player's game.

    Attributes:
        reward: 0.0 until the game is over, and then the game's.
        alive: whether a move can be made.
    """

    def __init__(self, game: str = "GuessTheNumber-v0") -> None:
        """Raises ValueError for a game that TextArena does not have."""
        self._game = textarena.make(f"{game}-raw")  # raw says what is new; the others repeat the whole game each turn
        self._random = random.getstate()
        self.reward = 0.0
        self.alive = False

    def reset(self, seed: int | None = None, **_: Any) -> str:
        """Begin a game, and give its rules. The same `seed` begins the same game; None any."""
        self._random = random.Random(seed).getstate()
        with self._own_random():
            self._game.reset(num_players=1, seed=seed)
        self.reward, self.alive = 0.0, True
        return self._news()

    def step(self, action: str) -> str:
        """Make a move in the game.

        Args:
            action: the move as the rules say it, in square brackets, such as [5]

        Returns:
            What the game answers.
        """
        if not self.alive:
            raise RuntimeError("The game is over, or was not begun: call reset() first.")
        with self._own_random():
            done, _ = self._game.step(action)
        if not done:
            return self._news()
        rewards, infos = self._game.close()
        self.reward, self.alive = float(rewards[0]), False
        return str(infos[0]["reason"])

    def get_reward(self) -> float:
        """Returns the rollout's reward for TRL's `environment_factory`."""
        return self.reward

    def _news(self) -> str:
        _, messages = self._game.get_observation()
        said = (text for _, text, kind in messages if kind is not textarena.ObservationType.PLAYER_ACTION)
        return "\n".join(text.strip() for text in said)

    @contextmanager
    def _own_random(self) -> Iterator[None]:
        """TextArena seeds and draws from the generator that a training uses too: each game gets a state of its own."""
        with _dice:
            outer = random.getstate()
            random.setstate(self._random)
            try:
                yield
            finally:
                self._random = random.getstate()
                random.setstate(outer)
