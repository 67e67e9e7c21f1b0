"""Takes images out of an environment's observations; the observation's JSON keeps a reference.

The caller's thread only copies the bytes of arrays and of Pillow's images; a thread of its own encodes them as PNG.
Images that are text (base64, or lists of pixels) stay text until the writer's thread gets the observation. Each image
is stored once, by the hash of its file.
"""

import base64
import binascii
import hashlib
import io
import queue
import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from logs_ui.recorder.guard import guard
from logs_ui.recorder.snapshot import shallow_snapshot, snapshot
from logs_ui.recorder.storage.changes import StoredImage
from logs_ui.recorder.storage.portable import on_fork

MAX_PIXELS = 4096 * 4096
"""Most pixels of an image that is stored; of a larger one only the size is."""

MAX_BYTES = 8 << 20
"""Most bytes of a file that is stored; of a larger one only the size is."""

_MEMORY_BYTES = 256 << 20  # images in memory; beyond it new ones are dropped
_LEAST = 16  # pixels a side: a smaller array is a board or a grid, which is stored as numbers
_MODES = {"L": 1, "RGB": 3, "RGBA": 4}  # of Pillow, to number of channels
_ZLIB_LEVEL = 3  # of a page of 1280 by 720: 111 kB; 6 gives 101 kB in 1.4 times the time
_PNG, _JPEG, _RIFF = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"RIFF"
_BASE64 = ("iVBORw0KGgo", "/9j/", "UklGR")  # the same three beginnings in base64
_HINTS = (*map(str.encode, _BASE64), b"[[[")  # JSON without one of these holds no image as text or pixels
_RARE_BYTES = tuple(map(ord, "V/U["))  # one byte of each hint: searching a byte takes a hundredth of the time
_LEAST_TEXT = 64  # characters

Pixels = NDArray[np.uint8]
Dropped = dict[str, Any]


class Images:
    """The images of one observation until they are stored. Only `replacement` is called outside the writer's thread."""

    def __init__(self) -> None:
        # Until `json` is called, the observation names its image number n "_name:n". `_found` are the images that it
        # refers to by their hashes afterwards, `_json` is the result.
        self._name = ""
        self._pending: list[_Pending] = []
        self._found: dict[str, StoredImage] = {}
        self._json: bytes | None = None
        self._has_references = False

    @classmethod
    def received(cls, stored: Sequence[StoredImage]) -> "Images":
        """Return the images of an observation that has references to them already."""
        images = cls()
        images._found, images._has_references = {image.hash: image for image in stored}, True
        return images

    def __bool__(self) -> bool:
        return bool(self._pending)

    @property
    def stored_images(self) -> list[StoredImage]:
        """Return the images that the observation refers to. Call `json` first."""
        return [*self._found.values()]

    def replacement(self, value: Any) -> Any:
        """Return what replaces an image or an array in the JSON; None for any other value."""
        image = _image_of(value)
        if image is None:
            return _array(value)
        if not isinstance(image, _Pending):
            return image
        self._name = self._name or secrets.token_hex(8)  # random: an environment's own "$image" must not match it
        self._pending.append(image)
        return {"$image": f"{self._name}:{len(self._pending) - 1}"}

    def json(self, observation: bytes) -> bytes:
        """Return the observation with references in place of its images, after encoding them."""
        if self._has_references:
            return observation
        if self._json is None:
            self._json = orjson.dumps(self._referred(orjson.loads(observation)))
        return self._json

    def within(self, content: bytes) -> list[StoredImage]:
        """Return the images that a content refers to, which are stored with it."""
        return [image for name, image in self._found.items() if name.encode() in content]

    def _referred(self, value: Any) -> Any:
        if isinstance(value, dict):
            name = value.get("$image")
            if self._name and isinstance(name, str) and name.startswith(f"{self._name}:"):
                return self._keep(self._pending[int(name.partition(":")[2])].stored())
            return {key: self._referred(item) for key, item in value.items()}
        if isinstance(value, str):
            image = _of_text(value)
            return value if image is None else self._keep(image)
        # A flat list of numbers holds neither an image nor a reference, and may be long.
        if isinstance(value, list) and value and not isinstance(value[0], int | float):
            image = _of_lists(value)
            return [self._referred(item) for item in value] if image is None else self._keep(image)
        return value

    def _keep(self, image: StoredImage | Dropped) -> dict[str, Any]:
        if not isinstance(image, StoredImage):
            return image
        self._found[image.hash] = image
        return image.reference


