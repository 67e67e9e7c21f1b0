"""The dashboard under a path of a proxy's."""

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import Engine
from starlette.testclient import TestClient

from logs_ui.app.commands.serve import BackgroundServer
from logs_ui.recorder.vocabulary import RunState
from tests.support.dashboard import dashboard
from tests.support.factory import make_run

PREFIX, RUN = "/user/ann%40home/proxy/7070", "a-run-1"
TOKEN = "s3cret"  # noqa: S105 - nobody's
# Whatever the browser may ask for by itself, or when somebody clicks: every attribute that holds an address of ours.
ADDRESS = re.compile(r"""\s([\w-]+)=["'](/[^"']*)["']""")
MOST = 60  # pages looked at


def fill(engine: Engine) -> None:
    make_run(engine, uid=RUN, name="a run", steps=6, state=RunState.FINISHED)


@pytest.fixture(scope="module")
def client(engine: Engine, path: Path) -> Iterator[TestClient]:
    with dashboard(path, prefix=PREFIX) as client:
        yield client


def kind(address: str) -> str:
    """Pages that differ only in their numbers and filters are of one kind."""
    path, _, query = address.partition("?")
    names = "&".join(sorted(part.partition("=")[0] for part in query.split("&")))
    return re.sub(r"\d+", "N", path.removeprefix(PREFIX)) + "?" + names


@pytest.mark.exhaustive
def test_every_address_of_every_page_begins_with_the_prefix(client: TestClient) -> None:
    """Whether a proxy cuts it off, as of every other page, or not."""
    waiting, seen = [PREFIX + "/"], set[str]()
    for number in range(MOST):
        address = waiting.pop(0)
        answer = client.get(address.removeprefix(PREFIX) if number % 2 else address, follow_redirects=False)
        if answer.is_redirect:
            waiting.append(answer.headers["location"])
            continue
        assert answer.status_code in {200, 204}, address  # 204: a poll without news
        if "html" not in answer.headers.get("content-type", ""):
            continue
        for name, written in ADDRESS.findall(answer.text):
            found = unescape(written)
            assert found.startswith(PREFIX + "/"), f"{name}={written} in {address}"
            if name in {"href", "hx-get", "src"} and kind(found) not in seen:
                seen.add(kind(found))
                waiting.append(found.partition("#")[0])
    assert len(seen) > 12, seen


def test_errors_and_redirects_stay_under_the_prefix(client: TestClient) -> None:
    assert f'href="{PREFIX}/"' in client.get("/runs/nobody").text
    assert f'href="{PREFIX}/runs/{RUN}"' in client.get(f"/runs/{RUN}?step_min=x").text
    latest = client.get("/runs/latest", follow_redirects=False)
    assert latest.headers["location"] == f"{PREFIX}/runs/{RUN}"


def test_other_paths_that_only_begin_alike_are_not_cut(client: TestClient) -> None:
    assert client.get(f"{PREFIX}1/").status_code == 404


def test_the_tokens_cookie_is_for_the_prefix_alone(engine: Engine, path: Path) -> None:
    with dashboard(path, prefix=PREFIX, token=TOKEN) as client:
        welcome = client.get(f"{PREFIX}/runs/{RUN}?token={TOKEN}", follow_redirects=False)
        assert welcome.headers["location"] == f"{PREFIX}/runs/{RUN}"
        assert f"path={PREFIX}/" in welcome.headers["set-cookie"].lower()
        assert client.get(f"{PREFIX}/runs/{RUN}").status_code == 200


def test_a_browser_finds_everything_under_the_prefix(page: Page, engine: Engine, path: Path) -> None:
    failed: list[str] = []
    page.on("response", lambda response: failed.append(response.url) if response.status >= 400 else None)
    page.on("pageerror", lambda error: failed.append(str(error)))
    with BackgroundServer(path, prefix=PREFIX) as server:
        page.goto(f"{server.url}{PREFIX}/")
        page.get_by_role("link", name="a run").first.click()
        page.get_by_role("link", name="Rollouts", exact=True).click()
        page.locator(".row-link").first.click()
        expect(page).to_have_url(re.compile(re.escape(PREFIX) + f"/runs/{RUN}/rollouts/"))
        page.wait_for_load_state()  # keys are a script's
        page.keyboard.press("u")
        expect(page).to_have_url(f"{server.url}{PREFIX}/runs/{RUN}")
        page.wait_for_load_state()
        page.keyboard.press("u")
        expect(page).to_have_url(f"{server.url}{PREFIX}/")
    assert failed == []
