"""How a rollout's messages and tokens are packed into two compressed blobs, and unpacked.

All rollouts of a group begin with the same prompt, which is about half of what there is to store. Such a beginning (the
JSON of the messages before the model's first, or the prompt's token ids) is stored once, as a `PayloadStart`; then a
payload holds what follows it, and names it.
"""

import struct
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import orjson
import zstandard
from numpy.typing import NDArray

from logs_ui.recorder.snapshot import tree

_COUNT = struct.Struct("<i")
_COUNTS = struct.Struct("<3i")
_ABSENT = -1
_ID = 4  # bytes
_ZSTD_LEVEL = 1  # measured: 3 takes a third longer, for 2% of what is stored
_ANSWER = b'{"role":"assistant"'  # within a string the quotes would be escaped
_SHORTEST = 512  # bytes: a start of its own takes some 60, beside what it is packed into
_REMEMBERED = 2 * 4_096  # starts: a prompt has two, its messages and its ids
_KEPT, _KEPT_BYTES = 32, 1 << 18  # unpacked starts, of so many bytes each at most
_of_thread = threading.local()  # a compressor, which only one thread may use; making one takes as long as using it

NO_TOKENS = zstandard.compress(b"")
"""In place of tokens that are known no more: None would leave those that a running row had come to."""


class Unpacked(bytes):
    """A payload that is not compressed yet. Many are packed at once: each time that the compressor lets go of the GIL
    costs a thread that waits for it as much as the compression takes.
    """

    __slots__ = ()

    @property
    def start(self) -> int:
        """How many bytes others may begin with, too."""
        return self.find(_ANSWER)


class UnpackedTokens(Unpacked):
    """Of a rollout's tokens."""

    __slots__ = ()

    @property
    def start(self) -> int:
        """The prompt's ids."""
        (count,) = _COUNT.unpack_from(self)
        return _COUNT.size + _ID * int(count)


class Packed(NamedTuple):
    """A payload as it is stored.

    Attributes:
        data: compressed, without its start where it has one.
        start: id of the PayloadStart that it begins with; None where all of it is in `data`.
    """

    data: bytes
    start: int | None


