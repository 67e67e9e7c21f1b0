"""A generated run as the recorder is told of it, by the public API."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Self

import httpx

from logs_ui.recorder import flush, start_run, trace_client
from logs_ui.recorder.vocabulary import Mode
from tests.faults.runs import Rollout, Run, Turn


def record(db: Path, run: Run) -> str:
    """Record a run into a database, which may hold others; return its id."""
    opened = start_run(run.name, eval_name=run.eval_name, model=run.model, config=dict(run.config), db=db)
    for name, points in run.scalars.items():
        for step, value in points.items():
            opened.log(step, {name: value})
    with _Model() as model:
        for rollout in run.rollouts:
            _record(opened, model, rollout, run.mode)
        for rollout in run.evaluation:
            _record(opened, model, rollout, Mode.EVAL)
    if run.has_ended:
        opened.finish()
    assert flush(600), "a busy machine takes longer than the end of a run waits"
    _tell_dropped(db, opened.id, run)
    return opened.id


def _record(opened: Any, model: "_Model", rollout: Rollout, mode: Mode) -> None:
    row = opened.rollout(
        list(rollout.prompt), eval_name=rollout.eval, task=rollout.task, step=rollout.step, mode=mode,
        group=f"{rollout.step}/{rollout.group}", generation=rollout.generation, policy_step=rollout.policy_step,
        staleness=rollout.staleness, metadata=dict(rollout.metadata),
    )  # fmt: skip
    with suppress(RuntimeError), row:
        _play(row, model, rollout)
        if rollout.tokens is not None:
            ids = rollout.tokens
            row.tokens(ids.prompt_ids, ids.completion_ids, logprobs=ids.logprobs, mask=ids.mask)
        if rollout.stop is not None:
            row.stop(rollout.stop)
        if rollout.raises is not None:
            raise RuntimeError(rollout.raises)
    if rollout.values is not None:
        row.score(rewards=rollout.values, weights=rollout.weights, advantage=rollout.advantage)


def _play(row: Any, model: "_Model", rollout: Rollout) -> None:
    messages: list[Mapping[str, Any]] = list(rollout.prompt if rollout.sent is None else rollout.sent)
    for turn in rollout.turns:
        text: str | None = turn.text
        if turn.limit is not None:
            model.call(messages, turn)
            text = None
        row.turn(
            text, finish=turn.finish if text is not None else None, action=turn.action, observation=turn.observation,
            reward=turn.reward, done=turn.done, error=turn.error,
        )  # fmt: skip
        messages.append({"role": "assistant", "content": turn.text})
        if turn.observation is not None:
            messages.append({"role": "user", "content": str(turn.observation)})


class _Model:
    """A model behind HTTP that answers what it is told to."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = {}
        self.client = trace_client(httpx.Client(transport=httpx.MockTransport(self._reply)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def _reply(self, _: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=self.answer)

    def call(self, messages: list[Mapping[str, Any]], turn: Turn) -> None:
        message, tokens = {"role": "assistant", "content": turn.text}, turn.tokens or 0
        self.answer = {
            "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "Qwen3-8B",
            "choices": [{"index": 0, "message": message, "finish_reason": turn.finish}],
            "usage": {"prompt_tokens": 900, "completion_tokens": tokens, "total_tokens": 900 + tokens},
        }  # fmt: skip
        body = {"model": "Qwen3-8B", "messages": messages, "max_tokens": turn.limit, "temperature": 1.0}
        self.client.post("http://model/v1/chat/completions", json=body)


def _tell_dropped(db: Path, uid: str, run: Run) -> None:
    """Write the column that only the process of an asynchronous trainer fills in."""
    left_out = [
        (it.dropped, f"{uid}/{run.mode}/{it.step}/{it.group}", it.generation) for it in run.rollouts if it.dropped
    ]
    with closing(sqlite3.connect(db)) as connection, connection:
        connection.executemany('UPDATE evaluation_row SET dropped = ? WHERE "group" = ? AND generation = ?', left_out)
