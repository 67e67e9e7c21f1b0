"""Which card has what, where several look at the same rollouts: against figures that were worked out by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from logs_ui.recorder.diagnosis import Settings, diagnose_rows
from logs_ui.recorder.diagnosis.checks.answer_length import _find_cut
from logs_ui.recorder.diagnosis.checks.reward_functions import part_of
from logs_ui.recorder.diagnosis.measures import shares
from logs_ui.recorder.diagnosis.report import Report
from logs_ui.recorder.diagnosis.rollout_rows import Floats, Rows
from logs_ui.recorder.diagnosis.waterfall import has_cause
from logs_ui.recorder.vocabulary import LossCause, StopReason
from tests.recorder.diagnosis.test_diagnosis import GROUP, PLACE, QUARTER, card, rows_of
from tests.support.exhaustive import cases

MANY, STEPS = 480, 30
PLACES = np.arange(MANY)
TIME = PLACES * STEPS // MANY / (STEPS - 1)  # 0 at the first step, 1 at the last


def ids(report: Report) -> list[str]:
    return [it.id for it in report.cards]


def drawn(chance: Floats, seed: int) -> Floats:
    """1 with the chance of each rollout, else 0."""
    return (np.random.default_rng(seed).random(len(chance)) < chance).astype(float)


# --- Reward functions


def of_two(first: Floats, second: Floats, names: tuple[str, str] = ("format", "correct")) -> Rows:
    """The first counts twice."""
    parts = {names[0]: 2 * first, names[1]: second}
    return rows_of(MANY, steps=STEPS, reward=2 * first + second, parts=parts, weights={names[0]: 2, names[1]: 1})


@pytest.mark.parametrize("seed", cases(range(4), 2))
def test_a_function_that_decides_and_rises_while_another_falls_is_found(seed: int) -> None:
    rows = of_two(drawn(0.3 + 0.45 * TIME, seed), drawn(0.5 - 0.35 * TIME, seed + 100))
    assert 0.7 < shares(rows)["format"] < 0.9
    found = card(diagnose_rows(rows), "reward_parts")
    assert found.title.endswith(" within groups over the whole run, and rises while correct falls")
    last = rows.values["correct"][rows.step > 20]
    assert found.cost == pytest.approx(1 - float(last.mean()))


@pytest.mark.parametrize(
    "chances",
    [
        (0.3 + 0.45 * TIME, 0.3 + 0.5 * TIME),  # both rise
        (0.3 + 0.45 * TIME, 0.4 + 0 * TIME),  # one rises, the other stays
        (0.5 + 0 * TIME, 0.45 - 0.2 * TIME),  # one falls, and the other does not rise for it
    ],
)
@pytest.mark.parametrize("seed", cases(range(4), 2))
def test_a_function_that_decides_alone_is_no_fault_where_none_falls_for_it(
    chances: tuple[Floats, Floats], seed: int
) -> None:
    first, second = chances
    rows = of_two(drawn(first, seed), drawn(second, seed + 100))
    assert "reward_parts" not in ids(diagnose_rows(rows))


def mix(**parts: Floats) -> Rows:
    """Every second group is a web task's, which its own function scores, as `web` has it."""
    is_web = PLACES // GROUP % 2 == 1
    own = {name: np.where(is_web == (name == "web"), given, np.nan) for name, given in parts.items()}
    return rows_of(MANY, steps=STEPS, reward=np.nansum(list(own.values()), axis=0), parts=own)


def test_functions_that_score_other_groups_do_not_outweigh_each_other() -> None:
    """One environment's test is 0 or 1, and the other's judge hardly varies."""
    rows = mix(tests=drawn(0.4 + 0 * TIME, 0), web=0.4 + 0.05 * drawn(0.4 + 0 * TIME, 1))
    assert shares(rows)["tests"] > 0.95
    report = diagnose_rows(rows)
    assert "reward_parts" not in ids(report)
    assert "No two reward functions score the same groups." in str(report.as_dict())


def test_a_function_that_outweighs_another_in_one_environment_is_found_there() -> None:
    correct = 0.1 * drawn(0.3 + 0 * TIME, 1)
    rows = mix(format=drawn(0.5 + 0 * TIME, 0), correct=correct, web=drawn(0.5 + 0 * TIME, 2))
    found = card(diagnose_rows(rows), "reward_parts")
    assert found.title.startswith("format explains >99% of the reward variance within groups, correct ")
    assert found.evidence[-1] == "Counted in the groups that they score: 20 of 40."
    assert found.share == 0.5
    assert found.where == "rewards.correct<0.099999 step:21..30"


