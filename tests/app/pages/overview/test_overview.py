"""A run's overview: its figures, its charts and what they lead to, over HTTP and in a real Chromium."""

import dataclasses
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from markupsafe import escape
from playwright.sync_api import Page, expect
from sqlalchemy import Engine, insert, select, update
from sqlmodel import col
from starlette.testclient import TestClient

from logs_ui.app.pages.overview.page import Steps
from logs_ui.app.pages.overview.step_tiles import TileWindow, make_tiles
from logs_ui.app.parts.step_charts import Form, function_means, make_charts, smoothed, spelt, written
from logs_ui.recorder import flush, queries, start_run
from logs_ui.recorder.diagnosis.scale import Scale
from logs_ui.recorder.diagnosis.success import Success
from logs_ui.recorder.queries import Step
from logs_ui.recorder.storage.step_sums import RewardSums
from logs_ui.recorder.storage.tables import EvaluationRow, Run, Scalar, StepStatistics
from logs_ui.recorder.vocabulary import Mark, RunState
from tests.recorder.diagnosis.test_diagnosis import rows_of
from tests.support.axe import check_looks, violations
from tests.support.dashboard import changed, dashboard, flat, fragment, page_of, poll_of, rollouts_at, text_of
from tests.support.factory import HELD_OUT, make_run

RUN, LIVE, EARLY = "main-run-1234", "live-run-5678", "early-run-9abc"
STEPS = 24


def fill(engine: Engine) -> None:
    now = time.time_ns() // 1000
    alive: dict[str, Any] = {"created": now - 300_000_000, "heartbeat": now + 600_000_000}
    make_run(engine, uid=RUN, name="a run", steps=STEPS, generations=8, state=RunState.FINISHED)
    make_run(engine, uid=LIVE, name="another", steps=6, **alive)
    make_run(engine, uid=EARLY, name="early", steps=1, **alive)


def a_step(number: int, rewards: list[float], /, **more: Any) -> Step:
    plain: dict[str, Any] = {
        "step": number, "rollouts": len(rewards), "scored": len(rewards), "reward_sum": sum(rewards),
        "statuses": {"ok": len(rewards)}, "stop_reasons": {"done": len(rewards)},
        "reward_p10": min(rewards, default=None), "reward_p90": max(rewards, default=None),
        "groups": 2, "dead_groups": 0, "rewards": {},
        "tokens_known": 0, "tokens_sum": 0, "turns_known": 0, "turns_sum": 0, "seconds_known": 0, "seconds_sum": 0.0,
    }  # fmt: skip
    return Step(**plain | more)


# --- Figures


def test_tiles_are_of_the_last_ten_steps_against_the_ten_before() -> None:
    steps = [a_step(n, [n / 100, n / 100 + 0.2], turns_known=2, turns_sum=2 * n) for n in range(1, 26)]
    window = TileWindow.of(steps)
    assert [step.step for step in window.recent] == list(range(16, 26))
    assert [step.step for step in window.before] == list(range(6, 16))
    tiles = {tile.name: tile for tile in make_tiles(window, steps)}
    reward, turns = tiles["Mean reward"], tiles["Turns"]
    assert (reward.value, reward.change, reward.tone) == ("0.305", "+0.100", "positive")
    assert (turns.value, turns.change, turns.tone) == ("20.5", "+10.0", "quiet")
    assert "Truncated" not in tiles, "no rollout was at any step"
    won = [a_step(n, [1.0, 1.0]) for n in range(1, 26)]
    level = make_tiles(TileWindow.of(won), won)
    assert [(it.value, it.change) for it in level if it.name == "Mean reward"] == [("1.000", None)]
    assert "Tokens" not in tiles, "nothing is said of what nobody recorded"
    assert [tile for tile in make_tiles(TileWindow.of(steps[:10]), steps[:10]) if tile.change is not None] == []
    faults: dict[str, Any] = {"stop_reasons": {"length": 1, "done": 1}, "dead_groups": 1, "tokens_known": 2}
    cut = [a_step(n, [0.0, 1.0], **faults, tokens_sum=3_000) for n in (1, 2)]
    found = {tile.name: tile.value for tile in make_tiles(TileWindow.of(cut), cut)}
    assert (found["Truncated"], found["Zero-variance groups"], found["Tokens"]) == ("50%", "50%", "1.5k")


