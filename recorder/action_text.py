"""Writes an action as a person would: `bash  git diff` for a tool call, and not as JSON."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import orjson

TOOL_KEYS = ("tool_name", "tool", "function", "name")
"""Keys under which actions name their tool."""
ARGUMENTS = ("arguments", "args", "kwargs", "parameters", "input")
"""Keys under which actions have the arguments of the tool."""

_EMPTY: tuple[Any, ...] = (None, {}, [], "")


def tool_of(action: Any) -> str | None:
    """Return the tool's name of a tool call; None for any other action."""
    if not isinstance(action, dict) or action.keys().isdisjoint(TOOL_KEYS):
        return None
    for key in TOOL_KEYS:
        value = action.get(key)
        if isinstance(value, dict):
            value = value.get("name")
        if isinstance(value, str) and value and (key != "name" or any(it in action for it in ARGUMENTS)):
            return value
    return None


def bare(action: Mapping[str, Any]) -> dict[str, Any]:
    """Return the action without OpenEnv's metadata and without keys that are None."""
    return {key: it for key, it in action.items() if key != "metadata" and it is not None}


def written_action(action: Any) -> str:
    """Return an action as text: a tool's name, two blanks, and its arguments; a text as it is. A single text among the
    arguments stands alone, others as `name=value`; a value with white space is quoted. An action that is JSON of an
    object is written like the object.

    >>> written_action({"name": "bash", "arguments": {"command": "git diff"}})
    'bash  git diff'
    >>> written_action({"name": "edit", "arguments": '{"path": "a.py", "new": "x = 1"}'})
    'edit  path=a.py new="x = 1"'
    >>> written_action({"guess": 3, "metadata": {}})
    'guess=3'
    """
    action = _parsed(action)
    if not isinstance(action, dict):
        return action.strip() if isinstance(action, str) else _json(action)
    tool = tool_of(action)
    if tool is None:
        return _pairs(bare(action)) or "{}"
    nested = next((it for key in TOOL_KEYS if isinstance(it := action.get(key), dict)), action)
    given = next((it for key in ARGUMENTS if (it := _parsed(nested.get(key))) not in _EMPTY), None)
    arguments = "" if given is None else _pairs(given) if isinstance(given, dict) else _value(given, is_alone=True)
    return f"{tool}  {arguments}".rstrip()


def _parsed(value: Any) -> Any:
    """Parse JSON of an object; any other value stays."""
    if isinstance(value, str) and value.lstrip()[:1] == "{":
        with suppress(orjson.JSONDecodeError):
            return orjson.loads(value)
    return value


def _pairs(values: Mapping[str, Any]) -> str:
    if len(values) == 1 and isinstance(only := next(iter(values.values())), str) and only.strip():
        return _value(only, is_alone=True)
    return " ".join([f"{name}={_value(value)}" for name, value in values.items()])


def _value(value: Any, *, is_alone: bool = False) -> str:
    if isinstance(value, str) and (is_alone or (value and not any(map(str.isspace, value)))):
        return value.strip()
    return _json(value)


def _json(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # a lone surrogate, or nested too deeply
        return str(value)