def test_an_outcome_that_rises_while_a_form_or_a_penalty_falls_is_healthy() -> None:
    up, down = drawn(0.3 + 0.45 * TIME, 0), drawn(0.5 - 0.35 * TIME, 1)
    assert "reward_parts" not in ids(diagnose_rows(of_two(up, down, ("correct", "format"))))
    assert "reward_parts" not in ids(diagnose_rows(of_two(up, down - 1, ("first", "second"))))


def test_a_share_above_one_is_said_in_words() -> None:
    assert part_of(1.1) == "all"
    assert part_of(0.95) == "95%"
    shape = (PLACE % 2).astype(float)
    right = np.where(PLACE % 12 == 0, 1.0, 0.0)  # where the form is not
    parts = {"format": 5 * shape, "right": right}
    found = card(diagnose_rows(rows_of(reward=5 * shape + right, parts=parts)), "reward_parts")
    assert found.title == "format explains all of the reward variance within groups, right opposes it"


# --- Length


def judged_by_length(seed: int, *, growth: float = 2.0) -> Rows:
    """A judge's 1 to 10, of which length makes a good half."""
    dice = np.random.default_rng(seed)
    tokens = np.maximum(80 * (1 + growth * TIME) + dice.normal(0, 40, MANY), 5)
    return rows_of(
        MANY, steps=STEPS, reward=np.clip(1 + tokens / 45 + dice.normal(0, 0.8, MANY), 1, 10), completion_tokens=tokens
    )


@pytest.mark.parametrize("seed", cases(range(4), 2))
def test_a_judge_that_follows_length_all_along_is_found(seed: int) -> None:
    rows = judged_by_length(seed)
    found = card(diagnose_rows(rows), "length")
    assert found.title == "Longer answers get higher rewards, and answers follow"
    assert "length" not in ids(diagnose_rows(rows, Settings(thresholds={"length": 1.2})))
    assert "length" not in ids(diagnose_rows(judged_by_length(seed, growth=0.0)))


def longer_where_right(kind: str, seed: int) -> Rows:
    """More and more are right; the right are longer by two thirds, and all grow."""
    dice = np.random.default_rng(seed)
    right = dice.random(MANY) < 0.4 + 0.4 * TIME
    tokens = 80 * (1 + 1.5 * TIME) * (1 + 0.65 * right) + dice.normal(0, 50, MANY)
    judged = np.clip(np.where(right, dice.normal(0.9, 0.06, MANY), dice.normal(0.3, 0.12, MANY)), 0, 1)
    return rows_of(
        MANY, steps=STEPS, completion_tokens=tokens, reward=judged if kind == "graded" else right.astype(float)
    )


@pytest.mark.parametrize("kind", ["graded", "right or wrong"])
@pytest.mark.parametrize("seed", cases(range(4), 2))
def test_right_answers_that_are_longer_are_healthy(kind: str, seed: int) -> None:
    assert "length" not in ids(diagnose_rows(longer_where_right(kind, seed)))


def test_a_function_that_rises_without_length_is_learnt() -> None:
    """Half of the reward is the judge's, and as much is earned by what does not follow length."""
    rows, solved = judged_by_length(1), drawn(0.2 + 0.7 * TIME, 1)
    parts = {"judge": rows.reward, "solved": 0.5 * solved}
    both = rows_of(
        MANY, steps=STEPS, reward=rows.reward + 0.5 * solved, completion_tokens=rows.completion_tokens, parts=parts
    )
    assert "length" in ids(diagnose_rows(rows))
    assert "length" not in ids(diagnose_rows(both))


# --- What is counted where


def test_a_truncation_that_nobody_told_says_that_the_waterfall_cannot_tell() -> None:
    tokens, config = np.where(QUARTER, 120.0, 60.0), {"max_completion_length": 120}
    found = card(diagnose_rows(rows_of(completion_tokens=tokens, turns=1.0), config=config), "truncation")
    assert not found.is_part
    assert found.evidence[-1] == "For 100% of them no stop reason is recorded. The bars count those under others."
    told = rows_of(
        turns=1.0, completion_tokens=tokens, stop_reason=np.where(QUARTER, StopReason.LENGTH, StopReason.STOP)
    )
    assert not any("nobody said" in it for it in card(diagnose_rows(told, config=config), "truncation").evidence)


