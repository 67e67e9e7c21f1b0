"""Follows TRL's GRPOTrainer. The other files `trl_*.py` list what else the recorder relies on in TRL.

What is relied on (trl 1.16), and what is lost without it:
    trainer._generate_and_score_completions(inputs) -> {"advantages": ...}   dataset columns before, advantages after
    trainer._calculate_rewards(inputs, prompts, completions, ids) -> (rows of all ranks, functions)   rewards
    trainer.reward_func_names, .reward_weights                                names and weights of those
    trainer.state, .model.training, .accelerator, .num_generations(_eval)     step, mode, rank, group size
    trainer.train()                                                           that training ended with an exception
Where a trainer rolls out itself (GRPOTrainer 0.18.2 to 1.16, RLOOTrainer, copies of them such as Unsloth's):
    trainer._generate_and_score_completions(inputs)   when a batch begins: nothing is recorded without it
    trainer._generate(prompts) -> (prompt_ids, completion_ids, ...)   tokens; before 0.24 they are read from the result
                                                      of `_generate_and_score_completions`
    trainer._calculate_rewards(...)                   when `get_reward` was called: rows end with the batch; before 0.20
                                                      rewards are read from what the reward functions return
    trainer.environments                              which environment plays which row: calls are unattributed
    trainer.environment_factories                     that they are recorded (from 1.8 on; before, `environments`)

A subclass may override these and call what it overrides: each class is patched, and the result of the outermost call is
read, since the trainer goes on with it. Classes other than GRPOTrainer are patched only for trainers that have a
rollout function, or whose batches are recorded. Patched methods pass their arguments on unchanged, and read the result
only for a trainer with a listener.
"""

import inspect
import math
import os
import pickle
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, cast

import numpy as np
import wrapt
from numpy.typing import NDArray

from logs_ui.recorder.capture.calls import Collector, collecting
from logs_ui.recorder.capture.environment_call import recorded_function
from logs_ui.recorder.capture.instruments import trl_shapes
from logs_ui.recorder.capture.instruments.patch import Method, patch, patches
from logs_ui.recorder.capture.instruments.trl_callback import reporting_callback
from logs_ui.recorder.capture.instruments.trl_parts import distinct, weights_of
from logs_ui.recorder.capture.instruments.trl_tools import recorded_tools
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.guard import guard
from logs_ui.recorder.snapshot import column
from logs_ui.recorder.vocabulary import Mode


@dataclass(frozen=True)
class Batch:
    """A batch that a trainer is about to roll out: its number, which all ranks count alike, whatever a rollout function
    does on one of them, and this process's (N) dataset rows.
    """

    number: int
    rows: list[dict[str, Any]]


NO_PROMPT = [{"role": "user", "content": ""}]
"""TRL's prompt if the dataset has none: the environments' resets supply it."""

_door: Any = None  # the `_Door` of `trainer_batches.py`; None until it is needed
_at_start: list[Callable[[Any], None]] = []
_shared: Counter[str] = Counter()  # values that ranks shared, by the trainer's output folder
_WAIT_SECONDS = 60
NOT_ON_RANK_0 = "rank 0 does not record this training, so this rank cannot. Record it on every rank"
_followed: "weakref.WeakKeyDictionary[Any, Followed]" = weakref.WeakKeyDictionary()


@dataclass
class Followed:
    """Holds what is remembered of a trainer from one of its calls to the next.

    Attributes:
        listener: The `trainer_run.Recording` that its calls are reported to; None if it has none.
        callback: The callback of that listener; None without one.
        batch: The batch that it rolls out, or rolled out last; None before the first.
        batches: Number of its batches so far.
        running: The calls that it is inside of: "generate and score", "generate", "score", and "step", a step of
            training, which may begin while the model is still in the mode of an evaluation.
        samples_again: True if an override makes several batches in this one call.
    """

    listener: Any = None
    callback: Any = None
    batch: Batch | None = None
    batches: int = 0
    running: set[str] = field(default_factory=set)
    samples_again: bool = False

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return the dataset rows of the current batch; none before the first."""
        return [] if self.batch is None else self.batch.rows


def _follow(trainer: Any) -> Followed:
    return _followed.setdefault(trainer, Followed())


def install() -> None:
    """Patch the trainers, now or when they are imported."""
    patches.when_imported("trl.trainer.grpo_trainer", lambda module: _patch(module.GRPOTrainer))
    patches.when_imported("transformers.trainer", lambda module: _patch_loops(module.Trainer))


def generating() -> dict[Any, int]:
    """Return the trainers that are in the middle of a batch, with the number of this process's rows."""
    return {trainer: len(_follow(trainer).rows) for trainer in _in_a_batch()}


