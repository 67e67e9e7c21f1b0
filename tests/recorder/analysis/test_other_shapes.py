"""Rollouts as other tools read them: verifiers, ATIF, Eval Protocol and OTLP."""

import base64
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_service
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from logs_ui.recorder import LogsUIError, export_run, load_run, start_run
from logs_ui.recorder.analysis.export import otlp
from logs_ui.recorder.analysis.export.atif import trial
from logs_ui.recorder.analysis.export.evaluation_rows import evaluation_row
from logs_ui.recorder.analysis.export.exported import Exported
from logs_ui.recorder.analysis.export.otlp import trace
from logs_ui.recorder.analysis.export.verifiers_episodes import episode
from logs_ui.recorder.queries.rollout_columns import COLUMNS
from logs_ui.recorder.storage.tables import Run
from logs_ui.recorder.vocabulary import Lack
from tests.support.changes import interrupt
from tests.support.factory import make_run_at
from tests.support.http_server import Answered, http_server

US = 1_767_261_600_000_000
NAN, INF = math.nan, math.inf


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shapes") / "runs.db"
    make_run_at(path, uid="run", steps=10, groups_per_step=2, generations=4)
    return path


def exported(**columns: Any) -> Exported:
    """A rollout of two turns with a tool, as `frames.chunks` yields it, but for these columns."""
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    row: dict[str, Any] = {column.name: None for column in COLUMNS} | {
        "run": "run", "id": 7, "eval_name": "sums", "mode": "train", "step": 3, "policy_step": 2, "group": "g",
        "generation": 1, "process": 0, "task": "t", "model": "tiny", "status": "ok", "stop_reason": "done",
        "reward": 0.5, "advantage": -1.25, "rewards": {"solved": 0.0, "format": 0.5, "judge": None},
        "reward_weights": {"solved": 1.0, "format": 1.0, "judge": 2.0}, "metrics": {"length": 9.0}, "tags": ["hard"],
        "turns": 2, "prompt_tokens": 3, "completion_tokens": 4, "env_tokens": 2, "tool_calls": 1, "seconds": 2.5,
        "created": US, "returned": US + 3_000_000, "scored": US + 4_000_000,
        "messages": [
            {"role": "developer", "content": "Add."},
            {"role": "user", "content": "1 + 1?"},
            {"role": "assistant", "content": None, "reasoning_content": "Easy.", "tool_calls": [call]},
            {"role": "tool", "content": "2", "tool_call_id": "c1", "name": "add"},
            {"role": "assistant", "content": "It is 2."},
        ],
        "actions": [
            {"turn": 0, "text": None, "action": None, "observation": "ready", "seconds": 0.5},
            {"turn": 1, "text": "", "action": {"name": "add", "arguments": {"a": 1}}, "observation": "2", "reward": 0.1,
             "done": False, "seconds": 0.25, "generation": {"seconds": 1.0, "finish": "tool_calls"}},
            {"turn": 2, "text": "It is 2.", "action": None, "observation": None, "reward": None, "done": None,
             "generation": {"seconds": 0.5, "finish": "stop", "sampling": {"temperature": 0.0}}},
            {"turn": 1, "text": None, "action": "?", "observation": None, "phase": "scoring", "function": "judge"},
        ],
        "sampling": {"temperature": 1.0, "max_tokens": 64, "model": "tiny"}, "metadata": {"traceback": "Traceback"},
        "prompt_ids": np.array([1, 2, 3], np.int32), "completion_ids": np.array([4, 5, 6, 7, 8, 9], np.int32),
        "logprobs": np.array([-0.5, -0.25, NAN, NAN, -1.0, -2.0], np.float32),
        "mask": np.array([1, 1, 0, 0, 1, 1], np.uint8),
    }  # fmt: skip
    run = Run(uid="run", name="first", created=US, heartbeat=US, versions={"logs-ui": "0.0.1"})
    return Exported(row | columns, run)


