"""Serves an image of an observation by itself."""

from fastapi import APIRouter, Response

from logs_ui.app.web.open_database import SourceOfPages
from logs_ui.app.web.security import PLAIN_TEXT_POLICY
from logs_ui.recorder import queries
from logs_ui.recorder.errors import ImageNotFoundError

router = APIRouter()

_TYPES = ("image/png", "image/jpeg", "image/webp")
"""Media types that cannot contain a script."""


@router.get("/images/{image_hash}")
def image(source: SourceOfPages, image_hash: str) -> Response:
    """Returns an image. The browser may cache it forever, because the address is its hash."""
    with source.reading() as database:
        found = queries.image(database, image_hash)
    if found.media_type not in _TYPES:
        raise ImageNotFoundError("This image is of a kind that is not shown.")
    headers = {
        "Content-Security-Policy": PLAIN_TEXT_POLICY,
        "Cache-Control": "private, max-age=31536000, immutable",
        "Content-Disposition": "inline",
    }
    return Response(found.data, media_type=found.media_type, headers=headers)
