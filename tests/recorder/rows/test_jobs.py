"""What a row says, from the calls that were seen and what the function returned; and that no text can break it."""

import errno
import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import numpy as np
import pytest
import requests
from msgspec import structs
from msgspec.structs import replace
from tokenizers import Tokenizer, models, pre_tokenizers

from logs_ui.recorder import current_row, flush, load_run, start_run, trace_env
from logs_ui.recorder.api.run_record import ChangesJob
from logs_ui.recorder.capture.calls import CallRecords, Collector, EnvironmentCall, Generation, Note, collecting
from logs_ui.recorder.capture.model_answers import Sequence
from logs_ui.recorder.capture.rollout_output import OutputError, checked_output
from logs_ui.recorder.capture.strands import current_strand
from logs_ui.recorder.delivery.writer import Writer
from logs_ui.recorder.errors import NoDatabaseError, RunNotFoundError
from logs_ui.recorder.guard import RAISE_VARIABLE
from logs_ui.recorder.rows.changes import changes_of
from logs_ui.recorder.rows.draft_batches import RowDraft
from logs_ui.recorder.rows.jobs import ColumnsJob, FailedJob, FinishedJob, ReturnedJob, RunningJob, reward_columns
from logs_ui.recorder.rows.rollout_call import OpenCall, RowOptions, TokenizerSource
from logs_ui.recorder.snapshot import snapshot
from logs_ui.recorder.storage.changes import RowChange, RunChange
from logs_ui.recorder.storage.payload import pack, unpack_content
from logs_ui.recorder.vocabulary import Mode, Status
from tests.support.changes import wait_until
from tests.support.late import guess_env, torch
from tests.support.rollouts import served_app

Call = Generation | EnvironmentCall | Note
END = 9
WORDS = {word: i for i, word in enumerate(["a", "b", "c", "d", "<unk>", "guess", "one", "two", "three", "end"])}


def tokenizer() -> TokenizerSource:
    spelling = Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))  # noqa: S106 - a token, not a password
    spelling.pre_tokenizer = pre_tokenizers.Whitespace()
    source = TokenizerSource.of(spelling)
    assert source is not None
    return source


def env(order: int, kind: str, *, done: bool = False, error: str | None = None, **seen: Any) -> EnvironmentCall:
    observation = None if error else snapshot(seen.get("observation", {"hint": "higher"}))
    sent = snapshot(seen.get("sent", {"guess": 1} if kind == "step" else {}))
    return EnvironmentCall(order, order, 0.5, 0, kind, sent, observation, seen.get("reward", 0.25), done, None, error)


def generation(order: int, context: list[int], sampled: list[int], finish: str | None = "stop") -> Generation:
    sequence = Sequence(np.array(context, np.int32), np.array(sampled, np.int32), finish)
    return Generation(order, order, 0.5, [sequence], {"temperature": 0.7})


def records(*calls: Call) -> CallRecords:
    seen = CallRecords()
    for one in calls:
        seen.keep(one, one.size)
    return seen


def begun(db: Path) -> Writer:
    writer = Writer(db)
    writer.put(ChangesJob(lambda: [RunChange("r", {"name": "r", "created": 1, "heartbeat": 1})]))
    return writer


def recorded(
    db: Path, output: dict[str, Any], *calls: Call, options: RowOptions | None = None, **differs: Any
) -> dict[str, Any]:
    call = rollout_call(records(*calls), options=options, **differs)
    writer = begun(db)
    writer.put(ReturnedJob(call, checked_output(output, 1), 2))
    assert writer.flush(30)
    return only_row(db)


def only_row(db: Path) -> dict[str, Any]:
    try:
        rows = load_run(db=db).to_dict("records")
    except (NoDatabaseError, RunNotFoundError):  # the writer has not come as far
        rows = []
    return {str(name): value for name, value in rows[0].items()} if rows else {"actions": []}