def test_an_episode_of_verifiers_has_each_message_with_its_tokens() -> None:
    made = episode(exported())
    (trace_,) = made["traces"]
    assert made["run"] == {
        "type": "train", "id": "run", "name": "first",
        "work": {"type": "train", "step": 3, "policy": {"start": 2, "end": 2}},
    }  # fmt: skip
    assert (made["id"], made["env"], made["group"], made["ok"]) == ("run/7", {"id": "sums"}, {"id": "g"}, True)
    assert made["task"] == trace_["task"] == {"type": "Task", "data": {"name": "t"}, "key": "t"}
    assert trace_["rewards"] == {
        "solved": {"score": 0.0, "weight": 1.0}, "format": {"score": 0.5, "weight": 1.0}, "judge": None,
    }  # fmt: skip
    assert (trace_["metrics"], trace_["stop_condition"], trace_["errors"]) == ({"length": 9.0}, "done", [])
    assert trace_["timing"]["agent"] == {"start": US / 1e6, "end": US / 1e6 + 3}
    assert trace_["timing"]["scoring"] == {"start": US / 1e6 + 3, "end": US / 1e6 + 4}
    nodes = trace_["nodes"]
    assert [node.get("parent") for node in nodes] == [None, 0, 1, 2, 3]
    assert [node.get("sampled", False) for node in nodes] == [False, False, True, False, True]
    assert [node["token_ids"] for node in nodes] == [[1, 2, 3], [], [4, 5], [6, 7], [8, 9]]
    assert [node["mask"] for node in nodes] == [[False] * 3, [], [True, True], [False, False], [True, True]]
    assert [node["logprobs"] for node in nodes] == [[], [], [-0.5, -0.25], [], [-1.0, -2.0]]
    assert [node.get("advantages") for node in nodes] == [None, None, [-1.25, -1.25], None, [-1.25, -1.25]]
    assert nodes[0]["message"] == {"role": "system", "content": "Add."}
    assert nodes[2]["message"] == {
        "role": "assistant", "reasoning_content": "Easy.",
        "tool_calls": [{"id": "c1", "name": "add", "arguments": '{"a": 1}'}],
    }  # fmt: skip
    assert nodes[3]["message"] == {"role": "tool", "content": "2", "tool_call_id": "c1", "name": "add"}
    begin = US / 1e6
    assert trace_["calls"] == [
        {"node": 2, "model": "tiny", "finish_reason": "tool_calls",
         "usage": {"prompt_tokens": 3, "completion_tokens": 2}, "time": {"start": begin, "end": begin + 1.0}},
        {"node": 4, "model": "tiny", "finish_reason": "stop", "usage": {"prompt_tokens": 7, "completion_tokens": 2},
         "sampling": {"temperature": 0.0}, "time": {"start": begin + 1.25, "end": begin + 1.75}},
    ]  # fmt: skip
    told = trace_["info"]["logs_ui"]
    assert (told["advantage"], told["generation"], told["tags"], told["stop_reason"]) == (-1.25, 1, ["hard"], "done")
    assert len(told["actions"]) == 4
    assert "error" not in told


def test_rewards_that_are_nan_none_absent_and_zero_stay_four_things() -> None:
    odd = {"rewards": {"a": None, "b": 0.0, "c": None, "d": None}, "odd_rewards": {"a": "nan", "d": "-inf"}}
    it = exported(**odd, reward=None, reward_weights=None)
    (rewards,) = (one["rewards"] for one in episode(it)["traces"])
    assert str(rewards) == str({
        "a": {"score": NAN, "weight": 1.0}, "b": {"score": 0.0, "weight": 1.0}, "c": None,
        "d": {"score": -INF, "weight": 1.0},
    })  # fmt: skip
    result = evaluation_row(it)["evaluation_result"]
    assert math.isnan(result["score"])
    assert not result["is_score_valid"]
    del result["metrics"]["length"]
    told = {name: (it["score"], it["is_score_valid"], it["reason"]) for name, it in result["metrics"].items()}
    assert str(told) == str({
        "a": (NAN, False, "reward function"), "b": (0.0, True, "reward function"), "c": (0.0, False, "did not run"),
        "d": (-INF, False, "reward function"),
    })  # fmt: skip
    files = trial(it)
    assert json.loads(files["7/verifier/reward.json"]) == {"b": 0.0}
    told = json.loads(files["7/agent/trajectory.json"])["extra"]["logs_ui"]
    assert (told["rewards"], told["odd_rewards"]) == (odd["rewards"], odd["odd_rewards"])
    assert "reward" not in told
    scores = {name: one.get("gen_ai.evaluation.score.value") for name, one in evaluations(trace(it)).items()}
    assert scores == {"a": "NaN", "b": 0.0, "c": None, "d": "-Infinity"}
    nothing = exported(rewards=None, odd_rewards=None, reward=None)
    assert episode(nothing)["traces"][0]["rewards"] == {}
    assert "evaluation_result" not in evaluation_row(nothing)
    assert "7/verifier/reward.json" not in trial(nothing)
    assert evaluations(trace(nothing)) == {}
    total = exported(rewards=None, reward=0.0)
    assert episode(total)["traces"][0]["rewards"] == {"reward": {"score": 0.0, "weight": 1.0}}
    assert evaluation_row(total)["evaluation_result"]["is_score_valid"]


