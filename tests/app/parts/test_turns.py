"""A turn in one line: what it says of an action, of its outcome, and of what was not recorded."""

from typing import Any

import pytest

from logs_ui.app.parts import turns
from logs_ui.app.parts.timeline import make_timeline
from logs_ui.recorder.queries import Rollout
from logs_ui.recorder.storage.tables import EvaluationRow

BASH = {"name": "bash", "arguments": {"command": "pytest -q"}}
HASHES = "a" * 64, "b" * 64


def line(**recorded: Any) -> turns.TurnLine:
    """Return the line of a turn whose call recorded this."""
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "I test."}]
    sent = [{"turn": 1, "action": BASH} | recorded]
    row = EvaluationRow(turns=1)  # type: ignore[call-arg]  # nothing else of it is looked at
    (turn,) = turns.turns_of(make_timeline(Rollout(row, messages, sent, {}, {}, None)))
    return turn.line


@pytest.mark.parametrize(
    ("observation", "error", "outcome", "failure"),
    [
        ({"stdout": "ok", "exit_code": 0}, None, "exit 0", ""),
        ({"stdout": "", "stderr": "no", "exit_code": 2}, None, "exit 2", "exit_code 2"),
        ({"output": "no such file", "returncode": 127}, None, "exit 127", "returncode 127"),
        ({"error": {"message": "no\nsuch tool"}}, None, "error", "no"),
        (None, "TimeoutError: 60 s", "error", "TimeoutError: 60 s"),
        ("Error: exit code 1", None, "", ""),
        ({"text": "a page"}, None, "", ""),
        ({"error": None}, None, "", ""),
    ],
)
def test_the_outcome_is_that_of_recorded_fields(
    observation: Any, error: str | None, outcome: str, failure: str
) -> None:
    found = line(observation=observation, error=error)
    assert (found.outcome, found.failure) == (outcome, failure)


def test_a_line_has_tool_arguments_size_and_seconds() -> None:
    found = line(observation={"stdout": "1 passed"}, seconds=2.5, reward=0.5)
    assert (found.tool, found.action) == ("bash", "bash  pytest -q")
    assert (found.size, found.seconds, found.reward) == (8, 2.5, 0.5)


@pytest.mark.parametrize("seconds", [None, 0.0])
def test_what_was_not_recorded_is_none(seconds: float | None) -> None:
    found = line(seconds=seconds)
    assert (found.size, found.seconds, found.reward, found.outcome, found.images) == (None, None, None, "", "")


@pytest.mark.parametrize(
    ("seen", "images"),
    [
        ([{"$image": HASHES[0]}], "1 image"),
        ([{"$image": HASHES[0]}, {"$image": HASHES[1]}], "2 images"),
        ([{"$image": HASHES[0]}, {"$image": None, "note": "not kept: it is larger"}], "2 images, 1 not kept"),
        ([{"$image": None}], "1 image not kept"),
    ],
)
def test_images_are_counted_and_those_that_were_not_kept(seen: list[Any], images: str) -> None:
    assert line(observation={"shots": seen}).images == images
