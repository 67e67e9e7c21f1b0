"""Files of verifiers and prime-rl. The scripts in `fixtures/verifiers` made them with verifiers 0.4.0, 0.3.0 and 0.1.9;
what is not in these is written here, as the code of its version writes it.
"""

import itertools
import json
import shutil
from contextlib import closing
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logs_ui.recorder import import_run, load_run, load_runs, load_scalars
from logs_ui.recorder.importing.formats import readers
from logs_ui.recorder.importing.formats.verifiers import VerifiersReader
from logs_ui.recorder.importing.import_run import Importer
from logs_ui.recorder.importing.reader import ImportedRollout, ImportedScalars, ImportOptions, Turn
from logs_ui.recorder.importing.source_files import Head, Place, RecordError, find_files
from logs_ui.recorder.vocabulary import Dropped, Mode, Status, StopReason
from tests.recorder.importing.flat_reading import token_lists

FIXTURES = Path(__file__).parent / "fixtures/verifiers"
RUN = "5f0c7d1e2a3b4c5d6e7f8091a2b3c4d5"
CALL = {"id": "call_1", "type": "function", "function": {"name": "guess", "arguments": '{"n": 4}'}}


def read(root: Path, options: ImportOptions | None = None, files: Any = None) -> tuple[VerifiersReader, list[Any]]:
    """Read files in an order; return the reader, and all that it yields."""
    reader, found = VerifiersReader(root, options or ImportOptions()), list[Any]()
    for file, name in find_files([root]) if files is None else files:
        if VerifiersReader.recognizes(Head(file)):
            for number, record in reader.records(file):
                found += reader.rollouts(record, Place(file, name, "file", number))
    return reader, found


def rollouts(root: Path, *records: dict[str, Any], name: str = "traces.jsonl", **options: Any) -> list[ImportedRollout]:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("".join(json.dumps(it) + "\n" for it in records))
    return [it for it in read(root, ImportOptions(**options))[1] if isinstance(it, ImportedRollout)]


def node(role: str, content: str | None, parent: int | None = None, **more: Any) -> dict[str, Any]:
    message = {"role": role, "content": content, **more.pop("message", {})}
    return {"parent": parent, "message": message, "sampled": role == "assistant", "timestamp": 1.5} | more


def trace(**more: Any) -> dict[str, Any]:
    """A trace as verifiers 0.2 writes it."""
    task = {"type": "Sum", "data": {"idx": 7, "prompt": "2 + 3?"}}
    nodes = [node("user", "2 + 3?"), node("assistant", "5", 0)]
    return {"id": "a" * 32, "version": 1, "task": task, "nodes": nodes, "is_completed": True} | more


@pytest.fixture
def training(tmp_path: Path) -> Path:
    """The folder of a training, at the beginning of its second step's batch."""
    shutil.copytree(FIXTURES / "rollouts", tmp_path / "run/rollouts")
    shutil.copy(FIXTURES / "metrics.jsonl", tmp_path / "run")
    return tmp_path / "run"


def test_what_is_read_is_what_verifiers_models_say() -> None:
    expected = json.loads((FIXTURES / "expected.json").read_text())
    seen = 0
    for part in ("evaluation", "rollouts"):
        for file, name in find_files([FIXTURES / part]):
            found = {it.key: it for it in read(file)[1]} if file.name == "traces.jsonl" else {}
            own = f"{Path(part, name).parent.as_posix()}:"
            for key, model in ((key.removeprefix(own), it) for key, it in expected.items() if key.startswith(own)):
                for number, branch in enumerate(model["branches"] or [None]):
                    it = found.pop(f"{key}-{number}" if number else key)
                    assert (it.reward or 0, it.status != Status.ERROR) == (model["reward"], model["ok"])
                    if branch is None:
                        continue
                    seen += 1
                    texts = [message.get("content") or "" for message in (*it.prompt, *it.completion)]
                    assert (texts, len(it.turns)) == (branch["texts"], branch["turns"])
                    if branch["usage"]:
                        assert it.completion_tokens == branch["usage"]["completion_tokens"]
                    if not branch["token_ids"]:
                        assert it.tokens is None
                        continue
                    tokens = it.tokens
                    assert tokens is not None
                    assert tokens.mask is not None
                    assert tokens.logprobs is not None
                    start = len(tokens.prompt_ids)
                    assert [*tokens.prompt_ids.tolist(), *tokens.completion_ids.tolist()] == branch["token_ids"]
                    assert [0] * start + tokens.mask.tolist() == [int(one) for one in branch["mask"]]
                    np.testing.assert_allclose(np.nan_to_num(tokens.logprobs), branch["logprobs"][start:], rtol=1e-3)
                    assert np.isnan(tokens.logprobs[tokens.mask == 0]).all()
                    if branch["advantages"] is not None:
                        given = np.array(branch["advantages"])[np.array(branch["mask"])]
                        assert it.advantage == pytest.approx(given.mean())
                        own_mean = np.array(branch["entropies"])[np.array(branch["mask"])].mean()
                        assert it.metrics["entropy"] == pytest.approx(own_mean)
            assert not found
    assert seen > 12


