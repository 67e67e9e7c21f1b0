"""Reads the files that TRL wrote with `log_completions`, and compares them with what was recorded of the training."""

import json
import math
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from logs_ui.recorder import diagnose, import_run, load_run, load_scalars
from logs_ui.recorder.importing.formats.trl_completions import TrlReader
from logs_ui.recorder.importing.import_run import Importer
from logs_ui.recorder.importing.reader import ImportOptions
from logs_ui.recorder.importing.source_files import Head
from logs_ui.recorder.vocabulary import Lack
from tests.recorder.importing.flat_reading import Read

FIXTURES = Path(__file__).parent / "fixtures" / "trl"


def recorded(version: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FIXTURES / version / "recorded.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("version", ["0.29.1", "1.16.0"])
def test_each_row_is_what_was_recorded_of_the_same_training(version: str) -> None:
    read, rows = Read(FIXTURES / version, weights={"letters": 1.0, "sometimes": 0.25}), recorded(version)
    # The batch of steps 1 and 2, and the last 8 rows of each evaluation, which wrote the file of its step anew.
    expected = [*rows[:8], *rows[24:32], *rows[40:48]]
    steps = [("train", 1), ("eval", 3), ("eval", 4)] if version == "1.16.0" else [("train", 1), ("eval", 3)]
    assert [(it["mode"], it["step"]) for it in expected[::8]] == steps
    assert len(read.rollouts) == len(expected)
    for rollout, row in zip(read.rollouts, expected, strict=True):
        # Up to TRL 1.9 these are decoded ids: without special tokens, of which one is this tokenizer's unknown "0".
        prompt = json.dumps(row["messages"][:-1]).replace(*((" 0.", ".") if version == "0.29.1" else ("", "")))
        assert [*rollout.prompt, *rollout.completion] == [*json.loads(prompt), row["messages"][-1]]
        assert rollout.completion[0]["role"] == "assistant"
        assert (rollout.mode, rollout.step, rollout.generation) == (row["mode"], row["step"], row["generation"])
        assert rollout.rewards == {name: value and pytest.approx(value) for name, value in row["rewards"].items()}
        assert rollout.weights == row["reward_weights"]
        assert rollout.reward is None, "the weighted sum is the reward"
        assert rollout.advantage == pytest.approx(row["advantage"])
        assert rollout.tags == (("mode-unknown",) if row["mode"] == "eval" else ())
        size = {"size": len(rollout.completion[0]["content"])} if version == "1.16.0" else {}
        assert rollout.metrics == size
        assert rollout.metadata == ({"note": f"{size['size']} characters"} if size else {})
    same = {(a["group"], b.group) for a, b in zip(expected, read.rollouts, strict=True)}
    assert len(same) == len({it["group"] for it in expected}) == 2 * len(steps)
    assert len({it.key for it in read.rollouts}) == 8 * len(steps)


def test_a_batch_that_serves_two_steps_is_read_once() -> None:
    folder = FIXTURES / "1.16.0" / "completions"
    files = [pd.read_parquet(folder / f"completions_0000{step}.parquet") for step in (1, 2)]
    assert files[0].drop(columns="step").equals(files[1].drop(columns="step"))
    assert {it.step for it in Read(FIXTURES / "1.16.0").rollouts} == {1, 3, 4}


def test_the_trainers_log_is_in_its_state() -> None:
    read = Read(FIXTURES / "1.16.0")
    state = json.loads((FIXTURES / "1.16.0" / "checkpoint-4" / "trainer_state.json").read_text())
    for entry in state["log_history"]:
        assert {name: read.scalars[entry["step"]][name] for name in entry if name != "step"}.items() <= entry.items()
    assert {"loss", "entropy", "grad_norm", "rewards/letters/mean", "eval_reward"} <= set(read.scalars[3])
    run = read.reader.describe(None)
    assert (run.num_generations, run.max_steps, run.config["logging_steps"], run.config["eval_steps"]) == (4, 4, 1, 3)
    lacks = "errors, groups, log-probs, policy versions, reward weights, stop reasons, task names, token ids"
    assert run.lacks == ["a reward that is NaN (it is stored as None)", *lacks.split(", ")]


@pytest.mark.parametrize(("logged", "is_known"), [(1.5, True), (1.1, False)])
def test_weights_are_1_if_the_log_of_the_reward_agrees(tmp_path: Path, logged: float, *, is_known: bool) -> None:
    rows = [{"prompt": "a", "completion": str(i), "f": 1.0, "g": 0.5} for i in range(2)]
    completions(tmp_path / "completions", 1, rows)
    log = [{"step": 1, "rewards/f/mean": 1.0, "rewards/g/mean": 0.5, "reward": logged}]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"global_step": 1, "log_history": log}))
    reader = Read(tmp_path).reader
    assert (Lack.WEIGHTS not in reader.describe(None).lacks) == is_known


