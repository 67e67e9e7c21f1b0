"""Any JSONL or Parquet file is imported by a mapping, which is checked and can be suggested."""

import json
import math
import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logs_ui.recorder import LogsUIError, import_run, load_run
from logs_ui.recorder.importing.formats.mapped import MappedReader, suggestion
from logs_ui.recorder.importing.reader import ImportedRollout, ImportOptions
from logs_ui.recorder.importing.source_files import Head, Place, RecordError
from logs_ui.recorder.vocabulary import Lack, Mode, Status, StopReason
from tests.recorder.importing.flat_reading import token_lists, write_lines

_FIRST = r"""{
    "question": "2 + 3?\nThink.", "response": "5", "step": 1, "uid": "u1", "split": "validation", "advantage": 0.5,
    "extra": {"reward": 1.0, "format_score": 0.5, "who": "me"}, "finish_reason": "eos", "prompt_ids": [7],
    "response_ids": [1, 2], "logprobs": [-0.1, null], "loss_mask": [1, 0], "len": 7, "timestamp": 1790000000,
    "bad\u0001name": 1, "meta": {"a b": {"c": "kept"}}, "latency": 2.5
}"""
_SECOND = r"""{
    "question": "2 + 3?\nThink.", "response": "6", "step": 1, "uid": "u1", "split": "train", "advantage": -0.5,
    "extra": {"reward": NaN, "format_score": null}, "finish_reason": "strange", "error": "late", "latency": null
}"""
_ROWS: list[dict[str, Any]] = [json.loads(_FIRST), json.loads(_SECOND)]


def _file(folder: Path, rows: list[dict[str, Any]] | None = None) -> Path:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows or _ROWS))
    return file


def _reader(file: Path, mapping: str, **options: Any) -> MappedReader:
    path = file.with_name("mapping.toml")
    path.write_text(mapping)
    return MappedReader(file, ImportOptions(mapping=path, **options))


def _read(file: Path, mapping: str, **options: Any) -> list[ImportedRollout]:
    reader = _reader(file, mapping, **options)
    return [
        it
        for number, record in reader.records(file)
        for it in reader.rollouts(record, Place(file, file.name, "id", number))
    ]


def test_a_suggestion_works_at_once(tmp_path: Path) -> None:
    file = _file(tmp_path)
    text = suggestion(file)
    assert "prompt = \"question\"  # '2 + 3?\\nThink.'\n" in text
    given = tomllib.loads(text)
    assert given["rewards"] == {"format_score": "extra.format_score"}
    first, second = _read(file, text)
    assert given["error"] == "error?", "the first record has none"
    assert first.prompt == [{"role": "user", "content": "2 + 3?\nThink."}]
    assert first.completion == [{"role": "assistant", "content": "5"}]
    assert (first.step, first.group, first.mode, second.mode) == (1, "u1", Mode.EVAL, Mode.TRAIN)
    assert (first.reward, first.rewards, first.advantage) == (1.0, {"format_score": 0.5, "reward": 1.0}, 0.5)
    assert math.isnan(second.reward or 0.0)
    assert (second.error, second.seconds, first.seconds) == ("late", None, 2.5)
    assert first.weights == {"format_score": 0.0, "reward": 1.0}, "of a part beside a total no weight is known"
    assert (first.stop_reason, second.stop_reason) == (StopReason.STOP, None)
    assert second.metadata["finish_reason"] == "strange"
    prompt, completion, mask, logprobs = token_lists(first.tokens)
    assert (prompt, completion, mask) == ([7], [1, 2], [1, 0])
    assert logprobs == [pytest.approx(-0.1, rel=1e-3), None]
    assert (first.created, first.metrics["len"]) == (1_790_000_000_000_000, 7)
    assert first.metadata["meta"] == {"a b": {"c": "kept"}}
    assert first.metadata["extra"]["who"] == "me"


