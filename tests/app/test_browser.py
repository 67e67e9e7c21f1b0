"""The dashboard in a real Chromium, as a hand and an eye have it."""

import json
import re
import time
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import Engine, update
from sqlmodel import col

from logs_ui.app.commands.serve import BackgroundServer
from logs_ui.recorder.storage.database import disposed, writing_engine
from logs_ui.recorder.storage.tables import EvaluationRow, Run
from logs_ui.recorder.vocabulary import RunState, Status, StopReason
from tests.support.axe import check_looks, violations
from tests.support.dashboard import add_rollouts, first_row
from tests.support.exhaustive import cases
from tests.support.factory import make_run

STEPS = 12
FINISHED, LIVE, TROUBLED = "finished-a1b2", "live-c3d4", "troubled-e5f6"


def fill(engine: Engine) -> None:
    now = time.time_ns() // 1000
    make_run(engine, uid=FINISHED, name="finished run", steps=STEPS, generations=8, state=RunState.FINISHED)
    make_run(engine, uid=LIVE, name="live run", steps=6, created=now - 300_000_000, heartbeat=now + 600_000_000)
    make_run(engine, uid=TROUBLED, name="troubled run", steps=2, groups_per_step=1, state=RunState.FAILED)
    with engine.begin() as connection:
        end = {"error": "ValueError: no", "traceback": "Traceback\n  line", "last_recorder_error": "OSError: full"}
        trouble = {"recorder_errors": 3, "dropped": 2, "dropped_payloads": 40}
        connection.execute(update(Run).where(col(Run.uid) == TROUBLED).values(**end, **trouble))


def pages(engine: Engine) -> dict[str, str]:
    """Every kind of page there is, with what can be on it, the plainest of each kind first."""
    failed = first_row(engine, FINISHED, col(EvaluationRow.status) == Status.ERROR)
    hostile = first_row(engine, FINISHED, col(EvaluationRow.step) == 1)
    running = first_row(engine, LIVE, col(EvaluationRow.status) == Status.RUNNING)
    return {
        "runs": "/",
        "table": f"/runs/{FINISHED}",
        "pivot": f"/runs/{FINISHED}?view=pivot&columns=stop",
        "overview": f"/runs/{FINISHED}/overview",
        "failed": f"/runs/{FINISHED}/rollouts/{failed}",
        "groups": f"/runs/{FINISHED}/groups",
        "group": f"/runs/{FINISHED}/groups/{hostile}",
        "compared": f"/compare?run={FINISHED}&run={LIVE}",
        "troubled": f"/runs/{TROUBLED}",
        "raw": f"/runs/{FINISHED}/rollouts/{hostile}?view=raw",
        "filtered": f"/runs/{FINISHED}?stop=length&reward_max=0.5&sort=lowest-reward",
        "empty": f"/runs/{FINISHED}?status=aborted&step_min=3",
        "columns": f"/runs/{FINISHED}?cols=reward,bar,rewards.solved,task,tags,model,created,preview",
        "searched": f"/runs/{FINISHED}?where=largest",
        "live": f"/runs/{LIVE}",
        "hostile": f"/runs/{FINISHED}/rollouts/{hostile}",
        "running": f"/runs/{LIVE}/rollouts/{running}",
    }


@pytest.mark.exhaustive
def test_every_page_is_quiet_accessible_and_no_wider_than_its_window(
    quiet_page: Page, engine: Engine, url: str
) -> None:
    every = [url + address for address in cases([*pages(engine).values()], 8)]
    check_looks(quiet_page, every, themes=("light", "dark"), widths=(900, 390, 1440))


@pytest.mark.exhaustive
def test_the_help_and_an_error_are_accessible(page: Page, url: str) -> None:
    check_looks(page, [f"{url}/runs/{FINISHED}{it}" for it in ("?step_min=x", "/groups?where=stop:lenght", "x")])
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    assert violations(page) == []


