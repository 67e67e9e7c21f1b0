"""Groups and comparisons in a real Chromium, as a hand and an eye have them."""

import re
import time
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import Engine, select, update
from sqlmodel import col

from logs_ui.recorder.storage.tables import EvaluationRow
from logs_ui.recorder.vocabulary import RunState, SentPrompt
from tests.support.axe import check_looks
from tests.support.dashboard import first_row, of_run
from tests.support.exhaustive import cases
from tests.support.factory import make_run

FINISHED, LIVE, WIDE = "finished-a1b2", "live-c3d4", "wide-e5f6"


def fill(engine: Engine) -> None:
    now = time.time_ns() // 1000
    make_run(engine, uid=FINISHED, name="finished run", steps=20, generations=8, state=RunState.FINISHED)
    make_run(engine, uid=LIVE, name="live run", steps=6, created=now - 300_000_000, heartbeat=now + 600_000_000)
    make_run(engine, uid=WIDE, steps=1, groups_per_step=1, generations=24, state=RunState.FINISHED)
    with engine.begin() as db:
        dead = (of_run(FINISHED), col(EvaluationRow.step) == 3)
        db.execute(update(EvaluationRow).where(*dead).values(reward=0.0, advantage=0.0))
        db.execute(update(EvaluationRow).where(of_run(WIDE)).values(sent_prompt=SentPrompt.DATASET))
        sent_other = (of_run(WIDE), col(EvaluationRow.generation) < 3)
        db.execute(update(EvaluationRow).where(*sent_other).values(sent_prompt=SentPrompt.OTHER))


def pages(engine: Engine) -> dict[str, str]:
    hostile = first_row(engine, FINISHED)
    other_row = first_row(engine, FINISHED, col(EvaluationRow.step) == 4)
    last = first_row(engine, LIVE, col(EvaluationRow.scored).is_(None))
    return {
        "groups": f"/runs/{FINISHED}/groups",
        "wide": f"/runs/{WIDE}/groups/{first_row(engine, WIDE)}",
        "compared": f"/runs/{FINISHED}/compare?a={hostile}&b={hostile + 1}",
        "filtered": f"/runs/{FINISHED}/groups?where=stop:length&sort=dead-first&kind=dead",
        "live": f"/runs/{LIVE}/groups",
        "hostile": f"/runs/{FINISHED}/groups/{hostile}",
        "open": f"/runs/{LIVE}/groups/{last}",
        "elsewhere": f"/runs/{FINISHED}/compare?a={other_row}&b={last}",
    }


@pytest.mark.exhaustive
def test_every_page_is_quiet_accessible_and_no_wider_than_its_window(
    quiet_page: Page, engine: Engine, url: str
) -> None:
    def check_parts(page: Page) -> None:
        parts = page.locator(".completion, .pair-piece")
        assert parts.evaluate_all("all => all.filter(it => it.scrollWidth > it.clientWidth + 1).length") == 0, page.url

    quiet_page.set_viewport_size({"width": 390, "height": 900})
    check_looks(quiet_page, [url + address for address in pages(engine).values()], 3, prepare=check_parts)


@pytest.mark.exhaustive
def test_members_that_were_sent_another_prompt_are_marked(quiet_page: Page, engine: Engine, url: str) -> None:
    quiet_page.goto(url + pages(engine)["wide"])
    expect(quiet_page.locator(".group-prompt > summary")).to_contain_text("not of all members")
    marked = quiet_page.locator(".completion").filter(has_text="other prompt").locator("h2")
    assert sorted(marked.all_inner_texts()) == ["gen 0", "gen 1", "gen 2"]


@pytest.mark.exhaustive
def test_the_filter_and_the_kinds_change_the_address_and_back_undoes_it(quiet_page: Page, url: str) -> None:
    page = quiet_page
    page.goto(f"{url}/runs/{FINISHED}/groups")
    everything = page.locator("#rows tr[id^=group]").count()
    page.keyboard.press("/")
    expect(page.locator("#where")).to_be_focused()
    page.keyboard.type("step:3..6")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{url}/runs/{FINISHED}/groups?where=step:3..6")
    expect(page.locator("#rows tr[id^=group]")).to_have_count(12)
    page.locator(".legend a", has_text="all failed").click()
    expect(page).to_have_url(f"{url}/runs/{FINISHED}/groups?where=step:3..6&kind=failed")
    expect(page.locator("#rows tr[id^=group]")).to_have_count(3)
    page.locator(".by-step a").first.click()
    expect(page).to_have_url(f"{url}/runs/{FINISHED}/groups?where=step:3&kind=failed")
    expect(page.locator("#where")).to_have_value("step:3")
    page.locator(".chip", has_text="step").click()
    expect(page.locator("#where")).to_have_value("")
    for _ in range(4):
        page.go_back()
    expect(page).to_have_url(f"{url}/runs/{FINISHED}/groups")
    expect(page.locator("#rows tr[id^=group]")).to_have_count(everything)


