"""Says what the last answers of rollouts hold in place of an action that could be executed."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from logs_ui.recorder.diagnosis.answers import last_text
from logs_ui.recorder.diagnosis.card import Run
from logs_ui.recorder.diagnosis.rollout_rows import Bools

_READ = 200  # rollouts
_FEW, _OFTEN, _RARER = 20, 0.1, 0.25  # rollouts of a side; their share; of that share, among better ones [ours]
_NAMED, _LENGTH = 3, 100  # kinds that are named; characters of the example
_TAGGED = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)
_OTHER = re.compile(
    r"<function[=_(]|<\|python_tag\|>|\[TOOL_CALLS?\]|<tool_use>|^\s*action\s*:|^```(?:json|tool|python|bash|sh)\b"
    r'|\{\s*"(?:name|tool|action|function)"\s*:',
    re.IGNORECASE | re.MULTILINE,
)
_ADVICE = {
    'a call without "name"': 'Show a whole call in the prompt: its JSON needs "name" and "arguments".',
    "a call whose JSON is broken": "Look at where the JSON of one breaks off, and show a whole call in the prompt.",
    "a whole call": "Look at why the loop does not execute them: its parser, or the name of the tool.",
    "a call in another form": "Let the parser accept this form, or show the one that it expects in the prompt.",
    "text without a call": "Show an example of an action in the prompt.",
    "no text": "Open one with its tokens: look at the end-of-turn token and the chat template.",
}
"""The kinds, and what to do about each."""
_UNNAMED, _BROKEN, _WHOLE, _CALL, _TEXT, _NOTHING = _ADVICE


def describe_last_answers(run: Run, own: Bools, otherwise: str) -> tuple[list[str], str]:
    """Return sentences on what the last answers of rollouts hold, and what to do about the kind that most of them are.

    Args:
        run: the run that is judged.
        own: (N,) True for these rollouts of the last steps; 200 of them are read.
        otherwise: the advice if no text is recorded, or no kind holds most of them.
    """
    ends = _read_ends(run, own)
    kinds = Counter(kind for kind, _ in ends).most_common()
    if not kinds:
        return [], otherwise
    most, count = kinds[0]
    parts = ", ".join(f"{number} end with {kind}" for kind, number in kinds[:_NAMED])
    example = " ".join(next(text for kind, text in ends if kind == most)[-_LENGTH:].split())
    evidence = [f"Of {len(ends)} that were read, {parts}.", *([f"Such as: {example}"] if example else [])]
    return evidence, _ADVICE[most] if count > len(ends) / 2 else otherwise


def compare_last_answers(run: Run, low: Bools, better: Bools) -> list[str]:
    """Return a sentence on what low rollouts end with, and better ones hardly do: a call that nothing can execute, or
    nothing. Both are (N,) of the last steps; 200 of each are read.
    """
    sides = [Counter(kind for kind, _ in _read_ends(run, side)) for side in (low, better)]
    sizes = [counts.total() for counts in sides]
    if min(sizes) < _FEW:
        return []
    for kind in (_NOTHING, _UNNAMED, _BROKEN):
        mine, others = (counts[kind] for counts in sides)
        if mine >= _OFTEN * sizes[0] and others / sizes[1] <= _RARER * mine / sizes[0]:
            low_ones = f"Of {sizes[0]} low rollouts that were read, {mine} end with {kind}"
            return [f"{low_ones}; of {sizes[1]} better ones, {others}."]
    return []


def _read_ends(run: Run, own: Bools) -> list[tuple[str, str]]:
    """Return the kind and the text of each last answer."""
    read = run.sample(np.isin(run.all.id, run.rows.id[own]), _READ)
    return [_end(rollout.messages) for rollout in read.values()]


def _end(messages: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    text = last_text(messages)
    last: Mapping[str, Any] = next((it for it in reversed(messages) if it.get("role") == "assistant"), {})
    return _WHOLE if last.get("tool_calls") else _kind(text), text


def _kind(text: str) -> str:
    if call := _TAGGED.search(text):
        try:
            value = orjson.loads(call[1])
        except orjson.JSONDecodeError:
            return _BROKEN
        return _WHOLE if isinstance(value, dict) and isinstance(value.get("name"), str) else _UNNAMED
    if _OTHER.search(text):
        return _CALL
    return _TEXT if text.strip() else _NOTHING