def test_steps_that_await_their_rewards_do_not_push_others_out_of_the_window() -> None:
    steps = [a_step(n, [0.5]) for n in range(1, 11)] + [a_step(11, [], rollouts=4, statuses={"running": 4})]
    window = TileWindow.of(steps)
    assert [step.step for step in window.recent] == list(range(1, 12))
    assert {tile.name: tile.value for tile in make_tiles(window, steps)}["Mean reward"] == "0.500"
    assert TileWindow.of([]) == TileWindow([], [])
    assert make_tiles(TileWindow.of([]), []) == []


@pytest.mark.exhaustive
def test_the_tile_of_solved_rollouts_is_that_of_the_run_s_definition(engine: Engine, path: Path) -> None:
    address = f"/runs/{RUN}/overview"
    with dashboard(path) as client:
        first = flat(client.get(address).text)
        assert "solved their task. Solved:" not in first, "not known yet"
        html = flat(client.get(address, headers=fragment("overview")).text)  # a poll waits for the diagnosis
        held_out = flat(client.get(f"{address}?mode=eval", headers=fragment("overview")).text)
        then = flat(client.get(address).text)
    tiles = [it.partition('<dl class="tiles"')[2].partition("</dl>")[0] for it in (first, html, then)]
    names = [re.findall(r"<dt[^>]*>(?:<bdi>)?([^<]+)", of_visit) for of_visit in tiles]
    assert names[0] == names[1] == names[2], "the tiles do not differ between visits"
    assert " = 1</bdi>" not in html
    found = re.search(r'solved their task. Solved: solved ≥ 1."><bdi>Solved</bdi></dt><dd><strong>(\d+)%', html)
    assert found
    row = EvaluationRow
    with engine.connect() as connection:
        wanted = col(row.mode) == "train", col(row.step) > STEPS - 10, col(row.reward).is_not(None)
        of_run = col(row.run_id) == queries.find_run(engine, RUN).id
        values = [(it or {})["solved"] for it in connection.scalars(select(col(row.rewards)).where(of_run, *wanted))]
    assert int(found[1]) == round(100 * sum(value == 1 for value in values) / len(values))
    assert ">Solved</bdi>" not in held_out, "the diagnosis is about the training"


@pytest.mark.exhaustive
def test_the_tile_of_solved_rollouts_stays_where_nothing_defines_them_and_a_saved_view_is_named(tmp_path: Path) -> None:
    with start_run(db=tmp_path / "a.db") as run:
        for step in range(1, 4):
            for at in range(16):
                with run.rollout([{"role": "user", "content": "?"}], step=step, group=f"{step}", generation=at) as row:
                    row.turn("an answer")
                row.score(rewards={"length": at / 16 + step / 100})
    flush()
    with dashboard(tmp_path / "a.db") as client:
        html = flat(client.get(f"/runs/{run.id}/overview", headers=fragment("overview")).text)
        then = flat(client.get(f"/runs/{run.id}/overview").text)
        form = {"query": "where=stop:length", "name": "<i>cut</i> off"}
        client.post(f"/runs/{run.id}/views", data=form, headers={"Origin": "http://127.0.0.1"})
        named = flat(client.get(f"/runs/{run.id}/overview").text)
        since = client.get(f"/runs/{run.id}/why/tasks?since=2&wait=1").status_code
    assert re.search(r'title="Not defined for this run[^"]*">Solved</dt><dd><strong class="quiet">not known', html)
    assert "Saved views" not in then
    (link,) = re.findall(r'<a href="([^"]*)"><bdi>&lt;i&gt;cut&lt;/i&gt; off', named)
    assert "stop%3Alength" in link or "stop:length" in link
    assert since == 200


