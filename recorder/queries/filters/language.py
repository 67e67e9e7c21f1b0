r"""Parses the filter language: a line of terms such as `reward<0.2 status:error,aborted -tag:seen "I am sorry"`.

    filter  = terms, with spaces between them; a rollout must satisfy all of them
    term    = ["-"] (name operator value {"," value} | word | text in quotes)
    name    = a field's, with .key where the field has parts: rewards.accuracy
    operator = ":" or "=" (is), "!=" (is not), "<", "<=", ">", ">="
    value   = a word, text in quotes, a number, "a..b", "a..", "..b", or none for a value that is absent

Text in quotes may contain spaces, commas, \" and \\, \n, \r, \t and \u{202e}.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from typing import Literal, NamedTuple

from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries.filters import terms
from logs_ui.recorder.queries.filters.fields import ALIASES, COMPARED, FIELDS, NUMERIC, Field, Kind
from logs_ui.recorder.queries.filters.values import read_number, read_time, read_whole
from logs_ui.recorder.spelling import misspelt, shortened

MEANT = {"errors": "env_errors", "truncated": "stop:length"}
"""What people write for fields and whole terms."""

READABLE = 200
"""Characters of a line that a person can read."""

WHERE = "where"
"""The field that a mistake of the whole line names."""

SET = "set"
"""Written before the name of a term that is too long to be written down: see `keep_set`."""

FINDING = "finding"
"""Written before the id of a finding, whose filter only a run's diagnosis knows: see `with_findings`."""

_sets: dict[str, tuple[str, str]] = {}  # the text of a term, and what is printed in place of it, by its name
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_OPERATOR = r"<=|>=|!=|==|[:<>=]"
_FIELD = re.compile(rf'({_NAME})(?:\.({_QUOTED}|[^\s",:<>=!]+))?\s*({_OPERATOR})\s*', re.DOTALL)
_VALUE = re.compile(rf'{_QUOTED}|[^\s",]+', re.DOTALL)
_WORD = re.compile(rf'{_QUOTED}|[^\s"]+', re.DOTALL)
_MOST_SETS = 100
_NUMBERS = re.compile(r"(?:\d{1,18}(?:\.\.\d{1,18})?,){200,}+\d{1,18}(?:\.\.\d{1,18})?(?=\s|$)(?!\s*,)", re.ASCII)
_SINGLE = re.compile(r"'([^']*)'(?=[\s,]|$)")
_SPAN = re.compile(r"([\d.]+[kKM]?)(?:-|\u2013|\u2026|\.{3})([\d.]+[kKM]?)")
_BETWEEN = re.compile(r"(?=.*\d)[-+\d.eE]*?\.\.[-+\d.eE]*")  # a range of numbers, where names are values, too
_OPENING = re.compile(r"[(!\s-]*")
_NUMBER_OF_PAGE = re.compile(r"#(\d{1,18})")
_ALIKE = re.compile(rf"({_NAME})~=?(.+)", re.DOTALL)
_SIGN = re.compile(r"[<>]=?(?=[^<>=])")
_COMMA = re.compile(r"\s*,\s*")
_SPACE = re.compile(r"\s*")
_ESCAPE = re.compile(r"\\(?:u\{([0-9a-fA-F]{1,6})\}|(.))", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}


class Written(NamedTuple):
    """Holds a value or a key in the line: its text without quotes, and its place with them."""

    text: str
    start: int
    end: int
    is_quoted: bool


@dataclass(frozen=True)
class Token:
    """Holds a term in the line; `name` and `operator` are None for text without a field's name."""

    start: int
    end: int
    negated: bool
    name: str | None
    key: Written | None
    operator: str | None
    values: tuple[Written, ...]


@dataclass(frozen=True)
class Place:
    """Describes what is being typed at a cursor, for suggestions."""

    expects: Literal["name", "value", "other"]  # a field's name, one of its values, or what cannot be suggested
    written: str  # the part of it before the cursor
    start: int  # the part of the line that a completion replaces
    end: int
    negated: bool  # the term begins with a minus
    field: str | None  # the field of the value; None for a name
    others: tuple[str, ...]  # the other values of the same term
    beside: str  # the line without the term


def parse_terms(text: str, *, now: int | None = None) -> list[terms.Term]:
    """Read the terms of a line, in the order in which they are written. Ages such as `2h` count from `now`, in µs
    since the epoch; by default from the clock's time. Raise FilterError, whose message begins with the term at fault,
    as it was written.
    """
    return [_parse_token(text, token, now) for token in _resolve_operators(text, list(_tokens(text)))]


