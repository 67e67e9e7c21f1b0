"""Plays OpenEnv's harness with TRL 0.29.1 and later: `harness_rollout_func()`, and parts for OpenEnv's own builder.

    rollout_func = harness_rollout_func(session_factory=Games(url), limits=HarnessRunLimits(max_turns=5))

or, one rollout after another and without an env_mask, which OpenEnv's builder has no place for:

    rollout_func = build_harness_rollout_func(
        session_factory=Games(url), harness_adapter=ExactHarnessAdapter(), model_step_builder=harness_model_step()
    )
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from logs_ui.recorder import current_row
from logs_ui.rollout.environments.sources import check_seconds
from logs_ui.rollout.environments.threads import in_thread
from logs_ui.rollout.functions.harness_adapter import ExactHarnessAdapter
from logs_ui.rollout.functions.harness_session import WatchedSession
from logs_ui.rollout.functions.harness_step import Act, Ask, HarnessModelStep, ResultRole
from logs_ui.rollout.models.backends import GenerationError, Model, Sampling, try_model
from logs_ui.rollout.models.token_episode import Answer
from logs_ui.rollout.play.argument_checks import check_limits, check_seed, model_maker, sampling_fields, task_names
from logs_ui.rollout.play.batch import Failures, columns, play_rows, run
from logs_ui.rollout.play.chat_template import Chat
from logs_ui.rollout.play.play import Rollout, prompt_alone
from logs_ui.rollout.play.tasks_and_seeds import Assignment, Rotation


def harness_rollout_func(
    *,
    session_factory: Any,
    harness_adapter: Any = None,
    limits: Any = None,
    act: Act | None = None,
    result_role: ResultRole = "tool",
    tools_in_prompt: bool = True,
    tasks: Sequence[str] = (),
    seed: int | None = 0,
    missing_reward: float | None = None,
    concurrency: int | None = None,
    timeout: float = 60.0,
    max_completion_tokens: int | None = None,
    model: str | Model | None = None,
    model_url: str | None = None,
    api_key: str | None = None,
) -> "HarnessRollouts":
    """Return a rollout function for `trl.GRPOTrainer(rollout_func=...)` (0.29.1 and later) that plays sessions of
    OpenEnv's harness, as `openenv.core.harness.build_harness_rollout_func` does: its own function plays each row.

    In addition, the trainer gets exactly the tokens that the model saw and sampled, with an `env_mask`; the rows of a
    batch are played at the same time; and only a row whose session raises or hangs fails. A wrong call (an unknown
    tool, arguments that the tool refuses) is reported to the model instead.

    Args:
        session_factory: openenv's `ResourceSessionFactory`: its `create` is called from several threads, and a second
            time for a session that could not begin. Each session is used in the thread that made it.
        harness_adapter: openenv's, used by several rows at a time; None uses `MCPHarnessAdapter`. It may only append
            to the messages.
        limits: openenv's `HarnessRunLimits`; None uses its defaults. Its `sampling` has fields of `Sampling`.
        act: converts an answer's text to the tools that it calls: a list of (name, arguments). An empty list, or an
            exception, ends the rollout. None reads tool calls as the tokenizer says, if it has a response schema or
            template (TRL's `add_response_schema`), else `<tool_call>` with JSON, as Qwen and Hermes write them.
        result_role: the role of the message that has a tool's result; "user" for chat templates without tools.
        tools_in_prompt: if True, the chat template gets the tools.
        tasks: names; each group of completions gets the next, as `task` of `create`. None passes the dataset's prompt.
        seed: each group's seed is drawn from it, for a `create` that takes one; None passes none.
        missing_reward: the reward of a rollout for which the environment gave none, for example because no tool was
            called; None leaves it without one, and TRL does not train on it.
        concurrency: sessions at the same time, on each rank; None: as many as the batch has rows.
        timeout: seconds that each call of a session may take, its creation included.
        max_completion_tokens: the limit of all turns together, the tools' tokens included; None uses the trainer's
            `max_completion_length`.
        model: None is the trainer's own, through its vLLM if it uses one; or a name that `model_url` serves; or a
            `Model`.
        model_url: the address of a server that speaks OpenAI's API, up to `/v1`.
        api_key: the key for that server.

    Returns:
        The rollout function. Besides what TRL needs, it returns columns that reach reward functions, one value per row:
        `env_reward` (None if the row failed), `verify_metrics` (a dict), `step_rewards` (a list, one per tool call),
        `turns`, `error` (one line, or None), and `task` if tasks are given.

    Raises:
        TypeError, ValueError: arguments that do not fit together; the message is one line.
        ImportError: openenv is not installed.

    Examples:
        >>> from logs_ui.rollout import harness_rollout_func
        >>> from openenv.core.harness import HarnessRunLimits
        >>> rollout_func = harness_rollout_func(session_factory=Games(), limits=HarnessRunLimits(max_turns=5))

        ```python
        trainer = GRPOTrainer(..., reward_funcs=[environment_reward], rollout_func=record(rollout_func))
        ```
    """
    try:
        from openenv.core.harness import HarnessRunLimits
    except ImportError as error:
        raise ImportError('openenv is not installed, or has no harness: pip install -U "logs-ui[trl]"') from error
    if not callable(getattr(session_factory, "create", None)):
        raise TypeError(f"session_factory must have a method create(task=...); {session_factory!r} has none")
    if harness_adapter is not None and not callable(getattr(harness_adapter, "run_white_box", None)):
        raise TypeError(f"harness_adapter must have a method run_white_box(); {harness_adapter!r} has none")
    check_seconds("timeout", timeout)
    check_limits(concurrency=concurrency)
    check_seed(seed)
    limits = limits or HarnessRunLimits()
    sampling_fields(limits.sampling, has_seed=model is not None)
    return HarnessRollouts(
        session_factory=session_factory,
        adapter=ExactHarnessAdapter(harness_adapter),
        limits=limits,
        steps=_steps(act, result_role, max_completion_tokens, model, tools_in_prompt=tools_in_prompt),
        rotation=Rotation(task_names(tasks, None), seed),
        missing_reward=missing_reward,
        concurrency=concurrency,
        timeout=timeout,
        model_of=model_maker(model, model_url, api_key),
    )


def harness_model_step(
    *,
    act: Act | None = None,
    result_role: ResultRole = "tool",
    tools_in_prompt: bool = True,
    max_completion_tokens: int | None = None,
    model: str | Model | None = None,
    model_url: str | None = None,
    api_key: str | None = None,
) -> Callable[[Any, Any], HarnessModelStep]:
    """Return a `model_step_builder` for `openenv.core.harness.build_harness_rollout_func`, for TRL 0.29.1 and later.

    Pass an `ExactHarnessAdapter` to that function with it: OpenEnv's own adapter joins the whole prompts of all turns.
    Either way that function returns no `env_mask`, so that the trainer also learns the tools' tokens;
    `harness_rollout_func` has one. The arguments are those of `harness_rollout_func`.

    Examples:
        >>> from logs_ui.rollout import ExactHarnessAdapter, harness_model_step
        >>> from openenv.core.harness import build_harness_rollout_func
        >>> rollout_func = build_harness_rollout_func(
        ...     session_factory=Games(), harness_adapter=ExactHarnessAdapter(), model_step_builder=harness_model_step()
        ... )

    Raises:
        TypeError, ValueError: arguments that do not fit together; the message is one line. The builder raises
            RuntimeError if several ranks share a model and must make the same calls.
    """
    model_of = model_maker(model, model_url, api_key)
    make = _steps(act, result_role, max_completion_tokens, model, tools_in_prompt=tools_in_prompt)

    def build(trainer: Any, session: Any) -> HarnessModelStep:  # noqa: ARG001
        if getattr(model_of(trainer, 1), "in_step", False):
            raise RuntimeError(
                "Ranks share this model and must make the same calls, and OpenEnv's builder plays each rank's rollouts "
                "one after another: use harness_rollout_func"
            )
        return make(trainer, lambda context, sampling: run(_one_answer(model_of(trainer, 1), context, sampling)))

    return build


@dataclass
class _HarnessRollout(Rollout):
    """One row, as far as it was played."""

    verify_metrics: dict[str, Any] = field(default_factory=dict)


class HarnessRollouts:
    """The rollout function that `harness_rollout_func` returns; the trainer calls it, batch after batch."""

    # Not a dataclass: a serialiser of the user's settings would write what it holds.
    def __init__(
        self,
        *,
        session_factory: Any,
        adapter: ExactHarnessAdapter,
        limits: Any,
        steps: Callable[[Any, Ask], HarnessModelStep],
        rotation: Rotation,
        missing_reward: float | None,
        concurrency: int | None,
        timeout: float,
        model_of: Callable[[Any, int], Model],
    ) -> None:
        self.__name__ = type(session_factory).__name__
        self.session_factory = session_factory
        self.adapter = adapter
        self.limits = limits
        self.steps = steps
        self.rotation = rotation
        self.missing_reward = missing_reward
        self.concurrency = concurrency
        self.timeout = timeout
        self.model_of = model_of
        self._is_checked = False
        self._failures = Failures(is_checked=False)

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Play a session for each of the N prompts.

        Raises:
            RuntimeError: no rollout of the first batch, or of several batches in a row, could be made.
        """
        model = self.model_of(trainer, len(prompts))
        assigned = self.rotation.assign(trainer, prompts)
        chat = Chat.of_trainer(trainer)
        rollouts = run(self._play_all(prompts, trainer, model, chat, assigned))
        self._failures.judge(rollouts)
        output = columns(rollouts, assigned, chat.tokenizer.eos_token_id)
        return output | {"verify_metrics": [rollout.verify_metrics for rollout in rollouts]}

    async def _play_all(
        self, prompts: Sequence[Any], trainer: Any, model: Model, chat: Chat, assigned: Sequence[Assignment]
    ) -> list[_HarnessRollout]:
        if not self._is_checked:
            sampling = Sampling(**{"max_tokens": 1, **sampling_fields(self.limits.sampling, has_seed=True)})
            await try_model(model, chat.tokenizer, sampling)
        self._is_checked = True
        loop = asyncio.get_running_loop()

        async def play(row: int) -> _HarnessRollout:
            # The harness is synchronous and runs in a thread of its own, while the model answers in this event
            # loop: the thread waits for a coroutine of the loop.
            def ask(context: list[int], sampling: Sampling) -> Answer:
                return asyncio.run_coroutine_threadsafe(model.answer(row, context, sampling), loop).result()

            step = self.steps(trainer, ask)
            rollout = await self._play(prompts[row], trainer, step, assigned[row])
            if not rollout.trajectory.prompt_ids:
                rollout.trajectory.prompt_ids = prompt_alone(chat, prompts[row])
            return rollout

        return await play_rows(len(prompts), model, self.concurrency or len(prompts), play)

    async def _play(self, prompt: Any, trainer: Any, step: HarnessModelStep, assigned: Assignment) -> _HarnessRollout:
        """Play one row with OpenEnv's own function, for this row alone. An exception becomes the row's own error."""
        from openenv.core.harness import build_harness_rollout_func

        rollout = _HarnessRollout(step.trajectory)
        session = WatchedSession(self.session_factory, assigned, self.timeout)
        try:
            rollout_func = build_harness_rollout_func(
                session_factory=session,
                harness_adapter=self.adapter,
                model_step_builder=lambda *_: step,
                limits=self.limits,
            )
            output = await in_thread(lambda: rollout_func([prompt], trainer))
            state = session.final_state or {}
            ended = _ended(step, session, state)
            current_row().note(ended=ended, harness=state.get("metrics"))
            if ended in _STOPS:
                current_row().stop(_STOPS[ended])
            # Where the environment gave no reward, `verify` passes on 0.0, which must not be taken for one.
            rollout.reward = output["env_reward"][0] if session.is_rewarded else self.missing_reward
            rollout.verify_metrics = output["verify_metrics"][0]
        except Exception as error:  # noqa: BLE001 - a session's, a model's or the user's own function's
            rollout.error = error
            current_row().failed(error)
        rollout.turns = step.turns
        rollout.trajectory.rewards = session.rewards
        return rollout


_STOPS = {"max_completion_tokens": "length", "max_tool_calls": "turn_limit", "max_turns": "turn_limit"}
"""The recorder's stop reasons for ends that the recorded calls do not show."""


def _ended(step: HarnessModelStep, session: WatchedSession, state: Mapping[str, Any]) -> str:
    """Return the stop reason of a rollout."""
    if step.is_out_of_tokens:
        return "max_completion_tokens"
    if session.is_done:
        return "done"
    if state.get("done"):
        return "no_tool_call"
    return "max_tool_calls" if (state.get("metrics") or {}).get("truncated") else "max_turns"


def _steps(
    act: Act | None, result_role: ResultRole, max_completion_tokens: int | None, model: Any, *, tools_in_prompt: bool
) -> Callable[[Any, Ask], HarnessModelStep]:
    """Make the model steps of a trainer's rows."""
    if act is not None and not callable(act):
        raise TypeError(f"act must be a function of an answer's text, or None, not {act!r}")
    if result_role not in ("tool", "user"):
        raise ValueError(f"result_role must be 'tool' or 'user', not {result_role!r}")
    check_limits(max_completion_tokens=max_completion_tokens)

    def make(trainer: Any, ask: Ask) -> HarnessModelStep:
        budget = max_completion_tokens or int(trainer.args.max_completion_length)
        chat, has_seed = Chat.of_trainer(trainer), model is not None
        return HarnessModelStep(chat, act, budget, result_role, tools_in_prompt, ask, has_seed)

    return make


async def _one_answer(model: Model, context: list[int], sampling: Sampling) -> Answer:
    model.enter(0)
    try:
        answer = await model.answer(0, context, sampling)
    finally:
        await model.leave(0)
    if answer.logprobs is None:
        raise GenerationError("The model gives no log-probs, which OpenEnv's builder needs: use harness_rollout_func")
    return answer
