"""Names a run, and describes the machine and the code that it runs with."""

import importlib.metadata
import itertools
import os
import platform
import secrets
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logs_ui.recorder.capture.source_code import git_output
from logs_ui.recorder.errors import NoDatabaseError
from logs_ui.recorder.guard import guard
from logs_ui.recorder.labels import tag_of
from logs_ui.recorder.storage.address import Address

RUN_VARIABLE = "LOGS_UI_RUN"
"""Environment variable that names the run; a name that is taken gets a number."""

PROJECT_VARIABLE = "LOGS_UI_PROJECT"
"""Environment variable that names the project of runs that were started without one."""

_PACKAGES = (
    "logs-ui", "trl", "transformers", "torch", "accelerate", "openenv", "openenv-core", "vllm", "peft", "numpy",
)  # fmt: skip


def _letters() -> str:
    return "".join(secrets.choice("abcdefghijkmnpqrstuvwxyz23456789") for _ in range(4))


def project_of(project: object) -> str | None:
    """Return the name of a project as it is stored; None takes LOGS_UI_PROJECT, and stays None if that is not set."""
    return tag_of(str(project or os.environ.get(PROJECT_VARIABLE) or "")) or None


@dataclass(frozen=True)
class RunName:
    """A run's id for users, and random letters that keep the rows of two launches apart if both have the same id."""

    uid: str
    launch: str


def name_run(address: Address) -> RunName:
    """Return LOGS_UI_RUN, with a number if the database has a run of that name; a new uid if it is not set.

    This writes nothing and waits for no lock: the writer makes the run's row. The database need not exist.
    """
    launch = _letters()
    wanted = os.environ.get(RUN_VARIABLE) or None
    if wanted is None:
        return RunName(time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + _letters(), launch)  # sorts by time
    with guard("naming the run"):
        in_use = _uids_in_use(address)
        names = itertools.chain([wanted], (f"{wanted}.{number}" for number in itertools.count(2)))
        return RunName(next(name for name in names if name not in in_use), launch)
    return RunName(f"{wanted}.{launch}", launch)  # the database could not be read: the name may be taken


def join_run(uid: str) -> RunName:
    """Return the run's id with letters of its own for this process."""
    return RunName(uid, _letters() + _letters())


def _uids_in_use(address: Address) -> set[str]:
    """Return the uids of the runs in the database. Reading waits for no writer."""
    from sqlalchemy import select  # only a run that is named by LOGS_UI_RUN reads
    from sqlmodel import col

    from logs_ui.recorder.delivery.committer import take_in_before_reading
    from logs_ui.recorder.storage.database import disposed, reading_engine
    from logs_ui.recorder.storage.tables import Run

    take_in_before_reading(address)
    try:
        with disposed(reading_engine(address)) as engine, engine.connect() as connection:
            return set(connection.scalars(select(col(Run.uid))))
    except NoDatabaseError:
        return set()


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that rollouts depend on."""
    by_package = {"python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            by_package[package] = importlib.metadata.version(package)
    return by_package


def git(folder: Path) -> dict[str, Any]:
    """Return the commit, and whether tracked files differ from it; {} outside of a repository or without git."""
    try:
        commit = git_output(folder, "rev-parse", "HEAD").strip()
        dirty = bool(git_output(folder, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"git_commit": commit, "git_dirty": dirty}
