"""Where the best and the worst of a group part: the turns by hand, and what the page says of them."""

import re
from collections.abc import Iterator, Sequence
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from logs_ui.app.pages.groups.best_and_worst import Lens, lens_of
from logs_ui.app.pages.groups.compare_rollouts_page import align_turn
from logs_ui.app.parts import turns
from logs_ui.app.parts.differences import Differ
from logs_ui.app.parts.divergence import split_at_divergence
from logs_ui.app.parts.timeline import Card, make_timeline
from logs_ui.recorder import load_run, queries, start_run
from logs_ui.recorder.queries import Kind, Rollout
from logs_ui.recorder.storage.database import reading_engine
from logs_ui.recorder.storage.tables import EvaluationRow
from tests.support.dashboard import dashboard

ASK = [{"role": "user", "content": "go"}]


def played(*actions: Any) -> list[turns.Turn]:
    """A rollout that sent these, one a turn; what is a string was only said."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    sent: list[dict[str, Any]] = []
    for number, action in enumerate(actions, 1):
        messages.append({"role": "assistant", "content": str(action), "reasoning_content": f"thought {id(action)}"})
        if not isinstance(action, str):
            reward = {"reward": number / 10}
            sent.append({"turn": number, "action": action, "observation": {"text": f"answer {number}"}, **reward})
    row = EvaluationRow(turns=len(actions))  # type: ignore[call-arg]  # nothing else of it is looked at
    return turns.turns_of(make_timeline(Rollout(row, messages, sent, {}, {}, None)))


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        #                                            same, number, a and b there, after
        ([{"x": 1}, {"x": 2}, {"x": 3}], [{"x": 1}, {"x": 9}], (1, 2, True, True, 1, 0)),
        ([{"x": 1}, {"x": 2}], [{"x": 1}], (1, 2, True, False, 0, 0)),
        ([{"x": 1}], [{"x": 1}, {"x": 2}, {"x": 3}], (1, 2, False, True, 0, 1)),
        ([{"x": 1}, {"x": 2}], [{"x": 1}, {"x": 2}], (2, None, False, False, 0, 0)),
        ([{"x": 1}, {"x": 2}], [{"x": 2}, {"x": 1}], (0, 1, True, True, 1, 1)),
        ([], [{"x": 2}], (0, 1, False, True, 0, 0)),
        ([], [], (0, None, False, False, 0, 0)),
        ([{"x": 1, "y": 2}], [{"y": 2, "x": 1}], (1, None, False, False, 0, 0)),
        (["look  around\n"], ["look around"], (1, None, False, False, 0, 0)),
        (["look"], [{"look": True}], (0, 1, True, True, 0, 0)),
    ],
)
def test_two_rollouts_have_a_beginning_a_parting_and_an_end(
    a: list[Any], b: list[Any], expected: tuple[Any, ...]
) -> None:
    split = split_at_divergence(played(*a), played(*b))
    after = len(split.after_a), len(split.after_b)
    assert (len(split.shared), split.number, split.a is not None, split.b is not None, *after) == expected


def lens(*rollouts: tuple[float, Sequence[Any]], kind: Kind = Kind.MIXED) -> Lens | None:
    """Of rollouts with these rewards and actions, the highest first; ids count from 1."""
    rows = [EvaluationRow(id=i, reward=reward) for i, (reward, _) in enumerate(rollouts, 1)]  # type: ignore[call-arg]
    opened = {i: played(*actions) for i, (_, actions) in enumerate(rollouts, 1)}
    return lens_of(None, rows, opened, kind)  # type: ignore[arg-type]  # it is handed on


def test_it_shows_the_turn_what_came_before_and_what_followed() -> None:
    best, worst = [{"x": n} for n in (1, 2, 3, 4, 5, 6, 7)], [{"x": 1}, {"x": 9}, "give up"]
    comparison = lens((1.0, best), (0.5, [{"x": 5}]), (0.0, worst))
    assert comparison is not None
    assert [
        (turn.number, turn.action or turn.message, turn.answer, turn.reward) for turn in comparison.shared_turns
    ] == [(1, "x 1", "text answer 1", 0.1)]
    assert comparison.turn is not None
    assert comparison.turn.number == 2
    assert [piece.name for piece in comparison.turn.pieces] == ["assistant", "action: x", "observation"], "no reasoning"
    message, action, observation = comparison.turn.pieces
    assert [(segment.text, segment.changed) for segment in action.a.segments] == [("2", True)]
    assert [(segment.text, segment.changed) for segment in action.b.segments] == [("9", True)]
    assert observation.is_equal
    assert not message.is_equal
    assert comparison.turn_rewards == (0.2, 0.2)
    assert [turn.action for turn in comparison.a.turns] == ["x 3", "x 4", "x 5"]
    assert comparison.a.more == 2
    assert [(turn.action or turn.message, turn.answer, turn.reward) for turn in comparison.b.turns] == [
        ("give up", "", None)
    ]
    assert (comparison.a.side.row.id, comparison.b.side.row.id) == (1, 3)


def test_tool_calls_are_written_as_people_write_them() -> None:
    edit = {"name": "str_replace_editor", "arguments": {"command": "view", "path": "/src/a.py"}}
    best = [{"x": 1}, edit, {"name": "bash", "arguments": {"command": "git diff"}}]
    comparison = lens((1.0, best), (0.0, [{"x": 2}]))
    assert comparison is not None
    assert [turn.action for turn in comparison.a.turns] == [
        "str_replace_editor  command=view path=/src/a.py",
        "bash  git diff",
    ]


def test_text_parts_at_its_first_word_that_differs_behind_a_folded_beginning() -> None:
    head = "the same words " * 100
    comparison = lens((1.0, [head + "so 4"]), (0.0, [head + "so 5"]))
    assert comparison is not None
    assert comparison.turn is not None
    (piece,) = comparison.turn.pieces
    assert [segment.text for segment in piece.a.segments if segment.changed] == ["4"]
    assert [segment.text for segment in piece.b.segments if segment.changed] == ["5"]
    assert piece.a.segments[0].skipped > 1000
    assert comparison.shared_turns == []


@pytest.mark.parametrize(
    ("a", "b", "is_equal"),
    [
        ({"$image": "a" * 64}, {"$image": "a" * 64}, True),
        ({"$image": "a" * 64}, {"$image": "b" * 64}, False),
        ({"$image": "a" * 64}, {"$image": None, "note": "not kept: it is larger"}, False),
        ({"$image": None}, {"$image": None}, False),
    ],
)
def test_images_are_compared_by_their_content(a: dict[str, Any], b: dict[str, Any], *, is_equal: bool) -> None:
    (pictures,) = [piece for piece in align_turn(1, seen(a), seen(b), Differ()).pieces if piece.name == "images"]
    assert pictures.is_equal is is_equal
    assert [len(half.pictures) for half in (pictures.a, pictures.b)] == [1, 1]


def seen(image: dict[str, Any]) -> list[Card]:
    """The cards of a turn whose observation has this image, and the same text in each."""
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "I look."}]
    action = {"turn": 1, "action": {"look": 1}, "observation": {"text": "a page", "screenshot": image}}
    row = EvaluationRow(turns=1)  # type: ignore[call-arg]  # nothing else of it is looked at
    return make_timeline(Rollout(row, messages, [action], {}, {}, None))


def test_a_dead_group_shows_one_that_parts_where_any_does() -> None:
    alike = [{"x": 1}]
    comparison = lens((0.0, alike), (0.0, [{"x": 2}]), (0.0, alike), kind=Kind.FAILED)
    assert comparison is not None
    assert comparison.is_dead
    assert comparison.b.side.row.id == 2
    without_divergence = lens((0.0, alike), (0.0, alike), kind=Kind.PASSED)
    assert without_divergence is not None
    assert (without_divergence.turn, len(without_divergence.shared_turns), without_divergence.turn_rewards) == (
        None,
        1,
        (None, None),
    )


def test_without_two_that_have_turns_there_is_none() -> None:
    assert lens((1.0, [])) is None
    assert lens((1.0, ["a"]), (0.0, [])) is None
    assert lens((1.0, []), (0.5, ["a"]), (0.0, ["b"])) is None, "the best is not another"


GROUPS: dict[str, Sequence[tuple[float, Sequence[str]]]] = {
    "parted": [(0.0, ["look", "left"]), (1.0, ["look", "right", "stop"])],
    "shorter": [(0.0, ["look"]), (1.0, ["look", "right"])],
    "failed": [(0.0, ["a"]), (0.0, ["b"])],
    "passed": [(1.0, ["a"]), (1.0, ["a"])],
    "many": [(float(i == 0), [f"a{i}"]) for i in range(20)],
}
"""Rewards and answers of each group's rollouts."""


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("groups") / "a.db"
    with start_run("a run", db=path) as run:
        for name, rollouts in GROUPS.items():
            for i, (reward, answers) in enumerate(rollouts):
                with run.rollout(ASK, group=name, generation=i) as row:
                    for number, answer in enumerate(answers):
                        row.turn(answer, action={"do": answer}, observation=f"{answer} is done", reward=float(number))
                row.score(reward)
    return path


