"""Rollouts and runs that other processes go on with: real processes, on both databases where they differ."""

import copy
import multiprocessing
import os
import pickle
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from logs_ui.recorder import load_run, start_run
from logs_ui.recorder.errors import DatabaseError
from logs_ui.recorder.guard import RAISE_VARIABLE
from logs_ui.recorder.storage.address import Address, as_text
from tests.support.late import guess_model
from tests.support.model_server import chat, model_server
from tests.support.rollout_workers import QUESTION, begin, go_on, go_on_and_die, no_private, open_and_play, play, score
from tests.support.stored import only_run

SPAWN = multiprocessing.get_context("spawn")


@contextmanager
def workers(count: int = 2) -> Iterator[Callable[..., list[Any]]]:
    """Yield `map` of processes that know nothing of this one's."""
    with ProcessPoolExecutor(count, mp_context=SPAWN) as pool:
        yield lambda work, *items: list(pool.map(work, *items))


@pytest.fixture(scope="module", name="spread")
def _spread() -> Iterator[Callable[..., list[Any]]]:
    with workers(1) as spread:
        yield spread


def stored(address: Address) -> list[dict[str, Any]]:
    rows = load_run(db=as_text(address)).sort_values("task").to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def texts(row: dict[str, Any]) -> list[Any]:
    return [entry["text"] for entry in row["actions"]]


@pytest.mark.exhaustive
def test_a_driver_scores_what_its_workers_played(address: Address) -> None:
    with (
        start_run("verl", eval_name="sums", db=as_text(address), tokenizer=guess_model.make_tokenizer()) as run,
        workers() as spread,
    ):
        played = spread(open_and_play, [run] * 4, "0123")
        for row, said in played:
            assert said == f"<OpenRun {run.id} 'verl', running>"
            row.score(rewards={"right": float(row._call.generation == 2)}, advantage=0.5)
    rows = stored(address)
    assert [(row["task"], row["status"], row["reward"], row["advantage"]) for row in rows] == [
        (task, "ok", float(task == "2"), 0.5) for task in "0123"
    ]
    assert {(row["eval_name"], row["step"], row["mode"], row["group"]) for row in rows} == {
        ("sums", 3, "train", f"{run.id}/train/g")
    }
    assert [texts(row) for row in rows] == [[f"answer {task}"] for task in "0123"]
    assert all(row["metadata"]["notes"]["by"] != os.getpid() for row in rows)
    assert repr(run).endswith("finished>")


@pytest.mark.exhaustive
def test_workers_play_what_the_driver_opened(address: Address) -> None:
    with start_run(db=as_text(address)) as run, workers() as spread, model_server() as server:
        rows = [run.rollout(QUESTION, task=f"{number}", metadata={"n": number}) for number in range(3)]
        server.gives(*[chat()] * 3)
        spread(play, rows, [server.url] * 3)
        for row in rows:
            row.score(0.5)
    found = stored(address)
    assert [(row["task"], row["status"], row["stop_reason"], row["reward"]) for row in found] == [
        (task, "ok", "stop", 0.5) for task in "012"
    ]
    assert [(row["metadata"]["n"], row["metadata"]["tags"], row["turns"]) for row in found] == [
        (number, ["played"], 1) for number in range(3)
    ]


def test_what_two_processes_recorded_is_one_row(address: Address, spread: Any) -> None:
    with start_run(db=as_text(address), tokenizer=guess_model.make_tokenizer()) as run:
        (row,) = spread(begin, [run.rollout(QUESTION, task="t", metadata={"n": 1})])
        go_on(row)
        (row,) = spread(go_on, [row])  # and back
        row.score(1.0)
    (found,) = stored(address)
    assert texts(found) == ["first", "second", "second"]
    assert [entry["observation"] for entry in found["actions"]] == ["no", "yes", "yes"]
    assert (found["status"], found["stop_reason"], found["reward"]) == ("ok", "done", 1.0)
    assert (found["metadata"]["notes"], found["metadata"]["tags"]) == ({"worker": True}, ["gone on", "gone on"])
    assert (found["prompt_ids"].tolist(), found["completion_ids"].tolist()) == ([1, 2], [3, 4])
    assert (found["metadata"]["n"], found["seconds"] < 60) == (1, True)