def test_an_evaluation_that_verifiers_wrote() -> None:
    reader, found = read(FIXTURES / "evaluation")
    first, *_, failed = found
    assert first.prompt == [{"role": "user", "content": "Guess."}]
    assert [{key: it for key, it in one.items() if it != ""} for one in first.completion] == [
        {"role": "assistant", "reasoning_content": "Low", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "too low", "name": "guess"},
        {"role": "assistant", "content": "4"},
    ]
    assert (first.mode, first.step) == (Mode.EVAL, 0)
    assert (first.eval_name, first.task) == ("verifiers_guess", "verifiers_guess/0")
    assert (first.group, first.policy_step, first.staleness, first.dropped) == (found[1].group, None, None, None)
    assert len({it.group for it in found}) == 2
    assert (first.model, first.sampling, first.tags) == ("tiny", {"temperature": 0.5}, [])
    assert (first.rewards, first.weights, first.reward) == ({"brief": 1, "right": 1}, {"brief": 0.5, "right": 2}, 2.5)
    assert (first.stop_reason, first.status, first.error) == (StopReason.STOP, None, None)
    assert [(turn.finish, turn.tokens, turn.limit) for turn in first.turns] == [("stop", 2, None)] * 2
    assert all(turn.seconds > 0 for turn in first.turns)
    assert 1.7e15 < first.created < first.returned < 1.9e15
    assert 0 < first.seconds < 60
    assert (first.prompt_tokens, first.completion_tokens, first.tokens) == (3, 4, None)
    assert first.metrics == {"letters": 1, "num_input_tokens": 3, "num_output_tokens": 4, "num_total_tokens": 7}
    told = {"agent", "task", "timing", "verifiers", "is_completed", "ok", "is_timeout", "episode"}
    assert set(first.metadata) == told
    assert first.metadata["task"]["data"]["answer"] == 4
    assert first.metadata["episode"]["run"]["name"] == "evaluation"
    assert (failed.status, failed.stop_reason, failed.reward) == (Status.ERROR, StopReason.EXCEPTION, None)
    assert failed.error.startswith("ProviderError: upstream 400")
    assert (failed.prompt, failed.completion) == ([{"role": "user", "content": "Guess."}], [])
    assert failed.metadata["failed_calls"][0]["error"]["status_code"] == 400
    about = reader.describe(first.run)
    assert (about.name, about.model, about.num_generations) == ("evaluation", "tiny", 2)
    assert about.config["temperature"] == 0.5
    assert about.config["env"]["taskset"]["id"] == "verifiers_guess"
    assert (about.versions, about.lacks) == ({"verifiers version": "0.4.0"}, ("policy versions",))


