"""Makes the messages of the prompt that was sent to the model, and compares the dataset's prompt with them.

A rollout function may build its own prompt: with a system message, with what the environment shows first, or of another
question. Token ids tell what was sent. The dataset's own messages stand where they were sent, since ids hold neither
images nor the ids of tool calls.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from logs_ui.recorder.rows.text_compare import is_in
from logs_ui.recorder.vocabulary import SentPrompt

Message = dict[str, Any]

SPECIAL = re.compile(r"<\|[^<>|]*\|>")
"""Special tokens as most tokenizers write them."""

_MUCH = 30  # letters beside a message; an unknown template may write fewer
_GLUE = re.compile(  # what templates write around messages
    r"<[^<>]{0,40}>|\[/?\w{1,40}\]|\b(?:system|developer|user|human|assistant|model|tool)\b", re.IGNORECASE
)

Prompt = tuple[list[Message], SentPrompt | None]
"""What a model was sent before its first answer; and how far that is the dataset's, None if they cannot be compared."""


def compare_prompt(
    prompt_given: list[Message], sent: list[Message], whole: str, respell: Callable[[str], str] = lambda text: text
) -> Prompt:
    """Return the messages that were sent, and how far they are the dataset's.

    Args:
        prompt_given: the dataset's prompt.
        sent: the messages that a known chat template wrote; empty if it is not known.
        whole: the text that was sent, with special tokens.
        respell: encodes and decodes a text, as the tokenizer may lose some of it, such as its capitals.
    """
    if not whole:
        return prompt_given, None
    texts = [_text(message) for message in prompt_given]
    if texts == [whole.strip()]:  # as it is, with a template's marks in it
        return prompt_given, SentPrompt.DATASET
    as_one = [{"role": "user", "content": whole.strip()}]
    for spell in (str, respell):
        spelled = [spell(text).strip() for text in texts]
        prompt = _of_template(prompt_given, spelled, sent) if sent else _of_text(prompt_given, spelled, as_one)
        if prompt is not None:
            return prompt
    return sent or as_one, SentPrompt.OTHER


def compare_messages(prompt_given: list[Message], sent: list[Message]) -> SentPrompt | None:
    """Return how far messages that a client sent are the dataset's; None if that has none."""
    prompt = _of_template(prompt_given, [_text(message) for message in prompt_given], sent)
    return SentPrompt.OTHER if prompt is None else prompt[1]


def _of_template(prompt_given: list[Message], texts: Sequence[str], sent: list[Message]) -> Prompt | None:
    """Return None if a message of the dataset was not sent, or not in their order."""
    left = [
        (message, text) for message, text in zip(prompt_given, texts, strict=True) if text or message.get("tool_calls")
    ]
    if not left:
        return sent, None
    # `left` are the messages of the dataset that were not found yet. One that is a part of a longer message counts
    # as found there, unless it is sent by itself later.
    messages, is_same = list[Message](), True
    for place, message in enumerate(sent):
        if left and _is_equal(*left[0], message):
            messages.append(left.pop(0)[0])
            continue
        if (
            left
            and _is_within(*left[0], message)
            and not any(_is_equal(*left[0], later) for later in sent[place + 1 :])
        ):
            left.pop(0)
        messages.append(message)
        is_same = False
    return None if left else (messages, SentPrompt.DATASET if is_same else SentPrompt.EXTENDED)


def _of_text(prompt_given: list[Message], texts: Sequence[str], as_one: list[Message]) -> Prompt | None:
    """Return the same as `_of_template`; a kind of None for a few words that an unknown template may have written."""
    whole: str = as_one[0]["content"]
    if not any(texts):
        return as_one, None
    beside = whole
    for text in filter(None, texts):
        if not is_in(text, beside):
            return None
        beside = beside.replace(text, " ", 1)
    count = _letters(beside)
    if not count:
        return prompt_given, SentPrompt.DATASET
    begins = len(texts) == 1 and not _letters(whole.partition(texts[0])[0])
    return as_one, SentPrompt.EXTENDED if begins or count >= _MUCH * (len(prompt_given) + 1) else None


def _letters(text: str) -> int:
    return sum(map(str.isalnum, _GLUE.sub("", text)))


def _is_equal(message: Message, text: str, sent: Message) -> bool:
    words, roles = _text(sent), (message.get("role"), sent.get("role"))
    if "assistant" in roles:  # a template may leave out its reasoning, and writes its calls as text
        is_said = bool(message.get("tool_calls")) or text.rpartition("</think>")[2].strip() == words
        return is_said and roles[0] == roles[1]
    if isinstance(message.get("content"), list):  # ids hold its texts, and tokens that stand for the rest
        bare = ["".join(_GLUE.sub("", words_of).split()) for words_of in (text, words)]
        return bare[0] == bare[1]
    return text == words


def _is_within(message: Message, text: str, sent: Message) -> bool:
    return message.get("role") == sent.get("role") != "assistant" and text != "" and is_in(text, _text(sent))


def _text(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return str(content or "").strip()
