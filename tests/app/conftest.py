"""The dashboard of a database that a file's tests share, which its function `fill` writes."""

from collections.abc import Iterator
from inspect import signature
from pathlib import Path

import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from logs_ui.app.commands.serve import BackgroundServer
from logs_ui.recorder.storage.database import disposed, writing_engine
from tests.support.dashboard import dashboard


@pytest.fixture(scope="session", autouse=True)
def _news_come_soon() -> Iterator[None]:
    """Pages of runs that are alive look for news each second, and not each five."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("logs_ui.app.web.htmx.POLL_SECONDS", 1)
        yield


@pytest.fixture(autouse=True)
def _no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloads are waited for: on a busy machine the first page that is exported takes more than a second."""
    monkeypatch.setattr("logs_ui.app.pages.rollouts.export_page._AT_ONCE_SECONDS", 60.0)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dashboard") / "logs-ui.db"


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest, path: Path) -> Iterator[Engine]:
    with disposed(writing_engine(path)) as engine:
        fill = request.module.fill
        fill(*(engine, path)[: len(signature(fill).parameters)])
        yield engine


@pytest.fixture(scope="module")
def client(engine: Engine, path: Path) -> Iterator[TestClient]:
    with dashboard(path) as client:
        yield client


@pytest.fixture(scope="module")
def url(engine: Engine, path: Path) -> Iterator[str]:
    """Return the address of a server, for a browser."""
    with BackgroundServer(path) as server:
        yield server.url
