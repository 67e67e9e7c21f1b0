"""Reads dumps of verl, AReaL, SkyRL, open-instruct and NeMo-RL, written here as their writers do: each needs a GPU."""

import json
import math
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from logs_ui.recorder import diagnose, export_run, import_run, load_run, load_runs, load_scalars
from logs_ui.recorder.importing.import_run import Importer
from logs_ui.recorder.importing.reader import ImportedRollout, ImportOptions, Turn
from logs_ui.recorder.vocabulary import Lack
from tests.recorder.importing.flat_reading import Read, token_lists, write_lines

CHAT = "system\nBe brief.\nuser\n2 + 3?\nassistant\n"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 3?"}]


def only(read: Read) -> ImportedRollout:
    assert read.errors == []
    (found,) = read.rollouts
    return found


def lacks(read: Read) -> str:
    return "; ".join(read.reader.describe(None).lacks)


# verl: one file a step; each key of `reward_extra_info` that is as long as the batch is a key of the record.


def verl(output: str | None = "5", **more: Any) -> dict[str, Any]:
    return {"input": CHAT, "output": output, "gts": "5", "score": 1.0, "step": 10, **more}


def test_verl_each_field(tmp_path: Path) -> None:
    extra: dict[str, Any] = {"acc": True, "format": 0.5, "pred": "5", "reward": 1.0, "request_id": "r", "none": None}
    write_lines(tmp_path / "rollouts" / "10.jsonl", verl(**extra))
    found = only(read := Read(tmp_path))
    assert read.reader.name == "verl"
    assert (list(found.prompt), found.completion) == (MESSAGES, [{"role": "assistant", "content": "5"}])
    assert (found.step, found.reward, found.mode, found.generation) == (10, 1.0, "train", None)
    assert found.rewards == {"reward": 1.0}
    assert found.metrics == {"acc": 1, "format": 0.5, "reward": 1.0}
    assert found.metadata == {"gts": "5", "pred": "5", "request_id": "r"}
    assert (found.advantage, found.tokens, found.stop_reason) == (None, None, None)
    assert "advantages" in lacks(read)
    named = only(Read(tmp_path, rewards=("acc", "format", "none"), weights={"acc": 1.0, "format": 0.0}))
    assert named.rewards == {"acc": 1.0, "format": 0.5, "none": None}
    assert (named.reward, named.weights, named.metrics) == (1.0, {"acc": 1.0, "format": 0.0}, {"reward": 1.0})


def test_verl_parts_of_a_score_add_nothing_without_weights(tmp_path: Path) -> None:
    for step in range(1, 9):
        lines = [verl(step=step, score=float(i % 2), acc=i % 2, format=1.0 - i % 2) for i in range(8)]
        write_lines(tmp_path / "r" / f"{step}.jsonl", *lines)
    write_lines(tmp_path / "r" / "9.jsonl", verl(step=9, score=None, acc=1, format=0.0))
    options: dict[str, Any] = {"rewards": ("acc", "format"), "db": tmp_path / "a.db"}
    (run,) = import_run(tmp_path / "r", **options).runs
    rows = load_run(run, db=tmp_path / "a.db")
    assert rows.reward_weights[0] == {"acc": 0.0, "format": 0.0, "reward": 1.0}
    assert (rows.reward.mean(), rows.reward.isna().sum()) == (0.5, 1)
    report = diagnose(run, db=tmp_path / "a.db")
    assert not {it.id for it in report.cards} & {"reward_parts", "hacking"}
    assert {it.id: it.said for it in report.missing}["reward_parts"].startswith("reward weights")
    export_run(run, "verifiers", tmp_path / "traces.jsonl", db=tmp_path / "a.db")
    again = import_run(tmp_path / "traces.jsonl", db=tmp_path / "b.db")
    assert load_run(again.runs[0], db=tmp_path / "b.db").reward.mean() == 0.5


