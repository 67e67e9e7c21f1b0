"""What the comparison of two rollouts says, and the order of groups, by their dataclasses."""

import pytest

from logs_ui.app.pages.groups.choice import GroupChoice
from logs_ui.app.pages.groups.compare_rollouts_page import Aligned, ComparedFigure, Half, Piece, better_side
from logs_ui.app.pages.groups.group_page import is_one_prompt
from logs_ui.app.parts.differences import Segment
from logs_ui.recorder.queries import GroupSort
from logs_ui.recorder.storage.tables import EvaluationRow


@pytest.mark.parametrize(
    ("figure", "texts"),
    [
        (ComparedFigure("turns", "count", 1200, 3), ("1,200", "3", "\u22121,197")),
        (ComparedFigure("reward", "number", 0.25, 1), ("0.250", "1.000", "+0.750")),
        (ComparedFigure("advantage", "signed", -0.5, 0.5), ("\u22120.50", "+0.50", "+1.000")),
        (ComparedFigure("duration", "duration", 0.25, 0.5), ("250 ms", "500 ms", "+250 ms")),
        (ComparedFigure("duration", "duration", 3.5, 0.5), ("3.5 s", "500 ms", "\u22123.0 s")),
        (ComparedFigure("turns", "count", None, 3), ("—", "3", "")),
    ],
)
def test_a_figure_of_both_has_their_difference(figure: ComparedFigure, texts: tuple[str, str, str]) -> None:
    assert figure.texts == texts


@pytest.mark.parametrize(
    ("a", "b", "side"), [(1.0, 0.0, "a"), (0.0, 1.0, "b"), (1.0, 1.0 + 1e-7, ""), (None, 1.0, ""), (1.0, None, "")]
)
def test_the_better_side_has_the_higher_reward(a: float | None, b: float | None, side: str) -> None:
    assert better_side(a, b) == side


def piece(name: str, *segments: Segment) -> Piece:
    half = Half(list(segments), None, is_shortened=False)
    return Piece(name, half, half, is_equal=False, is_mono=False, is_marked=True)


@pytest.mark.parametrize(
    ("segments", "size"),
    [
        ([Segment("x" * 41), Segment("y", changed=True), Segment("z" * 99)], 41),
        ([Segment("x" * 40), Segment("y", changed=True)], 0),
        ([Segment("x" * 10), Segment("", skipped=90)], 100),
        ([Segment("y" * 99, changed=True)], 0),
    ],
)
def test_a_beginning_that_is_long_enough_is_alike(segments: list[Segment], size: int) -> None:
    assert Aligned(1, [piece("assistant", *segments)], is_divergence=True, missing="", size=99).shared_size == size


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("assistant", "message"),
        ("action run: command", "run: command"),
        ("action run", "action run"),
        ("observation: stdout", "observation: stdout"),
    ],
)
def test_a_piece_is_named_as_readers_do(name: str, title: str) -> None:
    assert piece(name).title == title


@pytest.mark.parametrize(
    ("prompts", "is_one"),
    [
        ([(None, None), (None, None)], True),
        ([("other", 7), ("other", None)], True),
        ([("other", 7), ("other", 8)], False),
        ([("other", 7), (None, 7)], False),
    ],
)
def test_a_group_has_one_prompt_unless_another_was_seen(
    prompts: list[tuple[str | None, int | None]], *, is_one: bool
) -> None:
    assert is_one_prompt([EvaluationRow(sent_prompt=sent, prompt_key=key) for sent, key in prompts]) == is_one  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("choice", "parameters", "kind_name"),
    [
        (GroupChoice(), {}, ""),
        (GroupChoice(GroupSort.LOWEST_MEAN), {"sort": "lowest-mean"}, ""),
        (GroupChoice(kind="dead"), {"kind": "dead"}, "zero-variance"),
        (GroupChoice(kind="level"), {"kind": "level"}, "all equal"),
        (GroupChoice(GroupSort.DEAD_FIRST, "mixed"), {"sort": "dead-first", "kind": "mixed"}, "mixed"),
    ],
)
def test_a_choice_is_kept_unless_it_is_usual(choice: GroupChoice, parameters: dict[str, str], kind_name: str) -> None:
    assert (choice.parameters, choice.kind_name) == (parameters, kind_name)
