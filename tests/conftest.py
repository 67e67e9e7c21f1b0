"""What all tests stand on."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from logs_ui.recorder.guard import RAISE_VARIABLE, guard
from tests.chromium import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Page

os.environ[RAISE_VARIABLE] = "1"  # a failure inside the recorder fails the test
os.environ["OMP_NUM_THREADS"] = "1"  # two torch threads on a busy machine are ten times slower than one
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Browser tests come last: from the first on, Playwright keeps an event loop running in the main thread. With
    several processes (`--dist loadgroup`) each runs whole files, those tests of them apart.
    """
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            item.add_marker(pytest.mark.xdist_group(f"{item.path.name} {_needs_browser(item)}"))
    yield
    items.sort(key=_needs_browser)


def _needs_browser(item: pytest.Item) -> bool:
    return "playwright" in getattr(item, "fixturenames", ())


@pytest.fixture(autouse=True)
def _own_database(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's own database."""
    monkeypatch.setenv("LOGS_UI_DB", str(tmp_path_factory.mktemp("default") / "logs-ui.db"))
    monkeypatch.delenv("LOGS_UI_RUN", raising=False)


@pytest.fixture(autouse=True)
def _no_silent_failure(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A failure in the writer's thread, where nothing can be raised, fails the test that allowed none."""
    before = guard.errors
    yield
    if os.environ.get(RAISE_VARIABLE) == "1":
        assert guard.errors == before, guard.last


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    """pytest-playwright's own, with a Chromium that is there or can be had; never a skip."""
    quiet = ["--disable-gpu", "--disable-background-networking"]
    as_root = ["--no-sandbox"] if os.geteuid() == 0 else []  # a sandbox within a container's needs rights it lacks
    return browser_type_launch_args | {"executable_path": chromium(), "args": [*quiet, *as_root]}


@pytest.fixture
def quiet_page(page: "Page") -> Iterator["Page"]:
    """A page on which nothing may be logged as an error: no script breaks, and no policy is violated."""
    page.set_default_timeout(8_000)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    yield page
    assert said == []