def test_an_infinite_part_hides_no_total_that_is_none(tmp_path: Path) -> None:
    lines = [verl(score=math.nan, acc=math.inf), verl(score=math.inf, acc=math.inf), verl(score=-math.inf, acc=1.0)]
    write_lines(tmp_path / "1.jsonl", *lines)
    options: dict[str, Any] = {"rewards": ["acc"], "weights": {"acc": 1.0}, "db": tmp_path / "a.db"}
    (run,) = import_run(tmp_path / "1.jsonl", **options).runs
    odd = [{"acc": "inf", "reward": "nan"}, {"acc": "inf"}, {"reward": "-inf"}]
    assert load_run(run, db=tmp_path / "a.db").odd_rewards.to_list() == odd
    for shape in ("verifiers", "eval-protocol"):
        export_run(run, shape, tmp_path / f"{shape}.jsonl", db=tmp_path / "a.db")
        (again,) = import_run(tmp_path / f"{shape}.jsonl", db=tmp_path / "b.db").runs
        assert load_run(again, db=tmp_path / "b.db").odd_rewards.to_list() == odd


def test_verl_turns_are_known_where_chatml_marks_them(tmp_path: Path) -> None:
    asked = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2 + 3?<|im_end|>\n<|im_start|>assistant\n"
    told = "ab " * 400
    said = "Look.<|im_end|>\n<|im_start|>user\n" + told + "<|im_end|>\n<|im_start|>assistant\n5"
    plain = f"Look.\nuser\n{told}\nassistant\n5"
    others = ["5<|im_end|>", "5<|im_end|> and more", "5<|im_end|>\n<|im_start|>other\n6"]
    write_lines(tmp_path / "1.jsonl", verl(said, input=asked), verl(plain), *(verl(it, input=asked) for it in others))
    first, second, *rest = Read(tmp_path).rollouts
    assert [it["content"] for it in [*first.prompt, *first.completion]] == ["Be brief.", "2 + 3?", "Look.", told, "5"]
    assert [it["role"] for it in first.completion] == ["assistant", "user", "assistant"]
    assert [len(it.completion) for it in [second, *rest]] == [1] * 4
    assert [len(it.prompt) for it in rest] == [2, 1, 1], "else it stays the text that it is"
    (run,) = import_run(tmp_path / "1.jsonl", db=tmp_path / "a.db").runs
    rows = load_run(run, db=tmp_path / "a.db")
    assert rows.turns.isna().tolist() == [False, *[True] * 4]
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        found = connection.execute("SELECT trigram_repeats FROM evaluation_row ORDER BY id").fetchall()
    assert found[1] == (None,), "a tool's result stands in it"


def test_verl_groups_by_uid_else_by_the_prompt(tmp_path: Path) -> None:
    uids = [f"0c9_a{sample}_{rollout}_0" for sample in range(2) for rollout in range(2)]
    write_lines(tmp_path / "v1" / "1.jsonl", *(verl(uid=uid) for uid in uids))
    found = Read(tmp_path / "v1").rollouts
    assert [(it.group, it.generation) for it in found] == [("0c9_a0", 0), ("0c9_a0", 1), ("0c9_a1", 0), ("0c9_a1", 1)]
    assert found[0].metadata["uid"] == "0c9_a0_0_0"
    others = [verl(uid="a_b_c"), verl(input="user\nHi\nassistant\n"), verl()]  # balanced by length: not beside it
    write_lines(tmp_path / "legacy" / "1.jsonl", *others)
    first, second, third = (it.group for it in Read(tmp_path / "legacy").rollouts)
    assert first == third != second


@pytest.mark.parametrize(
    ("mode", "folders"),
    [
        ("eval", ["val", "validation_data", "eval-dumps", "gsm8k_test"]),
        ("train", ["rollouts", "evaluate/rollouts", "latest", "retrieval"]),
    ],
)
def test_verl_a_validation_is_told_by_its_folder(tmp_path: Path, mode: str, folders: list[str]) -> None:
    for folder in folders:
        write_lines(tmp_path / folder / "10.jsonl", verl())
        assert only(Read(tmp_path / folder / "10.jsonl")).mode == mode, folder
    assert [it.mode for it in Read(tmp_path).rollouts] == [mode] * 4


def test_verl_a_bad_record_costs_itself(tmp_path: Path) -> None:
    odd = [verl(score="high"), verl(output=None), verl(step=None), "text", [1], {**verl(), "input": 7}]
    (tmp_path / "1.jsonl").write_text("".join(f"{json.dumps(it)}\n" for it in [verl(), *odd, verl("\ud800\0")]))
    read = Read(tmp_path)
    assert [it.completion[0]["content"] for it in read.rollouts] == ["5", "5", "\ud800\0"]
    assert len(read.errors) == 5
    assert read.errors[0] == "reward must be a number, and score has 'high'"


