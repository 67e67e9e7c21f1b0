"""Tasks by step: which are never solved, forgotten or saturated; and the page that shows them."""

import itertools
import re
import time
from html import unescape
from typing import Any

import numpy as np
import pytest
from markupsafe import escape
from sqlalchemy import Engine, update
from sqlmodel import col
from starlette.testclient import TestClient

from logs_ui.app.pages.why import tasks as why_tasks
from logs_ui.app.pages.why.task_heat import HeatCell
from logs_ui.recorder import queries
from logs_ui.recorder.diagnosis import Rows
from logs_ui.recorder.diagnosis.scale import Scale
from logs_ui.recorder.diagnosis.success import Success
from logs_ui.recorder.diagnosis.tables.tasks import (
    Columns,
    Label,
    Reach,
    cells,
    figures,
    labels,
    pass_at,
    usual_size,
)
from logs_ui.recorder.storage.tables import EvaluationRow, Run
from logs_ui.recorder.vocabulary import Mark, Mode, RunState
from tests.recorder.diagnosis.test_diagnosis import NAN, rows_of
from tests.support.dashboard import first_row, fragment, page_of, rollouts_at
from tests.support.factory import TASKS, make_run

RUN, MANY, UNNAMED, LIVE = "main-run-1234", "many-tasks-5678", "unnamed-9012", "live-3456"
SOLVED = Scale(1.0, Success((Mark("reward", 1.0),)), "as set")


