"""Reward functions beside each other: figures worked out by hand, and the page that leads to what they are of."""

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page
from sqlalchemy import Engine, insert
from starlette.testclient import TestClient

from logs_ui.app.commands.serve_command import BackgroundServer
from logs_ui.app.pages.why.why_tab import StepWindow
from logs_ui.recorder.diagnosis.tables.reward_table import (
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
from logs_ui.recorder.storage.database import writing_engine
from logs_ui.recorder.storage.tables import EvaluationRow, StepStatistics
from logs_ui.recorder.vocabulary import Mode, RunState, Status, StopReason
from tests.recorder.diagnosis.test_diagnosis import rows_of as columns_of
from tests.support import factory
from tests.support.axe import violations
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
    b = next(it for it in functions(rows, rows) if it.name == "b")
    assert (b.mean, b.counted, b.left, b.share) == (0.25, 0.0, None, 0.0)


def test_where_rewards_do_not_differ_nothing_decides() -> None:
    rows = columns_of(8, steps=1, reward=1.0)
    assert [it.share for it in functions(rows, rows)] == [None]


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
    found = shares_by(np.array([0, 0, 1, 1, 2, 2]), rows)
    assert found["a"][:2].tolist() == pytest.approx([1, 0])
    assert found["b"][:2].tolist() == pytest.approx([0, 1])
    assert np.isnan(found["a"][2])


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
    found = correlations(rows)
    assert found[key("a"), key("b")] == found[key("b"), key("a")] == pytest.approx(-1)
    assert found[key("a"), REWARD] == pytest.approx(1)
    assert found[key("b"), LENGTH] == pytest.approx(-1)
    assert np.isnan(found[key("a"), key("c")])  # c does not vary
    assert np.isnan(found[key("a"), ENVIRONMENT])  # 7 rollouts have one: too few


def test_only_rollouts_that_have_both_are_held_against_each_other() -> None:
    """Worked out anew over the eight that both scored: there b is 1 - a; where b gave nothing a is far off."""
    a = [0, 1, 0, 1, 0, 1, 0, 1, 90, 50]
    b = [1, 0, 1, 0, 1, 0, 1, 0, NAN, NAN]
    rows = columns_of(10, steps=1, group=0, reward=a, parts={"a": a, "b": b})
    assert correlations(rows)[key("a"), key("b")] == pytest.approx(-1)


def rows_of(run_id: int, rewards: Any) -> list[dict[str, Any]]:
    """Six steps of two groups of four; `rewards` makes the functions' values of a number, and their weights."""
    found = []
    for number in range(48):
        values, weights = rewards(number)
        known = [value * weights[name] for name, value in values.items() if value is not None]
        found.append({
            "run_id": run_id, "uid": str(number), "changed": 1, "eval_name": "e", "mode": Mode.TRAIN,
            "step": 1 + number // 8, "policy_step": number // 8, "group": f"{run_id}-{number // 4}",
            "generation": number % 4, "process": 0, "created": number, "message_count": 0, "status": Status.OK,
            "stop_reason": StopReason.DONE, "reward": sum(known) if known else None, "scored": 1, "rewards": values,
            "reward_weights": weights, "env_reward_sum": float(number % 2), "completion_tokens": 10 + number % 3,
            "prompt_key": 1 + number // 8 % 2, "completion_key": 1 + number % 4, "task": "t",
        })  # fmt: skip
    return found


def two(number: int) -> tuple[dict[str, float | None], dict[str, float]]:
    """In each third group `good` and the hostile one cancel out; the last rollout has no reward at all."""
    good = float(number % 2)
    cancels = number // 4 % 3 == 0
    other = 1 - good if cancels else None
    values = {"good": None if number == 47 else good, HOSTILE: None if number == 47 else other}
    return values, {"good": 1.0, HOSTILE: 1.0}


HOSTILE = f'is <b>, “quoted” or "so" {HOSTILE_TEXT.replace(chr(0), "")[:40]}'


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rewards") / "a.db"


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[Engine]:
    engine = writing_engine(path)
    kinds = {RUN: two, SINGLE: lambda number: ({"only": float(number % 2)}, {"only": 1.0}), PLAIN: lambda _: ({}, {})}
    with engine.begin() as connection:
        for uid, rewards in kinds.items():
            made = {"uid": uid, "name": uid, "created": 0, "heartbeat": 0, "state": RunState.FINISHED, "changed": 1}
            run_id = factory.insert_run(connection, made | {"config": {}, "versions": {}})
            connection.execute(insert(EvaluationRow), rows_of(run_id, rewards))
            sums = {"run_id": run_id, "mode": Mode.TRAIN, "eval_name": "e", "rollouts": 8, "scored": 8}
            sums |= {"reward_sum": 4, "errors": 0, "truncated": 0}
            connection.execute(insert(StepStatistics), [sums | {"step": step} for step in range(1, 7)])
    yield engine
    engine.dispose()


def page_of(client: TestClient, run: str) -> str:
    """Without what keeps the directions of texts apart."""
    return re.sub("</?bdi>", "", client.get(f"/runs/{run}/why/rewards").text)


def rows_in(html: str) -> list[str]:
    return [found[0] for found in re.finditer(r"<tr>.*?</tr>", html, re.DOTALL)]


def row_of(html: str, name: str) -> str:
    """Of the table of functions."""
    return next(row for row in rows_in(html) if f">{name}</a></th>" in row)


def opened(client: TestClient, row: str, shown: str) -> str:
    """How many rollouts the figure leads to."""
    found = re.search(rf'<a href="([^"]*)">{re.escape(shown)}</a>', row)
    assert found, (shown, row)
    rollouts = re.search(r"<strong>([\d,]+)</strong> rollout", client.get(unescape(found[1])).text)
    assert rollouts
    return str(rollouts[1])


def test_each_figure_leads_to_its_rollouts(client: TestClient) -> None:
    html = page_of(client, RUN)
    good = row_of(html, "good")
    assert opened(client, good, "0.489") == "47"  # 23 of 47 are 1: the mean
    assert opened(client, good, "0.511") == "24"  # left to win: those that got less than 1
    assert opened(client, good, "2%") == "1"
    (other,) = [
        row for row in re.findall(r"<tr>.*?</tr>", html, re.DOTALL) if "is &lt;b&gt;" in row and "spark-cell" in row
    ]
    assert opened(client, other, "67%") == "32"
    assert re.search(r'">1 rollout</a> got no number from any function', html)


def test_groups_that_cancel_out_are_opened(client: TestClient) -> None:
    html = page_of(client, RUN)
    assert "In 4 of 12 groups the reward functions differ but their weighted sum does not." in html
    address = re.findall(r'<a href="([^"]*)">Groups</a>', html)[0 if html.count(">Groups</a>") == 1 else -1]
    table = client.get(unescape(address)).text
    assert "<strong>4</strong> groups" in table


def test_what_the_trainer_and_the_environment_say_stands_in_the_matrix(client: TestClient) -> None:
    html = page_of(client, RUN)
    heads = re.findall(r'<th scope="col" title="[^"]*">([^<]*)</th>', html.partition('id="together"')[2])
    assert heads[0] == "good"
    assert heads[-3:] == ["reward", "environment", "tokens/turn"]
    assert "+1.00" in html  # good is what the environment says


def test_what_decides_is_drawn_by_step_and_leads_to_its_groups(client: TestClient) -> None:
    html = page_of(client, RUN)
    found = re.search(r'<a href="([^"]*)" aria-label="(step 2: [^"]*)"', html)
    assert found
    assert found[2].startswith("step 2: 100% good")
    assert "<strong>2</strong> groups" in client.get(unescape(found[1])).text


def test_a_filter_that_names_steps_keeps_them() -> None:
    rows = columns_of(8, steps=4)
    here = StepWindow(rows, Mode.TRAIN, 3, 4, is_all=False, choice=())
    assert print_where(here.only("reward<0.5")) == "mode:train step:3..4 reward<0.5"
    assert print_where(here.only("step:1..2")) == "mode:train step:1..2"


def test_a_hostile_name_is_a_name(client: TestClient) -> None:
    html = page_of(client, RUN)
    assert "is <b>" not in html
    assert "is &lt;b&gt;" in html


def test_with_one_function_the_page_says_what_it_still_can(client: TestClient) -> None:
    html = page_of(client, SINGLE)
    assert (
        "only is the only reward function and explains all within-group reward variance; its headroom is 0.5." in html
    )
    assert "There is only one reward function" in html
    assert "Cancellation" not in html
    assert "Not recorded: two reward functions" in html


def test_without_functions_it_says_so(client: TestClient) -> None:
    assert "No reward function values are recorded." in page_of(client, PLAIN)


@pytest.mark.exhaustive
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_of_hostile_names_are_quiet_accessible_and_no_wider_than_the_window(
    quiet_page: Page, engine: Engine, path: Path, theme: Any
) -> None:
    assert engine
    quiet_page.emulate_media(color_scheme=theme, reduced_motion="reduce")
    with BackgroundServer(path) as server:
        for width, run in ((1440, RUN), (900, RUN), (900, SINGLE), (1440, PLAIN)):
            quiet_page.set_viewport_size({"width": width, "height": 900})
            for page in ("rewards", "trained"):
                quiet_page.goto(f"{server.url}/runs/{run}/why/{page}")
                assert violations(quiet_page) == []
                assert quiet_page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (page, run)


def test_only_known_parameters_and_whole_names(client: TestClient) -> None:
    answer = client.get("/runs/latest/why/rewards", follow_redirects=False)
    assert answer.status_code == 303
    assert client.get(f"/runs/{RUN}/why/rewards?step=all").status_code == 422
    assert client.get(f"/runs/{RUN}/why/rewards?steps=some").status_code == 422
    assert client.get(f"/runs/{RUN}/why/rewards?steps=all").status_code == 200