@pytest.mark.parametrize("score", [float("nan"), float("inf"), None, 0.0])
def test_scores_that_are_no_numbers_stay_apart(tmp_path: Path, score: float | None) -> None:
    write_lines(tmp_path / "1.jsonl", verl(score=score))
    assert repr(only(Read(tmp_path)).reward) == repr(score)
    without = {key: value for key, value in verl().items() if key != "score"}
    write_lines(tmp_path / "1.jsonl", verl(), without)
    assert [it.reward for it in Read(tmp_path).rollouts] == [1.0, None]


# AReaL: `{rollout,eval-rollout}/{tail_version}/{task_id}.jsonl`, appended to.


def areal(**more: Any) -> dict[str, Any]:
    prompt, completion = "<|im_start|>user\n2 + 3?<|im_end|>", "5<|im_end|>"
    return {
        "task_id": 7, "sample_idx": 1, "seqlen": 12, "prompt_len": 9, "head_version": 3, "tail_version": 5,
        "reward": 0.5, "prompt": prompt, "completion": completion, **more,
    }  # fmt: skip


def test_areal_each_field(tmp_path: Path) -> None:
    write_lines(tmp_path / "logs" / "rollout" / "5" / "7.jsonl", areal())
    found = only(read := Read(tmp_path))
    assert (found.group, found.generation, found.step, found.policy_step, found.staleness) == ("7", 1, 5, 3, 2)
    assert (found.prompt_tokens, found.completion_tokens, found.reward, found.mode) == (9, 3, 0.5, "train")
    assert list(found.prompt) == [{"role": "user", "content": "<|im_start|>user\n2 + 3?<|im_end|>"}]
    assert found.completion == [{"role": "assistant", "content": "5<|im_end|>"}]
    assert (found.metrics, found.metadata) == ({}, {})
    assert "the version that was trained" in lacks(read)
    write_lines(tmp_path / "e" / "eval-rollout" / "5" / "7.jsonl", areal(more=1, other="x"))
    other = only(Read(tmp_path / "e"))
    assert (other.mode, other.metrics, other.metadata) == ("eval", {"more": 1}, {"other": "x"})


# SkyRL: `dumped_evals/global_step_{n}_evals/{data set}.jsonl`.


def test_skyrl_each_field(tmp_path: Path) -> None:
    entry = {
        "input_prompt": "<user>2 + 3?", "output_response": "5<eos>", "score": 1.0, "stop_reason": "length",
        "env_class": "gsm8k", "env_extras": {"level": 2}, "data_source": "openai/gsm8k",
    }  # fmt: skip
    folder = tmp_path / "dumped_evals" / "global_step_20_evals"
    by_token = {**entry, "score": [0.0, 0.25, 0.5], "stop_reason": None}
    write_lines(folder / "openai_gsm8k.jsonl", entry, by_token, {**entry, "score": None, "input_prompt": "!"})
    write_lines(folder / "aggregated_results.jsonl", {"eval/all/avg_score": 0.5})
    first, second, third = (read := Read(tmp_path)).rollouts
    assert (first.step, first.mode, first.eval_name, first.reward) == (20, "eval", "openai/gsm8k", 1.0)
    assert (first.prompt[0]["content"], first.completion[0]["content"]) == ("<user>2 + 3?", "5<eos>")
    assert (first.turns, second.turns) == ([Turn(finish="length")], [Turn()])
    assert first.metadata == {"env_class": "gsm8k", "env_extras": {"level": 2}}
    assert (second.reward, third.reward) == (0.75, None)
    assert first.group == second.group != third.group
    assert "advantages" in lacks(read)
    write_lines(tmp_path / "eval_only" / "a.jsonl", entry)
    assert only(Read(tmp_path / "eval_only")).step == 0


def test_skyrl_steps_that_begin_alike_are_all_stored(tmp_path: Path) -> None:
    for step, score in ((0, 0.0), (5, 1.0)):
        lines = [{"input_prompt": "Q", "output_response": f"{i}", "score": i and score} for i in range(10)]
        write_lines(tmp_path / "dumps" / f"global_step_{step}_evals" / "gsm8k.jsonl", *lines)
    (run,) = import_run(tmp_path / "dumps", db=tmp_path / "a.db").runs
    assert load_run(run, db=tmp_path / "a.db").groupby("step").size().to_dict() == {0: 10, 5: 10}


