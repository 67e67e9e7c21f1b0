"""Starts the MiniWoB++ server of `examples/` in the environment it needs: real pages in a real Chromium."""

import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.chromium import chromium
from tests.support.environments import ROOT, python_of

_START_SECONDS = 240.0


@contextmanager
def miniwob_server(*options: str) -> Iterator[str]:
    """Yield the address of a server. `options` are the server's own, such as `--sessions 4`."""
    browser = chromium()
    command = [python_of("miniwob"), "-m", "examples.miniwob_server", "--until-stdin-closes", *options]
    variables = os.environ | ({"CHROME_PATH": browser} if browser else {})
    variables.pop("PYTHONDONTWRITEBYTECODE", None)  # the environment was installed without
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True, env=variables, cwd=ROOT) as server,
    ):
        give_up = threading.Timer(_START_SECONDS, server.kill)
        give_up.start()
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            give_up.cancel()
            errors.seek(0)
            assert url, f"The MiniWoB++ server did not start: {errors.read().decode(errors='replace')[-2000:]}"
            yield url
        finally:
            give_up.cancel()
            server.kill()
