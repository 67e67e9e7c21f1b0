"""Tells completions that close a tag which their prompt opened, as chat templates open `<think>`."""

import re
from collections import Counter
from typing import NamedTuple

import numpy as np

from logs_ui.recorder.diagnosis.card import Run, Texts
from logs_ui.recorder.diagnosis.prompt_changes import prompt_of

_READ, _MOST = 60, 0.9  # completions; the share that must close a tag, of those [ours]
_HALF = 0.5  # the same, where prompts are known to open it [ours]
_TAG = re.compile(r"<(/?)(\w+)>")


class ClosedTag(NamedTuple):
    """Describes a tag that answers close, and do not open."""

    name: str
    evidence: tuple[str, ...]
    is_sent: bool  # True if nearly all prompts are known to end with it


def find_closed_tag(run: Run) -> ClosedTag | None:
    """Return a tag that nearly all first answers close (half of them, where prompts end with it) and none opens: a
    function that looks for both finds one. None if there is no such tag.
    """
    sample = run.sample(np.ones(len(run.all), bool), _READ)
    answers = [_first_answer(texts) for texts in sample.values()]
    closed, opened = Counter[str](), Counter[str]()
    for answer in answers:
        tags = {(slash, name) for slash, name in _TAG.findall(answer)}
        closed.update(name for slash, name in tags if slash)
        opened.update(name for slash, name in tags if not slash)
    often = [
        (name, count) for name, count in closed.most_common() if not opened[name] and count >= _HALF * len(answers)
    ]
    # What was sent is not always recorded; the prompt's messages may end with the tag alone in a line, too.
    sent = run.read_prompt_ends(list(sample)).values() if often else ()
    ends = list(sent) or [prompt_of(texts).rstrip().rpartition("\n")[2] for texts in sample.values()]
    for name, count in often:
        opening = sum(end.rstrip().endswith(f"<{name}>") if sent else end.strip() == f"<{name}>" for end in ends)
        if count < _MOST * len(answers) and opening < _MOST * len(ends):
            continue
        closed_in = f"{count} of {len(answers)} first answers that were read hold </{name}>, and none holds <{name}>."
        opened_in = f"{opening} of {len(ends)} prompts that were read end with <{name}>."
        return ClosedTag(name, (closed_in, opened_in) if opening else (closed_in,), opening > _MOST * len(ends))
    return None


def _first_answer(texts: Texts) -> str:
    """Return the first answer as it was sampled; where no call is recorded, as the conversation holds it."""
    sampled = next((action["text"] for action in texts.actions if action.get("text")), None)
    answers = (message.get("content") for message in texts.messages if message.get("role") == "assistant")
    return sampled or str(next(answers, "") or "")