def test_without_the_state_columns_of_floats_are_rewards_and_the_mode_is_unknown(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "1.16.0" / "completions", tmp_path / "out")
    read = Read(tmp_path / "out")
    assert set(read.rollouts[0].rewards or {}) == {"letters", "sometimes"}
    assert {it.mode for it in read.rollouts} == {"train"}
    assert {it.tags for it in read.rollouts} == {("mode-unknown",)}
    assert "the names of the reward functions (all columns of floats were taken)" in read.reader.describe(None).lacks
    named = Read(tmp_path / "out", rewards=("letters", "size"))
    assert set(named.rollouts[1].rewards or {}) == {"letters", "size"}
    assert named.rollouts[1].metrics == {"sometimes": 0.5}


def completions(folder: Path, step: int, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(exist_ok=True)
    frame = pd.DataFrame([{"step": step, "advantage": 0.0, **row} for row in rows])
    frame.to_parquet(folder / f"completions_{step:05d}.parquet")


def test_a_group_is_a_run_of_equal_prompts_cut_where_two_stand_beside_each_other(tmp_path: Path) -> None:
    prompts = ["a"] * 4 + ["b"] * 8 + ["c"] * 4 + ["d"] * 3
    completions(tmp_path, 10, [{"prompt": it, "completion": str(i), "f": float(i)} for i, it in enumerate(prompts)])
    completions(tmp_path, 20, [{"prompt": "e", "completion": "x", "f": None}])
    read = Read(tmp_path)
    groups: dict[str, list[int]] = {}
    for it in read.rollouts:
        groups.setdefault(it.group or "", []).append(it.generation or 0)
    assert list(groups.values()) == [[0, 1, 2, 3]] * 4 + [[0, 1, 2], [0]]
    assert read.rollouts[0].prompt == [{"role": "user", "content": "a"}]
    assert read.rollouts[0].completion == [{"role": "assistant", "content": "0"}]
    assert read.rollouts[0].rewards == {"f": 0.0}
    assert "the rollouts between two logs of the trainer (this is a sample)" in read.reader.describe(None).lacks


def graded(rewards: Sequence[float], size: int, scale: str, prompt: Any = "q") -> list[dict[str, Any]]:
    """Rows of one prompt, with the advantages that TRL gives the groups of `size` of them."""
    groups = np.array(rewards, float).reshape(-1, size)
    apart = groups - groups.mean(axis=1, keepdims=True)
    deviations = {"group": groups.std(axis=1, ddof=1, keepdims=True), "batch": groups.std(ddof=1), "none": 1.0}
    advantages = apart / (deviations[scale] + (1e-4 if scale != "none" else 0.0))
    return [
        {"prompt": prompt, "completion": str(i), "f": it, "advantage": a}
        for i, (it, a) in enumerate(zip(rewards, advantages.ravel(), strict=True))
    ]


def sizes(read: Read) -> list[int]:
    return sorted(Counter(it.group for it in read.rollouts if it.group).values())


@pytest.mark.parametrize("prompt", ["q", [{"role": "user", "content": "q"}]])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize(
    ("size", "rewards"), [(4, "1000 1110 0000 1010"), (2, "10 01 00 11 01 10 01"), (8, "10011001 11111110 00000001")]
)
def test_one_prompt_in_all_groups_is_cut_by_their_advantages(
    tmp_path: Path, size: int, rewards: str, scale: str, prompt: Any
) -> None:
    values = [float(it) for it in 3 * rewards.replace(" ", "")]
    completions(tmp_path, 1, graded(values, size, scale, prompt))
    read = Read(tmp_path)
    assert sizes(read) == [size] * (len(values) // size)
    assert read.rollouts[size].generation == 0
    assert read.reader.describe(None).num_generations == size


@pytest.mark.parametrize(("scale", "groups"), [("group", [4] * 3), ("none", [])])
def test_few_groups_whose_sums_are_0_tell_no_size(tmp_path: Path, scale: str, groups: list[int]) -> None:
    completions(tmp_path, 1, graded([1.0, 0.0, 1.0, 0.0] * 3, 4, scale))
    read = Read(tmp_path)
    assert sizes(read) == groups, "they are 0 for pairs, too"


def test_one_of_many_files_tells_the_size_of_a_group(tmp_path: Path) -> None:
    for step in range(1, 53):
        rows = graded([float(step == 1), *[0.0] * 7], 4, "group")
        completions(tmp_path, step, [{**row, "completion": f"{step} {i}"} for i, row in enumerate(rows)])
    assert sizes(Read(tmp_path)) == [4] * 104


def test_all_files_tell_the_size_of_a_group(tmp_path: Path) -> None:
    completions(tmp_path, 1, graded([0.0] * 16, 4, "group"))
    completions(tmp_path, 2, graded([1.0, 0, 0, 0, *[0.0] * 12], 4, "group"))
    assert sizes(Read(tmp_path)) == [4] * 8
    completions(tmp_path, 2, [{"prompt": it, "completion": it, "f": 0.0} for it in "aaaabbbbccccdddd"])
    assert sizes(Read(tmp_path)) == [4] * 8, "by the prompts of the second one"


@pytest.mark.parametrize("advantage", [0.0, None, math.nan])
@pytest.mark.parametrize("steps", [[1], [1, 2]])
def test_groups_that_cannot_be_told_are_not_recorded(tmp_path: Path, steps: list[int], advantage: float | None) -> None:
    for step in steps:
        rows = [{"prompt": "q", "completion": f"{step} {i}", "f": 1.0, "advantage": advantage} for i in range(16)]
        completions(tmp_path, step, rows)
    read = Read(tmp_path)
    assert {it.group for it in read.rollouts} == {None}
    described = read.reader.describe(None)
    assert (described.num_generations, Lack.GROUPS in described.lacks) == (None, True)
    frame = stored(tmp_path, tmp_path / "a.db")
    assert frame.groupby("group").size().eq(1).all()
    report = diagnose("latest", db=tmp_path / "a.db")
    assert not [it.id for it in report.cards if "group" in it.id]


def test_rows_that_an_evaluation_left_in_the_file_are_read_once(tmp_path: Path) -> None:
    rows = [{"prompt": it, "completion": it, "f": 1.0} for it in ["a", "a", "b", "b", "c", "c"]]
    completions(tmp_path, 1, rows[:4])
    completions(tmp_path, 2, rows[2:])
    assert [(it.step, it.prompt[0]["content"]) for it in Read(tmp_path).rollouts] == [
        (1, "a"), (1, "a"), (1, "b"), (1, "b"), (2, "c"), (2, "c"),
    ]  # fmt: skip


def stored(folder: Path, db: Path) -> pd.DataFrame:
    return load_run(import_run(folder, db=db).runs[0], db=db)


@pytest.mark.parametrize("sampled", [(1, 2, 3, 4), (1, 3)])
def test_a_batch_that_the_log_counts_is_stored_however_alike_it_is(tmp_path: Path, sampled: Sequence[int]) -> None:
    """Of a training that has collapsed, and of one in which each batch serves two steps."""
    for step in range(1, 5):
        completions(tmp_path / "completions", step, [{"prompt": "q", "completion": "a", "f": 0.0}] * 4)
    log = [{"step": step, **({"reward": 0.0, "rewards/f/mean": 0.0} if step in sampled else {})} for step in range(5)]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"global_step": 4, "log_history": log}))
    rows = stored(tmp_path, tmp_path / "a.db")
    assert rows.groupby("step").size().to_dict() == dict.fromkeys(sampled, 4)


