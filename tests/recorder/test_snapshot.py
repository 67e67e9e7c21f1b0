"""Snapshots of values that hold themselves, hold each other, or fight back; against JSON written by hand."""

import enum
from collections import namedtuple
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from logs_ui.recorder import snapshot as clean
from logs_ui.recorder import start_run
from logs_ui.recorder.snapshot import is_shallow, plain, snapshot
from tests.support.exhaustive import marked_cases

LONE = "\ud83d"  # sends a value the careful way


def tree(children: int) -> dict[str, Any]:
    root: dict[str, Any] = {"children": []}
    root["children"] += [{"parent": root} for _ in range(children)]
    return root


def everyone_knows_everyone(people: int) -> list[Any]:
    crowd: list[Any] = [[] for _ in range(people)]
    for person in crowd:
        person.extend(crowd)
    return crowd


def pairs(depth: int) -> list[Any]:
    pair: list[Any] = [0]
    for _ in range(depth):
        pair = [pair, pair]
    return pair


class Node:
    """As a pydantic model: shown one level at a time."""

    shown = 0

    def __init__(self, inside: Any) -> None:
        self.inside = inside

    def model_dump(self) -> Any:
        Node.shown += 1
        return self.inside


def shared_nodes(depth: int) -> Node:
    node = Node(0)
    for _ in range(depth):
        node = Node([node, node])
    return node


Named = namedtuple("Named", "inside")  # noqa: PYI024 - it has no types to name


@dataclass
class Record:
    """orjson would write these itself, however often they are shared."""

    left: Any
    right: Any = None
    here: list[int] = field(default_factory=lambda: [1])


def shared_records(depth: int) -> Record:
    record = Record(0)
    for _ in range(depth):
        record = Record(record, record)
    return record


def test_a_value_within_itself_is_named_there_and_whole_elsewhere() -> None:
    inside = {"parent": "<cycle>"}
    assert orjson.loads(snapshot(tree(3))) == {"children": [inside] * 3}
    twice = [1]
    assert plain({"a": twice, "b": twice}) == {"a": [1], "b": [1]}


BRANCHING = {
    "tree": tree(50),
    "crowd": everyone_knows_everyone(30),
    "pairs": pairs(25),
    "careful": {"also told the careful way": LONE, "pairs": pairs(200)},
    "objects": shared_nodes(38),
    "deep objects": shared_nodes(3_000),
    "named": Named(pairs(25)),
    "many named": [Named(pairs(20)) for _ in range(20)],
    "records": shared_records(38),
    "wide": [[0] * 4_000] * 4_000,
    "wide and deep": [dict.fromkeys("abc", [0] * 3_000)] * 3_000,
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", marked_cases([*BRANCHING], 3, 8))
def test_a_snapshot_is_no_larger_than_its_limit_however_a_value_branches(name: str) -> None:
    value = BRANCHING[name]
    Node.shown = 0
    written = snapshot(value)
    orjson.loads(written)
    assert len(written) < 25_000_000
    assert Node.shown <= 200_002


@pytest.mark.exhaustive
def test_a_large_value_that_shares_nothing_is_kept_whole() -> None:
    numbers = [[[i, 0.5] for i in range(2_000)] for _ in range(100)]
    assert orjson.loads(snapshot(numbers)) == numbers


def test_the_careful_way_opens_no_more_after_its_limit_but_keeps_places_and_numbers() -> None:
    value = [{"text": LONE}, list(range(200_000)), [1], 2]
    assert orjson.loads(snapshot(value)) == [{"text": "\ufffd"}, list(range(200_000)), "<list>", 2]


class Broken:
    def __getattr__(self, name: str) -> Any:
        raise ZeroDivisionError(name)

    def __repr__(self) -> str:
        raise ZeroDivisionError


class BrokenMethod:
    def model_dump(self) -> Any:
        raise ValueError("circular reference")


class BrokenMapping(dict[str, Any]):
    def items(self) -> Any:
        raise KeyError("gone")


class Unspeakable:
    __hash__ = object.__hash__

    def __str__(self) -> str:
        raise KeyError("no words")


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (Broken(), "<Broken>"),
        (BrokenMethod(), "<BrokenMethod>"),
        ({"a": BrokenMethod(), "b": 1}, {"a": "<BrokenMethod>", "b": 1}),
        ([BrokenMapping(a=LONE), 1], ["<BrokenMapping>", 1]),
        ([{Unspeakable(): 1}, 1], ["<dict>", 1]),
        (10**5_000, "<int>"),
    ],
    ids=["everything", "method", "member", "mapping", "key", "digits"],
)
def test_what_a_values_own_methods_raise_costs_its_value_only(value: Any, kept: Any) -> None:
    assert orjson.loads(snapshot(value)) == kept


class Level(enum.IntEnum):
    HIGH = 3


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (np.float64(0.5), 0.5),
        (np.float64("nan"), None),
        (Level.HIGH, 3),
        (np.arange(3), [0, 1, 2]),
        (Named(1), {"inside": 1}),
        (Record(1), {"left": 1, "right": None, "here": [1]}),
        ({1}, [1]),
        (memoryview(b"abc"), "<3 bytes>"),
        (2**64, str(2**64)),
        (2**64 - 1, 2**64 - 1),
    ],
)
def test_the_careful_way_keeps_what_the_quick_one_does(value: Any, kept: Any) -> None:
    assert orjson.loads(snapshot([value])) == [kept]
    assert orjson.loads(snapshot([value, LONE])) == [kept, "\ufffd"]


def test_a_class_and_a_moment_become_text() -> None:
    assert orjson.loads(snapshot([Node, datetime(2026, 1, 2, tzinfo=UTC)])) == [
        f"<class '{__name__}.Node'>",
        "2026-01-02T00:00:00+00:00",
    ]


def test_nesting_beyond_the_limit_is_cut_there() -> None:
    value: Any = 1
    for _ in range(5_000):
        value = [value]
    cut = orjson.loads(snapshot(value))
    for _ in range(40):
        (cut,) = cut
    assert cut == "<list>"


def test_three_megabytes_of_text_stay_as_they_are() -> None:
    huge = "x" * 3_000_000
    assert orjson.loads(snapshot({"a": huge, "b": LONE})) == {"a": huge, "b": "\ufffd"}


def test_what_changes_while_it_is_looked_at_is_copied_the_careful_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(_: object) -> bool:
        raise RuntimeError("dictionary changed size during iteration")

    monkeypatch.setattr(clean, "is_shallow", changed)
    assert clean.snapshot({"say": "hello"}) == b'{"say":"hello"}'


def test_a_list_of_many_lists_is_counted_before_it_is_written() -> None:
    assert is_shallow([[1]] * 3_000)
    assert not is_shallow([[1]] * 3_001)


def test_the_line_that_names_a_run_has_no_characters_that_a_terminal_obeys(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    start_run("safe \u202egnp.exe \x1b[31mred\u2066", db=tmp_path / "a.db").finish()
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "recording run" in line]
    assert "safe \N{REPLACEMENT CHARACTER}gnp.exe \N{REPLACEMENT CHARACTER}[31mred\N{REPLACEMENT CHARACTER}" in line
    assert line.isprintable()