@pytest.mark.parametrize("width", cases([390, 900], 1))
def test_a_mistake_stands_directly_under_the_line_of_a_narrow_page(page: Page, url: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 1300})
    page.goto(f"{url}/runs/{FINISHED}?stop=lenght&step_max=9")
    line = page.locator("#where-form").evaluate("it => it.getBoundingClientRect().bottom")
    mistake = page.locator("#mistake").evaluate("it => it.getBoundingClientRect().toJSON()")
    filters = page.locator("#filters-panel").evaluate("it => it.getBoundingClientRect().top")
    assert 0 <= mistake["top"] - line <= 16
    assert 0 <= filters - mistake["bottom"] <= 130, "the chips, and whatever else belongs to the table"


@pytest.mark.exhaustive
def test_a_drag_over_the_histogram_filters_by_its_range(quiet_page: Page, url: str) -> None:
    page = quiet_page
    page.goto(f"{url}/runs/{FINISHED}")
    page.locator(".histogram").scroll_into_view_if_needed()
    box = page.locator(".histogram").bounding_box()
    assert box
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.6, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.3, middle, steps=5)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"where=reward%3E%3D[\d.-]+%20reward%3C[\d.-]+$"))
    expect(page.locator(".chip")).to_have_count(2)
    expect(page.get_by_label("Reward to")).to_have_value(re.compile("^<"))
    assert float(page.get_by_label("Reward from").input_value()) < float(
        page.get_by_label("Reward to").input_value()[1:]
    )
    page.get_by_label("Reward from").fill("")  # the fields are the keyboard's way to the same
    page.get_by_label("Reward from").press("Enter")
    expect(page.locator(".chip")).to_have_count(1)


@pytest.mark.exhaustive
def test_columns_are_chosen_and_a_file_is_downloaded(quiet_page: Page, url: str) -> None:
    page = quiet_page
    page.goto(f"{url}/runs/{FINISHED}?where=stop:length")
    page.locator("#columns > summary").click()
    page.get_by_label("rewards.solved").check()
    page.get_by_role("button", name="Show columns").click()
    expect(page.get_by_role("columnheader", name="solved")).to_be_visible()
    page.locator("#export > summary").click()
    assert violations(page) == []
    with page.expect_download() as download:
        page.get_by_role("button", name="JSON lines").click()
    assert download.value.suggested_filename == f"{FINISHED}_stop-length.jsonl"
    page.keyboard.press("Escape")
    expect(page.locator("#export .sheet")).to_be_hidden()
    page.locator("#columns > summary").click()
    page.get_by_role("link", name="Reset to default").click()
    expect(page.get_by_role("columnheader", name="solved")).to_have_count(0)


def test_keys_walk_the_table_and_the_rollouts_of_the_filter(quiet_page: Page, url: str) -> None:
    page = quiet_page
    table = f"{url}/runs/{FINISHED}?where=stop:length"
    page.goto(table)
    links = page.locator(".row-link")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(links.nth(1)).to_be_focused()
    page.keyboard.press("k")
    expect(links.nth(0)).to_be_focused()
    second = links.nth(1).inner_text()
    page.keyboard.press("Enter")
    expect(page.locator(".neighbours")).to_contain_text("1 of")
    page.wait_for_load_state()  # keys are a script's
    page.keyboard.press("j")
    expect(page).to_have_url(re.compile(rf"/rollouts/{second}\?where=stop:length$"))
    page.wait_for_load_state()
    page.keyboard.press("2")
    expect(page).to_have_url(re.compile(r"view=tokens"))
    page.keyboard.press("3")
    expect(page).to_have_url(re.compile("view=raw"))
    page.keyboard.press("1")
    expect(page.locator(".timeline .card.own").first).to_be_visible()
    page.keyboard.press("u")
    expect(page).to_have_url(table)


def test_the_theme_is_remembered(quiet_page: Page, url: str) -> None:
    page = quiet_page
    page.emulate_media(color_scheme="light")
    page.goto(url)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.keyboard.press("t")
    page.goto(f"{url}/runs/{FINISHED}")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"


def test_a_truncated_rollout_opens_where_it_was_cut_off(quiet_page: Page, engine: Engine, url: str) -> None:
    long = (col(EvaluationRow.stop_reason) == StopReason.LENGTH, col(EvaluationRow.turns) >= 5)
    quiet_page.set_viewport_size({"width": 1440, "height": 500})
    quiet_page.goto(f"{url}/runs/{FINISHED}/rollouts/{first_row(engine, FINISHED, *long)}")
    cut_off = quiet_page.locator(".card.anomaly")
    expect(cut_off).to_contain_text("cut off at the token limit")
    expect(cut_off).to_be_in_viewport()
    expect(quiet_page.locator(".outline [aria-current]")).to_contain_text("assistant")


