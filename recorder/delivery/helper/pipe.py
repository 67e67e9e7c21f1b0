"""Sends messages between a training and its helper process (`process.py` lists them).

A message is a MessagePack list, whose last item holds the lengths of the frames that follow. Frames are sent in
bundles, since each send and each receive releases the GIL, and then has to wait for it.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from multiprocessing.connection import Connection
from typing import Any

import msgspec

_BUNDLE = 1 << 18  # least bytes of frames in a bundle


def send(connection: Connection, message: Sequence[Any], frames: Sequence[bytes] = ()) -> None:
    """Send a message and its frames; wait until nearly all is read. Raise OSError if the reader has ended."""
    bundles = list(_bundles(frames))
    lengths = [list(map(len, bundle)) for bundle in bundles]
    connection.send_bytes(msgspec.msgpack.encode([*message, lengths]))
    for bundle in bundles:
        connection.send_bytes(b"".join(bundle))  # join() does not copy a single frame


def received(connection: Connection) -> list[Any]:
    """Receive the next message; frames replace their lengths. Raise EOFError or OSError if the sender has ended."""
    message: list[Any]
    *message, bundles = msgspec.msgpack.decode(connection.recv_bytes())
    for lengths in bundles:
        bundle = connection.recv_bytes()
        ends = accumulate(lengths)
        message += [bundle[end - length : end] for length, end in zip(lengths, ends, strict=True)]
    return message


def _bundles(frames: Sequence[bytes]) -> Iterator[list[bytes]]:
    bundle: list[bytes] = []
    size = 0
    for frame in frames:
        bundle.append(frame)
        size += len(frame)
        if size >= _BUNDLE:
            yield bundle
            bundle, size = [], 0
    if bundle:
        yield bundle
