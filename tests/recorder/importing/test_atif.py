"""Trials of Harbor and lone ATIF trajectories, as harbor's own models wrote them (`fixtures/atif/make_atif.py`)."""

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from logs_ui.recorder import export_run, load_run
from logs_ui.recorder.importing.formats.harbor import AtifReader
from logs_ui.recorder.importing.import_run import Importer, import_run
from logs_ui.recorder.importing.reader import ImportedRollout, ImportOptions
from logs_ui.recorder.importing.source_files import Head, Place, RecordError, find_files
from logs_ui.recorder.vocabulary import Lack, Mode, Status, StopReason
from tests.recorder.importing.flat_reading import token_lists

Rollouts = dict[str, ImportedRollout]
HERE = Path(__file__).parent / "fixtures" / "atif"
JOB = "00000000-0000-0000-0000-000000000007"


def _read(path: Path, options: ImportOptions | None = None) -> list[ImportedRollout]:
    reader = AtifReader(path, options or ImportOptions())
    found: list[ImportedRollout] = []
    for file, name in find_files([path]):
        if reader.recognizes(Head(file)):
            for number, record in reader.records(file):
                assert not isinstance(record, RecordError)
                found += reader.rollouts(record, Place(file, name, "id", number))
    return found


@pytest.fixture(scope="module")
def trials() -> Rollouts:
    return {one.key: one for one in _read(HERE / "jobs")}


def _changed(result: Path, change: Callable[[Any], Any]) -> list[ImportedRollout]:
    written = json.loads(result.read_text())
    change(written)
    result.write_text(json.dumps(written))
    return _read(result)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return Path(shutil.copytree(HERE / "jobs" / "demo", tmp_path / "demo"))


def test_each_trial_is_one_rollout_whichever_folder_is_given(trials: Rollouts) -> None:
    assert list(trials) == [f"demo/hello__{letter * 7}" for letter in "ABCDE"]
    assert [one.key for one in _read(HERE / "jobs" / "demo" / "hello__AAAAAAA")] == ["demo/hello__AAAAAAA"]


def test_a_trials_result_gives_identity_times_and_metrics(trials: Rollouts) -> None:
    one = trials["demo/hello__AAAAAAA"]
    assert (one.run, one.group, one.task) == (JOB, "demo/hello/terminus-2/acme/tiny", "hello")
    assert (one.eval_name, one.model, one.mode, one.step, one.generation) == ("hello-world", "tiny", Mode.EVAL, 0, None)
    assert (one.status, one.stop_reason, one.error, one.tags) == (Status.OK, StopReason.DONE, None, [])
    assert one.created == 1_793_534_412_000_000  # the agent's begin: 2026-11-01 12:00:12 UTC
    assert (one.returned, one.seconds) == (one.created + 60_000_000, 60.0)
    metrics = {"n_input_tokens": 30, "n_cache_tokens": 4, "n_output_tokens": 5, "cost_usd": 0.25}
    totals = {"total_prompt_tokens": 30, "total_cached_tokens": 4, "total_cost_usd": 0.25, "total_steps": 5}
    assert {name: one.metrics[name] for name in metrics | totals} == metrics | totals
    assert one.completion_tokens == 5
    metadata = one.metadata
    assert metadata["trial_name"] == "hello__AAAAAAA"
    assert metadata["task_checksum"] == "abc"
    model = {"name": "tiny", "provider": "acme"}
    assert metadata["agent_info"] == {"name": "terminus-2", "version": "2.0.0", "model_info": model}
    assert metadata["agent_result"]["metadata"] == {"n_episodes": 2}
    assert "rollout_details" not in metadata["agent_result"]
    assert metadata["verifier"] == {"started_at": "2026-11-01T12:01:12Z", "finished_at": "2026-11-01T12:01:35.500000Z"}
    assert "token_chains" not in metadata


def test_the_reward_of_that_name_is_the_reward(trials: Rollouts) -> None:
    one = trials["demo/hello__AAAAAAA"]
    assert (one.reward, one.rewards, one.weights) == (0.5, {"reward": 0.5, "tests": 3.0}, {"reward": 1.0, "tests": 0.0})