def test_a_failed_rollout_opens_where_it_failed(quiet_page: Page, engine: Engine, url: str) -> None:
    failed = (col(EvaluationRow.stop_reason) == StopReason.ENVIRONMENT_ERROR, col(EvaluationRow.turns) >= 4)
    quiet_page.set_viewport_size({"width": 390, "height": 500})
    quiet_page.goto(f"{url}/runs/{FINISHED}/rollouts/{first_row(engine, FINISHED, *failed)}")
    expect(quiet_page.locator(".card.anomaly").first).to_be_in_viewport()
    number = "it => { it.textContent = '#384000'; return it.scrollWidth <= it.clientWidth; }"
    assert quiet_page.locator(".crumbs [aria-current]").evaluate(number), "is not cut on a phone"


def asked_again(page: Page) -> None:
    """The page, as it is now, has asked for news: an answer that was under way belonged to what it was before."""
    with page.expect_request("**/live?*") as asked:
        pass
    asked.value.response()


def test_the_top_of_the_table_follows_and_so_do_the_counts(quiet_page: Page, engine: Engine, url: str) -> None:
    page = quiet_page
    page.goto(f"{url}/runs/{LIVE}")
    before = int(page.locator("#found strong").first.inner_text())
    length = page.locator("label.box:has(input[name=mode][value=train]) .n")
    trained = int(length.inner_text()) if length.count() else 0
    page.get_by_label("Step from").fill("7")  # somebody is writing a filter meanwhile
    newest = add_rollouts(engine, LIVE, 3)
    expect(page.locator(".row-link").first).to_have_text(str(newest))
    expect(page.locator("#found strong").first).to_have_text(str(before + 3))
    if trained:
        expect(length).to_have_text(str(trained + 3))
    expect(page.locator(".pill")).to_have_count(0)
    expect(page.get_by_label("Step from")).to_have_value("7")
    page.locator(".scroll").evaluate("pane => pane.scrollTo(0, 200)")
    asked_again(page)
    add_rollouts(engine, LIVE, 3)
    expect(page.locator(".pill")).to_have_text("3 new")
    expect(page.locator(".row-link").first).to_have_text(str(newest))


@pytest.mark.exhaustive
def test_the_bars_stay_whole_where_a_long_rollout_opens_in_its_middle(
    quiet_page: Page, engine: Engine, url: str
) -> None:
    long = (col(EvaluationRow.stop_reason) == StopReason.LENGTH, col(EvaluationRow.turns) >= 5)
    for width in (1440, 900):
        quiet_page.set_viewport_size({"width": width, "height": 500})
        quiet_page.goto(f"{url}/runs/{FINISHED}/rollouts/{first_row(engine, FINISHED, *long)}")
        expect(quiet_page.locator(".card.anomaly")).to_be_in_viewport()
        assert quiet_page.evaluate("scrollY") > 0
        box = {
            name: quiet_page.locator(name).first.evaluate("it => it.getBoundingClientRect().toJSON()")
            for name in (".topbar", ".headline", ".tabs", ".bars", ".outline")
        }
        assert box[".topbar"]["top"] == 0
        assert box[".headline"]["top"] == pytest.approx(box[".topbar"]["bottom"], abs=1)
        assert box[".tabs"]["top"] > box[".headline"]["bottom"], "the answer is between them"
        assert (box[".headline"]["height"] > 60) == (width == 900), "of two lines, so that heights are no constants"
        assert width < 1180 or box[".outline"]["top"] == pytest.approx(box[".bars"]["bottom"] + 14, abs=1)
        for _ in range(quiet_page.locator(".card").count()):
            quiet_page.keyboard.press("p")
        below = pytest.approx(box[".bars"]["bottom"] + 12, abs=1)
        assert quiet_page.locator(".card").first.evaluate(TOP) == below
        for n in (1, 2):
            quiet_page.keyboard.press("n")
            assert quiet_page.locator(".card").nth(n).evaluate(TOP) == below


