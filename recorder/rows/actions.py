"""Builds the list of a row's actions: for each turn the answer, the environment's response, and the model call."""

from collections import Counter
from typing import Any

import orjson

from logs_ui.recorder.capture.calls import EnvironmentCall, Generation
from logs_ui.recorder.redaction import masked, without_keys
from logs_ui.recorder.rows import chat_parser
from logs_ui.recorder.rows.attribution import RowCalls, Turn
from logs_ui.recorder.rows.attribution.scoring_calls import ScoredRow, asked_of
from logs_ui.recorder.rows.numbers import MOVES, is_answer, moves_of
from logs_ui.recorder.rows.rollout_call import Parse, RolloutCall
from logs_ui.recorder.rows.tokens import trained_otherwise
from logs_ui.recorder.snapshot import tree
from logs_ui.recorder.storage.changes import StoredImage
from logs_ui.recorder.storage.payload import Tokens, first_answer
from logs_ui.recorder.vocabulary import SCORING

_NO_ACTION = dict.fromkeys(("action", "observation", "reward", "done", "metadata", "seconds", "error"))
_DIGITS = 3  # decimals of seconds: more would cost bytes in each turn

Entry = dict[str, Any]


def actions_of(
    call: RolloutCall, row: RowCalls, tokens: Tokens | None, spelling: chat_parser.Spelling | None
) -> list[Entry]:
    """Return a row's entries in order: the reset as turn 0, then each answer with its action and observation. An answer
    that was not sent to the environment has no action; a step without an answer before it has no text. A model call
    that failed, or still waits, is an entry with nothing but `generation`, before the entry of its turn.
    """
    entries = _answer_entries(row, tokens, spelling) if row.turns else _without_answers(row)
    if row.failures:
        entries = _with_failures(entries, row)
    parse = call.options.parse
    return entries if parse is None else [_add_parsed(parse, entry) for entry in entries]


def note_empty_answers(entries: list[Entry], messages: list[dict[str, Any]], turns: int) -> None:
    """Note at each list that a tool returned whether the model was sent nothing of it, as `sent` in its metadata: TRL
    passes lists on, of which templates of text models write nothing.
    """
    if list not in [type(entry["observation"]) for entry in entries]:
        return
    turn, heard = 0, dict[int, list[Any]]()
    for message in messages[first_answer(messages, turns) :]:
        turn += message.get("role") == "assistant"
        if message.get("role") == "tool":
            heard.setdefault(turn, []).append(message.get("content"))
    for turn, answers in heard.items():  # by turn: the last one's may have had no room
        # The trainer's request for a reward answers no text.
        called = [entry for entry in entries if entry["turn"] == turn and None not in (entry["text"], entry["action"])]
        for entry, answer in zip(called, answers, strict=True) if len(called) == len(answers) else ():
            if answer == "" and isinstance(entry["observation"], list):
                entry["metadata"] = {**(entry["metadata"] or {}), "sent": answer}


def scoring_entries(scored: ScoredRow) -> list[Entry]:
    """Return an entry for each call that reward functions made for a row. `turn` counts the calls of each function,
    without resets; `evidence` says why the call is this row's.
    """
    entries: list[Entry] = []
    counts: Counter[str] = Counter()
    row = RowCalls(children=scored.environment_calls)
    for function, evidence, call in scored.calls:
        if isinstance(call, EnvironmentCall):
            counts[function] += call.kind != "reset"
            entry = _entry(counts[function], None, call, row)
        else:
            counts[function] += 1
            entry = _model_entry(counts[function], call)
        entries.append({**entry, "phase": SCORING, "function": function, "evidence": evidence})
    return entries


def _model_entry(turn: int, call: Generation) -> Entry:
    """Return the entry of a call of a model, such as a judge: its prompt is the action, its answer is observed."""
    answers = [*call.sequences]
    replies = [answer.text if answer.text is not None else orjson.loads(answer.reply or b"null") for answer in answers]
    metadata = {name: getattr(answers[0], name) for name in ("prompt_tokens", "completion_tokens", "finish") if answers}
    return {
        "turn": turn,
        "text": None,
        **_NO_ACTION,
        "action": asked_of(call),
        "observation": replies[0] if len(replies) == 1 else replies or None,
        "metadata": masked(call.sampling) | {name: value for name, value in metadata.items() if value is not None},
        "seconds": call.seconds,
        "error": call.error and without_keys(call.error),
    }


def written_observation(call: EnvironmentCall, observation: bytes) -> bytes:
    """Return the JSON of an observation, with references in place of images."""
    return observation if call.images is None else call.images.json(observation)


def images_in(row: RowCalls, actions: Any) -> tuple[StoredImage, ...]:
    """Return the images that the actions refer to, after the user's `edit`."""
    recorded = [call.images for call in (*row.environment_calls, *row.children) if call.images is not None]
    if not recorded:
        return ()
    written = tree(actions)
    return tuple(image for images in recorded for image in images.within(written))


def _answer_entries(row: RowCalls, tokens: Tokens | None, spelling: chat_parser.Spelling | None) -> list[Entry]:
    before, *after = _by_turn(row)
    entries = [_entry(0, None, step, row) for step in before]
    sampling = row.turns[-1].generation.sampling
    for number, (turn, steps) in enumerate(zip(row.turns, after, strict=True), 1):
        answer = _text(turn, spelling)
        place = len(entries)
        if len(steps) == 1 and steps[0].kind in MOVES:  # nearly always
            entries.append(_entry(number, answer, steps[0], row))
        else:
            entries += _of_turn(number, answer, steps, row)
            # The model call is described at the entry that has the answer, and that follows the entries of resets.
            place += sum(step.kind == "reset" for step in steps)
        if details := _generation(turn, sampling) | ({} if tokens is None else trained_otherwise(turn, tokens)):
            entries[place]["generation"] = details
    return entries


