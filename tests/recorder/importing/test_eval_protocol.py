"""Rows of Eval Protocol, as it writes them itself, become rollouts with all that they say."""

import json
import math
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from logs_ui.recorder import import_run, load_run
from logs_ui.recorder.importing.formats import readers
from logs_ui.recorder.importing.formats.eval_protocol import EvalProtocolReader
from logs_ui.recorder.importing.reader import ImportedRollout, ImportOptions, Turn
from logs_ui.recorder.importing.source_files import Head, Place, RecordError
from logs_ui.recorder.vocabulary import Mode, Status, StopReason
from tests.recorder.importing.flat_reading import token_lists

_FIXTURES = Path(__file__).parent / "fixtures" / "eval_protocol"
_FILES = ("logs.db", "rows.jsonl", "data_json.jsonl", "experiment.jsonl")


def _rollouts(file: Path, reader: EvalProtocolReader | None = None) -> dict[str, ImportedRollout]:
    reader = reader or EvalProtocolReader(file, ImportOptions())
    records = [(number, record) for number, record in reader.records(file) if not isinstance(record, RecordError)]
    found = [it for number, record in records for it in reader.rollouts(record, Place(file, file.name, "id", number))]
    return {it.key: it for it in found}


def _one(row: dict[str, Any], **options: Any) -> ImportedRollout:
    reader = EvalProtocolReader(Path(), ImportOptions(**options))
    (found,) = reader.rollouts(row, Place(Path("a.jsonl"), "a.jsonl", "id", 7))
    return found


@pytest.mark.parametrize("name", _FILES)
def test_each_of_its_files_is_recognized(name: str) -> None:
    head = Head(_FIXTURES / name)
    assert [it.name for it in readers() if it.recognizes(head)] == ["eval-protocol"]


@pytest.mark.parametrize("name", ["logs.db", "rows.jsonl", "data_json.jsonl"])
def test_every_field_of_a_row_is_kept(name: str) -> None:
    reader = EvalProtocolReader(_FIXTURES, ImportOptions())
    row = _rollouts(_FIXTURES / name, reader)["r" * 300]
    assert [it["role"] for it in row.prompt] == ["system", "user"]
    assert row.prompt[1]["content"] == [{"type": "text", "text": "2 + 3?"}]
    assert [it["role"] for it in row.completion] == ["assistant", "tool", "assistant", "tool"]
    assert row.completion[0]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 2, "b": 3}'}
    called, answered, said, _ = row.completion
    assert (called["weight"], answered["tool_call_id"], said["name"]) == (1, "c1", "bot")
    assert (row.task, row.group, row.generation, row.eval_name, row.model) == ("sum-1", "sum-1", 2, "sums", "m")
    assert (row.mode, row.status, row.stop_reason, row.error) == (Mode.EVAL, Status.OK, StopReason.DONE, None)
    assert (row.reward, row.rewards, row.run, row.step, row.seconds) == (-12.5, {"score": -12.5}, "exp", 0, 1.5)
    assert list(row.turns) == [Turn(reward=0.25, done=False), Turn(reward=0.5, done=True, finish="stop")]
    assert (row.prompt_tokens, row.completion_tokens, row.sampling) == (None, 6, {"max_tokens": 7})
    assert row.created == 1_795_341_600_000_000
    assert token_lists(row.tokens)[:2] == [[7, 8], [9]]
    metrics = dict(row.metrics)
    assert math.isnan(metrics.pop("invalid"))
    costs = {"input_cost": 0.1, "output_cost": 0.2, "total_cost_dollar": 0.3, "eval_duration_seconds": 0.5}
    assert metrics == {"huge": 1e300, "negative": -3.0, "level": 3, "tool_call_count": 1, **costs}
    about, result = row.metadata, row.metadata["evaluation_result"]
    assert (about["ground_truth"], about["pid"], about["source"]) == (5, 4242, "kept")
    assert about["tools"][0]["function"]["name"] == "add"
    assert about["input_metadata"]["origin"] == "kept"
    assert about["input_metadata"]["dataset_info"] == {"seed": 3}
    assert about["input_metadata"]["session_data"] == {"mode": "pointwise"}
    assert result["metrics"]["huge"] == {"is_score_valid": True, "score": 1e300, "reason": "r", "data": {"why": [1]}}
    assert (result["reason"], result["agg_score"], result["standard_error"]) == ("far off", 0.5, 0.1)
    assert (result["trajectory_info"], result["final_control_plane_info"]) == ({"steps": 2}, {"won": True})
    assert about["rollout_status"]["details"][1]["metadata"] == {"note": "extra"}
    spent = about["execution_metadata"]
    assert (spent["invocation_id"], spent["run_id"], spent["usage"]["total_tokens"]) == ("inv", "run", 36)
    assert spent["experiment_duration_seconds"] == 9.0
    assert not {"messages", "created_at", "level"} & about.keys()
    run = reader.describe("exp")
    assert (run.name, run.model, run.num_generations) == ("sums exp", "m", 3)
    assert run.config["completion_params"] == {"model": "m", "max_tokens": 7}
    told = {"aggregation_method": "mean", "passed": False, "invocation_id": "inv", "version": "1.2"}
    assert told.items() <= run.config.items()


