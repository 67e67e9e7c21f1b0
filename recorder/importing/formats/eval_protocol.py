"""Reads the evaluation rows of Eval Protocol: its `logs.db`, exports as JSONL, experiment results, `data_json` rows.

One of its experiments (one evaluation with one set of completion parameters) is a run here. Its invocation would mix
models and evaluations; its run is one repetition of the rows, or with its priority scheduler a single rollout. Rows
that no `@evaluation_test` made, such as those of its TRL integration, have no run id, and a random experiment id each:
they are imported as one run.
"""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from logs_ui.recorder.importing.formats import _values
from logs_ui.recorder.importing.formats._values import decode_json, micros, number, part, whole
from logs_ui.recorder.importing.reader import ImportedRollout, ImportedRun, Reader, Turn
from logs_ui.recorder.importing.source_files import Head, Place, RecordError
from logs_ui.recorder.vocabulary import Lack, Mode, Status, StopReason

_QUERIES = (  # the first row's id identifies the file: a row is updated, and its id stays
    "SELECT rollout_id AS first FROM evaluationrow ORDER BY rowid LIMIT 1",
    "SELECT data AS data_json FROM evaluationrow ORDER BY rowid",
)
_RUNNING = 101  # what a row is made with, and what the TRL integration leaves it at
_STATUS = {None: None, 0: Status.OK, 100: Status.OK, 102: Status.OK, _RUNNING: Status.RUNNING}
_STATUS |= {1: Status.ABORTED, 10: Status.ABORTED}  # all others are errors
_STOPS = {1: StopReason.ABORTED, 10: StopReason.ABORTED, 4: StopReason.TIMEOUT, "max_steps": StopReason.TURN_LIMIT}
_STOPS |= {"control_plane_signal": StopReason.DONE, "user_stop": StopReason.DONE}  # the latter of a simulated user
_STOPS |= {"stop": StopReason.STOP, "length": StopReason.LENGTH}
_MARKS = frozenset({"input_metadata", "execution_metadata", "rollout_status", "eval_metadata"})
_LABELS = frozenset({"pid", "ground_truth"})  # numbers that measure nothing
_MAPPED = frozenset({"messages", "created_at", "evals", "eval_details"})
_COPIES = frozenset({"data_json", "row_id", "score", "message_count", "has_tools"})  # written beside the row
_UNSCORED = "No evaluation result"  # experiment results say so beside a score of 0
_SPENT = ("tool_call_count", "eval_duration_seconds", "input_cost", "output_cost", "total_cost_dollar")
_IDS = ("prompt_ids", "completion_ids")


