"""One call of an environment or a tool while it is made, and what is kept of it."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import Token
from types import TracebackType
from typing import Any, TypeVar

from msgspec import Struct

from logs_ui.recorder.calls import Begun, EnvironmentCall
from logs_ui.recorder.clean import error_line, snapshot
from logs_ui.recorder.guard import guard
from logs_ui.recorder.images import observed
from logs_ui.recorder.raised import reason_of
from logs_ui.recorder.strands import Strand, current_strand, enter, leave

T = TypeVar("T")

_NOTHING = object()


class Answer(Struct, frozen=True):
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


class _EnvironmentCall(Struct, eq=False):
    """A call that is made. No generator, since this is the caller's time."""

    _kind: str
    _client: object
    _sent: Callable[[], Any]
    _read: Callable[[Any], Answer]
    _open: tuple[Begun, Token[Strand | None]] | None = None
    _result: Any = _NOTHING

    def __enter__(self) -> Callable[[Any], Any]:
        strand = current_strand()
        if strand is not None:
            message = b"null"
            try:
                message = snapshot(self._sent())
            except Exception as error:  # noqa: BLE001 - of any kind
                guard.swallow("recording what was sent to an environment", error)
            begun = strand.tree.log.begin(strand, self._kind, self._client, message)
            self._open = begun, enter(strand.tree.calling(strand, begun.order))
        return self._came_back

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if self._open is None:
            return
        begun, entered = self._open
        seconds = time.perf_counter() - begun.began
        leave(entered)
        try:
            if error is not None:  # also where a timeout cancels it
                _add(begun, seconds, None, error)
            elif self._result is not _NOTHING:
                _add(begun, seconds, self._answer(), None)
            else:  # it turned out to be none
                begun.strand.tree.log.forget(begun)
        except Exception as failure:  # noqa: BLE001 - of any kind
            begun.strand.tree.log.forget(begun)
            guard.swallow("recording an environment's answer", failure)

    def _answer(self) -> Answer:
        try:
            return self._read(self._result)
        except Exception as error:  # noqa: BLE001 - of any kind, as the result's own methods may raise it
            guard.swallow("reading an environment's answer", error)
            return Answer(self._result)

    def _came_back(self, result: Any) -> Any:
        self._result = result
        return result


def _add(begun: Begun, seconds: float, answer: Answer | None, error: BaseException | None) -> None:
    """Keeps it; without an answer where it raised."""
    said = images = reward = done = metadata = None
    if answer is not None:
        said, images = observed(answer.observation)
        reward = answer.reward if type(answer.reward) is float else _as(float, answer.reward)
        done = answer.done if type(answer.done) is bool else _as(bool, answer.done)
        metadata = _metadata(answer, reward, done)
    line = reason = None
    if error is not None:
        line, reason = error_line(error), reason_of(error)
    begun.strand.tree.log.add(
        EnvironmentCall(  # by place: names take half a microsecond of the caller's
            begun.order, begun.began, seconds, begun.client, begun.kind, begun.sent or b"null", said, reward, done,
            metadata, line, begun.strand, begun.strand.call, images, reason,
        )
    )  # fmt: skip


def _metadata(answer: Answer, reward: object, done: object) -> bytes | None:
    """JSON of it, with what is no single number, or neither true nor false: `reward` or `done` is None then."""
    metadata = answer.metadata
    odd = {}
    if reward is None and answer.reward is not None:
        odd["reward"] = answer.reward
    if done is None and answer.done is not None:
        odd["done"] = answer.done
    if odd:
        metadata = {"metadata": metadata, **odd} if metadata is not None else odd
    return None if metadata is None else snapshot(metadata)


def _as(convert: Callable[[Any], T], value: Any) -> T | None:
    """None for what cannot be converted, whatever its own methods raise."""
    try:
        return None if value is None else convert(value)
    except Exception:  # noqa: BLE001
        return None
