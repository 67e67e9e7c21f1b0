"""Texts and numbers, held against a text that they may stand in."""

from typing import Any

Leaf = tuple[str, str]
"""A text or number as it was given, and as it is compared."""


def leaves_of(value: Any) -> dict[str, Leaf]:
    """Texts and numbers, by where they stand."""
    found: dict[str, Leaf] = {}
    _find_leaves(value, "", found)
    return found


def _find_leaves(value: Any, path: str, found: dict[str, Leaf]) -> None:
    """No generator: one for each value takes longer than all else."""
    if isinstance(value, str):
        if said := plain(value):
            found[path] = value.strip(), said
    elif isinstance(value, dict):
        for name, inner in value.items():
            _find_leaves(inner, f"{path}.{name}", found)
    elif isinstance(value, list):
        for inner in value:
            _find_leaves(inner, f"{path}[]", found)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        found[path] = str(value), str(value)


def texts_in(value: Any) -> list[str]:
    """All of them, as of messages."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for one in inner for text in texts_in(one)]


def plain(text: str) -> str:
    """As it is compared: in one case, with single spaces."""
    return " ".join(text.split()).casefold()


def is_in(value: str, said: str) -> bool:
    """As a word of its own: 5 does not stand in 57."""
    at = said.find(value)
    while at >= 0:
        end = at + len(value)
        if not (_is_word(said[at - 1 : at] + value[0]) or _is_word(value[-1] + said[end : end + 1])):
            return True
        at = said.find(value, at + 1)
    return False


def _is_word(pair: str) -> bool:
    """Whether two characters that stand beside one another belong to one word."""
    return len(pair) == 2 and pair.isalnum()
