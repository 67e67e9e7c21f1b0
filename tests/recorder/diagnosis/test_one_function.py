"""One reward function that tells nothing, or fails; answers that are empty or lose their form."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from logs_ui.recorder.diagnosis import Report, diagnose_rows
from tests.recorder.diagnosis.test_diagnosis import NAN, card, rows_of
from tests.recorder.diagnosis.test_states import checked

COUNT = 640  # 20 steps of 32 rollouts, in groups of four
PLACE = np.arange(COUNT)
LATE = PLACE >= COUNT // 2
DICE = np.random.default_rng(3)
NOISE, OTHER = DICE.uniform(size=COUNT), DICE.uniform(size=COUNT)
RIGHT = (NOISE < 0.5).astype(float)
GRADED = np.round(0.2 + 0.6 * OTHER, 4)
HIT = LATE & (DICE.uniform(size=COUNT) < 0.25)


def diagnosed(parts: dict[str, Any], **columns: Any) -> Report:
    reward = np.nansum(list(parts.values()), axis=0)
    return diagnose_rows(rows_of(COUNT, steps=20, reward=reward, parts=parts, **columns))


@pytest.mark.parametrize(("name", "values", "weight", "said"), [
    ("form", np.where(LATE, 1.0, NOISE < 0.9), 1.0, "There, at no cost: form gives 1 to every rollout, its best."),
    ("level", np.full(COUNT, 0.5), 1.0, "There, at no cost: level gives 0.5 to every rollout."),
    ("overlong", np.zeros(COUNT), 1.0, "There, at no cost: overlong gives 0 to every rollout."),
    ("errors", np.zeros(COUNT), -1.0, "There, at no cost: errors gives 0 to every rollout."),
    ("bonus", (PLACE == 4) * 1.0, 1.0, "There, at no cost: bonus gives 0 to every rollout (it may be chance)."),
    ("detail", GRADED, 1.0, "correct and detail: not equal within each group."),
])  # fmt: skip
def test_a_constant_function_that_costs_nothing_is_no_finding(name: str, values: Any, weight: float, said: str) -> None:
    report = diagnosed({"correct": RIGHT, name: values * weight}, weights={"correct": 1.0, name: weight})
    assert checked(report, "constant_function").said == said


@pytest.mark.parametrize(("values", "title", "began"), [
    (np.where(LATE, 0.0, GRADED), "detail gives 0 to every rollout", "since step 11"),
    (np.where(LATE, 0.4, GRADED), "detail gives 0.4 to every rollout", "since step 11"),
    (np.zeros(COUNT), "detail gives 0 to every rollout", "from the first step on"),
    (np.where(PLACE // 4 % 2, NAN, np.where(LATE, 0.0, GRADED)),
     "detail gives 0 to every rollout that it scores", "since step 11"),
])  # fmt: skip
def test_a_function_that_becomes_constant_below_its_best_or_was_never_above_0(
    values: Any, title: str, began: str
) -> None:
    found = card(diagnosed({"correct": RIGHT, "detail": values}), "constant_function")
    assert (found.title, found.began) == (title, began)


def test_a_function_of_the_prompt_alone_needs_different_completions() -> None:
    parts = {"correct": RIGHT, "detail": PLACE // 4 * 7 % 16 / 16}
    assert card(diagnosed(parts, completion_key=PLACE), "constant_function").title == (
        "detail does not depend on the completion: it is the same within each group"
    )
    alike = diagnosed(parts, completion_key=PLACE // 4)
    assert checked(alike, "constant_function").state == "below"


LEGAL = PLACE // 4 % 2 == 1  # the groups of a value of a column
DEFAULT = np.where(LATE & LEGAL, 0.4, GRADED)


@pytest.mark.parametrize(("values", "keys", "titles"), [
    (DEFAULT, PLACE, ["judge gives 0.4 to every rollout of metadata.kind legal"]),
    (DEFAULT, PLACE // 4, []),  # equal completions earn the same
    (np.where(LATE & LEGAL, 0.9, GRADED), PLACE, []),  # the best
    (np.where(LEGAL, 0.4, GRADED), PLACE, []),  # from the first step on
    (np.where(LATE & LEGAL, 0.0, RIGHT), PLACE, []),  # two values: they may be wrong answers
    (np.where(LATE & LEGAL & (PLACE % 16 < 12), 0.4, GRADED), PLACE, []),  # some get others
])  # fmt: skip
def test_a_graded_function_that_becomes_constant_in_a_place(values: Any, keys: Any, titles: list[str]) -> None:
    rows = rows_of(COUNT, steps=20, reward=values, parts={"judge": values}, completion_key=keys)
    kinds = ["legal" if is_legal else "letter" for is_legal in LEGAL]
    report = diagnose_rows(rows, read_labels=lambda some: {"metadata.kind": [kinds[it - 1] for it in some.id]})
    found = [it for it in report.cards if it.id == "constant_function"]
    assert [it.title for it in found] == titles
    assert all((it.began, it.share) == ("since step 11", 0.5) for it in found)


JUDGED = np.where(HIT, 0.0, GRADED)


@pytest.mark.parametrize(("values", "columns"), [
    (np.where(HIT, 0.0, RIGHT), {}),  # two values: a failure looks like a wrong answer
    (np.where(HIT, 0.0, np.where(LATE, GRADED / 2, GRADED)), {}),  # the others have fallen, too
    (JUDGED, {"completion_tokens": np.where(HIT, 20.0, 100.0)}),  # those answers are shorter
    (JUDGED, {"compression": np.where(HIT, 1.15, 1.35) + 0.05 * NOISE}),  # their text is less regular
    (JUDGED, {"distinct_words": np.where(HIT, 0.98, 0.9) + 0.02 * NOISE}),
    (np.where(LATE & (PLACE // 4 % 4 == 0), 0.0, GRADED), {}),  # whole groups
    (np.where(NOISE < 0.2, 0.0, GRADED), {}),  # from the first step on
])  # fmt: skip
def test_a_value_that_rollouts_may_have_earned_is_no_failure_of_the_function(values: Any, columns: Any) -> None:
    report = diagnosed({"judge": values}, **columns)
    assert "new_value" not in {it.id for it in report.cards}


def test_a_new_value_of_a_graded_function_says_where_it_is() -> None:
    hosts = ["gpu-1" if hit else f"gpu-{2 + place % 3}" for place, hit in enumerate(HIT)]
    rows = rows_of(COUNT, steps=20, reward=JUDGED, parts={"judge": JUDGED})
    report = diagnose_rows(rows, read_labels=lambda some: {"metadata.host": [hosts[it - 1] for it in some.id]})
    found = card(report, "new_value")
    assert (found.began, report.verdict.id) == ("since step 11 (between 11 and 12)", "setup")
    assert found.evidence[-1] == "By metadata.host: 100% of the rollouts in gpu-1, 0% elsewhere."


OF_GAMES = PLACE // 4 % 3 == 0  # the groups of an eval
NOVEL = {"task": [f"{'new' if late else 'old'}/{place}" for place, late in enumerate(LATE)]}


@pytest.mark.parametrize(("values", "columns", "cards"), [
    (np.where(LATE, 100 * GRADED, GRADED), {}, ["new_value"]),
    (np.where(LATE, GRADED / 100, GRADED), {}, ["new_value"]),
    (np.where(LATE, 100 * GRADED * (OTHER > 0.2), GRADED), {}, ["new_value"]),  # 0 has no size
    (np.where(OF_GAMES, np.where(LATE, 50 * GRADED, GRADED), NAN), {}, ["new_value"]),
    (np.where(LATE, 2 * GRADED, GRADED), {}, []),  # it may be earned
    (np.where(LATE, 100 * RIGHT, RIGHT), {}, []),  # two values
    (np.where(LATE, -100 * GRADED, -GRADED), {}, []),  # a penalty
    (np.where(LATE, 100 * GRADED, GRADED), NOVEL, []),  # other families of tasks may be paid in other units
    (np.where(LATE, 0.02 * GRADED + 0.03, GRADED), {}, []),  # far lower, but not of another size
    (GRADED * 100 ** (PLACE / COUNT), {}, []),  # it grows step by step
])  # fmt: skip
def test_values_of_another_size_are_another_scale(values: Any, columns: Any, cards: list[str]) -> None:
    report = diagnosed({"judge": values}, **columns)
    assert [it.id for it in report.cards if it.title.endswith("another scale")] == cards
    assert (report.verdict.card == "new_value") is bool(cards)


def test_another_scale_of_one_eval_says_where_it_is() -> None:
    judge = np.where(LATE & OF_GAMES, 100 * GRADED, GRADED)
    rows = rows_of(COUNT, steps=20, reward=judge, parts={"judge": judge})
    report = diagnose_rows(replace(rows, eval=OF_GAMES.astype(np.int64), evals=["sums", "games"]))
    found = card(report, "new_value")
    assert found.title == "judge gives 21 to 79.8 in games since step 11, 0.211 to 0.781 before: another scale"
    assert found.began == "since step 11"
    assert {name: verdict.id == "setup" for name, verdict in report.environments} == {"games": True, "sums": False}


TEXTS: dict[str, Any] = {"tool_calls": 0.0, "compression": np.where(HIT, NAN, 2.0)}


@pytest.mark.parametrize(("columns", "state"), [
    (TEXTS, "finding"),
    (TEXTS | {"compression": np.where(LATE, NAN, 2.0)}, "finding"),  # all of the last ones
    (TEXTS | {"tool_calls": np.where(HIT, 1.0, 0.0)}, "below"),  # they call a tool
    (TEXTS | {"compression": NAN}, "not_recorded"),  # no text of the run is recorded
])  # fmt: skip
def test_an_answer_is_empty_without_text_and_tool_call(columns: Any, state: str) -> None:
    silent = np.isnan(columns["compression"])
    report = diagnosed({"correct": np.where(silent, 0.0, RIGHT)}, **columns)
    assert {it.id: it.state for it in report.checked}.get("empty_answers", "finding") == state


@pytest.mark.parametrize(("form", "correct", "columns", "cards"), [
    (~HIT, np.where(HIT, 0.0, RIGHT), {}, ["lost_format"]),
    (~HIT, RIGHT, {}, []),  # it costs nothing else
    (NOISE < 0.5, np.where(NOISE < 0.5, 1.0, 0.0), {}, []),  # most never had it
    (~HIT, np.where(HIT, 0.0, RIGHT), {"stop_reason": np.where(HIT, "length", "done")}, []),  # cut off
])  # fmt: skip
def test_a_form_is_lost_where_most_had_it_and_other_functions_pay_less(
    form: Any, correct: Any, columns: Any, cards: list[str]
) -> None:
    report = diagnosed({"correct": correct, "boxed": 0.2 * form}, **columns)
    assert [it.id for it in report.cards if it.id == "lost_format"] == cards