def test_a_training_of_prime_rl(training: Path) -> None:
    reader, found = read(training)
    logged = {"learning_rate": 1e-5, "grad_norm": 0.5, "entropy": 0.75}
    assert ImportedScalars(1, logged, RUN) in found
    rows = [it for it in found if isinstance(it, ImportedRollout)]
    by_key = {it.key.lstrip("0"): it for it in rows}
    assert len(by_key) == len(rows) == 9
    columns = attrgetter("group", "step", "policy_step", "staleness", "advantage", "dropped")
    assert {key: columns(it) for key, it in by_key.items()} == {
        "3e8": ("a", 1, 0, 0, 1.0, None),
        "3e9": ("a", 1, 0, 0, -1.0, None),
        "3ea": ("b", 1, 0, 1, 0.75, None),  # shipped with the batch of step 2, which trains version 1
        "3eb": ("b", 1, 0, 1, None, Dropped.FILTERED),
        "3ec": ("c", 1, 0, 0, None, Dropped.FILTERED),
        "3ed": ("d", 2, 1, 0, 0.625, None),
        "3ed-1": ("d", 2, 1, 0, 0.625, None),
        "3ee": ("d", 2, 1, 0, 0.75, None),
        "7d0": ("d/judge", 2, 1, 1, None, None),  # never to be trained on
    }
    assert {(it.mode, it.eval_name, it.run) for it in rows} == {(Mode.TRAIN, "guess", RUN)}
    assert (by_key["3ed"].tags, by_key["3ed-1"].tags) == (["branch:0"], ["branch:1"])
    assert by_key["7d0"].tags == ["agent:judge", "not-trainable"]
    assert by_key["3ed"].metrics["advantage_min"] == 0.5
    assert by_key["3ed"].metrics["advantage_max"] == 0.75
    means = {"sampling_logp_difference": 0.25, "entropy": 1.0, "reference_logprob": -1.5, "trainer_logprob": -0.06175}
    assert {name: by_key["3e8"].metrics[name] for name in means} == pytest.approx(means)
    assert by_key["3e8"].metadata["info"] == {"advantage": 1.0}
    about = reader.describe(RUN)
    assert (about.name, about.model, about.config, about.lacks) == ("games", "tiny", {"temperature": 0.5}, ())


def fates(found: list[Any]) -> dict[str, ImportedRollout]:
    """Return what remains: of two rollouts with one key the later one."""
    return {it.key: it for it in found if isinstance(it, ImportedRollout)}


def test_the_order_of_files_does_not_matter(training: Path) -> None:
    expected = fates(read(training)[1])
    files = find_files([training / "rollouts"])
    for order in itertools.permutations(files):
        found = fates(read(training, files=order)[1])
        columns = attrgetter("dropped", "advantage", "staleness")
        assert {key: columns(it) for key, it in found.items()} == {key: columns(it) for key, it in expected.items()}


@pytest.mark.parametrize("subset", ["all", "effective"])
def test_one_of_the_two_files_alone_has_what_is_in_it(training: Path, subset: str) -> None:
    found = fates(read(training / f"rollouts/step_1/train/{subset}/traces.jsonl")[1])
    assert len(found) == {"all": 5, "effective": 2}[subset]


