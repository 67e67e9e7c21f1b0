"""Messages out of texts that nobody would write, but a model does."""

import re
import subprocess
import sys
from typing import Any

import numpy as np
import orjson
import pytest
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, models

from logs_ui.recorder.rows.chat_parser import Spelling, assistant_message, completion_messages, spans
from tests.support.exhaustive import cases

DEGENERATE = """
import sys
import numpy as np
from logs_ui.recorder.rows.chat_parser import Spelling, assistant_message, completion_messages

class Spelt:
    def decode(self, ids, *, skip_special_tokens):
        return "".join(map(chr, ids))

    def token_to_id(self, mark):
        return ord(">")

MB = int(sys.argv[1])
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
    """270 texts of 50 kB, exhaustively of 1 MB. These take two minutes, of which most is the test's own; what is not
    linear takes days, and hours of the small ones.
    """
    command = [sys.executable, "-c", DEGENERATE, cases(["50000", "1000000"], 1)[-1]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("read\n", "")


@pytest.mark.parametrize(
    ("answer", "reasoning", "content"),
    [
        ("I look.\n</think>\n\nDone.", "I look.", "Done."),
        ("\n <think>I look.</think>Done. </think>", "I look.", "Done. </think>"),
        ("<think>\nand then", "and then", ""),
        ("Done. <think>", None, "Done. <think>"),
        ("\n\n", None, "\n\n"),
        ("\n<answer>3</answer>\n", None, "\n<answer>3</answer>\n"),
    ],
)
def test_reasoning_is_what_stands_before_its_end(answer: str, reasoning: str | None, content: str) -> None:
    message = assistant_message(answer)
    assert message.get("reasoning_content") == reasoning
    assert message["content"] == content


def test_calls_that_can_be_read_leave_the_others_and_the_words_between_them() -> None:
    readable = '\n<tool_call>\n{"name": "ls", "arguments": {"path": "/"}}\n</tool_call>'
    message = assistant_message(f"One.{readable} Two. <tool_call>oops</tool_call>{readable}\nThree. <tool_call>cut")
    assert message["content"] == "One. Two. <tool_call>oops</tool_call>\nThree. <tool_call>cut"
    function = {"name": "ls", "arguments": '{"path":"/"}'}
    assert message["tool_calls"] == [{"id": f"call_{i}", "type": "function", "function": function} for i in range(2)]


@pytest.mark.parametrize("call", ["{'name': oops}", "[1]", f'{{"name": "ls", "arguments": {"[" * 300}{"]" * 300}}}'])
def test_a_call_that_cannot_be_read_or_written_stays_in_the_content(call: str) -> None:
    answer = f"<tool_call>\n{call}\n</tool_call>"
    assert assistant_message(answer) == {"role": "assistant", "content": answer}


def spelling() -> Spelling:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<end>": 2}, unk_token="a"))  # noqa: S106 - no password
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return Spelling(tokenizer)


def ids(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def test_texts_that_are_made_together_are_those_that_are_made_singly() -> None:
    together, singly = spelling(), spelling()
    wanted = [ids(0, 1, 2), ids(1), ids(), ids(0, 1, 2)]
    together.learn(wanted, wanted[:2])
    assert [together.of(one) for one in wanted] == [singly.of(one) for one in wanted] == ["a b", "b", "", "a b"]
    assert (
        [together.whole(one) for one in wanted[:2]] == [singly.whole(one) for one in wanted[:2]] == ["a b <end>", "b"]
    )


def test_what_is_no_id_costs_no_other_text() -> None:
    some = spelling()
    some.learn([ids(0), ids(-1)], [])
    assert some.of(ids(0)) == "a"
    with pytest.raises(OverflowError):
        some.of(ids(-1))


@pytest.mark.parametrize(
    ("mask", "found"),
    [
        ([1, 1, 0, 1], [(True, [5, 6]), (False, [7]), (True, [8])]),
        ([0, 0, 0, 0], [(False, [5, 6, 7, 8])]),
        ([1, 0], [(True, [5, 6, 7, 8])]),
        (None, [(True, [5, 6, 7, 8])]),
    ],
)
def test_a_completion_is_cut_where_its_mask_changes(
    mask: list[int] | None, found: list[tuple[bool, list[int]]]
) -> None:
    cut = spans(ids(5, 6, 7, 8), None if mask is None else np.array(mask, np.uint8))
    assert [(sampled, part.tolist()) for sampled, part in cut] == found
    assert list(spans(ids(), None)) == []


def test_the_rows_of_a_group_have_the_same_prompt_and_none_anothers_messages() -> None:
    some, given = spelling(), orjson.dumps([{"role": "user", "content": "a"}])
    first, second = some.prompt(given, ids(0, 1)), some.prompt(given, ids(0, 1))
    assert first == second == ([{"role": "user", "content": "a b"}], "extended")
    first[0][0]["content"] = "edited"
    assert some.prompt(given, ids(0, 1)) == second
    assert some.prompt(given, ids(0, 1, 1))[0] == [{"role": "user", "content": "a b b"}]


ASKED = "<|im_end|>\n<|im_start|>user\nNo.<|im_end|>\n<|im_start|>assistant\n"
CHATML = "5<|im_end|>\nSeen.\n<|im_start|>user\nNo.<|im_end|>\n<|im_start|>assistant\n4"
CALLED = "<|im_start|>user\n<tool_response>\n42\n</tool_response>\n"
OF_CHATML = [("assistant", "5"), ("user", "Seen."), ("user", "No."), ("assistant", "4")]
THRICE = [("assistant", "5"), ("user", "No."), ("assistant", "4")]
Parts = list[tuple[str, int]]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        pytest.param([(CHATML, 1)], OF_CHATML, id="turns that nobody heard"),
        pytest.param([(f"{CHATML}<|im_end|>", 1)], OF_CHATML, id="and the last one's end"),
        pytest.param([(f"5{ASKED}4", 1)], THRICE, id="an answer that is trained on"),
        pytest.param([(f"5{ASKED}", 0), ("4", 1)], THRICE, id="an answer on which nothing is trained"),
        pytest.param([("5", 1), (ASKED, 0), (f"4{ASKED}3", 1)], [*THRICE, *THRICE[1:2], ("assistant", "3")], id="both"),
        pytest.param(
            [("ok", 1), ("\nsomething else\n", 0), ("ok", 1)],
            [("assistant", "ok"), ("user", "something else"), ("assistant", "ok")],
            id="what was inserted",
        ),
        pytest.param(
            [("ok", 1), (CALLED, 0), ("ok", 1)],
            [("assistant", "ok"), ("tool", "42"), ("assistant", "ok")],
            id="a tool's answer that was inserted",
        ),
    ],
)
def test_a_completion_is_told_apart_by_its_mask_and_the_templates_marks(
    parts: Parts, said: list[tuple[str, str]]
) -> None:
    written: Any = Written()
    marked = [(part.replace("<|im_end|>", "\0"), trained) for part, trained in parts]
    ids = np.array([ord(it) for part, _ in marked for it in part], np.int32)
    mask = np.array([trained for part, trained in marked for _ in part], np.uint8)
    for given in (mask, None) if mask.all() else (mask,):
        messages = completion_messages(Spelling(written), ids, given)
        assert [(message["role"], message["content"]) for message in messages] == said


class Written:
    """A tokenizer of one character a token, beside a mark."""

    def token_to_id(self, mark: str) -> int | None:
        return 0 if mark == "<|im_end|>" else None

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        text = "".join(chr(it) if it else "<|im_end|>" for it in ids)
        return re.sub(r"<\|\w+\|>", "", text) if skip_special_tokens else text
