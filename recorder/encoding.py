"""From the calls and tokens of one row to the columns, messages and actions that are stored. Runs in the writer's
thread; texts are hostile, and functions given by the user may raise.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from logs_ui.recorder import chat
from logs_ui.recorder.attribution import RowCalls, Turn
from logs_ui.recorder.calls import EnvironmentCall, Ids
from logs_ui.recorder.clean import column, one_line, snapshot, text, tree
from logs_ui.recorder.diagnosis.facts import Facts, answers, call_facts, facts
from logs_ui.recorder.guard import guard
from logs_ui.recorder.images import StoredImage
from logs_ui.recorder.labels import metrics_in, tags_in
from logs_ui.recorder.masking import masked, without_secrets
from logs_ui.recorder.models import Status, StopReason
from logs_ui.recorder.payload import Tokens, unpacked_content, unpacked_tokens
from logs_ui.recorder.rollout_call import Parse, RolloutCall, RowOptions
from logs_ui.recorder.store import RowChange

_PREVIEW = 120
_LOG_TAIL = 4_000  # bytes of the environment server's log that an error keeps
_TOKENS = ("prompt_ids", "completion_ids", "logprobs", "mask")
_NO_ACTION = dict.fromkeys(("action", "observation", "reward", "done", "metadata", "seconds", "error"))
_MOVES = ("step", "tool")  # that the model asked for, unlike a reset or the environment's last word
_TIMEOUTS = ("TimeoutError", "CancelledError", "ReadTimeout", "ConnectTimeout", "TimeoutException")
_AT_CAPACITY = ("CAPACITY_REACHED", "at capacity")  # OpenEnv's words for a server that has no session left


def encoded(
    call: RolloutCall,
    i: int,
    row: RowCalls,
    tokens: Tokens | None,
    metadata_of: Callable[[int], Mapping[str, Any]],
    known: Mapping[str, Any],
    spelling: chat.Spelling | None = None,
) -> RowChange | None:
    """What to write of row `i`; None where the user's `edit` stores nothing of it. A row that cannot be encoded, or
    edited, costs its text, and no other row.

    Args:
        call: whose row it is.
        i: index in the call.
        row: its calls.
        tokens: None where none are known.
        metadata_of: gives the row's metadata.
        known: columns that stand above what the calls show.
        spelling: knows texts of the call's rows; None: the row is spelt by itself.
    """
    if i in call.left_out:
        return None
    with guard("encoding a rollout"):
        if spelling is None and call.tokenizer is not None:
            spelling = chat.Spelling(call.tokenizer)
        columns, content = _row(call, i, row, tokens, dict(metadata_of(i)), known, spelling)
        kept = _edited(call, columns, content, tokens)
        if kept is None:
            call.left_out.add(i)
            return None
        columns, content, tokens = kept
        is_edited = call.options.edit is not None  # then it holds anything, and is packed here
        arrays = tokens if tokens is None or not is_edited else unpacked_tokens(tokens)
        metrics = metrics_in(content["metadata"])
        columns |= {"metrics": metrics} if metrics else {}
        tags = () if columns["status"] == Status.RUNNING else tags_in(content["metadata"])
        said = None if is_edited else answers(content["messages"])
        return call.change(i, columns, unpacked_content(content), arrays, _images(row, content), tags, said)
    bare = {
        "status": Status.OK,
        "stop_reason": StopReason.NOT_RECORDED,
        "error": "logs-ui could not encode this rollout",
    }
    return call.change(i, bare | dict(known))


def spelling_of(call: RolloutCall) -> chat.Spelling | None:
    """Knows the texts of all answers that were seen, made together; None without a tokenizer."""
    if call.tokenizer is None:
        return None
    answers = (sequence.sampled for generation in call.calls.generations for sequence in generation.sequences)
    spelling = chat.Spelling(call.tokenizer)
    spelling.learn([ids for ids in answers if ids is not None], [])
    return spelling


def spell_rows(spelling: chat.Spelling | None, rows: Sequence[RowCalls], tokens: Sequence[Tokens | None]) -> None:
    """Makes the texts of the rows' completions together, for `encoded`. Nothing without a spelling."""
    if spelling is None:
        return
    spans: dict[bool, list[Ids]] = {True: [], False: []}
    for row, own in zip(rows, tokens, strict=True):
        for sampled, ids in () if own is None else chat.spans(own.completion_ids, _known_mask(row, own)):
            spans[sampled].append(ids)
    spelling.learn(spans[True], spans[False])


