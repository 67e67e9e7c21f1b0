"""Runs the demo environment's server as a child process."""

import contextlib
import subprocess
import sys
import tempfile
import threading
import urllib.request
from typing import Self


class GuessServer:
    """Runs `logs_ui.rollout.demo.guess_env` in a process of its own. It ends with the `with` block, or with this
    process.
    """

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "logs_ui.rollout.demo.guess_env", "--port", "0", "--until-stdin-closes"]
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C reaches the trainer alone, which then ends the server
        )
        return self

    def wait_until_ready(self, timeout: float = 60.0) -> str:
        """Return the server's address once it answers. Raises RuntimeError if it does not within `timeout` seconds."""
        assert self._process.stdout is not None  # noqa: S101 (for the type checker)
        give_up = threading.Timer(timeout, self._process.kill)
        give_up.start()
        try:
            url = self._process.stdout.readline().decode().strip()
            if not url:
                raise RuntimeError(f"The demo's environment server did not start: {self._last_words()}")
            direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with direct.open(f"{url}/health", timeout=timeout):
                return url
        except OSError as error:
            raise RuntimeError(f"The demo's environment server did not answer: {self._last_words()}") from error
        finally:
            give_up.cancel()

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=3)
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def _last_words(self) -> str:
        """Return the last line that the process wrote to standard error, once it has ended."""
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"it ended with status {self._process.returncode} and said nothing"
