"""Diagnostics of rewards, groups and updates against figures worked out by hand."""

import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from logs_ui.recorder.diagnosis import Settings, diagnose_rows
from logs_ui.recorder.diagnosis.card import Texts
from logs_ui.recorder.diagnosis.checks.answer_length import correlation
from logs_ui.recorder.diagnosis.checks.contradictions import against, spreads, twins
from logs_ui.recorder.diagnosis.checks.reward_functions import cancels
from logs_ui.recorder.diagnosis.checks.wiring import swapped
from logs_ui.recorder.diagnosis.links import ids
from logs_ui.recorder.diagnosis.rollout_rows import Floats, Rows
from logs_ui.recorder.diagnosis.scale import Scale
from logs_ui.recorder.diagnosis.success import Success
from logs_ui.recorder.diagnosis.tables.tasks import alikeness, chance_of_few
from logs_ui.recorder.vocabulary import Mark
from tests.recorder.diagnosis.test_diagnosis import GROUP, NAN, PLACE, card, rows_of

HALF = (PLACE % 2).astype(float)
LATE = PLACE >= 24  # steps 4 to 6
NAMES = ("hacking", "inconsistent", "disagreement", "forgotten", "length", "reward_parts", "task_mix", "mismatch")


def test_a_weightless_function_that_falls_while_the_reward_rises_is_suspected() -> None:
    paid, real = np.where(LATE, 1.0, HALF), np.where(LATE, 0.0, HALF)
    rows = rows_of(
        reward=paid, parts={"judge": paid, "real": 0 * real}, values={"judge": paid, "real": real},
        weights={"judge": 1.0, "real": 0.0}, group=PLACE // 2,
    )  # fmt: skip
    found = card(diagnose_rows(rows), "hacking")
    assert (found.cost, found.share) == (None, 0.75)  # no reward is lost: what is lost is 0.5 of `real`
    assert found.evidence[2] == "The cost is in real: 0.5 less of it per rollout."
    assert found.evidence[0] == "Steps 5\u20136 vs 1\u20132: real 0.5 \u2192 0, reward 0.5 \u2192 1."
    assert found.evidence[1] == "Its weight is 0: it can make 0% of the difference in reward."
    assert (found.where, found.since_step) == ("rewards.real<0.25", 4)


def test_a_function_that_never_pays_is_to_be_checked_and_no_other_blamed() -> None:
    parts = {"formatted": 0.2 * HALF, "correct": 0 * HALF}
    found = card(diagnose_rows(rows_of(reward=0.2 * HALF, parts=parts)), "reward_parts")
    assert found.suggestion == "Check why correct gives 0 to every rollout, such as a parser that never matches."
    assert found.where == "rewards.correct<=1e-06"


@pytest.mark.parametrize(
    ("end", "sentence", "advice"),
    [
        (
            "<|assistant|><think>\n",
            "48 of 48 prompts that were read end with <think>.",
            "The prompt ends with <think>, ",
        ),
        ("<|assistant|>", None, "If form looks for <think>, "),
        ("", None, "If form looks for <think>, "),
    ],
)
def test_a_tag_that_the_sent_prompt_ends_with_is_told(end: str, sentence: str | None, advice: str) -> None:
    def read_texts(ids: Sequence[int]) -> dict[int, Texts]:
        return {it: Texts([{"role": "assistant", "content": f"so {it}\n</think>\n7"}], []) for it in ids}

    report = diagnose_rows(
        rows_of(reward=HALF, parts={"correct": HALF, "form": 0 * HALF}), read_texts=read_texts,
        read_prompt_ends=lambda ids: dict.fromkeys(ids, end) if end else {},
    )  # fmt: skip
    found = card(report, "constant_function")
    assert found.evidence[2] == "48 of 48 first answers that were read hold </think>, and none holds <think>."
    assert found.evidence[3:] == ((sentence,) if sentence else ())
    assert found.suggestion.startswith(advice)


