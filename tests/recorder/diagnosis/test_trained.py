"""Whether a rollout moved the policy: each reason by itself."""

from typing import Any

import pytest

from logs_ui.recorder.analysis.diagnosis_columns import columns_of
from logs_ui.recorder.diagnosis.tables.one_rollout import Moved, Training, training
from logs_ui.recorder.storage.tables import EvaluationRow
from logs_ui.recorder.vocabulary import Mode, RunState, Status, StopReason


def row(**columns: Any) -> EvaluationRow:
    known: dict[str, Any] = {
        "uid": "a", "run_id": 1, "eval_name": "e", "mode": Mode.TRAIN, "step": 1, "policy_step": 0, "group": "g",
        "generation": 0, "process": 0, "created": 1, "scored": 2, "status": Status.OK, "stop_reason": StopReason.DONE,
        "reward": 0.5, "advantage": 0.7, "completion_tokens": 40,
    }  # fmt: skip
    return EvaluationRow(**known | columns)


def judged(
    it: EvaluationRow, *others: EvaluationRow, state: str = RunState.RUNNING, config: dict[str, Any] | None = None
) -> Training:
    group = [it, *others]
    for number, one in enumerate(group):
        one.id = number
    is_running = state == RunState.RUNNING
    return training(
        columns_of(group), 0, is_evaluation=it.mode == Mode.EVAL, is_running=is_running, config=config or {}
    )


def test_with_an_advantage_all_sampled_tokens_are_trained_on() -> None:
    assert judged(row(), row(reward=0.0)) == Training(Moved.YES, "", 40, ())
    assert judged(row(completion_tokens=None)) == Training(Moved.YES, "", None, ())


@pytest.mark.parametrize("advantage", [0.0, -6e-4])
def test_a_group_that_was_rewarded_alike_gives_no_gradient(advantage: float) -> None:
    """Also where the mean of equal float32 numbers is off by a bit, and the spread it is divided by is 1e-4."""
    found = judged(row(advantage=advantage), *[row(reward=0.5 + 5e-7) for _ in range(7)])
    assert found == Training(Moved.NO, "its advantage is 0: all 8 rewards of its group are equal", 0)


def test_a_penalty_still_pulls_where_there_is_no_advantage() -> None:
    found = judged(row(advantage=0.0), row(reward=0.9), config={"beta": 0.04})
    assert (found.moved, found.why) == (Moved.NO, "its advantage is 0; only the KL penalty acts on it (beta 0.04)")


def test_a_cut_off_completion_is_masked_where_the_trainer_says_so() -> None:
    cut = row(stop_reason=StopReason.LENGTH)
    assert judged(cut, config={"mask_truncated_completions": False}).moved == Moved.YES
    found = judged(cut, config={"mask_truncated_completions": True})
    assert (found.moved, found.tokens) == (Moved.NO, 0)
    assert "mask_truncated_completions" in found.why
    unknown = judged(row(stop_reason=StopReason.NOT_RECORDED), config={"mask_truncated_completions": True})
    assert (unknown.moved, unknown.unknown) == (
        Moved.YES,
        ("whether TRL masked rollouts without a recorded stop reason as truncated",),
    )


@pytest.mark.parametrize(
    ("dropped", "said"),
    [("stale", "max_staleness"), ("oversize", "token_budget"), ("filtered", "not in the trainer's dump")],
)
def test_what_an_asynchronous_trainer_dropped(dropped: str, said: str) -> None:
    found = judged(row(dropped=dropped))
    assert found.moved == Moved.NO
    assert said in found.why


def test_what_is_yet_to_come_and_what_never_will() -> None:
    none: dict[str, Any] = {"advantage": None, "reward": None, "scored": None}
    running = row(status=Status.RUNNING, completion_tokens=None, **none)
    assert judged(running) == Training(Moved.NOT_YET, "it is still running")
    assert judged(row(**none)) == Training(Moved.NOT_YET, "it awaits its reward")
    assert judged(row(**none), state="died") == Training(Moved.NO, "the run ended before it was scored", 0)
    for tokens in (None, 40):
        for state in (RunState.RUNNING, RunState.FINISHED):
            raised = judged(row(status=Status.ERROR, completion_tokens=tokens, **none), state=state)
            assert raised == Training(Moved.NO, "it raised before it was scored", 0)
    aborted = Training(Moved.NO, "it was aborted before it was scored", 0)
    assert judged(row(status=Status.ABORTED, **none)) == aborted
    assert judged(running, state=RunState.FAILED) == aborted
    assert judged(row(advantage=None)) == Training(Moved.NOT_RECORDED, "its advantage is not recorded")


def test_an_evaluation_moves_nothing_and_nor_does_what_nobody_sampled() -> None:
    assert judged(row(mode=Mode.EVAL)).moved == Moved.NO
    assert judged(row(completion_tokens=0)) == Training(Moved.NO, "none of its tokens was sampled by the model", 0)


@pytest.mark.parametrize(
    ("mode", "said"), [("sequence_mask", "dropped all tokens"), ("token_mask", "dropped some tokens")]
)
def test_what_only_the_trainers_log_probabilities_would_tell_is_not_recorded(mode: str, said: str) -> None:
    config = {
        "use_vllm": True, "vllm_importance_sampling_correction": True, "vllm_importance_sampling_mode": mode,
        "vllm_importance_sampling_clip_max": 3.0, "off_policy_mask_threshold": 0.5,
    }  # fmt: skip
    (sampling,) = judged(row(), config=config).unknown
    assert said in sampling
    assert "3.0" in sampling
    assert len(judged(row(advantage=-0.7), config=config).unknown) == 2
    assert judged(row(), config=config | {"use_vllm": False}).unknown == ()
    assert judged(row(), config=config | {"vllm_importance_sampling_mode": "token_truncate"}).unknown == ()
