"""Names the task of a rollout."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.guard import guard
from logs_ui.recorder.snapshot import name as shortened
from logs_ui.recorder.vocabulary import UNNAMED

Task = str | Callable[[dict[str, Any]], object]
"""A dataset column, or a function of the dataset row."""

_COLUMNS = ("task", "task_id")


def prompt_task(prompt: bytes) -> str:
    """Return the name of a task that has none: the prompt's hash."""
    return UNNAMED + hashlib.sha256(prompt).hexdigest()[:8]


def asked_key(prompt: bytes) -> int:
    """Return the key of what a row was asked: of 48 bits, as a float represents exactly."""
    return int.from_bytes(hashlib.sha256(prompt).digest()[:6])


def name_task(task: Task | None, row: dict[str, Any], prompt: bytes) -> str:
    """Return a task's name as `record(task=...)` defines it; if that fails, the name is made from the prompt's JSON."""
    with guard("naming a task"):
        return shortened(_read_name(task, row, prompt))
    return prompt_task(prompt)


def returned_tasks(
    tasks: Sequence[str | None], output: Mapping[str, Any], prompts: Sequence[bytes]
) -> list[str | None]:
    """Return the (N) rows' tasks, with those that the rollout function chose itself and returned as a list under the
    name of a usual column. A task that the dataset names is kept. `tasks` are None where they were not known before.
    """
    if output.keys().isdisjoint(_COLUMNS):
        return list(tasks)
    with guard("naming a task"):
        chosen: list[Any] = next((output[name] for name in _COLUMNS if isinstance(output.get(name), list)), [])
        if len(chosen) == len(tasks):
            rows = zip(tasks, chosen, prompts, strict=True)
            return [
                shortened(str(new)) if new is not None and old in {None, prompt_task(prompt)} else old
                for old, new, prompt in rows
            ]
    return list(tasks)


def _read_name(task: Task | None, row: dict[str, Any], prompt: bytes) -> str:
    """Return the name from a dataset row; raise a LogsUIError if the column that the user named is not there."""
    if callable(task):
        return str(task(row))
    for name in _COLUMNS if task is None else (task,):
        if row.get(name) is not None:
            return str(row[name])
    if task is not None and task not in row:
        raise LogsUIError(
            f"record(task={task!r}) names no column of the dataset, which has {', '.join(sorted(row))}. "
            "Name one of them, or give a function of the dataset row; until then tasks are told apart by prompt."
        )
    return prompt_task(prompt)
