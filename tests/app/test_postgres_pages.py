"""The dashboard and the command line on a PostgreSQL database: the same as on SQLite, and no password shown."""

import html
import re
import shlex
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import markupsafe
import pandas as pd
import pytest
from sqlalchemy import URL, create_engine, text
from sqlalchemy.pool import NullPool
from starlette.testclient import TestClient

from logs_ui.app.commands.cli import serve
from logs_ui.app.main import create_app
from logs_ui.recorder import load_run
from logs_ui.recorder.errors import DatabaseError
from logs_ui.recorder.queries.notebook import Notebook, Subject
from logs_ui.recorder.queries.search.index import SearchIndex
from logs_ui.recorder.storage.address import Address, as_text, without_password
from logs_ui.recorder.storage.database import disposed, reading_engine
from logs_ui.recorder.vocabulary import RunState
from tests.support.changes import wait_until
from tests.support.command import serving, typed
from tests.support.exhaustive import cases
from tests.support.factory import make_run_at
from tests.support.postgres import drop_database, make_database, server
from tests.support.site import pages

pytestmark = pytest.mark.exhaustive  # by default, storage and delivery alone are tried on PostgreSQL

SECRET = "s3cret-p@ss/word"  # noqa: S105 - nobody's
OURS = {"Sec-Fetch-Site": "same-origin"}
MAIN, LIVE = "main-x7kq", "live-m4tz"


class Places(NamedTuple):
    """The same in each."""

    file: Path
    server: URL


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    """The server's URL has a password, which it does not ask for."""
    both = Places(tmp_path_factory.mktemp("pages") / "runs.db", make_database().set(password=SECRET))
    for address in both:
        _fill(address)
    yield both
    drop_database(both.server)


