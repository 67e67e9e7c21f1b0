"""No secret is stored, wherever it comes from: by its name, in a URL, in a header, in a message or a traceback."""

import time
from pathlib import Path
from typing import Any

import pytest
import requests
from sqlmodel import Session, col, select

from logs_ui.recorder import current_row, flush, load_run, record, row_scope, start_run, trace_client, trace_env
from logs_ui.recorder.redaction import masked, without_secrets
from logs_ui.recorder.storage.database import reading_engine
from logs_ui.recorder.storage.tables import Run
from tests.recorder.rows.test_jobs import recorded
from tests.support.old_calls import call_as_025

NO_SERVER = "http://127.0.0.1:9/v1/completions"


@pytest.mark.parametrize(
    "name",
    [
        "api_key", "apiKey", "openaiApiKey", "OPENAI_API_KEY", "x-api-key", "api_keys", "aws_secret_access_key",
        "token", "hub_token", "HFToken", "accessToken", "password", "passwd", "db.password", "client_secret", "secrets",
        "Authorization", "proxy-authorization", "Set-Cookie", "credentials", "auth", "passphrase", "privateKey",
    ],
)  # fmt: skip
def test_what_is_named_like_a_secret_is_masked_at_any_depth(name: str) -> None:
    for secret in ("s", ["s"], {"value": "s"}):
        assert masked({"a": [{name: secret, "b": 1}]}) == {"a": [{name: "***", "b": 1}]}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 5), ("token_ids", [1, 2]), ("prompt_tokens", 7), ("eos_token", "</s>"), ("padToken", "<pad>"),
        ("image_token", "<image>"), ("tokens", ["a"]), ("tokenizer", "t"), ("token", 17), ("author", "me"),
        ("monkey", "m"), ("key", "k"), ("secretary", "s"), ("use_auth", True), ("token", None), ("password", ""),
    ],
)  # fmt: skip
def test_what_only_sounds_like_one_is_kept(name: str, value: Any) -> None:
    assert masked({name: value}) == {name: value}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("GET /ws?token=SECRET HTTP/1.1", "GET /ws?token=*** HTTP/1.1"),
        ("see http://h/v1?a=1&api_key=SECRET&b=2 (refused)", "see http://h/v1?a=1&api_key=***&b=2 (refused)"),
        ("https://h/?key=SECRET", "https://h/?key=***"),
        ("https://h/?openaiApiKey=SECRET", "https://h/?openaiApiKey=***"),
        ("https://h/?X-Amz-Signature=SECRET", "https://h/?X-Amz-Signature=***"),
        ("to postgres://me:SECRET@h:5432/d failed", "to postgres://me:***@h:5432/d failed"),
        ("redis://:SECRET@h", "redis://:***@h"),
        ("clone https://SECRET@github.com/a/b", "clone https://***@github.com/a/b"),
    ],
)
def test_secrets_in_urls_are_masked_in_any_text(text: str, kept: str) -> None:
    assert without_secrets(text) == kept
    assert masked({"value": [text]}) == {"value": [kept]}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("client = OpenAI(api_key='SECRET', timeout=3)", "client = OpenAI(api_key='***', timeout=3)"),
        ("input_value={'apiKey': 'SECRET', 'n': 1}", "input_value={'apiKey': '***', 'n': 1}"),
        ("HF_TOKEN=SECRET OPENAI_KEY=SECRET python", "HF_TOKEN=*** OPENAI_KEY=*** python"),
        ("Authorization: Bearer SECRET123", "Authorization: Bearer ***"),
        ("connect failed: password=hunter2 user=ann", "connect failed: password=*** user=ann"),
        ("DSN 'host=db password = hunt.er2!' refused", "DSN 'host=db password = ***' refused"),
        ("(api_key=xyz, hub-token=abc)", "(api_key=***, hub-token=***)"),
    ],
)
def test_secrets_in_code_and_headers_are_masked_in_errors(text: str, kept: str) -> None:
    assert without_secrets(text) == kept


@pytest.mark.parametrize(
    "text",
    [
        "Unexpected token: '<' in JSON at position 3", "KeyError: 'token'", "max_tokens='5'", "eos_token='</s>'",
        "token=tokenizer.encode(text)", "http://127.0.0.1:8000/a@b", "git@github.com:a/b", "/find?monkey=1&sort=up",
        "a==b ? c : d; e=f", "ssh://git@github.com/a",
        "login(token=token, password=self.password)", "token=None", "if token == other", "secret=secrets[0]",
    ],
)  # fmt: skip
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert without_secrets(text) == text
    assert masked([text]) == [text]


