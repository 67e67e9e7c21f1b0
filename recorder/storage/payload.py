"""Packs a rollout's messages and tokens into two compressed payloads, and unpacks them.

All rollouts of a group begin with the same prompt, which is about half of their data. Such a beginning (the JSON of the
messages before the model's first, or the prompt's token ids) is stored once, as a `PayloadStart`; the payload then
contains only what follows, and the start's id.
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
_ZSTD_LEVEL = 1  # measured: level 3 takes a third longer and saves 2 %
_ANSWER = b'{"role":"assistant"'  # unambiguous: within a JSON string the quotes would be escaped
_SHORTEST = 512  # bytes: each shared start costs some 60 bytes more than its packed data
_REMEMBERED = 2 * 4_096  # starts; a prompt has two, its messages and its ids
_KEPT, _KEPT_BYTES = 32, 1 << 18  # number and largest size of unpacked starts in the cache
_of_thread = threading.local()  # one compressor for each thread; to make one takes as long as to use it

NO_TOKENS = zstandard.compress(b"")
"""Stored for a row that lost its tokens: None would leave those of the running row in place."""


class Unpacked(bytes):
    """A payload that is not compressed yet. Many are compressed in one call: each release of the GIL costs a waiting
    thread as much as the compression takes.
    """

    __slots__ = ()

    @property
    def start(self) -> int:
        """Return the length of the beginning that others may share, in bytes."""
        return self.find(_ANSWER)


class UnpackedTokens(Unpacked):
    """Holds a rollout's tokens, not compressed yet."""

    __slots__ = ()

    @property
    def start(self) -> int:
        """Return the length of the prompt's ids, with their number, in bytes."""
        (count,) = _COUNT.unpack_from(self)
        return _COUNT.size + _ID * int(count)


class Packed(NamedTuple):
    """A payload as it is stored."""

    data: bytes  # compressed, without the shared start if there is one
    start: int | None  # the id of the PayloadStart; None if `data` is complete


@dataclass(frozen=True)
class Tokens:
    """Holds the token arrays of one rollout."""

    prompt_ids: NDArray[np.int32]  # (P,) int32
    completion_ids: NDArray[np.int32]  # (C,) int32, model's and environment's tokens in order
    # (C,) float16, the sampler's; relative error up to 2**-11 (4.9e-4), and below -65504 it becomes -inf. None if
    # neither the rollout function nor its model calls returned any; NaN for tokens without one.
    logprobs: NDArray[np.float16] | None
    # (C,) uint8, 1 = sampled by the model, 0 = inserted. None if the rollout function returned none: then all are the
    # model's.
    mask: NDArray[np.uint8] | None


def unpacked_content(content: dict[str, Any]) -> Unpacked:
    """Encode messages, actions, sampling and metadata as JSON; values without a JSON form are replaced."""
    return Unpacked(tree(content))


def unpacked_tokens(tokens: Tokens) -> UnpackedTokens:
    """Encode tokens: number and ids of the prompt, then the other arrays' lengths, ids, log-probs and mask."""
    others = (tokens.completion_ids, tokens.logprobs, tokens.mask)
    counts = _COUNTS.pack(*(_ABSENT if array is None else len(array) for array in others))
    prompt = _COUNT.pack(len(tokens.prompt_ids)), _halves(tokens.prompt_ids)
    arrays = (array.tobytes() for array in others[1:] if array is not None)
    return UnpackedTokens(b"".join([*prompt, counts, _halves(tokens.completion_ids), *arrays]))


def pack(payloads: Sequence[bytes]) -> list[bytes]:
    """Compress each payload completely."""
    if not payloads:
        return []
    if not hasattr(_of_thread, "compressor"):
        _of_thread.compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
    return [packed.tobytes() for packed in _of_thread.compressor.multi_compress_to_buffer(payloads)]


