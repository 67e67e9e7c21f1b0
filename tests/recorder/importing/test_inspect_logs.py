"""Logs of Inspect AI, as its own version 0.3.285 wrote them (`fixtures/inspect/make_inspect.py`)."""

import json
import math
import shutil
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from logs_ui.recorder import load_run
from logs_ui.recorder.importing.formats import inspect_logs
from logs_ui.recorder.importing.formats.inspect_logs import InspectReader
from logs_ui.recorder.importing.import_run import import_run
from logs_ui.recorder.importing.reader import ImportedRollout, ImportOptions
from logs_ui.recorder.importing.source_files import Head, Place
from logs_ui.recorder.vocabulary import Mode, Status, StopReason

Samples = dict[tuple[str, int], ImportedRollout]
HERE = Path(__file__).parent / "fixtures" / "inspect"
FRAME = json.loads((HERE / "samples.json").read_text())


def _read(file: Path, options: ImportOptions | None = None) -> list[ImportedRollout]:
    reader = InspectReader(file, options or ImportOptions())
    assert reader.recognizes(Head(file))
    records = [(number, record) for number, record in reader.records(file)]
    return [one for n, record in records for one in reader.rollouts(record, Place(file, file.name, "id", n))]


def _samples(file: Path, options: ImportOptions | None = None) -> Samples:
    return {(str(one.task), one.generation or 0): one for one in _read(file, options)}


def _log(file: Path, change: Callable[[Any], Any]) -> Path:
    """Write a log of one sample that a change was made in."""
    log = json.loads((HERE / "log.json").read_text())
    change(log)
    file.write_text(json.dumps(log))
    return file


@pytest.fixture(scope="module")
def samples() -> Samples:
    return _samples(HERE / "log.eval")


@pytest.mark.parametrize("row", FRAME, ids=lambda row: f"{row['id']}-{row['epoch']}")
def test_samples_are_what_inspects_own_frame_shows(samples: Samples, row: dict[str, Any]) -> None:
    one = samples[row["id"], row["epoch"] - 1]
    assert (one.key, one.run) == (row["sample_id"], row["eval_id"])
    assert (one.metrics["total_time"], one.metrics["working_time"]) == (row["total_time"], row["working_time"])
    assert one.seconds == row["total_time"]
    assert one.metrics["turn_count"] == row["turn_count"]
    assert one.metrics.get("total_tokens", 0) == row["total_tokens"]
    assert len(one.prompt) + len(one.completion) == row["message_count"]
    assert (one.error or "") == row["error"]
    scores = {name: one.metadata.get("scores", {}).get(name, {}).get("value") for name in ("match", "judge")}
    written = {name: row[f"score_{name}"] for name in scores}
    assert {name: value if isinstance(value, str) else None for name, value in scores.items()} == written  # None is NaN
    assert one.metadata["target"] == (row["target"].split(",") if "," in row["target"] else row["target"])
    assert json.loads(row["model_usage"] or "{}") == one.metadata.get("model_usage", {})


def test_identity_and_times(samples: Samples) -> None:
    one = samples["tool", 1]
    assert (one.task, one.group, one.generation, one.mode, one.step) == ("tool", "tool", 1, Mode.EVAL, 0)
    assert (one.eval_name, one.model) == ("adding", "mockllm/model")
    assert one.created is not None
    assert one.returned is not None
    assert 0 < one.returned - one.created < 60_000_000
    assert one.sampling == {"temperature": 0.7, "max_tokens": 64}
    assert one.metadata["metadata"] == {"level": 1}
    assert (samples["think", 0].metadata["input"], samples["think", 0].metadata["choices"]) == (
        "Please think: 2 + 3?", ["4", "5"],
    )  # fmt: skip
    assert {"events", "events_data", "attachments", "messages"}.isdisjoint(one.metadata)


def test_messages_have_the_form_of_openai(samples: Samples) -> None:
    one = samples["tool", 0]
    assert [(m["role"], m["content"]) for m in one.prompt] == [
        ("system", "You add."), ("user", "Use the tool for 2 + 3."),
    ]  # fmt: skip
    called, answered, last = one.completion
    (call,) = called["tool_calls"]
    assert (call["type"], call["function"]) == ("function", {"name": "add", "arguments": {"x": 2, "y": 3}})
    assert (answered["role"], answered["tool_call_id"], answered["name"], answered["content"]) == (
        "tool", call["id"], "add", "5",
    )  # fmt: skip
    assert (last["content"], last["model"]) == ("The answer is 5.", "mockllm")