def test_every_field_can_be_named(tmp_path: Path) -> None:
    row = json.loads("""{
        "talk": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "n": "3", "id": 7,
        "g": ["a", 1], "i": 2, "p": 4, "t": "task-1", "e": "env", "m": "tiny", "r": "run-1", "s": "failed",
        "why": "MAX_TOKENS", "err": "x", "rew": "Infinity", "adv": -1, "pt": 5, "ct": 6, "at": "2026-09-21T14:13:20",
        "sec": 1, "a": {"b": {"c": 0.5}}, "dotted.name": 2
    }""")
    mapping = """
        messages = "talk"
        step = "n"
        key = "id"
        group = "g"
        generation = "i"
        policy_step = "p"
        task = "t"
        eval_name = "e"
        model = "m"
        run = "r"
        status = "s"
        stop_reason = "why"
        error = "err"
        reward = "rew"
        advantage = "adv"
        prompt_tokens = "pt"
        completion_tokens = "ct"
        created = "at"
        seconds = "sec"
        [rewards]
        deep = "a.b.c"
        [weights]
        deep = 2
        [constants]
        mode = "train"
    """
    (found,) = _read(_file(tmp_path, [row]), mapping)
    assert (found.prompt[0]["content"], found.completion[0]["content"], found.step, found.key) == ("q", "a", 3, "7")
    assert (found.group, found.generation, found.policy_step, found.task) == (found.group, 2, 4, "task-1")
    assert len(found.group or "") == 16  # of a value that is no name
    assert (found.eval_name, found.model, found.run, found.mode) == ("env", "tiny", "run-1", Mode.TRAIN)
    assert (found.status, found.stop_reason, found.error) == (Status.ERROR, StopReason.LENGTH, "x")
    assert (found.reward, found.advantage, found.prompt_tokens, found.completion_tokens) == (math.inf, -1.0, 5, 6)
    assert (found.created, found.seconds) == (1_790_000_000_000_000, 1.0)
    assert (found.rewards, found.weights, found.metrics) == ({"deep": 0.5}, {"deep": 2.0}, {"dotted.name": 2})


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ('promt = "question"', "mapping.toml: unknown field 'promt': did you mean 'prompt'?"),
        ('[constants]\nmodus = "train"', "mapping.toml: unknown field 'modus': did you mean 'mode'?"),
        ('[constants]\nmode = "bananas"', "[constants] mode = 'bananas' is not one of its words: train, eval."),
        ('prompt = "qestion"', "prompt = 'qestion', but the first record has no such column: did you mean 'question'?"),
        ('reward = "extra.rewrd"', "the first record has no such column: did you mean 'extra.reward'?"),
        ('reward = "response_ids"', "does not fit the first record: reward must be a number, and response_ids has "),
        ('[rewards]\na = "question"', "does not fit the first record: reward must be a number, and question has '"),
        ('completion_ids = "question"', "completion_ids must be a list of numbers, and question has "),
        ("reward = 1", "mapping.toml: reward must name a column in quotes, not 1."),
        ("reward = ", "mapping.toml cannot be read as a mapping: "),
        ('[weights]\na = "much"', "mapping.toml cannot be read as a mapping: "),
        ('rewards = "a"', "mapping.toml cannot be read as a mapping: "),
        ('prompt = "question"', "mapping.toml names no column with the answer: add one of messages, completion, "),
    ],
)
def test_a_wrong_mapping_is_told_in_one_line(tmp_path: Path, mapping: str, message: str) -> None:
    with pytest.raises(LogsUIError) as caught:
        _reader(_file(tmp_path), mapping)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_record_that_does_not_fit_costs_itself(tmp_path: Path) -> None:
    rows: Any = [{"p": "a", "r": 1}, {"p": "b", "r": "high"}, {"p": 3}, {"p": "c"}, {"p": "\ud800", "r": None}]
    file = _file(tmp_path, rows)
    reader = _reader(file, 'prompt = "p"\ncompletion = "c?"\nreward = "r"')
    reasons = []
    for number, record in reader.records(file):
        try:
            list(reader.rollouts(record, Place(file, file.name, "id", number)))
        except RecordError as error:
            reasons.append((number, str(error)))
    assert reasons == [
        (2, "reward must be a number, and r has 'high'"),
        (3, "prompt must be messages or text, and p has 3"),
    ]
    with pytest.raises(RecordError):
        list(reader.rollouts([], Place(file, file.name, "id", 1)))
    assert not MappedReader.recognizes(Head(file))
    with pytest.raises(LogsUIError, match="--map"):
        MappedReader(file, ImportOptions())


