"""Collects what is seen while one rollout function runs: generations, environment calls, and notes about its rows.

`CallRecords` are the calls as plain values, which travel to the helper process; the `Collector` is what threads of the
training add them to. What is made for each call is a struct: making one takes half as long as a dataclass's.
"""

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import attrgetter
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import force_setattr, replace

from logs_ui.recorder.capture.forked_children import CallsOfChildren
from logs_ui.recorder.capture.model_answers import Sequence, TokenBatch
from logs_ui.recorder.capture.observed_images import Images
from logs_ui.recorder.capture.stop_causes import reason_of
from logs_ui.recorder.capture.strands import NO_ROW, Strand, StrandTree, branch, current_strand, opened, within
from logs_ui.recorder.guard import guard
from logs_ui.recorder.snapshot import error_line, is_shallow, snapshot
from logs_ui.recorder.storage.portable import on_fork
from logs_ui.recorder.vocabulary import StopReason

_order = attrgetter("order")


class Begun(Struct, frozen=True):
    """A call that has begun."""

    order: int  # number of the call, in the order in which calls began
    began: float  # time in seconds, from `time.perf_counter`
    strand: Strand
    kind: str
    client: int
    sent: bytes | None  # JSON of what was sent to an environment; None for a generation
    seam: str | None  # see `Generation`; None for an environment's call


class Generation(Struct, frozen=True, array_like=True):
    """Describes one model call, over one or more sequences."""

    order: int  # number of the call, in the order in which calls began
    began: float
    seconds: float | None  # duration; None while it has not returned
    sequences: list[Sequence] | TokenBatch  # one for each answer; a `TokenBatch` makes them when one is first read
    sampling: dict[str, Any]  # temperature, top_p and other parameters that were set
    # The place where it was recorded, such as "transformers", "trl-vllm", "vllm", "openai" or "http".
    seam: str = "transformers"
    strand: Strand | None = None  # the strand that made it; None if it is not known
    error: str | None = None  # "Type: message" if it raised; then there are no sequences
    request_id: str | None = None  # the caller's or the server's name for it; None without one
    # The prompt of a generation without sequences: `messages` or the bytes of the context, as in `Sequence`; None if it
    # is not known.
    prompt: bytes | None = None
    reason: StopReason | None = None  # see `stop_causes.reason_of`; None if it did not raise

    @property
    def is_failure(self) -> bool:
        """True if it raised or has not returned. One with an empty batch is no failure."""
        return not self.sequences and (self.error is not None or self.seconds is None)

    @property
    def size(self) -> int:
        """Return bytes of its tokens. Contexts repeat what is before them: they grow with the square of the turns."""
        sequences = self.sequences
        if type(sequences) is TokenBatch:
            return sequences.size
        return sum([sequence.size for sequence in sequences]) + len(self.prompt or b"")


class EnvironmentCall(Struct, frozen=True, array_like=True):
    """Describes one reset or step of an environment client, or one call of a tool."""

    order: int
    began: float
    seconds: float | None  # duration; None while it has not returned
    client: int  # number of the client, from 0 in the order of first use; -1 for a function, which has none
    kind: str  # "reset", "step", "tool", or "reward" for an environment's `get_reward` at the end
    sent: bytes  # JSON of the action, of the reset's arguments, or of a tool's `{"name": ..., "arguments": {...}}`
    observation: bytes | None  # JSON; None without one
    reward: float | None
    done: bool | None
    metadata: bytes | None  # JSON; None without any
    error: str | None  # "Type: message" if the call raised; then there is no observation
    strand: Strand | None = None  # the strand that made it; None if it is not known
    within: int | None = None  # order of the environment call that made it; None if the rollout function did
    # The images of the observation, which is read by `images.json`; None if it cannot contain any. Their bytes are not
    # in `size`: they have a limit of their own.
    images: Images | None = None
    reason: StopReason | None = None  # see `stop_causes.reason_of`; None if it did not raise

    @property
    def size(self) -> int:
        """Return bytes of what was sent and of what came back."""
        return len(self.sent) + len(self.observation or b"") + len(self.metadata or b"") + len(self.error or "")


