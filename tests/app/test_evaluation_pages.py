"""The dashboard's pages of a run that evaluates, and trains nothing."""

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import update
from sqlmodel import col
from starlette.testclient import TestClient

from logs_ui.app.commands.serve import BackgroundServer
from logs_ui.recorder import load_run, load_runs, start_run
from logs_ui.recorder.storage.database import writing_engine
from logs_ui.recorder.storage.tables import EvaluationRow
from tests.support.axe import check_looks
from tests.support.dashboard import dashboard, flat

QUESTION = [{"role": "user", "content": "1 + 1?"}]
FATE = {"staleness": 3, "dropped": "stale"}
SAID_ELSEWHERE: dict[str, Any] = {"error": None, "turns": 1, "step_rewards": [0.5], "env_reward": None, "dataset": {}}


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluation, one of checkpoints, and one that has not begun; oldest first."""
    db = tmp_path_factory.mktemp("evaluations") / "a.db"
    with start_run("held out", eval_name="sums <b>", model="tiny", config={"max_steps": 30}, db=db) as run:
        for generation in range(2):
            extra = {**SAID_ELSEWHERE, "seed": 7} if generation == 0 else {}
            with run.rollout(QUESTION, task="1+1", group="g", generation=generation, metadata=extra) as row:
                row.turn("2", action={"say": 2}, observation="yes", reward=0.5)
                row.note(judge="<i>right</i>")
            row.score(reward=generation / 2)
        run.log(0, {"failed": 0.0, "reward": 0.25})
    with writing_engine(db).begin() as connection:
        connection.execute(update(EvaluationRow).where(col(EvaluationRow.generation) == 0).values(**FATE))
    with start_run("checkpoints", eval_name="sums", db=db) as run:
        for step in (100, 200):
            with run.rollout(QUESTION, step=step) as row:
                row.turn("2")
            row.score(reward=step / 400)
    start_run("nothing yet", db=db).finish()
    return db


@pytest.fixture(scope="module")
def client(db: Path) -> Iterator[TestClient]:
    with dashboard(db) as client:
        yield client


def line_of(client: TestClient, name: str) -> str:
    """Of the list of runs, without its tags."""
    found = re.search(rf'<tr id="run-\d+"[^>]*>(?:(?!</tr>).)*?{name}.*?</tr>', client.get("/").text, re.DOTALL)
    assert found
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", found[0]))).strip()


def test_the_list_of_runs_says_what_is_an_evaluation_and_its_mean(client: TestClient) -> None:
    assert re.match(
        r"held out evaluation of sums <b> max_steps 30 tiny finished — 2 0\.250 0%", line_of(client, "held out")
    )
    assert re.match(r"checkpoints evaluation of sums — finished 200 2 0\.375 ", line_of(client, "checkpoints"))
    assert "evaluation" not in line_of(client, "nothing yet")
    assert client.get("/").text.count('class="sparkline"') == 1


def test_a_list_without_trainings_speaks_of_no_last_steps(client: TestClient, tmp_path: Path) -> None:
    head = '<span><bdi>Reward</bdi><span class="roomy">, last 10</span></span>'
    assert head in client.get("/").text  # of a run without rollouts nobody knows
    with start_run(db=tmp_path / "b.db") as run, run.rollout(QUESTION) as row:
        row.turn("2")
    with dashboard(tmp_path / "b.db") as alone:
        assert "last 10</span>" not in alone.get("/").text


def test_a_frame_of_runs_has_the_same_reward(db: Path) -> None:
    assert list(load_runs(db).set_index("name")["reward"].dropna()) == [0.375, 0.25]


def test_the_overview_speaks_of_no_trainer(client: TestClient) -> None:
    html = client.get("/runs/held out/overview").text
    assert "<li>evaluation of <bdi>sums &lt;b&gt;</bdi></li>" in html
    assert not re.search(r"trainer|planned steps|\d steps?\b|step \d", html, re.IGNORECASE)
    assert "<h2>Arguments</h2>" in html
    assert "<h3>metrics</h3>" in html
    assert html.index(">reward<") < html.index(">failed<")
    assert "<li>up to step 200</li>" in client.get("/runs/checkpoints/overview").text
    empty = client.get("/runs/nothing yet/overview").text
    assert "No metrics were logged." in empty
    assert "Arguments</h2>" not in empty


def test_a_rollout_shows_its_fate_and_notes_and_no_metadata_twice(client: TestClient, db: Path) -> None:
    first, second = load_run("held out", db)["id"]
    html = flat(client.get(f"/runs/held out/rollouts/{first}").text)
    assert re.search(r"<dt>staleness</dt><dd[^>]*>3 versions<", html)
    assert ">dropped: stale</span>" in re.sub(r"<svg.*?</svg>", "", html)
    assert re.search(r"<dt><bdi>judge</bdi></dt><dd><bdi>&lt;i&gt;right&lt;/i&gt;</bdi></dd>", html)
    assert client.get(f"/runs/held out/rollouts/{first}/text/metadata").text == '{\n  "seed": 7\n}'
    assert '"step_rewards"' in client.get(f"/runs/held out/rollouts/{first}/text/raw").text
    html = client.get(f"/runs/held out/rollouts/{second}").text
    assert "<summary>Metadata</summary>" not in html
    assert not re.search(r"staleness|dropped|policy step|step 0|advantage", html)


def test_metadata_of_another_shape_is_kept_in_sight(client: TestClient, tmp_path: Path) -> None:
    odd = {"staleness": "much", "dropped": ["a"], "error": "its own", "turns": 9, "step_rewards": "none", "tags": "b"}
    with start_run(db=tmp_path / "b.db") as run, run.rollout(QUESTION, metadata=odd) as row:
        row.turn("2")
    with dashboard(tmp_path / "b.db") as alone:
        shown = alone.get("/runs/latest/rollouts/1/text/metadata").json()
    assert shown == odd


@pytest.mark.exhaustive
def test_what_says_nothing_of_an_evaluation_is_not_seen(page: Page, db: Path) -> None:
    with BackgroundServer(db) as server:
        page.goto(f"{server.url}/runs/held out")
        expect(page.get_by_role("columnheader", name="Reward")).to_be_visible()
        for name in ("Adv.", "Step"):
            expect(page.get_by_role("columnheader", name=name)).to_be_hidden()
        expect(page.locator("input[name=step_min]")).to_have_count(0)
        page.goto(f"{server.url}/runs/held out?step_min=0")
        expect(page.locator("input[name=step_min]")).to_have_value("0")  # or the next click would lose it
        page.goto(f"{server.url}/runs/checkpoints")
        expect(page.get_by_role("columnheader", name="Step")).to_be_visible()
        rollout = f"/runs/held out/rollouts/{load_run('held out', db)['id'][0]}"
        looked_at = ("", "/runs/held out", "/runs/held out/overview", rollout)
        check_looks(page, [server.url + address for address in looked_at], widths=(1440,))
