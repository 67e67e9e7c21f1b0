"""Views of a run's table that were saved under a name: for everybody, in either database."""

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL
from starlette.testclient import TestClient

from logs_ui.recorder.storage.sidecars import NOTES
from logs_ui.recorder.vocabulary import RunState
from tests.support.dashboard import dashboard, flat
from tests.support.factory import make_run_at

RUN = "main-run-1234"
OURS = {"Origin": "http://127.0.0.1"}
HOSTILE = '<b>"truncated" & \u202eslow'


@pytest.fixture
def client(address: Path | URL) -> Iterator[TestClient]:
    make_run_at(address, uid=RUN, steps=2, state=RunState.FINISHED)
    with dashboard(address, follow_redirects=False) as client:
        yield client


def save(client: TestClient, query: str, **form: str) -> str:
    answer = client.post(f"/runs/{RUN}/views", data={"query": query, **form}, headers=OURS)
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


def listed(client: TestClient, address: str = f"/runs/{RUN}") -> dict[str, str]:
    """Names of the saved views, as markup, and their addresses."""
    menu = flat(client.get(address, follow_redirects=True).text).partition('id="views"')[2].partition("</details>")[0]
    return {name: link for link, name in re.findall(r'<li><a href="([^"]+)"[^>]*><bdi>(.*?)</bdi>', menu)}


@pytest.mark.exhaustive
def test_a_view_is_saved_opened_replaced_and_deleted(client: TestClient) -> None:
    assert listed(client) == {}
    query = "where=reward%3C0.2+stop%3Alength&sort=lowest-reward&cols=reward,task"
    opened = save(client, query, name="  short\n view ")
    assert opened == f"/runs/{RUN}?where=stop:length%20reward%3C0.2&sort=lowest-reward&cols=reward,task"
    assert client.get(opened).status_code == 200
    save(client, "view=pivot&rows=status", name=HOSTILE)
    names = list(listed(client))
    assert names[1] == "short view"
    assert names[0].startswith("&lt;b&gt;&#34;truncated&#34; &amp; <span")
    assert listed(client)["short view"].replace("&amp;", "&") == opened
    assert re.search(r'aria-current="true"><bdi>short view', flat(client.get(opened).text))
    save(client, "where=status:error", name="short view")
    assert "choose=1" in listed(client)["short view"]  # the default columns, whatever this browser remembers
    save(client, "", delete="short view")
    save(client, "", delete=HOSTILE)
    assert listed(client) == {}


def test_what_is_no_view_is_not_saved(client: TestClient) -> None:
    for query in ("where=nothing%3A1", "where=task%3Anobody", "cols=nothing", "href=javascript:x", "view=pivot&of=lag"):
        answer = client.post(f"/runs/{RUN}/views", data={"query": query, "name": "x"}, headers=OURS)
        assert answer.status_code == 422, query
    save(client, "", name="   ")
    assert listed(client) == {}


def with_a_view(folder: Path) -> Path:
    """A database of one run, with one saved view."""
    path = folder / "runs.db"
    make_run_at(path, uid=RUN, steps=1, state=RunState.FINISHED)
    with dashboard(path, follow_redirects=False) as client:
        save(client, "where=stop:length", name="cut off")
    return path


def test_a_read_only_dashboard_lists_views_and_saves_none(tmp_path: Path) -> None:
    path = with_a_view(tmp_path)
    with dashboard(path, read_only=True) as client:
        assert list(listed(client)) == ["cut off"]
        assert 'name="name"' not in flat(client.get(f"/runs/{RUN}").text)
        assert client.post(f"/runs/{RUN}/views", data={"query": "", "name": "x"}, headers=OURS).status_code == 403


def test_notes_of_an_earlier_version_have_no_views_yet(tmp_path: Path) -> None:
    path = with_a_view(tmp_path)
    with sqlite3.connect(NOTES.path(path)) as notes:
        notes.execute("DROP TABLE saved_view")
    notes.close()
    with dashboard(path, follow_redirects=False) as client:
        assert listed(client) == {}
        save(client, "where=stop:length", name="cut off")
        assert list(listed(client)) == ["cut off"]