def _in_a_batch() -> list[Any]:
    return [trainer for trainer, state in tuple(_followed.items()) if "generate and score" in state.running]


def watch_batches(door: Any) -> None:
    """Report all batches that no rollout function makes to `door`, a `trainer_batches._Door`, from now on."""
    global _door  # noqa: PLW0603 - the process has one
    _door = door


def at_start(prepare: Callable[[Any], None]) -> None:
    """Call `prepare(trainer)` whenever a trainer begins to train or to evaluate, from now on."""
    if prepare not in _at_start:
        _at_start.append(prepare)


def scoring(trainer: Any) -> Any:
    """Return the strand in which the trainer's environments are asked for rewards; None outside of that."""
    return None if _door is None else _door.scoring(trainer)


def environments(trainer: Any) -> list[Any]:
    """Return the environments of the current batch, by row. Before TRL 1.8 all batches have the same."""
    return list(getattr(trainer, "environments", None) or ())


def place_of(environment: Any) -> tuple[Any, int | None] | None:
    """Return the trainer in whose batch the environment plays, and its row (None if several); None if in no batch."""
    for trainer in _in_a_batch():
        rows = [row for row, other in enumerate(environments(trainer)) if other is environment]
        if rows:
            return trainer, rows[0] if len(rows) == 1 else None
    return None


def listener_of(state: Any) -> Any:
    """Return the listener of the trainer with this `state`, which callbacks get; None without one."""
    heard = ((trainer, followed.listener) for trainer, followed in tuple(_followed.items()) if followed.listener)
    return next((listener for trainer, listener in heard if trainer.state is state), None)


def attach(trainer: Any, listener: Any) -> None:
    """Report what the trainer does to the listener, a `trainer_run.Recording`, and no longer to the one before."""
    followed = _follow(trainer)
    followed.listener = listener
    patch_classes(trainer)
    if followed.callback is not None:
        trainer.remove_callback(followed.callback)
    followed.callback = reporting_callback(listener.logged, listener.train_ended)
    trainer.add_callback(followed.callback)


def current_batch(trainer: Any, count: int) -> Batch | None:
    """Return the batch that the current call's prompts come from; None if the trainer did not show it."""
    batch = _follow(trainer).batch
    return batch if batch is not None and len(batch.rows) == count else None


def position(trainer: Any, count: int) -> dict[str, Any]:
    """Return the fields of a `RolloutCall` that say where a trainer is when it calls a rollout function with `count`
    prompts. `step` is the one that TRL logs the batch under: in training the next one, in an evaluation the last one.
    """
    training = bool(trainer.model.training) or "step" in _follow(trainer).running
    process = int(trainer.accelerator.process_index)
    step = int(trainer.state.global_step)
    generations = trainer.num_generations if training else getattr(trainer, "num_generations_eval", None)
    return {
        "mode": Mode.TRAIN if training else Mode.EVAL,
        "step": step + 1 if training else step,
        "policy_step": step,
        "epoch": trainer.state.epoch,
        "process": process,
        "first": process * count,  # global index of this process's first row
        "generations": int(generations or trainer.num_generations),
    }


def run_columns(trainer: Any) -> dict[str, Any]:
    """Return the columns of the run that the trainer knows."""
    config = getattr(trainer.model, "config", None)
    return {
        "model": getattr(config, "_name_or_path", None) or type(trainer.model).__name__,
        **columns_of_arguments(trainer.args, trainer.state.max_steps, trainer.num_generations),
    }


def columns_of_arguments(args: Any, max_steps: int, num_generations: int) -> dict[str, Any]:
    """Return the columns of the run that a trainer's arguments show."""
    columns = {
        "max_steps": int(max_steps) if max_steps > 0 else None,
        "num_generations": int(num_generations),
        "output_dir": output_folder(args),
    }
    # Without a run_name of the user transformers sets it to the output folder.
    is_named = args.run_name and args.run_name != args.output_dir
    return columns | ({"name": column(str(args.run_name))} if is_named else {})


def output_folder(args: Any) -> str:
    """Return the absolute path of the folder for checkpoints, of a trainer's arguments."""
    return os.path.abspath(str(args.output_dir))  # noqa: PTH100 - links are not followed: it is a name


