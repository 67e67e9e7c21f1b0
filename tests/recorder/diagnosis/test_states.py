"""A check without a card is below its threshold, not judged or not recorded, and says why with a figure."""

from dataclasses import replace

import numpy as np
import pytest

from logs_ui.recorder import SettingsError
from logs_ui.recorder.diagnosis import DIAGNOSTICS, Card, Diagnostic, Report, Settings, diagnose_rows
from logs_ui.recorder.diagnosis.advice import IN_EVALUATION
from logs_ui.recorder.diagnosis.report import Checked
from logs_ui.recorder.vocabulary import Status, StopReason
from tests.recorder.diagnosis.test_diagnosis import NAN, QUARTER, rows_of

PLACE = np.arange(320)
WHOLE = rows_of(
    320, steps=40, task=[f"task {place // 4 % 8}" for place in PLACE], truncated_turns=0, stop_reason=StopReason.DONE,
    env_steps=2, env_errors=0, action_tail=1, repeats=0, parse_failures=0, parse_streak=0, parse_tail=0,
    compression=2, completion_key=PLACE, prompt_key=PLACE // 4, env_reward_sum=PLACE % 2, env_reward_last=PLACE % 2,
    completion_tokens=100 + PLACE % 7, turns=2, prompt_tokens=40 + PLACE // 4 % 8,
    sent_prompt="dataset",
)  # fmt: skip


def checked(report: Report, name: str) -> Checked:
    return next(it for it in report.checked if it.id == name)


def test_each_check_is_in_one_state_with_one_sentence() -> None:
    scalars = {name: tuple((step, 0.1) for step in range(1, 41)) for name in ("learning_rate", "entropy", "grad_norm")}
    evaluations = {"held out": tuple((step, 0.4) for step in range(2, 21, 2))}
    evaluated = replace(WHOLE, is_evaluation=True)
    report = diagnose_rows(WHOLE, scalars=scalars, evaluations=evaluations, evaluated=evaluated)
    assert report.cards == ()
    assert [it.id for it in report.checked] == [it.id for it in DIAGNOSTICS]
    judged = [it for it in report.checked if it.state != "not_recorded"]
    assert len(judged) >= len(DIAGNOSTICS) - 11
    for it in judged:
        assert it.said.endswith("."), it
        assert it.said != "No finding.", it
        assert "nan" not in it.said, it
    assert checked(report, "signal_cliff").state == "below"
    assert {"id", "name", "state", "said"} == set(report.as_dict()["checked"][0])


@pytest.mark.parametrize(("name", "said"), [
    ("truncation", "0% of rollouts are truncated (threshold 5%)."),
    ("loops", "0% of rollouts repeat their actions (threshold 10%)."),
    ("never_acted", "0% of rollouts never act in their environment (threshold 10%)."),
    ("constant_reward", "Rewards range from 0 to 1."),
    ("disagreement", "solved and the environment disagree on 0% of 80 rollouts (threshold 10%)."),
    ("forgotten", "None of 8 tasks regressed."),
    ("dead_groups", "0% of groups have zero variance (threshold 50%); 0% have it unsolved (threshold 25%)."),
])  # fmt: skip
def test_a_check_below_its_threshold_says_both(name: str, said: str) -> None:
    found = checked(diagnose_rows(WHOLE), name)
    assert (found.state, found.said) == ("below", said)


def test_a_share_just_below_the_threshold_has_a_decimal() -> None:
    broken = np.isin(PLACE, np.arange(248, 320, 24))  # 3 of the last 80, of other tasks
    status, stop = np.where(broken, Status.ERROR, Status.OK), np.where(broken, "env_error", StopReason.DONE)
    found = checked(diagnose_rows(replace(WHOLE, status=status, stop_reason=stop)), "infrastructure")
    assert found.said == "3.8% of rollouts failed with an environment error (threshold 5%)."


def test_what_is_not_recorded_for_most_rollouts_is_not_judged() -> None:
    few = np.where(PLACE % 80 < 6, 1.0, NAN)
    rows = replace(WHOLE, facts={**WHOLE.facts, "action_tail": few})
    assert checked(diagnose_rows(rows), "loops").state == "not_judged"
    assert checked(diagnose_rows(rows), "loops").said == "Only 6 of 80 rollouts have recorded actions."


def test_actions_are_not_judged_if_too_many_calls_are_unattributed() -> None:
    report = diagnose_rows(WHOLE, attributed=0.3)
    states = {it.id: it.state for it in report.checked}
    calls = {"infrastructure", "truncation", "loops", "parse_failures", "turn_limit", "never_acted", "disagreement"}
    assert {name for name in calls if states[name] == "not_judged"} == calls
    assert states["constant_reward"] == "below"
    assert "Only 30% of the model and environment calls" in checked(report, "loops").said
    text = str(report)
    assert "Not judged: " in text
    assert "Loops (Only 30% of the model" in text


