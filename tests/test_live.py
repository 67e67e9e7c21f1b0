"""The first thing that a user sees: the demo's real training, live in a real browser."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

LOGS_UI = Path(sys.executable).with_name("logs-ui")


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[str]:
    """The address that `logs-ui demo` prints, while it trains."""
    command = [str(LOGS_UI), "demo", "--steps", "400", "--db", str(tmp_path / "a.db")]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have us ignore it, and children inherit that
    talk = tmp_path / "stderr"
    traced = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    with (
        talk.open("w") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=traced) as process,
    ):
        assert process.stdout is not None
        try:
            found = re.search(r"http://\S+", process.stdout.readline())
            assert found
            yield found[0]
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGABRT)  # prints where each of its threads stands
                process.wait(30)
                pytest.fail(f"Ctrl-C did not end the demo:\n{talk.read_text()[-8_000:]}")


@pytest.mark.timeout(240)
def test_a_training_shows_itself_live(demo: str, page: Page) -> None:
    page.set_default_timeout(120_000)
    page.goto(demo)
    page.get_by_role("row").filter(has_text="running").get_by_role("link").first.click()
    page.locator("#run-line nav").get_by_role("link", name="Rollouts").click()
    expect(page.locator("#results")).to_contain_text("mean reward", timeout=120_000)
    page.locator("table.rollouts tbody tr").nth(1).hover()  # a hand on the table stops it
    pill = page.locator("#new")
    expect(pill).to_be_visible(timeout=60_000)
    top = page.locator("a[href*='/rollouts/']").first.inner_text()
    page.wait_for_timeout(2_000)
    assert page.locator("a[href*='/rollouts/']").first.inner_text() == top, "nothing moves under the reader"
    pill.click()
    expect(page.locator("a[href*='/rollouts/']").first).not_to_have_text(top)
    page.locator("a[href*='/rollouts/']").first.click()
    expect(page.get_by_text("guesses, ").first).to_be_visible()
