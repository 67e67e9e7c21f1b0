"""Reference, final answer, score and outcome stand side by side on every page that shows rollouts."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from starlette.testclient import TestClient

from logs_ui.app.main import create_app
from logs_ui.app.parts.table_columns import DEFAULT, WITH_ANSWERS
from logs_ui.recorder import load_run
from logs_ui.recorder.diagnosis.answers import Told
from tests.faults.recording import record
from tests.faults.runs import Rollout, Run, Turn
from tests.support.answered import KINDS, record_answers
from tests.support.axe import check_looks
from tests.support.dashboard import dashboard, page_of
from tests.support.exhaustive import cases
from tests.support.rollouts import served_app

BOXED = "after the last \\boxed{"


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("answers") / "a.db"


@pytest.fixture(scope="module")
def runs(db: Path) -> dict[str, str]:
    """Of each kind, the rollouts of a group are four that follow each other; the first kind has 1 to 4."""
    return {kind: record_answers(db, kind) for kind in KINDS}


@pytest.fixture(scope="module")
def firsts(db: Path, runs: dict[str, str]) -> dict[str, int]:
    """Of each kind, the id of its first rollout: ids may be left out between runs."""
    return {kind: int(load_run(run, db)["id"].min()) for kind, run in runs.items()}


@pytest.fixture(scope="module")
def client(db: Path, runs: dict[str, str]) -> TestClient:
    assert runs
    return dashboard(db)


@pytest.fixture(scope="module")
def base(db: Path, runs: dict[str, str]) -> Iterator[str]:
    assert runs
    with served_app(create_app(db)) as base:
        yield base


@pytest.mark.parametrize(("kind", "keys"), [("math", WITH_ANSWERS), ("documents", WITH_ANSWERS), ("coding", DEFAULT)])
def test_the_table_has_answers_where_the_dataset_has_references(
    client: TestClient, runs: dict[str, str], kind: str, keys: tuple[str, ...]
) -> None:
    rows = page_of(client, f"/runs/{runs[kind]}").rows
    assert [column.key for column in rows.columns.visible] == ["id", *keys]
    assert set(rows.answers) == ({row.id for row in rows.lines} if keys == WITH_ANSWERS else set())


def test_a_search_shows_its_places_in_place_of_answers(client: TestClient, runs: dict[str, str]) -> None:
    rows = page_of(client, f"/runs/{runs['documents']}?where=capital").rows
    assert [column.key for column in rows.columns.visible] == ["id", *DEFAULT]


def test_a_group_says_its_reference_once(client: TestClient, runs: dict[str, str], firsts: dict[str, int]) -> None:
    group = page_of(client, f"/runs/{runs['documents']}/groups/{firsts['documents']}")
    assert group.reference == Told("Paris", "reward_model.ground_truth")
    assert [group.answers[column.row.id].final.text for column in group.columns] == [
        "The capital is Paris.", *["The capital is Wellington."] * 3,
    ]  # fmt: skip


def test_a_group_without_a_reference_has_no_answers(client: TestClient, runs: dict[str, str], db: Path) -> None:
    group = page_of(client, f"/runs/{runs['coding']}/groups/{load_run(runs['coding'], db)['id'].min()}")
    assert (group.reference, group.answers) == (None, {})


def test_a_pair_of_long_reasonings_shows_their_ends_first(client: TestClient, runs: dict[str, str]) -> None:
    pair = page_of(client, f"/runs/{runs['math']}/compare?a=1&b=2")
    assert (pair.a.answer.final, pair.b.answer.final) == (Told("40", BOXED), Told("741", BOXED))
    assert [piece.name for piece in pair.ends] == ["reasoning, its end", "assistant, its end"]
    end = "".join(segment.text for segment in pair.ends[1].a.segments)
    assert (end[:20], end[-23:]) == ("… So the remainder i", "\nSo it is $\\boxed{40}$.")


def test_short_messages_have_no_ends(client: TestClient, runs: dict[str, str], firsts: dict[str, int]) -> None:
    first = firsts["documents"]
    assert page_of(client, f"/runs/{runs['documents']}/compare?a={first}&b={first + 1}").ends == []


def test_texts_that_share_little_are_not_marked(
    client: TestClient, runs: dict[str, str], firsts: dict[str, int]
) -> None:
    first = firsts["documents"]
    pair = page_of(client, f"/runs/{runs['math']}/compare?a=1&b=2")
    reasoning, *_ = pair.turns[0].pieces
    assert (reasoning.name, reasoning.is_marked) == ("reasoning", False)
    pair = page_of(client, f"/runs/{runs['documents']}/compare?a={first}&b={first + 1}")
    assert [piece.is_marked for piece in pair.turns[1].pieces if piece.name == "assistant"] == [True]


def test_a_name_of_a_column_cannot_write_the_page(tmp_path: Path) -> None:
    bad = '\u202e"><script>x</script>.answer'
    turns = [Turn("<script>y</script>")]
    prompt = [{"role": "user", "content": "?"}]
    rollout = Rollout(1, 0, 0, "t", prompt, turns, {"r": 1.0}, stop="stop", metadata={"dataset": {bad: bad}})
    run = record(tmp_path / "a.db", Run("bad", "bad", [rollout], {}, {}))
    with dashboard(tmp_path / "a.db") as client:
        for address in ("", "/groups/1", "/rollouts/1", "/compare?a=1&b=1"):
            html = client.get(f"/runs/{run}{address}").text
            assert 'title="Dataset column ⟨RLO⟩&#34;&gt;&lt;script' in html
            assert [it for it in ("<script>x", "<script>y") if it in html] == []


def test_a_rollout_says_reference_and_answer(client: TestClient, runs: dict[str, str], firsts: dict[str, int]) -> None:
    answer = page_of(client, f"/runs/{runs['documents']}/rollouts/{firsts['documents'] + 1}").answer
    assert answer.reference == Told("Paris", "reward_model.ground_truth")
    assert answer.final == Told("The capital is Wellington.", "the last line")


def test_a_column_that_is_set_counts_on_every_page(client: TestClient, runs: dict[str, str]) -> None:
    run = runs["math"]
    client.post(
        f"/runs/{run}/why/settings", data={"reference": "metadata.level"}, headers={"Origin": "http://127.0.0.1"}
    )
    try:
        assert page_of(client, f"/runs/{run}").rows.answers[1].reference == Told("3", "level")
        assert page_of(client, f"/runs/{run}/groups/1").reference == Told("3", "level")
        assert page_of(client, f"/runs/{run}/compare?a=1&b=2").a.answer.reference == Told("3", "level")
        assert page_of(client, f"/runs/{run}/rollouts/1").answer.reference == Told("3", "level")
    finally:
        client.post(f"/runs/{run}/why/settings", data={"reset": "1"}, headers={"Origin": "http://127.0.0.1"})


@pytest.mark.parametrize(
    ("kind", "address", "answers"),
    cases(
        [
            ("math", "/compare?a=1&b=2", ["40", "741"]),
            ("math", "/groups/1", ["40", "741"]),
            ("math", "", ["266"]),
            ("math", "/rollouts/2", ["741"]),
            ("coding", "/rollouts/{0}", ["I have changed `forms_0.py`: all tests pass."]),
            ("coding", "/compare?a={0}&b={1}", ["I have changed `forms_0.py`: all tests pass."]),
        ],
        4,
    ),
)
def test_answers_are_found_without_scrolling(
    page: Page, base: str, runs: dict[str, str], firsts: dict[str, int], kind: str, address: str, answers: list[str]
) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{base}/runs/{runs[kind]}{address.format(firsts[kind], firsts[kind] + 1)}")
    for answer in answers:
        expect(page.locator(".answers dd, td.answer").get_by_text(answer, exact=False).first).to_be_in_viewport()


@pytest.mark.exhaustive
def test_pages_with_answers_are_accessible_and_fit(page: Page, base: str, runs: dict[str, str]) -> None:
    run = f"{base}/runs/{runs['math']}"
    check_looks(page, [run, f"{run}/groups/1", f"{run}/compare?a=1&b=2", f"{run}/rollouts/2"])
