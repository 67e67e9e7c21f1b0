"""Pages that list rollouts, empty: the run goes on, it is over, or a filter keeps them away; and what to do then."""

import re
import time
from html import unescape
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from logs_ui.recorder.storage.database import disposed, writing_engine
from logs_ui.recorder.vocabulary import RunState
from tests.support.dashboard import dashboard
from tests.support.factory import insert_run, make_run

PAGES = {"overview": "/overview", "why": "/why", "rollouts": "", "pivot": "?view=pivot", "groups": "/groups"}
PAGES |= {tab: f"/why/{tab}" for tab in ("tasks", "actions", "rewards", "trained")}


def fill(engine: Engine) -> None:
    make_run(engine, uid="full", steps=2, state=RunState.FINISHED)
    runs = {
        "live": {"heartbeat": time.time_ns() // 1000 + 10**12, "state": RunState.RUNNING},
        "crashed": {"heartbeat": 1, "state": RunState.RUNNING},
        "over": {"heartbeat": 1, "finished": 2, "state": RunState.FINISHED},
        "failed": {"heartbeat": 1, "finished": 2, "state": RunState.FAILED, "error": "OutOfMemoryError: <b>CUDA</b>"},
    }
    with engine.begin() as db:
        for uid, values in runs.items():
            insert_run(db, {"uid": uid, "name": uid, "created": 1, **values})


def said(client: TestClient, address: str) -> tuple[str, str]:
    html = client.get(address).text
    main = html[html.find("<main") : html.find("</main>")]
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", main)).split()), main


@pytest.mark.parametrize("page", PAGES)
def test_a_run_that_goes_on_says_when_the_first_ones_come(client: TestClient, page: str) -> None:
    text, _ = said(client, f"/runs/live{PAGES[page]}")
    assert re.search(r"No (rollouts|groups) yet|No rollout has ended yet", text)
    assert re.search(r"record\(rollout_func\)|This page checks every", text), "the next step"


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(
    ("run", "why"), [("over", "ended"), ("crashed", "crashed"), ("failed", "OutOfMemoryError: <b>CUDA</b>")]
)
def test_a_run_that_is_over_promises_nothing(client: TestClient, page: str, run: str, why: str) -> None:
    text, main = said(client, f"/runs/{run}{PAGES[page]}")
    assert " yet" not in text.replace("No metrics have been logged yet", "")
    assert why in text or (page == "why" and "nothing to diagnose" in text)
    assert f'href="/runs/{run}/overview"' in main or page == "overview", "the next step"
    assert "<b>CUDA" not in main


@pytest.mark.parametrize("page", ["", "?view=pivot", "/groups"])
@pytest.mark.parametrize("run", ["full", "live", "over"])
def test_what_a_filter_keeps_away_is_one_click_away(client: TestClient, page: str, run: str) -> None:
    joined = "&" if "?" in page else "?"
    text, main = said(client, f"/runs/{run}{page}{joined}where=reward>99")
    if run == "full":
        assert re.search("No (rollouts|groups) match", text)
        assert "remove reward above 99" in text
    else:
        assert ("yet" in text) == (run == "live")
        assert "Clear the filter" in text
    assert re.search(rf'href="/runs/{run}(/groups)?(\?view=pivot)?"', main)


def test_the_comparison_names_the_run_without_rollouts(client: TestClient) -> None:
    text, _ = said(client, "/compare?run=full&run=over&run=live")
    assert "B ended without any rollout: its overview" in text
    assert "C has no rollouts yet; load the page again" in text
    assert "no task in common" not in text, "they have no task at all"
    assert " yet" not in said(client, "/compare?run=over&run=failed")[0]


def test_an_error_that_is_no_filters_offers_to_clear_no_filter(client: TestClient) -> None:
    text, _ = said(client, "/runs/full/overview?mode=eval")
    assert "no rollouts of eval: there are train shell-agent" in text
    assert "Clear the filter" not in text
    assert "Open the page without parameters" in text
    assert "choose from , " not in client.get("/runs/full/why/tasks?label=xyzzy").text


def test_two_rollouts_without_messages_are_compared(tmp_path: Path) -> None:
    with disposed(writing_engine(tmp_path / "a.db")) as engine:
        make_run(engine, uid="bare", steps=1)
        with engine.begin() as db:
            db.exec_driver_sql("DELETE FROM rollout_payload")
    with dashboard(tmp_path / "a.db") as client:
        assert client.get("/runs/bare/compare?a=1&b=2").status_code == 200
