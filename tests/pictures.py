"""Screenshots of every page in both themes, on the demo's own data: `python -m tests.pictures docs/pictures`."""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from logs_ui.app.serve import BackgroundServer
from logs_ui.recorder.database import reading_engine
from logs_ui.recorder.queries import find_run
from tests.chromium import chromium


def pages(db: Path) -> dict[str, str]:
    """Address of each page by the name of its picture."""
    engine = reading_engine(db)
    run = find_run(engine, "latest").uid
    engine.dispose()
    return {
        "runs": "/",
        "rollouts": f"/runs/{run}",
        "rollouts-filtered": f"/runs/{run}?stop=no_action&stop=length&sort=lowest-reward",
        "rollouts-empty": f"/runs/{run}?status=error&reward_min=0.5",
        "overview": f"/runs/{run}/overview",
        "rollout": f"/runs/{run}?stop=done&sort=lowest-reward",
        "rollout-tokens": f"/runs/{run}?mode=train&stop=turn_limit&sort=longest",
        "rollout-raw": f"/runs/{run}?stop=turn_limit",
    }


def take(db: Path, folder: Path) -> None:
    """Writes `folder/NAME-light.png` and `-dark.png`."""
    folder.mkdir(parents=True, exist_ok=True)
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with BackgroundServer(db) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium(), args=["--disable-gpu", "--disable-background-networking", *sandbox]
        )
        for theme in ("light", "dark"):
            page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme=theme)
            for name, address in pages(db).items():
                page.goto(server.url + address)
                if name in {"rollout", "rollout-tokens", "rollout-raw"}:
                    page.locator("a[href*='/rollouts/']").first.click()
                    page.wait_for_url("**/rollouts/**")
                if name == "rollout-tokens":
                    page.keyboard.press("2")
                    page.wait_for_url("**view=tokens**")
                    page.keyboard.press(".")
                if name == "rollout-raw":
                    page.keyboard.press("3")
                    page.wait_for_url("**view=raw**")
                page.wait_for_timeout(300)
                page.screenshot(path=folder / f"{name}-{theme}.png")
            page.close()
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--db", type=Path, help="a database that holds a run of the demo; without it one is trained")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        db = options.db or Path(temporary) / "demo.db"
        if options.db is None:
            command = [Path(sys.executable).with_name("logs-ui"), "demo", "--no-serve", "--db", db]
            subprocess.run(command, check=True, env={**os.environ, "LOGS_UI_RUN": "demo"})
        take(db, options.folder)


if __name__ == "__main__":
    main()
