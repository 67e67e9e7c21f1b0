"""`record_environment()`: environments that TRL itself plays, by `GRPOTrainer(environment_factory=...)`.

TRL finds an environment's tools in its class, and matches `get_reward` by exact type. So each class gets one subclass
under its own name, whose `reset`, `get_reward` and tools are recorded, and what a factory returns is made an instance
of it: whatever the factory is, and however its objects come to be, they are made by the user's code alone.
"""

import functools
import inspect
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, overload

from logs_ui.recorder.api.options import settings_to_keep
from logs_ui.recorder.api.trainer_run import Recording, Recordings, Wanted
from logs_ui.recorder.capture.calls import collecting
from logs_ui.recorder.capture.environment_call import Answer, RecordedCall
from logs_ui.recorder.capture.instruments import install, trl
from logs_ui.recorder.capture.instruments.quiet_subclass import is_quiet_subclass, quiet_subclass
from logs_ui.recorder.capture.strands import Strand, current_strand, within
from logs_ui.recorder.delivery.writer import writer_for
from logs_ui.recorder.guard import guard
from logs_ui.recorder.rows.rollout_call import Edit, RolloutCall, RowOptions
from logs_ui.recorder.rows.task_names import Task
from logs_ui.recorder.settings import Settings
from logs_ui.recorder.snapshot import name as shortened
from logs_ui.recorder.storage.address import database_address

E = TypeVar("E")

_KINDS = {"reset": "reset", "get_reward": "reward"}


@overload
def record_environment(
    factory: Mapping[str, Callable[[], E]],
    /,
    *,
    eval_name: str | None = None,
    task: Task | None = None,
    edit: Edit | None = None,
    server_log: str | os.PathLike[str] | None = None,
    diagnosis: Settings | None = None,
    project: str | None = None,
    db: str | os.PathLike[str] | None = None,
) -> dict[str, Callable[[], E]]: ...
@overload
def record_environment(
    factory: Callable[[], E],
    /,
    *,
    eval_name: str | None = None,
    task: Task | None = None,
    edit: Edit | None = None,
    server_log: str | os.PathLike[str] | None = None,
    diagnosis: Settings | None = None,
    project: str | None = None,
    db: str | os.PathLike[str] | None = None,
) -> Callable[[], E]: ...
def record_environment(
    factory: Any,
    /,
    *,
    eval_name: str | None = None,
    task: Task | None = None,
    edit: Edit | None = None,
    server_log: str | os.PathLike[str] | None = None,
    diagnosis: Settings | None = None,
    project: str | None = None,
    db: str | os.PathLike[str] | None = None,
) -> Any:
    """Records every rollout that TRL makes in an environment: resets, tool calls, `get_reward`, and the model's tokens.

    TRL gets environments that are, but for their exact type, what the factory makes: `isinstance` holds, and names,
    signatures, docstrings, results and exceptions are the same. Nothing that goes wrong in the recorder reaches the
    training: it is logged once, and counted on the run.

    Args:
        factory: as `GRPOTrainer(environment_factory=...)` takes it: a class, another function that makes environments,
            or a dict of them by name.
        eval_name: what the rollouts are an evaluation of; the factory's name where it is None, those of a dict joined
            by "+".
        task: names a rollout's task: a column of the dataset, or a function of the dataset row. None takes the column
            `task` or `task_id`, else a hash of the prompt.
        edit: see `record()`.
        server_log: see `record()`.
        diagnosis: see `record()`.
        project: see `record()`.
        db: see `record()`.

    Returns:
        What to give to the trainer: a factory, or a dict of them.

    Raises:
        DatabaseError: `db` is a URL of a database that is not supported.
        SettingsError: see `record()`.
        TypeError: `factory` is neither a function nor a dict of them, or `diagnosis` is no Settings.
    """
    several = isinstance(factory, Mapping)
    makers = dict(factory) if several else {None: factory}
    for maker in makers.values():
        if not callable(maker):
            raise TypeError(
                "record_environment() takes a class, a function that makes environments, or a dict of them, "
                f"not a {type(maker).__name__}"
            )
    plain = {name: maker.make if isinstance(maker, _Factory) else maker for name, maker in makers.items()}
    known_as = eval_name or "+".join(dict.fromkeys(_name(name, maker) for name, maker in plain.items()))
    options = RowOptions(edit=edit, server_log=None if server_log is None else Path(server_log), offers_tools=True)
    wanted = Wanted(shortened(known_as), task, options, diagnosis=settings_to_keep(diagnosis), project=project)
    recordings = Recordings(writer_for(database_address(db)), wanted)
    install()
    trl.watch_environments(_door)
    factories = {name: _Factory(maker, recordings, name) for name, maker in plain.items()}
    return factories if several else factories[None]