def test_a_batch_of_which_nothing_tells_that_it_is_new_is_named(tmp_path: Path) -> None:
    for step in (1, 2):
        completions(tmp_path / "completions", step, [{"prompt": "q", "completion": "a", "f": 0.0}] * 4)
    found = import_run(tmp_path, db=tmp_path / "a.db")
    assert (found.rollouts, [it.file for it in found.bad]) == (4, ["completions/completions_00002.parquet"])


def test_a_batch_is_stored_when_a_checkpoint_tells_that_it_is_new(tmp_path: Path) -> None:
    db, log = tmp_path / "a.db", [{"step": it, "rewards/f/mean": 0.0, "reward": 0.0} for it in (1, 2, 3)]
    with closing(Importer([tmp_path], ImportOptions(), db=db, is_followed=True)) as importer:
        for step in (1, 2, 3):
            completions(tmp_path / "completions", step, [{"prompt": "q", "completion": "a", "f": 0.0}] * 4)
            if step == 3:
                (tmp_path / "trainer_state.json").write_text(json.dumps({"global_step": 3, "log_history": log}))
            importer.take()
    assert load_run("latest", db=db).groupby("step").size().to_dict() == {1: 4, 2: 4, 3: 4}
    assert len(stored(tmp_path, tmp_path / "b.db")) == 12


