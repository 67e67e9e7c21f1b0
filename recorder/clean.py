"""Values of any kind and any malice, turned into plain JSON and storable text. What comes out shares nothing with what
went in: it is the snapshot that the recorder keeps.
"""

import re
from collections.abc import Mapping
from typing import Any

import orjson

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")
_REPR_LENGTH = 1_000
_DEPTH = 40
_INT64 = range(-(2**63), 2**64)


def snapshot(value: Any) -> bytes:
    """JSON of `value` as it is now. What JSON lacks becomes text; NaN and infinities become null."""
    try:
        return orjson.dumps(value, default=_replacement, option=_OPTIONS)
    except (orjson.JSONEncodeError, RecursionError):
        return orjson.dumps(plain(value))


def plain(value: Any, depth: int = 0) -> Any:  # noqa: PLR0911 - one for each kind of value
    """The same as JSON values only, the slow and careful way: lone surrogates replaced, integers beyond 64 bits and
    keys that are no strings made text, nesting beyond 40 levels cut.
    """
    match value:
        case None | bool() | float():
            return value
        case str():
            return text(value)
        case int():
            return value if value in _INT64 else str(value)
        case _ if depth >= _DEPTH:
            return text(repr(value))[:_REPR_LENGTH]
        case Mapping():
            return {text(str(k)): plain(v, depth + 1) for k, v in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(v, depth + 1) for v in value]
        case _:
            return plain(_replacement(value), depth + 1)


def text(value: str) -> str:
    """Without lone surrogates, which neither UTF-8 nor a database can hold: each becomes U+FFFD."""
    return _LONE_SURROGATES.sub("\ufffd", value)


def column(value: str | None) -> str | None:
    """For a text column: also without NUL, at which databases stop reading or refuse."""
    return None if value is None else text(value).replace("\0", "\u2400")


def _replacement(value: Any) -> Any:
    """One level of what orjson does not know."""
    for method in ("model_dump", "tolist", "_asdict"):  # pydantic, numpy and torch, namedtuple
        if callable(convert := getattr(value, method, None)):
            return convert()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return list(value)
    if isinstance(value, bytes | bytearray):
        return f"<{len(value)} bytes>"
    if isinstance(value, str):
        return text(value)
    return text(repr(value))[:_REPR_LENGTH]
