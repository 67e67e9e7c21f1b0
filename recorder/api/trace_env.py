"""`trace_env()` records environments and tools of libraries that have no instrument."""

import copy
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import MethodType
from typing import Any, TypeVar

import numpy as np
import wrapt

from logs_ui.recorder.capture.environment_call import Answer, RecordedCall

T = TypeVar("T")
Sent = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


def trace_env(obj: T, /) -> T:
    """Record an environment's resets and steps, or the calls of a tool, in the rollout that makes them.

    The object that it returns replaces `obj` everywhere: attributes, `isinstance`, `with`, iteration, copies and
    pickles are those of `obj`, which itself is not changed. Outside of a recorded rollout it only passes calls on.
    Arguments, results and exceptions are never changed.

    Args:
        obj: An environment: an object with `reset` or `step`, which may be coroutine functions. It reads
            gymnasium's `(observation, info)` and `(observation, reward, terminated, truncated, info)` (`done` is True
            if one of the two is, and `truncated` is stored in the metadata), gym's older `(observation, reward, done,
            info)`, dm_env's `TimeStep`, and objects or dicts with `observation`, `reward` and `done`. Any other result
            is an observation.
            Or a function, such as a tool or a scorer: its name, arguments and result are recorded, the result as it is.
            `trace_env` can decorate it.

    Returns:
        The object to use in place of `obj`.

    Raises:
        TypeError: `obj` is neither of the two, or is a class.

    Examples:
        >>> from logs_ui.recorder import load_run, start_run, trace_env
        >>> class Guess:
        ...     def reset(self, seed=None):
        ...         return "1 to 3", {}
        ...     def step(self, action):
        ...         return "right" if action == 2 else "wrong", float(action == 2), action == 2, False, {}
        >>> env = trace_env(Guess())
        >>> with start_run(db="runs.db") as run:
        ...     with run.rollout("Guess.") as row:
        ...         observation, info = env.reset(seed=1)
        ...         row.turn("2")
        ...         observation, reward, terminated, truncated, info = env.step(2)
        >>> rows = load_run(run.id, db="runs.db")
        >>> [(action["action"], action["observation"], action["reward"]) for action in rows.actions[0]]
        [(None, '1 to 3', None), (2, 'right', 1.0)]

        A tool is recorded with its arguments and its result:

        >>> @trace_env
        ... def add(a: int, b: int) -> int:
        ...     return a + b
        >>> add(2, b=3)
        5
    """
    if isinstance(obj, type):
        raise TypeError(f"trace_env() takes an environment, not a class: give it {obj.__name__}(...)")
    if type(obj) in _STAND_INS:
        return obj
    has = [callable(getattr(obj, name, None)) for name in ("reset", "step")]
    if any(has):
        kind = _CallableEnvironment if callable(obj) else _UsualEnvironment if all(has) else _Environment
        return kind(obj)  # type: ignore[return-value]
    if callable(obj):
        return _Tool(obj, _tool)  # type: ignore[return-value]
    raise TypeError(
        f"trace_env() takes an environment with reset() or step(), or a function, not a {type(obj).__name__}"
    )


class _Annotations(dict[str, Any]):
    """Holds annotations of a proxy class: none for the class, and for an instance those of the wrapped function. Python
    gives each class an empty dict of annotations once they are read, which would hide those of the wrapped function: a
    trainer would then find a tool without parameters.
    """

    def __get__(self, proxy: Any, owner: type) -> Any:
        return self if proxy is None else proxy.__wrapped__.__annotations__

    def __set__(self, proxy: Any, value: Any) -> None:
        proxy.__wrapped__.__annotations__ = value


class _Proxy:
    """Adds to wrapt's proxies the annotations of what they wrap."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__annotations__ = _Annotations()


class _StandIn(_Proxy):
    """Adds to wrapt's proxies how they are copied, pickled and printed."""

    def __copy__(self: Any) -> Any:
        return trace_env(copy.copy(self.__wrapped__))

    def __deepcopy__(self: Any, memo: dict[int, Any]) -> Any:
        return trace_env(copy.deepcopy(self.__wrapped__, memo))

    def __reduce__(self: Any) -> Any:
        return self.__reduce_ex__(2)

    def __reduce_ex__(self: Any, _: Any) -> Any:
        return trace_env, (self.__wrapped__,)

    def __repr__(self: Any) -> str:
        return repr(self.__wrapped__)


