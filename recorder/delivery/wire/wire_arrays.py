"""What MessagePack holds of arrays, and of what a rollout function returned: its rows of numbers stay one piece each
until they are arrays, since to make Python's numbers of them, and arrays of those, takes most of the time.
"""

import struct
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw, Struct
from numpy.typing import NDArray

from logs_ui.recorder.capture.rollout_output import Output

_ARRAY, _IDS = 1, 2  # MessagePack's types of what follows: dtype, NUL, bytes; bytes of int32
_FLOAT, _FALSE, _TRUE = 0xCB, 0xC2, 0xC3  # first bytes
_NUMBERS = 0x80  # those below are numbers themselves
_FLOATS = np.dtype([("first", "u1"), ("value", ">f8")])
_SHORT_LISTS, _LIST_16, _LIST_32 = range(0x90, 0xA0), 0xDC, 0xDD  # first bytes of lists, by how their length is told


class SentOutput(Struct, array_like=True):
    """See `Output`."""

    prompt_ids: list[Any]
    completion_ids: list[Any]
    logprobs: list[Raw] | None
    env_mask: list[Raw] | None
    others: bytes
    lists: list[str]
    size: int


def sent_output(output: Output) -> list[Any]:
    """What is read as a `SentOutput`."""
    ids = [list(map(_sent_ids, rows)) for rows in (output.prompt_ids, output.completion_ids)]
    return [*ids, output.logprobs, output.env_mask, output.others, list(output.lists), output.size]


def received_output(sent: SentOutput) -> Output:
    """With arrays in place of tuples, where these say the same."""
    prompt_ids, completion_ids = (list(map(_row, rows)) for rows in (sent.prompt_ids, sent.completion_ids))
    logprobs, mask = (
        None if rows is None else list(map(_received_numbers, rows)) for rows in (sent.logprobs, sent.env_mask)
    )
    return Output(prompt_ids, completion_ids, logprobs, mask, sent.others, frozenset(sent.lists), sent.size)


def plain(value: Any) -> Any:
    """Of what MessagePack does not know by itself.

    Raises:
        TypeError: it is nothing that travels.
    """
    if isinstance(value, np.ndarray) and value.dtype.kind in "iufb" and value.ndim == 1:
        return msgspec.msgpack.Ext(_ARRAY, value.dtype.str.encode() + b"\0" + value.tobytes())
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} does not travel")


def extended(code: int, data: memoryview) -> NDArray[Any]:
    """An array."""
    if code == _IDS:
        return np.frombuffer(bytes(data), np.int32)
    if code != _ARRAY:
        raise ValueError(f"MessagePack's type {code} is none of ours")
    kind, _, values = bytes(data).partition(b"\0")
    return np.frombuffer(values, np.dtype(kind.decode()))


_decoder = msgspec.msgpack.Decoder(ext_hook=extended)


def _sent_ids(row: Any) -> Any:
    """Packed, as `Output.tokens` would; as they are where they are none."""
    if type(row) is tuple:
        with suppress(struct.error):
            return msgspec.msgpack.Ext(_IDS, struct.Struct(f"{len(row)}i").pack(*row))  # copies no arguments
    return row


def _received_numbers(raw: Raw) -> Any:
    """An array of floats, or of booleans and whole numbers from 0 to 127, as masks have; a tuple of anything else."""
    data = memoryview(raw)
    if (where := _items(data)) is not None:
        length, start = where
        if len(data) - start == length * _FLOATS.itemsize:
            floats = np.frombuffer(data, _FLOATS, length, start)
            if (floats["first"] == _FLOAT).all():
                return floats["value"].astype(np.float64)
        if len(data) - start == length:
            bytes_ = np.frombuffer(data, np.uint8, length, start)
            if (bytes_ < _NUMBERS).all():
                return bytes_.copy()
            if ((bytes_ < _NUMBERS) | (bytes_ == _FALSE) | (bytes_ == _TRUE)).all():
                return np.where(bytes_ < _NUMBERS, bytes_, bytes_ == _TRUE)
    return _row(_decoder.decode(data))


def _items(data: memoryview) -> tuple[int, int] | None:
    """How many a list has, and where the first of them stands; None of what is no list, or empty."""
    if data[0] in _SHORT_LISTS:
        length, start = data[0] - _SHORT_LISTS.start, 1
    elif data[0] in {_LIST_16, _LIST_32}:
        start = 3 if data[0] == _LIST_16 else 5
        length = int.from_bytes(data[1:start])
    else:
        return None
    return (length, start) if length else None


def _row(row: Any) -> Any:
    return tuple(row) if type(row) is list else row
