"""What rollout functions, and people, say of a row in a word or a number: what of it is stored to be searched."""

from typing import Any

import numpy as np

from logs_ui.recorder.snapshot import column
from logs_ui.recorder.vocabulary import TAG_LENGTH

_NUMBERS = (bool, int, float)


def tag_of(written: str) -> str:
    """A tag as it is stored: on one line, of at most TAG_LENGTH characters; empty where there is none."""
    return (column(" ".join(written.split())) or "")[:TAG_LENGTH].rstrip()


def tags_in(metadata: Any) -> tuple[str, ...]:
    """Each once, in the order in which they were given. A user's `edit` may have put anything there."""
    found = metadata.get("tags") if isinstance(metadata, dict) else None
    if not isinstance(found, list):
        return ()
    return tuple(dict.fromkeys(tag for one in found if isinstance(one, str) and (tag := tag_of(one))))


def metrics_in(metadata: Any) -> dict[str, float | None] | None:
    """Those that are numbers, None where one was not finite; None in all without any."""
    found = metadata.get("metrics") if isinstance(metadata, dict) else None
    if not isinstance(found, dict):
        return None
    numbers = {column(name) or "": _finite(value) for name, value in found.items() if _is_number(value)}
    return numbers or None


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, _NUMBERS)


def _finite(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else float(value)
