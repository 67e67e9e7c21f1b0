"""`record_environment()` records environments that TRL itself plays, by `GRPOTrainer(environment_factory=...)`.

TRL finds an environment's tools in its class, and compares `get_reward` by exact type. So each class gets one subclass
of the same name, whose `reset`, `get_reward` and tools are recorded, and the `__class__` of each environment that a
factory returns is set to it. The objects themselves are made by the user's code alone.
"""

import functools
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, Unpack, cast, overload

from logs_ui.recorder.api.options import RecordOptions, checked_options, takes_record_options
from logs_ui.recorder.api.trainer_run import Recording, Recordings
from logs_ui.recorder.capture.calls import collecting
from logs_ui.recorder.capture.environment_call import method_call, recorded_function
from logs_ui.recorder.capture.instruments import install, trl
from logs_ui.recorder.capture.instruments.quiet_subclass import is_quiet_subclass, quiet_subclass
from logs_ui.recorder.capture.strands import Strand, current_strand
from logs_ui.recorder.guard import guard
from logs_ui.recorder.rows.rollout_call import OpenCall
from logs_ui.recorder.rows.task_names import Task
from logs_ui.recorder.snapshot import name as shortened

E = TypeVar("E")


@overload
def record_environment(
    factory: Mapping[str, Callable[[], E]], /, *, task: Task | None = None, **options: Unpack[RecordOptions]
) -> dict[str, Callable[[], E]]: ...
@overload
def record_environment(
    factory: Callable[[], E], /, *, task: Task | None = None, **options: Unpack[RecordOptions]
) -> Callable[[], E]: ...
@takes_record_options
def record_environment(factory: Any, /, *, task: Task | None = None, **options: Unpack[RecordOptions]) -> Any:
    """Records every rollout that TRL makes in an environment: resets, tool calls, `get_reward`, and the model's tokens.

    The environments that TRL gets are those that the factory makes, except for their exact type: `isinstance` holds,
    and names, signatures, docstrings, results and exceptions are the same. A failure of the recorder never reaches the
    training: it is logged once, and counted on the run.

    Args:
        factory: The value of `GRPOTrainer(environment_factory=...)`: a class, another function that makes
            environments, or a dict of such functions by name.
        task: Names the task of each rollout; see `record()`.
        **options: The options in `RecordOptions`. The default `eval_name` of a dict joins the names by "+".

    Returns:
        The value to pass to the trainer: a factory, or a dict of factories.

    Raises:
        DatabaseError: `db` is a URL of a database that is not supported.
        SettingsError: `diagnosis` names an unknown diagnostic, or a threshold is out of range.
        TypeError: `factory` is neither a function nor a dict of functions, `diagnosis` is not a `Settings`, or an
            option is unknown.

    Examples:
        ```python
        from trl import GRPOConfig, GRPOTrainer

        from logs_ui.recorder import record_environment

        trainer = GRPOTrainer(
            model,
            reward_funcs=[solved],
            args=GRPOConfig(...),
            train_dataset=dataset,
            environment_factory=record_environment(Game, eval_name="game"),  # or {"game": Game, "maze": Maze}
        )
        trainer.train()
        ```

        The trainer gets the factory's own environments:

        >>> from logs_ui.recorder import record_environment
        >>> isinstance(record_environment(Game, db="runs.db")(), Game)
        True
    """
    several = isinstance(factory, Mapping)
    makers = dict(factory) if several else {None: factory}
    for maker in makers.values():
        if not callable(maker):
            raise TypeError(
                "record_environment() takes a class, a function that makes environments, or a dict of them, "
                f"not a {type(maker).__name__}"
            )
    checked = checked_options(record_environment, options, offers_tools=True)
    plain = {name: maker.make if isinstance(maker, _Factory) else maker for name, maker in makers.items()}
    names = (str(name or getattr(maker, "__name__", type(maker).__name__)) for name, maker in plain.items())
    eval_name = shortened(checked.eval_name or "+".join(dict.fromkeys(names)))
    recordings = Recordings(replace(checked, eval_name=eval_name, task=task))
    install()
    trl.watch_environments(_door)
    factories = {name: _Factory(maker, recordings, name) for name, maker in plain.items()}
    return factories if several else factories[None]


