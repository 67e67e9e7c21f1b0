"""Guards the dashboard: response headers, known hosts, a token beyond loopback, no writes from other sites' pages."""

import hmac
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from logs_ui.app.web.urls import at, home

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; object-src 'none'; "
    "require-trusted-types-for 'script'; trusted-types htmx"
)
PLAIN_TEXT_POLICY = "default-src 'none'; frame-ancestors 'none'; sandbox"
"""For a model's text or an environment's image served by itself: even if a browser took it for a page, it could do
nothing.
"""

_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_HOST = re.compile(r"([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::\d{1,5})?")
_READING = ("GET", "HEAD", "OPTIONS")
_OPEN_TO_ALL = ("/static/", "/healthz", "/favicon.ico")  # hold no recording; the refusal's page needs its style


def add_headers(headers: MutableHeaders) -> None:
    """Set the headers of every response, unless it sets them itself."""
    for name, value in _HEADERS.items():
        headers.setdefault(name, value)


@dataclass(frozen=True)
class SecurityHeaders:
    """Applies `add_headers` to every response, as ASGI middleware."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                add_headers(MutableHeaders(scope=message))
            await send(message)

        await self.app(scope, receive, send_with_headers)


@dataclass(frozen=True)
class KnownHosts:
    """Refuses unknown host names, like Starlette's middleware, and says what to do if the name is the user's own. A
    foreign site's name may have been made to resolve to this machine.
    """

    app: ASGIApp
    hosts: Sequence[str]  # `*` allows any

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Starlette's middleware either calls `let_in` or sends a refusal of its own, which is held back and
        # replaced by ours.
        is_known = False

        async def let_in(scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal is_known
            is_known = True
            await self.app(scope, receive, send)

        async def held_back(message: Message) -> None:
            if is_known:
                await send(message)

        await TrustedHostMiddleware(let_in, list(self.hosts), www_redirect=False)(scope, receive, held_back)
        if not is_known:
            await _unknown_host(Headers(scope=scope).get("host", ""))(scope, receive, send)


def _unknown_host(host: str) -> Response:
    """Answer in plain text: a page would need files that are refused too."""
    name = _HOST.fullmatch(host)
    description = f"with the host name {name[1]}" if name else "without a valid host name"
    fix = f"logs-ui serve --allow-host {name[1]}" if name else "logs-ui serve --allow-host NAME"
    return PlainTextResponse(
        f"This request came {description}, which the dashboard does not know: it may be another site's.\n"
        f"If the name is yours, start the dashboard with: {fix}\n",
        400,
        headers={"Cache-Control": "no-store"},
    )


@dataclass(frozen=True)
class SameOriginWrites:
    """Refuses writes, as ASGI middleware, unless they come from one of our own pages or from no page. Any site's page
    can send a form here with the browser's cookies.
    """

    app: ASGIApp
    refuse: Callable[[Request], Response]  # makes the response to a refused request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _READING or _is_our_own(Headers(scope=scope)):
            await self.app(scope, receive, send)
        else:
            await self.refuse(Request(scope))(scope, receive, send)


def _is_our_own(headers: Headers) -> bool:
    """Return True if the request comes from our own page. Browsers say so in Sec-Fetch-Site, except older ones, and all
    of them without TLS beyond loopback. Then the Origin header decides, which every browser sends with a form.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in {"same-origin", "none"}
    host = headers.get("host")
    return bool(host) and urlsplit(headers.get("origin", "")).netloc == host


@dataclass(frozen=True)
class TokenRequired:
    """Lets a request in, as ASGI middleware, with the token as a cookie, or as `?token=`, which becomes the cookie."""

    app: ASGIApp
    token: str
    port: int | None
    refuse: Callable[[Request], Response]  # makes the response to all others

    @property
    def cookie(self) -> str:
        """Return the cookie's name. Cookies know no ports: two dashboards on one host would take each other's."""
        return f"logs-ui-{self.port}" if self.port else "logs-ui"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(_OPEN_TO_ALL):
            await self.app(scope, receive, send)
            return
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        tokens = [value for name, value in query if name == "token"]
        if tokens and self._right(tokens[-1]):
            await self._welcome(scope, query)(scope, receive, send)
        elif any(self._right(value) for value in self._from_cookies(Headers(scope=scope))):
            await self.app(scope, receive, send)
        else:
            await self.refuse(Request(scope))(scope, receive, send)

    def _right(self, token: str) -> bool:
        return hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode())

    def _from_cookies(self, headers: Headers) -> list[str]:
        """Return the values of our cookie. The header is not parsed as a whole: cookies of other sites on the same
        host with another port are sent along, and need not follow any rule.
        """
        pairs = (pair.partition("=") for line in headers.getlist("cookie") for pair in line.split(";"))
        return [unquote(value.strip()) for name, _, value in pairs if name.strip() == self.cookie]

    def _welcome(self, scope: Scope, query: list[tuple[str, str]]) -> Response:
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        path = "/" + scope["raw_path"].decode("latin-1").lstrip("/\\")  # "//host" would leave for another site
        response = RedirectResponse(at(f"{path}?{rest}" if rest else path), 303, headers={"Cache-Control": "no-store"})
        response.set_cookie(self.cookie, quote(self.token, safe=""), httponly=True, samesite="strict", path=home())
        return response