def test_a_function_that_never_pays_answers_that_are_cut_waits_for_these_to_end() -> None:
    cut, bonus = PLACE % 8 > 0, 0.2 * HALF
    report = diagnose_rows(
        rows_of(
            reward=bonus, parts={"bonus": bonus, "correct": 0 * HALF}, truncated_turns=cut * 1.0,
            stop_reason=np.where(cut, "length", "done"),
        )
    )  # fmt: skip
    assert report.scale.source == "the run's 99th percentile; correct gave only 0"
    for name in ("reward_parts", "constant_function"):
        assert card(report, name).suggestion == (
            "Let answers end first: 88% of those to which correct gives 0 are truncated."
        )


@pytest.mark.parametrize(("weight", "expected"), [(1.0, False), (0.1, True)])
def test_a_function_that_counts_may_fall(weight: float, expected: bool) -> None:  # noqa: FBT001
    paid, real = np.where(LATE, 1.0, HALF), np.where(LATE, 0.0, HALF)
    rows = rows_of(
        reward=2 * paid + weight * real, parts={"judge": 2 * paid, "real": weight * real},
        weights={"judge": 2.0, "real": weight}, group=PLACE // 2,
    )  # fmt: skip
    assert ("hacking" in {it.id for it in diagnose_rows(rows).cards}) is expected


@pytest.mark.parametrize(
    ("paid", "falls", "expected"),
    [("format", "correct", True), ("correct", "format", False), ("solved", "correct", False)],
)
def test_an_outcome_that_counts_may_not_fall_for_anything_else(paid: str, falls: str, *, expected: bool) -> None:
    place = np.arange(96)
    late = place >= 48
    parts = {paid: np.where(late, 2.0, 1.0), falls: np.where(late, place % GROUP == 0, place % 2)}
    rows = rows_of(96, reward=sum(parts.values()), parts=parts)
    found = {it.id: it for it in diagnose_rows(rows).cards}
    assert ("hacking" in found) is expected
    if expected:
        # Values of each group's four: 0.5 of them before, 0.25 since; the reward from 1.5 to 2.25.
        title = "Suspected reward hacking: the reward rises while correct falls, and format rises instead"
        assert found["hacking"].title == title
        assert found["hacking"].evidence[1] == "In these steps format added 1 to the reward at first, and 2 at last."


