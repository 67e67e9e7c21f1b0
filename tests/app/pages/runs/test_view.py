"""Runs of a sweep: told apart without a name, in columns of one's choice, in any order, grouped by an argument."""

import re
from html import unescape
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, update
from sqlmodel import col

from logs_ui.app.pages.runs import page as runs_page
from logs_ui.app.pages.runs.view import RunsView, column_of, differing, told_apart
from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.storage.tables import Run
from logs_ui.recorder.vocabulary import RunState
from tests.support.factory import START_US, insert_run, make_run

LONG = "/mnt/cluster/projects/a-very-long-name-of-a-team/checkpoints/2026-01-01/"
SWEEP: list[tuple[float, int, str]] = [
    (1e-6, 8, LONG + "sft-a/checkpoint-500"),
    (1e-6, 16, LONG + "sft-b/checkpoint-500"),
    (5e-6, 8, LONG + "sft-a/checkpoint-500"),
    (2e-5, 16, LONG + "sft-b/checkpoint-500"),
]
KNOWN = {"beta": 0.04, "optim": "adamw", "odd <b>": None, "peft": {"r": 16}}


def uid(number: int) -> str:
    return f"20260101-10000{number}-aaa{number}"


def fill(engine: Engine) -> None:
    for i, (rate, size, model) in enumerate(SWEEP):
        make_run(
            engine, uid=uid(i), steps=2 + i, groups_per_step=1, generations=2, seed=i, state=RunState.FINISHED,
            created=START_US + i * 10_000_000, model=model,
        )  # fmt: skip
        config = {"learning_rate": rate, "num_generations": size, "output_dir": f"/tmp/out-{i}", **KNOWN}  # noqa: S108
        with engine.begin() as db:
            db.execute(update(Run).where(col(Run.uid) == uid(i)).values(config=config, num_generations=size))


def listed(client: TestClient, **asked: Any) -> tuple[list[int], str]:
    """The numbers of the listed runs, and the page."""
    html = client.get("/", params=asked).text
    return [int(number) for number in re.findall(r'name="run" value="20260101-\d+-aaa(\d)"', html)], html


def row_text(html: str, number: int) -> str:
    (row,) = re.findall(rf'<tr id="run-{number + 1}".*?</tr>', html, re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", row)).split())


def test_runs_without_a_name_are_told_apart_by_what_differs(client: TestClient) -> None:
    _, html = listed(client)
    assert "shell-agent learning_rate 1e-06 num_generations 8 sft-a/checkpoint-500" in row_text(html, 0)
    assert "learning_rate 2e-05 num_generations 16 sft-b/checkpoint-500" in row_text(html, 3)
    assert "output_dir" not in html, "it differs without telling anything"
    assert "beta" not in row_text(html, 0), "it is the same in all"


def test_each_run_has_a_colour_of_its_own(client: TestClient) -> None:
    assert len(set(re.findall(r'<tr id="run-\d+" class="(of-run-\d)"', listed(client)[1]))) == 4


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("steps", [0, 1, 2, 3]),
        ("-steps", [3, 2, 1, 0]),
        ("started", [0, 1, 2, 3]),
        ("config.learning_rate", [1, 0, 2, 3]),  # equal ones: the newest first
        ("-config.num_generations", [3, 1, 2, 0]),
        ("config.no_such_argument", [3, 2, 1, 0]),
        ("model", [2, 0, 3, 1]),
    ],
)
def test_the_list_sorts_by_any_column(client: TestClient, sort: str, expected: list[int]) -> None:
    assert listed(client, sort=sort)[0] == expected


@pytest.mark.parametrize("key", ["reward", "truncated", "errors", "duration", "rollouts", "state", "eval", "solved"])
def test_every_figure_is_a_column_and_an_order(client: TestClient, key: str) -> None:
    found, html = listed(client, col=key, sort=f"-{key}")
    assert sorted(found) == [0, 1, 2, 3]
    assert html.count('scope="col"') == 2
    assert 'aria-sort="descending"' in html


def test_columns_are_arguments_too_and_stay_while_one_searches_and_sorts(client: TestClient) -> None:
    _, html = listed(client, col=["config.learning_rate", "config.odd <b>", "solved"], q="sft")
    assert "1e-06" in row_text(html, 0)
    assert "odd <b>" not in html
    assert "odd &lt;b&gt;" in html
    assert re.search(r"\d+%", row_text(html, 3)), "solved"
    assert html.count('form="filters" name="col"') == 3
    (sort,) = re.findall(r'href="([^"]*sort=-solved[^"]*)"', html)
    assert unescape(sort).startswith("/?q=sft&col=config.learning_rate")


