"""A seed of its own for each answer of a training, all drawn from one."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from logs_ui.rollout.models.backends import AroundModel, Sampling
from logs_ui.rollout.models.token_episode import Answer


@dataclass(frozen=True)
class Seeded(AroundModel):
    """A model for one batch, which gets `sampling.seed` as one seed for each answer: rows of one group, ranks, batches
    and turns would all get the same answers otherwise.

    Attributes:
        batch: which one it is, in the whole training.
        first: index of this rank's first row among all ranks'.
    """

    batch: str
    first: int
    _turns: Counter[int] = field(default_factory=Counter)

    async def answer(self, row: int, context: Sequence[int], sampling: Sampling) -> Answer:
        """As in `Model`."""
        if sampling.seed is not None:
            place = f"{sampling.seed}/{self.batch}/{self.first + row}/{self._turns[row]}"
            sampling = replace(sampling, seed=_drawn(place))
            self._turns[row] += 1
        return await super().answer(row, context, sampling)


def _drawn(place: str) -> int:
    """From 0 to 2**31 - 1, which all servers take."""
    return int.from_bytes(hashlib.sha256(place.encode()).digest()[:4]) >> 1