def test_tokens_that_cannot_be_divided_into_answers_are_kept_together() -> None:
    it = exported(mask=None, advantage=None, logprobs=None)
    nodes = episode(it)["traces"][0]["nodes"]
    assert [node["token_ids"] for node in nodes] == [[1, 2, 3], [], [], [], [4, 5, 6, 7, 8, 9]]
    assert nodes[4]["mask"] == [True] * 6
    assert nodes[4]["logprobs"] == []
    assert not any("advantages" in node for node in nodes)
    assert not any("usage" in call for call in episode(it)["traces"][0]["calls"])
    trajectory = json.loads(trial(it)["7/agent/trajectory.json"])
    assert not any("metrics" in step for step in trajectory["steps"])
    told = trajectory["extra"]["logs_ui"]
    assert (told["prompt_ids"], told["completion_ids"]) == ([1, 2, 3], [4, 5, 6, 7, 8, 9])
    without = exported(prompt_ids=None, completion_ids=None, logprobs=None, mask=None)
    assert {len(node["token_ids"]) for node in episode(without)["traces"][0]["nodes"]} == {0}
    assert evaluation_row(without)["execution_metadata"]["extra"].keys() == {"logs_ui"}


def test_a_trajectory_has_steps_with_observations_and_tokens() -> None:
    files = trial(exported())
    assert files.keys() == {"7/agent/trajectory.json", "7/verifier/reward.json"}
    assert json.loads(files["7/verifier/reward.json"]) == {"solved": 0.0, "format": 0.5, "reward": 0.5}
    made = json.loads(files["7/agent/trajectory.json"])
    assert (made["schema_version"], made["session_id"], made["trajectory_id"]) == ("ATIF-v1.8", "run", "run/7")
    assert made["agent"] == {"name": "sums", "version": "0.0.1", "model_name": "tiny"}
    assert made["final_metrics"] == {"total_completion_tokens": 4, "total_steps": 4}
    told = made["extra"]["logs_ui"]
    assert (told["reward"], told["advantage"], told["group"], told["step"], told["task"]) == (0.5, -1.25, "g", 3, "t")
    first, second, third, last = made["steps"]
    assert first == {
        "step_id": 1, "source": "system", "message": "Add.", "timestamp": "2026-01-01T10:00:00.000000Z",
    }  # fmt: skip
    assert (second["source"], second["message"]) == ("user", "1 + 1?")
    assert third == {
        "step_id": 3, "source": "agent", "message": "", "reasoning_content": "Easy.", "llm_call_count": 1,
        "timestamp": "2026-01-01T10:00:01.000000Z",
        "tool_calls": [{"tool_call_id": "c1", "function_name": "add", "arguments": {"a": 1}}],
        "observation": {"results": [{"source_call_id": "c1", "content": "2"}]},
        "metrics": {"prompt_tokens": 3, "completion_tokens": 2, "prompt_token_ids": [1, 2, 3],
                    "completion_token_ids": [4, 5], "logprobs": [-0.5, -0.25]},
    }  # fmt: skip
    assert last["metrics"]["prompt_token_ids"] == [1, 2, 3, 4, 5, 6, 7]
    assert last["metrics"]["completion_token_ids"] == [8, 9]


