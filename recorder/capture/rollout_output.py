"""Checks and copies what a rollout function returned, so that later changes of it do not change what is recorded."""

import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import orjson
from msgspec import Raw, Struct
from numpy.typing import NDArray

from logs_ui.recorder.redaction import masked
from logs_ui.recorder.snapshot import snapshot
from logs_ui.recorder.storage.payload import Tokens

ScalarT = TypeVar("ScalarT", bound=np.generic)

_NUMBER = 40  # bytes of a number in a tuple, with the reference to it
_TOKEN_KEYS = ("prompt_ids", "completion_ids", "logprobs", "env_mask")


if TYPE_CHECKING:
    Row: TypeAlias = Any
else:
    Row = Raw  # decoded, a row of numbers stays in one piece until it is an array: see wire/arrays.py


class OutputError(Exception):
    """The trainer cannot use what a rollout function returned."""


class Output(Struct, frozen=True, array_like=True, dict=True):
    """Holds a copy of what a rollout function returned."""

    prompt_ids: list[Any]  # (N) Token ids of each row: a tuple for a list, otherwise an array
    completion_ids: list[Any]  # (N) likewise
    logprobs: list[Row] | None  # (N) As returned, in the same form; None if the function returned none
    env_mask: list[Row] | None  # (N) likewise
    others: bytes  # JSON of all other keys
    lists: frozenset[str]  # the other keys that hold a list
    size: int  # about how many bytes it keeps in memory

    def tokens(self, index: int) -> Tokens:
        """Return row `index`'s arrays, without log-probabilities or a mask that have another length or type. Raises
        TypeError, ValueError or OverflowError if the ids are not token ids.
        """
        prompt, completion = (token_ids(rows[index]) for rows in (self.prompt_ids, self.completion_ids))
        return Tokens(
            prompt,
            completion,
            _fitting(self._halves or self.logprobs, index, len(completion), _half_precision),
            _fitting(self.env_mask, index, len(completion), _ones),
        )

    def lengths(self, index: int) -> dict[str, int]:
        """Return row `index`'s columns that count its tokens, without making arrays of them."""
        length = len(self.completion_ids[index])
        mask = _fitting(self.env_mask, index, length, _ones)
        inserted = 0 if mask is None else length - int(mask.sum())
        return {
            "prompt_tokens": len(self.prompt_ids[index]),
            "completion_tokens": length - inserted,
            "env_tokens": inserted,
        }

    def extras(self, index: int) -> dict[str, Any]:
        """Return row `index`'s other fields, and `notes` on arrays that `tokens` leaves out. As in TRL, a list has one
        value a row; others are every row's.
        """
        fields = {
            name: value[index] if name in self.lists else value
            for name, value in self._parsed.items()
            if name not in self.lists or index < len(value)
        }
        ids, arrays = len(self.completion_ids[index]), {"logprobs": self.logprobs, "env_mask": self.env_mask}
        counts = {name: len(rows[index]) for name, rows in arrays.items() if rows is not None}
        odd = {
            name: f"{count} values for {ids} ids: left out" for name, count in counts.items() if count not in {0, ids}
        }
        return fields | {"notes": odd} if odd else fields

    @cached_property
    def numbers(self) -> dict[str, list[float | None]]:
        """Return (N) values of each list that holds a number for some rows; None for the other rows."""
        columns = {name: [_number(value) for value in self._parsed[name]] for name in self.lists}
        rows = len(self.completion_ids)
        return {name: values for name, values in columns.items() if len(values) == rows and set(values) != {None}}

    @cached_property
    def _halves(self) -> list[NDArray[np.float16]] | None:
        """Return the rows' log-probabilities, converted at once to release the GIL once; None if some lack numbers."""
        rows = self.logprobs
        if rows is None or not all(isinstance(row, tuple) for row in rows):
            return None
        with suppress(TypeError, ValueError), np.errstate(over="ignore"):
            # All rows become one array, which is cut at their ends. It has two dimensions if tokens have lists of
            # values, which `_half_precision` reads row by row.
            halves = _array(tuple(chain.from_iterable(rows)), np.float64).astype(np.float16)
            ends = list(accumulate(map(len, rows)))
            if halves.ndim == 1:
                return [halves[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        return None

    @cached_property
    def _parsed(self) -> dict[str, Any]:
        parsed: dict[str, Any] = masked(orjson.loads(self.others))
        return parsed


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def checked_output(output: Any, count: int) -> Output:
    """Check and copy what a rollout function returned for `count` prompts. Raise OutputError if it is no mapping, or
    if a part is missing, is no list, or has another length.
    """
    if not isinstance(output, Mapping):
        raise OutputError(f"rollout_func returned a {type(output).__name__}, where a dict is needed")
    missing = [key for key in _TOKEN_KEYS[:3] if key not in output]
    if missing:
        raise OutputError(f"rollout_func returned no {' and no '.join(map(repr, missing))}")
    for key in _TOKEN_KEYS:
        rows: Any = output.get(key)
        if rows is None and key not in _TOKEN_KEYS[:2]:
            continue
        if not hasattr(rows, "__len__"):
            raise OutputError(f"rollout_func returned {key!r} as a {type(rows).__name__}, where a list is needed")
        if len(rows) != count:
            raise OutputError(f"rollout_func returned {len(rows)} {key!r} for {count} prompts")
    for key in _TOKEN_KEYS[:2]:
        _check_ids(key, output[key])
    copies = {key: _copied(output.get(key)) for key in _TOKEN_KEYS}
    extras = {key: value for key, value in output.items() if key not in _TOKEN_KEYS}
    others = snapshot(extras)
    lists = frozenset(str(key) for key, value in extras.items() if isinstance(value, list))
    size = len(others) + _NUMBER * sum(sum(map(len, rows)) for rows in copies.values() if rows is not None)
    prompt_ids, completion_ids = copies["prompt_ids"] or [], copies["completion_ids"] or []
    return Output(prompt_ids, completion_ids, copies["logprobs"], copies["env_mask"], others, lists, size)


def _check_ids(key: str, rows: Any) -> None:
    # Nearly always each row has ids, and nothing else is to check. The loop finds the row that the error names.
    with suppress(TypeError):  # an entry has no length
        if all(map(len, rows)):
            return
    for index, ids in enumerate(rows):
        if not hasattr(ids, "__len__"):
            raise OutputError(f"rollout_func returned {key!r} of row {index} as a {type(ids).__name__}, not a list")
        if key == "completion_ids" and not len(ids):
            raise OutputError(f"rollout_func returned an empty completion for row {index}")


def _copied(rows: Any) -> list[Any] | None:
    if rows is None:
        return None
    if set(map(type, rows)) != {list}:
        return list(map(copied_row, rows))
    different = dict(zip(map(id, rows), rows, strict=True))
    if len(different) == len(rows):
        return list(map(tuple, rows))
    # The rows of a group may share one list: it is copied once.
    copies = dict(zip(different, map(tuple, different.values()), strict=True))
    return list(map(copies.__getitem__, map(id, rows)))


def copied_row(row: Any) -> Any:
    """Copy a row: a list as a tuple, which costs a twentieth of an array. The writer's thread makes the array."""
    if isinstance(row, list | tuple):
        return tuple(row)
    if hasattr(row, "detach"):
        return row.detach().cpu().numpy().copy()
    return np.array(row) if row is not None else ()


def _fitting(
    rows: list[Any] | None, index: int, length: int, read: Callable[[Any], NDArray[ScalarT]]
) -> NDArray[ScalarT] | None:
    if rows is None:
        return None
    with suppress(TypeError, ValueError, OverflowError):
        values = read(rows[index])
        return values if values.shape == (length,) else None
    return None


def _array(values: Any, dtype: type[ScalarT]) -> NDArray[ScalarT]:
    """Make an array. For a tuple of plain numbers `struct` takes a third of numpy's time, which checks each type."""
    if isinstance(values, tuple):
        with suppress(struct.error):
            packed = struct.Struct(f"{len(values)}{np.dtype(dtype).char}").pack(*values)
            # Of bytes alone numpy would make an array that is read-only.
            return np.frombuffer(bytearray(packed), dtype)
    if dtype == np.float64 or (isinstance(values, np.ndarray) and values.dtype.kind in "iub"):
        return np.asarray(values, dtype)
    # Numpy would cast NaN to some whole number and only warn, so the warning is made an error.
    try:
        with np.errstate(invalid="raise"):
            return np.asarray(values, dtype)
    except FloatingPointError:
        raise ValueError("NaN and infinity are no whole numbers") from None


def token_ids(values: Any) -> NDArray[np.int32]:
    """Return (L,) token ids. Raise TypeError, ValueError or OverflowError if they are none."""
    ids = _array(values, np.int32)
    if ids.ndim != 1:
        raise TypeError(f"token ids have {ids.ndim} dimensions, where 1 is needed")
    return ids


def _ones(values: Any) -> NDArray[np.uint8]:
    """Return (C,) 1 where the mask is not 0."""
    if isinstance(values, tuple):
        with suppress(TypeError, ValueError):  # fails unless all are small whole numbers, as they nearly always are
            return np.frombuffer(bytearray(values), np.uint8).astype(np.bool_).view(np.uint8)
    return _array(values, np.bool_).view(np.uint8)


def _half_precision(values: Any) -> NDArray[np.float16]:
    """Return (C,) numbers. vLLM's client has a list for each token, with the sampled one first; None is NaN."""
    if isinstance(values, np.ndarray) and values.dtype == np.float16:
        return values
    with suppress(TypeError, ValueError), np.errstate(over="ignore"):
        numbers = _array(values, np.float64)
        if numbers.ndim == 1:
            return numbers.astype(np.float16)
    first = [value[0] if isinstance(value, list | tuple) and value else value for value in values]
    with np.errstate(over="ignore"):
        return np.asarray(first, np.float64).astype(np.float16)