def shared_from_first(trainer: Any, value: Any) -> Any:
    """Return rank 0's value on every rank, unless only the main one calls rollout functions. It is no collective: a
    rank that does not record makes no other wait for longer than a minute. Raise LogsUIError if rank 0 does not
    record.
    """
    if trainer.accelerator.num_processes == 1 or trl_shapes.only_main_calls(trainer):
        return value
    from torch.distributed.distributed_c10d import _get_default_store

    folder = output_folder(trainer.args)
    # All ranks make these calls in the same order, so the number of the call gives them the same key.
    store, key = _get_default_store(), f"logs-ui/{folder}/{_shared[folder]}"
    _shared[folder] += 1
    if trainer.accelerator.process_index == 0:
        store.set(key, pickle.dumps(value))  # type: ignore[arg-type]  # bytes are taken as they are
        return value
    try:
        store.wait([key], timedelta(seconds=_WAIT_SECONDS))
    except RuntimeError as error:
        raise LogsUIError(NOT_ON_RANK_0) from error
    return pickle.loads(store.get(key))  # noqa: S301 - of this training's rank 0


def _patch_loops(owner: type) -> None:
    patches.method(owner, "train", _with_end)
    patches.method(owner, "evaluate", _with_its_classes)


def patch_classes(trainer: Any) -> None:
    """Patch the trainer's class, and those that it derives from."""
    for owner in type(trainer).__mro__:
        _patch(owner)


def _patch(owner: type) -> None:
    patches.method(owner, "_calculate_rewards", _with_rewards)
    patches.method(owner, "_generate_and_score_completions", _with_advantages)
    patches.method(owner, "_generate", _with_tokens)


@contextmanager
def outermost_call(call: str, trainer: Any) -> Iterator[bool]:
    """Yield False inside a call that an override makes of the method that it overrides, otherwise True. `call` is one
    of `Followed.running`.
    """
    running = _follow(trainer).running
    outermost = call not in running
    running.add(call)
    try:
        yield outermost
    finally:
        if outermost:
            running.discard(call)


def _prepare(trainer: Any) -> None:
    """Patch a subclass before its first batch, if its batches are recorded, or if it has a rollout function, which may
    call a recorded one. Not in its `__init__`, whose warnings would then name this file.
    """
    for prepare in _at_start:
        with guard("preparing to record a trainer"):
            prepare(trainer)
    with guard("preparing a trainer"):
        has_function = _follow(trainer).listener is not None or getattr(trainer, "rollout_func", None) is not None
        if has_function or (_door is not None and _door.records(trainer)):
            patch_classes(trainer)


@patch
def _with_its_classes(evaluate: Method, trainer: Any, /, *args: Any, **kwargs: Any) -> Any:
    _prepare(trainer)
    return evaluate(trainer, *args, **kwargs)


@patch
def _with_end(train: Method, trainer: Any, /, *args: Any, **kwargs: Any) -> Any:
    _prepare(trainer)
    try:
        return train(trainer, *args, **kwargs)
    except BaseException as error:
        listener = _follow(trainer).listener
        if listener is not None:
            with guard("recording that training was left by an exception"):
                listener.train_raised(error)
        raise


@patch
def _with_rewards(calculate: Method, trainer: Any, /, *args: Any, **kwargs: Any) -> Any:
    listener = _follow(trainer).listener
    if listener is None:
        return calculate(trainer, *args, **kwargs)
    with outermost_call("score", trainer) as outermost:
        if not outermost:
            return calculate(trainer, *args, **kwargs)
        returned: dict[int, Any] = {}
        calls = Collector(trainer.model)
        try:
            with collecting(calls), watched(trainer, returned, calls):
                gathered = calculate(trainer, *args, **kwargs)
            if _door is not None:
                with guard("recording that a batch was scored"):
                    _door.scored(trainer)
        finally:  # also if a reward function raised: its last calls show why
            with guard("recording what reward functions called"):
                completions = args[2] if len(args) > 2 else kwargs["completions"]
                listener.scored(calls, completions)
                handed(trainer, completions)
    with guard("recording rewards"):
        # The result has the rewards of all ranks; `rows` are those of this process.
        inputs = args[0] if args else kwargs["inputs"]
        first = trainer.accelerator.process_index * len(inputs)
        rows = slice(None) if trl_shapes.only_main_calls(trainer) else slice(first, first + len(inputs))
        values = gathered[rows].detach().cpu().numpy().astype(np.float64)
        _report_rewards(listener, trainer, values, returned, inputs)
    return gathered


