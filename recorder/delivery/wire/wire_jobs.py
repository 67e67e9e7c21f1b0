"""Jobs as bytes, and back: how what was seen goes to the process that writes it (`helper_client.py`). MessagePack, and
nothing that either side would have to trust: no pickles.

Only what is plain travels. A job that needs the user's own functions (`parse=`, `edit=`), or holds what MessagePack
does not know, is made into changes where it is, and these travel.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from logs_ui.recorder.capture.calls import CallLog
from logs_ui.recorder.delivery.job_queue import Job
from logs_ui.recorder.delivery.wire.wire_arrays import (
    SentOutput,
    extended,
    plain,
    received_output,
    sent_output,
)
from logs_ui.recorder.delivery.wire.wire_calls import received_calls, sent_calls
from logs_ui.recorder.rows.rollout_call import RolloutCall, RowOptions, TokenizerSource
from logs_ui.recorder.rows.row_jobs import (
    ColumnsJob,
    FailedJob,
    FinishedJob,
    HeaderJob,
    ReturnedJob,
    RunningJob,
)
from logs_ui.recorder.storage.changes import Batch, Change
from logs_ui.recorder.storage.spool import spool_entry as entries
from logs_ui.recorder.storage.spool.spool_entry import Entry
from logs_ui.recorder.vocabulary import Mode, Status

_BATCH = "batch"
_TOKENIZER = "tokenizer"
_JOBS: dict[type, str] = {
    RunningJob: "running",
    ReturnedJob: "returned",
    FailedJob: "failed",
    FinishedJob: "finished",
    HeaderJob: "header",
    ColumnsJob: "columns",
}
_FIELDS = [field.name for field in fields(RolloutCall)]
_names_of_call = attrgetter(*_FIELDS[: _FIELDS.index("prompts")])
_rest_of_call = attrgetter("tasks", "created", "settled", "group", "generation")
_NOTHING_SEEN = CallLog()  # of calls that are received without theirs; nobody adds to it


class Wire:
    """One side's: to encode what goes to one process, in order, or to decode all of what came from one."""

    def __init__(self) -> None:
        """Nothing is known on either side.

        Attributes:
            refused: changes so far that `frames` had to leave out.
        """
        self.refused = 0
        self._sources: dict[str, TokenizerSource] = {}

    def frames(self, job: Job) -> tuple[list[bytes], int]:
        """The job, and how many changes it is, about. Lets go of what the job kept alive, if nothing else needs it. A
        tokenizer that was not sent before comes first.

        Raises:
            Exception: of any kind, where its changes cannot be made.
        """
        if isinstance(job, RunningJob) and job.is_over:
            return [], 0
        if not is_plain(job):
            return self._as_batch(job)
        try:
            frame = _encoder.encode(_sent(job))
        except (TypeError, ValueError, OverflowError):  # what MessagePack does not know
            return self._as_batch(job)
        count = len(job.call.prompts)  # type: ignore[attr-defined]
        if isinstance(job, ReturnedJob | FailedJob | FinishedJob):
            job.call.release()
        source: TokenizerSource | None = job.call.source  # type: ignore[attr-defined]
        if source is None or source.hash in self._sources:
            return [frame], count
        self._sources[source.hash] = source
        return [_tokenizer_frame(source), frame], count

    def tokenizers(self) -> list[bytes]:
        """Frames of those that were sent, for another process in the place of the first."""
        return list(map(_tokenizer_frame, self._sources.values()))

    def job(self, frame: bytes) -> Job | None:
        """What `frames` made of one; None of a tokenizer, which jobs that follow name.

        Raises:
            msgspec.DecodeError: it is none.
        """
        received = _decoder.decode(frame)
        kind, values = received.kind, received.values
        if kind == _TOKENIZER:
            self._sources[values[0]] = TokenizerSource(*values)
            return None
        if kind == _BATCH:
            return BatchJob(entries.decoded(values[0]).batch)
        output = None if received.output is None else received_output(received.output)
        return _job(kind, output, values, self._sources)

    def _as_batch(self, job: Job) -> tuple[list[bytes], int]:
        from logs_ui.recorder.rows.packing import packed  # only a training without plain jobs needs it

        batch = packed(Batch.merged(job.changes()))
        data, refused = entries.encoded(Entry(0, 0, batch))
        self.refused += refused
        return [_encoder.encode([_BATCH, None, [data]])], len(batch.rows) + 1