def stored(db: Path) -> list[str]:
    """Return the rows of the only run, without what following them may change: the numbers within their groups."""
    rows = load_run("latest", db=db)
    left = [name for name in rows.columns if name not in {"id", "generation", "changed"}]
    return sorted(repr({str(key): it for key, it in row.items()}) for row in rows[left].to_dict("records"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [1_500, 20_000])
def test_a_training_that_is_followed_gives_the_same(training: Path, tmp_path: Path, size: int) -> None:
    """The files grow in the order in which prime-rl writes, by some bytes at a time, also within a line."""
    whole = tmp_path / "whole.db"
    import_run(training / "rollouts", db=whole)
    live = tmp_path / "live"
    order = ["step_1/train/all", "step_1/train/effective", "step_2/train/all", "step_2/train/effective"]
    with closing(Importer([live], ImportOptions(), is_followed=True, db=tmp_path / "live.db")) as importer:
        for name in order:
            file = live / name / "traces.jsonl"
            file.parent.mkdir(parents=True)
            data = (training / "rollouts" / name / "traces.jsonl").read_bytes()
            for start in range(0, len(data), size):
                with file.open("ab") as opened:
                    opened.write(data[start : start + size])
                importer.take()
    assert importer.result.bad == []
    assert stored(tmp_path / "live.db") == stored(whole)
    again = import_run(live, db=tmp_path / "live.db")
    assert len(load_run(again.runs[0], db=tmp_path / "live.db")) == 9
    assert stored(tmp_path / "live.db") == stored(whole)


def test_a_batch_that_comes_while_its_step_is_read_marks_those_that_are_not_in_it(training: Path) -> None:
    """Both marks are made of files on disk, so that a reader that begins in the middle makes them, too."""
    batch = training / "rollouts/step_1/train/effective/traces.jsonl"
    held = batch.rename(training / "held")
    later = shutil.move(training / "rollouts/step_2", training / "later")
    reader, found = read(training)
    assert {it.dropped for it in found if isinstance(it, ImportedRollout)} == {None}
    shutil.copy(held, batch)
    place = Place(batch, "batch", "file", 1)
    first, *left = list[Any](reader.rollouts(json.loads(batch.read_text().splitlines()[0]), place))
    assert (first.dropped, [it.dropped for it in left]) == (None, [Dropped.FILTERED] * 3)
    shutil.move(later, training / "rollouts/step_2")
    assert fates(read(training)[1])[f"{0x3EA:032x}"].dropped is None


def test_traces_of_verifiers_0_2(tmp_path: Path) -> None:
    own = {"kind": "train", "env_name": "sums", "group_id": "g1", "policy_version": 4, "eval_step": None}
    calls = [
        {"node": 1, "model": "tiny", "sampling": {"temperature": 0.7, "max_tokens": 9}, "endpoint": "/chat/completions",
         "finish_reason": "length", "time": {"start": 10.0, "end": 12.5}, "error": None,
         "usage": {"prompt_tokens": 3, "completion_tokens": 9, "cached_input_tokens": 2, "reasoning_tokens": 4,
                   "cost": 0.5}},
    ]  # fmt: skip
    timing = {"start": 1.7e9, "generation": {"start": 1.7e9 + 1, "end": 1.7e9 + 3, "model": {"duration": 2.0}}}
    one = trace(
        **own, calls=calls, timing=timing, rewards={"right": 1.0, "brief": 0.5}, metrics={"turns": 1, "odd": None},
        stop_condition="agent_completed", info={"a": 1}, extra_usage=[{"prompt_tokens": 1}], tools=[{"name": "x"}],
        agent={"model": "tiny", "sampling": None, "harness": {"id": "h"}}, verifiers={"version": "0.2.1"}, tint="red",
    )  # fmt: skip
    gone = [{"type": "SandboxError", "message": "gone"}]
    broken = trace(id="b" * 32, errors=gone, stop_condition="sandbox_error", **own)
    path = "step_6/train/all/traces.jsonl"
    batch = tmp_path / "step_6/train/effective/traces.jsonl"
    batch.parent.mkdir(parents=True)
    batch.write_text(json.dumps(one) + "\n")
    failed, found = rollouts(tmp_path, one, broken, name=path)
    assert (found.key, found.group, found.step, found.mode, found.eval_name) == ("a" * 32, "g1", 6, Mode.TRAIN, "sums")
    assert (found.policy_step, found.staleness, found.dropped, found.task) == (4, 1, None, "sums/7")
    assert (found.rewards, found.weights, found.reward) == ({"right": 1.0, "brief": 0.5}, {}, 1.5)
    usage = {"cached_input_tokens": 2, "reasoning_tokens": 4, "cost": 0.5}
    assert found.metrics == {"policy_version": 4, "turns": 1, "odd": None, **usage}
    assert found.turns == [Turn("length", 2.5, 9, 9)]
    assert (found.stop_reason, found.model) == (StopReason.LENGTH, "tiny")
    assert (found.prompt_tokens, found.completion_tokens, found.seconds) == (5, 9, 2.0)
    assert (found.created, found.returned) == (1_700_000_000_000_000, 1_700_000_003_000_000)
    assert found.sampling == {"temperature": 0.7, "max_tokens": 9}
    assert found.metadata["not_scored"] == ["odd"]
    for name in ("info", "extra_usage", "tools", "agent", "verifiers", "timing", "task", "tint"):
        assert found.metadata[name]
    assert (failed.status, failed.error, failed.dropped) == (Status.ERROR, "SandboxError: gone", Dropped.FILTERED)
    assert failed.stop_reason == StopReason.ENVIRONMENT_ERROR
    evaluated = trace(**own | {"kind": "eval", "eval_step": 9})
    (inline,) = rollouts(tmp_path / "eval", evaluated, name="step_8/eval/all/traces.jsonl")
    assert (inline.mode, inline.step, inline.dropped) == (Mode.EVAL, 9, None)
    trained = trace(run={"type": "train", "id": "r", "step": 3})
    (old,) = rollouts(tmp_path / "old", trained, name="step_3/train_rollouts.jsonl")
    assert (old.mode, old.step, old.run) == (Mode.TRAIN, 3, "r")


def test_results_of_the_classic_api(tmp_path: Path) -> None:
    """As `state_to_output()` of verifiers 0.1.10 to 0.3.0 writes them, beside their metadata.json."""
    call = json.dumps({"id": "call_1", "name": "guess", "arguments": '{"n": 4}'})
    span = {"start": 1.7e9 + 1, "end": 1.7e9 + 3, "duration": 2.0}
    one = {
        "example_id": 3, "prompt": [{"role": "user", "content": "2 + 3?"}],
        "completion": [
            {"role": "assistant", "content": "", "tool_calls": [call], "reasoning_content": "Hm"},
            {"role": "tool", "content": "low", "tool_call_id": "call_1"}, {"role": "assistant", "content": "5"},
        ],
        "answer": "5", "info": {"level": 1}, "task": "sums", "reward": 0.5, "error": None, "is_completed": True,
        "timing": {"start_time": 1.7e9, "setup": span, "generation": span, "scoring": span, "total": 3.0},
        "is_truncated": False, "stop_condition": "no_tools_called", "metrics": {"right": 0.5, "num_turns": 2.0},
        "token_usage": {"input_tokens": 8.0, "output_tokens": 5.0}, "tool_defs": [{"name": "guess"}],
        "right": 0.5, "num_turns": 2.0, "trajectory": [{"reward": 0.5, "tokens": None}], "colour": "red",
    }  # fmt: skip
    chain = {"error_chain_repr": "ToolError('gone')", "error_chain_str": "ToolError"}
    error = {"error": "ToolError", "message": "gone", **chain}
    other = one | {"error": error, "error_chain": "x", "reward": 0.0, "is_truncated": True, "stop_condition": None}
    about = {
        "env_id": "sums", "env_args": {"n": 2}, "model": "tiny", "base_url": "http://x", "num_examples": 1,
        "rollouts_per_example": 2, "sampling_args": {"temperature": 0.3}, "date": "2026-02-01", "avg_reward": 0.25,
        "version_info": {"vf_version": "0.1.14", "vf_commit": None, "env_version": "0.2", "env_commit": None},
    }  # fmt: skip
    (tmp_path / "0a1b2c3d").mkdir()
    (tmp_path / "0a1b2c3d/metadata.json").write_text(json.dumps(about))
    rows = rollouts(tmp_path, one, other, name="0a1b2c3d/results.jsonl", rewards=("right",))
    first, second = rows
    assert first.prompt == [{"role": "user", "content": "2 + 3?"}]
    assert first.completion == [
        {"role": "assistant", "content": "", "tool_calls": [CALL], "reasoning_content": "Hm"},
        {"role": "tool", "content": "low", "tool_call_id": "call_1"},
        {"role": "assistant", "content": "5"},
    ]
    assert (first.key, second.key, first.group, second.group) == ("file-1", "file-2", "file-3", "file-3")
    assert (first.task, first.eval_name, first.mode, first.step) == ("sums/3", "sums", Mode.EVAL, 0)
    assert (first.reward, first.rewards, first.stop_reason) == (0.5, {"right": 0.5, "reward": 0.5}, StopReason.STOP)
    assert first.weights == {"right": 0.0, "reward": 1.0}
    assert first.metrics == {"num_turns": 2.0, "input_tokens": 8.0, "output_tokens": 5.0}
    assert (first.completion_tokens, first.seconds, first.model) == (5, 2.0, "tiny")
    assert first.sampling == {"temperature": 0.3}
    assert (first.created, first.returned) == (1_700_000_000_000_000, 1_700_000_003_000_000)
    for name in ("answer", "info", "trajectory", "tool_defs", "colour", "timing"):
        assert first.metadata[name]
    assert (second.status, second.error, second.stop_reason) == (Status.ERROR, "ToolError('gone')", StopReason.LENGTH)
    assert second.metadata["error_chain"] == "x"
    reader, _ = read(tmp_path)
    told = reader.describe(first.run)
    assert (told.name, told.model, told.num_generations) == ("sums", "tiny", 2)
    assert told.config["env_args"] == {"n": 2}
    assert told.versions == {"verifiers vf_version": "0.1.14", "verifiers env_version": "0.2"}
    assert told.lacks == ("token ids", "log-probs", "advantages", "reward weights", "policy versions")
    (trained,) = rollouts(tmp_path / "prime", one, name="rollouts/step_4/train_rollouts.jsonl")
    assert (trained.mode, trained.step, trained.dropped, trained.rewards) == (Mode.TRAIN, 4, None, None)
    (tmp_path / "0a1b2c3d/metadata.json").write_text("{")
    assert import_run(tmp_path / "0a1b2c3d", db=tmp_path / "a.db").rollouts == 2, "it describes them, and costs none"
    assert trained.metrics["right"] == 0.5
    (judged,) = rollouts(tmp_path / "prime2", one, name="rollouts/step_4/eval_rollouts_gsm8k.jsonl")
    assert (judged.mode, judged.step, judged.eval_name) == (Mode.EVAL, 4, "gsm8k")


@pytest.mark.parametrize("version", ["0_1_9", "0_3_0"])
def test_an_evaluation_of_an_older_version(tmp_path: Path, version: str) -> None:
    done = import_run(FIXTURES / f"classic_{version}", rewards=["right"], weights={"right": 0.5}, db=tmp_path / "a.db")
    assert (done.bad, done.unknown) == ([], [])
    rows = load_run(done.runs[0], db=tmp_path / "a.db").sort_values(["group", "generation"]).to_dict("records")
    assert [(it["task"], it["generation"], it["status"]) for it in rows] == [
        ("guess/0", 0, "ok"), ("guess/0", 1, "ok"), ("guess/1", 0, "error"), ("guess/1", 1, "error"),
    ]  # fmt: skip
    for row in rows[:2]:
        assert [it["role"] for it in row["messages"]] == ["user", "assistant", "tool", "assistant"]
        assert row["messages"][1]["tool_calls"] == [CALL]
        assert [it["observation"] for it in row["actions"]] == ["too low", None]
        assert (row["reward"], row["rewards"], row["model"]) == (0.5, {"right": 1.0}, "tiny")
        assert (row["turns"], row["tool_calls"], row["metrics"]["guess_calls"]) == (2, 1, 1.0)
        assert row["sampling"]["temperature"] == 0.5
        assert row["metadata"]["info"] == {"level": 4}
    for row in rows[2:]:
        assert "ModelError()" in row["error"]
        assert (row["reward"], row["stop_reason"], row["rewards"]) == (0.0, "exception", {"right": 0.0})
    if version == "0_3_0":
        assert [it["completion_tokens"] for it in rows[:2]] == [4, 4]
        assert rows[0]["stop_reason"] == "stop"
        assert "Error code: 400" in rows[2]["error"]


def test_results_that_datasets_wrote(tmp_path: Path) -> None:
    """As `make_dataset()` of verifiers 0.1.9 writes them: absent keys are null."""
    one = {
        "example_id": 0, "prompt": [{"content": "2 + 3?", "role": "user"}],
        "completion": [{"content": "5", "role": "assistant", "tool_calls": None}], "task": "default", "reward": 1.0,
        "error": None, "generation_ms": 1500.0, "scoring_ms": 10.0, "total_ms": 1510.0, "info": {"a": 1}, "answer": "5",
        "correct": 1.0,
    }  # fmt: skip
    text = {"prompt": "2 + 3 =", "completion": " 5", "error": "ModelError('gone')", "reward": 0.0}
    first, second = rollouts(tmp_path, one, one | text, name="results.jsonl", rewards=("correct",))
    assert first.completion == [{"content": "5", "role": "assistant"}]
    assert (first.seconds, first.reward, first.error) == (1.5, 1.0, None)
    assert first.rewards == {"correct": 1.0, "reward": 1.0}
    assert first.metrics == {"generation_ms": 1500.0, "scoring_ms": 10.0, "total_ms": 1510.0}
    assert (first.metadata["info"], first.metadata["answer"]) == ({"a": 1}, "5")
    assert second.prompt == [{"role": "user", "content": "2 + 3 ="}]
    assert second.completion == [{"role": "assistant", "content": " 5"}]
    assert (second.status, second.error) == (Status.ERROR, "ModelError('gone')")
    assert first.group == second.group
    assert "stop reasons" in read(tmp_path)[0].describe(first.run).lacks


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("agent_completed", "stop"), ("completed", "stop"), ("no_tools_called", "stop"), ("max_turns", "turn_limit"),
        ("max_turns_reached", "turn_limit"), ("max_output_tokens", "length"), ("max_input_tokens", "length"),
        ("max_total_tokens", "length"), ("prompt_too_long", "length"), ("compaction_failed", "length"),
        ("agent_timeout", "timeout"), ("scoring_timeout", "timeout"), ("timeout_reached", "timeout"),
        ("sandbox_error", "environment_error"), ("harness_error", "environment_error"),
        ("env_error", "environment_error"),
        ("toolset_error", "environment_error"), ("tunnel_error", "environment_error"),
        ("interception_error", "environment_error"), ("provider_error", "exception"), ("error", "exception"),
        ("task_error", "exception"), ("has_error", "exception"), ("empty_action", "no_action"), ("game_over", "done"),
        (None, None),
    ],
)  # fmt: skip
def test_each_stop_condition(tmp_path: Path, condition: str | None, expected: str | None) -> None:
    (found,) = rollouts(tmp_path, trace(stop_condition=condition))
    assert found.stop_reason == expected
    (late,) = rollouts(tmp_path, trace(stop_condition=condition, is_timeout=True))
    assert late.stop_reason == StopReason.TIMEOUT


