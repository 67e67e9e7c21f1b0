"""Answers with a whole page or a fragment, depending on what htmx requests."""

from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse, PlainTextResponse, Response
from jinja2 import Environment

from logs_ui.app.web.security import PLAIN_TEXT_POLICY

POLL_SECONDS = 5
"""Seconds between two looks of a page for changes; some pages have their own."""
VARY = "HX-Request-Type, HX-Target"
NOTHING_NEW = 204


def target(request: Request) -> str | None:
    """Return the id of the element to replace; None for a whole page, as on Back."""
    if request.headers.get("HX-Request-Type") != "partial":
        return None
    return request.headers.get("HX-Target", "").partition("#")[2] or None


def render(
    request: Request,
    page: str,
    context: Any,
    *,
    fragments: tuple[str, ...] = (),
    status: int = 200,
    address: str | None = None,
) -> Response:
    """Render `page`, or its fragment `_x.html` in the same folder if the target is `#x` and `fragments` names it.

    `context` is a dataclass; its fields are the template's variables. `address` is the address to show for a fragment.
    A whole page, which Back requests too, and an address that is shown already must not add to the history.
    """
    wanted = target(request)
    if wanted in fragments:
        is_there = address is not None and request.headers.get("HX-Current-URL", "").endswith(address)
        headers = {"HX-Push-Url": address} if address and not is_there else {}
        return fragment(request, f"{page.rpartition('/')[0]}/_{wanted}.html", context, status=status, headers=headers)
    # no-cache, and not no-store: the browser may keep the page, scrolled as it was, for its Back button.
    return _response(request, page, context, status, {"Cache-Control": "no-cache"})


def fragment(
    request: Request, template: str, context: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Render a piece of a page. No cache may keep it: Back would show it in the page's place."""
    return _response(request, template, context, status, {"Cache-Control": "no-store", **(headers or {})})


def plain_text(text: str) -> Response:
    """Answer with a recorded text by itself, of which no browser can make a page."""
    headers = {"Content-Security-Policy": PLAIN_TEXT_POLICY, "Cache-Control": "no-store"}
    return PlainTextResponse(text.encode("utf-8", "replace"), headers=headers)


def nothing_new() -> Response:
    """Answer a poll without changes: htmx swaps nothing."""
    return Response(status_code=NOTHING_NEW, headers={"Cache-Control": "no-store", "Vary": VARY})


def _response(request: Request, template: str, context: Any, status: int, headers: Mapping[str, str]) -> Response:
    environment: Environment = request.app.state.templates
    # Not dataclasses.asdict(), which copies all the way down.
    text = environment.get_template(template).render(vars(context))
    return HTMLResponse(text, status, {"Vary": VARY, **headers})