def observed(value: Any) -> tuple[bytes, Images | None]:
    """Return JSON of an observation as it is now, and its images; None if it cannot contain any."""
    shallow = shallow_snapshot(value)
    if shallow is not None:
        return shallow, Images() if _may_hold_text(shallow) else None
    images = Images()
    observation = snapshot(value, images.replacement)
    return observation, images if images or _may_hold_text(observation) else None


def _may_hold_text(observation: bytes) -> bool:
    """Return True if the JSON may contain images as base64 text or as lists of pixels."""
    if len(observation) > _LEAST_TEXT:
        for byte, hint in zip(_RARE_BYTES, _HINTS, strict=True):  # no any(): that takes five times as long
            if byte in observation and hint in observation:
                return True
    return False


def png(pixels: Pixels) -> bytes:
    """Encode (height, width, channels) pixels with 1, 3 or 4 channels. Pillow releases the GIL while it compresses."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels.squeeze()).save(file, "PNG", compress_level=_ZLIB_LEVEL)
    return file.getvalue()


def size_of(data: bytes) -> tuple[str, int, int] | None:
    """Return media type, width and height from a file's header; None if it is not PNG, JPEG or WebP."""
    # Not Image.open(): it warns about sizes, and refuses some, that are noted here.
    from PIL.JpegImagePlugin import JpegImageFile
    from PIL.PngImagePlugin import PngImageFile
    from PIL.WebPImagePlugin import WebPImageFile

    kinds = (
        (_PNG, "image/png", PngImageFile),
        (_JPEG, "image/jpeg", JpegImageFile),
        (_RIFF, "image/webp", WebPImageFile),
    )
    for beginning, media_type, kind in kinds:
        if data.startswith(beginning):
            with suppress(Exception):  # each raises errors of its own
                return media_type, *kind(io.BytesIO(data)).size
    return None


def _image_of(value: Any) -> "_Pending | Dropped | None":
    """Copy an image; None if the value is not an image."""
    if isinstance(value, np.ndarray):
        if value.dtype != np.uint8 or value.ndim != 3 or not _is_an_image(*value.shape):
            return None
        height, width, channels = value.shape
        return _copied(width, height, value.nbytes, lambda: _Pending(value.tobytes(), (height, width, channels)))
    if isinstance(value, bytes | bytearray):
        size = size_of(bytes(value)) if value.startswith((_PNG, _JPEG, _RIFF)) else None
        return None if size is None else _copied(size[1], size[2], len(value), lambda: _Pending(bytes(value), None))
    if type(value).__module__.startswith("PIL.") and hasattr(value, "tobytes"):
        width, height = value.size
        return _copied(width, height, width * height * _MODES.get(value.mode, 3), lambda: _of_pillow(value))
    return None


def _is_an_image(height: int, width: int, channels: int) -> bool:
    return channels in _MODES.values() and min(height, width) >= _LEAST


def _of_pillow(image: Any) -> "_Pending":
    image = image if image.mode in _MODES else image.convert("RGB")
    return _Pending(image.tobytes(), (image.height, image.width, _MODES[image.mode]))


def _copied(width: int, height: int, size: int, copy: Callable[[], "_Pending"]) -> "_Pending | Dropped":
    if width * height > MAX_PIXELS:
        return _dropped(width, height, "it is larger than 16 megapixels")
    if _budget.used + size > _MEMORY_BYTES:
        return _dropped(width, height, "there were too many at once")
    pending = copy()
    _waiting.put(pending)
    # The thread is started with the first image, and again in a forked child, where it is missing.
    with _starting:
        if not _thread or not _thread[0].is_alive():
            _thread[:] = [threading.Thread(target=_encode, name="logs-ui images", daemon=True)]
            _thread[0].start()
    return pending


def _dropped(width: int, height: int, why: str) -> Dropped:
    return {"$image": None, "width": width, "height": height, "note": f"not kept: {why}"}


