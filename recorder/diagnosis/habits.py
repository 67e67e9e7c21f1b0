"""Tells what a rollout does, says and hears as predicates, to find those that begin during a run."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise

from logs_ui.recorder.action_text import observed_text, split_reasoning, tool_of
from logs_ui.recorder.diagnosis.answers import text_of
from logs_ui.recorder.diagnosis.card import Run, Texts
from logs_ui.recorder.diagnosis.prompt_changes import prompt_of
from logs_ui.recorder.diagnosis.rollout_rows import Bools
from logs_ui.recorder.diagnosis.wording import percent

_ACTIONS, _LENGTH = 50, 1_000  # of a rollout; characters of a text [ours]
HEARD, BEGINNING = 8, 200  # last observations of a rollout; characters of each [ours]
OF_ANSWER, OF_OBSERVATION = "in the last answer", "in an observation"
_SHOWN = 80  # characters of an observation
_OF_PROMPT = "in the prompt"
_READ, _FEW = 64, 16  # rollouts of either side that are read; fewer tell nothing [ours]
_MOST, _HARDLY = 0.6, 0.1  # of the later rollouts have it; of the earlier ones, at most [ours]


def list_usual(some: Sequence[Texts], least: float) -> list[str]:
    """Return the kinds of actions that at least the share `least` of some rollouts take."""
    times = Counter(kind for texts in some for kind in dict.fromkeys(_list_kinds(texts)))
    return [kind for kind in times if times[kind] >= least * len(some)]


def list_habits(texts: Texts, usual: Sequence[str] = ()) -> Iterator[str]:
    """Yield what a rollout does, as a predicate of rollouts, first what tells more; also which of the `usual` kinds of
    actions it never takes.
    """
    calls, kinds = _list_calls(texts), _list_kinds(texts)
    yield from (f"call {tool}" for tool in calls)
    if calls:
        yield from (f"begin with a call of {calls[0]}", f"end with a call of {calls[-1]}")
    yield from (f"never {kind}" for kind in usual if kinds and kind not in kinds)
    answers = [text_of(message) for message in texts.messages if message.get("role") == "assistant"][-1:]
    for said, ending in (
        ([observed_text(action) or "" for action in _list_actions(texts)], "in an action"),
        ([split_reasoning(answer)[1] for answer in answers], OF_ANSWER),
    ):
        words = _split(said)
        yield from _list_pairs(words, ending)
        yield from (f"have \u201c{word}\u201d {ending}" for of in words for word in of if not word.isdigit())
    yield from _list_pairs(_split(_list_heard(texts)), OF_OBSERVATION)


def quote(some: Iterable[Texts], habit: str) -> list[str]:
    """Return a sentence that quotes an observation with the words of a habit; none if none of these rollouts has it."""
    heard = (
        text for texts in some for text in _list_heard(texts) if habit in _list_pairs(_split([text]), OF_OBSERVATION)
    )
    text = " ".join(next(heard, "").split())
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}\u2026"
    return [f"One is answered: {shown}"] * bool(text)


def describe_begun(run: Run, before: Bools, since: Bools) -> list[str]:
    """Return a sentence on what most of the (N,) rollouts `since` have and hardly any of those `before`, or the other
    way round: words of the prompt, of an observation, of the last answer or of an action, in this order; none if there
    is no such thing.
    """
    earlier, later = (
        [
            dict.fromkeys([*_list_pairs(_split([prompt_of(texts)]), _OF_PROMPT), *list_habits(texts)])
            for texts in run.sample(of, _READ).values()
        ]
        for of in (before, since)
    )
    if min(len(earlier), len(later)) < _FEW:
        return []
    order = _OF_PROMPT, OF_OBSERVATION, OF_ANSWER
    shares = [
        {habit: times / len(side) for habit, times in Counter(chain.from_iterable(side)).items()}
        for side in (later, earlier)
    ]
    for many, few in (shares, shares[::-1]):
        changed = [habit for habit in many if many[habit] >= _MOST and few.get(habit, 0.0) <= _HARDLY]
        most = max(changed, key=lambda habit: ([habit.endswith(end) for end in order], many[habit]), default=None)
        if most is not None:
            now, before_that = (percent(side.get(most, 0.0)) for side in shares)
            return [f"Of {len(later)} since then that were read {now} {most}, of {len(earlier)} before {before_that}."]
    return []


def _list_actions(texts: Texts) -> list[object]:
    return [action for entry in texts.actions if (action := entry.get("action")) is not None][-_ACTIONS:]


def _list_calls(texts: Texts) -> list[str]:
    return [tool for action in _list_actions(texts) if (tool := tool_of(action)) is not None]


def _list_kinds(texts: Texts) -> list[str]:
    """Return the kinds of its actions: calls by their tools, others by their first words."""
    acts = [action for action in _list_actions(texts) if tool_of(action) is None]
    first = (re.search(r"\w{1,40}", observed_text(action) or "") for action in acts)
    words = [f"begin an action with \u201c{word[0]}\u201d" for word in first if word]
    return [*(f"call {tool}" for tool in _list_calls(texts)), *words]


def _list_heard(texts: Texts) -> list[str]:
    """Return the beginnings of a rollout's last observations."""
    return [(observed_text(entry.get("observation")) or "")[:BEGINNING] for entry in texts.actions][-HEARD:]


def _split(said: Sequence[str]) -> list[list[str]]:
    """Return the words at the beginning of each text."""
    return [re.findall(r"\b\w{1,40}\b", text[:_LENGTH]) for text in said]


def _list_pairs(words: Sequence[Sequence[str]], ending: str) -> Iterator[str]:
    yield from (f"have \u201c{a} {b}\u201d {ending}" for of in words for a, b in pairwise(of))
