"""The list of runs: which are found, what is said of them, and what comes in meanwhile."""

import re
import shutil
import time
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, insert, update
from sqlmodel import col

from logs_ui.app.pages.runs.view import RunLine
from logs_ui.recorder.queries import RunFilter, list_runs
from logs_ui.recorder.queries.notebook import Notebook, Subject
from logs_ui.recorder.storage.database import disposed, reading_engine, writing_engine
from logs_ui.recorder.storage.tables import Run, StepStatistics
from logs_ui.recorder.vocabulary import RunState
from tests.support.dashboard import dashboard, flat, fragment, page_of
from tests.support.factory import START_US, insert_run, make_run

NOW = time.time_ns() // 1000
HOUR = 3_600_000_000


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, one that failed, one that died and one that runs."""
    path = tmp_path_factory.mktemp("stock") / "runs.db"
    with disposed(writing_engine(path)) as engine:
        for i, (uid, state) in enumerate(
            [("done-aaaa", RunState.FINISHED), ("failed-bbbb", RunState.FAILED), ("died-cccc", RunState.RUNNING)]
        ):
            make_run(engine, uid=uid, name=f"run {uid}", steps=3, state=state, seed=i, created=START_US + i * HOUR)
        make_run(engine, uid="live-dddd", name="run live", steps=3, created=NOW - HOUR, heartbeat=NOW + HOUR, seed=7)
        with engine.begin() as connection:
            other = {"config": {"learning_rate": 3e-4, "optim": "adamw_torch", "bf16": True, "note": None, "seed": 99}}
            failed = update(Run).where(col(Run.uid) == "failed-bbbb")
            connection.execute(failed.values(**other, error="ValueError: no"))
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def engine(stock: Path, path: Path) -> Iterator[Engine]:
    """A copy of it."""
    shutil.copy(stock, path)
    with disposed(writing_engine(path)) as engine:
        yield engine


@pytest.fixture
def client(engine: Engine, path: Path) -> Iterator[TestClient]:
    with dashboard(path, headers={"Sec-Fetch-Site": "same-origin"}) as client:
        yield client


def uids(html: str) -> list[str]:
    return re.findall(r'name="run" value="([\w-]+)"', html)


def test_runs_are_listed_newest_first_and_lead_to_their_overview(client: TestClient) -> None:
    html = flat(client.get("/").text)
    assert uids(html) == ["live-dddd", "died-cccc", "failed-bbbb", "done-aaaa"]
    assert 'class="row-link" href="/runs/live-dddd/overview"' in html
    assert "ValueError: no" in html


def test_a_run_has_its_verdict_once_it_was_asked_for_and_until_the_run_changes(
    client: TestClient, engine: Engine
) -> None:
    def line_of_run() -> RunLine:
        line: RunLine = page_of(client, "/?q=done-aaaa").lines[0]
        return line

    assert line_of_run().outline is None
    made = page_of(client, "/runs/done-aaaa/verdict").outline
    assert made.verdict.said
    assert (line_of_run().outline, line_of_run().is_judged) == (made, True)
    with engine.begin() as connection:
        connection.execute(update(Run).where(col(Run.uid) == "done-aaaa").values(changed=Run.changed + 1))
    assert not line_of_run().is_judged


ALL = ["live-dddd", "died-cccc", "failed-bbbb", "done-aaaa"]
SEARCHES = {
    "LIVE": ["live-dddd"], "failed-bb": ["failed-bbbb"], "qwen3-0.6b": ALL, "shell held-out": [],
    "shell-agent failed": ["failed-bbbb"], "adamw": ["failed-bbbb"],
    "optim": [],  # the name of an argument that all share would find everything
    "99": ["failed-bbbb"], "9": [], "learning_rate=3e-4": ["failed-bbbb"], "learning_rate=0.0003": ["failed-bbbb"],
    "bf16=true": ["failed-bbbb"], "note=none": ["failed-bbbb"], "trl=1.16.0 done": ["done-aaaa"], "50%_": [],
    "baseline": ["done-aaaa"], "wrong": ["failed-bbbb"],
}  # fmt: skip


def test_the_search_finds_what_is_in_names_arguments_tags_and_notes(client: TestClient, path: Path) -> None:
    Notebook(path).tag(Subject("done-aaaa"), "Baseline")
    Notebook(path).note(Subject("failed-bbbb"), "the wrong learning rate")
    Notebook(path).note(Subject("done-aaaa", "some/rollout"), "wrong too, but of a rollout")
    assert {search: uids(client.get("/", params={"q": search}).text) for search in SEARCHES} == SEARCHES
    assert "No run matches" in client.get("/", params={"q": "50%_"}).text


def test_an_eval_is_found_by_each_of_its_names(engine: Engine, path: Path) -> None:
    with engine.begin() as connection:
        run = {"created": 1, "heartbeat": 1, "state": RunState.FINISHED}
        ids = [insert_run(connection, {"uid": f"x{i}", "name": f"x{i}", **run}) for i in range(2)]
        sums = {"rollouts": 1, "scored": 0, "reward_sum": 0.0, "errors": 0, "truncated": 0, "mode": "eval"}
        for name, run_id in (("first", ids[0]), ("second", ids[0]), ("third", ids[0]), ("other", ids[1])):
            of_run = {"run_id": run_id, "eval_name": name, **sums}
            connection.execute(insert(StepStatistics), [{"step": step, **of_run} for step in range(3)])
    for word, uid in {"second": "x0", "thir": "x0", "OTHER": "x1"}.items():
        (found,) = list_runs(reading_engine(path), RunFilter(words=(word,)), limit=9).runs
        assert found.summary.run.uid == uid


def test_a_run_of_files_with_one_time_has_no_duration(engine: Engine, client: TestClient) -> None:
    with engine.begin() as connection:
        connection.execute(update(Run).where(col(Run.uid) == "done-aaaa").values(finished=Run.created))
    assert "0 ms" not in client.get("/?q=done-aaaa").text


def test_states_are_counted_and_chosen(client: TestClient) -> None:
    html = client.get("/", params={"state": "died"}).text
    assert uids(html) == ["died-cccc"]
    counts = dict(re.findall(r'title="[^"]*">(\w+) <span class="n">(\d+)', html))
    assert counts == {"running": "1", "finished": "1", "failed": "1", "crashed": "1"}
    assert uids(client.get("/?state=died&state=failed").text) == ["died-cccc", "failed-bbbb"]


def test_ticked_runs_get_a_tag_and_lose_it_again(client: TestClient) -> None:
    ticked = {"run": ["done-aaaa", "failed-bbbb"], "label": "  lr   sweep <b> ", "do": "tag"}
    answer = client.post("/tags?state=finished", data=ticked, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/?state=finished")
    html = client.get("/").text
    assert html.count("lr sweep &lt;b&gt;</bdi></a>") == 2
    assert uids(client.get("/", params={"tag": "lr sweep <b>"}).text) == ["failed-bbbb", "done-aaaa"]
    client.post("/tags", data=ticked | {"do": "untag", "run": "done-aaaa"})
    assert uids(client.get("/", params={"tag": "lr sweep <b>"}).text) == ["failed-bbbb"]


def test_only_our_own_pages_may_tag(client: TestClient) -> None:
    ticked = {"run": ["done-aaaa"], "label": "x", "do": "tag"}
    assert client.post("/tags", data=ticked, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert client.post("/tags", content=b"run=a&" * 20_000).status_code == 413
    assert client.post("/tags", data=ticked | {"run": "nobody"}).status_code == 404


def test_a_star_narrows_the_list(client: TestClient, path: Path) -> None:
    Notebook(path).star(Subject("done-aaaa"), starred=True)
    Notebook(path).star(Subject("failed-bbbb", "a/rollout"), starred=True)
    assert uids(client.get("/?starred=1").text) == ["done-aaaa"]
    assert re.search(r'starred <span class="n">1<', client.get("/").text)


def live_address(html: str) -> str:
    found = re.search(r'hx-get="(/live[^"]+)"', html)
    assert found
    return unescape(found[1])


def test_the_rows_of_runs_that_live_are_renewed_and_no_other(client: TestClient, engine: Engine) -> None:
    html = client.get("/").text
    ids = re.findall(r'name="open" value="(\d+)"', html)
    assert len(ids) == 2  # one that runs, and one that died, which may be heard of again
    address = live_address(html) + "".join(f"&open={run}" for run in ids)
    assert client.get(address, headers=fragment("live")).status_code == 204
    with engine.begin() as connection:
        changed = {"state": RunState.FINISHED, "finished": NOW}
        connection.execute(update(Run).where(col(Run.uid) == "live-dddd").values(**changed))
    answer = client.get(address, headers=fragment("live")).text
    assert uids(answer) == ["died-cccc", "live-dddd"]
    assert re.search(r'finished <span class="n">2', answer)
    assert client.get(live_address(answer) + f"&open={ids[-1]}", headers=fragment("live")).status_code == 204


def test_a_new_run_waits_behind_a_button_and_never_moves_rows(client: TestClient, engine: Engine) -> None:
    html = client.get("/").text
    address = live_address(html)
    make_run(engine, uid="new-eeee", steps=1, created=NOW, heartbeat=NOW + HOUR)
    waiting = client.get(address, headers=fragment("live")).text
    assert "1 new</a>" in waiting
    assert "new-eeee" not in uids(waiting)
    assert client.get(live_address(waiting), headers=fragment("live")).status_code == 204  # said once
    following = client.get(live_address(waiting) + "&follow=1", headers=fragment("live")).text
    assert uids(following)[0] == "new-eeee"
    assert "1 new</a>" not in following
    assert "1 new</a>" not in client.get(live_address(html).replace("?", "?q=finished&", 1)).text


def test_the_list_has_pages(client: TestClient, engine: Engine) -> None:
    with engine.begin() as connection:
        for i in range(120):
            insert_run(connection, {"uid": f"bulk-{i:03}", "name": "bulk", "created": i, "heartbeat": i})
    first = client.get("/").text
    assert len(uids(first)) == 50
    following = re.search(r'<a href="(/\?after=[^"]+)">Older runs', first)
    assert following
    second = client.get(unescape(following[1])).text
    assert len(uids(second)) == 50
    assert not set(uids(first)) & set(uids(second))
    assert "data-follow" not in second
    more = client.get(unescape(following[1]), headers=fragment("more")).text
    assert more.count("<tr") == 51  # and the place of those that follow
    assert "<table" not in more


def test_what_is_remembered_of_a_run_is_renewed_with_its_rows(engine: Engine, path: Path) -> None:
    reader = reading_engine(path)

    def rollouts() -> int:
        found = list_runs(reader, RunFilter(words=("live-dddd",)), limit=1).runs
        return found[0].summary.rollouts

    before = rollouts()
    of_run = col(StepStatistics.run_id) == 4
    with engine.begin() as connection:
        connection.execute(update(StepStatistics).where(of_run, col(StepStatistics.step) == 1).values(rollouts=100))
        connection.execute(update(Run).where(col(Run.uid) == "live-dddd").values(changed=50))
    assert rollouts() > before


def test_the_first_page_comes_alive(path: Path) -> None:
    with dashboard(path) as client:
        html = client.get("/").text
        assert "No recording yet" in html
        address = re.search(r'hx-get="(/\?seen=\w+)"', html)
        assert address
        assert client.get(address[1], headers=fragment("runs")).status_code == 204
        with disposed(writing_engine(path)) as engine:
            assert "No runs yet" in client.get(address[1], headers=fragment("runs")).text
            make_run(engine, uid="first-ffff", steps=1)
            assert uids(client.get(address[1], headers=fragment("runs")).text) == ["first-ffff"]


@pytest.mark.parametrize(
    ("chosen", "is_empty"),
    [
        (RunFilter(), True), (RunFilter(words=("lr",)), False), (RunFilter(states=("failed",)), False),
        (RunFilter(tags=("best",)), False), (RunFilter(starred=True), False), (RunFilter(projects=("maze",)), False),
    ],
)  # fmt: skip
def test_only_a_filter_without_parts_selects_all_runs(chosen: RunFilter, *, is_empty: bool) -> None:
    assert chosen.is_empty == is_empty