class _Factory:
    """Makes recorded environments. A copy that is pickled to another process makes unrecorded ones there."""

    def __init__(self, make: Callable[[], Any], recordings: Recordings, key: str | None) -> None:
        functools.update_wrapper(self, make, updated=())
        self.make = make
        self.key = key  # in the dict of factories; None if it is the only one
        self.recordings = recordings
        self._made: set[int] = set()  # ids of the environments that are alive
        _factories.add(self)

    def __call__(self) -> Any:
        environment = self.make()
        kind: type = type(environment)
        with suppress(TypeError):  # a class with __slots__ may lack __weakref__
            # Before TRL 1.8 a trainer keeps only its environments, and not their factory: it is found by these ids. The
            # bound method keeps the factory alive for as long as one of its environments lives.
            weakref.finalize(environment, self._forget, id(environment))
            self._made.add(id(environment))
        with guard("preparing to record an environment"):
            # object's own __setattr__: a user's class may forbid it.
            object.__setattr__(environment, "__class__", recorded_class(kind))
        return environment

    def __reduce__(self) -> Any:
        return cast, (object, self.make)  # which returns `make` itself

    def has_made(self, environment: Any) -> bool:
        """Return True if this factory made the environment."""
        return id(environment) in self._made

    def _forget(self, number: int) -> None:
        self._made.discard(number)


_factories: "weakref.WeakSet[_Factory]" = weakref.WeakSet()


def _factory_of(trainer: Any) -> _Factory | None:
    """Return the first factory whose environments the trainer plays in; None without a recorded one."""
    in_trainer = [factory for factory in trl.environment_factories(trainer) if isinstance(factory, _Factory)]
    first = trl.environments(trainer)[:1]
    return next(iter(in_trainer or [factory for factory in _factories if any(map(factory.has_made, first))]), None)


def _environment_name(environment: Any) -> str:
    """Return the key of the environment's factory; the name of its class if the factory has none."""
    keys = (factory.key for factory in tuple(_factories) if factory.key is not None and factory.has_made(environment))
    return str(next(keys, type(environment).__name__))


@functools.cache
def recorded_class(kind: type) -> type:
    """Return a subclass of the same name whose `reset`, `get_reward` and tools are recorded, or raise a TypeError."""
    if is_quiet_subclass(kind):
        return kind
    functions = inspect.getmembers(kind, inspect.isfunction)
    members = {name: _recorded(kind, name, function) for name, function in functions if not name.startswith("_")}
    return quiet_subclass(kind, members)


def _recorded(kind: type, name: str, function: Callable[..., Any]) -> Any:
    if isinstance(inspect.getattr_static(kind, name), staticmethod):
        return _StaticTool(name, function)
    return recorded_function(function, lambda self, /, *args, **kwargs: method_call(self, name, args, kwargs, _strand))


