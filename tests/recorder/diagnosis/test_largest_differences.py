"""What differs most over time, within groups, and between environments or tasks."""

from dataclasses import replace
from typing import Any

import numpy as np

from logs_ui.recorder.diagnosis import Rows, diagnose_rows
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
        "Over time (steps 1\u201310 against 11\u201320, same tasks, weighted alike): truncated (share) 0% \u2192 "
        "50%; tokens per turn 50 \u2192 100."
    )


def test_rollouts_whose_reward_was_never_asked_for_lack_none() -> None:
    late = PLACE >= 320
    rows = made(reward=np.where(late & (PLACE % 4 == 0), NAN, NOISE < 0.4), scored=~(late & (PLACE % 4 == 0)))
    assert not any("no valid reward" in it for it in said(rows))


def test_the_environment_that_loses_most_is_named() -> None:
    rows = replace(made(reward=np.where(GROUP % 2 == 0, 0.2, 0.8) > NOISE), eval=GROUP % 2, evals=["shop", "home"])
    found = said(rows)
    low = rows.reward[(rows.eval == 0) & (rows.step >= 11)].mean()
    high = rows.reward[(rows.eval == 1) & (rows.step >= 11)].mean()
    assert (
        f"By evals, rollouts that ended normally lose most in shop (mean reward {low:.3g}); elsewhere it is {high:.3g}."
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
