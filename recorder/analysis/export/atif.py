"""Writes rollouts as trajectories of ATIF 1.8, in the folders in which Harbor keeps its trials."""

import base64
from contextlib import suppress
from hashlib import blake2b
from typing import Any

import numpy as np
import orjson

from logs_ui.recorder.analysis.export.exported import TOKENS, Exported, iso, without_none

_TYPES = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp", "image/gif": "gif"}


def trial(rollout: Exported) -> dict[str, bytes]:
    """Return files by path: `ID/agent/trajectory.json`, its images beside it, and `ID/verifier/reward.json`, the finite
    rewards by name. `extra.logs_ui` has all columns, and the tokens if nothing tells where an answer ends.
    """
    row, files = rollout.row, dict[str, bytes]()
    unclear = {name: row[name] for name in TOKENS} if any(turn.span is None for turn in rollout.turns) else {}
    steps = _steps(rollout, files) or [{"step_id": 1, "source": "system", "message": ""}]  # there must be one
    trajectory = without_none(
        schema_version="ATIF-v1.8", session_id=rollout.run.uid, trajectory_id=rollout.key, steps=steps,
        agent=without_none(name=row["eval_name"], version=rollout.run.versions.get("logs-ui", "unknown"),
        model_name=row["model"]),
        final_metrics=without_none(total_completion_tokens=row["completion_tokens"], total_steps=len(steps)),
        extra={"logs_ui": rollout.columns | without_none(**unclear)},
    )  # fmt: skip
    files["agent/trajectory.json"] = orjson.dumps(trajectory, option=orjson.OPT_SERIALIZE_NUMPY)
    scores = {name: score for name, (score, _) in rollout.scores.items()} | {"reward": row["reward"]}
    if numbers := {name: score for name, score in scores.items() if score is not None and np.isfinite(score)}:
        files["verifier/reward.json"] = orjson.dumps(numbers)
    return {f"{row['id']}/{name}": data for name, data in files.items()}


def _steps(rollout: Exported, files: dict[str, bytes]) -> list[dict[str, Any]]:
    steps, turns = list[dict[str, Any]](), {turn.place: turn for turn in rollout.turns}
    for place, message in enumerate(rollout.messages):
        content, role, turn = _content(message.get("content", ""), files), message["role"], turns.get(place)
        if role == "tool" and steps and steps[-1]["source"] == "agent":
            call_ids = {call["tool_call_id"] for call in steps[-1].get("tool_calls", ())}
            answers = message["tool_call_id"] if message["tool_call_id"] in call_ids else None
            results = steps[-1].setdefault("observation", {"results": []})["results"]
            results.append(without_none(source_call_id=answers, content=content))
            continue
        steps.append(without_none(
            step_id=len(steps) + 1, source={"assistant": "agent", "tool": "user"}.get(role, role), message=content,
            timestamp=iso(turn.end if turn else rollout.row["created"]),
            reasoning_content=message.get("reasoning_content"), llm_call_count=1 if turn else None,
            tool_calls=[_call(call) for call in message.get("tool_calls", ())] or None,
            metrics=_metrics(rollout, *turn.span) if turn and turn.span else None,
            is_copied_context=True if role == "assistant" and not turn else None,
        ))  # fmt: skip
    return steps


def _metrics(rollout: Exported, begin: int, end: int) -> dict[str, Any]:
    ids, logprobs = rollout.row["completion_ids"], rollout.row["logprobs"]
    context = np.concatenate([rollout.row["prompt_ids"], ids[:begin]])
    of_answer = None if logprobs is None else logprobs[begin:end]
    return without_none(
        prompt_tokens=len(context), completion_tokens=end - begin, prompt_token_ids=context,
        completion_token_ids=ids[begin:end],
        # JSON has no number that is not finite.
        logprobs=of_answer if of_answer is not None and np.isfinite(of_answer).all() else None,
    )  # fmt: skip


def _call(call: dict[str, Any]) -> dict[str, Any]:
    identity = {"tool_call_id": call["id"], "function_name": call["function"]["name"]}
    with suppress(orjson.JSONDecodeError):
        if isinstance(arguments := orjson.loads(call["function"]["arguments"]), dict):
            return identity | {"arguments": arguments}
    return identity | {"arguments": {}, "extra": {"arguments": call["function"]["arguments"]}}


def _content(content: Any, files: dict[str, bytes]) -> Any:
    """Return a text, or parts; their images become files that are named by their content."""
    parts = []
    for part in [] if isinstance(content, str) else content:
        path = part.get("image_url", {}).get("url")
        head, _, data = (path or "").partition(";base64,")
        kind = head.removeprefix("data:") if data else "image/png"
        with suppress(ValueError, KeyError):  # what is no base64, or of another type, stays an address
            if data:
                image = base64.b64decode(data)
                path = f"{blake2b(image, digest_size=16).hexdigest()}.{_TYPES[kind]}"
                files[f"agent/{path}"] = image
        source = {"media_type": kind if kind in _TYPES else "image/png", "path": path}
        parts.append({"type": "image", "source": source} if path else part)
    return parts or content
