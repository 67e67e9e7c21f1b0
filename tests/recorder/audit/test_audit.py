"""An audit of rollouts that were recorded by hand, from columns and on the command line."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logs_ui.recorder import start_run
from logs_ui.recorder.audit.advantage_ways import Batch, Way, advantages, way_of
from logs_ui.recorder.audit.recorded_run import Recorded
from logs_ui.recorder.audit.run_audit import audit_rows
from logs_ui.recorder.audit.token_faults import Seen
from tests.support.command import typed

FLAT = Recorded(
    id=np.arange(1, 9),
    is_evaluation=np.repeat([False, True], 4),
    group=np.repeat([0, 1, 2, 3], 2),
    batch=np.repeat([0, 1], 4),
    place=np.tile(np.arange(4), 2),
    reward=np.tile([1.0, 0.0], 4),
    advantage=np.full(8, np.nan),
    values=np.tile([[1.0, 0.0], [0.0, 0.0]], (4, 1)),
    weights=np.tile([1.0, 0.5], (8, 1)),
    has_infinity=np.zeros(8, bool),
    prompt_key=np.repeat([1.0, 2.0, 1.0, 2.0], 2),
    completion_key=np.tile([1.0, 2.0], 4),
    has_environment=np.zeros(8, bool),
    names=["right", "format"],
    tokens=[Seen({})] * 8,
    config={"reward_weights": [1.0, 0.5], "scale_rewards": "group", "num_generations": 2},
    group_size={False: 2, True: 2},
)
EVALUATED = np.where(FLAT.is_evaluation[:, None], FLAT.values * 2, FLAT.values)


def changed(**fields: Any) -> Recorded:
    return replace(FLAT, **fields)


@pytest.mark.parametrize(
    ("recorded", "named"),
    [
        (FLAT, []),
        (changed(mixed=frozenset({3, 4})), [("groups_mixed", (3, 4))]),
        (changed(group=np.repeat([0, 2, 3], [4, 2, 2])), [("groups_size", (1, 2, 3, 4))]),
        (changed(reward=np.array([1.0, 0.5, *[1.0, 0.0] * 3])), [("reward_sum", (2,))]),
        (changed(config={"reward_weights": None}), [("reward_weights", (1, 2, 3, 4, 5))]),
        (changed(config={"reward_weights": {"right": 1.0, "format": 0.5}}), []),
        (changed(config={"reward_weights": {"right": 1.0, "format": 1}}), [("reward_weights", (1, 2, 3, 4, 5))]),
        (changed(config={"reward_weights": {"right": 1.0}, "scale_rewards": {}}), []),
        (changed(config={"reward_weights": "equal", "scale_rewards": [1]}), []),
        # A schedule of weights is none, nor is a group of which a rank has not written its advantages.
        (changed(weights=np.repeat([[1.0, 0.5], [1.0, 0.2]], [2, 6], axis=0), config={"reward_weights": None}), []),
        (changed(advantage=np.array([0.9, np.nan, *[0.70701, -0.70701] * 3])), []),
        (
            changed(weights=np.where(FLAT.is_evaluation[:, None], [1.0, 1.0], [1.0, 0.5]), config={}),
            [("evaluation_weights", (5, 6, 7, 8))],
        ),
        (changed(values=EVALUATED, config={}), [("evaluation_values", (5, 7))]),
        # A function that gives equal completions different values tells nothing.
        (changed(values=EVALUATED, completion_key=np.ones(8), config={}), []),
    ],
)
def test_rewards_groups_and_evaluations(recorded: Recorded, named: list[tuple[str, tuple[int, ...]]]) -> None:
    assert [(it.id, it.first) for it in audit_rows(recorded, "r").findings] == named


def test_weights_that_differ_are_told() -> None:
    (finding,) = audit_rows(changed(config={"reward_weights": None}), "r").findings
    expected = "The arguments ask for 1 for right, 1 for format; the newest of these have 0.5 for format."
    assert finding.evidence == expected


def test_a_missing_mask_is_told_with_its_share_of_the_tokens() -> None:
    tokens = [Seen({"Mask": ["mask_missing"]}, trained=30, inserted=25), Seen({"Mask": []}, trained=10)] * 4
    (finding,) = audit_rows(changed(tokens=tokens), "r").findings
    assert (finding.rows, finding.evidence) == (
        4,
        "Of 160 tokens in training that were compared, no generation sampled 100 (62.5%).",
    )


def normalized(values: list[list[float]], epsilon: float, of_batch: float = 1e-4) -> Recorded:
    """Return two equal groups of four, with advantages as TRL's `normalize_then_sum` makes them in float32."""
    known = np.tile(values, (2, 1))
    rounded = np.float32(known).reshape(2, 4, -1)
    parts = (rounded - rounded.mean(1, keepdims=True)) / (rounded.std(1, ddof=1, keepdims=True) + np.float32(epsilon))
    sums = parts.reshape(known.shape).sum(1)
    return changed(
        is_evaluation=np.zeros(8, bool),
        group=np.repeat([0, 1], 4),
        batch=np.zeros(8, int),
        place=np.arange(8),
        values=known,
        weights=np.ones(known.shape),
        reward=known.sum(1),
        advantage=(sums - sums.mean()) / (sums.std(ddof=1) + of_batch),
        config={"scale_rewards": "group", "multi_objective_aggregation": "normalize_then_sum"},
        group_size={False: 4, True: 4},
    )


