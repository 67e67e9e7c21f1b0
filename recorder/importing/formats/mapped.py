"""Reads any other JSONL, JSON or Parquet file by a mapping: TOML that names the columns which are fields of a rollout.

`field = "column"` names one, with dots if it is nested; "column?" may be absent. `[rewards]` has such lines by name,
`[weights]` has numbers, `[constants]` what is the same in all rollouts: `mode = "train"`. What is mapped to nothing
becomes a metric if it is a number, else metadata.
"""

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.importing.formats import _values
from logs_ui.recorder.importing.imported import ImportedRollout, ImportedRun, ImportOptions, Reader
from logs_ui.recorder.importing.source_files import Head, Place, RecordError, file_id, found_files
from logs_ui.recorder.spelling import misspelt, shortened
from logs_ui.recorder.vocabulary import Lack, Mode, Status, StopReason

_FIELDS = {  # the kind of each field, and the names of columns that are suggested for it
    "messages": ("messages", "messages conversation conversations chat trajectory"),
    "prompt": ("messages or text", "prompt prompts question problem query instruction input"),
    "completion": (
        "messages or text",
        "completion completions response responses output generation generated_text answer answer.text",
    ),
    "key": ("an id", "rollout_id sample_id trajectory_id uuid id"),
    "group": ("an id", "group group_id prompt_id group_index uid"),
    "generation": ("a whole number", "generation_index rollout_index completion_index sample_index sample_idx"),
    "step": ("a whole number", "step global_step train_step training_step iteration iter it"),
    "policy_step": ("a whole number", "policy_step policy_version model_version weight_version"),
    "mode": ("a word", "mode split"),
    "task": ("text", "task task_id task_name example_id problem_id question_id"),
    "eval_name": ("text", "eval_name env env_name environment dataset data_source"),
    "model": ("text", "model model_name"),
    "run": ("text", "run_id experiment_id run"),
    "status": ("a word", "status state"),
    "stop_reason": ("a word", "stop_reason finish_reason finish"),
    "error": ("text", "error exception"),
    "reward": ("a number", "reward total_reward final_reward score return"),
    "advantage": ("a number", "advantage advantages"),
    "prompt_ids": ("a list of numbers", "prompt_ids prompt_token_ids prompt_tokens"),
    "completion_ids": ("a list of numbers", "completion_ids response_ids completion_token_ids output_ids"),
    "logprobs": ("a list of numbers", "logprobs log_probs rollout_log_probs old_logprobs"),
    "mask": ("a list of numbers", "completion_mask response_mask loss_mask mask"),
    "prompt_tokens": ("a whole number", "prompt_tokens num_prompt_tokens prompt_length"),
    "completion_tokens": ("a whole number", "completion_tokens num_completion_tokens completion_length answer.tokens"),
    "created": ("a time", "created created_at timestamp time ts"),
    "seconds": ("a number", "seconds duration_seconds duration latency"),
}  # fmt: skip
_KINDS: dict[str, Callable[[Any], Any]] = {
    "messages": lambda it: found if (found := _values.messages_of(it)) and found[0].get("content") is not it else None,
    "messages or text": _values.messages_of,
    "an id": lambda it: str(it) if isinstance(it, str | int) else file_id("", it),
    "text": lambda it: str(it) if isinstance(it, str | int | float) else None,
    "a word": lambda it: it if isinstance(it, str) else None,
    "a number": _values.number,
    "a whole number": _values.whole,
    "a list of numbers": lambda it: it if isinstance(it, list) and isinstance(next(iter(it), 0), int | float) else None,
    "a time": _values.micros,
}
_WORDS = {"mode": Mode, "status": Status, "stop_reason": StopReason}
_SAME = dict.fromkeys(("val", "validation", "test"), "eval") | dict.fromkeys(("success", "completed"), "ok")
_SAME |= {"training": "train", "failed": "error", "max_tokens": "length", "eos": "stop", "end_turn": "stop"}
_TOKENS = ("prompt_ids", "completion_ids", "logprobs", "mask")
_ANSWERS = ("messages", "completion", "completion_ids")
_LACKS: dict[str, set[str]] = {
    Lack.ERRORS: {"error", "status"},
    Lack.STOP_REASONS: {"stop_reason"},
    Lack.POLICY_VERSIONS: {"policy_step"},
}
_LACKS |= {Lack.GROUPS: {"group"}, Lack.TASKS: {"task"}, Lack.WEIGHTS: {"weights"}}
_LACKS |= {"steps": {"step"}, "rewards": {"reward", "rewards"}, "token ids": {"completion_ids"}}
_LACKS |= {"log-probs": {"logprobs"}, "advantages": {"advantage"}}
_TABLES = ("rewards", "weights", "constants")
_REWARD = re.compile(r"(^|[._/])(rewards?|scores?)([._/]|$)|(_reward|_score)$")
_quoted = partial(json.dumps, ensure_ascii=False)