def keep_set(text: str, label: str = "") -> str:
    """Return a short name for the text of one term, which is then read as `set:NAME`, too, and printed as that, or as
    `label`. Equal texts have the same name, in any process, but each process has to be told the text.
    """
    name = sha256(f"{text}{label}".encode()).hexdigest()[:12]
    _sets.pop(name, None)  # the last that was named stays longest
    _sets[name] = text, label or f"{SET}:{name}"
    if len(_sets) > _MOST_SETS:
        del _sets[next(iter(_sets))]
    return name


@lru_cache(maxsize=32)
def _term_of_set(name: str, *, negated: bool) -> terms.Term:
    if name not in _sets:
        why = "its run was deleted, or it is of another database. Apply the filter anew"
        raise FilterError(SET, f"the database has no set {shortened(name)!r}: {why}")
    text, label = _sets[name]
    (term,) = parse_terms("-" * negated + text)
    object.__setattr__(term, "saved_as", label)
    return term


def with_findings(text: str, opens: Callable[[str], str]) -> str:
    """Return the line with a finding's filter, which `opens` returns for its id, in place of each `finding:ID`. A long
    list is still printed as `finding:ID`. Raise FilterError if it cannot be negated, and what `opens` raises.
    """
    try:
        tokens = [token for token in _tokens(text) if token.name == FINDING]
    except FilterError:  # `parse_terms` will raise it
        return text
    for token in reversed(tokens):
        term_text = text[token.start : token.end]
        if token.operator not in {":", "=", "!="} or len(token.values) > 1:
            raise FilterError(FINDING, f"{shortened(term_text)}: write it with one id, as in finding:truncation")
        # Tokens are replaced from the last to the first, so that the places of those before stay right.
        where, is_negated = opens(token.values[0].text), token.negated != (token.operator == "!=")
        parts = parse_terms(where)
        if is_negated and len(parts) != 1:
            message = f"{shortened(term_text)}: it has {len(parts)} terms, which cannot be negated together"
            raise FilterError(FINDING, f"{message}: {shortened(where)}")
        if len(parts) == 1 and len(where) > READABLE:
            where = f"{SET}:{keep_set(where, f'{FINDING}:{terms.print_name(token.values[0].text)}')}"
        # If the finding's only term has a minus itself, negating it takes that minus away.
        minus = "-" * (is_negated != (is_negated and where.startswith("-")))
        text = text[: token.start] + minus + where.removeprefix("-" * is_negated) + text[token.end :]
    return text


def in_full(text: str, full: Callable[[str], str | None]) -> str:
    """Return the line with `full` of each name in place of the names that are not a field's; None keeps the name."""
    try:
        names = {*FIELDS, *ALIASES, SET}
        tokens = [token for token in _tokens(text) if token.name is not None and token.name not in names]
    except FilterError:  # `parse_terms` will raise it
        return text
    for token in reversed(tokens):
        start, end = token.start + token.negated, token.key.end if token.key else None
        end = end or start + len(token.name or "")
        text = text[:start] + (full(text[start:end]) or text[start:end]) + text[end:]
    return text


def mended(text: str, mistake: FilterError) -> str | None:
    """Return the line with the misspelt part corrected; None without a known correction, or such a part in it."""
    if mistake.meant is None:
        return None
    if mistake.field == WHERE:  # a wrong quote: nobody knows where its term ends
        return text.replace(mistake.written, mistake.meant, 1) if mistake.written and mistake.written in text else None
    corrections = [
        correction
        for token in _tokens(text)
        for correction in _corrections(token, mistake.field, mistake.written or "", mistake.meant)
    ]
    for start, end, word in reversed(corrections):
        text = text[:start] + word + text[end:]
    return text if corrections else None


def split_name(text: str) -> tuple[Field, str | None] | None:
    """Read a field's name, with a key if it has one. Return the field and the key; None if it is no such name."""
    match = _FIELD.fullmatch(f"{text}:")
    field = FIELDS.get(ALIASES.get(match[1], match[1])) if match else None
    if match is None or field is None or bool(match[2]) != field.is_keyed:
        return None
    return field, match[2] and _unquote(match[2])


