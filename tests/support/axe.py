"""Checks a page with axe, by WCAG 2.2 at level AA."""

from typing import Any

from axe_core_python.sync_playwright import Axe
from playwright.sync_api import Page

_WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


def violations(page: Page) -> list[tuple[str, list[str]]]:
    """Return each violated rule with its elements. On a dark page only colours are checked: nothing else
    differs from the light one. What passes is not reported, which halves the time.
    """
    dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    options: dict[str, Any] = {"runOnly": ["color-contrast"] if dark else _WCAG, "resultTypes": ["violations"]}
    found = Axe().run(page, options=options)["violations"]
    return [(each["id"], [node["html"][:200] for node in each["nodes"]]) for each in found]