def _method(name: str) -> Any:
    """Return a property that finds an environment's recorded method: wrapt's `__getattr__` takes twice as long."""
    return property(
        lambda self: self._self_recorded(name),
        lambda self, value: setattr(self.__wrapped__, name, value),
        lambda self: delattr(self.__wrapped__, name),
    )


class _Environment(_StandIn, wrapt.ObjectProxy):  # type: ignore[type-arg]
    """An environment whose resets and steps are recorded."""

    def __init__(self, wrapped: Any) -> None:
        super().__init__(wrapped)
        methods: dict[str, tuple[Any, Any]] = {}  # by name: the environment's own, and the recorded one
        self._self_methods = methods

    def __getattr__(self, name: str) -> Any:
        return self._self_recorded(name) if name in _METHODS else getattr(self.__wrapped__, name)

    def _self_recorded(self, name: str) -> Any:
        value = getattr(self.__wrapped__, name)
        original, recorded = self._self_methods.get(name, (None, None))
        if type(value) is MethodType and value == original:
            return recorded
        if not callable(value) or (name.endswith("_async") and not inspect.iscoroutinefunction(value)):
            return value  # a vector environment's step_async only begins what step_wait() ends
        method: Any = _Method(value, _METHODS[name])
        if type(value) is MethodType and value.__self__ is self.__wrapped__:
            self._self_methods[name] = value, method
        else:
            method._self_env = self  # noqa: SLF001 - not if it is kept: a cycle would keep environments alive
        return method

    def __enter__(self) -> Any:
        entered = self.__wrapped__.__enter__()
        return self if entered is self.__wrapped__ else entered

    async def __aenter__(self) -> Any:
        entered = await self.__wrapped__.__aenter__()
        return self if entered is self.__wrapped__ else entered

    async def __aexit__(self, *raised: object) -> Any:
        return await self.__wrapped__.__aexit__(*raised)


class _UsualEnvironment(_Environment):
    """Records an environment with both reset and step."""

    reset, step = _method("reset"), _method("step")


class _CallableEnvironment(_Environment):
    """An environment that can also be called."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)


class _Method(_Proxy, wrapt.FunctionWrapper):  # type: ignore[type-arg]
    """Records a reset or step of one environment."""

    def __reduce_ex__(self: Any, _: Any) -> Any:
        env = self._self_env if hasattr(self, "_self_env") else trace_env(self.__self__)
        return getattr, (env, self.__name__)


class _BoundTool(_StandIn, wrapt.BoundFunctionWrapper):  # type: ignore[type-arg]
    """A decorated method that is bound to an object."""


class _Tool(_StandIn, wrapt.FunctionWrapper):  # type: ignore[type-arg]
    """A function whose calls are recorded."""

    __bound_function_wrapper__ = _BoundTool

    def __reduce_ex__(self, protocol: Any) -> Any:
        name = getattr(self.__wrapped__, "__qualname__", None)
        if name is not None and _global(self.__wrapped__.__module__, name) is self:
            return name  # a decorated function is pickled by its name, as others are
        return super().__reduce_ex__(protocol)


_STAND_INS = {_Environment, _UsualEnvironment, _CallableEnvironment, _Tool, _BoundTool}


def _call(
    kind: str, sent: Sent, read: Callable[[Any], Answer],
    function: Callable[..., Any], client: object, args: tuple[Any, ...], kwargs: dict[str, Any],
) -> Any:  # fmt: skip
    """Make and record a call; if it returns a coroutine, the coroutine is recorded when it runs."""
    was_sent = functools.partial(sent, function, args, kwargs)
    with RecordedCall(kind, client, was_sent, read) as came_back:
        result = function(*args, **kwargs)
        if type(result) is tuple or not inspect.isawaitable(result):
            return _passed_on(result, client, came_back)
        if inspect.iscoroutine(result):
            return _awaited(result, client, RecordedCall(kind, client, was_sent, read))
        return result


async def _awaited(coroutine: Any, client: object, recorded: AbstractContextManager[Callable[[Any], Any]]) -> Any:
    with recorded as came_back:
        return _passed_on(await coroutine, client, came_back)


def _passed_on(result: Any, client: object, came_back: Callable[[Any], Any]) -> Any:
    """Record and return a result. An environment that returns itself, alone or among others, stays recorded."""
    if result is client and client is not None:
        came_back(getattr(client, "observation", None))
        return trace_env(client)
    if type(result) is tuple and any(part is client for part in result) and client is not None:
        others = [part for part in result if part is not client]
        came_back(others[0] if len(others) == 1 else tuple(others))
        return tuple(trace_env(part) if part is client else part for part in result)
    return came_back(result)


def _called(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the name and the arguments of a tool's call."""
    target = function
    while isinstance(target, functools.partial):
        target = target.func
    name = getattr(target, "__name__", type(target).__name__)
    return {"name": name, "arguments": _arguments(function, args, kwargs)}


