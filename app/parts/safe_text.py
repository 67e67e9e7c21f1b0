"""Makes text from a model or an environment safe to show: escaped, ANSI colours as classes, invisible characters as
labels, and cut if it is very long.
"""

import json
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

from markupsafe import Markup, escape

TEXT_LIMIT = 20_000
"""Maximum number of characters of one text on a page; the whole text is one link away."""

_LINE_LIMIT = 300
_TAIL = 8  # characters at the end of a name that are always shown
_SHORT_JSON = 100  # characters of an object that stay on one line
_ESCAPE_SEQUENCE = re.compile(
    r"\x1b\[(?P<sgr>[0-9;]*)m"  # colours
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # other controls of a terminal: cursor, screen
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # its title, hyperlinks
)
_LABELLED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ud800-\udfff\ufe00-\ufe0e\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e01ef]"
)
_FENCED = re.compile(r"^ {0,3}(`{3,}(?!`)|~{3,}(?!~))[^\n]*\n.*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_JOINERS = "\u200c\u200d"
_NAMED_RUNS = {  # the code of the first: names from there on
    0x00: "NUL SOH STX ETX EOT ENQ ACK BEL BS HT LF VT FF CR SO SI",
    0x10: "DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US",
    0x7F: "DEL",
    0x85: "NEL",
    0xAD: "SHY",
    0x61C: "ALM",
    0x200B: "ZWSP ZWNJ ZWJ LRM RLM",
    0x2028: "LS PS LRE RLE PDF LRO RLO",
    0x2060: "WJ FN IT IS IP",
    0x2066: "LRI RLI FSI PDI",
    0xFEFF: "BOM",
}
_SHORT_NAMES = {first + i: name for first, run in _NAMED_RUNS.items() for i, name in enumerate(run.split())}
_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


def block(text: str, limit: int = TEXT_LIMIT) -> Markup:
    """Format a text of several lines for a `<pre>`-like element, at most `limit` characters of it."""
    pieces = []
    for piece, classes in _split_colours(text[:limit].replace("\r\n", "\n")):
        safe = with_labels(escape(piece))
        pieces.append(Markup('<span class="{}">{}</span>').format(classes, safe) if classes else safe)
    return Markup("").join(pieces)


def line(text: object, limit: int = _LINE_LIMIT) -> Markup:
    """Format text on one line, for a cell or a heading. `<bdi>` keeps its direction from affecting its neighbours."""
    flat = _one_line(text, limit)
    return Markup(f"<bdi>{escape(flat) if _is_plain(flat) else with_labels(escape(flat))}</bdi>")  # noqa: S704 - both are escaped


def fenced(text: Markup) -> Markup:
    """Set the fenced code of a text that `block` has formatted in the fixed-width face, as it is written."""

    def coded(code: re.Match[str]) -> str:
        is_whole = code[0].count("<span") == code[0].count("</span")  # no colour begins or ends within
        return f'<span class="mono">{code[0]}</span>' if is_whole else code[0]

    return Markup(_FENCED.sub(coded, text))  # noqa: S704 - escaped before


def middle(text: object, limit: int = _LINE_LIMIT) -> Markup:
    """Format a name on one line. Where it has no room, the styles cut it in its middle: names of many things begin
    alike, and differ at their end.
    """
    flat = _one_line(text, len(str(text)))
    at = len(flat) - _TAIL
    # The cut must not part a character from the joiners and marks that belong to it.
    while at > 0 and (flat[at - 1] in _JOINERS or flat[at] in _JOINERS or unicodedata.category(flat[at])[0] == "M"):
        at -= 1
    if at <= _TAIL:
        return line(flat)
    head = flat[:at] if at <= limit else f"{flat[: limit - 1]}…"
    parts = (with_labels(escape(part)) for part in (head, flat[at:]))
    return Markup('<span class="middle"><bdi>{}</bdi><bdi>{}</bdi></span>').format(*parts)


def marked(before: str, words: str, after: str) -> Markup:
    """Format a part of a text on one line, with words of it marked."""
    flat = (with_labels(escape(re.sub(r"\s+", " ", _ESCAPE_SEQUENCE.sub("", text)))) for text in (before, words, after))
    return Markup("<bdi>{}<mark>{}</mark>{}</bdi>").format(*flat)


def label(text: object, limit: int = _LINE_LIMIT) -> str:
    """Format text on one line for an attribute, where no markup is possible: invisible characters as `⟨RLO⟩`."""
    flat = _one_line(text, limit)
    if _is_plain(flat):
        return flat
    pieces = list(flat)
    for index, mark in labels(flat):
        pieces[index] = mark
    return "".join(pieces)


def labels(text: str) -> list[tuple[int, str]]:
    """Return the positions of invisible characters, in order, and a label for each: `⟨RLO⟩`."""
    return [
        (match.start(), f"⟨{_name(match[0])}⟩")
        for match in _LABELLED.finditer(text)
        if _must_be_labelled(text, match.start())
    ]


def as_text(value: Any) -> str:
    """Format any value as text: strings as they are, text parts of a message joined, everything else as JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, list) and value and all(isinstance(part, dict) and "type" in part for part in value):
        return "\n".join(part["text"] if isinstance(part.get("text"), str) else as_json(part) for part in value)
    short = json.dumps(value, ensure_ascii=False, default=str)
    return short if len(short) <= _SHORT_JSON else as_json(value)


def as_json(value: Any) -> str:
    """Format as indented JSON, without escaping non-ASCII letters."""
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)


def _is_plain(text: str) -> bool:
    """Return True if all characters are visible ASCII: a fast path for most texts."""
    return text.isascii() and text.isprintable()


def _one_line(text: object, limit: int) -> str:
    # Escape sequences and white space are removed below, so that more than `limit` characters are taken.
    whole = str(text)[: limit * 4]
    if _is_plain(whole):
        flat = whole.strip()
    else:
        flat = re.sub(r"\s*[\r\n\t]\s*", " ", _ESCAPE_SEQUENCE.sub("", whole)).strip()
    return flat if len(flat) <= limit else f"{flat[: limit - 1]}…"


def _split_colours(text: str) -> Iterator[tuple[str, str]]:
    """Yield runs of text with the classes of their ANSI colour; other escape sequences are removed."""
    state: dict[str, str] = {}
    at = 0
    for match in _ESCAPE_SEQUENCE.finditer(text):
        if match.start() > at:
            yield text[at : match.start()], " ".join(state.values())
        if match["sgr"] is not None:
            _apply(state, match["sgr"])
        at = match.end()
    if at < len(text):
        yield text[at:], " ".join(state.values())


def _apply(state: dict[str, str], codes: str) -> None:
    numbers = [int(code or 0) for code in codes.split(";")]
    if numbers[0] in {38, 48}:  # 256 colours and RGB: not among ours
        return
    for code in numbers:
        if code == 0:
            state.clear()
        elif code in {1, 2, 3, 4}:
            state[str(code)] = f"ansi-{('bold', 'dim', 'italic', 'underline')[code - 1]}"
        elif code in {22, 23, 24}:
            # 22 ends bold and dim text, 23 italics, and 24 underlining.
            for undone in {22: "12", 23: "3", 24: "4"}[code]:
                state.pop(undone, None)
        elif code == 39:
            state.pop("colour", None)
        elif 30 <= code <= 37 or 90 <= code <= 97:
            state["colour"] = f"ansi-{_COLOURS[code % 10]}"


def with_labels(source: str) -> Markup:
    """Label the invisible characters of HTML that is escaped already, and has none of them in its attributes."""

    def label_of(match: re.Match[str]) -> str:
        if not _must_be_labelled(source, match.start()):
            return match[0]
        character = match[0]
        explained = f"U+{ord(character):04X} {unicodedata.name(character, '')}".strip()
        return f'<span class="control" title="{escape(explained)}">{_name(character)}</span>'

    return Markup(_LABELLED.sub(label_of, source))  # noqa: S704 - see above


def _must_be_labelled(text: str, index: int) -> bool:
    character = text[index]
    if not _LABELLED.match(character):
        return False
    if character in _JOINERS and 0 < index < len(text) - 1:  # within an emoji, or a word of a script that needs them
        around = (text[index - 1], text[index + 1])
        return not all(
            "\u0600" <= c <= "\u0dff" or unicodedata.category(c) in {"So", "Sk"} or c == "\ufe0f" for c in around
        )
    return True


def _name(character: str) -> str:
    code = ord(character)
    return _SHORT_NAMES.get(code, f"{code:04X}")