def test_other_rewards_are_summed_and_read_from_the_verifiers_files(trials: Rollouts, job: Path) -> None:
    one = trials["demo/hello__BBBBBBB"]
    assert (one.reward, one.rewards, one.weights) == (None, {"tests": 0.25, "style": 1.0}, {})
    written = job / "hello__BBBBBBB" / "verifier" / "reward.json"
    written.unlink()
    written.with_suffix(".txt").write_text("0.75\n")
    assert {one.key: one.reward for one in _read(job)}["demo/hello__BBBBBBB"] == 0.75
    weighted = _read(job, ImportOptions(weights={"tests": 2.0}))[0]
    assert (weighted.reward, weighted.weights) == (None, {"tests": 2.0})


def test_steps_are_messages_in_the_form_of_openai(trials: Rollouts) -> None:
    one = trials["demo/hello__AAAAAAA"]
    assert [(m["role"], m["content"]) for m in one.prompt] == [("system", "You are an agent."), ("user", "Say hello.")]
    roles = ["assistant", "tool", "tool", "user", "user", "assistant"]
    assert [m["role"] for m in one.completion] == roles
    answer, screen, listing, dispatched, submitted, last = one.completion
    assert (answer["content"], answer["reasoning_content"]) == ("I look.", "What is there?")
    assert [(call["id"], call["type"], call["function"]) for call in answer["tool_calls"]] == [
        ("c1", "function", {"name": "bash_command", "arguments": {"keystrokes": "ls\n"}}),
        ("c2", "function", {"name": "look", "arguments": {}}),
    ]
    assert answer["tool_calls"][0]["extra"] == {"ms": 5}
    assert (screen["tool_call_id"], listing["tool_call_id"]) == ("c2", "c1")
    assert (listing["content"], listing["extra"]) == ("hello.txt", {"exit": 0})
    # What the agent's program does without a model is no answer of the model.
    assert (dispatched["content"], submitted["content"], last["content"]) == ("submit", "submitted", "Done.")
    assert [turn.tokens for turn in one.turns] == [2, 3]


def test_images_below_the_trajectory_are_taken_in_and_others_stay_paths(trials: Rollouts) -> None:
    text, *images = trials["demo/hello__AAAAAAA"].completion[1]["content"]
    assert text["text"] == "a screen"
    inside, outside, remote = (image["image_url"]["url"] for image in images)
    assert inside.startswith("data:image/png;base64,iVBORw0KGgo")
    assert outside == "../../../../lone.json"
    assert remote == "https://example.com/a.png"


def test_what_is_no_message_is_metadata(trials: Rollouts) -> None:
    metadata = trials["demo/hello__AAAAAAA"].metadata
    (about,) = metadata["trajectories"]
    assert {name: about[name] for name in ("schema_version", "session_id", "trajectory_id", "notes", "extra")} == {
        "schema_version": "ATIF-v1.8", "session_id": "ses-a", "trajectory_id": "tra-a", "notes": "a note",
        "extra": {"seed": 3},
    }  # fmt: skip
    assert about["agent"]["tool_definitions"]
    assert about["final_metrics"]["extra"] == {"reasoning_tokens": 2}
    (embedded,) = about["subagent_trajectories"]
    assert embedded["trajectory_id"] == "sub-1"
    step = metadata["steps"][2]
    assert step == {
        "step_id": 3, "timestamp": "2026-11-01T12:00:14Z", "model_name": "acme/other", "reasoning_effort": "high",
        "llm_call_count": 1, "extra": {"tag": 1},
        "metrics": {
            "prompt_tokens": 10, "completion_tokens": 2, "cached_tokens": 1, "cost_usd": 0.125, "extra": {"q": 1},
        },
    }  # fmt: skip


def test_rollout_details_are_tokens_where_each_call_continues_the_last(trials: Rollouts) -> None:
    prompt, completion, mask, logprobs = token_lists(trials["demo/hello__AAAAAAA"].tokens)
    assert (prompt, completion, mask) == ([1, 2, 3], [4, 5, 9, 6, 7, 8], [1, 1, 0, 1, 1, 1])
    assert logprobs == [-0.5, -0.25, None, -1, -2, -0.125]