def rollout_call(
    calls: CallRecords | Collector, *, prompt: Any = "a b", columns: Any = None, options: RowOptions | None = None
) -> OpenCall:
    collector = calls if isinstance(calls, Collector) else Collector()
    if isinstance(calls, CallRecords):
        collector.records = calls
    batch: dict[str, Any] = {"run": "r", "launch": "l", "eval_name": "e", "step": 1, "policy_step": 0, "batch": 0}
    rows: dict[str, Any] = {"prompts": [snapshot(prompt)], "tasks": ["t"]}
    rows["columns"] = None if columns is None else [snapshot(columns)]
    source = tokenizer()
    options = options or RowOptions()
    return OpenCall(mode=Mode.TRAIN, source=source, collector=collector, options=options, **batch, **rows)


def content_of(change: object) -> dict[str, Any]:
    assert isinstance(change, RowDraft)
    return unpack_content(pack([change.content])[0])


def returned(completion: list[int], **more: Any) -> dict[str, Any]:
    return {"prompt_ids": [[0, 1]], "completion_ids": [completion], "logprobs": None, **more}


FIRST = generation(1, [0, 1], [5, 6, END])
SECOND = generation(3, [0, 1, 5, 6, END], [5, 7, END])
FAILED, REFUSED = env(2, "step", error="ValueError: no"), env(2, "step", error="ConnectionError: refused")


STOPS: list[tuple[str, list[Any]]] = [
    ("done", [env(0, "reset"), FIRST, env(2, "step", done=True)]),
    ("not_recorded", [env(0, "reset"), FIRST, env(2, "step")]),
    ("turn_limit", [env(0, "reset"), FIRST, env(2, "step"), SECOND, env(4, "step")]),
    ("no_action", [env(0, "reset"), FIRST]),
    ("length", [env(0, "reset"), generation(1, [0, 1], [5, 6, END], "length")]),
    ("environment_error", [env(0, "reset"), FIRST, REFUSED]),
    ("timeout", [env(0, "reset"), FIRST, env(2, "step", error="TimeoutError: 5 s")]),
    ("timeout", [env(0, "reset"), FIRST, env(2, "step", error="httpx.PoolTimeout: no connection")]),
    ("environment_error", [env(0, "reset", error="ValueError: the elevator is at capacity")]),
    ("environment_error", [env(0, "reset", error="TimeoutPolicyError: none is set")]),
    ("no_action", [env(0, "reset"), FIRST, FAILED, SECOND]),
    ("stop", [FIRST]),
    ("not_recorded", [generation(1, [0, 1], [5, 6, END], None)]),
    ("not_recorded", [generation(1, [0, 1], [5, 6, END], "abort")]),
    ("not_recorded", []),
    ("length", [env(0, "reset"), FIRST, env(2, "step"), Note(3, "stop", snapshot({"reason": "length"}))]),
    ("environment_error", [env(0, "reset"), FIRST, REFUSED, Note(3, "stop", snapshot({"reason": "length"}))]),
    ("timeout", [env(0, "reset"), FIRST, Note(3, "error", snapshot({"error": "TimeoutError: the model"}))]),
    ("environment_error", [env(0, "reset"), FIRST, REFUSED, Note(3, "error", snapshot({"error": "E: gone"}))]),
    ("stop", [FIRST, env(2, "tool", sent={"name": "look", "arguments": {}}), SECOND]),
]


def stored(db: Path, *rows: list[Any], options: RowOptions | None = None) -> list[dict[Any, Any]]:
    """What is stored of rows of these calls each."""
    writer = begun(db)
    for place, calls in enumerate(rows):
        sampled: list[Any] = [call.sequences[0].sampled for call in calls if isinstance(call, Generation)]
        completion = [int(token) for of_turn in sampled for token in of_turn]
        call = replace(rollout_call(records(*calls), options=options), batch=place, tasks=[f"{place:02}"])
        writer.put(ReturnedJob(call, checked_output(returned(completion or [5, 6, END]), 1), 2))
    assert writer.flush(30)
    return load_run(db=db).sort_values("task").to_dict("records")


