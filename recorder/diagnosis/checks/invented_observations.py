"""Finds observations that the model writes itself, as if it were the environment."""

import re
from collections import Counter
from collections.abc import Container, Mapping
from itertools import chain, dropwhile, islice
from typing import Any

import numpy as np

from logs_ui.recorder.action_text import split_reasoning
from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.answers import text_of
from logs_ui.recorder.diagnosis.card import Below, Card, Outcome, Run, Texts, check, needs
from logs_ui.recorder.diagnosis.change_point import above
from logs_ui.recorder.diagnosis.checks.new_observation import Heard, weigh_cost
from logs_ui.recorder.diagnosis.task_families import tasks_recur
from logs_ui.recorder.diagnosis.waterfall import losses
from logs_ui.recorder.diagnosis.wording import kind_of, percent

_INVENTED, _COMMON = 0.1, 0.05  # of the rollouts hold an invented one; hear what begins so [ours]
_FIRST_READ, _FEW, _MOST_READ = 100, 5, 1_000  # rollouts: read first; of them with one, to read more; of either part
_LABELLED = re.compile(
    r"\n[^\w\n]{0,8}(?:[a-z]{1,16}[ _-])?(?:(?P<speaker>observations?|obs|env|environment|tool|system|user|human)"
    r"|function|results?|response|output|feedback)(?:[ _-]\w{1,16})?[^\w\s]{1,8}\s{0,4}[^\w\n]{0,8}(?P<text>\w[^\n<]*)",
    re.IGNORECASE,
)
"""Matches a line with another speaker's label or tag, and the text after that."""
_SPEAKER = re.compile(
    r"\n[^\w\n\"'{]{0,8}(?P<speaker>[^\W\d_]{2,16}(?: [^\W\d_]{2,16}){0,2})[^\w\s\"']{0,3}:"
    r"[^\w\n]{0,8}(?P<text>\w[^\n]*)"
)
"""Matches a line that begins with some words and a colon, as of a dialogue, and the text after them."""
_OPENED = re.compile(r"\n(?P<speaker>[\[(=]{1,3} ?[^\W\d_]{2,16})(?P<text>[^\n]*\w[^\n]*)")
"""Matches a line that begins with a bracket and a word, as `[page 3 of 9]`, and the text after them."""
_LABELS = (_LABELLED, _SPEAKER, _OPENED)
_MOST_LINES = 100  # of an answer that are looked at [ours]
_MOST_SAY = 0.5  # of the rollouts hear such a label before what they hear [ours]
_SHOWN = 80  # characters