def pack_together(payloads: Sequence[Unpacked]) -> tuple[list[Packed], dict[int, bytes]]:
    """Compress each payload, without its start if another of them has the same, or an earlier one of this thread had.
    Return the payloads in their order, and the compressed starts that they refer to, by id.
    """
    again = _again(payloads)
    ids: dict[bytes, int] = {}
    start_ids: list[int | None] = [None] * len(payloads)
    rests: list[bytes] = list(payloads)
    for place in again:
        end = payloads[place].start
        start, rests[place] = payloads[place][:end], payloads[place][end:]
        if start not in ids:
            # 63 bits of a hash: among a million starts, two have the same with a probability of 5e-8.
            ids[start] = int.from_bytes(blake2b(start, digest_size=8).digest(), "little") >> 1
        start_ids[place] = ids[start]
    # One call compresses what is left of the payloads, and the starts behind them.
    small = pack([*rests, *ids])
    packed = list(map(Packed, small, start_ids))
    return packed, dict(zip(ids.values(), small[len(payloads) :], strict=True))


def unpack_json(blob: bytes | None, start: bytes | None = None) -> bytes:
    """Return a content's JSON; empty if a rollout has none yet, or lost its payload. Both arguments are packed."""
    return b"" if blob is None else _begun(start) + zstandard.decompress(blob)


def unpack_content(blob: bytes | None, start: bytes | None = None) -> dict[str, Any]:
    """Return the content; an empty dict if there is none."""
    if blob is None:
        return {}
    loaded: dict[str, Any] = orjson.loads(unpack_json(blob, start))
    return loaded


def first_answer(messages: Sequence[dict[str, Any]], turns: int | None) -> int:
    """Return the index of the policy's first message. A prompt may have answers as examples: only `turns` count."""
    answers = [index for index, message in enumerate(messages) if message.get("role") == "assistant"]
    if turns is not None and 0 < turns < len(answers):
        answers = answers[-turns:]
    return answers[0] if answers else len(messages)


def unpack_tokens(blob: bytes | None, start: bytes | None = None) -> Tokens | None:
    """Return the tokens; None if a rollout has none yet, or lost its payload. Raise ValueError if the lengths do not
    match the data, as when the start is missing.
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
        raise ValueError(f"expected {offset} bytes, found {len(data)}")
    logprobs, mask = arrays
    return Tokens(prompt_ids, completion_ids, logprobs, mask)


def unpacked_size(blob: bytes | None, start: bytes | None = None) -> int:
    """Return the size in bytes after unpacking, which may be a thousand times the packed size."""
    return sum(zstandard.frame_content_size(part) for part in (blob, start) if part is not None)


def _halves(ids: NDArray[np.int32]) -> bytes:
    """Return the lower two bytes of all ids, then the upper two, which are nearly always equal: half as much to
    compress, and a sixth smaller after it.
    """
    halves = np.ascontiguousarray(ids, "<i4").view("<u2")
    return halves[::2].tobytes() + halves[1::2].tobytes()


def _whole(data: bytes, count: int, offset: int) -> tuple[NDArray[np.int32], int]:
    """Read `count` ids written by `_halves`; also return the offset after them."""
    halves = np.frombuffer(data, "<u2", 2 * count, offset).reshape(2, count)
    return np.ascontiguousarray(halves.T).view("<i4").reshape(count), offset + _ID * count


def _again(payloads: Sequence[Unpacked]) -> list[int]:
    """Return indexes of payloads whose start occurred before, remembered by hash: to copy starts takes too long."""
    keys = [hash(payload[:end]) if (end := payload.start) >= _SHORTEST else None for payload in payloads]
    times = Counter(keys)
    # `_was_met` is asked of each start, since it also remembers it.
    again = {key for key in times if key is not None and (_was_met(key) or times[key] > 1)}
    return [place for place, key in enumerate(keys) if key in again]


def _was_met(key: int) -> bool:
    """Return True if this thread met the start before, among its last `_REMEMBERED`."""
    met: dict[int, None] = _of_thread.__dict__.setdefault("met", {})
    was_met = key in met
    # Put at the end, so that the first of the dict is the one that was met longest ago.
    met.pop(key, None)
    met[key] = None
    if len(met) > _REMEMBERED:
        del met[next(iter(met))]
    return was_met


def _begun(start: bytes | None) -> bytes:
    if start is None:
        return b""
    return _unpack_start(start) if unpacked_size(start) <= _KEPT_BYTES else zstandard.decompress(start)


@lru_cache(_KEPT)
def _unpack_start(start: bytes) -> bytes:
    return zstandard.decompress(start)