@pytest.mark.exhaustive
def test_nothing_is_lost_if_a_process_dies(db: Path) -> None:
    with start_run(db=db) as run:
        row = begin(run.rollout(QUESTION))
        theirs, ours = SPAWN.Pipe()
        process = SPAWN.Process(target=go_on_and_die, args=(row, ours))
        process.start()
        assert theirs.recv()
        process.join(60)
        lost = begin(run.rollout(QUESTION, task="lost"))
        pickle.dumps(lost)  # nobody ever takes it over
    found = {row["task"]: row for row in stored(db)}
    assert texts(found.pop("lost")) == ["first"]
    (both,) = found.values()
    assert (texts(both), both["status"], both["reward"]) == (["first", "second"], "ok", 2.0)


def test_a_run_goes_on_in_another_folder(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(db.parent)
    with start_run(db=db.name) as run:
        sent = pickle.dumps(run)
        monkeypatch.chdir("/")
        joined = pickle.loads(sent)  # noqa: S301
        with joined.rollout(QUESTION, task="joined"):
            pass
        joined.finish()
        assert repr(joined).endswith("running>")
    assert [(row["task"], row["status"]) for row in stored(db)] == [("joined", "ok")]


def test_a_rollout_is_scored_elsewhere_while_it_is_played(db: Path, spread: Any) -> None:
    with start_run(db=db) as run, run.rollout(QUESTION) as row:
        row.turn("first")
        spread(score, [row])
        row.turn("second")
    (found,) = stored(db)
    assert (texts(found), found["status"], found["reward"], found["advantage"]) == (
        ["first", "second"], "ok", pytest.approx(1.05), -0.25,
    )  # fmt: skip


def test_edit_decides_where_the_rollout_ends(db: Path, spread: Any) -> None:
    with start_run(db=db, edit=no_private) as run:
        for task in ("private", "public"):
            with run.rollout(QUESTION, task=task) as row:
                row.turn("4")
                with pytest.raises(pickle.PicklingError, match=r"can be pickled only after its `with`"):
                    pickle.dumps(row)
            spread(score, [row])
    assert [(row["task"], row["advantage"]) for row in stored(db)] == [("public", -0.25)]


def test_a_rollout_that_was_passed_on_is_only_scored(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)
    with start_run(db=db) as run:
        row = begin(run.rollout(QUESTION))
        assert (copy.deepcopy([row])[0], copy.copy(row)) == (row, row)
        sent = pickle.dumps(row)
        row.turn("lost")
        with row:
            pass
        pickle.loads(sent).turn("second")  # noqa: S301
        row.score(1.0)
    (found,) = stored(db)
    assert (texts(found), found["reward"]) == (["first", "second"], 1.0)
    assert only_run(db).recorder_errors == 2
    assert "or after the rollout was pickled" in (only_run(db).last_recorder_error or "")


@pytest.mark.exhaustive
def test_a_file_of_another_machine_is_refused(
    db: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)
    with start_run(db=db) as run:
        sent = pickle.dumps(run.rollout(QUESTION)), pickle.dumps(run)
    monkeypatch.setattr(socket, "gethostname", lambda: "node-2")
    row = pickle.loads(sent[0])  # noqa: S301
    with row:
        row.turn("4")
    row.score(1.0)
    assert "which node-2 cannot reach. Record into PostgreSQL" in caplog.text
    with pytest.raises(DatabaseError, match="which node-2 cannot reach"):
        pickle.loads(sent[1])  # noqa: S301
    assert load_run(run.id, db=db).empty
