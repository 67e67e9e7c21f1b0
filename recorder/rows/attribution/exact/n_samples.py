"""Make one turn of a model call that was asked for several answers (`n=2`)."""

from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import orjson

from logs_ui.recorder.capture.model_answers import Sequence
from logs_ui.recorder.rows.attribution.prefixes import bytes_of
from logs_ui.recorder.rows.attribution.row_calls import RowCalls, Turn


def one_of_each(row: RowCalls) -> None:
    """Merge answers of one call to the same prompt into one turn: the answer that the completion holds, or that a
    later call was given; else the first, of which it is then unknown if it was used.
    """
    if len({turn.order for turn in row.turns}) == len(row.turns):
        return
    by_prompt: dict[tuple[int, bytes | None], list[Turn]] = {}
    for turn in row.turns:
        by_prompt.setdefault((turn.order, _prompt_of(turn.sequence)), []).append(turn)
    row.turns = [answers[0] if len(answers) == 1 else _one_of(answers, row.turns) for answers in by_prompt.values()]


def _one_of(answers: Seq[Turn], turns: Seq[Turn]) -> Turn:
    standing = [turn for turn in answers if turn.start is not None]
    later = [turn.sequence for turn in turns if turn.order > answers[0].order]
    used = standing or [turn for turn in answers if any(_goes_on(sequence, turn.sequence) for sequence in later)]
    chosen = used[0] if used else answers[0]
    others = [turn.sequence for turn in answers if turn is not chosen]
    return replace(chosen, others=others, is_used=bool(used))


def _prompt_of(sequence: Sequence) -> bytes | None:
    return sequence.messages if sequence.context is None else sequence.context.tobytes()


def _goes_on(later: Sequence, earlier: Sequence) -> bool:
    """Return True if the later call was given the earlier one's answer: after its context, or as a message."""
    context, before, sampled = map(bytes_of, (later.context, earlier.context, earlier.sampled))
    if context is not None and before is not None and sampled is not None:
        return bool(sampled) and context.startswith(before + sampled)
    if later.messages is None:
        return False
    answer = _answer(earlier)
    messages = orjson.loads(later.messages)
    return any(_is_same(message, answer) for message in messages if isinstance(message, dict)) if answer else False


def _answer(sequence: Sequence) -> dict[str, Any] | None:
    if sequence.reply is not None:
        reply = orjson.loads(sequence.reply)
        return reply if isinstance(reply, dict) else None
    return {"content": sequence.text} if sequence.text else None


def _is_same(message: dict[str, Any], answer: dict[str, Any]) -> bool:
    if message.get("role") != "assistant":
        return False
    calls = answer.get("tool_calls")
    if calls:
        return bool(message.get("tool_calls") == calls)
    return bool(answer.get("content")) and message.get("content") == answer["content"]