def test_rollouts_that_no_deciding_function_scored_have_no_tile_of_solved_ones() -> None:
    rows = rows_of(4, steps=1, reward=0.2, parts={"game": [0.2] * 4})
    report = SimpleNamespace(scale=Scale(1.0, Success((Mark("rewards.solved", 1.0),)), ""))
    judged: Any = SimpleNamespace(rows=rows, report=report)
    steps = [a_step(1, [0.2] * 4)]
    assert [it.name for it in make_tiles(TileWindow.of(steps), steps, None, judged)] == ["Mean reward"]


def test_components_add_up_to_the_mean_reward() -> None:
    rewards = {"a": RewardSums(3, 2.0, 1.0), "b": RewardSums(4, 4.0, -0.4)}
    steps = [a_step(n, [0.3, 0.3, 0.0, 0.0], rewards=rewards if n < 3 else {}) for n in (1, 2, 3)]
    chart = next(chart for chart in make_charts(steps) if chart.id == "components")
    assert [(line.name, line.values[0], line.values[2]) for line in chart.lines] == [
        ("a", pytest.approx(2 / 3), None),
        ("b", 1.0, None),
    ], "what they returned is seen first: weighted, the fall of one with a small weight is a flat line"
    assert [line.weighted and line.weighted[0] for line in chart.lines] == [0.25, -0.1]
    assert steps[0].reward_sum / steps[0].scored == pytest.approx(0.25 - 0.1)
    assert len({line.dash for line in chart.lines}) == 2
    assert [(it.name, it.raw, it.counted) for it in function_means(steps[:1])] == [("a", 2 / 3, 0.25), ("b", 1.0, -0.1)]


@pytest.mark.parametrize(
    ("rewards", "names"),
    [
        ([[0.0] * 4 + [1.0] * 4] * 8, ["mean", "smoothed mean"]),
        ([[step / 10, 0.9] for step in range(8)], ["p10\u2013p90", "mean", "smoothed mean"]),
    ],
)
def test_a_band_that_fills_the_chart_is_left_out(rewards: list[list[float]], names: list[str]) -> None:
    steps = [a_step(n, it) for n, it in enumerate(rewards, 1)]
    assert [line.name for line in make_charts(steps)[0].lines] == names


def test_sixty_reward_functions_are_told_apart_by_colour_and_dash() -> None:
    step = a_step(1, [1.0], rewards={f"f{n}": RewardSums(1, 1.0, 1.0) for n in range(60)})
    (chart,) = [chart for chart in make_charts([step]) if chart.id == "components"]
    assert len({(line.colour, line.dash) for line in chart.lines}) == 60
    assert {line.colour for line in chart.lines} == set(range(1, 9))


def test_the_smoothed_mean_begins_at_the_first_and_skips_what_is_missing() -> None:
    assert smoothed([1.0, 0.0, None, 1.0], [2, 2, 0, 2]) == [
        1.0, pytest.approx(0.8 / 1.8), None, pytest.approx((0.8**3 + 1) / (0.8**3 + 0.8**2 + 1))
    ]  # fmt: skip


def test_what_still_runs_leaves_a_gap_in_the_stop_reasons() -> None:
    step = a_step(1, [0.5], rollouts=4, statuses={"ok": 1, "running": 3}, stop_reasons={"length": 1, "odd": 0})
    charts = {chart.id: chart for chart in make_charts([step])}
    assert [(line.name, line.values) for line in charts["stop"].lines] == [("length", [0.25])]
    assert [(line.name, line.values) for line in charts["status"].lines] == [("ok", [0.25]), ("running", [0.75])]
    assert all(line.word and line.word.icon for chart in ("stop", "status") for line in charts[chart].lines)


