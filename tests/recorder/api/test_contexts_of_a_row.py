"""What of a row's model calls is its completion: calls that do not go on from one another, several answers to one, and
scopes of no row.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openai
import pytest

from logs_ui.recorder import flush, record, row_scope, start_run, trace_env
from logs_ui.recorder.guard import RAISE_VARIABLE, guard
from tests.recorder.api.test_start_run import QUESTION
from tests.support.late import guess_model
from tests.support.model_server import ModelServer, chat, chat_choice
from tests.support.old_calls import call_as_025
from tests.support.stored import only_run, rows_of

IDS: Any = {"return_token_ids": True}
P, Q = [1, 5, 6], [1, 9, 9, 9, 9]
"""Prompts: a planner's and an actor's."""


def answer(given: list[int], *sampled: list[int], texts: tuple[str, ...] = ("4", "5")) -> dict[str, Any]:
    """To a prompt of these ids, so many choices."""
    choices = [chat_choice(i, content=texts[i]) | {"token_ids": ids} for i, ids in enumerate(sampled)]
    return chat(*choices) | {"prompt_token_ids": given}


Recorded = Callable[..., dict[str, Any]]


@pytest.fixture
def recorded(db: Path, server: ModelServer, client: openai.OpenAI) -> Recorded:
    """Records an explicit rollout that asks once for each reply, and returns its row."""

    def asked(*replies: dict[str, Any], tokenizer: Any = None) -> dict[str, Any]:
        server.gives(*replies)
        with start_run(db=db, tokenizer=tokenizer) as run, run.rollout(QUESTION):
            for _ in replies:
                client.chat.completions.create(model="m", messages=QUESTION, extra_body=IDS)
        (row,) = rows_of(db)
        return row

    return asked


def arrays(row: dict[str, Any]) -> list[list[int]]:
    return [row[name].tolist() for name in ("prompt_ids", "completion_ids", "mask")]


def test_a_second_prompt_is_no_part_of_the_completion(recorded: Recorded) -> None:
    row = recorded(answer(P, [7, 2]), answer(Q, [8, 8, 2]))
    assert arrays(row) == [Q, [8, 8, 2], [1, 1, 1]]
    assert (row["turns"], row["prompt_tokens"], row["completion_tokens"]) == (2, 5, 5)


def test_the_longest_run_of_contexts_that_go_on_is_the_completion(recorded: Recorded) -> None:
    """A planner before and a judge after, and one that was asked in between."""
    row = recorded(
        answer(P, [7, 2]),
        answer(Q, [8, 2]),
        answer([*P, 7, 2, 3], [7, 7, 2]),
        answer([*Q, 8, 2, 4], [3, 2]),
        answer([*Q, 8, 2, 4, 3, 2, 4], [5, 2]),
        answer([9], [6, 2]),
    )
    assert arrays(row) == [Q, [8, 2, 4, 3, 2, 4, 5, 2], [1, 1, 0, 1, 1, 0, 1, 1]]
    assert (row["completion_tokens"], row["env_tokens"]) == (13, 2)


def test_of_a_window_that_moves_on_the_last_call_is_kept(recorded: Recorded) -> None:
    row = recorded(answer([1, 2, 3], [4, 2]), answer([1, 3, 4, 2, 5], [6, 2]), answer([1, 4, 2, 5, 6, 2], [7, 2]))
    assert arrays(row) == [[1, 4, 2, 5, 6, 2], [7, 2], [1, 1]]
    assert row["completion_tokens"] == 6


def test_an_answer_that_was_tokenised_anew_was_sampled_by_nobody(recorded: Recorded) -> None:
    """Nor does a longer one that was let go of hide what stands there instead."""
    row = recorded(answer(P, [7, 8, 9, 9, 9, 2]), answer([*P, 11, 2, 3], [4, 2]))
    assert arrays(row) == [P, [11, 2, 3, 4, 2], [0, 0, 0, 1, 1]]
    assert row["completion_tokens"] == 8


def test_an_answer_without_its_end_token_ends_before_it(recorded: Recorded) -> None:
    row = recorded(answer(P, [7, 8, 2]), answer([*P, 7, 8, 3], [4, 2]))
    assert arrays(row) == [P, [7, 8, 3, 4, 2], [1, 1, 0, 1, 1]]


@pytest.mark.parametrize("used", [0, 1])
def test_of_several_answers_the_one_that_a_later_context_goes_on_from_is_the_turn(
    recorded: Recorded, used: int
) -> None:
    sampled = [[7, 2], [8, 2]]
    row = recorded(answer(P, *sampled), answer([*P, *sampled[used], 3], [4, 2]))
    assert arrays(row) == [P, [*sampled[used], 3, 4, 2], [1, 1, 0, 1, 1]]
    assert (row["turns"], row["completion_tokens"]) == (2, 6)
    first, second = (entry["generation"] for entry in row["actions"])
    assert (first["samples"], first["used"]) == (2, used)
    assert "samples" not in second


def test_of_several_answers_of_which_none_is_known_to_be_used_the_first_is_told(recorded: Recorded) -> None:
    row = recorded(answer(P, [7, 2], [8, 8, 2]), tokenizer=guess_model.make_tokenizer())
    assert arrays(row) == [P, [7, 2], [1, 1]]
    assert (row["turns"], row["completion_tokens"]) == (1, 5)
    (entry,) = row["actions"]
    assert (entry["generation"]["samples"], entry["generation"]["used"]) == (2, None)
    assert [message["role"] for message in row["messages"]] == ["user", "assistant"]


def test_of_several_texts_the_one_that_was_sent_back_is_the_turn(
    db: Path, server: ModelServer, client: openai.OpenAI
) -> None:
    choices = [chat_choice(i, ids=False, content=text) for i, text in enumerate(("low", "high"))]
    server.gives(chat(*choices, ids=False), chat(ids=False))
    with start_run(db=db) as run, run.rollout(QUESTION):
        client.chat.completions.create(model="m", messages=QUESTION, n=2)
        said: Any = [*QUESTION, {"role": "assistant", "content": "high"}, {"role": "user", "content": "why?"}]
        client.chat.completions.create(model="m", messages=said)
    (row,) = rows_of(db)
    assert [entry["text"] for entry in row["actions"]] == ["high", "4"]
    assert (row["turns"], row["actions"][0]["generation"]["used"]) == (2, 1)


ROWS = {"prompt_ids": [[1, 2]] * 4, "completion_ids": [[7, 8]] * 4, "logprobs": None}


def scoped(db: Path, index: Any) -> list[dict[str, Any]]:
    """Four rows, of which the third plays in its own scope, and then another that says `index`."""

    def function(prompts: list[Any], args: Any, processing_class: Any) -> Any:
        for place in (2, index):
            with row_scope(place) as row:
                env = trace_env(SimpleNamespace(reset=dict, step=lambda _: {"reward": 1.0, "done": True}))
                env.reset()
                env.step(place)
                row.tag("played")
        return ROWS

    call_as_025(record(function, db=db, announce=False), ["p", "q"], num_generations=2)
    assert flush()
    return rows_of(db)


@pytest.mark.exhaustive
@pytest.mark.parametrize("index", [-1, "0", True, 10, 4, 1.0, None])
def test_calls_in_the_scope_of_no_row_are_nobodys(
    db: Path, index: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RAISE_VARIABLE, "0")
    monkeypatch.setattr(guard, "_seen", set())
    with caplog.at_level(logging.ERROR, "logs_ui"):
        rows = scoped(db, index)
    assert [row["env_reward_sum"] for row in rows] == pytest.approx([np.nan, np.nan, 1.0, np.nan], nan_ok=True)
    assert [row["metadata"].get("tags") for row in rows] == [None, None, ["played"], None]
    assert only_run(db).unattributed_calls == 3
    (said,) = [record.getMessage() for record in caplog.records]
    assert "row_scope() got" in said
    assert "0 to 3" in said
    assert "\n" not in said


def test_a_numpy_index_is_one(db: Path) -> None:
    rows = scoped(db, np.int64(3))
    assert [row["metadata"].get("tags") for row in rows] == [None, None, ["played"], ["played"]]
    assert only_run(db).unattributed_calls == 0


def test_answers_in_the_scope_of_no_row_are_not_even_its_own_that_holds_them(
    db: Path, server: ModelServer, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a function says stands above what tokens would tell."""
    server.gives(answer([1, 2], [7, 8]))

    def function(prompts: list[Any], args: Any, processing_class: Any) -> Any:
        with row_scope(99):
            client.chat.completions.create(model="m", messages=QUESTION, extra_body=IDS)
        return {"prompt_ids": [[1, 2]], "completion_ids": [[7, 8]], "logprobs": None}

    monkeypatch.setenv(RAISE_VARIABLE, "0")
    call_as_025(record(function, db=db, announce=False), ["p"])
    assert flush()
    (row,) = rows_of(db)
    assert "attribution" not in row["metadata"]
    assert (row["stop_reason"], only_run(db).unattributed_calls) == ("not_recorded", 1)