@pytest.mark.parametrize(
    ("name", "remaining"), {"logprobs": "ids", "completion_token_ids": None, "prompt_token_ids": None}.items()
)
def test_a_turn_without_tokens_shifts_no_others(job: Path, name: str, remaining: str | None) -> None:
    result = job / "hello__AAAAAAA" / "result.json"
    (one,) = _changed(result, lambda it: it["agent_result"]["rollout_details"][0][name].pop(0))
    assert (one.tokens is None) == (remaining is None)
    assert one.tokens is None or one.tokens.logprobs is None


def test_a_trial_without_its_configuration_is_one_rollout(job: Path) -> None:
    (job / "hello__AAAAAAA" / "config.json").unlink()
    assert len(_read(job / "hello__AAAAAAA")) == 1


def test_a_continued_trajectory_is_read_to_its_end(trials: Rollouts) -> None:
    one = trials["demo/hello__BBBBBBB"]
    said = [message["content"] for message in [*one.prompt, *one.completion]]
    assert said == ["Say hello.", "First.", "Nothing.", "Second."]
    assert not any(step.get("is_copied_context") for step in one.metadata["steps"])
    assert (one.stop_reason, one.status) == (StopReason.TIMEOUT, Status.OK)
    assert (one.error, one.tags) == ("AgentTimeoutError: no reward", ["AgentTimeoutError"])
    assert one.metadata["exception_info"]["exception_message"] == "no reward"
    # The summary began another context: the tokens are those of the longer chain.
    prompt, completion, _, logprobs = token_lists(one.tokens)
    assert (prompt, completion, logprobs) == ([7], [8, 9], None)
    assert one.metadata["token_chains"] == 2


def test_a_verifier_that_failed_leaves_a_missing_reward(trials: Rollouts) -> None:
    one = trials["demo/hello__CCCCCCC"]
    assert (one.reward, one.rewards) == (None, {"reward": None})
    assert (one.stop_reason, one.status) == (StopReason.DONE, Status.OK)
    assert one.tags == ["RewardFileNotFoundError"]


def test_steps_of_a_task_are_one_rollout(trials: Rollouts) -> None:
    one = trials["demo/hello__EEEEEEE"]
    said = [message["content"] for message in [*one.prompt, *one.completion]]
    assert said == ["Say hello.", "Hello.", "Say hello.", "Hello."]
    assert (one.reward, one.stop_reason, one.tags) == (0.75, StopReason.LENGTH, ["ContextWindowExceededError"])


@pytest.mark.parametrize(("kind", "cause"), json.loads((HERE / "causes.json").read_text()).items())
def test_exceptions_end_rollouts_as_harbor_classifies_them(job: Path, kind: str, cause: str) -> None:
    ends = {
        "sandbox_failed": (Status.ERROR, StopReason.ENVIRONMENT_ERROR),
        "harbor_failed": (Status.ERROR, StopReason.ENVIRONMENT_ERROR),
        "model_provider_failed": (Status.ERROR, StopReason.EXCEPTION),
        "unclassified": (Status.ERROR, StopReason.EXCEPTION),
        "agent_exhausted_budget": (Status.OK, StopReason.LENGTH),
        "agent_refused_task": (Status.OK, StopReason.STOP),
        "verifier_failed": (Status.OK, StopReason.DONE),
        "cancelled": (Status.ABORTED, StopReason.ABORTED),
    }
    result = job / "hello__CCCCCCC" / "result.json"
    (one,) = _changed(result, lambda it: it["exception_info"].update(exception_type=kind))
    is_late = "Timeout" in kind
    assert (one.status, one.stop_reason) == (ends[cause][0], StopReason.TIMEOUT if is_late else ends[cause][1])
    assert one.tags == [kind]
    assert one.error == (None if one.status == Status.OK and not is_late else f"{kind}: no reward")
    assert one.rewards == ({"reward": None} if cause == "verifier_failed" else None)


def test_a_lone_trajectory_has_what_our_export_adds() -> None:
    (one,) = _read(HERE / "lone.json")
    assert one.key == "ses-l/lone/1"
    assert (one.reward, one.rewards, one.advantage, one.group) == (0.5, {"exact": 0.5}, -1.0, "g1")
    assert (one.step, one.task, one.stop_reason, one.model) == (4, "hello", StopReason.LENGTH, "acme/tiny")
    assert [m["content"] for m in one.prompt] == ["Say hello.", "Copied."]  # nobody sampled the copy here
    assert [m["content"] for m in one.completion] == ["Hello.", "Copied again."]
    assert [turn.tokens for turn in one.turns] == [2, None]
    assert token_lists(one.tokens)[1] == [2, 3]