@pytest.mark.parametrize(
    "unit", ["://", "://a:", "?a", "?a=", "token", "a-", "key='", "A", "bearer ", "authorization: ", "password="]
)
def test_no_text_takes_long(unit: str) -> None:
    text = unit * (200_000 // len(unit))
    began = time.process_time()
    without_secrets(text)
    assert time.process_time() - began < 2


class Environment:
    def reset(self, **_: Any) -> str:
        return "go"

    def step(self, action: Any) -> str:
        return "on"


@trace_env
def search(query: str, **_: Any) -> str:
    return query


def stored(db: Path) -> str:
    assert flush()
    with Session(reading_engine(db)) as session:
        runs = session.exec(select(Run).order_by(col(Run.id))).all()
    return repr(load_run(db=db).to_dict("records")) + repr([run.model_dump() for run in runs])


def test_a_row_holds_no_secret(db: Path, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("started\nGET /ws?token=SECRET HTTP/1.1\n")

    def rollout_func(prompts: list[Any], args: Any, processing_class: Any) -> Any:
        with row_scope(0):
            env = trace_env(Environment())
            env.reset(api_key="SECRET", deep={"openaiApiKey": "SECRET"})
            env.step({"query": "q", "password": "SECRET", "tried": [{"apiKey": "SECRET"}]})
            search("q", api_key="SECRET", url="https://h/?key=SECRET")
            current_row().note(hubToken="SECRET", seen="https://me:SECRET@h")
            session = trace_client(requests.Session())
            session.post(f"{NO_SERVER}?api_key=SECRET", json={"prompt": "a", "model": "m"})

    settings = {"hub_token": "SECRET", "kwargs": {"apiKey": "SECRET", "tracker": "https://u:SECRET@h/x"}, "beta": 0.5}
    with pytest.raises(requests.ConnectionError, match="SECRET"):
        call_as_025(record(rollout_func, db=db, server_log=log, announce=False), ["p"], to_dict=lambda: settings)
    found = stored(db)
    assert "SECRET" not in found
    (row,) = load_run(db=db).to_dict("records")
    assert "api_key=***" in row["error"]
    assert "api_key=***" in row["metadata"]["traceback"]
    assert row["metadata"]["server_log"] == "started\nGET /ws?token=*** HTTP/1.1\n"
    assert row["metadata"]["notes"] == {"hubToken": "***", "seen": "https://me:***@h"}
    assert row["actions"][0]["metadata"]["reset"] == {"api_key": "***", "deep": {"openaiApiKey": "***"}}
    assert row["actions"][1]["action"] == {"query": "q", "password": "***", "tried": [{"apiKey": "***"}]}
    assert "'tracker': 'https://u:***@h/x'" in found
    assert "'beta': 0.5" in found


def test_an_explicit_run_holds_no_secret(db: Path) -> None:
    config = {"endpoint": "https://u:SECRET@h/x", "lr": 1}

    def loop() -> None:
        with start_run(config=config, db=db) as run:
            with run.rollout("a", metadata={"token": "SECRET", "max_tokens": 3}) as row:
                row.turn("b", action={"api_key": "SECRET"}, error="GET /?token=SECRET failed")
            raise ValueError("https://u:SECRET@h/x refused")

    with pytest.raises(ValueError, match="SECRET"):
        loop()
    assert "SECRET" not in stored(db)
    (row,) = load_run(db=db).to_dict("records")
    assert row["metadata"]["max_tokens"] == 3
    assert row["error"] == "GET /?token=*** failed"


def test_a_dataset_column_and_what_a_function_returns_hold_no_secret(db: Path) -> None:
    output = {"prompt_ids": [[1]], "completion_ids": [[2]], "logprobs": [[0.0]], "used": [{"api_key": "SECRET"}]}
    row = recorded(db, output, columns={"password": "SECRET", "level": 3})
    assert row["metadata"]["dataset"] == {"password": "***", "level": 3}
    assert row["metadata"]["used"] == {"api_key": "***"}
