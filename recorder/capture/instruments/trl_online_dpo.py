"""Follows TRL's OnlineDPOTrainer, which has no advantages: it compares the two completions of each prompt.

What is relied on (trl 1.16), and what is lost without it:
    trainer.training_step(model, inputs)         when a batch begins, and its columns: nothing is recorded without it
    trainer._generate, ._generate_vllm -> (prompt_ids, prompt_mask, completion_ids, completion_mask, ...)    tokens
    trainer._calculate_rewards_from_functions(...)    rewards are read from what reward functions and models return

All first completions of the batch's prompts come before all second ones. Rows are recorded prompt by prompt.
"""

from typing import Any

import numpy as np

from logs_ui.recorder.capture.instruments import trl
from logs_ui.recorder.capture.instruments.patch import Method, patch, patches
from logs_ui.recorder.capture.instruments.trl_shapes import tokens_of_scored
from logs_ui.recorder.guard import guard

_REWARDS = "_calculate_rewards_from_functions"
_COPIES = 2


def compares_pairs(trainer: object) -> bool:
    """Return True if it is an OnlineDPOTrainer, or a copy or subclass of it."""
    return hasattr(trainer, _REWARDS)


def patch_classes(trainer: Any) -> None:
    """Patch the class that defines the trainer's rewards, and those that derive from it."""
    for owner in type(trainer).__mro__:
        if hasattr(owner, _REWARDS):
            patches.method(owner, "training_step", _with_batch)
            patches.method(owner, "_generate", _with_tokens)
            patches.method(owner, "_generate_vllm", _with_tokens)
            patches.method(owner, _REWARDS, _with_rewards)


@patch
def _with_batch(step: Method, trainer: Any, /, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Open a row for each completion of the step's batch."""
    with trl.outermost_call("step", trainer) as outermost:
        if not outermost:
            return step(trainer, model, inputs, *args, **kwargs)
        rows: list[Any] = []
        with guard("opening the rows of a batch"):
            # The columns of the data set are the lists that have a value for each prompt; other inputs are left out.
            list_inputs = (values for values in inputs.items() if isinstance(values[1], list | tuple))
            columns = {name: values for name, values in list_inputs if len(values) == len(inputs["prompt"])}
            rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        with trl.own_batch(trainer, [row for row in rows for _ in range(_COPIES)]):
            return step(trainer, model, inputs, *args, **kwargs)


@patch
def _with_tokens(generate: Method, trainer: Any, /, *args: Any, **kwargs: Any) -> Any:
    generated = generate(trainer, *args, **kwargs)
    with guard("recording the tokens of a batch"):
        names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
        tokens = tokens_of_scored(dict(zip(names, generated, strict=False)))
        trl.generated(trainer, {name: ids and _by_prompt(ids) for name, ids in tokens.items()})
    return generated


@patch
def _with_rewards(calculate: Method, trainer: Any, /, *args: Any, **kwargs: Any) -> Any:
    returned: dict[int, Any] = {}
    with trl.watched(trainer, returned), trl.models_watched(trainer, returned):
        totals = calculate(trainer, *args, **kwargs)
    with guard("recording rewards"):
        trl.handed(trainer, args[1] if len(args) > 1 else kwargs["completions"])
        trl.rewards_returned(trainer, {index: _by_prompt(values) for index, values in returned.items()})
    return totals


def _by_prompt(values: Any) -> list[Any]:
    """Return the values of all first and then all second completions in the order of the prompts."""
    # The indices are (2, P), first and second completions; transposed, the two of a prompt follow each other.
    return [values[i] for i in np.arange(len(values)).reshape(_COPIES, -1).T.ravel()]