def unfinished_tokens(row: RowCalls) -> Tokens | None:
    """What a row that has not returned had come to, from its generations; None where the server returned no ids."""
    contexts = [turn.sequence.context for turn in row.turns]
    answers = [turn.sequence.sampled for turn in row.turns]
    first, last, sampled = (contexts[0], contexts[-1], answers[-1]) if row.turns else (None, None, None)
    if first is None or last is None or sampled is None:
        return None
    completion: Ids = np.concatenate([last[len(first) :], sampled])
    return Tokens(first, completion, None, _mask(row, len(completion)))


def _row(
    call: RolloutCall,
    i: int,
    row: RowCalls,
    tokens: Tokens | None,
    metadata: dict[str, Any],
    known: Mapping[str, Any],
    spelling: chat.Spelling | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Columns and content."""
    messages = _messages(call, i, row, tokens, spelling)
    actions = _actions(call, row, spelling)
    by_tools = _acts_by_tools(row, call.options)
    failure = _said_error(row)
    broken = _what_broke_it(row) or failure
    columns: dict[str, Any] = {
        "status": Status.ERROR if broken else Status.OK,
        "stop_reason": _said_reason(row) or _stop_reason(row, actions, by_tools=by_tools)
        if failure is None
        else _failure_reason(row, failure),
        "error": broken,
        "message_count": len(messages),
        "turns": len(row.turns) or None,
        "preview": _preview(messages),
        **_counts(row, tokens),
        **_environment_rewards(row),
        "rollout_reward": rollout_reward(metadata),
        "seconds": _seconds(row),
        **_facts(call, messages, actions, row, tokens, by_tools=by_tools),
        **({"task": call.tasks[i]} if call.tasks[i] else {}),
        **known,
    }
    columns["error"] = columns["error"] and one_line(columns["error"])
    columns_of_dataset = call.columns  # another thread may let go of them
    if columns_of_dataset is not None:
        metadata["dataset"] = masked(orjson.loads(columns_of_dataset[i]))
    if row.evidence is not None:
        metadata["attribution"] = row.evidence
    if columns["status"] == Status.ERROR and call.options.server_log is not None:
        metadata["server_log"] = _tail(call.options.server_log)
    content = {
        "messages": messages,
        "actions": actions,
        "sampling": masked(row.turns[-1].generation.sampling) if row.turns else {},
        "metadata": metadata | _said(row),
    }
    return columns, content


def _facts(
    call: RolloutCall,
    messages: list[dict[str, Any]],
    actions: list[dict[str, Any]],
    row: RowCalls,
    tokens: Tokens | None,
    *,
    by_tools: bool,
) -> Facts:
    """Those that are known before the row's batch is packed; all of them where the user's `edit` is to see them."""
    finishes = [turn.sequence.finish for turn in row.turns]
    if call.options.edit is not None:
        return facts(messages, actions, finishes, tokens, by_tools=by_tools)
    return call_facts(messages, actions, finishes, by_tools=by_tools, keyed=tokens is None)


def _edited(
    call: RolloutCall, columns: dict[str, Any], content: dict[str, Any], tokens: Tokens | None
) -> tuple[dict[str, Any], dict[str, Any], Tokens | None] | None:
    """As the user's `edit` wants them; None where it stores nothing."""
    if call.options.edit is None:
        return columns, content, tokens
    arrays = {name: None if tokens is None else getattr(tokens, name) for name in _TOKENS}
    edited = call.options.edit({**columns, **content, **arrays})
    if edited is None:
        return None
    ids = edited["prompt_ids"], edited["completion_ids"]
    kept = None if tokens is None or any(array is None for array in ids) else Tokens(*(edited[n] for n in _TOKENS))
    written = snapshot({name: edited[name] for name in content})
    return {name: edited[name] for name in columns}, orjson.loads(written), kept


def _said(row: RowCalls) -> dict[str, Any]:
    """What the function said of the row itself."""
    found: dict[str, Any] = {}
    for note in row.notes:
        values = masked(orjson.loads(note.values))
        if note.kind in {"error", "stop"}:
            continue
        if note.kind == "tag":
            found.setdefault("tags", []).extend(values)
        else:
            found.setdefault(note.kind + "s", {}).update(values)
    return found


def _said_error(row: RowCalls) -> str | None:
    """What the function itself says broke the row, last."""
    said = [orjson.loads(note.values)["error"] for note in row.notes if note.kind == "error"]
    return without_secrets(said[-1]) if said else None


def _said_reason(row: RowCalls) -> StopReason | None:
    """Why it ended, as the function itself says; None where it does not, or an environment broke it."""
    said = [StopReason(orjson.loads(note.values)["reason"]) for note in row.notes if note.kind == "stop"]
    return said[-1] if said and not _what_broke_it(row) else None


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - _LOG_TAIL))
            return without_secrets(text(log.read().decode(errors="replace")))
    except OSError as error:
        return f"The log could not be read: {error.strerror or error}"