def test_a_trajectory_takes_what_agents_really_do() -> None:
    def called(name: str, arguments: Any) -> dict[str, Any]:
        return {"id": name, "function": {"name": name, "arguments": arguments}}

    messages = [
        {"role": "assistant", "content": "An example."},
        {"role": "tool", "content": "Nobody asked.", "tool_call_id": "?"},
        {"role": "assistant", "content": "Hm", "tool_calls": [called("broken", '{"a": '), called("parsed", {"b": 2})]},
        {"role": "tool", "content": "late"},
        {"role": "ipython", "content": ["a", {"text": "b"}, {"type": "video", "x": 1}]},
    ]
    it = exported(messages=messages, turns=1, logprobs=np.array([INF] * 6, np.float32), mask=None)
    steps = json.loads(trial(it)["7/agent/trajectory.json"])["steps"]
    assert [(step["source"], step.get("is_copied_context")) for step in steps] == [
        ("agent", True), ("agent", None), ("user", None),
    ]  # fmt: skip
    assert steps[0]["observation"]["results"] == [{"content": "Nobody asked."}]
    assert steps[1]["tool_calls"] == [
        {"tool_call_id": "broken", "function_name": "broken", "arguments": {}, "extra": {"arguments": '{"a": '}},
        {"tool_call_id": "parsed", "function_name": "parsed", "arguments": {"b": 2}},
    ]
    assert "logprobs" not in steps[1]["metrics"]
    assert steps[2]["message"] == 'a\nb\n{"type": "video", "x": 1}'
    nothing = json.loads(trial(exported(messages=[], turns=None))["7/agent/trajectory.json"])
    assert nothing["steps"] == [{"step_id": 1, "source": "system", "message": ""}]


