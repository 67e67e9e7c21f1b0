"""Makes the dataset of an evaluation: its rows, whose prompts become messages, and the tasks that they name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from reprlib import repr as shortened
from typing import Any

import orjson

from logs_ui.rollout.play.chat_template import Message, Prompt
from logs_ui.rollout.play.tasks_and_seeds import Assignment, Rotation

_OF_ROLLOUT = ("env_reward", "step_rewards", "turns", "error")
_OF_TRAINER = ("trainer_state", "log_extra", "log_metric", "environments", "prompts", "completions", "completion_ids")
NOT_COLUMNS = frozenset(_OF_ROLLOUT + _OF_TRAINER)
"""What reward functions are given beside the columns of the dataset."""


@dataclass(frozen=True)
class Prompts:
    """Holds rows with a prompt. A prompt that is a text becomes a user message, as servers of chat models take it."""

    source: Any  # a list of dicts, or a dataset of `datasets`

    def __post_init__(self) -> None:
        """Raise TypeError or ValueError if the dataset cannot be used; the message is one line."""
        names = getattr(self.source, "column_names", None)
        if names is not None:
            _check_columns(names, "The dataset")
            # A dataset without a length is read as a stream, perhaps without an end: `rows` checks its prompts as
            # it reads them.
            for i, prompt in enumerate(self.source["prompt"] if hasattr(self.source, "__len__") else ()):
                _check_prompt(prompt, i)
        elif isinstance(self.source, Sequence) and not isinstance(self.source, str):
            for i, row in enumerate(self.source):
                if not isinstance(row, Mapping):
                    raise TypeError(f"Row {i} of the dataset must be a dict of its columns, not {type(row).__name__}")
                _check_columns(row, f"Row {i} of the dataset")
                _check_prompt(row["prompt"], i)
        else:
            raise TypeError(f"dataset must be a list of dicts or a datasets.Dataset, not {type(self.source).__name__}")
        if isinstance(self.source, Sequence) and not self.source:
            raise ValueError("The dataset is empty")

    def rows(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Return the first rows, or all, their prompts as messages. Raise TypeError if a prompt cannot be used."""
        rows = [dict(row) for row in islice(self.source, limit)]
        for i, row in enumerate(rows):
            _check_prompt(row["prompt"], i)
        return list(map(_with_messages, rows))

    def for_trainer(self) -> Any:
        """Return a `datasets.Dataset` whose prompts are messages. Raise ImportError if datasets is not installed."""
        if hasattr(self.source, "column_names"):
            first: dict[str, Any] = next(iter(self.source), {})
            return self.source.map(_with_messages) if isinstance(first.get("prompt"), str) else self.source
        from datasets import Dataset

        return Dataset.from_list(self.rows())

    @property
    def tasks(self) -> list[str]:
        """Return the names in the column `task`, in order of appearance; empty without such a column."""
        if not hasattr(self.source, "column_names"):
            tasks = [row.get("task") for row in self.source]
        else:
            tasks = list(self.source["task"]) if "task" in self.source.column_names else []
        return list(dict.fromkeys(str(task) for task in tasks if task is not None))


@dataclass
class PromptTasks(Rotation):
    """Assigns each row the task that the dataset names next to its prompt: a trainer passes on only the prompt."""

    prompts: Prompts = field(kw_only=True)  # the dataset to look in
    _tasks: dict[bytes, str | None] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Raise ValueError if one prompt has tasks of two names."""
        for row in self.prompts.rows():
            name = None if row.get("task") is None else str(row["task"])
            if self._tasks.setdefault(_key(row["prompt"]), name) != name:
                raise ValueError(
                    f"Tasks {self._tasks[_key(row['prompt'])]} and {name} have the same prompt, so a rollout function "
                    "cannot tell them apart: name the task in the prompt, or leave out the column and give tasks=[...]"
                )

    def assign(self, trainer: Any, prompts: Sequence[Prompt]) -> list[Assignment]:
        """Do the same as `Rotation.assign`. Raise ValueError for a prompt that is not in the dataset."""
        assigned = super().assign(trainer, prompts)
        return [self.with_task(assignment, prompt) for assignment, prompt in zip(assigned, prompts, strict=True)]

    def with_task(self, assigned: Assignment, prompt: Prompt) -> Assignment:
        """Return the assignment with the prompt's task. Raise as `assign`."""
        key = _key(prompt)
        if key not in self._tasks:
            raise ValueError(
                "The trainer asks for a prompt that is not in the evaluation's dataset, so its task is not known: "
                "train and evaluate on the evaluation's own .dataset, or give tasks=[...] instead of a column task"
            )
        return replace(assigned, task=self._tasks[key])


def conversation(prompt: Prompt) -> Sequence[Message]:
    """Return the messages of one prompt, from this dataset or from a trainer that has another."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def _with_messages(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "prompt": conversation(row["prompt"])}


def _key(prompt: Any) -> bytes:
    """Return a key of the prompt. `datasets` gives all messages the same fields, some of them None."""
    if not isinstance(prompt, str):
        prompt = [{name: value for name, value in message.items() if value is not None} for message in prompt]
    return orjson.dumps(prompt, default=str, option=orjson.OPT_SORT_KEYS)


def _check_columns(names: Any, where: str) -> None:
    if "prompt" not in names:
        raise ValueError(f"{where} has no prompt; it has {', '.join(map(str, names)) or 'nothing'}")
    reserved = [str(name) for name in names if name in NOT_COLUMNS]
    if reserved:
        raise ValueError(f"{where} has columns with reserved names: {', '.join(reserved)}. Rename them")


def _check_prompt(prompt: Any, index: int) -> None:
    are_messages = isinstance(prompt, Sequence) and all(
        isinstance(message, Mapping) and isinstance(message.get("role"), str) and len(message) > 1 for message in prompt
    )
    if isinstance(prompt, str) or (are_messages and prompt):
        return
    raise TypeError(
        f"Row {index} of the dataset: its prompt is a text, or a list of messages, each with a role and content, "
        f"not {shortened(prompt)}"
    )
