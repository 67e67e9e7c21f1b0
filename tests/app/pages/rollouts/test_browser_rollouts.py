"""The table of a run in a real Chromium: coming back to a row, keys, a half-written filter, what a click does."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect
from sqlalchemy import Engine

from logs_ui.app.commands.serve import BackgroundServer
from logs_ui.recorder.vocabulary import RunState
from tests.support.axe import violations
from tests.support.dashboard import add_rollouts
from tests.support.exhaustive import cases
from tests.support.factory import make_run

RUN = "long-run-a1b2"


def fill(engine: Engine) -> None:
    make_run(engine, uid=RUN, name="a long run", steps=30, state=RunState.FINISHED)


@pytest.fixture(scope="module")
def url(engine: Engine, path: Path) -> Iterator[str]:
    with BackgroundServer(path) as server:
        yield f"{server.url}/runs/{RUN}"


def top_of(row: Locator) -> float:
    box = row.bounding_box()
    assert box
    return box["y"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("width", cases([1440, 390], 1))
def test_back_and_u_return_to_the_row_where_it_was(quiet_page: Page, engine: Engine, url: str, width: int) -> None:
    page = quiet_page
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(url)
    for line_count in (50, 100):
        expect(page.locator("#rows .row-link")).to_have_count(line_count)
        page.locator("#more").scroll_into_view_if_needed()
    link = page.locator("#rows .row-link").nth(139)
    link.scroll_into_view_if_needed()
    row, top = page.locator(f"#row-{link.inner_text()}"), top_of(link)
    add_rollouts(engine, RUN, 3)
    link.click()
    expect(page.locator(".timeline")).to_be_visible()
    page.go_back()
    expect(row).to_have_attribute("aria-current", "true")
    expect(page).to_have_url(url)  # which can be given away, and leads to the top
    expect(page.locator("#rows tr").nth(142)).to_have_attribute("aria-current", "true")  # three came in above
    assert abs(top_of(row.locator(".row-link")) - top) < 3
    page.keyboard.press("j")
    expect(page.locator("#rows .row-link").nth(143)).to_be_focused()
    row.locator(".row-link").click()
    expect(page.locator(".timeline")).to_be_visible()
    page.keyboard.press("u")
    expect(row).to_have_attribute("aria-current", "true")
    expect(page).to_have_url(url)
    expect(row).to_be_in_viewport()


@pytest.mark.exhaustive
def test_a_row_that_lies_deep_is_come_back_to_without_all_before_it(scriptless_page: Page, url: str) -> None:
    page = scriptless_page
    page.goto(f"{url}?sort=oldest")
    page.get_by_role("link", name="Next rollouts").click()
    link = page.locator("#rows .row-link").nth(20)
    number = link.inner_text()
    link.click()
    page.locator(".crumbs").get_by_role("link", name="rollouts").click()
    expect(page.locator(f"#row-{number}")).to_be_in_viewport()
    expect(page.locator(f"#row-{number}")).to_have_attribute("aria-current", "true")
    expect(page.locator("#rows .row-link").first).to_have_text("1")


@pytest.mark.exhaustive
def test_a_click_in_a_line_opens_its_rollout_and_only_the_funnel_filters(quiet_page: Page, url: str) -> None:
    page = quiet_page
    page.goto(url)
    line = page.locator("#rows tr").first
    line.hover()
    line.locator(".task .only").first.click()
    expect(page).to_have_url(re.compile(r"where=task:"))
    line = page.locator("#rows tr").nth(1)
    for cell in (".task .mono", ".step", ".preview"):
        box = line.locator(cell).bounding_box()
        assert box
        at = page.evaluate("([x, y]) => document.elementFromPoint(x, y).className", [box["x"] + 4, box["y"] + 12])
        assert at == "row-link", cell
    box = line.locator(".task .mono").bounding_box()
    assert box
    page.mouse.click(box["x"] + 20, box["y"] + 5)
    expect(page).to_have_url(re.compile(r"/rollouts/\d+\?where=task:"))


@pytest.mark.exhaustive
def test_keys_match_the_tabs_and_the_help_has_only_the_keys_of_the_page(quiet_page: Page, url: str) -> None:
    page = quiet_page
    page.goto(url)
    for key, name in zip("1234", ("Overview", "Why", "Rollouts", "Groups"), strict=True):
        expect(page.locator(f"#run-line [data-key~='{key}']")).to_have_text(name)
    page.keyboard.press("4")
    expect(page).to_have_url(f"{url}/groups")
    page.keyboard.press("3")
    expect(page).to_have_url(url)
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    help_text = page.locator("#help").inner_text()
    assert "overview, why, rollouts, groups" in help_text
    for elsewhere in ("surprisal", "chart", "completion", "swap", "timeline", "compare"):
        assert elsewhere not in help_text
    assert violations(page) == []


def test_escape_leaves_what_was_written_and_enter_still_applies_it(quiet_page: Page, url: str) -> None:
    page, box = quiet_page, quiet_page.locator("#where")
    page.goto(f"{url}?where=stop:length")
    box.fill("step>2")
    expect(page.locator("#suggestions")).to_be_hidden()
    box.press("Escape")
    expect(box).not_to_be_focused()
    expect(box).to_have_value("step>2")
    expect(page.locator(".unsent")).to_be_visible()
    assert violations(page) == []
    page.keyboard.press("/")
    expect(page.locator(".unsent")).to_be_hidden()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"where=step%3E%3D3$"))
    box.press("Escape")
    expect(page.locator(".unsent")).to_be_hidden()
