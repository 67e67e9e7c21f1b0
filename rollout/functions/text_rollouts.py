"""A rollout function for text environments, as trl-env has them: `text_rollout_func()`."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeVar

from logs_ui.recorder import trace_env
from logs_ui.rollout.environments.environment_sources import Factory, check_seconds
from logs_ui.rollout.environments.environment_threads import OwnThread
from logs_ui.rollout.environments.sessions import Sessions
from logs_ui.rollout.functions.openenv_rollouts import OpenEnvRollouts
from logs_ui.rollout.models.backends import Model, Sampling
from logs_ui.rollout.play.argument_checks import check_seed, model_maker, sampling_fields
from logs_ui.rollout.play.chat_template import Chat, Prompt
from logs_ui.rollout.play.play import Episodes, OnUnparsable, Reward, Rules, as_messages
from logs_ui.rollout.play.processor import Processor, ProcessorChat, WithSpecialTokens, check_processor
from logs_ui.rollout.play.task_assignment import Assignment, Rotation

T = TypeVar("T")


class TextEnv(Protocol):
    """An environment of texts, as trl-env's `Env`. One object plays one episode at a time, and is reset for the next.
    Its calls are all made in the thread that made it.

    `reset` and `step` give what the model is told, alone or, as trl-env has it, after the environment to go on with:
    `(env, delta)`. It may have a `close()`.
    """

    @property
    def reward(self) -> float | None:
        """Of the episode so far."""

    @property
    def alive(self) -> bool:
        """Whether the episode goes on."""

    def reset(self, seed: Any, /) -> "str | tuple[TextEnv, str]":
        """Begins an episode: the same one for the same seed."""

    def step(self, action: str, /) -> "str | tuple[TextEnv, str]":
        """Applies an action."""


def text_rollout_func(
    env_factory: Callable[[], Any],
    processor: Processor | None = None,
    *,
    system_prompt: str | None = None,
    seed: int | Literal["prompt"] | None = 0,
    concurrency: int | None = None,
    timeout: float = 60.0,
    on_unparsable: OnUnparsable = "fail",
    unparsable_message: str | None = None,
    noop_action: str | None = None,
    max_turns: int = 8,
    max_completion_tokens: int | None = None,
    reward: Reward = "last",
    model: str | Model | None = None,
    model_url: str | None = None,
    api_key: str | None = None,
    sampling: Sampling | Mapping[str, Any] | None = None,
) -> "TextRollouts":
    """A rollout function for `trl.GRPOTrainer(rollout_func=...)` (0.29.1 and on) that plays episodes of a text
    environment (`TextEnv`), such as one written for trl-env.

    As `openenv_rollout_func`: the tokens that the trainer gets are those that the model saw and sampled, the rollouts
    of a batch are played at the same time, each in an environment of its own, and one that raises or hangs costs its
    own row. Environments are kept from batch to batch; after an error a new one is made.

    Args:
        env_factory: makes an environment, in the thread in which it is used; a class will do.
        processor: trl-env's, for a model whose template it writes. None takes the tokenizer's chat template, and for an
            action the answer without special tokens, after its `</think>` if there is one.
        system_prompt: stands before all else.
        seed: what `reset` is given: a number drawn from this one for each group of completions; with "prompt" the
            dataset's prompt, as trl-env takes it, which the model does not see then (a conversation's last message);
            None with None.
        concurrency: environments at a time, on each rank; None takes as many as the batch has rows.
        timeout: seconds that each reset or step may take.
        on_unparsable: what an answer without an action does: "fail" ends the episode; "retry" asks again, after
            `unparsable_message`; "noop" takes `noop_action`.
        unparsable_message: None takes a plain sentence.
        noop_action: an action.
        max_turns: answers of the model in an episode.
        max_completion_tokens: of all turns together, the environment's tokens included; None takes the trainer's
            `max_completion_length`.
        reward: what an episode is worth, from the environment's `reward` after each step: the "last" one (0.0 where
            there was no step), as trl-env counts it; their "sum"; or a function of the list.
        model: None is the trainer's own, by its vLLM where it uses one; a name that `model_url` serves; or a `Model`.
        model_url: of a server that speaks OpenAI's API, up to `/v1`.
        api_key: for that.
        sampling: a `Sampling`, or its fields; what is left out is the trainer's, or the server's.

    Returns:
        The rollout function. Its `close()` closes the environments, as does the end of the interpreter. What it
        returns, beside what TRL needs, reaches reward functions as a value for each row: `env_reward` (None where the
        row failed), `step_rewards` (a list), `turns` and `error` (one line, or None).

    Raises:
        TypeError, ValueError: arguments that do not go together, in one line.
    """
    if not callable(env_factory):
        raise TypeError(
            f"env_factory is a function that makes a text environment, or its class, not an instance of "
            f"{type(env_factory).__name__}: each rollout needs an environment of its own"
        )
    check_processor(processor)
    check_seed(seed, "prompt")
    check_seconds("timeout", timeout)
    rules = Rules(
        act=_action if processor is None else _action_by(processor),
        observe=lambda said: said,
        max_turns=max_turns,
        on_unparsable=on_unparsable,
        unparsable_message=unparsable_message,
        noop_action=noop_action,
        reward=reward,
    )
    return TextRollouts(
        processor=processor,
        system_prompt=system_prompt,
        prompt_is_seed=seed == "prompt",
        name=getattr(env_factory, "__name__", type(env_factory).__name__),
        rules=rules,
        sessions=Sessions(Factory(lambda: _opened(env_factory)), timeout),
        rotation=Rotation((), None if seed == "prompt" else seed),
        model_of=model_maker(model, model_url, api_key),
        sampling=sampling_fields(sampling, has_seed=model is not None),
        max_completion_tokens=max_completion_tokens,
        concurrency=concurrency,
    )


class TextRollouts(OpenEnvRollouts):
    """What `text_rollout_func` returns."""

    def __init__(
        self, *, processor: Processor | None, system_prompt: str | None, prompt_is_seed: bool, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self._processor = processor
        self._system_prompt = system_prompt
        self._prompt_is_seed = prompt_is_seed

    def episodes(
        self, prompts: Sequence[Any], assignments: Sequence[Assignment], *, model: Model, chat: Chat, budget: int
    ) -> Episodes:
        """As those of OpenEnv's environments."""
        if self._prompt_is_seed:
            assignments = [Assignment(None, _last_text(prompt)) for prompt in prompts]
        if self._processor is not None:
            chat = ProcessorChat(chat.tokenizer, processor=self._processor)
            model = WithSpecialTokens(model, chat.tokenizer)
        shown = [self._shown(prompt) for prompt in prompts]
        return super().episodes(shown, assignments, model=model, chat=chat, budget=budget)

    def _shown(self, prompt: Prompt) -> Prompt:
        """What stands before the environment's first words."""
        if self._system_prompt is None and not self._prompt_is_seed:
            return prompt
        system = [] if self._system_prompt is None else [{"role": "system", "content": self._system_prompt}]
        return [*system, *([] if self._prompt_is_seed else as_messages(prompt))]