def test_each_stop_reason_is_told_from_what_was_seen(db: Path) -> None:
    rows = stored(db, *(calls for _, calls in STOPS))
    ends = [(row["stop_reason"], row["status"]) for row in rows]
    assert ends == [(reason, "error" if reason in {"environment_error", "timeout"} else "ok") for reason, _ in STOPS]
    errors = [None, "ConnectionError: refused", "TimeoutError: the model", "ConnectionError: refused"]
    assert [row["error"] for row in rows[-5:-1]] == errors, "of those with a note"


def test_what_the_users_parser_finds_no_action_in_is_none(db: Path) -> None:
    """Whatever was sent, and without an environment, too."""
    used = [FIRST, env(2, "tool", sent={"name": "look", "arguments": {}}), SECOND]
    played = [env(0, "reset"), FIRST, env(2, "step"), SECOND, env(4, "step")]
    cut_off = [[generation(1, [0, 1], [5, 7, END], finish)] for finish in (None, "abort", "content_filter", "error")]
    parse = RowOptions(parse=lambda text: None if "two" in text else text)
    ends = stored(db, used, played, [generation(1, [0, 1], [5, 7, END])], *cut_off, options=parse)
    reasons = ["no_action"] * 3 + ["not_recorded"] * len(cut_off)
    assert [(row["status"], row["stop_reason"]) for row in ends] == [("ok", reason) for reason in reasons]
    parsed = [[entry["metadata"] for entry in row["actions"] if entry["turn"]] for row in ends]
    assert parsed == 2 * [[{"parsed": True}, {"parsed": False}]] + (1 + len(cut_off)) * [[{"parsed": False}]]


class SlowError(TimeoutError):
    """As an environment's own."""


class TimeoutPolicyError(ValueError):
    """No timeout, though it is named after one."""


class Raising:
    """An environment whose step raises what it is sent."""

    def step(self, error: Exception) -> None:
        raise error


BROKEN: list[tuple[Any, str]] = [
    (SlowError("it took more than 60 s"), "timeout"),
    (aiohttp.SocketTimeoutError("on reading from the socket"), "timeout"),
    (httpx.PoolTimeout("no connection"), "timeout"),
    (requests.exceptions.ReadTimeout("no answer"), "timeout"),
    (OSError(errno.ETIMEDOUT, "Connection timed out"), "timeout"),
    (TimeoutPolicyError("none is set"), "environment_error"),
    (ConnectionError("TimeoutError: of somebody else"), "environment_error"),
    (ValueError("the elevator is at capacity"), "environment_error"),
    (RuntimeError("Server error: the elevator is at capacity (code: EXECUTION_ERROR)"), "environment_error"),
]


def test_why_an_environment_broke_is_told_by_the_exceptions_type(db: Path) -> None:
    environment = trace_env(Raising())
    with start_run(db=db) as run:
        for error, _ in BROKEN:
            with run.rollout("p"), pytest.raises(type(error)):
                environment.step(error)
            with run.rollout("p") as row:
                row.turn("a", finish="stop")
                with suppress(type(error)):
                    environment.step(error)
            with run.rollout("p"):
                current_row().failed(error)
    rows = load_run(db=db).sort_values("created", kind="stable").to_dict("records")
    last = {"timeout": "timeout", "environment_error": "exception"}
    reasons = [told for _, reason in BROKEN for told in (reason, reason, last[reason])]
    assert [(row["status"], row["stop_reason"]) for row in rows] == [("error", reason) for reason in reasons]


@pytest.fixture
def full_server() -> Iterator[str]:
    """The address of an OpenEnv server with room for one session."""
    from openenv.core.env_server.http_server import create_app

    kinds = guess_env.GuessEnvironment, guess_env.GuessAction, guess_env.GuessObservation
    with served_app(create_app(*kinds, env_name="guess", max_concurrent_envs=1)) as url:
        yield url


def test_a_server_without_a_session_left_is_told_by_its_own_words(full_server: str, db: Path) -> None:
    with guess_env.GuessEnv(base_url=full_server).sync() as first, start_run(db=db) as run:
        first.reset(task="easy: 1-3", seed=1)
        with run.rollout("p"), pytest.raises(RuntimeError), guess_env.GuessEnv(base_url=full_server).sync() as second:
            second.reset(task="easy: 1-3", seed=1)
        assert flush()
        (refused,) = load_run(db=db).error
        with run.rollout("p") as row:
            row.turn(error=refused)
    rows = load_run(db=db).to_dict("records")
    assert [row["stop_reason"] for row in rows] == ["at_capacity"] * 2, "also where somebody passes its words on"


