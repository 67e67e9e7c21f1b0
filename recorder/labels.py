"""Reads tags, metrics and attributes of a row, as datasets, rollout functions and people set them, in the form that is
searched.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from logs_ui.recorder.snapshot import column
from logs_ui.recorder.vocabulary import TAG_LENGTH

ATTRIBUTE_LENGTH = 120
"""Most characters of an attribute that is text, and of its name: longer texts are documents, which search finds."""

_MOST_ATTRIBUTES = 40
_DEEPEST = 3  # dicts in each other, as in `env.sql.last.error`
_NUMBERS = (bool, int, float)
_COLUMNS = frozenset({"env_reward", "error", "turns"})  # which a rollout function returned: a row has them anyway
_NO_ATTRIBUTES = _COLUMNS | {"attribution", "dataset", "metrics", "notes", "server_log", "tags", "traceback"}


def tag_of(written: str) -> str:
    """Return a tag as it is stored: on one line, of at most TAG_LENGTH characters; "" if nothing is left."""
    return (column(" ".join(written.split())) or "")[:TAG_LENGTH].rstrip()


def tags_in(metadata: Any) -> tuple[str, ...]:
    """Return each tag once, in their order. Other values, which a user's `edit` may have stored there, are left out."""
    values = metadata.get("tags") if isinstance(metadata, dict) else None
    if not isinstance(values, list):
        return ()
    return tuple(dict.fromkeys(tag for value in values if isinstance(value, str) and (tag := tag_of(value))))


def metrics_in(metadata: Any) -> dict[str, float | None] | None:
    """Return the metrics that are numbers, None for one that is not finite; None if there are none at all."""
    metrics = metadata.get("metrics") if isinstance(metadata, dict) else None
    if not isinstance(metrics, dict):
        return None
    numbers = {column(name) or "": _finite(value) for name, value in metrics.items() if _is_number(value)}
    return numbers or None


def attributes_in(metadata: Any) -> dict[str, str | float] | None:
    """Return the short texts, finite numbers and booleans among the dataset's columns, the notes and other metadata, by
    name, the first 40; None without any. A value in a dict is named with a dot: `extra_info.difficulty`; in dicts in
    each other, to `env.sql.last.error`. Of each source what is in no dict comes first.
    """
    if not isinstance(metadata, dict):
        return None
    others = {name: value for name, value in metadata.items() if name not in _NO_ATTRIBUTES}
    attributes: dict[str, str | float] = {}
    for source in (metadata.get("dataset"), metadata.get("notes"), others):
        for name, value in sorted(_flat(source, ""), key=lambda entry: entry[0].count(".")):
            if name not in attributes and len(attributes) < _MOST_ATTRIBUTES:
                attributes[name] = value
    return attributes or None


def attribute_text(value: str | float | None) -> str | None:
    """Return an attribute as text, as the databases write it; None without one."""
    return value if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _flat(source: Any, before: str) -> Iterator[tuple[str, str | float]]:
    for name, value in source.items() if isinstance(source, dict) else ():
        full = f"{before}{column(str(name))}"
        if isinstance(value, dict) and before.count(".") < _DEEPEST:
            yield from _flat(value, f"{full}.")
        elif len(full) > ATTRIBUTE_LENGTH:
            continue
        elif isinstance(value, str) and 0 < len(value) <= ATTRIBUTE_LENGTH:
            yield full, column(value) or ""
        elif isinstance(value, _NUMBERS) and abs(value) < 1e300:
            yield full, value


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, _NUMBERS)


def _finite(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else float(value)