def test_reasoning_images_and_attachments(samples: Samples) -> None:
    (thought,) = samples["think", 0].completion
    assert thought["reasoning_content"] == "Two and three."
    assert [part["text"][:16] for part in thought["content"]] == ["The answer is 5."]
    text, image = samples["7", 0].prompt[1]["content"]
    assert text == {"type": "text", "text": "See."}
    assert image["image_url"]["url"].startswith("data:image/png;base64,iVBORw0KGgo")  # it was attachment://


def test_answers_of_the_input_are_no_turns(samples: Samples) -> None:
    one = samples["shown", 0]
    assert [m["role"] for m in one.prompt] == ["system", "user", "assistant", "user"]
    assert len(one.turns) == len(one.completion) == 1


def test_turns_have_what_events_say(samples: Samples) -> None:
    called, last = samples["tool-error", 0].turns
    assert (called.finish, called.tokens, called.limit, last.finish) == ("tool_calls", 11, 64, "stop")
    assert (called.seconds or 0) > 0
    assert (called.env_seconds or 0) > 0
    assert called.error == "permission: no sums with 99."
    assert (last.env_seconds, last.error) == (None, None)
    assert samples["cut", 0].turns[-1].finish == "length"
    assert samples["tool", 0].completion_tokens == 22
    assert samples["tool", 0].metrics["input_tokens_cache_read"] == 8


def test_answers_without_ids_have_what_events_say_in_their_order(samples: Samples, tmp_path: Path) -> None:
    def without_id(given: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in given.items() if name != "id" or "role" not in given}

    with zipfile.ZipFile(HERE / "deflate.eval") as log, zipfile.ZipFile(tmp_path / "old.eval", "w") as old:
        for name in log.namelist():
            old.writestr(name, json.dumps(json.loads(log.read(name), object_hook=without_id)))
    without = _samples(tmp_path / "old.eval")
    for name in ("tool-error", "tool", "cut"):
        assert without[name, 0].turns == samples[name, 0].turns


def test_scores_are_rewards_as_inspect_reads_them(samples: Samples) -> None:
    parts = {"parts.format": 0.5, "parts.length": 1.0}
    assert samples["tool", 0].rewards == {"match": 1.0, **parts, "judge": 0.5}  # P; a list is no reward
    assert samples["think", 0].rewards == {"match": 0.0, **parts, "judge": 1.0}  # yes
    assert samples["cut", 0].rewards == {"match": 1.0, **parts, "judge": 0.25}  # a text
    assert samples["7", 0].rewards == {"match": 1.0, **parts, "judge": 0.0}  # N
    unscored = samples["unscored/1", 0]
    assert unscored.rewards is not None
    assert math.isnan(unscored.rewards["judge"] or 0)
    assert unscored.tags == ["grader_failed"]
    assert samples["fails", 0].rewards is None
    assert samples["tool", 0].metadata["scores"]["vector"]["value"] == [1, 0]
    assert samples["tool", 0].metadata["scores"]["parts"]["explanation"] == "half of it"


@pytest.mark.parametrize(
    ("value", "reason", "reward"),
    [
        ("I", None, 0.0), ("c", None, "absent"), ("TRUE", None, 1.0), ("no", None, 0.0), (True, None, 1.0),
        (False, None, 0.0), (3, None, 3.0), ("maybe", None, "absent"), (None, None, "absent"), ([1], None, "absent"),
        (math.nan, "refusal", None), (math.nan, None, None), (math.nan, "scoring_failed", math.nan),
    ],
)  # fmt: skip
def test_values_of_scores(value: Any, reason: str | None, reward: Any, tmp_path: Path) -> None:
    score = {"s": {"value": value, "metadata": {"unscored_reason": reason}}}
    (one,) = _read(_log(tmp_path / "log.json", lambda log: log["samples"][0].update(scores=score)))
    assert (one.rewards or {}).get("s", "absent") == pytest.approx(reward, nan_ok=True)
    assert one.tags == [*([reason] if reason else []), "limit:turn"]


def test_named_rewards_are_rewards_and_others_are_metrics() -> None:
    options = ImportOptions(rewards=("match", "lacking"), weights={"match": 2.0})
    one = _samples(HERE / "log.eval", options)["tool", 0]
    assert (one.rewards, one.weights) == ({"match": 1.0, "lacking": None}, {"match": 2.0})
    assert one.metrics["judge"] == 0.5


def test_errors_end_a_sample(samples: Samples) -> None:
    one = samples["fails", 0]
    assert (one.status, one.stop_reason) == (Status.ERROR, None)  # of its error
    assert one.error == 'RuntimeError("the model\'s server is gone")'
    assert one.metadata["error"]["traceback"] == "Traceback"


