"""Supports trl-env's processors: chat templates and parsers that a user writes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from logs_ui.rollout.models.backends import AroundModel, Sampling
from logs_ui.rollout.models.token_episode import Answer
from logs_ui.rollout.play.chat_template import Chat, ChatTemplateError, Message, Prompt
from logs_ui.rollout.play.play import as_messages

_PROCESSOR = ("init_system_input", "append_user_input", "parse_agent_output")


class Processor(Protocol):
    """Describes how a model's chat template is written and how its answers are read, as in trl-env. The texts contain
    special tokens.

    Examples:
        >>> from logs_ui.rollout import Processor, text_rollout_func
        >>> class Tagged(Processor):
        ...     def init_system_input(self, text):
        ...         return f"<|system|>{text}<|end|>"
        ...     def append_user_input(self, text):
        ...         return f"<|user|>{text}<|end|><|assistant|>"
        ...     def parse_agent_output(self, text):
        ...         thought, action = text.split("Action:")
        ...         return thought, action.strip()
        >>> Tagged().parse_agent_output("2 + 3 is 5. Action: say 5")
        ('2 + 3 is 5. ', 'say 5')
        >>> rollout_func = text_rollout_func(Game, Tagged())
    """

    def init_system_input(self, prompt: str, /) -> str:
        """Return the text of the system's turn."""

    def append_user_input(self, prompt: str, /) -> str:
        """Return the text of a user's turn, with the header of the model's turn after it."""

    def parse_agent_output(self, completion: str, /) -> tuple[str, str]:
        """Return an answer's reasoning and its action. An exception means that there is no action."""


def check_processor(processor: Any) -> None:
    missing = [name for name in _PROCESSOR if processor is not None and not callable(getattr(processor, name, None))]
    if missing:
        raise TypeError(f"processor is trl-env's, with {', '.join(_PROCESSOR)}; this one has no {', '.join(missing)}")


@dataclass(frozen=True, kw_only=True)
class ProcessorChat(Chat):
    """A conversation that a processor renders, instead of a chat template."""

    processor: Processor

    def prompt_ids(self, prompt: Prompt, more: Sequence[Message] = ()) -> list[int]:
        """Do the same as `Chat.prompt_ids`. A processor has no way to write an assistant's answer."""
        messages = [*as_messages(prompt), *more]
        if any(message["role"] == "assistant" for message in messages):
            raise ChatTemplateError(
                "A processor writes what the system and the user say, and the prompt holds an assistant's answer. "
                "Leave processor out to use the chat template."
            )
        system = [message for message in messages if message["role"] == "system"]
        user = [message for message in messages if message["role"] != "system"]
        text = self.processor.init_system_input(_joined(system)) + self.processor.append_user_input(_joined(user))
        return self._tokenized(text)

    def inserted(self, answer: Sequence[int], messages: Sequence[Message], *, plain: bool = False) -> list[int]:  # noqa: ARG002
        """Do the same as `Chat.inserted`. A truncated answer gets its end token."""
        ids = self._tokenized(self.processor.append_user_input(_joined(messages)))
        end = self.tokenizer.eos_token_id
        is_ended = bool(answer) and answer[-1] in self.tokenizer.all_special_ids
        return ids if is_ended or ids[:1] == [end] else [end, *ids]


@dataclass(frozen=True)
class WithSpecialTokens(AroundModel):
    """A model whose answers keep special tokens in their texts, because processors read them."""

    tokenizer: Any

    async def answer(self, row: int, context: Sequence[int], sampling: Sampling) -> Answer:
        answer = await self.model.answer(row, context, sampling)
        return replace(answer, text=self.tokenizer.decode(answer.ids))


def _joined(messages: Sequence[Message]) -> str:
    return "\n\n".join(str(message["content"]) for message in messages)