def _fill(address: Address) -> None:
    make_run_at(address, uid=MAIN, name="shell-agent lr=1e-6", steps=20, seed=1, state=RunState.FINISHED)
    make_run_at(address, uid="failed-p2vd", name="shell-agent lr=1e-4", steps=5, seed=2, state=RunState.FAILED)
    make_run_at(address, uid=LIVE, name="resumed", steps=6, seed=3, heartbeat=time.time_ns() // 1000, parent=MAIN)
    with disposed(reading_engine(address)) as engine:
        SearchIndex(address, engine.begin).fill()
    book = Notebook(address)
    book.star(Subject(MAIN), starred=True)
    book.tag(Subject(MAIN), "baseline")
    book.note(Subject(MAIN, f"{MAIN}/train/1/0/0"), "the hostile one")


@pytest.fixture
def client(places: Places) -> Iterator[TestClient]:
    with _client(places.server) as client:
        yield client


def administer(*statements: str) -> None:
    engine = create_engine(server(), isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection:
        for statement in statements:
            connection.execute(text(statement))


def _client(address: Address, **options: Any) -> TestClient:
    app = create_app(address, **options)
    return TestClient(app, base_url="http://127.0.0.1", headers=OURS, follow_redirects=False)


def test_every_page_says_what_it_says_of_a_file_and_never_the_password(places: Places) -> None:
    said: list[dict[str, str]] = []
    for address in places:
        with _client(address) as client:
            answers = {name: client.get(page, follow_redirects=True) for name, page in pages(places.file, MAIN).items()}
        assert {name: it.status_code for name, it in answers.items() if it.status_code != 200} == {}
        assert [name for name, it in answers.items() if SECRET in html.unescape(it.text) or "s3cret" in it.text] == []
        said.append({name: _comparable(it.text, address) for name, it in answers.items()})
    for name, page in said[0].items():
        assert said[1][name] == page, name


def _comparable(page: str, address: Address) -> str:
    """Without where it is kept, how long it took or is ago, and the last digit of what is added up elsewhere."""
    for name in (without_password(address), str(address)):
        command = markupsafe.escape(f"--db {shlex.quote(name)}")
        page = page.replace(command, "--db DB").replace(html.escape(name), "DB")
    page = re.sub(r"DB, schema notes|[^\s\"<>]*runs\.notes\.db", "NOTES", page)
    page = re.sub(r"<time[^>]*>[^<]*</time>|lasted\">[^<]*<|\d+[hms] \d+[ms]", "TIME", page)
    return re.sub(r"(\.\d{3})\d+", r"\1", page)


def test_a_line_for_pandas_has_no_password_and_says_so_by_working_without(places: Places, client: TestClient) -> None:
    page = html.unescape(client.get(f"/runs/{MAIN}?where=stop:length").text)
    (line,) = re.findall(r"df = (load_run\(.*\))</code>", page)
    assert "***" not in line
    frame = eval(line, {"load_run": load_run})  # noqa: S307 - as people would
    assert set(frame["stop_reason"]) == {"length"}


def test_a_server_that_goes_away_is_one_clear_line_and_the_pages_come_back(places: Places, client: TestClient) -> None:
    assert client.get("/").status_code == 200
    name = places.server.database
    administer(
        f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false",
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'",  # noqa: S608
    )
    try:
        for page in ("/", f"/runs/{MAIN}/overview"):
            answer = client.get(page)
            assert answer.status_code == 503
            said = html.unescape(answer.text)
            assert "cannot be reached or used now" in said
            assert "Try again" in said
            assert "s3cret" not in said
        kept = client.post(f"/runs/{MAIN}/rollouts/4/notes", data={"note": "typed"})
        assert kept.status_code == 503
    finally:
        administer(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true")
    assert client.get("/").status_code == 200
    assert client.get(f"/runs/{MAIN}/overview").status_code == 200


def test_commands_take_a_server_and_say_no_password(places: Places, tmp_path: Path) -> None:
    url = as_text(places.server)
    exported = typed("export", MAIN, "-o", tmp_path / "a.parquet", "--db", url)
    assert exported.returncode == 0
    assert len(pd.read_parquet(tmp_path / "a.parquet")) == 20 * 12 + 16
    diagnosed = typed("diagnose", MAIN, "--save", "--max-reward", "1.3", LOGS_UI_DB=url)
    assert diagnosed.returncode == 3  # there are findings
    said = diagnosed.stdout + diagnosed.stderr
    assert f"{places.server.database}?" in said
    assert ", schema notes" in said
    shown = re.search(r"--db '?(postgresql://[^\s']*)", said)
    assert shown is None or "***" not in shown[1]
    missing = typed("export", "nobody", "-o", tmp_path / "b.csv", LOGS_UI_DB=url)
    assert (missing.returncode, "There is no run 'nobody'" in missing.stderr) == (1, True)
    for done in (exported, diagnosed, missing):
        assert "s3cret" not in done.stdout + done.stderr


@pytest.mark.exhaustive
def test_serving_a_server_that_is_away_waits_and_one_that_will_never_do_ends(places: Places) -> None:
    never = as_text(places.server.set(database="nowhere"))
    with pytest.raises(DatabaseError, match="create it with createdb"):
        serve(db=never, port=0)
    away = f"postgresql://ann:{SECRET.replace('@', '%40').replace('/', '%2F')}@127.0.0.1:1/runs"
    with serving(LOGS_UI_DB=away) as (address, said):
        assert "cannot be reached or used now" in said
        assert "The pages appear as soon as it can be reached." in said
        assert "s3cret" not in said
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(address)  # noqa: S310


# --- Read-only


@pytest.fixture(params=cases(["server", "file"], 1))
def shared(request: pytest.FixtureRequest, places: Places) -> Address:
    found: Address = getattr(places, request.param)
    return found


def test_a_read_only_dashboard_offers_and_does_nothing_that_writes(shared: Address) -> None:
    with _client(shared, read_only=True) as client:
        for page in pages(shared, MAIN).values():
            said = client.get(page, follow_redirects=True).text
            forms = re.findall(r'formaction="([^"]*)"|(?:hx-post|method="post" action)="([^"]*)"', said)
            offered = [place for pair in forms for place in pair if place and "/exports" not in place]
            assert offered == [], page
            assert 'class="read-only quiet" title="This dashboard is read-only' in said, page
            assert "<dt><kbd>s</kbd></dt>" not in said, "what does not work is not offered"
            assert "<dt><kbd>e</kbd></dt>" not in said
        overview = client.get(f"/runs/{MAIN}/overview").text
        assert "This dashboard is read-only" in overview
        assert "baseline" in overview
        assert 'aria-label="Starred"' in overview
        row = next(
            int(it) for it in re.findall(r'<tr id="row-(\d+)"', client.get(f"/runs/{MAIN}?where=note:hostile").text)
        )
        assert "the hostile one" in client.get(f"/runs/{MAIN}/rollouts/{row}").text
        for place, sent in (
            (f"/runs/{MAIN}/notes", {"star": "0"}),
            (f"/runs/{MAIN}/rollouts/1/notes", {"note": "x"}),
            (f"/runs/{MAIN}/why/settings", {"steps": "3"}),
            ("/tags", {"run": MAIN, "label": "x"}),
        ):
            answer = client.post(place, data=sent)
            assert answer.status_code == 403
            assert "This dashboard is read-only" in answer.text
        exported = client.post(f"/runs/{MAIN}/exports", params={"format": "csv"})
        assert exported.status_code == 303
    writable = _client(shared).get(f"/runs/{MAIN}/overview").text
    assert "read-only" not in writable
    assert "<dt><kbd>s</kbd></dt>" in writable


def test_a_database_that_is_not_there_yet_is_not_called_read_only(tmp_path: Path) -> None:
    with _client(tmp_path / "none.db") as client:
        assert "read-only" not in client.get("/").text


def test_a_read_only_dashboard_writes_no_file(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    make_run_at(db, uid=MAIN, steps=1)
    with _client(db, read_only=True) as client:  # the thread that would index says why it cannot
        wait_until(lambda: "this dashboard is read-only" in client.get(f"/runs/{MAIN}?where=guess").text)
    assert {file.name for file in tmp_path.iterdir()} <= {"runs.db", "runs.db-wal", "runs.db-shm"}
