"""Runs belong to projects: said when they are recorded, and the list, pandas and files are narrowed by it."""

import html
import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from logs_ui.app.main import create_app
from logs_ui.recorder import flush, load_run, load_runs, queries, start_run
from logs_ui.recorder.queries import RunFilter
from logs_ui.recorder.storage.address import Address, as_text
from logs_ui.recorder.storage.database import reading_engine
from logs_ui.recorder.vocabulary import TAG_LENGTH
from tests.support.dashboard import flat
from tests.support.factory import make_run_at

HOSTILE = '"><img src=x onerror=alert(1)>'


@pytest.fixture
def db(address: Address) -> Address:
    for uid, project in (("a", "Vision 2"), ("b", "Vision 2"), ("c", "maze"), ("d", None), ("e", HOSTILE)):
        make_run_at(address, uid=uid, name=f"run {uid}", steps=1, groups_per_step=1, project=project)
    return address


def listed(client: TestClient, query: str) -> set[str]:
    return set(re.findall(r'class="row-link" href="/runs/(\w+)/overview"', flat(client.get(f"/?{query}").text)))


def test_a_run_belongs_to_what_its_recorder_or_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = tmp_path / "runs.db"
    for given, variable in (
        (None, None),
        ("  vision\n 2 ", "other"),
        (None, "from outside"),
        ("x" * 300, None),
        ("", ""),
    ):
        if variable is None:
            monkeypatch.delenv("LOGS_UI_PROJECT", raising=False)
        else:
            monkeypatch.setenv("LOGS_UI_PROJECT", variable)
        start_run(project=given, db=db).finish()
    flush()
    found = load_runs(db=db).sort_values("created")["project"].fillna("")
    assert found.tolist() == ["", "vision 2", "from outside", "x" * TAG_LENGTH, ""]


def test_the_list_of_runs_is_narrowed_to_a_project(db: Address) -> None:
    with TestClient(create_app(db), base_url="http://127.0.0.1") as client:
        page = client.get("/").text
        assert "<img src=x" not in page
        links = {html.unescape(it) for it in re.findall(r'class="project" href="([^"]+)"', page)}
        assert len(links) == 3
        assert listed(client, "project=Vision+2") == {"a", "b"}
        assert listed(client, "project=Vision+2&project=maze") == {"a", "b", "c"}
        assert listed(client, "q=project:vision") == {"a", "b"}
        assert listed(client, "q=PROJECT:maze") == {"c"}
        assert listed(client, "q=maze") == {"c"}  # a word is looked for there, too
        assert listed(client, "project=vision") == set()
        chosen = client.get("/?project=maze&q=run").text
        assert "Remove the </span>project" in chosen
        assert '<input type="hidden" form="filters" name="project" value="maze">' in chosen
        assert re.search(r'<dt>project</dt><dd><a href="/\?project=maze">', flat(client.get("/runs/c/overview").text))
        assert "<dt>project</dt>" not in client.get("/runs/d/overview").text
        live = html.unescape(re.findall(r'hx-get="(/live[^"]+)"', chosen)[0])
        assert "project=maze" in live


def test_counts_are_of_all_projects_whatever_is_wanted_and_pandas_tells_each_runs(db: Address) -> None:
    engine = reading_engine(db)
    counts = queries.count_runs(engine, RunFilter(projects=("maze",)))
    engine.dispose()
    assert counts.projects == {"Vision 2": 2, HOSTILE: 1, "maze": 1}
    assert (counts.all, counts.matching) == (5, 1)
    runs = load_runs(db=as_text(db)).set_index("run")
    assert runs["project"].dropna().to_dict() == {"a": "Vision 2", "b": "Vision 2", "c": "maze", "e": HOSTILE}
    assert set(load_run("c", db=as_text(db))["project"]) == {"maze"}
    assert load_run("d", db=as_text(db))["project"].isna().all()
