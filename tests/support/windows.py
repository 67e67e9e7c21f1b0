"""Makes this process, on Linux, lack what Windows lacks, as far as that goes: import it first, in a process of its own.

Fork, `fcntl` and some functions and signals are gone; `msvcrt.locking` locks files; a file that is open cannot be
deleted or renamed, a folder cannot be opened, and a rename replaces nothing. The libraries of others are loaded before.
"""

import concurrent.futures
import errno
import fcntl
import multiprocessing.connection
import multiprocessing.util
import os
import select
import signal
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastapi
import httpx
import pandas as pd
import platformdirs
import pyarrow.parquet
import sqlmodel
import tokenizers
import typer
import uvicorn.protocols.http.h11_impl

_LOADED = (
    concurrent.futures, multiprocessing, fastapi, httpx, pd, platformdirs, pyarrow, sqlmodel, tokenizers, typer,
    uvicorn,
)  # fmt: skip
_GONE: dict[Any, str] = {
    os: "fork register_at_fork nice getuid geteuid setsid killpg sched_getaffinity O_NONBLOCK O_CLOEXEC fdatasync"
    " uname",
    select: "poll epoll",
    signal: "SIGHUP SIGKILL SIGUSR1 SIGALRM SIGCHLD SIGQUIT",
}
_flock, _lock, _lock_now = fcntl.flock, fcntl.LOCK_EX, fcntl.LOCK_EX | fcntl.LOCK_NB
_open = os.open


def _locking(file: int, mode: int, count: int) -> None:
    assert (mode in {1, 2}, count) == (True, 1)
    assert os.lseek(file, 0, os.SEEK_CUR) > 1 << 30  # no reader needs this byte, which nobody else may read
    try:
        _flock(file, _lock_now if mode == 2 else _lock)
    except BlockingIOError:
        raise PermissionError(errno.EACCES, "Permission denied") from None


def _refusing(name: str) -> Callable[..., Any]:
    """Returns a function of `os` that refuses files which this process has open."""
    do = getattr(os, name)

    def refuse(*paths: Any, **options: Any) -> Any:
        is_open = {os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")}  # noqa: PTH208
        if is_open & {os.path.realpath(path) for path in paths}:
            raise PermissionError(errno.EACCES, "It is used by another process", str(paths[0]))
        if name == "rename" and Path(paths[1]).exists():
            raise FileExistsError(errno.EEXIST, "It exists", str(paths[1]))
        return do(*paths, **options)

    return refuse


def _open_no_folder(path: Any, *arguments: Any, **options: Any) -> int:
    if Path(path).is_dir() and sys._getframe(1).f_globals.get("__name__", "").startswith("logs_ui."):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))
    return _open(path, *arguments, **options)


for module, names in _GONE.items():
    for gone in names.split():
        delattr(module, gone)
for gone in ("fcntl", "pwd", "grp", "termios", "resource"):
    sys.modules[gone] = None  # type: ignore[assignment]
sys.modules["msvcrt"] = types.ModuleType("msvcrt")
sys.modules["msvcrt"].__dict__.update(LK_LOCK=1, LK_NBLCK=2, locking=_locking)
for changed in ("unlink", "remove", "rename", "replace"):
    setattr(os, changed, _refusing(changed))
os.open = _open_no_folder
