"""A run's own row, its scalars and its end, as one process writes them."""

import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from logs_ui.recorder.api.run_description import RunName, git, machine, project_of, versions
from logs_ui.recorder.capture.source_code import Part, changes, read
from logs_ui.recorder.delivery.writer import Writer
from logs_ui.recorder.guard import guard
from logs_ui.recorder.snapshot import column, error_line, one_line, trace
from logs_ui.recorder.snapshot import name as shortened
from logs_ui.recorder.storage.address import db_option
from logs_ui.recorder.storage.changes import Change, RunChange, ScalarsChange, SourcesChange, kept_bytes
from logs_ui.recorder.storage.clock import now_us
from logs_ui.recorder.vocabulary import RunState

_SOURCES_BYTES = 20_000  # of a run's functions and template, about


@dataclass(frozen=True)
class ChangesJob:
    """Changes that are ready, or made by a function in the writer's thread."""

    make: Callable[[], Iterable[Change]]
    size: int = 1_000

    def changes(self) -> Iterable[Change]:
        return self.make()

    def without_payload(self) -> "ChangesJob":
        """Itself: it has none."""
        return self


class RunRecord:
    """What is written of one run.

    Attributes:
        uid: what users call its id.
        launch: see `RunName`.
        state: as it was last told.
    """

    def __init__(self, writer: Writer, name: RunName) -> None:
        self.uid, self.launch = name.uid, name.launch
        self.state = RunState.RUNNING
        self._writer = writer

    def begin(
        self,
        columns: Mapping[str, Any],
        *,
        parts: Sequence[Part] = (),
        resumes: str | None = None,
        announce: bool = True,
    ) -> None:
        """Makes its row, and has its sources read and git asked in background threads.

        Args:
            columns: of `Run`, beside the machine's and the versions.
            parts: what the run is made of beside its arguments.
            resumes: see `RunChange`.
            announce: whether to say on stderr what it is called, and how to browse it.
        """
        now = now_us()
        described = {**machine(), "versions": versions(), "created": now, "heartbeat": now, **columns}
        described["name"] = column(str(described.get("name", self.uid)))
        described["project"] = project_of(described.get("project"))
        self.put(RunChange(self.uid, described, resumes=resumes))
        if parts:
            self._writer.put(ChangesJob(lambda: [SourcesChange(self.uid, tuple(read(parts)))], _SOURCES_BYTES))
        if announce:
            name = "" if described["name"] == self.uid else f" ({one_line(str(described['name']))})"
            sys.stderr.write(f"logs-ui: recording run {self.uid}{name}; browse it with: {self._serve_command()}\n")
        # git may take seconds on a large tree: neither the training nor the rows wait for it.
        threading.Thread(target=self._describe_code, args=(Path.cwd(),), name="logs-ui git", daemon=True).start()

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Scalars of one step; what is no number is left out."""
        numbers = {
            shortened(str(name)): finite(value)
            for name, value in values.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        self.put(ScalarsChange(self.uid, step, numbers))

    @property
    def ended(self) -> bool:
        """Whether its end was told."""
        return self.state != RunState.RUNNING

    def end(self, state: RunState, **why: str | None) -> None:
        """Tells that it ended; `why` holds columns `error` and `traceback`."""
        self.state = state
        now = now_us()
        self.put(RunChange(self.uid, {"state": state, "finished": now, "heartbeat": now, **why}))

    def raised(self, error: BaseException) -> None:
        """Ended by an exception."""
        state = RunState.FAILED if isinstance(error, Exception) else RunState.INTERRUPTED
        self.end(state, error=error_line(error), traceback=trace(error))

    def put(self, change: Change, size: int = 1_000) -> None:
        """Hands a change to the writer."""
        self._writer.put(ChangesJob(lambda: [change], size))

    def _describe_code(self, folder: Path) -> None:
        with guard("asking git for the commit"):
            found = git(folder)
            self.put(RunChange(self.uid, found))
            if found.get("git_dirty"):
                changed = SourcesChange(self.uid, tuple(changes(folder)))
                self.put(changed, kept_bytes(changed))

    def _serve_command(self) -> str:
        return f"logs-ui serve{db_option(self._writer.address)}"


def finite(value: float) -> float | None:
    """JSON and SQL have no NaN: it becomes None."""
    number = float(value)
    return number if np.isfinite(number) else None
