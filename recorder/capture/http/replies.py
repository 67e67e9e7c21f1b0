"""Reads requests to generation endpoints and their replies into sequences.

It reads OpenAI's chat completions, completions and responses, vLLM's additions to them, its "tokens in, tokens out",
and TRL's older server. Servers may reply anything: a part that is not as expected counts as missing, and nothing here
raises for it. Ids that the server did not return are not made up by tokenizing the text.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import orjson
from numpy.typing import NDArray

from logs_ui.recorder.capture.http.event_stream import joined
from logs_ui.recorder.capture.http.response_items import messages_of
from logs_ui.recorder.capture.model_answers import Ids, Sequence
from logs_ui.recorder.snapshot import one_line, plain, snapshot, text

Json = dict[str, Any]

# listed by name, because the rest of a request may hold a key or a token
_SAMPLING = (
    "model", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty",
    "max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "n", "seed", "stop", "stop_token_ids",
    "ignore_eos", "tool_choice", "reasoning_effort", "reasoning", "chat_template_kwargs",
)  # fmt: skip
_WRITTEN_ID = "token_id:"  # how vLLM writes a token with `return_tokens_as_token_ids`
_LARGEST_ID = np.iinfo(np.int32).max
_REFUSED = 400  # HTTP statuses from here on are errors


class Prompt(NamedTuple):
    """Holds one prompt of a request: token ids (L,), or JSON of messages or of a text."""

    context: Ids | None
    messages: bytes | None


@dataclass(frozen=True, slots=True)
class Request:
    """Describes a request to a generation endpoint."""

    prompts: list[Prompt]  # at least one
    copies: int  # number of sequences that are requested for each prompt
    sampling: dict[str, Any]  # model, temperature and other parameters that were set
    request_id: str | None  # the caller's name for it; None without one
    _read: Callable[["Request", Json], list[Sequence]]
    # Number of the prompt's first messages that the server does not keep for the next request; None if it keeps
    # nothing.
    instructions: int | None = None
    previous: str | None = None  # name of the answer before, which the server prepends to the prompt
    conversation: str | None = None  # name of a conversation that it prepends

    def sequences(self, reply: Json) -> list[Sequence]:
        """Read the sequences of a reply; [] if it is not a reply to a generation."""
        return self._read(self, reply)

    @property
    def first(self) -> bytes | None:
        """Return JSON of the first prompt's messages or text, or the bytes of its ids."""
        context, messages = self.prompts[0]
        return messages if context is None else context.tobytes()

    def prepend(self, last: Sequence, instructions: int) -> None:
        """Prepend the conversation up to an answer, without the `instructions` that were given for that answer."""
        before, now = (orjson.loads(messages or b"[]") for messages in (last.messages, self.prompts[0].messages))
        answer = {"role": "assistant", "content": last.text} if last.reply is None else orjson.loads(last.reply)
        count = self.instructions or 0
        self.prompts[0] = Prompt(None, snapshot([*now[:count], *before[instructions:], answer, *now[count:]]))

    def prompt(self, index: int) -> Prompt | None:
        """Return the prompt of the reply's sequence `index`; None if there is no such prompt."""
        if len(self.prompts) == 1:
            return self.prompts[0]
        # Servers number the answers prompt by prompt: all copies of the first prompt come first.
        number = index // self.copies
        return self.prompts[number] if 0 <= number < len(self.prompts) else None


