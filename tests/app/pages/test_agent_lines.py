"""The lines of agents in a real Chromium: a pair and a rollout are read by them, and open what they lead to."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from logs_ui.app.main import create_app
from tests.support.agent_runs import PARTS_AT, record_coding, record_web
from tests.support.rollouts import served_app

TURNS = 40


@pytest.fixture(scope="module")
def coding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The addresses of a pair, and of the first of both."""
    db = tmp_path_factory.mktemp("coding") / "a.db"
    a, b = record_coding(db, TURNS)  # an id may be left out between them
    with served_app(create_app(db)) as base:
        run = f"{base}/runs/latest"
        yield f"{run}/compare?a={a}&b={b}", f"{run}/rollouts/{a}"


def test_a_pair_has_a_line_a_turn_and_opens_where_actions_part(quiet_page: Page, coding: tuple[str, str]) -> None:
    page = quiet_page
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{coding[0]}&whole=1")
    rows = page.locator(".aligned:not(#turn-0)")
    expect(rows).to_have_count(TURNS)
    expect(page.locator(".verdict")).to_contain_text(f"diverge at turn {PARTS_AT}")
    open_ones = page.locator("details.aligned[open]")
    expect(open_ones).to_have_count(1)
    expect(open_ones).to_have_id(f"turn-{PARTS_AT}")
    fifth = page.locator("#turn-5 .turn-cell")
    expect(fifth.nth(0)).to_contain_text("bash")
    expect(fifth.nth(0)).to_contain_text("exit 1")
    expect(fifth.nth(0)).to_contain_text("1.2 s")
    expect(fifth.nth(1)).to_contain_text("the same action")
    expect(page.locator("#turn-4 .turn-cell").first).not_to_contain_text("ms")
    assert page.evaluate("document.documentElement.scrollHeight") < 6_000
    page.locator("#turn-5 summary").click()
    expect(page.locator("#turn-5 .pair-piece").first).to_be_visible()


def test_a_rollout_has_a_line_a_turn_that_leads_to_its_message(quiet_page: Page, coding: tuple[str, str]) -> None:
    page = quiet_page
    page.goto(coding[1])
    lines = page.locator(".turn-lines li")
    expect(lines).to_have_count(TURNS)
    expect(lines.nth(4)).to_contain_text("exit 1")
    expect(page.locator(".marks a").first).to_have_text(re.compile(r"5\s*bash: exit 1"))
    lines.nth(29).locator("a").click()
    expect(page.locator(".card:target")).to_be_in_viewport()
    expect(page.locator(".card:target")).to_contain_text("turn 30")


def test_a_key_waits_for_what_the_one_before_it_asked_for(quiet_page: Page, coding: tuple[str, str]) -> None:
    quiet_page.goto(coding[1])
    press = "key => document.body.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }))"
    quiet_page.evaluate(f"for (const key of 'om') ({press})(key)")
    expect(quiet_page).to_have_url(re.compile(r"show=output,rendered$"))


def test_what_goes_on_beside_a_rollout_fades(quiet_page: Page, coding: tuple[str, str]) -> None:
    quiet_page.set_viewport_size({"width": 1440, "height": 500})
    quiet_page.goto(coding[1])
    side = quiet_page.locator(".side")
    expect(side).to_have_css("--beyond", "44px")
    assert side.evaluate("it => it.scrollHeight > it.clientHeight + 20")
    quiet_page.set_viewport_size({"width": 1440, "height": 3_000})
    expect(side).to_have_css("--beyond", "0px")


def test_screenshots_of_a_pair_are_shown_and_one_that_was_not_kept_is_named(quiet_page: Page, tmp_path: Path) -> None:
    page = quiet_page
    a, b = record_web(tmp_path / "a.db")
    with served_app(create_app(tmp_path / "a.db")) as base:
        page.goto(f"{base}/runs/latest/compare?a={a}&b={b}")
        expect(page.locator("#turn-2 .lines")).to_contain_text("identical")
        expect(page.locator("#turn-3 .lines")).to_contain_text("the same action")
        page.locator("#turn-3 summary").click()
        shots = page.locator("#turn-3 .pair-piece img")
        expect(shots).to_have_count(2)
        expect(shots.first).to_have_js_property("naturalWidth", 320)
        expect(page.locator("#turn-5 .lines")).to_contain_text("1 image not kept")
        expect(page.locator("#turn-5 .pair-piece", has_text="not kept: too large")).to_be_visible()