def test_a_row_of_eval_protocol() -> None:
    made = evaluation_row(exported())
    assert made["created_at"] == "2026-01-01T10:00:00.000000Z"
    assert [message["role"] for message in made["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert made["messages"][2]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert made["input_metadata"] == {
        "row_id": "g", "completion_params": {"model": "tiny", "temperature": 1.0, "max_tokens": 64},
        "dataset_info": {"task": "t"},
    }  # fmt: skip
    assert made["rollout_status"]["code"] == 100
    assert made["rollout_status"]["details"][0]["metadata"] == {"termination_reason": "control_plane_signal"}
    execution = made["execution_metadata"]
    assert (execution["invocation_id"], execution["rollout_id"], execution["finish_reason"]) == ("run", "run/7", "stop")
    assert execution["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert (execution["rollout_duration_seconds"], execution["tool_call_count"]) == (2.5, 1)
    assert execution["extra"]["completion_ids"] == [4, 5, 6, 7, 8, 9]
    assert execution["extra"]["mask"] == [1, 1, 0, 0, 1, 1]
    assert math.isnan(execution["extra"]["logprobs"][2])
    assert execution["extra"]["logs_ui"]["step"] == 3
    result = made["evaluation_result"]
    assert (result["score"], result["is_score_valid"]) == (0.5, True)
    assert result["metrics"]["judge"] == {
        "score": 0.0, "is_score_valid": False, "reason": "did not run", "data": {"weight": 2.0},
    }  # fmt: skip
    assert result["metrics"]["length"] == {"score": 9.0, "reason": "metric"}
    assert result["step_outputs"] == [{"step_index": 0, "base_reward": 0.1, "terminated": False}]
    for columns, code in (
        ({"status": "error", "stop_reason": "exception", "error": "ValueError: no"}, 13),
        ({"status": "error", "stop_reason": "timeout", "error": "late"}, 4),
        ({"status": "aborted", "stop_reason": "aborted"}, 10),
        ({"status": "running", "stop_reason": None}, 101),
    ):
        status = evaluation_row(exported(**columns))["rollout_status"]
        assert (status["code"], status["message"]) == (code, columns.get("error", ""))


def test_an_error_is_told_in_each_shape() -> None:
    it = exported(status="error", stop_reason="environment_error", error="ConnectionError: gone")
    (made,) = episode(it)["traces"]
    assert made["errors"] == [{"type": "ConnectionError", "message": "gone", "traceback": "Traceback"}]
    assert (made["ok"], made["is_completed"], made["stop_condition"]) == (False, True, "environment_error")
    root = spans(trace(it))[0]
    assert root["status"] == {"code": 2, "message": "ConnectionError: gone"}
    assert attributes(root)["error.type"] == "ConnectionError"
    late = episode(exported(stop_reason="timeout"))["traces"][0]
    assert (late["is_timeout"], late["stop_condition"]) == (True, "agent_timeout")
    unknown = exported(stop_reason="not_recorded")
    unknown.run.config = {"import": {"format": "verl", "lacks": [*Lack]}}
    made = episode(unknown)
    assert not {"stop_condition", "is_completed"} & made["traces"][0].keys()
    assert "policy" not in made["run"]["work"]
    assert evaluation_row(unknown)["rollout_status"]["details"] == []


def test_a_trace_has_a_span_for_each_answer_and_action() -> None:
    made = trace(exported())
    root, reset, first, tool, second = spans(made)
    assert [span["name"] for span in spans(made)] == [
        "invoke_agent sums", "execute_tool environment", "chat tiny", "execute_tool add", "chat tiny",
    ]  # fmt: skip
    assert len({span["spanId"] for span in spans(made)}) == 5
    assert {span["traceId"] for span in spans(made)} == {root["traceId"]}
    assert {span.get("parentSpanId") for span in spans(made)} == {None, root["spanId"]}
    assert (root["startTimeUnixNano"], root["endTimeUnixNano"]) == (f"{US}000", f"{US + 3_000_000}000")
    assert int(first["endTimeUnixNano"]) - int(first["startTimeUnixNano"]) == 1_000_000_000
    assert int(tool["endTimeUnixNano"]) - int(tool["startTimeUnixNano"]) == 250_000_000
    told = attributes(root)
    assert told["gen_ai.operation.name"] == "invoke_agent"
    assert (told["logs_ui.step"], told["logs_ui.reward"], told["logs_ui.advantage"]) == ("3", 0.5, -1.25)
    assert (told["logs_ui.group"], told["logs_ui.stop_reason"]) == ("g", "done")
    assert told["gen_ai.conversation.id"] == "run/7"
    asked = json.loads(told["gen_ai.input.messages"])
    assert asked[1] == {"role": "user", "parts": [{"type": "text", "content": "1 + 1?"}]}
    said = attributes(first)
    assert said["gen_ai.usage.input_tokens"] == "3"
    assert said["gen_ai.response.finish_reasons"] == {"values": [{"stringValue": "tool_calls"}]}
    assert (said["gen_ai.request.temperature"], said["gen_ai.request.max_tokens"]) == (1.0, "64")
    assert json.loads(said["gen_ai.output.messages"]) == [{"role": "assistant", "parts": [
        {"type": "reasoning", "content": "Easy."},
        {"type": "tool_call", "id": "c1", "name": "add", "arguments": '{"a": 1}'},
    ]}]  # fmt: skip
    later = attributes(second)
    assert later["gen_ai.request.temperature"] == 0.0
    assert json.loads(later["gen_ai.input.messages"]) == [
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "2"}]}
    ]
    done = attributes(tool)
    assert (done["gen_ai.tool.name"], done["gen_ai.tool.call.result"], done["logs_ui.reward"]) == ("add", "2", 0.1)
    assert json.loads(done["gen_ai.tool.call.arguments"]) == {"name": "add", "arguments": {"a": 1}}
    assert attributes(reset)["gen_ai.tool.call.result"] == "ready"
    assert evaluations(made) == {
        "reward": {"gen_ai.evaluation.score.value": 0.5},
        "solved": {"gen_ai.evaluation.score.value": 0.0, "logs_ui.weight": 1.0},
        "format": {"gen_ai.evaluation.score.value": 0.5, "logs_ui.weight": 1.0},
        "judge": {"logs_ui.weight": 2.0},
    }


