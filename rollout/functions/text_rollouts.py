"""Makes a rollout function for text environments such as trl-env's: `text_rollout_func()`."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from logs_ui.recorder import trace_env
from logs_ui.rollout.environments.sessions import Sessions
from logs_ui.rollout.environments.sources import Factory, check_seconds
from logs_ui.rollout.environments.threads import OwnThread
from logs_ui.rollout.functions.openenv_rollouts import OpenEnvRollouts
from logs_ui.rollout.models.backends import Model, Sampling
from logs_ui.rollout.play.argument_checks import check_seed, model_maker, sampling_fields
from logs_ui.rollout.play.chat_template import Chat
from logs_ui.rollout.play.play import Episodes, OnUnparsable, Reward, Rules, as_messages
from logs_ui.rollout.play.processor import Processor, ProcessorChat, WithSpecialTokens, check_processor
from logs_ui.rollout.play.tasks_and_seeds import Assignment, Rotation

T = TypeVar("T")


class TextEnv(Protocol):
    """Describes an environment of texts, as trl-env's `Env`. One object plays one episode at a time, and is reset for
    the next. All its calls are made in the thread that created it.

    `reset` and `step` return the next message for the model, alone or, as in trl-env, after the environment to continue
    with: `(env, delta)`. It may have a `close()`.

    Examples:
        >>> import random
        >>> from logs_ui.rollout import text_rollout_func
        >>> class Guess:
        ...     def reset(self, seed):
        ...         self.secret, self.reward, self.alive = random.Random(seed).randint(1, 9), 0.0, True
        ...         return "Guess a number from 1 to 9."
        ...     def step(self, action):
        ...         self.alive = int(action) != self.secret
        ...         self.reward = 0.0 if self.alive else 1.0
        ...         return "wrong" if self.alive else "right"
        >>> game = Guess()
        >>> game.reset(seed=1), game.step("3"), game.reward, game.alive
        ('Guess a number from 1 to 9.', 'right', 1.0, False)
        >>> rollout_func = text_rollout_func(Guess, max_turns=4)
    """

    @property
    def reward(self) -> float | None:
        """Return the reward of the episode so far."""

    @property
    def alive(self) -> bool:
        """True while the episode continues."""

    def reset(self, seed: Any, /) -> "str | tuple[TextEnv, str]":
        """Start an episode: the same one for the same seed."""

    def step(self, action: str, /) -> "str | tuple[TextEnv, str]":
        """Apply an action."""


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
    """Return a rollout function for `trl.GRPOTrainer(rollout_func=...)` (0.29.1 and later) that plays episodes of a
    text environment (`TextEnv`), such as one written for trl-env.

    It works as `openenv_rollout_func`: the trainer gets exactly the tokens that the model saw and sampled, the rollouts
    of a batch are played at the same time, each in an environment of its own, and only a row whose environment raises
    or hangs fails. Environments are reused from batch to batch; after an error a new one is made.

    Args:
        env_factory: makes an environment, in the thread in which it is used; a class will do.
        processor: one of trl-env's, for a model whose template it writes. None uses the tokenizer's chat template; an
            action is then the answer without special tokens, after its `</think>` if there is one.
        system_prompt: the text of the first message.
        seed: the argument of `reset` for each group of completions is drawn from it. With "prompt", the dataset's
            prompt (the last message of a conversation) is passed to `reset` and not shown to the model, as in trl-env.
            None passes None.
        concurrency: environments at the same time, on each rank; None: as many as the batch has rows.
        timeout: seconds that each reset or step may take.
        on_unparsable: what an answer without an action does: "fail" ends the episode; "retry" asks again, after
            `unparsable_message`; "noop" sends `noop_action`.
        unparsable_message: None uses a plain sentence.
        noop_action: the action for "noop".
        max_turns: the most answers of the model in an episode.
        max_completion_tokens: the limit of all turns together, the environment's tokens included; None uses the
            trainer's `max_completion_length`.
        reward: computes an episode's reward from the environment's `reward` after each step: the "last" one (0.0
            without a step), as trl-env does; their "sum"; or a function of the list.
        model: None is the trainer's own, through its vLLM if it uses one; or a name that `model_url` serves; or a
            `Model`.
        model_url: the address of a server that speaks OpenAI's API, up to `/v1`.
        api_key: the key for that server.
        sampling: a `Sampling`, or its fields; the trainer's or the server's values apply to the rest.

    Returns:
        The rollout function. Its `close()`, or the end of the interpreter, closes the environments. Besides what TRL
        needs, it returns columns that reach reward functions, one value per row: `env_reward` (None if the row failed),
        `step_rewards` (a list), `turns` and `error` (one line, or None).

    Raises:
        TypeError, ValueError: arguments that do not fit together; the message is one line.

    Examples:
        >>> from logs_ui.rollout import text_rollout_func
        >>> rollout_func = text_rollout_func(Game, system_prompt="Answer with your guess.", max_turns=10)

        ```python
        trainer = GRPOTrainer(..., reward_funcs=[environment_reward], rollout_func=record(rollout_func))
        ```
    """
    if not callable(env_factory):
        raise TypeError(
            f"env_factory must be a function that makes a text environment, or its class, not an instance of "
            f"{type(env_factory).__name__}: each rollout needs an environment of its own"
        )
    check_processor(processor)
    check_seed(seed, "prompt")
    check_seconds("timeout", timeout)
    rules = Rules(
        act=_action if processor is None else lambda text: processor.parse_agent_output(text)[1],
        observe=lambda text: text,
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
        sessions=Sessions(Factory(lambda: _Client.opened(env_factory)), timeout),
        rotation=Rotation((), None if seed == "prompt" else seed),
        model_of=model_maker(model, model_url, api_key),
        sampling=sampling_fields(sampling, has_seed=model is not None),
        max_completion_tokens=max_completion_tokens,
        concurrency=concurrency,
    )


class TextRollouts(OpenEnvRollouts):
    """The rollout function that `text_rollout_func` returns."""

    def __init__(
        self, *, processor: Processor | None, system_prompt: str | None, prompt_is_seed: bool, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.processor = processor
        self.system_prompt = system_prompt
        self.prompt_is_seed = prompt_is_seed

    def episodes(
        self, prompts: Sequence[Any], assignments: Sequence[Assignment], *, model: Model, chat: Chat, budget: int
    ) -> Episodes:
        if self.prompt_is_seed:
            last = (prompt if isinstance(prompt, str) else str(prompt[-1]["content"]) for prompt in prompts)
            assignments = [Assignment(None, text) for text in last]
        if self.processor is not None:
            chat = ProcessorChat(chat.tokenizer, processor=self.processor)
            model = WithSpecialTokens(model, chat.tokenizer)
        if self.system_prompt is not None or self.prompt_is_seed:  # the messages before the environment's first one
            system = [] if self.system_prompt is None else [{"role": "system", "content": self.system_prompt}]
            prompts = [[*system, *([] if self.prompt_is_seed else as_messages(prompt))] for prompt in prompts]
        return super().episodes(prompts, assignments, model=model, chat=chat, budget=budget)


class _Result(NamedTuple):
    """Holds the result of a reset or a step. The reward is that of the episode so far."""

    observation: str
    reward: float | None
    done: bool


class _Client:
    """Gives a text environment the interface of a session's client."""

    def __init__(self, env_factory: Callable[[], Any]) -> None:
        self._env_factory = env_factory
        self._env: Any = None
        self._thread = OwnThread()

    @classmethod
    async def opened(cls, env_factory: Callable[[], Any]) -> Any:
        """Create the environment in a thread of its own. If that raises or is cancelled, the thread ends; an
        environment that is created too late is closed there.
        """
        client = cls(env_factory)
        try:
            await client._in_thread(client._make)
        except BaseException:
            client._submit_close()
            raise
        return trace_env(client)

    async def reset(self, seed: Any = None) -> _Result:
        result = await self._in_thread(lambda: self._read_result("reset", self._env.reset(seed)))
        if result.done:
            raise RuntimeError("The environment is not alive after its reset, so nothing can be played")
        return result._replace(reward=None)

    async def step(self, action: str) -> _Result:
        return await self._in_thread(lambda: self._read_result("step", self._env.step(action)))

    async def close(self) -> None:
        """Close the environment once a hanging call has returned, however late: the caller may stop waiting."""
        await asyncio.shield(asyncio.wrap_future(self._submit_close()))

    def _submit_close(self) -> "Future[None]":
        closing = self._thread.submit(lambda: (getattr(self._env, "close", None) or (lambda: None))())  # noqa: PLW0108 - made there
        self._thread.end()
        return closing

    def _make(self) -> None:
        self._env = self._env_factory()

    def _read_result(self, name: str, text: Any) -> _Result:
        if isinstance(text, tuple) and len(text) == 2:
            self._env, text = text
        if not isinstance(text, str):
            raise TypeError(f"{name}() gives a text, or (env, text), not {type(text).__name__}")
        reward = self._env.reward
        return _Result(text, None if reward is None else float(reward), not self._env.alive)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._thread.submit(call))


def _action(text: str) -> str | None:
    """Return the action; None while the model still thinks."""
    _, ended, action = text.rpartition("</think>")
    return None if not ended and "<think>" in action else action.strip()
