"""The line that a filter is written in: what it offers, by HTTP and under a hand, and what it and the column beside it
make of each other.
"""

import re
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode

import pytest
from markupsafe import escape
from playwright.sync_api import Page, Route, expect
from sqlalchemy import Engine, insert, select
from sqlmodel import col
from starlette.testclient import TestClient

from logs_ui.recorder import queries
from logs_ui.recorder.queries.filters.rollout_filter import parse_where
from logs_ui.recorder.queries.notebook import Notebook, Subject
from logs_ui.recorder.storage.database import disposed, reading_engine, writing_engine
from logs_ui.recorder.storage.tables import EvaluationRow, RowTag
from logs_ui.recorder.vocabulary import RunState
from tests.support.axe import violations
from tests.support.dashboard import dashboard, flat, page_of, rollouts_at
from tests.support.factory import make_run, make_run_at

RUN = "main-run-1234"


def fill(engine: Engine, path: Path) -> None:
    """A run; its rollouts 1 and 2 are starred, 2 has a note, 3 and 4 have tags."""
    run_id = make_run(engine, uid=RUN, name="a run", steps=12, state=RunState.FINISHED)
    with engine.begin() as connection:
        uids = {row.id: row.uid for row in connection.execute(select(col(EvaluationRow.id), col(EvaluationRow.uid)))}
        connection.execute(insert(RowTag), {"run_id": run_id, "tag": "by function", "row_id": 3})
    notebook = Notebook(path)
    for row_id in (1, 2):
        notebook.star(Subject(RUN, uids[row_id]), starred=True)
    notebook.note(Subject(RUN, uids[2]), "Look AGAIN at 100%")
    notebook.tag(Subject(RUN, uids[4]), "seen")


def offered(client: TestClient, written: str, at: int | None = None) -> list[str]:
    """The whole line as each suggestion would make it."""
    parameters: dict[str, Any] = {"where": written} | ({} if at is None else {"at": at})
    answer = client.get(f"/runs/{RUN}/suggestions", params=parameters)
    assert answer.status_code == 200
    return [unescape(text) for text in re.findall(r'data-text="([^"]*)"', answer.text)]


# --- What people say of rollouts, as terms


