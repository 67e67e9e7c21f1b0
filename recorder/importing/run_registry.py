"""Knows the runs that imported rollouts belong to, and describes them in the database."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, func, select
from sqlmodel import col

from logs_ui.recorder.importing.imported_rows import whole_number
from logs_ui.recorder.importing.reader import ImportedRollout, ImportedRun, ImportedScalars, Reader
from logs_ui.recorder.importing.source_files import Place
from logs_ui.recorder.redaction import masked
from logs_ui.recorder.snapshot import column, plain_settings
from logs_ui.recorder.snapshot import name as shortened
from logs_ui.recorder.storage.changes import RunChange
from logs_ui.recorder.storage.clock import now_us
from logs_ui.recorder.storage.dialects import whole_sum
from logs_ui.recorder.storage.tables import Run, StepStatistics
from logs_ui.recorder.vocabulary import Lack, RunState

_GROUPS = 20_000  # whose generations are remembered; more would be unbounded


@dataclass
class _Run:
    """Describes a run: what its files say of it, and what was stored before. Times are those of its rollouts, in µs."""

    sources: list[tuple[Reader, str | None]]  # with its own id of the run; several if one name was given to all
    file: Path
    start: int
    end: int
    rollouts_before: int = 0


class RunRegistry:
    """The runs of one import, by the ids that their files have for them."""

    def __init__(self, name: str | None, path: Path, database: Engine | None, write: Callable[[Any], None]) -> None:
        """Begin without a run.

        Args:
            name: a name that all files' rollouts get as one run; None: the files' own ids.
            path: the first path that is imported.
            database: reads what was stored before; None where that is not read.
            write: takes changes of runs.
        """
        self._name, self._path, self._database, self._write = name, path, database, write
        self._uids: dict[tuple[str, str | None], str] = {}  # by format and the source's own id
        self._runs: dict[str, _Run] = {}
        self._keys: OrderedDict[str, dict[str, int]] = OrderedDict()  # generations in a group, by the rollout's key
        self.names: dict[str, str] = {}  # by uid, in the order in which they were seen

    def find_run(self, reader: Reader, item: ImportedRollout | ImportedScalars, place: Place, written: int) -> str:
        """Return the uid of the run that a record belongs to; describe it when it is first seen."""
        run_id = None if self._name else item.run
        key = reader.name, run_id
        if key not in self._uids:
            # The uid is a hash of what identifies the run: an import that is repeated writes into the same run.
            identity = ("named", self._name) if self._name else (reader.name, run_id or f"file {place.id}")
            uid = f"import-{blake2b(repr(identity).encode(errors='replace'), digest_size=6).hexdigest()}"
            if uid in self._runs:
                self._runs[uid].sources.append((reader, item.run))
            else:
                start = whole_number(getattr(item, "created", None), 2**63) or written
                run = self._runs[uid] = _Run([(reader, item.run)], place.file, start, 0)
                if self._database is not None:
                    created, finished, run.rollouts_before = self._read_stored(uid)
                    run.start, run.end = min(created or start, start), finished or 0
            described = self._describe(self._runs[uid])
            self.names.setdefault(uid, described["name"])
            self._write(RunChange(uid, described))
            self._uids[key] = uid
        return self._uids[key]

    def place_in_group(self, uid: str, rollout: ImportedRollout) -> tuple[str, int]:
        """Return the group's name in the database, and the rollout's number in it: the same if it is read again."""
        group_id = rollout.key if rollout.group is None else rollout.group
        group = shortened(f"{uid}/{rollout.mode}/{rollout.step}/{group_id}")
        if rollout.group is None or rollout.generation is not None:
            return group, rollout.generation or 0
        keys = self._keys.setdefault(group, {})
        self._keys.move_to_end(group)
        if len(self._keys) > _GROUPS:
            self._keys.popitem(last=False)
        return group, keys.setdefault(rollout.key, len(keys))

    def widen(self, uid: str, start: int, end: int) -> None:
        """Note that a run has a rollout between two times, in µs."""
        run = self._runs[uid]
        run.start, run.end = min(run.start, start), max(run.end, end)

    def end(self, state: RunState, error: str | None) -> None:
        """Write that all runs ended, and with which error."""
        for uid, run in self._runs.items():
            end = {"state": state, "finished": run.end or run.start, "error": error}
            self._write(RunChange(uid, self._describe(run) | end))

    def count_new(self) -> int:
        """Return how many rollouts the database has that it had not before."""
        return sum(self._read_stored(uid)[2] - run.rollouts_before for uid, run in self._runs.items())

    def _read_stored(self, uid: str) -> tuple[int | None, int | None, int]:
        """Return when a stored run began and ended, if it did, and the number of its rollouts."""
        if self._database is None:
            return None, None, 0
        count = select(func.coalesce(whole_sum(col(StepStatistics.rollouts)), 0)).where(
            col(StepStatistics.run_id) == col(Run.id)
        )
        query = select(col(Run.created), col(Run.finished), count.scalar_subquery()).where(col(Run.uid) == uid)
        with self._database.connect() as connection:
            return tuple(connection.execute(query).first() or (None, None, 0))

    def _describe(self, run: _Run) -> dict[str, Any]:
        descriptions = [_description(reader, run_id) for reader, run_id in run.sources]
        first, path = descriptions[0], self._path.absolute()
        lacks = dict.fromkeys(
            lack
            for description in descriptions
            for lack in (*description.lacks, *map(str, description.ours.get("lacks") or ()))
        )
        imported: dict[str, Any] = {"format": run.sources[0][0].name, "path": str(path), "lacks": list(lacks)}
        if first.ours and "lacks" not in first.ours:  # a recorded run was exported: its errors are the environment's
            imported["is_ours"] = True
        namesake = path if path.exists() else run.file.absolute().parent  # not a glob
        return {
            "name": column(self._name or first.name or namesake.name),
            "created": run.start,
            "heartbeat": now_us(),
            "state": RunState.RUNNING,
            "finished": None,
            "error": None,
            "model": column(first.model),
            "num_generations": whole_number(first.num_generations),
            "max_steps": whole_number(first.max_steps),
            "config": masked(plain_settings({**first.config, "import": imported})),
            "versions": plain_settings(first.versions),
        }


def _description(reader: Reader, run_id: str | None) -> ImportedRun:
    try:
        return reader.describe(run_id)
    except Exception:  # noqa: BLE001 - a file may contain anything: it costs what it says of the run
        return ImportedRun(run_id, lacks=[*Lack])