class EvalProtocolReader(Reader):
    """Reads Eval Protocol's rows, each of which is a rollout."""

    name, title = "eval-protocol", "Eval Protocol"
    marks = "SQLite with the table `evaluationrow`, or JSONL with `messages` and `execution_metadata`, or `data_json`"
    lacks = ("steps", "advantages", "log-probs", Lack.POLICY_VERSIONS)

    @classmethod
    def recognizes(cls, head: Head) -> bool:
        has_messages = "messages" in head.keys and bool(head.keys & _MARKS)
        return "evaluationrow" in head.tables or "data_json" in head.keys or has_messages

    def records(self, file: Path) -> Iterable[tuple[int, Any]]:
        return enumerate(_values.table_rows(file, *_QUERIES)) if Head(file).tables else super().records(file)

    def rollouts(self, record: Any, place: Place) -> Iterator[ImportedRollout]:
        row = part(record)
        if "first" in row and place.number == 0:
            return
        if "data_json" in row:
            rest = {name: value for name, value in row.items() if name not in _COPIES}
            row = rest | part(decode_json(row["data_json"]))
        messages = row.get("messages", [])
        if not row.keys() & _MARKS or isinstance(messages, str) or _values.messages_of(messages) is None:
            raise RecordError("it is not a row of Eval Protocol: `messages` with roles, and `execution_metadata`")
        execution, source, about = (part(row, f"{name}_metadata") for name in ("execution", "input", "eval"))
        extra, usage, raw = (part(execution, name) for name in ("extra", "usage", "raw_output"))
        columns = part(extra, "logs_ui")
        params, (prompt, completion) = part(source, "completion_params"), _values.halves(messages)
        result = part(row, "evaluation_result") or part(row, "eval_details")
        result = {} if result.get("reason") == _UNSCORED else result
        step_rewards = [number(value) for value in extra.get("step_rewards") or ()]
        unknown = {name: value for name, value in row.items() if type(value) in (int, float) and name not in _LABELS}
        costs = execution | part(execution, "cost_metrics")
        metrics = {name: value for name, value in costs.items() if name in _SPENT}
        metrics |= unknown | {name: _score(metric) for name, metric in part(result, "metrics").items()}
        reward = _score(result) if result else sum(value or 0.0 for value in step_rewards) if step_rewards else None
        weights, rewards = self.options.weights, None
        if self.options.rewards is not None:
            parts = {name: metrics.pop(name, None) for name in self.options.rewards}
            rewards, weights = _values.beside_total(reward, parts, weights).values()
        elif result or step_rewards:
            rewards = {"score" if result else "step_rewards": reward}
        run_id = execution.get("experiment_id") if execution.get("run_id") else None
        # A row may keep the status that it was made with. With a result it has ended, and with an answer if no process
        # (`pid`) plays it. Without a process, and with rewards of its steps, it is of TRL, and trained on.
        is_begun = bool(result or step_rewards or (completion and "pid" not in row))
        is_training = part(row, "rollout_status").get("code") == _RUNNING and "pid" not in row and bool(step_rewards)
        ids = {"prompt_ids": raw.get("prompt_token_ids"), "completion_ids": raw.get("completion_token_ids")} | extra
        if not extra.keys().isdisjoint(_IDS):
            execution["extra"] = {name: value for name, value in extra.items() if name not in _IDS}
        rest = {name: value for name, value in row.items() if name not in _MAPPED | unknown.keys()}
        if run_id not in self.runs:
            self.runs[run_id] = ImportedRun(
                name=f"{about.get('name') or self.title} {run_id}" if run_id else None,
                model=params.get("model"),
                num_generations=whole(about.get("num_runs")) if run_id else None,
                config={"completion_params": params, "invocation_id": execution.get("invocation_id"), **about},
                lacks=() if columns else self.describe(run_id).lacks,
                ours=columns,
            )
        rollout = ImportedRollout(
            key=_values.key_of(execution.get("rollout_id"), place), prompt=prompt, completion=completion, run=run_id,
            mode=Mode.TRAIN if is_training else Mode.EVAL, eval_name=about.get("name"), model=params.get("model"),
            task=source.get("row_id"), group=source.get("row_id"), generation=whole(extra.get("run_index")),
            reward=reward, rewards=rewards, weights=weights, metrics=metrics,
            tokens=_values.token_arrays(*map(ids.get, _IDS)),
            turns=_turns(completion, step_rewards, execution.get("finish_reason")),
            # Of several calls it is the sum of all prompts.
            prompt_tokens=whole(usage.get("prompt_tokens")) if len(completion) == 1 else None,
            completion_tokens=whole(usage.get("completion_tokens")),
            sampling={name: value for name, value in params.items() if name != "model"},
            metadata=rest | ({"execution_metadata": execution} if execution else {}),
            created=micros(row.get("created_at")),
            seconds=number(execution.get("rollout_duration_seconds", execution.get("duration_seconds"))),
            **_end(part(row, "rollout_status"), messages, result, is_begun=is_begun),
        )  # fmt: skip
        yield _values.restore_columns(rollout, columns and columns | extra)


def _score(score: Any) -> float | None:
    """Return a score; NaN for one that is marked as invalid, as of a reward function that gave no number."""
    if not isinstance(score, dict):
        return number(score)
    return number(score.get("score")) if score.get("is_score_valid", True) else math.nan


def _turns(completion: list[dict[str, Any]], step_rewards: list[Any], finish: Any) -> list[Turn]:
    turns: list[Turn] = []
    rewards = iter(() if any("control_plane_step" in message for message in completion) else step_rewards)
    for message in completion:
        if message["role"] == "assistant":
            turns.append(Turn(reward=next(rewards, None)))
        if turns and (step := part(message, "control_plane_step")):  # several in a turn that calls several tools
            values = [value for value in (turns[-1].reward, number(step.get("reward"))) if value is not None]
            turns[-1] = turns[-1]._replace(reward=sum(values) if values else None, done=step.get("terminated"))
    return [*turns[:-1], turns[-1]._replace(finish=finish)] if turns else []


def _end(state: dict[str, Any], messages: list[dict[str, Any]], result: Any, *, is_begun: bool) -> dict[str, Any]:
    reasons = [part(detail, "metadata").get("termination_reason") for detail in state.get("details") or ()]
    reasons += [part(message, "control_plane_step").get("termination_reason") for message in reversed(messages)]
    status = _STATUS.get(state.get("code"), Status.ERROR)
    if status is Status.RUNNING and is_begun:
        status = Status.OK
    error = state.get("message") if status in (Status.ERROR, Status.ABORTED) else result.get("error")
    stop_reason = _STOPS.get(state.get("code")) or _STOPS.get(next(filter(None, reasons), None))
    return {"status": status, "stop_reason": stop_reason, "error": error and str(error)}
