"""Errors in observations tell rollouts of a group apart, whatever differs in their lines."""

import pytest

from logs_ui.recorder.diagnosis.card import Texts
from logs_ui.recorder.diagnosis.error_lines import list_cuts, list_errors, merge_errors
from tests.faults.columns import diagnosed
from tests.faults.registry import FAULTS, UNEXPLAINED


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("error within groups: shop", "\u201cError: order \u2026 is already \u2026\u201d 59%, in better ones 0%."),
        (
            "error within groups: files",
            "\u201cPermissionError: [Errno \u2026] Permission denied: \u2026\u201d 56%, in better ones 5%.",
        ),
        ("failing observation: full disk", "No space left on device: \u2026\u201d 19%, in better ones 0%."),
        ("healthy observation: kinds", None),
        ("healthy observation: errors", None),
    ],
)
def test_the_error_that_low_rollouts_of_groups_hear_is_quoted(name: str, line: str | None) -> None:
    (fault,) = (fault for fault in (*FAULTS, *UNEXPLAINED) if fault.id == name)
    assert fault.made is not None
    rest = diagnosed(fault.made()).report.scored_low
    assert rest is not None
    said = [it for it in rest.evidence if "with the error" in it]
    assert [line in it for it in said if line] == [True] * (line is not None)


def test_lines_are_merged_by_their_longest_common_beginning() -> None:
    heard = [
        "Error: order #W12 is already cancelled",
        "Error: order #W3 is already refunded, see '/a/b c' or /tmp/x_1.txt",
        "ok\nError: order #W3 is already refunded, see 'd' or tmp/y",
    ]
    texts = {row: Texts([], [{"observation": text}]) for row, text in enumerate(heard)}
    assert merge_errors(texts) == {
        frozenset({0, 1, 2}): "Error: order \u2026 is already \u2026",
        frozenset({0}): "Error: order \u2026 is already cancelled",
        frozenset({1, 2}): "Error: order \u2026 is already refunded, see \u2026 or \u2026",
    }


def test_a_line_that_names_an_error_is_quoted_without_signs_before_it() -> None:
    lines = ["ok", "INTERNAL> OSError: full", "  E   .x.ValueError: bad  \r", ">> KeyError", "#...#", "No Errors here"]
    text = "\n".join([*lines, "json.JSONDecodeError: at 3", "E       AssertionError: no\n"])
    found = list_errors(Texts([], [{"observation": text}]))
    assert found == {"OSError: full", "KeyError", "json.JSONDecodeError: at 3", "AssertionError: no"}


def test_an_error_in_metadata_is_read_at_any_depth() -> None:
    session = {"error": "server at capacity\ntry again", "code": 503}
    no_errors = {"error": "None", "exception": 7, "loss": {"error": "0.12"}, "frame": [[[0, 1]]]}
    action = {"observation": "ok", "metadata": {"calls": [{"session": session}], "info": no_errors, "error": ""}}
    assert list_errors(Texts([], [action])) == {"server at capacity"}


def test_what_was_cut_is_quoted_without_what_is_before_it() -> None:
    text = "the house on the hill [output truncated: 12 more characters] and\n7 rows omitted\none more page\n"
    assert list_cuts(Texts([], [{"observation": text}])) == {"rows omitted", "output truncated: 12 more characters"}


@pytest.mark.parametrize("text", ["Weights must not exceed 50.", "No items were omitted from this list.", "Too long."])
def test_prose_says_of_nothing_that_was_cut(text: str) -> None:
    assert list_cuts(Texts([], [{"observation": text}])) == set()


HARD = ["\n", ".", "##########\n#  .  @  #\n", "Error ", "ErrorError", "| - |\n", ".\n", " 'a", "Error: a-'", "Error/"]


@pytest.mark.timeout(5)
@pytest.mark.parametrize("part", [*HARD, "#", "a", "1", "truncate ", "1 more "])
def test_errors_and_cuts_are_looked_for_in_long_observations(part: str) -> None:
    texts = Texts([], [{"observation": "Error" + part * 20_000}])
    merge_errors({1: texts})
    assert list_cuts(texts) == set()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "timeout",
            "These rollouts differ from others of their groups most in metrics.judge_seconds (60.2, others 6.63).",
        ),
        ("retries", "These rollouts differ from others of their groups most in metrics.retries (4, others 0.502)."),
        (
            "in time",
            "none of 9 figures differs clearly (metrics.judge_seconds, tokens per turn, sampled tokens and 6 more).",
        ),
    ],
)
def test_a_failing_judge_is_told_by_what_the_rollout_function_measured(name: str, said: str) -> None:
    (fault,) = (fault for fault in FAULTS if fault.id == f"failing judge: {name}")
    assert fault.made is not None
    assert any(it.endswith(said) for it in diagnosed(fault.made()).report.cards[0].evidence)