@pytest.mark.parametrize(
    ("limit", "stop"),
    {"message": StopReason.TURN_LIMIT, "turn": StopReason.TURN_LIMIT, "token": StopReason.LENGTH}.items(),
)
def test_limits_are_stop_reasons(limit: str, stop: StopReason) -> None:
    (one,) = _read(HERE / f"{limit}_limit.eval")
    assert (one.status, one.stop_reason, one.error, one.tags) == (Status.OK, stop, None, [f"limit:{limit}"])
    assert one.metadata["limit"]["type"] == limit


@pytest.mark.parametrize(
    ("limit", "stop"),
    {"context": "length", "time": "timeout", "working": "timeout", "cost": "turn_limit", "operator": "aborted",
     "custom": "turn_limit"}.items(),
)  # fmt: skip
def test_other_limits_are_stop_reasons(limit: str, stop: str, tmp_path: Path) -> None:
    limited = {"type": limit, "limit": 1}
    (first, *_) = _read(_log(tmp_path / "log.json", lambda log: log["samples"][0].update(limit=limited)))
    assert first.stop_reason == stop
    assert first.error == (f"LimitExceededError: {limit} limit" if stop == "timeout" else None)


@pytest.mark.parametrize("form", ["json", "eval"])
def test_logs_before_february_2025_have_no_eval_id(tmp_path: Path, form: str) -> None:
    runs = []
    for created in ("2024-06-01T00:00:00", "2024-06-02T00:00:00"):
        log = json.loads((HERE / "log.json").read_text())
        log["eval"] = {name: it for name, it in log["eval"].items() if name != "eval_id"} | {"created": created}
        samples = [{**it, "score": it["scores"]["match"]} for it in log.pop("samples")]
        samples = [{name: it for name, it in one.items() if name not in ("uuid", "scores")} for one in samples]
        file = tmp_path / f"{created[:10]}.{form}"
        if form == "json":
            file.write_text(json.dumps({**log, "samples": samples}))
        else:
            with zipfile.ZipFile(file, "w") as made:
                made.writestr("header.json", json.dumps(log))
                for one in samples:
                    made.writestr(f"samples/{one['id']}_epoch_{one['epoch']}.json", json.dumps(one))
        found = import_run(file, db=tmp_path / "runs.db")
        assert (found.rollouts, found.bad) == (len(samples), [])
        runs += found.runs
    assert len({*runs}) == 2
    assert load_run(runs[0], db=tmp_path / "runs.db").rewards[0] == {"score": 0.0}


def test_several_scores_are_summed_when_asked(tmp_path: Path) -> None:
    for options in ({"rewards": ["match", "judge"]}, {"weights": {"match": 1.0, "judge": 1.0}}):
        assert import_run(HERE / "log.json", db=tmp_path / "runs.db", **options).notes == []


@pytest.mark.parametrize(
    ("header", "reward"),
    [
        (
            {"eval": {"scorers": [{"name": "b", "metrics": []}, {"name": "match", "metrics": [1]}, {"name": "b"}]}},
            [0.5],
        ),
        ({"results": {"scores": [{"name": "key", "scorer": "match"}, {"name": "b"}]}}, [0.5]),
        ({"eval": {"scorers": [{"name": "judge"}, {"name": "match"}]}}, [0.25, 1.0]),
        ({}, [0.25, 0.5]),
    ],
)
def test_the_reward_is_the_headers_first_score_in_whatever_order_samples_come(
    tmp_path: Path, header: dict[str, Any], reward: list[float]
) -> None:
    log = json.loads((HERE / "log.json").read_text())
    log["eval"] = {name: it for name, it in log["eval"].items() if name != "scorers"} | header.get("eval", {})
    scores = [{"judge": {"value": 0.25}}, {"match": {"value": 0.5}, "judge": {"value": 1}}]
    samples = [{**log["samples"][0], "uuid": str(i), "scores": it} for i, it in enumerate(scores)]
    for order in (samples, samples[::-1]):
        written = log | {"results": header.get("results"), "samples": order}
        (tmp_path / "log.json").write_text(json.dumps(written))
        found = import_run(tmp_path / "log.json", db=tmp_path / "runs.db")
        assert sorted(load_run(found.runs[0], db=tmp_path / "runs.db").reward.dropna()) == reward
        assert "--rewards names those that are summed" in found.notes[0]


@pytest.mark.parametrize("name", ["deflate.eval", "unfinished.eval"])
def test_older_and_unfinished_logs_give_the_same(samples: Samples, name: str) -> None:
    other = _samples(HERE / name)
    assert [repr(one) for one in other.values()] == [repr(one) for one in samples.values()]


