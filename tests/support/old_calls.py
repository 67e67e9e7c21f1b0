"""Calls a recorded rollout function as a trainer of TRL 0.25 does in the middle of a batch, without the trainer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from logs_ui.recorder.capture.instruments import trl


class StandInTrainer:
    """What `record()` reads of a trainer."""

    def __init__(self, processing_class: Any = None, model: Any = None, **args: Any) -> None:
        known = {"num_generations": 1, "max_steps": 1, "run_name": None, "output_dir": ".", "to_dict": dict}
        self.args = SimpleNamespace(**known | args)
        self.num_generations = self.args.num_generations
        self.processing_class = processing_class or object()
        self.model = model or SimpleNamespace(training=True, parameters=tuple)
        self.accelerator = SimpleNamespace(process_index=0, num_processes=1)
        self.state = SimpleNamespace(global_step=0, epoch=None, max_steps=self.args.max_steps)

    def add_callback(self, callback: Any) -> None:
        """Nothing is logged."""


@contextmanager
def generating(trainer: Any) -> Iterator[None]:
    """It is in the middle of a batch, whose rows it does not show."""
    with trl.own_batch(trainer, []), trl.outermost_call("generate and score", trainer):
        yield


def call_as_025(recorded: Callable[..., Any], prompts: list[Any], processing_class: Any = None, **args: Any) -> Any:
    """Call it with prompts, the trainer's arguments, of which some are given, and the tokenizer; return the result."""
    trainer = StandInTrainer(processing_class, **args)
    with generating(trainer):
        return recorded(prompts, trainer.args, trainer.processing_class)
