"""The end of a rollout's last message, and the column of a dataset that has the right answer."""

from typing import Any

import pytest

from logs_ui.recorder.diagnosis.answers import Told, final_answer, reference_of
from tests.faults.answering import all_shuffled, shuffled_category, shuffled_names
from tests.faults.columns import diagnosed
from tests.faults.runs import Turn
from tests.faults.scripts import Place, Played, Script, Shape, generated


def said(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


@pytest.mark.parametrize(
    ("text", "answer", "place"),
    [
        (r"First \boxed{1}, no: $\boxed{\frac{1}{2}}$. Done.", r"\frac{1}{2}", r"after the last \boxed{"),
        ("<answer>\n72\n</answer>\nI am sure.", "72", "after the last <answer>"),
        (r"\boxed{7}, or <answer>8</answer>", "8", "after the last <answer>"),
        ("48 / 2 = 24\n#### 72", "72", "after the last ####"),
        ("Two documents say so.\nThe capital is Paris. \n\n", "The capital is Paris.", "the last line"),
        ("<think>\nIs it 3? </think>\nIt is 4.", "It is 4.", "the last line"),
        (r"It is \boxed{4", r"It is \boxed{4", "the last line"),
        ("</answer> is how it ends", "</answer> is how it ends", "the last line"),
    ],
)
def test_an_answer_stands_at_the_end_of_the_last_message(text: str, answer: str, place: str) -> None:
    assert final_answer([said("Not this."), said(text)]) == Told(answer, place)


@pytest.mark.parametrize(
    ("messages", "turns"),
    [
        ([], None),
        ([{"role": "user", "content": "1 + 1?"}], None),
        ([said("I look."), said("", tool_calls=[{}])], 2),
        ([said("<think>It may be 4, or")], 1),
        ([said(None, reasoning_content="It is 4.")], 1),
        ([said("An example: 4.")], 0),
    ],
)
def test_a_last_message_without_a_text_gives_no_answer(messages: list[dict[str, Any]], turns: int | None) -> None:
    assert final_answer(messages, turns) is None


def call(name: str, arguments: Any) -> dict[str, Any]:
    return said("I have it.", tool_calls=[{"function": {"name": name, "arguments": arguments}}])


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        (call("answer", '{"text": "$4,809.31"}'), Told("$4,809.31", "the call of answer")),
        (call("submit", {"final_result": 7}), Told("7", "the call of submit")),
        (call("submit", {"confirm": True}), Told("I have it.", "the last line")),
        (call("finish", '{"status": "done"}'), Told("I have it.", "the last line")),
        (call("answer", '{"text": "a", "sure": true}'), Told("I have it.", "the last line")),
        (call("answer", "{broken"), Told("I have it.", "the last line")),
        (call("search", '{"text": "a"}'), Told("I have it.", "the last line")),
    ],
)
def test_an_answer_may_be_the_argument_of_a_call(message: dict[str, Any], answer: Told) -> None:
    assert final_answer([message]) == answer


def test_parts_of_a_message_are_one_text() -> None:
    parts = [{"type": "text", "text": "It is "}, {"type": "image_url"}, {"type": "text", "text": "4."}]
    assert final_answer([said(parts)]) == Told("It is 4.", "the last line")


def test_a_long_line_is_cut_at_its_beginning() -> None:
    answer = final_answer([said("x" * 100_000 + "end")])
    assert answer is not None
    assert (len(answer.text), answer.text[-3:]) == (2_000, "end")


@pytest.mark.parametrize(
    ("metadata", "column", "text"),
    [
        ({"dataset": {"question": "1 + 1?", "solution": "As 1 + 1 = 2.", "answer": 2}}, "answer", "2"),
        ({"dataset": {"reward_model": {"style": "rule", "ground_truth": "72"}}}, "reward_model.ground_truth", "72"),
        ({"dataset": {"gold_patch": "diff"}}, "gold_patch", "diff"),
        ({"dataset": {"answer": None, "solution": "2"}}, "solution", "2"),
        ({"dataset": {"targets": [1], "Expected_Answer": ["2", "two"]}}, "Expected_Answer", '["2","two"]'),
        ({"answer": "2", "notes": {"ground_truth": "3"}}, "answer", "2"),
        ({"dataset": "math", "ground_truth": [9]}, "ground_truth", "[9]"),
        ({"pred": "4", "gts": "5", "answer": "4"}, "gts", "5"),
    ],
)
def test_a_reference_is_told_by_the_name_of_its_column(metadata: dict[str, Any], column: str, text: str) -> None:
    assert reference_of(metadata) == Told(text, column)


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"dataset": {"level": 3, "answer_count": 2, "answer": ""}},
        {"dataset": {"level": 3}, "answer": "what the rollout function parsed"},
    ],
)
def test_what_no_name_tells_is_no_reference(metadata: dict[str, Any]) -> None:
    assert reference_of(metadata) is None


def test_a_chosen_column_takes_the_place_of_the_guess() -> None:
    metadata = {"dataset": {"answer": "2", "extra": {"key": "B"}}}
    assert reference_of(metadata, "extra.key") == Told("B", "extra.key")
    assert reference_of(metadata, "no such column") is None


@pytest.mark.exhaustive
@pytest.mark.parametrize("script", [shuffled_category, shuffled_names, all_shuffled])
def test_of_shuffled_references_only_a_part_can_be_told_apart(script: Script) -> None:
    run = generated(script, Shape(steps=20, groups=8, size=8, tasks=120))
    found = diagnosed(run).report.cards[0]
    last = [rollout.is_hit for rollout in run.rollouts if rollout.step > 10]
    assert 0.5 < (found.share or 0.0) / (sum(last) / len(last)) <= 1
    assert found.extent == f"at least {found.share:.0%} of rollouts"
    assert found.evidence[-1].startswith("By metadata.category: at least ")


@pytest.mark.exhaustive
def test_a_place_that_has_few_of_the_groups_that_are_read_has_its_share_of_all_rollouts() -> None:
    """One source of 40 has its references counted from 0, and 120 of 400 groups of the last steps are read."""

    def play(place: Place) -> Played:
        number, is_hit = 40 * place.step + place.group, place.group == 7
        given = number if place.random.random() < 0.95 else 9_000 + place.generation
        return Played(
            [Turn(f"<answer>{given}</answer>")], parts={"correct": float(given == number - is_hit)}, stop="stop",
            task=f"task {number}", metadata={"answer": str(number - is_hit), "source": "quiz" if is_hit else "book"},
            is_hit=is_hit,
        )  # fmt: skip

    card = next(it for it in diagnosed(generated(play, Shape(steps=14, groups=40))).report.cards)
    assert card.title.startswith("In metadata.source quiz the most frequent answer of 14 of 14 groups")
    assert card.share == pytest.approx(1 / 40, rel=0.1)
    assert card.evidence[1].endswith("so its newest 14 groups were read, of steps 1 to 14.")