def test_json_logs_give_the_same_as_eval_logs() -> None:
    assert [repr(one) for one in _read(HERE / "log.json")] == [repr(one) for one in _read(HERE / "turn_limit.eval")]


def test_entries_of_several_frames_and_entries_that_were_replaced(tmp_path: Path) -> None:
    with zipfile.ZipFile(HERE / "deflate.eval") as old:
        sample, start = old.read("samples/tool_epoch_1.json"), old.read("_journal/start.json")
    packed = zstandard.ZstdCompressor()
    file = tmp_path / "two.eval"
    with zipfile.ZipFile(file, "w") as new:
        new.writestr("_journal/start.json", packed.compress(start))
        new.writestr("samples/tool_epoch_1.json", packed.compress(b"{}"))
        with pytest.warns(UserWarning, match="Duplicate name"):
            new.writestr("samples/tool_epoch_1.json", b"".join(map(packed.compress, (sample[:500], sample[500:]))))
    written = bytearray(file.read_bytes())
    for mark, place in ((b"PK\3\4", 8), (b"PK\1\2", 10)):  # the method in local headers and in the directory
        at = written.find(mark)
        while at >= 0:
            written[at + place : at + place + 2] = (93).to_bytes(2, "little")
            at = written.find(mark, at + 1)
    file.write_bytes(written)
    (one,) = _read(file)
    assert (one.task, len(one.completion)) == ("tool", 3)


def _damage(file: Path, name: str) -> None:
    with zipfile.ZipFile(file) as opened:
        place = opened.getinfo(name).header_offset + 60
    with file.open("r+b") as written:
        written.seek(place)
        written.write(b"\xff" * 100)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
def test_samples_that_cannot_be_read_cost_themselves(method: int, tmp_path: Path) -> None:
    with zipfile.ZipFile(HERE / "deflate.eval") as old, zipfile.ZipFile(tmp_path / "a.eval", "w", method) as new:
        for name in old.namelist():
            new.writestr(name, b"{" * 200 if name == "samples/cut_epoch_1.json" else old.read(name))
        new.writestr("samples/x_epoch_1/sample.json", "{}")
    _damage(tmp_path / "a.eval", "samples/7_epoch_1.json")
    found = import_run(tmp_path, db=tmp_path / "runs.db")
    assert (found.rollouts, found.bad_count) == (14, 3)
    assert "7_epoch_1.json is damaged" in found.bad[0].reason
    assert "cut_epoch_1.json is damaged" in found.bad[1].reason
    assert "x_epoch_1/sample.json is stored in parts" in found.bad[2].reason


def test_frames_that_are_damaged_cost_themselves(tmp_path: Path) -> None:
    shutil.copy(HERE / "log.eval", tmp_path / "a.eval")
    _damage(tmp_path / "a.eval", "samples/7_epoch_1.json")
    found = import_run(tmp_path, db=tmp_path / "runs.db")
    assert (found.rollouts, found.bad_count) == (15, 1)


def test_samples_in_parts_are_named(tmp_path: Path) -> None:
    """Version 0.3.285 writes them (`convert_eval_logs_to_chunked`), and its `read_eval_log_samples` yields none."""
    shutil.copy(HERE / "chunked.eval", tmp_path)
    found = import_run(tmp_path, db=tmp_path / "runs.db")
    assert (found.rollouts, found.bad_count) == (0, 1)
    assert "endless_epoch_1/sample.json is stored in parts" in found.bad[0].reason


@pytest.mark.parametrize("name", ["log.eval", "deflate.eval"])
def test_samples_that_unpack_to_more_than_any_sample_cost_themselves(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect_logs, "_MOST", 16_000)
    shutil.copy(HERE / name, tmp_path)
    found = import_run(tmp_path, db=tmp_path / "runs.db")
    assert found.rollouts > 0
    assert found.rollouts + found.bad_count == 16
    assert "has more than 0 MiB" in found.bad[0].reason


def test_a_log_whose_samples_are_elsewhere_is_named(tmp_path: Path) -> None:
    _log(tmp_path / "log.json", lambda log: (log["samples"].clear(), log["eval"].update(shards=["a.eval"])))
    found = import_run(tmp_path, db=tmp_path / "runs.db")
    assert (found.rollouts, [it.reason for it in found.bad]) == (
        0, ["its samples are in other files (`shards`), which are not read"],
    )  # fmt: skip


