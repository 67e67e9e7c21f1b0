"""What a row says, from the calls that were seen and what the function returned; and that no text can break it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from logs_ui.recorder import load_run
from logs_ui.recorder.calls import CallLog, EnvironmentCall, Generation, Sequence
from logs_ui.recorder.chat import assistant_message, completion_messages
from logs_ui.recorder.clean import snapshot
from logs_ui.recorder.models import Mode
from logs_ui.recorder.output import OutputError, checked_output
from logs_ui.recorder.recording import ChangesJob
from logs_ui.recorder.rows import ReturnedJob, RolloutCall
from logs_ui.recorder.store import RunChange
from logs_ui.recorder.writer import Writer

END = 9
WORDS = {word: i for i, word in enumerate(["a", "b", "c", "d", "<unk>", "guess", "one", "two", "three", "end"])}


def tokenizer() -> Tokenizer:
    spelling = Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))  # noqa: S106 - a token, not a password
    spelling.pre_tokenizer = pre_tokenizers.Whitespace()
    return spelling


def env(order: int, kind: str, *, done: bool = False, error: str | None = None, **seen: Any) -> EnvironmentCall:
    observation = None if error else snapshot(seen.get("observation", {"hint": "higher"}))
    sent = snapshot(seen.get("sent", {"guess": 1} if kind == "step" else {}))
    return EnvironmentCall(order, order, 0.5, 0, kind, sent, observation, seen.get("reward", 0.25), done, None, error)


def generation(order: int, context: list[int], sampled: list[int], finish: str = "stop") -> Generation:
    sequence = Sequence(np.array(context, np.int32), np.array(sampled, np.int32), finish)
    return Generation(order, order, 0.5, [sequence], {"temperature": 0.7})


def recorded(
    db: Path, output: dict[str, Any], *calls: Generation | EnvironmentCall, prompt: Any = "a b", columns: Any = None
) -> dict[str, Any]:
    """The row that one call with one prompt becomes."""
    call = RolloutCall(
        run="r",
        launch="l",
        eval_name="e",
        mode=Mode.TRAIN,
        step=1,
        policy_step=0,
        epoch=None,
        batch=0,
        attempt=0,
        process=0,
        first=0,
        generations=1,
        model=None,
        prompts=[snapshot(prompt)],
        tasks=["t"],
        columns=None if columns is None else [snapshot(columns)],
        tokenizer=tokenizer(),
        calls=CallLog(
            [one for one in calls if isinstance(one, Generation)],
            [one for one in calls if isinstance(one, EnvironmentCall)],
        ),
    )
    writer = Writer(db)
    writer.put(ChangesJob(lambda: [RunChange("r", {"name": "r", "created": 1, "heartbeat": 1})]))
    writer.put(ReturnedJob(call, checked_output(output, 1), 2))
    assert writer.flush(30)
    (row,) = load_run(db=db).to_dict("records")
    return {str(name): value for name, value in row.items()}


def returned(completion: list[int], **more: Any) -> dict[str, Any]:
    return {"prompt_ids": [[0, 1]], "completion_ids": [completion], "logprobs": None, **more}


FIRST = generation(1, [0, 1], [5, 6, END])


@pytest.mark.parametrize(
    ("reason", "calls"),
    [
        ("done", [env(0, "reset"), FIRST, env(2, "step", done=True)]),
        ("turn_limit", [env(0, "reset"), FIRST, env(2, "step")]),
        ("no_action", [env(0, "reset"), FIRST]),
        ("length", [env(0, "reset"), generation(1, [0, 1], [5, 6, END], "length")]),
        ("environment_error", [env(0, "reset"), FIRST, env(2, "step", error="TimeoutError: 5 s")]),
        ("stop", [FIRST]),
        ("not_recorded", []),
    ],
)
def test_each_stop_reason_is_told_from_what_was_seen(tmp_path: Path, reason: str, calls: list[Any]) -> None:
    row = recorded(tmp_path / "a.db", returned([5, 6, END]), *calls)
    assert row["stop_reason"] == reason
    assert row["status"] == ("error" if reason == "environment_error" else "ok")


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
    assert all(set(action) == keys for action in row["actions"])
    reset, first, second = row["actions"]
    assert (reset["turn"], reset["action"], reset["metadata"]) == (0, None, {"reset": {"seed": 3}})
    assert (first["turn"], first["text"], first["action"], first["reward"]) == (1, "guess one end", {"guess": 1}, 0.25)
    assert (second["turn"], second["text"], second["done"]) == (2, "guess two end", True)
    assert [m["role"] for m in row["messages"]] == ["user", "assistant", "user", "assistant"]
    assert (row["turns"], row["completion_tokens"], row["env_tokens"]) == (2, 6, 1)
    assert (row["env_reward_sum"], row["env_reward_last"], row["rollout_reward"]) == (1.25, 1.0, 0.5)
    assert row["sampling"] == {"temperature": 0.7}
    assert row["seconds"] == 4.5


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
    assert row["messages"][0]["content"] == mended + huge
    assert row["actions"][0]["observation"]["huge"] == huge
    assert row["actions"][0]["observation"][mended] == mended
    assert row["actions"][0]["observation"]["bytes"] == "<2 bytes>"
    assert row["metadata"]["remark"] == mended
    assert row["metadata"]["number"] == str(2**80)
    assert row["metadata"]["nan"] is None
    assert row["error"] == "ValueError: half \ufffd of a pair, NUL \u2400"
    assert row["metadata"]["dataset"]["task"] == mended


def test_reasoning_and_tool_calls_are_told_from_the_content() -> None:
    message = assistant_message(
        "<think>\nI must look.\n</think>\n\nLooking."
        '<tool_call>\n{"name": "ls", "arguments": {"path": "/"}}\n</tool_call>'
    )
    assert message["reasoning_content"] == "I must look."
    assert message["content"] == "Looking."
    assert message["tool_calls"] == [
        {"id": "call_0", "type": "function", "function": {"name": "ls", "arguments": '{"path":"/"}'}}
    ]


@pytest.mark.parametrize("broken", ["<tool_call>\n{'name': oops}\n</tool_call>", "<tool_call>\n[1]\n</tool_call>"])
def test_a_tool_call_that_cannot_be_read_stays_in_the_content(broken: str) -> None:
    assert assistant_message(broken) == {"role": "assistant", "content": broken}


def test_reasoning_that_was_cut_off_is_reasoning() -> None:
    assert assistant_message("<think>\nand then") == {
        "role": "assistant",
        "reasoning_content": "and then",
        "content": "",
    }


class Spelt:
    """A tokenizer whose ids are the characters of a text: enough for what is read from decoded text."""

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens in (True, False)
        return "".join(map(chr, ids))


@pytest.mark.parametrize(
    ("inserted", "role", "content"),
    [
        ("<|im_end|>\n<|im_start|>user\nhigher<|im_end|>\n<|im_start|>assistant\n", "user", "higher"),
        (
            "<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
            "tool",
            "42",
        ),
        ("<|start_header_id|>ipython<|end_header_id|>\n\n42<|eot_id|>", "tool", "42"),
        ("\nsomething else\n", "user", "something else"),
    ],
)
def test_what_was_inserted_keeps_its_role(inserted: str, role: str, content: str) -> None:
    said = "ok"
    ids = np.array([ord(c) for c in said + inserted + said], np.int32)
    mask = np.array([1] * len(said) + [0] * len(inserted) + [1] * len(said), np.uint8)
    spelt: Any = Spelt()
    assert completion_messages(spelt, ids, mask) == [
        {"role": "assistant", "content": "ok"},
        {"role": role, "content": content},
        {"role": "assistant", "content": "ok"},
    ]


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
