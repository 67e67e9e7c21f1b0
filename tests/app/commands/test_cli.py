"""The command as a user types it: what it prints, and with what it exits."""

import json
import math
import re
import signal
import socket
import sqlite3
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
from typer.main import get_command

from logs_ui.app.commands.cli import _say_what_happened as say_what_happened
from logs_ui.app.commands.cli import app
from logs_ui.app.commands.terminal import figure
from logs_ui.recorder import load_run
from logs_ui.recorder.queries import run_summary
from logs_ui.recorder.storage.database import reading_engine
from tests.support.command import LOGS_UI, serving, typed
from tests.support.exhaustive import cases
from tests.support.factory import make_run_at
from tests.support.late import guess_model


def refused(*arguments: str | Path, code: int = 1) -> str:
    """What the command says when it cannot do it: one line."""
    done = typed(*arguments)
    assert done.returncode == code
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "a.db"
    make_run_at(path, uid="first", name="first", steps=2, groups_per_step=1, generations=4, seed=1)
    make_run_at(path, uid="second", name="second", steps=3, groups_per_step=2, generations=4, seed=2)
    return path


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["export", "x", "-o", "a", "--format", "xml"], "'eval-protocol', 'otlp'. Try: logs-ui export --help"),
        (["export", "x", "-o"], "requires an argument. Try: logs-ui --help"),
        (["export"], "Missing argument 'RUN'. Try: logs-ui export --help"),
        (["serve", "--port", "99999"], "65535. Try: logs-ui serve --help"),
        (["serve", "--prot", "1"], "--prot"),
        (["servee"], "Did you mean 'serve'? Try: logs-ui --help"),
    ],
)
def test_a_misspelt_command_line_is_answered_in_one_line(arguments: list[str], what: str) -> None:
    line = refused(*arguments, code=2)
    assert line.startswith("logs-ui: ")
    assert what in line


