"""How often words, and runs of three words, come again in texts: of many texts at once, in numpy, which lets go of the
GIL. What Python does itself is taken from the training.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_PIECE = 1 << 16  # bytes that are looked at together: what is made of them stays in the processor's cache
_TAB, _CARRIAGE_RETURN, _SEPARATOR, _SPACE = np.frombuffer(b"\t\r\x1c ", np.uint8)  # str.split() splits ASCII at these
_ASCII = bytes(range(128))
_LEAST_TABLE = 16  # bits
_BASE, _SECOND, _THIRD = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D  # odd

Hashes = NDArray[np.uint32]
Shares = tuple[float, float]


def shares(texts: Sequence[str], least: int) -> list[Shares | None]:
    """Of each text: the share of its words that are different, and that of its runs of three words that were there
    before, 0 to 1. Words are what stands between white space, in one case. None below `least` words, which is 3 or
    more.

    Words are told apart by hashes of some 26 bits: two of a thousand are taken for one in one text of a hundred.
    """
    found: list[Shares | None] = []
    for piece in _pieces([_plain(text) for text in texts]):
        found += _shares(piece, least)
    return found


def _plain(text: str) -> bytes:
    """With ASCII's blanks and capitals alone, which is what is looked for. Most texts have no others."""
    data = text.encode("utf-8", "replace")
    if text.isascii():
        return data
    others = data.translate(None, _ASCII).decode()
    if others == "".join(others.lower().split()):
        return data
    return " ".join(text.lower().split()).encode("utf-8", "replace")


def _pieces(texts: list[bytes]) -> Iterator[list[bytes]]:
    """As many as fit; a longer text is a piece of its own."""
    piece: list[bytes] = []
    size = 0
    for text in texts:
        if piece and size + len(text) > _PIECE:
            yield piece
            piece, size = [], 0
        piece.append(text)
        size += len(text) + 1
    if piece:
        yield piece


def _shares(texts: list[bytes], least: int) -> list[Shares | None]:
    words, starts = _words(b" " + b" ".join(texts) + b" ")
    edges = np.searchsorted(starts, np.cumsum([len(text) + 1 for text in texts]))
    counts = np.diff(edges, prepend=0)
    numbers = np.repeat(np.arange(len(texts), dtype=np.uint32), counts)
    threes = words[:-2] + words[1:-1] * np.uint32(_SECOND) + words[2:] * np.uint32(_THIRD)
    whole = numbers[:-2] == numbers[2:]
    different = _different(words, numbers, len(texts))
    new = _different(threes[whole], numbers[:-2][whole], len(texts))
    return [
        (some / count, 1 - three / (count - 2)) if count >= least else None
        for count, some, three in zip(counts.tolist(), different, new, strict=True)
    ]


def _words(data: bytes) -> tuple[Hashes, NDArray[np.intp]]:
    """The hash of each word, which is a polynomial of the numbers that stand for its bytes, and where it starts."""
    tables = _tables(max(len(data), _PIECE + 2).bit_length())
    letters = np.frombuffer(data, np.uint8)
    blank = (letters - _TAB <= _CARRIAGE_RETURN - _TAB) | (letters - _SEPARATOR <= _SPACE - _SEPARATOR)
    edges = np.flatnonzero(blank[1:] != blank[:-1])
    starts, ends = edges[::2], edges[1::2]
    sums = np.cumsum(tables.values.take(letters) * tables.powers[: len(data)], dtype=np.uint32)
    return (sums[ends] - sums[starts]) * tables.inverses[starts], starts


class _Tables(NamedTuple):
    """By byte: the number that it stands for, which capitals share with small letters. By place: a power of `_BASE`,
    and its inverse.
    """

    values: Hashes
    powers: Hashes
    inverses: Hashes


@lru_cache(1)
def _tables(bits: int) -> _Tables:
    letters = np.arange(256)
    values = np.random.default_rng(0).integers(0, 1 << 32, 256, np.uint32)
    is_capital = (letters >= ord("A")) & (letters <= ord("Z"))
    inverse = pow(_BASE, -1, 1 << 32)
    powers, inverses = (np.cumprod(np.full(1 << bits, one, np.uint32), dtype=np.uint32) for one in (_BASE, inverse))
    return _Tables(values[letters + 32 * is_capital], powers, inverses)


def _different(hashes: Hashes, numbers: Hashes, count: int) -> list[int]:
    """How many each of `count` texts has; `numbers` say whose each is.

    All are thrown into a table, in which the last of those that are alike stays: a quarter of what sorting takes. What
    shares its place with others that stayed there is left, a tenth at most, and sorted.
    """
    bits = np.uint32(32 - max(1, (count - 1).bit_length()))
    keys = (hashes >> (np.uint32(32) - bits)) | (numbers << bits)
    size = max(_LEAST_TABLE, 2 + len(keys).bit_length())
    places = (keys * np.uint32(_BASE) >> np.uint32(32 - size)).astype(np.intp)
    table = np.empty(1 << size, np.uint32)
    indices = np.arange(len(keys), dtype=np.uint32)
    table[places] = indices
    stayed = table.take(places)
    left = keys[keys.take(stayed) != keys]
    left.sort()
    first = np.ones(len(left), np.bool_)
    np.not_equal(left[1:], left[:-1], out=first[1:])
    different = np.concatenate([keys[stayed == indices], left[first]])
    found: list[int] = np.bincount(different >> bits, minlength=count).tolist()
    return found