def request_of(url: str, body: object) -> Request | None:
    """Read a POST request by its URL or path; None if it is not one to a generation endpoint. JSON may be parsed."""
    path = _path(url)
    api = next((api for api in _APIS if path.endswith(api[0])), None)
    if api is None:
        return None
    _, read_prompts, read_sequences = api
    sent = dict(body) if isinstance(body, Mapping) else parsed(body)
    if not isinstance(sent, dict):
        return None
    # vLLM's "tokens in, tokens out" nests them in sampling_params, and TRL's older server in generation_kwargs.
    settings = {**sent, **_object(sent.get("sampling_params")), **_object(sent.get("generation_kwargs"))}
    prompts = read_prompts(sent)
    limit = settings.get("max_tokens")
    if not prompts or limit == 0 or (limit == 1 and settings.get("prompt_logprobs") is not None):
        return None  # only log-probabilities of the prompt are requested: a teacher scores, which is not a turn
    sampling = {name: plain(settings[name]) for name in _SAMPLING if settings.get(name) is not None}
    copies = _count(settings.get("n")) or 1
    request = Request(prompts, copies, sampling, _name(sent.get("request_id")), read_sequences)
    if read_sequences is not _outputs:
        return request
    conversation = sent.get("conversation")
    return replace(
        request,
        instructions=int(isinstance(sent.get("instructions"), str)),
        previous=_name(sent.get("previous_response_id")),
        conversation=_name(_object(conversation).get("id") or conversation),
    )


def reply_of(data: bytes) -> Json | None:
    """Read a reply, whole or streamed as events; None if it is neither."""
    if data.lstrip()[:1] == b"{":
        whole = parsed(data)
        return whole if isinstance(whole, dict) else None
    return joined(data, parsed)


def request_id(reply: Json) -> str | None:
    """Return the server's name for the request."""
    return _name(reply.get("id")) or _name(reply.get("request_id"))


def error_of(reply: Json | None, status: int) -> str | None:
    """Return the server's error as one line; None if it answered."""
    reply = reply or {}
    error = reply.get("error") or (reply if reply.get("object") == "error" else None)
    if error is None and status < _REFUSED:
        return None
    message = error if isinstance(error, str) else _object(error).get("message") or reply.get("detail") or ""
    message = message if isinstance(message, str) else snapshot(message).decode()
    return one_line(f"HTTP {status}: {message}".removesuffix(": ") if status >= _REFUSED else f"The server: {message}")


def parsed(source: object) -> Any:
    """Parse JSON; None for anything else."""
    if not isinstance(source, bytes | bytearray | str):
        return None
    with suppress(ValueError):
        return orjson.loads(source)
    with suppress(ValueError, RecursionError):
        return json.loads(source)  # unlike orjson it accepts NaN and lone surrogates
    return None


def _path(url: str) -> str:
    with suppress(ValueError):
        return urlsplit(url).path.rstrip("/")
    return ""


def _conversation(sent: Json) -> list[Prompt]:
    """Read messages, and their ids where a server of prime-rl is given both."""
    messages = sent.get("messages")
    return [Prompt(_ids(sent.get("tokens")), snapshot(messages))] if isinstance(messages, list) else []


def _texts_or_ids(sent: Json) -> list[Prompt]:
    """Read one prompt or several, each a text or ids."""
    prompt = sent.get("prompt")
    # A list of numbers is one prompt, as ids; any other list has several prompts.
    several = _list(prompt) if not isinstance(_nth(_list(prompt), 0), int) else []
    entries = [entry for entry in several or [prompt] if entry and isinstance(entry, str | list)]
    return [Prompt(None, snapshot(entry)) if isinstance(entry, str) else Prompt(_ids(entry), None) for entry in entries]


def _tokens(sent: Json) -> list[Prompt]:
    context = _ids(sent.get("token_ids"))
    return [] if context is None else [Prompt(context, None)]


def _items(sent: Json) -> list[Prompt]:
    """Read a request to OpenAI's responses: a text is a user's message, the instructions are the system's."""
    items = sent.get("input")
    items = [{"role": "user", "content": items}] if isinstance(items, str) else items
    if not isinstance(items, list):
        return []
    instructions = sent.get("instructions")
    system = [{"role": "system", "content": instructions}] if isinstance(instructions, str) else []
    return [Prompt(None, snapshot(system + messages_of(items)))]


