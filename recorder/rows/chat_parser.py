"""Makes a rollout's messages, in OpenAI's chat form, from its tokens."""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from itertools import takewhile
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from tokenizers import Tokenizer

from logs_ui.recorder.action_text import split_reasoning
from logs_ui.recorder.capture.model_answers import Ids
from logs_ui.recorder.rows.sent_prompt import SPECIAL, Prompt, compare_prompt
from logs_ui.recorder.vocabulary import SentPrompt

# Texts come from models and environments, so they can be anything: tags are found by scans that read a text once. A
# regex that matches lazily up to a closing tag reads the rest again for each opening tag, and keeps the GIL meanwhile.
_THINK, _THINK_END = "<think>", "</think>"
_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_RESPONSE, _RESPONSE_END = "<tool_response>", "</tool_response>"
_EMPTY = ("", _THINK, f"{_THINK}\n\n{_THINK_END}")  # with which a template begins an answer
_RESPELLED = 20_000  # characters: to encode more takes too long
_BETWEEN = re.compile(rf"{_RESPONSE_END}\s*{_RESPONSE}")
# How the common chat templates open and close a message.
_TEMPLATES = (
    (re.compile(r"<\|im_start\|>(\w+)\n"), "<|im_end|>"),  # ChatML: Qwen and many others
    (re.compile(r"<\|start_header_id\|>(\w+)<\|end_header_id\|>\n\n"), "<|eot_id|>"),  # Llama 3
)
_MARK = re.compile("|".join(f"{header.pattern}|{re.escape(closing)}" for header, closing in _TEMPLATES))


def prompt_messages(prompt: Any) -> list[dict[str, Any]]:
    """Return a prompt, as TRL passes it, as messages: a list stays, a string becomes the user's message."""
    if isinstance(prompt, list):
        return [
            message if isinstance(message, dict) else {"role": "user", "content": str(message)} for message in prompt
        ]
    return [{"role": "user", "content": prompt if isinstance(prompt, str) else str(prompt)}]


class Spelling:
    """Decodes token ids into text, each sequence once: the rows of a group have the same prompt, for example."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[bool, dict[bytes, str]] = {True: {}, False: {}}  # True: without special tokens
        self.respelled = cache(self._respell)
        self._prompts: dict[tuple[bytes, bytes], tuple[bytes, SentPrompt | None]] = {}

    def of(self, ids: Ids) -> str:
        """Return the text of ids without special tokens."""
        return self._decode(ids, bare=True)

    def whole(self, ids: Ids) -> str:
        """Return the text of ids with special tokens."""
        return self._decode(ids, bare=False)

    def _decode(self, ids: Ids, *, bare: bool) -> str:
        texts, key = self._known[bare], ids.tobytes()
        if key not in texts:
            texts[key] = self._tokenizer.decode(ids.tolist(), skip_special_tokens=bare)
        return texts[key]

    def prompt(self, prompt: bytes, ids: Ids) -> Prompt:
        """Return `compare_prompt` of the dataset's prompt (JSON) and the ids that the model got, with new messages."""
        key = prompt, ids.tobytes()
        if key not in self._prompts:
            whole, messages = self.whole(ids), prompt_messages(orjson.loads(prompt))
            messages, kind = compare_prompt(messages, templated(whole, with_open=True), whole, self.respelled)
            self._prompts[key] = orjson.dumps(messages), kind
        data, kind = self._prompts[key]
        return orjson.loads(data), kind  # a copy for each row, which may change it

    def has_messages(self, completion: Ids) -> bool:
        """Return True if a chat template closed a message before the completion's end."""
        marks = [self._tokenizer.token_to_id(closing) for _, closing in _TEMPLATES]
        return any(mark is not None and bool((completion[:-1] == mark).any()) for mark in marks)

    def _respell(self, text: str) -> str:
        """Return a text as it is after encoding and decoding: a tokenizer may not know all words."""
        if len(text) > _RESPELLED:
            return text
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def cut(self, ids: Ids, text: str) -> None:
        """Give an answer the text that `of` shall return: a server cuts it before a stop text."""
        self._known[True][ids.tobytes()] = text

    def learn(self, ids: Iterable[Ids], whole: Iterable[Ids]) -> None:
        """Decode many texts at once, for later calls of `of` and `whole`: the tokenizer releases the GIL for a batch,
        and keeps it for a single text. Do nothing if some of them are no ids.
        """
        with suppress(OverflowError, TypeError):
            for bare, several in ((True, ids), (False, whole)):
                texts = self._known[bare]
                new = {key: array for array in several if (key := array.tobytes()) not in texts}
                lists = [array.tolist() for array in new.values()]
                texts.update(zip(new, self._tokenizer.decode_batch(lists, skip_special_tokens=bare), strict=True))


def completion_messages(spelling: Spelling, completion: Ids, mask: NDArray[np.uint8] | None) -> list[dict[str, Any]]:
    """Return the messages of a completion (C,), in order: spans that the model sampled, parsed, and spans that were
    inserted between them, by role. The mask (C,) is 1 where the model sampled; None if it sampled all, or if nobody
    knows. The marks of a chat template divide sampled spans, and the first one.
    """
    messages: list[dict[str, Any]] = []
    for sampled, ids in spans(completion, mask):
        # A function may say of other tokens that the model sampled them, and of an earlier answer that it did not.
        may_be_several = (sampled or not messages) and spelling.has_messages(ids)
        if may_be_several and (marked := _split_marked(spelling.whole(ids), is_answer=sampled)):
            messages += marked
        elif sampled:
            messages.append(assistant_message(spelling.of(ids)))
        else:
            messages += _inserted_messages(spelling, ids)
    return messages