def test_a_suggestion_says_first_that_the_answer_is_missing(tmp_path: Path) -> None:
    first, *_, missing, unfit = suggestion(_file(tmp_path, [{"prompt": "q", "step": "soon"}])).splitlines()
    assert first == '# No column with the answer was found. Name one: completion = "..."'
    assert ("step" in missing.split(", "), unfit) == (
        False, "# Columns have the names, but other values or another use: step",
    )  # fmt: skip


def test_a_suggestion_knows_messages_and_hostile_names(tmp_path: Path) -> None:
    said = json.dumps([{"role": "user", "content": "x" * 300}, {"role": "assistant", "content": "é\u202e"}])
    hostile = {'a"b': 1, "bad\nname": 2, "\ud800": 3}
    file = _file(tmp_path, [{"conversation": said, "text": "t", "my_reward": 0.5, "scores": {"x y": 1}, **hostile}])
    given = tomllib.loads(suggestion(file))
    assert given["messages"] == "conversation"
    assert given["rewards"] == {"my_reward": "my_reward", "x y": "scores.x y"}
    assert given["constants"] == {"mode": "train"}
    (found,) = _read(file, suggestion(file))
    assert len(found.completion) == 1
    empty = tmp_path / "empty.jsonl"
    empty.write_text("[1]\n")
    with pytest.raises(LogsUIError, match="no records with columns"):
        suggestion(empty)


def test_what_is_not_mapped_is_lacking(tmp_path: Path) -> None:
    bare = 'prompt = "question"\ncompletion = "response"\n'
    parts = '[rewards]\na = "extra.reward"\nb = "extra.format_score"\n'
    lacks = _reader(_file(tmp_path), bare + parts).describe(None).lacks
    assert set(lacks) == {*Lack, "steps", "token ids", "log-probs", "advantages"}
    named = 'error = "error?"\nstop_reason = "finish_reason"\npolicy_step = "step"\ngroup = "uid"\ntask = "question"\n'
    named += 'step = "step"\ncompletion_ids = "response_ids"\nlogprobs = "logprobs"\nadvantage = "advantage"\n'
    assert not _reader(_file(tmp_path), bare + named + parts + "[weights]\na = 0.5").describe(None).lacks
    assert "rewards" in _reader(_file(tmp_path), bare).describe(None).lacks
    assert Lack.GROUPS in _reader(_file(tmp_path), bare + 'group = "question"').describe(None).lacks


