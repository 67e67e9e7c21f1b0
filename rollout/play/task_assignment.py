"""Which task and seed an episode gets: all completions of one prompt the same, on whichever rank they are made."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Assignment:
    """What an episode is reset with.

    Attributes:
        task: None where there are no tasks to rotate through.
        seed: None where none is wanted; a text where the prompts are the seeds.
    """

    task: str | None
    seed: int | str | None


@dataclass
class Rotation:
    """Gives each group the next task, and a seed of its own.

    Groups are counted over all ranks, batch after batch, in training and evaluation apart. Each evaluation begins
    anew, and so gets the same tasks and seeds as the one before it; so does each dataset of one that has several.

    Attributes:
        tasks: names; may be empty.
        seed: what groups' seeds are drawn from; None gives none.
    """

    tasks: Sequence[str] = ()
    seed: int | None = 0
    _trained: int | None = field(default=None, init=False)
    _evaluated: int = field(default=0, init=False)
    _evaluating: tuple[int, Any] | None = field(default=None, init=False)

    def assign(self, trainer: Any, prompts: Sequence[Any]) -> list[Assignment]:
        """One for each of this rank's prompts (N), in order; counts the batch."""
        training = bool(trainer.model.training)
        generations = trainer.num_generations if training else trainer.num_generations_eval
        ranks, rank = trainer.accelerator.num_processes, trainer.accelerator.process_index
        begun = rank * len(prompts)
        groups = -(-ranks * len(prompts) // generations)
        step = int(trainer.state.global_step)
        first = self._next_training(step, groups) if training else self._next_evaluation(trainer, groups)
        mode = "train" if training else "eval"
        return [self.of(mode, first + (begun + i) // generations) for i in range(len(prompts))]

    def _next_training(self, step: int, groups: int) -> int:
        """Index of the batch's first group. A run that is resumed does not begin with the first games again."""
        first = step * groups if self._trained is None else self._trained
        self._trained = first + groups
        self._evaluating = None
        return first

    def _next_evaluation(self, trainer: Any, groups: int) -> int:
        """Each `evaluate()` of a trainer has a data loader of its own, several at one step too."""
        loader = getattr(getattr(trainer, "callback_handler", None), "eval_dataloader", None)
        step, last = int(trainer.state.global_step), self._evaluating
        if last is None or last[0] != step or last[1] is not loader:
            self._evaluating, self._evaluated = (step, loader), 0
        first = self._evaluated
        self._evaluated += groups
        return first

    def of(self, mode: str, group: int) -> Assignment:
        """That of a group, in "train" or "eval"; the first one's index is 0."""
        task = self.tasks[group % len(self.tasks)] if self.tasks else None
        if self.seed is None:
            return Assignment(task, None)
        dice = random.Random(f"{self.seed}/{mode}/{group}")  # noqa: S311 - games, not keys
        return Assignment(task, dice.randrange(2**31))
