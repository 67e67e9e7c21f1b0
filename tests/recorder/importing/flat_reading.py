"""Reads files with one reader, as an import does, for tests of flat formats."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from logs_ui.recorder.importing.formats import readers
from logs_ui.recorder.importing.reader import ImportedRollout, ImportedScalars, ImportOptions, Reader
from logs_ui.recorder.importing.source_files import Head, Place, file_id, find_files
from logs_ui.recorder.storage.payload import Tokens


class Read:
    """What a reader yields of files, and which reader knew them."""

    def __init__(
        self, root: Path, rewards: tuple[str, ...] | None = None, weights: Mapping[str, float] | None = None
    ) -> None:
        self.rollouts: list[ImportedRollout] = []
        self.scalars: dict[int, dict[str, float | None]] = {}
        self.errors: list[str] = []
        self._reader: Reader | None = None
        for file in find_files([root]):
            kind = next((it for it in readers() if it.recognizes(Head(file.file))), None)
            if kind is None:
                continue
            self._reader = self._reader or kind(root, ImportOptions(rewards, weights or {}))
            assert type(self._reader) is kind
            self._take(self._reader, file.file, file.name)

    @property
    def reader(self) -> Reader:
        assert self._reader is not None
        return self._reader

    def _take(self, reader: Reader, file: Path, name: str) -> None:
        known = None
        for number, record in reader.records(file):
            known = known or file_id(Path(name).name, record)
            try:
                for found in reader.rollouts(record, Place(file, name, known, number)):
                    if isinstance(found, ImportedScalars):
                        self.scalars.setdefault(found.step, {}).update(found.values)
                    else:
                        self.rollouts.append(found)
            except Exception as error:  # noqa: BLE001 - each costs its record, as in an import
                self.errors.append(str(error))


def token_lists(tokens: Tokens | None) -> list[list[float | None] | None]:
    """Ids of the prompt and the completion, mask and log-probs, in which None stands for NaN."""
    assert tokens is not None
    arrays = (tokens.prompt_ids, tokens.completion_ids, tokens.mask, tokens.logprobs)
    return [it if it is None else [None if math.isnan(value) else value for value in it.tolist()] for it in arrays]


def write_lines(file: Path, *records: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