@pytest.mark.parametrize(("size", "expected"), [(0.25, True), (0.15, False)])
def test_an_outcome_may_not_fall_for_as_much_of_anything_else(size: float, *, expected: bool) -> None:
    """`correct` falls from 0.5 to 0.25, and the reward does not rise beyond chance."""
    place = np.arange(192)
    late = place >= 96
    parts = {"calls": np.where(late, size, 0.0), "correct": np.where(late, place % GROUP == 0, place % 2)}
    rows = rows_of(192, reward=sum(parts.values()), parts=parts, group=place // GROUP)
    report = diagnose_rows(rows)
    found = {it.id: it.title for it in report.cards}
    said = "Suspected reward hacking: correct falls, and calls rises instead"
    assert found.get("hacking") == (said if expected else None)


def test_an_outcome_that_falls_by_the_chance_of_its_prompts_is_no_hacking() -> None:
    # Whole groups pass or fail: 3 of 4 in the first third, 1 of 4 in the last, which is 2 standard errors or less.
    passed = np.repeat([1.0, 1, 1, 0, 1, 0, 1, 0, 0, 1, 0, 0], GROUP)
    parts = {"format": np.where(LATE, 2.0, 1.0), "correct": passed}
    rows = rows_of(reward=parts["format"] + passed, parts=parts)
    assert "hacking" not in {it.id for it in diagnose_rows(rows).cards}


@pytest.mark.parametrize("is_paid", [False, True])
def test_a_function_is_compared_with_the_reward_of_its_own_environment(*, is_paid: bool) -> None:
    """In chess `won` falls from 0.75 to 0.25, alone, or beside `style`, which rises from 1 to 3; in trading the profit
    rises from 1 to 60, or falls back.
    """
    place = np.arange(192)
    is_chess, late = place // GROUP % 2 == 0, place >= 96
    won = np.where(is_chess, np.where(late, place % 4 == 0, place % 4 > 0), NAN)
    profit = np.where(is_chess, NAN, np.where(late != is_paid, 60.0, 1.0) + place % 2)
    parts = {"won": won, "profit": profit}
    if is_paid:
        parts["style"] = np.where(is_chess, np.where(late, 3.0, 1.0), NAN)
    rows = rows_of(192, steps=12, reward=np.nansum(list(parts.values()), axis=0), parts=parts)
    found = {it.id: it for it in diagnose_rows(rows).cards}.get("hacking")
    if not is_paid:
        assert found is None
        return
    assert found is not None
    assert found.title == "Suspected reward hacking: the reward rises while won falls, and style rises instead"
    assert found.evidence == (
        "Steps 9\u201312 vs 1\u20134: won 0.75 \u2192 0.25, reward 1.75 \u2192 3.25.",
        "In these steps style added 1 to the reward at first, and 3 at last.",
        "The cost is in won: 0.5 less of it per rollout.",
        "Counted in the groups that they score: 20 of 40.",
    )
    assert (found.where, found.share) == ("rewards.won<0.75 rewards.style>1 step:3..12", 36 / 160)  # since step 7


@pytest.mark.parametrize(("then", "expected"), [(1.2, False), (0.9, False), (0.5, True)])
def test_rollouts_that_are_more_alike_since_they_are_better_have_lost_nothing(then: float, *, expected: bool) -> None:
    """They spread by 0.3 around 0.3 to 0.6 over 20 steps, and then by 0.03."""
    place = np.arange(96)
    sign = np.where(place % 2, 1.0, -1.0)
    before = 0.3 + 0.3 * (place // 4) / 20 + 0.3 * sign
    reward = np.where(place >= 84, then + 0.03 * sign, before)
    rows = rows_of(96, steps=24, reward=reward, group=place // 2)
    found = diagnose_rows(rows, Settings(max_reward=3.0))
    assert ("signal_cliff" in {it.id for it in found.cards}) is expected


def test_few_groups_that_all_fail_are_no_cliff() -> None:
    """One group of two at each step: half of them spread by 0.5, of the last three none."""
    place = np.arange(48)
    mixed = (place // 2 % 3 > 0) & (place < 42)
    rows = rows_of(steps=24, group=place // 2, reward=np.where(mixed, place % 2, 0) + np.where(place == 43, 0.8, 0))
    assert "signal_cliff" not in {it.id for it in diagnose_rows(rows, Settings(max_reward=3.0)).cards}


def test_a_completion_that_is_scored_differently_is_found() -> None:
    # Rollouts 0 and 1 of each group say the same, and get 0 and 1; 2 and 3 are like no other.
    said = np.where(PLACE % GROUP < 2, PLACE // GROUP, 100 + PLACE)
    rows = rows_of(prompt_key=PLACE // GROUP, completion_key=said)
    known, same = twins(rows)
    assert known.all()
    np.testing.assert_array_equal(spreads(rows.values["solved"], same)[:4], [1.0, 1.0, NAN, NAN])
    found = card(diagnose_rows(rows), "inconsistent")
    assert found.title == "solved scores the same completion differently: 12 of 12 that occur more than once"
    assert (found.cost, found.share) == (None, 0.5)  # noise withholds nothing on average
    assert found.evidence[1] == "One completion received 2 values from solved, 0 to 1."
    assert found.where.startswith("id:1..2,5..6,9..10,")


def test_what_the_environment_rewarded_differently_is_no_twin() -> None:
    rows = rows_of(prompt_key=PLACE // GROUP, completion_key=PLACE // GROUP, env_steps=1, env_reward_sum=HALF)
    assert "inconsistent" not in {it.id for it in diagnose_rows(rows).cards}


def test_an_environment_that_gave_no_rewards_leaves_nothing_to_compare() -> None:
    rows = rows_of(prompt_key=PLACE // GROUP, completion_key=PLACE // GROUP, env_steps=1)
    (found,) = [it for it in diagnose_rows(rows).checked if it.id == "inconsistent"]
    assert found.state == "not_judged"
    assert found.said.startswith("Too few rollouts have the environment's reward")


def test_an_environment_that_says_1_where_the_function_says_0_is_found() -> None:
    env = np.where(
        PLACE % 4 < 3, 1.0, 0.0
    )  # 36 of 48; the function has 1 of them in two: 0 and 2 of each group are not
    found = card(diagnose_rows(rows_of(env_reward_sum=env)), "disagreement")
    # 0 and 2 of each group are withheld, and 3 is paid for nothing.
    assert found.title == "solved and the environment disagree on 75% of rollouts"
    assert found.cost == pytest.approx(24 / 48)
    assert found.where == "id:1,3..5,7..9,11..13,15..17,19..21,23..25,27..29,31..33,35..37,39..41,43..45,47..48"


def test_pairs_of_graded_rewards_in_opposite_order_are_found() -> None:
    graded = (PLACE % GROUP) / 4
    rows = rows_of(reward=graded, parts={"score": graded}, env_reward_sum=np.array([0.1, 0.2, 0.4, 0.3])[PLACE % GROUP])
    found = against(rows, "score")
    assert found is not None
    assert found.compared == 72
    assert found.share == pytest.approx(1 / 6)  # one of six pairs in each of twelve groups
    assert found.odd[:4].tolist() == [False, False, True, True]


def test_a_function_for_something_else_does_not_disagree_where_another_agrees() -> None:
    rows = rows_of(reward=HALF + 1, parts={"solved": HALF, "format": np.ones(48)}, env_reward_sum=HALF)
    assert "disagreement" not in {it.id for it in diagnose_rows(rows).cards}


def test_the_environments_last_reward_will_do() -> None:
    found = against(rows_of(env_reward_sum=HALF + PLACE % 3, env_reward_last=HALF), "solved")
    assert found is not None
    assert found.share == 0


def test_a_task_that_is_not_solved_any_more_is_found() -> None:
    found = card(diagnose_rows(_forgotten((np.arange(96) % 2).astype(float)), Settings(max_reward=1.0)), "forgotten")
    # 24 rollouts of 96 lost a point each since then, and 12 of 24 before.
    assert found.title == "1 of 2 tasks regressed: 0% of attempts solve it now, 50% did before"
    assert found.cost == pytest.approx((24 + 12 - 48 / 2) / 96)
    assert (found.where, found.since_step) == ("task:lost step:4..6", 4)


def test_attempts_that_an_environment_failed_make_no_task_regress() -> None:
    place = np.arange(96)
    is_lost = (place // GROUP % 2 == 0) & (place >= 48)
    rows = replace(_forgotten((place % 2).astype(float)), status=np.where(is_lost, "error", "ok").astype(object))
    assert "forgotten" not in {finding.id for finding in diagnose_rows(rows, Settings(max_reward=1.0)).cards}


def test_groups_that_pass_or_fail_as_a_whole_are_one_attempt_each() -> None:
    # Three of six groups passed, then six failed, of two tasks: C(6, 3) / C(12, 3) = 1 / 11 of cases.
    rows = _forgotten((np.arange(96) // GROUP // 2 % 2 == 0).astype(float))
    assert alikeness(rows, Scale(1.0, Success((Mark("reward", 1.0),)), "")) == 1
    assert chance_of_few(3, 6, 6, 0) == pytest.approx(1 / 11)
    assert "forgotten" not in {it.id for it in diagnose_rows(rows, Settings(max_reward=1.0)).cards}


def test_rollouts_that_do_not_end_alike_count_each() -> None:
    assert (
        alikeness(_forgotten((np.arange(96) % 2).astype(float)), Scale(1.0, Success((Mark("reward", 1.0),)), "")) == 0
    )


def _forgotten(reward: Floats) -> Rows:
    """Groups of two tasks in turn, one of which gets nothing any more from step 4 on."""
    place = np.arange(96)
    task = np.where(place // GROUP % 2, "kept", "lost")
    return rows_of(96, task=task.tolist(), reward=np.where((task == "lost") & (place >= 48), 0.0, reward))


def test_a_constant_reward_where_the_environment_tells_apart_explains_all() -> None:
    report = diagnose_rows(rows_of(reward=0.0, env_reward_sum=HALF))
    assert report.cards[0].id == "constant_reward"
    assert "The environment rewards 50% of them above its minimum." in report.cards[0].evidence


def test_a_constant_reward_is_constant_since_the_step_after_the_last_other_reward() -> None:
    place = np.arange(192)  # in 24 steps of eight
    report = diagnose_rows(rows_of(192, steps=24, reward=np.where(place < 72, place % 2, 0.0)))
    assert card(report, "constant_reward").began == "since step 10"


def test_functions_that_cancel_out_explain_a_constant_reward() -> None:
    rows = rows_of(reward=0.0, parts={"a": HALF, "b": -HALF})
    assert cancels(rows).all()
    report = diagnose_rows(rows)
    assert [it.id for it in report.cards] == ["reward_parts", "constant_reward", "dead_groups"]
    assert report.cards[0].where == "spread:0"


def test_what_is_paid_by_one_function_for_length_is_found() -> None:
    place = np.arange(96)
    tokens = 100.0 + 40 * (place // 16) + 10 * (place // 2 % 2)
    right = (place % 2).astype(float)
    detail = tokens / 10
    rows = rows_of(
        96, reward=right + detail, parts={"right": right, "detail": detail}, completion_tokens=tokens, turns=1
    )
    assert correlation(rows, rows.parts["detail"]) == pytest.approx(1.0)
    # Within groups: a variance of 1/4 of `right`, 1/4 of `detail`, and no covariance.
    assert correlation(rows) == pytest.approx(0.5**0.5)
    found = card(diagnose_rows(rows), "length")
    assert (
        found.evidence[0]
        == "Correlation of detail and tokens within groups: r = 1. It explains 50% of the reward's variance."
    )
    assert found.evidence[1] == "Mean tokens per turn, first to last steps: 125 \u2192 285."


def test_an_episode_that_lasts_longer_is_no_longer_answer() -> None:
    turns = 1.0 + PLACE // 8 + PLACE % GROUP
    rows = rows_of(reward=turns, turns=turns, completion_tokens=50 * turns)
    assert "length" not in {it.id for it in diagnose_rows(rows).cards}


def test_rollouts_that_answer_another_groups_prompt_are_found() -> None:
    step = PLACE * 6 // 48
    rows = rows_of(prompt_key=step, task=[f"task {(group + group // 2) % 3}" for group in PLACE // GROUP])
    assert swapped(rows).all()
    found = card(diagnose_rows(rows), "wiring")
    assert found.title == "100% of rollouts answer a prompt that several tasks share"
    assert (found.cost, found.share) == (None, 1.0)


def test_a_question_that_a_dataset_has_twice_is_well() -> None:
    """Three questions, each under two tasks that have all of them; two groups a step, which answer different ones."""
    group = PLACE // GROUP
    rows = rows_of(prompt_key=group % 3, task=[f"subset {it // 3 % 2}" for it in group])
    assert not swapped(rows).any()
    assert "wiring" not in {it.id for it in diagnose_rows(rows).cards}


def test_a_few_steps_that_have_a_question_twice_are_well() -> None:
    # Of six steps two have one question for both of their groups, whose tasks have others too.
    group = PLACE // GROUP
    prompt = np.array([0, 0, 1, 2, 3, 4, 5, 5, 6, 7, 1, 3])[group]
    rows = rows_of(prompt_key=prompt, task=[f"task {it % 2}" for it in group])
    assert swapped(rows).mean() == pytest.approx(1 / 3)
    assert "wiring" not in {it.id for it in diagnose_rows(rows).cards}


def test_a_reset_that_shows_nothing_mixes_no_group() -> None:
    """Half of the rollouts of each task begin with the same empty prompt."""
    group = PLACE // GROUP
    rows = rows_of(prompt_key=np.where(PLACE % 2, 900, group), task=[f"task {it}" for it in group], env_steps=1.0)
    assert {it.id for it in diagnose_rows(rows).cards} & {"wiring", "unseeded"} == {"unseeded"}


def test_a_rollout_that_raised_does_not_mix_its_group() -> None:
    """It returned no token ids, so the key of its prompt is made of messages."""
    raised = PLACE % 8 == 0
    rows = rows_of(status=np.where(raised, "error", "ok"), prompt_key=np.where(raised, 900 + PLACE, PLACE // GROUP))
    assert "wiring" not in {it.id for it in diagnose_rows(rows).cards}


def test_tasks_that_share_one_prompt_are_well() -> None:
    assert not swapped(rows_of(prompt_key=1)).any()


def test_a_learning_rate_of_0_among_the_arguments_is_found() -> None:
    found = card(diagnose_rows(rows_of(), config={"learning_rate": 0.0}), "no_update")
    assert (found.cost, found.share) == (None, 1.0)
    assert found.trend == ()


def test_a_policy_that_stays_at_its_reference_is_found() -> None:
    scalars = {"kl": tuple((step, 0.0) for step in range(1, 7)), "grad_norm": ((6, 0.3),)}
    assert card(diagnose_rows(rows_of(), scalars=scalars), "no_update").title == "The policy is not updated: kl is 0"
    assert diagnose_rows(rows_of(), config={"beta": 0.0}, scalars=scalars).cards == ()


def test_log_probs_that_are_not_the_trainers_entropy_are_found() -> None:
    scalars = {"entropy": tuple((step, 2.0) for step in range(1, 7))}
    found = card(diagnose_rows(rows_of(mean_logprob=-0.5), scalars=scalars), "mismatch")
    assert found.title == "Trainer/sampler mismatch: sampler NLL 0.5 vs trainer entropy 2 nats per token"
    assert diagnose_rows(rows_of(mean_logprob=-1.6), scalars=scalars).cards == ()


def test_log_probs_are_held_against_the_entropy_token_by_token() -> None:
    # (1 * 150 * 1.6 + 7 * 10 * 0.2) / (150 + 70) = 254 / 220 nats a token, of rollouts 0.375 at the mean.
    long = PLACE % 8 == 0
    rows = rows_of(mean_logprob=np.where(long, -1.6, -0.2), completion_tokens=np.where(long, 150, 10))
    scalars = {"entropy": tuple((step, 254 / 220) for step in range(1, 7))}
    assert diagnose_rows(rows, scalars=scalars).cards == ()


def test_log_probs_of_few_rollouts_may_be_off_by_chance() -> None:
    # One in eight at 8 nats, all others at 0.1: 1.09 at the mean, give or take 0.38.
    rows = rows_of(mean_logprob=np.where(PLACE % 8 == 0, -8.0, -0.1))
    scalars = {"entropy": tuple((step, 0.3) for step in range(1, 7))}
    assert "mismatch" not in {it.id for it in diagnose_rows(rows, scalars=scalars).cards}


def test_a_batch_that_is_trained_on_for_many_steps_is_stale() -> None:
    config = {"steps_per_generation": 8, "num_iterations": 4, "gradient_accumulation_steps": 2}
    found = card(diagnose_rows(rows_of(), config=config), "staleness")
    assert "Each batch is used for 16 steps, which adds 7.5 on average." in found.evidence
    assert diagnose_rows(rows_of(), config=config | {"num_iterations": 1}).cards == ()


def test_staleness_begins_where_the_share_that_its_title_names_does() -> None:
    """Half of the rollouts fall behind at once, and from then on by a version more at each step."""
    step = np.repeat(np.arange(1, 61), 16)
    old = np.where((step > 34) & (np.arange(960) % 2 == 1), step - 30.0, 0.0)
    rows = rows_of(960, steps=60, staleness=old)
    found = card(diagnose_rows(rows), "staleness")
    assert (found.since_step, found.began, found.title[:3]) == (35, "since step 35", "50%")


def test_a_mix_that_changes_by_chance_is_not_blamed() -> None:
    hard = (PLACE // GROUP == 0) | (PLACE // GROUP == 6) | (PLACE // GROUP == 11)
    rows = rows_of(task=np.where(hard, "hard", "easy").tolist(), reward=np.where(hard, 0.0, HALF))
    assert "task_mix" not in {it.id for it in diagnose_rows(rows, Settings(steps=3)).cards}


def test_tasks_that_come_once_tell_nothing_of_their_mix() -> None:
    rows = rows_of(task=[f"task {group}" for group in PLACE // GROUP], reward=np.where(LATE, 0.0, HALF))
    assert "task_mix" not in {it.id for it in diagnose_rows(rows).cards}


def test_graded_rewards_that_miss_the_best_by_little_are_not_unsolved() -> None:
    task = np.array(["a", "b"], object)[PLACE // GROUP % 2]
    reward = np.where(task == "a", 1.0, 0.9) * (0.5 + HALF / 2)
    rows = rows_of(task=task.tolist(), reward=reward, parts={"score": reward})
    assert "never_solved" not in {it.id for it in diagnose_rows(rows).cards}


def test_filters_name_rollouts_by_ranges() -> None:
    assert ids(np.array([7, 3, 2, 1, 9])) == "id:1..3,7,9"
    assert ids(np.array([], np.int64)) == ""


@pytest.mark.parametrize("reward", [NAN, np.where(PLACE % 3, NAN, 1.0), np.where(PLACE < 44, NAN, 0.5)])
def test_rewards_that_are_missing_raise_no_warning(reward: float) -> None:
    parts = {"a": np.broadcast_to(reward, 48), "b": np.full(48, NAN)}
    rows = rows_of(reward=reward, parts=parts, completion_tokens=NAN, env_reward_sum=NAN, prompt_key=NAN)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        diagnose_rows(rows, has_ended=True)


@pytest.mark.parametrize(("groups", "said"), [(4, []), (12, ["forgotten"])])
def test_a_family_of_fewer_than_five_late_groups_has_not_regressed(groups: int, said: list[str]) -> None:
    place = np.arange(480)  # 20 steps of six groups of four
    group = place // 4
    of_a, late = group % 6 < 2, place >= 480 - 4 * 3 * groups
    task = [f"{'a' if mine else 'b'}/{it % 12:02d}" for mine, it in zip(of_a, group, strict=True)]
    reward = np.where(of_a & late, place % 4 == 0, place % 8 > 0)
    rows = rows_of(480, steps=20, task=task, reward=reward.astype(float))
    cards = diagnose_rows(rows, Settings(steps=2)).cards
    assert [it.id for it in cards if it.id == "forgotten"] == said


def test_a_family_whose_late_tasks_are_others_has_not_regressed() -> None:
    place = np.arange(480)
    of_a, late = place // 4 % 6 < 2, place >= 336
    task = [
        f"{'a' if mine else 'b'}/{group % 12 + 12 * (mine and new):02d}"
        for mine, new, group in zip(of_a, late, place // 4, strict=True)
    ]
    reward = np.where(of_a & late, place % 4 == 0, place % 8 > 0)
    rows = rows_of(480, steps=20, task=task, reward=reward.astype(float))
    assert "forgotten" not in {finding.id for finding in diagnose_rows(rows, Settings(steps=2)).cards}
