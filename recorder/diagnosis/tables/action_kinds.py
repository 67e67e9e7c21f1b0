"""Actions that are alike, and what they are called."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

SHOWN = 160
"""Characters of an action, an observation or an error that are told apart."""

_FEW = 12  # different values that are told apart each by itself
_SHORT = 24  # characters of a value that may tell actions apart
_MORE, _SOME = " …", "any "  # behind the first word of several texts; before what values of another type are
_TOOL_KEYS = ("tool_name", "tool", "function", "name")
_ARGUMENTS = {"arguments", "args", "kwargs", "parameters", "input"}
_WORD = re.compile(r"\W*(\w[\w.-]*)")


def as_text(value: Any) -> str:
    """Equal actions, or observations, are written alike; what was sent along with each is left out."""
    if isinstance(value, str):
        return value.strip()
    return orjson.dumps(_bare(value), option=orjson.OPT_SORT_KEYS).decode()


def words_of(name: str) -> str | None:
    """Those that stand beside one another in each action of a kind, so that a text search finds it; None of none."""
    if name.startswith("{"):
        return None
    return name.removesuffix(_MORE).partition(f": {_SOME}")[0]


def kind_names(actions: Sequence[Any]) -> list[str]:
    """What each is an example of: its tool; of other dicts the value that tells them apart, or their keys; of texts,
    where they are many, their first word.
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
    """Of a tool call; None of any other action."""
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
    """Less OpenEnv's own metadata, and what is empty."""
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
    told = _telling(keys, actions)
    if told is not None:
        return (f"{told}: {action[told]}" for action in actions)
    return [f"{{{', '.join(keys)}}}"[:SHOWN]] * len(actions)


def _telling(keys: Sequence[str], actions: Sequence[Mapping[str, Any]]) -> str | None:
    """The key whose short texts tell actions of one shape apart, by as few values as possible; None without one."""
    found: dict[str, int] = {}
    for key in keys:
        values = [action[key] for action in actions]
        if all(isinstance(value, str) and len(value) <= _SHORT for value in values):
            found[key] = len(set(values))
    several = {key: count for key, count in found.items() if 1 < count <= _FEW and 2 * count <= len(actions)}
    return min(several, key=lambda key: several[key]) if several else None


def _values(values: Sequence[Any]) -> list[str]:
    """Themselves where they are few; else what texts begin with, or what they are."""
    texts = [as_text(value) for value in values]
    if len(set(texts)) <= _FEW:
        return [text[:SHOWN] for text in texts]
    return [_kind_of_value(value, text) for value, text in zip(values, texts, strict=True)]


def _kind_of_value(value: Any, text: str) -> str:
    if isinstance(value, str):
        word = _WORD.match(text)
        return f"{word[1][:_SHORT]}{_MORE}" if word else text[:_SHORT]
    return f"{_SOME}number" if isinstance(value, int | float) else f"{_SOME}{type(value).__name__}"
