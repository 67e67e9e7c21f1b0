"""An audit names the bug of a patched TRL first, with the rollouts that it touches, and nothing in TRL as it is."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from logs_ui.recorder import diagnose, flush, load_run, record_trainer
from logs_ui.recorder.analysis.audit import audit
from logs_ui.recorder.analysis.opened_runs import opened
from logs_ui.recorder.audit.finding import Audited
from tests.recorder.api import test_record_environment
from tests.recorder.api.test_record_environment import Seen, teach_tools
from tests.support import scripted_play
from tests.support.exhaustive import cases
from tests.support.late import trl
from tests.support.patched_trl import patched_trainer
from tests.support.tool_games import ToolGame
from tests.support.training import make_trainer

ROWS = 16
EPSILON = ("(std_rewards + 1e-4)", "(std_rewards + 1e4)")
DECODE = ("contents = self.processing_class.batch_decode(completion_ids, skip_special_tokens=True)",
          "contents = [''] * len(completion_ids)")  # fmt: skip
SIGN = ("advantages = rewards - mean_grouped_rewards", "advantages = mean_grouped_rewards - rewards")
WEIGHTS = ("self.reward_weights.to(device)", "self.reward_weights.to(device).flip(0)")
IGNORED = ("self.reward_weights.to(device)", "torch.ones_like(self.reward_weights)")
REPEAT = (".repeat_interleave(num_generations, dim=0)", ".repeat(num_generations)")
RESHAPE = ("rewards.view(-1, num_generations)", "rewards.view(num_generations, -1).T")
UNSCALED = ('if self.scale_rewards != "none":', "if False:")
POPULATION = ("nanstd(rewards.view(-1, num_generations), dim=1)",
              "rewards.view(-1, num_generations).std(dim=1, correction=0)")  # fmt: skip
LEFT_OUT = (SIGN[0], "advantages = (rewards - mean_grouped_rewards) * num_generations / (num_generations - 1)")
CUT = (
    '            prompt_ids = tokenized["input_ids"]\n',
    '            prompt_ids = [ids[-8:] for ids in tokenized["input_ids"]]\n',
)
EXCHANGED = (CUT[0], f"{CUT[0]}            prompt_ids[0], prompt_ids[4] = prompt_ids[4], prompt_ids[0]\n")
MOVED = (CUT[0], f"{CUT[0]}            prompt_ids = prompt_ids[4:] + prompt_ids[:4]\n")
SHUFFLED = ("advantages = advantages[process_slice]", "advantages = advantages[process_slice].flip(0)")


def letters(completions: list[Any], **_: Any) -> list[float]:
    return [len(completion[0]["content"]) / 100 for completion in completions]


def tokens(completion_ids: list[Any], **_: Any) -> list[float]:
    return [sum(ids) % 7 / 7 for ids in completion_ids]


def audited(trainer: Any, folder: Path) -> Audited:
    record_trainer(trainer, db=folder / "a.db").train()
    assert flush()
    with opened("latest", folder / "a.db") as (db, run):
        return audit(db, run)


def found(trained: Audited) -> list[tuple[str, int]]:
    return [(finding.id, finding.rows) for finding in trained.findings]


def sound(trained: Audited) -> tuple[list[tuple[str, int]], str]:
    """Return what was found, and why advantages were not compared: ([], "") if all is well."""
    return found(trained), trained.checks[1].lacking


def train(folder: Path, kind: Any = None, **config: Any) -> Audited:
    settings: dict[str, Any] = {
        "max_completion_length": 24,
        "reward_weights": [1.0, 0.25],
        "log_completions": False,
    } | config
    return audited(make_trainer(None, folder, reward_funcs=(letters, tokens), kind=kind, warm=0, **settings), folder)


BUGS: list[tuple[list[tuple[str, str]], list[str], int]] = [
    ([EPSILON, DECODE, SIGN], ["handed_empty", "advantage_sign", "advantage_epsilon"], ROWS),
    ([EPSILON], ["advantage_epsilon"], ROWS),
    ([DECODE], ["handed_empty"], ROWS),
    ([SIGN], ["advantage_sign"], ROWS),
    ([EPSILON, DECODE], ["handed_empty", "advantage_epsilon"], ROWS),
    ([EPSILON, SIGN], ["advantage_sign", "advantage_epsilon"], ROWS),
    ([DECODE, SIGN], ["handed_empty", "advantage_sign"], ROWS),
    ([WEIGHTS], ["advantage_weights"], ROWS),
    ([REPEAT], ["advantage_groups"], 8),
    ([RESHAPE], ["advantage_groups"], ROWS),
    ([UNSCALED], ["advantage_scale"], ROWS),
    ([LEFT_OUT], ["advantage_scale"], ROWS),
    ([SHUFFLED], ["advantage_order"], ROWS),
    ([IGNORED], ["advantage_weights"], ROWS),
    ([CUT], ["prompt_cut_left"], ROWS),
    ([EXCHANGED], ["prompt_exchanged"], 4),
    ([MOVED], ["prompt_exchanged"], ROWS),
]


@pytest.mark.parametrize(("bugs", "named", "rows"), cases(BUGS, 2))
def test_a_bug_is_named(tmp_path: Path, bugs: list[tuple[str, str]], named: list[str], rows: int) -> None:
    trained = train(tmp_path, patched_trainer(*bugs))
    assert found(trained) == [(bug, rows) for bug in named]
    report = diagnose("latest", tmp_path / "a.db")
    assert (report.cards[0].id, report.verdict.said) == (
        "arithmetic",
        f"Fault of the set-up: {trained.findings[0].title}",
    )


@pytest.mark.exhaustive
def test_another_standard_deviation_is_no_fault_of_a_run(tmp_path: Path) -> None:
    assert found(train(tmp_path, patched_trainer(POPULATION))) == [("advantage_spread", ROWS)]
    assert "arithmetic" not in {card.id for card in diagnose("latest", tmp_path / "a.db").cards}


PLAYED = [
    "context_reasoning", "mask_shifted", "retokenized", "prompt_cut_left", "context_prompt", "mask_missing",
    "mask_sampled", "repeated_prompt", "end_token", "logprobs_length", "logprobs_positive", "logprobs_zero",
]  # fmt: skip


@pytest.mark.parametrize("bug", cases(PLAYED, 2))
def test_a_rollout_functions_bug_is_named(tmp_path: Path, bug: str) -> None:
    steps = 2 if bug == "logprobs_zero" else 1  # it takes some numbers to call them constant
    played = scripted_play.trainer(scripted_play.playing(bug), tmp_path, [letters, tokens], max_steps=steps)
    assert found(audited(played, tmp_path)) == [(bug, 2 if bug == "retokenized" else 4 * steps)]


@pytest.mark.versions
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "config",
    [
        {"loss_type": "dapo", "multi_objective_aggregation": "normalize_then_sum", "num_generations": 2},
        {"loss_type": "cispo", "steps_per_generation": 2, "gradient_accumulation_steps": 1, "max_steps": 3},
        {"loss_type": "sapo", "gradient_accumulation_steps": 2, "steps_per_generation": 1},
        {"loss_type": "luspo", "importance_sampling_level": "sequence", "num_iterations": 2},
        {"eval_strategy": "steps", "eval_steps": 1, "num_generations_eval": 2},
    ],
)
def test_trl_as_it_is_is_sound(tmp_path: Path, config: dict[str, Any]) -> None:
    assert sound(train(tmp_path, **config)) == ([], "")


@pytest.mark.versions
@pytest.mark.exhaustive
@pytest.mark.parametrize("config", [{}, {"normalize_advantages": True}, {"reward_clip_range": (0.5, 0.8)}])
def test_rloo_as_it_is_is_sound(tmp_path: Path, config: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"max_completion_length": 24, "beta": 0.0, "log_completions": False, **config}
    kinds = {"kind": trl.RLOOTrainer, "arguments": trl.RLOOConfig}
    trained = audited(
        make_trainer(None, tmp_path, reward_funcs=(letters, tokens), warm=0, **kinds, **settings), tmp_path
    )
    assert (found(trained), trained.checks[1].rows) == ([], ROWS)


def play_by_function(folder: Path, **config: Any) -> Audited:
    return audited(scripted_play.trainer(scripted_play.playing(), folder, [letters, tokens], **config), folder)


def play_in_environment(folder: Path, **config: Any) -> Audited:
    settings = {"max_steps": 1} | config
    return audited(test_record_environment.make_trainer(teach_tools(), ToolGame, folder, Seen(), **settings), folder)


PLAYERS = (play_by_function, play_in_environment, train)
LOSSES = ("grpo", "dr_grpo", "bnpo", "dapo", "cispo", "sapo", "luspo")
SCALES = ("group", "batch", "none")
SUMS = ("sum_then_normalize", "normalize_then_sum")
# Each pair of values of two of the four is in one of these trainings.
PAIRS = [
    (
        PLAYERS[(i + j) % 3],
        {"loss_type": loss, "scale_rewards": scale, "multi_objective_aggregation": SUMS[(i + j) % 2]},
    )
    for i, loss in enumerate(LOSSES)
    for j, scale in enumerate(SCALES)
]


@pytest.mark.versions
@pytest.mark.parametrize(("play", "config"), cases(PAIRS, 2))
def test_all_pairs_of_settings_are_sound(tmp_path: Path, play: Any, config: dict[str, Any]) -> None:
    assert sound(play(tmp_path, **config)) == ([], "")


@pytest.mark.versions
@pytest.mark.exhaustive
@pytest.mark.parametrize(("play", "config"), [
    (play_by_function, {"num_iterations": 2}),
    (play_by_function, {"importance_sampling_level": "sequence"}),
    (play_in_environment, {"max_completion_length": 50}),
])  # fmt: skip
def test_further_settings_of_players_are_sound(tmp_path: Path, play: Any, config: dict[str, Any]) -> None:
    assert sound(play(tmp_path, **config)) == ([], "")


MASK = "+= [0] * tool_length + [1] * post_tool_length"
SHIFTED = (MASK, "+= [1] + [0] * tool_length + [1] * (post_tool_length - 1)")
INCLUDED = (MASK, "+= [1] * tool_length + [1] * post_tool_length")
FIRST_ONLY = (MASK, "+= [0] * tool_length + [0] * post_tool_length")
UNMASKED = (
    "        if tool_mask is not None:  # count only",
    "        tool_mask = None\n        if tool_mask is not None:  # count only",
)
TOOLLESS = ("tools=self._env_tools[name] or None,", "tools=None,")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("change", "named"),
    [
        (SHIFTED, "mask_shifted"),
        (INCLUDED, "mask_inserted"),
        (FIRST_ONLY, "mask_sampled"),
        (UNMASKED, "mask_missing"),
        (TOOLLESS, "template_tools"),
    ],
)
def test_a_bug_in_a_tool_loop_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], named: str
) -> None:
    monkeypatch.setattr(importlib.import_module("trl"), "GRPOTrainer", patched_trainer(change))
    played = test_record_environment.make_trainer(teach_tools(), ToolGame, tmp_path, Seen(), max_steps=1)
    trained, rows = audited(played, tmp_path), load_run(db=tmp_path / "a.db")
    heard = sum(any(message["role"] == "tool" for message in messages) for messages in rows.messages)
    assert 0 < heard < len(rows)
    assert found(trained) == [(named, len(rows) if named == "template_tools" else heard)]
