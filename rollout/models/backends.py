"""Defines what every backend of completions takes and returns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from logs_ui.recorder import unrecorded
from logs_ui.rollout.models.token_episode import Answer


@dataclass(frozen=True)
class Sampling:
    """Holds the parameters of sampling one answer.

    Attributes:
        max_tokens: limit of one answer, in tokens.
        temperature, top_p, top_k, min_p, repetition_penalty: None uses the backend's own (the trainer's arguments, or
            the server's defaults).
        stop: strings that end an answer and remain in it. A single string is allowed; the value is stored as a tuple.
        seed: None leaves it to the backend. A rollout function draws one for each answer from it.

    Raises:
        TypeError: `stop` is something else.

    Examples:
        >>> from logs_ui.rollout import Sampling
        >>> Sampling(max_tokens=64, temperature=0.7, stop="END").stop
        ('END',)
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
    """Return the stop strings as a tuple. Raise TypeError unless all are strings that are not empty."""
    texts = (stop,) if isinstance(stop, str) else stop
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) and text for text in texts):
        raise TypeError(f"sampling.stop must be a list of non-empty strings, not {stop!r}")
    return tuple(texts)


class Model(Protocol):
    """Samples answers for the rows of one batch. Implement it to generate with a backend of your own.

    Examples:
        >>> from logs_ui.rollout import Answer, text_rollout_func
        >>> class Echo:
        ...     def enter(self, row): ...
        ...     async def answer(self, row, context, sampling):
        ...         return Answer(ids=context[-8:], logprobs=None, finish="stop", text="...")
        ...     async def leave(self, row): ...
        >>> rollout_func = text_rollout_func(Game, model=Echo(), max_turns=2)
        >>> rollout_func(["Guess a number."], trainer)["turns"]
        [2]
    """

    def enter(self, row: int) -> None:
        """Announce that this row will ask. Rows need not enter at once: some may wait for others to leave."""

    async def answer(self, row: int, context: Sequence[int], sampling: Sampling) -> Answer:
        """Return one answer to `context` (L token ids), for the batch's row `row`. Raise `GenerationError`."""

    async def leave(self, row: int) -> None:
        """Announce that this row asks no more. A backend with batches waits for all that have entered and not left."""


@dataclass(frozen=True)
class AroundModel:
    """A base class for models that answer by another model, whose `preflight` and `in_step` they have, if any."""

    model: Model

    def enter(self, row: int) -> None:
        self.model.enter(row)

    async def leave(self, row: int) -> None:
        await self.model.leave(row)

    def __getattr__(self, name: str) -> Any:
        # `copy` looks for methods such as `__setstate__` before `model` is set, which would recurse for ever.
        if name == "model" or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.model, name)


async def try_model(model: Model, tokenizer: Any, sampling: Sampling) -> None:
    """Try the model before the first batch by its `preflight(tokenizer, sampling)`, if it has one."""
    preflight = getattr(model, "preflight", None)
    if preflight is not None:
        with unrecorded():
            await preflight(tokenizer, sampling)


class GenerationError(RuntimeError):
    """A model's server failed. The message names the server, its answer, and what to do.

    Examples:
        >>> from logs_ui.rollout import GenerationError, evaluation
        >>> @evaluation("sums", dataset=[{"prompt": "2 + 3"}])
        ... def sums(row):
        ...     return float(row.answer == "5")
        >>> try:
        ...     sums.run(model="older", model_url="http://127.0.0.1:8000/v1")
        ... except GenerationError as error:
        ...     print(error)
        http://127.0.0.1:8000/v1 does not serve 'older'. It serves my-model: name one of these.
    """
