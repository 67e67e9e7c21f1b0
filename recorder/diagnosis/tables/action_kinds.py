"""Groups similar actions into kinds, and names the kinds."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

SHOWN = 160
"""Characters of an action, an observation or an error that are compared and shown."""

_FEW = 12  # distinct values that each become a kind
_SHORT = 24  # characters of a value that may name a kind
_MORE, _SOME = " …", "any "  # after the first word of several texts; before a type's name
_TOOL_KEYS = ("tool_name", "tool", "function", "name")
_ARGUMENTS = {"arguments", "args", "kwargs", "parameters", "input"}
_WORD = re.compile(r"\W*(\w[\w.-]*)")


def as_text(value: Any) -> str:
    """Return an action or observation as text, the same for equal ones; OpenEnv's metadata is left out."""
    if isinstance(value, str):
        return value.strip()
    return orjson.dumps(_bare(value), option=orjson.OPT_SORT_KEYS).decode()


def words_of(name: str) -> str | None:
    """Return the words that a text search finds each action of a kind by; None if there are none."""
    if name.startswith("{"):
        return None
    return name.removesuffix(_MORE).partition(f": {_SOME}")[0]


def kind_names(actions: Sequence[Any]) -> list[str]:
    """Return the kind of each action.

    It is the tool's name; for other dicts a value that distinguishes them, or their keys; for texts the text itself, or
    its first word if there are many.
    """
    names: list[str] = [_tool(action) or "" for action in actions]
    by_shape: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, action in enumerate(actions):
        if not names[place]:
            by_shape[_shape(action)].append(place)
    for shape, places in by_shape.items():
        for place, name in zip(places, _named(shape, [_bare(actions[place]) for place in places]), strict=True):
            names[place] = name
    return names


def _tool(action: Any) -> str | None:
    """Return the tool's name of a tool call; None for any other action."""
    if not isinstance(action, Mapping):
        return None
    for key in _TOOL_KEYS:
        value = action.get(key)
        if isinstance(value, Mapping):
            value = value.get("name")
        if isinstance(value, str) and value and (key != "name" or _ARGUMENTS & action.keys()):
            return value[:SHOWN]
    return None


def _bare(value: Any) -> Any:
    """Return the value without OpenEnv's metadata and without keys that are None."""
    if not isinstance(value, Mapping):
        return value
    return {key: it for key, it in value.items() if key != "metadata" and it is not None}


def _shape(action: Any) -> tuple[str, ...]:
    bare = _bare(action)
    return (type(action).__name__, *sorted(map(str, bare))) if isinstance(bare, Mapping) else (type(action).__name__,)


def _named(shape: tuple[str, ...], actions: list[Any]) -> Iterable[str]:
    if not isinstance(actions[0], Mapping):
        return _values(actions)
    keys = shape[1:]
    if len(keys) == 1:
        return (f"{keys[0]}: {value}" for value in _values([action[keys[0]] for action in actions]))
    key = _telling(keys, actions)
    if key is not None:
        return (f"{key}: {action[key]}" for action in actions)
    return [f"{{{', '.join(keys)}}}"[:SHOWN]] * len(actions)


def _telling(keys: Sequence[str], actions: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the key whose short texts divide actions of one shape into the fewest kinds; None without one."""
    found: dict[str, int] = {}
    for key in keys:
        values = [action[key] for action in actions]
        if all(isinstance(value, str) and len(value) <= _SHORT for value in values):
            found[key] = len(set(values))
    several = {key: count for key, count in found.items() if 1 < count <= _FEW and 2 * count <= len(actions)}
    return min(several, key=lambda key: several[key]) if several else None


def _values(values: Sequence[Any]) -> list[str]:
    """Return the values themselves if they are few, else the first word of a text or the name of the type."""
    texts = [as_text(value) for value in values]
    if len(set(texts)) <= _FEW:
        return [text[:SHOWN] for text in texts]
    found = []
    for value, text in zip(values, texts, strict=True):
        word = _WORD.match(text)
        of_type = f"{_SOME}number" if isinstance(value, int | float) else f"{_SOME}{type(value).__name__}"
        first = f"{word[1][:_SHORT]}{_MORE}" if word else text[:_SHORT]
        found.append(first if isinstance(value, str) else of_type)
    return found
