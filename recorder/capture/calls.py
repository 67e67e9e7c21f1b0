"""Collects what is seen while one rollout function runs: generations, environment calls, and notes about its rows.

`CallRecords` are the calls as plain values, which travel to the helper process; the `Collector` is what threads of the
training add them to. What is made for each call is a struct: making one takes half as long as a dataclass's.
"""

import itertools
import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import attrgetter
from typing import Any, Protocol

import orjson
from msgspec import Struct
from msgspec.structs import force_setattr, replace

from logs_ui.recorder.capture.forked_children import CallsOfChildren
from logs_ui.recorder.capture.model_answers import Ids, Sequence, TokenBatch
from logs_ui.recorder.capture.observed_images import Images
from logs_ui.recorder.capture.stop_causes import reason_of
from logs_ui.recorder.capture.strands import (
    NO_ROW,
    Strand,
    StrandTree,
    branch,
    current_strand,
    opened,
    within,
)
from logs_ui.recorder.snapshot import error_line, is_shallow, snapshot
from logs_ui.recorder.vocabulary import StopReason

_order = attrgetter("order")

__all__ = [
    "GIVEN_UP",
    "Begun",
    "Call",
    "CallRecords",
    "Collector",
    "EnvironmentCall",
    "Generation",
    "Ids",
    "Note",
    "Sequence",
    "TokenBatch",
    "Unfinished",
    "answered",
    "collecting",
    "failed",
    "generating",
    "generating_strand",
]


class Begun(Struct, frozen=True):
    """A call that has begun.

    Attributes:
        order: grows with the time at which calls began.
        began: seconds, of `time.perf_counter`.
        sent: JSON of what was sent to an environment; None for a generation.
        seam: see `Generation`; None for an environment's call.
    """

    order: int
    began: float
    strand: Strand
    kind: str
    client: int
    sent: bytes | None
    seam: str | None


class Generation(Struct, frozen=True, array_like=True):
    """One model call, over one or more sequences.

    Attributes:
        order: grows with the time at which calls began.
        seconds: None while it has not come back.
        sequences: one for each answer; a `TokenBatch` makes them when they are first asked for.
        sampling: temperature, top_p, ... as far as they were set.
        seam: what it was seen at: "transformers", "trl-vllm", "vllm", "openai", "http".
        strand: where it was made; None where that is not known.
        error: "Type: message" where it raised; then there are no sequences.
        request_id: what the caller or the server called it; None where neither did.
        asked: of one that has no sequences, what it was given: a sequence's `messages`, or its context's bytes; None
            where that is not known.
        reason: see `raised.reason_of`; None where it did not raise.
    """

    order: int
    began: float
    seconds: float | None
    sequences: list[Sequence] | TokenBatch
    sampling: dict[str, Any]
    seam: str = "transformers"
    strand: Strand | None = None
    error: str | None = None
    request_id: str | None = None
    asked: bytes | None = None
    reason: StopReason | None = None

    @property
    def is_failure(self) -> bool:
        """Whether it raised, or has not come back: unlike one that was given nothing."""
        return not self.sequences and (self.error is not None or self.seconds is None)

    @property
    def size(self) -> int:
        """Bytes of its tokens. Each turn's context holds all before it: they grow as the square of the turns."""
        kept = self.sequences
        if type(kept) is TokenBatch:
            return kept.size
        return sum([sequence.size for sequence in kept]) + len(self.asked or b"")


class EnvironmentCall(Struct, frozen=True, array_like=True):
    """One reset or step of an environment client, or one call of a tool.

    Attributes:
        client: which of the clients used, counted from 0 in order of first use; -1 for a function, which has none.
        kind: "reset", "step", "tool", or "reward" where the environment is asked for it at the end.
        sent: JSON: the action, the reset's arguments, or `{"name": ..., "arguments": {...}}` of a tool.
        seconds: None while it has not come back.
        observation, metadata: JSON.
        error: "Type: message" where the call raised; then there is no observation.
        strand: where it was made; None where that is not known.
        within: order of the environment call that it was made by; None for one of the rollout's own.
        images: those of the observation, which then is to be read through them; None where it cannot hold any. Their
            bytes are not in `size`: they have bounds of their own.
        reason: see `raised.reason_of`; None where it did not raise.
    """

    order: int
    began: float
    seconds: float | None
    client: int
    kind: str
    sent: bytes
    observation: bytes | None
    reward: float | None
    done: bool | None
    metadata: bytes | None
    error: str | None
    strand: Strand | None = None
    within: int | None = None
    images: Images | None = None
    reason: StopReason | None = None

    @property
    def size(self) -> int:
        """Bytes of what was sent and of what came back."""
        return len(self.sent) + len(self.observation or b"") + len(self.metadata or b"") + len(self.error or "")


class Note(Struct, frozen=True, array_like=True):
    """What the rollout function itself says of a row.

    Attributes:
        kind: "note", "tag", "metric", "error" or "stop"; "lost": a call of a forked child, nothing else is known.
        values: JSON: an object for notes and metrics, a list for tags.
    """

    order: int
    kind: str
    values: bytes
    strand: Strand | None = None

    @property
    def size(self) -> int:
        """Bytes of its values."""
        return len(self.values)