# open-instruct: shards of 10,000 records, and a file about the run.


def traced(**more: Any) -> dict[str, Any]:
    info = {
        "num_calls": 2, "timeouts": 0, "tool_errors": "", "tool_outputs": "7", "tool_runtimes": 0.5,
        "tool_calleds": True, "tool_call_stats": [], "rollout_state": {"a": 1},
    }  # fmt: skip
    return {
        "step": 3, "sample_idx": 5, "prompt_idx": 1, "prompt_tokens": [1, 2], "response_tokens": [3, 4, 5],
        "reward": 1.0, "advantage": -0.5, "finish_reason": "length", "dataset": "math", "ground_truth": [9],
        "request_info": info, "logprobs": [-0.5, -0.25, None], **more,
    }  # fmt: skip


def test_open_instruct_each_field(tmp_path: Path) -> None:
    write_lines(tmp_path / "olmo_metadata.jsonl", {"run_name": "olmo", "git_commit": "abc", "model_name": "OLMo"})
    stopped = traced(sample_idx=6, finish_reason="stop", logprobs=None, request_info=None, prompt_tokens=[8])
    write_lines(tmp_path / "olmo_rollouts_000000.jsonl", traced(), stopped)
    write_lines(tmp_path / "olmo_rollouts_000001.jsonl", traced(step=4))
    first, second, third = (read := Read(tmp_path)).rollouts
    assert (first.run, first.step, first.group, first.reward, first.advantage) == ("olmo", 3, "olmo-1", 1.0, -0.5)
    assert (first.eval_name, first.mode, first.stop_reason) == ("math", "train", "length")
    assert (list(first.prompt), list(first.completion)) == ([], [])
    assert token_lists(first.tokens) == [[1, 2], [3, 4, 5], None, [-0.5, -0.25, None]]
    assert first.metrics == {}
    assert first.metadata == {"ground_truth": [9], "request_info": traced()["request_info"]}
    assert (token_lists(second.tokens)[3], second.stop_reason, second.metrics) == (None, "stop", {})
    assert first.task == third.task != second.task
    assert len({it.key for it in read.rollouts}) == 3
    run = read.reader.describe("olmo")
    assert run.name == "olmo"
    assert "texts" in run.lacks


# NeMo-RL: each value is a list of one, padded to the longest of the batch.


def nemo(idx: int = 0, apart: float = 0.5, **more: Any) -> dict[str, Any]:
    mask = [0, 0, 0, 1, 1, 0, 1, 0]
    generated = [0.0, 0.0, 0.0, -0.5, -0.25, 0.0, -1.0, 0.0]
    return {
        "content": [["Be brief.", "2 + 3?", "Look.", "5", "It is 5."]], "rewards": [1.0], "input_lengths": [7],
        "token_ids": [[1, 2, 3, 4, 5, 6, 7, 0]], "token_loss_mask": [mask], "sample_loss_mask": [1.0],
        "advantages": [[0.5 * it for it in mask]], "generation_logprobs": [generated],
        "prev_logprobs": [[value - apart * it for value, it in zip(generated, mask, strict=True)]], "idx": idx, **more,
    }  # fmt: skip


def test_nemo_each_field(tmp_path: Path) -> None:
    write_lines(tmp_path / "train_data_step12.jsonl", nemo(agent_ref=[{"name": "math"}], turns=[2]))
    found = only(read := Read(tmp_path))
    assert (found.step, found.mode, found.reward, found.advantage, found.dropped) == (12, "train", 1.0, 0.5, None)
    said = [(it["role"], it["content"]) for it in [*found.prompt, *found.completion]]
    assert said == [
        ("system", "Be brief."), ("user", "2 + 3?"), ("assistant", "Look."), ("user", "5"), ("assistant", "It is 5."),
    ]  # fmt: skip
    assert len(found.prompt) == 2
    assert token_lists(found.tokens) == [[1, 2, 3], [4, 5, 6, 7], [1, 1, 0, 1], [-0.5, -0.25, None, -1.0]]
    assert found.metrics == {"sampling_logp_difference": pytest.approx(0.5), "turns": 2}
    assert found.metadata == {"agent_ref": {"name": "math"}}
    assert read.scalars == {12: {"sampling/sampling_logp_difference/mean": pytest.approx(0.5)}}
    assert "stop reasons" in lacks(read)


