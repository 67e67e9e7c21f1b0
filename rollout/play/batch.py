"""Plays the rows of one batch concurrently, and returns what the trainer needs."""

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from logs_ui.recorder import row_scope
from logs_ui.rollout.models.backends import Model
from logs_ui.rollout.models.token_episode import Trajectory

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Returns the coroutine's result. It runs in this thread, or in a new one if a loop already runs in this thread, as
    in a notebook.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    results: list[T] = []
    errors: list[BaseException] = []
    context = contextvars.copy_context()

    def work() -> None:
        try:
            results.append(context.run(asyncio.run, coroutine))
        except BaseException as error:  # noqa: BLE001 - raised below, where it belongs
            errors.append(error)

    thread = threading.Thread(target=work, name="logs-ui-rollouts")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


async def play_rows(rows: int, model: Model, concurrency: int, play: Callable[[int], Awaitable[T]]) -> list[T]:
    """Returns the results of `play(row)` for each row from 0; `concurrency` of them run at the same time.

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
    """Returns the columns of a rollout function for TRL: lists with one list per row.

    Args:
        trajectories: (N) rows.
        nothing: a token id, the tokenizer's end of sequence. It becomes the masked completion of a row in which the
            model never sampled anything, because the trainer cannot take an empty completion.
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
