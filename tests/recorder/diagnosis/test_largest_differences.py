"""What differs most over time, within groups, and between environments or tasks."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from logs_ui.recorder.diagnosis import Rows, diagnose_rows
from logs_ui.recorder.diagnosis.measures import list_figures
from tests.recorder.diagnosis.test_diagnosis import NAN, rows_of

COUNT = 640  # 20 steps of 32 rollouts, in groups of four
PLACE = np.arange(COUNT)
GROUP = PLACE // 4
NOISE = np.random.default_rng(3).uniform(size=COUNT)


def said(rows: Rows) -> list[str]:
    card = diagnose_rows(rows).scored_low
    assert card is not None
    return list(card.evidence)


def made(**columns: Any) -> Rows:
    return rows_of(COUNT, steps=20, task=[f"task {it % 5}" for it in GROUP], **columns)


def test_how_rollouts_end_is_compared_over_time() -> None:
    cut = (PLACE >= 320) & (PLACE % 2 == 0)
    rows = made(reward=NOISE < 0.4, stop_reason=np.where(cut, "length", "done"), completion_tokens=100.0 + 200 * cut)
    # Half of the last rollouts: 50%, and 100 tokens more on average.
    assert said(rows)[0] == (
        "Over time (steps 1\u201310 against 11\u201320, same task mix): truncated (share) 0% \u2192 "
        "50%; tokens per turn 50 \u2192 100."
    )


def test_rollouts_whose_reward_was_never_asked_for_lack_none() -> None:
    late = PLACE >= 320
    rows = made(reward=np.where(late & (PLACE % 4 == 0), NAN, NOISE < 0.4), scored=~(late & (PLACE % 4 == 0)))
    assert not any("no valid reward" in it for it in said(rows))


@pytest.mark.parametrize("rare", [0, 2])
def test_an_environment_that_loses_more_is_named(rare: int) -> None:
    """Of another, which always gets 0, too few groups are known to tell that this is no chance."""
    rows = replace(
        made(reward=np.where(GROUP % 2 == 0, 0.2, 0.8) > NOISE), eval=GROUP % 2, evals=["shop", "home", "hut"]
    )
    is_rare = GROUP[-1] + 1 - rare <= GROUP
    rows = replace(rows, eval=np.where(is_rare, 2, rows.eval), reward=np.where(is_rare, 0.0, rows.reward))
    found = said(rows)
    low = rows.reward[(rows.eval == 0) & (rows.step >= 11)].mean()
    high = rows.reward[(rows.eval > 0) & (rows.step >= 11)].mean()
    assert (
        f"By evals, rollouts that ended normally lose more in shop (mean reward {low:.3g}); elsewhere it is {high:.3g}."
        in found
    )


def test_only_groups_with_both_kinds_count_within_groups() -> None:
    mixed = GROUP % 10 == 0
    reward = np.where(mixed, PLACE % 2, GROUP % 2)
    rows = made(reward=reward.astype(float), turns=np.where(reward == 1, 2.0, 9.0))
    # Of the last 80 groups eight are mixed.
    assert (
        "In low rollouts of 8 groups: tokens per turn 11.1, in better ones 50; turns 9, in better ones 2."
        in " ".join(said(rows))
    )


def test_a_figure_that_is_never_near_zero_is_compared_with_its_spread() -> None:
    low = (PLACE >= 320) & (PLACE % 2 == 0)  # half of each group
    rows = made(
        reward=np.where(low, 0.2, 0.8) - 0.1 * NOISE,
        distinct_words=np.where(low, 0.98, 0.9) + 0.01 * (GROUP % 3),  # a tenth more, and two standard deviations
        turns=np.where(low, 4.1, 4.0) + PLACE // 2 % 2,  # a fortieth more, and a fifth of one
    )
    found = " ".join(said(rows))
    assert (
        "In low rollouts of 80 groups: the share of different words 99%, in better ones 91% (distinct_words>0.95)."
        in found
    )
    assert "the share of different words 91% \u2192 95%" in found
    assert "turns" not in found


def test_a_language_that_low_answers_drift_to_is_named() -> None:
    low = (PLACE >= 320) & (PLACE % 2 == 0)
    found = " ".join(said(made(reward=np.where(low, 0.2, 0.8) - 0.1 * NOISE, non_latin=np.where(low, 0.4, 0.0))))
    assert "the share of letters that are not Latin 0% \u2192 20%" in found
    assert "the share of letters that are not Latin 40%, in better ones 0% (non_latin>0.2)" in found


def test_calls_that_never_reach_the_environment_are_told() -> None:
    """Four calls of a shell, all sent before step 11; since then half of the rollouts lose two, and fail more often."""
    place, dice = np.arange(960), np.random.default_rng(8)
    late = place >= 480
    dropped = late & (place % 2 == 0)
    right = dice.uniform(size=960) < np.where(dropped, 0.1, 0.7)
    steps = np.where(dropped, 2, 4) + (place % 5 == 0)  # at times an action that is no call
    rows = rows_of(960, steps=20, reward=right.astype(float), tool_calls=4.0, env_steps=steps.astype(float))
    card = diagnose_rows(rows).scored_low
    assert card is not None
    over_time = next(it for it in card.evidence if it.startswith("Over time "))
    within = next(it for it in card.evidence if it.startswith("In low rollouts "))
    assert "tool calls without an environment step 0 \u2192 0.9" in over_time  # half of 2, less a tenth of 1
    assert "tool calls without an environment step 1." in within


@pytest.mark.parametrize(("calls", "steps", "expected"), [
    ([3, 3, 2, 0, np.nan], [3, 1, 4, 0, 2], [0, 2, 0, np.nan, np.nan]), ([3, 1], [0, 0], [np.nan, np.nan]),
])  # fmt: skip
def test_calls_without_a_step_are_counted_where_both_are_recorded(
    calls: list[float], steps: list[float], expected: list[float]
) -> None:
    rows = rows_of(len(calls), tool_calls=calls, env_steps=steps)
    found = list_figures(rows)["tool calls without an environment step"]
    np.testing.assert_array_equal(found, expected)
