"""PostgreSQL's own roles, by the statements of docs/cluster.md as they stand there."""

import re
import traceback
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from sqlalchemy import URL, create_engine, text
from sqlalchemy.pool import NullPool
from starlette.testclient import TestClient

from logs_ui.app.main import create_app
from logs_ui.recorder import diagnose, export_run, flush, load_run, load_runs, start_run
from logs_ui.recorder.errors import DatabaseError, RefusedDatabaseError
from logs_ui.recorder.queries.notebook import Notebook, Subject
from logs_ui.recorder.queries.search.index import SearchIndex
from logs_ui.recorder.storage import migrations
from logs_ui.recorder.storage.address import as_text
from logs_ui.recorder.storage.database import disposed, reading_engine, refuse_hopeless, writing_engine
from logs_ui.recorder.storage.migrations import Migration
from logs_ui.recorder.storage.postgres.rights import Rights, rights_of
from logs_ui.recorder.storage.spool_folder import spool_folder
from tests.support.command import typed
from tests.support.factory import make_run_at
from tests.support.postgres import drop_database, make_database, server
from tests.support.site import pages

_DOCS = Path(__file__).parents[3] / "docs" / "cluster.md"
_ROLES = ("logs_ui_reader", "logs_ui_editor", "logs_ui_recorder", "trainer", "ann", "guest")
_PASSWORD = "change-me"  # noqa: S105 - the docs'
ITS_OWNER = r"may not change tables\. Its owner can: logs-ui db migrate --db '?post"
OURS = {"Sec-Fetch-Site": "same-origin"}


class Users(NamedTuple):
    """The same database, as its owner and as three others see it."""

    owner: URL
    trainer: URL
    ann: URL
    guest: URL


@pytest.fixture(scope="module")
def users() -> Iterator[Users]:
    owner, suffix = make_database(), uuid.uuid4().hex[:8]
    blocks = re.findall(r"```sql\n(.*?)```", _DOCS.read_text(), re.DOTALL)
    statements = re.sub(rf"\b({'|'.join(_ROLES)})\b", rf"\1_{suffix}", "".join(blocks))
    _execute(owner, *filter(str.strip, statements.split(";")))
    make_run_at(owner, uid="made", steps=4)
    yield Users(owner, *(owner.set(username=f"{name}_{suffix}", password=_PASSWORD) for name in _ROLES[3:]))
    roles = [f"{name}_{suffix}" for name in reversed(_ROLES)]
    _execute(owner, *(f"DROP OWNED BY {role}" for role in roles), *(f"DROP ROLE {role}" for role in roles))
    drop_database(owner)


def _execute(url: URL, *statements: str) -> None:
    with create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool).connect() as connection:
        for statement in statements:
            connection.execute(text(statement))


def rights(url: URL) -> Rights:
    with disposed(reading_engine(url)) as engine:
        return rights_of(engine)


def test_each_role_may_what_the_docs_say(users: Users) -> None:
    assert rights(users.owner) == rights(users.ann) == Rights(notes=True, search=True)
    assert rights(users.guest) == rights(users.trainer) == Rights(notes=False, search=False)


