"""A game in the shape of TRL's examples of `environment_factory`."""

from typing import Any


class ToolGame:
    """A number to guess. TRL takes each public method for a tool, so a subclass answers by `_answer`."""

    def __init__(self) -> None:
        self.episode: list[str] = []
        self.reward = 0.0

    def reset(self, **_: Any) -> str:
        """Begins a game."""
        self.episode, self.reward = [], 0.0
        return " Game 1."

    def guess(self, number: int) -> str:
        """Guesses the number.

        Args:
            number: What to guess.
        """
        self.episode.append(str(number))
        answer: str = self._answer(number)
        return answer

    def _answer(self, number: int) -> Any:
        return "higher"