class _StaticTool:
    """A static method whose calls are recorded with their environment. TRL sees a plain function, as before."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        self._function = function

    def __get__(self, environment: Any, _: type | None = None) -> Callable[..., Any]:
        if environment is None:
            return self._function
        return recorded_function(
            self._function, lambda *args, **kwargs: method_call(environment, self._name, args, kwargs, _strand)
        )


def _strand(environment: Any, kind: str) -> Strand | None:
    """Return the strand of a call; None if it is not part of a rollout, such as a call by a reward function."""
    here = current_strand()
    if here is None and kind != "reward":
        return None
    trainer, row = trl.place_of(environment) or (None, None)
    here = here or _door.scoring(trainer)
    return here if here is None or row is None else here.tree.child(here, row=row)


@dataclass(eq=False)
class _Batch:
    """A batch that TRL rolls out, from its first reset to its last reward.

    Attributes:
        generating: Context managers that stay open until all tokens are there.
        output: The tokens and masks, in the form that a rollout function returns; None until they are there.
    """

    trainer: Any
    recording: Recording
    call: OpenCall
    generating: ExitStack = field(default_factory=ExitStack)
    output: dict[str, Any] | None = None

    def generated(self, prompts: list[Any], output: dict[str, Any]) -> None:
        """Take the tokens. The rows end here, unless their environments have a `get_reward` that is called next."""
        self.generating.close()
        self.recording.prompted(self.call, prompts, self.trainer)
        # Copied: reward functions are given the same lists, and may change them.
        self.output = {key: rows and [list(row) for row in rows] for key, rows in output.items()}
        if any(hasattr(type(environment), "get_reward") for environment in trl.environments(self.trainer)):
            self.call.collector.tree.closed = False
        else:
            self.end()

    def scoring(self) -> Strand | None:
        """Return the strand in which `get_reward` is called; None before the tokens and after the end."""
        tree = self.call.collector.tree
        return tree.root if self.output is not None and tree.is_open else None

    def end(self, error: BaseException | None = None) -> None:
        """End the rows unless they have ended. An error that is raised after the tokens is not an error of the rows."""
        if self.call.settled:
            return
        self.call.collector.tree.closed = True
        if self.output is None:
            self.recording.failed(self.call, error or LookupError("This release of TRL does not show its tokens."))
        else:
            self.recording.returned(self.call, self.output | self._extras())

    def _extras(self) -> dict[str, list[Any]]:
        """Return environments and rewards under the names that a rollout function would return them by."""
        rewards = {
            call.strand.row: call.reward
            for call in self.call.calls.environment_calls
            if call.kind == "reward" and call.within is None and call.strand is not None
        }
        extras = {"environment": [_environment_name(environment) for environment in trl.environments(self.trainer)]}
        rows = range(len(self.call.prompts))
        return extras | ({"env_reward": [rewards.get(row) for row in rows]} if rewards else {})


class _Door:
    """Hears from the instrument of TRL of the batches whose rollouts TRL makes itself."""

    def __init__(self) -> None:
        self._batches: weakref.WeakKeyDictionary[Any, _Batch] = weakref.WeakKeyDictionary()

    @contextmanager
    def batch(self, trainer: Any, prompts: list[Any]) -> Iterator[None]:
        """Wraps all that a trainer does for a batch of prompts of the dataset: opens the rows if its environments are
        recorded, and at the end those that are still open end.
        """
        batch: _Batch | None = None
        with guard("opening the rows of a batch"):
            batch = self._opened(trainer, prompts)
        if batch is None:
            yield
            return
        error: BaseException | None = None
        try:
            with batch.generating:
                yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            del self._batches[trainer]
            with guard("ending the rows of a batch"):
                batch.end(error)

    def generated(self, trainer: Any, prompts: list[Any], output: dict[str, Any]) -> None:
        """Take the rollouts: the prompts after the environments were reset, and what a rollout function returns."""
        if trainer in self._batches:
            self._batches[trainer].generated(prompts, output)

    def scoring(self, trainer: Any) -> Strand | None:
        """Return the strand in which the trainer's environments are asked for rewards; None outside of that."""
        return self._batches[trainer].scoring() if trainer in self._batches else None

    def scored(self, trainer: Any) -> None:
        """Take that all reward functions have returned."""
        if trainer in self._batches:
            self._batches[trainer].end()

    def _opened(self, trainer: Any, prompts: list[Any]) -> _Batch | None:
        factory = _factory_of(trainer)
        if factory is None:
            return None
        recording = factory.recordings.of(trainer)
        batch = self._batches[trainer] = _Batch(trainer, recording, recording.open(prompts, trainer))
        batch.generating.enter_context(collecting(batch.call.collector))
        return batch


_door = _Door()
