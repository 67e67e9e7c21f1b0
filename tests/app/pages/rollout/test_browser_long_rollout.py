"""A rollout of 200 turns in a real Chromium: keys, folds, the rail, and what is printed."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest
from playwright.sync_api import Page, expect

from logs_ui.app.commands.serve import BackgroundServer
from tests.faults.realistic import agents
from tests.faults.realistic.recorded import recorded
from tests.support.axe import check_looks
from tests.support.exhaustive import cases


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    long = recorded(agents.LONG.id)
    with BackgroundServer(long.db) as server:
        yield f"{server.url}/runs/{long.truth.run}"


@pytest.fixture(scope="module")
def ids(url: str) -> list[int]:
    """The ids of the first group's rollouts, in order of generation."""
    with closing(sqlite3.connect(recorded(agents.LONG.id).db)) as db:
        statement = """SELECT id FROM evaluation_row WHERE "group" LIKE '%/1/0' ORDER BY generation"""
        return [row for (row,) in db.execute(statement)]


@pytest.mark.exhaustive
def test_it_is_accessible_and_no_wider_than_its_window(quiet_page: Page, url: str, ids: list[int]) -> None:
    views = [f"{url}/rollouts/{ids[1]}{query}" for query in ("?turn=57&show=rendered,reasoning", "?turn=3&show=output")]
    check_looks(quiet_page, views, widths=(390, 900, 1440))


def top(page: Page, anchor: str) -> float:
    return float(page.locator(f"[id='{anchor}']").evaluate("it => it.getBoundingClientRect().top"))


@pytest.mark.exhaustive
def test_keys_unfold_one_kind_or_all_and_the_reader_stays_where_he_is(
    quiet_page: Page, url: str, ids: list[int]
) -> None:
    page = quiet_page
    page.goto(f"{url}/rollouts/{ids[0]}?turn=100#message-200")
    folds = page.locator(".card.reply details[open]")
    expect(folds).to_have_count(0)
    before = top(page, "message-200")
    for key, selector in (("o", ".line[open]"), ("r", ".fold[open] .thought"), ("m", ".text.rendered")):
        expect(page.locator(f".timeline {selector}")).to_have_count(0)
        page.keyboard.press(key)
        expect(page.locator(f".timeline {selector}").nth(5)).to_be_attached()
        assert top(page, "message-200") == pytest.approx(before, abs=2), key
    expect(page).to_have_url(f"{url}/rollouts/{ids[0]}?show=output,reasoning,rendered")
    page.keyboard.press("o")
    expect(page.locator(".timeline .line[open]")).to_have_count(0)
    page.keyboard.press("a")
    expect(page.locator(".timeline .card.reply")).to_have_count(0)


def test_one_output_is_fetched_when_it_is_opened_and_stays(quiet_page: Page, url: str, ids: list[int]) -> None:
    page = quiet_page
    page.goto(f"{url}/rollouts/{ids[0]}")
    line = page.locator(".line").first
    line.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(line.locator(".text.mono").first).to_be_visible()
    assert len(line.inner_text()) > 3_000
    page.locator(".card.own .fold > summary").first.click()
    expect(page.locator(".card.own .thought").first).to_be_visible()


def test_a_click_on_the_rail_goes_to_the_turn(quiet_page: Page, url: str, ids: list[int]) -> None:
    page = quiet_page
    page.goto(f"{url}/rollouts/{ids[1]}?turn=1")
    page.locator(".marks a", has_text="the environment raised an error").click()
    expect(page.locator(":target")).to_contain_text("browser crashed: target closed")
    expect(page.locator(":target")).to_be_in_viewport()
    page.locator(".rail a", has_text="cut off at the token limit").first.dispatch_event(
        "click"
    )  # a line has no height for a pointer
    expect(page.locator(":target")).to_contain_text("cut off at the token limit")
    expect(page.locator(":target")).to_be_in_viewport()


