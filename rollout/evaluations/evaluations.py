"""Defines `@evaluation`: one definition for evaluation and training."""

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

from logs_ui.recorder import Settings, record, start_run
from logs_ui.rollout.evaluations.offline import Offline, Progress
from logs_ui.rollout.evaluations.report import Report
from logs_ui.rollout.evaluations.scoring import EvaluationRow, RewardFunc, Score, Scoring
from logs_ui.rollout.functions.openenv_rollouts import OpenEnvRollouts, openenv_rollout_func
from logs_ui.rollout.functions.text_rollouts import text_rollout_func
from logs_ui.rollout.models.backends import Model, Sampling
from logs_ui.rollout.models.server_model import ChatModel
from logs_ui.rollout.play.argument_checks import check_counts, check_limits, sampling_fields
from logs_ui.rollout.play.evaluation_dataset import Prompts, PromptTasks
from logs_ui.rollout.play.play import Act, Observe, OnUnparsable, Reward
from logs_ui.rollout.play.processor import Processor

_PLACES = ("environment", "base_url", "docker_image", "env_factory")
_WITHOUT_ENVIRONMENT = ("concurrency", "max_completion_tokens", "sampling")
_MAX_TOKENS = 1024


class Wiring(TypedDict, total=False):
    """Holds the arguments of `openenv_rollout_func`, or `text_rollout_func` (with `env_factory`), without the model."""

    env_factory: Callable[[], Any]
    processor: Processor | None
    system_prompt: str | None
    timeout: float
    environment: Any
    base_url: str | None
    docker_image: str | None
    provider: Any
    port: int | None
    environment_variables: Mapping[str, str] | None
    headers: Mapping[str, str] | None
    request_timeout: float
    concurrency: int | None
    act: Act
    observe: Observe | None
    on_unparsable: OnUnparsable
    unparsable_message: str | None
    noop_action: Any
    tasks: Sequence[str]
    task_var: str | None
    seed: int | Literal["prompt"] | None
    max_turns: int
    max_completion_tokens: int | None
    reward: Reward
    sampling: Sampling | Mapping[str, Any] | None


def evaluation(
    name: str,
    *,
    dataset: Any,
    weights: Mapping[str, float] | None = None,
    passing: float = 1.0,
    diagnosis: Settings | None = None,
    **wiring: Unpack[Wiring],
) -> Callable[[Callable[[EvaluationRow], Score]], "Evaluation"]:
    """Turn a function that scores a rollout into the one definition that a model is trained on and evaluated with.

    The function gets an `EvaluationRow` and returns a number, or a dict of several by name (which `weights` names),
    or None for no score. It is not called for rollouts that failed: they have no reward. If it raises, that row
    has no score; if it raises for a whole batch of a training, the training ends. `run()` calls it in threads, several
    at a time.

    Args:
        name: the eval name under which training and evaluations are recorded.
        dataset: rows with a `prompt`: a list of dicts, or a `datasets.Dataset`. A prompt is messages, or a text, which
            becomes a user message, in training too: the chat template is applied. The column `task` names the task that
            an OpenEnv environment is reset with, as `tasks` do; then no two tasks have the same prompt. A text
            environment is reset with a seed alone: there, and without an environment, it only names rollouts.
        weights: the weights of the scores in a dict, by name; None if the function returns one number.
        passing: the reward from which on a rollout passed, for pass@k.
        diagnosis: the settings that trainings and evaluations are compared with, as in `record()`.
        wiring: the environment's arguments, as in `openenv_rollout_func`; with `env_factory`, a text environment's, as
            in `text_rollout_func`. Without any environment each prompt is answered once, and only `sampling`,
            `max_completion_tokens` and `concurrency` can be given.

    Raises:
        TypeError, ValueError: arguments that do not fit together; the message is one line.
        ImportError: openenv is not installed.

    Examples:
        >>> from logs_ui.rollout import evaluation
        >>> rows = [{"prompt": "Guess the number.", "task": "easy"}]
        >>> @evaluation("guess", dataset=rows, base_url="http://127.0.0.1:8000", act=lambda text: {"guess": int(text)})
        ... def guess(row):
        ...     return row.env_reward
        >>> guess.name, guess.reward_weights
        ('guess', [1.0])
    """
    if not isinstance(name, str) or not name:
        raise TypeError('An evaluation has a name: write @evaluation("name", dataset=...)')
    if weights is not None and not weights:
        raise ValueError("weights names each score of the dict that is returned: it is empty")
    prompts = Prompts(dataset)
    wired = _wired(wiring, prompts)
    _maker(wired)(**wired)  # so that a mistake is told where it stands

    def define(score: Callable[[EvaluationRow], Score]) -> Evaluation:
        if not callable(score) or inspect.iscoroutinefunction(score):
            raise TypeError(f"An evaluation scores a row by a plain function, not {score!r}")
        return Evaluation(Scoring(name, score, weights), prompts, passing, wired, diagnosis)

    return define


