"""Turns values of any type, even hostile ones, into plain JSON and storable text. The result shares nothing with the
value: it is the snapshot that the recorder stores.

This runs on the trainer's thread, so its work is bounded: by the size of the value, and by the limits below if parts of
the value are shared or contain each other.
"""

import dataclasses
import hashlib
import json
import re
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from logs_ui.recorder.redaction import without_keys

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")
_NUL = "\\u0000"  # NUL in JSON; after an escaped backslash it is plain text
_REPR_LENGTH = 1_000
_LINE = 300
_NAME = 120
_DEPTH = 40
_OPENED = 100_000  # most values that one careful copy reads, and objects that one snapshot converts
_WRITTEN = 10_000_000  # most values in one JSON text, counted as often as they are written
_SHALLOW = 3_000  # most items in each container of a value that is written without counting
_INT64 = range(-(2**63), 2**64)
_CONTAINERS = (dict, list, tuple)  # types that orjson writes without calling `default`
_SHALLOW_KINDS = frozenset((dict, list))
_SCALARS = frozenset((str, int, float, bool, type(None)))  # types that contain nothing else


def text_key(written: str) -> int:
    """Return a key of 48 bits for a text, which a float represents exactly."""
    return int.from_bytes(hashlib.sha256(written.encode(errors="surrogatepass")).digest()[:6])


def snapshot(value: Any, special: Callable[[Any], Any] | None = None) -> bytes:
    """Return any value as JSON, as it is now. Values that JSON lacks, such as arrays, become what `special` returns, or
    text; NaN and infinities become null. Exceptions of the value's methods are not raised.
    """
    shallow = shallow_snapshot(value)
    if shallow is not None:
        return shallow
    try:
        options = _OPTIONS if special is None else _OPTIONS & ~orjson.OPT_SERIALIZE_NUMPY
        return _copy(orjson.dumps(value, default=_Conversion(value, special).replacement, option=options))
    except Exception:  # noqa: BLE001 - the value's methods may raise anything
        return _copy(orjson.dumps(plain(value)))


def shallow_snapshot(value: Any) -> bytes | None:
    """Do the same for a value that `is_shallow`; None for any other, and for one that orjson refuses."""
    try:
        return b"%b" % orjson.dumps(value, option=_OPTIONS) if is_shallow(value) else None  # a copy: see `_copy`
    except Exception:  # noqa: BLE001 - orjson refuses it, or another thread changes it meanwhile
        return None


def tree(value: Any) -> bytes:
    """Do the same for a value in which nothing is shared, such as parsed JSON: there is no need to count first."""
    try:
        return orjson.dumps(value, option=_OPTIONS)
    except Exception:  # noqa: BLE001 - the value's methods may raise anything
        return snapshot(value)


def plain(value: Any) -> Any:
    """Copy `value` as JSON values, in the slow and careful way: lone surrogates are replaced; integers beyond 64 bits,
    and keys that are not strings, become text. A value inside itself, below 40 levels, after 100,000 others, or whose
    methods raise becomes the name of its type.
    """
    return _Copy().of(value)


def plain_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a run's settings as `plain` does; NaN and infinities, which JSON lacks, become text."""
    settings: dict[str, Any] = json.loads(json.dumps(plain(dict(values))), parse_constant=str)
    return settings


def _copy(json: bytes) -> bytes:
    """Copy the bytes. orjson returns the beginning of a larger block: each one that is kept costs a page fault, which
    takes ten times as long as the copy.
    """
    return b"%b" % json


