"""Measures how often words, and runs of three words, are repeated in texts.

Many texts are measured together, in numpy, which releases the GIL; a loop in Python would take its time from the
training.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_PIECE = 1 << 16  # bytes that are measured together: the arrays made from them fit the processor's cache
_TAB, _CARRIAGE_RETURN, _SEPARATOR, _SPACE = np.frombuffer(b"\t\r\x1c ", np.uint8)  # str.split() splits ASCII at these
_ASCII = bytes(range(128))
_LEAST_TABLE = 16  # bits
_BASE, _SECOND, _THIRD = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D  # odd, so that they have inverses modulo 2**32

Hashes = NDArray[np.uint32]
Shares = tuple[float, float]


def shares(texts: Sequence[str], least: int) -> list[Shares | None]:
    """Return for each text the share of its words that are different, and the share of its runs of three words that
    occurred before, both from 0 to 1; None for a text of fewer than `least` words.

    Words are separated by white space and compared by hashes of some 26 bits, without regard to case: of texts of a
    thousand words, one in a hundred has two words that are taken for one. `least` must be 3 or more.
    """
    measured: list[Shares | None] = []
    for piece in _pieces([_plain(text) for text in texts]):
        measured += _shares(piece, least)
    return measured


def _plain(text: str) -> bytes:
    """Encode a text so that its only blanks and capitals are ASCII's, as `_words` expects; most need no change."""
    data = text.encode("utf-8", "replace")
    if text.isascii():
        return data
    others = data.translate(None, _ASCII).decode()
    if others == "".join(others.lower().split()):
        return data
    return " ".join(text.lower().split()).encode("utf-8", "replace")


def _pieces(texts: list[bytes]) -> Iterator[list[bytes]]:
    """Divide texts into pieces of at most `_PIECE` bytes; a longer text is a piece of its own."""
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
    # `numbers` has for each word the number of its text. `threes` are the hashes of each word with the two after
    # it, and `whole` tells which of these runs lie within one text.
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
    """Return the hash of each word, a polynomial of the numbers of its bytes, and the offset at which it starts."""
    values, powers, inverses = _tables(max(len(data), _PIECE + 2).bit_length())
    letters = np.frombuffer(data, np.uint8)
    # Bytes are unsigned and wrap around below 0, so that one comparison tests both ends of a range of blanks. Edges
    # come in pairs: the blank before a word, and the word's last byte.
    blank = (letters - _TAB <= _CARRIAGE_RETURN - _TAB) | (letters - _SEPARATOR <= _SPACE - _SEPARATOR)
    edges = np.flatnonzero(blank[1:] != blank[:-1])
    starts, ends = edges[::2], edges[1::2]
    # The sum over a word's bytes contains the power of the place at which the word starts. Divided by that power,
    # it is the same wherever the word stands.
    sums = np.cumsum(values.take(letters) * powers[: len(data)], dtype=np.uint32)
    return (sums[ends] - sums[starts]) * inverses[starts], starts


@lru_cache(1)
def _tables(bits: int) -> tuple[Hashes, Hashes, Hashes]:
    """Return the number of each byte (256,), the same for capitals and small letters; the power of `_BASE` for each
    offset in a text (2**bits,); and the inverses of these powers modulo 2**32.
    """
    letters = np.arange(256)
    values = np.random.default_rng(0).integers(0, 1 << 32, 256, np.uint32)
    is_capital = (letters >= ord("A")) & (letters <= ord("Z"))
    inverse = pow(_BASE, -1, 1 << 32)
    powers, inverses = (np.cumprod(np.full(1 << bits, base, np.uint32), dtype=np.uint32) for base in (_BASE, inverse))
    return values[letters + 32 * is_capital], powers, inverses


def _different(hashes: Hashes, numbers: Hashes, count: int) -> list[int]:
    """Count the different hashes of each of `count` texts; `numbers` has for each hash the number of its text.

    All hashes are written into a table, where the last one written to a place stays; this takes a quarter of the time
    of sorting. Hashes that another one replaced, a tenth at most, are sorted.
    """
    # A key has the number of the text in its upper bits, and as much of the hash as fits in the others.
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
    counts: list[int] = np.bincount(different >> bits, minlength=count).tolist()
    return counts
