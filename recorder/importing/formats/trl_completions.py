"""Reads what TRL writes with `log_completions`: `completions/completions_00010.parquet` from 0.28 on, and the tables
that W&B keeps, `media/table/completions_10_HASH.table.json`.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, pairwise
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np

from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.importing.formats._values import fields_of, group_size, repeats, whole
from logs_ui.recorder.importing.reader import ImportedRollout, ImportedRun, ImportedScalars, ImportOptions, Reader
from logs_ui.recorder.importing.source_files import (
    FileError,
    Head,
    Place,
    file_id,
    json_value,
    parquet_rows,
    records_of,
)
from logs_ui.recorder.vocabulary import Lack, Mode

_FILE = re.compile(r"completions_(\d+)(\.parquet|_.+\.table\.json)")
_UNSURE = "the names of the reward functions (all columns of floats were taken)"
_TABLE = {name: name for name in ("step", "prompt", "completion", "advantage")}
_LACKING = ("NaN", "nan", "None", "")  # what a table has for a number that was not recorded


def _rows(file: Path, *columns: str) -> list[dict[str, Any]]:
    """Return the rows of a file, one batch of the trainer, with None for NaN. Of Parquet they may have some columns."""
    rows = parquet_rows(file, *columns) if file.suffix == ".parquet" else records_of(file)
    return [{name: None if _is_lacking(name, value) else value for name, value in row.items()} for _, row in rows]


def _is_lacking(name: str, value: Any) -> bool:
    return isnan(value) if isinstance(value, float) else name not in ("prompt", "completion") and value in _LACKING


def _floats(file: Path) -> list[str]:
    """Return the columns of floats: in a file without types, those of numbers with a fraction or a point, and null."""
    import pyarrow.parquet as pq
    from pyarrow.types import is_floating

    if file.suffix == ".parquet":
        return [field.name for field in pq.read_schema(file) if is_floating(field.type) and field.name not in _TABLE]
    rows = [row for _, row in records_of(file)]
    columns = {name: [row.get(name) for row in rows] for name in rows[0] if name not in _TABLE}
    kinds = {name: {type(None if value in _LACKING else value) for value in values} for name, values in columns.items()}
    return [name for name, types in kinds.items() if {float} <= types <= {float, int, type(None)}]


def _for_size(file: Path) -> list[dict[str, Any]]:
    """Return what tells the size of a group; nothing of a file that is damaged, or being written."""
    with suppress(ValueError, OSError, AttributeError, LogsUIError):  # that is said where it is read
        return _rows(file, "prompt", "advantage")
    return []


class TrlReader(Reader):
    """Reads `completions_*.parquet`, and the trainer's log in `trainer_state.json` beside their folder."""

    name, title = "trl", "TRL"
    marks = "Parquet, or W&B's .table.json, with `step`, `prompt`, `completion` and `advantage`"
    may_repeat = True

    def __init__(self, root: Path, options: ImportOptions) -> None:
        super().__init__(root, options)
        self._state_version: tuple[Path, int] | None = None  # the newest state, and its time
        self._state: dict[str, Any] = {}
        self._logged_names: set[str] = set()  # names
        self._evaluated_steps: set[int] = set()  # steps
        self._sampled_steps: set[int] = set()  # steps that had a batch of their own
        self._early_files: list[Path] = []  # files of steps that no state has logged yet
        self._rewards: Sequence[str] = ()
        self._size: int | None = None
        self._files_searched: dict[Path, int] = {}  # number of files in which the size was looked for, by folder
        self._lacks = {*Lack, "token ids", "log-probs", "a reward that is NaN (it is stored as None)"}

    @classmethod
    def recognizes(cls, head: Head) -> bool:
        names = {"step", "prompt", "completion"} | (set() if _FILE.fullmatch(head.file.name) else {"advantage"})
        return (head.magic.startswith(b"PAR1") or head.file.name.endswith(".table.json")) and names <= head.keys

    def describe(self, run_id: str | None) -> ImportedRun:  # noqa: ARG002 - there is one
        config = {name: value for name, value in self._state.items() if isinstance(value, int | float)}
        logs = [entry for entry in self._state.get("log_history", ()) if entry.get("reward") is not None]
        sums = [sum(log.get(f"rewards/{name}/mean") or 0.0 for name in self._rewards) for log in logs]
        # If the logged reward is the sum of the functions' means, all weights are 1.
        are_one = bool(logs) and np.allclose([log["reward"] for log in logs], sums, rtol=1e-3, atol=1e-3)
        lacks = self._lacks - ({Lack.WEIGHTS} if self.options.weights or are_one else set())
        return ImportedRun(None, None, self._size, self._state.get("max_steps"), config, lacks=sorted(lacks))

    def records(self, file: Path) -> Iterator[tuple[int, Any]]:
        log = list(self._new_log(file))
        # Of these the log tells more.
        early = [path for path in dict.fromkeys(self._early_files) if log and path != file and path.is_file()]
        self._early_files = [] if log else self._early_files
        # The log is after the rows, as a file is identified by its first record.
        rows = chain.from_iterable(map(self._batch, [file, *early]))
        yield from enumerate(chain(rows, [log] if log else []), 1)

    def _batch(self, file: Path) -> Iterator[Any]:
        rows, before = _rows(file), self._file_before(file)
        floats = _floats(file)
        self._rewards = self.options.rewards or [
            name for name in floats if f"rewards/{name}/mean" in self._logged_names
        ]
        self._lacks.discard(_UNSURE)
        if not self._rewards and floats:
            self._rewards = floats
            self._lacks.add(_UNSURE)
        if self._size is None:
            paths = [path for path in file.parent.iterdir() if _FILE.fullmatch(path.name)]
            files, where = (paths, file.parent) if file in paths else ([file], file)
            if len(files) >= 2 * self._files_searched.get(where, 0):  # not again for each of many files
                self._files_searched[where] = len(files)
                self._size = group_size(map(_for_size, files))
        places = repeats([row["prompt"] for row in rows], self._size)
        earlier, later = ([{**row, "step": None} for row in batch] for batch in (_rows(before) if before else [], rows))
        # A batch that serves several steps is in the file of each, and an evaluation leaves some of it in the file.
        # So many rows of this file may be the end of the file before: all, or up to a group's end, the most first.
        ends = [len(rows), *(i for i in range(len(rows) - 1, 0, -1) if places[i][1] == 0)]
        step = whole(rows[0]["step"]) or 0 if rows else 0
        is_new = step in self._sampled_steps - self._evaluated_steps  # although it may look like the one before it
        first = 0 if is_new else next((end for end in ends if earlier[-end:] == later[:end]), 0)
        if step > self._state.get("global_step", -1):
            self._early_files.append(file)
            if rows and first == len(rows):
                yield FileError("it repeats the file before it, and no log shows it as new: import again later")
        prefix = file_id(file.name, rows[:1])
        for i in range(first, len(rows)):
            yield f"{prefix}-{i + 1}", f"{prefix}-{places[i][0]}" if self._size else None, rows[i], places[i][1]

    def rollouts(self, record: Any, place: Place) -> Iterable[ImportedRollout | ImportedScalars]:  # noqa: ARG002
        if isinstance(record, list):
            yield from record
            return
        key, group, row, generation = record
        fields = fields_of(row, _TABLE, self._rewards)
        # An evaluation writes the file of its step anew; the log shows where there was one.
        is_evaluated = fields["step"] in self._evaluated_steps
        is_train = not is_evaluated and fields["step"] <= self._state.get("global_step", -1)
        yield ImportedRollout(
            key=key, mode=Mode.EVAL if is_evaluated else Mode.TRAIN, tags=() if is_train else ("mode-unknown",),
            group=group, generation=generation, weights=self.options.weights, **fields,
        )  # fmt: skip

    def _file_before(self, file: Path) -> Path | None:
        steps = {int(match[1]): path for path in file.parent.iterdir() if (match := _FILE.fullmatch(path.name))}
        ordered = sorted(steps)
        interval = self._state.get("logging_steps") or min((b - a for a, b in pairwise(ordered)), default=1)
        if interval > 1:
            self._lacks.add("the rollouts between two logs of the trainer (this is a sample)")
        return next((steps[a] for a, b in pairwise(ordered) if steps[b].name == file.name), None)

    def _new_log(self, file: Path) -> Iterator[ImportedScalars]:
        """Yield what the trainer logged, if its state was written since the last time."""
        folder = file.absolute().parent
        folder = folder.parent if folder.name == "completions" else folder
        # Longer names first: checkpoint-1000 is after checkpoint-900.
        saved = sorted(
            folder.glob("checkpoint-*/trainer_state.json"), key=lambda path: (len(str(path)), path), reverse=True
        )
        for newest in (path for path in (folder / "trainer_state.json", *saved) if path.is_file()):
            if self._state_version == (version := (newest, newest.stat().st_mtime_ns)):
                return
            with suppress(ValueError, KeyError, TypeError):  # else it is being written
                state = json_value(newest.read_bytes())
                self._state = state | {"log_history": [entry for entry in state["log_history"] if "step" in entry]}
                self._state_version = version
                break
        else:
            return
        for entry in self._state["log_history"]:
            values = {
                name: value for name, value in entry.items() if isinstance(value, int | float | None) and name != "step"
            }
            self._logged_names |= {name.removeprefix("eval_") for name in values}
            self._sampled_steps |= {entry["step"]} if "reward" in values else set()
            self._evaluated_steps |= {entry["step"]} if any(name.startswith("eval_") for name in values) else set()
            yield ImportedScalars(entry["step"], values)
