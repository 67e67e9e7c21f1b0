"""How a rollout's messages and tokens are packed into two compressed blobs, and unpacked."""

import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import zstandard
from numpy.typing import NDArray

from logs_ui.recorder.clean import tree

_HEADER = struct.Struct("<4i")
_ABSENT = -1
_ZSTD_LEVEL = 3  # measured: higher levels cost more CPU than they save disk on chat text
_of_thread = threading.local()  # a compressor, which only one thread may use; making one takes as long as using it

NO_TOKENS = zstandard.compress(b"")
"""In place of tokens that are known no more: None would leave those that a running row had come to."""


class Unpacked(bytes):
    """A payload that is not compressed yet. Many are packed at once: each time that the compressor lets go of the GIL
    costs a thread that waits for it as much as the compression takes.
    """

    __slots__ = ()


@dataclass(frozen=True)
class Tokens:
    """The token arrays of one rollout.

    Attributes:
        prompt_ids: (P,) int32.
        completion_ids: (C,) int32, model's and environment's tokens in order.
        logprobs: (C,) float16, the sampler's; relative error up to 2**-11 (4.9e-4), and below -65504 it becomes -inf.
            None where the rollout function returned none.
        mask: (C,) uint8, 1 = sampled by the model, 0 = inserted. None where the rollout function returned none, which
            means that all are the model's.
    """

    prompt_ids: NDArray[np.int32]
    completion_ids: NDArray[np.int32]
    logprobs: NDArray[np.float16] | None
    mask: NDArray[np.uint8] | None


def unpacked_content(content: dict[str, Any]) -> Unpacked:
    """Messages, actions, sampling and metadata: a tree; what JSON or UTF-8 cannot hold is replaced."""
    return Unpacked(tree(content))


def unpacked_tokens(tokens: Tokens) -> Unpacked:
    arrays = (tokens.prompt_ids, tokens.completion_ids, tokens.logprobs, tokens.mask)
    sizes = [_ABSENT if array is None else len(array) for array in arrays]
    return Unpacked(b"".join([_HEADER.pack(*sizes), *(a.tobytes() for a in arrays if a is not None)]))


def pack(payloads: Sequence[Unpacked]) -> list[bytes]:
    """Compresses each of them."""
    if not payloads:
        return []
    if not hasattr(_of_thread, "compressor"):
        _of_thread.compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
    return [packed.tobytes() for packed in _of_thread.compressor.multi_compress_to_buffer(payloads)]


def pack_content(content: dict[str, Any]) -> bytes:
    """As `unpacked_content`, compressed."""
    return pack([unpacked_content(content)])[0]


def pack_tokens(tokens: Tokens) -> bytes:
    return pack([unpacked_tokens(tokens)])[0]


def unpack_content(blob: bytes | None) -> dict[str, Any]:
    """An empty dict for a rollout that has no content yet, or whose payload was dropped."""
    if blob is None:
        return {}
    loaded: dict[str, Any] = orjson.loads(zstandard.decompress(blob))
    return loaded


def unpack_tokens(blob: bytes | None) -> Tokens | None:
    """None for a rollout that has no tokens yet, or whose payload was dropped."""
    data = b"" if blob is None else zstandard.decompress(blob)
    if not data:
        return None
    offset = _HEADER.size
    arrays: list[NDArray[Any] | None] = []
    for size, dtype in zip(_HEADER.unpack_from(data), (np.int32, np.int32, np.float16, np.uint8), strict=True):
        arrays.append(None if size == _ABSENT else np.frombuffer(data, dtype, size, offset))
        offset += max(size, 0) * np.dtype(dtype).itemsize
    prompt_ids, completion_ids, logprobs, mask = arrays
    assert prompt_ids is not None  # noqa: S101 - the writer always has both
    assert completion_ids is not None  # noqa: S101
    return Tokens(prompt_ids, completion_ids, logprobs, mask)
