"""The page of rollouts: columns of the dataset, orders, and a pivot by what people ask."""

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, case, update
from sqlmodel import col

from logs_ui.app.pages.rollouts.table import Rows
from logs_ui.app.parts.charts import Scale
from logs_ui.app.parts.table_columns import make_columns
from logs_ui.app.web import urls
from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter
from logs_ui.recorder.queries.search.hits import Hit
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.database import disposed, writing_engine
from logs_ui.recorder.storage.tables import EvaluationRow
from logs_ui.recorder.vocabulary import RunState
from tests.support.dashboard import dashboard, flat
from tests.support.exhaustive import cases
from tests.support.factory import make_run
from tests.support.page_text import read

RUN, BOTH = "coding-1234", "both-5678"
LEVELS = range(2, 10)


def fill(engine: Engine) -> None:
    """A run whose dataset has columns, and one that evaluates, too."""
    row = EvaluationRow
    make_run(engine, uid=RUN, steps=3, generations=8, state=RunState.FINISHED)
    with engine.begin() as connection:
        for level in LEVELS:
            columns = {"difficulty": "hard", "extra_info.level": level, "extra_info.version": "3.9"}
            is_of_level = col(row.generation) == level - LEVELS[0]
            connection.execute(update(row).where(is_of_level).values(attributes=columns))
    make_run(engine, uid=BOTH, steps=12)


def rows(client: TestClient, query: str) -> tuple[list[str], list[list[str]]]:
    """Return the head and the lines of the table."""
    answer = client.get(f"/runs/{RUN}?{query}")
    assert answer.status_code == 200, read(answer.text)[0]
    table = next(candidate for candidate in read(answer.text)[1] if candidate.rows)
    return table.rows[0], [line for line in table.rows[1:] if len(line) > 2]


def test_the_table_shows_and_sorts_the_datasets_columns(client: TestClient) -> None:
    cols = "cols=metadata.difficulty,metadata.extra_info.level"
    head, lines = rows(client, f"{cols}&sort=-metadata.extra_info.level")
    level = next(place for place, title in enumerate(head) if title.startswith("extra_info.level"))
    assert [line[level] for line in lines[:10]] == ["9"] * 9 + ["8"]


def test_who_looks_for_a_column_in_vain_reads_which_there_are(client: TestClient) -> None:
    for where in ("metadata.repository:x", "repository:x"):
        html = flat(client.get(f"/runs/{RUN}?where={where}").text)
        assert "first 40 short texts, numbers and booleans can be searched" in html
    assert "first 40 dataset columns" in flat(client.get(f"/runs/{RUN}").text)
    assert "first 40" not in flat(client.get(f"/runs/{RUN}?where=turnz>1").text).partition("<details")[0]


def test_a_number_alone_names_the_rollout_of_that_number(client: TestClient) -> None:
    html = flat(client.get(f"/runs/{RUN}?where=7").text)
    assert re.findall(r'Did you mean <a class="mono" href="([^"]*)"[^>]*>([^<]*)</a>', html) == [
        (f"/runs/{RUN}?where=id:7", "#7")
    ]
    assert "Did you mean" not in flat(client.get(f"/runs/{RUN}?where=987654321").text)


def test_one_rule_says_which_order_the_first_click_selects() -> None:
    keys = ("reward", "rollout_reward", "env_reward_sum", "rewards.judge", "task", "turns", "metrics.reward")
    columns = make_columns(keys, [], is_evaluation=False, has_steps=True).visible[1:]
    first = {column.key: column.sorts[0] for column in columns}
    lowest = {"reward": "lowest-reward"} | {key: key for key in (*keys[1:4], "task")}
    assert first == lowest | {"turns": "-turns", "metrics.reward": "-metrics.reward"}


@pytest.mark.parametrize(
    ("key", "hits", "evals", "title"),
    [
        ("preview", None, ["one"], "Last message or error"),
        ("preview", {}, ["one"], "Place of the searched words"),
        ("task", None, ["one"], "Task"),
        ("task", {}, ["one", "two"], "Task and eval"),
    ],
)
def test_the_head_of_a_column_names_what_it_has(
    key: str, hits: dict[int, Hit] | None, evals: list[str], title: str
) -> None:
    columns = make_columns((key,), [], is_evaluation=False, has_steps=True)
    rows = Rows([], columns, None, Scale.over([]), {}, RolloutFilter(), "a run", hits=hits)
    assert rows.title(columns.visible[1], evals) == title