def test_an_argument_groups_the_list_with_means(client: TestClient) -> None:
    found, html = listed(client, by="config.learning_rate", sort="-steps")
    assert found == [1, 0, 2, 3]
    heads = re.findall(r'<tr class="of-group">.*?</tr>', html, re.DOTALL)
    texts = [" ".join(unescape(re.sub(r"<[^>]+>", " ", head)).split()) for head in heads]
    assert [text[: text.index("run")] for text in texts] == [
        "learning_rate 1e-06 2 ", "learning_rate 5e-06 1 ", "learning_rate 2e-05 1 ",
    ]  # fmt: skip
    assert " 2 runs 2 " in texts[0], "two and three steps are 2.5 on average, which is written without digits"
    assert "data-follow" not in html


def test_a_sorted_list_goes_on_page_by_page(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_page, "PAGE_SIZE", 3)
    found, html = listed(client, sort="steps", by="config.num_generations")
    assert found == [0, 2, 1]
    (following,) = re.findall(r'hx-get="(/\?[^"]*after=[^"]*)"', html)
    headers = {"HX-Request": "true", "HX-Request-Type": "partial", "HX-Target": "tr#more"}
    more = client.get(unescape(following), headers=headers).text
    assert re.findall(r'value="20260101-\d+-aaa(\d)"', more) == ["3"]
    assert "of-group" not in more, "its group began on the page before"
    monkeypatch.setattr(runs_page, "MOST_SORTED", 3)
    assert "The newest 3 runs are sorted" in listed(client, sort="steps")[1]


def test_live_lines_keep_the_columns(client: TestClient, engine: Engine) -> None:
    with engine.begin() as db:
        run = {"uid": "20260102-100000-aaa9", "name": "live", "created": START_US, "heartbeat": 2**62}
        number = insert_run(db, run | {"state": RunState.RUNNING, "config": {"learning_rate": 7e-6}})
    try:
        html = client.get(f"/live?col=config.learning_rate&newest={number}&seen=x&open={number}").text
        assert "7e-06" in html
        assert 'class="num reward' not in html
        assert "col=config.learning_rate" in html
    finally:
        with engine.begin() as db:
            db.execute(Run.__table__.delete().where(col(Run.id) == number))  # type: ignore[attr-defined]


# --- The parts


def test_an_argument_that_a_run_lacks_tells_it_apart() -> None:
    names = differing([{"a": 1, "b": 2}, {"b": 2, "x_dir": "z"}, {"b": 2, "a": 1, "learning_rate": 1.0}])
    assert names == ["learning_rate", "a"]
    assert told_apart({"a": "x" * 50, "learning_rate": 1e-5}, names) == [("learning_rate", "1e-05")]


def test_a_view_is_written_as_it_is_read() -> None:
    view = RunsView.of([("col", "reward"), ("col", "config.a,b.c"), ("sort", "-config.x"), ("by", "model"), ("q", "x")])
    assert RunsView.of(view.pairs()) == view
    assert RunsView.of([]).pairs() == []
    with pytest.raises(FilterError):
        RunsView.of([("by", "reward")])


@pytest.mark.parametrize(
    ("key", "value", "title", "classes"),
    [
        ("curve", 8, "Reward curve", "spark"), ("config.beta", 0.1, "beta", "argument"),
        ("reward", 0.5, "Reward", "num reward strong"), ("truncated", 0.19, "Truncated", "num truncated"),
        ("truncated", 0.2, "Truncated", "num truncated tone-warn"), ("errors", None, "Errors", "num errors"),
        ("errors", 0.05, "Errors", "num errors tone-bad"), ("duration", None, "Duration", "num lasted quiet"),
    ],
)  # fmt: skip
def test_a_column_names_itself_and_marks_large_shares_of_faults(key: str, value: Any, title: str, classes: str) -> None:
    column = column_of(key)
    assert (column.title, column.cell_classes(value).strip()) == (title, classes)


def test_a_click_on_a_head_sorts_highest_first_then_lowest_then_newest() -> None:
    orders = [RunsView(sort=sort) for sort in ("", "-steps", "steps", "reward")]
    assert [it.next_sort("steps") for it in orders] == ["-steps", "steps", "", "-steps"]
    assert [it.order_of("steps") for it in orders] == ["", "descending", "ascending", ""]
