"""One call of an environment or a tool while it is made, and what is kept of it."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from logs_ui.recorder.calls import Begun, EnvironmentCall, calling
from logs_ui.recorder.clean import error_line, snapshot
from logs_ui.recorder.guard import guard
from logs_ui.recorder.images import observed
from logs_ui.recorder.strands import current_strand

T = TypeVar("T")

_NOTHING = object()
_SENDING = guard("recording what was sent to an environment")
_READING = guard("reading an environment's answer")
_ANSWERING = guard("recording an environment's answer")


class Answer(NamedTuple):
    """What came back, in the environment's own types.

    Attributes:
        reward, done: None where it said nothing of the kind. One that is no single number, or neither true nor false,
            as a vector environment's, is kept in the metadata.
        metadata: None where there is none.
    """

    observation: Any
    reward: Any = None
    done: Any = None
    metadata: Any = None


def environment_call(
    kind: str, client: object, sent: Callable[[], Any], read: Callable[[Any], Answer]
) -> AbstractContextManager[Callable[[Any], Any]]:
    """Records the call that is made inside, unless nothing is recorded here.

    Args:
        kind: "reset", "step" or "tool".
        client: what it is made on; None for a function, which is no environment.
        sent: makes what was sent, as the row shows it; asked only if it is recorded.
        read: takes apart what came back.

    Returns:
        What to make it in. It gives a function that takes what came back and returns it; where that is not called, the
        call raised, or turned out to be none.
    """
    return _EnvironmentCall(kind, client, sent, read)


class _EnvironmentCall:
    """A call that is made. No generator, since this is the caller's time."""

    __slots__ = ("_begun", "_calling", "_client", "_kind", "_read", "_result", "_sent")

    def __init__(self, kind: str, client: object, sent: Callable[[], Any], read: Callable[[Any], Answer]) -> None:
        self._kind, self._client, self._sent, self._read = kind, client, sent, read
        self._begun: Begun | None = None
        self._result: Any = _NOTHING

    def __enter__(self) -> Callable[[Any], Any]:
        strand = current_strand()
        if strand is not None:
            message = b"null"
            with _SENDING:
                message = snapshot(self._sent())
            self._begun = strand.tree.log.begin(strand, self._kind, self._client, message)
            self._calling = calling(self._begun)
            self._calling.__enter__()
        return self._came_back

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        begun = self._begun
        if begun is None:
            return
        self._calling.__exit__(None, None, None)
        if error is not None:  # also where a timeout cancels it
            with guard("recording an environment's error"):
                _add(begun, None, error)
        elif self._result is not _NOTHING:
            answer = Answer(self._result)
            with _READING:
                answer = self._read(self._result)
            with _ANSWERING:
                _add(begun, answer, None)
        begun.strand.tree.log.forget(begun)  # where it turned out to be none, or could not be recorded

    def _came_back(self, result: Any) -> Any:
        self._result = result
        return result


def _add(begun: Begun, answer: Answer | None, error: BaseException | None) -> None:
    seconds = time.perf_counter() - begun.began
    observation, reward, done, metadata = answer or Answer(None)
    number = reward if type(reward) is float else _as(float, reward)
    end = done if type(done) is bool else _as(bool, done)
    odd = {}
    if number is None and reward is not None:
        odd["reward"] = reward
    if end is None and done is not None:
        odd["done"] = done
    if odd:
        metadata = {"metadata": metadata, **odd} if metadata is not None else odd
    said, images = (None, None) if answer is None else observed(observation)
    begun.strand.tree.log.add(
        EnvironmentCall(  # by place: names take half a microsecond of the caller's
            begun.order, begun.began, seconds, begun.client, begun.kind, begun.sent or b"null", said, number, end,
            None if metadata is None else snapshot(metadata), None if error is None else error_line(error),
            begun.strand, begun.strand.call, images,
        )
    )  # fmt: skip


def _as(convert: Callable[[Any], T], value: Any) -> T | None:
    """None for what cannot be converted, whatever its own methods raise."""
    try:
        return None if value is None else convert(value)
    except Exception:  # noqa: BLE001
        return None
