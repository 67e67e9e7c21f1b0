"""Builds the list of a row's actions: what it did in its environment, turn by turn, and how its model calls went."""

from typing import Any

import orjson

from logs_ui.recorder.capture.calls import EnvironmentCall, Generation
from logs_ui.recorder.redaction import masked, without_keys
from logs_ui.recorder.rows import chat_parser
from logs_ui.recorder.rows.attribution import RowCalls, Turn
from logs_ui.recorder.rows.rollout_call import Parse, RolloutCall
from logs_ui.recorder.rows.row_numbers import MOVES, moves_of
from logs_ui.recorder.snapshot import tree
from logs_ui.recorder.storage.changes import StoredImage

_NO_ACTION = dict.fromkeys(("action", "observation", "reward", "done", "metadata", "seconds", "error"))
_DIGITS = 3  # of seconds: more cost bytes in each turn

Entry = dict[str, Any]


def actions_of(call: RolloutCall, row: RowCalls, spelling: chat_parser.Spelling | None) -> list[Entry]:
    """In order: the reset as turn 0, then each answer with what was sent to the environment and what came back. An
    answer that was not sent has no action; a step that no answer was seen before has no text. A model call that brought
    no answer is an entry before that of the turn that it was for, with `generation` alone.
    """
    entries = _answered(row, spelling) if row.turns else _without_answers(row)
    if row.failures:
        entries = _with_failures(entries, row)
    parse = call.options.parse
    return entries if parse is None else [_parsed(parse, entry) for entry in entries]


def written_observation(call: EnvironmentCall, observation: bytes) -> bytes:
    """The JSON of an observation, with references in place of images."""
    return observation if call.images is None else call.images.json(observation)


def images_in(row: RowCalls, actions: Any) -> tuple[StoredImage, ...]:
    """The images that the actions, as they were edited, refer to."""
    seen = [call.images for call in (*row.environment_calls, *row.children) if call.images is not None]
    if not seen:
        return ()
    written = tree(actions)
    return tuple(image for images in seen for image in images.within(written))


def _answered(row: RowCalls, spelling: chat_parser.Spelling | None) -> list[Entry]:
    before, *after = _by_turn(row)
    entries = [_entry(0, None, step, row) for step in before]
    sampling = row.turns[-1].generation.sampling
    for number, (turn, own) in enumerate(zip(row.turns, after, strict=True), 1):
        answer = _text(turn, spelling)
        place = len(entries)
        if len(own) == 1 and own[0].kind in MOVES:  # as nearly always
            entries.append(_entry(number, answer, own[0], row))
        else:
            entries += _of_turn(number, answer, own, row)
            place += sum(step.kind == "reset" for step in own)
        if told := _told(turn, sampling):
            entries[place]["generation"] = told
    return entries


def _told(turn: Turn, sampling: dict[str, Any]) -> Entry:
    """What is known of a model call, beside its text: not the sampling that is the last turn's, which is the row's."""
    generation, finish = turn.generation, turn.sequence.finish
    told: Entry = {}
    if generation.seconds:  # a turn that was told by hand took none
        told["seconds"] = round(generation.seconds, _DIGITS)
    if finish is not None:
        told["finish"] = finish
    if turn.others:
        told["samples"] = 1 + len(turn.others)
        told["used"] = _place(turn) if turn.is_used else None
    own = generation.sampling
    if own is not sampling and own != sampling:
        known, rows = masked(own), masked(sampling)
        told["sampling"] = {n: known.get(n) for n in {**known, **rows} if known.get(n) != rows.get(n)}
    return told


def _place(turn: Turn) -> int:
    """Of its answer among all that the call gave, from 0."""
    return next(i for i, sequence in enumerate(turn.generation.sequences) if sequence is turn.sequence)


def _with_failures(entries: list[Entry], row: RowCalls) -> list[Entry]:
    """Each before the entries of the turn that it was for; without answers, steps are turns."""
    found: list[Entry] = []
    turns = [turn.order for turn in row.turns] or [step.order for step in moves_of(row)]
    for failure in row.failures:
        number = 1 + sum(order < failure.order for order in turns)
        while entries and entries[0]["turn"] < number:
            found.append(entries.pop(0))
        found.append(_failure(number, failure))
    return [*found, *entries]


def _failure(turn: int, generation: Generation) -> Entry:
    told: Entry = {"waiting": True} if generation.seconds is None else {"seconds": round(generation.seconds, _DIGITS)}
    if generation.error is not None:
        told["error"] = without_keys(generation.error)
    return {"turn": turn, "text": None, **_NO_ACTION, "generation": told}


def _by_turn(row: RowCalls) -> list[list[EnvironmentCall]]:
    """The environment calls that began before the first answer, then those after each answer and before the next."""
    found: list[list[EnvironmentCall]] = [[] for _ in range(len(row.turns) + 1)]
    turns, place = row.turns, 0
    for step in row.environment_calls:
        while place < len(turns) and turns[place].order <= step.order:
            place += 1
        found[place].append(step)
    return found


def _of_turn(number: int, answer: str | None, own: list[EnvironmentCall], row: RowCalls) -> list[Entry]:
    resets = [_entry(number, None, step, row) for step in own if step.kind == "reset"]
    moves = [_entry(number, answer, step, row) for step in own if step.kind in MOVES]
    rewards = [_entry(number, None, step, row) for step in own if step.kind == "reward"]
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
    made = [child for child in row.children if child.within == call.order] if row.children else ()
    if made:
        metadata = {**(metadata or {}), "calls": [_entry(turn, None, child, row) for child in made]}
        rewards = [child.reward for child in made if child.reward is not None]
        reward = sum(rewards) if reward is None and rewards else reward
        done = any(child.done for child in made) if done is None else done
    if call.seconds is None:
        metadata = {**(metadata or {}), "waiting": True}
    action = masked(orjson.loads(call.sent))
    if call.kind == "reset":
        turn, arguments, action = 0, action, None
        metadata = {**(metadata or {}), "reset": arguments} if arguments else metadata
    observation = call.observation
    return {
        "turn": turn,
        "text": answer,
        "action": action,
        "observation": None if observation is None else orjson.loads(written_observation(call, observation)),
        "reward": reward,
        "done": done,
        "metadata": metadata,
        "seconds": call.seconds,
        "error": call.error,
    }


def _text(turn: Turn, spelling: chat_parser.Spelling | None) -> str | None:
    """The text that the model answered; None if it is not known."""
    sequence = turn.sequence
    if sequence.sampled is not None and spelling is not None:
        return spelling.of(sequence.sampled)
    if sequence.text is not None:
        return sequence.text
    return None if sequence.reply is None else str(orjson.loads(sequence.reply).get("content") or "")


def _parsed(parse: Parse, entry: Entry) -> Entry:
    """With what the user's parser says of the text: a function that falls back to some action hides that."""
    if entry["text"] is None:
        return entry
    try:
        found = parse(entry["text"]) is not None
    except Exception:  # noqa: BLE001 - whatever it raises, it found no action
        found = False
    return entry | {"metadata": {**(entry["metadata"] or {}), "parsed": found}}
