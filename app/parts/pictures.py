"""Finds images in observations."""

import itertools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from logs_ui.app.parts import safe_text

_MOST = 50
_SIDE = 100_000  # pixels
_HASH = re.compile(r"[0-9a-f]{64}")


class Picture(NamedTuple):
    """Describes an image of an observation.

    Attributes:
        name: field that contains it; empty if it is the whole observation.
        hash: None if the image was not stored; `note` says why.
    """

    name: str
    hash: str | None
    width: int
    height: int
    note: str


def pictures_of(observation: Any, metadata: Any) -> list[Picture]:
    """Returns at most 50 images of a call's observation, and of the calls that a tool made itself, which are in its
    metadata.
    """
    return list(itertools.islice(_pictures("", [observation, *_seen_within(metadata)]), _MOST))


def _seen_within(metadata: Any) -> list[Any]:
    """Returns the observations of the calls that a tool made itself."""
    calls = metadata.get("calls") if isinstance(metadata, dict) else None
    return [call.get("observation") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _pictures(name: str, value: Any) -> Iterator[Picture]:
    """Yields every image, however deeply nested."""
    if _is_picture(value):
        sides = (value.get("width"), value.get("height"))
        width, height = (side if type(side) is int and 0 < side <= _SIDE else 0 for side in sides)
        image_hash = str(value["$image"]) if _HASH.fullmatch(str(value["$image"])) else None
        yield Picture(
            safe_text.label(name, 80), image_hash, width, height, safe_text.label(value.get("note") or "", 80)
        )
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _pictures(str(key), item)
    elif isinstance(value, list):
        for item in value:
            yield from _pictures(name, item)


def without_pictures(value: Any) -> Any:
    """Returns the value without its images; what held only an image becomes empty."""
    if _is_picture(value):
        return None
    if isinstance(value, dict):
        return {key: without_pictures(item) for key, item in value.items()}
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return [without_pictures(item) for item in value if not _is_picture(item)]
    return value


def _is_picture(value: Any) -> bool:
    return isinstance(value, dict) and "$image" in value
