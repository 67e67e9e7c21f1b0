"""Pages are read at a glance: what they show before anything is opened has few words."""

import re

import pytest
from playwright.sync_api import Page, expect

from logs_ui.app.main import create_app
from logs_ui.app.web import urls
from tests.faults.realistic import Realistic
from tests.faults.realistic.recorded import recorded, recorded_pair
from tests.faults.realistic.registry import RUNS, of
from tests.support.rollouts import served_app

BUDGETS = {"overview": 280, "why": 300, "why/tasks": 700, "why/rewards": 250}
PAIRS = [it for it in RUNS if it.id in {"coding-regressed", "gsm8k-drowned", "mix-two", "judge-length"}]
"""Runs that are compared with the healthy one of their kind."""


def words_of(page: Page) -> int:
    return len(page.locator("main").inner_text().split())


@of(RUNS, 1)
def test_pages_of_a_realistic_run_have_few_words(run: Realistic, page: Page) -> None:
    found = recorded(run.id)
    page.set_viewport_size({"width": 1440, "height": 900})
    with served_app(create_app(found.db)) as base:
        page.goto(base + urls.why(found.truth.run, wait="1"))  # later pages need not wait for the diagnosis
        words = {}
        for name in BUDGETS:
            page.goto(f"{base}/runs/{found.truth.run}/{name}")
            words[name] = words_of(page)
    assert {name: count for name, count in words.items() if count > BUDGETS[name]} == {}


@pytest.mark.exhaustive
@of(PAIRS, 1)
def test_a_comparison_has_few_words(run: Realistic, page: Page) -> None:
    a, b = recorded_pair(run.id, f"{run.kind}-healthy")
    page.set_viewport_size({"width": 1440, "height": 900})
    with served_app(create_app(a.db)) as base:
        page.goto(base + urls.compare_runs([a.truth.run, b.truth.run]))
        assert words_of(page) <= 405


@of([it for it in RUNS if it.kind in {"coding", "shaped"}], 1)
def test_a_group_of_agents_has_a_line_a_turn(run: Realistic, page: Page) -> None:
    found = recorded(run.id)
    page.set_viewport_size({"width": 1440, "height": 900})
    with served_app(create_app(found.db)) as base:
        page.goto(base + urls.groups(found.truth.run))
        page.locator("main a[href*='/groups/']").first.click()
        expect(page.locator(".turn-line").first).to_be_visible()
        assert words_of(page) <= 1_500
        expect(page.locator(".turn-line summary").first).to_contain_text(re.compile(r"^\s*1\s*\w+"))
        page.locator(".turn-line summary").first.click()
        expect(page.locator(".turn-line .turn").first).to_be_visible()
        page.get_by_role("link", name="Best vs worst").click()
        expect(page.locator(".aligned .lines").first).to_be_visible()
        assert words_of(page) <= 1_500
