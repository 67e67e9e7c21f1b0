"""What people say of runs and rollouts is kept beside the recorder's database, found, exported, and never lost."""

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import select, update
from sqlmodel import col
from starlette.testclient import TestClient

from logs_ui.app.commands.serve import BackgroundServer
from logs_ui.app.main import create_app
from logs_ui.recorder import current_row, export_run, flush, load_run, queries, start_run
from logs_ui.recorder.errors import DatabaseError
from logs_ui.recorder.queries.notebook import NOTE_LENGTH, Notebook, Subject, noted, starred, tagged
from logs_ui.recorder.queries.notes import recorded_tags
from logs_ui.recorder.storage.database import disposed, reading_engine, writing_engine
from logs_ui.recorder.storage.sidecars import NOTES
from logs_ui.recorder.storage.tables import EvaluationRow
from logs_ui.recorder.vocabulary import RunState, Status
from tests.recorder.queries.query_plans import plans
from tests.support.axe import check_looks
from tests.support.dashboard import dashboard, flat
from tests.support.factory import make_run, make_run_at

RUN = "noted-run-1234"
OURS = {"Sec-Fetch-Site": "same-origin"}
HOSTILE = "<script>alert(1)</script>\u202e \x1b[31m"


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stock") / "runs.db"
    make_run_at(path, uid=RUN, name="a run", steps=3, state=RunState.FINISHED)
    return path


@pytest.fixture
def db(stock: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(stock, tmp_path))


@pytest.fixture
def client(db: Path) -> Iterator[TestClient]:
    with dashboard(db, headers=OURS, follow_redirects=False) as client:
        yield client


def subject(db: Path, row_id: int, run: str = RUN) -> Subject:
    with sqlite3.connect(db) as connection:
        (uid,) = connection.execute("select uid from evaluation_row where id = ?", [row_id]).fetchone()
    return Subject(run, uid)


def found(db: Path, condition: Any) -> list[int]:
    with disposed(reading_engine(db)) as engine, engine.connect() as connection:
        ids = connection.scalars(select(col(EvaluationRow.id)).where(condition).order_by(col(EvaluationRow.id))).all()
    return [row_id or 0 for row_id in ids]


def annotation(db: Path, row_id: int) -> queries.Annotation:
    with disposed(reading_engine(db)) as engine:
        run = queries.find_run(engine, "latest")
        return queries.annotation(engine, run, queries.rollout(engine, run.id or 0, row_id).row)


# --- Kept


def test_marks_lie_beside_the_database_which_stays_as_it_was_to_the_byte(db: Path) -> None:
    before = db.read_bytes()
    book = Notebook(db)
    book.star(subject(db, 1), starred=True)
    book.tag(subject(db, 1), "  cheats\n again ")
    book.note(subject(db, 2), "look at turn 3\n")
    assert NOTES.path(db) == db.with_name("runs.notes.db")
    assert book.place == str(NOTES.path(db))
    assert (annotation(db, 1).starred, annotation(db, 1).tags) == (True, ("cheats again",))
    assert annotation(db, 2).note == "look at turn 3"
    assert annotation(db, 2).author
    assert annotation(db, 3) == queries.NOTHING
    assert db.read_bytes() == before
    assert {path.name for path in db.parent.iterdir()} <= {"runs.db", "runs.notes.db", "runs.db-shm", "runs.db-wal"}


def test_they_survive_another_import_of_the_same_rollouts(db: Path) -> None:
    Notebook(db).star(subject(db, 5), starred=True)
    for name in ("runs.db", "runs.db-wal", "runs.db-shm"):
        db.with_name(name).unlink(missing_ok=True)
    with disposed(writing_engine(db)) as engine:
        make_run(engine, uid="another", steps=1)  # so that ids differ
        make_run(engine, uid=RUN, steps=3)
        run_id = queries.find_run(engine, RUN).id or 0
    assert found(db, starred(run_id)) == [5 + 12]


