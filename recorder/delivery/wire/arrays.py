"""Encodes arrays, and the output of a rollout function, for `jobs.py`. A received row of numbers is turned into an
array directly from its bytes: decoding it to Python's numbers first would take most of the time.
"""

import struct
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw
from msgspec.structs import replace
from numpy.typing import NDArray

from logs_ui.recorder.capture.rollout_output import Output

_ARRAY, _IDS = 1, 2  # extension types of MessagePack: dtype and shape, NUL, bytes; bytes of int32
_FLOAT, _FALSE, _TRUE = 0xCB, 0xC2, 0xC3  # first bytes
_NUMBERS = 0x80  # those below are numbers themselves
# A float as MessagePack writes it: its first byte, and eight bytes with the highest first.
_FLOATS = np.dtype([("first", "u1"), ("value", ">f8")])
_SHORT_LISTS, _LIST_16, _LIST_32 = range(0x90, 0xA0), 0xDC, 0xDD  # first bytes of lists, by the size of their length


def sent_output(output: Output) -> Output:
    """Return the output as it is to be encoded: with its ids packed."""
    return replace(
        output,
        prompt_ids=list(map(_sent_ids, output.prompt_ids)),
        completion_ids=list(map(_sent_ids, output.completion_ids)),
    )


def received_output(output: Output) -> Output:
    """Return a decoded output as it was, with arrays in place of tuples if the values are the same."""
    return replace(
        output,
        prompt_ids=list(map(_row, output.prompt_ids)),
        completion_ids=list(map(_row, output.completion_ids)),
        logprobs=None if output.logprobs is None else list(map(_received_numbers, output.logprobs)),
        env_mask=None if output.env_mask is None else list(map(_received_numbers, output.env_mask)),
    )


def plain_array(value: Any) -> Any:
    """Convert an array of one or two dimensions, or a number of numpy's type, to a value that MessagePack supports.
    Raise TypeError for an array of another kind.
    """
    if isinstance(value, np.generic):
        return value.item()
    if value.dtype == np.int32 and value.ndim == 1:
        return msgspec.msgpack.Ext(_IDS, value.tobytes())
    if value.dtype.kind not in "iufb" or value.ndim not in {1, 2}:
        raise TypeError(f"an array of {value.dtype} cannot be sent")
    header = f"{value.dtype.str} {' '.join(map(str, value.shape))}".encode()
    return msgspec.msgpack.Ext(_ARRAY, header + b"\0" + value.tobytes())


def extended(code: int, data: memoryview) -> NDArray[Any]:
    """Decode an array."""
    if code == _IDS:
        return np.frombuffer(bytes(data), np.int32)
    if code != _ARRAY:
        raise ValueError(f"MessagePack's type {code} is none of ours")
    kind, _, values = bytes(data).partition(b"\0")
    dtype, *shape = kind.decode().split()
    return np.frombuffer(values, np.dtype(dtype)).reshape(*map(int, shape))


_decoder = msgspec.msgpack.Decoder(ext_hook=extended)


def _sent_ids(row: Any) -> Any:
    """Pack a row of ids, as `Output.tokens` would; return it unchanged if they are no ids."""
    if type(row) is tuple:
        with suppress(struct.error):
            return msgspec.msgpack.Ext(_IDS, struct.Struct(f"{len(row)}i").pack(*row))  # copies no arguments
    return row


def _received_numbers(raw: Raw) -> Any:
    """Decode a row: an array of floats only, or of booleans and integers from 0 to 127, as a mask; else a tuple."""
    data = memoryview(raw)
    if (where := _items(data)) is not None:
        length, start = where
        # A list of this size may consist of floats only, which is certain if each item begins with a float's first
        # byte.
        if len(data) - start == length * _FLOATS.itemsize:
            floats = np.frombuffer(data, _FLOATS, length, start)
            if (floats["first"] == _FLOAT).all():
                return floats["value"].astype(np.float64)
        # Each item is a single byte: a small number stands for itself, false and true have bytes of their own.
        if len(data) - start == length:
            bytes_ = np.frombuffer(data, np.uint8, length, start)
            if (bytes_ < _NUMBERS).all():
                return bytes_.copy()
            if ((bytes_ < _NUMBERS) | (bytes_ == _FALSE) | (bytes_ == _TRUE)).all():
                return np.where(bytes_ < _NUMBERS, bytes_, bytes_ == _TRUE)
    return _row(_decoder.decode(data))


def _items(data: memoryview) -> tuple[int, int] | None:
    """Return the length of a list, and the offset of its first item; None if it is no list, or is empty."""
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