def test_what_is_absent_null_and_zero_stays_apart(tmp_path: Path) -> None:
    def with_ids(**more: Any) -> list[dict[str, Any]]:
        ids = {"token_ids": [7, 8], "mask": [False, True]}
        return [node("user", "a", token_ids=[1], mask=[False]), node("assistant", "b", 0, **ids, **more)]

    nothing, zero, null = rollouts(
        tmp_path,
        trace(nodes=with_ids(), rewards={}),
        trace(id="z", nodes=with_ids(advantages=[0.0], logprobs=[0.0]), rewards={"a": {"score": 0.0, "weight": 1.0}}),
        trace(id="n", nodes=with_ids(logprobs=[None]), rewards={"a": None, "b": {"score": 2.0, "weight": 0.5}}),
    )
    assert (nothing.advantage, nothing.reward, nothing.rewards) == (None, None, None)
    assert token_lists(nothing.tokens)[3] is None
    assert (zero.advantage, zero.reward, zero.rewards) == (0.0, 0.0, {"a": 0.0})
    assert (null.reward, null.rewards, null.weights) == (1.0, {"a": None, "b": 2.0}, {"a": 1.0, "b": 0.5})
    assert {*(token_lists(null.tokens)[3] or ())} == {None}
    (odd,) = rollouts(tmp_path, trace(rewards={"a": {"score": float("nan"), "weight": 1.0}}))
    assert odd.reward != odd.reward


