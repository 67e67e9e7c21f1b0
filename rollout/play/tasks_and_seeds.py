"""Assigns a task and a seed to each episode: the same for all completions of one prompt, on whichever rank they are
made; and a seed to each answer of a model that takes one.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from logs_ui.rollout.models.backends import AroundModel, Sampling
from logs_ui.rollout.models.token_episode import Answer


@dataclass(frozen=True)
class Assignment:
    """Holds the arguments of an episode's reset."""

    task: str | None  # None without tasks to rotate through
    seed: int | str | None  # None if none is wanted; a text if the prompts are the seeds


@dataclass
class Rotation:
    """Gives each group the next task, and its own seed.

    Groups are counted over all ranks, batch after batch, separately for training and evaluation. Each evaluation starts
    again from the first task, and so gets the same tasks and seeds as the one before; so does each dataset of an
    evaluation that has several.
    """

    tasks: Sequence[str] = ()  # names; may be empty
    seed: int | None = 0  # the seed from which groups' seeds are drawn; None gives none
    _trained: int | None = field(default=None, init=False)
    _evaluated: int = field(default=0, init=False)
    _evaluating: tuple[int, Any] | None = field(default=None, init=False)

    def assign(self, trainer: Any, prompts: Sequence[Any]) -> list[Assignment]:
        """Return one assignment for each of this rank's prompts (N), in order, and count the batch."""
        training = bool(trainer.model.training)
        generations = trainer.num_generations if training else trainer.num_generations_eval
        ranks, rank = trainer.accelerator.num_processes, trainer.accelerator.process_index
        # `begun` is the index of this rank's first prompt among those of all ranks; `groups` counts the batch's
        # groups over all ranks, rounded up.
        begun = rank * len(prompts)
        groups = -(-ranks * len(prompts) // generations)
        step = int(trainer.state.global_step)
        if training:  # a resumed run does not start with the first tasks again
            first = step * groups if self._trained is None else self._trained
            self._trained, self._evaluating = first + groups, None
        else:
            first = self._next_evaluation(trainer, groups)
        mode = "train" if training else "eval"
        return [self.of(mode, first + (begun + i) // generations) for i in range(len(prompts))]

    def _next_evaluation(self, trainer: Any, groups: int) -> int:
        """Return the index of the batch's first group in an evaluation: each `evaluate()` has its own data loader."""
        loader = getattr(getattr(trainer, "callback_handler", None), "eval_dataloader", None)
        step, last = int(trainer.state.global_step), self._evaluating
        if last is None or last[0] != step or last[1] is not loader:
            self._evaluating, self._evaluated = (step, loader), 0
        first = self._evaluated
        self._evaluated += groups
        return first

    def of(self, mode: str, group: int) -> Assignment:
        """Return the assignment of a group, by its index from 0, in "train" or "eval"."""
        task = self.tasks[group % len(self.tasks)] if self.tasks else None
        if self.seed is None:
            return Assignment(task, None)
        dice = random.Random(f"{self.seed}/{mode}/{group}")  # noqa: S311 - games, not keys
        return Assignment(task, dice.randrange(2**31))


@dataclass(frozen=True)
class Seeded(AroundModel):
    """A model for one batch that turns `sampling.seed` into one seed per answer. With the same seed for all, rows of
    one group, ranks, batches and turns would get equal answers.
    """

    batch: str  # the number of the batch in the whole training
    first: int  # the index of this rank's first row among all ranks' rows
    _turns: Counter[int] = field(default_factory=Counter)

    async def answer(self, row: int, context: Sequence[int], sampling: Sampling) -> Answer:
        if sampling.seed is not None:
            place = f"{sampling.seed}/{self.batch}/{self.first + row}/{self._turns[row]}"
            # From 0 to 2**31 - 1, which all servers accept.
            seed = int.from_bytes(hashlib.sha256(place.encode()).digest()[:4]) >> 1
            sampling = replace(sampling, seed=seed)
            self._turns[row] += 1
        return await self.model.answer(row, context, sampling)
