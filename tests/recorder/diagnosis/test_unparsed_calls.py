"""What the last answers of rollouts hold in place of an action."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from logs_ui.recorder.diagnosis import diagnose_rows
from logs_ui.recorder.diagnosis.card import Texts
from logs_ui.recorder.diagnosis.unparsed_calls import _end, _quote
from tests.faults.columns import diagnosed
from tests.faults.registry import FAULTS, UNEXPLAINED
from tests.recorder.diagnosis.test_diagnosis import rows_of
from tests.support.exhaustive import cases

RAW = "a whole call with raw line breaks in its strings"
BROKEN = "a call whose JSON is broken"
SPEAKS = "an answer that writes a tool's or a user's turn"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ({"content": '<tool_call>{"tool": "look"}</tool_call>'}, 'a call without "name"'),
        ({"content": '<tool_call>{"name": 7}'}, 'a call without "name"'),
        ({"content": '<tool_call>{"name": "look", </tool_call>'}, "a call whose JSON is broken"),
        ({"content": "<tool_call>" + "[" * 100_000}, "a call whose JSON is broken"),
        ({"content": '<tool_call>{"name": "look"}</tool_call>'}, "a whole call"),
        ({"content": "", "tool_calls": [{"function": {"name": "look"}}]}, "a whole call"),
        ({"content": '<tool_call>{"name": "edit", "arguments": {"new": "a\n\tb"}}</tool_call>'}, RAW),
        ({"content": '<tool_call>{"name": "edit", "arguments": {"new": "a\nb"}</tool_call>'}, BROKEN),
        ({"content": '<tool_call>{"tool": "edit", "arguments": {"new": "a\nb"}}</tool_call>'}, 'a call without "name"'),
        ({"content": '<tool_call>\n{"name": "edit",\n"arguments": {"at": NaN}}</tool_call>'}, BROKEN),
        ({"content": "", "tool_calls": [{"function": {"name": "edit", "arguments": '{"new": "a\nb"}'}}]}, RAW),
        ({"content": "Thought: I look.\nAction: look[door]"}, "a call in another form"),
        ({"content": "<tool_call><function=look></function></tool_call>"}, "a call in another form"),
        ({"content": '<tool_call>{"name": </tool_call> <tool_call>{"name": "look"}</tool_call>'}, "a whole call"),
        ({"content": None, "tool_calls": [{"function": {"name": "look", "arguments": '{"at": '}}]},
         "a call whose JSON is broken"),
        ({"content": "<think>Is it 4?"}, "reasoning alone"),
        ({"content": "\n" * 100_000}, "no text"),
        ({"content": '```json\n{"name": "look"}\n```'}, "a call in another form"),
        ({"content": "I would look at the door."}, "text without a call"),
        ({"content": "I look.\n<tool_response>\nA door.\n</tool_response>\nSo it is a door."}, SPEAKS),
        ({"content": "It is a door.\n\nUser: Thanks!"}, SPEAKS),
        ({"content": "<think>Does <tool_response> come?</think>It is a door."}, "text without a call"),
        ({"content": [{"type": "text", "text": " "}]}, "no text"),
        ({"content": None}, "no text"),
    ],
)  # fmt: skip
def test_a_last_answer_is_of_a_kind(answer: dict[str, Any], kind: str) -> None:
    assert _end({"role": "assistant", **answer})[0] == kind


def test_low_rollouts_that_end_with_nothing_are_told_from_better_ones() -> None:
    place = np.arange(400)

    def read(ids: Sequence[int]) -> dict[int, Texts]:
        """Every second low rollout, which are those with an odd id, says nothing."""
        return {row: Texts([{"role": "assistant", "content": "" if row % 4 == 1 else "It is 4."}], []) for row in ids}

    low = diagnose_rows(rows_of(400, steps=20, reward=place % 2), read_texts=read).scored_low
    assert low is not None
    assert "Of 100 low rollouts that were read, 50 end with no text; of 100 better ones, 0." in low.evidence


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("fault", "is_told"),
    [(f"invented answers: {it}", True) for it in ("tool", "user", "turn")] + [("healthy, transcripts", False)],
)
def test_invented_answers_are_told_with_their_onset(fault: str, *, is_told: bool) -> None:
    made = next(it.made for it in (*FAULTS, *UNEXPLAINED) if it.id == fault)
    assert made is not None
    low = diagnosed(made()).report.scored_low
    said = [] if low is None else [it for it in low.evidence if SPEAKS in it or " of those since step " in it]
    assert len(said) == 2 * is_told
    assert not is_told or 9 <= int(said[1].split("since step ")[1].split()[0]) <= 13


@pytest.mark.exhaustive
@pytest.mark.parametrize(("fault", "said"), [
    ("acts less and less: search", "It acted before step 11, so look at the policy: "),
    ("acts less and less: game", "It acted before step 15, so look at the policy: "),
    ("idle: many tasks", "Show an example of an action in the prompt."),
    ("unnamed call: 32 rollouts", "Show a whole call in the prompt: "),
])  # fmt: skip
def test_the_prompt_is_to_be_changed_only_where_it_never_led_to_actions(fault: str, said: str) -> None:
    made = next(it.made for it in FAULTS if it.id == fault)
    assert made is not None
    (card,) = [it for it in diagnosed(made()).report.cards if it.id == "never_acted"]
    assert card.suggestion.startswith(said)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("fault", "tool", "is_setup"),
    cases([
        ("refused calls: edits", "edit_file", True),
        ("refused calls: queries", "", True),  # there is no other tool
        ("refused calls: unknown tool", "open_page", True),
        ("broken calls: unlearned", "edit_file", False),
        ("broken calls: all tools", "", False),
    ], 2),
)  # fmt: skip
def test_calls_that_a_parser_should_read_are_a_fault_of_the_setup(fault: str, tool: str, *, is_setup: bool) -> None:
    made = next(it.made for it in FAULTS if it.id == fault)
    assert made is not None
    report = diagnosed(made()).report
    assert (report.cards[0].is_setup, report.verdict.id) == (is_setup, "setup" if is_setup else "improving")
    assert report.cards[0].title.partition(", mostly calls of ")[2] == tool


def test_answers_that_were_parsed_before_are_the_policys() -> None:
    late = np.arange(400) >= 200

    def read(ids: Sequence[int]) -> dict[int, Texts]:
        return {row: Texts([{"role": "assistant", "content": "I would look."}], []) for row in ids}

    reward = np.where(late, 0, np.arange(400) % 2)
    cards = [
        diagnose_rows(rows_of(400, steps=20, reward=reward, turns=1, **silent), read_texts=read).cards[0]
        for silent in ({"parse_failures": it, "parse_tail": it} for it in (late * 1.0, np.ones(400)))
    ]
    assert [it.id for it in cards] == ["parse_failures", "parse_failures"]
    begins = ["It acted before step 11", "Show an example of an action"]
    assert [it.suggestion.startswith(begin) for it, begin in zip(cards, begins, strict=True)] == [True, True]


@pytest.mark.parametrize(("is_executed", "has_texts"), [(True, True), (True, False), (False, True), (False, False)])
def test_an_executed_answer_is_no_call_in_another_form(*, is_executed: bool, has_texts: bool) -> None:
    """Low rollouts buy at once, in text that looks like a call; better ones end with words."""

    def read(ids: Sequence[int]) -> dict[int, Texts]:
        return {row: played("Action: press[red]" if row % 2 else "I am done.") for row in ids}

    def played(last: str) -> Texts:
        says = ["Action: look[shelf]", last]
        sent = [says[0], says[1] if is_executed else None]
        entries = [
            {"turn": turn, "text": text if has_texts else None, "action": action, "observation": action and "A bell."}
            for turn, (text, action) in enumerate(zip(says, sent, strict=True), 1)
            if has_texts or action
        ]
        return Texts([{"role": "assistant", "content": text} for text in says], entries)

    low = diagnose_rows(rows_of(400, steps=20, reward=np.arange(400) % 2), read_texts=read).scored_low
    assert low is not None
    said = [it for it in low.evidence if "end with a call in another form" in it]
    assert said == ([] if is_executed else [
        "Of 100 low rollouts that were read, 100 end with a call in another form; of 100 better ones, 0."
    ])  # fmt: skip


def test_a_call_is_quoted_from_its_beginning() -> None:
    call = "<tool_call>\n<function=book>\n<parameter=train>\nICE 73 to Basel\n</parameter>\n</function>\n</tool_call>"
    short = call.replace("\n<parameter=train>\nICE 73 to Basel\n</parameter>", "")
    assert _quote(f"I book it.\n{short}") == "<tool_call> <function=book> </function> </tool_call>"
    longer = " ".join(call.replace("Basel", f"Basel {'SBB ' * 20}").split())
    assert _quote(f"{short}\nAgain:\n{longer}") == f"{longer[:100]} \u2026"
    assert _quote(f"Thought: {'I wait. ' * 20}\nAction: wave[right]") == "Action: wave[right]"
    assert _quote("I wave. " * 20) == f"\u2026 {('I wave. ' * 20).strip()[-100:]}"


def test_tasks_in_which_no_rollout_acts_count_as_the_others_of_their_eval() -> None:
    """In 6 of 30 tasks none does, and 212 of the last 240 rollouts do not."""
    made = next(it.made for it in FAULTS if it.id == "unread call")
    assert made is not None
    last = [it for it in made().rollouts if it.step > 10]
    assert (sum(it.is_hit for it in last), len(last)) == (212, 240)
    card = diagnosed(made()).report.cards[0]
    assert card.title == "88% of rollouts with tools never call one"
    assert card.own is not None
    assert card.own.sum() == 212


def test_tasks_without_an_environment_do_not_count_beside_tasks_in_which_most_act() -> None:
    task = np.arange(400) // 4 % 4
    acts = np.where(task < 2, np.where(np.arange(400) % 5 > 0, 2.0, 0.0), np.nan)
    report = diagnose_rows(
        rows_of(
            400, steps=10, task=[f"task {it}" for it in task], env_steps=acts, tool_calls=0.0, reward=(acts > 0) * 1.0
        )
    )
    assert next(it for it in report.cards if it.id == "never_acted").title.startswith("20% of rollouts with an env")