class Note(Struct, frozen=True, array_like=True):
    """A note, tag, metric, error or stop reason that the rollout function records for a row."""

    order: int
    kind: str  # "note", "tag", "metric", "error" or "stop"; "lost" for a call of a forked child, which is not known
    values: bytes  # JSON: a list for tags, an object for the others
    strand: Strand | None = None

    @property
    def size(self) -> int:
        """Return bytes of its values."""
        return len(self.values)


Call = Generation | EnvironmentCall | Note

GIVEN_UP = TimeoutError("the rollout ended before this call came back")
"""The error of a call that had not returned when the collector was closed."""


def unanswered(begun: Begun, error: BaseException | None = None) -> Generation | EnvironmentCall:
    """Return the record of a call that raised; without an `error`, of one that has not returned."""
    seconds = None if error is None else time.perf_counter() - begun.began
    line, reason = (None, None) if error is None else (error_line(error), reason_of(error))
    if begun.seam is not None:
        return Generation(begun.order, begun.began, seconds, [], {}, begun.seam, begun.strand, line, reason=reason)
    return EnvironmentCall(
        begun.order, begun.began, seconds, begun.client, begun.kind, begun.sent or b"null",
        None, None, None, None, line, begun.strand, begun.strand.call, None, reason,
    )  # fmt: skip


class CallRecords(Struct, array_like=True, eq=False):
    """Holds the calls of one rollout function call, as plain values."""

    generations: list[Generation] = []
    environment_calls: list[EnvironmentCall] = []
    notes: list[Note] = []
    size: int = 0  # about how many bytes they keep in memory

    @property
    def calls(self) -> list[Call]:
        """Return all calls and notes."""
        return [*self.generations, *self.environment_calls, *self.notes]

    def keep(self, call: Call, size: int) -> None:
        """Add a call of `size` bytes."""
        if isinstance(call, EnvironmentCall):
            self.environment_calls.append(call)
        elif isinstance(call, Generation):
            self.generations.append(call)
        else:
            self.notes.append(call)
        self.size += size

    def sort(self) -> "CallRecords":
        """Sort the calls by the order in which they began (they are added as they return), and return self."""
        for calls in (self.generations, self.environment_calls, self.notes):
            calls.sort(key=_order)
        return self

    def release(self) -> None:
        """Drop all calls, which frees their memory."""
        self.generations.clear()
        self.environment_calls.clear()
        self.notes.clear()
        self.size = 0

    def plain(self) -> "CallRecords":
        """Return a copy that MessagePack can write: images are references, and sampling parameters that JSON lacks
        (dates, sets), which MessagePack would write in a form of its own, are as they will be stored.
        """
        copy = self.copy()
        for i, generation in enumerate(copy.generations):
            if generation.sampling and not is_shallow(generation.sampling):
                copy.generations[i] = replace(generation, sampling=orjson.loads(snapshot(generation.sampling)))
        for i, call in enumerate(copy.environment_calls):
            if call.images is not None and call.observation is not None:
                copy.environment_calls[i] = replace(call, observation=call.images.json(call.observation))
        return copy

    def copy(self) -> "CallRecords":
        """Return a copy that keeps the calls when these are released."""
        return CallRecords(self.generations.copy(), self.environment_calls.copy(), self.notes.copy(), self.size)

    def share_strands(self) -> "CallRecords":
        """Give decoded calls of one strand the same object again: attribution compares strands by identity."""
        strands: dict[int, Strand] = {}
        for call in self.calls:
            if call.strand is not None:
                strand = _shared(call.strand, strands)
                if strand is not call.strand:
                    force_setattr(call, "strand", strand)
        return self


def _shared(strand: Strand, strands: dict[int, Strand]) -> Strand:
    """Return the strand (a thread, task or row's scope) of the same number in `strands`; add it, and the strands above
    it, if it is not there.
    """
    # The body runs at most once, since it adds the strand: the loop then returns it.
    while (known_strand := strands.get(strand.number)) is None:
        strands[strand.number] = strand
        if strand.parent is None:
            return strand
        strand.parent = _shared(strand.parent, strands)
    return known_strand