def test_a_trajectory_without_a_session_has_the_key_of_its_place(tmp_path: Path) -> None:
    written = json.loads((HERE / "lone.json").read_text())
    lines = [{**written, "session_id": None}, {**written, "trajectory_id": "x" * 400}]
    (tmp_path / "all.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    first, second = _read(tmp_path / "all.jsonl")
    assert first.key == "id-1"
    assert len(second.key) < 300


def test_files_of_subagents_and_continuations_of_a_folder_without_a_trial(tmp_path: Path) -> None:
    shutil.copytree(HERE / "jobs" / "demo" / "hello__BBBBBBB" / "agent", tmp_path / "agent")
    (one,) = _read(tmp_path)
    assert [m["content"] for m in one.completion] == ["First.", "Nothing.", "Second."]
    assert one.key == "ses-b/trajectory/1"


def test_a_broken_trajectory_costs_its_trial_alone(job: Path) -> None:
    text = '{"schema_version": "ATIF-v1.7", "agent": {}, "steps": [3]}'
    (job / "hello__BBBBBBB" / "agent" / "trajectory.cont-1.json").write_text(text)
    found = import_run(job, db=job / "runs.db")
    assert (found.rollouts, [it.file for it in found.bad]) == (4, ["hello__BBBBBBB/result.json"])


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("hello__AAAAAAA/agent/trajectory.json", 2),  # as a lone file that is no JSON, too
        ("hello__BBBBBBB/agent/trajectory.cont-1.json", 2),
        ("hello__BBBBBBB/verifier/reward.json", 1),
        ("hello__BBBBBBB/verifier/reward.txt", 0),
        ("config.json", 1),
    ],
)
def test_a_damaged_file_beside_a_result_costs_itself(job: Path, name: str, named: int) -> None:
    whole = import_run(job, db=job / "whole.db").runs
    (job / name).write_bytes(b'{"schema_version": "ATIF\xff')
    found = import_run(job, db=job / "runs.db")
    assert (found.rollouts, found.runs) == (5, whole)
    assert found.bad_count <= named
    assert all("is damaged" in it.reason for it in found.bad if it.file.endswith("result.json"))
    rewards = [load_run(whole[0], db=job / db).reward.fillna(-1).tolist() for db in ("runs.db", "whole.db")]
    lost = 1 if name.endswith("reward.json") else 5  # no other file has the second trial's rewards
    assert [it for i, it in enumerate(rewards[0]) if i != lost] == [it for i, it in enumerate(rewards[1]) if i != lost]


def test_a_trial_without_the_agents_times_has_its_own(job: Path) -> None:
    times = {"started_at": "2026-11-01T12:00:00Z", "finished_at": "2026-11-01T12:02:00Z"}
    (one,) = _changed(job / "hello__AAAAAAA/result.json", lambda it: it.update(agent_execution=None, **times))
    assert one.seconds == 120.0


def test_a_lone_trajectory_lacks_what_no_trajectory_has(tmp_path: Path) -> None:
    written = json.loads((HERE / "lone.json").read_text()) | {"extra": None}
    (tmp_path / "lone.json").write_text(json.dumps(written))
    reader = AtifReader(tmp_path, ImportOptions())
    place = Place(tmp_path / "lone.json", "lone.json", "id", 1)
    (one,) = reader.rollouts(written, place)
    assert (one.reward, one.rewards, {*reader.describe(None).lacks} >= {*Lack, "rewards"}) == (None, None, True)


def test_a_version_that_is_not_known_is_read_with_a_note(tmp_path: Path) -> None:
    written = json.loads((HERE / "lone.json").read_text()) | {"schema_version": "ATIF-v9.9", "extra": None}
    (tmp_path / "lone.json").write_text(json.dumps(written))
    found = import_run(tmp_path, db=tmp_path / "a.db")
    note = "ATIF-v9.9 is not a version that is known: what is new in it may be missing."
    assert (found.rollouts, found.notes) == (1, [note])