def test_an_action_goes_from_the_models_text_to_what_came_back(tmp_path: Path) -> None:
    row = recorded(
        tmp_path / "a.db",
        returned([5, 6, END, 2, 5, 7, END], env_mask=[[1, 1, 1, 0, 1, 1, 1]], env_reward=[0.5]),
        env(0, "reset", sent={"seed": 3}, observation={"range": "1-3"}, reward=None),
        FIRST,
        env(2, "step", sent={"guess": 1}),
        generation(3, [0, 1, 5, 6, END, 2], [5, 7, END]),
        env(4, "step", sent={"guess": 2}, done=True, reward=1.0),
    )
    keys = {"turn", "text", "action", "observation", "reward", "done", "metadata", "seconds", "error"}
    assert [set(action) - keys for action in row["actions"]] == [set(), {"generation"}, {"generation"}]
    reset, first, second = row["actions"]
    assert (reset["turn"], reset["action"], reset["metadata"]) == (0, None, {"reset": {"seed": 3}})
    assert (first["turn"], first["text"], first["action"], first["reward"]) == (1, "guess one end", {"guess": 1}, 0.25)
    assert (second["turn"], second["text"], second["done"]) == (2, "guess two end", True)
    assert [m["role"] for m in row["messages"]] == ["user", "assistant", "user", "assistant"]
    assert (row["turns"], row["completion_tokens"], row["env_tokens"]) == (2, 6, 1)
    assert (row["env_reward_sum"], row["env_reward_last"], row["rollout_reward"]) == (1.25, 1.0, 0.5)
    assert row["sampling"] == {"temperature": 0.7}
    assert row["seconds"] == 4.5


def test_a_correction_takes_back_what_was_not_finite() -> None:
    assert reward_columns(None, {"a": 1.0}, {"a": 0.0})["reward"] == 0.0, "a function of no weight"
    assert reward_columns(math.nan, None, {}) == {"reward": None, "odd_rewards": {"reward": "nan"}}
    assert reward_columns(2.0, None, {}) == {"reward": 2.0, "odd_rewards": None}


def test_no_text_breaks_a_row(tmp_path: Path) -> None:
    lone, huge = "half \ud83d of a pair, NUL \0", "x" * 3_000_000
    row = recorded(
        tmp_path / "a.db",
        returned([5, 6, END], remark=[lone], number=[2**80], nan=[float("nan")], thing=[object()]),
        env(0, "reset", observation={lone: lone, "huge": huge, 7: {1, 2}, "bytes": b"\xff\xfe"}),
        FIRST,
        env(2, "step", error=f"ValueError: {lone}"),
        prompt=[{"role": "user", "content": lone + huge}],
        columns={"task": lone},
    )
    mended = "half \ufffd of a pair, NUL \0"
    assert row["metadata"]["dataset_prompt"][0]["content"] == mended + huge
    assert row["actions"][0]["observation"]["huge"] == huge
    assert row["actions"][0]["observation"][mended] == mended
    assert row["actions"][0]["observation"]["bytes"] == "<2 bytes>"
    assert row["metadata"]["remark"] == mended
    assert row["metadata"]["number"] == str(2**80)
    assert row["metadata"]["nan"] is None
    assert row["error"] == "ValueError: half \ufffd of a pair, NUL \u2400"
    assert row["metadata"]["dataset"]["task"] == mended


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (None, "returned a NoneType, where a dict is needed"),
        ({"prompt_ids": [[1]]}, "returned no 'completion_ids' and no 'logprobs'"),
        ({"prompt_ids": [[1]], "completion_ids": [[1]] * 2, "logprobs": None}, "2 'completion_ids' for 1 prompts"),
        ({"prompt_ids": 3, "completion_ids": [[1]], "logprobs": None}, "'prompt_ids' as a int, where a list"),
        ({"prompt_ids": [[1]], "completion_ids": [[]], "logprobs": None}, "an empty completion for row 0"),
    ],
)
def test_a_return_that_the_trainer_cannot_take_is_named(output: Any, words: str) -> None:
    with pytest.raises(OutputError, match=words):
        checked_output(output, 1)


