"""Diagnostics of what the policy does, against figures that were worked out by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from logs_ui.recorder.diagnosis import DIAGNOSTICS, Settings, diagnose_rows
from logs_ui.recorder.diagnosis.explanations import EXPLAINS
from logs_ui.recorder.diagnosis.report import Report
from logs_ui.recorder.diagnosis.waterfall import has_cause
from logs_ui.recorder.rows.text_facts import facts
from logs_ui.recorder.vocabulary import LossCause, Status, StopReason
from tests.faults.columns import diagnosed
from tests.faults.registry import FAULTS
from tests.recorder.diagnosis.test_diagnosis import GROUP, PLACE, QUARTER, card, entry, rows_of

NAN = float("nan")
TASK = PLACE // GROUP % 3  # as rows_of has them


def ids(report: Report) -> list[str]:
    return [it.id for it in report.cards]


# --- What explains what


def test_the_table_of_what_explains_what_has_each_check_and_names_no_other() -> None:
    assert list(EXPLAINS) == [it.id for it in DIAGNOSTICS]
    assert set().union(*EXPLAINS.values()) <= set(EXPLAINS)


def test_a_symptom_stands_behind_what_holds_most_of_its_loss() -> None:
    cut = PLACE // GROUP % 4 != 0  # 9 of 12 groups: all of those that are dead
    rows = rows_of(reward=np.where(cut, 0.0, PLACE % 2), stop_reason=np.where(cut, StopReason.LENGTH, StopReason.DONE))
    report = diagnose_rows(rows)
    assert ids(report)[0] == "truncation"
    assert "dead_groups" in report.cards[0].explains


def test_a_small_fault_explains_no_large_symptom() -> None:
    dead = PLACE // GROUP % 4 != 0
    cut = np.isin(PLACE, (5, 21, 37))  # 3 of the 36 rollouts of dead groups
    rows = rows_of(reward=np.where(dead, 0.0, PLACE % 2), stop_reason=np.where(cut, StopReason.LENGTH, StopReason.DONE))
    report = diagnose_rows(rows)
    assert ids(report).index("dead_groups") < ids(report).index("truncation")
    assert "dead_groups" not in card(report, "truncation").explains


def test_what_costs_less_than_a_hundredth_of_the_range_has_no_card() -> None:
    reward = np.where(PLACE == 1, 0.0, np.where(QUARTER, 0.99, 1.0))  # the 1st percentile: 0.47 * 0.99
    rows = rows_of(reward=reward, truncated_turns=QUARTER.astype(float), stop_reason=StopReason.DONE)
    assert diagnose_rows(rows, Settings(max_reward=1.0)).cards == ()


def test_a_broken_environment_stands_before_what_the_policy_does() -> None:
    broken, unparsed = PLACE < 6, PLACE >= 6  # an eighth of all
    stop = np.where(broken, StopReason.ENVIRONMENT_ERROR, StopReason.NO_ACTION)
    rows = rows_of(reward=np.where(PLACE % 8 == 7, 1.0, 0.0), stop_reason=stop, parse_tail=unparsed.astype(float))
    assert ids(diagnose_rows(rows))[0] == "infrastructure"
    few = np.where(PLACE < 3, StopReason.ENVIRONMENT_ERROR, StopReason.NO_ACTION)  # a sixteenth
    assert ids(diagnose_rows(rows_of(reward=rows.reward, stop_reason=few)))[0] == "parse_failures"


# --- What all have in common is no cause


def test_a_turn_limit_that_half_of_them_solve_is_healthy() -> None:
    assert diagnose_rows(rows_of(stop_reason=StopReason.TURN_LIMIT)).cards == ()


def test_a_turn_limit_that_none_of_them_solves_costs_what_they_lose() -> None:
    over = PLACE % 4 != 0  # 36 of 48
    rows = rows_of(reward=np.where(over, 0.0, 1.0), stop_reason=np.where(over, StopReason.TURN_LIMIT, StopReason.DONE))
    found = card(diagnose_rows(rows), "turn_limit")
    assert found.cost == pytest.approx(0.75)
    assert found.evidence[-1] == "Most often task 0 (75%), task 1 (75%) and task 2 (75%)."


def test_turns_that_run_out_are_told_of_each_eval() -> None:
    is_shop = TASK == 0
    over = np.where(is_shop, PLACE % 4 != 0, PLACE % 4 == 1)
    rows = rows_of(
        reward=np.where(over, 0.0, 1.0), stop_reason=np.where(over, StopReason.TURN_LIMIT, StopReason.DONE),
        turns=np.where(is_shop, 6, 25),
    )  # fmt: skip
    found = card(diagnose_rows(replace(rows, eval=np.where(is_shop, 0, 1), evals=["shop", "quest"])), "turn_limit")
    said = "shop 75% of its rollouts (after 6 turns) and quest 25% of its rollouts (after 25 turns)"
    assert found.evidence[0] == f"Out of turns, by eval: {said}."


def test_turns_that_run_out_on_hopeless_tasks_alone_follow_from_them() -> None:
    hard = TASK == 0
    rows = rows_of(reward=np.where(hard, 0.0, 1.0), stop_reason=np.where(hard, StopReason.TURN_LIMIT, StopReason.DONE))
    assert ids(diagnose_rows(rows))[:2] == ["never_solved", "turn_limit"]


def test_loops_that_do_as_well_as_the_others_are_no_fault() -> None:
    assert diagnose_rows(rows_of(action_tail=4.0)).cards == ()


def test_truncation_of_a_rising_run_is_no_fault() -> None:
    reward = np.where(PLACE < 16, 0.0, np.where(PLACE < 32, 0.2 + PLACE % 4 / 20, 0.4 + PLACE % 4 / 20))
    rows = rows_of(reward=reward, stop_reason=StopReason.LENGTH, group=PLACE // 2)
    assert "truncation" not in ids(diagnose_rows(rows, Settings(max_reward=1.0)))


# --- Environment


def test_a_task_that_the_environment_dies_on_is_named_however_rare() -> None:
    tasks = [f"task {group}" for group in np.arange(160) // GROUP]
    bad = np.arange(160) // GROUP == 7  # 4 of 160: 2.5 %
    rows = rows_of(
        160,
        task=tasks,
        reward=np.where(bad, 0.0, np.arange(160) % 2),
        stop_reason=np.where(bad, StopReason.ENVIRONMENT_ERROR, StopReason.DONE),
        status=np.where(bad, Status.ERROR, Status.OK),
    )
    found = card(diagnose_rows(rows), "infrastructure")
    assert found.cost == pytest.approx(4 / 160)


def test_one_error_is_an_accident() -> None:
    one = PLACE == 0
    rows = rows_of(stop_reason=np.where(one, StopReason.TIMEOUT, StopReason.DONE))
    assert diagnose_rows(rows).cards == ()


def test_a_tool_that_always_raises_is_the_environments_fault() -> None:
    rows = rows_of(env_steps=2.0, env_errors=np.where(QUARTER, 2.0, 0.0))
    found = card(diagnose_rows(rows), "infrastructure")
    # They get 0, the others 24 of 36: a quarter of the rollouts lose 2/3.
    assert found.cost == pytest.approx(1 / 6)
    assert found.evidence[-1] == "In 12 rollouts all calls failed."


@pytest.mark.parametrize("hard", [True, False])
def test_a_tool_that_raises_on_some_tasks_is_the_environments_fault(*, hard: bool) -> None:
    erred = TASK == 0  # 16 of 48, one call of two
    reward = np.where(erred & hard, 0.0, PLACE % 2)
    rows = rows_of(env_steps=2.0, env_errors=erred.astype(float), reward=reward, group=PLACE // 2)
    report = diagnose_rows(rows)
    if not hard:
        assert report.cards == ()
        return
    assert ids(report)[0] == "infrastructure"
    assert report.cards[0].cost == pytest.approx(16 / 48 * (1 - 0.5))
    assert (report.cards[0].where, report.cards[0].is_part) == ("env_errors>0", False)


def test_calls_that_fail_here_and_there_may_be_the_policys_fault() -> None:
    found = card(diagnose_rows(rows_of(env_steps=2.0, env_errors=QUARTER.astype(float))), "infrastructure")
    assert not found.is_setup
    assert "the model's arguments" in found.suggestion


# --- Answers


def test_an_answer_that_was_cut_off_is_no_parse_failure() -> None:
    rows = rows_of(
        reward=0.0, parse_failures=1.0, parse_tail=1.0, truncated_turns=1.0, stop_reason=StopReason.LENGTH, turns=1.0
    )
    assert ids(diagnose_rows(rows))[0] == "truncation"
    assert "parse_failures" not in ids(diagnose_rows(rows))


def test_a_parser_that_recovers_costs_what_its_rollouts_lose_more() -> None:
    rows = rows_of(parse_failures=QUARTER.astype(float), parse_streak=QUARTER.astype(float), parse_tail=0.0)
    found = card(diagnose_rows(rows), "parse_failures")
    assert found.title == "No action is found in 12% of the model's answers"  # 12 of 96 turns
    assert found.cost == pytest.approx(1 / 6)
    assert not found.is_part


def test_rollouts_that_only_end_without_an_action_are_parse_failures() -> None:
    rows = rows_of(stop_reason=np.where(QUARTER, StopReason.NO_ACTION, StopReason.DONE))
    assert card(diagnose_rows(rows), "parse_failures").cost == pytest.approx(0.25)


def test_tokens_that_are_used_up_are_a_limit_where_nobody_says_why_they_ended() -> None:
    rows = rows_of(completion_tokens=np.where(QUARTER, 64.0, 30.0 + PLACE % 7), turns=1.0)
    found = card(diagnose_rows(rows, config={"max_completion_length": 64}), "truncation")
    assert found.cost == pytest.approx(1 / 6)
    assert found.where == "completion_tokens:64 truncated_turns:none"
    assert found.evidence[1] == "Truncated generations have 64 tokens (all of them); max_completion_length is 64."
    assert found.suggestion.startswith("Raise max_completion_length (now 64), or reward")


def test_a_completion_of_many_turns_is_not_compared_with_the_limit_of_one() -> None:
    rows = rows_of(completion_tokens=np.where(QUARTER, 5_000.0, 300.0), turns=40.0)
    assert "truncation" not in ids(diagnose_rows(rows, config={"max_completion_length": 2_048}))


TRUNCATED: dict[str, Any] = {
    "truncated_turns": QUARTER.astype(float),
    "stop_reason": np.where(QUARTER, StopReason.LENGTH, StopReason.DONE),
    "completion_tokens": 5_000.0,
    "turns": 40.0,
}


@pytest.mark.parametrize(
    ("columns", "said", "advised"),
    [
        ({"cut_tokens": 64.0, "cut_limit": 64.0},
         ("Truncated generations have 64 tokens (all of them). Their calls allowed 64 (max_tokens); "
         "max_completion_length is 2,048."), "Raise the calls' max_tokens (now 64)"),
        ({"cut_tokens": np.where(PLACE < 24, 512.0, 1_024.0), "cut_limit": np.where(PLACE < 24, 512.0, 1_024.0)},
         ("Truncated generations have 512 to 1,024 tokens (median 768). Their calls allowed 512 to 1,024 (max_tokens); "
         "max_completion_length is 2,048."), "Raise the calls' max_tokens (now 512 to 1,024)"),
        ({"cut_tokens": np.where(PLACE < 24, 8.0, 70.0), "cut_limit": np.where(PLACE < 24, 8.0, 70.0),
          "env_tokens": 15_000.0},
         ("Truncated generations have 8 to 70 tokens (median 39). Their calls allowed 8 to 70 (max_tokens), in the "
         "median less than they sampled per turn; 75% of their tokens after the prompt are the environment's; "
         "max_completion_length is 2,048."), "Shorten what the environment says, allow fewer turns, or raise the "),
        ({"cut_tokens": 22.0, "cut_limit": 2_048.0, "completion_tokens": 1_500.0, "env_tokens": 540.0},
         ("Truncated generations have 22 tokens (all of them); with the observations, these rollouts have 2,040; "
          "max_completion_length is 2,048."), "Raise max_completion_length (now 2,048), shorten observations"),
        ({"cut_tokens": 700.0, "cut_limit": 4_096.0},
         ("Truncated generations have 700 tokens (all of them), fewer than their calls allowed (max_tokens 4,096); "
         "max_completion_length is 2,048."), "Find what cuts them: the server's context length"),
        ({"cut_tokens": 2_048.0, "cut_limit": 2_048.0},
         "Truncated generations have 2,048 tokens (all of them); max_completion_length is 2,048.",
         "Raise max_completion_length (now 2,048)"),
        ({"cut_tokens": np.where(PLACE < 24, 64.0, NAN)},
         ("Truncated generations have 64 tokens (all of the 6 of 12 whose length is recorded). Their limit is not "
         "recorded; max_completion_length is 2,048."), "Find what cuts them: the calls' max_tokens"),
        ({"cut_limit": 1_024.0},
         "Truncated generations were allowed 1,024 tokens (max_tokens); max_completion_length is 2,048.",
         "Find what cuts them: the calls' max_tokens"),
        ({}, "The length and the limit of truncated generations are not recorded; max_completion_length is 2,048.",
         "Find what cuts them: the calls' max_tokens"),
    ],
)  # fmt: skip
def test_truncation_names_the_limit_that_was_hit(columns: dict[str, Any], said: str, advised: str) -> None:
    found = card(diagnose_rows(rows_of(**TRUNCATED | columns), config={"max_completion_length": 2_048}), "truncation")
    assert said in found.evidence
    assert found.suggestion.startswith(advised)
    assert ("(now 2,048)" in found.suggestion) == advised.startswith("Raise max_completion_length")
    assert "5,000" not in " ".join(found.evidence)


MANY = np.arange(240)
ANY = np.random.default_rng(1).integers(5, 25, 240)


@pytest.mark.parametrize(
    ("turns", "cards"),
    [
        (ANY, []),
        (np.where(MANY % 2, 12, ANY), ["turn_limit"]),
        (np.where(MANY % 4 > 1, 6, 24), ["turn_limit"]),
        (np.where(MANY % 2, 7 + MANY // GROUP % 12, ANY), ["turn_limit"]),  # each task has its own limit
    ],
)
def test_rollouts_that_stop_after_any_number_of_turns_ran_out_of_none(turns: Any, cards: list[str]) -> None:
    tasks, stop = [f"task {place // GROUP % 12}" for place in MANY], np.where(MANY % 2, "turn_limit", StopReason.DONE)
    rows = rows_of(240, task=tasks, reward=(MANY + 1) % 2, turns=turns, stop_reason=stop)
    assert [name for name in ids(diagnose_rows(rows)) if name == "turn_limit"] == cards


def test_generations_that_were_cut_in_the_middle_are_told_from_the_end() -> None:
    rows = rows_of(truncated_turns=QUARTER.astype(float), stop_reason=np.where(PLACE == 0, "length", StopReason.DONE))
    found = card(diagnose_rows(rows), "truncation")
    assert found.title == "25% of rollouts have a truncated generation"
    assert "In 1 of 12 it was the last one." in found.evidence
    assert found.where == "truncated_turns>0"


def test_who_says_nothing_to_an_environment_that_others_act_in_is_idle() -> None:
    rows = rows_of(env_steps=np.where(QUARTER, NAN, 2.0), tool_calls=0.0)
    found = card(diagnose_rows(rows), "never_acted")
    assert found.cost == pytest.approx(1 / 6)
    assert found.where == "env_steps:none"


def test_answers_that_go_on_after_their_end_need_a_token_that_ends_them() -> None:
    advice = {}
    for name in ("no end: still running", "two limits: 256 rollouts"):
        (fault,) = (it for it in FAULTS if it.id == name)
        assert fault.made is not None
        found = diagnosed(fault.made()).report.cards[0]
        assert found.id == "truncation"
        advice[name] = found.suggestion, found.evidence[-1]
    goes_on, is_long = advice.values()
    assert goes_on[0].startswith("Check the token that ends a turn (eos)")
    assert goes_on[1] == "Of 20 of them that were read, 20 go on after a final answer, or as another speaker."
    assert not is_long[0].startswith("Check")


def test_a_tools_answer_without_room_is_no_truncated_generation() -> None:
    given = {"stop_reason": np.where(QUARTER, "length", StopReason.DONE), "no_room": QUARTER, "truncated_turns": 0.0}
    rows = rows_of(**given, tool_calls=1.0, reward=np.where(QUARTER, 0.0, PLACE % 2), group=PLACE // 2)
    report = diagnose_rows(rows, config={"max_completion_length": 80})
    assert ids(report) == ["no_room"]
    found = report.cards[0]
    assert (found.title, found.where) == ("25% of rollouts end because a tool's answer had no room", "no_room:1")
    assert (
        found.evidence[1]
        == "The completion, of max_completion_length=80 tokens, had no room for what the tool answered."
    )


@pytest.mark.parametrize(("used", "is_setup"), [(30.0, True), (50.0, False)])
def test_a_tools_answer_that_alone_is_longer_than_half_of_the_room_is_a_fault_of_the_set_up(
    used: float,
    is_setup: bool,  # noqa: FBT001 - of a table
) -> None:
    """The others never call the tool, and do as well as any."""
    dropped, idle = PLACE % 16 == 0, PLACE % 16 > 0
    rows = rows_of(
        stop_reason=np.where(dropped, "length", StopReason.DONE), no_room=dropped, truncated_turns=0.0,
        tool_calls=np.where(idle, 0.0, 1.0), completion_tokens=np.where(dropped, used, 8.0),
        env_steps=np.where(idle, NAN, 1.0), reward=np.where(dropped, 0.0, PLACE % 4 == 3), group=PLACE // 8,
    )  # fmt: skip
    found = card(diagnose_rows(rows, config={"max_completion_length": 80}), "no_room")
    assert found.is_setup is is_setup
    sentence = "3 of them had used at most 40 tokens: what the tool answered needs more than that."
    assert (sentence in found.evidence) is is_setup
    assert found.cost == pytest.approx(3 / 48 if is_setup else found.cost)


def test_what_takes_the_outcome_away_is_found_though_a_bonus_hides_it() -> None:
    cut, place = np.arange(96) % 4 > 0, np.arange(96)
    given: dict[str, Any] = {"stop_reason": np.where(cut, "length", StopReason.DONE), "truncated_turns": cut * 1.0}
    parts = {"correct": np.where(cut, 0.0, place % 8 == 0), "length": np.where(cut, 0.6, 0.1)}
    report = diagnose_rows(rows_of(96, **given, parts=parts, reward=sum(parts.values())))
    assert "truncation" in ids(report)
    never = {"correct": 0.0 * place, "length": 0.2 - 0.1 * (place % 4 == 0) + 0.001 * (place % 5)}
    nothing = diagnose_rows(rows_of(96, **given, parts=never, reward=sum(never.values())))
    assert "truncation" in ids(nothing), "of none that is solved, nothing does as well"


def test_a_function_that_never_answers_is_named() -> None:
    rows = rows_of(parts={"right": np.full(48, NAN), "format": (PLACE % 2).astype(float)})
    assert diagnose_rows(rows).cards[0].title == "right gave no reward to any rollout"


def test_a_function_that_answers_for_some_of_a_group_is_named() -> None:
    right = np.where(PLACE % 2, 1.0, NAN)
    report = diagnose_rows(rows_of(parts={"right": right, "format": np.zeros(48)}))
    found = report.cards[0]
    assert found.title == "right gave no reward to 50% of rollouts, but scored others of the same prompts"
    assert found.where == "rewards.right:none"
    assert (found.cost, found.share) == (None, 0.5)


def test_a_function_that_never_answers_for_a_task_is_only_blamed_for_the_others() -> None:
    right = np.where((TASK == 0) | (PLACE % 2 == 0), NAN, 1.0)
    report = diagnose_rows(rows_of(parts={"right": right, "format": np.where(TASK == 0, PLACE % 2, 0.0)}))
    found = card(report, "invalid_reward")
    assert found.own is not None
    assert np.array_equal(found.own, (TASK != 0) & (PLACE % 2 == 0))
    by_task = {"right": np.where(TASK == 0, NAN, PLACE % 2), "format": np.where(TASK == 0, PLACE % 2, 0.0)}
    assert diagnose_rows(rows_of(parts=by_task)).cards == ()


def test_nan_of_the_other_environments_function_is_no_missing_reward() -> None:
    """Each rollout has a number of its own function, and NaN of the other."""
    is_web = PLACE // GROUP % 2 == 1
    parts = {"game": np.where(is_web, NAN, PLACE % 2), "web": np.where(is_web, PLACE % 2, NAN)}
    rows = rows_of(parts=parts, reward=PLACE % 2, odd=np.full(48, fill_value=True))
    assert "invalid_reward" not in [it.id for it in diagnose_rows(rows).cards]
    assert not has_cause(rows, LossCause.INVALID_REWARD).any()


def test_one_nan_beside_numbers_of_its_group_is_named_for_what_it_is() -> None:
    right = np.where(PLACE == 5, NAN, PLACE % 2)
    rows = rows_of(parts={"right": right, "format": np.ones(48)}, odd=PLACE == 5)
    found = card(diagnose_rows(rows), "invalid_reward")
    assert found.title == "right gave no reward to 2% of rollouts, but scored others of the same prompts"
    assert found.evidence[-1] == "1 of these rollouts have NaN of a function."


def test_functions_that_have_rows_of_their_own_within_a_group_are_healthy() -> None:
    kinds = {name: np.where(number == PLACE // 2 % 3, PLACE % 2, NAN) for number, name in enumerate("abc")}
    assert diagnose_rows(rows_of(parts=kinds)).cards == ()


def test_groups_that_a_function_missed_as_a_whole_count_where_it_mostly_answers_some() -> None:
    right = np.where((PLACE < GROUP) | (PLACE % 2 == 0), NAN, 1.0)  # the first group has none by accident
    found = card(diagnose_rows(rows_of(parts={"right": right, "format": np.zeros(48)})), "invalid_reward")
    assert found.title.startswith("right gave no reward to 54% of rollouts")  # 26 of 48


def test_a_function_whose_tasks_have_all_been_trained_on_has_not_stopped() -> None:
    """A curriculum: another function scores the tasks that come after them."""
    is_late = PLACE >= 24
    parts = {"math": np.where(is_late, NAN, PLACE % 2), "code": np.where(is_late, PLACE % 2, NAN)}
    rows = rows_of(steps=12, parts=parts, reward=PLACE % 2, task=np.where(is_late, "code", "math").tolist())
    assert "invalid_reward" not in ids(diagnose_rows(rows, Settings(steps=3), has_ended=True))


@pytest.mark.parametrize("is_scored_by_another", [True, False])
def test_values_of_which_a_function_scored_only_the_first_groups_by_chance_are_no_stop(
    is_scored_by_another: bool,  # noqa: FBT001 - of a table
) -> None:
    """Of 500 values, in ten groups each, some have all groups that a function scores before all that it does not."""
    count, draw = 250 * GROUP, np.random.default_rng(11)
    group, won = np.arange(count) // GROUP, draw.random(count) < 0.5
    is_math = draw.random(250)[group] < 0.5
    other = np.where(is_math, NAN, won) if is_scored_by_another else draw.random(count)
    columns = {f"metadata.c{it}": draw.integers(0, 25, 250)[group].astype(str).tolist() for it in range(20)}
    rows = rows_of(count, steps=50, parts={"math": np.where(is_math, won, NAN), "other": other}, reward=won)
    report = diagnose_rows(
        rows, read_labels=lambda some: {name: [of[it - 1] for it in some.id] for name, of in columns.items()}
    )
    assert "invalid_reward" not in ids(report)


def test_rollouts_that_act_without_a_task_are_judged_without_a_warning() -> None:
    report = diagnose_rows(rows_of(task=[None] * 48, env_steps=2.0))
    assert {it.id: it.state for it in report.checked}["never_acted"] == "below"


# --- Rewards of the prompt


def test_tasks_that_are_paid_alike_whatever_is_answered_are_not_called_unsolved() -> None:
    report = diagnose_rows(rows_of(reward=TASK * 0.2))
    assert ids(report) == ["dead_groups"]
    assert "There are 3 different rewards, which depend on the prompt alone." in report.cards[0].evidence
    assert "never_solved" in ids(diagnose_rows(rows_of(reward=(TASK > 0).astype(float))))


def test_functions_that_differ_only_between_groups_are_named_where_completions_differ() -> None:
    by_prompt = np.where(TASK > 0, 2.0, -8.0)
    parts = {"rewrite": by_prompt, "form": np.full(48, 2.0)}
    given: dict[str, Any] = {"reward": by_prompt + 2, "parts": parts}
    found = card(diagnose_rows(rows_of(**given, completion_key=PLACE % 4 % 3)), "dead_groups")
    assert (
        "rewrite differs between groups, but never within one, though completions differ in 12 of all 12 groups."
        in found.evidence
    )
    unknown = card(diagnose_rows(rows_of(**given)), "dead_groups")
    assert not any("never within one" in sentence for sentence in unknown.evidence)


# --- Who acts


def test_who_finds_no_action_from_the_first_answer_on_is_a_parse_failure() -> None:
    unparsed = PLACE % 4 == 2
    steps, failed = np.where(QUARTER, NAN, 2.0), np.where(QUARTER, NAN, unparsed)
    own: dict[str, Any] = {"env_steps": steps, "parse_failures": failed, "parse_tail": failed}
    assert ids(diagnose_rows(rows_of(**own, tool_calls=0.0))) == ["parse_failures"]
    assert "never_acted" in ids(diagnose_rows(rows_of(**own, tool_calls=np.where(QUARTER, 0.0, 2.0))))


# --- Twins


def test_twins_of_a_certain_policy_are_its_fault_whatever_they_are_paid() -> None:
    alike = rows_of(completion_key=PLACE // GROUP, mean_logprob=-0.004)
    found = card(diagnose_rows(alike), "diversity")
    assert found.cost is None  # they lose a half, as others would
    assert found.evidence[1] == "All rollouts do; their mean reward is 0.5."
    learned = rows_of(completion_key=PLACE // GROUP, mean_logprob=-0.004, reward=np.where(PLACE < GROUP, 0.0, 1.0))
    assert "diversity" not in ids(diagnose_rows(learned))


def test_twins_that_are_paid_alike_make_groups_dead_whatever_the_task() -> None:
    rows = rows_of(completion_key=PLACE // GROUP, reward=(PLACE // GROUP % 3 == 0).astype(float))
    dead = card(diagnose_rows(rows), "dead_groups")
    assert dead.cost is None
    assert dead.evidence[-1] == "12 of the 12 have equal completions only."
    assert dead.suggestion.startswith("Make the completions of a group differ first")


def test_twins_that_are_paid_differently_are_not_why_a_group_fails() -> None:
    assert "diversity" not in ids(diagnose_rows(rows_of(completion_key=PLACE // GROUP)))


def test_a_cold_policy_explains_that_it_goes_round_in_circles() -> None:
    rows = rows_of(completion_key=PLACE // GROUP, action_tail=5.0, reward=(PLACE // GROUP % 6 == 0).astype(float))
    assert ids(diagnose_rows(rows, config={"temperature": 0.01}))[0] == "diversity"
    assert ids(diagnose_rows(rows, config={"temperature": 1.0}))[0] == "loops"


# --- Facts


def moves(*actions: str) -> list[dict[str, Any]]:
    return [entry(turn, action, action, f"turn {turn}") for turn, action in enumerate(actions, 1)]


@pytest.mark.parametrize(
    ("actions", "share"),
    [
        ("ABAB", 1.0),
        ("ABABA", 1.0),
        ("XABABY", 4 / 6),
        ("ABCABC", 1.0),
        ("ABCDEF", 0.0),
        ("AAAA", 0.0),
        ("ABCABX", 0.0),
    ],
)
def test_rounds_of_the_same_actions_repeat(actions: str, share: float) -> None:
    """The observation counts the turns, so that no move is made twice at the same one."""
    assert facts([], moves(*actions), [], None)["repeats"] == pytest.approx(share)


def test_equal_answers_are_no_degenerate_text() -> None:
    words = " ".join(f"word{n}" for n in range(40))
    again = facts([{"role": "assistant", "content": words}] * 5, [], [], None)
    assert (again["distinct_words"], again["trigram_repeats"]) == (1.0, 0.0)


def test_repeated_text_does_not_cost_what_cutting_some_of_it_does() -> None:
    """Three of four repeat their text, and do nearly as well as others; some of them are cut, and get nothing."""
    place, chance = np.arange(480), np.random.default_rng(3).random(480)
    repeats, is_cut = place % 4 != 0, (place % 4 == 1) & (place % 8 < 4)
    reward = np.where(is_cut, 0.0, chance < 0.7).astype(float)
    stop = np.where(is_cut, StopReason.LENGTH, StopReason.DONE)
    rows = rows_of(480, reward=reward, trigram_repeats=np.where(repeats, 0.9, 0.0), compression=2.0, stop_reason=stop)
    report = diagnose_rows(rows)
    assert ids(report) == ["truncation"]
    sentence = "75% of rollouts repeat their own text; without truncated ones they lose no more beyond chance."
    assert sentence in [check.said for check in report.checked]


def test_without_tokens_equal_answers_have_equal_keys() -> None:
    def said(answer: str) -> Any:
        return facts([{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": answer}], [], [], None)

    assert said("4")["completion_key"] == said("4")["completion_key"] != said("5")["completion_key"]
    assert said("4")["prompt_key"] == said("5")["prompt_key"]


def test_a_last_word_to_an_environment_of_tools_is_no_parse_failure() -> None:
    called = {"name": "guess", "arguments": {"number": 3}}
    turns = [entry(1, "", called, "right"), entry(2, "It was 3.", None)]
    assert facts([], turns, [], None, by_tools=True)["parse_failures"] == 0
    turns[1]["text"] = "<tool_call>{oops"
    assert facts([], turns, [], None, by_tools=True)["parse_failures"] == 1
