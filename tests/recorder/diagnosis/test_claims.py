"""The generated shelf: the first finding is what was planted, and each sentence what the generator made.

A sentence that no pattern in `claims/` describes fails: whoever writes a new one says there how to count it.
"""

import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from logs_ui.recorder.diagnosis import Card
from tests.faults import Fault
from tests.faults.columns import diagnosed, stop_reason
from tests.faults.registry import FAULTS, UNEXPLAINED
from tests.faults.runs import Rollout
from tests.recorder.diagnosis.claims import acting, answers, functions, habits, places, prompts, training
from tests.recorder.diagnosis.claims.case import (
    Case,
    actions,
    cancels,
    ended,
    error,
    grouped,
    is_cut,
    loses_more,
    repeats,
    reward,
    short,
    tail,
    task,
)
from tests.support.exhaustive import marked_cases

GENERATED = [fault for fault in (*FAULTS, *UNEXPLAINED) if fault.made is not None]


def in_its_eval(case: Case, card: Card) -> Case:
    """Return the case that a card is counted in: for one of an eval that the whole run hides, that eval alone."""
    if not card.eval:
        case.card = card
        return case
    alone = Case(replace(case.run, rollouts=[it for it in case.run.rollouts if it.eval == card.eval]))
    alone.card = next(other for other in alone.report.cards if other.id == card.id)
    assert (card.title, card.evidence) == (f"{card.eval}: {alone.card.title}", alone.card.evidence)
    assert card.share == pytest.approx((alone.card.share or 0.0) * len(alone.last) / len(case.last))
    return alone


PLAIN = (
    "Advantages come from differences within a group", "Advantages compare a completion with its group",
    "For on-policy samples the two are equal in expectation.", "It is logged by the trainer.",
    'With vllm_mode="server", TRL sends only the first prompt of each group', "reset() returned different ",
    "For some of them it is not known which differs:",
    "These steps do not show whether the new tasks ", "There is no other group.",
    "The length and the limit of truncated generations are not recorded.",
    "Compared, no large difference beyond chance: ", "Rollouts of the findings above have ",
    "No action of theirs was parsed and executed, and no tool call.", "One ends with: ", "For example: ",
    "It is the sampler's mean of -log p.",
)  # fmt: skip
"""Beginnings of sentences without a figure."""


def pattern(template: str) -> str:
    """Return a regular expression: `#` is a word, `@` any text, `[...]` may be missing, `{a|b}` is one of two."""
    text = re.escape(template).replace(r"\#", r"(\S+?)").replace("@", "(.+?)")
    text = re.sub(r"\\\{(.+?)\\\|(.+?)\\\}", r"(?:\1|\2)", text)
    return text.replace(r"\[", "(?:").replace(r"\]", ")?")


def loses_unsent(case: Case) -> tuple[float, ...]:
    return (fmean(it.is_hit for it in case.last) * loses_more(case, case.card.than),)


def loses(case: Case) -> tuple[float, ...]:
    """Return what the card's rollouts lose more than the others, and what they lose, per rollout of the last steps."""
    own, others = (
        [short(case, rollout) for rollout, is_own in case.of_card() if is_own is side] for side in (True, False)
    )
    share = len(own) / len(case.last)
    return share * (fmean(own) - fmean(others or [0.0])), share * fmean(own)


def loses_signal(case: Case) -> tuple[float, ...]:
    """Return the loss of all rollouts, times the share of groups in which functions cancel out."""
    share, lost = fmean(map(cancels, case.groups)), fmean(short(case, rollout) for rollout in case.last)
    return (share * lost,) if "cancel" in case.card.title else ()


COSTS: dict[str, Callable[[Case], tuple[float, ...]]] = {
    **dict.fromkeys(("loops", "truncation", "empty_answers", "cut_prompts", "unfilled_prompts", "lost_format"), loses),
    **dict.fromkeys(("never_acted", "parse_failures", "degenerate_text", "never_matches"), loses),
    "reward_parts": loses_signal,
    "unsent_prompts": loses_unsent,
}
"""Returns what a card may cost, by its id: nothing where that is not counted."""


def cause(rollout: Rollout) -> str:
    if error(rollout):
        return "infrastructure"
    return "invalid_reward" if reward(rollout) is None else "wrong_answer" if ended(rollout) else "another"


COLUMNS: dict[str, Callable[[Rollout], Any]] = {
    "step": lambda rollout: rollout.step,
    "eval": lambda rollout: rollout.eval,
    "reward": reward,
    "task": task,
    "family": lambda rollout: f"{task(rollout).partition('/')[0]}/",
    "stop": stop_reason,
    "cause": cause,
    "action_tail": tail,
    "repeats": repeats,
    "env_steps": lambda rollout: len(actions(rollout)) or None,
    "prompt_tokens": lambda rollout: rollout.tokens and len(rollout.tokens.prompt_ids),
}
"""Returns a rollout's value by the filter's name of its column."""


SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def opens(case: Case, rollout: Rollout, where: str) -> bool:
    """Return whether a filter selects a rollout."""
    terms = re.findall(r"(-?)(\w+)(?:\.(\w+))?([:<>]=?)((?:\"[^\"]*\"|[^\s\"])+)", where)
    return all(
        has(value_of(case, rollout, name, key), sign, text) is not bool(minus) for minus, name, key, sign, text in terms
    )