LARGE = [[10_000.1, 0.2], [10_000.3, 0.1], [10_000.2, 0.7], [10_000.9, 0.4]]
CONSTANT = [[0.1, 1 / 3], [0.3, 1 / 3], [0.7, 1 / 3], [0.5, 1 / 3]]
SMALL = [[0.01, 0.2], [0.03, 0.1], [0.07, 0.7], [0.05, 0.4]]


@pytest.mark.parametrize(
    ("values", "epsilon", "of_batch", "said"),
    [
        (LARGE, 1e-4, 1e-4, []),
        (CONSTANT, 1e-4, 1e-4, []),
        (SMALL, 1e-2, 1e-4, ["ε is 0.01"]),
        (SMALL, 1e-6, 1e-4, ["ε is 1e-06"]),
        (SMALL, 1e-4, 1e4, ["ε is 1e+04"]),
        (SMALL, 1e4, 1e4, ["ε is 1e+04"]),
    ],
)
def test_an_epsilon_is_told_from_rounding(
    values: list[list[float]], epsilon: float, of_batch: float, said: list[str]
) -> None:
    findings = audit_rows(normalized(values, epsilon, of_batch), "r").findings
    assert [it.evidence.partition(",")[0] for it in findings] == said


def test_advantages_in_half_precision_are_in_their_order() -> None:
    recorded = normalized(SMALL, 1e-4)
    halved = recorded.advantage.astype(np.float16).astype(np.float64)
    (finding,) = audit_rows(replace(recorded, advantage=halved), "r").findings
    assert finding.id == "advantage"
    assert finding.evidence == "The advantage of rollout 2 is -0.7426758, and -0.7429163 follows from the rewards."


def test_functions_of_one_value_explain_no_advantage() -> None:
    recorded = normalized(CONSTANT, 1e-4)
    findings = audit_rows(replace(recorded, advantage=recorded.advantage**3), "r").findings
    assert [it.id for it in findings] == ["advantage"]


def test_calls_of_no_rollout_may_have_sampled_other_ids() -> None:
    audited = audit_rows(changed(tokens=[Seen({"Ids": []})] * 8, lost_calls=16), "r")
    note = next(it.note for it in audited.checks if it.check.name == "Ids")
    assert note.startswith("Model and environment calls that could not be matched to a rollout: 16.")


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        (Way(epsilon=0.0), [0.7071, -0.7071, 0.7071, -0.7071]),
        (Way(scale="none"), [0.5, -0.5, 1.0, -1.0]),
        (Way(scale="batch", epsilon=0.0), [0.5222, -0.5222, 1.0445, -1.0445]),
        (Way(leaves_out=True, scale="none"), [1.0, -1.0, 2.0, -2.0]),
        (Way(leaves_out=True, epsilon=0.0), [1.4142, -1.4142, 1.4142, -1.4142]),
        (Way(scale="none", clip=(0.0, 1.5)), [0.5, -0.5, 0.75, -0.75]),
        (Way(spread=0, epsilon=0.0), [1.0, -1.0, 1.0, -1.0]),
        (Way("normalize_then_sum", scale="batch", epsilon=0.0), [0.8660, -0.8660, 0.8660, -0.8660]),
    ],
)
def test_each_way_of_trl(way: Way, expected: list[float]) -> None:
    values, group = np.array([[1.0], [0.0], [2.0], [0.0]]), np.array([0, 0, 1, 1])
    found, _ = advantages(Batch(values, np.ones(1), group, group, np.zeros(4)), way)
    assert found == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("config", "version", "expected"),
    [
        ({"scale_rewards": True}, "0.18.2", Way(none_counts=True)),
        ({"scale_rewards": False}, "1.16.0", Way(scale="none")),
        ({"normalize_advantages": False, "beta": 0.0}, "1.16.0", Way(leaves_out=True, scale="none")),
        ({"normalize_advantages": False, "beta": 0.1}, "1.16.0", "the KL penalty"),
        ({"max_staleness": 4}, "1.16.0", Way(spread=0, epsilon=1e-8)),
        ({"learning_rate": 0.1}, "1.16.0", "the trainer's way"),
    ],
)
def test_the_way_follows_from_the_arguments(config: dict[str, Any], version: str, expected: Way | str) -> None:
    way = way_of(config, {"trl": version})
    assert way == expected if isinstance(expected, Way) else str(way).startswith(expected)


@pytest.mark.parametrize(("completion", "code", "named"), [([4, 5, 6], 3, ["repeated_prompt"]), ([6, 7], 0, [])])
def test_the_command_says_it_for_scripts(db: Path, completion: list[int], code: int, named: list[str]) -> None:
    with start_run(db=db) as run, run.rollout("What is 1 + 1?") as row:
        row.tokens([4, 5], completion)
    done = typed("audit", run.id, "--json", "--db", db)
    found = json.loads(done.stdout)["findings"]
    assert (done.returncode, [(it["id"], it["rows"], it["where"]) for it in found]) == (
        code,
        [(name, 1, "id:1") for name in named],
    )
    assert "Nor does it see the tensors that are made of ids and mask" in typed("audit", run.id, "--db", db).stdout