def test_a_recorder_records_and_deletes_nothing(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGS_UI_RUN", "by-a-recorder")
    with start_run(db=as_text(users.trainer), project="maze") as run:
        with run.rollout("a") as row:
            row.turn("x")
            row.score(1.0)
        run.log(1, {"loss": 0.5})
    assert flush()
    assert load_run("by-a-recorder", db=as_text(users.guest))["reward"].tolist() == [1.0]
    assert diagnose("by-a-recorder", db=as_text(users.trainer)).run == "by-a-recorder"
    for table in ("run", "evaluation_row", "notes.note"):
        with pytest.raises(Exception, match="permission denied"):
            _execute(users.trainer, f"DELETE FROM {table}")  # noqa: S608


def test_who_may_not_record_is_refused_at_once_and_told_the_grant_that_helps(users: Users) -> None:
    said = rf"recorded into by {users.guest.username}, who lacks INSERT, UPDATE on image, and rights on \d+ more\. "
    with pytest.raises(RefusedDatabaseError, match=said) as refused:
        start_run(db=as_text(users.guest))
    assert "".join(traceback.format_exception(refused.value)).count("Traceback") == 1, "no chain"
    assert not spool_folder(users.guest).exists()
    grant = re.search(r"in psql: (GRANT .*;) \(docs", str(refused.value))
    assert grant
    _execute(users.owner, grant[1].replace("logs_ui_recorder", recorders(users)))
    refuse_hopeless(users.guest)
    _execute(users.owner, f"REVOKE {recorders(users)} FROM {users.guest.username}")


@pytest.mark.parametrize("right", ["INSERT ON run", "UPDATE ON evaluation_row", "USAGE ON SEQUENCE run_id_seq"])
def test_one_right_that_is_lacking_is_named(users: Users, right: str) -> None:
    _execute(users.owner, f"REVOKE {right} FROM {recorders(users)}")
    try:
        what, _, where = right.partition(" ON ")
        with pytest.raises(RefusedDatabaseError, match=rf"who lacks {what} on [\w.]*{where.split()[-1]}\. Name"):
            refuse_hopeless(users.trainer)
    finally:
        _execute(users.owner, f"GRANT {right} TO {recorders(users)}")
    refuse_hopeless(users.trainer)


def test_a_recorder_is_told_that_only_the_owner_can_migrate(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Migration(2, "nothing", lambda _: None, oldest_reader=1, oldest_writer=1)
    monkeypatch.setattr(migrations, "MIGRATIONS", (step,))
    with pytest.raises(RefusedDatabaseError, match=ITS_OWNER):
        refuse_hopeless(users.trainer)
    refuse_hopeless(users.owner)


def test_an_earlier_database_is_read_without_rights_and_a_recorder_is_told_who_can_complete_it(users: Users) -> None:
    _execute(users.owner, "ALTER TABLE run DROP COLUMN project")
    assert load_runs(as_text(users.ann)).project.isna().all()
    with pytest.raises(RefusedDatabaseError, match=ITS_OWNER):
        refuse_hopeless(users.trainer)
    assert "added: column run.project" in typed("db", "migrate", "--db", as_text(users.owner)).stdout
    refuse_hopeless(users.trainer)


def recorders(users: Users) -> str:
    """Their role, as this test run calls it."""
    return str(users.trainer.username).replace("trainer", "logs_ui_recorder")


@pytest.mark.parametrize("table", ["notes.star", "notes.tag", "notes.note", "search.texts"])
def test_a_recorder_does_not_read_what_people_wrote(users: Users, table: str) -> None:
    _execute(users.guest, f"SELECT count(*) FROM {table}")  # noqa: S608
    with pytest.raises(Exception, match="permission denied"):
        _execute(users.trainer, f"SELECT count(*) FROM {table}")  # noqa: S608


def test_an_editor_notes_and_fills_the_index_and_a_reader_finds_it(users: Users) -> None:
    with pytest.raises(DatabaseError, match="lacks the right, which its owner can grant") as refused:
        Notebook(users.guest).note(Subject("made"), "typed")
    assert "change-me" not in str(refused.value)
    Notebook(users.ann).note(Subject("made"), "by Ann")
    with disposed(reading_engine(users.ann)) as engine:
        assert SearchIndex(users.ann, engine.begin).fill()
    assert len(load_run("made", db=as_text(users.guest), where="video.mp4")) > 0


@pytest.mark.exhaustive
def test_a_reader_sees_every_page_and_is_told_what_cannot_be_changed(users: Users, tmp_path: Path) -> None:
    with TestClient(create_app(users.guest), base_url="http://127.0.0.1", headers=OURS) as client:
        for name, page in pages(users.guest, "made").items():
            answer = client.get(page)
            assert answer.status_code == 200, name
            assert not re.search(r'action="[^"]*/(notes|settings|tags)"', answer.text), name
        overview = client.get("/runs/made/overview").text
        assert "The database user may only read" in overview
        refused = client.post("/runs/made/notes", data={"note": "typed"})
        assert refused.status_code == 403
        assert "The database user may only read" in refused.text
    assert export_run("made", "csv", tmp_path / "a.csv", as_text(users.guest)) > 0


def test_who_may_not_vacuum_is_told_what_was_skipped(users: Users) -> None:
    done = typed("db", "vacuum", LOGS_UI_DB=as_text(users.ann))
    assert re.search(r"(\d+) of \1 tables were skipped \(image, .*\), because this user may not vac", done.stderr)
    assert done.stdout == ""
    _execute(users.owner, f"ALTER TABLE text OWNER TO {users.trainer.username}")
    try:
        done = typed("db", "vacuum", LOGS_UI_DB=as_text(users.trainer))  # who does not even see notes
    finally:
        _execute(users.owner, f"ALTER TABLE text OWNER TO {users.owner.username}")
    skipped, of = re.findall(r"\d+", done.stderr)[:2]
    assert done.stdout.endswith(" now.\n")
    assert int(skipped) == int(of) - 1


def test_an_owner_makes_the_tables_and_others_cannot(users: Users) -> None:
    empty = server().set(database=f"{users.owner.database}_empty")
    _execute(server(), f"CREATE DATABASE {empty.database}")
    other = empty.set(username=users.trainer.username, password=_PASSWORD)
    try:
        with pytest.raises(DatabaseError, match="lacks the right"):
            writing_engine(other)
        with pytest.raises(RefusedDatabaseError, match=r"may not create them\. Its owner can: logs-ui db migrate --db"):
            start_run(db=as_text(other))
        said = [typed("db", "migrate", LOGS_UI_DB=as_text(empty)).stdout for _ in range(2)]
        assert said[0].endswith(" had no tables of logs-ui. They are created: schema 1.\n")
        assert said[1].endswith(" is up to date: schema 1.\n")
        reading_engine(empty).dispose()
    finally:
        _execute(server(), f"DROP DATABASE {empty.database} WITH (FORCE)")
