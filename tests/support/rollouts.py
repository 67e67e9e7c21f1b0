"""Parts for tests of rollout functions: a real OpenEnv server with moods, a scripted model, a trainer's
outside.
"""

import asyncio
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import uvicorn

from logs_ui.rollout.models.backends import Sampling
from logs_ui.rollout.models.token_episode import Answer
from tests.support.late import guess_model
from tests.support.model_server import completion, model_server

FOR_EVER = 60.0


def refusing(kind: type[Exception], message: str) -> AbstractContextManager[object]:
    """Return a context that must raise an exception of this kind, whose message is one line with these words in it."""
    return pytest.raises(kind, match=rf"\A[^\n]*{re.escape(message)}[^\n]*\Z")


class Moody:
    """What the moody environments were asked for."""

    played: ClassVar[list[tuple[str, str]]] = []  # (task, message) of each step, over all sessions
    begun: ClassVar[Counter[str]] = Counter()  # resets, by task


@contextmanager
def served_app(app: Any, port: int = 0) -> Iterator[str]:
    """Yield the address at which an application is served in a thread; port 0 is any that is free."""
    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="critical")
    listener = config.bind_socket()
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join()
        listener.close()


@contextmanager
def moody_server(sessions: int = 64, port: int = 0) -> Iterator[str]:
    """Yield the address of the server."""
    Moody.played.clear()
    Moody.begun.clear()
    from tests.support.moody import moody_app

    with served_app(moody_app(sessions), port) as url:
        yield url


class Scripted:
    """A `Model` that answers row `row`'s n-th turn, from 0, with `says(row, n)`, once all rows that it knows of wait.

    Attributes:
        batches: rows of each generation.
        sequences: of each row, the last context with the answer after it.
        limits: the `max_tokens` of each answer.
    """

    def __init__(self, says: Callable[[int, int], str]) -> None:
        self.tokenizer = guess_model.make_tokenizer()
        self.batches: list[list[int]] = []
        self.sequences: dict[int, list[int]] = {}
        self.limits: list[int] = []
        self.samplings: list[Sampling] = []
        self._says = says
        self._turns: Counter[int] = Counter()
        self._live: set[int] = set()
        self._waiting: dict[int, asyncio.Event] = {}

    def enter(self, row: int) -> None:
        assert row not in self._live
        self._live.add(row)
        self._turns[row] = 0

    async def answer(self, row: int, context: Sequence[int], sampling: Sampling) -> Answer:
        assert row in self._live
        self._waiting[row] = asyncio.Event()
        turn = self._waiting[row]
        self._go_on()
        await turn.wait()
        ids = [*self.tokenizer(self._says(row, self._turns[row]))["input_ids"], self.tokenizer.eos_token_id]
        self._turns[row] += 1
        cut = ids[: sampling.max_tokens]
        self.limits.append(sampling.max_tokens)
        self.samplings.append(sampling)
        self.sequences[row] = [*context, *cut]
        text = self._says(row, self._turns[row] - 1)
        return Answer(cut, [-0.5] * len(cut), "stop" if len(cut) == len(ids) else "length", text)

    async def leave(self, row: int) -> None:
        self._live.remove(row)
        self._go_on()

    def _go_on(self) -> None:
        if self._live and self._live <= self._waiting.keys():
            self.batches.append(sorted(self._waiting))
            for turn in self._waiting.values():
                turn.set()
            self._waiting = {}


def script(*answers: str) -> Callable[[int, int], str]:
    """Return what a `Scripted` model says: these answers, one a turn."""
    return lambda _, turn: answers[turn]


@contextmanager
def served(says: str) -> Iterator[str]:
    """Yield the address of a server of the model "tiny", which always says the same, with token ids as vLLM's."""
    tokenizer = guess_model.make_tokenizer()
    ids = [*tokenizer(says)["input_ids"], tokenizer.eos_token_id]

    def reply(asked: dict[str, Any]) -> dict[str, Any]:
        prompt = asked["prompt"]
        given = tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt
        cut = ids[: asked["max_tokens"]]
        made = completion(says, prompts=(given,))
        made["choices"][0] |= {
            "finish_reason": "stop" if len(cut) == len(ids) else "length",
            "logprobs": {"token_logprobs": [-0.001] * len(cut)},
            "token_ids": cut,
        }
        return made

    with model_server() as server:
        server.gives(reply)
        yield f"{server.url}/v1"


def a_trainer(model: Any, *, generations: int = 1, budget: int = 200) -> Any:
    """The part of a trainer that a rollout function sees."""
    return SimpleNamespace(
        processing_class=model.tokenizer,
        args=SimpleNamespace(max_completion_length=budget),
        model=SimpleNamespace(training=True),
        num_generations=generations,
        num_generations_eval=generations,
        accelerator=SimpleNamespace(num_processes=1, process_index=0),
        state=SimpleNamespace(global_step=0),
    )


def prompts(count: int) -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": f"Find number {i}"}] for i in range(1, count + 1)]
