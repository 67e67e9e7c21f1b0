"""Words that are misspelt, and what they were meant to be."""

import difflib
from collections.abc import Iterable, Sequence

from logs_ui.recorder.errors import FilterError

_LONGEST_SHOWN = 80  # of a value in a message; nearest() is quadratic in it, too
_MOST_LISTED = 12


def check_word(field: str, kind: str, word: str, known: Sequence[str]) -> None:
    """Holds a word against those that are known there; `kind` says what it would be.

    Raises:
        FilterError: names the nearest known one.
    """
    if word not in known:
        raise misspelt(field, f"unknown {kind} {shortened(word)!r}", word, known)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` most probably is a misspelling of."""
    by_lower = {name.lower()[:_LONGEST_SHOWN]: name for name in known}
    word = word.lower()[:_LONGEST_SHOWN]
    longer = [name for name in by_lower if name.startswith(word)]
    found = longer if len(longer) == 1 else difflib.get_close_matches(word, by_lower, n=1, cutoff=0.5)
    return by_lower[found[0]] if found else None


def misspelt(field: str, what: str, word: str, known: Sequence[str]) -> FilterError:
    """`what` is wrong with a field, and the nearest known word, or some that are known."""
    near = nearest(word, known)
    if near is not None:
        return FilterError(field, f"{what}: did you mean {near!r}?", written=word, meant=near)
    if not known:
        return FilterError(field, f"{what}: it has none at all yet")
    more = ", ..." if len(known) > _MOST_LISTED else ""
    return FilterError(
        field, f"{what}: choose from {', '.join(shortened(name) for name in known[:_MOST_LISTED])}{more}"
    )


def shortened(value: str) -> str:
    """For a message, which is one line."""
    return value if len(value) <= _LONGEST_SHOWN else value[:_LONGEST_SHOWN] + "..."
