"""Every page of the dashboard in a browser, on what a real training recorded."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from logs_ui.app.commands.serve_command import BackgroundServer
from logs_ui.recorder import flush, record
from logs_ui.rollout.demo.demo import DemoSettings, train_demo
from tests.support.axe import violations
from tests.support.late import guess_model
from tests.support.site import pages

pytestmark = pytest.mark.exhaustive  # tests/app/test_browser.py walks over generated runs


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two short runs of the demo."""
    db = tmp_path_factory.mktemp("walk") / "demo.db"

    def train() -> None:
        for steps in (3, 6):
            train_demo(DemoSettings(steps=steps), wrap=record(eval_name="guess", db=db, announce=False))
        assert flush()

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as thread:  # Playwright's loop runs in this one
        patch.setattr("logs_ui.rollout.demo.guess_model.warm_up", partial(guess_model.warm_up, steps=50))  # enough
        thread.submit(train).result()
    return db


@pytest.fixture(scope="module")
def url(db: Path) -> Iterator[str]:
    with BackgroundServer(db) as server:
        yield server.url


def test_every_page_of_a_real_run_is_quiet_accessible_and_no_wider_than_the_window(
    quiet_page: Page, db: Path, url: str
) -> None:
    for name, address in pages(db).items():
        quiet_page.emulate_media(color_scheme="light", reduced_motion="reduce")
        quiet_page.goto(url + address)
        expect(quiet_page.locator("[hx-trigger^=load], .htmx-request")).to_have_count(0)
        assert violations(quiet_page) == [], name
        quiet_page.emulate_media(color_scheme="dark")
        assert violations(quiet_page) == [], name
        assert quiet_page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name


def test_every_page_of_a_real_run_reads_without_javascript(browser: Any, db: Path, url: str) -> None:
    page = browser.new_context(java_script_enabled=False).new_page()
    for name, address in pages(db).items():
        answer = page.goto(url + address)
        assert answer.status == 200, name
        assert len(page.locator("main, #main").first.inner_text()) > 100, name
    page.context.close()


def test_a_walk_by_the_keyboard_alone(quiet_page: Page, url: str) -> None:
    """From the runs to a rollout's tokens, to its group, and up again."""
    quiet_page.goto(url)
    for keys, ends in (
        (["j", "Enter"], "/overview"),
        (["3"], "/runs/"),
        (["j", "Enter"], "/rollouts/"),
        (["2"], "view=tokens"),
        (["g"], "/groups/"),
        (["u"], "/groups"),
        (["u"], "/runs/"),
    ):
        before = quiet_page.url
        quiet_page.wait_for_load_state("load")
        for key in keys:
            quiet_page.keyboard.press(key)
        quiet_page.wait_for_function("before => location.href !== before", arg=before)
        assert ends in quiet_page.url, (keys, quiet_page.url)