def _report_rewards(
    listener: Any, trainer: Any, values: NDArray[np.float64], returned: dict[int, Any], inputs: Sequence[Any]
) -> None:
    declined = _declined(values.shape, returned)
    listener.rewards(values, declined, list(trainer.reward_func_names), weights_of(trainer), inputs)


@contextmanager
def watched(trainer: Any, returned: dict[int, Any], calls: Collector | None = None) -> Iterator[None]:
    """Collect what each reward function calls, and what it returns, by its index: TRL turns None into NaN."""
    functions = getattr(trainer, "reward_funcs", None)
    if not isinstance(functions, list):
        yield
        return
    watching: list[Any] = []
    with guard("preparing to read what reward functions return"):
        names = distinct(trainer.reward_func_names)
        watching = [
            _watching(function, i, returned, nullcontext if calls is None else partial(calls.running, name))
            for i, (function, name) in enumerate(zip(functions, names, strict=True))
        ]
        # The trainer takes its reward functions from this list, so the wrapped ones stand in their place for this call.
        trainer.reward_funcs = watching
    try:
        yield
    finally:
        if trainer.reward_funcs is watching:  # a reward function may have set others
            trainer.reward_funcs = functions


@contextmanager
def models_watched(trainer: Any, returned: dict[int, Any]) -> Iterator[None]:
    """Collect what each reward model returns, by its index, where the trainer shows only the sum of all rewards."""

    def came_back(index: int, _model: Any, _inputs: Any, output: Any) -> None:
        with guard("reading what a reward model returned"):
            # A reward model has one logit for each completion, which is its reward.
            returned[index] = output.logits[:, 0].tolist()

    with ExitStack() as hooks:
        with guard("preparing to read what reward models return"):
            for i, function in enumerate(trainer.reward_funcs):
                if hasattr(function, "register_forward_hook"):
                    hooks.callback(function.register_forward_hook(partial(came_back, i)).remove)
        yield


def _watching(
    function: Any, index: int, returned: dict[int, Any], running: Callable[[], AbstractContextManager[Any]]
) -> Any:
    """Wrap a reward function. A reward model never returns None, and is not wrapped."""
    # An empty sequence says that it declined no row (see `_declined`).
    if hasattr(function, "forward"):
        returned[index] = ()
        return function

    def came_back(values: Any) -> Any:
        returned[index] = values
        return values

    @contextmanager
    def around(*_: Any, **__: Any) -> Iterator[Callable[[Any], Any]]:
        with running():
            yield came_back

    recorded = recorded_function(function, around)
    return (_WatchedAsync if inspect.iscoroutinefunction(recorded) else _Watched)(function, recorded)


class _Watched(wrapt.ObjectProxy):  # type: ignore[type-arg]
    """A reward function that is watched. Overrides may look at it, and pickle it: it is then the function itself."""

    def __init__(self, function: Any, recorded: Any) -> None:
        super().__init__(function)
        self._self_recorded = recorded

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._self_recorded(*args, **kwargs)

    def __reduce_ex__(self, _: Any) -> Any:
        # Loading the pickle calls `cast(object, function)`, which returns the function: no wrapper is in the pickle.
        return cast, (object, self.__wrapped__)


class _WatchedAsync(_Watched):
    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return await self._self_recorded(*args, **kwargs)


def _declined(shape: tuple[int, ...], returned: dict[int, Any]) -> NDArray[np.bool_]:
    """Return (N, F) True where a function returned None; for values that cannot be read twice all True."""
    declined = np.zeros(shape, bool)
    for index in range(shape[1]):
        values = returned.get(index)
        if values is not None and hasattr(values, "__getitem__"):
            declined[: len(values), index] = [value is None for value in values]
        else:
            declined[:, index] = True
    return declined