def test_a_row_is_there_at_once_and_its_text_follows_unless_the_users_edit_must_see_it_first() -> None:
    def written(job: RunningJob) -> RowChange | RowDraft:
        (change,) = changes_of(job)
        columns = change.change.columns if isinstance(change, RowDraft) else change.columns  # type: ignore[union-attr]
        assert (columns["status"], columns["task"]) == ("running", "t")
        assert isinstance(change, RowChange | RowDraft)
        return change

    edits = (None, lambda row: row)
    running, edited = (RunningJob(rollout_call(Collector(), options=RowOptions(edit=edit))) for edit in edits)
    assert isinstance(written(running), RowChange)
    assert content_of(written(running))["messages"] == [{"role": "user", "content": "a b"}]
    assert isinstance(written(edited), RowDraft)


@pytest.mark.parametrize("given", [[-0.5, None], (-0.5, float("nan")), [[-0.5, -3.0], [None]], "tensor"])
def test_log_probs_come_as_numbers_or_as_lists_of_alternatives(given: Any) -> None:
    given = torch.tensor([-0.5, float("nan")]) if given == "tensor" else given
    output = checked_output(returned([5, 6], logprobs=[given], env_mask=[[0.5, 0]]), 1)
    tokens = output.tokens(0)
    assert tokens.logprobs is not None
    assert str(tokens.logprobs.tolist()) == "[-0.5, nan]"
    assert tokens.mask is not None
    assert tokens.mask.tolist() == [1, 0]
    assert all(array.flags.writeable for array in (tokens.prompt_ids, tokens.completion_ids, tokens.mask))


@pytest.mark.parametrize(
    "given", [[2, 0, 1], (1, 0, 300), [True, False, -1], [1.0, 0.0, 0.5], np.array([1.0, 0.0, 2.0])]
)
def test_a_mask_of_any_numbers_is_kept_as_zeros_and_ones(given: Any) -> None:
    mask = checked_output(returned([5, 6, 7], env_mask=[given]), 1).tokens(0).mask
    assert mask is not None
    assert mask.tolist() == [1, 0, 1]


def test_a_row_shows_what_it_waits_for_while_it_waits(db: Path) -> None:
    writer, call = begun(db), rollout_call(Collector())
    running = RunningJob(call)
    writer.put(running)
    writer.follow(running)
    with collecting(call.collector):
        strand = current_strand()
        assert strand is not None
        call.collector.begin(strand, "reset", object(), b'{"seed":3}')
        wait_until(lambda: bool(only_row(db)["actions"]))
        row = only_row(db)
    (waiting,) = row["actions"]
    assert (row["status"], row["stop_reason"]) == ("running", None)
    assert (waiting["turn"], waiting["seconds"], waiting["metadata"]["waiting"]) == (0, None, True)
    call.settled = True


def test_a_user_may_change_what_is_stored_and_leave_rows_out(tmp_path: Path) -> None:
    def edit(row: dict[str, Any]) -> dict[str, Any] | None:
        return None if row["task"] == "secret" else row | {"messages": [], "completion_ids": None, "error": "-"}

    kept = recorded(tmp_path / "a.db", returned([5, 6, END]), FIRST, options=RowOptions(edit=edit))
    assert (kept["messages"], kept["completion_ids"], kept["error"]) == ([], None, "-")
    db = tmp_path / "b.db"
    call = replace(rollout_call(Collector(), options=RowOptions(edit=edit)), tasks=["secret"])
    job = ReturnedJob(call, checked_output(returned([5, 6, END]), 1), 2)
    assert list(changes_of(job)) == list(changes_of(ColumnsJob(call, [{"reward": 1.0}]))) == []
    assert not db.exists()


