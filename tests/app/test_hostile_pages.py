"""Every page of runs with infinite rewards, very many things, and names without a blank."""

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from playwright.sync_api import Page
from starlette.testclient import TestClient

from logs_ui.app.commands.serve import BackgroundServer
from logs_ui.app.web import urls
from tests.faults.realistic.registry import RUNS
from tests.support.dashboard import dashboard
from tests.support.hostile import record_huge, record_many
from tests.support.page_text import read
from tests.support.site import pages

pytestmark = pytest.mark.exhaustive  # these runs take half a minute to make, and other tests have a little of each

WIDTHS = (1440, 900, 390)
MANY_THINGS = {"overview", "rollouts", "pivot", "groups", "group", "why", "why-tasks", "why-rewards", "runs-compared"}
"""Pages on which the number of things counts; the others are the same in both runs."""
_DRAWING = re.compile(r"<svg.*?</svg>", re.DOTALL)
_ATTRIBUTE = re.compile(r'\s(?:[xy][12]?|c[xy]|r|d|points|width|height|transform|viewBox)="([^"]*)"')
_NO_NUMBER = re.compile(r"(?i)(?<![a-z])(?:nan|inf|infinity|none)(?![a-z])")


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile") / "runs.db"


@pytest.fixture(scope="module")
def runs(db: Path) -> dict[str, str]:
    drowned = next(run for run in RUNS if run.id == "gsm8k-drowned")
    return {"huge": record_huge(db), "many": record_many(db), "gsm8k": drowned.record(db).run}


@pytest.fixture(scope="module")
def client(db: Path, runs: dict[str, str]) -> Iterator[TestClient]:
    with dashboard(db) as client:
        for run in runs.values():
            client.get(urls.why(run, wait="1"))  # the first request may only say that it is computed
        yield client


@pytest.fixture(scope="module")
def url(db: Path, client: TestClient) -> Iterator[str]:
    with BackgroundServer(db) as server:
        yield server.url


@pytest.mark.parametrize("which", ["many", "huge"])
def test_every_page_answers_and_draws_only_numbers(
    db: Path, client: TestClient, runs: dict[str, str], which: str
) -> None:
    for name, address in pages(db, runs[which]).items():
        answer = client.get(address)
        assert answer.status_code == 200, name
        drawn = [value for drawing in _DRAWING.findall(answer.text) for value in _ATTRIBUTE.findall(drawing)]
        assert [value for value in drawn if _NO_NUMBER.search(value)] == [], name


@pytest.mark.parametrize("which", ["many", "huge", "gsm8k"])
def test_no_page_is_wider_than_its_window(
    quiet_page: Page, db: Path, runs: dict[str, str], url: str, which: str
) -> None:
    for name, address in pages(db, runs[which]).items():
        if which == "huge" or (name in MANY_THINGS if which == "many" else name == "why-rewards"):
            quiet_page.goto(url + address)
            for width in WIDTHS:
                quiet_page.set_viewport_size({"width": width, "height": 900})
                assert quiet_page.evaluate("document.documentElement.scrollWidth") <= width, (name, width)


def test_settings_that_json_lacks_are_shown(client: TestClient, runs: dict[str, str]) -> None:
    text, _ = read(client.get(urls.overview(runs["huge"])).text)
    assert [value for value in ("NaN", "Infinity", "-Infinity") if value not in text.split()] == []


def test_a_metric_alone_with_its_prefix_has_no_row_of_its_own(client: TestClient, runs: dict[str, str]) -> None:
    heads = re.findall(r"<h3>(.*?)</h3>", client.get(urls.overview(runs["huge"])).text)
    assert [unescape(re.sub("<.*?>", "", head)) for head in heads] == ["training", "rewards", "others"]


def test_names_that_begin_alike_show_where_they_differ(
    quiet_page: Page, db: Path, runs: dict[str, str], url: str
) -> None:
    """Every cut name on a page has its last characters in sight."""
    hidden = "names => names.filter(it => it.checkVisibility() && it.scrollWidth > it.clientWidth + 1).length"
    quiet_page.set_viewport_size({"width": 1440, "height": 900})
    addresses = pages(db, runs["many"])
    for name in ("overview", "rollouts", "groups", "why-tasks", "why-rewards"):
        quiet_page.goto(url + addresses[name])
        ends = quiet_page.locator(".middle > :last-child")
        assert ends.evaluate_all(hidden) == 0, name
        assert len(set(ends.all_inner_texts())) > 7, name


def test_of_60_functions_the_page_of_reward_functions_stays_small(
    client: TestClient, db: Path, runs: dict[str, str]
) -> None:
    html = client.get(pages(db, runs["many"])["why-rewards"]).text
    assert len(html) < 400_000
    text, tables = read(html)
    assert len(tables[0].rows) >= 61, "each function has its line"
    assert "the 12 functions with the largest variance share" in text
    assert "53 others" in text
