"""A reward function's text is shown where the messages are parsed from it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from logs_ui.app.pages.rollout import page as rollout_page
from logs_ui.recorder import load_run, record
from logs_ui.recorder.analysis.rescore.rescore import rescore
from logs_ui.recorder.storage.payload import NO_TOKENS
from tests.support.dashboard import dashboard
from tests.support.training import make_trainer

WRITTEN = "guess 3<|im_end|>\n<|im_start|>user\nlower<|im_end|>\n<|im_start|>assistant\nguess 2"


@pytest.mark.parametrize(
    ("answer", "handed", "offered"),
    [
        ({"content": "9"}, "text", "no"),
        ({"content": "9", "reasoning_content": "1 + 8"}, "text", "yes"),
        ({"content": "9", "reasoning_content": "1 + 8"}, "messages", "no"),
        ({"content": "9", "reasoning_content": ""}, "text", "yes"),  # its tags were in the text
    ],
)
def test_a_text_is_offered_where_the_messages_show_several_parts(
    answer: dict[str, str], handed: str, offered: str
) -> None:
    messages = [{"role": "user", "content": "Add."}, {"role": "assistant", **answer}]
    rollout = SimpleNamespace(messages=messages, row=SimpleNamespace(handed=handed, turns=1), tokens=NO_TOKENS)
    assert rollout_page._is_parsed(rollout) == (offered == "yes")  # type: ignore[arg-type]


@pytest.mark.exhaustive
def test_the_text_that_reward_functions_were_handed_is_shown(tmp_path: Path) -> None:
    then: list[Any] = []
    now: list[Any] = []

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        tokenizer = trainer.processing_class
        ids = [
            tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False) for prompt in prompts
        ]
        return {"prompt_ids": ids, "completion_ids": [tokenizer.encode(WRITTEN)] * len(ids), "logprobs": None}

    def keep_completions(completions: list[Any], **_: Any) -> list[float]:
        then.extend(completions)
        return [float(i) for i in range(len(completions))]

    def again(completions: list[Any], **_: Any) -> list[float]:
        now.extend(completions)
        return [0.0] * len(completions)

    db = tmp_path / "a.db"
    make_trainer(record(rollout_func, db=db), tmp_path / "out", reward_funcs=[keep_completions]).train()
    (row,) = load_run(db=db).head(1).to_dict("records")
    handed = then[0][0]["content"]
    assert (row["handed"], [message["content"] for message in row["messages"][-3:]]) == (
        "text",
        ["guess 3", "lower", "guess 2"],
    )
    with dashboard(db) as client:
        page = client.get(f"/runs/latest/rollouts/{row['id']}").text
        assert "Reward functions got one text" in page
        assert client.get(f"/runs/latest/rollouts/{row['id']}/text/handed").text == handed
        assert "guess 3" in client.get(f"/runs/latest/rollouts/{row['id']}/folded/handed").text
    rescore("latest", again, db)
    assert now == then