@dataclass(frozen=True)
class _Told:
    """What came of a reset or a step.

    Attributes:
        reward: of the episode so far.
    """

    observation: str
    reward: float | None
    done: bool


class _Client:
    """A text environment as a session has it."""

    def __init__(self, env_factory: Callable[[], Any]) -> None:
        self._env_factory = env_factory
        self._env: Any = None
        self._thread = OwnThread()

    async def open(self) -> None:
        """Its thread ends where it raises or is cancelled; an environment that is made too late is closed there."""
        try:
            await self._in_thread(self._make)
        except BaseException:
            self._submit_close()
            raise

    async def reset(self, seed: Any = None) -> _Told:
        told = await self._in_thread(lambda: self._told("reset", self._env.reset(seed)))
        if told.done:
            raise RuntimeError("It is not alive after its reset, so nothing can be played")
        return replace(told, reward=None)

    async def step(self, action: str) -> _Told:
        return await self._in_thread(lambda: self._told("step", self._env.step(action)))

    async def close(self) -> None:
        """Once a call that hangs has come to its end, however late: whoever waits for it may give up."""
        await asyncio.shield(asyncio.wrap_future(self._submit_close()))

    def _submit_close(self) -> "Future[None]":
        closing = self._thread.submit(self._close)
        self._thread.end()
        return closing

    def _make(self) -> None:
        self._env = self._env_factory()

    def _close(self) -> None:
        close = getattr(self._env, "close", None)
        if close is not None:
            close()

    def _told(self, name: str, said: Any) -> _Told:
        if isinstance(said, tuple) and len(said) == 2:
            self._env, said = said
        if not isinstance(said, str):
            raise TypeError(f"{name}() gives a text, or (env, text), not {type(said).__name__}")
        reward = self._env.reward
        return _Told(said, None if reward is None else float(reward), not self._env.alive)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._thread.submit(call))


async def _opened(env_factory: Callable[[], Any]) -> Any:
    client = _Client(env_factory)
    await client.open()
    return trace_env(client)


def _action(text: str) -> str | None:
    """None while it still thinks."""
    _, ended, said = text.rpartition("</think>")
    return None if not ended and "<think>" in said else said.strip()


def _action_by(processor: Processor) -> Callable[[str], str]:
    return lambda text: processor.parse_agent_output(text)[1]


def _last_text(prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else str(prompt[-1]["content"])
