"""Turns jobs into bytes, in the training, and bytes into jobs, in the helper process. The bytes are MessagePack, not
pickles: decoding them runs no code.

Jobs are structs (`rows/jobs.py`), which one typed decoder reads. Only plain values are sent. A job that needs the
user's own functions (`parse=`, `edit=`), or has values that MessagePack does not support, is turned into changes in the
training, and these are sent.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder
from msgspec.structs import force_setattr, replace

from logs_ui.recorder.capture.calls import Collector
from logs_ui.recorder.capture.observed_images import Images
from logs_ui.recorder.capture.strands import StrandTree
from logs_ui.recorder.delivery.job_queue import Job, changes_of
from logs_ui.recorder.delivery.wire.arrays import extended, plain_array, received_output, sent_output
from logs_ui.recorder.rows.jobs import (
    ColumnsJob,
    EndedJob,
    FailedJob,
    FinishedJob,
    HeaderJob,
    ReturnedJob,
    RowsJob,
    RunningJob,
)
from logs_ui.recorder.rows.rollout_call import TokenizerSource
from logs_ui.recorder.storage.changes import NO_ENTRY, Change, StoredImage
from logs_ui.recorder.storage.spool import entry as entries
from logs_ui.recorder.storage.spool.entry import Entry

_RECEIVED = StrandTree()  # shared by all received strands: no calls are collected in it


class BatchJob(Struct, array_like=True, tag="batch"):
    """Changes that were made in the training."""

    entry: bytes  # an encoded `Entry`, see `spool/entry.py`

    @property
    def size(self) -> int:
        return len(self.entry)

    def changes(self) -> Iterable[Change]:
        return entries.decoded(self.entry, lambda entry: entry).batch.changes()

    def without_payload(self) -> "BatchJob":
        """Return itself."""
        return self


class _Tokenizer(Struct, array_like=True, tag="tokenizer"):
    """Holds a tokenizer; later jobs refer to it by its hash."""

    hash: str
    json: str


_Frame = RunningJob | ReturnedJob | FinishedJob | FailedJob | HeaderJob | ColumnsJob | BatchJob | _Tokenizer


class Wire:
    """Encodes all jobs that go to one process, or decodes all that come from one, in order."""

    def __init__(self) -> None:
        self.refused = 0  # number of changes that `frames` has left out so far
        self._sources: dict[str, TokenizerSource] = {}  # tokenizers that both sides know
        self._encoder = Encoder(enc_hook=self._plain)
        self._decoder: Decoder[Any] = Decoder(_Frame, dec_hook=self._typed, ext_hook=extended)

    def frames(self, job: Job) -> tuple[list[bytes], int]:
        """Encode a job; return its frames, and about how many changes it has. Releases the job's calls and texts, if
        nothing else needs them. A tokenizer that was not sent before is the first frame. Raise any exception if the
        changes of the job cannot be made.
        """
        if isinstance(job, RunningJob) and job.is_over:
            return [], 0
        if not isinstance(job, RowsJob) or not is_plain(job):
            return self._as_batch(job)
        try:
            plain = job.plain()
            if isinstance(plain, ReturnedJob | FinishedJob) and plain.output is not None:
                plain = replace(plain, output=sent_output(plain.output))
            frame = self._encoder.encode(plain)
        except (TypeError, ValueError, OverflowError, RecursionError):  # a value that MessagePack does not support
            return self._as_batch(job)
        # The calls of an ended job are in the frame. Those of a running one are needed again.
        if isinstance(job, EndedJob):
            job.call.release()
        source = job.call.source
        if source is None or source.hash in self._sources:
            return [frame], len(job.call.prompts)
        self._sources[source.hash] = source
        return [self._tokenizer(source), frame], len(job.call.prompts)

    def tokenizers(self) -> list[bytes]:
        """Return the frames of the tokenizers that were sent, for another process."""
        return list(map(self._tokenizer, self._sources.values()))

    def job(self, frame: bytes) -> Job | None:
        """Decode a frame; None if it is a tokenizer. Raise msgspec.DecodeError if it is no frame."""
        received: Any = self._decoder.decode(frame)
        if isinstance(received, _Tokenizer):
            self._sources[received.hash] = TokenizerSource(received.hash, received.json)
            return None
        if isinstance(received, RowsJob):
            received.call.calls.share_strands()
        if isinstance(received, ReturnedJob) and received.scoring is not None:
            received.scoring.share_strands()
        if isinstance(received, ReturnedJob | FinishedJob) and received.output is not None:
            force_setattr(received, "output", received_output(received.output))
        job: Job = received
        return job

    def _as_batch(self, job: Job) -> tuple[list[bytes], int]:
        from logs_ui.recorder.rows.draft_batches import packed  # only a training with jobs that are not plain needs it

        batch = packed(changes_of(job))
        data, refused = entries.encoded(Entry(NO_ENTRY, 0, batch))
        self.refused += refused
        return [self._encoder.encode(BatchJob(data))], len(batch.rows) + 1

    def _tokenizer(self, source: TokenizerSource) -> bytes:
        return self._encoder.encode(_Tokenizer(source.hash, source.json))

    def _plain(self, value: Any) -> Any:
        """Return the plain value that is sent for an object that is no struct. Raise TypeError if there is none."""
        match value:
            case np.ndarray() | np.generic():
                return plain_array(value)
            case StrandTree() | Collector():
                return None
            case Images():
                return [
                    [image.hash, image.media_type, image.width, image.height, image.data]
                    for image in value.stored_images
                ]
            case TokenizerSource():
                return value.hash
            case Path():
                return str(value)
        raise TypeError(f"{type(value).__name__} cannot be sent")

    def _typed(self, kind: Any, value: Any) -> Any:
        """Return the object for which `_plain` sent `value`; arrays are decoded already."""
        if kind is StrandTree:
            return _RECEIVED
        # A tokenizer's frame comes before the first job that names its hash.
        if kind is TokenizerSource:
            return self._sources[value]
        if kind is Images:
            return Images.received([StoredImage(*image) for image in value])
        return Path(value) if kind is Path else value


def is_plain(job: Job) -> bool:
    """Return True if the job can be encoded, as it needs none of the user's functions."""
    if not isinstance(job, RowsJob):
        return False
    call = job.call
    # A user may pass numbers of any type to an explicit run, and the decoder accepts only integers.
    is_typed = type(call.step) is int and type(call.policy_step) is int and type(call.generation) in {int, type(None)}
    return is_typed and call.options.parse is None and call.options.edit is None
