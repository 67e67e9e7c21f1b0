"""How TRL calls a rollout function, through its ages: all that differs between them, in one file.

    trl             called with                        each prompt comes                      completions of it
    0.29.1 and on   (prompts, trainer)                 num_generations times, this rank's     one each time
    0.28, 0.29.0    (prompts, trainer), colocated      num_generations times, this rank's     one each time
                    (prompts, trainer), vLLM's server  num_generations times, all ranks'      one each time
    0.26, 0.27      (prompts, trainer), colocated      num_generations times, this rank's     one each time
                    (prompts, trainer), vLLM's server  once, all ranks'                       num_generations
    0.25            (prompts, args, processing_class)  once, all ranks'                       num_generations

Where a prompt comes once, `prompt_ids` has one entry for each prompt, all else one for each completion. Where the
prompts are all ranks', the main process alone makes the call. Before 0.29.1 prompts are strings, the template applied,
and without vLLM the function is not called at all.
"""

import functools
import importlib.metadata
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

_ONE_CONTRACT = (0, 29, 1)
_REPEATED_PROMPTS = (0, 28, 0)


class AbsentTrainer:
    """Stands for the trainer of a call that shows none: of the age of `(prompts, args, processing_class)`, made by
    something else than a trainer. What it knows is in the arguments; each call counts as a step of its own.
    """

    def __init__(self, args: Any, processing_class: Any) -> None:
        self._args = _weakly(args)
        self.processing_class = processing_class
        self.num_generations = int(args.num_generations)
        self.model = None
        self.accelerator = SimpleNamespace(process_index=0, num_processes=1)
        self.state = SimpleNamespace(global_step=-1, epoch=None, max_steps=args.max_steps)

    @property
    def args(self) -> Any:
        """The arguments, as long as they live."""
        return self._args()


_absent: dict[int, AbsentTrainer] = {}  # by id of their arguments, as long as those live


@dataclass(frozen=True)
class Asked:
    """One call of a rollout function.

    Attributes:
        trainer: the trainer, or an `AbsentTrainer`.
        prompts: (N) one for each completion that is wanted.
        copies: completions wanted for each prompt that was handed over.
    """

    trainer: Any
    prompts: list[Any]
    copies: int

    def with_each_prompts_ids(self, output: Any) -> Any:
        """What the function returned, with one entry of `prompt_ids` for each completion, as the trainer makes it."""
        if self.copies == 1 or not isinstance(output, Mapping) or not isinstance(output.get("prompt_ids"), Sequence):
            return output
        repeated = [ids for ids in output["prompt_ids"] for _ in range(self.copies)]
        return {**output, "prompt_ids": repeated[: len(self.prompts)]}


def asked(args: Sequence[Any], kwargs: Mapping[str, Any], generating: Mapping[Any, int]) -> Asked:
    """Reads the arguments of a call.

    Args:
        args: of the call.
        kwargs: of the call.
        generating: the trainers that are in the middle of a batch, and how many rows of it this process has.

    Raises:
        AttributeError, IndexError, KeyError: they are of none of the shapes above.
    """
    prompts = args[0] if args else kwargs["prompts"]
    if len(args) > 2 or "processing_class" in kwargs:
        given = args[1] if len(args) > 1 else kwargs["args"]
        processing_class = args[2] if len(args) > 2 else kwargs["processing_class"]
        trainer = _trainer_of(given, generating) or _absent_trainer(given, processing_class)
        once = True
    else:
        trainer = args[1] if len(args) > 1 else kwargs["trainer"]
        once = only_main_calls(trainer) and _trl() < _REPEATED_PROMPTS
    copies = _copies(len(prompts), trainer, generating.get(trainer, 0)) if once else 1
    return Asked(trainer, [prompt for prompt in prompts for _ in range(copies)], copies)


def only_main_calls(trainer: Any) -> bool:
    """Whether the main process calls the rollout function for all ranks: none may then wait for another in it."""
    return _trl() < _ONE_CONTRACT and bool(trainer.use_vllm) and trainer.vllm_mode == "server"


def _trainer_of(args: Any, generating: Mapping[Any, int]) -> Any:
    """The trainer with these arguments; the only one, where somebody handed over others; None where none is known."""
    trainers = [trainer for trainer in generating if trainer.args is args] or list(generating)
    return trainers[0] if len(trainers) == 1 else None


def _absent_trainer(args: Any, processing_class: Any) -> AbsentTrainer:
    trainer = _absent.get(id(args))
    if trainer is None:
        trainer = _absent[id(args)] = AbsentTrainer(args, processing_class)
        with suppress(TypeError):  # there are no references to it: it is kept
            weakref.finalize(args, _absent.pop, id(args), None).atexit = False
    trainer.state.global_step += 1
    return trainer


def _weakly(args: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(args)
    except TypeError:  # of a class with slots and none for references
        return lambda: args


def _copies(prompts: int, trainer: Any, rows: int) -> int:
    """Completions wanted for each of the prompts, from how many rows all ranks have together; where that is not known,
    as the trainer is set.
    """
    everyones = rows * int(trainer.accelerator.num_processes)
    return everyones // prompts if prompts and everyones and everyones % prompts == 0 else int(trainer.num_generations)


@functools.cache
def _trl() -> tuple[int, ...]:
    """Its version; as of today's contract where it is not installed."""
    try:
        numbers = importlib.metadata.version("trl").split(".")[:3]
    except importlib.metadata.PackageNotFoundError:
        return _ONE_CONTRACT
    return tuple(int(number) if number.isdigit() else 0 for number in numbers)
