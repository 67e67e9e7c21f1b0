"""Makes a rollout function for any OpenEnv environment: `openenv_rollout_func()`."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from logs_ui.rollout.environments.sessions import Sessions
from logs_ui.rollout.environments.sources import source_of
from logs_ui.rollout.environments.threads import in_thread
from logs_ui.rollout.models.backends import Model, Sampling, try_model
from logs_ui.rollout.play import argument_checks, play
from logs_ui.rollout.play.batch import Failures, columns, play_rows, run
from logs_ui.rollout.play.chat_template import Chat, Prompt
from logs_ui.rollout.play.evaluation_dataset import conversation
from logs_ui.rollout.play.tasks_and_seeds import Assignment, Rotation


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
    act: play.Act | None = None,
    observe: play.Observe | None = play.observation_text,
    on_unparsable: play.OnUnparsable = "fail",
    unparsable_message: str | None = None,
    noop_action: Any = None,
    tasks: Sequence[str] = (),
    task_var: str | None = None,
    seed: int | None = 0,
    max_turns: int = 8,
    max_completion_tokens: int | None = None,
    reward: play.Reward = "sum",
    model: str | Model | None = None,
    model_url: str | None = None,
    api_key: str | None = None,
    sampling: Sampling | Mapping[str, Any] | None = None,
) -> "OpenEnvRollouts":
    """Return a rollout function for `trl.GRPOTrainer(rollout_func=...)` (0.29.1 and later) that plays episodes of an
    OpenEnv environment.

    The trainer gets exactly the tokens that the model saw and sampled; nothing is tokenised twice. Rollouts of a batch
    are played at the same time, each in a session of its own. If an environment fails or hangs, its row has no reward,
    and the training continues.

    Before the first batch is played, the model and as many sessions as it needs are tried; an error says
    what is missing.

    Args:
        env_path: "module" or "module:name" of an `@evaluation`, which brings all other arguments: pass only the
            model and its sampling with it.
        environment: a client class (with `base_url` or `docker_image`; None uses openenv's generic client, of
            dicts), or a function without arguments that returns a client, or a hub id or the name of an installed
            environment, as openenv's `AutoEnv` takes it.
        base_url: the address of a running server.
        docker_image: the image of an environment that is started here, once for each distinct set of variables. At
            most 8 run at the same time, or as many as rows are played at once if that is more; beyond that the least
            recently used one is stopped, and started again when it is needed.
        provider: starts the environment, as openenv's own do: an instance, or a class if several are needed; None is
            Docker.
        port: the host's port for the environment that is started.
        environment_variables: variables of the environment that is started.
        headers: headers of the request that opens a session.
        request_timeout: seconds that each reset or step may take. With a model that answers all rows together, as the
            trainer's own does, the others wait for a row whose environment hangs: this long for a step, and twice this
            long plus half a second for a reset, which is tried a second time.
        concurrency: sessions at the same time, on each rank; None: as many as the batch has rows.
        act: converts an answer's text to the environment's action. None, or an exception: no action was found.
        observe: converts an observation to the model's next message: text, which becomes a user message, or messages;
            None for nothing. The reset's message follows the dataset's prompt. The default is the observation's text,
            or its fields as JSON.
        on_unparsable: what an answer without an action does: "fail" ends the episode; "retry" asks again, after
            `unparsable_message`; "noop" sends `noop_action`.
        unparsable_message: None uses a plain sentence.
        noop_action: the action for "noop".
        tasks: names; each group of completions gets the next. Empty: the dataset's prompts decide.
        task_var: the name of the variable (of an environment that is started here), or of the argument of `reset`, that
            takes the task. None: the argument `task`.
        seed: each group's seed for `reset(seed=...)` is drawn from it; None passes none.
        max_turns: the most answers of the model in an episode.
        max_completion_tokens: the limit of all turns together, the environment's tokens included; None uses the
            trainer's `max_completion_length`.
        reward: computes an episode's reward from its steps' rewards: their "sum" (0.0 without any), the "last" one, or
            a function of the list.
        model: None is the trainer's own, through its vLLM if it uses one; or a name that `model_url` serves; or a
            `Model`, such as a `ServerModel` with its own timeout.
        model_url: the address of a server that speaks OpenAI's API, up to `/v1`.
        api_key: the key for that server.
        sampling: a `Sampling`, or its fields; the trainer's or the server's values apply to the rest. Each answer's
            seed is drawn from its `seed`, for a server or a `Model` only.

    Returns:
        The rollout function. Its `close()`, or the end of the interpreter, ends sessions and containers. Besides what
        TRL needs, it returns columns that reach reward functions, one value per row: `env_reward` (None if the row
        failed), `step_rewards` (a list), `turns`, `error` (one line, or None), and `task` if tasks are given.

    Raises:
        TypeError, ValueError: arguments that do not fit together; the message is one line.
        ImportError: openenv is not installed.

    Examples:
        >>> from logs_ui.rollout import openenv_rollout_func
        >>> rollout_func = openenv_rollout_func(base_url="http://127.0.0.1:8000", act=lambda text: {"message": text})

        ```python
        trainer = GRPOTrainer(..., reward_funcs=[environment_reward], rollout_func=record(rollout_func))
        ```
    """
    if env_path is not None:
        # Nothing is assigned before this line, so the local names are exactly the arguments.
        arguments = dict(locals())
        # Loaded by its name, and only here: an `@evaluation` is built on this file, not the other way round.
        definitions = import_module("logs_ui.rollout.evaluations.definitions")
        rollouts: OpenEnvRollouts = definitions.rollouts_of(env_path, arguments)
        return rollouts
    argument_checks.check_environment(provider=provider, environment_variables=environment_variables, headers=headers)
    argument_checks.check_seed(seed)
    names = argument_checks.task_names(tasks, task_var)
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
    rules = play.Rules(
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
        name=str(getattr(environment, "__name__", None) or environment or docker_image or base_url),
        rules=rules,
        sessions=Sessions(source, request_timeout),
        rotation=Rotation(names, seed),
        model_of=argument_checks.model_maker(model, model_url, api_key),
        sampling=argument_checks.sampling_fields(sampling, has_seed=model is not None),
        max_completion_tokens=max_completion_tokens,
        concurrency=concurrency,
    )


def environment_reward(env_reward: list[float | None], **_: Any) -> list[float | None]:
    """Return the environment's reward of each episode, as a reward function of the trainer; None if the episode failed,
    which TRL leaves unscored.

    Examples:
        >>> from logs_ui.rollout import environment_reward
        >>> environment_reward(env_reward=[1.0, None])
        [1.0, None]
    """
    return env_reward


class OpenEnvRollouts:
    """The rollout function that `openenv_rollout_func` returns; the trainer calls it, batch after batch."""

    # Not a dataclass: a serialiser of the user's settings would write what it holds, environment variables included.
    def __init__(
        self,
        *,
        name: str,
        rules: play.Rules,
        sessions: Sessions,
        rotation: Rotation,
        model_of: Callable[[Any, int], Model],
        sampling: Mapping[str, Any],
        max_completion_tokens: int | None,
        concurrency: int | None,
    ) -> None:
        argument_checks.check_limits(concurrency=concurrency, max_completion_tokens=max_completion_tokens)
        self.__name__ = name
        self.rules = rules
        self.sessions = sessions
        self.rotation = rotation
        self.model_of = model_of
        self.sampling = sampling
        self.max_completion_tokens = max_completion_tokens
        self.concurrency = concurrency
        self._as_prompt: Callable[[Prompt], Prompt] = lambda prompt: prompt
        self._played: Callable[[Sequence[play.Rollout]], None] = lambda _: None
        self._is_checked = False
        self._failures = Failures()

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Play an episode for each of the N prompts.

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
        self, name: str, *, rotation: Rotation, played: Callable[[Sequence[play.Rollout]], None]
    ) -> "OpenEnvRollouts":
        """Set an evaluation's name and rotation of tasks and seeds, make user messages of prompts that are texts, and
        return itself. `played` is called after each batch of a trainer.
        """
        self.__name__ = name
        self.rotation = rotation
        self._as_prompt = conversation
        self._played = played
        return self

    def close(self) -> None:
        """End all sessions, and the environments that were started. A later call starts anew."""
        self.sessions.close()
        self._is_checked = False

    def episodes(
        self, prompts: Sequence[Any], assignments: Sequence[Assignment], *, model: Model, chat: Chat, budget: int
    ) -> play.Episodes:
        """Return the episodes of a batch (N), for any model. `sampling` may limit an answer more than `budget`."""
        return play.Episodes(
            rules=self.rules,
            sessions=self.sessions,
            model=model,
            chat=chat,
            prompts=prompts,
            assignments=assignments,
            sampling=Sampling(**{"max_tokens": budget, **self.sampling}),
            budget=budget,
        )

    def _episodes(self, prompts: list[Any], trainer: Any) -> play.Episodes:
        budget = self.max_completion_tokens or int(trainer.args.max_completion_length)
        prompts = [self._as_prompt(prompt) for prompt in prompts]
        assignments = self.rotation.assign(trainer, prompts)
        model, chat = self.model_of(trainer, len(prompts)), Chat.of_trainer(trainer)
        return self.episodes(prompts, assignments, model=model, chat=chat, budget=budget)

    async def _play(self, episodes: play.Episodes) -> list[play.Rollout]:
        rows = len(episodes.prompts)
        at_a_time = min(self.concurrency or rows, rows)
        if not self._is_checked:
            await self._check(episodes, at_a_time)
        return await play_rows(rows, episodes.model, at_a_time, episodes.play)

    async def _check(self, episodes: play.Episodes, sessions: int) -> None:
        try:
            await try_model(episodes.model, episodes.chat.tokenizer, episodes.sampling)
            await episodes.begin(sessions)
        except BaseException:
            await in_thread(self.close)
            raise
        self._is_checked = True
