"""Makes the row of an imported rollout, with the same columns and payload as one that was recorded."""

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain, pairwise, repeat
from typing import Any

import orjson

from logs_ui.recorder.capture.stop_causes import reason_of_text
from logs_ui.recorder.importing.reader import ImportedRollout, ImportedScalars, Turn
from logs_ui.recorder.importing.source_files import RecordError
from logs_ui.recorder.labels import attributes_in, metrics_in, tags_in
from logs_ui.recorder.redaction import masked
from logs_ui.recorder.rows.attribution import RowCalls
from logs_ui.recorder.rows.draft_batches import RowDraft
from logs_ui.recorder.rows.jobs import reward_columns
from logs_ui.recorder.rows.messages import preview
from logs_ui.recorder.rows.numbers import counts
from logs_ui.recorder.rows.task_names import prompt_task
from logs_ui.recorder.rows.text_facts import answers, call_facts
from logs_ui.recorder.snapshot import column, one_line, snapshot, tree
from logs_ui.recorder.snapshot import name as shortened
from logs_ui.recorder.storage.changes import RowChange
from logs_ui.recorder.storage.payload import unpacked_content
from logs_ui.recorder.vocabulary import SCORING, Status, StopReason

_INT4, _INT8 = 2**31, 2**63  # integers that columns hold are below
_FURTHER = re.compile(r"^(user|assistant|tool)$", re.MULTILINE)
_UNKNOWN_TURN, _NO_CALLS = Turn(), RowCalls()
_NO_ACTION: dict[str, Any] = dict.fromkeys(("action", "observation", "reward", "done", "metadata", "seconds", "error"))


def row_of(
    rollout: ImportedRollout, run_uid: str, group: str, generation: int, created: int, eval_name: str
) -> RowDraft:
    """Return the row of a rollout of the run with this uid. `group` is its name in the database; `created` (µs) and
    `eval_name` are taken where the rollout has none.
    """
    messages = [_message(message) for message in (*rollout.prompt, *rollout.completion)]
    prompt, completion = messages[: len(rollout.prompt)], messages[len(rollout.prompt) :]
    answer_messages = [message for message in completion if message["role"] == "assistant"]
    actions = _entries(completion, rollout.turns) if rollout.actions is None else rollout.actions
    finishes = [turn.finish for turn in rollout.turns]
    by_tools = any(message.get("tool_calls") for message in answer_messages)
    tokens = rollout.tokens
    metadata = _plain(rollout.metadata)
    for name, kind in (("metrics", dict), ("tags", list)):  # a file may use these names for something else
        if not isinstance(metadata.get(name, kind()), kind):
            metadata[f"{name} of the file"] = metadata.pop(name)
    if rollout.metrics:
        numbers = {
            str(name): finite_number(value) for name, value in rollout.metrics.items() if isinstance(value, int | float)
        }
        metadata["metrics"] = {**metadata.get("metrics", {}), **numbers}
    if rollout.tags:
        metadata["tags"] = [*metadata.get("tags", []), *rollout.tags]
    step, policy_step = step_of(rollout), whole_number(rollout.policy_step)
    created = whole_number(rollout.created, _INT8) or created
    returned = whole_number(rollout.returned, _INT8) or created
    identity = {
        "eval_name": shortened(rollout.eval_name or eval_name),
        "mode": rollout.mode,
        "step": step,
        "policy_step": step if policy_step is None else policy_step,
        "epoch": None,
        "group": group,
        "generation": whole_number(generation) or 0,
        "process": 0,
        "model": column(rollout.model),
        "created": created,
    }
    columns: dict[str, Any] = {
        **identity,  # what is imported again corrects it, too
        **_end_of(rollout, actions),
        "message_count": len(messages),
        "turns": None if rollout.is_one_text else len(answer_messages) or None,
        "preview": preview(
            [{**message, "content": _text(message["content"]) or ""} for message in answer_messages[-1:]]
        ),
        "prompt_tokens": whole_number(rollout.prompt_tokens),
        "completion_tokens": whole_number(rollout.completion_tokens),
        **counts(_NO_CALLS, tokens),
        "staleness": whole_number(rollout.staleness),
        "dropped": rollout.dropped,
        "advantage": finite_number(rollout.advantage),
        "returned": returned,
        "seconds": finite_number(rollout.seconds),
        **_figures_of(rollout.turns, actions),
        **_rewards(rollout, returned),
        **call_facts(messages, actions, finishes, by_tools=by_tools, keyed=tokens is None),
        # Without turns and actions nothing says whether the environment failed.
        **({} if rollout.turns or rollout.actions is not None else {"env_errors": None}),
        "task": shortened(rollout.task or prompt_task(tree(prompt))) if rollout.task or prompt else None,
        "metrics": metrics_in(metadata),
        "attributes": attributes_in(metadata),
    }
    change = RowChange(run_uid, rollout.key, identity, columns, tags=tags_in(metadata))
    content = {"messages": messages, "actions": actions, "sampling": _plain(rollout.sampling), "metadata": metadata}
    texts = answers(messages)
    if rollout.is_one_text and any(map(_FURTHER.search, texts)):
        texts = []  # tools' results stand in it: what repeats itself may be theirs
    return RowDraft(change, unpacked_content(content), tokens, texts)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Copy values as JSON has them, without secrets."""
    plain: dict[str, Any] = masked(orjson.loads(tree(dict(values)))) if values else {}
    return plain


def _message(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message in OpenAI's form: with a role, and with text or parts as its content."""
    message = {name: value for name, value in source.items() if value is not None}
    message["role"] = str(message.get("role") or "user")
    message.setdefault("content", "")
    if not isinstance(message["content"], str | list):
        message["content"] = snapshot(message["content"]).decode()
    if message["role"] == "assistant" and (text := _text(message["content"])) is not None:
        message["content"] = text  # facts are of texts, and a list of one text part is one
    calls = message.get("tool_calls")
    if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
        message["content"] = message["content"] or snapshot(message.pop("tool_calls")).decode()
    return message


