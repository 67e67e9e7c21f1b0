"""Messages out of texts that nobody would write, but a model does."""

import subprocess
import sys

import pytest

from logs_ui.recorder.chat import assistant_message

DEGENERATE = """
import numpy as np
from logs_ui.recorder.chat import Spelling, assistant_message, completion_messages

class Spelt:
    def decode(self, ids, *, skip_special_tokens):
        return "".join(map(chr, ids))

MB = 1_000_000
pieces = ["\\n", " ", "<think>", "</think>", "<tool_call>", "<tool_call>\\n", "<tool_call></tool_call>", "</tool_call>",
    "<tool_response>", "<tool_response> ", "</tool_response>", "<|im_start|>", "<|im_start|>user\\n", "<|im_end|>",
    "<|im_start|>user", "<|start_header_id|>ipython<|end_header_id|>\\n\\n", "<|start_header_id|>a", "<", "a"]
openings = ["", "<think>", "<tool_call>", "<tool_response>", "<|im_start|>", "<|im_start|>user\\n", "\\n<tool_call>"]
closings = ["", "</tool_call>", "</tool_response>", "<|im_end|>", "\\n"]
for piece in pieces:
    bulk = piece * (MB // len(piece))
    for opening in openings:
        assistant_message(opening + bulk)
    for closing in closings:
        assistant_message(bulk + closing)
    for text in ("<tool_response>" + bulk, "<|im_start|>user\\n<tool_response>" + bulk + "<|im_end|>"):
        ids = np.array([ord(c) for c in text], np.int32)
        completion_messages(Spelling(Spelt()), ids, np.zeros(len(ids), np.uint8))
print("read")
"""


def test_megabytes_of_nothing_but_tags_or_blanks_are_read_at_once() -> None:
    """270 texts of 1 MB in two minutes, of which most is the test's own; what is not linear takes days."""
    done = subprocess.run([sys.executable, "-c", DEGENERATE], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("read\n", "")


@pytest.mark.parametrize(
    ("answer", "reasoning", "content"),
    [
        ("I look.\n</think>\n\nDone.", "I look.", "Done."),
        ("\n <think>I look.</think>Done. </think>", "I look.", "Done. </think>"),
        ("Done. <think>", None, "Done. <think>"),
        ("\n\n", None, ""),
    ],
)
def test_reasoning_is_what_stands_before_its_end(answer: str, reasoning: str | None, content: str) -> None:
    message = assistant_message(answer)
    assert message.get("reasoning_content") == reasoning
    assert message["content"] == content


def test_calls_that_can_be_read_leave_the_others_and_the_words_between_them() -> None:
    readable = '\n<tool_call>\n{"name": "ls"}\n</tool_call>'
    message = assistant_message(f"One.{readable} Two. <tool_call>oops</tool_call>{readable}\nThree. <tool_call>cut")
    assert message["content"] == "One. Two. <tool_call>oops</tool_call>\nThree. <tool_call>cut"
    assert [call["id"] for call in message["tool_calls"]] == ["call_0", "call_1"]


def test_arguments_that_are_nested_too_deeply_to_be_written_stay_in_the_content() -> None:
    answer = f'<tool_call>{{"name": "ls", "arguments": {"[" * 300}{"]" * 300}}}</tool_call>'
    assert assistant_message(answer) == {"role": "assistant", "content": answer}
