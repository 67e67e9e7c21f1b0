"""The dashboard on a database of an earlier commit, which lacks columns and tables of today."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from sqlalchemy import select, update
from sqlmodel import col

from logs_ui.app.web.open_database import Source
from logs_ui.recorder.queries.search.index import catch_up
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.database import disposed, reading_engine, writing_engine
from logs_ui.recorder.storage.tables import Run
from logs_ui.recorder.vocabulary import RunState
from tests.support.changes import wait_until
from tests.support.dashboard import dashboard
from tests.support.earlier import LATER_TABLES, column, emptied, later_columns, taken_back
from tests.support.exhaustive import cases
from tests.support.factory import make_run
from tests.support.site import pages

FACTS = ("evaluation_row.tool_calls", "evaluation_row.compression", "evaluation_row.attributes", "run.diagnosis")


def filled(address: Address) -> None:
    with disposed(writing_engine(address)) as engine:
        for seed, uid in enumerate(("main-run-1234", "other-run-5678")):
            make_run(engine, uid=uid, steps=3, seed=seed, state=RunState.FINISHED)


def answers(address: Address, of: Mapping[str, str]) -> dict[str, tuple[int, str]]:
    """Return status and text of each page, without what differs from one answer to the next, such as which of a step's
    first rollouts PostgreSQL reads.
    """
    with dashboard(address) as client:
        found = {name: client.get(page) for name, page in of.items()}
    varies = {"runs-compared": r"nonce[-=]\S+|\d"}
    return {
        name: (it.status_code, re.sub(varies.get(name, r"nonce[-=]\S+|\d+ ms"), "", it.text))
        for name, it in found.items()
    }


@pytest.mark.parametrize("lost", cases(["all", "a few"], 1))
def test_every_page_shows_what_it_lacks_as_not_recorded(address: Address, lost: str) -> None:
    filled(address)
    columns = later_columns() if lost == "all" else [column(name) for name in FACTS]
    tables = LATER_TABLES if lost == "all" else ()
    of = pages(address, "main-run-1234")
    emptied(address, columns, tables)
    with disposed(reading_engine(address)) as engine:
        catch_up(address, engine, 1, lambda *_: None)
    not_recorded = answers(address, of)
    taken_back(address, columns, tables)
    assert answers(address, of) == not_recorded
    assert {status for status, _ in not_recorded.values()} == {200}


def test_an_open_dashboard_shows_what_was_added_meanwhile(address: Address) -> None:
    filled(address)
    taken_back(address, [column("run.project")])
    source, projects = Source(address), select(col(Run.project)).where(col(Run.id) == 1)
    with source.reading() as before:
        with disposed(writing_engine(address)) as engine, engine.begin() as connection:
            connection.execute(update(Run).values(project="apples"))
        assert before.scalar(projects) is None  # it was opened without
        with source.reading() as after:
            assert after.scalar(projects) == "apples"
    source.close()


def test_texts_of_one_that_lacks_a_column_are_indexed_while_pages_are_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path / "a.db")
    taken_back(tmp_path / "a.db", [column("run.project")])
    with dashboard(tmp_path / "a.db") as client:
        wait_until(lambda: (tmp_path / "a.search.db").exists() and client.get("/").status_code == 200)
        assert {client.get("/").status_code for _ in range(20)} == {200}
    assert "cannot be indexed" not in caplog.text