def value_of(case: Case, rollout: Rollout, name: str, key: str) -> Any:
    if key:
        return {"rewards": rollout.values or {}, "metadata": rollout.metadata}[name].get(key)
    return case.numbers[id(rollout)] if name == "id" else COLUMNS[name](rollout)


def has(value: Any, sign: str, text: str) -> bool:
    """Return whether a value is what a term says: `>=2`, `:none`, `:a,"b c"` or `:3..5,7`."""
    if value is None or text == "none":
        return value is None and text == "none"
    if sign != ":":
        return bool(SIGNS[sign](value, float(text)))
    entries = [entry.strip('"') for entry in re.findall(r"\"[^\"]*\"|[^,]+", text)]
    if isinstance(value, str):
        return value in entries
    return any(float(entry.split("..")[0]) <= value <= float(entry.split("..")[-1]) for entry in entries)


ROOMS = (acting, answers, habits, functions, places, prompts, training)
CLAIMS = {re.compile(pattern(template)): count for room in ROOMS for template, count in room.COUNTS.items()}
"""Two patterns may match a sentence: then the first counts."""


def choose_variants(faults: Iterable[Fault]) -> list[Any]:
    """Return the first variant of each check, eight healthy ones and, marked, the first of each other cause; all of
    them with `--exhaustive`.
    """
    causes = grouped(faults, lambda fault: fault.id.partition(":")[0])
    firsts = grouped((cause[0] for cause in causes), lambda fault: fault.expected or "")
    few = [fault for of_check in firsts for fault in of_check[: 1 if of_check[0].expected else 8]]
    more = [fault for of_check in firsts for fault in of_check if fault not in few]
    return marked_cases([*few, *more, *(fault for cause in causes for fault in cause[1:])], len(few), len(more))


@pytest.fixture(scope="module", params=choose_variants(GENERATED), ids=lambda fault: fault.id)
def planted(request: pytest.FixtureRequest) -> tuple[Fault, Case]:
    fault: Fault = request.param
    assert fault.made is not None
    return fault, Case(fault.made())


def test_the_first_card_names_what_was_planted(planted: tuple[Fault, Case]) -> None:
    fault, case = planted
    assert not case.report.warming_up
    cards = [(card.id, card.cost, card.title) for card in case.report.cards]
    assert (cards[0][0] if cards else None) == fault.expected, cards


def test_each_sentence_is_what_the_generator_made(planted: tuple[Fault, Case]) -> None:
    _, case = planted
    wrong = []
    for card in filter(None, (*case.report.cards, case.report.scored_low)):
        mine = in_its_eval(case, card)
        for sentence in (mine.card.title, *card.evidence, *[card.extent] * bool(card.clause)):
            if sentence.startswith(PLAIN):
                continue
            match = next(filter(None, (it.fullmatch(sentence) for it in CLAIMS)), None)
            assert match, f"how to count {sentence!r}?"
            count = CLAIMS[match.re]
            if (counted := count(mine, *match.groups())) != match.groups():
                wrong.append(f"{sentence!r} is {counted}")
    assert wrong == []


def test_each_card_costs_what_its_rollouts_lose(planted: tuple[Fault, Case]) -> None:
    _, case = planted
    for card in case.report.cards:
        mine = in_its_eval(case, card)
        known = COSTS[card.id](mine) if card.id in COSTS and card.cost is not None else ()
        part = len(mine.last) / len(case.last)
        assert not known or any(card.cost == pytest.approx(cost * part) for cost in known), card.title


def test_last_answers_are_read_where_most_lack_an_action(planted: tuple[Fault, Case]) -> None:
    _, case = planted
    for card in (card for card in case.report.cards if card.id == "parse_failures"):
        case.card = card
        own = [rollout for rollout, is_own in case.of_card() if is_own]
        lack = sum(rollout.turns[-1].action is None and not is_cut(rollout) for rollout in own)
        is_read = any("that were read" in sentence and " end with " in sentence for sentence in card.evidence)
        assert is_read is (2 * lack >= len(own)), card.evidence


def test_each_filter_opens_the_rollouts_of_its_card(planted: tuple[Fault, Case]) -> None:
    _, case = planted
    for card in case.report.cards:
        names = re.findall(r"(?:^|\s)-?(\w+)[.:<>]", re.sub(r"\"[^\"]*\"", "", card.where))
        if {*names} <= {"id", "rewards", "metadata", *COLUMNS}:  # others are counted while a run is recorded
            opened = [opens(case, rollout, card.where) for rollout in case.last]
            assert card.own is None or opened == card.own.tolist(), card.where
            # One about all rollouts, or about those after NaN, may open the step at which to look.
            later = [rollout.step > (card.since_step or 0) for rollout in case.last]
            expected = fmean(later if card.id == "not_finite" else opened)
            assert card.share == 1.0 or card.share == pytest.approx(expected), card.where


def test_the_task_that_loses_most_is_named() -> None:
    (fault,) = (fault for fault in GENERATED if fault.id == "forgotten task")
    assert fault.made is not None
    card = diagnosed(fault.made()).report.scored_low
    assert card is not None
    assert (
        "By tasks, rollouts that ended normally lose more in task 1 (mean reward 0); elsewhere it is 0.533."
        in card.evidence
    )