def is_shallow(value: Any) -> bool:
    """Return True if it contains only JSON's types, in two levels, and not too many values, as chats and most actions
    and observations do: there is nothing to count, and an image in it can only be text.
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
    """Replace lone surrogates, which neither UTF-8 nor a database can store, by U+FFFD."""
    return _LONE_SURROGATES.sub("\ufffd", value)


def json_column(value: Any) -> str:
    """Return JSON for a column, without NUL."""
    try:
        written = orjson.dumps(value).decode()
    except TypeError:
        written = orjson.dumps(plain(value)).decode()
    return orjson.dumps(_without_nul(orjson.loads(written))).decode() if _NUL in written else written


def column(value: str | None) -> str | None:
    """Return text for a column, without NUL, at which databases stop reading or raise."""
    return None if value is None else text(value).replace("\0", "\u2400")


def name(value: str) -> str:
    """Return text for an indexed column, which PostgreSQL bounds: a long one keeps its beginning and a hash."""
    if len(value) > _NAME:
        value = f"{value[:_NAME]}... {hashlib.sha256(value.encode(errors='replace')).hexdigest()[:8]}"
    return column(value) or ""


def error_line(error: BaseException) -> str:
    """Return an exception as one line, "Type: message", of at most 300 characters and without secrets; "Type" without a
    message. It may be an exception whose `__str__` fails.
    """
    message = str(traceback.TracebackException(type(error), error, None))
    return one_line(f"{type(error).__name__}: {message}".removesuffix(": "))


def trace(error: BaseException) -> str:
    """Return the traceback of an exception as Python prints it, without secrets."""
    return column(without_keys("".join(traceback.format_exception(error)))) or ""


def one_line(message: str) -> str:
    """Return a message as one line of at most 300 characters, with single blanks and without secrets."""
    line = " ".join(message.split())[
        : 4 * _LINE
    ]  # longer than the result: a secret that is cut off may not be recognized
    return (column(without_keys(line)) or "")[:_LINE]


def visible(value: object) -> str:
    """Return the text in one line. Control and bidi characters, which a terminal would obey, become U+FFFD."""
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in " ".join(str(value).split())
    )


def _without_nul(value: Any) -> Any:
    if isinstance(value, dict):
        return {column(key): _without_nul(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nul(item) for item in value]
    return column(value) if isinstance(value, str) else value


class _TooLargeError(Exception):
    """A value whose JSON would be larger than what is kept."""


class _Conversion:
    """Counts the values that one call of orjson writes, and raises before they are too many. orjson writes a shared
    value as often as it occurs: forty lists that each contain the next one twice would fill the memory.
    """

    def __init__(self, value: Any, special: Callable[[Any], Any] | None) -> None:
        """Raise _TooLargeError if the value itself is too large."""
        self._special = special
        self._written = self._converted = 0
        self._count(value)

    def replacement(self, value: Any) -> Any:
        """Return one level of a value that orjson does not know."""
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


def _size(value: Any, sizes: dict[int, int]) -> int:
    """Return how many values orjson would write. Each container is counted once; `sizes` has them by id."""
    if not isinstance(value, _CONTAINERS):
        return 1
    if id(value) not in sizes:
        sizes[id(value)] = _WRITTEN  # if it occurs again before it is counted, it contains itself
        inside = dict.values(value) if isinstance(value, dict) else value
        size = 1 + len(value)
        if not _SCALARS.issuperset(map(type, inside)):
            size += sum([_size(v, sizes) for v in inside if isinstance(v, _CONTAINERS)])
        sizes[id(value)] = size
    return sizes[id(value)]


class _Copy:
    """Makes one careful copy of a value."""

    def __init__(self) -> None:
        self._opened = 0
        self._path: set[int] = set()  # ids of the values that are open

    def of(self, value: Any) -> Any:
        """Copy a value as `plain` describes. Raise nothing."""
        self._opened += 1
        try:
            if value is None or isinstance(value, bool | int | float | str):
                return _scalar(value)
            if id(value) in self._path:
                return "<cycle>"
            if len(self._path) >= _DEPTH or self._opened > _OPENED:
                return _name(value)
            return self._inside(value)
        except Exception:  # noqa: BLE001 - the value's methods may raise anything
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
    """Convert to the exact type: orjson knows no subclass of float, and `in` a range is slow for a subclass of int."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return text(value)
    if isinstance(value, float):
        return float(value)
    return int(value) if int(value) in _INT64 else str(int(value))


def _replacement(value: Any) -> Any:
    """Return one level of a value that orjson does not know. Raise any exception of the value's methods."""
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{memoryview(value).nbytes} bytes>"
    if not isinstance(value, type):  # a class: its methods are for its instances
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
    """Name the type of a value that is not copied."""
    return text(f"<{type(value).__name__}>")
