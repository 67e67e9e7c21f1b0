"""Runs whose rollouts end with an answer: long reasonings about mathematics, questions about documents that are
retrieved, and agents that write code, whose tasks have no reference.
"""

from pathlib import Path
from random import Random
from typing import Any

from tests.faults.recording import record
from tests.faults.runs import Rollout, Run, Turn

_STEPS, _GROUPS, _SIZE = 3, 3, 4
_THOUGHTS = (
    "Let me set x = {} and look at what follows.", "Wait, that would give {} clips, which is more than there are.",
    "So the remainder is {} after both months.", "Check: {} divided by two is not a whole number, so try again.",
    "Alternatively count backwards from {}.", "Hmm, the problem says half as many, so this is {}.",
)  # fmt: skip
_CITIES = ("Paris", "Wellington", "Ouagadougou", "Reykjavik")
LONG_REFERENCE = "She sold 48 / 2 clips in May, which is half as many as in April. Altogether that is so: " * 2


def thoughts(dice: Random, count: int) -> str:
    """Return sentences of a reasoning, like no others."""
    return " ".join(dice.choice(_THOUGHTS).format(dice.randrange(1_000)) for _ in range(count))


def _math(dice: Random, number: int, *, solved: bool) -> dict[str, Any]:
    right = 40 + number
    answer = right if solved else dice.randrange(100, 999)
    text = f"<think>\n{thoughts(dice, 90)}\n</think>\n{thoughts(dice, 20)}\n\nSo it is $\\boxed{{{answer}}}$."
    dataset = {"answer": f"{LONG_REFERENCE}\n#### {right}", "level": 3}
    return {"turns": [Turn(text, tokens=1_900)], "metadata": {"dataset": dataset}}


def _documents(dice: Random, number: int, *, solved: bool) -> dict[str, Any]:
    right = _CITIES[number % 4]
    answer = right if solved else _CITIES[(number + 1) % 4]
    found = f"[1] {thoughts(dice, 12)}\n[2] {answer} is the seat of the government. {thoughts(dice, 8)}"
    turns = [
        Turn("I look it up.", {"name": "search", "arguments": {"query": f"capital {number}"}}, found, tokens=20),
        Turn(f"The documents say so in two places.\nThe capital is {answer}.", done=True, tokens=30),
    ]
    return {"turns": turns, "metadata": {"dataset": {"reward_model": {"ground_truth": right}}}}


def _coding(dice: Random, number: int, *, solved: bool) -> dict[str, Any]:
    turns = [
        Turn(f"Run {turn}", {"name": "bash", "arguments": {"command": f"pytest tests/test_{turn}.py"}}, "1 failed",
             tokens=30)
        for turn in range(6)
    ]  # fmt: skip
    last = f"I have changed `forms_{number}.py`: {'all tests pass' if solved else thoughts(dice, 2)}."
    return {"turns": [*turns, Turn(last, done=True, tokens=40)], "metadata": {"dataset": {"repo": "django/django"}}}


KINDS = {"math": _math, "documents": _documents, "coding": _coding}


def record_answers(db: Path, kind: str) -> str:
    """Record a run of one of the KINDS; the first of each group of 4 is solved. Return its id."""
    rollouts = []
    for step in range(1, _STEPS + 1):
        for group in range(_GROUPS):
            for generation in range(_SIZE):
                number, solved = (step - 1) * _GROUPS + group, generation == 0
                made = KINDS[kind](Random(f"{kind}/{number}/{generation}"), number, solved=solved)
                prompt = [{"role": "user", "content": f"Question {number} about {kind}: how many, or which?"}]
                rollouts.append(
                    Rollout(step, group, generation, f"{kind}/{number:03}", prompt, values={"correct": float(solved)},
                            advantage=1.5 if solved else -0.5, stop="stop", **made)
                )  # fmt: skip
    return record(db, Run(f"answers-{kind}", kind, rollouts, {}, {"num_generations": _SIZE}))
