"""How what waits for its database lies in a file: a line that tells the format, and then frames: length, crc32, number
and bytes of an `Entry`. A frame of length 0 says that nothing more comes.
"""

import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

from logs_ui.recorder.storage.changes import EntryNumber

FORMAT = b"logs-ui spool 3\n"
"""With another number where `Entry` changes, or what its payloads hold: an older one's would be read as what it is not.
"""

_HEADER = struct.Struct("<IIQII")  # length of the bytes, crc32 of number and bytes, the number's three parts
_NUMBER = struct.Struct("<QII")
_GROUP_BYTES = 2 << 20


class Frame(NamedTuple):
    """An entry as it stands in a file.

    Attributes:
        number: the entry's.
        data: its bytes, see `spool_entry.py`.
        end: offset of what follows it in the file.
    """

    number: EntryNumber
    data: bytes
    end: int


def frames(file: BinaryIO, start: int = 0) -> Iterator[Frame]:
    """Whole frames from an offset on, or from the first, up to the end of the file or to what is no frame. One of
    length 0 comes last: nothing follows it.

    Args:
        file: opened for reading.
        start: `end` of the last frame that was read.

    Raises:
        NotASpoolError: the file is of another format.
    """
    if start == 0:
        file.seek(0)
        begins = file.read(len(FORMAT))
        if begins != FORMAT:
            if FORMAT.startswith(begins):  # all that was written of it
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
    """Whether the frame after that offset, or the first, says that nothing more comes."""
    following = next(frames(file, end), None)
    return following is not None and not following.data


def grouped(found: Iterable[Frame]) -> Iterator[list[Frame]]:
    """Frames that go into one transaction together; without that which says that nothing more comes."""
    group: list[Frame] = []
    size = 0
    for frame in found:
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
    """A file that another version of logs-ui wrote, or nobody."""


def frame_of(number: EntryNumber, data: bytes) -> bytes:
    """As it stands in a file. No data: that nothing more comes."""
    return _HEADER.pack(len(data), zlib.crc32(data, zlib.crc32(_NUMBER.pack(*number))), *number) + data
