"""A run: its name, and what is kept of the trainer, the machine and the code."""

import importlib.metadata
import os
import platform
import secrets
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, select
from sqlalchemy.dialects.sqlite import insert
from sqlmodel import col

from logs_ui.recorder.guard import guard
from logs_ui.recorder.models import Run

RUN_VARIABLE = "LOGS_UI_RUN"
"""Names the run; a name that is taken gets a number."""

_PACKAGES = (
    "logs-ui",
    "trl",
    "transformers",
    "torch",
    "accelerate",
    "openenv",
    "openenv-core",
    "vllm",
    "peft",
    "numpy",
)
_GIT_SECONDS = 10


def now_us() -> int:
    """µs since the epoch, UTC."""
    return time.time_ns() // 1000


def new_uid() -> str:
    """Sorts by time, and does not meet another: `20261120-234059-k3f9`."""
    letters = "abcdefghijkmnpqrstuvwxyz23456789"
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + "".join(secrets.choice(letters) for _ in range(4))


@dataclass(frozen=True)
class RunName:
    """What a run is called, and the uid of the run that it resumes (None where it resumes none)."""

    uid: str
    parent: str | None = None


def begin_run(open_engine: Callable[[], Engine], *, resumed_output: str | None) -> RunName:
    """Makes the run's row, under LOGS_UI_RUN (with a number where it is taken) or a new uid. Where the database cannot
    be written now, only the name; the writer makes the row when it can.

    Args:
        open_engine: opens the database for writing.
        resumed_output: the trainer's output folder where training goes on from a checkpoint; the newest run that
            wrote there is the parent. None where it begins anew.
    """
    wanted = os.environ.get(RUN_VARIABLE) or None
    with guard("beginning the run"), open_engine().begin() as connection:
        uid = wanted or new_uid()
        number = 1
        while connection.scalar(select(col(Run.id)).where(col(Run.uid) == uid)) is not None:
            number += 1
            uid = f"{wanted}.{number}" if wanted else new_uid()
        parent = None
        if resumed_output is not None:
            earlier = select(col(Run.uid)).where(col(Run.config)["output_dir"].as_string() == resumed_output)
            parent = connection.scalar(earlier.order_by(col(Run.id).desc()).limit(1))
        now = now_us()
        connection.execute(insert(Run).values(uid=uid, name=uid, parent=parent, created=now, heartbeat=now))
        return RunName(uid, parent)
    return RunName(wanted or new_uid())


def machine() -> dict[str, Any]:
    """Columns that tell where the run runs."""
    return {"host": socket.gethostname(), "pid": os.getpid()}


def versions() -> dict[str, str]:
    """Of Python and of the packages that decide what a rollout looks like, as far as they are installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def git(folder: Path) -> dict[str, Any]:
    """Commit and whether tracked files differ from it; nothing outside a repository or without git."""
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        dirty = bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"git_commit": commit, "git_dirty": dirty}


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    done = subprocess.run(  # noqa: S603 - fixed words
        command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=True
    )
    return done.stdout.strip()