def test_parse_failures_say_how_many_rollouts_they_hit() -> None:
    failed = QUARTER.astype(float)
    rows = rows_of(parse_failures=failed, parse_streak=failed, parse_tail=failed, turns=4.0)
    found = card(diagnose_rows(rows, Settings(thresholds={"parse_failures": 0.05})), "parse_failures")
    assert found.title == "No action is found in 6% of the model's answers"  # 12 of 192 turns
    assert found.evidence[:2] == (
        "12 of 48 rollouts are affected.",
        "25% of rollouts end with such an answer; 0% have 3+ in a row.",
    )


def test_parse_failures_are_shares_of_all_rollouts() -> None:
    """Of half of them nobody tells whether an action was found."""
    failed = np.where(PLACE % 2 == 0, QUARTER, np.nan)
    found = card(diagnose_rows(rows_of(parse_failures=failed, parse_tail=failed)), "parse_failures")
    assert found.evidence[1].startswith("25% of rollouts end with such an answer")


def fallbacks(**more: Any) -> Rows:
    """Of 48 rollouts of 4 turns, 12 were sent `noop` in 3 of them; a parser that finds nothing is not recorded."""
    columns: dict[str, Any] = {
        "turns": 4.0, "env_steps": 4.0, "parse_failures": 0.0, "parse_tail": 0.0, "parse_streak": 0.0,
        "unsaid_actions": np.where(QUARTER, 3.0, 0.0), "unsaid_action": ["noop" if it else None for it in QUARTER],
        "last_action": "look",
    }  # fmt: skip
    return rows_of(**columns | more)


def test_actions_that_the_loop_sends_where_it_finds_none_are_parse_failures() -> None:
    found = card(diagnose_rows(fallbacks()), "parse_failures")
    assert found.title == "In 19% of turns the answer lacks the action that was sent, such as `noop`"  # 36 of 192
    assert found.evidence == ("12 of 48 rollouts are affected.", "81% of all actions occur in the answer before them.")
    assert found.where == "unsaid_action:noop"
    assert found.cost == pytest.approx(1 / 6)
    unknown = fallbacks(parse_failures=np.nan, parse_tail=np.nan, parse_streak=np.nan)
    assert card(diagnose_rows(unknown), "parse_failures").title == found.title


@pytest.mark.parametrize(
    "columns",
    [
        {"unsaid_actions": np.where(QUARTER, 4.0, 4.0), "unsaid_action": np.where(QUARTER, "noop", "left")},
        {"unsaid_actions": np.where(QUARTER, 3.0, 2.0), "unsaid_action": np.where(QUARTER, "noop", "left")},
        {"unsaid_action": [f"go {n}" if it else None for n, it in enumerate(QUARTER)]},
        {"unsaid_actions": 4.0, "unsaid_action": "noop"},
        {"unsaid_actions": np.where(QUARTER, 1.0, 0.0), "last_action": np.where(QUARTER, "noop", "look"),
         "env_steps": 2.0, "turns": 2.0},
        {"unsaid_actions": np.nan, "unsaid_action": None},
    ],
    ids=["none occurs", "few others occur", "no one action", "always the same", "sent once, at the end", "unknown"],
)  # fmt: skip
def test_actions_that_may_be_the_models_own_are_no_parse_failures(columns: dict[str, Any]) -> None:
    assert "parse_failures" not in ids(diagnose_rows(fallbacks(**columns)))


def test_rollouts_that_end_without_an_action_count_however_many_turns_they_had() -> None:
    """A quarter of the rollouts ends so, after 39 answers with an action."""
    failed = QUARTER.astype(float)
    rows = rows_of(parse_failures=failed, parse_streak=failed, parse_tail=failed, turns=40.0)
    found = card(diagnose_rows(rows), "parse_failures")
    assert found.title == "No action is found in the last answer of 25% of rollouts"
    assert found.is_part


def test_a_tenth_of_the_loss_is_not_below_the_threshold() -> None:
    """Two of 48 rollouts, while nearly all others succeed."""
    failed = (PLACE < 2).astype(float)
    columns: dict[str, Any] = {"parse_failures": failed, "parse_streak": failed, "parse_tail": failed, "turns": 4.0}
    rows = rows_of(reward=np.where(PLACE < 4, 0.0, 1.0), **columns)
    found = card(diagnose_rows(rows), "parse_failures")
    assert found.title == "No action is found in the last answer of 4% of rollouts"
    wide = Settings(thresholds={"parse_failures": 0.5})
    assert "parse_failures" not in ids(diagnose_rows(rows, wide))


