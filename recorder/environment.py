"""One call of an environment or a tool while it is made, and what is kept of it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from logs_ui.recorder.calls import Begun, EnvironmentCall, calling
from logs_ui.recorder.clean import error_line, snapshot
from logs_ui.recorder.guard import guard
from logs_ui.recorder.images import observed
from logs_ui.recorder.strands import current_strand

T = TypeVar("T")


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


@contextmanager
def environment_call(
    kind: str, client: object, sent: Callable[[], Any], read: Callable[[Any], Answer]
) -> Iterator[Callable[[Any], Any]]:
    """Records the call that is made inside, unless nothing is recorded here.

    Args:
        kind: "reset", "step" or "tool".
        client: what it is made on; None for a function, which is no environment.
        sent: makes what was sent, as the row shows it; asked only if it is recorded.
        read: takes apart what came back.

    Yields:
        A function that takes what came back and returns it. Without it, the call raised, or turned out to be none.
    """
    strand = current_strand()
    if strand is None:
        yield lambda result: result
        return
    message = b"null"
    with guard("recording what was sent to an environment"):
        message = snapshot(sent())
    begun = strand.tree.log.begin(strand, kind, client, message)
    results: list[Any] = []

    def came_back(result: Any) -> Any:
        results.append(result)
        return result

    try:
        with calling(begun):
            yield came_back
    except BaseException as error:  # also where a timeout cancels it
        with guard("recording an environment's error"):
            _add(begun, None, error)
        raise
    if not results:
        strand.tree.log.forget(begun)
        return
    answer = Answer(results[0])
    with guard("reading an environment's answer"):
        answer = read(results[0])
    with guard("recording an environment's answer"):
        _add(begun, answer, None)


def _add(begun: Begun, answer: Answer | None, error: BaseException | None) -> None:
    seconds = time.perf_counter() - begun.began
    observation, reward, done, metadata = answer or Answer(None)
    number, end = _as(float, reward), _as(bool, done)
    odd = {
        name: value
        for name, value, kept in (("reward", reward, number), ("done", done, end))
        if value is not None and kept is None
    }
    if odd:
        metadata = {"metadata": metadata, **odd} if metadata is not None else odd
    said, images = (None, None) if answer is None else observed(observation)
    begun.strand.tree.log.add(
        EnvironmentCall(
            order=begun.order,
            began=begun.began,
            seconds=seconds,
            client=begun.client,
            kind=begun.kind,
            sent=begun.sent or b"null",
            observation=said,
            reward=number,
            done=end,
            metadata=None if metadata is None else snapshot(metadata),
            error=None if error is None else error_line(error),
            strand=begun.strand,
            within=begun.strand.call,
            images=images,
        )
    )


def _as(convert: Callable[[Any], T], value: Any) -> T | None:
    """None for what cannot be converted, whatever its own methods raise."""
    try:
        return None if value is None else convert(value)
    except Exception:  # noqa: BLE001
        return None