def test_values_are_written_in_their_units_and_spelt_for_the_script() -> None:
    assert [written(0.5, form) for form in Form] == ["0.500", "0.5", "500 ms", "50%"]
    assert written(2_345.0, Form.COUNT) == "2.3k"
    assert written(None, Form.SHARE) == "—"
    assert spelt([0.1 + 0.2, None, -1e-7]) == "0.3 - -1e-07"


# --- The page


def test_one_step_of_the_page_agrees_with_its_rows(client: TestClient, engine: Engine) -> None:
    run_id = queries.find_run(engine, RUN).id or 0
    (train, _) = queries.step_series(engine, run_id)
    seventh = next(step for step in queries.steps(engine, run_id, train) if step.step == 7)
    shown = page_of(client, f"/runs/{RUN}/overview/steps?of=reward")
    at = shown.points.index(7)
    values = [line.values[at] for line in shown.chart.lines]
    assert pytest.approx(seventh.reward_p10) in values
    assert pytest.approx(seventh.reward_sum / seventh.scored) in values
    html = flat(client.get(f"/runs/{RUN}/overview/steps?of=reward").text)
    assert f'<a href="{escape(shown.addresses[at])}">7</a></th><td class="num">' in html


def test_several_evals_begin_with_all_of_them_and_each_has_what_applies_to_it(tmp_path: Path) -> None:
    with start_run("mix", db=tmp_path / "mix.db") as run:
        for step in (1, 2):
            for eval_name, rewards in (
                ("math", {"correct": 1.0, "won": None}),
                ("game", {"correct": None, "won": 0.5}),
            ):
                for _ in range(2):
                    with run.rollout("?", eval_name=eval_name, mode="train", step=step) as row:
                        row.score(rewards=rewards)
    with dashboard(tmp_path / "mix.db") as client:
        whole = page_of(client, f"/runs/{run.id}/overview")
        assert [it.eval_name for it, *_ in whole.choice] == [None, "game", "math"]
        assert whole.steps.series == queries.Series("train", None, 8, 2, 1, 2)
        reward, functions = whole.steps.charts[:2]
        assert [(it.name, it.values) for it in reward.lines] == [
            ("game", [0.5, 0.5]), ("math", [1.0, 1.0]), ("mean", [0.75, 0.75])
        ]  # fmt: skip
        assert {it.name: it.values for it in functions.lines} == {"correct": [1.0, 1.0], "won": [0.5, 0.5]}
        game = page_of(client, whole.choice[1][1])
    assert [(it.name, it.values) for it in game.steps.charts[1].lines] == [("won", [0.5, 0.5])]
    assert "correct" not in {
        it.name for it in function_means([a_step(1, [], rewards={"correct": RewardSums(0, 0.0, 0.0)})])
    }


def test_train_and_evaluations_stand_apart(client: TestClient, engine: Engine) -> None:
    train = page_of(client, f"/runs/{RUN}/overview")
    assert (train.steps.first, train.steps.last) == (STEPS - 9, STEPS)
    assert [is_chosen for _, _, is_chosen in train.choice] == [True, False]
    held_out = page_of(client, train.choice[1][1])
    assert held_out.steps.points == [10, 20]
    assert [is_chosen for _, _, is_chosen in held_out.choice] == [False, True]
    html = client.get(train.choice[1][1]).text
    assert re.search(r'<a href="[^"]+" aria-current="true">eval', html)
    address = re.findall(r'data-rollouts="([^"]+)"', html)[0]
    of_both = address.replace("7000000000000001", "10").replace("7000000000000002", "20")
    assert rollouts_at(engine, of_both) == 32


def test_what_the_page_counts_leads_to_as_many_rollouts(client: TestClient, engine: Engine) -> None:
    steps = page_of(client, f"/runs/{RUN}/overview").steps
    parts = [(it.count, it.address) for it in (*steps.statuses, *steps.stop_reasons) if it.address]
    tasks = [(task.rollouts, address) for task, _, address in steps.tasks]
    assert min(len(parts), len(tasks)) > 3
    assert [rollouts_at(engine, address) for _, address in parts + tasks] == [count for count, _ in parts + tasks]
    html = client.get(f"/runs/{RUN}/overview").text
    assert all(f'<a href="{escape(address)}">' in html for _, address in parts)


