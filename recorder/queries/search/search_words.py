"""The words of a text as SQLite's FTS5 has them, in the forms that PostgreSQL takes: so that the same is found on both.

PostgreSQL's own parsers split paths, addresses and numbers in ways of their own. So it is given words that are ready.
"""

import hashlib
import sqlite3
import threading
from collections.abc import Iterator

from logs_ui.recorder.storage.search_tables import TOKENIZER

_WORD = 400  # characters that are kept of a longer one: a lexeme has at most 2,046 bytes
_PART_WORDS = 16_000  # positions end at 16,383
_PART_PLACES = 255  # of one word: more of its positions are not kept
_PART_BYTES = 400_000  # of its words; a tsvector holds 1 MB of words and positions
OVERLAP = 100
"""Words that two parts of a text share: a phrase of no more is found wherever it stands."""


class _Folding(dict[int, str]):
    """What FTS5 makes of a character, by its code point, for `str.translate`: a letter or digit of one case without its
    diacritics; nothing, of a diacritic that stands by itself; a space, of all else. It is asked once for each.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._fts5 = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._fts5.execute(f"CREATE VIRTUAL TABLE one USING fts5(body, tokenize='{TOKENIZER}')")
        self._fts5.execute("CREATE VIRTUAL TABLE words USING fts5vocab(one, row)")

    def __missing__(self, code: int) -> str:
        with self._lock:
            self[code] = found = self._ask(chr(code))
        return found

    def _ask(self, character: str) -> str:
        try:
            self._fts5.execute("INSERT INTO one (rowid, body) VALUES (1, ?)", [f"a{character}b"])
        except UnicodeEncodeError:  # half of a surrogate pair
            return " "
        words = [word for (word,) in self._fts5.execute("SELECT term FROM words")]
        self._fts5.execute("DELETE FROM one")
        return words[0][1:-1] if len(words) == 1 else " "


_folding = _Folding()


def words_of(text: str) -> list[str]:
    """In their order, folded; longer ones than PostgreSQL takes by their beginning and a hash."""
    return [word if len(word) <= _WORD else _shortened(word) for word in text.translate(_folding).split()]


def vectors(text: str) -> list[str]:
    """Literals of `tsvector`: one for most texts; parts that overlap of what holds more than one of them can."""
    parts = _parts(words_of(text))
    return [" ".join(f"'{word}':{','.join(places)}" for word, places in part.items()) for part in parts]


def query(text: str) -> str:
    """A literal of `tsquery` for words that stand beside one another; a `*` at the end takes the last one for a
    beginning. Empty, which finds nothing, where there is no word.
    """
    phrase, star = (text[:-1], ":*") if text.endswith("*") else (text, "")
    words = words_of(phrase)
    if star and words:
        words[-1] = words[-1][:_WORD]
    return " <-> ".join(f"'{word}'" for word in words) + (star if words else "")


def is_shortened(word: str) -> bool:
    """Whether one of `words_of` is not the word itself."""
    return len(word) > _WORD


def _shortened(word: str) -> str:
    return word[:_WORD] + hashlib.sha256(word.encode()).hexdigest()[:16]


def _parts(words: list[str]) -> Iterator[dict[str, list[str]]]:
    """Places by word, from 1 on in each part."""
    begin = 0
    while True:
        part, end = _part(words, begin)
        yield part
        if end == len(words):
            return
        begin = end - OVERLAP


def _part(words: list[str], begin: int) -> tuple[dict[str, list[str]], int]:
    """And the place of the word that is too much for it."""
    part: dict[str, list[str]] = {}
    room = _PART_BYTES
    for place in range(begin, min(len(words), begin + _PART_WORDS)):
        word = words[place]
        places = part.get(word)
        if places is None:
            room -= 4 * len(word)
            if room < 0:
                return part, place
            part[word] = places = []
        elif len(places) == _PART_PLACES:
            return part, place
        places.append(str(place - begin + 1))
    return part, min(len(words), begin + _PART_WORDS)
