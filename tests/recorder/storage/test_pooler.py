"""PostgreSQL behind PgBouncer: recorded, browsed, searched and exported through a pooler, in each of its modes."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest
from sqlalchemy import URL, create_engine, text
from sqlalchemy.pool import NullPool
from starlette.testclient import TestClient

from logs_ui.app.main import create_app
from logs_ui.recorder import export_run, flush, load_run, start_run
from logs_ui.recorder.errors import RefusedDatabaseError
from logs_ui.recorder.queries.notebook import Notebook, Subject
from logs_ui.recorder.queries.search.index import SearchIndex
from logs_ui.recorder.storage.address import as_text
from logs_ui.recorder.storage.database import disposed, reading_engine, refuse_hopeless, writing_engine
from tests.support.factory import make_run_at
from tests.support.ports import free_port
from tests.support.postgres import drop_database, make_database
from tests.support.site import pages

MADE = "made"
PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")


@contextmanager
def pooled(url: URL, mode: str, *, connections: int = 3) -> Iterator[URL]:
    """The URL through a PgBouncer in this `pool_mode`, which has so many connections to the server at most."""
    if PGBOUNCER is None:
        pytest.skip("PgBouncer is not installed (Debian: apt install pgbouncer)")
    host, port = str(url.query.get("host", url.host)), free_port()
    with tempfile.TemporaryDirectory(prefix="logs-ui-pooler-") as folder:
        Path(folder).chmod(0o755)
        ini = Path(folder, "pgbouncer.ini")
        ini.write_text(
            f"""
[databases]
* = host={host} port={url.port or 5432} user={url.username} {f"password={url.password}" if url.password else ""}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {connections}
"""
        )
        process = subprocess.Popen([PGBOUNCER, *_as(host), str(ini)], stderr=subprocess.PIPE, text=True)
        try:
            _wait_for(port, process)
            yield url.set(host="127.0.0.1", port=port, query={})
        finally:
            process.kill()
            process.communicate()


def _as(host: str) -> tuple[str, ...]:
    """Return the option that names another user if this one is root, whom PgBouncer refuses: the owner of the server's
    socket, which nobody else may open.
    """
    if os.geteuid() != 0:
        return ()
    return "-u", Path(host).owner() if host.startswith("/") else "nobody"


def _wait_for(port: int, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.01)
        else:
            return


@pytest.fixture(scope="module")
def url() -> Iterator[URL]:
    """Of the server itself, with a run in it."""
    url = make_database()
    make_run_at(url, uid=MADE, steps=2)
    yield url
    drop_database(url)


@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_all_that_goes_without_a_pooler_goes_through_one(
    url: URL, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGS_UI_RUN", mode)
    with pooled(url, mode, connections=30 if mode == "session" else 2) as through:
        db = as_text(through)
        with start_run(db=db) as run:
            for reward in (0.0, 1.0):
                with run.rollout(f"What is {mode}?") as row:
                    row.turn("a pool", reward=reward)
                    row.score(reward)
            run.log(1, {"loss": 0.5})
        assert flush()
        Notebook(through).note(Subject(MADE), "noted")
        with disposed(reading_engine(through)) as reader:
            assert SearchIndex(through, reader.begin).fill()
        for uid in (mode, MADE):
            pd.testing.assert_frame_equal(load_run(uid, db=db), load_run(uid, db=as_text(url)))
        assert load_run(mode, db=db, where=f'"what is {mode}"')["reward"].tolist() == [0.0, 1.0]
        assert export_run(MADE, "parquet", tmp_path / "a.parquet", db) == len(load_run(MADE, db=db)) > 0
        of_page = pages(through, MADE)
        with TestClient(create_app(through), base_url="http://127.0.0.1") as client:
            for name in ("runs", "overview", "rollouts-searched", "pivot", "groups", "rollout", "why"):
                assert client.get(of_page[name]).status_code == 200, name


def test_how_long_a_recorder_waits_for_a_lock_stays_its_own(url: URL) -> None:
    shown = text("SHOW lock_timeout")
    with pooled(url, "transaction", connections=1) as through:
        refuse_hopeless(through)
        with disposed(writing_engine(through, 7)) as engine:
            other = create_engine(through, isolation_level="AUTOCOMMIT", poolclass=NullPool)
            for _ in range(2):
                with engine.begin() as connection:
                    assert connection.scalar(shown) == "7s"
                with other.connect() as connection:
                    assert connection.scalar(shown) == "0"


def test_a_pooler_without_transactions_is_refused(url: URL) -> None:
    with (
        pooled(url, "statement") as through,
        pytest.raises(RefusedDatabaseError, match="set its pool_mode to transaction or session"),
    ):
        refuse_hopeless(through)


def test_parameters_that_a_pooler_does_not_take_are_refused(url: URL) -> None:
    with (
        pooled(url, "transaction") as through,
        pytest.raises(RefusedDatabaseError, match=r"leave them out \(what `options` would set can be the role's"),
    ):
        refuse_hopeless(through.update_query_dict({"options": "-csearch_path=public"}))
