"""Screenshots of every page in both themes, on the demo's own data, and of pages of long, wide and hostile runs.

python -m tests.pictures docs/pictures
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

from logs_ui.app.commands.serve import BackgroundServer
from tests.faults.realistic.registry import PAGES
from tests.support.chromium import chromium
from tests.support.hostile import record_huge, record_many
from tests.support.site import pages

_TO_COME = "[data-whole], [hx-trigger=load], #searched progress"
"""What is still to come, of a page and of the index that it looks words up in."""


def take(db: Path, folder: Path, addresses: dict[str, str]) -> None:
    """Writes `folder/NAME-light.png` and `-dark.png` of each page."""
    folder.mkdir(parents=True, exist_ok=True)
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with BackgroundServer(db) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium(), args=["--disable-gpu", "--disable-background-networking", *sandbox]
        )
        for theme in ("light", "dark"):
            page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme=theme)
            for name, address in addresses.items():
                page.goto(server.url + address)
                expect(page.locator(_TO_COME)).to_have_count(0, timeout=120_000)
                page.wait_for_timeout(500)  # what scripts draw
                if name == "tokens":
                    page.keyboard.press(".")  # the first surprise, and what is said of it
                page.screenshot(path=folder / f"{name}-{theme}.png")
            page.close()
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--db", type=Path, help="a database that holds runs of the demo; without it two are trained")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        db = options.db or Path(temporary) / "demo.db"
        if options.db is None:
            command = [Path(sys.executable).with_name("logs-ui"), "demo", "--no-serve", "--db", db]
            for run, more in (("demo-short", ["--steps", "60"]), ("demo", [])):
                subprocess.run([*command, *more], check=True, env={**os.environ, "LOGS_UI_RUN": run})
        take(db, options.folder, pages(db))
        extreme = Path(temporary) / "extreme.db"
        take(extreme, options.folder, extreme_pages(extreme))


def extreme_pages(db: Path) -> dict[str, str]:
    """Records runs of 200 turns, of 60 functions and 3,000 tasks, and of names and rewards of any size. Return the
    address of some of their pages by name.
    """
    long = next(run for run in PAGES if run.id == "desktop-long").record(db).run
    wide, hostile = record_many(db), record_huge(db)
    wanted = {"long": (long, ["rollout"]), "wide": (wide, ["why-rewards", "why-tasks"])}
    wanted["hostile"] = hostile, ["overview", "rollouts"]
    return {f"{kind}-{name}": pages(db, run)[name] for kind, (run, names) in wanted.items() for name in names}


if __name__ == "__main__":
    main()
