"""Where completions come from: what every backend takes and gives."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from logs_ui.recorder import unrecorded
from logs_ui.rollout.models.token_episode import Answer


@dataclass(frozen=True)
class Sampling:
    """How one answer is sampled.

    Attributes:
        max_tokens: of one answer.
        temperature, top_p, top_k, min_p, repetition_penalty: None takes the backend's own (the trainer's arguments, or
            the server's defaults).
        stop: texts that end an answer; they stand in it. Any sequence of them becomes a tuple; one alone is one.
        seed: None leaves it to the backend. A rollout function draws one for each answer from it.

    Raises:
        TypeError: `stop` is something else.
    """

    max_tokens: int
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", stop_texts(self.stop))


def stop_texts(stop: Any) -> tuple[str, ...]:
    """
    Raises:
        TypeError: it is neither a text nor a sequence of texts, none of them empty.
    """
    texts = (stop,) if isinstance(stop, str) else stop
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) and text for text in texts):
        raise TypeError(f"sampling.stop is a list of texts, none of them empty, not {stop!r}")
    return tuple(texts)


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


@dataclass(frozen=True)
class AroundModel:
    """A model that does as another; a base class."""

    model: Model

    def enter(self, row: int) -> None:
        """As in `Model`."""
        self.model.enter(row)

    async def answer(self, row: int, context: Sequence[int], sampling: Sampling) -> Answer:
        """As in `Model`."""
        return await self.model.answer(row, context, sampling)

    async def leave(self, row: int) -> None:
        """As in `Model`."""
        await self.model.leave(row)

    @property
    def preflight(self) -> Any:
        """None where it has none."""
        return getattr(self.model, "preflight", None)

    @property
    def in_step(self) -> bool:
        """As of `TrainerModel`."""
        return bool(getattr(self.model, "in_step", False))


async def try_model(model: Model, tokenizer: Any, sampling: Sampling) -> None:
    """Sees whether it answers, if it has a way to: a `preflight(tokenizer, sampling)`, which raises what is wrong."""
    preflight = getattr(model, "preflight", None)
    if preflight is not None:
        with unrecorded():
            await preflight(tokenizer, sampling)


class GenerationError(RuntimeError):
    """A model's server failed: which one, what it said, what to do."""
