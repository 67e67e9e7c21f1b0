"""Tasks by step: which are never solved, forgotten or saturated; and the page that shows them."""

import itertools
import re
import time
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import Engine, select, update
from sqlmodel import col
from starlette.testclient import TestClient

from logs_ui.app.pages.why import why_tasks
from logs_ui.recorder import queries
from logs_ui.recorder.diagnosis import Rows
from logs_ui.recorder.diagnosis.success import Success
from logs_ui.recorder.diagnosis.tables.task_table import (
    Columns,
    Label,
    Reach,
    cells,
    figures,
    labels,
    pass_at,
    usual_size,
)
from logs_ui.recorder.diagnosis.waterfall import Scale
from logs_ui.recorder.storage.database import writing_engine
from logs_ui.recorder.storage.tables import EvaluationRow, Run
from logs_ui.recorder.vocabulary import Mode, RunState
from tests.app.test_app import fragment
from tests.recorder.diagnosis.test_diagnosis import NAN, rows_of
from tests.support.factory import HOSTILE_TASK, TASKS, make_run

RUN, MANY, UNNAMED, LIVE = "main-run-1234", "many-tasks-5678", "unnamed-9012", "live-3456"
SOLVED = Scale(1.0, Success((("reward", 1.0),)), "as set")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tasks") / "logs-ui.db"


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[Engine]:
    """A run of five tasks, one with a task for each group, one without names, and one that is alive."""
    engine = writing_engine(path)
    make_run(engine, uid=RUN, steps=60, state=RunState.FINISHED)
    make_run(engine, uid=MANY, steps=60, state=RunState.FINISHED, seed=2)
    make_run(engine, uid=UNNAMED, steps=3, state=RunState.FINISHED, seed=3)
    make_run(engine, uid=LIVE, steps=4, seed=4, heartbeat=time.time_ns() // 1000 + 600_000_000)
    row, many, unnamed = EvaluationRow, _id(engine, MANY), _id(engine, UNNAMED)
    with engine.begin() as db:
        db.execute(update(row).where(col(row.run_id) == many).values(task=col(row.group)))
        db.execute(update(row).where(col(row.run_id) == unnamed).values(task=None))
    yield engine
    engine.dispose()


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
    found = labels(of_one_task([1.0] * 20 + [0.0] * 12), SOLVED)
    assert (found.last_solved[0], found.since[0], found.before[0], found.after[0]) == (5, 6, 1.0, 0.0)


def test_what_counts_as_solved_is_the_scales() -> None:
    rows = of_one_task([0.5] * 12)
    assert labels(rows, SOLVED).label[0] == Label.NEVER
    assert labels(rows, Scale(1.0, Success((("reward", 0.5),)), "")).label[0] == Label.SATURATED


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
    found = figures(rows, SOLVED, usual_size(rows.groups))
    assert found.mean == pytest.approx([0.1, 0.1])
    assert found.share == pytest.approx([0.1, 0.0])
    assert found.pass_1 == pytest.approx([0.1, 0.0])
    assert found.pass_k == pytest.approx([0.5, 0.0])
    assert list(found.reach) == [Reach.RARELY, Reach.CANNOT]


def test_groups_that_are_not_whole_have_no_part_in_pass_at_k() -> None:
    rows = rows_of(8, steps=2, reward=[1, 1, 1, NAN, 0, 0, 0, 1], task=["t"] * 8)
    assert figures(rows, SOLVED, 4).pass_k[0] == 1.0
    assert np.isnan(figures(rows, SOLVED, 5).pass_k[0])


def test_a_success_in_a_group_that_is_not_whole_is_one_still() -> None:
    rewards = [1, 0, 0, NAN] * 2 + [0] * 8
    found = figures(rows_of(16, steps=4, reward=rewards, task=["t"] * 16), SOLVED, 4)
    assert (found.pass_k[0], found.reach[0]) == (0.0, Reach.RARELY)


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
    found = cells(rows, SOLVED, np.array([2, 0]), columns)
    for line, task in enumerate((2, 0)):
        for place, (first, last) in enumerate(zip(columns.first, columns.last, strict=True)):
            own = (rows.task == task) & (rows.step >= first) & (rows.step <= last)
            rewards = rows.reward[own & np.isfinite(rows.reward)]
            assert found.rollouts[line, place] == own.sum()
            assert found.attempts[line, place] == len(rewards)
            assert found.solved[line, place] == (rewards == 1.0).sum()
            assert np.isnan(found.mean[line, place]) if not len(rewards) else True
            assert not len(rewards) or found.mean[line, place] == pytest.approx(rewards.mean())


def test_no_rollouts_have_no_columns_and_no_labels() -> None:
    none = rows_of(4).where(np.zeros(4, bool))
    assert len(Columns.of(none).first) == 0
    assert set(labels(none, SOLVED).label) == {Label.FEW}
    assert np.isnan(figures(none, SOLVED, 0).pass_k).all()


# --- The page


def page(client: TestClient, uid: str = RUN, query: str = "") -> str:
    answer = client.get(f"/runs/{uid}/why/tasks{query}")
    assert answer.status_code == 200, answer.text[:400]
    return answer.text


def links(html: str) -> list[tuple[str, str]]:
    """(address, title) of each cell."""
    found = re.findall(r'<td class="cell [^"]+"><a href="([^"]+)" title="([^"]+)">', html)
    return [(unescape(address), unescape(title)) for address, title in found]


def tasks_of(html: str) -> list[str]:
    return [
        unescape(name)
        for name in re.findall(r'<th scope="row" class="task mono"><a href="[^"]+" title="([^"]*)"', html)
    ]


def counted(client: TestClient, address: str) -> tuple[int, str]:
    """Rollouts that an address leads to, and their mean reward."""
    html = client.get(address).text
    found = re.search(r'id="found".*?<strong>([\d,]+)</strong>(?:.*?<strong>([^<]+)</strong>)?', html, re.DOTALL)
    assert found is not None, html[:400]
    return int(found[1].replace(",", "")), found[2] or ""


def test_a_cell_leads_to_exactly_its_rollouts(client: TestClient) -> None:
    cells_ = links(page(client))
    assert len(cells_) > 100
    for address, title in cells_[::17]:
        mean, attempts, more = re.findall(r"mean reward (\S+) · .* of (\d+) rollouts? solved(?:, (\d+) more)?", title)[
            0
        ]
        assert counted(client, address) == (int(attempts) + int(more or 0), mean)


def test_attempts_and_their_mean_lead_to_exactly_them(client: TestClient) -> None:
    lines = re.findall(
        r'<td class="num"><a href="([^"]+)">(\d+)</a></td>\s*<td class="num strong">([^<]+)<', page(client)
    )
    assert len(lines) == len(TASKS) + 1
    for address, attempts, mean in lines:
        rollouts, of_all = counted(client, unescape(address))
        assert rollouts == int(attempts)
        assert float(of_all.replace("\u2212", "-")) == pytest.approx(float(mean.replace("\u2212", "-")), abs=0.0051)


def test_a_cell_of_a_run_that_is_alive_leaves_out_what_is_not_done(client: TestClient, engine: Engine) -> None:
    row, live = EvaluationRow, _id(engine, LIVE)
    with engine.connect() as db:
        running = db.scalars(
            select(col(row.task)).where(
                col(row.run_id) == live, col(row.status) == "running", col(row.mode) == Mode.TRAIN
            )
        ).all()
    assert running
    last = [pair for pair in links(page(client, LIVE)) if pair[1].startswith("step 4:")]
    assert last
    for address, title in last:
        rollouts = re.findall(r"(\d+) rollouts?", title)[0]
        assert counted(client, address)[0] == int(rollouts)


def test_chips_count_every_task_once_and_lead_to_them(client: TestClient) -> None:
    html = page(client, MANY)
    chips = re.findall(r'<li><a href="([^"]+)"[^>]*><strong>(\d+)</strong>', html)
    every, *by_label = [(unescape(address), int(count)) for address, count in chips]
    assert every[1] == sum(count for _, count in by_label) == 180
    for address, count in by_label:
        shown = client.get(address).text
        number = re.search(r"of ([\d,]+), step|(\d+) tasks?, step", shown)
        assert (int((number[1] or number[2]).replace(",", "")) if number else 0) == count
        assert len(tasks_of(shown)) == min(count, 50)


def test_pages_hold_every_task_once_the_worst_first(client: TestClient) -> None:
    html, seen, solved_ = page(client, MANY), [], []
    for _ in range(10):
        seen += tasks_of(html)
        solved_ += re.findall(r'<td class="num strong">[^<]*</td>\s*<td class="num">([^<]*)</td>', html)
        following = re.search(r'rel="next" href="([^"]+)"', html)
        if following is None:
            break
        html = client.get(unescape(following[1])).text
    assert len(seen) == len(set(seen)) == 180
    assert solved_[0] == "0%"
    assert "Tasks 151 to 180 of 180" in html
    assert tasks_of(page(client, MANY, "?page=999")) == tasks_of(html)
    assert 'rel="prev"' in html


@pytest.mark.parametrize("sort", list(why_tasks.SORTS))
def test_each_order_has_all_tasks(client: TestClient, sort: str) -> None:
    assert sorted(tasks_of(page(client, RUN, f"?sort={sort}"))) == sorted(tasks_of(page(client)))


def test_orders_are_what_they_say(client: TestClient) -> None:
    names = tasks_of(page(client, RUN, "?sort=task"))
    assert names == sorted(names)
    html = page(client, RUN, "?sort=attempts")
    attempts = [int(it) for it in re.findall(r'<td class="num"><a href="[^"]+">(\d+)</a></td>', html)]
    assert attempts == sorted(attempts, reverse=True)
    html = page(client, RUN, "?sort=mean")
    means = [float(it.replace("\u2212", "-")) for it in re.findall(r'<td class="num strong">([^<]+)</td>', html)]
    assert means == sorted(means)


def test_a_search_is_for_a_part_of_the_name_in_either_case(client: TestClient) -> None:
    assert tasks_of(page(client, RUN, "?q=BRANCH")) == ["recover a deleted branch"]
    assert "No task matches" in page(client, RUN, "?q=nothing-of-the-kind")


def test_a_hostile_name_is_text(client: TestClient) -> None:
    html = page(client)
    assert HOSTILE_TASK not in html
    assert HOSTILE_TASK in tasks_of(html)
    assert counted(client, next(address for address, _ in links(page(client, RUN, "?q=onerror"))))[0] == 4


def test_the_last_steps_have_figures_of_their_own(client: TestClient) -> None:
    every, last = page(client), page(client, RUN, "?steps=last")
    assert "steps 51\u201360" in last
    assert "steps 51\u201360" not in every
    assert 'class="tasks spelt"' in last
    for address, title in links(last)[::5]:
        assert re.match(r"step (5[1-9]|60):", title)
        assert counted(client, address)[0] == int(re.findall(r"of (\d+) rollout", title)[0])


def test_the_page_says_what_counts_as_solved(client: TestClient) -> None:
    assert re.search(r"Solved: [^<]+ \(<a href=\"[^\"]+#settings\">set it", page(client))


def test_without_task_names_the_page_says_how_to_get_them(client: TestClient) -> None:
    html = page(client, UNNAMED)
    assert "No rollout of this run names a task" in html
    assert "task=&#34;puzzle_id&#34;" in html or 'task="puzzle_id"' in html


@pytest.mark.parametrize("query", ["?sort=wrost", "?label=never", "?steps=some", "?tsak=1"])
def test_what_is_misspelt_is_an_error(client: TestClient, query: str) -> None:
    assert client.get(f"/runs/{RUN}/why/tasks{query}").status_code == 422


def test_any_name_of_the_run_leads_to_its_own_address(client: TestClient) -> None:
    answer = client.get(f"/runs/{RUN[:8]}/why/tasks?label=learning&page=2", follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"] == f"/runs/{RUN}/why/tasks?label=learning&page=2"


# --- Beside a run that goes on


@pytest.mark.parametrize("beside", ["tasks", "rewards", "actions", "trained"])
def test_a_page_beside_why_stands_still_and_says_when_its_run_has_gone_on(
    client: TestClient, engine: Engine, beside: str
) -> None:
    html = client.get(f"/runs/{LIVE}/why/{beside}").text
    (poll,) = re.findall(r'id="fresh"[^>]* data-poll hx-get="([^"]+)"', html)
    assert "up to date" in html
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
