"""Serves the dashboard under a path of a proxy, such as JupyterHub's `/user/ann/proxy/7070`."""

from dataclasses import dataclass
from typing import AnyStr
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

from logs_ui.app.web import urls


@dataclass(frozen=True)
class UnderPrefix:
    """Accepts requests with and without the prefix, since some proxies remove it and others do not, and makes every
    address in an answer begin with it. This is ASGI middleware.
    """

    app: ASGIApp
    prefix: str  # percent-encoded; begins with a slash and ends without. Empty without a proxy.

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            urls.under(self.prefix)
            path, raw_path = _strip_prefix(scope["path"], unquote(self.prefix), "/"), scope["raw_path"]
            scope = {**scope, "path": path, "raw_path": _strip_prefix(raw_path, self.prefix.encode(), b"/")}
        await self.app(scope, receive, send)


def _strip_prefix(path: AnyStr, prefix: AnyStr, slash: AnyStr) -> AnyStr:
    return (path.removeprefix(prefix) or slash) if (path + slash).startswith(prefix + slash) else path