def test_a_state_that_is_being_written_is_read_with_the_next_file(tmp_path: Path) -> None:
    state, db = tmp_path / "checkpoint-1" / "trainer_state.json", tmp_path / "a.db"
    state.parent.mkdir()
    log = [{"step": it, "rewards/f/mean": 0.0, "reward": 0.0} for it in (1, 2)]
    with closing(Importer([tmp_path], ImportOptions(), db=db, is_followed=True)) as importer:
        whole = json.dumps({"global_step": 2, "log_history": log})
        for step, text in enumerate(["{}", '{"global_step": 1, "log_h', whole], 1):
            state.write_text(text)
            rows = [{"prompt": "q", "completion": f"{step} {i}", "f": 0.0, "other": 1.0} for i in range(4)]
            completions(tmp_path / "completions", step, rows)
            importer.take()
    assert (importer.result.new, importer.result.bad_count, len(load_scalars("latest", db))) == (12, 0, 2)
    followed = load_run("latest", db=db)
    assert [set(it) for it in followed.rewards] == [{"f"}] * 12, "files before it are read again, with its names"
    assert followed.tags.tolist() == stored(tmp_path, tmp_path / "b.db").tags.tolist()


def test_keys_that_arrow_made_null_are_left_out_and_nan_is_none(tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": {"x": 1}}}
    other = {**call, "function": {"name": "look", "arguments": {"y": 2}}}
    chat = [{"role": "assistant", "tool_calls": [call, other]}, {"role": "tool", "name": "look", "content": "7"}]
    row = {"prompt": [{"role": "user", "content": "?"}], "completion": chat}
    infinite = {"prompt": [{"role": "user", "content": "!"}], "completion": chat, "f": float("inf"), "g": 1.0}
    completions(tmp_path, 1, [{**row, "f": float("nan"), "g": 0.0}, infinite])
    first, second = Read(tmp_path).rollouts
    assert list(first.completion) == chat
    assert (first.rewards, second.rewards) == ({"f": None, "g": 0.0}, {"f": float("inf"), "g": 1.0})


def test_what_a_distillation_writes_has_no_rewards(tmp_path: Path) -> None:
    frame = pd.DataFrame([{"step": 3, "prompt": "a", "completion": "b"}])
    frame.to_parquet(tmp_path / "completions_00003.parquet")
    (only,) = Read(tmp_path).rollouts
    assert (only.step, only.rewards, only.advantage) == (3, None, None)
    frame.to_parquet(tmp_path / "others.parquet")
    assert not TrlReader.recognizes(Head(tmp_path / "others.parquet"))


def test_a_fraction_is_no_step(tmp_path: Path) -> None:
    frame = pd.DataFrame([{"step": it, "prompt": "a", "completion": "b"} for it in (1.5, 2.0)])
    frame.to_parquet(tmp_path / "completions_00001.parquet")
    found = import_run(tmp_path, db=tmp_path / "a.db")
    assert (found.rollouts, found.bad[0].reason) == (1, "its step 1.5 is not a whole number from 0 to 2,147,483,647")


def test_text_is_cut_at_the_roles_that_decoding_left(tmp_path: Path) -> None:
    rendered = "system\nBe brief.\nuser\nHi\nthere\nassistant\nYes?\nuser\n2 + 3?\nassistant\n<think>\n"
    others = ["user\nHi\n", "Say:\nuser\nHi\nassistant\n", "user\nHi\nuser\n\nassistant\n", "assistant\n"]
    completions(tmp_path, 1, [{"prompt": it, "completion": "5", "f": 1.0} for it in [rendered, *others]])
    first, *raw = Read(tmp_path).rollouts
    assert [(it["role"], it["content"]) for it in first.prompt] == [
        ("system", "Be brief."), ("user", "Hi\nthere"), ("assistant", "Yes?"), ("user", "2 + 3?"),
    ]  # fmt: skip
    assert first.completion == [{"role": "assistant", "content": "<think>\n5"}]
    assert [list(it.prompt) for it in raw] == [[{"role": "user", "content": text}] for text in others]


# TRL logs its table with `wandb.Table(dataframe=...)`; W&B stores columns and rows.


def test_trl_tables_of_wandb_are_rollouts(tmp_path: Path) -> None:
    # Whether a column is of floats is seen in all of its rows, in whatever order.
    rows = [["10", "q", "a", 1, math.nan, 3, "x", 0.7], ["10", "q", "b", 0.5, None, None, 1.5, -0.7]]
    rows += [["10", "q", "", "NaN", "None", "", "", 0.0]]
    columns = ["step", "prompt", "completion", "acc", "format", "length", "note", "advantage"]
    table = {"columns": columns, "data": rows, "nrows": 2}
    file = tmp_path / "media/table/completions_10_abc.table.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(table))
    first, second, third = (read := Read(tmp_path)).rollouts
    assert third.rewards == {"acc": None, "format": None}
    assert (read.reader.name, first.step, first.mode, first.advantage) == ("trl", 10, "train", 0.7)
    assert (first.rewards, second.rewards) == ({"acc": 1.0, "format": None}, {"acc": 0.5, "format": None})
    assert (first.metrics, second.metrics) == ({"length": 3}, {"note": 1.5})
    assert first.prompt == [{"role": "user", "content": "q"}]
    assert second.completion == [{"role": "assistant", "content": "b"}]
    assert first.group == second.group
    file.rename(tmp_path / "others.json")
    assert Read(tmp_path).rollouts == [], "other tables may mean anything"


def test_a_chat_in_a_table_of_wandb_and_the_older_columns(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "q"}]
    row = ["1", chat, [{"role": "assistant", "content": "a"}], 0.5]
    table = {"columns": ["step", "prompt", "completion", "reward"], "data": [row]}
    (tmp_path / "completions_1_x.table.json").write_text(json.dumps(table))
    (found,) = Read(tmp_path).rollouts
    assert (found.prompt, found.step, found.rewards) == (chat, 1, {"reward": 0.5})