class Evaluation:
    """Holds what `@evaluation` makes; it can still be called as the scoring function.

    Attributes:
        name: the eval name.

    Examples:
        >>> from logs_ui.rollout import evaluation
        >>> @evaluation("sums", dataset=[{"prompt": "2 + 3", "answer": "5"}])
        ... def sums(row):
        ...     return float(row.answer == row["answer"])
        >>> sums.run(model="my-model", model_url="http://127.0.0.1:8000/v1", db="runs.db").mean
        1.0

        ```python
        trainer = GRPOTrainer(
            model, reward_funcs=sums.rewards, train_dataset=sums.dataset, rollout_func=sums.rollout_func()
        )
        ```
    """

    def __init__(
        self, scoring: Scoring, prompts: Prompts, passing: float, wiring: Wiring, diagnosis: Settings | None = None
    ) -> None:
        functools.update_wrapper(self, scoring.score)
        self.name = scoring.name
        self._scoring = scoring
        self._prompts = prompts
        self._passing = passing
        self._wiring = wiring
        self._diagnosis = diagnosis

    def __call__(self, row: EvaluationRow) -> Score:
        """Return the function's own score."""
        return self._scoring.score(row)

    @property
    def dataset(self) -> Any:
        """Return a `datasets.Dataset` for the trainer; its prompts are messages."""
        return self._prompts.for_trainer()

    @property
    def rewards(self) -> list[RewardFunc]:
        """Return reward functions for the trainer: one, or one for each of the weights."""
        return self._scoring.reward_funcs()

    @property
    def reward_weights(self) -> list[float]:
        """Return the weights for the trainer's arguments, in the order of `rewards`."""
        return list((self._scoring.weights or {self.name: 1.0}).values())

    def rollout_func(
        self,
        *,
        model: str | Model | None = None,
        model_url: str | None = None,
        api_key: str | None = None,
        sampling: Sampling | Mapping[str, Any] | None = None,
        db: str | os.PathLike[str] | None = None,
        announce: bool = True,
    ) -> OpenEnvRollouts:
        """Return the rollout function for the trainer, recorded under the evaluation's name.

        Args:
            model: as `openenv_rollout_func` takes it; None is the trainer's own.
            model_url: as `openenv_rollout_func` takes it.
            api_key: as `openenv_rollout_func` takes it.
            sampling: what differs from the definition's.
            db: as `record()` takes it.
            announce: as `record()` takes it.

        Raises:
            TypeError, ValueError: as `openenv_rollout_func`.
            DatabaseError, SettingsError: as `record()`.
        """
        rollouts = self.rollouts(model=model, model_url=model_url, api_key=api_key, sampling=sampling)
        recorded: OpenEnvRollouts = record(
            rollouts, eval_name=self.name, diagnosis=self._diagnosis, db=db, announce=announce
        )
        return recorded

    def rollouts(self, *, sampling: Sampling | Mapping[str, Any] | None = None, **model: Any) -> OpenEnvRollouts:
        """Return the same as `rollout_func`, unrecorded; `openenv_rollout_func(env_path=...)` uses it."""
        sampled = self._sampling(sampling, has_seed=model.get("model") is not None)
        wiring: dict[str, Any] = {**self._wiring, "sampling": sampled}
        rollouts = _maker(self._wiring)(**wiring, **model)
        rotation = rollouts.rotation
        # These tasks are those of the dataset's column `task`: each row gets the task of its own prompt, not the
        # next in turn.
        if self._prompts.tasks and rotation.tasks == tuple(self._prompts.tasks):
            rotation = PromptTasks(seed=rotation.seed, prompts=self._prompts)
        return rollouts.of_evaluation(self.name, rotation=rotation, played=self._scoring.remember)

    def run(
        self,
        *,
        model: str,
        model_url: str,
        api_key: str | None = None,
        samples: int = 1,
        concurrency: int = 16,
        limit: int | None = None,
        sampling: Sampling | Mapping[str, Any] | None = None,
        name: str | None = None,
        db: str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
    ) -> Report:
        """Evaluate a model on a server, and record each rollout, in mode "eval" and under the evaluation's name.

        The server is asked by messages, so any server with OpenAI's chat interface will do; token ids are recorded if
        it returns them. `max_completion_tokens` limits each answer here. Tasks and seeds are those of a trainer's
        evaluation.

        Args:
            model: name under which the server serves it.
            model_url: of the server, up to `/v1`.
            api_key: None takes the variable OPENAI_API_KEY, where it is set.
            samples: rollouts of each prompt.
            concurrency: rollouts at a time, their scoring included; at most the definition's own
                `concurrency`.
            limit: rows of the dataset, from the first; None takes all.
            sampling: what differs from the definition's; `max_tokens` is 1024 where neither says anything.
            name: of the run, for people; None names evaluation and model.
            db: the database; see `record()`.
            progress: called with each rollout's `Sample`, and how many there are in all.

        Raises:
            GenerationError: the server does not answer, or does not serve the model.
            SessionError: the environment does not answer, or has not as many sessions.
            TypeError, ValueError: arguments that do not go together.
            DatabaseError, SettingsError: see `record()`.
        """
        if self._wiring.get("processor") is not None:
            raise ValueError("A processor writes the model's template, and a server is asked by messages: leave it out")
        check_counts(samples=samples, concurrency=concurrency)
        check_limits(limit=limit)
        rows = self._prompts.rows(limit)
        sampled = self._sampling(sampling, has_seed=True)
        sampled.setdefault("max_tokens", self._wiring.get("max_completion_tokens") or _MAX_TOKENS)
        rollouts = self.rollouts()
        offline = Offline(
            rollouts=rollouts,
            scoring=self._scoring,
            server=ChatModel(model_url, model, api_key or os.environ.get("OPENAI_API_KEY")),
            rows=rows,
            samples=samples,
            concurrency=min(concurrency, self._wiring.get("concurrency") or concurrency),
            sampling=Sampling(**sampled),
            progress=progress,
        )
        config = {"dataset_rows": len(rows), "samples": samples, "model_url": model_url, "sampling": sampled}
        run_name = name or f"{self.name}: {model}"
        try:
            offline.check()
            settings = self._diagnosis
            with start_run(run_name, eval_name=self.name, model=model, config=config, diagnosis=settings, db=db) as run:
                report = Report(offline.play(run), self._passing, self.name, run.id, db, samples)
                run.log(0, report.scalars)
        finally:
            rollouts.close()
        return report

    def _sampling(self, changes: Sampling | Mapping[str, Any] | None, *, has_seed: bool) -> dict[str, Any]:
        defaults = sampling_fields(self._wiring.get("sampling"), has_seed=has_seed)
        return defaults | sampling_fields(changes, has_seed=has_seed)