def without(text: str, field: str) -> str:
    """Return the line without the terms of a field, named as it was written; empty if the line cannot be parsed."""
    try:
        tokens = list(_tokens(text))
    except FilterError:
        return ""
    return " ".join(text[token.start : token.end] for token in tokens if field != shortened(token.name or "text"))


def place_at(text: str, cursor: int) -> Place:
    """Find what is being typed at a cursor; it works on lines that cannot be parsed, too."""
    head = text[:cursor]
    token = next((token for token in _tokens(head, lenient=True) if token.end == len(head)), None)
    if token is None:
        return Place("name", "", cursor, cursor, negated=False, field=None, others=(), beside=text)
    if token.operator is None:
        (word,) = token.values
        start = token.start + token.negated
        expects: Literal["name", "other"] = "other" if word.is_quoted else "name"
        end = _end_of(text, cursor, r'[^\s",:<>=!]*')
        return Place(expects, word.text, start, end, token.negated, None, (), text[: token.start] + text[end:])
    last = token.values[-1]
    others = tuple(value.text for value in token.values[:-1])
    is_open = last.is_quoted and re.fullmatch(_QUOTED, head[last.start : last.end], re.DOTALL) is None
    end = _end_of(text, cursor, r'(?:[^"\\]|\\.)*"' if is_open else r'[^\s",]*')
    beside = text[: token.start] + text[end:]
    expected: Literal["value", "other"] = "other" if token.operator[0] in "<>" else "value"
    return Place(expected, last.text, last.start, end, token.negated, token.name, others, beside)


def _resolve_operators(text: str, tokens: Sequence[Token]) -> Iterator[Token]:
    """Read `and` and `not` as other query languages do; in small letters between plain words they are words. Raises
    FilterError if two terms are joined by `or`; it names a term that accepts either, if there is one.
    """
    negated = False
    for i, token in enumerate(tokens):
        sides = [side for side in (*tokens[max(i - 1, 0) : i], *tokens[i + 1 : i + 2]) if side is not token]
        word = token.values[0]
        is_alone = token.name is None and not word.is_quoted and not token.negated and bool(sides)
        is_meant = is_alone and (word.text.isupper() or any(side.operator for side in sides))
        operator = word.text.upper() if is_meant else ""
        if operator == "NOT" and i + 1 < len(tokens):
            negated = True
        elif operator == "OR":
            raise _no_or(text, sides)
        elif operator != "AND":
            yield replace(token, negated=token.negated != negated)
            negated = False


def _no_or(text: str, sides: Sequence[Token]) -> FilterError:
    message = "or: a rollout must satisfy all terms; name:one,other accepts either"
    first, last = sides[0], sides[-1]
    if len(sides) > 1 and first.name != last.name:
        message = (
            f"{message}, of one field: apply {text[first.start : first.end]} and {text[last.start : last.end]} apart"
        )
    if len(sides) < 2 or (first.name, first.operator) != (last.name, last.operator) or first.negated or last.negated:
        return FilterError(WHERE, message)
    if first.operator is None or first.operator[0] not in ":=":
        return FilterError(WHERE, message)
    correction = f"{text[first.start : first.end]},{text[last.values[0].start : last.end]}"
    written = text[first.start : last.end]
    return FilterError(WHERE, f"{message}: did you mean {shortened(correction)!r}?", written=written, meant=correction)


def _tokens(text: str, *, lenient: bool = False) -> Iterator[Token]:
    """Split a line into terms; `lenient` accepts one that is not finished, as in a box that is being typed in."""
    start = _after(_SPACE, text, 0)
    while start < len(text):
        token = _token(text, start, lenient=lenient)
        if not lenient and token.end < len(text) and not text[token.end].isspace():
            message = f"{shortened(text[token.start :])}: put a space after the closing quote, or quote the whole value"
            raise FilterError(WHERE, message)
        yield token
        start = _after(_SPACE, text, max(token.end, start + 1))