class Collector:
    """Collects the calls of one rollout function call.

    Any thread may add a call, even one that is just adding another: Python may collect garbage at any point, and a
    destructor may call an environment. So objects are released outside of the lock, and everything that is done
    without the lock is one atomic operation of the interpreter on a dict, a list or a counter.
    """

    def __init__(self, model: Any = None) -> None:
        """`model` is the trainer's: generations of other models are not recorded; if it is None, those of all are."""
        self.records = CallRecords([], [], [])
        self.model = model
        self.unfinished: set[Any] = set()  # replies (`Exchange`) that `close` ends, unless they were read to their end
        self.functions: dict[int, str] = {}
        # Answers that a server keeps, for requests that go on from them by name: the answer, and how many of its first
        # messages are not kept.
        self.answers: dict[str, tuple[Sequence, int]] = {}
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
        """Begin a "generation", "reset", "step", "tool" or "reward" of a strand (a thread, task or row's scope). It is
        awaited until `add` or `forget`; `close` gives it up. The client is kept alive until then, since Python reuses
        the id of a dead object. `sent` is JSON; None for a generation, which alone has a `seam`.
        """
        number = -1 if client is None else self._number(client)
        order = next(self._orders)
        begun = self._waiting[order] = Begun(order, time.perf_counter(), strand, kind, number, sent, seam)
        return begun

    def running(self, function: str) -> AbstractContextManager[Strand]:
        """Return a context manager whose calls are those of a reward function."""
        strand = self.tree.child(self.tree.root)
        self.functions[strand.number] = function
        return within(strand)

    def add(self, call: Call) -> None:
        """Add a call that ended, unless the collector is closed: the writer reads the records then."""
        size = call.size
        with self._lock:
            if not self._is_closed:
                self._waiting.pop(call.order, None)
                self.records.keep(call, size)

    def go_on_from(self, records: CallRecords) -> None:
        """Take over the calls that another process recorded for the one row, as if they were made here until now."""
        calls: list[Any] = [*records.generations, *records.environment_calls]
        # Each process has a clock of its own: the shift makes the last of these calls end at this moment.
        shift = time.perf_counter() - max([call.began + (call.seconds or 0.0) for call in calls], default=0.0)
        strands: dict[int, Strand] = {}
        # Strands of the other process become children of this tree's root. They keep their row, and the environment
        # call that they are in: calls keep their order numbers.
        for call in records.calls:
            before = call.strand
            if before is not None and before.number not in strands:
                strands[before.number] = strand = self.tree.child(self.tree.root)
                strand.row, strand.call = before.row, before.call
            force_setattr(call, "strand", before and strands[before.number])
            if not isinstance(call, Note):
                force_setattr(call, "began", call.began + shift)
            self.records.keep(call, call.size)
        # New calls, and new clients, are numbered after those that are taken over.
        self._orders = itertools.count(1 + max([call.order for call in records.calls], default=-1))
        self._client_numbers = itertools.count(
            1 + max([environment_call.client for environment_call in records.environment_calls], default=-1)
        )

    def forget(self, begun: Begun) -> None:
        """End a call of which nothing is recorded."""
        self._waiting.pop(begun.order, None)

    def note(self, strand: Strand, kind: str, values: bytes) -> None:
        """Add a note about the row of a strand (the thread, task or row's scope that makes the note)."""
        self.add(Note(next(self._orders), kind, values, strand))

    def so_far(self) -> CallRecords:
        """Return a copy of the calls as of now. Calls that have not returned have no `seconds`."""
        # Copied before the records: a call that returns meanwhile is in both, and not in neither.
        waiting = self._waiting.copy()
        copy = self.records.copy()
        came_back = {call.order for call in copy.generations} | {call.order for call in copy.environment_calls}
        for order, begun in waiting.items():
            if order not in came_back:
                copy.keep(unanswered(begun), 0)
        return copy

    def close(self) -> None:
        """End unfinished replies, give up calls that have not returned, and release the model and the clients."""
        # Replies end first: ending one adds its record, which a closed collector does not take.
        for reply in list(self.unfinished):
            reply.end()
        with self._lock:
            self._is_closed = True
        # From here on `add` changes nothing, so the records can be completed without the lock.
        for begun in self._waiting.copy().values():
            call = unanswered(begun, GIVEN_UP)
            self.records.keep(call, call.size)
        self._judge_threads()
        self._count_children()
        self.model = None
        self.answers.clear()
        self._waiting.clear()
        self._clients.clear()

    def _judge_threads(self) -> None:
        """Leave calls of threads that outlive their row unattributed: such a thread may serve other rows too."""
        alive = {strand for thread, strand in self.tree.threads if thread.is_alive()}
        self.tree.threads.clear()
        for call in self.records.calls if alive else []:
            if call.strand is not None and not alive.isdisjoint(call.strand.path):
                call.strand.row = NO_ROW

    def _count_children(self) -> None:
        """Add notes for calls of forked children: only their number is known, so they are unattributed."""
        count = _children.take()
        strand = Strand(self.tree, self.tree.root, next(self.tree.numbers), NO_ROW) if count else None
        for _ in range(count):
            self.records.keep(Note(next(self._orders), "lost", b"null", strand), 0)

    def of_forked_child(self) -> "Collector":
        """Return a collector for a forked child, whose calls cannot reach this process."""
        return _ChildsCollector(self.model, _children.forked())

    def _number(self, client: object) -> int:
        entry = self._clients.get(id(client))
        if entry is None:
            # `setdefault` is atomic: if two threads number a client at once, both get the number of the first.
            entry = self._clients.setdefault(id(client), (next(self._client_numbers), client))
        return entry[0]