@patch
def _with_advantages(generate_and_score: Method, trainer: Any, /, *args: Any, **kwargs: Any) -> Any:
    with outermost_call("generate and score", trainer) as outermost:
        if not outermost:
            return _sampled_again(generate_and_score, trainer, *args, **kwargs)
        returned: dict[int, Any] = {}
        calls: Collector | None = None
        with own_batch(trainer, _rows_of(*args, **kwargs)), ExitStack() as inside:
            if not hasattr(trainer, "_calculate_rewards"):  # before trl 0.20 rewards are calculated right here
                calls = Collector(trainer.model)
                inside.enter_context(watched(trainer, returned, calls))
                inside.enter_context(models_watched(trainer, returned))
            scored = generate_and_score(trainer, *args, **kwargs)
            if _door is not None and _door.awaits_tokens(trainer):  # before trl 0.24
                with guard("recording the tokens of a batch"):
                    generated(trainer, trl_shapes.tokens_of_scored(scored))
    followed = _follow(trainer)
    # Before trl 0.20 no method shows the completions: only their number is known.
    if followed.listener is not None and calls is not None:
        with guard("recording what a batch was scored with"):
            followed.listener.scored(calls, [""] * len(followed.rows))
            handed(trainer, [None] * len(followed.rows))
            rewards_returned(trainer, returned)
    if followed.listener is not None and not followed.samples_again:
        _report_advantages(followed.listener, scored)
    followed.samples_again = False
    return scored


def _sampled_again(generate_and_score: Method, trainer: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call what an override overrides. If it does so again, such as for dynamic sampling, each further call is a batch
    of its own, and the advantages that the override returns are not recorded: it may have mixed the batches.
    """
    if _door is None or not _door.has_tokens(trainer):
        return generate_and_score(trainer, *args, **kwargs)
    followed = _follow(trainer)
    followed.samples_again = True
    with own_batch(trainer, _rows_of(*args, **kwargs)):
        scored = generate_and_score(trainer, *args, **kwargs)
    if followed.listener is not None:
        _report_advantages(followed.listener, scored)
    return scored


def _report_advantages(listener: Any, scored: Mapping[str, Any]) -> None:
    with guard("recording advantages"):
        listener.advantages(scored["advantages"].detach().cpu().numpy().astype(np.float64))


def handed(trainer: Any, completions: Any) -> None:
    """Report what reward functions are handed, in any order."""
    listener = _follow(trainer).listener
    if listener is not None:
        listener.handed(completions, are_parsed=trl_shapes.parses_answers(trainer))


def rewards_returned(trainer: Any, returned: dict[int, Any]) -> None:
    """Report rewards of the current batch as its reward functions `returned` them, if that is known of each."""
    listener = _follow(trainer).listener
    rows = _follow(trainer).rows
    if listener is not None and returned and all(len(values) == len(rows) for values in returned.values()):
        by_function = [[math.nan if reward is None else reward for reward in returned[i]] for i in sorted(returned)]
        values = np.array(by_function, np.float32).T.astype(np.float64)  # trl's tensor has 32 bits
        _report_rewards(listener, trainer, values, returned, rows)


def _rows_of(inputs: Any = None, *_: Any, **__: Any) -> list[Any]:
    """Return the dataset rows that a trainer's method is called with; none if they are no rows."""
    is_rows = isinstance(inputs, Sequence) and all(isinstance(row, Mapping) for row in inputs)
    return list(inputs) if is_rows else []


def own_batch(trainer: Any, rows: list[Any]) -> AbstractContextManager[None]:
    """Count the batch, and open its rows at the door unless a rollout function makes it, which records it itself."""
    followed = _follow(trainer)
    followed.batch = Batch(followed.batches, rows)
    followed.batches += 1
    if _door is None or not rows or getattr(trainer, "rollout_func", None) is not None:
        return nullcontext()
    opened: AbstractContextManager[None] = _door.batch(trainer, [row.get("prompt", NO_PROMPT) for row in rows])
    return opened


def generated(trainer: Any, tokens: dict[str, Any], prompts: list[Any] | None = None) -> None:
    """Report the tokens of the current batch to the door, and the prompts unless they are the dataset's."""
    if _door is not None and _door.awaits_tokens(trainer):
        _door.generated(trainer, prompts, tokens)


@patch
def _with_tokens(generate: Method, trainer: Any, /, *args: Any, **kwargs: Any) -> Any:
    if _door is None or not _door.awaits_tokens(trainer):
        return generate(trainer, *args, **kwargs)
    with outermost_call("generate", trainer) as outermost, recorded_tools(trainer):
        result = generate(trainer, *args, **kwargs)
    if outermost:
        with guard("recording the tokens of a batch"):
            tokens = trl_shapes.tokens_of_generated(result)
            generated(trainer, tokens, args[0] if args else kwargs["prompts"])
    return result
