"""A run: its name, and what is kept of the trainer, the machine and the code."""

import importlib.metadata
import itertools
import os
import platform
import secrets
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logs_ui.recorder.errors import NoDatabaseError
from logs_ui.recorder.guard import guard
from logs_ui.recorder.labels import tag_of
from logs_ui.recorder.storage.address import Address

RUN_VARIABLE = "LOGS_UI_RUN"
"""Names the run; a name that is taken gets a number."""

PROJECT_VARIABLE = "LOGS_UI_PROJECT"
"""Names the project of runs that are given none."""

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


def new_uid() -> str:
    """Sorts by time, and does not meet another: `20261120-234059-k3f9`."""
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + _letters()


def _letters() -> str:
    return "".join(secrets.choice("abcdefghijkmnpqrstuvwxyz23456789") for _ in range(4))


def project_of(given: object) -> str | None:
    """As it is stored: what was given, else LOGS_UI_PROJECT; None where neither says anything."""
    return tag_of(str(given or os.environ.get(PROJECT_VARIABLE) or "")) or None


@dataclass(frozen=True)
class RunName:
    """What a run is called.

    Attributes:
        uid: what users call its id.
        launch: a few random letters, so that rows of two launches never meet, even under one uid.
    """

    uid: str
    launch: str


def name_run(address: Address) -> RunName:
    """LOGS_UI_RUN, with a number where the database has a run of that name; else a new uid. Writes nothing and waits
    for no lock: the writer makes the run's row.

    Args:
        address: of the database, which need not exist.
    """
    launch = _letters()
    wanted = os.environ.get(RUN_VARIABLE) or None
    if wanted is None:
        return RunName(new_uid(), launch)
    with guard("naming the run"):
        taken = _taken(address)
        names = itertools.chain([wanted], (f"{wanted}.{number}" for number in itertools.count(2)))
        return RunName(next(name for name in names if name not in taken), launch)
    return RunName(f"{wanted}.{launch}", launch)  # whether it is free is not known


def _taken(address: Address) -> set[str]:
    """Uids of the runs that are there. Reading waits for no writer."""
    from logs_ui.recorder.storage.database import reading_engine  # only a named run reads
    from logs_ui.recorder.storage.run_uids import run_uids
    from logs_ui.recorder.storage.spool.spool_ingest import take_in_before_reading

    take_in_before_reading(address)
    try:
        engine = reading_engine(address)
    except NoDatabaseError:
        return set()
    try:
        return run_uids(engine)
    finally:
        engine.dispose()


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
