"""Scores as the trainer and the report have them: rewards, means, pass@k, thresholds."""

import itertools
import math
import statistics
from typing import Any

import pytest

from logs_ui.rollout import EvaluationRow, Report, evaluation
from logs_ui.rollout.evaluations.report import Sample
from tests.support.evaluations import says, sums
from tests.support.model_server import model_server

PROMPTS = [[{"role": "user", "content": "0 + 1"}], [{"role": "user", "content": "1 + 1"}]]


def test_rewards_score_what_the_trainer_itself_generated() -> None:
    (reward,) = sums().rewards
    completions = [[{"role": "assistant", "content": "1"}], [{"role": "assistant", "content": "3"}]]
    assert reward(prompts=PROMPTS, completions=completions, completion_ids=[[1], [2]], right=["1", "2"]) == [1.0, 0.0]
    assert reward(prompts=["0 + 1"], completions=["1"], completion_ids=[[1]], right=["1"]) == [1.0]


def test_a_row_is_scored_once_for_all_rewards() -> None:
    seen: list[EvaluationRow] = []

    def score(row: EvaluationRow) -> dict[str, float | None]:
        seen.append(row)
        return {"a": 1.0, "b": None}

    one = sums(score, weights={"a": 1.0, "b": 2.0, "c": 0.5})
    a, b, c = one.rewards
    given: dict[str, Any] = {"prompts": PROMPTS, "completions": ["1", "2"], "right": ["1", "2"]}
    assert (a(**given), b(**given), c(**given)) == ([1.0, 1.0], [None, None], [None, None])
    assert len(seen) == 2
    assert [reward.__name__ for reward in one.rewards] == ["a", "b", "c"]
    assert one.reward_weights == [1.0, 2.0, 0.5]
    a(**{**given, "completions": ["1", "2"]})
    assert len(seen) == 4


def test_a_training_survives_scoring_that_fails_for_a_row(caplog: pytest.LogCaptureFixture) -> None:
    (reward,) = sums(lambda row: float(row.answer)).rewards
    assert reward(prompts=PROMPTS, completions=["1", "two"]) == [1.0, None]
    assert "sums() failed for 1 of 2 rollouts, which have no reward" in caplog.text
    with pytest.raises(ValueError, match="could not convert"):  # a mistake in it, rather than a strange row
        reward(prompts=PROMPTS, completions=["one", "two"])


def test_a_rollout_that_failed_is_not_scored() -> None:
    (reward,) = sums(lambda _: 0.0).rewards
    assert reward(prompts=PROMPTS, completions=["1", "two"], error=[None, "SessionError: gone"]) == [0.0, None]


@pytest.mark.parametrize(
    ("column", "name"), [({"task": 7}, "7"), ({"task_id": "easy"}, "easy"), ({"task": None, "task_id": 3}, "3")]
)
def test_a_task_is_called_the_same_in_training_and_offline(column: dict[str, Any], name: str) -> None:
    seen: list[EvaluationRow] = []
    one = evaluation("x", dataset=[{"prompt": "1 + 1", **column}])(seen.append)
    one.rewards[0](prompts=["1 + 1"], completions=["2"], **{key: [value] for key, value in column.items()})
    with model_server() as server:
        server.gives(*says("2"))
        (sample,) = one.run(model="tiny", model_url=server.url).samples
    trained, offline = seen
    assert (trained.task, offline.task, sample.task) == (name, name, name)
    assert trained.prompt == offline.prompt == [{"role": "user", "content": "1 + 1"}]
    assert trained.messages == offline.messages


def report_of(rewards: list[list[float | None]], error: str | None = "lost", **more: Any) -> Report:
    samples = [
        Sample(group, i, None, reward, {}, None if reward is not None else error)
        for group, of_group in enumerate(rewards)
        for i, reward in enumerate(of_group)
    ]
    return Report(samples, **{"passing": 1.0, "name": "x", "run": "r", "db": None, "per_prompt": 4, **more})


def test_pass_at_k_is_the_share_of_draws_that_hold_a_pass() -> None:
    rewards = [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.5], [1.0, 2.0, 1.0, 1.0]]
    report = report_of([list(of_group) for of_group in rewards])
    for k in (1, 2, 3, 4):
        draws = [statistics.fmean(max(draw) >= 1 for draw in itertools.combinations(each, k)) for each in rewards]
        assert report.pass_at(k) == pytest.approx(statistics.fmean(draws))
    assert math.isnan(report.pass_at(5))
    assert report_of([[1.0, None], [0.0, 0.0]]).pass_at(2) == 0.0  # one prompt has no two


def test_the_error_of_the_mean_is_that_of_drawn_prompts() -> None:
    rewards = [[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
    means = [statistics.fmean(each) for each in rewards]
    report = report_of([list(each) for each in rewards])
    assert report.mean == pytest.approx(0.5)
    assert report.stderr == pytest.approx(statistics.stdev(means) / math.sqrt(3))
    assert math.isnan(report_of([[1.0, 0.0]]).stderr)
    assert math.isnan(report_of([[None]]).mean)


def test_a_threshold_is_missed_by_the_mean_or_by_failures() -> None:
    report_of([[1.0, 0.5]]).assert_at_least(0.75)
    with pytest.raises(AssertionError, match=r"x: The mean reward is 0.750, below 0.8"):
        report_of([[1.0, 0.5]]).assert_at_least(0.8)
    with pytest.raises(AssertionError, match=r"1 of 2 rollouts failed. The first: lost"):
        report_of([[1.0, None]]).assert_at_least(0.5)
    report_of([[1.0, None]]).assert_at_least(0.5, max_errors=1)
    report_of([[1.0, None]], error=None).assert_at_least(0.5)  # it has no score, and did not fail
    with pytest.raises(AssertionError, match="No rollout has a score"):
        report_of([[None]]).assert_at_least(0.0, max_errors=1)