def _action(method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the action of a step; all arguments by name if there are several."""
    if len(args) == 1 and not kwargs:
        return args[0]
    values = [*args, *kwargs.values()]
    return values[0] if len(values) == 1 else _arguments(method, args, kwargs)


def _arguments(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments by name. If their names are not known, the positional ones are listed under "args"."""
    if not args:
        return kwargs
    try:
        signature = inspect.signature(function)
        bound = signature.bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # a function in C, or a call that is about to fail
        return {"args": list(args), **kwargs}
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            bound |= bound.pop(parameter.name, {})
    return bound


def _reset_answer(result: Any) -> Answer:
    if type(result) is tuple and len(result) == 2 and isinstance(result[1], Mapping):
        observation, info = result
        return Answer(observation, metadata=dict(info) or None)
    return _named_answer(result)


def _step_answer(result: Any) -> Answer:
    if type(result) is tuple and len(result) == 5 and type(result[4]) is dict:  # as nearly all are
        observation, reward, terminated, truncated, info = result
        if truncated is False and type(terminated) is bool:
            return Answer(observation, reward, terminated, info.copy() if info else None)
        return Answer(observation, reward, _either(terminated, truncated), _info(info, truncated))
    match result if type(result) is tuple else ():
        case (observation, reward, terminated, truncated, Mapping() as info):
            return Answer(observation, reward, _either(terminated, truncated), _info(info, truncated))
        case (observation, reward, done, Mapping() as info):
            return Answer(observation, reward, done, _info(info, info.get("TimeLimit.truncated", False)))
        case (observation, int() | float() as reward, bool() as done):
            return Answer(observation, reward, done)
    return _named_answer(result)


def _either(a: Any, b: Any) -> Any:
    """Return `one or other`; element by element for a vector environment."""
    return a or b if isinstance(a, bool) and isinstance(b, bool) else np.logical_or(a, b)


def _info(info: Mapping[Any, Any], truncated: Any) -> dict[Any, Any] | None:
    """Return the info, with `truncated` if it is true; for a vector environment with the array of flags."""
    if truncated is False or not np.any(truncated):
        return dict(info) or None
    return {**info, "truncated": truncated if np.ndim(truncated) else True}


def _named_answer(result: Any) -> Answer:
    """Read an answer by the names of its parts. A result without an `observation` is the observation."""

    def part(*names: str) -> Any:
        read = result.get if isinstance(result, Mapping) else functools.partial(getattr, result)
        return next((value for name in names if (value := read(name, None)) is not None), None)

    if hasattr(result, "step_type") and hasattr(result, "discount"):  # dm_env's TimeStep
        return Answer(result.observation, result.reward, result.last(), {"discount": result.discount})
    observation, reward, done = part("observation"), part("reward"), part("done", "terminated")
    if observation is None:
        return Answer(result, reward, done)
    truncated = part("truncated")
    if truncated is not None:
        done = _either(False if done is None else done, truncated)
    return Answer(observation, reward, done, _info(part("metadata", "info") or {}, truncated))


_reset = functools.partial(_call, "reset", _arguments, _reset_answer)
_step = functools.partial(_call, "step", _action, _step_answer)
_tool = functools.partial(_call, "tool", _called, Answer)
_METHODS = {"reset": _reset, "step": _step, "reset_async": _reset, "step_async": _step}


def _global(module: str, name: str) -> Any:
    """Return what a module has under a qualified name; None without it."""
    value: Any = sys.modules.get(module)
    for step in name.split("."):
        value = getattr(value, step, None)
    return value
