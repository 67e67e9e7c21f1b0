"""Rollout functions that send another prompt than the dataset's: what was sent is what is shown."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

from logs_ui.recorder import load_run, record, start_run, trace_client
from tests.support.model_server import ModelServer, chat, completion
from tests.support.training import generate, make_trainer

Messages = list[dict[str, str]]

RULES = {"role": "system", "content": "Find my number. Answer like this: guess 5"}
QUESTION = {"role": "user", "content": "3 guesses, 1 to 3"}
REPLY = [{"role": "assistant", "content": "guess 3"}, {"role": "user", "content": "higher"}]
FOUR = {"role": "assistant", "content": "4"}


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def chatml(*messages: dict[str, str]) -> str:
    written = (f"<|im_start|>{it['role']}\n{it['content']}<|im_end|>\n" for it in messages)
    return "".join(written) + "<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("build", "kind", "is_heard"),
    [
        (lambda _: [RULES, QUESTION], "other", True),
        (lambda prompt: [*prompt, *REPLY], "extended", False),
    ],
)
def test_messages_hold_the_prompt_that_was_sent(
    build: Callable[[Messages], Messages], kind: str, *, is_heard: bool, tmp_path: Path
) -> None:
    sent: list[Messages] = []

    def rollout_func(prompts: list[Messages], trainer: Any) -> dict[str, Any]:
        tokenizer = trainer.processing_class
        sent.extend(build(prompt) for prompt in prompts)
        ids = [tokenizer.apply_chat_template(it, add_generation_prompt=True, return_dict=False) for it in sent[-8:]]
        sampled = [it.ids for it in generate(trainer, ids)] if is_heard else [tokenizer.encode("guess 2")] * len(ids)
        return {"prompt_ids": ids, "completion_ids": sampled, "logprobs": None, "env_reward": [1.0] * len(ids)}

    trainer = make_trainer(record(rollout_func, db=tmp_path / "a.db"), tmp_path / "out")
    trainer.train()
    spell = trainer.processing_class
    rows = load_run(db=tmp_path / "a.db", where=f"sent_prompt:{kind}").to_dict("records")
    assert len(rows) == len(sent)
    for row, asked in zip(rows, sent, strict=True):
        shown = [(message["role"], spell.encode(message["content"])) for message in row["messages"][:-1]]
        assert shown == [(message["role"], spell.encode(message["content"])) for message in asked]
        assert "dataset_prompt" in row["metadata"]


def test_messages_that_only_the_first_call_shows_are_shown(db: Path, server: ModelServer) -> None:
    server.gives(chat())
    with start_run(db=db) as run, run.rollout([QUESTION]) as row:
        asked: Any = {"model": "tiny", "messages": [RULES, QUESTION]}
        trace_client(requests.Session()).post(f"{server.url}/v1/chat/completions", json=asked)
        row.turn("guess 2")
    (stored,) = load_run(run.id, db=db).to_dict("records")
    assert stored["messages"][:2] == [RULES, QUESTION]
    assert (stored["sent_prompt"], stored["messages"][-1]["content"]) == ("extended", "guess 2")


@pytest.mark.parametrize(
    ("prompts", "shown", "kind"),
    [
        ([chatml(RULES, QUESTION)], [RULES, QUESTION], "extended"),
        (["3 guesses, 1 to 3\n", "3 guesses, 1 to 3\n4\nlower\n"], [QUESTION, FOUR, user("\nlower\n")], "dataset"),
        ([chatml(QUESTION), chatml(QUESTION, FOUR, user("lower"))], [QUESTION, FOUR, user("lower")], "dataset"),
    ],
)
def test_a_text_that_was_sent_is_shown(
    db: Path, server: ModelServer, prompts: list[str], shown: Messages, kind: str
) -> None:
    server.gives(*[completion("4", ids=False)] * len(prompts))
    with start_run(db=db) as run, run.rollout([QUESTION]):
        for prompt in prompts:
            asked: Any = {"model": "tiny", "prompt": prompt}
            trace_client(requests.Session()).post(f"{server.url}/v1/completions", json=asked)
    (stored,) = load_run(run.id, db=db).to_dict("records")
    assert (stored["messages"], stored["sent_prompt"]) == ([*shown, FOUR], kind)
