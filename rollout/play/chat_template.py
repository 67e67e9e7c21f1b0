"""Renders a conversation as token ids: the prompt's, and those between a sampled answer and the model's next turn.

Sampled ids are never tokenised again. Therefore only what the chat template puts after an answer is rendered, behind a
placeholder for the answer: the rest of the assistant's turn, the environment's messages, the header of the next turn.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

Message = Mapping[str, Any]
Prompt = str | Sequence[Message]

_ANSWER, _OBSERVATION = "AnswerOfTheModelStandsHere", "WhatTheEnvironmentSaysStandsHere"
"""A word each: templates may strip the spaces around it."""


class ChatTemplateError(ValueError):
    """A chat template cannot render a conversation. The message says which roles, why, and what to do."""


@dataclass(frozen=True)
class Chat:
    """A tokenizer and how its chat template is used."""

    tokenizer: Any  # one of transformers
    template: str | None = None  # a Jinja template; None uses the tokenizer's own
    tools: Sequence[Any] | None = None  # JSON schemas or functions of the tools, for the prompt
    options: Mapping[str, Any] = field(default_factory=dict)  # the template's other variables, as `enable_thinking`

    @classmethod
    def of_trainer(cls, trainer: Any) -> Self:
        """Return the chat as a `trl.GRPOTrainer` renders its prompts; of a processor, its tokenizer."""
        processor = trainer.processing_class
        template = getattr(trainer, "chat_template", None) or getattr(processor, "chat_template", None)
        options = getattr(trainer, "chat_template_kwargs", None) or {}
        return cls(getattr(processor, "tokenizer", processor), template, options=options)

    def prompt_ids(self, prompt: Prompt, more: Sequence[Message] = ()) -> list[int]:
        """Return the ids that the model is given first, including the header of its turn.

        Args:
            prompt: messages; or a text, which is used as it is, without a template.
            more: messages that follow, such as an environment's first observation. A message with the same role as the
                one before it is joined to that, since many templates require alternating roles.

        Raises:
            ChatTemplateError: the template refuses the messages, or there is none.
        """
        if isinstance(prompt, str):
            ids: list[int] = list(self.tokenizer(prompt + _plain(more))["input_ids"])
            return ids
        return self._tokenized(self._rendered(joined([*prompt, *more]), tools=self.tools))

    def inserted(self, answer: Sequence[int], messages: Sequence[Message], *, plain: bool = False) -> list[int]:
        """Return the ids between an answer and the model's next turn.

        Args:
            answer: (S,) ids of the answer. If it already contains a part of the turn's end, that part is not repeated.
            messages: the environment's messages, by role; joined as in `prompt_ids`.
            plain: True for a prompt that was a text: the messages' texts then stand on lines of their own.

        Raises:
            ChatTemplateError: as in `prompt_ids`, or the template does not show an assistant's answer as it is.
        """
        if plain:
            text, end = _plain(messages), "\n"
        else:
            text = self._after_answer(joined(messages))
            # The end of the assistant's turn is what the template writes after an answer with and without further
            # messages.
            end = os.path.commonprefix([text, self._after_answer([], then_model=False)])  # noqa: RUF071 (no paths)
            self._check_said(text, messages)
        ids = self._tokenized(text)
        # At least one: some models end their turn by the first token of the next.
        return ids[_overlap(answer, ids[: max(1, len(self._tokenized(end)))]) :]

    def _check_said(self, text: str, messages: Sequence[Message]) -> None:
        """Raise if the template left out a message, as some do with a tool's answer to no call."""
        for message in messages:
            content = message.get("content")
            if not isinstance(content, str) or content.strip() in text:
                continue
            if _OBSERVATION not in self._after_answer([{**message, "content": _OBSERVATION}]):  # else it was escaped
                raise ChatTemplateError(
                    f"The chat template leaves out messages of role {message.get('role')} here, so the model would not "
                    "see what the environment says. Give them another role, such as user."
                )

    def _after_answer(self, messages: Sequence[Message], *, then_model: bool = True) -> str:
        before = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": _ANSWER}]
        text = self._rendered([*before, *messages], then_model=then_model)
        if _ANSWER not in text:
            raise ChatTemplateError(
                "The chat template does not show an assistant's answer as it is, so nothing can be put after a sampled "
                "one. Set another with tokenizer.chat_template."
            )
        return text.partition(_ANSWER)[2]

    def _rendered(
        self, messages: Sequence[Message], *, then_model: bool = True, tools: Sequence[Any] | None = None
    ) -> str:
        if self.template is None and getattr(self.tokenizer, "chat_template", None) is None:
            raise ChatTemplateError(
                "The tokenizer has no chat template, and the prompt is a conversation. Set tokenizer.chat_template, or "
                "give prompts that are texts."
            )
        options = {"chat_template": self.template, "tools": tools or None, **self.options}
        try:
            text: str = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=then_model, **options
            )
        except Exception as error:
            # A template raises what it likes: Jinja's errors, and those of Python under them.
            roles = ", ".join(str(message.get("role")) for message in messages)
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ChatTemplateError(
                f"The chat template refuses messages of these roles: {roles} ({reason}). Give the environment's "
                "messages a role that it takes, such as user, or set another template with tokenizer.chat_template."
            ) from error
        return text

    def _tokenized(self, text: str) -> list[int]:
        ids: list[int] = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return ids


def joined(messages: Sequence[Message]) -> list[Message]:
    """Join neighbouring messages of one role into one, if they are plain texts."""
    merged: list[Message] = []
    for message in messages:
        last = merged[-1] if merged else None
        if last is not None and _is_text(last) and _is_text(message) and last["role"] == message["role"] != "tool":
            merged[-1] = {**last, "content": f"{last['content']}\n\n{message['content']}"}
        else:
            merged.append(message)
    return merged


def _is_text(message: Message) -> bool:
    return isinstance(message.get("content"), str) and set(message) == {"role", "content"}


def _plain(messages: Sequence[Message]) -> str:
    return "".join(f"\n{message.get('content') or ''}\n" for message in messages)


def _overlap(answer: Sequence[int], end: Sequence[int]) -> int:
    """Count how many of the first ids of a turn's end already are the last ids of the answer."""
    longest = min(len(answer), len(end))
    return next((n for n in range(longest, 0, -1) if list(answer[-n:]) == list(end[:n])), 0)