def _split_marked(text: str, *, is_answer: bool) -> list[dict[str, Any]]:
    """Return the messages of a text in which a chat template opened others after an answer; else nothing. If it may be
    no answer that it begins with, a template has to close that before it opens another message.
    """
    mark = _MARK.search(text)
    answer, rest = (text[: mark.start()], text[mark.start() :]) if mark else (text, "")
    if not (is_answer or (answer.strip() and any(rest.startswith(closing) for _, closing in _TEMPLATES))):
        return []
    messages = templated(rest, with_open=is_answer)
    return [assistant_message(answer), *messages] if messages else []


def turns_messages(turns: Iterable[tuple[str, str, str]], prompt: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages of turns, each the text of a context and its answer, with and without special tokens: of a
    context those that were not said before. The first context is shown as `prompt`.
    """
    messages: list[dict[str, Any]] = []
    earlier: list[dict[str, Any]] = []  # as the template wrote them
    before = ""
    for text, sampled, bare in turns:
        answer = assistant_message(bare)
        context = templated(text) or prompt_messages(text.removeprefix(before))
        count = sum(1 for _ in takewhile(_are_same, zip(earlier, context, strict=False)))
        messages += [*(context[count:] if before else prompt), answer]
        earlier += [*context[count:], answer]
        before = text + sampled
    return messages


def _are_same(pair: tuple[dict[str, Any], dict[str, Any]]) -> bool:
    """Return True for equal messages, and for two of the model's: a template may leave out its reasoning."""
    first, second = pair
    return bool(
        first["role"] == second["role"] and (first["role"] == "assistant" or first["content"] == second["content"])
    )


def spans(completion: Ids, mask: NDArray[np.uint8] | None) -> list[tuple[bool, Ids]]:
    """Divide a completion into runs of equal mask: (sampled, ids). Ignore a mask of another length."""
    if mask is None or len(mask) != len(completion):
        return [(True, completion)] if len(completion) else []
    runs: list[tuple[bool, Ids]] = []
    data, start = mask.tobytes(), 0
    while start < len(data):
        end = data.find(b"\0" if data[start] else b"\1", start)
        end = len(data) if end < 0 else end
        runs.append((bool(data[start]), completion[start:end]))
        start = end
    return runs


def assistant_message(answer: str) -> dict[str, Any]:
    """Split reasoning (`<think>`) and tool calls (`<tool_call>` JSON, as Qwen and Hermes write them) from the content.

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


def _tool_calls(answer: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the content without the calls that could be parsed, and these calls."""
    calls: list[dict[str, Any]] = []
    content: list[str] = []
    copied = end = 0  # up to where the content is copied, and up to where calls are read
    while (start := answer.find(_CALL, end)) >= 0 and (closed := answer.find(_CALL_END, start)) >= 0:
        end = closed + len(_CALL_END)
        call = _tool_call(answer[start + len(_CALL) : closed].strip(), len(calls))
        if call is not None:
            calls.append(call)
            content.append(answer[copied:start].rstrip())
            copied = end
    return "".join([*content, answer[copied:]]), calls


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
    if messages := templated(spelling.whole(ids)):
        return messages
    content = spelling.of(ids).strip()
    return [{"role": "user", "content": content}] if content else []


def templated(text: str, *, with_open: bool = False) -> list[dict[str, Any]]:
    """Return the messages that a known chat template wrote; empty if none did. `with_open` adds what an answer of the
    model begins with, if that is more than a tag.
    """
    parsed = (list(_parse_template(text, *template, with_open=with_open)) for template in _TEMPLATES)
    return next((messages for messages in parsed if messages), [])


def _parse_template(
    text: str, header: re.Pattern[str], closing: str, *, with_open: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the messages that a chat template wrote: a header with the role, then content up to a closing token. The
    last one may be cut off; one of the model's that is open has only begun. Text outside of messages is a user's.
    """
    end = 0
    while opened := header.search(text, end):
        if beside := SPECIAL.sub("", text[end : opened.start()]).strip():
            yield {"role": "user", "content": beside}
        closed = text.find(closing, opened.end())
        content = text[opened.end() : closed if closed >= 0 else None]
        if closed >= 0 or opened[1] != "assistant":
            yield from _make_inserted(opened[1], content, is_cut=closed < 0)
        elif with_open and content.strip() not in _EMPTY:
            yield assistant_message(content)
        if closed < 0:
            return
        end = closed + len(closing)
    if end and (beside := SPECIAL.sub("", text[end:]).strip()):
        yield {"role": "user", "content": beside}


def _make_inserted(role: str, content: str, *, is_cut: bool) -> list[dict[str, Any]]:
    """Return an inserted message. Tools' answers have the role user in Qwen's template, all of them together in one
    message, and ipython in Llama's.
    """
    bare = content.strip()
    if bare.startswith(_RESPONSE) and (is_cut or bare.endswith(_RESPONSE_END)):
        answers = _BETWEEN.split(bare.removeprefix(_RESPONSE).removesuffix(_RESPONSE_END))
        # The template adds a line break at each side: others are the tool's own.
        return [{"role": "tool", "content": answer.removeprefix("\n").removesuffix("\n")} for answer in answers]
    if role == "assistant":
        return [assistant_message(content.strip("\n"))]
    return [{"role": "tool" if role == "ipython" else role, "content": content}]


def linked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add to tools' answers the ids of the calls before them, if there are as many of both, and return the list."""
    for i, message in enumerate(messages):
        calls = message.get("tool_calls") or ()
        answers = list(takewhile(lambda following: following["role"] == "tool", messages[i + 1 :])) if calls else []
        if len(answers) == len(calls):
            for call, answer in zip(calls, answers, strict=True):
                answer.setdefault("tool_call_id", call.get("id"))
    return messages
