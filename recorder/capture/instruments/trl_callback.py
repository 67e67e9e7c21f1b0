"""What a callback of the trainer needs of transformers and accelerate."""

import functools
from typing import Any


@functools.cache
def as_trainer_callback(kind: type) -> type:
    """The class, which is also a `transformers.TrainerCallback` then, under its own name."""
    from transformers import TrainerCallback

    if issubclass(kind, TrainerCallback):
        return kind
    return type(kind.__name__, (kind, TrainerCallback), {"__doc__": kind.__doc__, "__module__": kind.__module__})


def first_rank_says(value: bool) -> bool:  # noqa: FBT001 - it is one
    """Rank 0's, on every rank. All ranks must call it: a rank that stopped alone would leave the others waiting."""
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list

    said: list[Any] = [value]
    return bool(value if PartialState().num_processes == 1 else broadcast_object_list(said)[0])