@pytest.mark.parametrize("arguments", [[], ["--help"], ["export", "--help"], ["--version"]])
def test_help_and_version_are_no_errors(arguments: list[str]) -> None:
    done = typed(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("logs-ui 0" if "--version" in arguments else "Usage: logs-ui") in done.stdout


def test_export_takes_the_filter_language(db: Path, tmp_path: Path) -> None:
    output = tmp_path / "some.jsonl"
    done = typed("export", "first", "-o", output, "--db", db, "--where", "status:ok reward<0.5 -stop:length")
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert re.match(rf"{len(rows)} rollouts? ", done.stdout)
    expected = load_run("first", db, where="status:ok reward<0.5 -stop:length")
    assert [row["id"] for row in rows] == sorted(expected["id"])
    assert rows
    said = refused("export", "first", "-o", tmp_path / "none.csv", "--db", db, "--where", "status:eror")
    assert said == "logs-ui: status:eror: unknown status 'eror': did you mean 'error'?"
    assert not (tmp_path / "none.csv").exists()


def test_export_replaces_a_file_only_when_told_to(db: Path, tmp_path: Path) -> None:
    output = tmp_path / "a.csv"
    output.write_text("mine")
    assert "already exists" in refused("export", "first", "-o", output, "--db", db)
    assert output.read_text() == "mine"
    assert typed("export", "first", "-o", output, "--db", db, "--force").returncode == 0
    assert output.read_text().startswith("run,")


def test_help_names_what_an_option_takes_and_the_same_by_the_same_word() -> None:
    words: dict[str, set[str]] = {}
    for command in commands(get_command(app)):
        for it in command.params:
            if it.name != "help" and not getattr(it, "is_flag", False):
                assert it.metavar, f"{command.name}: {it.name}"
                words.setdefault(it.name, set()).add(it.metavar)
    for name in ("db", "into", "others"):
        assert words.pop(name) == {"PATH|URL"}
    assert words.pop("run") == {"RUN"}
    assert len(words.pop("keep")) == 2, "what is starred, and a reward function"
    assert {name: used for name, used in words.items() if len(used) > 1} == {}


def commands(command: Any) -> Iterator[Any]:
    """It, and all under it."""
    yield command
    for under in getattr(command, "commands", {}).values():
        yield from commands(under)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ("first", "Name a file with --output, or a server with --otlp."),
        ("first -o a --otlp http://127.0.0.1:9/v1/traces", "Name a file with --output, or a server with --otlp."),
        ("first --otlp 127.0.0.1:4318", "--otlp takes an address that begins with http, and no format but otlp."),
        ("first --otlp http://127.0.0.1:9/v1/traces --as atif", "--otlp takes an address that begins with http"),
        ("first -o a --as atif --partition-by step", "Only Parquet can be partitioned"),
        ("first -o a.verifiers", "names no format: add --format parquet, csv or jsonl, or --as"),
        ("frist -o a.csv", "first"),
        ("first -o a.xlsx", "--format parquet, csv or jsonl"),
        ("first -o no/a.csv", "cannot be written"),
        ("latest -o a.csv --db none.db", "--db"),
        (
            "latest -o a.csv --db empty.db",
            "empty.db is empty. Record a training into it first, or name another database",
        ),
    ],
)
def test_export_says_what_does_not_go_together_or_stands_in_its_way(
    db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.db").touch()
    database = [] if "--db" in arguments else ["--db", str(db)]
    assert what in refused("export", *arguments.split(), *database)


@pytest.mark.parametrize("command", ["serve", "demo"])
@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_somebody_elses_database_is_refused_and_left_alone(tmp_path: Path, mode: str, command: str) -> None:
    theirs = tmp_path / "theirs.db"
    connection = sqlite3.connect(theirs)
    connection.execute(f"pragma journal_mode={mode}")
    connection.execute("create table theirs (x)")
    connection.close()
    before = theirs.read_bytes()
    assert "not one of logs-ui" in refused(command, "--db", theirs)
    assert theirs.read_bytes() == before
    assert list(tmp_path.iterdir()) == [theirs]


@pytest.mark.parametrize(("name", "value"), [("LOGS_UI_QUEUE_MB", "many"), ("LOGS_UI_END_SECONDS", "-1")])
def test_a_setting_that_cannot_be_is_refused_before_the_demo_makes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    said = refused("demo", "--no-serve", "--steps", "1", "--db", tmp_path / "a.db")
    assert f"{name} is {value!r}, but must be" in said
    assert not any(tmp_path.iterdir())


@pytest.mark.exhaustive
@pytest.mark.parametrize("empty", cases([True, False], 1))
def test_serve_waits_for_a_database_that_is_not_there_or_empty(tmp_path: Path, *, empty: bool) -> None:
    db = tmp_path / "a.db"
    if empty:
        db.touch()
    with serving("--db", db) as (address, said):
        assert empty or "does not exist yet. The pages update" in said
        page = urllib.request.urlopen(address).read().decode()  # noqa: S310
        assert ("No runs yet" if empty else "No recording yet") in page
        make_run_at(db, uid="late", name="late", steps=1)
        assert "late" in urllib.request.urlopen(address).read().decode()  # noqa: S310


def test_serve_says_where_it_is_and_ends_quietly_whatever_clients_break_off(db: Path) -> None:
    command = [str(LOGS_UI), "serve", "--port", "0", "--db", str(db)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            assert server.stdout is not None
            said = "".join(server.stdout.readline() for _ in range(3))
            assert str(db) in said
            port = int(said.split("127.0.0.1:")[1].split("/")[0])
            of_run = "notes", "rollouts/1/notes", "views", "why/settings", "exports"
            for address in ("/tags", *(f"/runs/first/{name}" for name in of_run)):
                with socket.create_connection(("127.0.0.1", port)) as client:
                    origin = f"Host: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\n"
                    client.sendall(f"POST {address} HTTP/1.1\r\n{origin}Content-Length: 100\r\n\r\nnote=ha".encode())
            assert b"ok" in urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz").read()
            served = psutil.Process(server.pid)
            while any(it.status != psutil.CONN_LISTEN for it in served.net_connections("tcp")):
                time.sleep(0.02)  # else a slow machine cuts some off at its end, and says so
            for _ in range(5):  # so does what the server is about to do with them
                urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz").read()
        finally:
            server.send_signal(signal.SIGINT)
        assert (server.stdout.read(), server.wait(240)) == ("", 0)


def test_a_port_in_use_is_found_before_the_demo_makes_anything(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"Port {port} is in use" in refused("demo", "--db", tmp_path / "a.db", "--port", str(port))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (1, "Mean reward: 0.00 (last 1 step)."),
        (11, "Mean reward went from 0.00 (first 1 step) to 5.50 (last 10 steps)."),
        (200, "Mean reward went from 4.50 (first 10 steps) to 194.50 (last 10 steps)."),
    ],
)
def test_how_the_reward_of_a_demo_went(steps: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    say_what_happened(Path("a.db"), [float(step) for step in range(steps)])
    assert capsys.readouterr().out.startswith(f"{said} Every rollout is in a.db\n")


@pytest.mark.exhaustive
def test_the_demo_trains_for_real_and_records_every_rollout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db = tmp_path / "a.db"
    monkeypatch.setattr("logs_ui.rollout.demo.guess_model.warm_up", partial(guess_model.warm_up, steps=50))  # enough
    done = typed("demo", "--steps", "3", "--no-serve", "--db", db)
    assert done.returncode == 0, done.stderr
    assert f"logs-ui serve --db {db}" in done.stdout
    left = {it.name for it in tmp_path.iterdir()}
    assert left <= {"a.db", "a.db-wal", "a.db-shm", "a.db-spool"}, "nothing but the database, which is open still"
    steps = re.findall(r"^step (\d) of 3, mean reward (.*)$", done.stderr, re.MULTILINE)
    assert [step for step, _ in steps] == list("123")
    reward = f"{run_summary(reading_engine(db), 1).reward:.2f} (last 3 steps)"
    assert steps[-1][1] == reward, "the dashboard's figure"
    assert f"Mean reward: {reward}. Every rollout is in {db}\n" in done.stdout
    assert "recording run" not in done.stderr, "the demo says itself where to look"
    output = tmp_path / "run.parquet"
    assert typed("export", "latest", "-o", output, "--db", db).returncode == 0
    rows = pd.read_parquet(output)
    train = rows[rows["mode"] == "train"]
    assert list(train.groupby("step").size()) == [32] * 3
    assert train.reward.notna().all()
    assert train.advantage.notna().all()
    assert len(set(train.stop_reason)) > 1
    assert rows.messages.str.contains("assistant").all()


def test_figures_of_a_comparison_say_that_they_are_not_a_number() -> None:
    assert [figure(value) for value in (None, math.nan, 0.5)] == ["", "nan", "0.500"]