def test_the_rollouts_of_some_steps_are_shown_lowest_first(client: TestClient) -> None:
    preview = page_of(client, f"/runs/{RUN}/overview").steps.preview
    address = preview.replace("7000000000000001", "3").replace("7000000000000002", "5")
    shown = page_of(client, address)
    assert (shown.title, shown.count.value, len(shown.rows)) == ("Steps 3\u20135", 72, 6)
    rewards = [row.reward for row in shown.rows]
    assert rewards == sorted(rewards, key=lambda reward: reward if reward is not None else 9.0)
    assert f'data-preview="{escape(preview)}"' in client.get(f"/runs/{RUN}/overview").text
    assert "Steps 3\u20135" in client.get(address).text


def test_a_run_of_one_step_and_one_without_rollouts_have_pages_of_their_own(tmp_path: Path) -> None:
    db = tmp_path / "a.db"
    with start_run("one", db=db) as run:
        for reward in (0.0, 1.0):
            with run.rollout("q", step=3) as row:
                row.turn("2")
            row.score(rewards={"right": reward})
    start_run("none", db=db).finish()
    flush()
    with dashboard(db) as client:
        one = client.get("/runs/one/overview").text
        assert '<figure class="chart' not in one
        assert 'class="histogram"' in one
        assert re.search(r"right 0\.500 0\.500", text_of(one))
        none = client.get("/runs/none/overview").text
        assert "The run ended without any." in none
        assert 'class="tiles"' not in none
        assert client.get("/runs/none/overview/steps?of=reward").status_code == 422


# --- What was logged


def test_the_overview_shows_what_was_logged_and_what_the_run_was_started_with(client: TestClient) -> None:
    html = client.get(f"/runs/{RUN}/overview").text
    assert len(re.findall(r'<figure class="curve"', html)) == 8
    assert html.index(">reward<") < html.index(">loss<") < html.index(">step_time<")
    for shown in ("trainer-0", "0f1e2d3c4b", "learning_rate", "1.16.0", "vllm"):
        assert shown in html
    searched = client.get(f"/runs/{RUN}/overview?q=RATE").text
    assert len(re.findall(r'<figure class="curve"', searched)) == 1
    assert "vllm" not in searched
    assert "1 of 4" in searched
    assert 'class="structured"' not in html
    assert "No metric has that name" in client.get(f"/runs/{RUN}/overview?q=zzz").text


def test_structured_arguments_stand_below_the_simple_ones(client: TestClient, engine: Engine) -> None:
    options = dict.fromkeys(("first_option", "second_option", "third_option"), False)
    nested = {"a": options, "b": [1.0, 0.1], "c": "z" * 99}
    with changed(engine, Run, col(Run.uid) == RUN, config=nested):
        html = flat(client.get(f"/runs/{RUN}/overview").text).partition("Arguments</h2>")[2]
    names = re.findall(r'<div( class="structured")?><dt class="mono"><bdi>(\w)</bdi>', html)
    assert names == [("", "b"), ("", "c"), (' class="structured"', "a")]
    assert re.search(r'<dd class="text mono">{&#34;first_option', html)


def test_what_is_logged_is_news_of_a_living_run(client: TestClient, engine: Engine) -> None:
    poll = poll_of(client.get(f"/runs/{LIVE}/overview").text)
    run_id = queries.find_run(engine, LIVE).id
    with engine.begin() as connection:
        connection.execute(insert(Scalar), {"run_id": run_id, "step": 99, "name": "loss", "value": None})
    assert client.get(poll, headers=fragment("overview")).status_code == 200


def test_a_search_leaves_the_charts_alone(client: TestClient) -> None:
    found = client.get(f"/runs/{RUN}/overview?q=loss", headers=fragment("logged"))
    assert found.text.startswith('<div id="logged"')
    assert len(re.findall(r'<figure class="curve"', found.text)) == 1
    assert found.headers["HX-Push-Url"] == f"/runs/{RUN}/overview?q=loss"


