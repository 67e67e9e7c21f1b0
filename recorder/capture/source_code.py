"""Reads the source code of a run: reward and rollout functions, environments, the chat template, facts of the dataset,
and the difference between the working tree and its commit. Each is read once per run, in background threads.
"""

import functools
import inspect
import os
import subprocess
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any

import zstandard

from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.guard import guard
from logs_ui.recorder.redaction import without_keys
from logs_ui.recorder.snapshot import column
from logs_ui.recorder.snapshot import text as storable_text
from logs_ui.recorder.storage.changes import Source
from logs_ui.recorder.vocabulary import SourceKind

CODE_VARIABLE = "LOGS_UI_CODE"
"""Environment variable: `all` stores sources and changes of the tree, `sources` no changes, `none` only names."""

_KEPT = ("all", "sources", "none")
_OURS = "logs_ui."
_DEPTH = 3  # levels at which a function of this package may hold functions of the user
_PACKED_BYTES = 256 << 10  # of one text, at most
_GIT_SECONDS = 10.0
_READ_BYTES = 4 << 20  # of git's output, at most
_CUT = "\n[logs-ui kept only the beginning]\n"


@dataclass(frozen=True)
class Part:
    """One thing that a run is made of."""

    kind: SourceKind
    name: str
    # A function, class or object whose source is stored, or a text that is stored itself. None: only the name.
    thing: Any = None
    weight: float | None = None  # weight of a reward function


def code_setting() -> str:
    """Return the value of LOGS_UI_CODE. Raise LogsUIError if it is not one of the possible values."""
    setting = os.environ.get(CODE_VARIABLE) or "all"
    if setting not in _KEPT:
        values = ", ".join(_KEPT)
        raise LogsUIError(f"{CODE_VARIABLE} is {setting[:40]!r}: it takes {values}. No source is stored now.")
    return setting


def read_sources(parts: Iterable[Part]) -> list[Source]:
    """Read the texts of the parts, without secrets, and cut to the length that is stored. Raise what `code_setting`
    raises.
    """
    has_text = code_setting() != "none"
    sources = []
    for part in parts:
        text = None
        if has_text:
            with guard("reading the source of a run's functions"):
                text = source_text(part.thing)
        sources.append(Source(part.kind, column(part.name) or "", storable(text) if text else None, part.weight))
    return sources


def source_text(thing: Any) -> str | None:
    """Return the code of a function or class, for one of this package the user's inside it; None if there is none."""
    if thing is None or isinstance(thing, str):
        return thing
    texts = [text for piece in list(_pieces(thing, _DEPTH)) or [thing] if (text := _code(piece))]
    return "\n\n".join(dict.fromkeys(texts)) or None


def storable(text: str) -> str:
    """Remove what looks like a key, and cut a text that is too long to be stored."""
    text = storable_text(without_keys(text))
    is_cut = False
    while len(zstandard.compress(text.encode())) > _PACKED_BYTES:
        text, is_cut = text[: len(text) // 2], True
    return text + _CUT if is_cut else text


def changes(folder: Path) -> list[Source]:
    """Return how tracked files differ from the commit: names with lines added and removed, and the diff itself.

    Raise what `code_setting` and `git_output` raise.
    """
    sources = [Source(SourceKind.CHANGED_FILES, "", storable(git_output(folder, "diff", "HEAD", "--numstat")))]
    if code_setting() == "all":
        arguments = ("diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv")
        sources.append(Source(SourceKind.CHANGES, "", storable(git_output(folder, *arguments))))
    return [source for source in sources if source.text]


def git_output(folder: Path, *arguments: str) -> str:
    """Return git's output up to a limit: the diff of a generated file may be gigabytes. Raise OSError or
    SubprocessError without git or a repository, or after ten seconds.
    """
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:  # noqa: S603
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        limit = threading.Timer(_GIT_SECONDS, process.kill)  # a network file system may keep git waiting for ever
        limit.daemon = True  # else the training's end would wait for it
        with suppress(RuntimeError):  # at the end of a process, Python 3.12 starts no thread
            limit.start()
        output = process.stdout.read(_READ_BYTES)
        limit.cancel()
        if len(output) == _READ_BYTES:
            process.kill()
            return output.decode(errors="replace") + _CUT
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return output.decode(errors="replace")


def _pieces(thing: Any, depth: int) -> Iterator[Any]:
    """Yield what has code to store: the thing, or the user's functions that a function of this package holds."""
    thing = inspect.unwrap(thing) if callable(thing) else thing
    if not _is_ours(thing) and not isinstance(thing, functools.partial):
        yield thing
    elif depth:
        yield from (piece for inner in _inner_functions(thing) for piece in _pieces(inner, depth - 1))


def _inner_functions(thing: Any) -> list[Any]:
    """Return functions and classes that it was made with, and objects of this package that may hold some."""
    if isinstance(thing, functools.partial):
        values = [thing.func, *thing.args, *thing.keywords.values()]
    elif cells := getattr(thing, "__closure__", None):
        values = [cell.cell_contents for cell in cells]
    else:
        values = [*getattr(thing, "__dict__", {}).values()]
        if is_dataclass(thing):
            values = [getattr(thing, name, None) for name in thing.__dataclass_fields__]
    return [value for value in values if _has_code(value) or _is_ours(value)]


def _has_code(value: Any) -> bool:
    return inspect.isroutine(value) or inspect.isclass(value) or isinstance(value, functools.partial)


def _is_ours(thing: Any) -> bool:
    module = getattr(thing, "__module__", None)
    return isinstance(module, str) and module.startswith(_OURS)


def _code(piece: Any) -> str | None:
    owner = piece if _has_code(piece) else type(piece)
    try:
        return inspect.getsource(owner)
    except (OSError, TypeError):  # typed into an interpreter, or written in C
        return None
    except SystemError:  # Python 3.11 mixes up threads that parse at once, which succeeds the next time
        return inspect.getsource(owner)