def _trl_prompts(sent: Json) -> list[Prompt]:
    prompts = sent.get("prompts")
    return _texts_or_ids({"prompt": prompts}) if isinstance(prompts, list) else []


def _trl_conversations(sent: Json) -> list[Prompt]:
    return [Prompt(None, snapshot(messages)) for messages in _list(sent.get("messages")) if isinstance(messages, list)]


def _choices(question: Request, reply: Json) -> list[Sequence]:
    """Read a reply of OpenAI's completions or chat completions, or of vLLM's tokens."""
    choices = [choice for choice in _list(reply.get("choices")) if isinstance(choice, dict)]
    sequences = (_choice(question, reply, choice, i, len(choices)) for i, choice in enumerate(choices))
    return [sequence for sequence in sequences if sequence is not None]


def _choice(question: Request, reply: Json, choice: Json, position: int, count: int) -> Sequence | None:
    index = _count(choice.get("index"))
    prompt = question.prompt(position if index is None else index)
    if prompt is None:
        return None
    # The ids that the server says it used, with the answer or for all answers, come before the ids that were sent.
    contexts = (_ids(choice.get("prompt_token_ids")), _ids(reply.get("prompt_token_ids")), prompt.context)
    tokens, values = _chosen(choice.get("logprobs"))
    sampled = _ids(choice.get("token_ids"))
    if sampled is None:
        sampled = _written_ids(tokens)
    answer_text, message = _answer(choice.get("message"))
    if isinstance(choice.get("text"), str):
        answer_text = text(choice["text"])
    if sampled is None and answer_text is None and message is None:
        return None
    usage = _object(reply.get("usage"))
    return Sequence(
        context=next((ids for ids in contexts if ids is not None), None),
        sampled=sampled,
        finish=_name(choice.get("finish_reason")),
        logprobs=_logprobs(values, sampled),
        text=answer_text,
        messages=prompt.messages,
        reply=message,
        # The server counts all prompts of a request together, and all answers.
        prompt_tokens=_count(usage.get("prompt_tokens")) if len(question.prompts) == 1 else None,
        completion_tokens=_count(usage.get("completion_tokens")) if count == 1 else None,
    )


def _answer(message: object) -> tuple[str | None, bytes | None]:
    """Return an assistant's text, and JSON of its message if that has more than the text."""
    if not isinstance(message, dict):
        return None, None
    fields = {key: value for key, value in message.items() if key != "parsed" and value not in (None, [], {})}
    if "reasoning" in fields:  # vLLM's name for it since 0.12
        fields.setdefault("reasoning_content", fields.pop("reasoning"))
    content = fields.get("content")
    answer_text = text(content) if isinstance(content, str) else None
    if not set(fields) - {"role", "content"} and (content is None or answer_text is not None):
        return answer_text or "", None
    return answer_text, snapshot({"role": "assistant", "content": None, **fields})


def _chosen(logprobs: object) -> tuple[list[Any], list[Any]]:
    """Return the sampled tokens as the server writes them, and their log-probabilities, of chat or completions."""
    fields = _object(logprobs)
    entries = [_object(entry) for entry in _list(fields.get("content"))]
    if entries:
        return [entry.get("token") for entry in entries], [entry.get("logprob") for entry in entries]
    return _list(fields.get("tokens")), _list(fields.get("token_logprobs"))


def _written_ids(tokens: list[Any]) -> Ids | None:
    """Read ids from tokens that are written as "token_id:...". None if some are not."""
    if not tokens or not all(isinstance(token, str) and token.startswith(_WRITTEN_ID) for token in tokens):
        return None
    numbers = [token.removeprefix(_WRITTEN_ID) for token in tokens]
    return _ids([int(number) for number in numbers]) if all(map(str.isdecimal, numbers)) else None


def _logprobs(values: list[Any], sampled: Ids | None) -> NDArray[np.float32] | None:
    """Return an array; None if these are not the log-probabilities of the sampled tokens."""
    if not values or (sampled is not None and len(values) != len(sampled)):
        return None
    if not all(value is None or isinstance(value, int | float) for value in values):
        return None
    try:
        return np.array([np.nan if value is None else float(value) for value in values]).astype(np.float32)
    except OverflowError:
        return None


