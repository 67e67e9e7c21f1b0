"""What a server and a tool said is shown as they said it, also where token ids hold more, or a template adds to it."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import openai
import orjson
import pytest
import requests
from tokenizers import Tokenizer, decoders, models

from logs_ui.recorder import flush, load_run, record, start_run, trace_client
from logs_ui.recorder.rows.actions import note_empty_answers
from logs_ui.recorder.rows.chat_parser import Spelling, completion_messages
from tests.support.model_server import ModelServer, chat, chat_choice, completion
from tests.support.old_calls import call_as_025

LETTERS = "".join(map(chr, range(32, 127))) + "\n"
QUESTION: Any = [{"role": "user", "content": "2 + 2"}]
STOP = "</answer>"

# What the model sampled, the text that the server returned for it, and its message beside the content.
Said = tuple[str, str, dict[str, Any]]
CUT: list[Said] = [
    ("<answer>4</answer>", "<answer>4", {}),
    ("<answer>4\n\n</answer> ", "<answer>4\n\n", {}),  # the last token holds more than the stop text
    ("</answer>", "", {}),
    ("<think>I add.</think>\n\n4</answer>", "\n\n4", {"reasoning_content": "I add."}),
]
WHOLE: list[Said] = [
    ("<answer>4</answer>", "<answer>4</answer>", {}),  # include_stop_str_in_output
    ("4", "4", {}),
    ("4 </answer> 5", "4 </answer> 5", {}),  # stopped by another text, or a token
]


def tokenizer() -> Tokenizer:
    made = Tokenizer(models.WordLevel({letter: i for i, letter in enumerate(LETTERS)}, unk_token=" "))  # noqa: S106 - no password
    made.decoder = decoders.Fuse()
    return made


class Fast:
    backend_tokenizer = tokenizer()


def ids(text: str) -> list[int]:
    return [LETTERS.index(letter) for letter in text]


def reply(said: Said, **choice: Any) -> dict[str, Any]:
    sampled, content, more = said
    one = chat_choice(content=content, **more) | {"token_ids": ids(sampled), "logprobs": None} | choice
    return chat(one) | {"prompt_token_ids": ids("2 + 2")}


def shown(db: Path) -> list[tuple[str, str]]:
    """The content of each row's answer, and the text of its action."""
    rows: list[Any] = load_run(db=db).sort_values("created", kind="stable").to_dict("records")
    for row in rows:
        assert row["completion_ids"].tolist() == ids(row["metadata"]["sampled"]), "the tokens are all that was sampled"
    return [(row["messages"][-1]["content"], row["actions"][0]["text"]) for row in rows]


def ask(server: ModelServer, **more: Any) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        client.chat.completions.create(model="tiny", messages=QUESTION, **more)


def test_a_stop_text_is_cut_as_the_server_cut_it(db: Path, server: ModelServer) -> None:
    cases: list[Any] = [*product(CUT + WHOLE, [STOP, ["##", STOP]])]
    limited: Said = ("4</answer>", "", {})  # at its limit, an answer is whole
    server.gives(*(reply(said) for said, _ in cases), *[reply(limited, finish_reason="length")] * 2)
    with start_run(db=db, tokenizer=Fast()) as run:
        for said, stop in [*cases, (limited, None), (limited, STOP)]:
            with run.rollout(QUESTION, metadata={"sampled": said[0]}):
                ask(server, **({} if stop is None else {"stop": stop}))
    expected = []
    for (sampled, text, more), _ in cases:
        thought = sampled.partition("</think>")[0] + "</think>" if more else ""
        expected.append((text.strip() if thought else text, thought + text))
    assert shown(db) == [*expected, *[("4</answer>", "4</answer>")] * 2]


def test_so_is_it_in_a_rollout_function_and_by_another_client(db: Path, server: ModelServer) -> None:
    sampled, text, _ = CUT[0]
    choice = completion(text, prompts=(ids("2 + 2"),))["choices"][0]
    server.gives(
        {"id": "cmpl-1", "choices": [choice | {"token_ids": ids(sampled), "logprobs": None, "finish_reason": "stop"}]}
    )

    def rollout(_given: list[Any], _args: Any, _processing: Any) -> dict[str, Any]:
        asked: Any = {"model": "tiny", "prompt": ids("2 + 2"), "stop": STOP, "return_token_ids": True}
        trace_client(requests.Session()).post(f"{server.url}/v1/completions", json=asked)
        return {"prompt_ids": [ids("2 + 2")], "completion_ids": [ids(sampled)], "logprobs": None, "sampled": sampled}

    call_as_025(record(rollout, db=db, announce=False), [QUESTION], Fast())
    assert flush()
    assert shown(db) == [(text, text)]


@pytest.mark.parametrize(
    "said", ["a.txt\nb.txt\n", "\n\n", "", " \n", "one\n\n\n", "\nfirst", orjson.dumps({"a": "b\n"}).decode()]
)
@pytest.mark.parametrize("template", ["qwen", "several", "llama", "user"])
def test_an_inserted_message_keeps_its_line_breaks(said: str, template: str) -> None:
    written = {
        "qwen": f"<|im_start|>user\n<tool_response>\n{said}\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
        "several": f"<|im_start|>user\n<tool_response>\n{said}\n</tool_response>\n<tool_response>\n{said}\n"
        "</tool_response><|im_end|>\n<|im_start|>assistant\n",
        "llama": f"<|start_header_id|>ipython<|end_header_id|>\n\n{said}<|eot_id|>",
        "user": f"<|im_start|>user\n{said}<|im_end|>\n",
    }[template]
    inserted = np.array(ids(written), np.int32)
    found = completion_messages(Spelling(tokenizer()), inserted, np.zeros(len(inserted), np.uint8))
    role = "user" if template == "user" else "tool"
    assert found == [{"role": role, "content": said}] * (2 if template == "several" else 1)


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param([], id="no room for the last answer"),
        pytest.param(["", "no such tool"], id="an answer that the trainer gave itself"),
    ],
)
def test_what_the_model_was_sent_nothing_of_is_noted_turn_by_turn(rest: list[str]) -> None:
    empty: dict[str, Any] = {"action": {}, "observation": [], "metadata": None}
    entries = [{"turn": 1, "text": "a", **empty}, {"turn": 2, "text": "b", **empty}]
    said: dict[str, Any] = {"role": "assistant", "content": ""}
    heard = [{"role": "tool", "content": content} for content in rest]
    note_empty_answers(entries, [*QUESTION, said, {"role": "tool", "content": ""}, said, *heard], turns=2)
    assert [entry["metadata"] for entry in entries] == [{"sent": ""}, None]
