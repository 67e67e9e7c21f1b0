"""Writes rollouts as rows of Eval Protocol, `EvaluationRow`."""

import math
from typing import Any

from logs_ui.recorder.analysis.export.exported import TOKENS, Exported, iso, known
from logs_ui.recorder.vocabulary import StopReason

_ENDS = {"done": "control_plane_signal", "stop": "stop", "length": "length", "turn_limit": "max_steps"}
_CODES = {"ok": 100, "running": 101, "aborted": 10}  # google.rpc.Code, and two of their own
_TIMEOUT, _INTERNAL = 4, 13


def evaluation_row(it: Exported) -> dict[str, Any]:
    """Return a row; those of a group have the same `row_id`. `execution_metadata.extra` has all columns and tokens."""
    row, used = it.row, known(prompt_tokens=it.row["prompt_tokens"], completion_tokens=it.row["completion_tokens"])
    is_known = row["stop_reason"] not in (None, StopReason.NOT_RECORDED)
    end = {"termination_reason": _ENDS.get(row["stop_reason"], "non_skippable_error")} if is_known else None
    code = _TIMEOUT if row["stop_reason"] == "timeout" else _CODES.get(row["status"], _INTERNAL)
    tokens = {name: row[name].tolist() for name in TOKENS if row[name] is not None}
    return known(
        messages=it.messages, evaluation_result=_result(it) if it.scores or row["reward"] is not None else None,
        created_at=iso(row["created"]),
        input_metadata=known(row_id=row["group"], completion_params=known(model=row["model"]) | (row["sampling"] or {}),
                             dataset_info=row["task"] and {"task": row["task"]}),
        rollout_status={"code": code, "message": row["error"] or "", "details": [
            {"reason": "TERMINATION_REASON", "domain": "evalprotocol.io", "metadata": end}] if end else []},
        execution_metadata=known(
            invocation_id=it.run.uid, experiment_id=it.run.name, run_id=it.run.uid, rollout_id=it.key,
            usage=used | {"total_tokens": sum(used.values())} if len(used) == 2 else None,
            finish_reason=it.turns[-1].call.get("finish") if it.turns else None, tool_call_count=row["tool_calls"],
            rollout_duration_seconds=row["seconds"], extra={**tokens, "logs_ui": it.columns},
        ),
        eval_metadata={"name": row["eval_name"], "num_runs": 1, "aggregation_method": "mean"},
    )  # fmt: skip


def _result(it: Exported) -> dict[str, Any]:
    """Return the scores. Each must be a number: one that is None is 0 and marked as invalid, and so is NaN."""
    metrics = {name: {"score": value, "reason": "metric"} for name, value in (it.row["metrics"] or {}).items()}
    for name, (score, weight) in it.scores.items():
        valid, why = score is not None and math.isfinite(score), "did not run" if score is None else "reward function"
        metrics[name] = {"score": score or 0.0, "is_score_valid": valid, "reason": why, "data": {"weight": weight}}
    total = it.row["reward"] if it.row["reward"] is not None else math.nan if it.row["odd_rewards"] else 0.0
    steps = [
        known(step_index=number, base_reward=move["reward"], terminated=bool(move.get("done")))
        for number, turn in enumerate(it.turns) for move in turn.moves if move.get("reward") is not None
    ]  # fmt: skip
    valid = it.row["reward"] is not None and math.isfinite(total)
    return known(score=total, is_score_valid=valid, metrics=metrics, step_outputs=steps or None)