@pytest.mark.parametrize("order", [1, -1])
def test_a_function_that_did_not_score_keeps_the_weight_of_its_environment(tmp_path: Path, order: int) -> None:
    def of(kind: str, score: float | None, **more: Any) -> dict[str, Any]:
        reward = None if score is None else {"score": score, "weight": {"Sum": 0.25, "Word": 3.0}[kind]}
        return trace(id=f"{kind} {score}", task={"type": kind, "data": {}}, rewards={"a": reward}, **more)

    traces = [of("Sum", None), of("Word", None), of("Sum", 1.0), of("Word", 2.0)]
    found = {it.key: it.weights for it in rollouts(tmp_path, *traces[::order])}
    assert (found["Sum None"], found["Word None"]) == ({"a": 0.25}, {"a": 3.0})
    episode = {"env": {"id": "e"}, "traces": traces[::order]}
    assert {it.key: it.weights for it in rollouts(tmp_path, episode)} == found
    (alone,) = rollouts(tmp_path, of("Sum", None))
    assert (alone.weights, alone.rewards) == ({}, {"a": None})


def test_rough_text_passes_and_a_broken_trace_costs_itself(tmp_path: Path) -> None:
    text = "\ud800 \x00" + "x" * 1000
    (found,) = rollouts(tmp_path, trace(id="i" * 400, nodes=[node("user", text), node("assistant", text, 0)]))
    assert found.completion[0]["content"] == text
    assert len(found.key) < 300
    torn = trace(nodes=[node("user", "a", 1), node("assistant", "b", 0)])
    uneven = trace(nodes=[node("user", "a", token_ids=[1, 2], mask=[False])])
    for broken, said in ((torn, "whose parent is not before it"), (uneven, "2 token ids and a mask of 1")):
        with pytest.raises(RecordError, match=said):
            rollouts(tmp_path, broken)
    file = tmp_path / "traces.jsonl"
    file.write_text("".join(json.dumps(it) + "\n" for it in (trace(), {"nodes": 5}, torn, trace(id="c" * 32))))
    done = import_run(file, db=tmp_path / "a.db")
    assert (done.rollouts, done.bad_count, [it.number for it in done.bad]) == (2, 2, [2, 3])


