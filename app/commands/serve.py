"""Serves the dashboard on a port: in the foreground for `logs-ui serve`, in a thread for `logs-ui demo` and the
tests.
"""

import contextlib
import errno
import ipaddress
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import uvicorn
from fastapi import FastAPI

from logs_ui.app.main import LOOPBACK, create_app
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.storage.address import Address, masked_address

_START_SECONDS = 60.0


def serve(
    db: Address,
    *,
    host: str = "127.0.0.1",
    port: int = 7070,
    prefix: str = "",
    names: Sequence[str] = (),
    read_only: bool = False,
) -> None:
    """Serve until it is interrupted, and print the address as soon as the server answers. Port 0 picks a free one;
    `names` are further host names under which browsers reach it, besides those of loopback; the others are as in
    `create_app`.

    Beyond loopback the address contains a token, new at each start, and nothing is shown without it. Raise LogsUIError
    if the port is in use, or the host is not an address of this machine.
    """
    listening = _listen(host, port)
    port = listening.getsockname()[1]
    token = None if _is_loopback(host) else secrets.token_urlsafe(16)
    # With a token any name will do: a page that lured the browser here under another name has no cookie for it.
    hosts = (*LOOPBACK, host, *names) if token is None else ("*",)
    app = create_app(db, hosts=hosts, token=token, port=port, prefix=prefix, read_only=read_only)
    server = _Server(app, on_ready=lambda: _announce(_url(host, port, token), db, prefix))
    # uvicorn raises the interrupt once more when it has shut down.
    with contextlib.suppress(KeyboardInterrupt), listening:
        server.run(sockets=[listening])


class BackgroundServer:
    """Serves the dashboard in a thread of this process, on loopback, for the duration of a `with` block."""

    def __init__(self, db: Address, *, port: int = 0, prefix: str = "") -> None:
        self._socket = _listen("127.0.0.1", port)
        self._ready = threading.Event()
        port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"  # without a slash at its end
        self._server = _Server(create_app(db, port=port, prefix=prefix), on_ready=self._ready.set)
        self._thread = threading.Thread(target=self._run, name="logs-ui-dashboard", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(_START_SECONDS):
            raise LogsUIError(f"The dashboard did not start within {_START_SECONDS:.0f} s at {self.url}.")
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(_START_SECONDS)

    def _run(self) -> None:
        with self._socket:
            self._server.run(sockets=[self._socket])


class _Server(uvicorn.Server):
    """A uvicorn server that calls `on_ready` as soon as it answers."""

    def __init__(self, app: FastAPI, on_ready: Callable[[], None]) -> None:
        settings: dict[str, Any] = {"log_level": "warning", "server_header": False, "timeout_graceful_shutdown": 1}
        # An access log would print the token.
        super().__init__(uvicorn.Config(app, access_log=False, ws="none", **settings))
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()


def _listen(host: str, port: int) -> socket.socket:
    """Open a listening socket first, so that a port in use is reported before anything else starts."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise LogsUIError(f"{host} is not an address of this machine. Choose another with --host.") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()
    except OSError as error:
        listening.close()
        raise LogsUIError(_explain(host, port, error)) from error
    return listening


def _explain(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} is in use, perhaps by another logs-ui. Choose another: --port {port % 65_535 + 1}"
    if error.errno == errno.EACCES:
        return f"Port {port} is reserved for the system. Choose one above 1023: --port 7070"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine. Choose another with --host."
    return f"Cannot listen on {host}:{port}: {error.strerror or error}. Choose another: --port 7070"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _url(host: str, port: int, token: str | None) -> str:
    everywhere = host in {"0.0.0.0", "::", ""}  # noqa: S104 - compared, not bound
    name = socket.gethostname() if everywhere else f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")


def _announce(url: str, db: Address, prefix: str) -> None:
    later = (
        ""
        if not isinstance(db, Path) or db.exists()
        else "\n  It does not exist yet. The pages update as soon as a training writes to it."
    )
    behind = f"  All links begin with {prefix}, for the proxy.\n" if prefix else ""
    sys.stdout.write(f"logs-ui shows {masked_address(db)}{later}\n  {url}\n{behind}Stop it with Ctrl-C.\n")
    sys.stdout.flush()
