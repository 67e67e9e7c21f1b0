"""Scores the rollouts of an evaluation, offline and as reward functions of a trainer."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from logs_ui.rollout.models.one_line import one_line
from logs_ui.rollout.play.chat_template import Message, Prompt
from logs_ui.rollout.play.evaluation_dataset import NOT_COLUMNS, conversation
from logs_ui.rollout.play.play import Rollout

Score = float | Mapping[str, float | None] | None
RewardFunc = Callable[..., list[float | None]]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvaluationRow:
    """A rollout that came to its end, as the scoring function gets it.

    Attributes:
        prompt: the dataset's prompt, as messages: a text becomes a user message.
        messages: the conversation: prompt, observations and answers, each a dict with `role` and `content`. If the
            trainer generates by itself, without a rollout function: prompt and completion, as it decodes them.
        columns: the dataset's other columns; `row["name"]` is short for them.
        task: the environment's task, or the dataset's column `task` or `task_id`; None without one.
        turns: the number of answers of the model.
        step_rewards: the environment's reward of each step; None for a step without one. Empty without an environment.
        env_reward: the reward of the whole episode; None without an environment.

    Examples:
        >>> from logs_ui.rollout import EvaluationRow, evaluation
        >>> @evaluation("sums", dataset=[{"prompt": "2 + 3", "answer": "5"}])
        ... def sums(row: EvaluationRow) -> float:
        ...     return float(row["answer"] in row.answer.split())
        >>> prompt = [{"role": "user", "content": "2 + 3"}]
        >>> sums(EvaluationRow(prompt, [*prompt, {"role": "assistant", "content": "It is 5"}], {"answer": "5"}))
        1.0
    """

    prompt: Prompt
    messages: Sequence[Message]
    columns: Mapping[str, Any] = field(default_factory=dict)
    task: str | None = None
    turns: int = 1
    step_rewards: Sequence[float | None] = ()
    env_reward: float | None = None

    @property
    def answer(self) -> str:
        """Return the text of the model's last answer; empty if it has none."""
        answers = [message.get("content") for message in self.messages if message.get("role") == "assistant"]
        return str(answers[-1] or "") if answers else ""

    def __getitem__(self, column: str) -> Any:
        if column not in self.columns:
            raise KeyError(f"{column}: the dataset's columns are {', '.join(self.columns) or 'only prompt'}")
        return self.columns[column]


class Scoring:
    """Scores rows with the user's function."""

    def __init__(self, name: str, score: Callable[[EvaluationRow], Score], weights: Mapping[str, float] | None) -> None:
        self.name = name
        self.score = score
        self.weights = weights  # of the scores in a dict, by name; None if the function returns one number
        self._played: list[tuple[list[int], list[Message]]] = []
        self._scored: tuple[Any, list[dict[str, float | None]]] = (None, [])

    def parts(self, row: EvaluationRow) -> dict[str, float | None]:
        """Return the scores by name: the dict's, or one under the evaluation's name. Raise what the function raises,
        and TypeError or ValueError if it returned something that is not a score.
        """
        score = self.score(row)
        if not isinstance(score, Mapping):
            if self.weights is not None:
                raise TypeError(f"returned {score!r}, where weights promise a dict with {', '.join(self.weights)}")
            return {self.name: _number(self.name, score)}
        if self.weights is None:
            raise TypeError(
                f"returned a dict of {', '.join(map(str, score))}: name each in @evaluation(weights={{...}})"
            )
        odd = [str(name) for name in score if name not in self.weights]
        if odd:
            raise TypeError(
                f"returned {', '.join(odd)}, which weights do not name: they name {', '.join(self.weights)}"
            )
        return {name: _number(name, score.get(name)) for name in self.weights}

    def total(self, parts: Mapping[str, float | None]) -> float | None:
        """Return the weighted sum of the scores; None if all of them are None."""
        scores = {name: value for name, value in parts.items() if value is not None}
        return sum(value * (self.weights or {}).get(name, 1.0) for name, value in scores.items()) if scores else None

    def remember(self, rollouts: Sequence[Rollout]) -> None:
        """Keep the conversations of a batch, which is scored next: the trainer knows only their tokens."""
        self._played = [(rollout.trajectory.completion_ids, rollout.messages) for rollout in rollouts]

    def reward_funcs(self) -> list[RewardFunc]:
        """Return reward functions, one for each score. A row that failed, or cannot be scored, has none."""
        return [self._reward_func(name) for name in self.weights or [self.name]]

    def _reward_func(self, name: str) -> RewardFunc:
        def reward(
            prompts: list[Any], completions: list[Any], completion_ids: list[Any] | None = None, **columns: Any
        ) -> list[float | None]:
            if self._scored[0] is not completions:  # TRL gives all functions the same list
                rows = self._rows(prompts, completions, completion_ids or [], columns)
                self._scored = completions, self._batch(rows, len(prompts))
            return [parts.get(name) for parts in self._scored[1]]

        reward.__name__ = name
        return reward

    def _batch(self, rows: Mapping[int, EvaluationRow], count: int) -> list[dict[str, float | None]]:
        """Score a batch. Raise what the function raises if it raises for every row."""
        scored: list[dict[str, float | None]] = [{} for _ in range(count)]
        errors: list[Exception] = []
        for i, row in rows.items():
            try:
                scored[i] = self.parts(row)
            except Exception as error:  # noqa: BLE001 - the user's own function
                errors.append(error)
        if errors and len(errors) == len(rows):
            raise errors[0]
        if errors:
            logger.warning(
                "%s() failed for %d of %d rollouts, which have no reward. The first: %s",
                self.name, len(errors), len(rows), one_line(errors[0]),
            )  # fmt: skip
        return scored

    def _rows(
        self, prompts: Sequence[Any], completions: Sequence[Any], ids: Sequence[Any], columns: Mapping[str, Any]
    ) -> dict[int, EvaluationRow]:
        """Return the rows that can be scored, by index."""
        count = len(prompts)

        def of(name: str, i: int, otherwise: Any) -> Any:
            values = columns.get(name)
            return values[i] if isinstance(values, list) and len(values) == count else otherwise

        names = [name for name in columns if name not in NOT_COLUMNS]
        return {
            i: EvaluationRow(
                prompt=conversation(prompts[i]),
                messages=self._messages(i, prompts[i], completions[i], list(ids[i]) if i < len(ids) else None),
                columns={name: of(name, i, columns[name]) for name in names},
                task=task_name(of("task", i, None), of("task_id", i, None)),
                turns=of("turns", i, 1),
                step_rewards=of("step_rewards", i, ()),
                env_reward=of("env_reward", i, None),
            )
            for i in range(count)
            if of("error", i, None) is None
        }

    def _messages(self, i: int, prompt: Prompt, completion: Any, ids: list[int] | None) -> Sequence[Message]:
        # The remembered conversation is this row's only if its tokens are the same: the trainer may have generated
        # by itself, or may score another batch.
        if i < len(self._played) and self._played[i][0] == ids:
            return self._played[i][1]
        answer = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion
        return [*conversation(prompt), *answer]


def task_name(*candidates: Any) -> str | None:
    """Return the first value that is a name, as recorded rollouts are named."""
    return next((str(name) for name in candidates if name is not None), None)


def _number(name: str, value: Any) -> float | None:
    """Return the score as a number. Raise TypeError or ValueError if it is none."""
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"returned {value!r} as the score {name}, which is no number") from error
    if not math.isfinite(number):
        raise ValueError(f"returned {number} as the score {name}")
    return number
