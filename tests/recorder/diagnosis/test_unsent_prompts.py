"""Prompts that were sent without instructions of the dataset's are a finding where others' hold them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from logs_ui.recorder.diagnosis import Card, Report, diagnose_rows
from logs_ui.recorder.diagnosis.card import Texts
from tests.recorder.diagnosis.test_diagnosis import rows_of
from tests.recorder.diagnosis.test_states import checked

COUNT = 960  # rollouts, in groups of 4
GROUP = np.arange(COUNT) // 4
HIT = GROUP % 3 == 0
LOW = np.where(HIT, np.arange(COUNT) % 4 == 0, np.arange(COUNT) % 4 != 0)
KINDS = np.where(HIT, "other", "dataset").astype(object)
RULES = "Think first.\nEnd with ANSWER: and the value."
NOTHING = dict.fromkeys(("action", "observation", "reward", "done", "metadata", "error"))
NAMES = [f"{'xy'[int(hit)]}/{group}" for hit, group in zip(HIT, GROUP, strict=True)]

Messages = Sequence[Mapping[str, Any]]
Read = Callable[[int], Texts]


def prompt(system: str | None, user: str) -> list[dict[str, Any]]:
    return [{"role": "system", "content": system}] * (system is not None) + [{"role": "user", "content": user}]


def texts(sent: Messages, given: Messages = (), *, answers: int = 1, turns: int = 1) -> Texts:
    said = [{"role": "assistant", "content": "So."}] * answers
    return Texts(
        [*sent, *said], [NOTHING | {"turn": turn + 1, "text": "So."} for turn in range(turns)], dataset_prompt=given
    )


def ruled(place: int) -> list[dict[str, Any]]:
    return prompt(RULES, f"Question {place}?")


def told(of_hit: Read, of_others: Read = lambda it: texts(ruled(it)), hit: Any = HIT, **columns: Any) -> Report:
    """Return the report of a run whose rollouts have these texts, by their place."""
    rows = rows_of(COUNT, steps=20, **({"reward": LOW, "sent_prompt": KINDS, "task": NAMES} | columns))
    return diagnose_rows(
        rows, read_texts=lambda ids: {it: (of_hit if hit[it - 1] else of_others)(it - 1) for it in ids}
    )


def found(report: Report) -> list[Card]:
    return [card for card in report.cards if card.id == "unsent_prompts"]


def without_system(place: int) -> Texts:
    return texts(ruled(place)[1:], ruled(place))


def without_own(place: int) -> Texts:
    """Each source has a system message of its own; that of one was never sent."""
    return texts(ruled(place)[1:], prompt("Play it safe.", f"Question {place}?"))


def with_default(place: int) -> Texts:
    """A chat template writes a system message of its own, where the dataset's is lost."""
    return texts(prompt("You are an AI.", f"Question {place}?"), ruled(place))


def formed(place: int) -> list[dict[str, Any]]:
    return prompt("Be brief.", f"Question {place}?\n{RULES}")


def as_one_text(place: int) -> Texts:
    """A template that is not known: the system message is in one text, and lines of the question are lost."""
    one = [{"role": "user", "content": f"<s>Be brief.</s>\n<u>Question {place}?</u>"}]
    return texts(one, formed(place))


def followed(place: int) -> list[dict[str, Any]]:
    """A question on what was said before."""
    answer = {"role": "assistant", "content": "Noted."}
    return [*prompt(RULES, f"Lease {place} is signed."), answer, *prompt(None, f"Question {place}?")]


def without_turns(place: int) -> Texts:
    """A client sends the last turn alone."""
    return texts([followed(place)[0], followed(place)[-1]], followed(place))


def without_lines(place: int) -> Texts:
    """The end of the only user message is cut, which is no whole message."""
    lines = [f"Fact {number} of {place}" for number in range(6)]
    return texts(prompt(RULES, "\n".join(lines[:4])), prompt(RULES, "\n".join(lines)))


def test_a_turn_that_is_another_in_each_prompt_is_missed_as_a_whole_alone() -> None:
    (card,) = found(told(without_turns, lambda it: texts(followed(it))))
    assert card.title.startswith("33% of rollouts are not sent one of the dataset's user messages (such as “Lease ")
    assert not found(told(without_lines))


@pytest.mark.parametrize(("of_hit", "of_others", "title"), [
    (without_system, ruled, "the dataset's system message (\u201cThink first. End with ANSWER: and the\u2026\u201d)"),
    (without_own, ruled, "the dataset's system message (\u201cPlay it safe.\u201d)"),
    (with_default, ruled, "a line of the dataset's system message (\u201cThink first.\u201d)"),
    (as_one_text, formed, "a line of the dataset's user message (\u201cThink first.\u201d)"),
])  # fmt: skip
def test_what_is_missing_is_named(of_hit: Read, of_others: Callable[[int], Messages], title: str) -> None:
    (card,) = found(told(of_hit, lambda it: texts(of_others(it))))
    assert card.title == f"33% of rollouts are not sent {title}"
    assert card.own is not None
    assert card.since_step == 1


def summarised(place: int) -> Texts:
    """Healthy: a harness replaces the beginning of long rollouts by a summary, and long ones do worse."""
    return texts([{"role": "user", "content": f"So far: {place}."}], ruled(place), answers=2, turns=9)


def of_another_environment(place: int) -> Texts:
    """Healthy: an environment has its own rules in place of the dataset's."""
    return texts(prompt(f"You play. Move wisely, as a master would.\nBoard {place}.", "Go."), ruled(place))


def of_own_line(place: int) -> Texts:
    """Healthy: what is not sent stands in no other prompt."""
    return texts(prompt(None, f"Board {place}."), prompt(None, f"Play well.\nGame {place}"))


@pytest.mark.parametrize("of_hit", [summarised, of_another_environment, of_own_line, lambda _: Texts((), ())])
def test_other_prompts_by_design_are_none(of_hit: Read) -> None:
    report = told(of_hit)
    assert found(report) == []
    known = "no instructions are known to be missing without new ones in their place"
    said = f"33% of rollouts are sent another prompt; {known}."
    assert checked(report, "unsent_prompts").said == said


def test_what_costs_nothing_or_is_so_everywhere_is_none() -> None:
    said = "% of rollouts are not sent all of the dataset's prompt (threshold 5%); no loss is beyond chance."
    report = told(without_system, reward=np.arange(COUNT) % 2)
    assert found(report) == []
    assert checked(report, "unsent_prompts").said == f"33.3{said}"
    report = told(without_system, sent_prompt="other")
    assert found(report) == []
    assert checked(report, "unsent_prompts").said == f"100{said}"


def test_since_a_step_whole_prompts_before_are_compared() -> None:
    late = GROUP >= 120

    kinds, reward = np.where(late, "other", "extended").astype(object), np.where(late, 0.0, np.arange(COUNT) % 2)
    (card,) = found(told(without_system, hit=late, sent_prompt=kinds, reward=reward))
    assert card.since_step == 11
    assert card.own is not None
    assert card.than == "others before"
    assert card.own.tolist() == late[-len(card.own) :].tolist()
