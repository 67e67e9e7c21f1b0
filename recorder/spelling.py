"""Finds the known word that a misspelt one is nearest to, for error messages."""

import difflib
from collections.abc import Iterable, Sequence

from logs_ui.recorder.errors import FilterError

_LONGEST_SHOWN = 80  # characters of a value in a message; nearest() takes time quadratic in them
_MOST_LISTED = 12


def check_word(field: str, kind: str, word: str, words: Sequence[str]) -> None:
    """Raise FilterError, with the nearest known word, for an unknown one; `kind` names what it should be."""
    if word not in words:
        raise misspelt(field, f"unknown {kind} {shortened(word)!r}", word, words)


def nearest(word: str, words: Iterable[str]) -> str | None:
    """Return the known word that `word` is most probably a misspelling of; None if none is similar."""
    by_lower = {name.lower()[:_LONGEST_SHOWN]: name for name in words}
    word = word.lower()[:_LONGEST_SHOWN]
    longer = [name for name in by_lower if name.startswith(word)]
    matches = longer if len(longer) == 1 else difflib.get_close_matches(word, by_lower, n=1, cutoff=0.5)
    return by_lower[matches[0]] if matches else None


def misspelt(field: str, what: str, word: str, words: Sequence[str], meant: str | None = None) -> FilterError:
    """Return an error that says `what` is wrong; it names what was `meant`, the nearest known word, or some of them."""
    near = meant or nearest(word, words)
    if near is not None:
        return FilterError(field, f"{what}: did you mean {near!r}?", written=word, meant=near)
    if not words:
        return FilterError(field, f"{what}: there are none yet")
    more = ", ..." if len(words) > _MOST_LISTED else ""
    listed = ", ".join(shortened(name) for name in words[:_MOST_LISTED] if name)
    return FilterError(field, f"{what}: choose from {listed}{more}")


def shortened(value: str) -> str:
    """Cut a value for a message of one line."""
    return value if len(value) <= _LONGEST_SHOWN else value[:_LONGEST_SHOWN] + "..."
