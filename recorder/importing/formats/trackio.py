"""Reads a Trackio project, `<project>.db`, or its traces alone, `<project>_traces.parquet`. Its runs are runs here.

Traces are rollouts, with what TRL's AsyncGRPO writes into their metadata; so are rows of TRL's table of completions.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from math import isnan
from pathlib import Path
from typing import Any

from logs_ui.recorder.importing.formats import _values
from logs_ui.recorder.importing.formats._values import decode_json, micros, number, part, whole
from logs_ui.recorder.importing.reader import ImportedRollout, ImportedRun, ImportedScalars, ImportOptions, Reader
from logs_ui.recorder.importing.source_files import Head, Place, RecordError
from logs_ui.recorder.vocabulary import Lack, Mode, Status

_FUNCTION = re.compile(r"rewards/(.+)/mean$")
_TABLE = {name: name for name in ("step", "prompt", "completion", "advantage")}
_TRACE = {"group_id": "group", "model_version": "policy_step"}
_TRACE |= {name: name for name in ("reward", "advantage", "prompt_tokens", "completion_tokens")}
_EVAL = re.compile(r"(eval(uat(e|ion))?|val(idat(e|ion))?)([^a-z]|$)")
_LACKS = {Lack.ERRORS: "status", Lack.POLICY_VERSIONS: "model_version", Lack.GROUPS: "group_id"}  # without these
_ODD = ("NaN", "Infinity", "-Infinity")
_QUERIES = {name: f"SELECT * FROM {name} ORDER BY rowid" for name in ("configs", "metrics", "traces")}  # noqa: S608


class TrackioReader(Reader):
    """Reads Trackio's tables `configs`, `metrics` and `traces`."""

    name, title = "trackio", "Trackio"
    marks = "SQLite with the tables `metrics` and `configs`, or Parquet with `run_name`, `messages` and `search_text`"

    def __init__(self, root: Path, options: ImportOptions) -> None:
        super().__init__(root, options)
        self._functions: dict[str, set[str]] = {}  # reward functions by run, as their means are called
        self._trace_fields: frozenset[str] = frozenset()  # names in the metadata of the first trace

    @classmethod
    def recognizes(cls, head: Head) -> bool:
        return head.tables >= {"metrics", "configs"} or head.keys >= {"run_name", "messages", "search_text"}

    def records(self, file: Path) -> Iterable[tuple[int, Any]]:
        queries = [query for table, query in _QUERIES.items() if table in Head(file).tables]
        first = next(_values.table_rows(file, *queries[-1:]), None) if queries else Head(file).record
        with suppress(RecordError):  # it is counted where it is read
            self._trace_fields = frozenset(part(decode_json(part(first).get("metadata"))))
        return enumerate(_values.table_rows(file, *queries), 1) if queries else super().records(file)

    def rollouts(self, record: Any, place: Place) -> Iterator[ImportedRollout | ImportedScalars]:
        run_id = str(record.get("run_id") or record.get("run_name"))
        if "config" in record or run_id not in self.runs:
            config = _plain(decode_json(record.get("config") or "{}"))
            self.runs[run_id] = ImportedRun(
                name=record.get("run_name"), model=config.get("model_name_or_path") or config.get("_name_or_path"),
                num_generations=whole(config.get("num_generations")), max_steps=whole(config.get("max_steps")),
                config=config, lacks=(
                    *(Lack.STOP_REASONS, Lack.TASKS, "token ids", "log-probs", "the rollouts that were not traced"),
                    *(lack for lack, name in _LACKS.items() if name not in self._trace_fields),
                    *([] if self.options.weights or "reward_weights" in config else [Lack.WEIGHTS]),
                ),
            )  # fmt: skip
        if "metrics" in record:
            yield from self._read_step(record, run_id, place)
        elif "messages" in record:
            yield _rollout_of(record, run_id, place, self.options.weights, self.runs[run_id].config)

    def _read_step(self, row: dict[str, Any], run_id: str, place: Place) -> Iterator[ImportedRollout | ImportedScalars]:
        """Yield the figures of a step, and its completions."""
        values = _plain(decode_json(row["metrics"]))
        # transformers puts "train/" before what the trainer logs, and turns "eval_" into "eval/".
        metrics = {re.sub("^eval/", "eval_", name.removeprefix("train/")): value for name, value in values.items()}
        if figures := {name: number(value) for name, value in metrics.items() if isinstance(value, int | float)}:
            yield ImportedScalars(_values.step_number(row["step"]) or 0, figures, run_id)
        self._functions.setdefault(run_id, set()).update(
            function for name in figures for function in _FUNCTION.findall(name)
        )
        config, functions = self.runs[run_id].config, self.options.rewards or self._functions[run_id]
        for name, value in values.items():
            if part(value[0] if isinstance(value, list) and value else value).get("_type") == "trackio.trace":
                raise RecordError(f"has traces in {name}, as Trackio wrote them before 0.26: they are not read")
            if part(value).get("_type") != "trackio.table" or not name.endswith("completions"):
                continue
            key, rows = f"{run_id}:{row.get('id')}:{name}:0", [*map(_plain, value["_value"])]
            size = whole(config.get("num_generations")) or _values.group_size([rows])
            places = _values.repeats([row.get("prompt") for row in rows], size)
            for index, (entry, (group, _)) in enumerate(zip(rows, places, strict=True)):
                scores = functions or {name for name, value in entry.items() if isinstance(value, float)}
                columns = [name for name in entry if name in scores and name not in _TABLE]
                weights = zip(columns, config.get("reward_weights") or [1.0] * len(columns), strict=False)
                fields = _values.fields_of(entry, _TABLE, columns)
                yield ImportedRollout(
                    key=_values.key_of(f"{key}:{index}", place), run=run_id, mode=Mode.TRAIN,
                    group=f"{key}:{group}" if size else None, created=micros(row.get("timestamp")),
                    weights=self.options.weights or dict(weights),
                    **fields | {"rewards": _rewards_by_function(fields.get("rewards", {})) or None},
                )  # fmt: skip


