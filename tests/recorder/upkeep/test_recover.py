"""`logs-ui db recover`: what is read of a damaged file, compared with the file before it was damaged."""

import os
import random
import shutil
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from starlette.testclient import TestClient

from logs_ui.app.main import create_app
from logs_ui.recorder import flush, load_run, start_run
from logs_ui.recorder.queries.notebook import Notebook, Subject
from logs_ui.recorder.storage.database import disposed, writing_engine
from logs_ui.recorder.storage.sidecars import NOTES
from logs_ui.recorder.upkeep import check, recover
from logs_ui.recorder.upkeep.recover import Recovered
from tests.support.changes import interrupt
from tests.support.command import typed
from tests.support.exhaustive import cases
from tests.support.factory import make_run
from tests.support.site import pages

PAGE = 4096
Key = tuple[str, str]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some nine hundred rollouts: two runs of a training, and one with tags, sources and a shared prompt."""
    path = tmp_path_factory.mktemp("whole") / "whole.db"
    with disposed(writing_engine(path)) as engine:
        for seed, uid in enumerate(("one", "two")):
            make_run(engine, uid=uid, steps=40, groups_per_step=2, state="finished", seed=seed)
    long = [{"role": "user", "content": "".join(map(chr, range(300, 1500)))}]
    with start_run("own", db=path) as run:
        for number in range(200):
            with run.rollout(long, step=number // 10) as row:
                row.turn(random.Random(number).randbytes(3_000).hex())  # a page: the table has several inner ones
                row.tag("a", str(number))
    assert flush()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


@pytest.fixture
def old(whole: Path, tmp_path: Path) -> Path:
    path = tmp_path / "old" / "old.db"
    path.parent.mkdir()
    shutil.copy(whole, path)
    return path


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "new.db"


def rollouts(path: Path) -> dict[Key, tuple[Any, ...]]:
    columns = "run.uid, it.uid, step, reward, content, tokens"
    tables = "evaluation_row AS it JOIN run ON run.id = run_id LEFT JOIN rollout_payload ON row_id = it.id"
    return {(run, uid): tuple(values) for run, uid, *values in rows(path, f"SELECT {columns} FROM {tables}")}  # noqa: S608


def figures(path: Path) -> dict[Key, tuple[Any, ...]]:
    return {key: values[:2] for key, values in rollouts(path).items()}


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def frame(path: Path) -> pd.DataFrame:
    """Run one without its rollouts' numbers, which are a database's own."""
    rows = load_run("one", path).drop(columns="id")
    return rows.sort_values(["mode", "step", "group", "generation"], ignore_index=True)


def pages_of(path: Path, name: str, kind: str) -> list[int]:
    """The numbers of the pages of a table or an index; `kind` is `leaf`, `internal` or `overflow`."""
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as connection:  # leaves its log alone
        query = "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = ?"
        return [int(page) for (page,) in connection.execute(query, [name, kind])]


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def zero(path: Path, name: str, kind: str) -> int:
    """Zeroes a page; returns how many rows or entries it had, by its own header."""
    numbers = pages_of(path, name, kind)
    start = (numbers[len(numbers) // 2] - 1) * PAGE
    cells = int.from_bytes(path.read_bytes()[start + 3 : start + 5], "big")
    overwrite(path, start, bytes(PAGE))
    return cells


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def of(found: list[Recovered], name: str) -> Recovered:
    return next(it for it in found if it.name == name)


def is_complete(found: list[Recovered]) -> bool:
    return all(it.is_sure and not it.missing for it in found)


def check_new(path: Path, few: int = 0) -> None:
    """Fails unless the database is whole and a run loads and its first few pages open; exhaustively, all of each."""
    assert [it for it in check(path, thorough=True) if not it.is_whole] == []
    runs = cases(sorted({run for run, _ in rollouts(path)}, reverse=True), 1)
    most = len(cases(range(99), few))
    addresses = [address for run in runs if most for address in [*pages(path, run).values()][:most]]
    for run in runs:
        load_run(run, path)
    if addresses:
        with TestClient(create_app(path, hosts=["*"])) as client:
            answers = {address: client.get(address).status_code for address in addresses}
        assert answers == dict.fromkeys(addresses, 200)


@pytest.mark.exhaustive
def test_a_whole_file_is_read_to_the_last_value(whole: Path, old: Path, new: Path) -> None:
    Notebook(old).note(Subject("one"), "the baseline")
    done = typed("db", "recover", old, new)
    assert (done.returncode, done.stderr) == (0, "")
    assert "evaluation_row   904 rows\n" in done.stdout
    assert done.stdout.endswith(f"Everything was written to {new}.\n")
    pd.testing.assert_frame_equal(frame(new), frame(whole))
    assert rollouts(new) == rollouts(whole)
    assert rows(NOTES.path(new), "SELECT text FROM note") == [("the baseline",)]
    for table in ("row_tag", "scalar", "run_source", "step_statistics", "step_details"):
        count = f"SELECT count(*) FROM {table}"  # noqa: S608
        assert rows(new, count) == rows(whole, count), table


def test_a_whole_file_may_have_empty_tables(old: Path, new: Path) -> None:
    old.unlink()
    with disposed(writing_engine(old)) as engine:
        make_run(engine, uid="one", steps=2, groups_per_step=1)
    change(old, "UPDATE run SET tokenizer = NULL")
    change(old, "DELETE FROM tokenizer")
    assert is_complete(recover(old, new))


def test_the_rows_of_a_lost_page_are_missing_and_no_others(whole: Path, old: Path, new: Path) -> None:
    lost = zero(old, "evaluation_row", "leaf")
    before = old.read_bytes()
    done = typed("db", "recover", old, new)
    assert done.returncode == 3
    assert f"evaluation_row   {904 - lost} rows; {lost} missing\n" in done.stdout
    assert "more may be missing" not in done.stdout
    assert rollouts(new).items() <= rollouts(whole).items()
    assert len(rollouts(new)) == 904 - lost
    assert old.read_bytes() == before
    assert names(old.parent) == ["old.db"]
    check_new(new)


def test_a_payload_that_cannot_be_unpacked_is_left_out_of_its_rollout(old: Path, new: Path) -> None:
    change(old, "UPDATE rollout_payload SET content = x'00' WHERE row_id = 7")
    assert of(recover(old, new), "rollout_payload").missing == 1
    assert sum(it[2] is None for it in rollouts(new).values()) == 1


@pytest.mark.parametrize("name", cases(["row_by_id", "sqlite_autoindex_evaluation_row_1", "row_by_step"], 1))
@pytest.mark.parametrize("kind", cases(["leaf", "internal"], 1))
def test_a_damaged_index_costs_nothing(whole: Path, old: Path, new: Path, name: str, kind: str) -> None:
    zero(old, name, kind)
    assert is_complete(recover(old, new))
    assert rollouts(new) == rollouts(whole)


def test_rows_between_two_damaged_pages_need_no_index(old: Path, new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["logs_ui.recorder.upkeep.recover"], "_PROBES", 1)
    leaves, index = (pages_of(old, name, "leaf") for name in ("scalar", "sqlite_autoindex_scalar_1"))
    for page in (leaves[1], leaves[-2], *index):
        overwrite(old, (page - 1) * PAGE, bytes(PAGE))
    found = of(recover(old, new), "scalar")
    assert not found.is_sure
    assert 640 * (len(leaves) - 3) / len(leaves) < found.rows < 640


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "kind", "least", "most"),
    [
        *cases([("rollout_payload", "leaf", 1, 903), ("rollout_payload", "overflow", 1, 903)], 1),
        ("rollout_payload", "internal", 1, 903),
        ("payload_start", "leaf", 200, 200),
    ],
)
def test_a_rollout_whose_payload_is_lost_stays(
    whole: Path, old: Path, new: Path, *, name: str, kind: str, least: int, most: int
) -> None:
    zero(old, name, kind)
    payloads = of(recover(old, new), "rollout_payload")
    assert payloads.is_sure
    assert least <= payloads.missing <= most
    assert figures(new) == figures(whole)
    assert sum(it[2] is None for it in rollouts(new).values()) == payloads.missing
    check_new(new)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name", ["run", *cases(["text", "tokenizer", "run_source", "scalar", "row_tag", "tag_by_row", "image"], 1)]
)
def test_any_other_table_may_be_lost(whole: Path, old: Path, new: Path, name: str) -> None:
    zero(old, name, "leaf")
    run = of(recover(old, new), "run")
    assert (run.rows, run.missing) == ((0, 3) if name == "run" else (3, 0)), "they keep their ids and their rollouts"
    assert rollouts(new) == rollouts(whole)
    check_new(new, few=3)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", cases(range(14), 1))
def test_after_a_hundred_random_bytes_nearly_all_is_there_and_opens(
    whole: Path, old: Path, new: Path, seed: int
) -> None:
    chance = random.Random(seed)
    for _ in range(100):
        overwrite(old, chance.randrange(100, whole.stat().st_size), bytes([chance.randrange(256)]))
    assert not is_complete(recover(old, new))
    kept = rollouts(whole).keys() & rollouts(new).keys()
    assert len(kept) > 884
    check_new(new, few=3)


@pytest.mark.parametrize("share", cases([0.6, 0.4, 0.1], 1))
def test_a_file_whose_end_is_cut_off_is_read_as_far_as_it_goes(whole: Path, old: Path, new: Path, share: float) -> None:
    os.truncate(old, int(old.stat().st_size * share))
    found = recover(old, new)
    assert not of(found, "scalar").is_sure
    assert figures(new).items() <= figures(whole).items()
    assert len(rollouts(new)) > 904 * share / 3
    check_new(new)


def with_log(path: Path, place: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint=0")
        connection.execute("UPDATE evaluation_row SET task = 'in the log'")
        connection.commit()
        for ending in ("", "-wal"):
            shutil.copy(f"{path}{ending}", f"{place}{ending}")


@pytest.mark.exhaustive
def test_the_log_beside_the_file_is_read_too(whole: Path, old: Path, new: Path, tmp_path: Path) -> None:
    with_log(old, tmp_path / "logged.db")
    zero(tmp_path / "logged.db", "rollout_payload", "leaf")
    log = (tmp_path / "logged.db-wal").read_bytes()
    recover(tmp_path / "logged.db", new)
    assert set(load_run("one", new).task) == {"in the log"}
    assert (tmp_path / "logged.db-wal").read_bytes() == log
    assert len(rollouts(new)) == len(rollouts(whole))


@pytest.mark.exhaustive
def test_a_log_of_another_copy_leaves_a_file_that_opens(whole: Path, old: Path, new: Path, tmp_path: Path) -> None:
    with disposed(writing_engine(old)) as engine:
        make_run(engine, uid="three", steps=20, groups_per_step=2, state="finished", seed=3)
    with_log(old, tmp_path / "other.db")
    shutil.copy(whole, tmp_path / "other.db")
    recover(tmp_path / "other.db", new)
    assert len(rollouts(new).keys() & rollouts(whole).keys()) > 784
    check_new(new)


def test_notes_that_are_damaged_are_named_and_left_out(old: Path, new: Path) -> None:
    Notebook(old).note(Subject("one"), "the baseline " * 2_000)
    overwrite(NOTES.path(old), PAGE, b"\xa5" * (NOTES.path(old).stat().st_size - PAGE))
    done = typed("db", "recover", old, new)
    assert done.returncode == 3
    assert "notes            0 rows; more may be missing\n" in done.stdout
    assert len(rollouts(new)) == 904


def foreign_file(path: Path) -> None:
    path.unlink()
    change(path, "CREATE TABLE mine (id)")


LIST = "old.db is no SQLite database, or the list of its tables is damaged, without which no row can be"


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda path: path.write_text("no database"), LIST),
        (lambda path: zero(path, "sqlite_schema", "leaf"), LIST),
        (foreign_file, "old.db is no database of logs-ui."),
        (Path.unlink, "old.db cannot be used: No such file or directory."),
    ],
)
def test_what_cannot_be_recovered_is_one_line(
    old: Path, new: Path, damage: Callable[[Path], object], line: str
) -> None:
    damage(old)
    done = typed("db", "recover", old, new)
    assert (done.returncode, done.stdout) == (1, "")
    assert line in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert names(new.parent) == ["old"]


def test_only_a_file_of_no_newer_version_is_recovered_and_only_into_a_new_one(old: Path, new: Path) -> None:
    assert "Only an SQLite file can be recovered" in typed("db", "recover", "postgresql://ann@db/runs", new).stderr
    new.write_text("mine")
    assert "new.db exists already. Name a new file." in typed("db", "recover", old, new).stderr
    assert new.read_text() == "mine"
    new.unlink()
    change(old, "UPDATE logs_ui_schema SET version = 99, oldest_reader = 99")
    assert "old.db was written by a newer logs-ui" in typed("db", "recover", old, new).stderr


def test_an_interruption_leaves_nothing_behind(old: Path, new: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        recover(old, new, progress=interrupt)
    assert names(new.parent) == ["old"]
