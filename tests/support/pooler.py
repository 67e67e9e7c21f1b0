"""Starts PgBouncer (Debian's package `pgbouncer`, if installed) in front of the tests' PostgreSQL."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import URL

from tests.support.ports import free_port

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")
"""Path of the program; None if it is not installed."""


@contextmanager
def pooled(url: URL, mode: str, *, connections: int = 3) -> Iterator[URL]:
    """Starts a PgBouncer through which the database of this URL can be reached.

    Args:
        url: of the database.
        mode: `pool_mode`: "session", "transaction" or "statement".
        connections: that it has to the server, at most.

    Yields:
        The URL through it.
    """
    if PGBOUNCER is None:
        pytest.skip("PgBouncer is not installed (Debian: apt install pgbouncer)")
    host, port = str(url.query.get("host", url.host)), free_port()
    with tempfile.TemporaryDirectory(prefix="logs-ui-pooler-") as folder:
        Path(folder).chmod(0o755)
        ini = Path(folder, "pgbouncer.ini")
        ini.write_text(
            f"""
[databases]
* = host={host} port={url.port or 5432} user={url.username} {f"password={url.password}" if url.password else ""}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {connections}
"""
        )
        process = subprocess.Popen([PGBOUNCER, *_as(host), str(ini)], stderr=subprocess.PIPE, text=True)
        try:
            _wait_for(port, process)
            yield url.set(host="127.0.0.1", port=port, query={})
        finally:
            process.kill()
            process.communicate()


def _as(host: str) -> tuple[str, ...]:
    """Return the option that names another user if this one is root, whom PgBouncer refuses: the owner of the server's
    socket, which nobody else may open.
    """
    if os.geteuid() != 0:
        return ()
    return "-u", Path(host).owner() if host.startswith("/") else "nobody"


def _wait_for(port: int, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.01)
        else:
            return