def test_a_policy_without_a_version_is_not_recorded(tmp_path: Path) -> None:
    work = {"type": "train", "step": 3, "policy": {"start": None, "end": 2}}
    (found,) = rollouts(tmp_path, trace(run={"type": "train", "id": "r", "work": work}))
    assert (found.step, found.policy_step, found.staleness) == (3, None, None)


def test_an_episode_without_traces_is_a_rollout_that_failed(tmp_path: Path) -> None:
    task = {"type": "Sum", "data": {"id": "s-1", "prompt": "2 + 3?", "system_prompt": "Count."}}
    errors = [{"type": "EnvError", "message": "no box"}]
    names = {"id": "e1", "env": {"id": "sums"}, "group": {"id": "g"}}
    (found,) = rollouts(tmp_path, {**names, "task": task, "traces": [], "errors": errors, "ok": False})
    assert (found.key, found.task, found.error, found.group) == ("e1", "s-1", "EnvError: no box", "g")
    assert [it["content"] for it in found.prompt] == ["Count.", "2 + 3?"]


def test_a_whole_folder_becomes_runs_once(db: Path) -> None:
    assert VerifiersReader in readers()
    done = import_run(FIXTURES, db=db)
    assert (done.rollouts, done.bad_count, done.unknown) == (21, 0, [])
    again = import_run(FIXTURES, db=db)
    assert sorted(again.runs) == sorted(done.runs)
    found = {len(rows): (run, rows) for run in done.runs for rows in [load_run(run, db=db)]}
    assert (len(done.runs), sorted(found)) == (4, [4, 9])
    run, rows = found[9]
    described = load_runs(db=db).set_index("run").loc[run]
    assert (described["name"], described["model"]) == ("games", "tiny")
    row = next(it for it in rows.to_dict("records") if it["advantage"] == 1)
    assert (row["dropped"], row["staleness"], row["completion_tokens"], row["env_tokens"]) == (None, 0, 4, 4)
    assert row["messages"][1]["tool_calls"] == [CALL]
    assert [it["action"] for it in row["actions"] if it["action"]] == [{"name": "guess", "arguments": {"n": 4}}]
    assert row["metrics"]["sampling_logp_difference"] == 0.25
    assert load_scalars(run, db=db).entropy.tolist() == [0.75]


def test_groups_are_of_one_task_however_alike_their_names_are(tmp_path: Path) -> None:
    names = [f"swe-bench/django__django-{i // 2:05d}" for i in range(4)]
    records = [trace(id=f"{i:032}", task={"type": "T", "data": {"name": name}}) for i, name in enumerate(names)]
    (tmp_path / "traces.jsonl").write_text("".join(json.dumps(it) + "\n" for it in records))
    rows = load_run(import_run(tmp_path, db=tmp_path / "a.db").runs[0], db=tmp_path / "a.db")
    assert rows.groupby("group").task.unique().map(list).to_list() == [[names[0]], [names[2]]]


def test_a_batch_that_has_all_that_arrived_and_copies_count_once(tmp_path: Path) -> None:
    for folder, name in (("a/train", "all/traces"), ("a/train", "effective/traces"), ("b", "x"), ("b/copy", "x")):
        rollouts(tmp_path / folder.replace("/train", "/rollouts/step_1/train"), trace(), name=f"{name}.jsonl")
    found = [import_run(tmp_path / name, db=tmp_path / "r.db") for name in ("a", "b")]
    assert [(it.rollouts, it.new) for it in found] == [(1, 1), (1, 1)]