def test_what_a_full_queue_leaves_of_a_row_takes_the_place_of_what_it_showed_while_it_ran(db: Path) -> None:
    call = rollout_call(records(FIRST), columns={"answer": 1})
    writer, running = begun(db), RunningJob(call)
    for _ in range(2):
        writer.put(running)
        assert writer.flush(30)
    assert list(only_row(db)["completion_ids"]) == [5, 6, END]
    output = returned([5, 6, END, 2, 7], env_mask=[[1, 1, 1, 0, 1]], env_reward=[0.5])
    header = ReturnedJob(call, checked_output(output, 1), 2).without_payload()
    assert (call.calls.size, call.prompts, call.columns) == (0, [b"[]"], None)
    assert header.without_payload() is header
    writer.put(header)
    assert writer.flush(30)
    row = only_row(db)
    assert {name: row[name] for name in ("status", "stop_reason", "task", "message_count", "rollout_reward")} == {
        "status": "ok", "stop_reason": "not_recorded", "task": "t", "message_count": 0, "rollout_reward": 0.5,
    }  # fmt: skip
    assert (row["prompt_tokens"], row["completion_tokens"], row["env_tokens"]) == (2, 4, 1)
    assert (row["messages"], row["actions"], row["metadata"], row["completion_ids"]) == ([], [], {}, None)
    assert row["error"].startswith("logs-ui dropped its text: ")


def test_a_failed_row_without_its_text_keeps_its_error_and_traceback() -> None:
    job = FailedJob(rollout_call(records(FIRST)), "ValueError: " + "x" * 280, "Traceback: no", Status.ERROR, 2)
    size, header = job.size, job.without_payload()
    assert header.size < size + 1_000
    draft = next(c for c in changes_of(header) if isinstance(c, RowDraft))
    assert content_of(draft)["metadata"] == {"traceback": "Traceback: no"}
    change = draft.change
    assert (change.columns["status"], change.columns["stop_reason"]) == ("error", "exception")
    error = change.columns["error"]
    assert error.startswith("ValueError: xxx")
    assert error.endswith("(logs-ui dropped its text: what waited to be written took too much memory)")


def test_a_row_without_its_text_is_edited_and_left_out_as_any_other() -> None:
    def edit(row: dict[str, Any]) -> dict[str, Any] | None:
        return None if row["task"] == "secret" else row | {"task": "edited"}

    output = checked_output(returned([5, 6, END]), 1)
    call = replace(rollout_call(Collector(), options=RowOptions(edit=edit)), tasks=["secret"])
    changes = list(changes_of(ReturnedJob(call, output, 2).without_payload()))
    assert changes == [RunChange("r", {}, dropped_payloads=0)]
    assert list(changes_of(ColumnsJob(call, [{"reward": 1.0}]))) == []
    call = rollout_call(Collector(), options=RowOptions(edit=edit))
    told, change = changes_of(ReturnedJob(call, output, 2).without_payload())
    assert told == RunChange("r", {}, dropped_payloads=1)
    assert isinstance(change, RowDraft)
    assert change.change.columns["task"] == "edited"


def test_a_prompt_that_names_its_task_is_kept_without_the_other_text() -> None:
    call = replace(rollout_call(Collector()), prompts=[b"1", b"2"], tasks=["t", None])
    call.drop_text()
    assert call.prompts == [b"[]", b"2"]


def test_an_edit_that_raises_shows_nothing_of_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)

    def edit(row: dict[str, Any]) -> dict[str, Any] | None:
        raise KeyError(row["preview"])

    row = recorded(tmp_path / "a.db", returned([5, 6, END]), FIRST, options=RowOptions(edit=edit))
    assert (row["messages"], row["completion_ids"]) == ([], None)
    assert row["error"] == "logs-ui could not encode this rollout"


def test_a_tools_own_calls_are_its_childrens_and_give_it_their_reward(tmp_path: Path) -> None:
    sent = snapshot({"name": "move", "arguments": {"to": 1}})
    tool = EnvironmentCall(2, 2, 0.5, 0, "tool", sent, snapshot("ok"), None, None, None, None)
    inner = structs.replace(env(3, "step", done=True, reward=0.75), within=2, client=1)
    row = recorded(tmp_path / "a.db", returned([5, 6, END]), FIRST, tool, inner)
    (action,) = row["actions"]
    assert action["action"] == {"name": "move", "arguments": {"to": 1}}
    assert (action["reward"], action["done"], row["stop_reason"]) == (0.75, True, "done")
    assert [call["action"] for call in action["metadata"]["calls"]] == [{"guess": 1}]
    assert row["env_reward_sum"] == 0.75


