"""A rollout's messages in OpenAI's chat form, from its tokens."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from tokenizers import Tokenizer

from logs_ui.recorder.calls import Ids

_THINKING = re.compile(r"^\s*(?:<think>)?(.*?)</think>\s*", re.DOTALL)
_UNENDED_THINKING = re.compile(r"^\s*<think>(.*)$", re.DOTALL)
_TOOL_CALL = re.compile(r"\s*<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
# How the common chat templates open and close a message.
_TEMPLATES = (
    re.compile(r"<\|im_start\|>(?P<role>\w+)\n(?P<content>.*?)<\|im_end\|>", re.DOTALL),  # ChatML: Qwen and many others
    re.compile(r"<\|start_header_id\|>(?P<role>\w+)<\|end_header_id\|>\n\n(?P<content>.*?)<\|eot_id\|>", re.DOTALL),
)
_TOOL_RESPONSE = re.compile(r"^\s*<tool_response>\s*(.*?)\s*</tool_response>\s*$", re.DOTALL)


def prompt_messages(prompt: Any) -> list[dict[str, Any]]:
    """A prompt as TRL hands it over: messages stay, a string becomes the user's message."""
    if isinstance(prompt, list):
        return [
            message if isinstance(message, dict) else {"role": "user", "content": str(message)} for message in prompt
        ]
    return [{"role": "user", "content": prompt if isinstance(prompt, str) else str(prompt)}]


def completion_messages(tokenizer: Tokenizer, completion: Ids, mask: NDArray[np.uint8] | None) -> list[dict[str, Any]]:
    """The completion's spans in order: what the model sampled, parsed, and what was inserted between, by role.

    Args:
        tokenizer: of the model.
        completion: (C,) token ids.
        mask: (C,) 1 = sampled by the model; None = all of it.
    """
    messages: list[dict[str, Any]] = []
    for sampled, ids in _spans(completion, mask):
        if sampled:
            messages.append(assistant_message(tokenizer.decode(ids.tolist(), skip_special_tokens=True)))
        else:
            messages.extend(_inserted_messages(tokenizer, ids))
    return messages


def assistant_message(answer: str) -> dict[str, Any]:
    """Splits reasoning (`<think>`) and tool calls (`<tool_call>` JSON, as Qwen and Hermes write them) from the content.

    A tool call that is no JSON stays in the content: it was not parsed by anyone else either.
    """
    message: dict[str, Any] = {"role": "assistant"}
    thinking = _THINKING.match(answer) or _UNENDED_THINKING.match(answer)
    if thinking:
        message["reasoning_content"] = thinking[1].strip()
        answer = answer[thinking.end() :]
    calls: list[dict[str, Any]] = []
    for match in _TOOL_CALL.finditer(answer):
        call = _tool_call(match[1], len(calls))
        if call is not None:
            calls.append(call)
            answer = answer.replace(match[0], "", 1)
    message["content"] = answer.strip("\n")
    if calls:
        message["tool_calls"] = calls
    return message


def _tool_call(source: str, index: int) -> dict[str, Any] | None:
    try:
        parsed = orjson.loads(source)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(parsed, dict) or not isinstance(parsed.get("name"), str):
        return None
    arguments = parsed.get("arguments", {})
    return {
        "id": f"call_{index}",
        "type": "function",
        "function": {
            "name": parsed["name"],
            "arguments": arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode(),
        },
    }


def _spans(completion: Ids, mask: NDArray[np.uint8] | None) -> Iterator[tuple[bool, Ids]]:
    """Runs of equal mask, as (sampled, ids)."""
    if mask is None or len(mask) != len(completion):
        if len(completion):
            yield True, completion
        return
    edges = np.flatnonzero(np.diff(mask)) + 1
    for span, flags in zip(np.split(completion, edges), np.split(mask, edges), strict=True):
        if len(span):
            yield bool(flags[0]), span


def _inserted_messages(tokenizer: Tokenizer, ids: Ids) -> list[dict[str, Any]]:
    """By role where the chat template is a known one, else one message of the user's."""
    text = tokenizer.decode(ids.tolist(), skip_special_tokens=False)
    for template in _TEMPLATES:
        if found := [_inserted(match["role"], match["content"]) for match in template.finditer(text)]:
            return found
    content = tokenizer.decode(ids.tolist(), skip_special_tokens=True).strip()
    return [{"role": "user", "content": content}] if content else []


def _inserted(role: str, content: str) -> dict[str, Any]:
    """Qwen's template sends a tool's answer as the user's, Llama's as ipython's."""
    if tool := _TOOL_RESPONSE.match(content):
        return {"role": "tool", "content": tool[1]}
    return {"role": "tool" if role == "ipython" else role, "content": content.strip("\n")}