def _messages(
    call: RolloutCall, i: int, row: RowCalls, tokens: Tokens | None, spelling: chat.Spelling | None
) -> list[dict[str, Any]]:
    """The whole conversation, from the best that is known: the tokens; else what the last generation was sent, and its
    answer; else the prompt, the answers, and what the environment said to them.
    """
    if tokens is not None and spelling is not None:
        answered = chat.completion_messages(spelling, tokens.completion_ids, _known_mask(row, tokens))
        return _prompt(call, i, row, tokens, spelling) + answered
    sent = row.turns[-1].sequence.messages if row.turns else None
    if sent is not None:
        return [*chat.prompt_messages(orjson.loads(sent)), *filter(None, [_reply(row.turns[-1])])]
    said: list[tuple[float, dict[str, Any] | None]] = [(turn.order, _reply(turn)) for turn in row.turns]
    last = row.turns[-1].order if row.turns else -1
    said += [(heard.order, _heard(heard)) for heard in row.environment_calls if heard.order < last]
    return call.prompt(i) + [message for _, message in sorted(said, key=lambda one: one[0]) if message is not None]


def _prompt(call: RolloutCall, i: int, row: RowCalls, tokens: Tokens, spelling: chat.Spelling) -> list[dict[str, Any]]:
    """With what an environment said before the model was asked: the function puts it behind the dataset's prompt."""
    given = call.prompt(i)
    first = min((turn.order for turn in row.turns), default=-1)
    if not any(heard.order < first for heard in row.environment_calls):
        return given
    return chat.prompt_with_more(given, spelling.whole(tokens.prompt_ids))


def _observation(call: EnvironmentCall) -> Any:
    """With references in place of images."""
    if call.observation is None:
        return None
    return orjson.loads(call.observation if call.images is None else call.images.json(call.observation))


def _images(row: RowCalls, content: dict[str, Any]) -> tuple[StoredImage, ...]:
    """Those that the content, as it was edited, refers to."""
    seen = [call.images for call in (*row.environment_calls, *row.children) if call.images is not None]
    if not seen:
        return ()
    written = tree(content["actions"])
    return tuple(image for images in seen for image in images.within(written))


def _heard(call: EnvironmentCall) -> dict[str, Any] | None:
    if call.observation is None or call.kind == "reset":
        return None
    observation = _observation(call)
    content = observation if isinstance(observation, str) else orjson.dumps(observation).decode()
    return {"role": "tool" if call.kind == "tool" else "user", "content": content}


def _reply(turn: Turn) -> dict[str, Any] | None:
    sequence = turn.sequence
    if sequence.reply is not None:
        reply: dict[str, Any] = orjson.loads(sequence.reply)
        return reply
    return None if sequence.text is None else chat.assistant_message(sequence.text)


def _text(turn: Turn, spelling: chat.Spelling | None) -> str | None:
    """What the model answered; None where nothing tells."""
    sequence = turn.sequence
    if sequence.sampled is not None and spelling is not None:
        return spelling.of(sequence.sampled)
    if sequence.text is not None:
        return sequence.text
    return None if sequence.reply is None else str(orjson.loads(sequence.reply).get("content") or "")


def _actions(call: RolloutCall, row: RowCalls, spelling: chat.Spelling | None) -> list[dict[str, Any]]:
    """In order: the reset as turn 0, then each answer with what was sent to the environment and what came back. An
    answer that was not sent has no action; a step that no answer was seen before has no text.
    """
    steps = deque(row.environment_calls)
    entries = []
    for number, turn in enumerate(row.turns, 1):
        after = row.turns[number].order if number < len(row.turns) else inf
        entries += [_action(number - 1, None, step, row) for step in _taken_before(turn.order, steps)]
        own = _taken_before(after, steps)
        answer = _text(turn, spelling)
        resets = [step for step in own if step.kind == "reset"]
        entries += [_action(number, None, step, row) for step in resets]
        moves: list[EnvironmentCall | None] = [step for step in own if step.kind in _MOVES]
        entries += [_parsed(call.options.parse, _action(number, answer, step, row)) for step in moves or [None]]
        entries += [_action(number, None, step, row) for step in own if step.kind == "reward"]
    seen = len(row.turns)
    for step in steps if not row.turns else []:
        seen += step.kind in _MOVES
        entries.append(_action(seen, None, step, row))
    return entries


