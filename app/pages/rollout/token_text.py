"""Decodes token ids into text, and finds the characters of each token."""

import codecs
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from tokenizers import Tokenizer

from logs_ui.recorder.errors import LogsUIError

_MOST_VOCABULARIES = 4  # tokenizers in memory: one of 150,000 tokens takes half a second to read, and 100 MB
_ANCHORS = 5_000  # ids that are tried
_REPLACEMENT = "\ufffd".encode()
_LARGEST_ID = 2**32


@dataclass(frozen=True)
class TokenText:
    """Holds the text of n tokens."""

    # The decoded text; invalid bytes are U+FFFD. An id that the tokenizer lacks, which decoding would skip, is spelt as
    # its number: `⟨151999⟩`.
    text: str
    # `starts` and `ends`: (n,) int64, the characters of `text` of which a token has a byte. Tokens that are parts of
    # one character share it; a token without text has an empty range.
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


class Vocabulary:
    """Decodes by a stored tokenizer. It may be used by several threads."""

    def __init__(self, source: bytes) -> None:
        """Raise LogsUIError if the `tokenizers` library cannot read `source`."""
        try:
            self._tokenizer = Tokenizer.from_buffer(source)
            kinds = set(_decoder_types(orjson.loads(source).get("decoder")))
        except Exception as error:  # the library raises nothing more exact
            raise LogsUIError(f"The `tokenizers` library cannot read the stored tokenizer: {error}") from error
        self._is_byte_level = "ByteLevel" in kinds
        self._has_byte_fallback = "ByteFallback" in kinds
        added = self._tokenizer.get_added_tokens_decoder()
        self.special = frozenset(index for index, token in added.items() if token.special)
        self._bytes_by_id: dict[int, bytes] = {}
        self._first_bytes: dict[int, bytes] = {}
        self._byte_ids: set[int] = set()  # ids that stand for one byte, in a vocabulary of text
        self._anchor = None if self._is_byte_level else self._find_anchor(set(added))

    def has(self, token: int) -> bool:
        """Return True if the tokenizer has this id; models often have more ids than their tokenizer."""
        return 0 <= token < _LARGEST_ID and self._tokenizer.id_to_token(token) is not None

    def spell(self, ids: Sequence[int]) -> TokenText:
        """Decode ids that follow each other."""
        self._decode_new(set(ids))
        bytes_by_id = self._bytes_by_id
        pieces = [bytes_by_id[token] for token in ids]
        if pieces and self._anchor is not None and (ids[0] not in self._byte_ids or pieces[0].isascii()):
            pieces[0] = self._decode_first(ids[0])
        return _join(self._replace_broken_runs(ids, pieces) if self._byte_ids else pieces)

    def _decode_new(self, ids: set[int]) -> None:
        """Store the bytes of the ids that were not seen before."""
        new_ids = sorted(ids - self._bytes_by_id.keys())
        pieces_by_id = {
            token_id: self._tokenizer.id_to_token(token_id) if self.has(token_id) else None for token_id in new_ids
        }
        ids_to_decode: list[int] = []
        for token_id, piece in pieces_by_id.items():
            if piece is None:
                self._bytes_by_id[token_id] = f"⟨{token_id}⟩".encode()
            elif self._is_byte_level:
                self._bytes_by_id[token_id] = _bytes_of(piece)
            elif self._has_byte_fallback and (byte := _fallback_byte(piece)) is not None:
                self._byte_ids.add(token_id)
                self._bytes_by_id[token_id] = byte
            else:
                ids_to_decode.append(token_id)
        self._bytes_by_id.update(zip(ids_to_decode, self._decode_amid(ids_to_decode), strict=True))

    def _decode_amid(self, ids: list[int]) -> Iterator[bytes]:
        """Decode each token between two others: many tokenizers join tokens with spaces, or drop one at an end."""
        if self._anchor is None:
            return (text.encode() for text in self._decode_batch([[token] for token in ids]))
        token, head, tail = self._anchor
        texts = self._decode_batch([[token, middle, token] for middle in ids])
        return (text[len(head) : len(text) - len(tail)].encode() for text in texts)

    def _decode_first(self, token: int) -> bytes:
        if token not in self._first_bytes and self.has(token) and self._anchor is not None:
            anchor, _, tail = self._anchor
            (text,) = self._decode_batch([[token, anchor]])
            self._first_bytes[token] = text[: len(text) - len(tail)].encode()
        return self._first_bytes.get(token, self._bytes_by_id[token])

    def _find_anchor(self, added: set[int]) -> tuple[int, str, str] | None:
        """Find an ordinary word: its id, its text at the beginning, and its text after another token."""
        for token in range(min(self._tokenizer.get_vocab_size(), _ANCHORS)):
            name = self._tokenizer.id_to_token(token)
            if name is None or token in added or _fallback_byte(name) is not None:
                continue
            head, both = self._decode_batch([[token], [token, token]])
            if head.isalnum() and head.isascii() and both.startswith(head) and both[len(head) :].strip() == head:
                return token, head, both[len(head) :]
        return None

    def _decode_batch(self, ids: list[list[int]]) -> list[str]:
        texts: list[str] = self._tokenizer.decode_batch(ids, skip_special_tokens=False)
        return texts

    def _replace_broken_runs(self, ids: Sequence[int], pieces: list[bytes]) -> list[bytes]:
        """Replace each byte token of a run that is not valid UTF-8 by U+FFFD, as this kind of tokenizer does."""
        whole: list[bytes] = []
        for is_byte, run in groupby(zip(ids, pieces, strict=True), key=lambda pair: pair[0] in self._byte_ids):
            run_pieces = [piece for _, piece in run]
            whole += [_REPLACEMENT] * len(run_pieces) if is_byte and not _is_text(b"".join(run_pieces)) else run_pieces
        return whole


