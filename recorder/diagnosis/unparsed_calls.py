"""Says what the last answers of rollouts hold in place of an action that could be executed."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import orjson

from logs_ui.recorder.diagnosis.answers import SPEAKER, last_text
from logs_ui.recorder.diagnosis.card import Run, Texts
from logs_ui.recorder.diagnosis.change_point import above
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Ints
from logs_ui.recorder.diagnosis.wording import percent

_READ, _OF_ALL = 200, 1_000  # rollouts; of all steps, to tell since when
_FEW, _OFTEN, _RARER, _ERRORS = 20, 0.1, 0.25, 3  # of a side; share; of it, among better ones; standard errors [ours]
_NAMED, _LENGTH = 3, 100  # kinds that are named; characters of the example
_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_OTHER = re.compile(
    r"<function[=_(]|<\|python_tag\|>|\[TOOL_CALLS?\]|<tool_use>|^[^\S\n]*action\s*:|^```(?:json|tool)\b|<action>|<\uff5ctool"
    r'|\{\s*"(?:name|tool|action|function)"\s*:',
    re.IGNORECASE | re.MULTILINE,
)
_NAME = re.compile(r'"name"\s*:\s*"([\w.-]+)"')
_ADVICE = {
    'a call without "name"': 'Show a whole call in the prompt: its JSON needs "name" and "arguments".',
    "a call whose JSON is broken": "Look at where the JSON of one breaks off, and show a whole call in the prompt.",
    "a whole call": "Look at why the loop does not execute such calls: its parser, or the names of the tools.",
    "a call in another form": "Let the parser accept this form, or show the one that it expects in the prompt.",
    "an answer that writes a tool's or a user's turn": "End the answer with its turn: stop strings, end token, mask.",
    "text without a call": "Show an example of an action in the prompt.",
    "reasoning alone": "Open one with its tokens: no text follows its reasoning. Look at what ends it.",
    "no text": "Open one with its tokens: look at the end-of-turn token and the chat template.",
}
"""The kinds, and what to do about each."""
_UNNAMED, _BROKEN, _WHOLE, _CALL, _SPEAKS, _TEXT, _REASONING, _NOTHING = _ADVICE
_EXECUTED = "an action that was executed"  # the kind of all answers for which one is recorded


def describe_last_answers(
    run: Run, affected: Bools, otherwise: str, of_text: str | None = None
) -> tuple[list[str], str]:
    """Return sentences on what the last answers of rollouts hold, and what to do about the kind that most of them are.

    Args:
        run: the run that is judged.
        affected: (N,) True for these rollouts of the last steps; 200 of them are read.
        otherwise: the advice if no text is recorded, or no kind holds most of them.
        of_text: the advice if most are text without a call; None: to show one in the prompt.
    """
    ends = _read_ends(run, run.rows.id[affected]).values()
    kinds = Counter(kind for kind, _ in ends).most_common()
    if not kinds:
        return [], otherwise
    most, count = kinds[0]
    parts = ", ".join(f"{number} end with {kind}" for kind, number in kinds[:_NAMED])
    example = _quote(next(text for kind, text in ends if kind == most))
    evidence = [f"Of {len(ends)} that were read, {parts}.", *([f"One ends with: {example}"] if example else [])]
    advice = of_text if most == _TEXT and of_text else _ADVICE.get(most, otherwise)
    return evidence, advice if count > len(ends) / 2 else otherwise


def describe_unparsed(run: Run, affected: Bools, otherwise: str) -> tuple[list[str], str]:
    """Return the same as `describe_last_answers`, of the answers before the last in which no action was found, if most
    are of one kind; and the tool that most of these call.
    """
    answers = list[tuple[str, str]]()
    for rollout in run.sample(np.isin(run.all.id, run.rows.id[affected]), _READ).values():
        last = max((entry["turn"] for entry in rollout.actions), default=0)
        acted = {entry["turn"] for entry in rollout.actions if entry["action"] is not None} | {last}
        texts = [entry["text"] for entry in rollout.actions if entry["text"] and entry["turn"] not in acted]
        answers += [_end({"role": "assistant", "content": text}) for text in texts]
    most, count = Counter(kind for kind, _ in answers).most_common(1)[0] if answers else ("", 0)
    if 2 * count <= len(answers):
        return [], otherwise
    mine = [text for kind, text in answers if kind == most]
    names = [] if most == _TEXT else [name[1] for text in mine if (name := _NAME.search(_find_call(text)))]
    called = Counter(names).most_common(1)
    tool = "".join(f"; {number} of these call {name}" for name, number in called if 2 * number > count)
    evidence = [f"Of {len(answers)} answers without an action that were read, {count} are {most}{tool}."]
    example = _quote(mine[0])
    return evidence + [f"For example: {example}"] * bool(example), otherwise if most == _TEXT else _ADVICE[most]


def compare_last_answers(run: Run, low: Bools, better: Bools) -> list[str]:
    """Return a sentence on what low rollouts end with, and better ones hardly do: a call that nothing can execute, or
    nothing. Both are (N,) of the last steps; 200 of each are read.
    """
    sides = [Counter(kind for kind, _ in _read_ends(run, run.rows.id[side]).values()) for side in (low, better)]
    most = max((_NOTHING, _REASONING, _UNNAMED, _BROKEN, _CALL, _SPEAKS), key=sides[0].__getitem__)
    (mine, others), sizes = ([counts[most] for counts in sides], [counts.total() for counts in sides])
    if min(sizes) < _FEW or mine < _OFTEN * sizes[0] or others / sizes[1] > _RARER * mine / sizes[0]:
        return []
    share = (mine + others) / sum(sizes)
    error = math.sqrt(share * (1 - share) * sum(1 / size for size in sizes))
    if mine / sizes[0] - others / sizes[1] < _ERRORS * error:
        return []
    ends = f"Of {sizes[0]} low rollouts that were read, {mine} end with {most}; of {sizes[1]} better ones, {others}."
    return [ends, *_tell_onset(run, most)]


def _tell_onset(run: Run, kind: str) -> list[str]:
    """Return a sentence on the step since which rollouts end so; none if they always did, or if that is not known."""
    read, rows = _read_ends(run, run.all.id, _OF_ALL), run.all
    ends = np.array([read[row][0] == kind if row in read else np.nan for row in rows.id.tolist()], float)
    trend = rows.by_step(ends)
    first = above(trend, _OFTEN)["since_step"]
    if first is None or first == trend[0][0]:
        return []
    since, before = (percent(float(np.nanmean(ends[side]))) for side in (rows.step >= first, rows.step < first))
    shares = f"{since} of those since step {first:,} end so, {before} of those before"
    return [f"Of {len(read):,} rollouts of all steps that were read, {shares}."]


def _read_ends(run: Run, ids: Ints, count: int = _READ) -> dict[int, tuple[str, str]]:
    """Return the kind and the text of the last answer of some of these rollouts, by id."""
    ends = {}
    for row, rollout in run.sample(np.isin(run.all.id, ids), count).items():
        answers = [message for message in rollout.messages if message.get("role") == "assistant"]
        if answers:
            kind, text = _end(answers[-1])
            ends[row] = (_EXECUTED if _is_executed(rollout, len(answers)) else kind, text)
    return ends


def _is_executed(rollout: Texts, answers: int) -> bool:
    """Return True if an action is recorded for the last of so many answers. Where no answer is recorded beside the
    actions, there must be as many turns with one.
    """
    last = max((entry["turn"] for entry in rollout.actions), default=0)
    of_last = [entry for entry in rollout.actions if entry["turn"] == last > 0]
    has_text = any(entry["text"] is not None for entry in of_last)
    return any(entry["action"] is not None for entry in of_last) and (has_text or last >= answers)


def _find_call(text: str) -> str:
    """Return the text from the last call on that it holds; "" without one."""
    tagged = list(_TAGGED.finditer(text))
    call = tagged[-1] if tagged else _OTHER.search(text)
    return text[call.start() :] if call else ""


def _quote(text: str) -> str:
    """Return the beginning of the call that a text ends with; without one, the end of the text."""
    call = _find_call(text)
    words = " ".join((call or text).split())
    if len(words) <= _LENGTH:
        return words
    return f"{words[:_LENGTH]} \u2026" if call else f"\u2026 {words[-_LENGTH:]}"


def _end(message: Mapping[str, Any]) -> tuple[str, str]:
    """Return the kind and the text, without its reasoning, of an answer."""
    text, calls = last_text([message]), message.get("tool_calls")
    if calls:
        functions = [call.get("function") for call in calls if isinstance(call, dict)]
        return _worst(_kind_of_call(function) for function in functions), text
    if not text.strip():
        content = message.get("content")
        is_cut = isinstance(content, str) and bool(content.strip())
        return _REASONING if is_cut or message.get("reasoning_content") else _NOTHING, text
    if SPEAKER.search(text):
        return _SPEAKS, text
    if calls := [call.strip() for call in _TAGGED.findall(text)]:
        return _worst(_kind_of_json(call) if call[:1] in {"{", "["} else _CALL for call in calls), text
    return _CALL if _OTHER.search(text) else _TEXT, text


def _worst(kinds: Iterable[str]) -> str:
    """Return the kind of several calls: whole, if one of them is; else that of the last."""
    every = list(kinds)
    return _WHOLE if _WHOLE in every else every[-1] if every else _UNNAMED


def _kind_of_json(source: str) -> str:
    try:
        return _kind_of_call(orjson.loads(source))
    except orjson.JSONDecodeError:
        return _BROKEN


def _kind_of_call(call: Any) -> str:
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return _CALL if isinstance(call, dict) and isinstance(call.get("function"), dict) else _UNNAMED
    arguments = call.get("arguments")
    return _kind_of_json(f'{{"name": "", "arguments": {arguments}}}') if isinstance(arguments, str) else _WHOLE
