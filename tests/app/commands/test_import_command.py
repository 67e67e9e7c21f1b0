"""`logs-ui import` as people use it: in a shell, beside a training, interrupted and begun again."""

import json
import os
import re
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

from logs_ui.recorder import load_run, load_runs
from logs_ui.recorder.storage.database import writing_engine
from tests.support.changes import wait_until
from tests.support.command import LOGS_UI, typed
from tests.support.exhaustive import cases


def _lines(step: int, count: int = 64) -> str:
    """Return a step as verl writes it."""
    rows = (
        {"input": f"user\nQuestion {i // 8} of step {step}?\nassistant\n", "output": f"Answer {i}. " * 40,
         "gts": "1", "score": (i % 8) / 8, "step": step, "acc": float(i % 2)}
        for i in range(count)
    )  # fmt: skip
    return "".join(json.dumps(row) + "\n" for row in rows)


def _is_beyond(db: Path, count: int) -> bool:
    return int(load_runs(db).rollouts.sum()) > count


def _started(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [LOGS_UI, "import", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("ending", cases([signal.SIGTERM, signal.SIGINT], 1))
def test_follow_shows_what_is_written_until_ctrl_c(tmp_path: Path, ending: signal.Signals) -> None:
    db, folder = tmp_path / "runs.db", tmp_path / "rollouts"
    writing_engine(db).dispose()  # it can be read from the first moment on
    process = _started("--follow", folder, "--db", db)  # before the training made the folder
    try:
        assert process.stdout is not None
        assert "Following 0 files; Ctrl-C ends it. Browse it with: logs-ui serve" in process.stdout.readline()
        folder.mkdir()
        for step in (1, 2):
            whole = _lines(step)
            with (folder / f"{step}.jsonl").open("w") as opened:
                opened.write(whole[:5_000])
                opened.flush()
                before = 64 * (step - 1)
                wait_until(partial(_is_beyond, db, before))
                opened.write(whole[5_000:])
            wait_until(partial(_is_beyond, db, 64 * step - 1))
        assert process.stdout.readline().startswith("Run import-")
        assert re.fullmatch(r"\d\d:\d\d:\d\d  (\d+) rollouts, \+\1\n", process.stdout.readline())
    finally:
        process.send_signal(ending)
        out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "Imported 128 rollouts from 2 files of verl." in out
    assert load_run("latest", db)["step"].value_counts().to_dict() == {1: 64, 2: 64}
    assert load_runs(db).state.tolist() == ["finished"]


def test_it_says_what_it_left_out_and_where_to_look(tmp_path: Path) -> None:
    file = tmp_path / "1.jsonl"
    file.write_text(_lines(1, 2) + '{"input": \n' + _lines(1, 1))
    (tmp_path / "notes.jsonl").write_text('{"a": 1}\n')
    found = typed("import", tmp_path, "--db", tmp_path / "runs.db", "--rewards", "acc", "--weights", "acc=0.5")
    assert found.returncode == 0
    assert "Imported 3 rollouts from 1 file of verl." in found.stdout
    assert "logs-ui serve --db" in found.stdout
    assert "1.jsonl, record 3: it is not valid JSON" in found.stderr
    assert "1 fault: what could not be read was left out." in found.stderr
    assert "Not recognized: notes.jsonl. Import one alone to see what to do." in found.stderr
    rows = load_run("latest", tmp_path / "runs.db")
    assert rows.rewards.tolist() == [{"acc": 0.0}, {"acc": 1.0}, {"acc": 0.0}]
    assert "No rollout has a reward 'acc" not in found.stderr
    again = typed("import", tmp_path, "--db", tmp_path / "runs.db", "--rewards", "ac", "--weights", "acc=2,zebra=1")
    assert again.returncode == 0
    assert "Imported 3 rollouts (none of them new) from 1 file of verl." in again.stdout
    (uid,) = load_runs(tmp_path / "runs.db").run
    assert f"Run {uid} ({tmp_path.name}). Browse it with: logs-ui serve --db" in again.stdout
    assert "No rollout has a reward 'ac': did you mean 'acc'?" in again.stderr
    assert "No rollout has a reward 'acc': it is a metric until --rewards names it, too: --rewards acc" in again.stderr
    assert "No rollout has a reward 'zebra': there are acc" in again.stderr
    strict = typed("import", file, "--strict", "--db", tmp_path / "strict.db")
    assert strict.returncode == 1
    assert strict.stderr.startswith("logs-ui: 1.jsonl, record 3: it is not valid JSON")
    assert load_runs(tmp_path / "strict.db").state.tolist() == ["failed"]
    none = typed("import", file, "--as", "trl", "--db", tmp_path / "none.db")
    assert none.returncode == 1
    assert "Imported 0 rollouts" in none.stdout
    assert none.stderr.startswith(
        "1.jsonl: the file cannot be read: it is not as TRL writes it\n1 fault: what could not"
    )


def test_the_times_of_a_run_are_those_of_its_rollouts(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    for step in (1, 2, 3):
        (tmp_path / f"{step}.jsonl").write_text(_lines(step))
        os.utime(tmp_path / f"{step}.jsonl", (1_700_000_000 + 60 * step,) * 2)
    for files in ("[12].jsonl", "[23].jsonl"):
        found = typed("import", str(tmp_path / files), "--run", "r", "--db", db)
    assert "Imported 128 rollouts (64 of them new) from 2 files of verl." in found.stdout
    runs = load_runs(db)
    assert [int(runs[name][0].timestamp()) for name in ("created", "finished")] == [1_700_000_060, 1_700_000_180]
    unnamed = typed("import", str(tmp_path / "*.jsonl"), "--db", db)
    assert f" ({tmp_path.name}). Browse it" in unnamed.stdout


def test_rollouts_that_others_replaced_are_said_and_fail_the_command(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text('prompt = "q"\ncompletion = "a"\nkey = "id"')
    (tmp_path / "a.jsonl").write_text("".join(f'{{"q": "q", "a": "{i}", "id": {i % 4}}}\n' for i in range(48)))
    found = typed("import", tmp_path / "a.jsonl", "--map", tmp_path / "m.toml", "--db", tmp_path / "a.db")
    assert found.returncode == 1
    assert "Imported 4 rollouts from 1 file of map." in found.stdout
    assert "a.jsonl, record 5: it has the key '0' of record 1 of a.jsonl, too, and replaces it." in found.stderr
    assert "44 records replaced others with the same key: 4 are left." in found.stderr


def test_what_it_cannot_do_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "1.jsonl"
    file.write_text(_lines(1, 1))
    mapping = tmp_path / "m.toml"
    mapping.write_text('prompt = "input"\ncompletion = "output"\n')
    for given, line in (
        ([], "Name what to import: a file, a folder, or a glob in quotes."),
        ([tmp_path / "none"], f"There is nothing at {tmp_path / 'none'}."),
        ([file, "--as", "nothing"], "--as nothing: unknown format: choose from areal,"),
        ([file, "--weights", "acc=a"], "--weights acc=a: 'a' is not a weight. Write it as acc=0.5."),
        (
            [file, "--map", mapping, "--rewards", "ac"],
            "--rewards = 'ac', but the first record has no such column: did you",
        ),
        (["--suggest", tmp_path], f"{tmp_path} is no file. Name one file of records"),
        ([file, "--map", tmp_path / "none.toml"], f"There is no {tmp_path / 'none.toml'}."),
    ):
        found = typed("import", *given, "--db", tmp_path / "runs.db")
        assert found.returncode == 1
        assert line in found.stderr
        assert found.stderr.count("\n") == 1