def test_what_fires_on_the_calls_that_are_there_is_shown_but_an_action_that_is_not_there_is_no_finding() -> None:
    for name, fact, odd in (("loops", "action_tail", 9.0), ("never_acted", "env_steps", 0.0)):
        facts = {**WHOLE.facts, fact: np.where(PLACE % 2, WHOLE.facts[fact], odd)}
        rows = replace(WHOLE, facts=facts)
        assert diagnose_rows(rows).cards[0].id == name
        report = diagnose_rows(rows, attributed=0.3)
        assert (name in {card.id for card in report.cards}) == (name == "loops")
    assert checked(report, "never_acted").state == "not_judged"


def test_too_few_attempts_or_rewards_are_not_judged() -> None:
    once = replace(WHOLE, task=PLACE // 4, tasks=[f"task {place}" for place in range(80)])
    heard = np.where(PLACE % 80 == 3, 1.0, NAN)
    report = diagnose_rows(replace(once, env_reward_sum=heard, env_reward_last=heard))
    assert {name: checked(report, name).said for name in ("forgotten", "never_solved", "disagreement")} == {
        "forgotten": "No task has 10 attempts after its first step yet.",
        "never_solved": "No task has 10 attempts yet.",
        "disagreement": "Too few rollouts have both rewards, or the environment gives all of them the same.",
    }
    assert {checked(report, name).state for name in ("forgotten", "never_solved", "disagreement", "task_mix")} == {
        "not_judged"
    }


def test_a_card_that_costs_too_little_is_said() -> None:
    card = Card("mine", "Something small", 1e-9, (), "", "")
    own = Diagnostic("mine", "Mine", "d", "s", lambda _: None, lambda _: card)
    found = checked(diagnose_rows(WHOLE, diagnostics=(*DIAGNOSTICS, own)), "mine")
    assert (found.state, found.said) == ("cheap", "Something small.")


def test_a_users_check_may_return_none() -> None:
    own = Diagnostic("mine", "Mine", "d", "s", lambda _: None, lambda _: None)
    found = checked(diagnose_rows(WHOLE, diagnostics=(*DIAGNOSTICS, own)), "mine")
    assert (found.state, found.said) == ("below", "No finding.")


def test_staleness_of_a_loop_that_names_no_version_is_not_recorded() -> None:
    """Its rollouts are stored as if each were of its own step's policy."""
    named, unnamed = rows_of(), rows_of(policy_step=rows_of().step)
    assert [checked(diagnose_rows(of), "staleness").state for of in (named, unnamed)] == ["below", "not_recorded"]


def test_a_muted_finding_is_listed_below_with_its_reason_and_judges_nothing() -> None:
    rows = rows_of(stop_reason=np.where(QUARTER, "length", "done"), truncated_turns=QUARTER.astype(float))
    heard, muted = (diagnose_rows(rows, Settings(muted=it), has_ended=True) for it in ({}, {"truncation": "64 tokens"}))
    assert [card.id for card in heard.cards][:1] == ["truncation"]
    assert "truncation" not in {card.id for card in muted.cards}
    assert [it.said for it in muted.checked if it.state == "muted"] == [
        "25% of rollouts are truncated at the token limit (64 tokens)."
    ]
    assert "Muted: 25% of rollouts are truncated at the token limit (64 tokens)." in str(muted).splitlines()
    assert (heard.verdict.id, muted.verdict.id) == ("fault", "reached")
    assert muted.verdict.said.startswith("No further fault found")


@pytest.mark.parametrize("muted", [["truncation"], {"truncation": " "}])
def test_what_is_muted_needs_a_reason(muted: object) -> None:
    with pytest.raises(SettingsError, match="muted must be a dict of reasons by diagnostic"):
        Settings(muted=muted)  # type: ignore[arg-type]


def test_a_report_says_from_how_many_checks_it_judges_and_what_most_others_lack() -> None:
    assert diagnose_rows(rows_of()).basis == "15 of 47 checks judged; 3 of the others need two reward functions"


def test_an_evaluation_gets_no_advice_for_training() -> None:
    rows = rows_of(stop_reason=np.where(QUARTER, "length", "done"), truncated_turns=QUARTER.astype(float))
    trained, evaluated = (diagnose_rows(replace(rows, is_evaluation=it)).cards[0] for it in (False, True))
    assert trained.suggestion.startswith("Find what cuts them: ")
    assert evaluated.suggestion == IN_EVALUATION["truncation"]
    assert set(IN_EVALUATION) <= {it.id for it in DIAGNOSTICS}
