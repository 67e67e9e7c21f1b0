"""The demo's game as an `@evaluation`: what the model is asked, what it is told, and what it is paid for."""

import re

from logs_ui.rollout.demo.guess_env import TASKS, TURNS, GuessAction, GuessEnv, GuessObservation
from logs_ui.rollout.evaluations.evaluations import Evaluation, evaluation
from logs_ui.rollout.evaluations.scoring import EvaluationRow

SYSTEM = "Find my number. Answer like this: guess 5"
MAX_NEW_TOKENS = 8
"""Tokens the model may use for one guess; "guess 5" and its end take three."""

Messages = list[dict[str, str]]


def guessing(url: str, seed: int) -> Evaluation:
    """The game on the server at `url`. Its secrets are drawn from `seed`, others to train on than to evaluate by."""

    @evaluation(
        "guess",
        dataset=[{"prompt": prompt(task), "task": task} for task in TASKS],
        weights={"solved": 1.0, "format": 0.1},
        environment=GuessEnv,
        base_url=url,
        act=act,
        observe=observe,
        max_turns=TURNS,
        seed=seed,
        sampling={"max_tokens": MAX_NEW_TOKENS},
    )
    def guess(row: EvaluationRow) -> dict[str, float | None]:
        """What the environment paid for the episode; and 1 where every answer could be read as a guess, else 0."""
        answers = [message["content"] for message in row.messages if message["role"] == "assistant"]
        return {"solved": row.env_reward, "format": float(None not in map(parse_guess, answers))}

    return guess


def prompt(task: str) -> Messages:
    """The system and user message that open a game."""
    low, high = TASKS[task]
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"{TURNS} guesses, {low} to {high}"}]


def act(text: str) -> GuessAction | None:
    """An answer as the environment takes it."""
    guess = parse_guess(text)
    return None if guess is None else GuessAction(guess=guess)


def parse_guess(text: str) -> int | None:
    """The number in "guess 5"; None for anything else."""
    match = re.fullmatch(r"guess (\d+)", text.strip())
    return int(match[1]) if match else None


def observe(observation: GuessObservation) -> str | None:
    """What is said to a guess; nothing to begin with, since the prompt has said it all."""
    return feedback(observation) if observation.hint else None


def feedback(observation: GuessObservation) -> str:
    """The user message that answers a wrong guess, such as "higher. 2 left, 8 to 10"."""
    return f"{observation.hint}. {observation.turns_left} left, {observation.low} to {observation.high}"
