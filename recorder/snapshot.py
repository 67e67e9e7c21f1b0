"""Values of any kind and any malice, turned into plain JSON and storable text. What comes out shares nothing with what
went in: it is the snapshot that the recorder keeps.

This runs on the trainer's thread, so its work is bounded: by the value's size, and where parts of it are shared or hold
each other, by the limits below.
"""

import dataclasses
import hashlib
import re
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from logs_ui.recorder.redaction import without_keys

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")
_NUL = "\\u0000"  # in JSON, where it may also be a backslash's
_REPR_LENGTH = 1_000
_LINE = 300
_NAME = 120
_DEPTH = 40
_OPENED = 100_000  # values that one careful copy opens, and objects that one snapshot converts
_WRITTEN = 10_000_000  # values in one JSON text, counted as often as they are written
_SHALLOW = 3_000  # in each of the containers of a value that is not counted
_INT64 = range(-(2**63), 2**64)
_CONTAINERS = (dict, list, tuple)  # that orjson writes without asking
_SHALLOW_KINDS = frozenset((dict, list))
_SCALARS = frozenset((str, int, float, bool, type(None)))  # in which nothing else can be


def snapshot(value: Any, special: Callable[[Any], Any] | None = None) -> bytes:
    """JSON of `value` as it is now. What JSON lacks becomes text; NaN and infinities become null. Whatever the value's
    own methods raise is not passed on.

    Args:
        value: of any kind.
        special: what to write of a value that JSON lacks, arrays among them; None where it does not know better.
    """
    shallow = shallow_snapshot(value)
    if shallow is not None:
        return shallow
    try:
        options = _OPTIONS if special is None else _OPTIONS & ~orjson.OPT_SERIALIZE_NUMPY
        return _copy(orjson.dumps(value, default=_Conversion(value, special).replacement, option=options))
    except Exception:  # noqa: BLE001 - of any kind, as the value's own methods may raise it
        return _copy(orjson.dumps(plain(value)))


def shallow_snapshot(value: Any) -> bytes | None:
    """The same of a value that `is_shallow`; None of any other, and of one that takes more care."""
    try:
        return b"%b" % orjson.dumps(value, option=_OPTIONS) if is_shallow(value) else None  # as `_copy`
    except Exception:  # noqa: BLE001 - what orjson refuses, and what another thread changes meanwhile
        return None


def tree(value: Any) -> bytes:
    """The same of a value in which nothing is shared, as what was read from JSON: there is no need to count first."""
    try:
        return orjson.dumps(value, option=_OPTIONS)
    except Exception:  # noqa: BLE001 - of any kind, as the value's own methods may raise it
        return snapshot(value)


def plain(value: Any) -> Any:
    """The same as JSON values only, the slow and careful way: lone surrogates replaced, integers beyond 64 bits and
    keys that are no strings made text. A value within itself, below 40 levels, beyond 100,000 others or whose methods
    raise is only named.
    """
    return _Copy().of(value)


def _copy(json: bytes) -> bytes:
    """What orjson returns is the beginning of a larger block: each one that is kept costs a page fault, ten times the
    time that it took.
    """
    return b"%b" % json


def is_shallow(value: Any) -> bool:
    """Whether it only holds JSON's own, two levels of it and not too much, as chats, and most of what environments are
    sent, and answer: there is nothing to count, and no image but one that is text.
    """
    if type(value) not in _SHALLOW_KINDS:
        return type(value) in _SCALARS
    inside = value.values() if type(value) is dict else value
    if _SCALARS.issuperset(map(type, inside)):
        return True
    return len(inside) <= _SHALLOW and all(map(_is_flat, inside))


def _is_flat(value: Any) -> bool:
    if type(value) not in _SHALLOW_KINDS:
        return type(value) in _SCALARS
    inside = value.values() if type(value) is dict else value
    return len(inside) <= _SHALLOW and _SCALARS.issuperset(map(type, inside))


def text(value: str) -> str:
    """Without lone surrogates, which neither UTF-8 nor a database can hold: each becomes U+FFFD."""
    return _LONE_SURROGATES.sub("\ufffd", value)


def json_column(value: Any) -> str:
    """For a JSON column: also without NUL."""
    try:
        written = orjson.dumps(value).decode()
    except TypeError:
        written = orjson.dumps(plain(value)).decode()
    return orjson.dumps(_without_nul(orjson.loads(written))).decode() if _NUL in written else written


def column(value: str | None) -> str | None:
    """For a text column: also without NUL, at which databases stop reading or refuse."""
    return None if value is None else text(value).replace("\0", "\u2400")


