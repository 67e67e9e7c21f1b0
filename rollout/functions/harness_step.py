"""Holds the model's side of OpenEnv's harness: one session's conversation, whose tokens only ever grow."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import orjson

from logs_ui.recorder import current_row
from logs_ui.rollout.models.backends import Sampling
from logs_ui.rollout.models.one_line import one_line
from logs_ui.rollout.models.token_episode import Answer, Trajectory
from logs_ui.rollout.play.argument_checks import sampling_fields
from logs_ui.rollout.play.chat_template import Chat, Message

Calls = Sequence[tuple[str, Mapping[str, Any]]]
Act = Callable[[str], Calls]
ResultRole = Literal["tool", "user"]
Ask = Callable[[list[int], Sampling], Answer]

_TOOL_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


@dataclass
class HarnessModelStep:
    """Implements OpenEnv's `ModelStep` for one session: it samples the next answer to the conversation.

    What the model saw and sampled is in `trajectory`, whatever becomes of the harness. The harness may only append to
    the messages, as OpenEnv's does.
    """

    chat: Chat
    act: Act | None  # None reads tool calls as the tokenizer says, or `<tool_call>` with JSON
    budget: int  # tokens of a whole completion, the session's included
    result_role: ResultRole
    tools_in_prompt: bool
    ask: Ask  # gives the answer to a context (L token ids); blocks
    has_seed: bool  # True if the model takes a seed
    trajectory: Trajectory = field(default_factory=lambda: Trajectory([]))
    turns: int = 0  # answers of the model
    # True if the session's messages did not fit any more: an empty response then ends the harness's loop.
    is_out_of_tokens: bool = False
    _messages: list[Message] = field(default_factory=list)
    _last: Answer | None = None
    _calls: int = 0

    def __call__(self, messages: Sequence[Message], tools: Sequence[Any], sampling: Mapping[str, Any]) -> Any:
        """Return a `ModelStepResult`: its context as `prompt_ids`, and what was sampled. Raise GenerationError if the
        model failed, and ValueError if the harness changed messages that the model has seen.
        """
        from openenv.core.harness import ModelStepResult
        from openenv.core.llm_client import LLMResponse, ToolCall

        self._hear(self._news(messages), tools)
        context = self.trajectory.context
        if self.is_out_of_tokens:
            return ModelStepResult(LLMResponse(""), context)
        answer = self._last = self.ask(context, self._sampling(sampling))
        self.trajectory.sample(answer)
        self.turns += 1
        parsed = self._parse_calls(context, answer)
        # Ids of nine characters, which Mistral's templates require.
        calls = [
            ToolCall(f"call{self._calls + i:05}", name, dict(arguments))
            for i, (name, arguments) in enumerate(parsed, 1)
        ]
        self._calls += len(calls)
        logprobs = (
            [math.nan] * len(answer.ids) if answer.logprobs is None else list(answer.logprobs)
        )  # there is no None
        return ModelStepResult(LLMResponse(answer.text, calls), context, list(answer.ids), logprobs)

    def _news(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages that the model has not seen yet, without its own answer."""
        seen_count = len(self._messages)
        if list(messages[:seen_count]) != self._messages:
            raise ValueError(
                "The harness changed messages that the model has seen already: what is trained on would not be what "
                "was sampled. It may only append to them."
            )
        news = list(messages[seen_count:])
        self._messages += news
        # The first of them is the model's own answer, whose sampled ids are in the trajectory already.
        if self._last is not None and news and news[0]["role"] == "assistant":
            del news[0]
        return [self._with_role(message) for message in news]

    def _with_role(self, message: Message) -> Message:
        if message["role"] == "tool" != self.result_role:
            return {"role": self.result_role, "content": message["content"]}
        return message

    def _hear(self, news: Sequence[Message], tools: Sequence[Any]) -> None:
        if self._last is None:
            schemas = [_schema(tool) for tool in tools] if self.tools_in_prompt else None
            self.trajectory.prompt_ids = replace(self.chat, tools=schemas).prompt_ids(news)
            return
        inserted = self.chat.inserted(self._last.ids, news)
        self.is_out_of_tokens = len(self.trajectory.completion_ids) + len(inserted) >= self.budget
        if not self.is_out_of_tokens:
            self.trajectory.insert(inserted)

    def _sampling(self, changes: Mapping[str, Any]) -> Sampling:
        room = self.budget - len(self.trajectory.completion_ids)
        sampling = Sampling(**{"max_tokens": room, **sampling_fields(changes, has_seed=self.has_seed)})
        return replace(sampling, max_tokens=min(sampling.max_tokens, room))

    def _parse_calls(self, context: Sequence[int], answer: Answer) -> Calls:
        """Return the calls in an answer; empty if none can be read."""
        try:
            calls = tool_calls(self.chat.tokenizer, context, answer) if self.act is None else self.act(answer.text)
            return [(str(name), dict(arguments)) for name, arguments in calls or ()]
        except Exception as error:  # noqa: BLE001 - a parser may raise what it likes
            current_row().note(act_raised=one_line(error))
            return []


def tool_calls(tokenizer: Any, context: Sequence[int], answer: Answer) -> Calls:
    """Return names and arguments of the calls in an answer to a context. Raise what parsers raise."""
    if getattr(tokenizer, "response_template", None) or getattr(tokenizer, "response_schema", None):
        # The newer templates have to see what the prompt wrote of the answer, such as an opening <think>.
        more = {"prefix": list(context)} if getattr(tokenizer, "response_template", None) else {}
        message = tokenizer.parse_response(list(answer.ids), **more)
        calls = [call["function"] for call in message.get("tool_calls") or ()]
    else:
        # A call that the model only considers while it thinks is not made.
        text = answer.text.rpartition("</think>")[2]
        calls = [orjson.loads(call) for call in _TOOL_CALL.findall(text)]
    return [(call["name"], _arguments(call.get("arguments"))) for call in calls]


def _arguments(value: Any) -> Mapping[str, Any]:
    arguments: Mapping[str, Any] = orjson.loads(value) if isinstance(value, str) else value
    return arguments or {}


def _schema(tool: Any) -> dict[str, Any]:
    """Return an MCP tool in the form that chat templates take."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": function}