def _trl_completions(question: Request, reply: Json) -> list[Sequence]:
    """Read `{"prompt_ids": (P, L), "completion_ids": (P * n, S), "logprobs": (P * n, S) or (P * n, S, 1)}`."""
    contexts, logprobs = _list(reply.get("prompt_ids")), _list(reply.get("logprobs"))
    sequences = []
    for i, ids in enumerate(_list(reply.get("completion_ids"))):
        prompt, sampled = question.prompt(i), _ids(ids)
        if prompt is None or sampled is None:
            continue
        number = i // question.copies
        context = _ids(contexts[number]) if number < len(contexts) else None
        # With several values for a token it is not known which is the sampled one's.
        rows = [row[0] if isinstance(row, list) and len(row) == 1 else row for row in _list(_nth(logprobs, i))]
        context = prompt.context if context is None else context
        sequences.append(Sequence(context, sampled, None, _logprobs(rows, sampled), messages=prompt.messages))
    return sequences


def _outputs(question: Request, reply: Json) -> list[Sequence]:
    """Read a reply of OpenAI's responses: one answer, as a list of items."""
    items = [item for item in _list(reply.get("output")) if isinstance(item, dict)]
    if not items:
        return []
    # An empty message of the assistant comes first, so that all items are joined to this one message.
    (message,) = messages_of([{"role": "assistant"}, *items], are_answer=True)
    parts = [_object(part) for item in items if item.get("type") == "message" for part in _list(item.get("content"))]
    answer, whole = _answer(message)
    values = [_object(entry).get("logprob") for part in parts for entry in _list(part.get("logprobs"))]
    usage = _object(reply.get("usage"))
    return [
        Sequence(
            None,
            None,
            _ended(reply, message.get("tool_calls")),
            logprobs=_logprobs(values, None),
            text=answer,
            messages=question.prompts[0].messages,
            reply=whole,
            prompt_tokens=_count(usage.get("input_tokens")),
            completion_tokens=_count(usage.get("output_tokens")),
        )
    ]


def _ended(reply: Json, calls: object) -> str | None:
    """Return why a response ended, in the words of chat completions."""
    if reply.get("status") == "incomplete":
        reason = _name(_object(reply.get("incomplete_details")).get("reason"))
        return "length" if reason == "max_output_tokens" else reason
    if reply.get("status") != "completed":
        return None
    return "tool_calls" if calls else "stop"


def _ids(value: object) -> Ids | None:
    """Return an array; None if the value is not a list of ids."""
    if not isinstance(value, list):
        return None
    try:
        ids = np.array(value) if value else np.empty(0, np.int32)
    except (ValueError, OverflowError):
        return None
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or (len(ids) and not 0 <= ids.min() <= ids.max() <= _LARGEST_ID):
        return None
    return ids.astype(np.int32)


def _count(value: object) -> int | None:
    """Return a count; None if the value is not one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_ID else None


def _name(value: object) -> str | None:
    return one_line(value) if isinstance(value, str) and value else None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _nth(values: list[Any], index: int) -> Any:
    return values[index] if index < len(values) else None


_APIS: tuple[tuple[str, Callable[[Json], list[Prompt]], Callable[[Request, Json], list[Sequence]]], ...] = (
    ("/chat/completions", _conversation, _choices),
    ("/chat/completions/tokens", _conversation, _choices),
    ("/completions", _texts_or_ids, _choices),
    ("/responses", _items, _outputs),
    ("/inference/v1/generate", _tokens, _choices),
    ("/generate", _trl_prompts, _trl_completions),
    ("/chat", _trl_conversations, _trl_completions),
)
"""Ends of URLs' paths, with the functions that read such an endpoint's requests and replies; the first match counts."""
