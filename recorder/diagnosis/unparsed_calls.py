"""Says what the last answers of rollouts hold in place of an action that could be executed."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import orjson

from logs_ui.recorder.action_text import tool_of
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
    r'|\{\s*"(?:name|tool|action|function)"\s*:|^[a-z_][\w.]{0,40}\([^\n]*\)\s*$',
    re.IGNORECASE | re.MULTILINE,
)
_BREAKS = str.maketrans("\n\r\t", "   ")  # which JSON forbids in strings
_ALL, _CHANCE = 0.95, 0.01  # of the refused calls are of one tool; that they are by chance [ours]
_NAME = re.compile(r'"name"\s*:\s*"([\w.-]+)"')
_ADVICE = {
    'a call without "name"': 'Show a whole call in the prompt: its JSON needs "name" and "arguments".',
    "a whole call with raw line breaks in its strings": "Parse such calls with json.loads(call, strict=False), or show "
    "in the prompt that they must be escaped: JSON forbids raw line breaks and tabs in strings.",
    "a call whose JSON is broken": "Look at where the JSON of one breaks off, and show a whole call in the prompt.",
    "a whole call": "Look at why the loop does not execute such calls: its parser, or the names of the tools.",
    "a call in another form": "Let the parser accept this form, or show the one that it expects in the prompt.",
    "an answer that writes a tool's or a user's turn": "End the answer with its turn: stop strings, end token, mask.",
    "text without a call": "Show an example of an action in the prompt.",
    "reasoning alone": "Open one with its tokens: no text follows its reasoning. Look at what ends it.",
    "no text": "Open one with its tokens: look at the end-of-turn token and the chat template.",
}
"""The kinds, and what to do about each."""
_UNNAMED, _RAW, _BROKEN, _WHOLE, _CALL, _SPEAKS, _TEXT, _REASONING, _NOTHING = _ADVICE
_EXECUTED = "an action that was executed"  # the kind of all answers for which one is recorded


class Described(NamedTuple):
    """Holds sentences on answers without an action, and what to do about the kind that most of them are."""

    evidence: list[str]
    advice: str
    is_readable: bool = False  # True if most are whole calls that a lenient parser reads
    tool: str = ""  # that nearly all call, most of all read, where calls of others are executed; "" for none


def describe_last_answers(run: Run, affected: Bools, otherwise: str, of_text: str | None = None) -> Described:
    """Describe what the last answers of rollouts hold.

    Args:
        run: the run that is judged.
        affected: (N,) True for these rollouts of the last steps; 200 of them are read.
        otherwise: the advice if no text is recorded, or no kind holds most of them.
        of_text: the advice if most are text without a call; None: to show one in the prompt.
    """
    read = _read_ends(run, run.rows.id[affected])
    ends, kinds = read.values(), Counter(kind for kind, _ in read.values()).most_common()
    if not kinds:
        return Described([], otherwise)
    most, count = kinds[0]
    parts = ", ".join(f"{number} end with {kind}" for kind, number in kinds[:_NAMED])
    example = _quote(next(text for kind, text in ends if kind == most))
    evidence = [f"Of {len(ends)} that were read, {parts}.", *([f"One ends with: {example}"] if example else [])]
    advice = of_text if most == _TEXT and of_text else _ADVICE.get(most, otherwise)
    if 2 * count <= len(ends):
        return Described(evidence, otherwise)
    tool, sentences = _find_tool(run, {row: text for row, (kind, text) in read.items() if kind == most})
    return Described(evidence[:1] + sentences + evidence[1:], advice, most == _RAW, tool)


def _find_tool(run: Run, refused: Mapping[int, str]) -> tuple[str, list[str]]:
    """Return the tool that nearly all of these answers (by id) call, and a sentence; "" and none if other tools are
    called too seldom to tell. Groups are independent: each might have called any tool as often as all rollouts do.
    """
    called = Counter(name[1] for text in refused.values() if (name := _NAME.search(_find_call(text))))
    tool, count = called.most_common(1)[0] if called else ("", 0)
    others = run.sample(run.all.step >= run.rows.steps[0], _READ).values()
    tools = [tool_of(entry["action"]) for rollout in others for entry in rollout.actions]
    executed, groups = Counter(filter(None, tools)), np.unique(run.rows.group[np.isin(run.rows.id, [*refused])])
    share = (executed[tool] + count) / max(executed.total() + count, 1)
    if count < _ALL * len(refused) or share ** len(groups) > _CHANCE:
        return "", []
    sentence = f"{count} of {len(refused)} such calls are of {tool}"
    return tool, [f"{sentence}; of {executed.total():,} executed ones that were read, {executed[tool]:,}."]


def describe_unparsed(run: Run, affected: Bools, otherwise: str) -> Described:
    """Describe the answers before the last in which no action was found, if most are of one kind; the evidence says
    which tool most of these call.
    """
    answers = list[tuple[str, str]]()
    for rollout in run.sample(np.isin(run.all.id, run.rows.id[affected]), _READ).values():
        last = max((entry["turn"] for entry in rollout.actions), default=0)
        acted = {entry["turn"] for entry in rollout.actions if entry["action"] is not None} | {last}
        texts = [entry["text"] for entry in rollout.actions if entry["text"] and entry["turn"] not in acted]
        answers += [_end({"role": "assistant", "content": text}) for text in texts]
    most, count = Counter(kind for kind, _ in answers).most_common(1)[0] if answers else ("", 0)
    if 2 * count <= len(answers):
        return Described([], otherwise)
    mine = [text for kind, text in answers if kind == most]
    names = [] if most == _TEXT else [name[1] for text in mine if (name := _NAME.search(_find_call(text)))]
    called = Counter(names).most_common(1)
    tool = "".join(f"; {number} of these call {name}" for name, number in called if 2 * number > count)
    evidence = [f"Of {len(answers)} answers without an action that were read, {count} are {most}{tool}."]
    example = _quote(mine[0])
    evidence += [f"For example: {example}"] * bool(example)
    return Described(evidence, otherwise if most == _TEXT else _ADVICE[most], most == _RAW)


def compare_last_answers(run: Run, low: Bools, better: Bools) -> list[str]:
    """Return a sentence on what low rollouts end with, and better ones hardly do: a call that nothing can execute, or
    nothing. Both are (N,) of the last steps; 200 of each are read.
    """
    sides = [Counter(kind for kind, _ in _read_ends(run, run.rows.id[side]).values()) for side in (low, better)]
    most = max((_NOTHING, _REASONING, _UNNAMED, _RAW, _BROKEN, _CALL, _SPEAKS), key=sides[0].__getitem__)
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
    """Return the kind and the text of an answer, without its reasoning, with the last call that is stored apart."""
    text, calls = last_text([message]), message.get("tool_calls")
    if calls:
        functions = [call.get("function") for call in calls if isinstance(call, dict)]
        written = f"{text}\n{orjson.dumps(functions[-1]).decode()}" if functions else text
        return _worst(_kind_of_call(function) for function in functions), written
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
        pass
    try:
        kind = _kind_of_call(orjson.loads(source.translate(_BREAKS)))
    except orjson.JSONDecodeError:
        return _BROKEN
    return _RAW if kind == _WHOLE else kind


def _kind_of_call(call: Any) -> str:
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return _CALL if isinstance(call, dict) and isinstance(call.get("function"), dict) else _UNNAMED
    arguments = call.get("arguments")
    return _kind_of_json(f'{{"name": "", "arguments": {arguments}}}') if isinstance(arguments, str) else _WHOLE