def test_writing_waits_for_another_who_writes(db: Path) -> None:
    book, it = Notebook(db), subject(db, 1)
    book.note(it, "first")
    other = sqlite3.connect(NOTES.path(db), isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    other.execute("update note set text = 'theirs'")
    release = threading.Timer(0.3, lambda: other.execute("COMMIT"))
    release.start()
    book.note(it, "last")
    release.join()
    other.close()
    assert annotation(db, 1).note == "last"


READ_ONLY = """
import os, re, sys
from pathlib import Path
from logs_ui.recorder import load_run
from logs_ui.recorder.queries.notebook import Notebook, Subject
os.environ["XDG_DATA_HOME"] = sys.argv[2]
from starlette.testclient import TestClient
from logs_ui.app.main import create_app
with TestClient(create_app(Path(sys.argv[4])), base_url="http://127.0.0.1") as client:
    client.get("/runs/latest/overview")
load_run(db=sys.argv[4])  # whatever is imported late
os.setuid(65534)
db = Path(sys.argv[1])
print(int(load_run(db=db).starred.sum()))
book = Notebook(db)
book.star(Subject("noted-run-1234", sys.argv[3]), starred=True)
print(int(load_run(db=db).starred.sum()))
print(book.place)
with TestClient(create_app(db), base_url="http://127.0.0.1") as client:
    html = client.get("/runs/latest/overview").text
    print(re.sub("<[^>]*>", "", re.findall("Stored in .*is not writable", html)[-1]))
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user who may not write")
def test_in_a_folder_that_is_read_only_now_what_was_written_stays_and_more_goes_elsewhere(db: Path) -> None:
    Notebook(db).star(subject(db, 1), starred=True)
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder, data = Path(name) / "runs", Path(name) / "data"
        folder.mkdir()
        data.mkdir()
        data.chmod(0o777)
        Path(name).chmod(0o755)
        for file in (db, NOTES.path(db)):
            shutil.copy(file, folder)
        folder.chmod(0o555)
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        given = [str(folder / "runs.db"), str(data), subject(db, 2).row, str(db)]
        done = subprocess.run([sys.executable, "-c", READ_ONLY, *given], capture_output=True, text=True, check=True)
        first, second, path, said = done.stdout.splitlines()
        assert said == f"Stored in {path}, because the database's folder is not writable"
        assert (first, second) == ("1", "2")
        assert Path(path).is_relative_to(data)
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_somebody_elses_file_of_that_name_stays_as_it_was(db: Path, client: TestClient) -> None:
    theirs = NOTES.path(db)
    with sqlite3.connect(theirs) as connection:
        connection.execute("create table poems (line)")
    before = theirs.read_bytes()
    with pytest.raises(DatabaseError, match=r"runs\.notes\.db is an SQLite database, but not one of logs-ui"):
        Notebook(db).star(subject(db, 1), starred=True)
    assert client.get(f"/runs/{RUN}").status_code == 200
    answer = client.post(f"/runs/{RUN}/rollouts/1/notes", data={"star": "1"})
    assert answer.status_code == 503
    assert "runs.notes.db" in answer.text
    assert theirs.read_bytes() == before


@pytest.mark.exhaustive
@pytest.mark.parametrize("broken", [b"", b"no database at all" * 400, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_file_that_cannot_be_read_costs_the_marks_and_no_page(
    db: Path, client: TestClient, broken: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    NOTES.path(db).write_bytes(broken)
    assert client.get(f"/runs/{RUN}").status_code == 200
    assert client.get(f"/runs/{RUN}/rollouts/1").status_code == 200
    assert len(load_run(RUN, db)) > 0
    assert ("runs.notes.db cannot be read" in caplog.text) == bool(broken)
    answer = client.post(f"/runs/{RUN}/rollouts/1/notes", data={"star": "1"})
    assert answer.status_code == (503 if broken else 303)


KILLED = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("pragma cache_size = 1")
connection.execute("begin immediate")
connection.execute("update note set text = 'half'")
for i in range(3000):
    connection.execute("insert into note values ('r', ?, ?, 'a', 1)", [str(i), "x" * 500])
os._exit(0)
"""


def test_what_a_killed_process_was_writing_is_undone_and_hides_nothing(db: Path) -> None:
    Notebook(db).note(subject(db, 1), "kept")
    subprocess.run([sys.executable, "-c", KILLED, NOTES.path(db)], check=True)
    assert NOTES.path(db).with_name("runs.notes.db-journal").stat().st_size > 0
    assert annotation(db, 1).note == "kept"


def test_nothing_is_written_through_a_reading_connection(db: Path) -> None:
    Notebook(db).star(subject(db, 1), starred=True)
    with disposed(reading_engine(db)) as engine, engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA query_only=0")
        with pytest.raises(Exception, match="readonly"):
            connection.exec_driver_sql("delete from notes.star")


# --- Found


def test_conditions_find_rows_of_one_run_by_star_note_and_tag(db: Path) -> None:
    make_run_at(db, uid="another", steps=1)  # its rows' uids differ only in the run
    book = Notebook(db)
    book.star(Subject("another", subject(db, 1).row), starred=True)
    book.star(subject(db, 1), starred=True)
    book.note(subject(db, 2), "Loses 100% of its TURNS")
    book.note(subject(db, 3), "fine")
    book.tag(subject(db, 4), "odd")
    assert found(db, starred(1)) == [1]
    assert found(db, noted(1)) == [2, 3]
    assert found(db, noted(1, "100% of its turns")) == [2]
    assert found(db, noted(1, "1%s")) == []
    assert found(db, tagged(1, "odd")) == [4]
    assert found(db, tagged(1, "od")) == []
    assert found(db, starred(2)) == []


def test_rows_are_found_through_their_marks_and_not_one_by_one(db: Path) -> None:
    Notebook(db).tag(subject(db, 1), "x")
    with disposed(reading_engine(db)) as engine, engine.connect() as connection:
        queries_of = [
            select(col(EvaluationRow.id)).where(col(EvaluationRow.run_id) == 1, condition).limit(50)
            for condition in (starred(1), noted(1, "text"), tagged(1, "x"))
        ]
        explained = plans(engine, lambda: [connection.execute(query).all() for query in queries_of])
    steps = re.findall("(?:SEARCH|SCAN) evaluation_row [^/]*", " / ".join(explained))
    assert len(steps) == 3
    assert all("rowid=?" in step for step in steps), explained


def test_what_the_rollout_function_says_becomes_columns(tmp_path: Path) -> None:
    db = tmp_path / "a.db"
    with start_run(db=db) as run:
        with run.rollout("a") as row:
            row.turn("x")
            current_row().tag("stuck", "long " * 60, "stuck")
            current_row().metric("depth", 3)
            current_row().metric("odd", float("nan"))
        with run.rollout("b") as row:
            row.turn("y")
    flush()
    Notebook(db).tag(subject(db, 1, run.id), "mine")
    frame = load_run(db=db)
    assert frame["tags"].tolist() == [["long " * 19 + "long", "mine", "stuck"], []]
    assert frame["metrics"].tolist() == [{"depth": 3.0, "odd": None}, None]
    assert found(db, tagged(1, "stuck")) == found(db, tagged(1, "mine")) == [1]
    said = annotation(db, 1)
    assert said.recorded == ("long " * 19 + "long", "stuck")
    assert said.all_tags == ("long " * 19 + "long", "mine", "stuck")
    with disposed(reading_engine(db)) as engine:
        assert recorded_tags(engine, 1) == ["long " * 19 + "long", "stuck"]
        assert queries.known_tags(engine, 1) == ["long " * 19 + "long", "mine", "stuck"]


def test_what_edit_makes_of_tags_and_metrics_costs_no_row(tmp_path: Path) -> None:
    from logs_ui.recorder import labels

    strange = {"tags": ["ok", 3, None, " "], "metrics": {"a": "text", "b": True, "c": [1]}}
    assert labels.tags_in(strange) == ("ok",)
    assert labels.metrics_in(strange) == {"b": 1.0}
    for nothing in ({}, None, {"tags": "word", "metrics": [1]}):
        assert labels.tags_in(nothing) == ()
        assert labels.metrics_in(nothing) is None


def test_frames_and_files_hold_stars_and_notes(db: Path, tmp_path: Path) -> None:
    book = Notebook(db)
    book.star(subject(db, 2), starred=True)
    book.note(subject(db, 3), "=HYPERLINK()")
    frame = load_run(RUN, db).set_index("id")
    assert list(frame.index[frame["starred"]]) == [2]
    assert frame["note"].dropna().to_dict() == {3: "=HYPERLINK()"}
    export_run(RUN, "csv", tmp_path / "a.csv", db)
    assert "'=HYPERLINK()" in (tmp_path / "a.csv").read_text()


# --- Written by the pages


def test_a_form_is_written_and_leads_back_to_where_it_stood(client: TestClient, db: Path) -> None:
    address = f"/runs/{RUN}/rollouts/1/notes"
    came_from = f"http://127.0.0.1/runs/{RUN}?where=stop%3Alength&sort=oldest"
    answer = client.post(address, data={"star": "1"}, headers={"Referer": came_from})
    assert answer.status_code == 303
    assert answer.headers["location"] == f"/runs/{RUN}?where=stop%3Alength&sort=oldest#row-1"
    assert annotation(db, 1).starred
    for data in ({"tag": "new"}, {"tag": "other"}, {"note": "one\r\ntwo"}, {"star": "0"}, {"untag": "new"}):
        client.post(address, data=data)
    assert annotation(db, 1) == replace(annotation(db, 1), starred=False, tags=("other",), note="one\ntwo")
    client.post(address, data={"note": " \n"})
    assert annotation(db, 1) == queries.Annotation(tags=("other",))


def test_it_leads_nowhere_else(client: TestClient) -> None:
    for referer in ("", "http://evil.example/x", "http://127.0.0.1//evil.example/x", "nonsense"):
        answer = client.post(f"/runs/{RUN}/rollouts/1/notes", data={"star": "1"}, headers={"Referer": referer})
        assert answer.headers["location"] == f"/runs/{RUN}/rollouts/1#notes", referer


def test_a_run_is_marked_as_well(client: TestClient, db: Path) -> None:
    answer = client.post(f"/runs/{RUN}/notes", data={"star": "1", "tag": "baseline", "note": "learning rate too high"})
    assert answer.headers["location"] == f"/runs/{RUN}/overview#notes"
    with disposed(reading_engine(db)) as engine:
        said = queries.run_annotations(engine)[RUN]
        assert (said.starred, said.tags, said.note) == (True, ("baseline",), "learning rate too high")
        assert queries.annotated(engine, RUN) == queries.Annotated(0, 0, 0)  # of its rollouts


def test_the_pages_show_what_is_written_at_their_next_load(client: TestClient, db: Path) -> None:
    page = f"/runs/{RUN}/rollouts/1"
    assert 'aria-pressed="false"' in client.get(page).text
    Notebook(db).note(subject(db, 1), HOSTILE)  # another dashboard, and the first note of all
    Notebook(db).tag(subject(db, 1), HOSTILE)
    Notebook(db).star(subject(db, 1), starred=True)
    html = client.get(page).text
    assert 'aria-pressed="true"' in html
    assert "<script>alert" not in html
    table = flat(client.get(f"/runs/{RUN}?sort=oldest").text)
    assert "<script>alert" not in table
    assert "has a note" in table
    assert len(re.findall(r'class="star"[^>]*aria-pressed="true"', table)) == 1


def test_the_overview_counts_the_marked_rollouts_and_leads_to_them(client: TestClient, db: Path) -> None:
    assert "Its rollouts:" not in client.get(f"/runs/{RUN}/overview").text
    Notebook(db).star(subject(db, 1), starred=True)
    Notebook(db).star(subject(db, 2), starred=True)
    Notebook(db).note(subject(db, 2), "text")
    html = client.get(f"/runs/{RUN}/overview").text
    starred_page, noted_page = re.findall(r'<a href="([^"]+)">\d with a (?:star|note)</a>', html)
    assert re.findall(r'<tr id="row-(\d+)"', client.get(unescape(starred_page)).text) == ["2", "1"]
    assert re.findall(r'<tr id="row-(\d+)"', client.get(unescape(noted_page)).text) == ["2"]


def test_htmx_gets_the_part_that_was_written_to(client: TestClient) -> None:
    def post(target: str, **data: str) -> str:
        headers = {"HX-Request": "true", "HX-Request-Type": "partial", "HX-Target": f"div#{target}"}
        answer = client.post(f"/runs/{RUN}/rollouts/1/notes", data=data, headers=headers)
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "no-store"
        return answer.text.strip()

    assert post("star-1", star="1").startswith('<button id="star-1"')
    assert 'aria-pressed="true"' in post("star", star="1")
    assert ">odd<" in post("marks", tag="odd").replace("<bdi>", ">").replace("</bdi>", "<")
    assert "Saved" in post("note-said", note="text")
    assert "Note removed" in post("note-said", note="")


def test_what_is_too_long_or_nowhere_is_refused(client: TestClient, db: Path) -> None:
    too_long = client.post(f"/runs/{RUN}/rollouts/1/notes", data={"note": "x" * (NOTE_LENGTH + 1)})
    assert too_long.status_code == 413
    assert "at most 20,000 characters" in too_long.text
    assert client.post(f"/runs/{RUN}/rollouts/1/notes", content=b"x" * 10_000_000).status_code == 413
    assert client.post(f"/runs/{RUN}/rollouts/999999/notes", data={"star": "1"}).status_code == 404
    assert client.post("/runs/nobody/notes", data={"star": "1"}).status_code == 404
    assert not NOTES.path(db).exists()
    assert client.get(f"/runs/{RUN}/rollouts/1/notes").status_code == 405


# --- From our own pages only

FROM_ELSEWHERE: list[dict[str, str]] = [
    {},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://127.0.0.1"},
    {"Origin": "http://evil.example"},
    {"Origin": "http://127.0.0.1:8888"},
    {"Origin": "null"},
    {"Origin": ""},
]


def test_other_sites_cannot_write(db: Path) -> None:
    pages = (f"/runs/{RUN}/rollouts/1/notes", f"/runs/{RUN}/notes", "/nowhere")
    with dashboard(db) as client:
        for headers in FROM_ELSEWHERE:
            for address in pages:
                answer = client.post(address, data={"star": "1"}, headers=headers)
                assert (answer.status_code, "Only the dashboard" in answer.text) == (403, True), headers
                assert "content-security-policy" in answer.headers
            assert client.get(f"/runs/{RUN}", headers=headers).status_code == 200
    assert not NOTES.path(db).exists()


def test_our_own_pages_can_write(db: Path) -> None:
    ours = {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, {"Origin": "http://127.0.0.1:7070"}
    with TestClient(create_app(db), base_url="http://127.0.0.1:7070", follow_redirects=False) as client:
        for row, headers in enumerate(ours, 1):
            address = f"/runs/{RUN}/rollouts/{row}/notes"
            assert client.post(address, data={"star": "1"}, headers=headers).status_code == 303
    assert found(db, starred(1)) == [1, 2, 3]


def test_with_a_token_only_its_bearer_writes(db: Path) -> None:
    app = create_app(db, hosts=["*"], token="secret", port=7070)  # noqa: S106 - nobody's
    address = f"/runs/{RUN}/rollouts/1/notes"
    with TestClient(app, base_url="http://box:7070", follow_redirects=False) as client:
        assert client.post(address, data={"star": "1"}, headers=OURS).status_code == 401
        welcome = client.get("/?token=secret")
        assert "samesite=strict" in welcome.headers["set-cookie"].lower()
        assert client.post(address, data={"star": "1"}, headers={"Origin": "http://evil"}).status_code == 403
        # With the token in the address it becomes a cookie first: nothing is written on the way.
        client.cookies.clear()
        assert client.post(f"{address}?token=secret", data={"star": "1"}, headers=OURS).status_code == 303
        assert not NOTES.path(db).exists()
        assert client.post(address, data={"star": "1"}, headers={"Origin": "http://box:7070"}).status_code == 303
    assert annotation(db, 1).starred


# --- In a browser


@pytest.fixture
def url(db: Path) -> Iterator[str]:
    with BackgroundServer(db) as server:
        yield server.url


def open_page(page: Page, address: str) -> None:
    """Until its buttons are htmx's, which come to be so a moment after the page is there."""
    page.goto(address)
    page.locator(".star[data-htmx-powered]").first.wait_for(state="attached")


def test_keys_star_a_rollout_and_open_its_note(quiet_page: Page, url: str, db: Path) -> None:
    page = quiet_page
    open_page(page, f"{url}/runs/{RUN}/rollouts/1")
    page.keyboard.press("s")
    expect(page.locator("#star")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("e")
    expect(page.locator("#note")).to_be_focused()
    page.keyboard.type("sees the answer")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#note-said")).to_have_text("Saved")
    expect(page.locator("#note")).to_be_focused()
    page.keyboard.type(" twice")
    page.locator("#new-tag").click()  # leaving the field saves it
    page.keyboard.type("cheats")
    page.keyboard.press("Enter")
    expect(page.locator("#marks .tag.own")).to_have_text(["cheats"])
    expect(page.locator("#new-tag")).to_have_value("")
    expect(page.locator("#new-tag")).to_be_focused()
    expect(page.locator("#note")).to_have_value("sees the answer twice")
    page.keyboard.type("second")
    page.keyboard.press("Enter")
    expect(page.locator("#marks .tag.own")).to_have_count(2)
    page.get_by_role("button", name="Remove the tag cheats").click()
    expect(page.locator("#marks .tag.own")).to_have_text(["second"])
    page.reload()
    expect(page.locator("#note")).to_have_value("sees the answer twice")
    assert annotation(db, 1).tags == ("second",)
    assert annotation(db, 1).starred


@pytest.mark.exhaustive
def test_a_star_in_the_table_leaves_the_keyboard_where_it_was(quiet_page: Page, url: str, db: Path) -> None:
    page = quiet_page
    open_page(page, f"{url}/runs/{RUN}?sort=oldest")
    page.keyboard.press("j")
    page.keyboard.press("s")
    expect(page.locator("#star-1")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/rollouts/2**")
    assert found(db, starred(1)) == [1]
    page.go_back()
    page.locator("#star-3").click()
    expect(page.locator("#star-3")).to_have_attribute("aria-pressed", "true")
    page.locator("#star-3").click()
    expect(page.locator("#star-3")).to_have_attribute("aria-pressed", "false")
    assert found(db, starred(1)) == [1]


def test_a_note_that_could_not_be_saved_stays_and_is_saved_later(page: Page, url: str, db: Path) -> None:
    open_page(page, f"{url}/runs/{RUN}/rollouts/1")
    page.route("**/notes", lambda route: route.abort())
    page.locator("#note").fill("must not be lost")
    page.locator("#note").blur()
    expect(page.locator("#note-said")).to_contain_text("Not saved. Your text is still here")
    page.unroute("**/notes")
    NOTES.path(db).write_bytes(b"broken" * 1000)
    page.locator("#note").press("Control+Enter")
    expect(page.locator("#flash")).to_contain_text("runs.notes.db")
    expect(page.locator("#note-said")).to_contain_text("Not saved")
    expect(page.locator("#note")).to_have_value("must not be lost")
    NOTES.path(db).unlink()
    page.locator("#note").press("Control+Enter")
    expect(page.locator("#note-said")).to_have_text("Saved")
    assert annotation(db, 1).note == "must not be lost"


@pytest.mark.exhaustive
def test_a_note_is_saved_when_its_page_is_left_by_a_link(quiet_page: Page, url: str, db: Path) -> None:
    page = quiet_page
    open_page(page, f"{url}/runs/{RUN}/rollouts/5?sort=oldest")
    page.locator("#note").fill("on the way out")
    page.get_by_role("link", name="Next rollout").click()
    page.wait_for_url("**/rollouts/6**")
    open_page(page, f"{url}/runs/{RUN}/rollouts/5?sort=oldest")  # Back would lead out of both
    expect(page.locator("#note")).to_have_value("on the way out")
    assert annotation(db, 5).note == "on the way out"


@pytest.mark.exhaustive
def test_what_is_being_written_stays_while_the_page_follows_a_living_run(quiet_page: Page, url: str, db: Path) -> None:
    engine, now = writing_engine(db), time.time_ns() // 1000
    make_run(engine, uid="live", steps=2, created=now - 100_000_000, heartbeat=now + 600_000_000)
    of_live = col(EvaluationRow.run_id) == 2, col(EvaluationRow.status) == Status.RUNNING
    with engine.connect() as connection:
        row_id = connection.scalars(select(col(EvaluationRow.id)).where(*of_live)).first() or 0
    open_page(quiet_page, f"{url}/runs/live/rollouts/{row_id}")
    quiet_page.locator("#note").fill("half a sent")
    Notebook(db).note(subject(db, row_id, "live"), "another's")
    with engine.begin() as connection:
        turned = {"turns": 77, "changed": 1_000_000}
        connection.execute(update(EvaluationRow).where(col(EvaluationRow.id) == row_id).values(**turned))
    engine.dispose()
    expect(quiet_page.locator(".headline")).to_contain_text("77 turns")
    expect(quiet_page.locator("#note")).to_be_focused()
    expect(quiet_page.locator("#note")).to_have_value("half a sent")
    quiet_page.locator("#note").press("Control+Enter")
    expect(quiet_page.locator("#note-said")).to_have_text("Saved")
    assert annotation(db, row_id).note == "half a sent"


@pytest.mark.exhaustive
def test_marks_work_without_javascript(scriptless_page: Page, url: str, db: Path) -> None:
    page = scriptless_page
    page.goto(f"{url}/runs/{RUN}/rollouts/1")
    page.locator("#star").click()
    page.locator("#new-tag").fill("odd")
    page.locator("#new-tag").press("Enter")
    page.locator("#note").fill("by hand")
    page.get_by_role("button", name="Save the note").click()
    assert page.url == f"{url}/runs/{RUN}/rollouts/1#notes"
    said = annotation(db, 1)
    assert (said.starred, said.tags, said.note) == (True, ("odd",), "by hand")
    page.goto(f"{url}/runs/{RUN}?sort=oldest")
    page.locator("#star-2").click()
    assert page.url == f"{url}/runs/{RUN}?sort=oldest#row-2"
    assert found(db, starred(1)) == [1, 2]


@pytest.mark.exhaustive
def test_marked_pages_are_accessible(quiet_page: Page, url: str, db: Path) -> None:
    book = Notebook(db)
    for tag in ("odd", "a rather long tag of forty characters...", "three", "four"):
        book.tag(subject(db, 1), tag)
    book.note(subject(db, 1), "a note\nof two lines")
    book.star(subject(db, 1), starred=True)
    marked = ("/rollouts/1", "?sort=oldest", "/overview")
    check_looks(quiet_page, [f"{url}/runs/{RUN}{page}" for page in marked])
