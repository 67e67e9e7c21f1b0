"""TRL's GRPOTrainer: everything private of it that the recorder relies on, in one file.

What is relied on (trl 1.16), and what is lost without it:
    trainer._generate_and_score_completions(inputs) -> {"advantages": ...}   dataset columns before, advantages after
    trainer._calculate_rewards(inputs, prompts, completions, ids) -> (rows of all ranks, functions)   rewards
    trainer.reward_func_names, .reward_weights                                names and weights of those
    trainer.state, .model.training, .accelerator, .num_generations(_eval)     step, mode, rank, group size
"""

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from logs_ui.recorder.guard import guard
from logs_ui.recorder.instruments.patch import patches
from logs_ui.recorder.models import Mode


class Listener(Protocol):
    """Told of what a trainer computes after a rollout function returned."""

    def rewards(self, values: NDArray[np.float64], names: list[str], weights: list[float], inputs: list[Any]) -> None:
        """Of this process's N rows.

        Args:
            values: (N, F) by row and reward function, NaN where a function returned None.
            names: (F).
            weights: (F).
            inputs: (N) dataset rows.
        """

    def advantages(self, values: NDArray[np.float64]) -> None:
        """(N,) this process's."""

    def logged(self, step: int, values: dict[str, Any]) -> None:
        """What the trainer logs at a step, on the main process only."""

    def train_ended(self) -> None:
        """The trainer says so."""


@dataclass(frozen=True)
class Position:
    """Where a trainer stands when it calls a rollout function.

    Attributes:
        step: under which TRL will log this batch: training logs after the optimizer's step, evaluation before the next.
        first: global index of this process's first row.
        generations: completions in a group.
    """

    mode: Mode
    step: int
    policy_step: int
    epoch: float | None
    process: int
    first: int
    generations: int


_listeners: "weakref.WeakKeyDictionary[Any, Listener]" = weakref.WeakKeyDictionary()
_inputs: "weakref.WeakKeyDictionary[Any, list[Any]]" = weakref.WeakKeyDictionary()


def install() -> None:
    """Patches `GRPOTrainer`, now or when it is imported."""
    patches.when_imported("trl.trainer.grpo_trainer", lambda module: _patch(module.GRPOTrainer))


def attach(trainer: Any, listener: Listener) -> None:
    """From now on the listener hears of this trainer. A subclass that overrides a patched method is patched too."""
    _listeners[trainer] = listener
    for owner in type(trainer).__mro__:
        _patch(owner)
    trainer.add_callback(_callback(listener))


def dataset_rows(trainer: Any, count: int) -> list[dict[str, Any]] | None:
    """The rows that the prompts of the current call come from; None where the trainer did not show them."""
    rows = _inputs.get(trainer)
    return rows if rows is not None and len(rows) == count else None


def position(trainer: Any, count: int) -> Position:
    """For a call with `count` prompts in this process."""
    training = bool(trainer.model.training)
    process = int(trainer.accelerator.process_index)
    step = int(trainer.state.global_step)
    generations = trainer.num_generations if training else getattr(trainer, "num_generations_eval", None)
    return Position(
        mode=Mode.TRAIN if training else Mode.EVAL,
        step=step + 1 if training else step,
        policy_step=step,
        epoch=trainer.state.epoch,
        process=process,
        first=process * count,
        generations=int(generations or trainer.num_generations),
    )


def run_columns(trainer: Any) -> dict[str, Any]:
    """Columns of the run that the trainer knows."""
    config = getattr(trainer.model, "config", None)
    run_name = trainer.args.run_name
    columns = {
        "model": getattr(config, "_name_or_path", None) or type(trainer.model).__name__,
        "max_steps": int(trainer.state.max_steps) if trainer.state.max_steps > 0 else None,
        "num_generations": int(trainer.num_generations),
    }
    # transformers fills run_name with the output folder where the user gave none.
    return columns | ({"name": run_name} if run_name and run_name != trainer.args.output_dir else {})


def tokenizer_json(trainer: Any) -> str | None:
    """The `tokenizers` library's JSON; None for a tokenizer that is not one of its."""
    tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return None if backend is None else backend.to_str()


def shared_from_first(trainer: Any, value: Any) -> Any:
    """Rank 0's value, on every rank. All ranks must call it."""
    if trainer.accelerator.num_processes == 1:
        return value
    from accelerate.utils import broadcast_object_list

    return broadcast_object_list([value])[0]


def _patch(owner: type) -> None:
    patches.method(owner, "_calculate_rewards", _with_rewards)
    patches.method(owner, "_generate_and_score_completions", _with_advantages)


def _with_rewards(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def calculate(self: Any, inputs: Any, prompts: Any, *args: Any, **kwargs: Any) -> Any:
        gathered = original(self, inputs, prompts, *args, **kwargs)
        listener = _listeners.get(self)
        if listener is not None:
            with guard("recording rewards"):
                first = self.accelerator.process_index * len(prompts)
                own = gathered[first : first + len(prompts)].detach().cpu().numpy().astype(np.float64)
                weights = [float(weight) for weight in self.reward_weights.tolist()]
                listener.rewards(own, list(self.reward_func_names), weights, inputs)
        return gathered

    return calculate


def _with_advantages(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def generate_and_score(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        _inputs[self] = inputs
        try:
            scored = original(self, inputs, *args, **kwargs)
        finally:
            _inputs.pop(self, None)
        listener = _listeners.get(self)
        if listener is not None:
            with guard("recording advantages"):
                listener.advantages(scored["advantages"].detach().cpu().numpy().astype(np.float64))
        return scored

    return generate_and_score


def _callback(listener: Listener) -> Any:
    from transformers import TrainerCallback

    class Recorded(TrainerCallback):  # type: ignore[misc]  # transformers is not there for the type checker
        """Passes on what the trainer logs, and that it ended."""

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:  # noqa: ARG002
            if logs and state.is_world_process_zero:
                with guard("recording the trainer's scalars"):
                    listener.logged(int(state.global_step), dict(logs))

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
            with guard("recording the end of training"):
                listener.train_ended()

    return Recorded()
