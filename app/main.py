"""Builds the dashboard as an ASGI application: routes, templates, static files, middleware."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import FileResponse, PlainTextResponse, Response
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from logs_ui.app import error_pages, pages
from logs_ui.app.pages.rollouts.export_jobs import Jobs
from logs_ui.app.parts import figures, rendered_text, safe_text, step_charts, timeline, words
from logs_ui.app.web import htmx, urls
from logs_ui.app.web.background import Ingesting
from logs_ui.app.web.indexer import Indexer
from logs_ui.app.web.open_database import Source
from logs_ui.app.web.prefix import UnderPrefix
from logs_ui.app.web.security import KnownHosts, SameOriginWrites, SecurityHeaders, TokenRequired
from logs_ui.recorder.queries.notebook import Notebook
from logs_ui.recorder.storage.address import Address, db_option

_STATIC = Path(__file__).parent / "static"
_TEMPLATES = Path(__file__).parent.parent / "templates"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def create_app(
    db: Address,
    *,
    hosts: Sequence[str] = LOOPBACK,
    token: str | None = None,
    port: int | None = None,
    prefix: str = "",
    read_only: bool = False,
) -> FastAPI:
    """Return the dashboard of one database, which need not exist yet.

    Args:
        db: address of the database.
        hosts: allowed values of a request's Host header; `*` allows any. Another name may be a foreign site's that
            was made to resolve to this machine.
        token: what a browser has to send; None lets everyone in who reaches the port.
        port: names the cookie that stores the token.
        prefix: the path under which a proxy serves the dashboard: see `UnderPrefix`.
        read_only: nothing is written: no notes, no full-text index, no recordings that wait on this machine's disk.
    """
    source = Source(db, read_only=read_only)
    indexer = Indexer(db, source)
    ingesting = Ingesting(db)
    jobs = Jobs(db)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if not read_only:
            ingesting.start()
        indexer.start()
        yield
        jobs.close()
        if not read_only:
            ingesting.stop()
        indexer.stop()

    app = FastAPI(title="logs-ui", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.source = source
    app.state.indexer = indexer
    app.state.jobs = jobs
    app.state.notebook = Notebook(db)
    app.state.templates = make_templates(source.refusal, db_option(db))
    for router in pages.ROUTERS:
        for route in router.routes:  # Starlette's own routes answer HEAD wherever they answer GET, FastAPI's do not
            if isinstance(route, APIRoute) and route.methods and "GET" in route.methods:
                route.methods.add("HEAD")
        app.include_router(router)
    app.api_route("/healthz", methods=["GET", "HEAD"])(healthz)
    app.api_route("/favicon.ico", methods=["GET", "HEAD"])(favicon)
    app.mount("/static", _Static(directory=_STATIC), name="static")
    error_pages.install(app)
    # The last one added is the first to see a request.
    app.add_middleware(SameOriginWrites, refuse=error_pages.from_elsewhere)
    if token is not None:
        app.add_middleware(TokenRequired, token=token, port=port, refuse=error_pages.token_needed)
    app.add_middleware(KnownHosts, hosts=hosts)
    # The size of a compressed page could tell a guess from a secret on it (BREACH), but an attacker must make a browser
    # send the request and see its size: other sites' pages get neither the cookie (SameSite=strict) nor the size, and
    # no page contains the token.
    app.add_middleware(GZipMiddleware, minimum_size=1_000, compresslevel=5)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(UnderPrefix, prefix=prefix)
    return app


async def healthz() -> Response:
    """Answer that the server is up, and nothing about its data."""
    return PlainTextResponse("ok\n", headers={"Cache-Control": "no-store"})


async def favicon() -> Response:
    """Return the icon to a browser that looks for one beside a plain text or an image, which cannot name one."""
    return FileResponse(_STATIC / "icon.svg", headers={"Cache-Control": "max-age=86400"})


def make_templates(refusal: Callable[[], str | None] = lambda: None, db: str = "") -> Environment:
    """Return the environment of the templates: a missing name is an error, and every value is escaped.

    Args:
        refusal: returns why notes cannot be written, None if they can.
        db: the option that a command needs to find the database, see `db_option`.
    """
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    formats = ("age", "brief", "count", "duration", "moment", "number", "percent", "signed", "significant", "tokens")
    environment.filters |= {name: getattr(figures, name) for name in formats}
    environment.filters |= {name: getattr(safe_text, name) for name in ("block", "fenced", "label", "line", "middle")}
    environment.filters |= {"rendered": rendered_text.rendered}
    environment.globals |= {"signed_bin": figures.signed_bin, "plural": figures.plural, "static": _static_url}
    environment.globals |= {"db_option": db, "refusal": refusal, "spelt": step_charts.spelt}
    environment.globals |= {"are_short": timeline.are_short, "marked": safe_text.marked, "url": urls, "words": words}
    environment.globals |= {"poll_seconds": htmx.POLL_SECONDS}
    return environment


class _Static(StaticFiles):
    """Static files, which browsers cache forever: their address contains a hash of their content."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        scope: Scope = kwargs["scope"] if "scope" in kwargs else args[2]
        is_versioned = b"v=" in scope["query_string"]
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable" if is_versioned else "no-cache"
        return response


def _static_url(name: str) -> str:
    return urls.at(f"/static/{name}?v={_digests()[name]}")


@cache
def _digests() -> Mapping[str, str]:
    files = (path for path in _STATIC.rglob("*") if path.is_file())
    return {path.relative_to(_STATIC).as_posix(): sha256(path.read_bytes()).hexdigest()[:10] for path in files}