def _name(name: str | None, maker: Callable[[], Any]) -> str:
    return str(name or getattr(maker, "__name__", type(maker).__name__))


class _Factory:
    """Makes recorded environments. Where it is sent to another process, they are made there unrecorded.

    Attributes:
        make: the user's.
        key: its own in the dict of factories; None where it is the only one.
    """

    def __init__(self, make: Callable[[], Any], recordings: Recordings, key: str | None) -> None:
        functools.update_wrapper(self, make, updated=())
        self.make = make
        self.key = key
        self.recordings = recordings
        self._made: set[int] = set()  # the ids of those that live
        _factories.add(self)

    def __call__(self) -> Any:
        environment = self.make()
        kind: type = type(environment)
        with suppress(TypeError):  # of a class with slots and none for references
            # Before TRL 1.8 a trainer keeps its environments alone: by this they keep their factory.
            weakref.finalize(environment, self._forget, id(environment))
            self._made.add(id(environment))
        with guard("preparing to record an environment"):
            # Not by a __setattr__ of the user's, which may forbid it.
            object.__setattr__(environment, "__class__", recorded_class(kind))
        return environment

    def __reduce__(self) -> Any:
        return _itself, (self.make,)

    def has_made(self, environment: Any) -> bool:
        """Whether it is one of its environments."""
        return id(environment) in self._made

    def _forget(self, number: int) -> None:
        self._made.discard(number)


def _itself(make: Callable[[], Any]) -> Callable[[], Any]:
    return make


_factories: "weakref.WeakSet[_Factory]" = weakref.WeakSet()


def _factory_of(trainer: Any) -> _Factory | None:
    """The first whose environments the trainer plays in."""
    own = [factory for factory in trl.environment_factories(trainer) if isinstance(factory, _Factory)]
    first = trl.environments(trainer)[:1]
    return next(iter(own or [factory for factory in _factories if any(map(factory.has_made, first))]), None)


def _called(environment: Any) -> str:
    """By the key of its factory; by its class where that has none."""
    keys = (factory.key for factory in tuple(_factories) if factory.key is not None and factory.has_made(environment))
    return str(next(keys, type(environment).__name__))


@functools.cache
def recorded_class(kind: type) -> type:
    """The class with `reset`, `get_reward` and all that TRL takes for tools recorded, under its own name.

    Raises:
        TypeError: it cannot be derived from.
    """
    if is_quiet_subclass(kind):
        return kind
    functions = inspect.getmembers(kind, inspect.isfunction)
    members = {name: _recorded(kind, name, function) for name, function in functions if not name.startswith("_")}
    return quiet_subclass(kind, members)


def _recorded(kind: type, name: str, function: Callable[..., Any]) -> Any:
    if isinstance(inspect.getattr_static(kind, name), staticmethod):
        return _StaticTool(name, function)
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            with _call_of(self, name, args, kwargs) as came_back:
                return came_back(await function(self, *args, **kwargs))

        return call_async

    @functools.wraps(function)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        with _call_of(self, name, args, kwargs) as came_back:
            return came_back(function(self, *args, **kwargs))

    return call


