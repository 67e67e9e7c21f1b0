"""Writes rollouts as rows of Eval Protocol, `EvaluationRow`."""

import math
from typing import Any

from logs_ui.recorder.analysis.export.exported import TOKENS, Exported, iso, without_none
from logs_ui.recorder.vocabulary import StopReason

_ENDS = {"done": "control_plane_signal", "stop": "stop", "length": "length", "turn_limit": "max_steps"}
_CODES = {"ok": 100, "running": 101, "aborted": 10}  # google.rpc.Code, and two of their own
_TIMEOUT, _INTERNAL = 4, 13


def evaluation_row(rollout: Exported) -> dict[str, Any]:
    """Return a row; those of a group have the same `row_id`. `execution_metadata.extra` has all columns and tokens."""
    row, used = (
        rollout.row,
        without_none(prompt_tokens=rollout.row["prompt_tokens"], completion_tokens=rollout.row["completion_tokens"]),
    )
    is_known = row["stop_reason"] not in (None, StopReason.NOT_RECORDED)
    end = {"termination_reason": _ENDS.get(row["stop_reason"], "non_skippable_error")} if is_known else None
    code = _TIMEOUT if row["stop_reason"] == "timeout" else _CODES.get(row["status"], _INTERNAL)
    tokens = {name: row[name].tolist() for name in TOKENS if row[name] is not None}
    return without_none(
        messages=rollout.messages,
        evaluation_result=_result(rollout) if rollout.scores or row["reward"] is not None else None,
        created_at=iso(row["created"]),
        input_metadata=without_none(row_id=row["group"],
        completion_params=without_none(model=row["model"]) | (row["sampling"] or {}),
                             dataset_info=row["task"] and {"task": row["task"]}),
        rollout_status={"code": code, "message": row["error"] or "", "details": [
            {"reason": "TERMINATION_REASON", "domain": "evalprotocol.io", "metadata": end}] if end else []},
        execution_metadata=without_none(
            invocation_id=rollout.run.uid, experiment_id=rollout.run.name, run_id=rollout.run.uid,
            rollout_id=rollout.key,
            usage=used | {"total_tokens": sum(used.values())} if len(used) == 2 else None,
            finish_reason=rollout.turns[-1].call.get("finish") if rollout.turns else None,
            tool_call_count=row["tool_calls"],
            rollout_duration_seconds=row["seconds"], extra={**tokens, "logs_ui": rollout.columns},
        ),
        eval_metadata={"name": row["eval_name"], "num_runs": 1, "aggregation_method": "mean"},
    )  # fmt: skip


def _result(rollout: Exported) -> dict[str, Any]:
    """Return the scores. Each must be a number: one that is None is 0 and marked as invalid, and so is NaN."""
    metrics = {name: {"score": value, "reason": "metric"} for name, value in (rollout.row["metrics"] or {}).items()}
    for name, (score, weight) in rollout.scores.items():
        valid, why = score is not None and math.isfinite(score), "did not run" if score is None else "reward function"
        metrics[name] = {"score": score or 0.0, "is_score_valid": valid, "reason": why, "data": {"weight": weight}}
    total = (
        rollout.row["reward"] if rollout.row["reward"] is not None else math.nan if rollout.row["odd_rewards"] else 0.0
    )
    steps = [
        without_none(step_index=number, base_reward=move["reward"], terminated=bool(move.get("done")))
        for number, turn in enumerate(rollout.turns) for move in turn.moves if move.get("reward") is not None
    ]  # fmt: skip
    valid = rollout.row["reward"] is not None and math.isfinite(total)
    return without_none(score=total, is_score_valid=valid, metrics=metrics, step_outputs=steps or None)
