"""Finds the differences between two texts word by word, with a limit on the work, so that megabytes do not block a
page.
"""

import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import NamedTuple

_WORD = re.compile(r"\S+\s*|\s+")
_LIMIT = 6_000  # characters of a difference that are shown
_AROUND = 160  # characters of what is equal that stay beside it
_FOLDED_FROM = 2.5 * _AROUND
ALIKE = 0.25  # share of words in common from which on a text is one that was changed, and not another
_MOST_PAIRS = 120_000  # pairs of words that one difference may cost
_ALL_PAIRS = 1_500_000  # and a page


class Segment(NamedTuple):
    """Holds a piece of one of the texts; or an empty text, and the number of characters that are left out here."""

    text: str
    changed: bool = False
    skipped: int = 0


Both = tuple[list[Segment], list[Segment]]


class Differ:
    """Compares the texts of a page, which share one budget. Once it is spent, everything between an equal beginning and
    an equal end is marked as changed.
    """

    def __init__(self) -> None:
        self._left = _ALL_PAIRS

    def compare(self, a: str, b: str) -> Both:
        """Return the segments of both texts, in order."""
        start = _common(a, b)
        # The common end is looked for behind the common beginning, so that the two never overlap.
        end = _common(a[start:][::-1], b[start:][::-1])
        middle_a, middle_b = a[start : len(a) - end], b[start : len(b) - end]
        head, foot = _shorten(a[:start], is_end=False), _shorten(a[len(a) - end :], is_end=True)
        between_a, between_b = self._middle(middle_a, middle_b)
        return [*head, *between_a, *foot], [*head, *between_b, *foot]

    def _middle(self, a: str, b: str) -> Both:
        cut_a, cut_b = a[:_LIMIT], b[:_LIMIT]
        words_a, words_b = _WORD.findall(cut_a), _WORD.findall(cut_b)
        cost = len(words_a) * len(words_b)
        if cost > min(_MOST_PAIRS, self._left):
            both: Both = (
                [Segment(cut_a, changed=True)] if cut_a else [],
                [Segment(cut_b, changed=True)] if cut_b else [],
            )
        else:
            self._left -= cost
            both = _by_word(words_a, words_b)
        for segments, whole in zip(both, (a, b), strict=True):
            if len(whole) > _LIMIT:
                segments.append(Segment("", changed=True, skipped=len(whole) - _LIMIT))
        return both


def _by_word(words_a: list[str], words_b: list[str]) -> Both:
    matcher = SequenceMatcher(None, words_a, words_b, autojunk=False)
    if matcher.ratio() < ALIKE:  # a word here and there is chance
        return [Segment("".join(words_a), changed=True)], [Segment("".join(words_b), changed=True)]
    a: list[Segment] = []
    b: list[Segment] = []
    for operation, i, j, k, m in matcher.get_opcodes():
        changed = operation != "equal"
        a += _mark("".join(words_a[i:j]), changed=changed)
        b += _mark("".join(words_b[k:m]), changed=changed)
    return a, b


def _mark(text: str, *, changed: bool) -> list[Segment]:
    """Mark changed text without the space after it, unless only space changed."""
    bare = text.rstrip() if changed else ""
    if not bare or bare == text:
        return [Segment(text, changed)] if text else []
    return [Segment(bare, changed), Segment(text[len(bare) :])]


def _common(a: str, b: str) -> int:
    """Return the length of the common beginning, up to the end of a word. Bisection keeps each comparison a memcmp."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[:middle] == b[:middle] else (low, middle - 1)
    if low == len(a) == len(b):
        return low
    return max(a.rfind(space, 0, low) for space in " \n\t") + 1


def _shorten(text: str, *, is_end: bool) -> list[Segment]:
    """Return the equal text beside a difference, without its far end if it is long."""
    if len(text) <= _FOLDED_FROM:
        return [Segment(text)] if text else []
    skipped = Segment("", skipped=len(text) - _AROUND)
    return [Segment(text[:_AROUND]), skipped] if is_end else [skipped, Segment(text[-_AROUND:])]


def equal_segments(text: str) -> Iterator[Segment]:
    """Return the beginning of a text that is the same on both sides."""
    yield Segment(text[:_LIMIT])
    if len(text) > _LIMIT:
        yield Segment("", skipped=len(text) - _LIMIT)