@pytest.mark.exhaustive
@pytest.mark.parametrize("turn", cases([agents.LONG_FALLBACK, agents.LONG_ERROR], 1))
def test_after_a_jump_the_turn_stays_where_it_is(quiet_page: Page, url: str, ids: list[int], turn: int) -> None:
    page = quiet_page
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{url}/rollouts/{ids[1]}?turn=1")
    page.locator(".marks a", has=page.locator(".n", has_text=re.compile(f"^{turn}$"))).click()
    expect(page.locator(":target")).to_be_in_viewport()
    anchor = page.url.partition("#")[2]
    before = top(page, anchor)
    page.wait_for_load_state("networkidle")  # a gap may be in sight, and fill
    assert top(page, anchor) == pytest.approx(before, abs=2)
    assert page.locator(".gap").count() == 2, "no more is fetched than one sees"


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", cases(["back", "u"], 1))
def test_switches_and_jumps_are_no_steps_on_the_way_back(quiet_page: Page, url: str, ids: list[int], way: str) -> None:
    page = quiet_page
    page.set_viewport_size({"width": 1440, "height": 420})
    page.goto(f"{url}?sort=oldest")
    row = page.locator("#rows tr").nth(6)
    row.scroll_into_view_if_needed()
    name, before = row.get_attribute("id"), row.evaluate("it => it.getBoundingClientRect().top")
    row.locator(".row-link").click()
    for key in "om":
        page.keyboard.press(key)
        expect(page.locator(f".ways [data-key={key}][aria-current]")).to_be_visible()
    for at in ("2", "1"):  # another view, and the next rollout and back
        page.locator(f'.tabs [data-key="{at}"]').click()
        expect(page.locator(f'.tabs [data-key="{at}"][aria-current]')).to_be_visible()
    for key in "jk":
        place = page.url
        page.keyboard.press(key)
        expect(page).not_to_have_url(place)
    for mark in (0, -1):
        page.locator(".marks a").nth(mark).click()
        expect(page.locator(":target")).to_be_in_viewport()
    if way == "back":
        page.go_back()
    else:
        page.keyboard.press("u")
    expect(page.locator("#rows [aria-current]")).to_have_id(name or "")
    expect(page).to_have_url(f"{url}?sort=oldest")
    assert top(page, name or "") == pytest.approx(before, abs=3)


def test_turns_are_filled_in_while_one_scrolls(quiet_page: Page, url: str, ids: list[int]) -> None:
    page = quiet_page
    page.goto(f"{url}/rollouts/{ids[0]}")
    assert page.locator("#message-20").count() == 0
    page.locator(".gap").scroll_into_view_if_needed()
    expect(page.locator("#message-20")).to_be_attached()


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", cases(["/rollouts/{}", "/groups/{}", "/groups", ""], 2))
def test_a_page_is_printed_whole_and_in_dark_ink(quiet_page: Page, url: str, ids: list[int], path: str) -> None:
    page = quiet_page
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 794, "height": 200})
    page.goto(url + path.format(ids[0]))
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.emulate_media(color_scheme="dark", media="print")
    hidden = page.evaluate(
        """[...document.querySelectorAll("main, .scroll, .group-columns, .side, .results")].filter(
            (it) => getComputedStyle(it).overflowY !== "visible" && it.scrollHeight > it.clientHeight + 1).length"""
    )
    assert hidden == 0
    assert page.evaluate("document.documentElement.scrollHeight") > 250
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(22, 24, 29)"


@pytest.mark.exhaustive
def test_a_name_that_is_cut_in_its_middle_is_copied_as_one_line(quiet_page: Page, url: str) -> None:
    page = quiet_page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(url)
    page.evaluate(
        """() => {
          const name = document.createElement("span");
          name.className = "middle";
          for (const part of ["webarena/shopping_ad", "min/0017"]) {
            name.append(Object.assign(document.createElement("bdi"), { textContent: part }));
          }
          document.getElementById("results").prepend(name);
          getSelection().selectAllChildren(name);
        }"""
    )
    page.keyboard.press("Control+c")
    assert page.evaluate("navigator.clipboard.readText()") == "webarena/shopping_admin/0017"