def _array(value: Any) -> Any:
    """Return a numpy value as orjson writes it; None for other values, and for dtypes that orjson does not know."""
    if not isinstance(value, np.ndarray | np.generic):
        return None
    try:
        return orjson.Fragment(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY))
    except TypeError:
        return None


def _of_text(value: str) -> StoredImage | Dropped | None:
    """Read an image from base64 or from a data URL; None for any other text."""
    if len(value) < _LEAST_TEXT:
        return None
    if value.startswith("data:image/"):
        value = value.partition(";base64,")[2]
    if not value.startswith(_BASE64):
        return None
    try:
        return _of_bytes(base64.b64decode(value, validate=True))
    except binascii.Error:
        return None


def _of_bytes(data: bytes) -> StoredImage | Dropped | None:
    size = size_of(data)
    return None if size is None else _stored(data, *size)


def _of_lists(value: list[Any]) -> StoredImage | Dropped | None:
    """Read an image from rows of pixels of colours, as in OpenEnv's JSON; None for any other list."""
    row = value[0]
    pixel = row[0] if isinstance(row, list) and row else None
    if not isinstance(pixel, list) or not _is_an_image(len(value), len(row), len(pixel)):
        return None
    if len(value) * len(row) > MAX_PIXELS:
        return _dropped(len(row), len(value), "it is larger than 16 megapixels")
    try:
        pixels = np.array(value)
    except ValueError:  # rows of several lengths
        return None
    if pixels.ndim != 3 or pixels.dtype.kind != "i" or pixels.min() < 0 or pixels.max() > 255:
        return None
    return _stored(png(pixels.astype(np.uint8)), "image/png", len(row), len(value))


def _stored(data: bytes, media_type: str, width: int, height: int) -> StoredImage | Dropped:
    if width * height > MAX_PIXELS:
        return _dropped(width, height, "it is larger than 16 megapixels")
    if len(data) > MAX_BYTES:
        return _dropped(width, height, "it is larger than 8 MiB")
    return StoredImage(hashlib.sha256(data).hexdigest(), media_type, width, height, data)


class _Budget:
    """Counts the bytes of the images in memory."""

    def __init__(self) -> None:
        self.used, self._lock = 0, threading.Lock()

    def add(self, size: int) -> None:
        with self._lock:
            self.used += size


class _Pending:
    """Pixels, or a file, until they are encoded. Any thread may encode them."""

    _size = 0

    def __init__(self, data: bytes, shape: tuple[int, int, int] | None) -> None:
        self._data, self._shape = data, shape
        self._stored: StoredImage | Dropped | None = None
        self._lock = threading.Lock()
        self._size = len(data)
        _budget.add(self._size)

    def stored(self) -> StoredImage | Dropped:
        """Return the encoded image, or a note about one that is too large."""
        with self._lock:
            if self._stored is None:
                self._stored = self._encoded()
                size = len(self._stored.data) if isinstance(self._stored, StoredImage) else 0
                self._data = b""
                _budget.add(size - self._size)
                self._size = size
            return self._stored

    def _encoded(self) -> StoredImage | Dropped:
        if self._shape is None:
            image = _of_bytes(self._data)
            assert image is not None  # noqa: S101 - its header was read before
            return image
        height, width, _ = self._shape
        return _stored(png(np.frombuffer(self._data, np.uint8).reshape(self._shape)), "image/png", width, height)

    def __del__(self) -> None:
        _budget.add(-self._size)


def _encode() -> None:
    while True:
        pending = _waiting.get()
        with guard("encoding an image"):
            pending.stored()
        # Otherwise this name keeps the last image in memory until the next one comes.
        del pending


def _renew() -> None:
    """Renew locks and queue in a forked child: the thread is missing, and the parent's may have pending the locks."""
    global _budget, _starting, _waiting
    _budget, _starting, _waiting = _Budget(), threading.Lock(), queue.SimpleQueue()


_budget = _Budget()
_starting = threading.Lock()
_waiting: "queue.SimpleQueue[_Pending]" = queue.SimpleQueue()
_thread: list[threading.Thread] = []
on_fork(after_in_child=_renew)
