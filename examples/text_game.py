"""A text environment, here TextArena's GuessTheNumber, by `text_rollout_func()`.

python -m examples.text_game
logs-ui serve --db examples.db
"""

import random

from datasets import Dataset
from trl import GRPOTrainer

from examples.settings import arguments, config
from examples.textarena_env import TextArenaGame
from examples.tiny_model import Lesson, say, tiny_model
from logs_ui.recorder import record
from logs_ui.rollout import environment_reward, text_rollout_func

SYSTEM = "Guess a number from 1 to 20, such as [5]."


def lessons() -> list[Lesson]:
    """Teaches the model how to guess, and sometimes how not to."""
    dice = random.Random(0)
    said: list[Lesson] = []
    for hint in ("higher", "lower"):
        for number in range(1, 21):
            words = f"[{number}]" if dice.random() < 0.9 else f"{number}?"
            messages = [say("system", SYSTEM), say("user", hint), say("assistant", words)]
            said.append((messages, []))
    return said


class Game(TextArenaGame):
    """The game, with hints that a tiny model can read."""

    def reset(self, seed: int | None = None, **_: object) -> str:
        """Begins a game."""
        super().reset(seed)
        return "higher"

    def step(self, action: str) -> str:
        """Guesses."""
        said = super().step(action)
        return next((hint for hint in ("higher", "lower") if hint in said), said)


def main() -> None:
    """Trains, recorded."""
    chosen = arguments(__doc__)
    model, tokenizer = tiny_model(lessons(), steps=200)
    rollout_func = text_rollout_func(
        Game,
        max_turns=5,
        max_completion_tokens=160,
        sampling={"max_tokens": 8, "temperature": 1.0},
    )
    trainer = GRPOTrainer(
        model,
        reward_funcs=[environment_reward],
        args=config(chosen.steps),
        train_dataset=Dataset.from_list([{"prompt": [say("system", SYSTEM)]}] * 64),
        processing_class=tokenizer,
        rollout_func=record(rollout_func, eval_name="guess-the-number", db=chosen.db),
    )
    trainer.train()


if __name__ == "__main__":
    main()