def test_odd_values_pass(job: Path) -> None:
    file = job / "hello__AAAAAAA" / "agent" / "trajectory.json"
    written = json.loads(file.read_text())
    written["continued_trajectory_ref"] = "trajectory.json"  # a circle
    written["steps"][2] |= {"message": "\ud800\0" + "x" * 3_000_000, "metrics": {"cost_usd": float("nan")}}
    file.write_text(json.dumps(written))
    found = import_run(job, db=job / "runs.db")
    assert (found.rollouts, found.bad_count) == (5, 0)


def test_a_job_is_a_run_and_its_trials_are_rows(job: Path) -> None:
    found = import_run(job, db=job / "runs.db")
    assert (found.rollouts, found.bad, found.formats) == (5, [], {"atif": 12})
    assert import_run(job, db=job / "runs.db").runs == found.runs
    frame = load_run(found.runs[0], db=job / "runs.db")
    assert len(frame) == 5
    row = frame[frame.reward == 0.5].iloc[0]
    assert (row.task, row.model, row.status, row.stop_reason, row.turns) == ("hello", "tiny", "ok", "done", 2)
    assert (row.completion_tokens, row.env_tokens) == (5, 1)
    assert row.actions[0]["action"] == {"name": "bash_command", "arguments": {"keystrokes": "ls\n"}}
    assert row.actions[0]["observation"] == "hello.txt"
    assert frame.generation.tolist() == [0, 1, 2, 3, 4]
    assert frame[frame.stop_reason == "timeout"].reward.tolist() == [1.25]


def test_a_trial_that_runs_is_replaced_when_its_result_is_written(job: Path) -> None:
    held = (job / "hello__AAAAAAA" / "result.json").read_text()
    (job / "hello__AAAAAAA" / "result.json").unlink()
    with closing(Importer([job], ImportOptions(), db=job / "runs.db")) as importer:
        importer.take()
        (run,) = importer.result.runs
        before = load_run(run, db=job / "runs.db")
        (job / "hello__AAAAAAA" / "result.json").write_text(held)
        importer.take()
        after = load_run(run, db=job / "runs.db")
    assert (before.status == "running").sum() == 2
    assert (after.status == "running").sum() == 1
    assert len(before) == len(after) == 5
    assert before[before.generation == 0].reward.isna().all()
    assert after[after.generation == 0].reward.tolist() == [0.5]
    assert load_run(run, db=job / "runs.db").status.tolist().count("aborted") == 1  # its job had ended without it


def test_what_our_export_wrote_gives_the_same_rows(job: Path) -> None:
    (job / "hello__EEEEEEE" / "verifier").mkdir()
    result = job / "hello__EEEEEEE" / "result.json"
    result.write_text(result.read_text().replace('"reward": 0.75', '"reward": NaN, "style": 1.5'))
    (run,) = import_run(job, db=job / "runs.db").runs
    assert export_run(run, "atif", job / "out", job / "runs.db") == 5
    found = import_run(job / "out", db=job / "again.db")
    assert (found.rollouts, found.bad) == (5, [])
    before = load_run(run, db=job / "runs.db").sort_values("generation")
    after = load_run(found.runs[0], db=job / "again.db").sort_values("generation")
    for name in (
        *("mode", "step", "policy_step", "generation", "task", "eval_name", "status", "stop_reason", "error", "reward"),
        *("rewards", "reward_weights", "odd_rewards", "tags", "metrics", "turns", "prompt_tokens", "completion_tokens"),
        *("env_tokens", "returned", "seconds", "actions", "prompt_ids", "completion_ids", "mask"),
        *("logprobs", "env_steps", "advantage", "created", "scored"),
    ):
        left, right = ([repr(value) for value in frame[name]] for frame in (before, after))
        assert left == right, name


def test_the_run_has_the_jobs_name_and_configuration() -> None:
    reader = AtifReader(HERE, ImportOptions())
    file = HERE / "jobs" / "demo" / "hello__AAAAAAA" / "result.json"
    list(reader.rollouts(json.loads(file.read_text()), Place(file, "result.json", "id", 1)))
    described: Any = reader.describe(JOB)
    assert (described.name, described.num_generations) == ("demo", 5)
    assert described.config == {"job_name": "demo", "n_attempts": 5}
    assert described.lacks == ("advantages", "why the model's answers ended", "policy versions")
    assert reader.describe(None).name is None