class _Silence(NamedTuple):
    observation: None = None
    reward: None = None
    done: bool = True


class _NoEnvironment:
    """Acts as a client without an environment: single-turn work is an episode that ends after one answer."""

    async def reset(self, **_: Any) -> _Silence:
        return _Silence()

    async def step(self, action: str) -> _Silence:  # noqa: ARG002
        return _Silence()


def _wired(wiring: Wiring, prompts: Prompts) -> Wiring:
    """Return the arguments for `openenv_rollout_func`. Raise TypeError or ValueError if they do not fit together."""
    odd = [name for name in wiring if name not in Wiring.__annotations__]
    if odd:
        hint = ": give the model to rollout_func() or run()" if odd[0].startswith(("model", "api_key")) else ""
        raise TypeError(f"@evaluation takes no {', '.join(odd)}{hint}")
    if not any(wiring.get(name) is not None for name in _PLACES):
        odd = [name for name in wiring if name not in _WITHOUT_ENVIRONMENT]
        if odd:
            raise ValueError(
                f"{', '.join(odd)}: only with an environment, by {', '.join(_PLACES[:-1])} or {_PLACES[-1]}"
            )
        # Without an environment, an episode is one answer: its text is the action, and only the scoring function
        # rewards it.
        return {"environment": _NoEnvironment, "act": str, "observe": None, "reward": lambda _: None, **wiring}
    parameters = inspect.signature(_maker(wiring)).parameters
    odd = [name for name in wiring if name not in parameters]
    if odd:
        kind = "text environments" if "env_factory" in wiring else "OpenEnv's environments"
        raise ValueError(f"{', '.join(odd)}: not for {kind}")
    task_names = prompts.tasks if "tasks" in parameters else []
    if task_names and wiring.get("tasks"):
        raise ValueError("The dataset's column task and tasks=[...] both name tasks: leave out one of them")
    if not task_names:
        return wiring
    # This object is made only for its check: it raises ValueError if one prompt has tasks of two names.
    PromptTasks(prompts=prompts)
    return {**wiring, "tasks": task_names}


def _maker(wiring: Wiring) -> Callable[..., OpenEnvRollouts]:
    return text_rollout_func if "env_factory" in wiring else openenv_rollout_func
