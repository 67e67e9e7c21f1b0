"""Tokens that come from a call that nothing records: the run says so."""

import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import requests
from fastapi.testclient import TestClient

from logs_ui.app.main import create_app
from logs_ui.recorder import flush, load_runs, record, start_run, trace_client
from tests.support.late import guess_model
from tests.support.model_server import ModelServer, completion
from tests.support.old_calls import StandInTrainer, call_as_025, generating
from tests.support.stored import only_run

PROMPT, ANSWER = [1, 5, 6], [7, 2]
ASKED: Any = {"model": "tiny", "prompt": PROMPT, "return_token_ids": True}


def by_urllib(url: str) -> None:
    headers = {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(url, orjson.dumps(ASKED), headers)).read()  # noqa: S310


def traced(url: str) -> None:
    trace_client(requests.Session()).post(url, json=ASKED)


def played(db: Path, server: ModelServer, ask: Callable[[str], object], batches: int = 2) -> None:
    """Batches of three rows each."""
    server.gives(completion("4", prompts=(PROMPT,)))

    def rollout(given: list[Any], _args: Any, _processing: Any) -> dict[str, Any]:
        for _ in given:
            ask(f"{server.url}/v1/completions")
        return {"prompt_ids": [PROMPT] * 3, "completion_ids": [ANSWER] * 3, "logprobs": None}

    recorded, trainer = record(rollout, db=db, announce=False), StandInTrainer(guess_model.make_tokenizer())
    for _ in range(batches):
        with generating(trainer):
            recorded(["Guess."] * 3, trainer.args, trainer.processing_class)
    assert flush()


def test_a_run_and_its_page_say_that_sampling_was_not_seen(db: Path, server: ModelServer) -> None:
    played(db, server, by_urllib)
    run = only_run(db)
    assert (run.unseen_sampling, run.unattributed_calls) == (6, 0)
    assert load_runs(db).unseen_sampling.tolist() == [6]
    with TestClient(create_app(db), base_url="http://127.0.0.1") as browser:
        page = browser.get(f"/runs/{run.uid}/overview").text
    assert "Sampling was not seen" in page
    assert "6 rollouts returned tokens, but no call of a model was recorded" in page


def test_one_whose_calls_are_recorded_does_not(db: Path, server: ModelServer) -> None:
    played(db, server, traced)
    assert only_run(db).unseen_sampling is None


@pytest.mark.parametrize(
    ("asked", "answers", "unseen"),
    [
        ([3], [[7, 2], [8, 2], [9, 2]], 2),  # other clients sampled for two rows
        ([3], [[7, 2], [7, 2], [9, 2]], 1),  # an answer that two rows have
        ([3, 4], [[7, 2], [8, 2], [9, 2]], 1),  # the second call's answer may be a row's, tokenised again
    ],
)
def test_rows_without_a_call_are_counted_beside_others(
    db: Path, server: ModelServer, asked: list[int], answers: list[list[int]], unseen: int
) -> None:
    server.gives(*[completion(str(it), prompts=([it],)) for it in asked])

    def rollout(given: list[Any], _args: Any, _processing: Any) -> dict[str, Any]:
        for it in asked:
            trace_client(requests.Session()).post(f"{server.url}/v1/completions", json=ASKED | {"prompt": [it]})
        return {"prompt_ids": [[3]] * len(given), "completion_ids": answers, "logprobs": None}

    call_as_025(record(rollout, db=db, announce=False), ["Guess."] * 3, guess_model.make_tokenizer())
    assert flush()
    assert only_run(db).unseen_sampling == unseen


def test_so_does_one_that_is_played_by_hand(db: Path) -> None:
    with start_run(db=db) as run:
        with run.rollout("Guess.") as row:
            row.tokens(PROMPT, ANSWER)
        with run.rollout("Guess.") as row:
            row.turn("4")
            row.tokens(PROMPT, ANSWER)
        with run.rollout("Guess."):
            pass  # it has no tokens
    assert only_run(db).unseen_sampling == 1
