"""Reports an evaluation: means with their errors, pass@k, and whether that is enough."""

import math
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING

from logs_ui.recorder import load_run

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Sample:
    """Describes one rollout of an evaluation."""

    group: int  # the index of its row in the dataset
    generation: int  # its number among the rollouts of that row
    task: str | None
    reward: float | None  # the weighted sum of its scores; None if it failed, or was not scored
    scores: Mapping[str, float | None]  # by name
    error: str | None  # what broke the rollout or its scoring, in one line; None if nothing did


@dataclass(frozen=True)
class Figures:
    """Sums up some rollouts."""

    samples: Sequence[Sample]
    passing: float  # the reward from which on a rollout passed

    @property
    def mean(self) -> float:
        """Return the mean over rollouts that have a reward; NaN without any."""
        rewards = [sample.reward for sample in self.samples if sample.reward is not None]
        return fmean(rewards) if rewards else math.nan

    @property
    def stderr(self) -> float:
        """Return the standard error of the mean. Rollouts of one prompt are correlated, so prompts are the sampling
        unit: NaN for a single prompt.
        """
        groups, mean = self._rewards.values(), self.mean
        if len(groups) < 2:
            return math.nan
        # This is the cluster-robust standard error, with the correction G / (G - 1) for G prompts. Deviations are
        # summed within a prompt before they are squared, so that equal rollouts of one prompt count as one
        # observation.
        squares = sum(sum(reward - mean for reward in rewards) ** 2 for rewards in groups)
        return math.sqrt(squares * len(groups) / (len(groups) - 1)) / sum(map(len, groups))

    def pass_at(self, k: int) -> float:
        """Return the probability that one of k rollouts of a prompt passes: the unbiased estimator of Chen et al.
        2021, over prompts with at least k rollouts that have a reward; NaN without any.
        """
        counts = [
            (len(rewards), sum(reward >= self.passing for reward in rewards)) for rewards in self._rewards.values()
        ]
        # Of n rollouts, c passed. The fraction is the probability that k rollouts, drawn without replacement, all
        # fail.
        chances = [1 - math.comb(n - c, k) / math.comb(n, k) for n, c in counts if n >= k]
        return fmean(chances) if chances else math.nan

    @property
    def scores(self) -> dict[str, float]:
        """Return the mean of each score, over the rollouts that have it."""
        values: defaultdict[str, list[float]] = defaultdict(list)
        for sample in self.samples:
            for name, value in sample.scores.items():
                if value is not None:
                    values[name].append(value)
        return {name: fmean(of_name) for name, of_name in values.items()}

    @property
    def errors(self) -> list[str]:
        """Return the errors of rollouts that failed, one line each. A rollout whose score is None did not fail."""
        return [sample.error for sample in self.samples if sample.error is not None]

    @cached_property
    def _rewards(self) -> dict[int, list[float]]:
        """Return rewards by prompt."""
        rewards: defaultdict[int, list[float]] = defaultdict(list)
        for sample in self.samples:
            if sample.reward is not None:
                rewards[sample.group].append(sample.reward)
        return dict(rewards)


@dataclass(frozen=True)
class Report(Figures):
    """Describes the result of a whole evaluation.

    Attributes:
        name: the evaluation's name.
        run: the id of the run that it is recorded as.
        db: the database; None is the usual place.
        per_prompt: the number of rollouts of each prompt.

    Examples:
        >>> from logs_ui.rollout import evaluation
        >>> @evaluation("sums", dataset=[{"prompt": "2 + 3", "answer": "5"}, {"prompt": "3 + 4", "answer": "7"}])
        ... def sums(row):
        ...     return float(row.answer == row["answer"])
        >>> report = sums.run(model="my-model", model_url="http://127.0.0.1:8000/v1", samples=4)
        >>> report.assert_at_least(0.5)
        >>> print(report)
        sums: 0.500 ± 0.500 over 8 rollouts, pass@1 0.50, pass@4 0.50
    """

    name: str
    run: str
    db: str | os.PathLike[str] | None
    per_prompt: int

    @property
    def tasks(self) -> dict[str, Figures]:
        """Return figures by task, in order of appearance; empty without tasks."""
        samples: defaultdict[str, list[Sample]] = defaultdict(list)
        for sample in self.samples:
            if sample.task is not None:
                samples[sample.task].append(sample)
        return {task: Figures(of_task, self.passing) for task, of_task in samples.items()}

    @property
    def scalars(self) -> dict[str, float]:
        """Return figures that are stored with the run, by name; unknown ones are left out."""
        values = {"reward": self.mean, "reward_stderr": self.stderr, "failed": float(len(self.errors))}
        values |= {f"pass@{k}": self.pass_at(k) for k in (1, self.per_prompt)}
        values |= {f"rewards/{name}": mean for name, mean in self.scores.items()}
        return {name: value for name, value in values.items() if not math.isnan(value)}

    @property
    def frame(self) -> "pd.DataFrame":
        """Return its rollouts, as `load_run()` does."""
        return load_run(self.run, self.db)

    def shortfall(self, score: float, *, max_errors: int = 0) -> str | None:
        """Return why the result is not enough, in a line: a mean below `score`, too many failures; None if it is."""
        if len(self.errors) > max_errors:
            return f"{len(self.errors)} of {len(self.samples)} rollouts failed. The first: {self.errors[0]}"
        if math.isnan(self.mean):
            return f"No rollout has a score, so there is no mean reward to reach {score:g}"
        if not self.mean >= score:
            return f"The mean reward is {self.mean:.3f}, below {score:g}"
        return None

    def assert_at_least(self, score: float, *, max_errors: int = 0) -> None:
        """Assert that the result is enough, in a test.

        Raises:
            AssertionError: the mean is below `score`, or there is none, or more rollouts than `max_errors` failed.
        """
        short = self.shortfall(score, max_errors=max_errors)
        if short is not None:
            raise AssertionError(f"{self.name}: {short}")

    def __str__(self) -> str:
        summary = f"{self.name}: {self.mean:.3f} ± {self.stderr:.3f} over {len(self.samples)} rollouts"
        passed = "".join(f", pass@{k} {self.pass_at(k):.2f}" for k in sorted({1, self.per_prompt}))
        return f"{summary}{passed}{f', {len(self.errors)} failed' if self.errors else ''}"