class _StaticTool:
    """A static method that knows whose call it is: to TRL a plain function, of the class and of each instance."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        self._function = function

    def __get__(self, environment: Any, _: type | None = None) -> Callable[..., Any]:
        if environment is None:
            return self._function
        name, function = self._name, self._function
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*args: Any, **kwargs: Any) -> Any:
                with _call_of(environment, name, args, kwargs) as came_back:
                    return came_back(await function(*args, **kwargs))

            return call_async

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with _call_of(environment, name, args, kwargs) as came_back:
                return came_back(function(*args, **kwargs))

        return call


@contextmanager
def _call_of(
    environment: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[Callable[[Any], Any]]:
    """Records a call of an environment's method, in the scope of the row that the environment plays. Environment calls
    that are made inside are parts of it.
    """
    kind = _KINDS.get(name, "tool")
    scope: AbstractContextManager[Any] = nullcontext()
    with guard("finding the row of an environment"):
        strand = _strand(environment, kind)
        scope = nullcontext() if strand is None else within(strand)

    def sent() -> Any:
        given = {"args": list(args), **kwargs} if args else kwargs  # TRL gives all by name
        return given if kind == "reset" else {"name": name, "arguments": given}

    def read(result: Any) -> Answer:
        return Answer(None, reward=result) if kind == "reward" else Answer(result)

    with scope, RecordedCall(kind, environment, sent, read) as came_back:
        yield came_back


def _strand(environment: Any, kind: str) -> Strand | None:
    """The one that the call is made in; None where it is not the rollout's, as one that a reward function makes."""
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
        generating: what is open until all tokens are there.
        output: as a rollout function returns it; None until then.
    """

    trainer: Any
    recording: Recording
    call: RolloutCall
    generating: ExitStack = field(default_factory=ExitStack)
    output: dict[str, Any] | None = None

    def generated(self, prompts: list[Any], output: dict[str, Any]) -> None:
        """The rows end, unless their environments have still to say what they were worth."""
        self.generating.close()
        self.recording.prompted(self.call, prompts, self.trainer)
        # Reward functions are given the same lists, and may change them.
        self.output = {key: rows and [list(row) for row in rows] for key, rows in output.items()}
        if any(hasattr(type(environment), "get_reward") for environment in trl.environments(self.trainer)):
            self.call.calls.tree.closed = False
        else:
            self.end()

    def scoring(self) -> Strand | None:
        """Where an environment's `get_reward` is called; None before and after."""
        tree = self.call.calls.tree
        return tree.root if self.output is not None and tree.is_open else None

    def end(self, error: BaseException | None = None) -> None:
        """The last word on the rows, if that is not said yet. An error after the rollouts is not theirs."""
        if self.call.settled:
            return
        self.call.calls.tree.closed = True
        if self.output is None:
            self.recording.failed(self.call, error or LookupError("This release of TRL does not show its tokens."))
        else:
            self.recording.returned(self.call, self.output | self._extras())

    def _extras(self) -> dict[str, list[Any]]:
        """By the names that rollout functions give them."""
        rewards = {
            call.strand.row: call.reward
            for call in self.call.calls.environment_calls
            if call.kind == "reward" and call.within is None and call.strand is not None
        }
        extras = {"environment": [_called(environment) for environment in trl.environments(self.trainer)]}
        rows = range(len(self.call.prompts))
        return extras | ({"env_reward": [rewards.get(row) for row in rows]} if rewards else {})


class _Door:
    """See `trl.EnvironmentDoor`."""

    def __init__(self) -> None:
        self._batches: weakref.WeakKeyDictionary[Any, _Batch] = weakref.WeakKeyDictionary()

    @contextmanager
    def batch(self, trainer: Any, prompts: list[Any]) -> Iterator[None]:
        """Opens the rows of a trainer with recorded environments, and ends those that nothing else has."""
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
        if trainer in self._batches:
            self._batches[trainer].generated(prompts, output)

    def scoring(self, trainer: Any) -> Strand | None:
        """Where its environments say what the rollouts were worth; None outside of that."""
        return self._batches[trainer].scoring() if trainer in self._batches else None

    def scored(self, trainer: Any) -> None:
        if trainer in self._batches:
            self._batches[trainer].end()

    def _opened(self, trainer: Any, prompts: list[Any]) -> _Batch | None:
        factory = _factory_of(trainer)
        if factory is None:
            return None
        recording = factory.recordings.of(trainer)
        batch = self._batches[trainer] = _Batch(trainer, recording, recording.open(prompts, trainer))
        batch.generating.enter_context(collecting(batch.call.calls))
        return batch


_door = _Door()
