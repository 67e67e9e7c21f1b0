"""trl-env's processors: chat templates and parsers as a user writes them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from logs_ui.rollout.models.backends import AroundModel, Sampling
from logs_ui.rollout.models.token_episode import Answer
from logs_ui.rollout.play.chat_template import Chat, ChatTemplateError, Message, Prompt
from logs_ui.rollout.play.play import as_messages

_PROCESSOR = ("init_system_input", "append_user_input", "parse_agent_output")


class Processor(Protocol):
    """How a model's template is written and its answers are read, as trl-env has it. The texts hold special tokens."""

    def init_system_input(self, prompt: str, /) -> str:
        """The system's turn."""

    def append_user_input(self, prompt: str, /) -> str:
        """A turn of the user's, with the header of the model's turn after it."""

    def parse_agent_output(self, completion: str, /) -> tuple[str, str]:
        """An answer's reasoning and its action. What it raises says that there is no action."""


def check_processor(processor: Any) -> None:
    missing = [name for name in _PROCESSOR if processor is not None and not callable(getattr(processor, name, None))]
    if missing:
        raise TypeError(f"processor is trl-env's, with {', '.join(_PROCESSOR)}; this one has no {', '.join(missing)}")


@dataclass(frozen=True, kw_only=True)
class ProcessorChat(Chat):
    """A conversation as a processor writes it, in place of a chat template."""

    processor: Processor

    def prompt_ids(self, prompt: Prompt, more: Sequence[Message] = ()) -> list[int]:
        """As of `Chat`. A processor has no way to write an assistant's answer."""
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
        """As of `Chat`. An answer that was cut off is ended."""
        ids = self._tokenized(self.processor.append_user_input(_joined(messages)))
        end = self.tokenizer.eos_token_id
        is_ended = bool(answer) and answer[-1] in self.tokenizer.all_special_ids
        return ids if is_ended or ids[:1] == [end] else [end, *ids]


@dataclass(frozen=True)
class WithSpecialTokens(AroundModel):
    """A model whose answers' texts hold special tokens, as processors read them."""

    tokenizer: Any

    async def answer(self, row: int, context: Sequence[int], sampling: Sampling) -> Answer:
        """As in `Model`."""
        answer = await super().answer(row, context, sampling)
        return replace(answer, text=self.tokenizer.decode(answer.ids))


def _joined(messages: Sequence[Message]) -> str:
    return "\n\n".join(str(message["content"]) for message in messages)
