"""Tokens that are trained on and that no generation sampled are counted, and so is what each generation sampled."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import openai
import pandas as pd

from logs_ui.recorder import load_run, record, start_run
from tests.support.late import guess_model
from tests.support.model_server import ModelServer, Reply, chat, chat_choice
from tests.support.old_calls import StandInTrainer, generating
from tests.support.stored import rows_of

PROMPT, FIRST, HEARD, SECOND = [4, 5], [20, 21, 2], [8, 9], [22, 2]
WHOLE = [*FIRST, *HEARD, *SECOND]
ENV_MASK = [1, 1, 1, 0, 0, 1, 1]
MESSAGES: Any = [{"role": "user", "content": "Guess."}]
REFUSED = Reply({"error": {"message": "no GPU is left", "code": 503}}, status=503)


def reply(context: list[int], sampled: list[int] | None) -> dict[str, Any]:
    ids = {"token_ids": sampled, "logprobs": None}
    return chat(chat_choice() | ids) | {"prompt_token_ids": None if sampled is None else context}


TWO_TURNS = [reply(PROMPT, FIRST), reply([*PROMPT, *FIRST, *HEARD], SECOND)]
ONE_TURN = [reply(PROMPT, FIRST)]


# Replies, the completion and its mask; how many tokens nobody sampled, and how many each generation did.
CASES: list[tuple[list[Any], list[int], list[int] | None, int | None, list[int]]] = [
    (TWO_TURNS, WHOLE, ENV_MASK, 0, [3, 2]),
    (TWO_TURNS, WHOLE, None, 2, [3, 2]),  # the environment's tokens are trained on
    (TWO_TURNS, WHOLE, [1, 1, 1, 0, 1, 1, 1], 1, [3, 2]),
    (TWO_TURNS, WHOLE, [0, 0, 0, 0, 0, 1, 1], 0, [3, 2]),  # less than what was sampled
    (ONE_TURN, FIRST, None, 0, [3]),
    (ONE_TURN, FIRST[:2], None, 0, [3]),  # without its end token
    (ONE_TURN, [*FIRST, 7, 7], None, 2, [3]),
    ([REFUSED], [2], None, 1, []),  # what the function returned instead
    ([reply(PROMPT, None)], FIRST, None, None, [2]),  # the server counts, and returns no ids
    ([], FIRST, None, None, []),  # no generation was seen
]


def test_trained_tokens_that_nobody_sampled_are_counted(db: Path, server: ModelServer, client: openai.OpenAI) -> None:
    waiting, trainer = iter(CASES), StandInTrainer(guess_model.make_tokenizer())

    def rollout(_given: list[Any], _args: Any, _processing: Any) -> dict[str, Any]:
        replies, completion, mask, *_ = next(waiting)
        server.gives(*replies, REFUSED)
        for _ in replies:
            with suppress(openai.InternalServerError):
                client.chat.completions.create(model="tiny", messages=MESSAGES)
        output = {"prompt_ids": [PROMPT], "completion_ids": [completion], "logprobs": None}
        return output if mask is None else {**output, "env_mask": [mask]}

    recorded = record(rollout, db=db, announce=False)
    for _ in CASES:
        with generating(trainer):
            recorded([MESSAGES], trainer.args, trainer.processing_class)
    rows = rows_of(db)
    for row, (_, _, _, unsampled, tokens) in zip(rows, CASES, strict=True):
        assert (None if pd.isna(row["unsampled_tokens"]) else row["unsampled_tokens"]) == unsampled
        made = [action["generation"] for action in row["actions"] if "generation" in action]
        assert [one["tokens"] for one in made if "tokens" in one] == tokens
    assert len(load_run(db=db, where="unsampled_tokens>0")) == sum(bool(unsampled) for *_, unsampled, _ in CASES)


def test_so_are_those_of_a_rollout_by_hand(db: Path) -> None:
    with start_run(db=db) as run, run.rollout("p") as row:
        row.turn("4", tokens=12)
        row.turn("5")
        row.tokens([1], range(5))
    (stored,) = load_run(db=db).to_dict("records")
    assert [action.get("generation", {}).get("tokens") for action in stored["actions"]] == [12, None]
    assert pd.isna(stored["unsampled_tokens"]), "without ids that is not known"