class _ChildsCollector(Collector):
    """Counts calls in a child that was forked while calls were recorded; stores none."""

    def __init__(self, model: Any, counted: CallsOfChildren) -> None:
        super().__init__(model)
        self._counted = counted

    def add(self, call: Call) -> None:
        """Count a call, unless an environment call made it."""
        self._waiting.pop(call.order, None)
        if getattr(call, "within", None) is None:
            self._counted.add()

    def of_forked_child(self) -> Collector:
        """Return a collector for a child's child, whose calls are counted with the child's."""
        return _ChildsCollector(self.model, self._counted.forked())

    def _number(self, _: object) -> int:
        return -1  # this collector is never closed, and would keep each client alive


def generating_strand() -> Strand | None:
    """Return the strand of a generation that is to be recorded; None elsewhere, and inside another generation."""
    strand = current_strand()
    return None if strand is None or strand.generating else strand


def generating() -> AbstractContextManager[Strand | None]:
    """Return a context manager in which generations are parts of the one that is under way."""
    strand = branch(generating=True)
    return nullcontext() if strand is None else within(strand)


@contextmanager
def generation(strand: Strand, seam: str) -> Iterator[Begun]:
    """Wrap a model call that a strand (a thread, task or row's scope) makes: begin a generation, of which generations
    inside are parts, and record it if that raises.
    """
    collector = strand.tree.collector
    begun = collector.begin(strand, "generation", seam=seam)
    try:
        with generating():
            yield begun
    except BaseException as error:
        with guard("recording that a generation failed"):
            collector.add(unanswered(begun, error))
        raise


@contextmanager
def answered(begun: Begun) -> Iterator[None]:
    """Wrap the recording of a result: if that fails, the call is forgotten, since nothing else ends it."""
    try:
        yield
    finally:
        begun.strand.tree.collector.forget(begun)


def collecting(collector: Collector) -> AbstractContextManager[None]:
    """Return a context manager that collects the calls in its block, also of threads whose start was not seen."""
    return opened(collector.tree)


_children = CallsOfChildren()


def _in_forked_child() -> None:
    """Count anew in a forked child. `strands` registered its hook before, and still uses the parent's count."""
    global _children  # noqa: PLW0603 - a child has children of its own
    _children = CallsOfChildren()


def _in_parent() -> None:
    # Only a child that is forked while calls are recorded can make calls that count: without one, `take` reads nothing.
    if current_strand() is not None:
        _children.there_are()


on_fork(after_in_child=_in_forked_child, after_in_parent=_in_parent)
