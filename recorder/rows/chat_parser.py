"""Makes a rollout's messages, in OpenAI's chat form, from its tokens."""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import takewhile
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from tokenizers import Tokenizer

from logs_ui.recorder.capture.model_answers import Ids

# Texts come from models and environments, so they can be anything: tags are found by scans that read a text once. A
# regex that matches lazily up to a closing tag reads the rest again for each opening tag, and keeps the GIL meanwhile.
_THINK, _THINK_END = "<think>", "</think>"
_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_RESPONSE, _RESPONSE_END = "<tool_response>", "</tool_response>"
_BETWEEN = re.compile(rf"{_RESPONSE_END}\s*{_RESPONSE}")
# How the common chat templates open and close a message.
_TEMPLATES = (
    (re.compile(r"<\|im_start\|>(\w+)\n"), "<|im_end|>"),  # ChatML: Qwen and many others
    (re.compile(r"<\|start_header_id\|>(\w+)<\|end_header_id\|>\n\n"), "<|eot_id|>"),  # Llama 3
)


def prompt_messages(prompt: Any) -> list[dict[str, Any]]:
    """Return a prompt, as TRL passes it, as messages: a list stays, a string becomes the user's message."""
    if isinstance(prompt, list):
        return [
            message if isinstance(message, dict) else {"role": "user", "content": str(message)} for message in prompt
        ]
    return [{"role": "user", "content": prompt if isinstance(prompt, str) else str(prompt)}]


