"""A rollout function for any OpenEnv environment: `openenv_rollout_func()`."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from logs_ui.rollout.environments.environment_sources import source_of
from logs_ui.rollout.environments.environment_threads import in_thread
from logs_ui.rollout.environments.sessions import Sessions
from logs_ui.rollout.models.backends import Model, Sampling, try_model
from logs_ui.rollout.play.argument_checks import (
    check_environment,
    check_limits,
    check_seed,
    model_maker,
    sampling_fields,
    task_names,
)
from logs_ui.rollout.play.batch import play_rows, run
from logs_ui.rollout.play.batch_outcome import Failures, columns
from logs_ui.rollout.play.chat_template import Chat, Prompt
from logs_ui.rollout.play.conversations import conversation
from logs_ui.rollout.play.play import (
    Act,
    Episodes,
    Observe,
    OnUnparsable,
    Reward,
    Rollout,
    Rules,
    observation_text,
)
from logs_ui.rollout.play.task_assignment import Assignment, Rotation


def openenv_rollout_func(
    *,
    env_path: str | None = None,
    environment: Any = None,
    base_url: str | None = None,
    docker_image: str | None = None,
    provider: Any = None,
    port: int | None = None,
    environment_variables: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    request_timeout: float = 60.0,
    concurrency: int | None = None,
    act: Act | None = None,
    observe: Observe | None = observation_text,
    on_unparsable: OnUnparsable = "fail",
    unparsable_message: str | None = None,
    noop_action: Any = None,
    tasks: Sequence[str] = (),
    task_var: str | None = None,
    seed: int | None = 0,
    max_turns: int = 8,
    max_completion_tokens: int | None = None,
    reward: Reward = "sum",
    model: str | Model | None = None,
    model_url: str | None = None,
    api_key: str | None = None,
    sampling: Sampling | Mapping[str, Any] | None = None,
) -> "OpenEnvRollouts":
    """A rollout function for `trl.GRPOTrainer(rollout_func=...)` (0.29.1 and on) that plays episodes of an OpenEnv
    environment.

    The tokens that the trainer gets are those that the model saw and sampled; nothing is tokenised twice. Rollouts of a
    batch are played at the same time, each in a session of its own. An environment that fails or hangs costs its own
    row: that has no reward, and the training goes on.

    Before the first batch is played, the model and as many sessions as it needs are tried; what is missing is raised.

    Args:
        env_path: "module" or "module:name" of an `@evaluation`, from which all of the wiring is taken: give only the
            model and its sampling beside it.
        environment: a class of clients (with `base_url` or `docker_image`; None takes openenv's generic client, of
            dicts), or a function without arguments that gives a client, or a hub id or the name of an installed
            environment, as openenv's `AutoEnv` takes it.
        base_url: of a server that runs already.
        docker_image: of an environment that is started here, once for each distinct set of variables; beyond as many as
            rows are played at a time, or 8, the one that is not in use for longest is ended, and started anew when it
            is wanted.
        provider: what starts it, as openenv's own: an instance, or a class where several are needed; None is Docker.
        port: the host's, for the environment that is started.
        environment_variables: of the environment that is started.
        headers: of the request that opens a session.
        request_timeout: seconds that each reset or step may take. With a model that answers all rows together, as the
            trainer's own does, the others wait for a row whose environment hangs: so long for a step, and for a reset,
            which is tried a second time, twice that and half a second.
        concurrency: sessions at a time, on each rank; None takes as many as the batch has rows.
        act: an answer's text to the environment's action. None, or an exception: no action was found.
        observe: an observation to what the model is told: text, which becomes a user message, or messages; None for
            nothing. That of the reset follows the dataset's prompt. The default tells its text, or its fields in JSON.
        on_unparsable: what an answer without an action does: "fail" ends the episode; "retry" asks again, after
            `unparsable_message`; "noop" takes `noop_action`.
        unparsable_message: None takes a plain sentence.
        noop_action: an action.
        tasks: names; each group of completions gets the next. Empty: the dataset's prompts decide.
        task_var: what names the task: the variable of an environment that is started here, else the argument of
            `reset`. None takes reset's `task`.
        seed: from which each group's seed is drawn, for `reset(seed=...)`; None gives none.
        max_turns: answers of the model in an episode.
        max_completion_tokens: of all turns together, the environment's tokens included; None takes the trainer's
            `max_completion_length`.
        reward: what an episode is worth, from its steps' rewards: their "sum" (0.0 where there were none), the "last"
            one, or a function of the list.
        model: None is the trainer's own, by its vLLM where it uses one; a name that `model_url` serves; or a `Model`,
            such as a `ServerModel` with a timeout of its own.
        model_url: of a server that speaks OpenAI's API, up to `/v1`.
        api_key: for that.
        sampling: a `Sampling`, or its fields; what is left out is the trainer's, or the server's. Its `seed`, for a
            server or a `Model` only, is what each answer's own seed is drawn from.

    Returns:
        The rollout function. Its `close()` ends sessions and containers, as does the end of the interpreter. What it
        returns, beside what TRL needs, reaches reward functions as a value for each row: `env_reward` (None where the
        row failed), `step_rewards` (a list), `turns`, `error` (one line, or None), and `task` where tasks are given.

    Raises:
        TypeError, ValueError: arguments that do not go together, in one line.
        ImportError: openenv is not installed.
    """
    if env_path is not None:
        given = dict(locals())
        # Loaded by its name, and only here: an `@evaluation` is built on this file, not the other way round.
        definitions = import_module("logs_ui.rollout.evaluations.definitions")
        found: OpenEnvRollouts = definitions.rollouts_of(env_path, given)
        return found
    check_environment(provider=provider, environment_variables=environment_variables, headers=headers)
    check_seed(seed)
    names = task_names(tasks, task_var)
    source = source_of(
        environment,
        base_url=base_url,
        docker_image=docker_image,
        provider=provider,
        port=port,
        variables=environment_variables,
        headers=headers,
        timeout=request_timeout,
        several=task_var is not None and len(set(names)) > 1,
    )
    rules = Rules(
        act=act,  # type: ignore[arg-type]  # it refuses None
        observe=observe,
        max_turns=max_turns,
        on_unparsable=on_unparsable,
        unparsable_message=unparsable_message,
        noop_action=noop_action,
        reward=reward,
        task_argument=task_var or "task",
        task_variable=task_var if source.starts else None,
        variables=dict(environment_variables or {}),
    )
    return OpenEnvRollouts(
        name=_name(environment, docker_image, base_url),
        rules=rules,
        sessions=Sessions(source, request_timeout),
        rotation=Rotation(names, seed),
        model_of=model_maker(model, model_url, api_key),
        sampling=sampling_fields(sampling, has_seed=model is not None),
        max_completion_tokens=max_completion_tokens,
        concurrency=concurrency,
    )


def environment_reward(env_reward: list[float | None], **_: Any) -> list[float | None]:
    """A reward function for the trainer: what the environment paid for each episode; None where it failed, which TRL
    leaves unscored.
    """
    return env_reward


class OpenEnvRollouts:
    """What `openenv_rollout_func` returns: called by the trainer, batch after batch.

    Attributes:
        rotation: tells each row's task and seed.
    """

    def __init__(
        self,
        *,
        name: str,
        rules: Rules,
        sessions: Sessions,
        rotation: Rotation,
        model_of: Callable[[Any, int], Model],
        sampling: Mapping[str, Any],
        max_completion_tokens: int | None,
        concurrency: int | None,
    ) -> None:
        check_limits(concurrency=concurrency, max_completion_tokens=max_completion_tokens)
        self.__name__ = name
        self._rules = rules
        self._sessions = sessions
        self.rotation = rotation
        self._as_prompt: Callable[[Prompt], Prompt] = lambda prompt: prompt
        self._played: Callable[[Sequence[Rollout]], None] = lambda _: None
        self._model_of = model_of
        self._sampling = sampling
        self._max_completion_tokens = max_completion_tokens
        self._concurrency = concurrency
        self._is_checked = False
        self._failures = Failures()

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Plays an episode for each of the N prompts.

        Raises:
            RuntimeError: in the first batch, what is missing; later, that no rollout of several batches in a row could
                be made.
        """
        episodes = self._episodes(prompts, trainer)
        rollouts = run(self._play(episodes))
        self._failures.judge(rollouts)
        output = columns(rollouts, episodes.assignments, episodes.chat.tokenizer.eos_token_id)
        self._played(rollouts)
        return output

    def of_evaluation(
        self, name: str, *, rotation: Rotation, played: Callable[[Sequence[Rollout]], None]
    ) -> "OpenEnvRollouts":
        """Itself, by an evaluation's name, with prompts that are texts made the user's messages, and tasks and seeds by
        `rotation`. `played` is told of each batch of a trainer's.
        """
        self.__name__ = name
        self.rotation = rotation
        self._as_prompt = conversation
        self._played = played
        return self

    def close(self) -> None:
        """Ends all sessions, and the environments that were started. A later call begins anew."""
        self._sessions.close()
        self._is_checked = False

    def episodes(
        self, prompts: Sequence[Any], assignments: Sequence[Assignment], *, model: Model, chat: Chat, budget: int
    ) -> Episodes:
        """Those of a batch (N), for any model. An answer's tokens are `budget` at most, or what `sampling` says."""
        return Episodes(
            rules=self._rules,
            sessions=self._sessions,
            model=model,
            chat=chat,
            prompts=prompts,
            assignments=assignments,
            sampling=Sampling(**{"max_tokens": budget, **self._sampling}),
            budget=budget,
        )

    def _episodes(self, prompts: list[Any], trainer: Any) -> Episodes:
        budget = self._max_completion_tokens or int(trainer.args.max_completion_length)
        prompts = [self._as_prompt(prompt) for prompt in prompts]
        assignments = self.rotation.assign(trainer, prompts)
        model, chat = self._model_of(trainer, len(prompts)), Chat.of_trainer(trainer)
        return self.episodes(prompts, assignments, model=model, chat=chat, budget=budget)

    async def _play(self, episodes: Episodes) -> list[Rollout]:
        rows = len(episodes.prompts)
        at_a_time = min(self._concurrency or rows, rows)
        if not self._is_checked:
            await self._check(episodes, at_a_time)
        return await play_rows(rows, episodes.model, at_a_time, episodes.play)

    async def _check(self, episodes: Episodes, sessions: int) -> None:
        try:
            await try_model(episodes.model, episodes.chat.tokenizer, episodes.sampling)
            await episodes.begin(sessions)
        except BaseException:
            await in_thread(self.close)
            raise
        self._is_checked = True


def _name(environment: Any, docker_image: str | None, base_url: str | None) -> str:
    """What the rollouts are called where they are recorded without another name."""
    return str(getattr(environment, "__name__", None) or environment or docker_image or base_url)
