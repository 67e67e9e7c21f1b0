"""The first thing that a user sees: the demo's real training, live in a real browser, and stopped by Ctrl-C."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from logs_ui.recorder import load_run

LOGS_UI = Path(sys.executable).with_name("logs-ui")


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    """The address that `logs-ui demo` prints while it trains; and what presses Ctrl-C, and gives what is said then."""
    command = [str(LOGS_UI), "demo", "--steps", "400", "--db", str(tmp_path / "a.db")]
    talk = tmp_path / "stderr"
    traced = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    with (
        talk.open("w") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=traced) as process,
    ):
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())

        def stop() -> str:
            process.send_signal(signal.SIGINT)
            try:
                said, _ = process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGABRT)  # prints where each of its threads stands
                process.wait(30)
                pytest.fail(f"Ctrl-C did not end the demo:\n{talk.read_text()[-8_000:]}")
            assert process.returncode == 130
            return said

        try:
            assert found
            yield found[0], stop
        finally:
            process.kill()


@pytest.mark.timeout(600)
@pytest.mark.exhaustive
def test_a_training_shows_itself_live_and_what_was_recorded_until_ctrl_c_is_kept(
    demo: tuple[str, Callable[[], str]], page: Page, tmp_path: Path
) -> None:
    address, stop = demo
    page.set_default_timeout(300_000)  # torch takes a minute to import on a busy machine
    page.goto(address)
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
    said = stop()
    stopped = re.search(
        r"^Stopped after (\d+) of 400 steps. Everything recorded so far is stored.$", said, re.MULTILINE
    )
    assert stopped, said
    assert f"logs-ui serve --db {tmp_path / 'a.db'}" in said
    assert load_run(db=tmp_path / "a.db").query("mode == 'train'").step.max() >= int(stopped[1]) >= 1