def _token(text: str, start: int, *, lenient: bool) -> Token:
    negated = text[start] == "-"
    name_start = start + negated
    match = _FIELD.match(text, name_start)
    if match is None:
        word = _match_value(text, name_start, _WORD, lenient=lenient)
        if not lenient and not word.is_quoted:
            _check_word_alone(text, start, word)
        return Token(start, word.end, negated, None, None, None, (word,))
    key = match[2] and Written(_unquote(match[2]), match.start(2), match.end(2), is_quoted=match[2][0] == '"')
    field, numbers = FIELDS.get(ALIASES.get(match[1], match[1])), _NUMBERS.match(text, match.end())
    is_list = numbers is not None and field is not None and field.kind == Kind.WHOLE and not lenient
    # A long list of numbers stays one text: `_parse_token` divides it, five times faster.
    pattern = _NUMBERS if is_list else _VALUE
    values = [_match_value(text, match.end(), pattern, lenient=lenient)]
    while comma := _COMMA.match(text, values[-1].end):
        values.append(_match_value(text, comma.end(), _VALUE, lenient=lenient))
    token = Token(start, values[-1].end, negated, match[1], key or None, match[3], tuple(values))
    if not lenient and any(value.start == value.end for value in values):
        name = shortened(match[1])
        raise FilterError(name, f"{shortened(text[start : token.end])}: {name} needs a value")
    return token


def _match_value(text: str, start: int, pattern: re.Pattern[str], *, lenient: bool) -> Written:
    match = pattern.match(text, start)
    if text[start : start + 1] == '"':
        if match is None and not lenient:
            raise FilterError(WHERE, f"{shortened(text[start:])}: the opening quote has no closing quote")
        end = match.end() if match else len(text)
        return Written(_unquote(text[start:end]), start, end, is_quoted=True)
    if not lenient and (single := _SINGLE.match(text, start)):
        correction = terms.print_name(single[1])
        message = f"{shortened(single[0])}: use double quotes: did you mean {shortened(correction)}?"
        raise FilterError(WHERE, message, written=single[0], meant=correction)
    end = match.end() if match else start
    return Written(text[start:end], start, end, is_quoted=False)


def _check_word_alone(text: str, start: int, word: Written) -> None:
    """Raise FilterError, which names the line that works, for a word with signs of other query languages."""
    if not word.text:
        raise FilterError(WHERE, "a minus alone: write it directly before the term that it negates")
    term, written, correction = shortened(text[start : word.end]), word.text, ""
    if word.text[0] == "!" and _FIELD.match(text, word.start + 1):
        message, correction = f"{term}: write - to negate a term", f"-{word.text[1:]}"
    elif word.text[0] in "(!" and _FIELD.match(text, _after(_OPENING, text, word.start)):
        message, written = f"{term}: terms cannot be grouped; a space means and, name:one,other means or", text
        correction = _without_groups(text)
    elif (alike := _ALIKE.fullmatch(word.text)) and alike[1] in FIELDS:
        star = "*" if alike[1] == "task" else ""
        message, correction = (
            f"{term}: ~ is not an operator",
            f"{alike[1]}:{terms.print_name(alike[2].strip('*'))}{star}",
        )
    elif any(sign in word.text for sign in ":<>="):
        message = f"{term}: no field's name before the sign. To search for it, put it in quotes"
    else:
        return
    more = {"written": written, "meant": correction} if correction else {}
    raise FilterError(WHERE, message + (f": did you mean {shortened(correction)!r}?" if correction else ""), **more)


def _without_groups(text: str) -> str:
    """Return the line without parentheses if it can then be read, perhaps with one more correction; else ""."""
    plain = text.translate({ord("("): None, ord(")"): None})
    if plain == text:
        return ""
    try:
        parse_terms(plain)
    except FilterError as mistake:
        return mended(plain, mistake) or ""
    return plain


def _unquote(written: str) -> str:
    """Return the text without quotes and escapes; the closing quote may not be typed yet."""
    if not written.startswith('"'):
        return written
    inside = written[1:-1] if len(written) > 1 and re.fullmatch(_QUOTED, written, re.DOTALL) else written[1:]

    def unescape(escape: re.Match[str]) -> str:
        if escape[1] is not None and int(escape[1], 16) <= 0x10FFFF:
            return chr(int(escape[1], 16))
        return _ESCAPES.get(escape[2] or "", escape[0])

    return _ESCAPE.sub(unescape, inside)