class MappedReader(Reader):
    """Reads records as the mapping says. Making one raises LogsUIError for a mapping that does not fit the files."""

    name, title, marks = "map", "a mapping", "any columns, with --map"

    def __init__(self, root: Path, options: ImportOptions) -> None:
        super().__init__(root, options)
        if options.mapping is None:
            raise LogsUIError("There is no mapping. Add --map mapping.toml; logs-ui import --suggest FILE prints one.")
        called = options.mapping.name
        try:
            self._fields: dict[str, Any] = tomllib.loads(options.mapping.read_text())
            rewards, weights, constants = ({**self._fields.pop(name, {})} for name in _TABLES)
            self._weights = {name: float(one) for name, one in weights.items()} | dict(options.weights)
        except (OSError, ValueError, TypeError) as error:
            raise LogsUIError(f"{called} cannot be read as a mapping: {error}. --suggest FILE prints one.") from None
        rewards |= {name: name for name in options.rewards or ()}
        for name in (*self._fields, *constants):
            if name not in _FIELDS:
                raise misspelt("map", f"{called}: unknown field {name!r}", name, [*_FIELDS, *_TABLES])
        first = next((it for file in found_files([root]) if isinstance(it := Head(file.file).record, dict)), {})
        for name, column in [*self._fields.items(), *rewards.items()]:
            if not isinstance(column, str):
                raise LogsUIError(f"{called}: {name} must name a column in quotes, not {column!r}.")
            if first and not column.endswith("?") and column not in _columns(first):
                given = "--rewards" if name == column and name in (options.rewards or ()) else f"{called}: {name}"
                wrong = f"{given} = {column!r}, but the first record has no such column"
                raise misspelt("map", wrong, column, [*_columns(first)])
        self._fields, self._rewards = (
            {name: it if it in _columns(first) else it.removesuffix("?") for name, it in columns.items()}
            for columns in (self._fields, rewards)
        )
        try:
            self._constants = {name: _converted(name, one, "[constants]") for name, one in constants.items()}
            list(self.rollouts(first, Place(root, "", "", 1)))
        except RecordError as error:
            raise LogsUIError(f"{called} does not fit the first record: {error}. Name another column.") from None
        if self._fields.keys().isdisjoint(_ANSWERS):
            raise LogsUIError(f"{called} names no column with the answer: add one of {', '.join(_ANSWERS)}.")

    @classmethod
    def recognizes(cls, head: Head) -> bool:  # noqa: ARG003 - no file is of it by itself
        return False

    def describe(self, run: str | None) -> ImportedRun:
        named = {**self._constants, **self._fields}
        if "group" in named and named["group"] in (named.get("prompt"), named.get("messages")):
            del named["group"]  # that is no more than without it
        has_parts = len(self._rewards) > ("reward" not in named) and not self._weights
        given = {*named, *(["rewards"] if self._rewards else []), *([] if has_parts else ["weights"])}
        return ImportedRun(run, lacks=[it for it, names in _LACKS.items() if names.isdisjoint(given)])

    def rollouts(self, record: Any, place: Place) -> Iterator[ImportedRollout]:
        if not isinstance(record, dict):
            raise RecordError("it is no JSON object")
        columns = _columns(record)
        given = {name: _converted(name, columns[it], it) for name, it in self._fields.items() if it in columns}
        rewards = {name: _converted("reward", columns[it], it) for name, it in self._rewards.items() if it in columns}
        fields = {name: one for name, one in (self._constants | given).items() if one is not None}
        used = {*self._rewards.values(), *(it for name, it in self._fields.items() if name not in _WORDS)}
        rest = _values.fields_of({name: one for name, one in record.items() if name not in used}, {}, ())
        prompt, completion = _values.halves(fields.pop("messages", []))
        tokens = _values.token_arrays(*(fields.pop(name, None) for name in _TOKENS))
        key = _values.key_of(fields.pop("key", None), place)
        known = {"prompt": prompt, "completion": completion, **rest, **fields}
        known |= {"rewards": rewards or None, "weights": self._weights}
        if "reward" in self._fields:
            known |= _values.beside_total(fields.get("reward"), rewards, self._weights)
        if known["prompt"]:
            known.setdefault("group", file_id("", known["prompt"]))
        yield ImportedRollout(key, tokens=tokens, **known)