def test_nemo_the_difference_of_a_step_is_over_its_tokens(tmp_path: Path) -> None:
    lines = [nemo(0, 0.0), nemo(1, 0.75), nemo(2, prev_logprobs=[[0.0] * 8])]
    write_lines(tmp_path / "train_data_step1.jsonl", *lines)
    write_lines(tmp_path / "train_data_step2.jsonl", nemo(0, 0.25))
    read = Read(tmp_path)
    name = "sampling/sampling_logp_difference/mean"
    assert read.scalars == {1: {name: pytest.approx(0.375)}, 2: {name: pytest.approx(0.25)}}
    assert [it.metrics.get("sampling_logp_difference") for it in read.rollouts] == [0.0, 0.75, None, 0.25]


def test_nemo_a_file_that_grows_while_another_is_read_has_the_difference_of_all(tmp_path: Path) -> None:
    trained, db = tmp_path / "logs" / "train_data_step1.jsonl", tmp_path / "a.db"
    write_lines(trained, nemo(0, 0.0), nemo(1, 0.0))
    messages = [*MESSAGES, {"role": "assistant", "content": "5"}]
    write_lines(tmp_path / "logs" / "val_data_step1.jsonl", {"content": [messages], "rewards": [1.0], "idx": 0})
    with closing(Importer([tmp_path / "logs"], ImportOptions(), db=db, is_followed=True)) as importer:
        importer.take()
        with trained.open("a") as opened:
            opened.writelines(json.dumps(nemo(it, 1.0)) + "\n" for it in (2, 3))
        importer.take()
    assert load_scalars("latest", db).iloc[-1].to_list() == [pytest.approx(0.5)]


def test_nemo_dynamic_sampling_keeps_its_own_rewards(tmp_path: Path) -> None:
    kept = nemo(0, rewards=[1.0], filtered_rewards=[0.0], sample_loss_mask=[0.0])
    left_out = {key: [] for key in nemo()} | {"rewards": [1.0], "filtered_rewards": [], "idx": 1}
    write_lines(tmp_path / "train_data_step1.jsonl", kept, left_out)
    read = Read(tmp_path)
    assert [(it.reward, it.dropped) for it in read.rollouts] == [(0.0, "filtered")]
    assert len(read.errors) == 1
    assert "dynamic sampling" in read.errors[0]


def test_nemo_what_roles_a_mask_leaves_open(tmp_path: Path) -> None:
    ended_by_environment = nemo(0, input_lengths=[8])
    ended_by_environment["content"] = [["2 + 3?", "Look.", "5", "It is 5.", "Wrong."]]
    untrained = nemo(1, token_loss_mask=[[0] * 8], content=[["Hi"]])
    answer = nemo(2, token_loss_mask=[[0, 0, 0, 1, 1, 1, 1, 0]], content=["It is 5."])
    write_lines(tmp_path / "train_data_step1.jsonl", ended_by_environment, untrained, answer)
    first, second, third = Read(tmp_path).rollouts
    assert [it["role"] for it in first.prompt] == ["user"]
    assert [it["role"] for it in first.completion] == ["assistant", "user", "assistant", "user"]
    assert ([it["role"] for it in second.prompt], second.completion, second.tokens) == (["user"], [], None)
    assert (second.advantage, second.metrics) == (None, {})
    assert (third.prompt, third.completion) == ([], [{"role": "assistant", "content": "It is 5."}])


def test_nemo_a_validation_has_messages(tmp_path: Path) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "5"}]
    write_lines(tmp_path / "val_data_step4.jsonl", {"content": [messages], "rewards": [1.0], "idx": 0})
    found = only(Read(tmp_path))
    assert (list(found.prompt), list(found.completion)) == (messages[:2], messages[2:])
    assert (found.step, found.mode, found.reward, found.tokens) == (4, "eval", 1.0, None)


def test_an_import_shows_what_a_trainer_and_its_sampler_disagree_in(db: Path, tmp_path: Path) -> None:
    for step in range(1, 9):
        lines = [nemo(i, 0.4, rewards=[float(i % 2)], advantages=[[i % 2 - 0.5] * 8]) for i in range(8)]
        write_lines(tmp_path / "logs" / f"train_data_step{step}.jsonl", *lines)
    found = import_run(tmp_path / "logs", db=db)
    assert (found.rollouts, found.formats, found.bad_count) == (64, {"nemo-rl": 8}, 0)
    rows = load_run(found.runs[0], db=db)
    assert (rows.groupby("step").group.nunique() == 1).all()
    (scalar,) = load_scalars(found.runs[0], db).iloc[-1].items()
    assert scalar == ("sampling/sampling_logp_difference/mean", pytest.approx(0.4))
    assert "mismatch" in [card.id for card in diagnose(found.runs[0], db=db).cards]


