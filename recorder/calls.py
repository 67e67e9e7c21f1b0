"""What is seen while one rollout function runs: its generations and its environment calls, in the order they began."""

import itertools
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Sequence:
    """What one generation call did for one of its sequences.

    Attributes:
        context: (L,) what the model was given, without padding.
        sampled: (S,) what it answered, up to and with its end token.
        finish: "stop" or "length", as OpenAI names them.
    """

    context: Ids
    sampled: Ids
    finish: str


@dataclass(frozen=True, slots=True)
class Generation:
    """One model call, over one or more sequences.

    Attributes:
        order: grows with the time at which calls began.
        sampling: temperature, top_p, ... as far as they were set.
    """

    order: int
    began: float
    seconds: float
    sequences: list[Sequence]
    sampling: dict[str, Any]

    @property
    def size(self) -> int:
        """Bytes of its tokens. Each turn's context holds all before it: they grow as the square of the turns."""
        return sum(sequence.context.nbytes + sequence.sampled.nbytes for sequence in self.sequences)


@dataclass(frozen=True, slots=True)
class EnvironmentCall:
    """One reset or step of an environment client.

    Attributes:
        client: which of the clients used, counted from 0 in order of first use.
        kind: "reset" or "step".
        sent: JSON: the action, or the reset's arguments.
        observation, metadata: JSON.
        error: "Type: message" where the call raised; then there is no observation.
    """

    order: int
    began: float
    seconds: float
    client: int
    kind: str
    sent: bytes
    observation: bytes | None
    reward: float | None
    done: bool | None
    metadata: bytes | None
    error: str | None

    @property
    def size(self) -> int:
        """Bytes of what was sent and of what came back."""
        return sum(len(part) for part in (self.sent, self.observation, self.metadata, self.error) if part is not None)


@dataclass(eq=False)
class CallLog:
    """All calls of one rollout function call. Any thread may add to it.

    Attributes:
        model: the trainer's: generations of other models are not recorded. None where it is not known: all are.
        size: about how many bytes the calls keep alive.
    """

    generations: list[Generation] = field(default_factory=list)
    environment_calls: list[EnvironmentCall] = field(default_factory=list)
    model: Any = None
    size: int = field(default=0, init=False)
    _orders: Iterator[int] = field(default_factory=itertools.count, init=False)
    _clients: dict[int, tuple[int, Any]] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _thread: threading.local = field(default_factory=threading.local, init=False)

    def __post_init__(self) -> None:
        self.size = sum(call.size for call in self.generations) + sum(call.size for call in self.environment_calls)

    def begin(self) -> tuple[int, float]:
        """Order and time of a call that begins now."""
        return next(self._orders), time.perf_counter()

    def client(self, client: object) -> int:
        """The client's number. It is kept alive until `close`, since Python gives a dead object's id to the next."""
        with self._lock:
            return self._clients.setdefault(id(client), (len(self._clients), client))[0]

    def add(self, call: Generation | EnvironmentCall) -> None:
        """Keeps a call that ended."""
        with self._lock:
            if isinstance(call, Generation):
                self.generations.append(call)
            else:
                self.environment_calls.append(call)
            self.size += call.size

    @contextmanager
    def outermost_generation(self) -> Iterator[bool]:
        """True for a generation that is not part of another: a wrapped model's `generate` calls its base model's, in
        the same thread.
        """
        outermost = not getattr(self._thread, "generating", False)
        self._thread.generating = True
        try:
            yield outermost
        finally:
            if outermost:
                self._thread.generating = False

    def close(self) -> None:
        """Lets go of the model and the clients, and puts the calls in order."""
        with self._lock:
            self.model = None
            self._clients.clear()
            self.generations.sort(key=lambda call: call.order)
            self.environment_calls.sort(key=lambda call: call.order)

    def release(self) -> None:
        """Lets go of the calls."""
        with self._lock:
            self.generations.clear()
            self.environment_calls.clear()
            self.size = 0


_active: list[CallLog] = []
if hasattr(os, "register_at_fork"):  # a child's calls cannot reach the parent's log, and would only fill its copy
    os.register_at_fork(after_in_child=_active.clear)


def active_calls() -> CallLog | None:
    """Of the rollout function that runs now, in whichever thread: a trainer calls one at a time. None outside."""
    return _active[-1] if _active else None


@contextmanager
def collecting(log: CallLog) -> Iterator[None]:
    """Calls that begin inside go to `log`."""
    _active.append(log)
    try:
        yield
    finally:
        with suppress(ValueError):  # in a child that was forked inside
            _active.remove(log)
