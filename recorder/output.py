"""What a rollout function returned: checked, and copied so that later changes of it change nothing recorded."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from logs_ui.recorder.clean import snapshot
from logs_ui.recorder.payload import Tokens

_TOKEN_KEYS = ("prompt_ids", "completion_ids", "logprobs", "env_mask")


class OutputError(Exception):
    """The trainer will not be able to take what a rollout function returned."""


@dataclass(frozen=True)
class Output:
    """A snapshot.

    Attributes:
        prompt_ids, completion_ids: (N) token ids of each row.
        logprobs, env_mask: (N) as returned; None where the function returned none.
        others: JSON of all other keys.
        size: about how many bytes it keeps alive.
    """

    prompt_ids: list[Any]
    completion_ids: list[Any]
    logprobs: list[Any] | None
    env_mask: list[Any] | None
    others: bytes
    size: int

    def tokens(self, i: int) -> Tokens:
        """Row `i`'s arrays. A log-prob list of the wrong length, or a mask, is left out rather than cut."""
        completion = np.asarray(self.completion_ids[i], np.int32)
        logprobs = None if self.logprobs is None else _logprobs(self.logprobs[i])
        mask = None if self.env_mask is None else np.asarray(self.env_mask[i], np.uint8)
        return Tokens(
            np.asarray(self.prompt_ids[i], np.int32),
            completion,
            logprobs if logprobs is not None and len(logprobs) == len(completion) else None,
            mask if mask is not None and len(mask) == len(completion) else None,
        )

    def extras(self, i: int) -> dict[str, Any]:
        """Row `i`'s other fields; as TRL has it, lists are per row and anything else is every row's."""
        return {
            name: value[i] if isinstance(value, list) and i < len(value) else value
            for name, value in self._parsed.items()
        }

    @cached_property
    def _parsed(self) -> dict[str, Any]:
        parsed: dict[str, Any] = orjson.loads(self.others)
        return parsed


def checked_output(output: Any, count: int) -> Output:
    """Copies what a rollout function returned for `count` prompts.

    Raises:
        OutputError: a key is missing, or a list has not one entry for each prompt.
    """
    if not isinstance(output, Mapping):
        raise OutputError(f"rollout_func returned a {type(output).__name__}, where a dict is needed")
    missing = [key for key in _TOKEN_KEYS[:3] if key not in output]
    if missing:
        raise OutputError(f"rollout_func returned no {' and no '.join(map(repr, missing))}")
    for key in _TOKEN_KEYS:
        value = output.get(key)
        if value is None and key in _TOKEN_KEYS[2:]:
            continue
        if value is None or not hasattr(value, "__len__"):
            raise OutputError(f"rollout_func returned {key!r} as a {type(value).__name__}, where a list is needed")
        if len(value) != count:
            raise OutputError(f"rollout_func returned {len(value)} {key!r} for {count} prompts")
    empty = [i for i, ids in enumerate(output["completion_ids"]) if not len(ids)]
    if empty:
        raise OutputError(f"rollout_func returned an empty completion for row {empty[0]}")
    copies = {key: _copied(output.get(key)) for key in _TOKEN_KEYS}
    others = snapshot({key: value for key, value in output.items() if key not in _TOKEN_KEYS})
    size = len(others) + 8 * sum(len(row) for rows in copies.values() if rows is not None for row in rows)
    prompt_ids, completion_ids = copies["prompt_ids"] or [], copies["completion_ids"] or []
    return Output(prompt_ids, completion_ids, copies["logprobs"], copies["env_mask"], others, size)


def _copied(rows: Any) -> list[Any] | None:
    return None if rows is None else [_copied_row(row) for row in rows]


def _copied_row(row: Any) -> Any:
    """A tuple costs a twentieth of an array here; the array is made in the writer's thread."""
    if isinstance(row, list | tuple):
        return tuple(row)
    if hasattr(row, "detach"):
        return row.detach().cpu().numpy().copy()
    return np.array(row) if row is not None else ()


def _logprobs(values: Any) -> NDArray[np.float16]:
    """(C,). vLLM's client returns each token's alternatives as a list, the sampled one first; a NaN comes as None."""
    flat = [value[0] if isinstance(value, list | tuple) and value else value for value in values]
    with np.errstate(over="ignore"):
        return np.array([np.nan if value is None else value for value in flat], np.float64).astype(np.float16)