def test_the_menu_of_columns_cuts_names_in_their_middle(client: TestClient) -> None:
    menu = client.get(f"/runs/{RUN}").text.partition('class="offered"')[2].partition("</form>")[0]
    cut = re.findall(r'<span class="middle"><bdi>([^<]*)</bdi><bdi>([^<]*)', menu)
    assert ("metadata.extra_info", ".version") in cut
    assert ("metadata.extra_in", "fo.level") in cut


def test_a_generation_is_counted_from_0(client: TestClient) -> None:
    page = client.get(f"/runs/{RUN}/rollouts/5").text
    assert re.search(r">gen (\d+) \(0.7\)<", page)


def test_what_is_logged_by_step_is_shown_where_it_is(client: TestClient) -> None:
    answer = client.get(f"/runs/{RUN}?where=kl<0.1")
    assert answer.status_code == 422
    assert "kl is logged by step, not by rollout" in read(answer.text)[0]
    assert f'href="/runs/{RUN}/overview?q=kl"' in answer.text


@pytest.fixture
def huge(address: Address) -> Iterator[TestClient]:
    """Make a run whose figures are as large as a float can be, of both signs."""
    with disposed(writing_engine(address)) as engine:
        make_run(engine, uid="huge", steps=12)
        row = EvaluationRow
        sign = case((col(row.id) % 2 == 0, 1.0), else_=-1.0)
        with engine.begin() as connection:
            attributes = {"big": 2**60, "far": 1e299, "id": 10**19}
            figures = {"rewards": {"x": 1e308}, "metrics": {"y": -1e308}, "attributes": attributes}
            connection.execute(update(row).values(reward=1e308 * sign, advantage=1e308, **figures))
            connection.execute(update(row).where(col(row.id) % 3 == 0).values(rewards={"x": -1e308}))
    with dashboard(address) as client:
        yield client


@pytest.mark.parametrize("axes", cases(["&rows=step&columns=eval", "", "&order=highest"], 1))
def test_a_pivot_of_the_largest_figures_is_shown(huge: TestClient, address: Address, axes: str) -> None:
    for of in ("reward", "rewards.x", "metrics.y", "advantage", "metadata.far", "metadata.big", "metadata.id"):
        answer = huge.get(f"/runs/huge?view=pivot&of={of}{axes}")
        assert answer.status_code == 200, (of, read(answer.text)[0])
    if isinstance(address, Path):
        return
    # PostgreSQL adds them up as infinities, and those of both signs have no sum: that is not a mean of 0.
    table = next(candidate for candidate in read(huge.get(f"/runs/huge?view=pivot{axes}").text)[1] if candidate.rows)
    assert {"0", "0.00"}.isdisjoint(cell for line in table.rows[1:] for cell in line[1:])


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "order", cases(["-rewards.x", "metadata.id", "lowest-reward", "advantage", "-metadata.far"], 2)
)
def test_every_page_of_the_largest_figures_is_reached(huge: TestClient, order: str) -> None:
    more: str | None = f"/runs/huge?sort={order}"
    pages = 0
    while more:
        answer = huge.get(more)
        assert answer.status_code == 200, (more, read(answer.text)[0])
        link = re.search(r'href="([^"]*[?&;]after=[^"]*)"', answer.text)
        more = unescape(link[1]) if link else None
        pages += 1
    assert pages == 4


def test_a_position_that_no_database_holds_is_refused() -> None:
    for written in ("nan~1", f"{2**63}~1", "1~1e3", f"1~{2**63}", "1~inf", "x~1", "1"):
        with pytest.raises(FilterError, match="not a position in the table"):
            urls.parse_cursor(written)


def test_train_and_eval_are_told_apart_at_one_click(client: TestClient) -> None:
    assert "Training and evaluation together" not in client.get(f"/runs/{RUN}").text
    for view in ("", "?view=pivot"):
        text = client.get(f"/runs/{BOTH}{view}").text
        assert "Training and evaluation together" in text
        assert "where=mode:eval" in text
    assert "Training and evaluation together" not in client.get(f"/runs/{BOTH}?where=mode:train").text
