"""Groups of agents for pages: one of a coding agent with exit codes, one of a web agent with screenshots."""

import json
from pathlib import Path
from random import Random
from typing import Any

from logs_ui.recorder import load_run, start_run
from tests.faults.realistic.agents import call, screenshot
from tests.faults.realistic.generating import observed

PARTS_AT = 9
"""Turn at which the actions of the coding agents part."""


def record_coding(db: Path, turns: int = 40, size: int = 2) -> list[int]:
    """Record agents that write other words at each turn, and act alike before `PARTS_AT`; return the rollouts' ids.

    Every fifth command fails with the exit code 1. Seconds are recorded for commands alone, not for edits.
    """
    with start_run("coding", db=db) as run:
        for generation in range(size):
            alike, own = Random(1), Random(generation + 2)
            with run.rollout("Repair flask.", group="flask-5014", generation=generation) as row:
                for number in range(1, turns + 1):
                    dice = alike if number < PARTS_AT else own
                    line, output = dice.randrange(900), observed(dice, 60 * number)
                    command = call("bash", command=f"sed -n {line},{line + 40}p src/flask/app.py")
                    edit = call("edit", path="src/flask/app.py", old=f"x{line}", new="y")
                    is_edit, code = number % 4 == 0, int(number % 5 == 0)
                    seen: dict[str, Any] = {"edited": True} if is_edit else {"stdout": output, "exit_code": code}
                    action = edit if is_edit else command
                    row.turn(
                        f"I look at {own.randrange(10**6)}.\n<tool_call>\n{json.dumps(action)}\n</tool_call>",
                        action=action,
                        observation=seen,
                        seconds=None if is_edit else 0.25 * number,
                    )
            row.score(1.0 - generation)
    return [int(row_id) for row_id in load_run(db=db)["id"]]


def record_web(db: Path, turns: int = 5) -> list[int]:
    """Record two agents that click alike and see the same text, with another screenshot from the third turn on; that of
    the fifth is too large to be kept. Return the rollouts' ids.
    """
    with start_run("web", db=db) as run:
        for generation in range(2):
            with run.rollout("Book a flight.", group="flight", generation=generation) as row:
                for number in range(1, turns + 1):
                    shot: Any = screenshot(Random(f"{number} {generation if number > 2 else 0}"))
                    if number == turns:
                        shot = {"$image": None, "width": 9_000, "height": 9_000, "note": "not kept: too large"}
                    row.turn(
                        f"I click {number}.",
                        action=call("click", x=number, y=9 if number < turns else generation),
                        observation={"url": f"https://air.example/{number}", "screenshot": shot},
                    )
            row.score(1.0 - generation)
    return [int(row_id) for row_id in load_run(db=db)["id"]]