def _rollout_of(
    row: dict[str, Any], run_id: str, place: Place, weights: Mapping[str, float], config: Any
) -> ImportedRollout:
    about, key = _plain(decode_json(row.get("metadata") or {})), str(row.get("key"))
    messages = _values.messages_of(decode_json(row["messages"]))
    if "op" in about:
        raise RecordError("it is a trace of verl's agent loop: import the files of trainer.rollout_data_dir")
    if messages is None:
        raise RecordError("its `messages` are not a list of messages")
    prompt, completion = _values.halves(messages)
    fields = _values.fields_of(about, _TRACE, [name for name in about if name.startswith("rewards/")])
    rewards = _rewards_by_function(fields.pop("rewards", {}))
    if not weights and "reward_weights" in config:
        weights = dict(zip(rewards, config["reward_weights"] or [1.0] * len(rewards), strict=False))
    fields |= _values.beside_total(fields.get("reward"), rewards, weights)
    fields["metadata"] |= {"key": key, "spans": decode_json(row.get("spans") or [])}
    has_failed, seconds = about.get("status") in ("error", "failed"), number(about.get("duration_ms"))
    return ImportedRollout(
        key=_values.key_of(row.get("id"), place), run=run_id, prompt=prompt, completion=completion,
        step=_values.step_number(row.get("step")) or 0, mode=Mode.EVAL if _EVAL.match(key) else Mode.TRAIN,
        status=Status.ERROR if has_failed else None, error=str(about["error"]) if about.get("error") else None,
        created=micros(row.get("timestamp")), seconds=None if seconds is None else seconds / 1e3, **fields,
    )  # fmt: skip


def _rewards_by_function(rewards: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return rewards by function: TRL logs NaN for one that did not score."""
    return {
        name.removeprefix("rewards/"): None if reward is None or isnan(reward) else reward
        for name, reward in rewards.items()
    }


def _plain(values: Any) -> dict[str, Any]:
    """Return a dict in which NaN and infinities, which Trackio writes as text, are numbers."""
    if not isinstance(values, dict):
        raise RecordError("it is not a JSON object")
    return {name: number(value) if value in _ODD else value for name, value in values.items()}