def _parse_token(text: str, token: Token, now: int | None) -> terms.Term:
    """Return the term of a token; a mistake in it names the term."""
    try:
        if token.name is None:
            word = token.values[0]
            if not word.is_quoted and (number := _NUMBER_OF_PAGE.fullmatch(word.text)):
                return terms.Term("id", (terms.Range(int(number[1]), int(number[1])),), negated=token.negated)
            return terms.Term("text", (word.text,), negated=token.negated)
        name, operator = ALIASES.get(token.name, token.name), token.operator or ":"
        if name == "task" and len(token.values) == 1 and not token.values[0].is_quoted:
            (word,) = token.values
            if word.text.endswith("*") and len(word.text) > 1:
                return terms.Term("family", (word.text[:-1],), negated=token.negated != (operator == "!="))
        if name == SET:
            return _term_of_set(token.values[0].text, negated=token.negated != (operator == "!="))
        if name not in FIELDS:
            raise _unknown(name)
        field = FIELDS[name]
        if operator[0] in "<>":
            values: tuple[terms.Value, ...] = (_parse_comparison(field, operator, token),)
        elif field.kind == Kind.WHOLE and not token.values[0].is_quoted and "," in token.values[0].text:
            ends = (part.partition("..") for part in token.values[0].text.split(","))
            values = tuple(terms.Range(int(low), int(high or low)) for low, _, high in ends)
        else:
            key = "" if token.key is None else f".{terms.print_key(token.key.text)}"
            values = tuple(_value(field, name + key, value, now) for value in token.values)
        return terms.Term(
            name, values, token.key.text if token.key else None, negated=token.negated != (operator == "!=")
        )
    except FilterError as mistake:
        message = f"{shortened(text[token.start : token.end])}: {mistake}"
        raise FilterError(mistake.field, message, written=mistake.written, meant=mistake.meant) from None


def _unknown(name: str) -> FilterError:
    if name == FINDING:
        return FilterError(FINDING, "only the diagnosis of one run knows its findings: name the run")
    return misspelt(shortened(name), f"unknown field {shortened(name)!r}", name, list(FIELDS), MEANT.get(name))


def _parse_comparison(field: Field, operator: str, token: Token) -> terms.Range:
    if field.kind not in COMPARED:
        raise FilterError(field.name, f"{field.name} does not support {operator}: write for example {field.example}")
    number = _number(field, ",".join(value.text for value in token.values))
    strict = "=" not in operator
    return terms.Range(low=number, above=strict) if operator[0] == ">" else terms.Range(high=number, below=strict)


def _value(field: Field, name: str, written: Written, now: int | None) -> terms.Value:
    """Read one value; `name` is the field's, with its key, as it was written."""
    if written.text == terms.ABSENT and not written.is_quoted:
        return None
    if field.kind == Kind.TIME:
        moment = read_time(field.name, written.text, now)
        return terms.Range(low=moment) if field.name == "since" else terms.Range(high=moment)
    if field.kind not in NUMERIC and (
        field.kind != Kind.ANY or written.is_quoted or not _BETWEEN.fullmatch(written.text)
    ):
        return written.text
    if sign := _SIGN.match(written.text):
        correction = f"{name}{written.text}"
        message = f"{sign[0]} after a colon: did you mean {shortened(correction)!r}?"
        raise FilterError(field.name, message, written=written.text, meant=correction)
    span = _SPAN.fullmatch(written.text) if field.kind in NUMERIC else None
    low, dots, high = (span[1], "..", span[2]) if span else written.text.partition("..")
    if not dots:
        number = _number(field, low)
        return terms.Range(number, number)
    return terms.Range(_number(field, low) if low else None, _number(field, high) if high else None)


def _number(field: Field, text: str) -> float:
    return read_whole(field.name, text) if field.kind == Kind.WHOLE else read_number(field.name, text)


def _corrections(token: Token, field: str, wrong: str, correction: str) -> list[tuple[int, int, str]]:
    """Return the places in a token of what is wrong, each as (start, end, replacement)."""
    if token.name is None or shortened(token.name) != field:
        return []
    if token.name == wrong and ":" in MEANT.get(wrong, ""):
        negated = token.negated != (token.values[0].text in {"no", "false", "0"})
        return [(token.start, token.end, "-" * negated + correction)]
    if token.name == wrong:
        start = token.start + token.negated
        return [(start, start + len(token.name), correction)]
    end_of_name = token.start + token.negated + len(token.name) if token.key is None else token.key.end
    if _SIGN.match(wrong):
        return [(end_of_name, value.end, wrong) for value in token.values if value.text == wrong]
    if token.key is not None:
        return [(token.key.start, token.key.end, terms.print_key(correction))] if token.key.text == wrong else []
    word = correction if correction == f"{wrong}*" else terms.print_name(correction)
    return [(value.start, value.end, word) for value in token.values if value.text == wrong]


def _after(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.match(text, start)
    return match.end() if match else start


def _end_of(text: str, start: int, rest: str) -> int:
    return _after(re.compile(rest, re.DOTALL), text, start)