def test_turns_that_run_out_in_circles_are_counted_for_loops_alone() -> None:
    over, loops = PLACE % GROUP < 3, PLACE % GROUP < 2  # 36 and 24 of 48
    rows = rows_of(
        reward=np.where(over, 0.0, 1.0),
        stop_reason=np.where(over, StopReason.TURN_LIMIT, StopReason.DONE),
        action_tail=np.where(loops, 5.0, 1.0),
    )
    report = diagnose_rows(rows)
    assert ids(report).index("loops") < ids(report).index("turn_limit")
    assert card(report, "turn_limit").cost == pytest.approx(0.25)  # the 12 that do not loop
    assert card(report, "turn_limit").is_part


def test_turns_that_run_out_in_circles_alone_are_no_card_of_their_own() -> None:
    over = PLACE % GROUP < 3
    rows = rows_of(
        reward=np.where(over, 0.0, 1.0),
        stop_reason=np.where(over, StopReason.TURN_LIMIT, StopReason.DONE),
        action_tail=np.where(over, 5.0, 1.0),
    )
    assert "loops" in ids(diagnose_rows(rows))
    assert "turn_limit" not in ids(diagnose_rows(rows))
    silent = diagnose_rows(rows, Settings(thresholds={"loops": 1.0}))
    assert card(silent, "turn_limit").cost == pytest.approx(0.75)  # nobody else has them


def test_a_rollout_that_ended_itself_was_ended_by_no_loop() -> None:
    """An agent that ran its tests three times in a row in the middle, and submitted; half of them pass."""
    again = PLACE % GROUP < 2
    stop = np.where(PLACE % 8 < 4, StopReason.DONE, StopReason.STOP)
    rows = rows_of(stop_reason=stop, action_streak=np.where(again, 3.0, 1.0), action_tail=1.0, repeats=0.2)
    assert not has_cause(rows, LossCause.LOOP).any()
    worse = replace(rows, reward=np.where(again, 0.0, 1.0))
    assert "loops" not in ids(diagnose_rows(worse))


@pytest.mark.parametrize(
    ("stop", "tail", "repeats", "is_loop"),
    [
        (StopReason.NOT_RECORDED, 3, 0.2, True),
        (StopReason.NOT_RECORDED, 2, 0.2, False),
        (StopReason.NOT_RECORDED, 1, 0.6, True),
        (StopReason.TURN_LIMIT, 1, 0.0, True),
        (StopReason.DONE, 5, 0.9, False),
    ],
)
def test_a_loop_is_a_cause_only_where_it_may_have_ended_the_rollout(
    stop: StopReason, tail: int, repeats: float, *, is_loop: bool
) -> None:
    rows = rows_of(stop_reason=stop, action_streak=5.0, action_tail=tail, repeats=repeats)
    assert has_cause(rows, LossCause.LOOP).all() == is_loop


@pytest.mark.parametrize(
    ("columns", "where", "said"),
    [
        ({"action_tail": np.where(QUARTER, 5.0, 1.0)}, "action_tail>=3",
         "Same action 3+ times in a row at the end: 12 of 48, longest 5."),
        ({"repeats": np.where(QUARTER, 0.75, 0.0), "action_tail": np.where(PLACE == 0, 3.0, 1.0)}, "repeats>0.5",
         ("More than 50% of actions taken before at the same observation, or going round the same few: 12 of 48, mean "
          "75%.")),
        ({"repeats": np.where(QUARTER, 0.75, 0.0), "action_tail": np.where(PLACE == 1, 3.0, 1.0)},
         "id:1..2,5,9,13,17,21,25,29,33,37,41,45", "Same action 3+ times in a row at the end: 1 of 48, longest 3."),
    ],
)  # fmt: skip
def test_loops_that_the_environment_ended_open_exactly_their_rollouts(
    columns: dict[str, Any], where: str, said: str
) -> None:
    rows = rows_of(reward=np.where(QUARTER | (PLACE == 1), 0.0, 1.0), **columns)
    found = card(diagnose_rows(rows), "loops")
    assert found.where == where
    assert said in found.evidence


def test_a_completion_of_all_tokens_is_truncated_only_where_the_server_does_not_report_it() -> None:
    reported, unknown = (rows_of(completion_tokens=64.0, turns=1.0, truncated_turns=0.0) for _ in range(2))
    unknown.facts["truncated_turns"][:] = np.nan
    assert not _find_cut(reported, 64.0).any()
    assert _find_cut(unknown, 64.0).all()
    assert not _find_cut(unknown, 65.0).any()