TOP = "it => it.getBoundingClientRect().top"


@pytest.mark.exhaustive
def test_what_an_address_names_is_unfolded(quiet_page: Page, url: str) -> None:
    quiet_page.goto(f"{url}/runs/{FINISHED}/why")
    settings = quiet_page.locator("#settings")
    expect(settings).not_to_have_attribute("open", "")
    quiet_page.locator("#basis summary").click()
    quiet_page.get_by_role("link", name="set it").first.click()
    expect(settings).to_have_attribute("open", "")
    quiet_page.goto(f"{url}/runs/{FINISHED}")
    quiet_page.goto(f"{url}/runs/{FINISHED}/why#settings")
    expect(settings).to_have_attribute("open", "")
    expect(settings).to_be_in_viewport()


@pytest.mark.exhaustive
def test_the_whole_record_is_copied_though_the_page_cuts_it(quiet_page: Page, engine: Engine, url: str) -> None:
    page = quiet_page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    address = f"{url}/runs/{FINISHED}/rollouts/{first_row(engine, FINISHED, col(EvaluationRow.step) == 1)}"
    page.goto(f"{address}?view=raw")
    page.get_by_role("button", name="Copy", exact=True).click()
    expect(page.locator("#said")).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert json.loads(copied)["messages"]
    assert copied == page.request.get(f"{address}/text/raw").text()


@pytest.mark.exhaustive
def test_a_lost_connection_is_said_and_a_regained_one_too(page: Page, url: str) -> None:
    page.goto(f"{url}/runs/{LIVE}")
    expect(page.locator("#live .is-live")).to_be_visible()
    page.route("**/live?*", lambda route: route.abort())
    expect(page.locator("#live .lost")).to_be_visible()
    expect(page.locator("#live .is-live")).to_be_hidden()
    page.unroute("**/live?*")
    expect(page.locator("#live .is-live")).to_be_visible()


@pytest.mark.exhaustive
def test_a_page_that_could_not_be_read_comes_back_by_itself_and_comes_alive(page: Page, tmp_path: Path) -> None:
    db = tmp_path / "a.db"
    db.write_text("no database" * 100)
    with BackgroundServer(db) as server:
        page.goto(server.url)
        expect(page.get_by_text("reloads by itself")).to_be_visible()
        db.unlink()
        expect(page.get_by_role("heading", name="No recording yet")).to_be_visible()
        assert violations(page) == []
        with disposed(writing_engine(db)) as engine:
            make_run(engine, name="first run", steps=2)
        expect(page.get_by_text("first run")).to_be_visible()


def test_everything_can_be_read_without_javascript(scriptless_page: Page, url: str) -> None:
    page = scriptless_page
    page.goto(url)
    page.get_by_text("finished run").click()
    page.get_by_role("link", name="Rollouts", exact=True).click()
    page.locator("input[name=stop][value=length]").check()
    page.get_by_text("Apply").click()
    expect(page).to_have_url(f"{url}/runs/{FINISHED}?where=stop:length")
    page.locator("#where").fill("status:error step>2")
    page.locator("#where").press("Enter")
    expect(page).to_have_url(f"{url}/runs/{FINISHED}?where=status:error%20step%3E%3D3")
    expect(page.locator("input[name=status][value=error]")).to_be_checked()
    page.goto(f"{url}/runs/{FINISHED}")
    page.get_by_text("Next rollouts").click()
    expect(page).to_have_url(re.compile("after="))
    page.locator(".row-link").first.click()
    expect(page.locator(".timeline .card").first).to_be_visible()


@pytest.mark.exhaustive
def test_copying_the_link_says_so_and_copies_a_mistaken_filter_too(page: Page, url: str) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{url}/runs/{FINISHED}?stop=length")
    for where in ("stop:length", "stop:lenght"):
        page.locator("#where").fill(where)
        page.locator("#where").press("Enter")
        expect(page.locator("#mistake")).to_have_count(int("lenght" in where))
        page.get_by_role("button", name="Copy link").click()
        expect(page.locator("#said")).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == f"{url}/runs/{FINISHED}?where={where}"
