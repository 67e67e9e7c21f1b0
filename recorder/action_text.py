"""Writes an action as a person would: `bash  git diff` for a tool call, and not as JSON. Reads what an observation
says, and tells kinds of observations by their first words. Splits an answer into reasoning and rest.
"""

import re
import zlib
from binascii import b2a_base64
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson

TOOL_KEYS = ("tool_name", "tool", "function", "name")
"""Keys under which actions name their tool."""
ARGUMENTS = ("arguments", "args", "kwargs", "parameters", "input")
"""Keys under which actions have the arguments of the tool."""
KEY = 4
"""Characters of an observation's key: see `observation_key` and `ending_key`."""

_THINK, _THINK_END = "<think>", "</think>"
_BEGINNING, _WORDS, _FEW, _DEEP = 96, 6, 4, 5  # characters; words (twice); dicts and lists within each other [ours]
_CLOSERS, _CLOSING = tuple("`$#%>"), re.compile(r"(?:\s*(?:</[\w:.-]+>|[`$#%>]))+$")  # of tags, fences, shells
_MARKS = ".,:;!?()[]{}<>\"'`*=#\\/"
_DIGITS = str.maketrans("", "", "0123456789")
_EMPTY: tuple[Any, ...] = (None, {}, [], "")


def tool_of(action: Any) -> str | None:
    """Return the tool's name of a tool call; None for any other action."""
    if not isinstance(action, dict) or action.keys().isdisjoint(TOOL_KEYS):
        return None
    for key in TOOL_KEYS:
        value = action.get(key)
        if isinstance(value, dict):
            value = value.get("name")
        if isinstance(value, str) and value and (key != "name" or any(argument in action for argument in ARGUMENTS)):
            return value
    return None


def bare(action: Mapping[str, Any]) -> dict[str, Any]:
    """Return the action without OpenEnv's metadata and without keys that are None."""
    return {key: value for key, value in action.items() if key != "metadata" and value is not None}


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
    nested = next((value for key in TOOL_KEYS if isinstance(value := action.get(key), dict)), action)
    arguments_value = next((value for key in ARGUMENTS if (value := _parsed(nested.get(key))) not in _EMPTY), None)
    arguments = (
        ""
        if arguments_value is None
        else _pairs(arguments_value)
        if isinstance(arguments_value, dict)
        else _value(arguments_value, is_alone=True)
    )
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


def observation_key(text: str) -> str:
    """Return four characters that stand for the first six words of an observation's text, without words that hold a
    digit other than a lone 0, which says that there is nothing.

    >>> observation_key("429: no place, ask again in 12 s") == observation_key("429: no place, ask again in 7 s")
    True
    """
    beginning = text[:_BEGINNING].split()
    if len(text) > _BEGINNING and len(beginning) > 1:
        beginning.pop()  # a part of a word
    words = _plain_words(beginning)
    return _key_of(" ".join(words) if words or not beginning else f"#{' '.join(beginning).translate(_DIGITS)}")


def ending_key(text: str) -> str | None:
    """Return four characters that stand for how an observation's text ends, likewise: its last six words from the last
    line or bracket on, or its last four, without closing tags, fences and prompts of shells. None for one of 96
    characters or less, and for one that ends without words.

    >>> ending_key("a" * 99 + " [cut: 600 of 913]") == ending_key("b" * 99 + " [cut: 600 of 705]")
    True
    """
    if len(text) <= _BEGINNING:
        return None
    ending = text[-_BEGINNING:].rstrip()
    if ending[-1:] in _CLOSERS:
        ending = _CLOSING.sub("", ending)
    begin = max(map(ending.rfind, "\n[(<\u2026"))
    words = _plain_words(ending[begin:].split()[::-1]) if begin >= 0 else _plain_words(ending.split()[:0:-1], _FEW)
    return _key_of(f"\u2026{' '.join(words)}") if words else None


def _plain_words(pieces: Sequence[str], most: int = _WORDS) -> list[str]:
    """Return the first words without digits, and lone 0. A loop: this takes part in the time of each recorded turn."""
    words = list[str]()
    for piece in pieces:
        word = piece if piece.isalpha() else piece.strip(_MARKS)
        if word.isalpha() or word == "0":
            words.append(word)
            if len(words) == most:
                break
    return words


def _key_of(text: str) -> str:
    return b2a_base64(zlib.crc32(text.encode(errors="replace")).to_bytes(4)[1:], newline=False).decode()


def observed_text(observation: Any, depth: int = _DEEP) -> str | None:
    """Return the texts of an observation, without OpenEnv's metadata and what is nested deeper; None if it has none."""
    if isinstance(observation, str):
        return observation
    parts = observation if isinstance(observation, list) else ()
    if isinstance(observation, dict):
        parts = [part for name, part in observation.items() if name != "metadata"]
    texts = [text for part in parts if depth and (text := observed_text(part, depth - 1)) is not None]
    return " ".join(texts) if texts else None


def split_reasoning(answer: str) -> tuple[str | None, str]:
    """Split an answer into reasoning (None without any) and rest. The opening tag may be in the prompt
    instead. Text before the tag is not reasoning, and stays in the answer.
    """
    head, ended, rest = answer.partition(_THINK_END)
    before_tag, begun, thought = head.partition(_THINK)
    if not ended and (before_tag.strip() or not begun):
        return None, answer
    before = before_tag if begun and before_tag.strip() else ""
    return (thought if begun else head).strip(), before + rest.lstrip()