def _taken_before(order: float, steps: deque[EnvironmentCall]) -> list[EnvironmentCall]:
    """Those that began before, out of all that are left, in order."""
    taken = []
    while steps and steps[0].order < order:
        taken.append(steps.popleft())
    return taken


def _action(turn: int, answer: str | None, call: EnvironmentCall | None, row: RowCalls) -> dict[str, Any]:
    if call is None:
        return {"turn": turn, "text": answer, **_NO_ACTION}
    metadata = masked(orjson.loads(call.metadata)) if call.metadata else None
    made = [child for child in row.children if child.within == call.order]
    if made:
        metadata = {**(metadata or {}), "calls": [_action(turn, None, child, row) for child in made]}
    if call.seconds is None:
        metadata = {**(metadata or {}), "waiting": True}
    action = masked(orjson.loads(call.sent))
    if call.kind == "reset":
        arguments, action = action, None
        metadata = {**(metadata or {}), "reset": arguments} if arguments else metadata
    rewards = [child.reward for child in made if child.reward is not None]
    return {
        "turn": 0 if call.kind == "reset" else turn,
        "text": answer,
        "action": action,
        "observation": _observation(call),
        "reward": call.reward if call.reward is not None or not rewards else sum(rewards),
        "done": call.done if call.done is not None or not made else any(child.done for child in made),
        "metadata": metadata,
        "seconds": call.seconds,
        "error": call.error,
    }


def _parsed(parse: Parse | None, entry: dict[str, Any]) -> dict[str, Any]:
    """With what the user's parser says of the text: a function that falls back to some action hides that."""
    if parse is None or entry["text"] is None:
        return entry
    try:
        found = parse(entry["text"]) is not None
    except Exception:  # noqa: BLE001 - whatever it raises, it found no action
        found = False
    return entry | {"metadata": {**(entry["metadata"] or {}), "parsed": found}}


def _acts_by_tools(row: RowCalls, options: RowOptions) -> bool:
    """Whether all that it can do is to call tools: an answer without a call is then its last word."""
    moves = [call.kind for call in row.environment_calls if call.kind in _MOVES]
    return all(kind == "tool" for kind in moves) if moves else options.offers_tools


def _stop_reason(  # noqa: PLR0911 - one a reason
    row: RowCalls, actions: list[dict[str, Any]], *, by_tools: bool
) -> StopReason:
    """Why it ended, from the last answer and what the environment said to it."""
    steps = [call for call in row.environment_calls if call.kind in _MOVES]
    broken = _what_broke_it(row)
    if broken:
        return error_reason(broken)
    resets = [call.order for call in row.environment_calls if call.kind == "reset"]
    episode = [*steps, *(child for child in row.children if child.kind in _MOVES)]
    if any(call.done for call in episode if call.order > max(resets, default=-1)):
        return StopReason.DONE
    if not row.turns:
        return StopReason.TURN_LIMIT if steps else StopReason.NOT_RECORDED
    last = row.turns[-1]
    if last.sequence.finish == "length":
        return StopReason.LENGTH
    unparsed = bool(actions) and (actions[-1]["metadata"] or {}).get("parsed") is False
    answered = bool(steps) and steps[-1].order > last.order
    spoke = by_tools and not answered and not unparsed and not _calls_a_tool(actions)
    if spoke or not row.environment_calls:
        return StopReason.STOP if row.is_whole else StopReason.NOT_RECORDED
    if not answered or unparsed:
        return StopReason.NO_ACTION
    # Of an environment that never says whether it is over nobody knows whether it would have gone on.
    says = by_tools or any(call.done is not None for call in episode)
    return StopReason.TURN_LIMIT if says else StopReason.NOT_RECORDED


def _calls_a_tool(actions: list[dict[str, Any]]) -> bool:
    """Whether the last answer tried to, in whatever words."""
    said = next((entry["text"] for entry in reversed(actions) if entry["text"] is not None), "")
    return "tool_call" in said