def test_an_import_of_ids_alone_has_rows(db: Path, tmp_path: Path) -> None:
    lines = [traced(sample_idx=i, prompt_idx=i // 2, prompt_tokens=[i // 2]) for i in range(4)]
    write_lines(tmp_path / "olmo_rollouts_000000.jsonl", *lines)
    (run,) = import_run(tmp_path, db=db).runs
    rows = load_run(run, db=db)
    assert list(rows.generation) == [0, 1, 0, 1]
    assert rows.task.nunique() == rows.group.nunique() == 2
    assert set(rows.stop_reason) == {"length"}
    assert load_runs(db=db).name[0] == "olmo"
    write_lines(tmp_path / "other_rollouts_000000.jsonl", *lines)
    (run,) = import_run(tmp_path, run="both", db=db).runs
    assert (len(load_run(run, db=db)), load_run(run, db=db).group.nunique()) == (8, 4)


# ART: its own writer made the files, in both versions (fixtures/art/make.py).

ART = Path(__file__).parent / "fixtures" / "art"
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "5"}


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_art_each_field(version: str) -> None:
    first, second, *others = (read := Read(ART / version)).rollouts
    assert read.errors == []
    assert list(first.prompt) == MESSAGES
    assert list(first.completion) == [
        {"role": "assistant", "content": "", "tool_calls": [CALL]}, RESULT, {"role": "assistant", "content": "5"},
    ]  # fmt: skip
    is_new = version == "v2"
    assert (Lack.STOP_REASONS in read.reader.describe(None).lacks) == (not is_new)
    assert (first.step, first.mode) == ((4, "train") if is_new else (3, "eval"))
    assert (first.group, second.group, first.reward, second.reward) == ("0", "0", 1.0, 0.0)
    assert (first.generation, second.generation) == ((0, 1) if is_new else (None, None))
    assert first.metrics == {"acc": 1.0, "ok": True}
    tool = {"name": "look", "description": "Looks.", "parameters": {}}
    of_group = {"group_metadata": {"set": "a"}, "group_metrics": {"spread": 0.5}, "group_logs": ["a group"]}
    about = {"tools": [{"type": "function", "function": tool}], "logs": ["began", "ended"], **of_group}
    assert first.metadata == {"level": 3, **about, **({"final_policy_version": 4} if is_new else {})}
    assert (second.metrics, second.metadata) == ({}, of_group)
    assert first.policy_step == (3 if is_new else None)
    assert [it.finish for it in first.turns] == (["tool_calls", "stop"] if is_new else [])
    assert [it.finish for it in second.turns] == (["length"] if is_new else [])
    assert "token ids" in lacks(read)
    assert len(others) == (2 if is_new else 0)


def test_art_exchanges_and_exceptions() -> None:
    exchanged, failed = Read(ART / "v2").rollouts[2:]
    assert list(exchanged.prompt) == MESSAGES[1:]
    assert list(exchanged.completion) == [
        {"role": "assistant", "content": "", "tool_calls": [CALL]}, RESULT, {"role": "assistant", "content": "5"},
    ]  # fmt: skip
    assert (exchanged.model, exchanged.reward, exchanged.group) == ("qwen", 0.5, "1")
    assert [it.finish for it in exchanged.turns] == ["tool_calls", "stop"]
    assert (failed.group, failed.error, failed.step) == ("1", "<class 'ValueError'>: no page", 4)
    assert (failed.prompt, failed.completion, failed.reward) == (exchanged.prompt, [], None)


def test_an_import_of_art_has_the_rows(db: Path) -> None:
    (run,) = import_run(ART / "v2", db=db).runs
    rows = load_run(run, db=db)
    assert list(rows.stop_reason) == ["stop", "length", "stop", "exception"]
    assert list(rows.status) == ["ok", "ok", "ok", "error"]
    assert rows.actions[0][0]["action"] == {"name": "look", "arguments": {"x": 1}}