def arrived(page: Page, address: str | re.Pattern[str]) -> None:
    """At a page whose scripts hear keys."""
    expect(page).to_have_url(address)
    page.wait_for_load_state("load")


def test_keys_lead_from_the_table_through_a_group_to_its_best_and_worst(quiet_page: Page, url: str) -> None:
    page = quiet_page
    table = f"{url}/runs/{FINISHED}/groups?where=stop:length"
    page.goto(f"{url}/runs/{FINISHED}")
    page.keyboard.press("4")
    arrived(page, f"{url}/runs/{FINISHED}/groups")
    page.goto(table)
    links = page.locator(".row-link")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(links.nth(1)).to_be_focused()
    third = links.nth(2).inner_text()
    page.keyboard.press("Enter")
    arrived(page, re.compile(r"/groups/\d+\?where=stop:length$"))
    page.keyboard.press("j")
    arrived(page, re.compile(rf"/groups/{third}\?where=stop:length$"))
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".column-link").nth(1)).to_be_focused()
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".column-link").nth(0)).to_be_focused()
    page.keyboard.press("c")
    arrived(page, re.compile(r"/compare\?where=stop:length&a=\d+&b=\d+$"))
    expect(page.locator(".aligned.parts")).to_be_in_viewport()
    best, worst = re.findall(r"=(\d+)", page.url.rpartition("?")[2])
    page.keyboard.press("x")
    arrived(page, re.compile(rf"\?where=stop:length&a={worst}&b={best}$"))
    page.keyboard.press("u")
    arrived(page, re.compile(rf"/groups/{third}\?where=stop:length$"))
    page.keyboard.press("u")
    arrived(page, table)


@pytest.mark.exhaustive
def test_a_column_opens_when_it_is_reached_and_its_head_stays_in_sight(
    quiet_page: Page, engine: Engine, url: str
) -> None:
    page = quiet_page
    page.set_viewport_size({"width": 1440, "height": 420})
    page.goto(f"{url}/runs/{WIDE}/groups/{first_row(engine, WIDE)}")
    last = page.locator(".completion").last
    expect(last.locator(".turn")).to_have_count(0)
    page.keyboard.press("ArrowLeft")
    expect(last.locator(".column-link")).to_be_focused()
    expect(last.locator(".turn").first).to_be_visible()
    pane = page.locator(".group-columns")
    pane.evaluate("it => it.scrollTo(it.scrollWidth, it.scrollHeight)")
    head, box = (locator.bounding_box() for locator in (last.locator("header"), pane))
    assert head is not None
    assert box is not None
    assert head["y"] == pytest.approx(box["y"], abs=1)
    assert page.locator(".completion .turn").count() > 0
    assert page.locator('.completion [hx-trigger="revealed"]').count() > 0, "those between were not opened"


@pytest.mark.exhaustive
@pytest.mark.parametrize("theme", cases(["light", "dark"], 1))
def test_orange_marks_the_lower_reward_and_never_the_higher_one(
    page: Page, engine: Engine, url: str, theme: Any
) -> None:
    page.emulate_media(color_scheme=theme)
    with engine.connect() as db:
        row = select(col(EvaluationRow.id)).where(of_run(FINISHED), col(EvaluationRow.reward).is_not(None))
        high, low = (
            db.scalar(row.order_by(order)) for order in (col(EvaluationRow.reward).desc(), col(EvaluationRow.reward))
        )
    for a, b, better in ((low, high, "b"), (high, low, "a")):
        page.goto(f"{url}/runs/{FINISHED}/compare?a={a}&b={b}")
        for side in "ab":
            mark = page.locator(f".half.{side} mark:not(.all)").first
            red, _, blue = mark.evaluate(
                "it => getComputedStyle(it).textDecorationColor.match(/[\\d.]+/g).map(Number)"
            )[:3]
            assert (blue > red) == (side == better), f"{side} of {a} and {b}"
