"""Find texts and numbers of JSON values in the text of an answer or a prompt."""

from typing import Any

_EAST_ASIA = "\u2e80"  # the first of its characters

Leaf = tuple[str, str]
"""A text or number as it was sent, and as it is compared."""


def leaves_of(value: Any) -> dict[str, Leaf]:
    """Return texts and numbers by their JSON path; of a list the last ones."""
    leaves: dict[str, Leaf] = {}
    _find_leaves(value, "", leaves)
    return leaves


def _find_leaves(value: Any, path: str, leaves: dict[str, Leaf]) -> None:
    """Fill `leaves`. No generator: one for each value took longer than everything else."""
    if isinstance(value, str):
        if compared := plain(value):
            leaves[path] = value.strip(), compared
    elif isinstance(value, dict):
        for name, inner in value.items():
            _find_leaves(inner, f"{path}.{name}", leaves)
    elif isinstance(value, list):
        for inner in value:
            _find_leaves(inner, f"{path}[]", leaves)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        leaves[path] = str(value), str(value)


def texts_in(value: Any) -> list[str]:
    """Return all texts in a JSON value, such as messages."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in inner for text in texts_in(item)]


def plain(text: str) -> str:
    """Return a text as it is compared: in one case, with single spaces."""
    return " ".join(text.split()).casefold()


def is_in(value: str, text: str) -> bool:
    """Return True if the text holds the value as a word of its own: 57 does not hold 5."""
    at = text.find(value)
    while at >= 0:
        end = at + len(value)
        if not (_is_word(text[at - 1 : at] + value[0]) or _is_word(value[-1] + text[end : end + 1])):
            return True
        at = text.find(value, at + 1)
    return False


def _is_word(pair: str) -> bool:
    """Return True if two neighbouring characters belong to one word. Scripts of East Asia have no spaces."""
    return len(pair) == 2 and pair.isalnum() and max(pair) < _EAST_ASIA
