"""Reward functions beside each other: figures worked out by hand, and the page that leads to what they are of."""

import re
from typing import Any

import numpy as np
import pytest
from markupsafe import escape
from playwright.sync_api import Page
from sqlalchemy import Engine, insert
from starlette.testclient import TestClient

from logs_ui.app.pages.why.tab import StepWindow
from logs_ui.app.web import urls
from logs_ui.recorder.diagnosis.tables.rewards import (
    ENVIRONMENT,
    LENGTH,
    REWARD,
    correlations,
    functions,
    key,
    shares_by,
    unscored,
)
from logs_ui.recorder.queries.filters.rollout_filter import print_where
from logs_ui.recorder.storage.tables import StepStatistics
from logs_ui.recorder.vocabulary import Mode, StopReason
from tests.recorder.diagnosis.test_diagnosis import rows_of as columns_of
from tests.support import factory
from tests.support.axe import check_looks
from tests.support.dashboard import page_of, rollouts_at
from tests.support.factory import HOSTILE_TEXT

NAN = float("nan")
RUN, SINGLE, PLAIN = "two-functions", "one-function", "no-function"


def test_each_function_has_its_figures() -> None:
    """Two groups of two: R = 2a + b; a is 0, 1 in each, b 1, 0 in the first and nothing in the second."""
    rows = columns_of(
        4, steps=2, group=[0, 0, 1, 1], reward=[1, 2, 0, 2], weights={"a": 2.0, "b": 1.0},
        parts={"a": [0, 2, 0, 2], "b": [1, 0, NAN, NAN]},
    )  # fmt: skip
    a, b = functions(rows, rows)
    assert (a.name, a.weight, a.mean, a.counted) == ("a", 2.0, 0.5, 1.0)
    # Within groups R is ∓0.5, ∓1, 2a is ∓1, ∓1, b is ±0.5, 0: Var(R) = 0.625, Cov = 0.75 and -0.125.
    assert [a.share, b.share] == pytest.approx([1.2, -0.2])
    assert (a.nothing, b.nothing) == (0.0, 0.5)
    assert (a.best, a.left, b.left) == (2.0, 1.0, 0.5)
    assert a.trend == ((1, 0.5), (2, 0.5))
    assert b.trend == ((1, 0.5),)


def test_a_function_without_weight_has_a_mean_and_nothing_left_to_win() -> None:
    rows = columns_of(8, steps=1, parts={"a": [0, 1] * 4, "b": [0.0] * 8}, weights={"a": 1.0, "b": 0.0},
                      values={"a": [0, 1] * 4, "b": [0.25] * 8})  # fmt: skip
    b = next(function for function in functions(rows, rows) if function.name == "b")
    assert (b.mean, b.counted, b.left, b.share) == (0.25, 0.0, None, 0.0)


def test_where_rewards_do_not_differ_nothing_decides() -> None:
    rows = columns_of(8, steps=1, reward=1.0)
    assert [function.share for function in functions(rows, rows)] == [None]


def test_a_functions_change_is_from_as_many_steps_before() -> None:
    every = columns_of(8, steps=4, reward=0.0, parts={"a": [9, 9, 1, 3, 2, 2, 4, 8]})
    (a,) = functions(every.where(every.step >= every.steps[3]), every)
    assert (a.mean, a.before) == (6.0, 2.0)
    (a,) = functions(every.where(every.step >= every.steps[2]), every)
    assert (a.mean, a.before) == (4.0, 5.5)
    (a,) = functions(every, every)
    assert a.before is None


def test_shares_of_each_place_are_those_of_its_rollouts_alone() -> None:
    """Only a differs in the first group, only b in the second, and nothing in the third."""
    rows = columns_of(6, steps=3, group=[0, 0, 1, 1, 2, 2], reward=[0, 1, 0, 2, 1, 1], weights={"a": 1.0, "b": 1.0},
                      parts={"a": [0, 1, 0, 0, 1, 1], "b": [0, 0, 0, 2, 0, 0]})  # fmt: skip
    shares = shares_by(np.array([0, 0, 1, 1, 2, 2]), rows)
    assert shares["a"][:2].tolist() == pytest.approx([1, 0])
    assert shares["b"][:2].tolist() == pytest.approx([0, 1])
    assert np.isnan(shares["a"][2])