def test_other_zips_are_not_recognized(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.eval", "w") as made:
        made.writestr("a.json", "{}")
    (tmp_path / "b.eval").write_bytes(b"PK\3\4 cut off")
    for name in ("a.eval", "b.eval"):
        assert not InspectReader.recognizes(Head(tmp_path / name))


def test_odd_samples_pass_and_broken_ones_cost_themselves(tmp_path: Path) -> None:
    log = json.loads((HERE / "log.json").read_text())
    (sample,) = log["samples"]
    odd = {**sample, "uuid": "u" * 900, "input": "\ud800\0", "messages": [], "total_time": math.inf, "scores": None}
    long = {**sample, "uuid": "long", "messages": [{"role": "user", "content": "x" * 3_000_000}]}
    log["samples"] = [odd, {"id": 3}, long, {**sample, "uuid": None, "epoch": 2}]
    (tmp_path / "log.json").write_text(json.dumps(log))
    found = import_run(tmp_path / "log.json", db=tmp_path / "runs.db")
    assert (found.rollouts, found.bad_count, found.bad[0].number) == (3, 1, 2)
    reader = InspectReader(tmp_path, ImportOptions())
    *_, (_, record) = reader.records(tmp_path / "log.json")
    (one,) = reader.rollouts(record, Place(tmp_path, "log.json", "id", 4))
    assert one.key == f"{one.run}/endless/2"


def test_a_log_is_a_run_and_its_samples_are_rows(tmp_path: Path) -> None:
    shutil.copy(HERE / "log.eval", tmp_path)
    found = import_run(tmp_path, db=tmp_path / "runs.db")
    assert import_run(tmp_path, db=tmp_path / "runs.db").runs == found.runs
    assert (found.rollouts, found.bad, found.formats) == (16, [], {"inspect": 1})
    frame = load_run(found.runs[0], db=tmp_path / "runs.db")
    assert len(frame) == 16
    row = frame[(frame.task == "tool") & (frame.generation == 0)].iloc[0]
    assert (row.reward, row.rewards["parts.length"]) == (1.0, 1.0), "the first score"
    assert row.reward_weights == {"match": 1.0, "parts.format": 0.0, "parts.length": 0.0, "judge": 0.0}
    said = "others are not added to it (parts.format, parts.length, judge). --rewards names those that are summed."
    assert found.notes == [f"adding: the reward is the score match, and {said}"]
    assert (row.status, row.stop_reason, row.turns, row.env_steps) == ("ok", "stop", 2, 1)
    assert row.actions[0]["action"] == {"name": "add", "arguments": {"x": 2, "y": 3}}
    assert row.actions[0]["observation"] == "5"
    assert frame[frame.task == "cut"].stop_reason.tolist() == ["length", "length"]
    assert frame[frame.task == "fails"].status.tolist() == ["error", "error"]
    failed = frame[frame.task == "tool-error"].iloc[0].actions[0]
    assert (failed["observation"], failed["error"]) == ("no sums with 99.", "permission: no sums with 99.")


def test_the_header_describes_the_run(samples: Samples) -> None:
    reader = InspectReader(HERE, ImportOptions())
    _, record = next(iter(reader.records(HERE / "log.eval")))
    (one,) = reader.rollouts(record, Place(HERE / "log.eval", "log.eval", "id", 1))
    assert one.run == samples["tool", 0].run
    described = reader.describe(one.run)
    assert (described.name, described.model, described.num_generations) == ("adding", "mockllm/model", 2)
    assert described.versions == {"inspect_ai": "0.3.285"}
    assert described.lacks == ("token ids", "advantages", "policy versions", "reward weights")
    eval_spec = described.config["eval"]
    assert (eval_spec["task_version"], eval_spec["tags"], eval_spec["metadata"]) == (3, ["tiny"], {"owner": "tests"})
    assert described.config["status"] == "success"
    assert described.config["results"]["scores"]


@pytest.mark.parametrize("declared", [None, 7])
def test_a_zip_bomb_is_refused_before_it_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, declared: int | None
) -> None:
    monkeypatch.setattr(inspect_logs, "_MOST", 64 << 20)
    file, size = tmp_path / "a.eval", 100 << 20
    with zipfile.ZipFile(HERE / "deflate.eval") as given, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("header.json", given.read("header.json"))
        made.writestr("samples/7_epoch_1.json", b" " * size)
    if declared is not None:  # a lie: the directory at the end says that it is small
        file.write_bytes(file.read_bytes().replace(size.to_bytes(4, "little"), declared.to_bytes(4, "little")))
    tracemalloc.start()
    found = import_run(file, db=tmp_path / "runs.db")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (found.rollouts, [it.reason for it in found.bad]) == (
        0, [f"samples/7_epoch_1.json {'is larger than its archive says' if declared else 'has more than 64 MiB'}"],
    )  # fmt: skip
    assert peak < 20 << 20
