"""Adapts a callback of the trainer to transformers and accelerate."""

import functools
from typing import Any


@functools.cache
def as_trainer_callback(kind: type) -> type:
    """Return a class of the same name that is also a `transformers.TrainerCallback`."""
    from transformers import TrainerCallback

    if issubclass(kind, TrainerCallback):
        return kind
    return type(kind.__name__, (kind, TrainerCallback), {"__doc__": kind.__doc__, "__module__": kind.__module__})


def first_rank_says(value: bool) -> bool:  # noqa: FBT001 - the only argument
    """Return rank 0's value on every rank. All ranks must call it: one that stopped alone would leave them waiting."""
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list

    values: list[Any] = [value]
    return bool(value if PartialState().num_processes == 1 else broadcast_object_list(values)[0])