@pytest.mark.parametrize(
    ("line", "ids"),
    [
        ("is:starred", [1, 2]), ("is:starred note:again", [2]), ('note:"100%"', [2]), ("note:1_0", []),
        ("-note:none", [2]), ("is:starred note:none", [1]), ("tag:seen", [4]), ('tag:seen,"by function"', [3, 4]),
        ("-tag:none", [3, 4]), ("tag:none id<=5", [1, 2, 5]), ("-tag:seen id<=5", [1, 2, 3, 5]),
        ("-tag:nobody id<=2", [1, 2]),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("engine")
def test_rollouts_are_found_by_what_is_said_of_them(path: Path, line: str, ids: list[int]) -> None:
    with disposed(reading_engine(path)) as engine:
        run_id, where = queries.find_run(engine, RUN).id or 0, parse_where(line)
        queries.check_names(engine, run_id, where)
        assert sorted(row.id or 0 for row in queries.page(engine, run_id, where).rows) == ids
        assert queries.count(engine, run_id, where).value == len(ids)
        assert sum(count for _, count in queries.facets(engine, run_id, where).modes) == len(ids)


# --- What is offered


def test_names_are_offered_then_the_values_that_the_run_has(client: TestClient) -> None:
    assert {"status:", "reward", "tag:", "rewards."} < set(offered(client, ""))
    assert offered(client, "reward<1 sta")[0] == "reward<1 status:"
    assert offered(client, "-stat")[0] == "-status:"
    assert offered(client, "rewards.so") == ["rewards.solved"]
    assert offered(client, "status:er") == ["status:error "]
    assert 'task:"find the largest file" ' in offered(client, "task:")
    assert offered(client, 'task:"find the l') == ['task:"find the largest file" ']
    assert offered(client, "tag:") == ['tag:"by function" ', "tag:seen ", "tag:none "]
    assert offered(client, "is:") == ["is:starred "]
    assert "since:2h " in offered(client, "since:")
    assert offered(client, "mode:eval,") == ["mode:eval,train "]
    assert "status:error " in offered(client, "erro")
    for nothing in ("reward<", '"status', "group:", "nosuch:x"):
        assert offered(client, nothing) == []


def test_what_is_offered_stands_at_the_cursor(client: TestClient) -> None:
    assert offered(client, "sta reward<1", 3)[0] == "status: reward<1"
    assert offered(client, "status:er,ok", 9) == ["status:error,ok"]
    assert offered(client, "sta:ok", 3)[0] == "status:ok"
    answer = client.get(f"/runs/{RUN}/suggestions", params={"where": '"👩‍👩" status:er x', "at": 17}).text
    assert 'data-text="&#34;👩‍👩&#34; status:error x"' in answer
    assert 'data-caret="20"' in answer, "browsers count in units of UTF-16"


def test_a_value_says_how_many_rollouts_it_leaves_under_the_rest(client: TestClient) -> None:
    def counts(written: str) -> dict[str, int]:
        html = client.get(f"/runs/{RUN}/suggestions", params={"where": written}).text
        return {name: int(n) for name, n in re.findall(r'class="mono"><bdi>(\w+)</bdi>.*?class="n">(\d+)<', html)} or {
            name: int(n) for name, n in re.findall(r'class="mono">(\w+)<.*?class="n">(\d+)<', html)
        }

    everything, some = counts("mode:"), counts("step:1..3 mode:")
    assert everything["train"] > some["train"] > 0
    assert counts("step:x mode:") == everything, "what cannot be read is left out"


# --- The line and the column


def hidden(html: str) -> list[str]:
    form = re.search(r'<form id="filters".*?</form>', html, re.DOTALL)
    assert form
    return [unescape(value) for value in re.findall(r'type="hidden" name="where" value="([^"]*)"', form[0])]


def test_the_column_shows_what_it_can_and_carries_the_rest_along(client: TestClient) -> None:
    line = "status:error -stop:length group:g step:2..9 reward>0.1 reward<=0.9 turns>1"
    html = flat(client.get(f"/runs/{RUN}?where={quote(line)}").text)
    assert f'<input id="where" name="where" value="{escape(line)}"' in html
    assert hidden(html) == ["-stop:length group:g turns>1"]
    fields = {name: unescape(value) for name, value in re.findall(r'name="(\w+_m\w+)" value="([^"]*)"', html)}
    assert fields == {"step_min": "2", "step_max": "9", "reward_min": ">0.1", "reward_max": "0.9"}
    assert re.search(r'name="status" value="error" checked', html)
    sent = [("where", hidden(html)[0]), ("status", "error"), *fields.items()]
    answer = client.get(f"/runs/{RUN}?{urlencode(sent)}", follow_redirects=False)
    assert (answer.status_code, unquote(answer.headers["location"])) == (303, f"/runs/{RUN}?where={line}")


def test_the_chart_marks_strict_ends_too(client: TestClient) -> None:
    def marked(line: str) -> list[bool]:
        html = flat(client.get(f"/runs/{RUN}?where={quote(line)}").text)
        (chart,) = re.findall(r'<svg class="histogram".*?</svg>', html, re.DOTALL)
        return [" out" not in classes for classes in re.findall(r'<rect class="((?:posi|nega)tive[^"]*)" x', chart)]

    assert all(marked(""))
    assert marked("reward<0.2") == marked("reward<=0.2")
    assert 0 < sum(marked("reward>0.2")) < len(marked(""))
    assert [low or high for low, high in zip(marked("reward<0.2"), marked("reward>=0.2"), strict=True)] == marked("")


# --- Under a hand


def test_a_filter_is_written_with_the_keyboard_alone(quiet_page: Page, url: str) -> None:
    page, box, options = quiet_page, quiet_page.locator("#where"), quiet_page.locator("#suggested [role=option]")
    page.goto(f"{url}/runs/{RUN}")
    page.keyboard.press("/")
    expect(box).to_have_attribute("aria-expanded", "true")
    page.keyboard.type("stat")
    expect(options.first).to_contain_text("status:")
    page.keyboard.press("Tab")
    expect(box).to_have_value("status:")
    expect(options.first).to_contain_text("ok")
    expect(options.first).to_be_visible()  # the list is swapped in first and opened then
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(box).to_have_attribute("aria-activedescendant", "suggestion-2")
    expect(options.nth(1)).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    expect(box).to_have_value("status:error ")
    expect(page.locator("#suggestions")).to_be_hidden()
    page.keyboard.type("step")
    expect(options.first).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#suggestions")).to_be_hidden()
    expect(box).to_be_focused()
    page.keyboard.type(">2")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{url}/runs/{RUN}?where=status:error%20step%3E%3D3")
    expect(box).to_have_value("status:error step>=3")
    page.keyboard.press("Escape")
    expect(box).not_to_be_focused()


@pytest.mark.exhaustive
def test_the_list_follows_the_hand_and_closes_behind_it(quiet_page: Page, url: str) -> None:
    page, box = quiet_page, quiet_page.locator("#where")
    page.goto(f"{url}/runs/{RUN}?where=status:ok")
    box.click()
    page.keyboard.press("End")
    page.keyboard.type(" mode:")
    page.locator('#suggested [data-text="status:ok mode:eval "]').click()
    expect(box).to_have_value("status:ok mode:eval ")
    expect(box).to_be_focused()
    page.keyboard.type("ta")
    expect(page.locator('#suggestions[data-for="status:ok mode:eval ta"]')).to_be_visible()
    page.keyboard.press("ArrowDown")
    expect(page.locator("#suggested [aria-selected=true]")).to_be_visible()
    assert violations(page) == []
    page.locator("#run-line").click()
    expect(page.locator("#suggestions")).to_be_hidden()


@pytest.mark.exhaustive
def test_what_was_offered_for_another_line_takes_nothing_back(quiet_page: Page, url: str) -> None:
    page, box, options = quiet_page, quiet_page.locator("#where"), quiet_page.locator("#suggested [role=option]")
    page.goto(f"{url}/runs/{RUN}")
    box.press_sequentially("mode")
    expect(page.locator('#suggestions[data-for="mode"]')).to_be_visible()
    routes: list[Route] = []

    def hold(route: Route) -> None:
        routes.append(route)

    page.route("**/suggestions?*", hold)
    box.press_sequentially(":tr")
    options.first.click()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(box).to_have_value("mode:tr")
    page.keyboard.press("Tab")
    expect(box).to_be_focused()
    routes[-1].continue_()
    expect(box).to_have_value("mode:train ")
    box.press_sequentially("st")  # this answer never comes
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    expect(box).not_to_be_focused()
    expect(box).to_have_value("mode:train st")


@pytest.mark.exhaustive
def test_a_tick_changes_the_line_and_a_line_the_ticks(quiet_page: Page, url: str) -> None:
    page, box = quiet_page, quiet_page.locator("#where")
    page.goto(f"{url}/runs/{RUN}?where=turns>1 -stop:length")
    page.locator("#filters").get_by_text("ok", exact=True).click()
    expect(page).to_have_url(re.compile(r"where=status:ok%20-stop:length%20turns%3E1$"))
    expect(box).to_have_value("status:ok -stop:length turns>1")
    page.get_by_label("Reward to").fill("<0.5")
    page.get_by_label("Reward to").press("Enter")
    expect(box).to_have_value("status:ok -stop:length reward<0.5 turns>1")
    box.fill("status:error reward<=0.5")
    box.press("Enter")
    expect(page.locator("input[name=status][value=error]")).to_be_checked()
    expect(page.locator("input[name=status][value=ok]")).not_to_be_checked()
    expect(page.get_by_label("Reward to")).to_have_value("0.5")
    expect(page.locator("#filters input[name=where]")).to_have_count(0)
    page.go_back()
    expect(box).to_have_value("status:ok -stop:length reward<0.5 turns>1")
    expect(page.locator("input[name=status][value=ok]")).to_be_checked()
    page.go_forward()
    expect(page.locator("input[name=status][value=error]")).to_be_checked()
    page.go_back()
    page.locator(".chip", has_text="turns").click()
    expect(box).to_have_value("status:ok -stop:length reward<0.5")


def test_one_of_hundreds_of_tasks_is_found(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    make_run_at(path, uid=RUN, name="a run", steps=20, state=RunState.FINISHED)
    with disposed(writing_engine(path)) as engine, engine.begin() as connection:
        connection.exec_driver_sql("UPDATE evaluation_row SET task = printf('webarena/shopping_admin/%04d', id)")
        connection.exec_driver_sql("UPDATE evaluation_row SET task = printf('webarena/map/%04d', id) WHERE id >= 220")
    with dashboard(path) as client, disposed(reading_engine(path)) as engine:
        whole = flat(client.get(f"/runs/{RUN}").text)
        assert whole.count('name="task"') == 50
        assert 'value="webarena/shopping_admin/0217"' not in whole
        html = flat(client.get(f"/runs/{RUN}?find=ADMIN/021").text)
        assert re.findall(r'name="task" value="[^"]+/(\d+)"', html) == [f"{n:04}" for n in range(210, 220)]
        assert "No task contains that" in flat(client.get(f"/runs/{RUN}?find=nothing").text)
        assert offered(client, "shopping_a")[0] == "family:webarena/shopping_admin/ "
        pivot = page_of(client, f"/runs/{RUN}?view=pivot&rows=family&columns=stop").pivot
        assert [line.heading.text for line in pivot.lines] == ["webarena/shopping_admin/", "webarena/map/"]
        sums = [(rollouts_at(engine, line.overall.link), line.overall.title) for line in pivot.lines]
        assert [title.startswith(f"{count} rollouts") for count, title in sums] == [True, True]
        hostile = flat(client.get(f"/runs/{RUN}", params={"find": '"><script>x</script>'}).text)
        assert "<script>x" not in hostile
