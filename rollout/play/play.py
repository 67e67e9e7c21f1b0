"""Plays one batch of episodes: reset, then answer, action and observation in turn, until something ends it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from typing import Any, Literal

import orjson

from logs_ui.recorder import current_row, row_scope
from logs_ui.rollout.environments.sessions import Session, SessionError, Sessions
from logs_ui.rollout.models.backends import Model, Sampling
from logs_ui.rollout.models.one_line import one_line
from logs_ui.rollout.models.token_episode import Trajectory
from logs_ui.rollout.play.argument_checks import check_rules, check_unparsable
from logs_ui.rollout.play.chat_template import Chat, Message, Prompt
from logs_ui.rollout.play.tasks_and_seeds import Assignment

OnUnparsable = Literal["fail", "retry", "noop"]
Observe = Callable[[Any], str | Sequence[Message] | None]
Act = Callable[[str], Any]
Reward = Literal["sum", "last"] | Callable[[list[float | None]], float | None]

PAUSE_SECONDS = 0.5
"""Before a second session is tried: a full server may have one by then."""
TRY_AGAIN = "That holds no action that can be read. Answer in the form that was asked for."
_OF_EVERY_OBSERVATION = ("done", "reward", "metadata")


@dataclass(frozen=True)
class Rules:
    """Holds the rules of an episode; see `openenv_rollout_func`. Raises TypeError or ValueError if they do not fit."""

    act: Act
    observe: Observe | None
    max_turns: int
    on_unparsable: OnUnparsable
    unparsable_message: str | None
    noop_action: Any
    reward: Reward
    task_argument: str = "task"  # the argument of `reset` that names the task
    task_variable: str | None = None  # the environment's variable that names it instead; None if it has none
    variables: Mapping[str, str] = field(default_factory=dict)  # the environment's other variables

    def __post_init__(self) -> None:
        check_rules(self.act, self.observe, self.reward, self.max_turns)
        check_unparsable(self.on_unparsable, self.unparsable_message, self.noop_action)


@dataclass
class Rollout:
    """One row, as far as it was played."""

    trajectory: Trajectory
    messages: list[Message] = field(default_factory=list)  # the prompt, the answers, the environment's messages
    turns: int = 0  # the number of answers of the model
    unparsable: int = 0  # the number of answers in which no action was found
    act_error: Exception | None = None  # the last exception of the user's `act`; None if it raised none
    reward: float | None = None  # the episode's reward; None if it failed
    error: Exception | None = None  # what broke the row; None if it came to its end


@dataclass
class Episodes:
    """Plays the episodes of one batch."""

    rules: Rules
    sessions: Sessions
    model: Model
    chat: Chat
    prompts: Sequence[Prompt]
    assignments: Sequence[Assignment]
    sampling: Sampling  # its `max_tokens` limits one answer
    budget: int  # the number of tokens of a whole completion, the environment's included
    begun: dict[int, tuple[Session, Any] | BaseException] = field(default_factory=dict)  # rows that have been reset

    async def begin(self, rows: int) -> None:
        """Open and reset sessions for the first `rows` rows concurrently, before the model is asked. Raise
        SessionError if the environment's server has too few sessions, or if none of them could be reset.
        """

        async def begin(row: int) -> tuple[Session, Any]:
            with row_scope(row):
                return await self._begin(row)

        begun = await asyncio.gather(*map(begin, range(rows)), return_exceptions=True)
        errors = [outcome for outcome in begun if isinstance(outcome, BaseException)]
        full = [error for error in errors if isinstance(error, SessionError) and error.is_full]
        if full:
            raise SessionError(
                f"The environment's server took {rows - len(errors)} of {rows} sessions, one for each rollout that is "
                f"made at a time ({full[0]}). Serve it with a larger max_concurrent_envs, which needs "
                "SUPPORTS_CONCURRENT_SESSIONS = True in the environment, or set concurrency to what it takes"
            )
        if errors and len(errors) == rows:
            raise errors[0]
        self.begun = dict(enumerate(begun))

    def release(self) -> None:
        """Release the sessions that `begin` opened: it only checked that they are available."""
        for outcome in self.begun.values():
            if not isinstance(outcome, BaseException):
                self.sessions.keep(outcome[0])
        self.begun = {}

    async def play(self, row: int) -> Rollout:
        """Play one row's episode. An exception becomes the row's own error."""
        rollout = Rollout(Trajectory([]))
        try:
            await self._play(row, rollout)
            rollout.reward = self._total(rollout.trajectory.rewards)
        except Exception as error:  # noqa: BLE001 - an environment's, a server's or the user's own function's
            rollout.error = error
            current_row().failed(error)
        if rollout.unparsable:
            current_row().metric("unparsable_actions", rollout.unparsable)
        if not rollout.trajectory.prompt_ids:
            rollout.trajectory.prompt_ids = prompt_alone(self.chat, self.prompts[row])
        return rollout

    async def _play(self, row: int, rollout: Rollout) -> None:
        begun = self.begun.pop(row, None) or await self._begin(row)
        if isinstance(begun, BaseException):
            raise begun
        session, result = begun
        try:
            prompt, messages = self.prompts[row], self._messages(result.observation)
            rollout.messages += [*as_messages(prompt), *messages]
            rollout.trajectory.prompt_ids = self.chat.prompt_ids(prompt, messages)
            ended = await self._take_turns(row, rollout, session)
            if ended is not None:
                current_row().stop(ended)
        except BaseException:
            self.sessions.drop(session)
            raise
        self.sessions.keep(session)

    async def _take_turns(self, row: int, rollout: Rollout, session: Session) -> str | None:
        """Play until the episode is over. Return the stop reason if the recorded calls do not show it."""
        trajectory, plain = rollout.trajectory, isinstance(self.prompts[row], str)
        while True:
            room = self.budget - len(trajectory.completion_ids)
            sampling = replace(self.sampling, max_tokens=min(self.sampling.max_tokens, room))
            answer = await self.model.answer(row, trajectory.context, sampling)
            trajectory.sample(answer)
            rollout.messages.append({"role": "assistant", "content": answer.text})
            rollout.turns += 1
            action = self._action(answer.text, rollout)
            rollout.unparsable += action is None
            if action is None and self.rules.on_unparsable == "fail":
                return None
            if action is None and self.rules.on_unparsable == "noop":
                action = self.rules.noop_action
            if action is None:
                messages = as_messages(self.rules.unparsable_message or TRY_AGAIN)
            else:
                result = await session.step(action)
                trajectory.rewards.append(None if result.reward is None else float(result.reward))
                if result.done:
                    return None
                messages = self._messages(result.observation)
            if rollout.turns == self.rules.max_turns:
                return "turn_limit"
            inserted = self.chat.inserted(answer.ids, messages, plain=plain)
            # The message is left out if no token would remain for an answer to it.
            if len(trajectory.completion_ids) + len(inserted) >= self.budget:
                return "length"
            trajectory.insert(inserted)
            rollout.messages += messages

    async def _begin(self, row: int) -> tuple[Session, Any]:
        """Return a session and the result of its reset. A second one is tried, as nothing has counted yet."""
        try:
            return await self._reset(row, fresh=False)
        except SessionError as error:
            current_row().note(first_session=str(error))
        await asyncio.sleep(PAUSE_SECONDS)
        return await self._reset(row, fresh=True)

    async def _reset(self, row: int, *, fresh: bool) -> tuple[Session, Any]:
        assigned, variables = self.assignments[row], self.rules.variables
        arguments: dict[str, Any] = {} if assigned.seed is None else {"seed": assigned.seed}
        if assigned.task is not None and self.rules.task_variable is not None:
            variables = {**variables, self.rules.task_variable: assigned.task}
        elif assigned.task is not None:
            arguments[self.rules.task_argument] = assigned.task
        session = await self.sessions.open(variables, fresh=fresh)
        try:
            return session, await session.reset(**arguments)
        except BaseException:
            self.sessions.drop(session)
            raise

    def _messages(self, observation: Any) -> Sequence[Message]:
        """Return messages of the user's `observe`. Raise RuntimeError if it fails, TypeError for other results."""
        try:
            messages = None if self.rules.observe is None else self.rules.observe(observation)
        except Exception as error:
            kind = type(observation).__name__
            raise RuntimeError(f"observe() raised {one_line(error)} for an observation of type {kind}") from error
        if not (messages is None or isinstance(messages, str) or _are_messages(messages)):
            raise TypeError(f"observe() returns a text, a list of messages or None, not {messages!r}")
        return as_messages(messages)

    def _action(self, text: str, rollout: Rollout) -> Any:
        """Return the action in an answer; None if there is none or the user's function raises, as parsers do."""
        try:
            return self.rules.act(text)
        except Exception as error:  # noqa: BLE001 - a parser may raise what it likes
            rollout.act_error = error
            current_row().note(act_raised=one_line(error))
            return None

    def _total(self, rewards: list[float | None]) -> float | None:
        if callable(self.rules.reward):
            return self.rules.reward(rewards)
        numbers = [reward for reward in rewards if reward is not None]
        return sum(numbers if self.rules.reward == "sum" else numbers[-1:], start=0.0)