class Vocabularies:
    """Caches the most recently used tokenizers, by their hash."""

    def __init__(self) -> None:
        self._vocabularies: OrderedDict[str, Vocabulary] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: str, source: Callable[[], bytes]) -> Vocabulary:
        """Return a tokenizer; an unknown one is read from `source`. Raise what `source` raises, or LogsUIError."""
        with self._lock:  # over the reading, too: two pages that open together read it once
            if name not in self._vocabularies:
                self._vocabularies[name] = Vocabulary(source())
            self._vocabularies.move_to_end(name)
            while len(self._vocabularies) > _MOST_VOCABULARIES:
                self._vocabularies.popitem(last=False)
            return self._vocabularies[name]


def _join(pieces: list[bytes]) -> TokenText:
    """Join pieces of UTF-8, split or broken anywhere. Each longest broken piece becomes one U+FFFD, as in Rust."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts: list[str] = []
    starts, ends = np.zeros(len(pieces), np.int64), np.zeros(len(pieces), np.int64)
    at, begun = 0, False  # characters so far, and whether bytes of the next one have come
    for i, piece in enumerate(pieces):
        breaks_off = begun and piece and not 0x80 <= piece[0] < 0xC0  # what began is not gone on with
        starts[i] = at + bool(breaks_off)
        if not begun and piece.isascii():  # which most are, and which is ten times as quick
            text = piece.decode()
        else:
            text = decoder.decode(piece)
            begun = bool(decoder.getstate()[0])
        at += len(text)
        ends[i] = at + begun
        texts.append(text)
    texts.append(decoder.decode(b"", final=True))
    return TokenText("".join(texts), starts, ends)


def _decoder_types(decoder: Any) -> Iterator[str]:
    """Yield the types of a tokenizer's decoder and of the decoders inside it."""
    if isinstance(decoder, dict):
        yield str(decoder.get("type"))
        for inner in decoder.get("decoders") or ():
            yield from _decoder_types(inner)


def _is_text(data: bytes) -> bool:
    return data.decode(errors="ignore").encode() == data


def _fallback_byte(name: str) -> bytes | None:
    """Return the byte of a token such as `<0xE2>`; None for another token."""
    match = re.fullmatch("<0x([0-9A-Fa-f]{2})>", name)
    return bytes.fromhex(match[1]) if match else None


def _byte_letters() -> dict[str, int]:
    """Return GPT-2's letters for bytes: printable bytes stand for themselves, the others for U+0100 and following."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_letters()


def _bytes_of(name: str) -> bytes:
    """Return the bytes of a byte-level token; an added token with other letters is its own name."""
    try:
        return bytes(map(_BYTES.__getitem__, name))
    except KeyError:
        return name.encode()
