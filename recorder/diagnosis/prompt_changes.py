"""Finds instructions that prompts have up to some step, or from it on: what all of them begin with, or end with."""

import re
from collections.abc import Sequence

from logs_ui.recorder.diagnosis.card import Texts

_LEAST = 20  # characters: less may be shared by chance [ours]
_SHOWN = 40  # characters
_REST_OF_WORD = re.compile(r"\S*$")


def prompt_of(texts: Texts) -> str:
    """Return what stands before the first answer, the system prompt included."""
    prompt = list[str]()
    for message in texts.messages:
        if message.get("role") == "assistant":
            break
        prompt += [content] if isinstance(content := message.get("content"), str) else []
    return "\n".join(prompt)


def describe_prompt_changes(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Return sentences' parts on text that all prompts of one side begin with, or end with, and none of the other
    holds, as in "prompts lose “Answer in one word.”".
    """
    sides = ("lose", before, after), ("gain", after, before)
    return [
        f"prompts {verb} \u201c{shorten(text)}\u201d ({len(before) if verb == 'lose' else 0} of {len(before)} that "
        f"were read before, {len(after) if verb == 'gain' else 0} of {len(after)} since)"
        for verb, prompts, others in sides
        if (text := _find_text(prompts, others))
    ]


def _find_text(prompts: Sequence[str], others: Sequence[str]) -> str:
    """Return the text; "" without one. What all of both sides share is left out."""
    for turn in (1, -1):
        turned, of_others = ([text[::turn] for text in side] for side in (prompts, others))
        shared, of_both = _begin(turned), _begin([*turned, *of_others])
        text = shared[len(of_both) :][::turn].strip()
        if len(text) >= _LEAST and not any(text in prompt for prompt in others):
            return text
    return ""


def _begin(texts: Sequence[str]) -> str:
    """Return the words that all texts begin with."""
    low, high = min(texts), max(texts)  # all others are between these
    size = next((place for place, pair in enumerate(zip(low, high, strict=False)) if pair[0] != pair[1]), len(low))
    is_whole = all(text[size : size + 1].strip() == "" for text in texts)
    return low[:size] if is_whole else _REST_OF_WORD.sub("", low[:size])


def shorten(text: str) -> str:
    """Return the beginning of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{_REST_OF_WORD.sub('', line[:_SHOWN]).rstrip()}\u2026"
