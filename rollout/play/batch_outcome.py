"""Builds the trainer's columns from a batch, and ends the training if too few rollouts could be made."""

import logging
from collections.abc import Sequence
from typing import Any

from logs_ui.rollout.models.backends import GenerationError
from logs_ui.rollout.models.trl_release import trl_is_before
from logs_ui.rollout.play.batch import trainer_columns
from logs_ui.rollout.play.play import Rollout, one_line
from logs_ui.rollout.play.tasks_and_seeds import Assignment

_FAILED_BATCHES = 3
"""In a row, of which no rollout could be made, end a training."""

logger = logging.getLogger(__name__)


class Failures:
    """Judges batch after batch.

    Args:
        is_checked: True if model and environment were tried before the first batch. Otherwise a first batch without a
            single rollout ends the training.
    """

    def __init__(self, *, is_checked: bool = True) -> None:
        self._batches = 0 if is_checked else _FAILED_BATCHES - 1

    def judge(self, rollouts: Sequence[Rollout]) -> None:
        """Logs rows that failed. A server may need a while until it is up again, but a training in which all rows fail
        only costs money, so it ends after several such batches.

        Raises:
            RuntimeError: no rollout of several batches in a row could be made.
        """
        _tell_of_act(rollouts)
        errors = [rollout.error for rollout in rollouts if rollout.error is not None]
        self._batches = self._batches + 1 if len(errors) == len(rollouts) else 0
        if not errors:
            return
        said = f"{len(errors)} of {len(rollouts)} rollouts failed and have no reward. The first: {one_line(errors[0])}"
        no_model = self._batches and all(isinstance(error, GenerationError) for error in errors)
        if no_model or self._batches == _FAILED_BATCHES:
            raise RuntimeError(said) from errors[0]
        logger.warning("%s", said)


def _tell_of_act(rollouts: Sequence[Rollout]) -> None:
    """Warns once that the user's `act` raised. A parser may raise for an answer that it cannot read; one that raises in
    every rollout may be broken.
    """
    raised = [rollout.act_error for rollout in rollouts if rollout.act_error is not None]
    if raised and len(raised) == len(rollouts):
        logger.warning(
            "act() raised in each of %d rollouts, which was taken for answers without an action. The last: %s",
            len(rollouts),
            one_line(raised[-1]),
        )


def columns(rollouts: Sequence[Rollout], assignments: Sequence[Assignment], nothing: int) -> dict[str, Any]:
    """Returns what every rollout function returns, with a `task` if any row has one. `nothing` is the same as in
    `trainer_columns`.
    """
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
