"""Writes the row of a run, its scalars and its end, for the one process that writes the run."""

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from logs_ui.recorder.api.run_description import RunName, git, project_of, versions
from logs_ui.recorder.capture.source_code import Part, changes, read_sources
from logs_ui.recorder.delivery.writer import LATE, Writer
from logs_ui.recorder.guard import guard
from logs_ui.recorder.rows.rollout_call import TokenizerSource
from logs_ui.recorder.snapshot import column, error_line, one_line, trace, visible
from logs_ui.recorder.snapshot import name as shortened
from logs_ui.recorder.storage.address import db_option
from logs_ui.recorder.storage.changes import (
    Change,
    RunChange,
    ScalarsChange,
    SourcesChange,
    TokenizerChange,
    kept_bytes,
)
from logs_ui.recorder.storage.clock import now_us
from logs_ui.recorder.vocabulary import RunState

_SOURCES_BYTES = 20_000  # about the size of a run's functions and chat template


@dataclass(frozen=True)
class ChangesJob:
    """A job whose changes are made by a function in the writer's thread; `size` is about their bytes."""

    make: Callable[[], Iterable[Change]]
    size: int = 1_000

    def changes(self) -> Iterable[Change]:
        return self.make()

    def without_payload(self) -> "ChangesJob":
        """Return the job itself: it has no payload."""
        return self


class RunRecord:
    """Writes what is stored about one run; `state` is the one that was written last."""

    def __init__(self, writer: Writer, name: RunName) -> None:
        self.uid, self.launch = name.uid, name.launch
        self.state = RunState.RUNNING
        self._writer = writer

    def begin(
        self,
        columns: Mapping[str, Any],
        tokenizer: TokenizerSource | None = None,
        *,
        parts: Sequence[Part] = (),
        resumes: str | None = None,
        announce: bool = True,
    ) -> None:
        """Write the run's row, and collect the sources of its parts and git's state in background threads.

        `columns` are those of `Run`, except those of the machine and the versions; for `resumes` see `RunChange`. If it
        is to `announce`, it prints the run's id, and the command that shows it, on stderr.
        """
        if hook := sys.modules.get("logs_ui_run_hook"):  # `logs-ui run` says at the end if nothing was recorded
            hook.note("recorded")
        now = now_us()
        here = {"host": socket.gethostname(), "pid": os.getpid(), "versions": versions()}
        described = {**here, "created": now, "heartbeat": now, **columns}
        described["name"] = column(str(described.get("name", self.uid)))
        described["project"] = project_of(described.get("project"))
        if tokenizer is not None:
            described["tokenizer"] = tokenizer.hash
        self.put(RunChange(self.uid, described, resumes=resumes))
        if tokenizer is not None:  # after the run: `db delete` removes a tokenizer that no run refers to
            self.put(TokenizerChange(tokenizer.hash, tokenizer.json), len(tokenizer.json))
        if parts:
            self._writer.put(ChangesJob(lambda: [SourcesChange(self.uid, tuple(read_sources(parts)))], _SOURCES_BYTES))
        if announce:
            name = "" if described["name"] == self.uid else f" ({visible(one_line(str(described['name'])))})"
            command = f"logs-ui serve{db_option(self._writer.address)}"
            sys.stderr.write(f"logs-ui: recording run {self.uid}{name}; browse it with: {command}\n")
        # git may take seconds on a large tree: neither the training nor the rows wait for it.
        threading.Thread(target=self._describe_code, args=(Path.cwd(),), name=LATE, daemon=True).start()

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Write scalars of a step; values that are not numbers are left out."""
        finite_values = {shortened(name): finite(value) for name, value in numbers(values).items()}
        self.put(ScalarsChange(self.uid, step, finite_values))

    @property
    def ended(self) -> bool:
        """Return True if the end of the run was written."""
        return self.state != RunState.RUNNING

    def end(self, state: RunState, **why: str | None) -> None:
        """Write that the run ended; `why` may hold the columns `error` and `traceback`."""
        self.state = state
        now = now_us()
        self.put(RunChange(self.uid, {"state": state, "finished": now, "heartbeat": now, **why}))

    def raised(self, error: BaseException) -> None:
        """Write that an exception ended the run."""
        state = RunState.FAILED if isinstance(error, Exception) else RunState.INTERRUPTED
        self.end(state, error=error_line(error), traceback=trace(error))

    def put(self, change: Change, size: int = 1_000) -> None:
        """Pass a change of about `size` bytes to the writer."""
        self._writer.put(ChangesJob(lambda: [change], size))

    def _describe_code(self, folder: Path) -> None:
        with guard("reading the commit from git"):
            columns = git(folder)
            self.put(RunChange(self.uid, columns))
            if columns.get("git_dirty"):
                changed = SourcesChange(self.uid, tuple(changes(folder)))
                self.put(changed, kept_bytes(changed))


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are numbers, as plain floats."""
    return {
        str(name): float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def finite(value: float | None) -> float | None:
    """Return the number; None for NaN and infinities, which JSON and SQL do not have, and for None."""
    return None if value is None or not np.isfinite(number := float(value)) else number
