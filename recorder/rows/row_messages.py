"""The whole conversation of a row, in OpenAI's chat form."""

from operator import itemgetter
from typing import Any

import orjson

from logs_ui.recorder.capture.calls import EnvironmentCall
from logs_ui.recorder.rows import chat_parser
from logs_ui.recorder.rows.attribution import RowCalls, Turn
from logs_ui.recorder.rows.rollout_call import RolloutCall
from logs_ui.recorder.rows.row_actions import written_observation
from logs_ui.recorder.rows.row_tokens import known_mask
from logs_ui.recorder.snapshot import column
from logs_ui.recorder.storage.payload import Tokens

_PREVIEW = 120
_order = itemgetter(0)


def prompt_of(call: RolloutCall, i: int) -> list[dict[str, Any]]:
    """The messages of row `i`'s prompt."""
    return chat_parser.prompt_messages(orjson.loads(call.prompts[i]))


def messages_of(
    call: RolloutCall, i: int, row: RowCalls, tokens: Tokens | None, spelling: chat_parser.Spelling | None
) -> list[dict[str, Any]]:
    """From the best that is known: the tokens; else what the last generation was sent, and its answer; else the prompt,
    the answers, and what the environment said to them.
    """
    if tokens is not None and spelling is not None:
        answered = chat_parser.completion_messages(spelling, tokens.completion_ids, known_mask(row, tokens))
        return _prompt(call, i, row, tokens, spelling) + answered
    if not row.turns:
        return prompt_of(call, i)
    last = row.turns[-1]
    sent = last.sequence.messages
    if sent is not None:
        return [*chat_parser.prompt_messages(orjson.loads(sent)), *filter(None, [_reply(last)])]
    said = [(turn.order, _reply(turn)) for turn in row.turns]
    said += [(heard.order, _heard(heard)) for heard in row.environment_calls if heard.order < last.order]
    said.sort(key=_order)
    return prompt_of(call, i) + [message for _, message in said if message is not None]


def preview(messages: list[dict[str, Any]]) -> str | None:
    """The model's last words; its tool calls where it said nothing else."""
    for message in reversed(messages):
        if message["role"] == "assistant":
            words = message["content"] or _called(message) or message.get("reasoning_content", "")
            return column(_beginning(words))
    return None


def _prompt(
    call: RolloutCall, i: int, row: RowCalls, tokens: Tokens, spelling: chat_parser.Spelling
) -> list[dict[str, Any]]:
    """With what an environment said before the model was asked: the function puts it behind the dataset's prompt."""
    first = row.turns[0].order if row.turns else -1
    if not row.environment_calls or row.environment_calls[0].order >= first:
        return prompt_of(call, i)
    return spelling.prompt(call.prompts[i], tokens.prompt_ids)


def _heard(call: EnvironmentCall) -> dict[str, Any] | None:
    """The text of an environment's observation; JSON if it is no text."""
    if call.observation is None or call.kind == "reset":
        return None
    written = written_observation(call, call.observation)
    content = orjson.loads(written) if written.startswith(b'"') else written.decode()
    return {"role": "tool" if call.kind == "tool" else "user", "content": content}


def _reply(turn: Turn) -> dict[str, Any] | None:
    sequence = turn.sequence
    if sequence.reply is not None:
        reply: dict[str, Any] = orjson.loads(sequence.reply)
        return reply
    return None if sequence.text is None else chat_parser.assistant_message(sequence.text)


def _called(message: dict[str, Any]) -> str:
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return " ".join(f"{function['name']}({function['arguments']})" for function in calls)


def _beginning(words: str) -> str:
    """On one line. A long text is not split to its end, unless it begins with that many blanks."""
    looked_at = 2 * _PREVIEW  # some of them blanks
    beginning = " ".join(words[:looked_at].split())
    if len(beginning) < _PREVIEW and len(words) > looked_at:
        beginning = " ".join(words.split(maxsplit=_PREVIEW)[:_PREVIEW])
    return beginning[:_PREVIEW]
