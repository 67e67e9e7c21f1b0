"""Checks a page with axe, by WCAG 2.2 at level AA, and its width."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from axe_core_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.support.exhaustive import cases

Theme = Literal["light", "dark"]

_WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


def violations(page: Page) -> list[tuple[str, list[str]]]:
    """Return each violated rule with its elements. On a dark page only colours are checked: nothing else
    differs from the light one. What passes is not reported, which halves the time.
    """
    dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    options: dict[str, Any] = {"runOnly": ["color-contrast"] if dark else _WCAG, "resultTypes": ["violations"]}
    found = Axe().run(page, options=options)["violations"]
    return [(each["id"], [node["html"][:200] for node in each["nodes"]]) for each in found]


def check_looks(
    page: Page,
    addresses: Iterable[str],
    few: int = 99,
    *,
    themes: Sequence[Theme] | None = None,
    widths: Sequence[int] | None = None,
    prepare: Callable[[Page], object] = lambda _: None,
) -> None:
    """Assert that the first `few` pages, exhaustively all, are accessible, and that no page is wider than its window.

    Each page is loaded once, as to load it takes longer than to look at it in another theme or width. `prepare` opens
    what is to be looked at.
    """
    every = list(addresses)
    for address in every:
        page.emulate_media(color_scheme="light", reduced_motion="reduce")
        page.goto(address)
        prepare(page)
        for theme in themes or cases(("light", "dark"), 1):
            if address in cases(every, few):
                page.emulate_media(color_scheme=theme, reduced_motion="reduce")
                assert violations(page) == [], (address, theme)
        for width in widths or cases((390, 900, 1440), 1):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (address, width)
