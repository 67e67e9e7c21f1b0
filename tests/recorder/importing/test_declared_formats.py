"""Formats that are declarations, and traces of OpenTelemetry, written here as their writers do."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logs_ui.recorder import export_run, import_run, load_run, load_runs
from logs_ui.recorder.importing.reader import ImportedRollout
from tests.recorder.importing.flat_reading import Read, write_lines
from tests.support.factory import make_run_at


def only(path: Path, name: str) -> ImportedRollout:
    read = Read(path)
    assert read.errors == []
    assert read.reader.name == name
    (found,) = read.rollouts
    return found


# NeMo Gym: ng_collect_rollouts writes the request, the response and what the verifier returned.


OUTPUT = """[
    {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "Look first."}]},
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": "{\\"x\\": 1}"},
    {"type": "function_call", "id": "fc_2", "call_id": "c2", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "5"},
    {"type": "function_call_output", "call_id": "c2", "output": "6"},
    {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "11"}]}
]"""
RESPONSE = """{"id": "resp_1", "created_at": 1782184824.0, "model": "qwen", "error": null, "incomplete_details": null,
    "usage": {"output_tokens": 16}}"""
GYM = """{"reward": 0.5, "terminated": true, "_ng_task_index": 3, "_ng_rollout_index": 1,
    "agent_ref": {"type": "agents", "name": "sums"}}"""


def gym(**more: Any) -> dict[str, Any]:
    asked = [{"role": "user", "type": "message", "content": [{"type": "input_text", "text": "Sum?"}]}]
    response = {**json.loads(RESPONSE), "output": json.loads(OUTPUT)}
    params = {"input": asked, "temperature": 0.0}
    return {**json.loads(GYM), "responses_create_params": params, "response": response, **more}


def test_nemo_gym_has_the_items_of_the_responses_api_as_turns(tmp_path: Path) -> None:
    write_lines(tmp_path / "rollouts.jsonl", gym())
    found = only(tmp_path, "nemo-gym")
    assert found.prompt == [{"role": "user", "content": [{"type": "text", "text": "Sum?"}]}]
    called, first, second, said = found.completion
    assert (called["reasoning_content"], len(called["tool_calls"]), called["content"]) == ("Look first.", 2, "")
    assert called["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"x": 1}'}
    assert (first["tool_call_id"], second["content"], said["content"][0]["text"]) == ("c1", "6", "11")
    assert (found.task, found.group, found.generation, found.eval_name) == ("sums/3", "sums/3", 1, "sums")
    assert (found.reward, found.model, found.mode, found.metrics["terminated"]) == (0.5, "qwen", "eval", True)
    assert (found.completion_tokens, found.created) == (16, 1_782_184_824_000_000)
    assert "output" not in found.metadata["response"], "the messages have it"
    rows = load_run(import_run(tmp_path, db=tmp_path / "a.db").runs[0], db=tmp_path / "a.db")
    assert (rows.turns[0], rows.env_steps[0], rows.tool_calls[0]) == (2, 2, 2)
    assert [it["observation"] for it in rows.actions[0]] == ["5", "6", None]


def test_nemo_gym_takes_a_text_and_what_is_cut_or_failed(tmp_path: Path) -> None:
    cut = gym(responses_create_params={"input": "Sum?"})
    cut["response"] |= {"incomplete_details": {"reason": "max_output_tokens"}, "created_at": 0.0}
    failed = gym()
    failed["response"] |= {"error": {"code": "server_error", "message": "gone"}, "output": []}
    write_lines(tmp_path / "rollouts.jsonl", cut, failed)
    first, second = Read(tmp_path).rollouts
    assert (first.prompt, first.stop_reason) == ([{"role": "user", "content": "Sum?"}], "length")
    assert (second.error, second.completion) == ("gone", [])


def test_nemo_gym_without_an_agent_groups_by_its_index(tmp_path: Path) -> None:
    write_lines(tmp_path / "rollouts.jsonl", *(gym(agent_ref=None, _ng_task_index=it) for it in (3, 4)))
    assert [it.group for it in Read(tmp_path).rollouts] == ["/3", "/4"]


def test_items_of_an_unknown_kind_cost_themselves_and_all_reasoning_stays(tmp_path: Path) -> None:
    row = gym()
    more = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Then add."}]}
    row["response"]["output"][1:1] = [{"type": "web_search_call", "id": "ws_1", "status": "completed"}, more]
    write_lines(tmp_path / "rollouts.jsonl", row)
    found = import_run(tmp_path, db=tmp_path / "a.db")
    assert [it.reason for it in found.bad] == ["items of type web_search_call are left out: they are not messages"]
    said = load_run(found.runs[0], db=tmp_path / "a.db").messages[0]
    assert [it["role"] for it in said] == ["user", "assistant", "tool", "tool", "assistant"]
    assert said[1]["reasoning_content"] == "Look first.\nThen add."


# Tinker cookbook: a line a trajectory, without texts.


TINKER = """{"schema_version": 1, "split": "train", "iteration": 4, "group_idx": 2, "traj_idx": 1, "tags": ["gsm8k"],
    "sampling_client_step": 3, "total_reward": 1.5, "final_reward": 1.0, "trajectory_metrics": {"correct": 1.0},
    "final_ob_len": 12, "steps": [{"step_idx": 0, "ob_len": 9, "ac_len": 3, "reward": 0.0, "episode_done": true}]}"""


def tinker(**more: Any) -> dict[str, Any]:
    return {**json.loads(TINKER), **more}


def test_tinker_summaries_have_figures(tmp_path: Path) -> None:
    for name, split in (("train", "train"), ("eval_gsm8k", "eval/gsm8k"), ("test", "test")):
        write_lines(tmp_path / "iteration_000004" / f"{name}_rollout_summaries.jsonl", tinker(split=split))
    read = Read(tmp_path)
    found = {it.eval_name: it for it in read.rollouts}
    assert {name: it.mode for name, it in found.items()} == {"train": "train", "eval/gsm8k": "eval", "test": "eval"}
    one = found["train"]
    assert (one.step, one.policy_step, one.group, one.generation, one.reward) == (4, 3, "train-2", 1, 1.5)
    assert (one.prompt, one.completion, one.tags) == ([], [], ["gsm8k"])
    assert one.metrics == {"final_reward": 1.0, "final_ob_len": 12, "correct": 1.0}
    assert (one.metadata["steps"][0]["ac_len"], len({it.key for it in read.rollouts})) == (3, 3)
    assert "texts" in read.reader.describe(None).lacks
    rows = load_run(import_run(tmp_path, db=tmp_path / "a.db").runs[0], db=tmp_path / "a.db")
    assert rows.task.isna().all(), "no prompt tells tasks apart"


# Prime's platform: nested values are JSON text; prime-rl writes the same columns as Parquet.


def prime(**more: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": "2 + 3?"}, {"role": "assistant", "content": "5"}]
    nested = {"completion": said, "task": {"a": 1}, "metrics": {"acc": 1.0, "num_turns": 1}, "timing": {"total": 2.0}}
    plain = {"problem_id": 7, "sample_id": 2, "prompt": "", "env_name": "sums", "reward": 1.0}
    return {**plain, **{name: json.dumps(value) for name, value in nested.items()}, **more}


def test_hosted_results_of_prime(tmp_path: Path) -> None:
    asked = json.dumps([{"role": "system", "content": "s"}])
    write_lines(tmp_path / "results.jsonl", prime(), prime(sample_id=3, prompt=asked))
    first, second = (read := Read(tmp_path)).rollouts
    assert read.reader.name == "prime"
    assert first.prompt == [{"role": "user", "content": "2 + 3?"}]
    assert first.completion == [{"role": "assistant", "content": "5"}]
    assert [it["role"] for it in [*second.prompt, *second.completion]] == ["system", "user", "assistant"]
    assert (first.group, first.task, first.mode) == ("7", "sums/7", "eval")
    assert first.metrics == {"acc": 1.0, "num_turns": 1, "sample_id": 2}
    assert first.key != second.key


@pytest.mark.parametrize(
    ("rows", "mode"),
    [
        ([{"step": None, "advantage": None}], "eval"),
        ([{"step": 0, "advantage": None}] * 2, "eval"),
        ([{"step": 0, "advantage": None}, {"step": 0, "advantage": 0.0}], "train"),
        ([{"step": 0, "advantage": None}, {"step": 1, "advantage": None}], "train"),
    ],
)
def test_a_file_of_prime_without_steps_and_advantages_is_an_evaluation(
    tmp_path: Path, rows: list[dict[str, Any]], mode: str
) -> None:
    write_lines(tmp_path / "results.jsonl", *(prime(sample_id=i, **row) for i, row in enumerate(rows)))
    assert {it.mode for it in Read(tmp_path).rollouts} == {mode}


def test_samples_that_prime_rl_uploads(tmp_path: Path) -> None:
    common = {"run_id": "r", "step": 3, "tag": "", "num_output_tokens": 1}
    rows = [prime(**common, sample_id=i, advantage=None if i else 0.5) for i in range(2)]
    times = pa.array([pd.Timestamp("2026-09-21", tz="UTC")] * 2)
    pq.write_table(pa.Table.from_pylist(rows).append_column("created_at", times), tmp_path / "step_3.parquet")
    first, second = Read(tmp_path).rollouts
    assert (first.run, first.step, first.mode, second.mode, first.advantage) == ("r", 3, "train", "train", 0.5)
    assert (first.key, first.completion_tokens, first.created) == ("r-3-0", 1, 1_789_948_800_000_000)


# OTLP/JSON: our own export, and spans of others.


def test_what_we_export_as_otlp_is_read_back(db: Path, tmp_path: Path) -> None:
    make_run_at(db, steps=2)
    export_run("latest", "otlp", tmp_path / "spans.jsonl", db=db)
    found = import_run(tmp_path / "spans.jsonl", db=tmp_path / "b.db")
    databases = (db, tmp_path / "b.db")
    before, after = (load_run("latest", db=it).sort_values(["step", "task", "generation"]) for it in databases)
    assert (found.rollouts, found.bad) == (len(before), [])
    for name in ("step", "mode", "task", "generation", "reward", "rewards", "advantage", "stop_reason", "metrics"):
        assert [str(it) for it in after[name]] == [str(it) for it in before[name]], name
    told = [
        [{k: v for k, v in it.items() if k != "name"} for said in rows.messages for it in said]
        for rows in (before, after)
    ]
    assert told[0] == told[1], "only the tool's name is not in it"
    acted = [[it["observation"] for one in rows.actions for it in one] for rows in (before, after)]
    assert acted[0] == acted[1]
    assert load_runs(tmp_path / "b.db").name[0] == load_runs(db).name[0]


def span(kind: str, id_: str, begin: int, **more: Any) -> dict[str, Any]:
    values = {"gen_ai.operation.name": kind, "gen_ai.request.model": "gpt", **more.pop("values", {})}
    kinds = {str: "stringValue", int: "intValue", float: "doubleValue"}
    attributes = [
        {"key": key, "value": {kinds[type(it)]: str(it) if type(it) is int else it}} for key, it in values.items()
    ]
    times = {"startTimeUnixNano": str(begin * 10**9), "endTimeUnixNano": str((begin + 2) * 10**9)}
    return {"traceId": "t", "spanId": id_, "name": kind, "attributes": attributes, **times, **more}


def chat(*said: tuple[str, str]) -> str:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]} for role, text in said])


def write_spans(folder: Path, *lines: Any, **about: Any) -> Path:
    write_lines(folder / "a.jsonl", *({"resourceSpans": [{**about, "scopeSpans": [{"spans": it}]}]} for it in lines))
    return folder / "a.jsonl"


def test_spans_of_others_are_a_rollout(tmp_path: Path) -> None:
    asked, answer, told = ("user", "2 + 3?"), ("assistant", "Look."), ("user", "Yes.")
    turns = [([asked], answer), ([asked, answer, told], ("assistant", "5"))]
    values = [{"gen_ai.input.messages": chat(*given), "gen_ai.output.messages": chat(said)} for given, said in turns]
    calls = [span("chat", f"{i}", 10 + i, parentSpanId="root", values=values[i]) for i in range(2)]
    score = {"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": 0.5}}
    named = {"key": "gen_ai.evaluation.name", "value": {"stringValue": "acc"}}
    events = [{"name": "gen_ai.evaluation.result", "attributes": [named, score]}]
    root = span("invoke_agent", "root", 9, events=events, status={"code": 2, "message": "late"})
    other = {"traceId": "u", "spanId": "x", "name": "GET /", "startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    write_spans(tmp_path, [*calls[::-1], root, other])
    found = only(tmp_path, "otlp")
    assert [it["content"] for it in [*found.prompt, *found.completion]] == ["2 + 3?", "Look.", "Yes.", "5"]
    assert (found.rewards, found.error, found.model, found.key) == ({"acc": 0.5}, "late", "gpt", "t")
    assert ([it.seconds for it in found.turns], found.seconds) == ([2.0, 2.0], 2.0)


def test_a_failed_call_keeps_its_usage_its_instructions_and_its_attributes(tmp_path: Path) -> None:
    given = {
        "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Be brief."}]),
        "gen_ai.input.messages": chat(("user", "q")),
        "gen_ai.usage.input_tokens": 7,
        "team": "red",
    }
    failed = span("chat", "1", 10, parentSpanId="root", status={"code": 2}, values=given)
    said = chat(("assistant", "5"))
    used = {"gen_ai.output.messages": said, "gen_ai.usage.input_tokens": 8, "gen_ai.usage.output_tokens": 2}
    spans = [span("invoke_agent", "root", 9), failed]
    for more, texts, tokens, turns in (
        ([], ["Be brief.", "q"], (7, None), []),
        ([span("chat", "2", 20, parentSpanId="root", values=given | used)], ["Be brief.", "q", "5"], (7, 2), [None]),
    ):
        write_spans(tmp_path, spans + more)
        found = only(tmp_path, "otlp")
        assert [it["content"] for it in [*found.prompt, *found.completion]] == texts
        assert (found.prompt_tokens, found.completion_tokens) == tokens
        assert [it.error for it in found.turns] == turns
        kept = {"name": "chat", "gen_ai.request.model": "gpt", "gen_ai.usage.input_tokens": 7, "team": "red"}
        assert found.metadata["spans"][0] == kept


def test_spans_of_one_trace_in_several_lines_are_one_rollout(tmp_path: Path) -> None:
    call = span("chat", "0", 10, parentSpanId="root", values={"gen_ai.output.messages": chat(("assistant", "5"))})
    root = span("invoke_agent", "root", 9, status={"code": 2})
    found = import_run(write_spans(tmp_path, [call], [root]), db=tmp_path / "a.db")
    rows = load_run(found.runs[0], tmp_path / "a.db")
    assert (len(rows), rows.messages[0][-1]["content"], rows.error[0]) == (1, "5", "it failed")
    assert found.rollouts == 1


def test_a_trace_has_its_calls_model_and_what_judges_and_its_service_said(tmp_path: Path) -> None:
    root, call = span("invoke_agent", "root", 9), span("chat", "0", 10, parentSpanId="root")
    root["attributes"] = [it for it in root["attributes"] if it["key"] != "gen_ai.request.model"] + [{"key": "empty"}]
    label = {"gen_ai.evaluation.name": "tone", "gen_ai.evaluation.score.label": "rude"}
    kept = [{"key": key, "value": {"stringValue": it}} for key, it in label.items()]
    root["events"] = [{"name": "gen_ai.evaluation.result", "attributes": kept}]
    about = {"attributes": [{"key": "host.name", "value": {"stringValue": "h"}}]}
    write_spans(tmp_path, [root, call], resource=about)
    found = only(tmp_path, "otlp")
    assert (found.model, found.rewards, found.metadata["evaluations"]) == ("gpt", None, [label])
    assert found.metadata["resource"] == {"host.name": "h"}


def test_an_attribute_that_is_not_json_is_named(tmp_path: Path) -> None:
    call = span("chat", "0", 10, values={"gen_ai.input.messages": "hello"})
    write_spans(tmp_path, [call])
    assert Read(tmp_path).errors == ["`gen_ai.input.messages` is not valid JSON"]


@pytest.mark.parametrize("spans", [None, [1], [{"attributes": 3}], [{"spanId": "x"}]])
def test_hostile_spans_cost_themselves(tmp_path: Path, spans: Any) -> None:
    found = import_run(write_spans(tmp_path, spans), db=tmp_path / "a.db")
    assert (found.rollouts, found.bad_count) == (0, 1)
    assert found.bad[0].reason in ("it is not as OpenTelemetry (GenAI) writes it", "it lacks `traceId`")
