"""Reads and builds the format of spool files.

A file begins with a line that names the format. Then come frames, each with length, crc32, number and bytes of an
`Entry`. A frame of length 0, the end mark, means that no more frames will be appended.
"""

import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

from logs_ui.recorder.storage.changes import EntryNumber

FORMAT = b"logs-ui spool 3\n"
"""The first line of a spool file. Raise its number if `Entry`, a job or the content of payloads changes: entries of an
older version would otherwise be misread.
"""

_HEADER = struct.Struct("<IIQII")  # length of the data, crc32 of number and data, the number's three parts
_NUMBER = struct.Struct("<QII")
_GROUP_BYTES = 2 << 20  # size from which frames no longer join the same transaction


class Frame(NamedTuple):
    """Holds an encoded entry in a file."""

    number: EntryNumber
    data: bytes  # the encoded entry, see `entry.py`; empty in the end mark
    end: int  # offset in the file at which the next frame begins


def frames(file: BinaryIO, start: int = 0) -> Iterator[Frame]:
    """Yield frames up to the end of the file, the end mark (which is yielded, too) or the first incomplete frame.
    `start` is the `end` of the last frame that was read. Raise NotASpoolError.
    """
    if start == 0:
        file.seek(0)
        begins = file.read(len(FORMAT))
        if begins != FORMAT:
            if FORMAT.startswith(begins):  # the process was killed while it wrote this line
                return
            raise NotASpoolError
        start = len(FORMAT)
    size = os.fstat(file.fileno()).st_size
    while start + _HEADER.size <= size:
        file.seek(start)
        length, checksum, *parts = _HEADER.unpack(file.read(_HEADER.size))
        number = EntryNumber(*parts)
        end = start + _HEADER.size + length
        if end > size:
            return
        data = file.read(length)
        if zlib.crc32(data, zlib.crc32(_NUMBER.pack(*number))) != checksum:
            return
        yield Frame(number, data, end)
        if length == 0:
            return
        start = end


def is_ended(file: BinaryIO, end: int) -> bool:
    """Return True if the end mark is at offset `end`, or comes first in the file if `end` is 0."""
    following = next(frames(file, end), None)
    return following is not None and not following.data


def grouped(all_frames: Iterable[Frame]) -> Iterator[list[Frame]]:
    """Group frames for one transaction each. Leave out the end mark."""
    group: list[Frame] = []
    size = 0
    for frame in all_frames:
        if not frame.data:
            break
        group.append(frame)
        size += len(frame.data)
        if size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


class NotASpoolError(Exception):
    """The file was written by another version of logs-ui, or is not a spool file at all."""


def frame_of(number: EntryNumber, data: bytes) -> bytes:
    """Build the bytes of a frame. Without data, it is the end mark."""
    return _HEADER.pack(len(data), zlib.crc32(data, zlib.crc32(_NUMBER.pack(*number))), *number) + data
