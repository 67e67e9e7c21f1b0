"""Makes error pages: one line that says what is wrong, what to do next, and never a traceback."""

import logging
from dataclasses import dataclass

import sqlalchemy.exc
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from logs_ui.app.pages.rollouts.export_jobs import ExportNotFoundError, TooManyExportsError
from logs_ui.app.parts.filter_form import mended
from logs_ui.app.web import htmx
from logs_ui.app.web.security import add_headers
from logs_ui.app.web.urls import at, home, rollouts, why, with_query
from logs_ui.recorder import errors
from logs_ui.recorder.spelling import shortened

_log = logging.getLogger(__name__)
# Polls repeat by themselves, and the page shows that the connection is lost: no error page for these targets.
_POLLED = ("live", "runs", "rollout", "overview", "why", "fresh")
_TRANSIENT = (401, 500, 503)  # trying the same again may help
_TITLES = {
    401: "Token needed",
    403: "Not allowed",
    404: "Not found",
    422: "Invalid request",
    429: "Too many exports",
    500: "Internal error",
    503: "Database not readable",
}


@dataclass(frozen=True)
class ErrorPage:
    """Context of `error.html` and `_flash.html`; `back` has address and text of the link to continue with."""

    status: int
    title: str
    message: str
    back: tuple[str, str]
    retry: bool


def install(app: FastAPI) -> None:
    """Register a handler for every error, so that each ends in one of these pages."""
    for missing in (errors.RunNotFoundError, errors.ImageNotFoundError, ExportNotFoundError):
        app.add_exception_handler(missing, lambda request, error: _answer(request, 404, str(error)))
    app.add_exception_handler(errors.RolloutNotFoundError, _no_rollout)
    app.add_exception_handler(TooManyExportsError, lambda request, error: _answer(request, 429, str(error)))
    app.add_exception_handler(errors.FilterError, _wrong_filter)
    app.add_exception_handler(errors.SettingsError, _wrong_settings)
    no_page = "There is no such page. A rollout's address ends with its number."
    app.add_exception_handler(RequestValidationError, lambda request, _: _answer(request, 404, no_page))
    app.add_exception_handler(errors.DatabaseError, lambda request, error: _answer(request, 503, str(error)))
    app.add_exception_handler(sqlalchemy.exc.DatabaseError, _database_trouble)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(ClientDisconnect, lambda *_: Response(status_code=400))  # broke off: nobody reads this
    app.add_exception_handler(Exception, _broken)


def token_needed(request: Request) -> Response:
    """Answer a request without the token. A link from another site lacks it too, since the cookie is strict."""
    message = "Open the address that logs-ui printed when it started: it contains the token for this browser."
    return _answer(request, 401, message)


def from_elsewhere(request: Request) -> Response:
    """Answer a request to write that does not come from a page of the dashboard."""
    message = "Only the dashboard's own pages may change anything. Open the page itself and try again there."
    return _answer(request, 403, message)


def _no_rollout(request: Request, error: Exception) -> Response:
    run_reference = request.path_params.get("run_reference", "")
    return _answer(request, 404, str(error), back=(rollouts(run_reference), "All rollouts of this run"))


def _wrong_filter(request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.FilterError)  # noqa: S101 - installed for these alone
    meant = mended(request.query_params.multi_items(), error)
    if not meant:  # none, or the filter was posted
        back = "Clear the filter" if "where" in request.query_params else "Open the page without parameters"
        return _answer(request, 422, str(error), back=(at(request.url.path), back))
    back = f"Use {shortened(error.meant or '')!r}"
    return _answer(request, 422, str(error), back=(with_query(request.url.path, meant), back))


def _wrong_settings(request: Request, error: Exception) -> Response:
    back = why(request.path_params.get("run_reference", ""))
    return _answer(request, 422, str(error), back=(back, "Back to the settings, unchanged"))


def _database_trouble(request: Request, error: Exception) -> Response:
    _log.warning("The database cannot be read: %s", error)
    return _answer(request, 503, "The database cannot be read at the moment.")


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - installed for these alone
    reasons = {404: "There is no such page.", 405: "This address accepts GET requests only."}
    return _answer(request, error.status_code, reasons.get(error.status_code, error.detail))


def _broken(request: Request, error: Exception) -> Response:
    message = (
        f"{type(error).__name__} in logs-ui. The traceback is in the terminal that runs it; recording is not affected."
    )
    response = _answer(request, 500, message)
    add_headers(response.headers)  # Starlette answers this one from outside of our middleware
    return response


def _answer(request: Request, status: int, message: str, *, back: tuple[str, str] | None = None) -> Response:
    title = _TITLES.get(status, "Not possible")
    page = ErrorPage(status, title, message, back or (home(), "All runs"), status in _TRANSIENT)
    wanted = htmx.target(request)
    if wanted is None:
        return htmx.render(request, "error.html", page, status=status)
    quiet = wanted in _POLLED and status >= 500
    swap = {"HX-Reswap": "none"} if quiet else {"HX-Retarget": "#flash", "HX-Reswap": "innerHTML"}
    return htmx.fragment(request, "_flash.html", page, status=status, headers={"HX-Push-Url": "false", **swap})
