"""Finds a Chromium for the browser tests, or installs one."""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_SHELL = "chromium-headless-shell"
_NAMES = (_SHELL, "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str | None:
    """Return the path of the browser; None means the one that Playwright keeps itself. Fails if there is none.

    The headless shell is preferred: it draws no window around a page, and takes a quarter of the processor time.
    """
    found = _installed()
    if "CHROME_PATH" in os.environ or (found and found.endswith(_SHELL)):
        return found
    if os.geteuid() == 0 and shutil.which("apt-get"):
        with (Path(tempfile.gettempdir()) / "logs-ui-chromium.lock").open("w") as lock:  # of the tests' processes
            fcntl.flock(lock, fcntl.LOCK_EX)
            found = _installed()
            if not found:
                subprocess.run(["apt-get", "update", "-qq"], check=True)
            # Some releases have no shell.
            if not (found and found.endswith(_SHELL)) and not _install(_SHELL) and not found:
                _install("chromium")
        found = _installed()
        assert found, "apt-get installed no browser"
    elif not found:
        subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=True)
    return found


def _install(package: str) -> bool:
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
    return subprocess.run(command, check=False).returncode == 0


def _installed() -> str | None:
    named = os.environ.get("CHROME_PATH")
    if named:
        assert Path(named).is_file(), f"CHROME_PATH is {named}, where there is no file"
        return named
    return next((path for name in _NAMES if (path := shutil.which(name))), None)
