"""Whether a rollout moved the policy, as far as what is recorded tells."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from logs_ui.recorder.storage.tables import EvaluationRow
from logs_ui.recorder.vocabulary import Mode, RunState, Status, StopReason

EQUAL = 1e-6
"""Rewards of a group that differ by no more are equal: TRL, which divides by their spread, leaves rounding noise."""

_DROPPED = {
    "stale": "it was dropped as stale: the policy had gone on by more versions than max_staleness",
    "oversize": "it was dropped as oversize: it did not fit into token_budget",
}


class Moved(StrEnum):
    """Whether the policy learnt from it."""

    YES = "yes"
    NO = "no"
    NOT_YET = "not yet"
    """It still runs, or awaits its reward."""
    NOT_RECORDED = "not recorded"


@dataclass(frozen=True)
class Training:
    """What training made of one rollout.

    Attributes:
        why: a clause, without a full stop.
        tokens: of the completion, how many its gradient is of; None where it is not recorded.
        unknown: what may have changed that and is not recorded, a clause each.
    """

    moved: Moved
    why: str
    tokens: int | None = None
    unknown: tuple[str, ...] = ()


def training(
    row: EvaluationRow,
    group: Sequence[EvaluationRow],
    *,
    state: str,
    config: Mapping[str, Any],
) -> Training:
    """Judges by TRL's rules.

    Args:
        row: the rollout.
        group: all rollouts of its group, itself among them.
        state: of its run: a RunState, or `died`.
        config: the trainer's arguments.
    """
    if row.mode == Mode.EVAL:
        return Training(Moved.NO, "it is an evaluation's", 0)
    if row.dropped in _DROPPED:
        return Training(Moved.NO, _DROPPED[row.dropped])
    if row.advantage is None:
        return _without_advantage(row, state)
    if reason := _without_gradient(row, group, config):
        return Training(Moved.NO, reason, 0)
    return Training(Moved.YES, "", row.completion_tokens, tuple(_unknown(row, config)))


def _without_advantage(row: EvaluationRow, state: str) -> Training:
    if row.status == Status.RUNNING:
        return Training(Moved.NOT_YET, "it still runs")
    if row.status != Status.OK and row.completion_tokens is None:
        return Training(Moved.NO, "it ended before it returned anything to train on", 0)
    if row.scored is None and state == RunState.RUNNING:
        return Training(Moved.NOT_YET, "it awaits its reward")
    if row.scored is None:
        return Training(Moved.NO, "the run ended before it was scored", 0)
    return Training(Moved.NOT_RECORDED, "its advantage is not recorded")


def _without_gradient(row: EvaluationRow, group: Sequence[EvaluationRow], config: Mapping[str, Any]) -> str | None:
    """What takes the gradient away; None where there is one."""
    if row.completion_tokens == 0:
        return "none of its tokens was sampled by the model"
    if config.get("mask_truncated_completions") is True and row.stop_reason == StopReason.LENGTH:
        return "it was cut off at the token limit, and mask_truncated_completions is on"
    rewards = [member.reward for member in group if member.reward is not None]
    is_dead = len(rewards) > 1 and max(rewards) - min(rewards) <= EQUAL and abs(row.advantage or 0) < 0.01
    if not is_dead and row.advantage != 0:
        return None
    reason = "its advantage is 0"
    if is_dead:
        reason += f": all {len(rewards)} of its group were rewarded alike"
    beta = config.get("beta")
    return f"{reason}; only the KL penalty pulls on it (beta {beta:g})" if isinstance(beta, float) and beta else reason


def _unknown(row: EvaluationRow, config: Mapping[str, Any]) -> list[str]:
    """What TRL decides by its own log-probabilities, which are not recorded."""
    found = []
    mode = config.get("vllm_importance_sampling_mode")
    corrects = config.get("use_vllm") is True and config.get("vllm_importance_sampling_correction") is True
    if corrects and isinstance(mode, str) and mode.endswith("_mask"):
        cap = config.get("vllm_importance_sampling_clip_max")
        what = "all of it" if mode.startswith("sequence") else "some of its tokens"
        found.append(f"whether importance sampling dropped {what} ({mode}, above {cap})")
    threshold = config.get("off_policy_mask_threshold")
    if threshold is not None and (row.advantage or 0) < 0:
        found.append(f"whether it was masked as off-policy (threshold {threshold})")
    if config.get("mask_truncated_completions") is True and row.stop_reason == StopReason.NOT_RECORDED:
        found.append("whether it was masked as truncated")
    return found
