"""Runs the command `logs-ui`: as a user does, or in this process, which saves seconds."""

import io
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from logs_ui.app.commands.cli import main

LOGS_UI = Path(sys.executable).with_name("logs-ui")


def logs_ui(*arguments: str | Path, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in a new process, in that folder."""
    command = [LOGS_UI, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=folder)


@contextmanager
def serving(*options: object, command: Path = LOGS_UI, **variables: str) -> Iterator[tuple[str, str]]:
    """Yield the address of `logs-ui serve` on a free port, in a process of its own, and what it printed up to there."""
    with subprocess.Popen(
        [command, "serve", "--port", "0", *map(str, options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **variables},
    ) as server:
        try:
            assert server.stdout is not None
            said = ""
            while (address := re.search(r"http://127\.0\.0\.1:\d+", said)) is None:
                line = server.stdout.readline()
                assert line, said
                said += line
            yield address[0], said
        finally:
            server.terminate()


def typed(*arguments: object, folder: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, in that folder. Modules that it imports from there are forgotten afterwards."""
    said, wrong, modules = io.StringIO(), io.StringIO(), set(sys.modules)
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(said), redirect_stderr(wrong):
        patched.setattr(sys.modules["__main__"], "__package__", None, raising=False)  # else it is `python -m ...`
        patched.setattr(sys, "argv", ["logs-ui", *map(str, arguments)])
        patched.setattr(sys, "path", [one for one in sys.path if one])  # an installed command's has no current folder
        patched.setattr(logging.root, "handlers", [])  # the command has its own
        patched.setattr(logging.root, "level", logging.root.level)
        if folder:
            patched.chdir(folder)
        for name, value in variables.items():
            patched.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            main()
    for name in set(sys.modules) - modules:
        if folder and str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
    return subprocess.CompletedProcess(sys.argv, int(ended.value.code or 0), said.getvalue(), wrong.getvalue())