@dataclass(frozen=True)
class BatchJob:
    """Changes that another process made."""

    batch: Batch

    @property
    def size(self) -> int:
        return self.batch.size

    def changes(self) -> Iterable[Change]:
        for kind in fields(self.batch):
            yield from getattr(self.batch, kind.name)

    def without_payload(self) -> "BatchJob":
        """Itself: it is written next."""
        return self


def is_plain(job: Job) -> bool:
    """Whether it can be encoded elsewhere."""
    if type(job) not in _JOBS:
        return False
    options: RowOptions = job.call.options  # type: ignore[attr-defined]
    return options.parse is None and options.edit is None


def _tokenizer_frame(source: TokenizerSource) -> bytes:
    return _encoder.encode([_TOKENIZER, None, [source.hash, source.json]])


class _Frame(msgspec.Struct, array_like=True):
    """What is sent of one job.

    Attributes:
        kind: of `_JOBS`, `_BATCH` or `_TOKENIZER`.
        output: None of a job without.
        values: the call as far as the job needs it, and what else it holds.
    """

    kind: str
    output: SentOutput | None
    values: list[Any]


def _sent(job: Any) -> list[Any]:
    """What is read as a `_Frame`."""
    kind, call = _JOBS[type(job)], job.call
    match job:
        case RunningJob():
            calls = None if job.only_announces() else call.calls.so_far()
            return [kind, None, [_sent_call(call, calls, with_text=calls is not None), calls is None]]
        case ReturnedJob():
            return [kind, sent_output(job.output), [_sent_call(call, call.calls), job.returned]]
        case FinishedJob():
            output = None if job.output is None else sent_output(job.output)
            return [kind, output, [_sent_call(call, call.calls), job.metadata, job.ended, job.returned]]
        case FailedJob():
            return [kind, None, [_sent_call(call, call.calls), job.error, job.trace, job.status, job.returned]]
        case HeaderJob():
            return [kind, None, [_sent_call(call, None), list(map(dict, job.headers)), job.trace]]
        case _:
            return [kind, None, [_sent_call(call, None, with_text=False), list(map(dict, job.columns))]]


def _job(kind: str, output: Any, values: list[Any], sources: dict[str, TokenizerSource]) -> Job:
    call, rest = _received_call(values[0], sources), values[1:]
    match kind:
        case "running":
            return RunningJob(call, are_there=not rest[0])
        case "returned":
            return ReturnedJob(call, output, *rest)
        case "finished":
            return FinishedJob(call, output, *rest)
        case "failed":
            error, trace, status, returned = rest
            return FailedJob(call, error, trace, Status(status), returned)
        case "header":
            return HeaderJob(call, *rest)
        case _:
            return ColumnsJob(call, *rest)


def _sent_call(call: RolloutCall, calls: CallLog | None, *, with_text: bool = True) -> list[Any]:
    """Without its calls where there are none."""
    log = None if calls is None else sent_calls(calls)
    server_log = call.options.server_log
    options = [None if server_log is None else str(server_log), call.options.offers_tools]
    columns = call.columns if with_text else None
    prompts = call.prompts if with_text else len(call.prompts)
    source = None if call.source is None else call.source.hash
    return [_names_of_call(call), _rest_of_call(call), prompts, columns, source, options, log]


def _received_call(sent: list[Any], sources: dict[str, TokenizerSource]) -> RolloutCall:
    names, (tasks, created, settled, group, generation), prompts, columns, source, options, log = sent
    further = [
        [b"[]"] * prompts if isinstance(prompts, int) else prompts,
        tasks,
        columns,
        None if source is None else sources[source],
        _NOTHING_SEEN if log is None else received_calls(log),
        created,
        settled,
        _options(*options),
        group,
        generation,
    ]
    call = RolloutCall(*names, *further)  # in their order: by their names it takes twice as long
    call.mode = Mode(call.mode)
    return call


@lru_cache(64)
def _options(server_log: str | None, offers_tools: bool) -> RowOptions:  # noqa: FBT001
    return RowOptions(server_log=None if server_log is None else Path(server_log), offers_tools=offers_tools)


_encoder = msgspec.msgpack.Encoder(enc_hook=plain)
_decoder = msgspec.msgpack.Decoder(_Frame, ext_hook=extended)