def _check(run: Run) -> Outcome:
    rows, is_last = run.all, run.all.step >= run.rows.steps[0]
    first = run.sample(is_last, _FIRST_READ)
    heard = [
        [text_of(message) for message in texts.messages if message.get("role") != "assistant"]
        for texts in first.values()
    ]
    times = Counter(begin for of_one in heard for begin in {_first_words(text) for text in of_one} if " " in begin)
    early = run.sample(run.all.step <= run.all.steps[len(run.all.steps) // 4], _FIRST_READ)
    heard_by = [
        Counter(
            speaker
            for texts in read.values()
            for speaker in {_read_speaker(text_of(message)) for message in _list_observed(texts)} - {""}
        )
        for read in (first, early)  # who plays the environment, too, hears less of it at last
    ]
    usual = {begin for begin in times if times[begin] > max(_COMMON * len(first), 1)}
    own = Counter(
        speaker
        for texts in early.values()
        for speaker in {
            _read_speaker(split_reasoning(text_of(message))[1].strip())
            for message in texts.messages
            if message.get("role") == "assistant"
        }
    )
    usual |= {
        speaker
        for speakers, read in zip(heard_by, (first, early), strict=True)
        for speaker in speakers
        if speakers[speaker] >= _MOST_SAY * len(read) and own[speaker] <= _COMMON * len(early)
    }
    few = len(_find_invented(first, usual))
    quiet = Below(f"{few} of {len(first)} rollouts that were read hold an observation that the model wrote.")
    if few < _FEW:
        return quiet
    read = {**run.sample(is_last, _MOST_READ), **run.sample(~is_last, _MOST_READ)}
    lines, limit = _find_invented(read, usual), run.threshold("invented_observations", _INVENTED)
    affected, is_read = np.isin(rows.id, list(lines)), np.isin(rows.id, list(read))
    began = above(rows.by_step(np.where(is_read, affected, np.nan)), limit)
    invented = Heard(0, affected, began["since_step"] or int(rows.steps[0]), 0.0)
    tasks = rows if tasks_recur(rows) else run.families
    weighed = weigh_cost(run, invented, [invented], tasks, np.maximum(losses(rows, run.scale), 0.0))
    ids, count = rows.id[affected & is_last], int(is_read[is_last].sum())
    if weighed is None or len(ids) <= limit * count:
        return quiet
    return Card(
        id="invented_observations",
        title=f"The model writes observations itself in at least {percent(len(ids) / count)} of {count:,} rollouts",
        cost=len(ids) / count * weighed.cost,
        than=weighed.than,
        evidence=(f"One writes: {' '.join(lines[int(ids[0])].split())[:_SHOWN]}",),
        suggestion="End answers where the environment's turn begins: stop strings, end token, mask.",
        where=links.ids(ids),
        **began,
        own=affected[is_last],
        is_least=True,
    )


def _find_invented(read: Mapping[int, Texts], usual: Container[str]) -> dict[int, str]:
    """Return of each rollout the first line of the model's that is labelled as another's, after other text, and begins
    as usual, but was not told before.
    """
    lines = dict[int, str]()
    for row, texts in read.items():
        heard = ""
        for message in texts.messages:
            if message.get("role") != "assistant":
                heard += text_of(message)
                continue
            answer = split_reasoning(text_of(message))[1].strip()
            for line in islice(chain.from_iterable(pattern.finditer(answer) for pattern in _LABELS), _MOST_LINES):
                begins_alike = line.re is _LABELLED and _first_words(line["text"]) in usual
                is_usual = begins_alike or f"{line['speaker']}:".casefold() in usual
                if is_usual and row not in lines and line["text"].strip() not in heard:
                    lines[row] = line[0]
    return lines


def _first_words(text: str) -> str:
    """Return the first three words of a text, without label, marks and numbers."""
    labelled = _LABELLED.match(f"\n{text[:_SHOWN]}")
    return " ".join(re.findall(r"\w+", kind_of(labelled["text"] if labelled else text[:_SHOWN]))[:3])


def _list_observed(texts: Texts) -> list[Mapping[str, Any]]:
    """Return what was heard after the first answer."""
    after = dropwhile(lambda message: message.get("role") != "assistant", texts.messages)
    return [message for message in after if message.get("role") != "assistant"]


def _read_speaker(text: str) -> str:
    """Return the label that a text begins with, as "observation:" or "[page:"; "" if it begins otherwise."""
    lines = (pattern.match(f"\n{text[:_SHOWN]}") for pattern in _LABELS)
    return next((f"{line['speaker']}:".casefold() for line in lines if line and line["speaker"]), "")


DIAGNOSTIC = check(
    "invented_observations",
    "Invented observations",
    f"Share of rollouts above {_INVENTED:.0%} in which an answer, after other text and outside of its reasoning, has a "
    "line with another speaker's label or tag that begins, but for numbers, with the same three words as what more "
    f"than {_COMMON:.0%} of the rollouts hear (or with a label, such as `Observation:` or `[page`, with which "
    f"{_MOST_SAY:.0%} of them get an observation, and hardly an answer began at first), and is no quotation; if they "
    "lose more than others of their groups "
    "(than earlier rollouts, if whole groups have it), as in `new_observation`. At most "
    f"{_MOST_READ:,} rollouts of the last steps, and as many before, are read.",
    needs("observations", lambda run: run.has_observations),
    _check,
    needs_calls=True,
)
