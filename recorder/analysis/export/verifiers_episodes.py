"""Writes rollouts as episodes of verifiers 0.3 and later, one trace each."""

from typing import Any

import numpy as np

from logs_ui.recorder.analysis.export.exported import Exported, without_none
from logs_ui.recorder.vocabulary import Lack

_STOPS = {
    "length": "max_output_tokens", "turn_limit": "max_turns", "no_action": "empty_action", "timeout": "agent_timeout",
    "at_capacity": "env_error", "exception": "error", "not_recorded": None,
}  # fmt: skip


def episode(rollout: Exported) -> dict[str, Any]:
    """Return an episode. `info.logs_ui` of its trace has all columns: few of them have a field of their own."""
    row, ok, begun = rollout.row, rollout.row["status"] == "ok", rollout.row["created"] / 1e6
    kind, _, message = (row["error"] or "").partition(": ")
    error = without_none(type=kind, message=message, traceback=(row["metadata"] or {}).get("traceback"))
    scores = rollout.scores or ({} if row["reward"] is None else {"reward": (row["reward"], 1.0)})
    task = without_none(type="Task", data=without_none(name=row["task"]), key=row["task"])
    policy = {"start": row["policy_step"], "end": row["policy_step"] + (row["staleness"] or 0)}
    is_known = not rollout.run.lacks(Lack.POLICY_VERSIONS)
    work = {"type": row["mode"], "step": row["step"], **({"policy": policy} if is_known else {})}
    ended, scored = (row["returned"] or 0) / 1e6, (row["scored"] or 0) / 1e6
    nodes, calls = _graph(rollout)
    trace = without_none(
        version=1, id=rollout.key, task=task, agent={"config": without_none(model=row["model"],
        sampling=row["sampling"])},
        nodes=nodes, calls=calls, metrics=row["metrics"] or {}, info={"logs_ui": rollout.columns}, ok=ok,
        rewards={name: None if pair[0] is None else {"score": pair[0], "weight": pair[1]} for name,
        pair in scores.items()},
        errors=[error] if row["error"] else [], is_timeout=row["stop_reason"] == "timeout",
        is_completed=None if ok and rollout.run.lacks(Lack.ERRORS) else row["status"] != "running",
        stop_condition=_STOPS.get(row["stop_reason"], row["stop_reason"]),
        timing={"start": begun, "agent": {"start": begun, "end": ended},
                "scoring": {"start": ended if scored else 0.0, "end": scored}},
    )  # fmt: skip
    return {
        "id": rollout.key, "env": {"id": row["eval_name"]}, "task": task, "group": {"id": row["group"]}, "ok": ok,
        "run": {"type": "train", "id": rollout.run.uid, "name": rollout.run.name, "work": work}, "traces": [trace],
    }  # fmt: skip


def _graph(rollout: Exported) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the messages as a chain, each with the tokens that it adds, and the model's calls."""
    nodes = [_node(place, message, rollout.row["created"] / 1e6) for place, message in enumerate(rollout.messages)]
    prompt, completion, calls = rollout.row["prompt_ids"], rollout.row["completion_ids"], list[dict[str, Any]]()
    if completion is None:
        prompt = completion = np.empty(0, np.int32)
    ids, sampled = np.concatenate([prompt, completion]), np.concatenate([np.zeros(len(prompt), bool), rollout.sampled])
    cuts, after = (
        [(len(prompt), 0)],
        rollout.turns[0].place if rollout.turns else 0,
    )  # the prompt's are all on the first message
    for turn in rollout.turns:
        finish, (begin, end) = turn.call.get("finish"), (len(prompt) + at for at in turn.span or (0, 0))
        nodes[turn.place] |= {"sampled": True, "timestamp": turn.end / 1e6}
        calls.append(without_none(
            node=turn.place, model=rollout.row["model"], sampling=turn.call.get("sampling"),
            finish_reason=finish if finish in {"stop", "length", "tool_calls"} else None,
            usage={"prompt_tokens": begin, "completion_tokens": end - begin} if turn.span else None,
            time={"start": turn.begin / 1e6, "end": turn.end / 1e6},
        ))  # fmt: skip
        # What was inserted is on the message after the answer. If nothing tells where one ends, all is on the last.
        cuts += [(begin, after), (end, turn.place)] if turn.span else []
        after = turn.place + bool(turn.span)
    begin = 0
    for end, place in [*cuts, (len(ids), min(after, len(nodes) - 1))] if nodes else ():
        node, is_sampled = nodes[place], sampled[begin:end]
        node["token_ids"] += ids[begin:end].tolist()
        node["mask"] += is_sampled.tolist()
        if is_sampled.any() and rollout.row["logprobs"] is not None:
            node["logprobs"] += rollout.row["logprobs"][begin - len(prompt) : end - len(prompt)][is_sampled].tolist()
        if is_sampled.any() and rollout.row["advantage"] is not None:
            node["advantages"] = [rollout.row["advantage"]] * int(is_sampled.sum())
        begin = end
    return nodes, calls


def _node(place: int, message: dict[str, Any], moment: float) -> dict[str, Any]:
    """Return a node. verifiers has flat tool calls, and answers that are texts: their images are left out."""
    calls = [{"id": call["id"], **call["function"]} for call in message.get("tool_calls", ())] or None
    content = message.get("content", None if message["role"] == "assistant" else "")
    if message["role"] == "assistant" and isinstance(content, list):
        content = "\n".join(part["text"] for part in content if part["type"] == "text")
    flat = message | without_none(tool_calls=calls, content=content)
    return without_none(
        parent=place - 1 if place else None, message=flat, timestamp=moment, token_ids=[], mask=[], logprobs=[]
    )