def _failure_reason(row: RowCalls, failure: str) -> StopReason:
    """Of a row of which the function itself says that it failed."""
    broken = _what_broke_it(row)
    if broken:
        return error_reason(broken)
    return StopReason.TIMEOUT if failure.startswith(_TIMEOUTS) else StopReason.EXCEPTION


def _what_broke_it(row: RowCalls) -> str | None:
    """The error of the last environment call, unless the model was told and answered."""
    last = row.environment_calls[-1] if row.environment_calls else None
    return None if last is None or (row.turns and row.turns[-1].order > last.order) else last.error


def error_reason(error: str) -> StopReason:
    """Of an environment's call that raised."""
    if any(words in error for words in _AT_CAPACITY):
        return StopReason.AT_CAPACITY
    return StopReason.TIMEOUT if error.startswith(_TIMEOUTS) else StopReason.ENVIRONMENT_ERROR


def _counts(row: RowCalls, tokens: Tokens | None) -> dict[str, int]:
    """From the ids; where there are none, as the server counted them."""
    if tokens is not None:
        inserted = 0 if tokens.mask is None else len(tokens.mask) - int(np.count_nonzero(tokens.mask))
        return {
            "prompt_tokens": len(tokens.prompt_ids),
            "completion_tokens": len(tokens.completion_ids) - inserted,
            "env_tokens": inserted,
        }
    sequences = [turn.sequence for turn in row.turns]
    given = [s.completion_tokens for s in sequences if s.completion_tokens is not None]
    counted = {"completion_tokens": sum(given)} if sequences and len(given) == len(sequences) else {}
    first = sequences[0].prompt_tokens if sequences else None
    return counted | ({} if first is None else {"prompt_tokens": first})


def _environment_rewards(row: RowCalls) -> dict[str, float | None]:
    calls = [call for call in row.environment_calls if call.kind in _MOVES]
    inner = [child for child in row.children if child.kind in _MOVES]
    by_call = [[call.reward, *(child.reward for child in inner if child.within == call.order)] for call in calls]
    # A tool's own reward stands above those of the steps that it took.
    rewards = [value for own in by_call for value in (own[:1] if own[0] is not None else own) if value is not None]
    return {
        "env_reward_sum": sum(rewards) if rewards else None,
        "env_reward_last": rewards[-1] if rewards else None,
    }


def rollout_reward(extras: Mapping[str, Any]) -> float | None:
    """What the function itself returned. TRL's and OpenEnv's examples call it env_reward, Eval Protocol eval_score."""
    for name in ("env_reward", "reward", "rewards", "eval_score"):
        value = extras.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return None


def _seconds(row: RowCalls) -> float | None:
    calls = row.calls
    if not calls:
        return None
    return max([call.began + (call.seconds or 0.0) for call in calls]) - min([call.began for call in calls])


def _preview(answers: list[dict[str, Any]]) -> str | None:
    """The model's last words; its tool calls where it said nothing else."""
    for message in reversed(answers):
        if message["role"] == "assistant":
            calls = [call["function"] for call in message.get("tool_calls", ())]
            called = " ".join(f"{function['name']}({function['arguments']})" for function in calls)
            words = message["content"] or called or message.get("reasoning_content", "")
            return column(_beginning(words))
    return None


def _beginning(words: str) -> str:
    """On one line. A long text is not split to its end, unless it begins with that many blanks."""
    beginning = " ".join(words[: 2 * _PREVIEW].split())
    if len(beginning) < _PREVIEW:
        beginning = " ".join(words.split(maxsplit=_PREVIEW)[:_PREVIEW])
    return beginning[:_PREVIEW]


def _known_mask(row: RowCalls, tokens: Tokens) -> NDArray[np.uint8] | None:
    """As it was returned, else as the turns show it; None where neither tells."""
    if tokens.mask is None and row.turns and all(turn.start is not None for turn in row.turns):
        return _mask(row, len(tokens.completion_ids))
    return tokens.mask


def _mask(row: RowCalls, length: int) -> NDArray[np.uint8]:
    """(C,) 1 where a turn of the row stands in its completion; a context that was tokenised anew hides where."""
    mask = np.zeros(length, np.uint8)
    for turn in row.turns:
        if turn.start is not None and turn.sequence.sampled is not None:
            mask[turn.start : turn.start + len(turn.sequence.sampled)] = 1
    return mask
