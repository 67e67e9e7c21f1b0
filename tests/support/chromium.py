"""Finds a Chromium for the browser tests, or installs one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str | None:
    """Return the path of the browser; None means the one that Playwright keeps itself. Fails if there is none."""
    found = _installed()
    if found:
        return found
    if os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"], check=True)
        found = _installed()
        assert found, "apt-get installed chromium, and it is nowhere on the PATH"
        return found
    subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=True)
    return None


def _installed() -> str | None:
    named = os.environ.get("CHROME_PATH")
    if named:
        assert Path(named).is_file(), f"CHROME_PATH is {named}, where there is no file"
        return named
    return next((path for name in _NAMES if (path := shutil.which(name))), None)
