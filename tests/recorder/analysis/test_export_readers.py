"""What `export --as` writes, read by those that it is for. Each is in an environment of its own:

PYTHONPATH=.dev "$(.ci/environments verifiers)" -m pytest --noconftest tests/recorder/analysis/test_export_readers.py

Harbor, whose trajectories ATIF are, needs Python 3.12: `pip install --no-deps harbor`, beside what the others need.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from logs_ui.recorder import export_run, load_run
from tests.support.factory import make_run_at


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("readers") / "runs.db"
    make_run_at(path, uid="run", steps=10, groups_per_step=2, generations=4)
    return path


def rows(db: Path) -> dict[str, Any]:
    return {f"run/{row['id']}": row for row in load_run("run", db).to_dict("records")}


def test_verifiers_reads_episodes(db: Path, tmp_path: Path) -> None:
    module: Any = pytest.importorskip("verifiers.v1.episode")
    export_run("run", "verifiers", tmp_path / "traces.jsonl", db)
    expected = rows(db)
    for line in (tmp_path / "traces.jsonl").read_bytes().splitlines():
        made = module.WireEpisode.model_validate(json.loads(line))
        row, (trace,) = expected.pop(made.id), made.traces
        (branch,) = trace.branches
        assert (made.group.id, made.run.work.step, made.run.work.type) == (row["group"], row["step"], row["mode"])
        assert trace.reward == pytest.approx(0.0 if math.isnan(row["reward"]) else row["reward"], abs=1e-3)
        assert trace.num_turns == row["turns"]
        if row["completion_ids"] is None:
            assert branch.token_ids == []
            continue
        assert branch.token_ids == [*row["prompt_ids"], *row["completion_ids"]]
        mask = [1] * len(row["completion_ids"]) if row["mask"] is None else [*row["mask"]]
        assert branch.sampled_mask == [False] * len(row["prompt_ids"]) + [bool(it) for it in mask]
        if row["logprobs"] is not None:
            told = [value for value, own in zip(row["logprobs"], mask, strict=True) if own]
            assert [it for node in branch.nodes for it in node.logprobs] == pytest.approx(told)
        if not math.isnan(row["advantage"]):
            assert set(branch.advantages) <= {row["advantage"], 0.0}
    assert expected == {}


def test_eval_protocol_reads_rows(db: Path, tmp_path: Path) -> None:
    module: Any = pytest.importorskip("eval_protocol.models")
    export_run("run", "eval-protocol", tmp_path / "rows.jsonl", db)
    expected = rows(db)
    for line in (tmp_path / "rows.jsonl").read_bytes().splitlines():
        made = module.EvaluationRow.model_validate_json(line)
        row = expected.pop(made.execution_metadata.rollout_id)
        assert [it.role for it in made.messages] == [it["role"] for it in row["messages"]]
        assert made.input_metadata.row_id == row["group"]
        if not math.isnan(row["reward"]):
            assert made.evaluation_result.score == row["reward"]
            told = {name: it.score for name, it in made.evaluation_result.metrics.items()}
            assert told == {name: value or 0.0 for name, value in row["rewards"].items()}
    assert expected == {}


def test_harbor_reads_trajectories(db: Path, tmp_path: Path) -> None:
    module: Any = pytest.importorskip("harbor.models.trajectories")
    export_run("run", "atif", tmp_path / "trials", db)
    expected = rows(db)
    for path in (tmp_path / "trials").glob("*/agent/trajectory.json"):
        made = module.Trajectory.model_validate_json(path.read_bytes())
        row = expected.pop(made.trajectory_id)
        assert made.extra["logs_ui"]["step"] == row["step"]
        if row["completion_ids"] is not None and row["mask"] is not None:
            told = [it for step in made.steps if step.metrics for it in step.metrics.completion_token_ids]
            assert told == [it for it, own in zip(row["completion_ids"], row["mask"], strict=True) if own]
    assert expected == {}
