"""The verdict on a run in one line: healthy on positive evidence only."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from logs_ui.recorder.diagnosis import Settings, diagnose_rows
from logs_ui.recorder.diagnosis.card import Texts
from logs_ui.recorder.diagnosis.verdict import Verdict, of_all
from tests.faults import mixing
from tests.faults.columns import diagnosed
from tests.faults.registry import FAULTS, UNEXPLAINED
from tests.recorder.diagnosis.test_diagnosis import rows_of
from tests.support.exhaustive import cases

COUNT = 640  # 20 steps of 32 rollouts, in groups of four
PLACE = np.arange(COUNT)
DICE = np.random.default_rng(5)
NOISE = DICE.uniform(size=COUNT)
RISING = NOISE < 0.2 + 0.4 * PLACE / COUNT
GRADED = 0.1 + 0.1 * NOISE


def verdict(settings: Settings | None = None, error: str | None = None, **columns: Any) -> tuple[str, str]:
    rows = rows_of(COUNT, steps=20, **columns)
    return diagnose_rows(rows, settings, error=error).verdict[:2]


@pytest.mark.parametrize(
    ("columns", "name", "said"),
    [
        ({"reward": RISING}, "improving", "No fault found, improving: solved 31% → 55% (steps 1"),
        ({"reward": NOISE < 0.7}, "reached", "No fault found, no clear change: solved 72% → 73% (steps "),
        ({"reward": NOISE < 0.3}, "level", "No cause found; no clear change: solved 32% → 31% (steps "),
        ({"reward": RISING[::-1]}, "worse", "Getting worse, cause unknown: solved 55% → 31% (steps "),
        ({"reward": GRADED, "parts": {"judge": GRADED}}, "level",
         "No cause found; no clear change: mean reward 0.148 → 0.148 (steps "),
        ({"reward": np.maximum(1 - np.maximum(NOISE - 0.7, 0), 0.8), "parts": {"judge": GRADED}}, "reached",
         "No fault found, no clear change: mean reward 0.96 → 0.964 (steps "),
        ({"reward": np.nan, "scored": False}, "no_reward", "No rollout of these steps has a reward"),
        ({"reward": GRADED, "parts": {"judge": GRADED}, "env_success": 0.0},
         "nothing_solved", "0% of rollouts are solved; no check found why"),
    ],
)  # fmt: skip
def test_the_verdict_says_what_was_measured(columns: Any, name: str, said: str) -> None:
    found = verdict(**columns)
    assert found[0] == name
    assert found[1].startswith(said)


FALLING = 0.8 - 0.4 * PLACE / COUNT + 0.1 * NOISE[::-1]
LATE = PLACE >= COUNT // 2
RARE = np.where(PLACE % 107 == 0, 0.1, 0.0) * LATE  # less than one rollout in a hundred


@pytest.mark.parametrize(("parts", "weights", "said"), [
    ({"correct": RISING, "brief": FALLING}, {}, "; but brief falls 0.748 \u2192 0.549"),
    ({"correct": RISING, "calls": FALLING}, {"calls": -0.1}, ""),  # fewer are wanted
    ({"correct": RISING, "slip": -RARE}, {}, ""),
    ({"correct": np.where(LATE, PLACE // 4 % 8 > 0, RISING)}, {}, "; rewards are equal within 100% of groups"),
])  # fmt: skip
def test_an_improving_run_has_one_reservation(parts: Any, weights: dict[str, float], said: str) -> None:
    reward = sum(values * weights.get(name, 1.0) for name, values in parts.items())
    name, text = verdict(reward=reward, parts=parts, weights={name: weights.get(name, 1.0) for name in parts})
    assert name == "improving"
    assert text.endswith(f", same task mix){said}")


def test_a_fall_from_what_was_learned_to_the_first_level_is_told() -> None:
    step = np.arange(1920) // 32 + 1
    chance = np.where((step > 10) & (step <= 30), 0.85, 0.55)
    solved = np.random.default_rng(3).uniform(size=1920) < chance
    name, said = diagnose_rows(rows_of(1920, steps=60, reward=solved)).verdict[:2]
    assert name == "worse"
    assert said.startswith("Getting worse since step 31, cause unknown: solved 75% → 54% (steps 1")


def test_a_reward_near_its_own_best_is_not_called_healthy_unless_that_is_set() -> None:
    given: dict[str, Any] = {"reward": GRADED, "parts": {"judge": GRADED}}
    assert verdict(Settings(max_reward=0.16), **given)[0] == "reached"
    assert verdict(Settings(max_reward=1.0), **given)[0] == "level"


def test_the_outcome_counts_and_not_what_is_paid_for_beside_it() -> None:
    quality, style = 0.3 - 0.1 * PLACE / COUNT + 0.6 * NOISE, 0.4 * PLACE / COUNT
    parts = {"correctness": quality, "neatness": style}
    name, said = verdict(reward=quality + style, parts=parts)
    assert name == "worse"
    assert said.startswith("Getting worse, cause unknown: mean correctness 0.5")
    assert said.endswith(", while the reward rises")


def test_a_reward_that_falls_is_worse_whatever_some_rollouts_reach() -> None:
    math = PLACE // 4 % 10 == 0
    right, code = np.where(RISING, 1.0, 0.0), 0.9 - 0.6 * PLACE / COUNT + 0.1 * NOISE
    parts = {"correct": np.where(math, right, np.nan), "tests": np.where(math, np.nan, code)}
    name, said = verdict(reward=np.where(math, right, code), parts=parts)
    assert name == "worse"
    assert said.startswith("The reward falls, mostly in tests, while the outcome rises: mean reward ")
    assert ", solved (of the 10% that can count) " in said


PARTIAL = np.where(NOISE > 0.93, 1.0, 0.1 + 0.3 * NOISE)
"""Tests that pass: all of them for one rollout in fourteen, at first and at last."""
MORE = PARTIAL + np.where(NOISE > 0.93, 0.0, 0.4 * PLACE / COUNT)
STYLE, RISING_STYLE = (0.4 * DICE.uniform(size=COUNT) + 0.4 * rise * PLACE / COUNT for rise in (0, 1))


@pytest.mark.parametrize(("parts", "name", "said"), [
    ({"tests_pass": MORE}, "improving", "No fault found, improving: mean tests_pass 0.3"),
    ({"tests_pass": MORE, "style": STYLE}, "improving", "No fault found, improving: mean tests_pass 0.3"),
    ({"tests_pass": PARTIAL, "style": STYLE}, "level", "No cause found; no clear change: solved 7%"),
    ({"tests_pass": PARTIAL, "style": RISING_STYLE}, "level", "No cause found; no clear change: solved 7%"),
])  # fmt: skip
def test_a_graded_outcome_that_rises_below_its_threshold_is_improving(parts: Any, name: str, said: str) -> None:
    found = verdict(reward=sum(parts.values()), parts=parts)
    assert found[0] == name
    assert found[1].startswith(said)
    assert " solved 7% \u2192 6%" in found[1]
    assert found[1].endswith(", while the reward rises") == (parts.get("style") is RISING_STYLE)


def test_the_tasks_of_both_are_counted_where_they_are_not_nearly_all() -> None:
    tasks = np.where(PLACE < COUNT // 2, PLACE // 4 % 20, PLACE // 4 % 20 + 8)  # 12 of each 20
    assert (
        "(steps 1\u201310 against 11\u201320, at the 12 tasks that both have, of 28, same mix)"
        in verdict(reward=NOISE < 0.7, task=[f"task {it}" for it in tasks])[1]
    )


def test_another_mix_of_evals_is_no_other_policy() -> None:
    games = NOISE[::-1] < np.where(PLACE < COUNT // 2, 0.2, 0.8)
    games = games.reshape(-1, 4)[:, :1].repeat(4, 1).ravel()  # of whole groups
    once = [f"task {group}" for group in PLACE // 4]
    rows = rows_of(
        COUNT, steps=20, reward=np.where(games, 0.9, 0.6) > NOISE, turns=np.where(games, 9.0, 3.0), task=once
    )
    report = diagnose_rows(replace(rows, eval=games.astype(int), evals=["code", "game"]))
    assert report.verdict.id == "reached"
    assert "(steps 1\u201310 against 11\u201320, same evals, same mix)" in report.verdict.said


@pytest.mark.parametrize(("learnt", "name"), [(0.4, "improving"), (0.0, "level"), (-0.4, "worse")])
def test_a_curriculum_of_harder_levels_is_judged_within_those_of_the_last_steps(learnt: float, name: str) -> None:
    level, step = PLACE * 2 // COUNT, PLACE * 20 // COUNT % 10
    solved = 0.75 - 0.35 * level + learnt * (step / 10 - 0.45) > NOISE
    tasks = [f"level-{level[place]}/{place // 4}" for place in PLACE]
    found = verdict(reward=solved, task=tasks)
    assert found[0] == name
    assert "at the same families" in found[1]


def test_easier_tasks_in_place_of_others_are_no_improvement() -> None:
    late = PLACE >= COUNT // 2
    reward, task = np.where(late, 0.8, 0.3) > NOISE, np.where(late, 4, 0) + PLACE // 4 % 4
    told, said = verdict(reward=reward, task=[f"task {it}" for it in task])
    assert (told, said.split(" (")[0]) == (
        "reached",
        "No fault found, no clear change: solved 81%; at the same tasks 56% \u2192 58%",
    )
    once = [f"task {it}" for it in PLACE // 4]
    assert verdict(reward=reward, task=once)[0] == "improving"


def test_one_step_has_no_plateau() -> None:
    rows = rows_of(COUNT, steps=1, reward=NOISE < 0.7)
    assert diagnose_rows(rows, has_ended=True).verdict[:2] == ("reached", "No fault found: solved 73%")


def test_a_training_that_failed_early_says_so() -> None:
    assert diagnose_rows(rows_of(4, steps=1), error="OOM").verdict[:2] == ("failed", "The training failed: OOM")


def test_a_training_that_failed_says_its_error_first() -> None:
    assert verdict(error="RuntimeError: CUDA out of memory", reward=RISING) == (
        "failed", "The training failed: RuntimeError: CUDA out of memory",
    )  # fmt: skip


def test_what_is_left_does_not_make_a_run_sick_that_improves() -> None:
    task = PLACE // 4 % 20
    reward = (NOISE < 0.2 + 0.6 * PLACE / COUNT) & (task > 0)
    report = diagnose_rows(rows_of(COUNT, steps=20, reward=reward, task=[f"task {it}" for it in task]))
    assert [it.id for it in report.cards] == ["never_solved"]
    assert report.verdict.id == "improving"
    assert report.verdict.said.endswith("; still there: 1 of 20 tasks is never solved")


@pytest.mark.parametrize(("heard", "name"), [("", "improving"), ("ImportError: no lake", "fault")])
def test_a_place_without_an_error_of_its_own_is_no_fault_of_a_run_that_improves(heard: str, name: str) -> None:
    number = PLACE // 4
    reward = np.where(number % 4 < 3, NOISE < 0.2 + 0.6 * PLACE / COUNT, 0.0)

    def read_texts(ids: Sequence[int]) -> dict[int, Texts]:
        return {it: Texts([], [{"observation": heard if number[it - 1] % 4 == 3 else "Done."}]) for it in ids}

    report = diagnose_rows(
        rows_of(COUNT, steps=20, reward=reward, task=[f"{'abcd'[it % 4]}/{it}" for it in number]), read_texts=read_texts
    )
    assert report.cards[0].title.startswith("None of the ")
    assert report.verdict.id == name
    assert ("; still there: None of the " in report.verdict.said) is (name == "improving")


def test_a_finding_whose_share_falls_does_not_make_a_run_sick_that_improves() -> None:
    endless = DICE.uniform(size=COUNT) < np.linspace(0.6, 0.25, COUNT)
    stops = np.where(endless, "turn_limit", "done")
    rising = ~endless & (np.linspace(0.2, 0.9, COUNT) > NOISE)
    report = diagnose_rows(rows_of(COUNT, steps=20, reward=rising, stop_reason=stops))
    assert [it.id for it in report.cards] == ["turn_limit"]
    assert report.verdict.id == "improving"


@pytest.mark.parametrize(("gain", "name"), [(0.4, "improving"), (0.0, "fault")])
def test_a_judge_with_noise_is_no_fault_of_a_run_that_improves(gain: float, name: str) -> None:
    """In the last five steps every group has one answer twice, and its two scores differ."""
    twice = np.where((PLACE % 4 < 2) & (PLACE >= 480), PLACE // 4, 1000 + PLACE)
    score = 0.3 + gain * PLACE / COUNT + 0.2 * NOISE
    report = diagnose_rows(
        rows_of(COUNT, steps=20, reward=score, parts={"judge": score}, prompt_key=PLACE // 4, completion_key=twice)
    )
    assert [it.id for it in report.cards] == ["inconsistent"]
    assert report.verdict.id == name


@pytest.mark.parametrize(("grows", "harm", "name"), [(0.0, 0.0, "improving"), (0.5, 0.0, "fault"), (0.0, 0.8, "fault")])
def test_a_habit_that_neither_grows_nor_costs_is_no_fault_of_a_game_that_improves(
    grows: float, harm: float, name: str
) -> None:
    """A quarter of the rollouts go round in circles from the first step on, whatever their score."""
    circles = DICE.uniform(size=COUNT) < 0.25 + grows * PLACE / COUNT
    score = np.random.default_rng(8).gamma(2.0, 0.5 + 2 * PLACE / COUNT) * np.where(circles, 1 - harm, 1.0)
    facts = {"action_tail": 1.0, "repeats": np.where(circles, 0.7, 0.1)}
    report = diagnose_rows(rows_of(COUNT, steps=20, reward=score, parts={"score": score}, **facts))
    assert [it.id for it in report.cards][:1] == ["loops"]
    assert report.verdict.id == name


HARDER = np.repeat(range(4), COUNT // 4)
MIX = np.where(PLACE < COUNT // 2, PLACE // 4 % 8 > 6, PLACE // 4 % 8 > 1)
"""True for one group of eight at first, and for six of eight later."""


@pytest.mark.parametrize(
    ("column", "values", "reward", "expected"),
    [
        ("metadata.level", HARDER, NOISE < 0.9 - 0.2 * HARDER, ("unknown", "while metadata.level has other values")),
        ("metadata.batch", HARDER, NOISE < 0.9 - 0.2 * HARDER, ("worse", "Getting worse, cause unknown")),
        ("metadata.kind", MIX, NOISE < 0.9 - 0.5 * MIX,
         ("unknown", "but not at the same metadata.kind, whose mix changed")),
        ("metadata.level", PLACE // 4 % 4, RISING[::-1], ("worse", "Getting worse, cause unknown")),
    ],
)  # fmt: skip
def test_a_fall_beside_another_mix_of_a_column_is_not_getting_worse(
    column: str, values: Any, reward: Any, expected: tuple[str, str]
) -> None:
    rows = rows_of(COUNT, steps=20, reward=reward, task=[f"task {place // 4}" for place in PLACE])
    said = diagnose_rows(rows, read_labels=lambda some: {column: [str(values[it - 1]) for it in some.id]}).verdict
    assert said.id == expected[0]
    assert expected[1] in said.said


@pytest.mark.parametrize(("rise", "expected"), [(0.35, "improving"), (0.0, "reached")])
def test_a_rise_within_a_column_whose_mix_changed_is_improving(rise: float, expected: str) -> None:
    hard = np.random.default_rng(4).uniform(size=COUNT)[PLACE // 4] < 0.1 + 0.8 * PLACE / COUNT
    reward = 0.55 - 0.5 * (rise > 0) * hard + rise * PLACE / COUNT > NOISE
    rows = rows_of(COUNT, steps=20, reward=reward, task=[f"task {place // 4}" for place in PLACE])
    kinds = [["easy", "hard"][of] for of in hard.astype(int)]
    line = diagnose_rows(rows, read_labels=lambda some: {"metadata.kind": [kinds[of - 1] for of in some.id]}).verdict
    assert line.id == expected
    assert ("at the same metadata.kind" in line.said) == (expected == "improving")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("id", "name", "said"),
    cases([
        ("one of several: turns", "fault", "boxes: 57% of rollouts run out of turns"),
        ("one of several: turns of a third", "fault", "22% of rollouts run out of turns"),
        ("one of several: search", "setup", "Fault of the set-up: lookup: \u201c0 documents found.\u201d is answered"),
        ("one of several: cut", "fault", "proofs: 35% of rollouts are truncated"),
        ("turns in vain", "fault", "56% of rollouts run out of turns"),
        ("all turns", "improving", "still there: 54% of rollouts run out of turns"),
        ("healthy environments: scales", "improving", "No fault found, improving"),
        ("healthy environments: hard", "improving", "No fault found, improving"),
        ("healthy environments: alike", "reached", "No fault found, no clear change"),
        ("healthy course: dataset", "improving", "No fault found, improving: solved 68% \u2192 83%"),
        ("healthy course: levels", "improving", "at the same metadata.level of the last steps 64% \u2192 74%"),
    ], 2),
)  # fmt: skip
def test_what_one_environment_lacks_is_the_verdict_and_what_is_harder_is_not(id: str, name: str, said: str) -> None:  # noqa: A002
    (fault,) = (fault for fault in (*FAULTS, *mixing.LEFT) if fault.id == id)
    assert fault.made is not None
    verdict = diagnosed(fault.made()).report.verdict
    assert verdict.id == name
    assert said in verdict.said


def test_a_finding_of_one_environment_is_one_of_the_run_and_opens_there() -> None:
    (fault,) = (fault for fault in FAULTS if fault.id == "one of several: turns")
    assert fault.made is not None
    report = diagnosed(fault.made()).report
    (card,) = report.cards
    assert (report.verdict.card, card.eval) == ("turn_limit", "boxes")
    assert card.where == "stop:turn_limit eval:boxes step:21..30"
    assert card.share == pytest.approx(0.571 / 3, abs=0.01)
    assert "turn_limit" not in {check.id for check in report.checked}


def test_a_finding_is_the_verdict() -> None:
    cut = PLACE % 3 == 0
    columns = {"reward": np.where(cut, 0.0, NOISE < 0.7), "truncated_turns": cut * 1.0}
    report = diagnose_rows(rows_of(COUNT, steps=20, stop_reason=np.where(cut, "length", "done"), **columns))
    assert report.verdict == ("fault", report.cards[0].title, report.cards[0].id)
    assert report.as_dict()["verdict"] == {"id": "fault", "said": report.cards[0].title}


def test_a_finding_does_not_hide_a_fall_of_which_its_rollouts_are_a_small_part() -> None:
    cut = PLACE % 8 == 0
    columns: dict[str, Any] = {"stop_reason": np.where(cut, "length", "done"), "truncated_turns": cut * 1.0}
    assert verdict(reward=np.where(cut, 0.0, NOISE < 0.7), **columns)[0] == "fault"
    name, said = verdict(reward=np.where(cut, 0.0, NOISE < 0.8 - 0.5 * PLACE / COUNT), **columns)
    assert name == "worse"
    assert said.startswith("Getting worse, and no finding explains it: solved 6")
    only_cut = np.where(cut & (PLACE > COUNT / 2), 0.0, NOISE < 0.7)
    assert verdict(reward=only_cut, **columns)[0] == "fault"


def test_one_environment_that_gets_worse_is_not_hidden_by_others_that_improve() -> None:
    is_web = PLACE // 4 % 2 == 1
    chance = np.where(is_web, 0.8 - 0.6 * PLACE / COUNT, 0.2 + 0.6 * PLACE / COUNT)
    rows = rows_of(COUNT, steps=20, reward=chance > NOISE)
    report = diagnose_rows(replace(rows, eval=is_web.astype(np.int64), evals=["code", "web"]))
    assert report.verdict.id == "worse"
    assert report.verdict.said.startswith("web: Getting worse, cause unknown: solved 6")


@pytest.mark.parametrize(("cost", "name"), [(0.05, "worse"), (0.2, "fault"), (None, "fault")])
def test_a_slight_finding_does_not_hide_an_environment_that_gets_worse(cost: float | None, name: str) -> None:
    run, cards = SimpleNamespace(fall=SimpleNamespace(lost=1.0)), [SimpleNamespace(cost=cost, eval="", is_setup=False)]
    whole, web = Verdict("fault", "5% are truncated", "truncation"), Verdict("worse", "Getting worse")
    assert of_all(cast(Any, run), cast(Any, cards), whole, [("web", web)]).id == name


@pytest.mark.parametrize(("share", "name"), [(0.05, "improving"), (0.3, "fault")])
def test_what_is_left_in_a_run_that_improves_may_keep_an_environment_from_it(share: float, name: str) -> None:
    rows = SimpleNamespace(in_eval=lambda _: np.arange(100) < 100 * share)
    run, turns = SimpleNamespace(rows=rows), Verdict("fault", "60% of rollouts run out of turns", "turn_limit")
    whole = Verdict("improving", "Improving: solved 60%; still there: 20% run out of turns", "turn_limit")
    assert of_all(cast(Any, run), (), whole, [("maze", turns)]).id == name


def test_a_slow_rise_within_tasks_is_sure_where_their_levels_hide_it() -> None:
    count, dice = 1280, np.random.default_rng(11)
    task = dice.integers(220, size=count // 4).repeat(4)
    level = np.random.default_rng(4).choice([0.1, 0.7], 220)[task]
    right = np.random.default_rng(2).uniform(size=count) < level + 0.2 * np.arange(count) / count - 0.1
    rows = rows_of(count, steps=40, reward=right, task=[f"sum {number}" for number in task])
    name, said = diagnose_rows(rows).verdict[:2]
    assert (name, said.rpartition(" (")[2]) == ("improving", "a line over all steps)")


def test_a_reward_that_falls_beside_an_outcome_that_rises_names_the_function() -> None:
    right, penalty = RISING.astype(float), -2.0 * PLACE / COUNT
    name, said = verdict(reward=right + penalty, parts={"correct": right, "length_penalty": penalty})
    assert name == "worse"
    assert said.startswith("The reward falls, mostly in length_penalty, while the outcome rises: mean reward ")
    assert ", solved 31% \u2192 55% (steps " in said


LATE = PLACE >= COUNT // 2
FEW = {"turns": np.where(LATE, 3.0, 5.2), "completion_tokens": np.where(LATE, 300, 520)}


@pytest.mark.parametrize(("columns", "right", "name", "said"), [
    (FEW, NOISE < 0.3, "level", "No cause found; turns 5.2 \u2192 3, at solved "),
    (FEW, NOISE[::-1] < 0.7, "reached", "solved 73% \u2192 72%"),
    (FEW, NOISE < 0.7 - 0.05 * LATE, "level", "turns 5.2 \u2192 3, at solved 72% \u2192 "),
    (FEW, NOISE < 0.7, "reached", "No fault found, no clear change: solved 72% \u2192 73% (steps 1"),
    (FEW, NOISE < 0.7, "reached", "; turns 5.2 \u2192 3"),
    ({"completion_tokens": np.where(LATE, 800.0, 160.0)}, NOISE < 0.3, "level", "tokens per turn 80 \u2192 400, at "),
    (FEW, NOISE < 0.9 - 0.5 * LATE, "worse", "; turns 5.2 \u2192 3"),
    (FEW, NOISE < 0.3 + 0.4 * LATE, "improving", "No fault found, improving: solved "),
    ({"turns": np.where(LATE, 5.0, 5.2)}, NOISE < 0.7, "reached", "No fault found, no clear change: solved "),
])  # fmt: skip
def test_a_habit_that_changes_is_told_and_is_healthy_only_if_the_outcome_does_not_fall(
    columns: Any, right: Any, name: str, said: str
) -> None:
    found = verdict(reward=right, **columns)
    assert found[0] == name
    assert said in found[1]


def test_a_habit_that_changes_with_the_outcome_is_told_where_tasks_seldom_recur() -> None:
    early = (fault.made for fault in (*FAULTS, *UNEXPLAINED) if fault.id.startswith("ends early"))
    long, short = (diagnosed(made()).report for made in early if made)
    assert "a fall that may be chance: solved 73% \u2192 33% " in short.verdict.said
    assert short.verdict.said.endswith("; turns 8.83 \u2192 4.19")
    assert long.cards[0].evidence[2] == "At step 11 turns change from 8.06 to 3.95, over all tasks."


def test_a_run_whose_outcome_rises_is_not_getting_worse_without_the_best_rollouts_of_a_finding() -> None:
    tokens = 10 + 20 * PLACE / COUNT + 60 * NOISE
    reward = tokens / 100 + 0.3 * np.random.default_rng(7).uniform(size=COUNT)
    rows = rows_of(COUNT, steps=20, reward=reward, completion_tokens=tokens, parts={"judge": reward}, turns=1.0)
    report = diagnose_rows(rows, Settings(max_reward=1.0))
    assert [card.id for card in report.cards] == ["length"]
    assert report.verdict.id == "fault"