def test_without_a_group_one_prompt_of_a_step_is_a_group(tmp_path: Path) -> None:
    common = {"correct?": 1.0}
    rows = [{"q": f"q{i // 4}", "answer": {"text": f"a{i}", "tokens": 3}, "it": i // 8, **common} for i in range(16)]
    given = tomllib.loads(suggestion(_file(tmp_path, rows)))
    assert given == {
        "completion": "answer.text", "completion_tokens": "answer.tokens", "step": "it", "constants": {"mode": "train"},
    }  # fmt: skip
    (tmp_path / "m.toml").write_text('prompt = "q"\ncompletion = "answer.text"\nstep = "it"\nreward = "correct?"')
    found = import_run(tmp_path / "rows.jsonl", mapping=tmp_path / "m.toml", db=tmp_path / "r.db")
    stored = load_run(found.runs[0], db=tmp_path / "r.db")
    assert stored.groupby(["step", "group"]).size().to_list() == [4] * 4
    assert set(stored.reward) == {1.0}, "a column may be called so"


def test_parquet_and_rewards_of_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([{"prompt": "q", "answer": "a", "acc": 1.0, "fmt": 0.5}] * 3), file)
    assert 'group = "prompt"' in suggestion(file)
    (tmp_path / "m.toml").write_text('prompt = "prompt"\ncompletion = "answer"\ngroup = "prompt"')
    options: dict[str, Any] = {"rewards": ["acc", "fmt"], "weights": {"fmt": 2}}
    found = import_run(file, mapping=tmp_path / "m.toml", db=tmp_path / "r.db", **options)
    assert (found.rollouts, found.formats) == (3, {"map": 1})
    rows = load_run(found.runs[0], db=tmp_path / "r.db")
    assert rows["reward"].tolist() == [2.0] * 3
    assert rows["generation"].tolist() == [0, 1, 2]
    (tmp_path / "m.toml").write_text('question = "prompt"')
    with pytest.raises(LogsUIError, match="unknown field"):
        import_run(file, mapping=tmp_path / "m.toml", db=tmp_path / "r.db")


def _guess(folder: Path, *rows: dict[str, Any]) -> dict[str, Any]:
    return tomllib.loads(suggestion(_file(folder, list(rows))))


@pytest.mark.parametrize("name", ["sample_id", "id", "metadata.uuid", "trajectory_id"])
def test_a_column_that_repeats_is_no_key(tmp_path: Path, name: str) -> None:
    outer, _, inner = name.partition(".")
    rows = [{"prompt": "q", "answer": str(i), outer: {inner: i % 4} if inner else i % 4} for i in range(48)]
    assert "key" not in _guess(tmp_path, *rows)
    (tmp_path / "m.toml").write_text(suggestion(tmp_path / "rows.jsonl"))
    found = import_run(tmp_path / "rows.jsonl", mapping=tmp_path / "m.toml", db=tmp_path / "a.db")
    assert len(load_run(found.runs[0], db=tmp_path / "a.db")) == 48
    unique = [{"prompt": "q", "answer": "a", outer: {inner: i} if inner else i} for i in range(3)]
    assert _guess(tmp_path, *unique)["key"] == name


def test_a_column_that_repeats_after_the_first_records_is_no_key(tmp_path: Path) -> None:
    rows = [{"prompt": f"q{i}", "answer": "a", "uid": i % 900, "rollout_id": None} for i in range(1_000)]
    given = _guess(tmp_path, *rows)
    assert (given.get("key"), given["group"]) == (None, "uid")


def test_two_rows_with_one_key_are_said(tmp_path: Path) -> None:
    for name, keys in (("a", "xyx"), ("b", "zx")):
        write_lines(tmp_path / "rows" / f"{name}.jsonl", *({"q": "q", "a": str(i), "k": k} for i, k in enumerate(keys)))
    (tmp_path / "m.toml").write_text('prompt = "q"\ncompletion = "a"\nkey = "k"')
    found = import_run(tmp_path / "rows", mapping=tmp_path / "m.toml", db=tmp_path / "a.db")
    assert (found.rollouts, found.replaced, found.bad_count) == (3, 2, 0)
    (note,) = found.notes
    said = "a.jsonl, record 3: it has the key 'x' of record 1 of a.jsonl, too, and replaces it. Map another"
    assert note.startswith(said)
    (tmp_path / "copies/there").mkdir(parents=True)
    for name in ("here.jsonl", "there/here.jsonl"):
        (tmp_path / "copies" / name).write_text('{"q": "q", "a": "0", "k": "x"}\n')
    copies = import_run(tmp_path / "copies", mapping=tmp_path / "m.toml", db=tmp_path / "a.db")
    assert (copies.rollouts, copies.replaced) == (1, 0)
    with pytest.raises(LogsUIError, match=r"a\.jsonl, record 3: .+ Without --strict the later one is taken"):
        import_run(tmp_path / "rows", mapping=tmp_path / "m.toml", strict=True, db=tmp_path / "b.db")


def test_nested_columns_are_suggested(tmp_path: Path) -> None:
    row = {
        "question": {"text": "2 + 3?", "id": "q1"}, "answer": {"content": "5"}, "metadata": {"step": 3},
        "scores": [{"name": "acc", "value": 1.0}, {"name": "my_score", "value": 0.5}], "more": '{"reward": 0.75}',
    }  # fmt: skip
    given = _guess(tmp_path, row, row)
    assert (given["prompt"], given["completion"], given["step"]) == ("question.text", "answer.content", "metadata.step")
    assert (given["reward"], given["task"]) == ("more.reward", "question.id")
    assert given["rewards"] == {"acc": "scores.acc", "my_score": "scores.my_score"}
    first, _ = _read(_file(tmp_path, [row, row]), suggestion(tmp_path / "rows.jsonl"))
    assert (first.reward, first.rewards, first.step) == (0.75, {"acc": 1.0, "my_score": 0.5, "reward": 0.75}, 3)


def test_conversations_of_sharegpt_are_messages(tmp_path: Path) -> None:
    said = [("system", "s"), ("human", "q"), ("function_call", "{}"), ("observation", "5"), ("gpt", "a")]
    row = {"conversations": [{"from": name, "value": text} for name, text in said], "reward": 1}
    (found,) = _read(_file(tmp_path, [row]), suggestion(_file(tmp_path, [row])))
    roles = [it["role"] for it in [*found.prompt, *found.completion]]
    assert (roles, len(found.prompt)) == (["system", "user", "assistant", "tool", "assistant"], 2)
    assert found.completion[-1] == {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    "mapped", ['step = "step"\nadvantage = "adv"\n', 'mode = "split"\nstep = "step"\nadvantage = "adv"\n']
)
def test_what_has_a_step_and_an_advantage_is_training(tmp_path: Path, mapped: str) -> None:
    row = {"prompt": "q", "answer": "a", "step": 3, "adv": 0.5, "split": "gsm8k"}
    (found,) = _read(_file(tmp_path, [row]), 'prompt = "prompt"\ncompletion = "answer"\n' + mapped)
    assert found.mode == Mode.TRAIN
    given = _guess(tmp_path, {**row, "advantage": 0.5})
    assert (given.get("mode"), given["constants"]) == (None, {"mode": "train"}), "gsm8k is no mode"


@pytest.mark.parametrize("row", [{"group": 0, "total_reward": 0.5}, {"metrics": {"my_score": 1.0}, "step": 2}])
def test_rows_without_text_are_taken(tmp_path: Path, row: dict[str, Any]) -> None:
    (tmp_path / "m.toml").write_text(suggestion(_file(tmp_path, [row, row])))
    found = import_run(tmp_path / "rows.jsonl", mapping=tmp_path / "m.toml", db=tmp_path / "a.db")
    rows = load_run(found.runs[0], db=tmp_path / "a.db")
    assert rows.reward.tolist() == [row.get("total_reward", 1.0)] * 2
    assert rows.messages.tolist() == [[], []]
    reader = MappedReader(tmp_path / "rows.jsonl", ImportOptions(mapping=tmp_path / "m.toml"))
    assert "texts" in reader.describe(None).lacks


def test_a_column_that_comes_later_may_be_absent(tmp_path: Path) -> None:
    given = _guess(tmp_path, {"prompt": "q", "error": None}, {"prompt": "q", "completion": "a", "error": "late"})
    assert (given["completion"], given["error"]) == ("completion?", "error?")


@pytest.mark.parametrize(
    "content", ['["prompt"]\n["b"]\n', "{\n", '{"a":' * 3_000, "a,b\n1,2\n", "\x1f\x8b", "[]", "7\n8\n", ""]
)
@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "parquet"])
def test_a_suggestion_for_what_has_no_columns_is_one_line(tmp_path: Path, suffix: str, content: str) -> None:
    file = tmp_path / f"rows.{suffix}"
    file.write_text(content, "latin-1")
    with pytest.raises(LogsUIError) as caught:
        suggestion(file)
    assert "\n" not in str(caught.value)


def test_what_ended_the_last_answer_is_said_of_it_and_a_fraction_is_no_step(tmp_path: Path) -> None:
    chat = [{"role": role, "content": "x"} for role in ("user", "assistant", "user", "assistant")]
    mapping = 'messages = "chat"\nfinish = "end"\nstep = "step"'
    file = _file(tmp_path, [{"chat": chat, "end": "length", "step": 1}])
    (found,) = _read(file, mapping)
    assert [it.finish for it in found.turns] == [None, "length"]
    with pytest.raises(LogsUIError, match=r"step must be a whole number, and step has 1\.5"):
        _reader(_file(tmp_path, [{"chat": chat, "end": "length", "step": 1.5}]), mapping)


def test_long_names_are_no_columns(tmp_path: Path) -> None:
    row = {"answer": "5", "k" * 1_000: {str(place): place for place in range(9)}}
    (found,) = _read(_file(tmp_path, [row]), 'completion = "answer"')
    assert found.completion[0]["content"] == "5"
