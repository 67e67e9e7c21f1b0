"""Two environments in one run, each a class whose methods TRL offers to the model as tools; `record_environment()`.

python -m examples.environments
logs-ui serve --db examples.db
"""

import random
from collections.abc import Iterator
from typing import Any

from datasets import Dataset
from trl import GRPOTrainer

from examples.echo_env import EchoAction, EchoEnv, serve
from examples.settings import arguments, config
from examples.tiny_model import Lesson, answer, call, say, tiny_model
from logs_ui.recorder import record_environment

SAY, GUESS = "Use the echo.", "Guess a fruit."
FRUITS = ("apple", "banana", "cherry", "plum")


class Echo:
    """Speaks to an OpenEnv server: its step is recorded below the tool's call."""

    url = ""

    def __init__(self) -> None:
        self._client = EchoEnv(base_url=self.url).sync()
        self._client.connect()
        self.reward = 0.0

    def reset(self, **_: Any) -> None:
        """Begins."""
        self._client.reset()
        self.reward = 0.0

    def echo(self, message: str) -> str:
        """
        Says something to the echo.

        Args:
            message: What to say.

        Returns:
            What comes back.
        """
        result = self._client.step(EchoAction(message=message))
        self.reward = result.reward
        return str(result.observation.echoed_message)

    def get_reward(self) -> float:
        """Returns the rollout's reward."""
        return self.reward


class WordGame:
    """A fruit to guess, in the order of the alphabet; two guesses."""

    def __init__(self) -> None:
        self._secret, self._guesses = FRUITS[0], 0

    def reset(self, fruit: str | None, **_: Any) -> None:
        """Begins, with the dataset's `fruit`."""
        self._secret, self._guesses, self.reward = fruit or FRUITS[0], 0, 0.0

    def guess(self, word: str) -> str:
        """
        Guesses the fruit.

        Args:
            word: A fruit.

        Returns:
            "right", or where it stands in the alphabet.
        """
        self._guesses += 1
        if self._guesses > 2:
            raise ValueError("No guesses left.")
        if word == self._secret:
            self.reward = 1.0 / self._guesses
            return "right"
        return "later" if word < self._secret else "earlier"

    def get_reward(self) -> float:
        """Returns the rollout's reward."""
        return self.reward


def lessons() -> Iterator[Lesson]:
    """Teaches the model how to call the tools, and nothing about when."""
    dice = random.Random(0)
    for words in ("hi", "hello", "good day", "good morning"):
        said = [say("user", SAY), call("echo", message=words), answer("echo", words), say("assistant", "done")]
        yield said, [Echo.echo]
    for _ in range(24):
        first, second = dice.choices(FRUITS, k=2)
        heard = dice.choice(("earlier", "later"))
        yield (
            [
                say("user", GUESS),
                call("guess", word=first),
                answer("guess", heard),
                call("guess", word=second),
                answer("guess", "right"),
                say("assistant", "done"),
            ],
            [WordGame.guess],
        )


def rows() -> Iterator[dict[str, Any]]:
    """A task of each environment in turn."""
    for fruit in FRUITS * 8:
        yield {"prompt": [say("user", SAY)], "environment": "echo", "task": "echo", "fruit": None}
        yield {"prompt": [say("user", GUESS)], "environment": "words", "task": fruit, "fruit": fruit}


def main() -> None:
    """Trains, recorded."""
    chosen = arguments(__doc__)
    model, tokenizer = tiny_model(list(lessons()), steps=250)
    with serve() as url:
        Echo.url = url
        trainer = GRPOTrainer(
            model,
            args=config(chosen.steps, max_completion_length=96, max_tool_calling_iterations=3),
            train_dataset=Dataset.from_list(list(rows())),
            processing_class=tokenizer,
            environment_factory=record_environment({"echo": Echo, "words": WordGame}, eval_name="tools", db=chosen.db),
            reward_funcs=[],
        )
        trainer.train()


if __name__ == "__main__":
    main()
