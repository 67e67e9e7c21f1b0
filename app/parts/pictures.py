"""Finds images in observations and messages."""

import base64
import binascii
import hashlib
import itertools
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from logs_ui.app.parts import safe_text
from logs_ui.recorder.capture.observed_images import size_of

_MOST = 50
_SIDE = 100_000  # pixels
_HASH = re.compile(r"[0-9a-f]{64}")


_DATA_URL = re.compile(r"data:image/[a-z+.-]{1,20};base64,")
_BARE = re.compile(r"(?:iVBORw0KGgo|/9j/|UklGR)[A-Za-z0-9+/=]{64}")  # PNG, JPEG or WebP in base64


class Picture(NamedTuple):
    """Describes an image of an observation or of a message."""

    name: str  # field that contains it; empty if it is the whole observation
    hash: str | None  # None if the image was not stored by itself; `note` says why
    width: int
    height: int
    note: str
    # The name under which an image of a message can be opened, with its media type and data; empty for others.
    part: str = ""
    media_type: str = ""
    data: bytes = b""

    @property
    def content(self) -> str | None:
        """Return the hash of its file, the same for the same image; None if it was not kept."""
        return self.hash or (hashlib.sha256(self.data).hexdigest() if self.data else None)


def split_content(part: str, content: Any) -> tuple[Any, list[Picture]]:
    """Return a message's content without its images, and the images. `part` names the message. An image of another
    host is never loaded: its address is the picture's note. What is nested too deep stays text.
    """
    try:
        return _split_pictures(part, content)
    except RecursionError:
        return content, []


def _split_pictures(part: str, content: Any) -> tuple[Any, list[Picture]]:
    if isinstance(content, str) and '"$image"' in content:  # an observation as JSON
        with suppress(ValueError):
            content = json.loads(content)
    if isinstance(content, str):
        return content, []
    # Each part is decoded once: an image may have megabytes.
    pairs = [(piece, _list_embedded(piece)) for piece in content] if isinstance(content, list) else []
    images = [image for _, inside in pairs for image in inside][:_MOST] if pairs else _list_embedded(content)
    pictures = [Picture("", None, *image[1:3], "", f"{part}-image-{i}", *image[::3]) for i, image in enumerate(images)]
    parts = [piece for piece, inside in pairs if isinstance(piece, dict) and not inside and not _is_picture(piece)]
    elsewhere = [piece for piece in parts if "image" in str(piece.get("type"))]
    for piece in elsewhere[:_MOST]:
        url = re.search(r'[a-z]+://[^"\s]+', written := safe_text.as_json(piece))
        note = f"not loaded: {safe_text.label(url[0], 200)}" if url else "not recorded"
        if kind := re.search(r'(?:data:|_type": ")(image/[a-z+.-]{1,20})', written):
            note = f"an {kind[1]} of {len(written) * 3 / 4000:.1f} kB, not shown"
        pictures.append(Picture("", None, 0, 0, note))
    texts = [piece for piece, inside in pairs if not inside and piece not in elsewhere] if pairs else content
    return without_pictures(texts), [*pictures, *pictures_of(content, None)]


def _list_embedded(content: Any) -> list[tuple[str, int, int, bytes]]:
    """Return the images that a message's content contains as base64: media type, width, height, data; at most 50."""
    if isinstance(content, str):
        written = _DATA_URL.match(content)
        try:
            data = (
                base64.b64decode(content[written.end() if written else 0 :]) if written or _BARE.match(content) else b""
            )
        except binascii.Error:
            return []
        return [(*size, data)] if (size := size_of(data)) else []
    inside = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    return list(itertools.islice((image for value in inside for image in _list_embedded(value)), _MOST))


def pictures_of(observation: Any, metadata: Any) -> list[Picture]:
    """Return at most 50 images of a call's observation, and of the calls that a tool made itself, in its metadata."""
    return list(itertools.islice(_pictures("", [observation, *_seen_within(metadata)]), _MOST))


def _seen_within(metadata: Any) -> list[Any]:
    """Return the observations of the calls that a tool made itself."""
    calls = metadata.get("calls") if isinstance(metadata, dict) else None
    return [call.get("observation") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _pictures(name: str, value: Any) -> Iterator[Picture]:
    """Yield every image, however deeply nested."""
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
    """Return the value without its images; what held only an image becomes empty."""
    if _is_picture(value):
        return None
    if isinstance(value, dict):
        return {key: without_pictures(item) for key, item in value.items()}
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return [without_pictures(item) for item in value if not _is_picture(item)]
    return value


def _is_picture(value: Any) -> bool:
    return isinstance(value, dict) and "$image" in value
