"""Messages between a training and the process beside it (see `helper_process.py`): MessagePack lists, whose last item
says which frames follow. These go together: each time that something goes or comes lets go of the GIL, and then has to
wait for it.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from multiprocessing.connection import Connection
from typing import Any

import msgspec

_BUNDLE = 1 << 18  # bytes of frames that go together, at least


def send(connection: Connection, message: Sequence[Any], frames: Sequence[bytes] = ()) -> None:
    """Waits until the other side has nearly all of it.

    Raises:
        OSError: the other side has ended.
    """
    bundles = list(_bundles(frames))
    lengths = [list(map(len, bundle)) for bundle in bundles]
    connection.send_bytes(msgspec.msgpack.encode([*message, lengths]))
    for bundle in bundles:
        connection.send_bytes(b"".join(bundle))  # of one alone no copy is made


def received(connection: Connection) -> list[Any]:
    """The next message, with its frames in place of their lengths.

    Raises:
        EOFError, OSError: the other side has ended.
    """
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
