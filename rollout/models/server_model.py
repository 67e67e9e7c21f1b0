"""Samples from a model on a server with OpenAI's HTTP interface: ids for training, messages for evaluation."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from logs_ui.rollout.models.backends import Sampling
from logs_ui.rollout.models.model_server import Server, request
from logs_ui.rollout.models.token_episode import Answer

_PROBE = "Hello, World! 1 + 23 = 24\n\n\tnaïve: 你好 🙂 "
_RAW_LOGPROBS = -0.01
"""The most probable token's log-prob is 0 where one token alone can be sampled, if it is of what was sampled from."""


@dataclass(frozen=True)
class Reply:
    """Holds an answer of a chat model."""

    message: dict[str, Any]  # the assistant's, as the server gave it
    finish: str | None  # "stop", "length", "tool_calls", ... as the server says

    @property
    def text(self) -> str:
        """Return the answer's text; empty if it only called tools."""
        return self.message.get("content") or ""


class ServerModel(Server):
    """A `backends.Model` on a server that takes and returns token ids: vLLM from 0.10.2 on (`return_token_ids`).

    The server keeps the weights that it was started with, unless something else updates them. Its log-probs are those
    of the sampled distribution if it runs with `--logprobs-mode processed_logprobs`, or samples at temperature 1 from
    all tokens.

    Args:
        base_url: such as http://127.0.0.1:8000/v1; without a path, /v1 is added.
        model: the name under which it is served.
        api_key: None for a server that needs none.
        timeout: seconds for one answer, retries included.
        headers: sent with each request.
        retries: their number after a broken connection, or status 408, 409, 429 or 5xx, each after a longer pause.

    Raises:
        ValueError: base_url is not an address, or timeout is not a number of seconds.
        ImportError: the openai package is not installed.

    Examples:
        >>> import asyncio
        >>> from logs_ui.rollout import Sampling, ServerModel, text_rollout_func
        >>> model = ServerModel("http://127.0.0.1:8000/v1", "my-model", timeout=30)
        >>> rollout_func = text_rollout_func(Game, model=model)
        >>> asyncio.run(model.answer(0, [1, 5, 6], Sampling(max_tokens=8))).text
        '5'
    """

    _slow = "Lower concurrency, or give it longer by model=ServerModel(url, name, timeout=...)"

    async def answer(self, row: int, context: Sequence[int], sampling: Sampling) -> Answer:  # noqa: ARG002
        """Do the same as `Model.answer`."""
        async with self.explained():
            completion = await self.connected().completions.create(
                model=self.model, prompt=list(context), logprobs=1, **request(sampling, wants_token_ids=True)
            )
        choice = self._choice(completion)
        returned = choice.get("prompt_token_ids")
        if returned is not None and list(returned) != list(context):
            raise self.error("changed the prompt that it was given", "Serve it without truncation")
        ids, logprobs = self._sampled(choice)
        finish: Literal["stop", "length"] = "length" if choice.get("finish_reason") == "length" else "stop"
        return Answer(ids, logprobs, finish, choice.get("text") or "")

    async def preflight(self, tokenizer: Any, sampling: Sampling) -> None:
        """Ask for one token, before a training starts, and warn if log-probs are not those of the sampled
        distribution.

        Raises:
            GenerationError: the server does not answer, does not serve the model, returns no token ids, or tokenises a
                text differently from `tokenizer`.
        """
        try:
            await self.check_served()
            # One request checks both: its prompt the tokenizer, and its only token, sampled with top_k=1, the
            # log-probs (see `_RAW_LOGPROBS`).
            arguments = request(Sampling(max_tokens=1, temperature=1.0, top_k=1), wants_token_ids=True)
            arguments["extra_body"]["add_special_tokens"] = False
            async with self.explained():
                completion = await self.connected().completions.create(
                    model=self.model, prompt=_PROBE, logprobs=1, **arguments
                )
            choice = self._choice(completion)
            _, logprobs = self._sampled(choice)
            self._check_tokenizer(choice.get("prompt_token_ids"), tokenizer)
            if logprobs and logprobs[0] < _RAW_LOGPROBS and not _is_neutral(sampling):
                warnings.warn(
                    f"{self._shown} returns log-probs before temperature, top_p, top_k and min_p are applied: they "
                    "are not those of the sampled distribution. Start it with --logprobs-mode processed_logprobs.",
                    stacklevel=2,
                )
        finally:
            await self.close()

    def _check_tokenizer(self, returned: Sequence[int] | None, tokenizer: Any) -> None:
        ids = list(tokenizer(_PROBE, add_special_tokens=False)["input_ids"])
        if returned is None or list(returned) != ids:
            raise self.error(
                f"tokenises text differently from the trainer's tokenizer (serving {self.model!r})",
                "Serve the model that is trained, with its own tokenizer",
            )

    def _choice(self, completion: Any) -> dict[str, Any]:
        choice = self.first_choice(completion)
        if choice.get("finish_reason") in {"abort", "error"}:
            raise self.error(f"ended an answer early (finish reason {choice['finish_reason']})")
        return choice

    def _sampled(self, choice: Mapping[str, Any]) -> tuple[list[int], list[float] | None]:
        """Return the (S,) sampled ids and their log-probs."""
        ids = choice.get("token_ids")
        if ids is None:
            raise self.error(
                "returns no token ids, and what is trained on must be exactly what was sampled",
                "Serve the model with vLLM 0.10.2 or newer, or use this server for evaluation only",
            )
        values = (choice.get("logprobs") or {}).get("token_logprobs")
        if values is not None and len(values) != len(ids):
            raise self.error(f"returned {len(values)} log-probs for {len(ids)} token ids", "Update it")
        return list(ids), None if values is None else [math.nan if value is None else float(value) for value in values]


class ChatModel(Server):
    """Samples from any model server, queried by messages, for evaluation. The ids that it was given and sampled are not
    known.

    The arguments are those of `ServerModel`.
    """

    _limit = "max_tokens"

    async def reply(self, messages: Sequence[Mapping[str, Any]], sampling: Sampling) -> Reply:
        """Return one answer to a conversation. The row has entered before and leaves at its end. Raise
        GenerationError if the server failed, or refused.
        """
        from openai import BadRequestError

        request_fields: dict[str, Any] = {"model": self.model, "messages": [dict(message) for message in messages]}
        async with self.explained():
            try:
                completion = await self._complete(request_fields, sampling)
            except BadRequestError as error:
                if "max_completion_tokens" not in str(error) or self._limit == "max_completion_tokens":
                    raise
                self._limit = "max_completion_tokens"  # OpenAI's newer models take no other name
                completion = await self._complete(request_fields, sampling)
        choice = self.first_choice(completion)
        if not isinstance(choice.get("message"), dict):
            raise self.error("returned no message")
        return Reply(choice["message"], choice.get("finish_reason"))

    async def preflight(self) -> None:
        """Raise GenerationError if the server does not answer, or does not serve the model."""
        try:
            await self.check_served()
        finally:
            await self.close()

    async def _complete(self, request_fields: dict[str, Any], sampling: Sampling) -> Any:
        options = request(sampling, wants_token_ids=False)
        options[self._limit] = options.pop("max_tokens")
        return await self.connected().chat.completions.create(**request_fields, **options)


def _is_neutral(sampling: Sampling) -> bool:
    """Return True if answers are sampled from the model's own distribution. A parameter that is unset is unknown."""
    return (
        sampling.temperature == 1
        and sampling.top_p in {None, 1}
        and sampling.top_k in {None, 0, -1}
        and sampling.min_p in {None, 0}
        and sampling.repetition_penalty in {None, 1}
    )