def suggestion(file: Path) -> str:
    """Return a mapping for a file, in TOML, with an example of each column; LogsUIError if it has no columns."""
    record = Head(file).record
    if not isinstance(record, dict):
        raise LogsUIError(f"{file} is missing, or has no records with columns. Name a JSONL, JSON or Parquet file.")
    values = {name: one for name, one in _columns(record).items() if one is not None}
    chosen: dict[str, str] = {}
    for field, (kind, names) in _FIELDS.items():
        free = [it for it in values if it not in chosen.values() and _KINDS[kind](values[it]) is not None]
        fitting = [it for hint in names.split() for it in free if hint in (it.lower(), it.lower().split(".")[-1])]
        fitting += [chosen["prompt"]] if field == "group" and "prompt" in chosen else []
        if fitting and (field not in ("prompt", "completion") or "messages" not in chosen):
            chosen[field] = fitting[0]
    free = [it for it in values if it not in chosen.values() and _values.number(values[it]) is not None]
    rewards = {_quoted(it.split(".")[-1]): it for it in free if _REWARD.search(it)}

    text = [
        f"# Save this as mapping.toml, correct it, and run: logs-ui import {file.name} --map mapping.toml",
        "# Columns that are not named become metrics, if they are numbers, or metadata.",
    ]
    for title, columns in (("", chosen), ("[rewards]", rewards)):
        text += ["", title] if title and columns else []
        text += [f"{name} = {_quoted(it)}  # {shortened(repr(values[it]))}" for name, it in columns.items()]
    text += [] if "mode" in chosen else ["", "[constants]", 'mode = "train"  # or "eval"']
    return "\n".join([*text, "", "# No column found for: " + ", ".join(it for it in _FIELDS if it not in chosen), ""])


def _columns(record: dict[str, Any]) -> dict[str, Any]:
    """Return the values of all columns by name, nested ones with dots, but for names that TOML cannot have."""
    found = {name: one for name, one in record.items() if name.isprintable()}
    nested = {name: _columns(one) for name, one in found.items() if isinstance(one, dict)}
    return found | {f"{name}.{inner}": one for name, it in nested.items() for inner, one in it.items()}


def _converted(field: str, value: Any, column: str) -> Any:
    """Return a field's value; None for null, and for a word that is none of ours. Raises RecordError."""
    if value is None or field in _WORDS:
        word = str(value).lower()
        return next((it for it in _WORDS.get(field, ()) if it == _SAME.get(word, word)), None)
    kind = _FIELDS[field][0]
    found = _values.messages_of(value, "assistant") if field == "completion" else _KINDS[kind](value)
    if found is None:
        raise RecordError(f"{field} must be {kind}, and {column} has {shortened(repr(value))}")
    return found
