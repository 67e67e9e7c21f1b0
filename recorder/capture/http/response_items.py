"""Reads items of OpenAI's Responses API, of a request or a reply, as the messages that chat completions would have."""

from typing import Any

Json = dict[str, Any]

_TEXTS = {"input_text", "output_text", "text", "reasoning_text", "summary_text"}


def messages_of(items: list[Any], *, are_answer: bool = False) -> list[Json]:
    """Return the messages. Reasoning, texts and calls that follow each other are one message of the assistant; an item
    that chat completions lack, such as a web search of the server, is in its `items`. Encrypted reasoning is left out.
    """
    messages: list[Json] = []
    for item in items:
        if not isinstance(item, dict):
            continue
        message = _message(item, are_answer=are_answer)
        if messages and message["role"] == messages[-1]["role"] == "assistant":
            _extend(messages[-1], message)
        else:
            messages.append(message)
    return messages


def _message(item: Json, *, are_answer: bool) -> Json:
    kind = str(item.get("type") or "message")
    if kind == "message":
        role, parts = "assistant" if are_answer else item.get("role") or "user", item.get("content")
        refusals = [part for part in parts if _kind(part) == "refusal"] if isinstance(parts, list) else []
        message = {"role": role, "content": _content(parts)}
        return message | ({"refusal": "".join(str(part.get("refusal")) for part in refusals)} if refusals else {})
    if kind == "reasoning":
        parts = item.get("content") or item.get("summary") or []
        thoughts = "\n".join(text for part in parts if (text := _text(part)) is not None) if parts else None
        return {"role": "assistant", "content": None, "reasoning_content": thoughts or None}
    if kind in {"function_call", "custom_tool_call"}:
        form, field = ("function", "arguments") if kind == "function_call" else ("custom", "input")
        call = {"id": item.get("call_id"), "type": form, form: {"name": item.get("name"), field: item.get(field)}}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if kind.endswith("_output") and not are_answer:
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": _content(item.get("output"))}
    return {"role": "assistant", "content": None, "items": [item]}


def _extend(message: Json, further: Json) -> None:
    """Add a further part of the same answer to the message."""
    for name, value in further.items():
        before = message.get(name)
        # What only one of them has is kept. Texts, and lists of parts or calls, are appended.
        if before is None or value is None:
            message[name] = value if before is None else before
        elif name == "reasoning_content":
            message[name] = f"{before}\n{value}"
        elif type(before) is type(value) and name != "role":
            message[name] = before + value


def _content(parts: Any) -> Any:
    """Return a text if all parts are texts, else the parts, in which texts are named as in chat completions."""
    if not isinstance(parts, list):
        return parts
    shown_parts = [part for part in parts if _kind(part) != "refusal"]
    texts = [text for part in shown_parts if (text := _text(part)) is not None]
    if len(texts) == len(shown_parts):
        return "".join(texts) if texts else None
    return [part if (text := _text(part)) is None else {"type": "text", "text": text} for part in shown_parts]


def _text(part: Any) -> str | None:
    text = part.get("text") if _kind(part) in _TEXTS else None
    return text if isinstance(text, str) else None


def _kind(part: Any) -> Any:
    return part.get("type") if isinstance(part, dict) else None