def _generation(turn: Turn, sampling: dict[str, Any]) -> Entry:
    """Describe a model call beside its text; of its parameters those that differ from `sampling`, the row's."""
    generation, finish = turn.generation, turn.sequence.finish
    details: Entry = {}
    if generation.seconds:  # a turn that the user reported (`row.turn`) took none
        details["seconds"] = round(generation.seconds, _DIGITS)
    if finish is not None:
        details["finish"] = finish
    if (tokens := turn.sequence.tokens) is not None:
        details["tokens"] = tokens
    if turn.others:
        details["samples"] = 1 + len(turn.others)
        places = (i for i, sequence in enumerate(generation.sequences) if sequence is turn.sequence)
        details["used"] = next(places) if turn.is_used else None  # the answer's index among all of the call
    if generation.sampling is not sampling and generation.sampling != sampling:
        of_call, of_row = masked(generation.sampling), masked(sampling)
        details["sampling"] = {n: of_call.get(n) for n in {**of_call, **of_row} if of_call.get(n) != of_row.get(n)}
    return details


def _with_failures(entries: list[Entry], row: RowCalls) -> list[Entry]:
    """Insert an entry for each failed model call, before the entries of its turn. Without answers, steps are turns."""
    merged: list[Entry] = []
    turns = [turn.order for turn in row.turns] or [step.order for step in moves_of(row)]
    for failure in row.failures:
        number = 1 + sum(order < failure.order for order in turns)
        while entries and entries[0]["turn"] < number:
            merged.append(entries.pop(0))
        seconds = failure.seconds
        details: Entry = {"waiting": True} if seconds is None else {"seconds": round(seconds, _DIGITS)}
        if failure.error is not None:
            details["error"] = without_keys(failure.error)
        merged.append({"turn": number, "text": None, **_NO_ACTION, "generation": details})
    return [*merged, *entries]


def _by_turn(row: RowCalls) -> list[list[EnvironmentCall]]:
    """Return the environment calls before the first answer, then those after each answer and before the next one."""
    steps: list[list[EnvironmentCall]] = [[] for _ in range(len(row.turns) + 1)]
    turns, place = row.turns, 0
    for step in row.environment_calls:
        while place < len(turns) and turns[place].order <= step.order:
            place += 1
        steps[place].append(step)
    return steps


def _of_turn(number: int, answer: str | None, steps: list[EnvironmentCall], row: RowCalls) -> list[Entry]:
    resets = [_entry(number, None, step, row) for step in steps if step.kind == "reset"]
    moves = [_entry(number, answer, step, row) for step in steps if step.kind in MOVES]
    rewards = [_entry(number, None, step, row) for step in steps if step.kind == "reward"]
    return [*resets, *(moves or [{"turn": number, "text": answer, **_NO_ACTION}]), *rewards]


def _without_answers(row: RowCalls) -> list[Entry]:
    entries, turn = [], 0
    for step in row.environment_calls:
        turn += step.kind in MOVES
        entries.append(_entry(turn, None, step, row))
    return entries


def _entry(turn: int, answer: str | None, call: EnvironmentCall, row: RowCalls) -> Entry:
    metadata = masked(orjson.loads(call.metadata)) if call.metadata else None
    reward, done = call.reward, call.done
    children = [child for child in row.children if child.within == call.order] if row.children else ()
    if children:
        # A call that made calls itself, such as a tool that steps an environment, takes over their rewards and
        # their end where it has none of its own.
        metadata = {**(metadata or {}), "calls": [_entry(turn, None, child, row) for child in children]}
        rewards = [child.reward for child in children if child.reward is not None]
        reward = sum(rewards) if reward is None and rewards else reward
        done = any(child.done for child in children) if done is None else done
    if call.seconds is None:
        metadata = {**(metadata or {}), "waiting": True}
    action = masked(orjson.loads(call.sent))
    if call.kind == "reset":
        turn, arguments, action = 0, action, None
        metadata = {**(metadata or {}), "reset": arguments} if arguments else metadata
    observation = None if call.observation is None else orjson.loads(written_observation(call, call.observation))
    if is_answer(call, row):
        observation = {"error": (call.error or "").partition(": ")[2]}  # as TRL passes it to the model
    return {
        "turn": turn,
        "text": answer,
        "action": action,
        "observation": observation,
        "reward": reward,
        "done": done,
        "metadata": metadata,
        "seconds": call.seconds or None,  # of one that was only reported, 0 is not known
        "error": call.error,
    }


def _text(turn: Turn, spelling: chat_parser.Spelling | None) -> str | None:
    """Return the text of the model's answer; None if it is not known."""
    sequence = turn.sequence
    if sequence.sampled is not None and spelling is not None:
        return spelling.of(sequence.sampled)
    if sequence.text is not None:
        return sequence.text
    return None if sequence.reply is None else str(orjson.loads(sequence.reply).get("content") or "")


def _add_parsed(parse: Parse, entry: Entry) -> Entry:
    """Add `parsed` to an entry: True if the user's parser finds an action in the text. The action that was sent does
    not show that: a rollout function may fall back to another one.
    """
    if entry["text"] is None:
        return entry
    try:
        is_parsed = parse(entry["text"]) is not None
    except Exception:  # noqa: BLE001 - whatever it raises, it found no action
        is_parsed = False
    return entry | {"metadata": {**(entry["metadata"] or {}), "parsed": is_parsed}}