# --- In a browser


def open_overview(page: Page, url: str, run: str = RUN) -> None:
    """Opens an overview once nothing moves its charts any more: fonts and the answer above them come late."""
    page.goto(f"{url}/runs/{run}/overview")
    expect(page.locator("#why-short[hx-get]")).to_have_count(0)
    page.evaluate("document.fonts.ready.then(() => true)")


def choose(page: Page, first: float, last: float, chart: str = "reward") -> None:
    """Drags over a chart, from and to these shares of its width."""
    over = page.locator(f"#plot-{chart} .u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box
    page.mouse.move(box["x"] + first * box["width"], box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + (first + last) / 2 * box["width"], box["y"] + 50)
    page.mouse.move(box["x"] + last * box["width"], box["y"] + 50)
    page.mouse.up()


@pytest.mark.exhaustive
def test_the_overview_is_quiet_accessible_and_no_wider_than_its_window(quiet_page: Page, url: str) -> None:
    open_overview(quiet_page, url)
    choose(quiet_page, 0.2, 0.5)
    expect(quiet_page.locator("#preview tbody tr")).to_have_count(6)
    quiet_page.locator("#as-table-components summary").click()
    expect(quiet_page.locator("#table-components tbody tr")).to_have_count(STEPS)
    assert violations(quiet_page) == []
    pages = f"{RUN}/overview", f"{RUN}/overview?mode=eval&eval={HELD_OUT}", f"{EARLY}/overview"
    check_looks(quiet_page, [f"{url}/runs/{address}" for address in (*pages, f"{RUN}/overview/steps?of=stop")])


@pytest.mark.exhaustive
def test_the_pointer_says_a_steps_values_in_all_charts_and_a_click_leads_to_it(quiet_page: Page, url: str) -> None:
    page = quiet_page
    open_overview(page, url)
    turns = page.locator("#chart-turns output")
    last = turns.inner_text()
    page.locator("#plot-reward .u-over").hover(position={"x": 1, "y": 20})
    expect(page.locator("#chart-reward .at")).to_have_text("step 1")
    first = flat(page.request.get(f"{url}/runs/{RUN}/overview/steps?of=turns").text())
    found = re.search(r'>1</a></th><td class="num">([^<]+)<', first)
    assert found
    expect(turns).to_have_text(found[1])
    expect(page.locator(".curve", has_text="loss").locator("output")).to_contain_text("step 1:")
    page.mouse.move(0, 0)
    expect(turns).to_have_text(last)
    page.locator("#plot-reward .u-over").click(position={"x": 1, "y": 20})
    page.wait_for_url(re.compile(rf"/runs/{RUN}\?"))
    expect(page.locator("#found strong").first).to_have_text("24")
    page.go_back()
    expect(page.locator("#plot-reward canvas")).to_be_visible()


def test_a_drag_shows_the_rollouts_of_its_steps_and_leads_to_all_of_them(quiet_page: Page, url: str) -> None:
    page = quiet_page
    open_overview(page, url)
    choose(page, 4 / 23, 9 / 23)
    expect(page.locator("#preview h2")).to_have_text("Steps 5\u201310")
    expect(page.locator("#plot-turns .u-select")).to_be_visible()  # in all charts
    page.get_by_role("button", name="Close").click()
    expect(page.locator("#preview")).to_be_empty()
    choose(page, 9 / 23, 4 / 23, chart="turns")
    expect(page.locator("#preview h2")).to_have_text("Steps 5\u201310")
    page.get_by_role("link", name="Open in table").click()
    expect(page.locator("#found strong").first).to_have_text(str(6 * 24))


@pytest.mark.exhaustive
def test_the_keyboard_goes_from_step_to_step_and_opens_them(quiet_page: Page, url: str) -> None:
    page = quiet_page
    open_overview(page, url)
    plot = page.locator("#plot-reward")
    plot.focus()
    page.keyboard.press("Home")
    expect(plot).to_have_attribute("aria-valuenow", "1")
    expect(plot).to_have_attribute("aria-valuetext", re.compile("^step 1: p10.p90 .* mean "))
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    expect(page.locator("#preview h2")).to_have_text("Steps 3\u20135")
    page.keyboard.press("Escape")
    expect(page.locator("#preview")).to_be_empty()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(rf"/runs/{RUN}\?.*{STEPS - 1}"))
    expect(page.locator("#found strong").first).to_have_text("24")


