"""Reads tags and metrics of a row, as rollout functions and people set them, in the form that is searched."""

from typing import Any

import numpy as np

from logs_ui.recorder.snapshot import column
from logs_ui.recorder.vocabulary import TAG_LENGTH

_NUMBERS = (bool, int, float)


def tag_of(written: str) -> str:
    """Return a tag as it is stored: on one line, of at most TAG_LENGTH characters; "" if nothing is left."""
    return (column(" ".join(written.split())) or "")[:TAG_LENGTH].rstrip()


def tags_in(metadata: Any) -> tuple[str, ...]:
    """Return each tag once, in their order. Other values, which a user's `edit` may have stored there, are left out."""
    found = metadata.get("tags") if isinstance(metadata, dict) else None
    if not isinstance(found, list):
        return ()
    return tuple(dict.fromkeys(tag for one in found if isinstance(one, str) and (tag := tag_of(one))))


def metrics_in(metadata: Any) -> dict[str, float | None] | None:
    """Return the metrics that are numbers, None for one that is not finite; None if there are none at all."""
    found = metadata.get("metrics") if isinstance(metadata, dict) else None
    if not isinstance(found, dict):
        return None
    numbers = {column(name) or "": _finite(value) for name, value in found.items() if _is_number(value)}
    return numbers or None


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, _NUMBERS)


def _finite(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else float(value)