def prompt_with_more(given: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Return the dataset's prompt with what the rollout function added to it, in the last message or in further ones.

    `text` is the whole prompt that the model received, with special tokens. If it follows no known template, or does
    not contain the dataset's prompt, that is returned alone.
    """
    last = given[-1] if given else {}
    if not isinstance(last.get("content"), str):
        return given
    dataset_content = last["content"].strip()
    for header, closing in _TEMPLATES:
        written = list(_templated(text, header, closing))
        for place in reversed(range(len(written))):
            content = written[place]["content"].strip()
            if written[place]["role"] == last.get("role") and content.startswith(dataset_content):
                extended = last if content == dataset_content else last | {"content": content}
                return [*given[:-1], extended, *written[place + 1 :]]
    return [last | {"content": text}] if len(given) == 1 and text.startswith(last["content"]) else given


class Spelling:
    """Decodes token ids into text, each sequence once: the rows of a group have the same prompt, for example."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[bool, dict[bytes, str]] = {True: {}, False: {}}  # True: without special tokens
        self._known_prompts: dict[tuple[bytes, bytes], bytes] = {}

    def of(self, ids: Ids) -> str:
        """Return the text of ids without special tokens."""
        return self._decoded(ids, bare=True)

    def whole(self, ids: Ids) -> str:
        """Return the text of ids with special tokens."""
        return self._decoded(ids, bare=False)

    def _decoded(self, ids: Ids, *, bare: bool) -> str:
        known, key = self._known[bare], ids.tobytes()
        if key not in known:
            known[key] = self._tokenizer.decode(ids.tolist(), skip_special_tokens=bare)
        return known[key]

    def prompt(self, given: bytes, ids: Ids) -> list[dict[str, Any]]:
        """Return `prompt_with_more` of the dataset's prompt (JSON) and the ids that the model got, as a new list."""
        key = given, ids.tobytes()
        if key not in self._known_prompts:
            messages = prompt_with_more(prompt_messages(orjson.loads(given)), self.whole(ids))
            self._known_prompts[key] = orjson.dumps(messages)
        found: list[dict[str, Any]] = orjson.loads(self._known_prompts[key])  # a copy for each row, which may change it
        return found

    def learn(self, ids: Iterable[Ids], whole: Iterable[Ids]) -> None:
        """Decodes many texts at once, for later calls of `of` and `whole`: the tokenizer releases the GIL for a batch,
        and keeps it for a single text. Does nothing if some of them are no ids.
        """
        with suppress(OverflowError, TypeError):
            for bare, several in ((True, ids), (False, whole)):
                known = self._known[bare]
                new = {key: one for one in several if (key := one.tobytes()) not in known}
                lists = [one.tolist() for one in new.values()]
                known.update(zip(new, self._tokenizer.decode_batch(lists, skip_special_tokens=bare), strict=True))


def completion_messages(spelling: Spelling, completion: Ids, mask: NDArray[np.uint8] | None) -> list[dict[str, Any]]:
    """Return the messages of a completion (C,), in order: spans that the model sampled, parsed, and spans that were
    inserted between them, by role. The mask (C,) is 1 where the model sampled; None if it sampled all.
    """
    messages: list[dict[str, Any]] = []
    for sampled, ids in spans(completion, mask):
        messages += [assistant_message(spelling.of(ids))] if sampled else _inserted_messages(spelling, ids)
    return messages


def turns_messages(spelling: Spelling, turns: Iterable[tuple[Ids, Ids]]) -> list[dict[str, Any]]:
    """Return the messages of turns, each a prompt and its answer: of a prompt those that were not said before."""
    messages: list[dict[str, Any]] = []
    before = ""
    for context, sampled in turns:
        text = spelling.whole(context)
        given = next((found for template in _TEMPLATES if (found := list(_templated(text, *template)))), None)
        if given is None:
            given = prompt_messages(text.removeprefix(before))
        same = sum(1 for _ in takewhile(_are_same, zip(messages, given, strict=False)))
        messages += [*given[same:], assistant_message(spelling.of(sampled))]
        before = text + spelling.whole(sampled)
    return messages


def _are_same(pair: tuple[dict[str, Any], dict[str, Any]]) -> bool:
    """Return True for equal messages, and for two of the model's: a template may leave out its reasoning."""
    said, given = pair
    return bool(said["role"] == given["role"] and (said["role"] == "assistant" or said["content"] == given["content"]))


def spans(completion: Ids, mask: NDArray[np.uint8] | None) -> list[tuple[bool, Ids]]:
    """Divides a completion into runs of equal mask: (sampled, ids). Ignores a mask of another length."""
    if mask is None or len(mask) != len(completion):
        return [(True, completion)] if len(completion) else []
    found: list[tuple[bool, Ids]] = []
    data, start = mask.tobytes(), 0
    while start < len(data):
        end = data.find(b"\0" if data[start] else b"\1", start)
        end = len(data) if end < 0 else end
        found.append((bool(data[start]), completion[start:end]))
        start = end
    return found


def assistant_message(answer: str) -> dict[str, Any]:
    """Splits reasoning (`<think>`) and tool calls (`<tool_call>` JSON, as Qwen and Hermes write them) from the content.

    A tool call that is no valid JSON stays in the content: the trainer could not parse it either.
    """
    if "<" not in answer:
        return {"role": "assistant", "content": answer}  # as it is: a reward function may count white space
    reasoning, rest = split_reasoning(answer)
    content, calls = _tool_calls(rest)
    message: dict[str, Any] = {"role": "assistant"}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    message["content"] = content.strip("\n") if calls or reasoning is not None else content
    if calls:
        message["tool_calls"] = calls
    return message


def calls_in(answer: str) -> bool:
    """Return True if an answer holds a tool call that can be read."""
    return _CALL in answer and "tool_calls" in assistant_message(answer)


def split_reasoning(answer: str) -> tuple[str | None, str]:
    """Splits an answer into reasoning (None without any) and rest. The opening tag may be in the prompt
    instead. Text before the tag is not reasoning, and stays in the answer.
    """
    head, ended, rest = answer.partition(_THINK_END)
    said, begun, thought = head.partition(_THINK)
    if not ended and (said.strip() or not begun):
        return None, answer
    before = said if begun and said.strip() else ""
    return (thought if begun else head).strip(), before + rest.lstrip()


def _tool_calls(answer: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the content without the calls that could be parsed, and these calls."""
    calls: list[dict[str, Any]] = []
    content: list[str] = []
    kept = end = 0  # up to where the content is copied, and up to where calls are read
    while (start := answer.find(_CALL, end)) >= 0 and (closed := answer.find(_CALL_END, start)) >= 0:
        end = closed + len(_CALL_END)
        call = _tool_call(answer[start + len(_CALL) : closed].strip(), len(calls))
        if call is not None:
            calls.append(call)
            content.append(answer[kept:start].rstrip())
            kept = end
    return "".join([*content, answer[kept:]]), calls


def _tool_call(source: str, index: int) -> dict[str, Any] | None:
    try:
        parsed = orjson.loads(source)
        if not isinstance(parsed, dict) or not isinstance(parsed.get("name"), str):
            return None
        arguments = parsed.get("arguments", {})
        written = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):  # it writes less deeply nested JSON than it reads
        return None
    return {"id": f"call_{index}", "type": "function", "function": {"name": parsed["name"], "arguments": written}}


def _inserted_messages(spelling: Spelling, ids: Ids) -> list[dict[str, Any]]:
    """Return the messages of inserted ids: by role if the chat template is a known one, else one user message."""
    text = spelling.whole(ids)
    for header, closing in _TEMPLATES:
        if found := list(_templated(text, header, closing)):
            return found
    content = spelling.of(ids).strip()
    return [{"role": "user", "content": content}] if content else []


def _templated(text: str, header: re.Pattern[str], closing: str) -> Iterator[dict[str, Any]]:
    """Yields the messages that a chat template wrote: a header with the role, then content up to a closing token. The
    last one may be cut off; one of the model's that is open has only begun.
    """
    end = 0
    while opened := header.search(text, end):
        closed = text.find(closing, opened.end())
        if closed >= 0 or opened[1] != "assistant":
            yield from _inserted(opened[1], text[opened.end() : closed if closed >= 0 else None], is_cut=closed < 0)
        if closed < 0:
            return
        end = closed + len(closing)


def _inserted(role: str, content: str, *, is_cut: bool) -> list[dict[str, Any]]:
    """Return an inserted message. Tools' answers have the role user in Qwen's template, all of them together in one
    message, and ipython in Llama's.
    """
    bare = content.strip()
    if bare.startswith(_RESPONSE) and (is_cut or bare.endswith(_RESPONSE_END)):
        answers = _BETWEEN.split(bare.removeprefix(_RESPONSE).removesuffix(_RESPONSE_END))
        return [{"role": "tool", "content": answer.strip()} for answer in answers]
    return [{"role": "tool" if role == "ipython" else role, "content": content.strip("\n")}]


def linked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add to tools' answers the ids of the calls before them, if there are as many of both, and return the list."""
    for i, message in enumerate(messages):
        calls = message.get("tool_calls") or ()
        answers = list(takewhile(lambda it: it["role"] == "tool", messages[i + 1 :])) if calls else []
        if len(answers) == len(calls):
            for call, answer in zip(calls, answers, strict=True):
                answer.setdefault("tool_call_id", call.get("id"))
    return messages