@pytest.fixture(scope="module")
def client(db: Path) -> Iterator[TestClient]:
    with dashboard(db) as client:
        yield client


@pytest.fixture(scope="module")
def ids(db: Path) -> dict[str, list[int]]:
    rows = load_run(db=db)
    return {
        name: [int(it) for it, group in zip(rows["id"], rows["group"], strict=True) if name in group] for name in GROUPS
    }


def text_of(client: TestClient, row_id: int) -> str:
    """What the page of a group says of its best and its worst."""
    html = client.get(f"/runs/latest/groups/{row_id}").text
    panel = re.search(r'<details class="lens".*?\n</details>', html, re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", panel[0] if panel else "")).split())


def test_the_page_says_where_and_leads_to_the_whole_comparison(client: TestClient, ids: dict[str, list[int]]) -> None:
    low, high = ids["parted"]
    text = text_of(client, low)
    assert text.startswith("Where best and worst diverge at turn 2 full comparison best, gen 1 1.000")
    assert "The first turn has the same action 1 do look → look is done" in text
    assert "best, gen 1 1.000 ▲ higher reward" in text
    assert "worst, gen 0 0.000 ▼ lower reward" in text
    assert "action: do right left observation right is done left is done env reward +1.000 +1.000" in text
    assert "what followed 3 do stop → stop is done +2.000 nothing: the rollout ended" in text
    html = client.get(f"/runs/latest/groups/{low}").text
    assert 'class="lens-body" data-better="a"' in html
    (address,) = re.findall(r'href="(/runs/[^"]*/compare\?[^"]*#turn-2)"', html)
    assert unescape(address).endswith(f"a={high}&b={low}#turn-2")


def test_the_higher_reward_is_marked_whichever_side_it_is_on(client: TestClient, ids: dict[str, list[int]]) -> None:
    low, high = ids["parted"]
    for a, b, better in ((low, high, "b"), (high, low, "a")):
        html = client.get(f"/runs/latest/compare?a={a}&b={b}").text
        assert f'class="comparison" data-better="{better}"' in html
        assert (html.index("higher reward") < html.index("lower reward")) == (better == "a")
    assert "data-better" not in client.get(f"/runs/latest/compare?a={low}&b={low}").text


def test_a_turn_that_one_lacks_is_said_to_be_missing(client: TestClient, ids: dict[str, list[int]]) -> None:
    text = text_of(client, ids["shorter"][0])
    assert "at turn 2" in text
    assert text.count("already ended") == 1
    assert "right already ended action: do right" in text


def test_a_dead_group_teaches_nothing_and_says_so(client: TestClient, ids: dict[str, list[int]]) -> None:
    text = text_of(client, ids["failed"][0])
    assert text.startswith(
        "Where two rollouts diverge at the first turn all failed: zero reward variance, so this group gives no"
    )
    assert "higher reward" not in text
    assert text_of(client, ids["passed"][0]).startswith(
        "Where two rollouts diverge nowhere: their actions are identical, turn by turn all passed: "
    )


def test_the_worst_of_many_is_opened_for_it(client: TestClient, db: Path, ids: dict[str, list[int]]) -> None:
    many = ids["many"]
    assert "worst, gen 19" in text_of(client, many[0])
    html = client.get(f"/runs/latest/groups/{many[0]}").text
    columns = re.split(r'(?=<article class="completion")', html)[1:]
    assert "show turns" in columns[-1].lower(), "its column waits as before"
    with reading_engine(db).connect() as connection:
        assert len(queries.opened(connection, 1, many)) == 20
