"""Says what the last answers of rollouts hold in place of an action that could be executed."""

import re
from collections import Counter

import numpy as np
import orjson

from logs_ui.recorder.diagnosis.answers import last_text
from logs_ui.recorder.diagnosis.card import Run
from logs_ui.recorder.diagnosis.rollout_rows import Bools

_READ = 200  # rollouts
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
    read = run.sample(np.isin(run.all.id, run.rows.id[own]), _READ)
    texts = [last_text(rollout.messages) for rollout in read.values()]
    kinds = Counter(map(_kind, texts)).most_common()
    if not kinds:
        return [], otherwise
    most, count = kinds[0]
    parts = ", ".join(f"{number} end with {kind}" for kind, number in kinds[:_NAMED])
    example = " ".join(next(text for text in texts if _kind(text) == most)[-_LENGTH:].split())
    evidence = [f"Of {len(texts)} that were read, {parts}.", *([f"Such as: {example}"] if example else [])]
    return evidence, _ADVICE[most] if count > len(texts) / 2 else otherwise


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