def test_what_an_end_is_called_is_understood() -> None:
    found = _rollouts(_FIXTURES / "rows.jsonl")
    ends = {name: (it.status, it.stop_reason, it.error) for name, it in found.items()}
    assert ends["failed"] == (Status.ERROR, StopReason.TIMEOUT, "took 60 s")
    assert ends["internal"] == (Status.ERROR, None, "KeyError: 'x'")
    assert ends["aborted"] == (Status.ABORTED, StopReason.ABORTED, "Ctrl+C")
    assert ends["length"] == (Status.OK, StopReason.LENGTH, None)
    assert ends["limit"] == (Status.OK, StopReason.TURN_LIMIT, None)
    assert ends["running"] == ends["waiting"] == (Status.RUNNING, None, None)
    assert ends["invalid"] == (Status.OK, None, "judge died")
    assert all(it.run is None for name, it in found.items() if name != "r" * 300)


def test_nan_invalid_absent_and_zero_stay_apart() -> None:
    found = _rollouts(_FIXTURES / "rows.jsonl")
    assert math.isnan(found["hostile"].reward or 0.0)  # its writer has NaN in JSON
    assert math.isnan((found["invalid"].rewards or {})["score"] or 0.0)  # is_score_valid is False beside 0.0
    assert (found["failed"].reward, found["failed"].rewards) == (None, None)
    row = {"messages": [], "rollout_status": {}, "evaluation_result": {"score": 0}}
    assert _one(row).rewards == {"score": 0.0}
    assert _one(row | {"evaluation_result": {"score": None, "is_score_valid": True}}).rewards == {"score": None}
    assert found["hostile"].completion[0]["content"] == "nul \0, <script>alert(1)</script>"


def test_rows_of_the_trl_integration_are_finished_rollouts() -> None:
    found = [it for key, it in _rollouts(_FIXTURES / "logs.db").items() if key.startswith("openenv_vllm")]
    assert len(found) == 2
    for row in found:
        assert (row.mode, row.status, row.reward, row.rewards) == (Mode.TRAIN, Status.OK, 1.5, {"step_rewards": 1.5})
        assert [it.reward for it in row.turns] == [0.5, 1.0]
        assert token_lists(row.tokens)[:2] == [[1, 2, 3, 1, 2, 3], [4, 5, 4, 5]]
        assert (row.run, row.group, row.task, row.eval_name, row.model) == (None, None, None, "openenv", "dummy")
        assert row.completion_tokens == 4
        assert row.metadata["execution_metadata"]["extra"] == {"step_rewards": [0.5, 1.0]}
        assert len(row.prompt) == 2


def test_an_experiment_is_a_run_and_its_repetitions_are_groups() -> None:
    stored, written = _rollouts(_FIXTURES / "logs.db"), _rollouts(_FIXTURES / "experiment.jsonl")
    assert len(written) == 4
    for key, row in written.items():
        assert (row.run, row.group, row.reward) == (stored[key].run, stored[key].group, stored[key].reward)
        assert row.metrics["exact"] == row.reward
        assert row.completion[0]["reasoning_content"] == "2 and 3"
        assert (row.prompt_tokens, row.completion_tokens, row.seconds) == (9, 4, 0.25)
        assert row.turns[0].finish == "stop"
        assert not {"evals", "eval_details"} & row.metadata.keys()
    assert len({it.run for it in written.values()}) == 1
    assert sorted(it.group or "" for it in written.values())[::2] == sorted({it.group or "" for it in written.values()})


