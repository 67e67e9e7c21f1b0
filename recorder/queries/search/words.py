"""Splits texts into the same words as SQLite's FTS5, in PostgreSQL's formats, so that both databases find the same.

PostgreSQL's own parser is not used, because `to_tsvector('simple', ...)` keeps `requests.get`, `os.path.join`, paths
and addresses as single words, in which a search for `requests` or `join` finds nothing, and does not remove diacritics.
"""

import hashlib
import re
import sqlite3
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from logs_ui.recorder.storage.search_tables import COLUMNS, TOKENIZER

_WORD = 400  # characters kept of a longer word: a lexeme has at most 2,046 bytes
_PART_WORDS = 16_000  # words in a tsvector: its positions end at 16,383
_PART_PLACES = 255  # positions of one word: a tsvector drops more
_PART_BYTES = 400_000  # bytes of words: a tsvector has at most 1 MB of words and positions
OVERLAP = 100
"""Words that two parts of a text share: a phrase of up to this length is found everywhere."""
Word = tuple[str, str]
"""A word, and its weight."""
_WEIGHTS = dict(zip(COLUMNS, "ABCD", strict=True))
_GAP = "", ""  # between texts of two columns, so that no phrase is found across it, as FTS5 finds none there


class _Folding(dict[int, str]):
    """Maps characters, for `str.translate`, as FTS5 folds them: letters and digits without case and diacritics, single
    diacritics to nothing, all else to a space. An FTS5 table in memory is queried once per character.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._fts5 = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._fts5.execute(f"CREATE VIRTUAL TABLE one USING fts5(body, tokenize='{TOKENIZER}')")
        self._fts5.execute("CREATE VIRTUAL TABLE words USING fts5vocab(one, row)")

    def __missing__(self, code: int) -> str:
        with self._lock:
            self[code] = folded = self._ask(chr(code))
        return folded

    def _ask(self, character: str) -> str:
        try:
            self._fts5.execute("INSERT INTO one (rowid, body) VALUES (1, ?)", [f"a{character}b"])
        except UnicodeEncodeError:  # half of a surrogate pair
            return " "
        # Between two letters, a character that separates words makes two words; of any other one, the only word
        # shows the folded form.
        words = [word for (word,) in self._fts5.execute("SELECT term FROM words")]
        self._fts5.execute("DELETE FROM one")
        return words[0][1:-1] if len(words) == 1 else " "


_folding = _Folding()


def words_of(text: str) -> list[str]:
    """Return the folded words of a text, in order; a word too long for PostgreSQL becomes its beginning and a hash."""
    words = text.translate(_folding).split()
    return [
        word[:_WORD] + hashlib.sha256(word.encode()).hexdigest()[:16] if is_shortened(word) else word for word in words
    ]


def vectors(texts: Sequence[str]) -> list[str]:
    """Return literals of `tsvector` for the texts of one rollout, each with its own weight: one for most rollouts,
    several that overlap for texts that exceed its limits.
    """
    words: list[Word] = []
    for text, weight in zip(texts, _WEIGHTS.values(), strict=True):
        pairs = [(word, weight) for word in words_of(text)]
        words += [_GAP, *pairs] if words and pairs else pairs
    parts = _parts(words)
    return [" ".join(f"'{word}':{','.join(places)}" for word, places in part.items()) for part in parts]


def query(text: str, column: str | None = None) -> str:
    """Return a literal of `tsquery` for words next to one another; with a `*` at the end the last word is a prefix. It
    is empty, and finds nothing, if there is no word. With a column, only its words are found.
    """
    phrase, star = (text[:-1], "*") if text.endswith("*") else (text, "")
    weight = _WEIGHTS[column] if column else ""
    words = words_of(phrase)
    if star and words:
        words[-1] = words[-1][:_WORD]
    marks = [weight] * (len(words) - 1) + [star + weight]
    return " <-> ".join(f"'{word}'" + (f":{mark}" if mark else "") for word, mark in zip(words, marks, strict=False))


def place_of(phrase: str, text: str) -> tuple[int, int] | None:
    """Return start and end of a phrase's first occurrence in a text, as the index finds it; None without any."""
    words = phrase.translate(_folding).split()
    end = r"\S*" if phrase.endswith("*") else r"(?!\S)"
    folded = text.translate(_folding)
    is_there = bool(words) and all(word in folded for word in words)  # that is much quicker
    pattern = r"\s+".join(map(re.escape, words))
    match = re.search(rf"(?<!\S){pattern}{end}", folded) if is_there else None
    if match is None or len(folded) == len(text):
        return match and match.span()
    ends = list(accumulate(len(_folding[ord(character)]) for character in text))  # one may become none or several
    return bisect_right(ends, match.start()), bisect_left(ends, match.end()) + 1


def is_shortened(word: str) -> bool:
    """Return True if a word is too long for PostgreSQL, or a word of `words_of` was shortened."""
    return len(word) > _WORD


def _parts(words: list[Word]) -> Iterator[dict[str, list[str]]]:
    """Return positions by word, from 1 on in each part."""
    begin = 0
    while True:
        part, end = _part(words, begin)
        yield part
        if end == len(words):
            return
        begin = end - OVERLAP


def _part(words: list[Word], begin: int) -> tuple[dict[str, list[str]], int]:
    """Return one part, and the place of the first word that did not fit."""
    part: dict[str, list[str]] = {}
    room = _PART_BYTES
    for place in range(begin, min(len(words), begin + _PART_WORDS)):
        word, weight = words[place]
        if not word:
            continue
        places = part.get(word)
        if places is None:
            # A character has at most four bytes in UTF-8.
            room -= 4 * len(word)
            if room < 0:
                return part, place
            part[word] = places = []
        elif len(places) == _PART_PLACES:
            return part, place
        places.append(f"{place - begin + 1}{weight}")
    return part, min(len(words), begin + _PART_WORDS)
