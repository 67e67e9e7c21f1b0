"""Names that users' scripts rely on. These lists only grow: nothing in them is renamed or removed."""

import dataclasses
from pathlib import Path

import pytest

from logs_ui.recorder import diagnose
from logs_ui.recorder.analysis.frames import RUN_COLUMNS
from logs_ui.recorder.analysis.rescore.comparison import Comparison
from logs_ui.recorder.audit.run_audit import CHECKS
from logs_ui.recorder.diagnosis import CAUSES
from logs_ui.recorder.diagnosis.report import STATES, card_values
from logs_ui.recorder.diagnosis.run_checks import DIAGNOSTICS
from logs_ui.recorder.queries.rollout_columns import COLUMNS
from logs_ui.recorder.storage.database import disposed, writing_engine
from logs_ui.recorder.upkeep.info import Info
from logs_ui.recorder.upkeep.integrity_check import Finding
from logs_ui.recorder.vocabulary import Dropped, LossCause, Mode, RunState, Status, StopReason
from tests.support.factory import make_run

FINDINGS = """
advantages arithmetic constant_function constant_reward cut_prompts dead_groups degenerate_text disagreement diversity
empty_answers evaluation_ends evaluation_gap final_answers first_prompt forgotten hacking inconsistent infrastructure
invalid_reward invented_observations length loops lost_format mismatch never_acted never_matches never_solved
new_habit new_observation new_value no_room no_update not_finite parse_failures proxy reward_parts shared_state
signal_cliff staleness task_mix truncation turn_limit unfilled_prompts unseeded unsent_prompts wiring worse_place
"""
AUDITED = """
advantage advantage_epsilon advantage_groups advantage_order advantage_scale advantage_sign advantage_spread
advantage_weights context context_prompt context_reasoning end_token evaluation_values evaluation_weights groups_mixed
groups_size handed_empty handed_other logprobs_length logprobs_positive logprobs_zero mask_inserted mask_length
mask_missing mask_sampled mask_shifted other_ids prompt_cut_left prompt_exchanged repeated_prompt retokenized
reward_sum reward_weights template_tools
"""
CAUSES_OF_LOSS = "infrastructure invalid_reward loop never_submitted parse_failure truncation wrong_answer"
VERDICTS = {
    "of a check": (STATES, "below cheap not_judged not_recorded"),
    "of a rollout's end": (
        StopReason,
        "aborted at_capacity done environment_error exception length no_action not_recorded stop timeout turn_limit",
    ),
    "of a rollout": (Status, "aborted error ok running"),
    "of a run": (RunState, "failed finished interrupted running"),
    "of a trainer": (Dropped, "filtered oversize stale"),
    "of a loop": (Mode, "eval train"),
    "of a loss": (LossCause, CAUSES_OF_LOSS),
}
REPORT = """
against best best_is cards checked failed lost mean missing run sample scored_low solved_at solved_is steps
unattributed_calls warming_up waterfall
"""
CARD = "cost evidence id share since_range since_step suggestion title where"
PARTS = {"checked": "id name said state", "missing": "id name what", "waterfall": "cost id name rollouts where"}
ROLLOUT = """
action_streak action_tail actions advantage attributes completion_ids completion_tokens compression created
cut_limit cut_tokens distinct_words dropped env_errors env_reward_last env_reward_sum env_steps env_success
env_tokens epoch error eval_name first_action generation group id last_action logprobs mask mean_logprob
message_count messages metadata metrics mode model no_room non_latin note observation_keys odd_rewards
parse_failures parse_streak parse_tail policy_step process project prompt_ids prompt_tokens pruned repeats
returned reward reward_weights rewards
rollout_reward run sampling scored seconds staleness starred status step stop_reason tags task tool_calls
trigram_repeats truncated_turns turns unsaid_action unsaid_actions unsampled_tokens
"""
RUN = """
config created dropped dropped_payloads error finished git_commit git_dirty heartbeat host max_steps model name
num_generations output_dir parent pid project pruned recorder_errors reward rollouts run state steps unattributed_calls
unattributed_errors unattributed_scoring unseen_sampling versions
"""
COMPARISON = """
best_changed changed compared dead dulled failed failures gained groups largest lost new old pairs pairs_alike rollouts
tasks teach turned woken
"""
INFO = "bytes engine free images known pruned prompts rollouts runs schema under_way where"


def test_findings_and_causes_keep_their_names() -> None:
    assert {*FINDINGS.split()} <= {it.id for it in DIAGNOSTICS}
    assert {*CAUSES_OF_LOSS.split()} <= {it.id for it in CAUSES}
    assert {*AUDITED.split()} <= {name for it in CHECKS for name in it.findings}


@pytest.mark.parametrize("of", VERDICTS)
def test_verdicts_keep_their_names(of: str) -> None:
    words, names = VERDICTS[of]
    assert {*names.split()} <= {*words}


def test_a_diagnosis_keeps_its_keys(tmp_path: Path) -> None:
    with disposed(writing_engine(tmp_path / "runs.db")) as engine:
        make_run(engine, uid="made", steps=12)
    report = diagnose("made", db=tmp_path / "runs.db")
    said = report.as_dict()
    assert {*REPORT.split()} <= said.keys()
    assert {*CARD.split()} <= card_values(report.cards[0]).keys()
    for part, keys in PARTS.items():
        assert {*keys.split()} <= said[part][0].keys()


def test_exports_and_dataframes_keep_their_columns() -> None:
    assert {*ROLLOUT.split()} <= {it.name for it in COLUMNS}
    assert {*RUN.split()} <= {it.name for it in RUN_COLUMNS}


def test_json_of_other_commands_keeps_its_keys() -> None:
    keys = {of: {it.name for it in dataclasses.fields(of)} for of in (Info, Finding, Comparison)}
    assert {*INFO.split()} <= keys[Info]
    assert {"is_whole", "said", "what"} <= keys[Finding]
    assert {*COMPARISON.split()} <= keys[Comparison]
