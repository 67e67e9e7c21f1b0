"""Records one call of an environment or a tool while it is made."""

import functools
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import Token
from types import TracebackType
from typing import Any, TypeVar

from msgspec import Struct

from logs_ui.recorder.capture.calls import Begun, EnvironmentCall, unanswered
from logs_ui.recorder.capture.observed_images import observed
from logs_ui.recorder.capture.strands import Strand, current_strand, enter, leave, within
from logs_ui.recorder.guard import guard
from logs_ui.recorder.snapshot import snapshot

T = TypeVar("T")

_NOTHING = object()


class Answer(Struct, frozen=True):
    """Holds the result of a call, in the environment's own types.

    Attributes:
        reward, done: None if the environment gave none. A reward that is not a single number, or a `done` that is
            neither True nor False, such as a vector environment's, is stored in the metadata.
        metadata: None if there is none.
    """

    observation: Any
    reward: Any = None
    done: Any = None
    metadata: Any = None


class RecordedCall(Struct, eq=False):
    """Records the call that is made in its `with` block, if calls are recorded here.

    The block gets a function to call with the result, which returns it. If it is not called, the call raised, or it
    turned out to be no call. This is a class with few functions, and not a generator: it costs the caller's time.
    """

    kind: str  # see `EnvironmentCall`
    client: object  # the environment; None for a function, which is no environment
    sent: Callable[[], Any]  # Returns what is sent, as the row shows it. Called only if the call is recorded.
    read: Callable[[Any], Answer]  # reads the parts of the result
    _begun: Begun | None = None
    _entered: Token[Any] | None = None
    _result: Any = _NOTHING

    def __enter__(self) -> Callable[[Any], Any]:
        strand = current_strand()
        if strand is not None:
            message = b"null"
            try:
                message = snapshot(self.sent())
            except Exception as error:  # noqa: BLE001 - the user's objects may raise anything
                guard.swallow("recording what was sent to an environment", error)
            tree = strand.tree
            begun = self._begun = tree.collector.begin(strand, self.kind, self.client, message)
            # Environment calls that this call makes itself, such as a tool's step, are recorded as parts of it.
            self._entered = enter(tree.calling(strand, begun.order))
        return self._came_back

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        begun, entered = self._begun, self._entered
        if begun is None or entered is None:
            return
        seconds = time.perf_counter() - begun.began
        leave(entered)
        collector = begun.strand.tree.collector
        try:
            if error is not None:  # also a cancellation by a timeout
                collector.add(unanswered(begun, error))
            elif self._result is not _NOTHING:
                collector.add(_answered(begun, seconds, self._answer()))
            else:  # there was no call
                collector.forget(begun)
        except Exception as failure:  # noqa: BLE001 - the user's objects may raise anything
            collector.forget(begun)
            guard.swallow("recording an environment's answer", failure)

    def _answer(self) -> Answer:
        try:
            return self.read(self._result)
        except Exception as error:  # noqa: BLE001 - the result's methods may raise anything
            guard.swallow("reading an environment's answer", error)
            return Answer(self._result)

    def _came_back(self, result: Any) -> Any:
        self._result = result
        return result


def _answered(begun: Begun, seconds: float, answer: Answer) -> EnvironmentCall:
    observation, images = observed(answer.observation)
    reward, done, metadata = answer.reward, answer.done, answer.metadata
    # Most environments return a float and a bool. Anything else may be an array, or something that is no number.
    if type(reward) is not float or type(done) is not bool:
        reward, done = _as(float, reward), _as(bool, done)
        metadata = _with_odd(answer, reward, done)
    return EnvironmentCall(  # positional: keywords take half a microsecond longer
        begun.order, begun.began, seconds, begun.client, begun.kind, begun.sent or b"null", observation, reward, done,
        None if metadata is None else snapshot(metadata), None, begun.strand, begun.strand.call, images,
    )  # fmt: skip


def _with_odd(answer: Answer, reward: object, done: object) -> Any:
    """Return the metadata with a reward or `done` that could not be converted, and is None for that reason."""
    odd = {}
    if reward is None and answer.reward is not None:
        odd["reward"] = answer.reward
    if done is None and answer.done is not None:
        odd["done"] = answer.done
    if not odd:
        return answer.metadata
    return odd if answer.metadata is None else {"metadata": answer.metadata, **odd}


def _as(convert: Callable[[Any], T], value: Any) -> T | None:
    """Convert a value; None if that raises anything."""
    try:
        return None if value is None else convert(value)
    except Exception:  # noqa: BLE001
        return None


def recorded_function(
    function: Any, around: Callable[..., AbstractContextManager[Callable[[Any], Any]]]
) -> Callable[..., Any]:
    """Wrap a function, or coroutine function: each call runs in `around(*args, **kwargs)`, such as a `RecordedCall`."""
    # A partial may hold an object whose `__call__` is a coroutine function, which inspect alone does not find.
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if any(map(inspect.iscoroutinefunction, (inner, inner.__call__))):

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            with around(*args, **kwargs) as came_back:
                return came_back(await function(*args, **kwargs))

        return call_async

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with around(*args, **kwargs) as came_back:
            return came_back(function(*args, **kwargs))

    return call


@contextmanager
def method_call(
    strand: Strand | None, environment: Any, kind: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[Callable[[Any], Any]]:
    """Record TRL's call of an environment's `reset` or `get_reward`, or of a tool: a "reset", "reward" or "tool".
    Environment calls that the method makes are recorded as parts of it. `environment` is None for a function.

    It is recorded in the strand; None keeps the current one.
    """

    def sent() -> Any:
        arguments = {"args": list(args), **kwargs} if args else kwargs  # TRL passes everything by name
        return arguments if kind == "reset" else {"name": name, "arguments": arguments}

    def read_answer(result: Any) -> Answer:
        return Answer(None, reward=result) if kind == "reward" else Answer(result)

    scope = nullcontext() if strand is None else within(strand)
    with scope, RecordedCall(kind, environment, sent, read_answer) as came_back:
        yield came_back