Call = Generation | EnvironmentCall | Note


GIVEN_UP = TimeoutError("the rollout ended before this call came back")
"""The error of a call that was still waited for when the log was closed."""


class Unfinished(Protocol):
    """A reply that is still waited for, or read."""

    def end(self) -> None:
        """Records it as far as it came."""


def failed(begun: Begun, error: BaseException) -> Generation:
    """A generation that raised."""
    seconds = time.perf_counter() - begun.began
    seam, reason = begun.seam or "", reason_of(error)
    return Generation(
        begun.order, begun.began, seconds, [], {}, seam, begun.strand, error_line(error), reason=reason
    )  # fmt: skip


def _unanswered(begun: Begun, seconds: float | None, error: str | None) -> Generation | EnvironmentCall:
    """One that has not come back."""
    if begun.seam is not None:
        return Generation(begun.order, begun.began, seconds, [], {}, begun.seam, begun.strand, error)
    return EnvironmentCall(
        begun.order, begun.began, seconds, begun.client, begun.kind, begun.sent or b"null",
        None, None, None, None, error, begun.strand, begun.strand.call,
    )  # fmt: skip


class CallRecords(Struct, array_like=True, eq=False):
    """The calls of one rollout function call, as plain values.

    Attributes:
        size: about how many bytes they keep alive.
    """

    generations: list[Generation] = []
    environment_calls: list[EnvironmentCall] = []
    notes: list[Note] = []
    size: int = 0

    @property
    def calls(self) -> list[Call]:
        """All of them."""
        return [*self.generations, *self.environment_calls, *self.notes]

    def keep(self, call: Call, size: int) -> None:
        """Adds a call."""
        if isinstance(call, EnvironmentCall):
            self.environment_calls.append(call)
        elif isinstance(call, Generation):
            self.generations.append(call)
        else:
            self.notes.append(call)
        self.size += size

    def sort(self) -> "CallRecords":
        """Puts the calls in the order in which they began, and returns itself: calls are kept as they come back."""
        for calls in (self.generations, self.environment_calls, self.notes):
            calls.sort(key=_order)
        return self

    def release(self) -> None:
        """Drops all calls."""
        self.generations.clear()
        self.environment_calls.clear()
        self.notes.clear()
        self.size = 0

    def plain(self) -> "CallRecords":
        """A copy of which MessagePack takes every value: images have become references, and sampling parameters that
        JSON lacks (dates, sets), which MessagePack would write in words of its own, are as they will be stored.
        """
        generations = [
            call
            if not call.sampling or is_shallow(call.sampling)
            else replace(call, sampling=orjson.loads(snapshot(call.sampling)))
            for call in self.generations
        ]
        environment_calls = [
            call
            if call.images is None or call.observation is None
            else replace(call, observation=call.images.json(call.observation))
            for call in self.environment_calls
        ]
        return CallRecords(generations, environment_calls, self.notes, self.size)

    def share_strands(self) -> "CallRecords":
        """Gives calls of one strand the same object again, and returns itself. Decoded, each call has a strand of its
        own, and attribution compares strands by identity.
        """
        known: dict[int, Strand] = {}
        for call in self.calls:
            if call.strand is not None:
                strand = _shared(call.strand, known)
                if strand is not call.strand:
                    force_setattr(call, "strand", strand)
        return self


def _shared(strand: Strand, known: dict[int, Strand]) -> Strand:
    """The strand of the same number in `known`, to which it and those above it are added."""
    while (found := known.get(strand.number)) is None:
        known[strand.number] = strand
        if strand.parent is None:
            return strand
        strand.parent = _shared(strand.parent, known)
    return found


