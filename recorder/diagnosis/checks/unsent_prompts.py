"""Finds prompts that were sent without a line of the dataset's, which prompts of other rollouts hold."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np

from logs_ui.recorder.diagnosis.card import Below, Card, Outcome, Run, Texts, check, needs, quiet
from logs_ui.recorder.diagnosis.change_point import above
from logs_ui.recorder.diagnosis.contrast import SURER
from logs_ui.recorder.diagnosis.mean_difference import LEAST_UNITS, Difference, compare, is_beyond_chance
from logs_ui.recorder.diagnosis.prompt_changes import shorten
from logs_ui.recorder.diagnosis.prompt_fields import prompt_of
from logs_ui.recorder.diagnosis.rollout_rows import Bools
from logs_ui.recorder.diagnosis.waterfall import losses
from logs_ui.recorder.diagnosis.wording import figure, percent
from logs_ui.recorder.vocabulary import SentPrompt

_SHARE, _READ = 0.05, 32  # of the rollouts; prompts of either side that are read [ours]
_MOST, _FEW = 0.9, 0.1  # of the prompts that are read [ours]
_HALF = 0.5  # of the rollouts; of the length of what is missing [ours]
_ROLE = "\0"  # begins a line that names a message's role


def _check(run: Run) -> Outcome:
    rows, limit = run.all, run.threshold("unsent_prompts", _SHARE)
    kinds, is_last = rows.facts["sent_prompt"], rows.step >= run.rows.steps[0]
    other, whole = kinds == SentPrompt.OTHER, (kinds == SentPrompt.DATASET) | (kinds == SentPrompt.EXTENDED)
    share, (loss, beside, than) = float(other[is_last].mean()), _compare(run, other & is_last, whole)
    if share <= limit or not is_beyond_chance(loss, SURER, sign=1):
        return quiet(share, "of rollouts are not sent all of the dataset's prompt", limit, "no loss is beyond chance")
    missing, sentence = _find_missing(*(list(run.sample(of, _READ).values()) for of in (other & is_last, beside)))
    if not missing:
        why = "no instructions are known to be missing without new ones in their place"
        return Below(f"{percent(share)} of rollouts are sent another prompt; {why}.")
    return Card(
        id="unsent_prompts",
        title=f"{percent(share)} of rollouts are not sent {missing}",
        cost=share * loss.value,
        than=than,
        evidence=(sentence, f"Each loses {figure(loss.value)} more on average than {than}."),
        suggestion="Compare how these prompts are built with how the others are: a loader, a chat template, a "
        "configuration or a limit of tokens may leave that out.",
        where="sent_prompt:other",
        **above(rows.by_step(np.where(other | whole, other, np.nan)), limit),
        own=other[is_last],
        is_setup=True,
    )


def _compare(run: Run, chosen: Bools, whole: Bools) -> tuple[Difference | None, Bools, str]:
    """Compare what (N,) chosen rollouts lose with what whole ones do: those of the same tasks, if half of the chosen
    have some; else those of the last steps; of too few groups, those before. Also return (N,) True for these, and their
    name.
    """
    task, now = run.all.task, whole & (run.all.step >= run.rows.steps[0])
    same = whole & np.isin(task, task[chosen & (task >= 0)])
    is_met = bool(np.isin(task[chosen], task[same]).sum() >= _HALF * chosen.sum())
    are_beside = len(np.unique(run.all.group[now])) >= LEAST_UNITS
    beside = same if is_met else now if are_beside else whole
    lost = np.where(chosen | beside, np.maximum(losses(run.all, run.scale), 0.0), np.nan)
    than = "others at the same tasks" if is_met else "other rollouts" if are_beside else "others before"
    return compare(lost, chosen, run.all.group, task if is_met else None), beside, than


def _find_missing(read: Sequence[Texts], others: Sequence[Texts]) -> tuple[str, str]:
    """Return words on what the dataset's prompts of some rollouts share and others were sent, but hardly any of these,
    and a sentence with counts; "" if there is none, or these were sent new lines in its place.
    """
    lacking = [texts for texts in read if _has_all(texts)]
    asked = [_write(_list_asked(texts)) for texts in lacking]
    sent = [_write(texts.messages) for texts in lacking]
    whole = [_write(texts.messages) for texts in others]
    counts = {
        line: [sum(line in prompt for prompt in prompts) for prompts in (sent, whole)] for line in _list_shared(asked)
    }
    lines = [
        line for line, (mine, rest) in counts.items() if mine <= _FEW * len(sent) and rest >= _MOST * len(whole) > 0
    ]
    new = [line for line in _list_shared(sent) if not any(line in prompt for prompt in (*asked, *whole))]
    if len(lacking) < _MOST * len(read):
        return "", ""
    if not lines and not new:
        return _find_unsent_message(lacking)
    if len("".join(new)) >= _HALF * len("".join(lines)):
        return "", ""
    line = next((line for line in lines if not line.startswith(_ROLE)), lines[0])
    message = next(message for texts in lacking for message in _list_asked(texts) if line in _write([message]))
    role, is_whole = message.get("role"), f"{_ROLE}{message.get('role')}" in lines
    mine, rest = counts[f"{_ROLE}{role}" if is_whole else line]
    part, does = ("the", f"have a {role} message") if is_whole else ("a line of the", "hold this line")
    return f"{part} dataset's {role} message (\u201c{shorten(prompt_of([message]) if is_whole else line)}\u201d)", (
        f"Of their prompts that were read, {mine} of {len(sent)} {does}; of those of others, {rest} of {len(whole)} do."
    )


def _find_unsent_message(lacking: Sequence[Texts]) -> tuple[str, str]:
    """Return the same on a message that these rollouts share nothing of, such as the passage that each is asked about:
    one of the dataset's that is not in the sent prompt, which has nothing else in its place.
    """
    gone = list[Mapping[str, Any]]()
    for texts in lacking:
        asked, sent = (_list_shared([_write(messages)]) for messages in (_list_asked(texts), texts.messages))
        unsent = [
            message
            for message in _list_asked(texts)
            if prompt_of([message]).strip() and not set(_list_shared([prompt_of([message])])) & set(sent)
        ]
        if unsent and set(sent) <= set(asked):
            gone.append(unsent[0])
    if len(gone) < _MOST * len(lacking):
        return "", ""
    role = gone[0].get("role")
    return f"one of the dataset's {role} messages (such as \u201c{shorten(prompt_of(gone[:1]))}\u201d)", (
        f"Of their prompts that were read, {len(gone)} of {len(lacking)} lack a whole message, and have nothing in its "
        "place; the others have all messages."
    )


def _list_asked(texts: Texts) -> list[Mapping[str, Any]]:
    """Return the messages of the dataset's prompt, which may go on after an assistant's, without those."""
    return [message for message in texts.dataset_prompt if message.get("role") != "assistant"]


def _has_all(texts: Texts) -> bool:
    """Return True if its messages have all answers; else they begin with another prompt than that of the first call."""
    answers = sum(message.get("role") == "assistant" for message in texts.messages)
    return all((action.get("turn") or 0) <= answers for action in texts.actions)


def _write(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the prompt, with a line for each message's role."""
    prompt = takewhile(lambda message: message.get("role") != "assistant", messages)
    return "\n".join(f"{_ROLE}{message.get('role')}\n{prompt_of([message])}" for message in prompt)


def _list_shared(prompts: Sequence[str]) -> list[str]:
    """Return the lines that nearly all prompts hold, in their order."""
    counts = Counter(line for prompt in prompts for line in dict.fromkeys(map(str.strip, prompt.splitlines())) if line)
    return [line for line, count in counts.items() if count >= _MOST * len(prompts)]


DIAGNOSTIC = check(
    "unsent_prompts",
    "Unsent prompts",
    f"Share of rollouts above {_SHARE:.0%} that are not sent all of the dataset's prompt, where others are: a line "
    "that these prompts share in the dataset, or a message of that role, is not in what they are sent, but in what "
    f"others are; or each lacks a whole message, and has nothing in its place. Only if they lose more, with a "
    f"probability below {SURER:.1%} of that by chance, than others at the "
    "same tasks, if half of them have such; else than others of the last steps, else before. Silent if they are sent "
    f"new lines that they share, at least {_HALF:.0%} as long. At most {_READ} prompts of either side are read.",
    needs("which prompts were sent", lambda run: run.all.facts["sent_prompt"] != None),  # noqa: E711 - of each
    _check,
)
