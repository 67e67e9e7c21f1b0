"""A GRPO training as most are: a dataset and reward functions, and not a word of logs-ui. Additions of one digit.

logs-ui run --db examples.db -m examples.reward_functions
logs-ui serve --db examples.db
"""

import random
import re

from datasets import Dataset
from trl import GRPOTrainer

from examples.settings import config
from examples.tiny_model import Lesson, say, tiny_model


def question(left: int, right: int) -> str:
    """Asks for a sum."""
    return f"What is {left} + {right}? Answer in <answer></answer>."


def correct(completions: list[list[dict[str, str]]], solution: list[int], **_: object) -> list[float]:
    """Returns 1 for the right number."""
    found = [re.search(r"<answer>(\d+)</answer>", completion[0]["content"]) for completion in completions]
    return [float(it is not None and int(it[1]) == right) for it, right in zip(found, solution, strict=True)]


def formatted(completions: list[list[dict[str, str]]], **_: object) -> list[float]:
    """Returns 0.2 for an answer in its tags."""
    return [0.2 * bool(re.search(r"<answer>.*</answer>", completion[0]["content"])) for completion in completions]


def rows() -> Dataset:
    """All sums of two numbers below 5."""
    sums = [(left, right) for left in range(5) for right in range(5)]
    return Dataset.from_list(
        [{"prompt": [say("user", question(*it))], "solution": sum(it), "task": f"sums to {sum(it)}"} for it in sums]
    )


def lessons() -> list[Lesson]:
    """Teaches answers in the right form, of which every third is right."""
    dice = random.Random(0)
    taught: list[Lesson] = []
    for _ in range(200):
        left, right = dice.randrange(5), dice.randrange(5)
        number = left + right if dice.random() < 0.3 else dice.randrange(9)
        taught.append(([say("user", question(left, right)), say("assistant", f"<answer>{number}</answer>")], []))
    return taught


def main() -> None:
    """Trains for 10 steps."""
    model, tokenizer = tiny_model(lessons(), steps=150)
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[correct, formatted],
        args=config(10),
        train_dataset=rows(),
    )
    trainer.train()


if __name__ == "__main__":
    main()