@pytest.mark.exhaustive
def test_a_curve_says_the_value_under_the_pointer_and_leads_to_its_step(quiet_page: Page, url: str) -> None:
    page = quiet_page
    open_overview(page, url)
    loss = page.locator(".curve", has_text="loss")
    last = loss.locator("output").inner_text()
    loss.locator("svg").hover(position={"x": 1, "y": 10})
    expect(loss.locator("output")).to_contain_text("step 1:")
    page.mouse.move(0, 0)
    expect(loss.locator("output")).to_have_text(last)
    page.get_by_role("searchbox").fill("loss")
    expect(page.locator(".curve")).to_have_count(1)
    expect(page).to_have_url(f"{url}/runs/{RUN}/overview?q=loss")
    loss.locator("svg").click(position={"x": 1, "y": 10})
    page.wait_for_url(re.compile(rf"/runs/{RUN}\?"))
    expect(page.locator("#filters, .chips").first).to_be_visible()


@pytest.mark.exhaustive
def test_news_change_the_charts_and_take_nothing_from_the_reader(quiet_page: Page, engine: Engine, url: str) -> None:
    page = quiet_page
    open_overview(page, url, LIVE)
    expect(page.locator(".overview-head .is-live")).to_be_visible()
    page.locator("#as-table-reward summary").click()
    expect(page.locator("#table-reward tbody tr")).to_have_count(6)
    choose(page, 0.1, 0.4)
    chosen = page.locator("#preview h2").inner_text()
    page.get_by_role("searchbox").fill("loss")
    expect(page.locator(".curve")).to_have_count(1)
    canvas = page.locator("#plot-reward canvas").element_handle()
    run_id = queries.find_run(engine, LIVE).id
    with engine.begin() as connection:
        values = dict(
            connection.execute(select(StepStatistics).where(col(StepStatistics.run_id) == run_id)).mappings().first()
            or {}
        )
        connection.execute(insert(StepStatistics), values | {"step": 7, "rollouts": 4, "scored": 4, "reward_sum": 3.0})
        connection.execute(update(Run).where(col(Run.id) == run_id).values(changed=col(Run.changed) + 1))
    expect(page.locator("#overview")).to_have_attribute("data-steps", "1 2 3 4 5 6 7")
    expect(page.locator("#chart-reward .key", has_text="mean").locator("output").first).to_have_text("0.750")
    expect(page.locator("#table-reward tbody tr")).to_have_count(7)
    assert page.evaluate("(canvas) => canvas.isConnected", canvas), "drawn on, and not made anew"
    expect(page.locator("#preview h2")).to_have_text(chosen)
    expect(page.locator(".curve")).to_have_count(1)


@pytest.mark.parametrize(
    ("means", "shown", "has_more"),
    [([], 0, False), ([0.1] * 6, 6, False), ([0.1] * 7, 6, True), ([0.1] * 6 + [0.2], 6, False)],
)
def test_a_tie_with_the_last_task_shown_is_named(means: list[float], shown: int, *, has_more: bool) -> None:
    tasks: Any = [(SimpleNamespace(mean=mean), None, "") for mean in means]
    empty: Any = {part.name: None for part in dataclasses.fields(Steps)}
    steps = Steps(**empty | {"tasks": tasks})
    assert (len(steps.lowest), steps.has_more_lowest) == (shown, has_more)
