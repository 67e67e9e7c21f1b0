"""Small definitions for tests of `@evaluation`."""

from collections.abc import Callable
from typing import Any

from logs_ui.rollout import Evaluation, EvaluationRow, evaluation
from tests.support.model_server import chat, chat_choice


def says(*texts: str) -> list[Any]:
    """Return replies of a server that returns no token ids."""
    return [chat(chat_choice(ids=False, content=text), ids=False) for text in texts]


def word(text: str) -> dict[str, str] | None:
    return None if text == "?" else {"message": text}


def sums(score: Callable[[EvaluationRow], Any] | None = None, **settings: Any) -> Evaluation:
    """Return an evaluation of single-turn work."""
    rows = [{"prompt": [{"role": "user", "content": f"{a} + 1"}], "right": str(a + 1)} for a in range(4)]
    decorate = evaluation("sums", **{"dataset": rows, **settings})
    return decorate(score or (lambda row: row.answer == row["right"]))


ROWS = [{"prompt": "Guess"}]


class Echo:
    """A text environment: pays 1.0 for each word, as long as it hears no "stop"."""

    def __init__(self) -> None:
        self.reward, self.alive = 0.0, True

    def reset(self, seed: Any) -> str:
        self.reward, self.alive = 0.0, True
        return f"seed {seed}"

    def step(self, action: str) -> str:
        self.reward += 1.0
        self.alive = action != "stop"
        return f"heard {action}"