def _entries(completion: Sequence[dict[str, Any]], turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Return the actions that the messages show: each tool call with its result."""
    entries: list[dict[str, Any]] = []
    places = [place for place, message in enumerate(completion) if message["role"] == "assistant"]
    # What stands between an answer and the next one belongs to it.
    spans = pairwise([*places, len(completion)])
    for number, ((begin, end), turn) in enumerate(zip(spans, chain(turns, repeat(_UNKNOWN_TURN)), strict=False), 1):
        answer = completion[begin]
        text, calls = _text(answer["content"]), answer.get("tool_calls") or [None]
        moves = [
            {"turn": number, "text": text, **_NO_ACTION, "action": call and _call(call), "observation": observed}
            for call, observed in zip(calls, _observations(calls, completion[begin + 1 : end]), strict=True)
        ]
        # What the turn says of the environment's answer is stored with the last of its calls.
        moves[-1] |= {
            "reward": finite_number(turn.reward), "done": turn.done, "seconds": finite_number(turn.env_seconds),
            "error": turn.error and one_line(turn.error),
        }  # fmt: skip
        model = {"seconds": turn.seconds, "finish": turn.finish}
        if call := {name: value for name, value in model.items() if value is not None}:
            moves[0]["generation"] = call
        entries += moves
    return entries


def _observations(calls: Sequence[dict[str, Any] | None], replies: Sequence[dict[str, Any]]) -> list[Any]:
    """Return what was observed after each call: the result that has its id, else the next one without an id."""
    contents: list[list[Any]] = [[] for _ in calls]
    ids = [call and call.get("id") for call in calls]
    for reply in replies:
        # A reply that belongs to no call goes to the last one.
        call_id, place = reply.get("tool_call_id"), -1
        if call_id is not None and call_id in ids:
            place = ids.index(call_id)
        elif call_id is None and reply["role"] == "tool" and [] in contents:
            place = contents.index([])
        text = _text(reply["content"])
        contents[place].append(reply["content"] if text is None else text)
    return [content[0] if len(content) == 1 else content or None for content in contents]


def _call(call: Mapping[str, Any]) -> Any:
    """Return a tool call as an action, without secrets, as a recorded one."""
    function = call.get("function")
    details = function if isinstance(function, dict) else call
    arguments = details.get("arguments")
    if isinstance(arguments, str) and arguments.lstrip().startswith("{"):
        with suppress(orjson.JSONDecodeError):  # else it stays the text that the model wrote
            arguments = orjson.loads(arguments)
    return masked({"name": str(details.get("name") or function or ""), "arguments": arguments})


def _text(content: Any) -> str | None:
    """Return the text of a message; None if it has other parts."""
    if isinstance(content, str):
        return content
    parts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
    return "".join(str(part) for part in parts) if len(parts) == len(content) else None


def _end_of(rollout: ImportedRollout, actions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    error = rollout.error and one_line(rollout.error)
    status = rollout.status or (Status.ERROR if error else Status.OK)
    last = rollout.turns[-1] if rollout.turns else _UNKNOWN_TURN
    reason = StopReason.NOT_RECORDED
    if error and status == Status.ERROR:
        reason = reason_of_text(error) or StopReason.EXCEPTION
    elif last.done:
        reason = StopReason.DONE
    elif last.finish == "length":
        reason = StopReason.LENGTH
    # The model stopped by itself, and nothing came back after its last answer.
    elif last.finish == "stop" and actions and actions[-1]["observation"] is None:
        reason = StopReason.STOP
    return {"status": status, "stop_reason": rollout.stop_reason or reason, "error": error}


def _rewards(rollout: ImportedRollout, scored: int) -> dict[str, Any]:
    """Return the columns of the rewards, as of a recorded rollout."""
    scores = {shortened(str(name)): value for name, value in (rollout.rewards or {}).items()}
    weights = {shortened(str(name)): float(weight) for name, weight in (rollout.weights or {}).items()}
    columns = reward_columns(rollout.reward, scores or None, weights)
    if rollout.reward is None and not any(weights.get(name, 1.0) for name in scores if scores[name] is not None):
        columns["reward"] = None  # only parts of a total that is missing
    return {**columns, "scored": scored} if scores or rollout.reward is not None else columns


def _figures_of(turns: Sequence[Turn], actions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the environment's rewards, and the tokens of the last answer that hit its limit, if there are any."""
    figures: dict[str, Any] = {}
    moves = [action for action in actions if action.get("phase") != SCORING]
    if rewards := [reward for action in moves if (reward := finite_number(action["reward"])) is not None]:
        figures = {"env_reward_sum": sum(rewards), "env_reward_last": rewards[-1]}
    if cut := [turn for turn in turns if turn.finish == "length"]:
        figures |= {"cut_tokens": whole_number(cut[-1].tokens), "cut_limit": whole_number(cut[-1].limit)}
    return figures


def finite_number(value: float | None) -> float | None:
    """Return a number as the database holds it; None for NaN, infinities, and integers beyond floats."""
    return None if value is None or not abs(value) <= sys.float_info.max else float(value)


def step_of(item: ImportedRollout | ImportedScalars) -> int:
    """Return the step; 0 without one. Raise RecordError for one that no column can hold."""
    if item.step is not None and (whole_number(item.step) is None or item.step < 0):
        raise RecordError(f"its step {str(item.step)[:40]} is not a whole number from 0 to {_INT4 - 1:,}")
    return int(item.step or 0)


def whole_number(value: Any, bound: int = _INT4) -> int | None:
    """Return a whole number that a column can hold; None for anything else."""
    is_whole = isinstance(value, int | float) and -bound <= value < bound and value == int(value)
    return int(value) if is_whole else None