def test_results_without_an_evaluation_are_not_zero() -> None:
    row = {"messages": [], "execution_metadata": {}, "evals": {"score": 0}}
    empty = {"score": 0, "is_score_valid": False, "reason": "No evaluation result", "metrics": {}}
    assert _one(row | {"eval_details": empty}).reward is None
    judged = {"score": 0.5, "is_score_valid": True, "reason": "", "metrics": {"a": {}}}
    assert _one(row | {"eval_details": judged}).reward == 0.5


def test_hostile_rows_pass_or_cost_themselves() -> None:
    said = [{"role": "user", "content": "\ud800" + "x" * 120_000}, {"role": "assistant", "content": None}]
    row = _one({"messages": said, "execution_metadata": {"rollout_id": "y" * 400}, "extra": 10**400})
    assert (len(row.key), row.prompt[0]["content"][0], row.metrics["extra"]) == (16, "\ud800", 10**400)
    assert _one({"messages": said, "eval_metadata": None, "execution_metadata": {}}).key == "id-7"
    odd = {"step_rewards": [None, "a", -1e308], "completion_ids": [1], "prompt_ids": None, "run_index": "x"}
    row = _one({"messages": said, "execution_metadata": {"extra": odd, "usage": 3, "cost_metrics": []}})
    assert (row.reward, row.generation) == (-1e308, None)
    bad: list[Any] = [None, 1, [], {}, {"messages": []}, {"messages": 1, "eval_metadata": {}}, {"data_json": "{"}]
    for one in bad:
        with pytest.raises(RecordError):
            _one(one)
    with pytest.raises(RecordError, match="token ids"):
        _one({"messages": said, "execution_metadata": {"extra": {"completion_ids": ["a"]}}})


def test_metrics_can_be_named_as_rewards() -> None:
    result = {"score": 0.75, "metrics": {"a": {"score": 1.0}, "b": {"score": 0.5}, "c": {"score": 2}}}
    row = _one({"messages": [], "evaluation_result": result, "pid": 1, "rollout_status": {}}, rewards=("a", "b", "d"))
    assert (row.rewards, row.metrics) == ({"a": 1.0, "b": 0.5, "d": None, "reward": 0.75}, {"c": 2.0})
    assert (row.reward, row.weights) == (0.75, {"a": 0.0, "b": 0.0, "d": 0.0, "reward": 1.0})


def test_a_database_with_its_log_is_imported_once(tmp_path: Path) -> None:
    source, target = tmp_path / "logs.db", tmp_path / "runs.db"
    source.write_bytes((_FIXTURES / "logs.db").read_bytes())
    writer = sqlite3.connect(source)
    writer.execute("PRAGMA journal_mode=WAL")
    data = json.dumps({"messages": [{"role": "user", "content": "q"}], "execution_metadata": {"rollout_id": "new"}})
    writer.execute("INSERT INTO evaluationrow (rollout_id, data) VALUES ('new', ?)", (data,))
    writer.execute("INSERT INTO evaluationrow (rollout_id, data) VALUES ('bad', '{')")
    writer.commit()
    assert source.with_name("logs.db-wal").stat().st_size > 0
    for _ in range(2):
        found = import_run(source, db=target)
        assert (found.rollouts, found.bad_count, len(found.runs)) == (17, 1, 3)
    writer.execute("UPDATE evaluationrow SET data = replace(data, 'click(4)', 'click(5)')")
    writer.commit()
    again = import_run(source, db=target)
    assert again.runs == found.runs
    rows = [load_run(run, db=target) for run in found.runs]
    assert sorted(len(it) for it in rows) == [1, 4, 12]
    trained = next(it for it in rows if len(it) == 12)
    assert "click(5)" in str(trained[trained["mode"] == "train"].iloc[0]["messages"])
    writer.close()
