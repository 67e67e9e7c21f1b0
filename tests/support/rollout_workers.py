"""What processes of a test do with rollouts and runs that they are sent. Imports little, as each starts anew."""

import os
import signal
from typing import Any

from logs_ui.recorder import OpenRollout, OpenRun, current_row, flush

QUESTION: Any = [{"role": "user", "content": "2 + 2?"}]


def open_and_play(run: OpenRun, task: str) -> tuple[OpenRollout, str]:
    """What an agent loop does in a worker."""
    with run.rollout(QUESTION, task=task, step=3, mode="train", group="g", generation=int(task)) as row:
        row.turn(f"answer {task}", action=task, reward=0.5, done=True)
        row.note(by=os.getpid())
    return row, repr(run)


def play(row: OpenRollout, url: str) -> None:
    import openai  # only this one needs it

    with row, openai.OpenAI(base_url=f"{url}/v1", api_key="sk-x") as client:
        client.chat.completions.create(model="m", messages=QUESTION)
        current_row().tag("played")


def begin(row: OpenRollout) -> OpenRollout:
    row.turn("first", action=1, observation="no")
    row.note(worker=True)
    row.tokens([1, 2], [3, 4])
    return row


def go_on(row: OpenRollout) -> OpenRollout:
    row.turn("second", action=2, observation="yes", reward=1.0, done=True, seconds=0.1)
    row.tag("gone on")
    return row


def go_on_and_die(row: OpenRollout, flushed: Any) -> None:
    row.turn("second", action=2, observation="yes", done=True)
    row.score(2.0)
    flushed.send(flush())
    os.kill(os.getpid(), signal.SIGKILL)


def score(row: OpenRollout) -> None:
    row.score(rewards={"right": 1.0, "brief": 0.5}, weights={"brief": 0.1}, advantage=-0.25)
    assert flush()


def no_private(row: dict[str, Any]) -> dict[str, Any] | None:
    return None if row["task"] == "private" else row
