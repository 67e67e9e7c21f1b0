"""Observations are told apart by their first words."""

from typing import Any

import pytest

from logs_ui.recorder.action_text import ending_key, observation_key, observed_text
from logs_ui.recorder.rows.text_facts import facts


def key(observation: Any) -> str:
    text = observed_text(observation)
    assert text is not None
    return observation_key(text)


@pytest.mark.parametrize(
    ("one", "other", "kinds"),
    [
        ("429 Too Many Requests, id 4f", "429 Too Many Requests, id 9c1", 1),
        ("Error: no place in room_7 now", "Error: no place in room_12 now", 1),
        ("[Errno 28] No space left on device: '/a/b.py'", "[Errno 28] No space left on device: '/c'", 1),
        ("one two three four five six seven", "one two three four five six eight", 1),
        ("one two three four five six", "one two three four five sixty", 2),
        ({"text": "gone", "metadata": {"id": "a"}}, "gone", 1),
        ({"content": [{"type": "text", "text": "gone"}]}, "text gone", 1),
        ("7", "49", 1),
        ("(0 rows)", "(12 rows)", 2),
        ("", " \n", 1),
        ("", "7", 2),
        ({"stdout": "", "code": 0}, "", 1),
        ("\ud800 12", "\ud800 13", 1),
    ],
)
def test_observations_are_alike_if_their_first_words_without_numbers_are(one: Any, other: Any, kinds: int) -> None:
    assert len({key(one), key(other)}) == kinds


@pytest.mark.parametrize(
    ("one", "other", "kinds"),
    [
        ("[output cut: 600 of 913 characters]", "[output cut: 600 of 77 characters]\n", 1),
        ("<clipped>", "\n\n<clipped>", 1),
        ("<clipped>", "(clipped)", 1),
        ("The rest of it was left out", "The rest of this was left out", 2),
        ("Some more was left out here", "And what was left out here", 1),
        ("[cut]", "[done]", 2),
        ("[cut: 600 of 1,204 lines]\n</output>", "[cut: 600 of 77 lines]\n```\n$ ", 1),
    ],
)
def test_endings_are_alike_if_their_last_words_are(one: str, other: str, kinds: int) -> None:
    """Those of the last line or bracket, or the last four."""
    assert len({ending_key("the page " * 20 + one), ending_key("a wall " * 30 + other)}) == kinds


def test_a_short_observation_and_one_without_words_at_its_end_have_no_ending() -> None:
    assert ending_key("a page [cut]") is None
    assert ending_key("a page " * 20 + "[12]") is None


def test_endings_stand_behind_a_blank() -> None:
    page, wall = "a page " * 20 + "[cut]", "a wall"
    assert heard(page, wall) == f"{key(wall)}{key(page)} {ending_key(page)}"


def heard(*observations: Any, action: Any = "go") -> str | None:
    entries = [
        {"turn": n, "text": "I go", "action": action, "observation": it, "metadata": None, "error": None}
        for n, it in enumerate(observations, 1)
    ]
    keys: str | None = facts([], entries, [], None)["observation_keys"]
    return keys


def test_a_rollout_has_each_key_once_and_that_of_most_observations_twice() -> None:
    assert heard("a door", "a wall", "a wall") == key("a wall") + key("a door") + key("a wall") + " "
    assert heard("a door", "a wall") == key("a wall") + key("a door") + " "
    assert {heard(3), heard(None), heard([]), heard({"board": [[0, 1]]})} == {None}
    assert heard("no action found", action=None) is None


def test_a_long_rollout_has_16_keys() -> None:
    assert len(heard(*(f"{'x' * n} door" for n in range(40))) or "") == 16 * 4 + 1
