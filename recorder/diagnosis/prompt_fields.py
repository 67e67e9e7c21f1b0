"""Reads the labels of a prompt, such as `Table:`, and what stands behind them."""

import re
from collections.abc import Mapping, Sequence
from itertools import chain, takewhile
from typing import Any

NOTHING = ("None", "null", "NULL", "nan", "NaN", "undefined")
_UNFILLED = re.compile(rf"{'|'.join(NOTHING)}|\{{\{{?\s?[A-Za-z_][\w.]*\s?\}}?\}}")
_LABEL = re.compile(
    r" {0,3}(?:[#>*_-]+ *)?([A-Za-z][\w '/()-]{0,40}?)(?: ?(\([^()]{0,80}:[^()]{0,80}\)))?"
    r"[*_]*:(?:[*_]+|(?=\s|$))\s*(.*)"
)
_TAGGED = re.compile(r" {0,3}<([A-Za-z][\w-]{0,40})>(?:(.*)</\1>)?\s*")
_HEADING = re.compile(r" {0,3}#+ +([^:]{1,40}?)\s*")
PICTURE = "a picture: "
_PICTURE = re.compile(
    r"\b(image|picture|photo|figure|chart|diagram|plot|graph|screenshot|map|drawing|scan|video|audio)s?\b",
    re.IGNORECASE,
)
_LONG = 10_000  # characters at either end of a prompt
_FENCED = re.compile(r"^ *```.*?(?:^ *```|\Z)", re.MULTILINE | re.DOTALL)
_MARKS = " \t`\"'*_.,;"
_RIGHTLY = re.compile(
    r"(?<![a-z])(?:previous|prior|past|history|memory|last|hint|note|comment|feedback|error|example|optional|default"
    r"|format|return|output|answer|result|expected|inventory|holding|visited|so far|tools?\b"
    r"|constraint|attachment)",
    re.IGNORECASE,
)
"""Words of labels behind which nothing may rightly stand, or a placeholder that shows the form of an answer."""


def is_unfilled(label: str, value: str | None) -> bool | None:
    """Return True if a value is nothing or a placeholder; None if that may be right behind this label, or the prompt
    ends there.

    >>> is_unfilled("Table", "None"), is_unfilled("Goal", "{goal}"), is_unfilled("Context", "")
    (True, True, True)
    >>> is_unfilled("Previous moves", "None"), is_unfilled("Unit", "km")
    (None, False)
    """
    if value and not _UNFILLED.fullmatch(value):
        return False
    return None if value is None or _RIGHTLY.search(label) else True


def prompt_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the text that comes before the model's first answer; of a long one, both ends."""
    before = takewhile(lambda message: message.get("role") != "assistant", messages)
    contents = (message.get("content") for message in before)
    parts = chain.from_iterable(content if isinstance(content, list) else [{"text": content}] for content in contents)
    text = "\n".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))
    return text if len(text) <= 2 * _LONG else f"{text[:_LONG]}\n\n{text[-_LONG:]}"


def list_pictures(messages: Sequence[Mapping[str, Any]]) -> list[tuple[str, str | None]]:
    """Return a field for each kind of picture that the prompt's text names: "" if it holds nothing but text."""
    before = list(takewhile(lambda message: message.get("role") != "assistant", messages))
    parts = chain.from_iterable(content for message in before if isinstance(content := message.get("content"), list))
    has_picture = any(isinstance(part, dict) and part.get("type") != "text" for part in parts)
    words = dict.fromkeys(word.lower() for word in _PICTURE.findall(prompt_of(before)))
    return [(f"{PICTURE}{word}", "shown" if has_picture else "") for word in words]


def list_fields(prompt: str) -> list[tuple[str, str | None]]:
    r"""Return the labels of a prompt with the values behind them, or on the next line that is no label; "" for none,
    and None for a label that ends the prompt, which the model is to fill. Lines between fences are code.

    >>> list_fields("Table:\nNone\n\n**Unit:** km\n<text></text>\nContext:\nAnswer:")
    [('Table', 'None'), ('Unit', 'km'), ('text', ''), ('Context', ''), ('Answer', None)]
    """
    lines = [line for line in _FENCED.sub("", prompt).splitlines() if line.strip()]
    labelled = [_split_label(line) for line in lines]
    fields = list[tuple[str, str | None]]()
    for place, pair in enumerate(labelled):
        if pair is not None:
            label, value = pair
            if value is None and place + 1 < len(lines):
                value = lines[place + 1].removeprefix(f"</{label}>") if labelled[place + 1] is None else ""
            fields.append((label, value and value.strip(_MARKS)))
    return fields


def list_lines_behind(prompt: str) -> dict[str, list[str]]:
    r"""Return the lines that come after each label that stands on a line alone.

    >>> list_lines_behind("Board:\nx o\no x\nYour move?")
    {'Board': ['x o', 'o x', 'Your move?']}
    """
    lines = [line for line in _FENCED.sub("", prompt).splitlines() if line.strip()]
    pairs = ((place, _split_label(line)) for place, line in enumerate(lines, 1))
    alone = ((pair[0], place) for place, pair in pairs if pair is not None and pair[1] is None)
    return {label: [line.strip(_MARKS) for line in lines[place:]] for label, place in alone}


def _split_label(line: str) -> tuple[str, str | None] | None:
    """Return the label of a line, and its value; None for the value if the line ends, and for a line without one."""
    if match := _LABEL.fullmatch(line):
        return None if _RIGHTLY.search(match[2] or "") else (match[1].strip(), match[3] or None)
    if match := _TAGGED.fullmatch(line):
        return match[1], match[2]
    match = _HEADING.fullmatch(line)
    return (match[1], None) if match else None