def test_what_a_function_says_of_its_row_is_kept(tmp_path: Path) -> None:
    notes = [Note(2, "note", b'{"seen":1,"kept":2}'), Note(3, "note", b'{"seen":3}'), Note(4, "tag", b'["a"]')]
    notes += [Note(5, "tag", b'["b"]'), Note(6, "metric", b'{"score":0.5}')]
    row = recorded(tmp_path / "a.db", returned([5, 6, END]), FIRST, *notes)
    said = {name: row["metadata"][name] for name in ("notes", "tags", "metrics")}
    assert said == {"notes": {"seen": 3, "kept": 2}, "tags": ["a", "b"], "metrics": {"score": 0.5}}


def test_a_chat_whose_server_returned_no_ids_is_told_by_what_it_was_sent(tmp_path: Path) -> None:
    sent = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}, {"role": "user", "content": "d"}]
    reply = {"role": "assistant", "content": "guess one"}
    sequence = Sequence(None, None, "stop", messages=snapshot(sent), reply=snapshot(reply), completion_tokens=2)
    call = rollout_call(records(Generation(1, 1, 0.5, [sequence], {"api_key": "k", "temperature": 1.0}, "openai")))
    (draft,) = changes_of(FailedJob(call, "ValueError", None, Status.ERROR, 2))
    assert isinstance(draft, RowDraft)
    content, change = content_of(draft), draft.change
    assert content["messages"] == [*sent, reply]
    assert content["sampling"] == {"api_key": "***", "temperature": 1.0}
    assert (change.columns["completion_tokens"], change.columns["preview"]) == (2, "guess one")


def test_an_error_keeps_the_end_of_the_servers_log(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("x" * 5_000 + "\nout of memory\n")
    calls: list[Any] = [env(0, "reset"), FIRST, env(2, "step", error="ConnectionError: gone")]
    row = recorded(tmp_path / "a.db", returned([5, 6, END]), *calls, options=RowOptions(server_log=log))
    assert row["metadata"]["server_log"].endswith("x\nout of memory\n")
    assert len(row["metadata"]["server_log"]) == 4_000


def test_log_probs_of_calls_are_a_rows_whose_function_returned_none(tmp_path: Path) -> None:
    logprobs = np.array([-0.5, -1e6, -2.0], np.float32)
    made = [FIRST, generation(3, [0, 1, 5, 6, END, 2], [5, 7, END])]
    first, second = (
        structs.replace(one, sequences=[structs.replace(one.sequences[0], logprobs=logprobs)]) for one in made
    )
    row = recorded(tmp_path / "a.db", returned([5, 6, END, 2, 5, 7, END]), first, env(2, "step"), second)
    expected = [-0.5, -np.inf, -2.0, np.nan, -0.5, -np.inf, -2.0]
    assert row["logprobs"].tolist() == pytest.approx(expected, nan_ok=True)
    own = recorded(tmp_path / "b.db", returned([5, 6, END], logprobs=[[-3.0, -3.0, -3.0]]), first)
    assert own["logprobs"].tolist() == [-3.0] * 3, "what the function returned is what was trained on"


def test_calls_of_nobody_are_counted_of_an_explicit_rollout_too() -> None:
    call = rollout_call(records(Note(0, "tag", b'["a"]')))
    for output in (None, checked_output(returned([5, 6, END]), 1)):
        made = changes_of(FinishedJob(call, output, b"{}", {}, 1))
        lost = [change for change in made if isinstance(change, RunChange)]
        assert sum(change.unattributed_calls for change in lost) == 1
        assert sum(change.unseen_sampling for change in lost) == (output is not None)
        call.calls.notes.append(Note(0, "tag", b'["a"]'))