def test_images_of_messages_are_kept(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (16, 16, 3)).astype(np.uint8)
    data = "data:image/webp;base64," + base64.b64encode(b"RIFF webp").decode()
    prompt = [{"role": "user", "content": [
        {"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {"url": data}},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}, {"type": "image"},
    ]}]  # fmt: skip
    db = tmp_path / "runs.db"
    with start_run(db=db) as run, run.rollout(prompt) as row:
        row.turn("click", action="click", observation={"shot": pixels})
        row.turn("done")
    assert export_run(run.id, "atif", tmp_path / "atif", db) == 1
    (agent,) = tmp_path.glob("atif/*/agent")
    steps = json.loads((agent / "trajectory.json").read_bytes())["steps"]
    sources = [part.get("source") for part in steps[0]["message"]]
    assert [it and it["media_type"] for it in sources] == [None, "image/webp", "image/png", None]
    assert (agent / sources[1]["path"]).read_bytes() == b"RIFF webp"
    assert sources[2]["path"] == "https://example.org/a.png"
    assert steps[0]["message"][3]["text"] == '{"type": "image"}'
    assert '"$image"' in steps[2]["message"]  # what the environment showed stays a reference
    export_run(run.id, "eval-protocol", tmp_path / "rows.jsonl", db)
    (message, *_) = json.loads((tmp_path / "rows.jsonl").read_bytes())["messages"]
    assert message["content"][1] == {"type": "image_url", "image_url": {"url": data}}
    export_run(run.id, "otlp", tmp_path / "spans.jsonl", db)
    root = spans(json.loads((tmp_path / "spans.jsonl").read_bytes()))[0]
    parts = json.loads(attributes(root)["gen_ai.input.messages"])[0]["parts"]
    assert parts[1] == {
        "type": "blob", "modality": "image", "mime_type": "image/webp", "content": data.partition(",")[2],
    }  # fmt: skip
    assert parts[2] == {"type": "uri", "modality": "image", "uri": "https://example.org/a.png"}


def test_what_is_nested_deeply_is_written(tmp_path: Path) -> None:
    deep: Any = "data:image/png;base64,AAAA"
    for _ in range(900):
        deep = [deep]
    db = tmp_path / "runs.db"
    with start_run(db=db) as run, run.rollout('{"$image":' * 900, metadata={"deep": deep}) as row:
        row.turn("a", action=deep, observation=deep)
    for shape in ("verifiers", "eval-protocol", "otlp", "atif"):
        assert export_run(run.id, shape, tmp_path / shape, db) == 1


@pytest.mark.parametrize("format", ["verifiers", "eval-protocol", "otlp", "atif"])
def test_each_rollout_that_a_filter_selects_is_written_once(db: Path, tmp_path: Path, format: Any) -> None:  # noqa: A002
    chosen = "reward>0.5"
    expected = set(load_run("run", db, where=chosen, columns=["id"])["id"])
    seen: list[tuple[int, int]] = []
    output = tmp_path / "out"
    told = export_run("run", format, output, db, where=chosen, progress=lambda done, total: seen.append((done, total)))
    assert (told, seen[-1]) == (len(expected), (len(expected),) * 2)
    if format == "atif":
        assert {int(folder.name) for folder in output.iterdir()} == expected
    else:
        lines = output.read_bytes().splitlines()
        assert len({line for line in lines if json.loads(line)}) == len(expected)


def test_every_trace_is_what_the_protocol_defines(db: Path, tmp_path: Path) -> None:
    output = tmp_path / "spans.jsonl"
    export_run("run", "otlp", output, db)
    for line in output.read_bytes().splitlines():
        made = json.loads(line)
        for span in spans(made):  # OTLP/JSON has hex where protobuf's own JSON has base64
            for name in span.keys() & {"traceId", "spanId", "parentSpanId"}:
                span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
        Parse(json.dumps(made), TracesData())


def test_a_folder_that_has_files_is_never_replaced(db: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    for output in (tmp_path, tmp_path / "mine"):
        with pytest.raises(LogsUIError, match=r"already exists. Name a new folder, or an empty one\."):
            export_run("run", "atif", output, db)
    (tmp_path / "empty").mkdir()
    with pytest.raises(KeyboardInterrupt):
        export_run("run", "atif", tmp_path / "empty", db, progress=interrupt)
    assert [path.name for path in tmp_path.rglob("*")] == ["mine", "empty"] or not any((tmp_path / "empty").iterdir())
    assert export_run("run", "atif", tmp_path / "empty", db, where="id:1") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "empty"}


class Server:
    def __init__(self, *answers: Answered) -> None:
        self.answers = [*answers]
        self.got: list[trace_service.ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []

    def _answer(self, _path: str, headers: dict[str, str], body: bytes) -> Answered:
        self.headers.append(headers)
        answered = self.answers.pop(0) if self.answers else (200, {}, b"")
        if answered[0] == 200:
            self.got.append(trace_service.ExportTraceServiceRequest.FromString(body))
        return answered

    @contextmanager
    def serving(self) -> Iterator[str]:
        with http_server(self._answer) as url:
            yield f"{url}/v1/traces"


def test_traces_are_sent_to_a_server_with_its_headers(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Basic%20abc%3D, x-project=a=b,,")
    monkeypatch.setattr(otlp, "_BYTES", 200_000)
    server = Server()
    with server.serving() as url:
        told = export_run("run", "otlp", url, db)
    assert len(server.got) > 1, "in several requests"
    assert {(it["authorization"], it["x-project"]) for it in server.headers} == {("Basic abc=", "a=b")}
    scopes = [one.scope_spans[0] for got in server.got for one in got.resource_spans]
    roots = [span for scope in scopes for span in scope.spans if not span.parent_span_id]
    assert told == len(roots) == len({root.trace_id for root in roots}) == len(load_run("run", db))
    assert {event.name for root in roots for event in root.events} == {"gen_ai.evaluation.result"}


def test_a_server_that_is_busy_is_asked_again(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("logs_ui.recorder.analysis.export.otlp.time.sleep", waited.append)
    server = Server((429, {"Retry-After": "7"}, b""), (503, {}, b""))
    with server.serving() as url:
        assert export_run("run", "otlp", url, db, where="id:1") == 1
    assert (waited, len(server.got)) == ([7, 2], 1)
    for code in (502, 503):
        busy = Server(*[(code, {}, b"")] * 6)
        with busy.serving() as url, pytest.raises(LogsUIError, match=rf"{code} .*\. 0 rollouts were sent before"):
            export_run("run", "otlp", url, db, where="id:1")
    with pytest.raises(LogsUIError, match=r"127\.0\.0\.1.* did not take the rollouts: .*refused"):
        export_run("run", "otlp", url, db, where="id:1")


def test_what_a_server_does_not_take_is_an_error(db: Path) -> None:
    rejected = trace_service.ExportTraceServiceResponse()
    rejected.partial_success.rejected_spans = 3
    rejected.partial_success.error_message = "too long"
    said = json.dumps({"partialSuccess": {"rejectedSpans": "3", "errorMessage": "too long"}}).encode()
    for answer, what in (
        ((401, {}, b""), "it answered 401 Unauthorized"),
        ((200, {}, rejected.SerializeToString()), "rejected 3 spans, saying 'too long'"),
        ((200, {"Content-Type": "application/json"}, said), "rejected 3 spans, saying 'too long'"),
        ((302, {"Location": "/v2/traces"}, b""), r"it leads to http.*/v2/traces, which must be named itself"),
    ):
        server = Server(answer)
        with server.serving() as url, pytest.raises(LogsUIError, match=what):
            export_run("run", "otlp", url, db, where="id:1")
    fine = Server((200, {"Content-Type": "application/json"}, b"{}"))
    with fine.serving() as url:
        assert export_run("run", "otlp", url, db, where="id:1") == 1


def spans(made: dict[str, Any]) -> list[dict[str, Any]]:
    return list(made["resourceSpans"][0]["scopeSpans"][0]["spans"])


def attributes(told: dict[str, Any]) -> dict[str, Any]:
    return {it["key"]: next(iter(it["value"].values())) for it in told["attributes"]}


def evaluations(made: dict[str, Any]) -> dict[str, dict[str, Any]]:
    events = [attributes(event) for event in spans(made)[0]["events"]]
    return {event.pop("gen_ai.evaluation.name"): event for event in events}
