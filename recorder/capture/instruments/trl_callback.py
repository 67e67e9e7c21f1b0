"""Adapts a callback of the trainer to transformers and accelerate."""

import functools
from collections.abc import Callable
from typing import Any

from logs_ui.recorder.guard import guard


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


def reporting_callback(
    logged: Callable[[int, dict[str, Any]], None], train_ended: Callable[[], None] = lambda: None
) -> Any:
    """Return a callback that reports what the trainer logs at a step, on the main process, and that training ended."""
    return as_trainer_callback(_Reporting)(logged, train_ended)


class _Reporting:
    def __init__(self, logged: Callable[[int, dict[str, Any]], None], train_ended: Callable[[], None]) -> None:
        self._logged, self._train_ended = logged, train_ended

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        if logs and state.is_world_process_zero:
            with guard("recording the trainer's scalars"):
                self._logged(int(state.global_step), dict(logs))

    def on_train_end(self, *_: Any, **__: Any) -> None:
        with guard("recording the end of training"):
            self._train_ended()
