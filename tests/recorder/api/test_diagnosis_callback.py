"""The diagnosis while a training runs: what it prints, sends and stops, and that it never harms."""

import json
import logging
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from logs_ui.recorder import Card, DiagnosisCallback, Diagnostic, Settings, SettingsError, load_run, load_runs, record
from logs_ui.recorder.api.alerts import News
from tests.support.card_keys import CARD_KEYS
from tests.support.exhaustive import cases
from tests.support.http_server import Answered, http_server
from tests.support.late import transformers
from tests.support.ranks import run_on_two_ranks
from tests.support.training import make_trainer


def nothing(completions: list[Any], **_: Any) -> list[None]:
    return [None] * len(completions)


def said_alike(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    """A rollout function that has nobody sample."""
    ids = [trainer.processing_class("guess 2")["input_ids"] for _ in prompts]
    logprobs = [[-0.5] * len(row) for row in ids]
    return {"prompt_ids": ids, "completion_ids": ids, "logprobs": logprobs, "env_reward": [0.0 for _ in ids]}


def trained(folder: Path, *callbacks: Any, **config: Any) -> Any:
    """A trainer whose rewards are all missing, after 5 steps of 8 rollouts."""
    settings = {"max_steps": 5, "reward_funcs": [nothing], "warm": 0, **config}
    trainer = make_trainer(record(said_alike, db=folder / "a.db", announce=False), folder / "out", **settings)
    for callback in callbacks:
        trainer.add_callback(callback)
    trainer.train()
    return trainer


@contextmanager
def webhook(status: int = 200, seconds: float = 0.0) -> Iterator[tuple[str, list[tuple[dict[str, str], Any]]]]:
    """A real server's address, and the headers and bodies that it was sent; it answers late."""
    heard: list[tuple[dict[str, str], Any]] = []

    def answer(_path: str, headers: dict[str, str], body: bytes) -> Answered:
        heard.append((headers, json.loads(body)))
        time.sleep(seconds)
        return status, {}, b""

    with http_server(answer) as url:
        yield f"{url}/hook/s3cret", heard


def cards_said(said: str) -> list[str]:
    return re.findall(r"^logs-ui: step \d+: .* \[(\w+)\]$", said, re.MULTILINE)


def card(name: str) -> Card:
    return Card(name, name, 1.0, (), "", "")


def test_a_card_is_printed_and_sent_once_when_it_first_fires(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with webhook() as (url, heard):
        headers = {"Authorization": "Bearer abcdefgh"}
        trained(tmp_path, DiagnosisCallback(every_steps=1, webhook=url, webhook_headers=headers))
    said = capfd.readouterr().err
    assert cards_said(said).count("invalid_reward") == 1
    assert len(cards_said(said)) == len(set(cards_said(said)))
    first = re.search(r"^logs-ui: step (\d+)", said, re.MULTILINE)
    assert first
    assert int(first[1]) >= 4, "32 rollouts are not there before"
    assert "→" in said
    assert [body["card"]["id"] for _, body in heard] == cards_said(said)
    sent, body = heard[0]
    assert sent["authorization"] == "Bearer abcdefgh"
    assert sent["content-type"] == "application/json"
    assert set(body) == {"run", "step", "text", "card"}
    assert set(body["card"]) == CARD_KEYS
    assert body["run"] == load_runs(tmp_path / "a.db").run[0]


@pytest.mark.exhaustive
def test_a_card_bears_the_last_step_that_it_is_made_of_however_late_it_is(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path)
    last = int(load_run(db=tmp_path / "a.db").step.max())
    with webhook() as (url, heard):
        callback = DiagnosisCallback(every_steps=1, webhook=url, run="latest", db=tmp_path / "a.db")
        state = SimpleNamespace(global_step=2, is_world_process_zero=True)
        callback.on_step_end(None, state, None)
        callback.on_train_end(None, state, None)
    said = capfd.readouterr().err
    assert "invalid_reward" in cards_said(said)
    assert set(re.findall(r"^logs-ui: step (\d+):", said, re.MULTILINE)) == {str(last)}
    assert {body["step"] for _, body in heard} == {last}
    assert all(f", step {last}: " in body["text"] for _, body in heard)


@pytest.mark.exhaustive
def test_a_short_training_is_looked_at_when_it_ends(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trained(tmp_path, DiagnosisCallback(every_steps=100))
    assert "invalid_reward" in cards_said(capfd.readouterr().err)


@pytest.mark.versions
def test_a_card_stops_the_training_and_the_run_says_why(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trainer = trained(tmp_path, DiagnosisCallback(every_steps=1, stop_on={"invalid_reward"}), max_steps=5_000)
    assert 4 <= trainer.state.global_step < 5_000, "it looks while steps go on, however many these are"
    (run,) = load_runs(tmp_path / "a.db").to_dict("records")
    assert run["state"] == "finished"
    assert re.fullmatch(r"Stopped by its diagnosis at step \d+: .* \[invalid_reward\]", run["error"])
    said = capfd.readouterr().err
    assert said.count("Stopped by its diagnosis") == 1
    assert f"logs-ui diagnose {run['run']} --db {tmp_path / 'a.db'}\n" in said


@pytest.mark.exhaustive
def test_a_function_may_decide_what_stops_it(tmp_path: Path) -> None:
    asked: list[str] = []

    def costly(found: Card) -> bool:
        asked.append(found.id)
        return found.cost is not None and found.cost > 1e9

    trainer = trained(tmp_path, DiagnosisCallback(every_steps=1, stop_on=costly))
    assert trainer.state.global_step == 5
    assert "invalid_reward" in asked


@pytest.mark.parametrize("kind", cases(["refused", "an error", "late"], 1))
def test_a_webhook_that_fails_is_one_line_without_its_secret_and_what_breaks_in_users_code_costs_no_cards(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    def broken(_: Any) -> bool:
        raise RuntimeError("mine")

    own = Diagnostic("mine", "Mine", "", "ours", missing=lambda _: None, look=broken)  # type: ignore[arg-type]
    with webhook(status=500 if kind == "an error" else 200, seconds=5 if kind == "late" else 0) as (url, _):
        address = "http://127.0.0.1:9/hook/s3cret" if kind == "refused" else url
        sends = DiagnosisCallback(every_steps=1, webhook=address, webhook_timeout=0.2)
        trainer = trained(tmp_path, sends, DiagnosisCallback(every_steps=1, diagnostics=[own], stop_on=broken))
    assert trainer.state.global_step == 5
    assert cards_said(capfd.readouterr().err).count("invalid_reward") == 2, "each says it"
    assert any("mine" in one.getMessage() for one in caplog.records if one.levelno == logging.WARNING)
    (line,) = [one.getMessage() for one in caplog.records if "webhook" in one.getMessage()]
    assert "127.0.0.1" in line
    assert "s3cret" not in line
    assert load_runs(tmp_path / "a.db").recorder_errors[0] == 0


def test_without_a_recorded_run_it_does_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trainer = make_trainer(said_alike, tmp_path / "out", warm=0, max_steps=1)
    trainer.add_callback(DiagnosisCallback(every_steps=1))
    trainer.train()
    assert cards_said(capfd.readouterr().err) == []


def test_a_card_that_comes_back_is_news_once_it_was_quiet() -> None:
    news = News(quiet_steps=10)
    assert [it.id for it in news.of([card("a"), card("b")], 1)] == ["a", "b"]
    assert news.of([card("a"), card("b")], 20) == []
    assert news.of([card("b")], 21) == []
    assert [it.id for it in news.of([card("a")], 22)] == ["a"], "it went away, and 10 steps are over"
    assert news.of([], 23) == []
    assert news.of([card("a")], 24) == [], "it is quiet still"
    assert [it.id for it in news.of([card("a")], 32)] == ["a"]


def test_it_is_a_callback_of_the_trainer_and_can_be_derived_from() -> None:
    class Mine(DiagnosisCallback):
        """With a thing of its own."""

    assert isinstance(Mine(every_seconds=60.0), transformers.TrainerCallback)
    assert isinstance(DiagnosisCallback(settings=Settings(max_reward=1.0)), DiagnosisCallback)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"stop_on": {"invalid_rewards"}}, "did you mean 'invalid_reward'?"),
        ({"stop_on": "dead_group"}, "did you mean 'dead_groups'?"),
        ({"settings": Settings(thresholds={"loop": 1})}, "did you mean 'loops'?"),
        ({"every_steps": 0}, "every_steps must be above 0, not 0."),
        (
            {"webhook": "hooks.example.org/s3cret"},
            "webhook must be an http or https address, such as https://example.org/alerts.",
        ),
    ],
)
def test_what_cannot_be_is_refused_at_once_in_one_line(given: dict[str, Any], what: str) -> None:
    with pytest.raises(SettingsError) as error:
        DiagnosisCallback(**given)
    assert what in str(error.value)
    assert "\n" not in str(error.value)


RANK = """
import sys
from pathlib import Path
from logs_ui.recorder import DiagnosisCallback, record
from tests.recorder.api.test_diagnosis_callback import nothing, said_alike
from tests.support.training import make_trainer
trainer = make_trainer(
    record(said_alike, db=sys.argv[1]),
    Path(sys.argv[2]),
    reward_funcs=[nothing],
    warm=0,
    per_device_train_batch_size=4,
    max_steps=600,
    ddp_backend="gloo",
)
trainer.add_callback(DiagnosisCallback(every_steps=1, stop_on="invalid_reward"))
trainer.train()
Path(sys.argv[2], f"stopped-{trainer.accelerator.process_index}").write_text(str(trainer.state.global_step))
"""


@pytest.mark.exhaustive
def test_two_ranks_stop_at_the_same_step(tmp_path: Path) -> None:
    db, out = tmp_path / "a.db", tmp_path / "out"
    run_on_two_ranks(RANK, tmp_path, db, out)
    first, second = ((out / f"stopped-{rank}").read_text() for rank in range(2))
    assert first == second
    assert int(first) < 600
    with sqlite3.connect(f"file:{db}?mode=ro", uri=True) as connection:
        ((state, error),) = connection.execute("select state, error from run").fetchall()
    assert state == "finished"
    assert "invalid_reward" in error
