"""Records a generation that is requested over HTTP, from the request to the end of the reply."""

import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import structs

from logs_ui.recorder.capture.calls import (
    GIVEN_UP,
    Call,
    Collector,
    Generation,
    generating,
    generating_strand,
    unanswered,
)
from logs_ui.recorder.capture.http.replies import Json, Request, error_of, reply_of, request_id, request_of
from logs_ui.recorder.capture.model_answers import Sequence, end_tokens, finish_of
from logs_ui.recorder.capture.strands import Strand
from logs_ui.recorder.guard import guard

Sent = tuple[str, str, object]
"""Method, URL and body of a request."""

_LARGEST = 64 * 2**20  # bytes of a reply that is still read
_DONE = re.compile(rb"\ndata: ?\[DONE\]\s*$")


def begin(seam: str, sent: Callable[[], Sent]) -> "Exchange | None":
    """Begin to record a generation that is about to be requested; None if it is not to be recorded."""
    strand = generating_strand()
    if strand is None:
        return None
    with guard("reading a request to a server"):
        method, url, body = sent()
        question = request_of(url, body) if method == "POST" else None
        return None if question is None else Exchange(strand, question, seam)
    return None


class Exchange:
    """Records one request for a generation, and its reply as it arrives.

    It is recorded once: when the reply is complete, when it fails, or when the collector is closed. It is not recorded
    when a stream is closed: Python also does that when it collects garbage, at any point, even while the collector is
    locked.
    """

    def __init__(self, strand: Strand, question: Request, seam: str) -> None:
        self.collector: Collector = strand.tree.collector
        self._question, self._seam = question, seam
        # If the request goes on from an earlier answer by name, the server prepends what it keeps of it, and so does
        # the record: its prompt is what the model was given.
        before = self.collector.answers.get(question.previous or question.conversation or "")
        if before is not None:
            question.prepend(*before)
        self.inside: Strand | None = None  # the strand in which the client asks, and reads a whole reply
        self._is_awaited = False
        self._status = 200
        self._decode: Callable[[bytes], bytes] | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._tail = b"\n"  # the last bytes; JSON contains no line breaks, so "[DONE]" after one is the end
        self._begun = self.collector.begin(strand, "generation", seam=seam)
        self._heard = self._begun.began  # when the last part of the reply arrived
        self.collector.unfinished.add(self)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Wrap the request: generations inside are parts of this one, and an exception ends it."""
        with self.reading(BaseException), generating() as self.inside:
            yield

    def answers(self, status: int, decode: Callable[[bytes], bytes] | None = None) -> None:
        """Note that the reply begins. `decode` undoes the encoding of the parts for `heard`; None if there is none."""
        self._heard = time.perf_counter()
        self._status, self._decode = status, decode

    def heard(self, part: bytes) -> None:
        """Take the next part of the reply. A reply that is too large is not kept."""
        self._heard = time.perf_counter()
        self._size += len(part)
        if self._size > _LARGEST:
            self._parts.clear()
            return
        self._parts.append(part)
        # The end mark may be cut into two parts, so it is searched in the last bytes of all parts.
        self._tail = (self._tail + part[-64:])[-64:]
        if _DONE.search(self._tail):  # readers stop here, and may keep the connection
            self.end()

    @contextmanager
    def reading(self, ending: type[BaseException] = Exception) -> Iterator[None]:
        """Wrap the user's reading of a part: an `ending` exception ends the reply."""
        self._is_awaited = True
        try:
            yield
        except ending as error:
            self.raised(error)
            raise
        finally:
            self._is_awaited = False

    def passing(self, parts: Iterable[Any], encoding: str = "utf-8") -> Iterator[Any]:
        """Pass on the parts, bytes or text, that the user reads, and take them."""
        with self.reading():
            for part in parts:
                self._hear(part.encode(encoding, "replace") if isinstance(part, str) else part)
                yield part
        self.end()

    async def passing_async(self, parts: Any) -> AsyncIterator[bytes]:
        """Do the same for an asynchronous stream."""
        iterator = aiter(parts)
        try:
            with self.reading():
                async for part in iterator:
                    self._hear(part)
                    yield part
        finally:
            if hasattr(iterator, "aclose"):
                await iterator.aclose()
        self.end()

    def end(self) -> None:
        """End the reply: it is complete, or is not read on. If nothing came and it is still awaited, it failed."""
        if self._is_awaited and not self._size:
            self.raised(GIVEN_UP)
            return
        self._record(lambda: None if self._size > _LARGEST else self._generation(self._reply()))

    def replied(self, reply: Json) -> None:
        """Record the whole reply, which the client has read."""
        self._heard = time.perf_counter()
        self._record(lambda: self._generation(reply))

    def raised(self, error: BaseException) -> None:
        """Record that there is no reply."""
        question = self._question
        columns = {"sampling": question.sampling, "request_id": question.request_id, "prompt": question.first}
        self._record(lambda: structs.replace(unanswered(self._begun, error), **columns))

    def _hear(self, part: bytes) -> None:
        with guard("listening to a server's reply"):
            self.heard(part)

    def _record(self, make: Callable[[], Call | None]) -> None:
        # `remove` is atomic: if two threads end the reply at once, only one of them records it.
        try:
            self.collector.unfinished.remove(self)
        except KeyError:
            return  # it is recorded already
        with guard("reading a server's reply"):
            generation = make()
            if generation is not None:
                self.collector.add(generation)
        self._parts.clear()
        self.collector.forget(self._begun)  # if nothing was added

    def _reply(self) -> Json | None:
        data = b"".join(self._parts)
        return reply_of(data if self._decode is None else self._decode(data))

    def _generation(self, reply: Json | None) -> Generation | None:
        """Make the record; None if the reply is not one to a generation."""
        error = error_of(reply, self._status)
        sequences = [] if error or reply is None else [*map(self._ended, self._question.sequences(reply))]
        if not sequences and not error:
            return None
        name = reply and request_id(reply)
        # A later request may name this answer, or only its conversation.
        if sequences and self._question.instructions is not None:
            for key in filter(None, (name, self._question.conversation)):
                self.collector.answers[str(key)] = sequences[0], self._question.instructions
        begun, question = self._begun, self._question
        return Generation(
            begun.order, begun.began, self._heard - begun.began, sequences, question.sampling, self._seam, begun.strand,
            error, name or question.request_id, None if sequences else question.first,
        )  # fmt: skip

    def _ended(self, sequence: Sequence) -> Sequence:
        """Add why a sequence ended, if only its ids show it, such as those of TRL's server."""
        if sequence.finish is not None or sequence.sampled is None:
            return sequence
        limit = self._question.sampling.get("max_tokens")
        finish = finish_of(
            sequence.sampled, end_tokens(self.collector.model), limit if isinstance(limit, int) else None
        )
        return structs.replace(sequence, finish=finish)