def test_a_rollout_is_unscored_only_where_all_functions_gave_nothing() -> None:
    rows = columns_of(4, steps=1, parts={"a": [1, NAN, NAN, NAN], "b": [NAN, 1, NAN, NAN]},
                      scored=[True, True, True, False])  # fmt: skip
    assert unscored(rows).tolist() == [False, False, True, False]


def test_what_goes_together_within_groups() -> None:
    """One group has all that is high; within each group b goes against a, and tokens with a."""
    a = [0, 1, 0, 1, 10, 11, 10, 11]
    rows = columns_of(
        8, steps=1, reward=a, parts={"a": a, "b": [11, 10, 11, 10, 1, 0, 1, 0], "c": [5] * 8},
        completion_tokens=[10, 20, 10, 20, 10, 20, 10, 20], env_reward_sum=[NAN, 1, 0, 1, 0, 1, 0, 1],
    )  # fmt: skip
    r_by_pair = correlations(rows)
    assert r_by_pair[key("a"), key("b")] == r_by_pair[key("b"), key("a")] == pytest.approx(-1)
    assert r_by_pair[key("a"), REWARD] == pytest.approx(1)
    assert r_by_pair[key("b"), LENGTH] == pytest.approx(-1)
    assert np.isnan(r_by_pair[key("a"), key("c")])  # c does not vary
    assert np.isnan(r_by_pair[key("a"), ENVIRONMENT])  # 7 rollouts have one: too few


def test_only_rollouts_that_have_both_are_held_against_each_other() -> None:
    """Worked out anew over the eight that both scored: there b is 1 - a; where b gave nothing a is far off."""
    a = [0, 1, 0, 1, 0, 1, 0, 1, 90, 50]
    b = [1, 0, 1, 0, 1, 0, 1, 0, NAN, NAN]
    rows = columns_of(10, steps=1, group=0, reward=a, parts={"a": a, "b": b})
    assert correlations(rows)[key("a"), key("b")] == pytest.approx(-1)


def rows_of(uid: str, rewards: Any) -> list[dict[str, Any]]:
    """Six steps of two groups of four; `rewards` makes the functions' values of a number, and their weights."""
    columns = []
    for number in range(48):
        values, weights = rewards(number)
        weighted_values = [value * weights[name] for name, value in values.items() if value is not None]
        columns.append({
            "step": 1 + number // 8, "policy_step": number // 8, "group": f"{uid}-{number // 4}",
            "generation": number % 4, "created": number, "stop_reason": StopReason.DONE,
            "reward": sum(weighted_values) if weighted_values else None, "scored": 1, "rewards": values,
            "reward_weights": weights, "env_reward_sum": float(number % 2), "completion_tokens": 10 + number % 3,
            "prompt_key": 1 + number // 8 % 2, "completion_key": 1 + number % 4, "task": "t",
        })  # fmt: skip
    return columns


def two(number: int) -> tuple[dict[str, float | None], dict[str, float]]:
    """In each third group `good` and the hostile one cancel out; the last rollout has no reward at all."""
    good = float(number % 2)
    cancels = number // 4 % 3 == 0
    hostile = 1 - good if cancels else None
    values = {"good": None if number == 47 else good, HOSTILE: None if number == 47 else hostile}
    return values, {"good": 1.0, HOSTILE: 1.0}


HOSTILE = f'is <b>, “quoted” or "so" {HOSTILE_TEXT.replace(chr(0), "")[:40]}'


def fill(engine: Engine) -> None:
    kinds = {RUN: two, SINGLE: lambda number: ({"only": float(number % 2)}, {"only": 1.0}), PLAIN: lambda _: ({}, {})}
    with engine.begin() as connection:
        for uid, rewards in kinds.items():
            run_id = factory.insert_rows(connection, rows_of(uid, rewards), uid)
            sums = {"run_id": run_id, "mode": Mode.TRAIN, "eval_name": "e", "rollouts": 8, "scored": 8}
            sums |= {"reward_sum": 4, "errors": 0, "truncated": 0}
            connection.execute(insert(StepStatistics), [sums | {"step": step} for step in range(1, 7)])


