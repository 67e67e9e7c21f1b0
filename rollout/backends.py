"""Where completions come from: what every backend takes and gives."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from logs_ui.rollout.episode import Answer


@dataclass(frozen=True)
class Sampling:
    """How one answer is sampled.

    Attributes:
        max_tokens: of one answer.
        temperature, top_p, top_k, min_p, repetition_penalty: None takes the backend's own (the trainer's arguments, or
            the server's defaults).
        stop: texts that end an answer; they stand in it.
        seed: None leaves it to the backend.
    """

    max_tokens: int
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None


class Model(Protocol):
    """Samples answers for the rows of one batch."""

    def enter(self, row: int) -> None:
        """Says that this row will ask. Not all rows have to enter at once: some may wait for a session of the
        environment until others have left.
        """

    async def answer(self, row: int, context: Sequence[int], sampling: Sampling) -> Answer:
        """One answer after `context` (L token ids), for the batch's row `row`. Raises `GenerationError`."""

    async def leave(self, row: int) -> None:
        """Says that this row asks no more. A backend that generates in batches waits for all that entered and have not
        left.
        """


class GenerationError(RuntimeError):
    """A model's server failed: which one, what it said, what to do."""
