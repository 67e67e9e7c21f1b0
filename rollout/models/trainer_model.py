"""Samples from the trainer's own model for a rollout function of `trl.GRPOTrainer`: with transformers, or with its
vLLM.

All rows that have not left are answered by one call, once all of them wait. The call runs in a thread of its own, so
that connections to environments stay alive meanwhile.
"""

import asyncio
import contextvars
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from logs_ui.rollout.models.backends import GenerationError, Sampling
from logs_ui.rollout.models.one_line import one_line
from logs_ui.rollout.models.token_episode import Answer
from logs_ui.rollout.models.trainer_engines import engine_of


@dataclass(frozen=True)
class _Request:
    context: list[int]
    sampling: Sampling
    answer: asyncio.Future[Answer]


@dataclass(frozen=True)
class _Wanted:
    """Holds a rank's request: how many rows, the largest of their limits, and how else they are sampled."""

    rows: int
    max_tokens: int
    samplings: frozenset[Sampling]


class TrainerModel:
    """Implements `backends.Model` for one batch. Make a new one in each call of the rollout function, outside of any
    row's scope, because calls for all rows are recorded in the scope in which it was made.

    A row that entered must leave at its end, however it ends: the others wait for it. Once no row is left, the batch is
    over. Rows are sampled alike, except for `max_tokens`. If generation fails, all waiting rows and all later requests
    get a GenerationError.
    """

    def __init__(self, trainer: Any, rows: int) -> None:
        self._engine = engine_of(trainer)
        self._context = contextvars.copy_context()
        self._thread = ThreadPoolExecutor(1, "logs-ui-generation", self._engine.enter_thread)
        self._rows = range(rows)
        self._live: set[int] = set()
        self._waiting: dict[int, _Request] = {}
        self._call: asyncio.Task[None] | None = None
        self._over = asyncio.Event()  # no rank has rows left, or generation failed
        self._failure: Exception | None = None

    @property
    def in_step(self) -> bool:
        """True if ranks must make the same calls: the model ensures it in a batch, not between batches."""
        return self._engine.in_step

    def enter(self, row: int) -> None:
        """Do the same as `Model.enter`. Raise ValueError if the batch has no such row."""
        if row not in self._rows:
            raise ValueError(f"row {row} does not exist: the batch has {len(self._rows)} rows.")
        self._live.add(row)

    async def answer(self, row: int, context: Sequence[int], sampling: Sampling) -> Answer:
        """Do the same as `Model.answer`. Raise ValueError for a seed, or a limit below 1."""
        _check(sampling)
        if self._failure is not None:
            raise _generation_error(self._failure)
        request = _Request(list(context), sampling, asyncio.get_running_loop().create_future())
        self._waiting[row] = request
        self._go_on()
        try:
            return await request.answer
        finally:
            if self._waiting.get(row) is request:  # cancelled before its turn
                del self._waiting[row]

    async def leave(self, row: int) -> None:
        """Do the same as `Model.leave`. If ranks must stay in step, the last row waits until no rank has rows left.
        It raises GenerationError if generation failed there: the others wait for this rank, and the training cannot
        continue.
        """
        self._live.discard(row)
        self._go_on()
        if not self._live:
            await self._over.wait()
            if self._failure is not None and self._engine.in_step:
                raise _generation_error(self._failure)

    def _go_on(self) -> None:
        # This also holds without any live row: the call then tells the other ranks that this one has no rows left,
        # and the batch is over once no rank has any.
        if self._call is None and not self._over.is_set() and self._live <= self._waiting.keys():
            self._call = asyncio.create_task(self._generate())  # no row's: one that is cancelled takes no other along

    async def _generate(self) -> None:
        requests, self._waiting = list(self._waiting.values()), {}
        try:
            answers = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._context.run, self._answers, requests
            )
        except Exception as error:  # noqa: BLE001 - transformers and vLLM raise what they like; it is passed on
            self._failure = error
            answers = None
        if answers is None:
            self._over.set()
            self._thread.shutdown(wait=False)
        for index, request in enumerate(requests):
            if request.answer.done():
                continue
            if answers is None:
                assert self._failure is not None  # noqa: S101 - there are rows, so something failed
                request.answer.set_exception(_generation_error(self._failure))
            elif isinstance(answer := answers[index], GenerationError):
                request.answer.set_exception(answer)
            else:
                request.answer.set_result(answer)
        self._call = None
        self._go_on()

    def _answers(self, requests: list[_Request]) -> Sequence[Answer | GenerationError] | None:
        """Return the answers; None once no rank has rows left."""
        # Rows may differ in `max_tokens` only, so everything else is compared without it.
        kinds = frozenset(replace(request.sampling, max_tokens=0) for request in requests)
        rank_request = _Wanted(
            len(requests), max((request.sampling.max_tokens for request in requests), default=0), kinds
        )
        everyones = self._engine.gather(rank_request) if self._engine.in_step else [rank_request]
        rows = max(wanted.rows for wanted in everyones)
        if rows == 0:
            return None
        samplings = frozenset[Sampling]().union(*(wanted.samplings for wanted in everyones))
        if len(samplings) > 1:
            raise ValueError(f"all rows of a batch need the same sampling parameters, but these differ: {samplings}.")
        sampling = replace(next(iter(samplings)), max_tokens=max(wanted.max_tokens for wanted in everyones))
        # Each rank has to call with the same number of rows: stand-ins fill up the number, and their answers are
        # dropped.
        absent = rows - len(requests)
        contexts = [request.context for request in requests] + [self._engine.stand_in] * absent
        limits = [request.sampling.max_tokens for request in requests] + [1] * absent
        return self._engine.generate(contexts, limits, sampling)[: len(requests)]


def _check(sampling: Sampling) -> None:
    if sampling.seed is not None:
        raise ValueError(
            "The trainer's own model takes no seed of its own: all rows of a group would get the same answer. "
            "Set GRPOConfig(seed=...) instead."
        )
    if sampling.max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, not {sampling.max_tokens}.")


def _generation_error(cause: Exception) -> GenerationError:
    error = GenerationError(f"The trainer's model could not generate: {one_line(cause)}")
    error.__cause__ = cause
    return error