class Collector:
    """Collects the calls of one rollout function call. Any thread may add to it, also one that is in the middle of
    adding: Python may collect garbage anywhere, and a destructor may call an environment. So objects are released
    outside of the lock, and what is done without it is one operation of the interpreter's own on a dict, a list or a
    counter.

    Attributes:
        records: the calls.
        model: the trainer's: generations of other models are not recorded. None if it is not known: all are.
        unfinished: replies that are recorded by `close`, if nobody has read them to their end by then.
    """

    def __init__(self, model: Any = None) -> None:
        self.records = CallRecords([], [], [])
        self.model = model
        self.unfinished: set[Unfinished] = set()
        self.tree = StrandTree(self)
        self._orders = itertools.count()
        self._clients: dict[int, tuple[int, Any]] = {}
        self._client_numbers = itertools.count()
        self._waiting: dict[int, Begun] = {}
        self._is_closed = False
        self._lock = threading.RLock()

    def begin(
        self, strand: Strand, kind: str, client: object = None, sent: bytes | None = None, seam: str | None = None
    ) -> Begun:
        """A call that begins now. It is waited for until `add` or `forget`; `close` gives it up.

        Args:
            strand: where it is made.
            kind: "generation", "reset", "step" or "tool".
            client: the environment's; kept alive until `close`, since Python gives a dead object's id to the next.
            sent: JSON of what is sent to it; None for a generation.
            seam: of a generation.
        """
        number = -1 if client is None else self._number(client)
        order = next(self._orders)
        begun = self._waiting[order] = Begun(order, time.perf_counter(), strand, kind, number, sent, seam)
        return begun

    def add(self, call: Call) -> None:
        """Keeps a call that ended, unless the log is closed: the writer reads it then."""
        size = call.size
        with self._lock:
            if not self._is_closed:
                self._waiting.pop(call.order, None)
                self.records.keep(call, size)

    def forget(self, begun: Begun) -> None:
        """For a call of which nothing is kept."""
        self._waiting.pop(begun.order, None)

    def note(self, strand: Strand, kind: str, values: bytes) -> None:
        """Keeps what is said of the row that `strand` is about."""
        self.add(Note(next(self._orders), kind, values, strand))

    def so_far(self) -> CallRecords:
        """A copy of the calls as of now, without their size. Calls that have not come back are there, without
        `seconds`.
        """
        waiting = self._waiting.copy()  # first: a call that comes back meanwhile is in both, not in neither
        seen = self.records
        copy = CallRecords(seen.generations.copy(), seen.environment_calls.copy(), seen.notes.copy())
        came_back = {call.order for call in copy.generations} | {call.order for call in copy.environment_calls}
        for order, begun in waiting.items():
            if order not in came_back:
                copy.keep(_unanswered(begun, None, None), 0)
        return copy

    def close(self) -> None:
        """Ends what is unfinished, gives up what has not come back, lets go of the model and the clients."""
        for reply in list(self.unfinished):
            reply.end()
        with self._lock:
            self._is_closed = True
        for begun in self._waiting.copy().values():
            call = _unanswered(begun, time.perf_counter() - begun.began, error_line(GIVEN_UP))
            self.records.keep(call, call.size)
        self._judge_threads()
        self._count_children()
        self.model = None
        self._waiting.clear()
        self._clients.clear()

    def _judge_threads(self) -> None:
        """A thread that outlives the row that started it may serve others, too: what it called is nobody's."""
        alive = {strand for thread, strand in self.tree.threads if thread.is_alive()}
        self.tree.threads.clear()
        for call in self.records.calls if alive else []:
            if call.strand is not None and not alive.isdisjoint(call.strand.path):
                call.strand.row = NO_ROW

    def _count_children(self) -> None:
        """What forked children called is nobody's: its number is all that is known of it."""
        made = _children.take()
        strand = Strand(self.tree, self.tree.root, next(self.tree.numbers), NO_ROW) if made else None
        for _ in range(made):
            self.records.keep(Note(next(self._orders), "lost", b"null", strand), 0)

    def of_forked_child(self) -> "Collector":
        """For a forked child, whose calls cannot reach this process."""
        return _ChildsCollector(self.model, _children.forked())

    def _number(self, client: object) -> int:
        known = self._clients.get(id(client))
        if known is None:
            known = self._clients.setdefault(id(client), (next(self._client_numbers), client))
        return known[0]


class _ChildsCollector(Collector):
    """Counts calls in a child that was forked while calls were recorded; keeps none."""

    def __init__(self, model: Any, counted: CallsOfChildren) -> None:
        super().__init__(model)
        self._counted = counted

    def add(self, call: Call) -> None:
        """Counts a call of the function's own."""
        self._waiting.pop(call.order, None)
        if getattr(call, "within", None) is None:
            self._counted.add()

    def of_forked_child(self) -> Collector:
        """For a child's child: its calls are counted with the child's."""
        return _ChildsCollector(self.model, self._counted.forked())

    def _number(self, _: object) -> int:
        return -1  # it never ends, and would keep each client alive


def generating_strand() -> Strand | None:
    """Where a generation that is to be recorded is made; None outside of what is recorded, and within another one:
    seams nest, and the outermost records.
    """
    strand = current_strand()
    return None if strand is None or strand.generating else strand


def generating() -> AbstractContextManager[Strand | None]:
    """Generations made inside are parts of the one that is under way."""
    strand = branch(generating=True)
    return nullcontext() if strand is None else within(strand)


@contextmanager
def answered(begun: Begun) -> Iterator[None]:
    """While what came back is recorded: where that fails, the call is forgotten, since it is not waited for."""
    try:
        yield
    finally:
        begun.strand.tree.log.forget(begun)


@contextmanager
def collecting(log: Collector) -> Iterator[None]:
    """Calls that begin inside go to `log`, also those of threads that nobody saw start: a trainer calls one rollout
    function at a time.
    """
    with opened(log.tree):
        yield


_children = CallsOfChildren()


def _in_forked_child() -> None:
    """After `strands`' own, which counts on with the parent's."""
    global _children  # noqa: PLW0603 - a child has children of its own
    _children = CallsOfChildren()


def _in_parent() -> None:
    if current_strand() is not None:
        _children.there_are()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_child, after_in_parent=_in_parent)
