"""The prompt that was sent to the model, held against the dataset's."""

from typing import Any

import pytest

from logs_ui.recorder.rows.chat_parser import templated
from logs_ui.recorder.rows.sent_prompt import compare_messages, compare_prompt

Messages = list[dict[str, Any]]

SYSTEM, QUESTION = {"role": "system", "content": "Play."}, {"role": "user", "content": "2 + 2?"}
PARTS = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "2 + 2?"}]}
ABOUT_WORDS = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Which model?"}]}
LONG = " What the environment shows." * 5
CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def system(content: str) -> dict[str, Any]:
    return {"role": "system", "content": content}


def assistant(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


TRIES, SURE, SHOWN = system("You have 5 tries."), user("Sure?"), user("<|image_pad|>2 + 2?")
UNKNOWN = "<|im_start|>user<|im_sep|>3 + 3?<|im_end|>"


def chatml(*messages: dict[str, Any]) -> str:
    written = (f"<|im_start|>{it['role']}\n{it['content']}<|im_end|>\n" for it in messages)
    return "".join(written) + "<|im_start|>assistant\n"


def compared(given: Messages, text: str, **options: Any) -> tuple[Messages, str | None]:
    return compare_prompt(given, templated(text, with_open=True), text, **options)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([SYSTEM, QUESTION], chatml(SYSTEM, QUESTION)),
        ([QUESTION], chatml(user("2 + 2?\n"))),
        ([PARTS], chatml(user("<|vision_start|><|image_pad|><|image_pad|><|vision_end|>2 + 2?"))),
        ([ABOUT_WORDS], chatml(user("<|image_pad|>Which model?"))),
        ([QUESTION, CALL, user("7")], chatml(QUESTION, assistant("<tool_call>\n{}\n</tool_call>"), user("7"))),
        ([QUESTION, assistant("It is")], "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\nIt is"),
        ([QUESTION], "[gMASK]<sop><|user|>\n2 + 2?<|assistant|>\n"),
        ([SYSTEM, QUESTION], "<s>[SYSTEM_PROMPT]Play.[/SYSTEM_PROMPT][INST]2 + 2?[/INST]"),
        ([user(chatml(QUESTION))], chatml(QUESTION)),  # a dataset of texts with a template's marks
        ([QUESTION], "2 + 2?"),
        ([SYSTEM, QUESTION], "<start_of_turn>user\nPlay.\n\n2 + 2?<end_of_turn>\n<start_of_turn>model\n"),
        ([SYSTEM, QUESTION], "[INST] Play.\n\n2 + 2? [/INST]"),
    ],
)
def test_the_datasets_prompt_is_shown_where_it_was_sent(given: Messages, text: str) -> None:
    assert compared(given, text) == (given, "dataset")


@pytest.mark.parametrize(
    ("given", "text", "shown"),
    [
        ([QUESTION], chatml(SYSTEM, QUESTION), [SYSTEM, QUESTION]),
        ([SYSTEM], chatml(SYSTEM, user("a room")), [SYSTEM, user("a room")]),
        ([SYSTEM], chatml(system("Play.\n\nWell.")), [system("Play.\n\nWell.")]),
        ([QUESTION], chatml(user("Think first. 2 + 2?")), [user("Think first. 2 + 2?")]),
        ([user("二加二")], chatml(user("请算二加二是多少")), [user("请算二加二是多少")]),
        ([user("5")], chatml(TRIES, user("Guess 5")), [TRIES, user("Guess 5")]),
        ([QUESTION], chatml(QUESTION) + "<answer>It is", [QUESTION, assistant("<answer>It is")]),
        ([QUESTION], "in French.<|im_end|>\n" + chatml(QUESTION), [user("in French."), QUESTION]),
        ([QUESTION], chatml(QUESTION, assistant("5"), user("No.")), [QUESTION, assistant("5"), user("No.")]),
        ([PARTS, QUESTION], chatml(SHOWN, QUESTION, user("more")), [PARTS, QUESTION, user("more")]),
        ([QUESTION], "2 + 2?\na room", [user("2 + 2?\na room")]),
        ([SYSTEM, QUESTION], f"[INST] Play. 2 + 2?{LONG} [/INST]", [user(f"[INST] Play. 2 + 2?{LONG} [/INST]")]),
    ],
)
def test_what_was_sent_with_it_is_shown_too(given: Messages, text: str, shown: Messages) -> None:
    assert compared(given, text) == (shown, "extended")


@pytest.mark.parametrize(
    ("given", "text", "shown"),
    [
        ([QUESTION], chatml(SYSTEM, user("a room")), [SYSTEM, user("a room")]),
        ([SYSTEM, QUESTION], chatml(QUESTION), [QUESTION]),
        ([SYSTEM, QUESTION], "me what is 3 + 3?<|im_end|>\n<|im_start|>assistant\n", [user("me what is 3 + 3?")]),
        ([QUESTION], "Choose a tool: search, sum", [user("Choose a tool: search, sum")]),
        ([QUESTION], "12 + 2?", [user("12 + 2?")]),
        ([QUESTION], UNKNOWN, [user(UNKNOWN)]),
        ([user("5")], chatml(TRIES), [TRIES]),
        ([QUESTION, assistant("4"), SURE], chatml(QUESTION, assistant("17"), SURE), [QUESTION, assistant("17"), SURE]),
        ([QUESTION, assistant("It is")], chatml(QUESTION), [QUESTION]),
        ([QUESTION, user("Answer.")], "[INST] 2 + 2? [/INST]", [user("[INST] 2 + 2? [/INST]")]),
    ],
)
def test_another_prompt_is_shown_in_place_of_the_datasets(given: Messages, text: str, shown: Messages) -> None:
    assert compared(given, text) == (shown, "other")


def test_what_an_unknown_template_wrote_is_not_judged() -> None:
    text = "A game. Play. 2 + 2?"
    assert compared([SYSTEM, QUESTION], text) == ([user(text)], None)
    assert compared([SYSTEM, QUESTION], "") == ([SYSTEM, QUESTION], None)
    assert compared([user("")], chatml(QUESTION)) == ([QUESTION], None)


def test_a_message_without_text_need_not_be_sent() -> None:
    assert compared([system(""), QUESTION], chatml(QUESTION)) == ([QUESTION], "dataset")


def test_a_tokenizer_may_lose_some_of_a_text() -> None:
    assert compared([SYSTEM], chatml(system("play .")), respell=lambda _: "play .") == ([SYSTEM], "dataset")


def test_messages_that_a_client_sent_are_compared_as_they_are() -> None:
    assert compare_messages([QUESTION], [QUESTION]) == "dataset"
    assert compare_messages([QUESTION], [SYSTEM, QUESTION]) == "extended"
    assert compare_messages([QUESTION], [SYSTEM, user("3 + 3?")]) == "other"