def observation_text(observation: Any) -> str | None:
    """Return the default message for an observation: its text if it holds nothing else, otherwise its fields as JSON,
    without the fields that every observation has. None if nothing is left.
    """
    if isinstance(observation, str):
        return observation
    if hasattr(observation, "model_dump"):
        fields = observation.model_dump()
    elif is_dataclass(observation) and not isinstance(observation, type):
        fields = asdict(observation)
    else:
        fields = observation
    if not isinstance(fields, Mapping):
        return None if fields is None else str(fields)
    own_fields = {
        name: value for name, value in fields.items() if name not in _OF_EVERY_OBSERVATION and value is not None
    }
    if len(own_fields) == 1 and isinstance(only := next(iter(own_fields.values())), str):
        return only
    return orjson.dumps(own_fields, default=str, option=orjson.OPT_NON_STR_KEYS).decode() if own_fields else None


def _are_messages(value: Any) -> bool:
    return isinstance(value, Sequence) and all(isinstance(message, Mapping) and "role" in message for message in value)


def prompt_alone(chat: Chat, prompt: Prompt) -> list[int]:
    """Return the ids of the prompt of a row whose episode never began. A template may refuse a prompt without the
    observation that would have followed, and no trainer takes an empty prompt.
    """
    with suppress(Exception):
        if ids := chat.prompt_ids(prompt):
            return ids
    return [chat.tokenizer.eos_token_id]


def as_messages(content: str | Sequence[Message] | None) -> Sequence[Message]:
    """Return messages; a text becomes a user message."""
    if not content:
        return []
    return [{"role": "user", "content": content}] if isinstance(content, str) else content