def test_each_figure_leads_to_its_rollouts(client: TestClient, engine: Engine) -> None:
    shown_page = page_of(client, f"/runs/{RUN}/why/rewards")
    good, hostile = shown_page.lines
    assert (good.function.name, hostile.function.name) == ("good", HOSTILE)
    assert (good.function.mean, good.function.left, hostile.function.nothing) == pytest.approx(
        (23 / 47, 24 / 47, 2 / 3), abs=0.02
    )
    leads_to = (
        good.all_address,
        good.below_address,
        good.without_address,
        hostile.without_address,
        shown_page.unscored_rollouts[1],
    )
    assert [rollouts_at(engine, address) for address in leads_to] == [47, 24, 1, 32, 1]
    assert shown_page.unscored_rollouts[0] == 1


def test_groups_that_cancel_out_are_opened(client: TestClient) -> None:
    shown_page = page_of(client, f"/runs/{RUN}/why/rewards")
    sentence = "In 4 of 12 groups the reward functions differ but their weighted sum does not."
    (finding,) = [finding for finding in shown_page.findings if sentence in finding.sentence]
    assert finding.is_groups
    assert len(page_of(client, urls.groups(RUN, finding.rollout_filter)).rows.lines) == 4


def test_what_the_trainer_and_the_environment_say_stands_in_the_matrix(client: TestClient) -> None:
    matrix = page_of(client, f"/runs/{RUN}/why/rewards").matrix
    heads = [name for name, _ in matrix.heads]
    assert (heads[0], heads[-3:]) == ("good", ["reward", "environment", "tokens/turn"])
    (good_cells,) = [cells for name, cells in matrix.lines if name == "good"]
    assert good_cells[heads.index("environment")].r == pytest.approx(1)


def test_what_decides_is_drawn_by_step_and_leads_to_its_groups(client: TestClient) -> None:
    (second,) = [
        stack for stack in page_of(client, f"/runs/{RUN}/why/rewards").stacks if stack.label.startswith("step 2: ")
    ]
    assert second.label.startswith("step 2: 100% good")
    assert len(page_of(client, second.address).rows.lines) == 2


def test_the_template_shows_what_it_is_given(client: TestClient) -> None:
    html = client.get(f"/runs/{RUN}/why/rewards").text
    good = page_of(client, f"/runs/{RUN}/why/rewards").lines[0]
    for address, figure in ((good.all_address, "0.489"), (good.below_address, "0.511"), (good.without_address, "2%")):
        assert f'<a href="{escape(address)}">{figure}</a>' in html
    assert re.search(r'">1 rollout</a> got no number from any function', html)
    assert "In 4 of 12 groups the reward functions differ but their weighted sum does not." in html
    assert 'aria-label="step 2: 100% good' in html


def test_a_filter_that_names_steps_keeps_them() -> None:
    rows = columns_of(8, steps=4)
    window = StepWindow(rows, Mode.TRAIN, 3, 4, is_all=False, choice=())
    assert print_where(window.make_filter("reward<0.5")) == "mode:train step:3..4 reward<0.5"
    assert print_where(window.make_filter("step:1..2")) == "mode:train step:1..2"


def test_with_one_function_the_page_says_what_it_still_can(client: TestClient) -> None:
    html = re.sub("</?bdi>", "", client.get(f"/runs/{SINGLE}/why/rewards").text)
    verdict = "only is the only reward function and explains all within-group reward variance; 0.5 is left to gain."
    assert verdict in html
    assert "There is only one reward function" in html
    assert "Cancellation" not in html
    assert "Not recorded: two reward functions" in html


def test_without_functions_it_says_so(client: TestClient) -> None:
    assert "No reward function values are recorded." in client.get(f"/runs/{PLAIN}/why/rewards").text


@pytest.mark.exhaustive
def test_pages_of_hostile_names_are_quiet_accessible_and_no_wider_than_the_window(quiet_page: Page, url: str) -> None:
    pages = [f"{url}/runs/{run}/why/{page}" for run in (RUN, SINGLE, PLAIN) for page in ("rewards", "trained")]
    check_looks(quiet_page, pages, widths=(1440, 900))
