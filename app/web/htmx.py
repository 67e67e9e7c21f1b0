"""Whole page or fragment, told by what the browser's htmx asked for."""

from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment

VARY = "HX-Request-Type, HX-Target"
NOTHING_NEW = 204


def target(request: Request) -> str | None:
    """The id of the element that the answer goes into; None where a whole page is wanted, as on Back."""
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
    """`page`, or its fragment `_x.html`, in the same folder, where the target is `#x` and `fragments` names it.

    `context` is a dataclass: its fields are the template's variables. `address` is what the browser shall show above
    the fragment; a whole page, which Back asks for too, must not add to the history, nor must an
    address that is there already.
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
    """A piece of a page, which no cache may keep: Back would show it in the page's place."""
    return _response(request, template, context, status, {"Cache-Control": "no-store", **(headers or {})})


def nothing_new() -> Response:
    """What a poll gets when nothing has changed: htmx swaps nothing."""
    return Response(status_code=NOTHING_NEW, headers={"Cache-Control": "no-store", "Vary": VARY})


def _response(request: Request, template: str, context: Any, status: int, headers: Mapping[str, str]) -> Response:
    environment: Environment = request.app.state.templates
    # Not dataclasses.asdict(), which copies all the way down.
    text = environment.get_template(template).render(vars(context))
    return HTMLResponse(text, status, {"Vary": VARY, **headers})
