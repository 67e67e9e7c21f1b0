"""Plays the rows of a batch, builds the trainer's columns, and ends the training if too few succeed."""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from logs_ui.recorder import row_scope
from logs_ui.rollout.models.backends import GenerationError, Model
from logs_ui.rollout.models.one_line import one_line
from logs_ui.rollout.models.token_episode import Trajectory
from logs_ui.rollout.models.trainer_engines import trl_is_before
from logs_ui.rollout.play.play import Rollout
from logs_ui.rollout.play.tasks_and_seeds import Assignment

T = TypeVar("T")

_FAILED_BATCHES = 3
"""A training ends after so many batches in a row in which no rollout could be made."""

logger = logging.getLogger(__name__)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the coroutine's result. It runs in a new thread if a loop runs in this one, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    context, outcome = contextvars.copy_context(), Future[T]()

    def work() -> None:
        try:
            outcome.set_result(context.run(asyncio.run, coroutine))
        except BaseException as error:  # noqa: BLE001 - raised below, where it belongs
            outcome.set_exception(error)

    # No executor: the interpreter waits for its threads at exit, also after an interrupt, and makes none after that.
    thread = threading.Thread(target=work, name="logs-ui-rollouts")
    thread.start()
    thread.join()
    return outcome.result()


async def play_rows(rows: int, model: Model, concurrency: int, play: Callable[[int], Awaitable[T]]) -> list[T]:
    """Return the results of `play(row)` for each row from 0; `concurrency` of them run at the same time.

    A row enters the model before the row whose place it takes leaves. So the model always knows every row that will
    ask, and sees the last one leave when the batch is complete. An exception of `play` ends the batch.
    """
    results: dict[int, T] = {}
    waiting = iter(range(min(concurrency, rows), rows))

    async def play_from(row: int | None) -> None:
        while row is not None:
            with row_scope(row):
                results[row] = await play(row)
                following = next(waiting, None)
                if following is not None:
                    model.enter(following)
                await model.leave(row)
            row = following

    first = range(min(concurrency, rows))
    for row in first:
        model.enter(row)
    try:
        async with asyncio.TaskGroup() as group:
            for row in first:
                group.create_task(play_from(row))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None  # one says it; a group would hide it behind a line of its own
    return [results[row] for row in range(rows)]


def trainer_columns(trajectories: Sequence[Trajectory], nothing: int) -> dict[str, Any]:
    """Return the columns of a rollout function for TRL: lists with one list per row. The token id `nothing`, the
    tokenizer's end of sequence, becomes the masked completion of a row in which the model never sampled anything,
    because the trainer cannot take an empty completion.
    """
    for trajectory in trajectories:
        if not trajectory.completion_ids:
            trajectory.insert([nothing])
    logprobs = [trajectory.logprobs for trajectory in trajectories]
    return {
        "prompt_ids": [trajectory.prompt_ids for trajectory in trajectories],
        "completion_ids": [trajectory.completion_ids for trajectory in trajectories],
        "logprobs": None if any(values is None for values in logprobs) else logprobs,
        "env_mask": [trajectory.mask for trajectory in trajectories],
    }


class Failures:
    """Judges batch after batch. Unless it `is_checked`, because model and environment were tried before, a first batch
    without a single rollout ends the training.
    """

    def __init__(self, *, is_checked: bool = True) -> None:
        self._batches = 0 if is_checked else _FAILED_BATCHES - 1

    def judge(self, rollouts: Sequence[Rollout]) -> None:
        """Log rows that failed. A server may need a while until it is up again, but a training in which all rows fail
        only costs money, so it ends after several such batches: with a RuntimeError.
        """
        raised = [rollout.act_error for rollout in rollouts if rollout.act_error is not None]
        if raised and len(raised) == len(rollouts):  # a parser may raise for an answer that it cannot read, not for all
            logger.warning(
                "act() raised in all %d rollouts, so their answers count as having no action. The last error: %s",
                len(rollouts),
                one_line(raised[-1]),
            )
        errors = [rollout.error for rollout in rollouts if rollout.error is not None]
        self._batches = self._batches + 1 if len(errors) == len(rollouts) else 0
        if not errors:
            return
        message = (
            f"{len(errors)} of {len(rollouts)} rollouts failed and have no reward. The first: {one_line(errors[0])}"
        )
        # A whole batch without the model ends the training at once; an environment gets several batches to come
        # back.
        no_model = self._batches and all(isinstance(error, GenerationError) for error in errors)
        if no_model or self._batches == _FAILED_BATCHES:
            raise RuntimeError(message) from errors[0]
        logger.warning("%s", message)


def columns(rollouts: Sequence[Rollout], assignments: Sequence[Assignment], nothing: int) -> dict[str, Any]:
    """Return what every rollout function returns, and `task` if any row has one; `nothing`: see `trainer_columns`."""
    if trl_is_before(1, 6):  # it gives a row that no reward function scored a reward of 0, and would train on it
        for rollout in rollouts:
            if rollout.error is not None:
                rollout.trajectory.mask = [0] * len(rollout.trajectory.mask)
    tasks = [assigned.task for assigned in assignments]
    return {
        **trainer_columns([rollout.trajectory for rollout in rollouts], nothing),
        "env_reward": [rollout.reward for rollout in rollouts],
        "step_rewards": [rollout.trajectory.rewards for rollout in rollouts],
        "turns": [rollout.turns for rollout in rollouts],
        "error": [None if rollout.error is None else one_line(rollout.error) for rollout in rollouts],
        **({} if tasks.count(None) == len(tasks) else {"task": tasks}),
    }
