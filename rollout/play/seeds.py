"""Draws a seed for each answer of a training, all from one."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from logs_ui.rollout.models.backends import AroundModel, Sampling
from logs_ui.rollout.models.token_episode import Answer


@dataclass(frozen=True)
class Seeded(AroundModel):
    """A model for one batch that turns `sampling.seed` into one seed per answer. With the same seed for all, rows of
    one group, ranks, batches and turns would get equal answers.

    Attributes:
        batch: the number of the batch in the whole training.
        first: the index of this rank's first row among all ranks' rows.
    """

    batch: str
    first: int
    _turns: Counter[int] = field(default_factory=Counter)

    async def answer(self, row: int, context: Sequence[int], sampling: Sampling) -> Answer:
        """Does the same as `Model.answer`."""
        if sampling.seed is not None:
            place = f"{sampling.seed}/{self.batch}/{self.first + row}/{self._turns[row]}"
            sampling = replace(sampling, seed=_drawn(place))
            self._turns[row] += 1
        return await super().answer(row, context, sampling)


def _drawn(place: str) -> int:
    """Returns a number from 0 to 2**31 - 1, which all servers accept."""
    return int.from_bytes(hashlib.sha256(place.encode()).digest()[:4]) >> 1
