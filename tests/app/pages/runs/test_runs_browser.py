"""The list of runs, and runs compared, in a real Chromium, as a hand and an eye have them."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from sqlalchemy import Engine, update
from sqlmodel import col

from logs_ui.recorder.queries.notebook import Notebook, Subject
from logs_ui.recorder.storage.changes import Source, SourcesChange
from logs_ui.recorder.storage.tables import Run
from logs_ui.recorder.storage.writes import run_writes
from logs_ui.recorder.vocabulary import RunState, SourceKind
from tests.support.axe import check_looks
from tests.support.factory import START_US, make_run

FIRST, SECOND, LIVE = "first-a1b2", "second-c3d4", "live-e5f6"
PAGES = {
    "runs": "/",
    "two": f"/compare?run={FIRST}&run={SECOND}",
    "grouped": "/?by=config.seed&sort=-reward",
    "headroom": f"/compare?run={FIRST}&run={SECOND}&part=headroom&solved=0.3000000119",
    "none": "/?q=nothing+like+it",
    "narrowed": "/?state=failed&tag=sweep&q=grpo",
    "chosen by tag": "/?tag=sweep",
    "three": f"/compare?run={FIRST}&run={SECOND}&run={LIVE}&steps=all&arguments=all&x=time&figure=kl",
    "columns": "/?col=reward&col=solved&col=config.chat_template&col=config.seed",
    "one": f"/compare?run={FIRST}",
    "nothing": "/compare",
}


def fill(engine: Engine, path: Path) -> None:
    now = time.time_ns() // 1000
    make_run(engine, uid=FIRST, name="grpo lr=1e-6", steps=20, state=RunState.FINISHED, seed=1)
    make_run(engine, uid=SECOND, name="grpo lr=1e-4", steps=8, state=RunState.FAILED, created=START_US + 10**9, seed=2)
    make_run(engine, uid=LIVE, name="live run", steps=6, created=now - 300_000_000, heartbeat=now + 900_000_000)
    with engine.begin() as connection:
        ids = run_writes.run_ids(connection, [FIRST, SECOND], 0)
        texts = ["def solved(x):\n    return x\n", "def solved(x):\n    return 2 * x  # </script>\n"]
        for uid, text in zip((FIRST, SECOND), texts, strict=True):
            parts = (
                Source(SourceKind.REWARD, "solved", text, 1.0),
                Source(SourceKind.CHANGED_FILES, "", "1\t1\tt.py\n"),
                Source(SourceKind.CHANGES, "", f"--- a/t.py\n+++ b/t.py\n@@ -1 +1 @@\n-a\n+{uid}\n"),
            )
            run_writes.write_sources(connection, [SourcesChange(uid, parts)], ids)
        long = {"seed": 2, "chat_template": "{% for message in messages %}" * 200, "prompt": "line\n" * 80}
        connection.execute(update(Run).where(col(Run.uid) == SECOND).values(error="ValueError: <b>no</b>", config=long))
    notebook = Notebook(path)
    notebook.tag(Subject(SECOND), "sweep")
    notebook.note(Subject(FIRST), "the baseline")
    notebook.star(Subject(FIRST), starred=True)


@pytest.mark.exhaustive
def test_every_page_is_quiet_accessible_and_no_wider_than_its_window(quiet_page: Page, url: str) -> None:
    unfold = "all => all.forEach(it => it.open = true)"
    check_looks(
        quiet_page,
        [url + address for address in PAGES.values()],
        4,
        prepare=lambda page: page.locator("details").evaluate_all(unfold),
    )


def test_keys_tick_runs_and_compare_them(quiet_page: Page, url: str) -> None:
    page = quiet_page
    page.goto(url)
    compare = page.get_by_role("button", name="Compare")
    expect(compare).to_have_text("Compare all 3")
    for key in ("j", "x"):
        page.keyboard.press(key)
    expect(compare).to_be_disabled()
    for key in ("j", "x"):
        page.keyboard.press(key)
    expect(page.get_by_text("2 selected")).to_be_visible()
    expect(compare).to_be_enabled()
    page.keyboard.press("c")
    expect(page).to_have_url(f"{url}/compare?run={LIVE}&run={SECOND}")
    page.go_back()
    expect(page.locator(".tick input[name=run]:checked")).to_have_count(0)
    for uid in (SECOND, LIVE):
        page.locator(f"input[name=run][value={uid}]").check()
    page.keyboard.press("c")
    expect(page).to_have_url(f"{url}/compare?run={SECOND}&run={LIVE}")  # the first that was ticked is A
    page.go_back()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{url}/runs/{LIVE}/overview")


def test_the_browser_asks_for_the_verdicts_of_listed_runs(quiet_page: Page, url: str) -> None:
    page, row = quiet_page, quiet_page.locator(f"tr:has(input[value={FIRST}])")
    page.goto(url)
    expect(row.locator(".verdict-line a")).to_have_attribute("href", f"/runs/{FIRST}/why")
    place = row.bounding_box()
    row.locator(".verdict-line").evaluate("line => { line.replaceChildren(); line.setAttribute('hx-get', ''); }")
    assert row.bounding_box() == place  # nothing moved when it came: a click would end on another row
    expect(page.locator(f"tr:has(input[value={SECOND}]) .why")).to_have_text(
        "The training failed: ValueError: <b>no</b>"
    )


@pytest.mark.exhaustive
def test_the_search_follows_what_is_typed_and_back_undoes_it(quiet_page: Page, url: str) -> None:
    page = quiet_page
    page.goto(url)
    page.keyboard.press("/")
    page.keyboard.type("lr=1e-4")
    expect(page.locator("tbody .row-link")).to_have_count(0)  # no argument is called lr
    page.locator("#q").fill("grpo")
    expect(page).to_have_url(f"{url}/?q=grpo")
    expect(page.locator("tbody .row-link")).to_have_count(2)
    page.locator(".facet", has_text="failed").click()
    expect(page).to_have_url(f"{url}/?q=grpo&state=failed")
    expect(page.locator("tbody .row-link")).to_have_text(["grpo lr=1e-4"])
    page.locator("#q").fill("")
    expect(page).to_have_url(f"{url}/?state=failed")
    page.go_back()
    expect(page).to_have_url(f"{url}/?q=grpo&state=failed")
    expect(page.locator("#q")).to_have_value("grpo")


@pytest.mark.exhaustive
def test_ticks_outlive_what_comes_in_and_rows_stay_where_they_are(quiet_page: Page, engine: Engine, url: str) -> None:
    page = quiet_page
    page.goto(url)
    page.locator(f"input[name=run][value={LIVE}]").check()
    page.locator(f"input[name=run][value={FIRST}]").check()
    with engine.begin() as connection:
        connection.execute(update(Run).where(col(Run.uid) == LIVE).values(name="renamed meanwhile", changed=99))
    now = time.time_ns() // 1000
    make_run(engine, uid=f"newest-{now}", name="newest", steps=1, state=RunState.FINISHED, created=now)
    page.locator(f"input[name=run][value={FIRST}]").hover()
    expect(page.locator(".row-link").first).to_have_text("renamed meanwhile")
    expect(page.get_by_role("link", name="1 new")).to_be_visible()
    expect(page.get_by_text("2 selected")).to_be_visible()
    expect(page.locator(f"input[name=run][value={LIVE}]")).to_be_checked()
    page.get_by_role("link", name="1 new").click()
    expect(page.locator(".row-link").first).to_have_text("newest")
    expect(page.locator(f"input[name=run][value={LIVE}]")).to_be_checked()


@pytest.mark.exhaustive
def test_the_comparison_answers_to_its_controls(quiet_page: Page, url: str) -> None:
    page = quiet_page
    page.goto(f"{url}/compare?run={FIRST}&run={SECOND}")
    page.locator("#figure").select_option("loss")
    expect(page).to_have_url(re.compile(r"figure=loss"))
    page.get_by_text("rollouts", exact=True).click()
    expect(page).to_have_url(re.compile(r"x=rollouts"))
    expect(page.locator(".across")).to_contain_text("rollouts")
    page.get_by_label("Solved if reward ≥").fill("0.5")
    page.get_by_label("Solved if reward ≥").press("Enter")
    expect(page).to_have_url(re.compile(r"solved=0\.5"))
    expect(page.locator("#tasks")).to_contain_text("Solved: reward ≥ 0.5, as set on this page")
    page.get_by_text("Add a run", exact=True).click()
    page.locator("#add-run").select_option(LIVE)
    expect(page.locator(".plot .key")).to_have_count(3)
    page.get_by_role("link", name="Remove grpo lr=1e-6").click()
    expect(page.locator(".plot .key")).to_have_count(2)
    page.go_back()
    expect(page.locator(".plot .key")).to_have_count(3)


@pytest.mark.exhaustive
def test_on_a_phone_every_column_of_a_comparison_is_reached(quiet_page: Page, url: str) -> None:
    page = quiet_page
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{url}/compare?run={FIRST}&run={SECOND}")
    for head in page.locator(".by-task th, .figures > .scroll-x th[scope=col]").all():
        head.scroll_into_view_if_needed()
        expect(head).to_be_in_viewport()


def test_pointer_and_arrow_keys_tell_values_and_lead_to_the_step(quiet_page: Page, url: str) -> None:
    page = quiet_page
    page.goto(f"{url}/compare?run={FIRST}&run={SECOND}")
    page.locator(".plot > svg[tabindex]").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(page.locator(".key output").first).to_have_text(re.compile(r"at step 3$"))
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(rf"/runs/({FIRST}|{SECOND})\?.*3"))
    page.go_back()
    box = page.locator(".plot > svg[tabindex]").bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 40)
    expect(page.locator(".key output").first).to_have_text(re.compile(r"at step 15$"))
    expect(page.locator(".key output").last).to_have_text(re.compile(r"at step 7$"))
    page.mouse.click(box["x"] + box["width"] * 0.75, box["y"] + 40)
    expect(page).to_have_url(re.compile(rf"/runs/{FIRST}\?.*15"))


@pytest.mark.exhaustive
def test_without_scripts_runs_are_found_tagged_and_compared(scriptless_page: Page, url: str) -> None:
    page = scriptless_page
    page.goto(url)
    page.locator("#q").fill("grpo")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("tbody .row-link")).to_have_count(2)
    for uid in (FIRST, SECOND):
        page.locator(f"input[name=run][value={uid}]").check()
    page.get_by_text("Tag", exact=True).click()
    page.get_by_label("Tag the selected runs").fill("pair")
    page.get_by_role("button", name="Add").click()
    expect(page.locator("tbody .tag", has_text="pair")).to_have_count(2)
    for uid in (FIRST, SECOND):
        page.locator(f"input[name=run][value={uid}]").check()
    page.get_by_role("button", name="Compare").click()
    expect(page).to_have_url(re.compile(rf"/compare\?run=({FIRST}|{SECOND})&run=({FIRST}|{SECOND})$"))
    expect(page.locator(".plot polyline.smoothed")).to_have_count(2)
    page.locator("#figure").select_option("kl")
    page.locator(".chart-panel").get_by_role("button", name="Apply").click()
    expect(page).to_have_url(re.compile("figure=kl"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("scripts", [True, False])
def test_columns_and_groups_are_chosen_in_a_form(browser: Browser, url: str, scripts: Any) -> None:
    context = browser.new_context(java_script_enabled=scripts)
    page = context.new_page()
    page.goto(f"{url}/?q=grpo")
    page.locator("#columns summary").click()
    for name in ("Model", "Steps", "Reward curve", "Duration"):
        page.locator("#columns").get_by_label(name, exact=True).uncheck()
    page.locator("#columns").get_by_label("seed", exact=True).check()
    page.locator("#columns select[name=by]").select_option("config.seed")
    page.locator("#columns").get_by_role("button", name="Show").click()
    expect(page.locator("tr.of-group")).to_have_count(2)
    heads = ["Run", "State", "Rollouts", "Reward, last 10", "Truncated", "Errors", "Started", "seed"]
    expect(page.locator("table.list thead th")).to_have_text(heads)
    page.locator("thead a", has_text="Rollouts").click()
    expect(page).to_have_url(re.compile(r"q=grpo.*by=config.seed|by=config.seed.*q=grpo"))
    expect(page.locator("thead [aria-sort=descending]")).to_have_text("Rollouts")
    expect(page.locator("tr.of-group")).to_have_count(2)
    context.close()


@pytest.mark.exhaustive
def test_a_run_keeps_its_colour_on_every_page(quiet_page: Page, url: str) -> None:
    page, read = quiet_page, "it => getComputedStyle(it).stroke"
    page.goto(url)
    listed = {
        uid: page.locator("tr", has=page.locator(f'[value="{uid}"]')).locator(".sparkline polyline").evaluate(read)
        for uid in (FIRST, SECOND)
    }
    assert len(set(listed.values())) == 2
    for a, b in ((FIRST, SECOND), (SECOND, FIRST)):
        page.goto(f"{url}/compare?run={a}&run={b}")
        for place, uid in ((1, a), (2, b)):
            assert page.locator(f"polyline.smoothed.s{place}").first.evaluate(read) == listed[uid]
            assert page.locator(f".figure-table thead .s{place}").first.evaluate(read) == listed[uid]
