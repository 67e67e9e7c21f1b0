"""References are told apart by their form, and looked for in answers of another form."""

import numpy as np
import pytest

from logs_ui.recorder.diagnosis import diagnose_rows
from logs_ui.recorder.diagnosis.references import holds, kind_of, reference_column
from logs_ui.recorder.vocabulary import Lack
from tests.recorder.diagnosis.test_diagnosis import rows_of


@pytest.mark.parametrize(
    ("kind", "references"),
    [
        ("has a thousands separator", ["1,250", "-12,345,678", "1,250.5", "$1,250$"]),
        ("is an integer", ["7", "-12", " 40 "]),
        ("has decimals", ["0.5", ".25", "3.0"]),
        ("is a fraction", ["3/4", "-7 / 2", r"\frac{3}{4}"]),
        ("has a unit", ["12 km", "40%", "$12.50", "1,250 km", "3 square meters", "5kg"]),
        ("is a list", ["1, 2", "[1; 2; 3]", "red, green and blue", "(3, 4)"]),
        ("is an expression", [r"2\sqrt{3}", "x^2", "y = 3x", "2*x"]),
        ("is a text", ["Paris", "(A)", "two words", "12:30", ""]),
    ],
)
def test_each_reference_is_of_one_kind(kind: str, references: list[str]) -> None:
    assert {it: kind_of(it) for it in references} == dict.fromkeys(references, kind)


@pytest.mark.parametrize(
    ("answer", "reference", "is_held"),
    [
        ("So the answer is 1250.", "1,250", 1),
        ("So it is 1,250 in all.", "1250", 1),
        ("So it is 12500.", "1,250", 0),
        ("about 0.75", "3/4", 1),
        (r"\boxed{\frac{3}{4}}", "0.75", 1),
        ("12 kilometres", "12 km", 1),
        ("It is in PARIS!", "Paris", 1),
        ("It is 1250" + " and so on" * 40, "1,250", 0),
        ("7/0 and 8", "8", 1),
    ],
)
def test_the_end_of_an_answer_holds_a_reference_in_any_form(answer: str, reference: str, is_held: int) -> None:
    assert holds(answer, reference) == is_held


def test_the_column_is_named_like_a_reference_and_the_same_within_groups() -> None:
    rows = rows_of(8)
    of_group = [str(it) for it in rows.group]
    assert reference_column(rows, {"metadata.level": of_group, "metadata.extra_info.ground_truth": of_group}) == (
        "metadata.extra_info.ground_truth"
    )
    assert reference_column(rows, {"metadata.answer": [str(it) for it in np.arange(8)]}) is None
    assert reference_column(rows, {"metadata.answer": [None] * 7 + ["4"]}) is None


@pytest.mark.parametrize("answers", [
    pytest.param([str(place % 2) for place in range(48)], id="differs within groups"),
    pytest.param([str(place // 4) if place < 16 else None for place in range(48)], id="only in a third"),
])  # fmt: skip
def test_a_column_that_is_there_and_cannot_be_used_is_not_denied(answers: list[str | None]) -> None:
    rows = rows_of()
    labels = {"metadata.answer": answers}
    report = diagnose_rows(rows, read_labels=lambda some: labels if len(some) == len(rows) else {})
    said = next(check.said for check in report.checked if check.id == "final_answers")
    assert said.startswith("No column that is named like a reference answer is in most rollouts and the same within")


def test_files_without_a_reference_are_not_said_to_lack_task_names() -> None:
    report = diagnose_rows(rows_of(), config={"import": {"format": "verl", "lacks": [Lack.TASKS]}})
    said = {check.id: check.said for check in report.checked}
    assert said["final_answers"].startswith("No column that is named like a reference answer")
    assert not any("task names" in said[check] for check in ("final_answers", "never_matches"))


def test_of_several_columns_the_surest_name_counts_and_a_chosen_one_above_all() -> None:
    rows = rows_of(8)
    of_group = [str(it) for it in rows.group]
    labels = {"metadata.solution": of_group, "metadata.answer": of_group, "metadata.key": of_group}
    assert reference_column(rows, labels) == "metadata.answer"
    assert reference_column(rows, labels, "key") == "metadata.key"
    assert reference_column(rows, labels, "no such column") is None