def name(value: str) -> str:
    """For a text column that is in an index, which PostgreSQL bounds: one that is a whole problem keeps its beginning
    and a hash.
    """
    if len(value) > _NAME:
        value = f"{value[:_NAME]}... {hashlib.sha256(value.encode(errors='replace')).hexdigest()[:8]}"
    return column(value) or ""


def error_line(error: BaseException) -> str:
    """An exception as one line, "Type: message", of at most 300 characters and without secrets; "Type" where it says
    nothing. Also of one whose `__str__` fails.
    """
    message = str(traceback.TracebackException(type(error), error, None))
    return one_line(f"{type(error).__name__}: {message}".removesuffix(": "))


def trace(error: BaseException) -> str:
    """Its traceback, as Python prints it, without secrets."""
    return column(without_keys("".join(traceback.format_exception(error)))) or ""


def one_line(message: str) -> str:
    """For a table: white space is one blank, secrets are masked, and at most 300 characters are kept."""
    line = " ".join(message.split())[: 4 * _LINE]  # a secret that is cut off may not be told as one
    return (column(without_keys(line)) or "")[:_LINE]


def _without_nul(value: Any) -> Any:
    if isinstance(value, dict):
        return {column(key): _without_nul(held) for key, held in value.items()}
    if isinstance(value, list):
        return [_without_nul(held) for held in value]
    return column(value) if isinstance(value, str) else value


class _TooLargeError(Exception):
    """A value whose JSON would be larger than what is kept."""


class _Conversion:
    """Counts what one call of orjson is given to write, and gives up before that is too much. orjson itself writes what
    is shared as often as it is met: forty lists that hold the next one twice would fill the memory.
    """

    def __init__(self, value: Any, special: Callable[[Any], Any] | None) -> None:
        """Raises _TooLargeError where the value itself is too large."""
        self._special = special
        self._written = self._converted = 0
        self._count(value)

    def replacement(self, value: Any) -> Any:
        """One level of what orjson does not know."""
        self._converted += 1
        replacement = None if self._special is None else self._special(value)
        if replacement is None:
            replacement = _replacement(value)
        self._count(replacement)
        return replacement

    def _count(self, value: Any) -> None:
        self._written += _size(value, {})
        if self._written > _WRITTEN or self._converted > _OPENED:
            raise _TooLargeError


def _size(value: Any, known: dict[int, int]) -> int:
    """How many values orjson would write for it. Each container is counted once; `known` has their sizes by id."""
    if not isinstance(value, _CONTAINERS):
        return 1
    if id(value) not in known:
        known[id(value)] = _WRITTEN  # met again before it is counted, it holds itself
        inside = dict.values(value) if isinstance(value, dict) else value
        size = 1 + len(value)
        if not _SCALARS.issuperset(map(type, inside)):
            size += sum([_size(v, known) for v in inside if isinstance(v, _CONTAINERS)])
        known[id(value)] = size
    return known[id(value)]


class _Copy:
    """One careful copy of a value."""

    def __init__(self) -> None:
        self._opened = 0
        self._path: set[int] = set()  # ids of the values that are open

    def of(self, value: Any) -> Any:
        """As `plain` says. Raises nothing."""
        self._opened += 1
        try:
            if value is None or isinstance(value, bool | int | float | str):
                return _scalar(value)
            if id(value) in self._path:
                return "<cycle>"
            if len(self._path) >= _DEPTH or self._opened > _OPENED:
                return _name(value)
            return self._inside(value)
        except Exception:  # noqa: BLE001 - of any kind, as the value's own methods may raise it
            return _name(value)

    def _inside(self, value: Any) -> Any:
        self._path.add(id(value))
        try:
            if isinstance(value, Mapping):
                return {text(str(k)): self.of(v) for k, v in list(value.items())}
            if isinstance(value, list) or type(value) is tuple:
                return [self.of(v) for v in list(value)]
            return self.of(_replacement(value))
        finally:
            self._path.remove(id(value))


def _scalar(value: Any) -> Any:
    """Of the exact type: orjson knows no subclass of float, and a range asks each of its numbers about one of int."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return text(value)
    if isinstance(value, float):
        return float(value)
    return int(value) if int(value) in _INT64 else str(int(value))


def _replacement(value: Any) -> Any:
    """One level of what orjson does not know.

    Raises:
        Exception: of any kind, out of the value's own methods.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{memoryview(value).nbytes} bytes>"
    if not isinstance(value, type):  # whose methods are its instances'
        for method in ("model_dump", "tolist", "_asdict"):  # pydantic, numpy and torch, namedtuple
            if callable(convert := getattr(value, method, None)):
                return convert()
        if dataclasses.is_dataclass(value):
            return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return text(repr(value)[:_REPR_LENGTH])


def _name(value: Any) -> str:
    """What is left to say of a value that is not opened."""
    return text(f"<{type(value).__name__}>")
