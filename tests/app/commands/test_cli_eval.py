"""`logs-ui eval` as a user types it, in the folder of their own module, against a real model server."""

import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from logs_ui.recorder import load_run, load_runs
from tests.support.command import LOGS_UI, typed
from tests.support.model_server import ModelServer, Reply, chat, chat_choice, refused

MODULE = """
from logs_ui.rollout import evaluation

ROWS = [{"prompt": f"{a} + 1", "task": f"task {a % 2}\\x1b[31m", "right": str(a + 1)} for a in range(4)]


@evaluation("sums", dataset=ROWS)
def sums(row):
    return row.answer == row["right"]


@evaluation("parts", dataset=ROWS, weights={"right": 1.0, "short": 0.5})
def parts(row):
    if row.answer == "?":
        raise ValueError("odd")
    return {"right": row.answer == row["right"], "short": len(row.answer) < 3}


@evaluation("some", dataset=ROWS)
def some(row):
    return None if row.answer == "?" else 1.0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_evals.py").write_text(MODULE)
    return tmp_path


def evaluate(folder: Path, *arguments: Any, **variables: str) -> subprocess.CompletedProcess[str]:
    return typed("eval", *arguments, folder=folder, **variables)


def served(server: ModelServer, *more: Any) -> tuple[Any, ...]:
    return ("--base-url", server.url, "--model", "tiny", "--concurrency", 1, *more)


def says(*texts: str) -> list[Any]:
    return [chat(chat_choice(ids=False, content=text), ids=False) for text in texts]


def test_it_evaluates_and_shows_a_line_a_task(folder: Path, server: ModelServer) -> None:
    server.gives(*says("1", "1", "2", "0", "3", "3", "0", "0"))
    db = folder / "a.db"
    done = evaluate(folder, "my_evals:sums", *served(server, "--samples", 2, "--db", db, "--min-score", "0.6"))
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line.strip()]
    assert ["sums", "rollouts", "reward", "±", "pass@1", "pass@2", "failed"] in lines
    assert ["task", "0\N{REPLACEMENT CHARACTER}[31m", "4", "1.000", "0.000", "1.000", "1.000"] in lines
    assert ["task", "1\N{REPLACEMENT CHARACTER}[31m", "4", "0.250", "0.250", "0.250", "0.500"] in lines
    assert ["all", "8", "0.625", "0.239", "0.625", "0.750"] in lines
    assert "\x1b" not in done.stdout + done.stderr
    assert "rollout 8 of 8, reward 0.62" in done.stderr
    rows = load_run(db=db)
    assert len(rows) == 8
    assert set(rows["eval_name"]) == {"sums"}
    assert f"browse it with: logs-ui serve --db {db}\n" in done.stderr
    assert f"Browse it with: logs-ui serve --db {db}\n" in done.stdout
    assert f"http://127.0.0.1:7070/runs/{rows['run'][0]}\n" in done.stdout


def test_each_score_has_its_mean(folder: Path, server: ModelServer) -> None:
    server.gives(*says("1", "2", "3", "5000"))
    done = evaluate(folder, "my_evals:parts", *served(server))
    assert re.search(r"all +4 +1\.125 .* 0\.750 +0\.750", done.stdout)


REFUSAL = Reply(refused("too\x1b[2J long"), status=400)
ONE_FAILED = "1 of 4 rollouts failed", "parts() failed: ValueError: odd"


@pytest.mark.parametrize(
    ("name", "replies", "options", "code", "words"),
    [
        ("sums", says("1"), "--min-score 0.5", 1, ("logs-ui: The mean reward is 0.250, below 0.5",)),
        ("sums", says("1"), "", 0, ()),
        ("parts", says("1", "2", "?", "4"), "", 0, ONE_FAILED),
        ("parts", says("1", "2", "?", "4"), "--min-score 1", 1, ONE_FAILED),
        ("parts", says("1", "2", "?", "4"), "--min-score 1 --max-errors 1", 0, ONE_FAILED),
        ("sums", [REFUSAL], "", 2, ("All rollouts failed. First error:", "too\N{REPLACEMENT CHARACTER}[2J long")),
        ("some", says("1", "?", "1", "1"), "--min-score 1", 0, ()),
        ("some", says("?"), "", 0, ()),
        ("some", says("?"), "--min-score 0", 1, ("No rollout has a score",)),
        ("some", [*says("?", "?", "?"), REFUSAL], "", 2, ("1 of 4 rollouts failed, and the others have no score",)),
    ],
)
def test_the_exit_code_says_whether_a_threshold_was_missed_or_nothing_evaluated(
    folder: Path, server: ModelServer, name: str, replies: list[Any], options: str, code: int, words: tuple[str, ...]
) -> None:
    server.gives(*replies)
    done = evaluate(folder, f"my_evals:{name}", *served(server, *options.split()))
    assert done.returncode == code, done.stderr
    assert [word for word in words if word not in done.stderr.splitlines()[-1]] == []
    assert "\x1b" not in done.stderr


def test_options_reach_the_server(folder: Path, server: ModelServer) -> None:
    server.gives(*says("1"))
    more = ("--limit", 2, "--temperature", 0, "--max-tokens", 7)
    done = evaluate(folder, "my_evals:sums", *served(server, *more), OPENAI_API_KEY="sk-very-secret")
    assert done.returncode == 0, done.stderr
    assert [(asked["temperature"], asked["max_tokens"]) for _, asked in server.asked] == [(0.0, 7)] * 2
    assert server.headers[0]["authorization"] == "Bearer sk-very-secret"


@pytest.mark.usefixtures("_asks_again_at_once")
@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["my_evals"], "my_evals has several evaluations: sums, parts, some. Name one, such as my_evals:sums"),
        (["my_evals:sums", "--model", "big"], "does not serve 'big'. It serves tiny: name one of these."),
        (["my_evals:sums", "--base-url", "http://127.0.0.1:9/v1"], "http://127.0.0.1:9/v1 cannot be reached"),
        (["my_evals:sums", "--base-url", "localhost"], "base_url must be an address such as"),
        (["my_evals:sums", "--db", "/"], "/"),
        (["my_evals:sums", "--samples", "0"], "Try: logs-ui eval --help"),
        ([], "Missing argument 'MODULE:NAME'. Try: logs-ui eval --help"),
    ],
)
def test_what_prevents_an_evaluation_is_one_line_and_exits_with_2(
    folder: Path, server: ModelServer, arguments: list[str], what: str
) -> None:
    server.gives(*says("1"))
    done = evaluate(folder, *served(server), *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("logs-ui: ")
    assert what in line
    assert server.asked == []


@pytest.mark.exhaustive
def test_ctrl_c_keeps_what_was_recorded(folder: Path, server: ModelServer) -> None:
    server.gives(*says("1"), Reply(says("2")[0], after=240))
    db = folder / "a.db"
    arguments = [str(each) for each in served(server, "--db", db)]
    with subprocess.Popen(
        [LOGS_UI, "eval", "my_evals:sums", *arguments], cwd=folder, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        while "rollout 1 of 4" not in (line := process.stderr.readline()):
            assert line
        while len(server.asked) < 2:  # the second answer takes its time
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait(240) == 130
    assert "Traceback" not in said
    assert load_runs(db)["state"][0] == "interrupted"
    assert list(load_run(db=db)["reward"].dropna()) == [1.0]