@dataclass(frozen=True)
class Tokens:
    """The token arrays of one rollout.

    Attributes:
        prompt_ids: (P,) int32.
        completion_ids: (C,) int32, model's and environment's tokens in order.
        logprobs: (C,) float16, the sampler's; relative error up to 2**-11 (4.9e-4), and below -65504 it becomes -inf.
            None where neither the rollout function nor its model calls returned any; NaN where these gave none.
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


def unpacked_tokens(tokens: Tokens) -> UnpackedTokens:
    """The prompt's number and ids; then the others' numbers, ids, log-probs and mask."""
    others = (tokens.completion_ids, tokens.logprobs, tokens.mask)
    counts = _COUNTS.pack(*(_ABSENT if array is None else len(array) for array in others))
    prompt = _COUNT.pack(len(tokens.prompt_ids)), _halves(tokens.prompt_ids)
    arrays = (array.tobytes() for array in others[1:] if array is not None)
    return UnpackedTokens(b"".join([*prompt, counts, _halves(tokens.completion_ids), *arrays]))


def pack(payloads: Sequence[bytes]) -> list[bytes]:
    """Compresses each of them, whole."""
    if not payloads:
        return []
    if not hasattr(_of_thread, "compressor"):
        _of_thread.compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
    return [packed.tobytes() for packed in _of_thread.compressor.multi_compress_to_buffer(payloads)]


def pack_together(payloads: Sequence[Unpacked]) -> tuple[list[Packed], dict[int, bytes]]:
    """Compresses each of them, without its start where another of them has the same, or one of this thread had before.

    Returns:
        Them, and the starts that they name, compressed, by id.
    """
    again = _again(payloads)
    ids: dict[bytes, int] = {}
    named: list[int | None] = [None] * len(payloads)
    rests: list[bytes] = list(payloads)
    for place in again:
        end = payloads[place].start
        start, rests[place] = payloads[place][:end], payloads[place][end:]
        if start not in ids:
            ids[start] = _key(start)
        named[place] = ids[start]
    small = pack([*rests, *ids])
    packed = list(map(Packed, small, named))
    return packed, dict(zip(ids.values(), small[len(payloads) :], strict=True))


def pack_content(content: dict[str, Any]) -> bytes:
    """As `unpacked_content`, compressed, whole."""
    return pack([unpacked_content(content)])[0]


def pack_tokens(tokens: Tokens) -> bytes:
    return pack([unpacked_tokens(tokens)])[0]


def unpack_json(blob: bytes | None, start: bytes | None = None) -> bytes:
    """A content's JSON; empty for a rollout that has none yet, or whose payload was dropped.

    Args:
        blob: packed.
        start: packed, where it has one.
    """
    return b"" if blob is None else _begun(start) + zstandard.decompress(blob)


def unpack_content(blob: bytes | None, start: bytes | None = None) -> dict[str, Any]:
    """As `unpack_json`; an empty dict where that is empty."""
    if blob is None:
        return {}
    loaded: dict[str, Any] = orjson.loads(unpack_json(blob, start))
    return loaded


def unpack_tokens(blob: bytes | None, start: bytes | None = None) -> Tokens | None:
    """None for a rollout that has no tokens yet, or whose payload was dropped.

    Raises:
        ValueError: among others, of what lacks its start: numbers are read from it that are none.
    """
    data = unpack_json(blob, start)
    if not data:
        return None
    prompt_ids, offset = _whole(data, _COUNT.unpack_from(data)[0], _COUNT.size)
    count, *others = _COUNTS.unpack_from(data, offset)
    completion_ids, offset = _whole(data, count, offset + _COUNTS.size)
    arrays: list[NDArray[Any] | None] = []
    for size, dtype in zip(others, (np.float16, np.uint8), strict=True):
        arrays.append(None if size == _ABSENT else np.frombuffer(data, dtype, size, offset))
        offset += max(size, 0) * np.dtype(dtype).itemsize
    if offset != len(data):
        raise ValueError(f"{offset} bytes are said, and {len(data)} there")
    logprobs, mask = arrays
    return Tokens(prompt_ids, completion_ids, logprobs, mask)


def unpacked_size(blob: bytes | None, start: bytes | None = None) -> int:
    """Bytes, which a text that repeats itself has a thousand times as many of as its payload."""
    return sum(zstandard.frame_content_size(it) for it in (blob, start) if it is not None)


def _halves(ids: NDArray[np.int32]) -> bytes:
    """The lower two bytes of all, and then the upper, which are nearly always the same: that halves what is to be
    compressed, and what is left takes a sixth less than whole ids do.
    """
    halves = np.ascontiguousarray(ids, "<i4").view("<u2")
    return halves[::2].tobytes() + halves[1::2].tobytes()


def _whole(data: bytes, count: int, offset: int) -> tuple[NDArray[np.int32], int]:
    """Ids, of so many, and where they end."""
    halves = np.frombuffer(data, "<u2", 2 * count, offset).reshape(2, count)
    return np.ascontiguousarray(halves.T).view("<i4").reshape(count), offset + _ID * count


def _again(payloads: Sequence[Unpacked]) -> list[int]:
    """Places of those whose start is met again. One is known by its hash: to keep it would take most of the time."""
    keys = [hash(payload[:end]) if (end := payload.start) >= _SHORTEST else None for payload in payloads]
    times = Counter(keys)
    again = {key for key in times if key is not None and (_was_met(key) or times[key] > 1)}
    return [place for place, key in enumerate(keys) if key in again]


def _was_met(key: int) -> bool:
    """Whether it was asked for before, by this thread and not long ago."""
    met: dict[int, None] = _of_thread.__dict__.setdefault("met", {})
    was_met = key in met
    met.pop(key, None)
    met[key] = None
    if len(met) > _REMEMBERED:
        del met[next(iter(met))]
    return was_met


def _key(start: bytes) -> int:
    """Equal starts have equal ones. 63 bits: that two of a million others meet in one has a chance of 5e-8."""
    return int.from_bytes(blake2b(start, digest_size=8).digest(), "little") >> 1


def _begun(start: bytes | None) -> bytes:
    if start is None:
        return b""
    return _known(start) if unpacked_size(start) <= _KEPT_BYTES else zstandard.decompress(start)


@lru_cache(_KEPT)
def _known(start: bytes) -> bytes:
    return zstandard.decompress(start)