def fill(engine: Engine) -> None:
    """A run of five tasks, one with a task for each group, one without names, and one that is alive."""
    make_run(engine, uid=RUN, steps=60, state=RunState.FINISHED)
    make_run(engine, uid=MANY, steps=60, state=RunState.FINISHED, seed=2)
    make_run(engine, uid=UNNAMED, steps=3, state=RunState.FINISHED, seed=3)
    make_run(engine, uid=LIVE, steps=4, seed=4, heartbeat=time.time_ns() // 1000 + 600_000_000)
    row, many, unnamed = EvaluationRow, _id(engine, MANY), _id(engine, UNNAMED)
    with engine.begin() as db:
        db.execute(update(row).where(col(row.run_id) == many).values(task=col(row.group)))
        db.execute(update(row).where(col(row.run_id) == unnamed).values(task=None))


def _id(engine: Engine, uid: str) -> int:
    return queries.find_run(engine, uid).id or 0


def of_one_task(rewards: list[float], per_step: int = 4) -> Rows:
    """A task, so many rollouts a step, beside another that is always solved."""
    count = 2 * len(rewards)
    both = [value for pair in zip(rewards, itertools.repeat(1.0)) for value in pair]
    names = ["it", "other"] * len(rewards)
    return rows_of(count, steps=len(rewards) // per_step, reward=both, task=names, group=np.arange(count) // 2)


# --- What a task is called


@pytest.mark.parametrize(
    ("rewards", "label"),
    [
        ([0.0] * 8, Label.FEW),
        ([1.0] * 8, Label.FEW),
        ([NAN] * 40, Label.FEW),
        ([0.0] * 12, Label.NEVER),
        ([0.9] * 12, Label.NEVER),
        ([0.0] * 28 + [1.0] * 12, Label.SATURATED),
        ([1.0, 0.0] * 20, Label.LEARNING),
        ([1.0] * 20 + [0.0] * 12, Label.FORGOTTEN),
        ([1.0] * 20 + [0.0] * 8, Label.LEARNING),
        # Solved once in 40: 12 failures in a row are nothing out of the ordinary.
        ([0.0] * 39 + [1.0] + [0.0] * 12, Label.LEARNING),
        # What has no reward was no attempt.
        ([1.0] * 20 + [0.0] * 4 + [NAN] * 40, Label.LEARNING),
    ],
)
def test_a_task_is_called_what_its_attempts_say(rewards: list[float], label: Label) -> None:
    assert labels(of_one_task(rewards), SOLVED).label[0] == label


def test_a_forgotten_task_says_since_when() -> None:
    task_labels = labels(of_one_task([1.0] * 20 + [0.0] * 12), SOLVED)
    assert (task_labels.last_solved[0], task_labels.since[0], task_labels.before[0], task_labels.after[0]) == (
        5,
        6,
        1.0,
        0.0,
    )


def test_what_counts_as_solved_is_the_scales() -> None:
    rows = of_one_task([0.5] * 12)
    assert labels(rows, SOLVED).label[0] == Label.NEVER
    assert labels(rows, Scale(1.0, Success((Mark("reward", 0.5),)), "")).label[0] == Label.SATURATED


# --- Cannot, or rarely


def test_pass_at_k_is_the_share_of_draws_that_hold_a_success() -> None:
    for scored, wins, k in itertools.product((4, 8), (0, 1, 3, 4), (1, 2, 4)):
        draws = list(itertools.combinations([1] * wins + [0] * (scored - wins), k))
        assert pass_at(scored, wins, k) == pytest.approx(sum(map(max, draws)) / len(draws))


def test_cannot_and_rarely_are_told_apart_where_the_means_are_alike() -> None:
    """Both have a mean of 0.1: of one each third group has a success, of the other none has."""
    hit = [1.0, *[0.0] * 9]
    rewards = [*hit * 4, *[0.1] * 40]
    rows = rows_of(80, steps=8, reward=rewards, task=["rarely"] * 40 + ["cannot"] * 40, group=np.arange(80) // 5)
    task_figures = figures(rows, SOLVED, usual_size(rows.groups))
    assert task_figures.mean == pytest.approx([0.1, 0.1])
    assert task_figures.share == pytest.approx([0.1, 0.0])
    assert task_figures.pass_1 == pytest.approx([0.1, 0.0])
    assert task_figures.pass_k == pytest.approx([0.5, 0.0])
    assert list(task_figures.reach) == [Reach.RARELY, Reach.CANNOT]


def test_groups_that_are_not_whole_have_no_part_in_pass_at_k() -> None:
    rows = rows_of(8, steps=2, reward=[1, 1, 1, NAN, 0, 0, 0, 1], task=["t"] * 8)
    assert figures(rows, SOLVED, 4).pass_k[0] == 1.0
    assert np.isnan(figures(rows, SOLVED, 5).pass_k[0])


def test_a_success_in_a_group_that_is_not_whole_is_one_still() -> None:
    rewards = [1, 0, 0, NAN] * 2 + [0] * 8
    task_figures = figures(rows_of(16, steps=4, reward=rewards, task=["t"] * 16), SOLVED, 4)
    assert (task_figures.pass_k[0], task_figures.reach[0]) == (0.0, Reach.RARELY)


# --- Columns and cells


@pytest.mark.parametrize("steps", [1, 39, 40, 41, 400, 997])
def test_every_step_lies_in_one_of_at_most_40_columns(steps: int) -> None:
    rows = rows_of(steps * 4, steps=steps)
    columns = Columns.of(rows)
    assert len(columns.first) <= 40
    assert all(((columns.first <= step) & (step <= columns.last)).sum() == 1 for step in rows.steps)
    assert columns.last[-1] == steps


def test_a_cell_is_what_its_rollouts_come_to() -> None:
    rows = rows_of(480, steps=120, reward=np.random.default_rng(0).choice([0.0, 0.5, 1.0, NAN], 480))
    columns = Columns.of(rows)
    heat = cells(rows, SOLVED, np.array([2, 0]), columns)
    for line, task in enumerate((2, 0)):
        for place, (first, last) in enumerate(zip(columns.first, columns.last, strict=True)):
            is_in_cell = (rows.task == task) & (rows.step >= first) & (rows.step <= last)
            rewards = rows.reward[is_in_cell & np.isfinite(rows.reward)]
            assert heat.rollouts[line, place] == is_in_cell.sum()
            assert heat.attempts[line, place] == len(rewards)
            assert heat.solved[line, place] == (rewards == 1.0).sum()
            assert np.isnan(heat.mean[line, place]) if not len(rewards) else True
            assert not len(rewards) or heat.mean[line, place] == pytest.approx(rewards.mean())


def test_no_rollouts_have_no_columns_and_no_labels() -> None:
    none = rows_of(4).where(np.zeros(4, bool))
    assert len(Columns.of(none).first) == 0
    assert set(labels(none, SOLVED).label) == {Label.FEW}
    assert np.isnan(figures(none, SOLVED, 0).pass_k).all()


# --- The page


def page(client: TestClient, uid: str = RUN, query: str = "") -> Any:
    """Return the `WhyTasksPage`."""
    return page_of(client, f"/runs/{uid}/why/tasks{query}")


def cells_of(shown_page: Any) -> list[HeatCell]:
    return [cell for line in shown_page.heat.lines for cell in line.cells if cell]


def names_of(shown_page: Any) -> list[str]:
    return [line.task for line in shown_page.heat.lines] if shown_page.heat else []


def test_a_cell_leads_to_exactly_its_rollouts(client: TestClient, engine: Engine) -> None:
    heat_cells = cells_of(page(client))
    assert len(heat_cells) > 100
    for cell in heat_cells[::17]:
        attempts, more = re.findall(r"mean reward \S+ · .* of (\d+) rollouts? solved(?:, (\d+) more)?", cell.title)[0]
        assert rollouts_at(engine, cell.address) == int(attempts) + int(more or 0)


def test_attempts_and_their_mean_lead_to_exactly_them(client: TestClient, engine: Engine) -> None:
    lines = page(client).heat.lines
    assert len(lines) == len(TASKS) + 1
    for line in lines:
        assert rollouts_at(engine, line.attempts_address) == line.attempts
        assert page_of(client, line.attempts_address).matches.mean == pytest.approx(line.mean)


def test_a_cell_of_a_run_that_is_alive_leaves_out_what_is_not_done(client: TestClient, engine: Engine) -> None:
    running = col(EvaluationRow.status) == "running", col(EvaluationRow.mode) == Mode.TRAIN
    assert first_row(engine, LIVE, *running)
    last = [cell for cell in cells_of(page(client, LIVE)) if cell.title.startswith("step 4:")]
    assert last
    for cell in last:
        assert rollouts_at(engine, cell.address) == int(re.findall(r"(\d+) rollouts?", cell.title)[0])


def test_chips_count_every_task_once_and_lead_to_them(client: TestClient) -> None:
    every = page(client, MANY)
    assert every.tasks == sum(chip.count for chip in every.chips) == 180
    for chip in every.chips:
        shown_page = page_of(client, chip.address)
        assert (shown_page.matches.count if shown_page.matches else 0) == chip.count
        assert len(names_of(shown_page)) == min(chip.count, 25)


def test_pages_hold_every_task_once_the_worst_first(client: TestClient) -> None:
    pages = [page(client, MANY)]
    while pages[-1].matches.next:
        pages.append(page_of(client, pages[-1].matches.next))
    names = [name for shown_page in pages for name in names_of(shown_page)]
    assert len(names) == len(set(names)) == 180
    assert pages[0].heat.lines[0].share == 0
    assert (pages[-1].matches.first, pages[-1].matches.last, pages[-1].matches.count) == (176, 180, 180)
    assert names_of(page(client, MANY, "?page=999")) == names_of(pages[-1])
    assert pages[-1].matches.previous


@pytest.mark.parametrize("sort", list(why_tasks.SORTS))
def test_each_order_has_all_tasks(client: TestClient, sort: str) -> None:
    lines = page(client, RUN, f"?sort={sort}").heat.lines
    assert sorted(line.task for line in lines) == sorted(names_of(page(client)))
    keys = {"task": [line.task for line in lines], "mean": [line.mean for line in lines]}
    keys["attempts"] = [-line.attempts for line in lines]
    assert keys.get(sort, []) == sorted(keys.get(sort, []))


def test_a_search_is_for_a_part_of_the_name_in_either_case(client: TestClient) -> None:
    assert names_of(page(client, RUN, "?q=BRANCH")) == ["recover a deleted branch"]
    assert names_of(page(client, RUN, "?q=nothing-of-the-kind")) == []


def test_the_last_steps_have_figures_of_their_own(client: TestClient, engine: Engine) -> None:
    last = page(client, RUN, "?steps=last")
    assert last.heat.is_spelt
    for cell in cells_of(last)[::5]:
        assert re.match(r"step (5[1-9]|60):", cell.title)
        assert rollouts_at(engine, cell.address) == int(re.findall(r"of (\d+) rollout", cell.title)[0])


def test_the_template_shows_what_it_is_given_and_how_to_get_what_is_missing(client: TestClient) -> None:
    html = client.get(f"/runs/{RUN}/why/tasks?steps=last").text
    cell = cells_of(page(client, RUN, "?steps=last"))[0]
    assert f'<a href="{escape(cell.address)}" title="{escape(cell.title)}">' in html
    assert "steps 51\u201360" in html
    assert 'class="tasks spelt"' in html
    assert re.search(r"Solved: [^<]+ \(<a href=\"[^\"]+#settings\">set it", html)
    assert "No task matches" in client.get(f"/runs/{RUN}/why/tasks?q=nothing-of-the-kind").text
    assert "Tasks 76 to 100 of 180" in client.get(f"/runs/{MANY}/why/tasks?page=4").text
    unnamed = client.get(f"/runs/{UNNAMED}/why/tasks").text
    assert "No rollout of this run names a task" in unnamed
    assert "task=&#34;puzzle_id&#34;" in unnamed or 'task="puzzle_id"' in unnamed


# --- Beside a run that goes on


@pytest.mark.exhaustive
@pytest.mark.parametrize("beside", ["tasks", "rewards", "actions", "trained"])
def test_a_page_beside_why_stands_still_and_says_when_its_run_has_gone_on(
    client: TestClient, engine: Engine, beside: str
) -> None:
    html = client.get(f"/runs/{LIVE}/why/{beside}").text
    (poll,) = re.findall(r'id="fresh"[^>]* data-poll hx-get="([^"]+)"', html)
    assert "this page is up to date" in html
    assert client.get(unescape(poll), headers=fragment("fresh")).status_code == 204
    with engine.begin() as db:
        db.execute(update(Run).where(col(Run.uid) == LIVE).values(changed=col(Run.changed) + 1))
    news = client.get(unescape(poll), headers=fragment("fresh"))
    assert 'The run has changed since this page was made: <a href="">reload</a>' in unescape(
        " ".join(news.text.split())
    )
    (again,) = re.findall(r'hx-get="([^"]+)"', news.text)
    assert client.get(unescape(again), headers=fragment("fresh")).status_code == 204
    fewer = re.sub(r"rollouts=\d+", "rollouts=1", unescape(poll).replace("seen=", "seen=0"))
    assert "more rollouts since this page was made" in client.get(fewer, headers=fragment("fresh")).text
    assert 'id="fresh"' not in client.get(f"/runs/{RUN}/why/{beside}").text, "nothing is to come"
