"""Defines the demo's game as an `@evaluation`: its prompts, messages and rewards."""

import re

from logs_ui.rollout.demo.guess_env import TASKS, TURNS, GuessAction, GuessEnv, GuessObservation
from logs_ui.rollout.evaluations.evaluations import Evaluation, evaluation
from logs_ui.rollout.evaluations.scoring import EvaluationRow

SYSTEM = "Find my number. Answer like this: guess 5"
MAX_NEW_TOKENS = 8
"""Tokens the model may use for one guess; "guess 5" and its end take three."""

Messages = list[dict[str, str]]


def guessing(url: str, seed: int) -> Evaluation:
    """Return the game on the server at `url`. Secrets are drawn from `seed`, others in evaluation."""

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
        """Return the environment's reward; and 1 if every answer could be read as a guess, otherwise 0."""
        answers = [message["content"] for message in row.messages if message["role"] == "assistant"]
        return {"solved": row.env_reward, "format": float(None not in map(parse_guess, answers))}

    return guess


def prompt(task: str) -> Messages:
    """Return the system and user message that open a game."""
    low, high = TASKS[task]
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"{TURNS} guesses, {low} to {high}"}]


def act(text: str) -> GuessAction | None:
    """Return the environment's action for an answer."""
    guess = parse_guess(text)
    return None if guess is None else GuessAction(guess=guess)


def parse_guess(text: str) -> int | None:
    """Return the number in "guess 5"; None for anything else."""
    match = re.fullmatch(r"guess (\d+)", text.strip())
    return int(match[1]) if match else None


def observe(observation: GuessObservation) -> str | None:
    """Return the message after a guess; None after the reset, since the prompt said everything."""
    return feedback(observation) if observation.hint else None


def feedback(observation: GuessObservation) -> str:
    """Return the user message that answers a wrong guess, such as "higher. 2 left, 8 to 10"."""
    return f"{observation.hint}. {observation.turns_left} left, {observation.low} to {observation.high}"
