"""Options, order and fixtures of all tests.

Tests share what is slow to make: each process runs whole files, so that a server, a model or a page that a file's tests
only read is made once.
"""

import asyncio
import gc
import inspect
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from jinja2.bccache import Bucket, BytecodeCache
from sqlalchemy import URL

from logs_ui.recorder.capture import strands
from logs_ui.recorder.delivery import writer
from logs_ui.recorder.delivery.helper import spawn
from logs_ui.recorder.guard import RAISE_VARIABLE, guard
from logs_ui.recorder.storage.address import Address
from tests.support import exhaustive, zygote
from tests.support.chromium import chromium
from tests.support.model_server import ModelServer, model_server
from tests.support.postgres import DATABASES, drop_database, fresh_database, make_database
from tests.support.writers import ending_writers

if TYPE_CHECKING:
    from openai import OpenAI
    from playwright.sync_api import Browser, BrowserContext, Page

os.environ[RAISE_VARIABLE] = "1"  # a failure inside the recorder fails the test
os.environ["OMP_NUM_THREADS"] = "1"  # two torch threads on a busy machine are ten times slower than one
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

# Some hundred processes are started, and each would compile all that it imports anew, which takes it a second.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # by a shell that runs us with `&`: tests press Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

_LONG = {
    f"test_{name}"
    for name in (
        "both_databases", "browser", "claims", "examples", "faults", "groups_browser", "helper", "live", "long_rollout",
        "moved_files", "run", "storage_faults", "training", "what_was_asked", "word_budgets",
    )
}  # fmt: skip
"""Files whose tests come first, so that no process has much left where the other has nothing more to do."""

TWO_RANKS = "two_ranks_"
"""In the name of each test with a pair of ranks, which takes long to start: one process runs all of them."""

_LATE = "from tests.support.late import"
"""In each file that takes from there what imports torch."""

_BROWSER = "[chromium"
"""In the name of each test with a browser."""

_STORING = {"storage", "delivery"}
"""Folders of tests whose subject is what a database stores: by default, too, they run on each kind of database."""

_PATIENCE_MS = 60_000  # of whatever waits for a page, on a machine that does much else


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--exhaustive`."""
    parser.addoption(
        "--exhaustive",
        action="store_true",
        help="all patterns, seeds and examples, not a few of each, and the tests marked `exhaustive`",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Runs the whole suite in several processes unless an option says how many. A single file is faster in this
    process, and `--pdb` needs it. `-n 0` and `-p no:xdist` keep the whole suite in this process, too.
    """
    is_whole = config.args_source == pytest.Config.ArgsSource.TESTPATHS and not hasattr(config, "workerinput")
    is_open = config.getoption("numprocesses", 0) is None and not config.option.usepdb
    if is_whole and is_open and not config.option.collectonly:
        config.option.numprocesses = pytest_xdist_auto_num_workers()  # xdist reads it in the same hook, after this


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return four more than there are cores, and eight at most, since each takes 1 GB: one has the browser tests, and
    the others wait for servers and other processes. `-n auto` says so too, which `--cov` has to see.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores + 4, 8)


def pytest_configure(config: pytest.Config) -> None:
    """Chooses between a few cases and all, before tests are imported. Nothing is garbage until they are: a fifth of
    the time of importing them goes into looking for it.
    """
    gc.disable()
    exhaustive.configure(exhaustive=_is_exhaustive(config))


def _is_exhaustive(config: pytest.Config) -> bool:
    """Return True if all cases are asked for: by the option, or of the tests with a mark, as .ci/versions does."""
    return bool(config.getoption("exhaustive") or config.option.markexpr)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives each process whole files, in our order, with their browser tests apart. Thus fixtures that the tests of a
    file share are made once. (`--dist loadgroup` of xdist 3.8 sees no groups with pytest 9.2, and scatters tests.)

    One process has only browser tests, from the beginning: they wait for pages most of the time, so that the others
    have the processor. These take what is left of them at their end. A third of the processes begin with the files that
    import torch and TRL, and the others take them last: each that does spends eight seconds on it.
    """
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    browsing: set[Any] = set()  # processes that have had browser tests
    training, files_with_torch = set[Any](), _list_heavy(config.rootpath)  # processes that have imported torch

    class Files(LoadScopeScheduling):  # type: ignore[misc]  # without types
        def _split_scope(self, nodeid: str) -> str:
            path, _, test = nodeid.partition("::")
            return TWO_RANKS if TWO_RANKS in test else f"{path}{_BROWSER if _BROWSER in test else ''}"

        def _assign_work_unit(self, node: Any) -> None:
            for scope in [scope for scope, unit in self.workqueue.items() if all(unit.values())]:
                del self.workqueue[scope]  # of a process that died: nothing would say that it is done
            with_browser = [scope for scope in self.workqueue if scope.endswith(_BROWSER)]
            without = [scope for scope in self.workqueue if not scope.endswith(_BROWSER)]
            is_browsing = node in browsing or (not browsing and len(self.nodes) > 1)
            chosen = with_browser if with_browser and (is_browsing or not without) else without
            if not chosen or (chosen is without and node in browsing):
                node.shutdown()  # what is left cannot run beside Playwright's event loop
                return
            if chosen is with_browser:
                browsing.add(node)
            else:
                heavy = [scope for scope in without if scope in files_with_torch]
                light = [scope for scope in without if scope not in heavy]
                is_training = node in training or len(training) < len(self.nodes) // 3
                chosen = (heavy or light) if is_training else (light or heavy)
                if chosen is heavy:
                    training.add(node)
            self.workqueue.move_to_end(chosen[0], last=False)
            super()._assign_work_unit(node)
            if self.workqueue and self._pending_of(self.assigned_work[node]) < 2:
                self._assign_work_unit(node)  # a process begins a test only once it has the next one

    config.option.loadscopereorder = False
    return Files(config, log)


def _list_heavy(root: Path) -> set[str]:
    """Return the test files that import torch: those that import from tests.support.late, or from what does so."""
    support = [file.stem for file in (root / "tests" / "support").glob("*.py") if _LATE in file.read_text()]
    imports = re.compile(rf"^from tests\.support(\.| import (.*, )?)({'|'.join(['late', *support])})\b", re.MULTILINE)
    files = (root / "tests").rglob("test_*.py")
    return {file.relative_to(root).as_posix() for file in files if imports.search(file.read_text())}


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Moves browser tests to the end: from the first on, Playwright keeps an event loop running in the main thread.

    Leaves out the tests marked `exhaustive` unless all are asked for, or tests are chosen by name or mark. A test that
    runs on each kind of database is one of them on PostgreSQL, except where rows are stored.
    """
    for item in items:
        if _is_on_postgresql(item) and not _STORING & {*item.nodeid.split("/")}:
            item.add_marker(pytest.mark.exhaustive)
    asked_for = _is_exhaustive(config) or any("::" in one for one in config.args)
    if not asked_for and (left_out := [item for item in items if item.get_closest_marker("exhaustive")]):
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)
    yield
    items.sort(key=lambda item: (_needs_browser(item), item.path.stem not in _LONG))


def pytest_collection_finish() -> None:
    """Takes what was imported, a million objects, out of the garbage collector's sight: each training begins with a
    collection, which would take a second. Lets all dashboards of this process share compiled templates. Refuses what
    each process would import for itself.
    """
    if loaded := {"torch", "trl", "transformers", "datasets", "openenv"} & sys.modules.keys():
        raise pytest.UsageError(f"{loaded} take seconds to import: test files import them from tests.support.late")
    gc.collect()
    gc.freeze()
    gc.enable()
    if "logs_ui.app.main" in sys.modules:
        dashboard = sys.modules["logs_ui.app.main"]
        dashboard.Environment = partial(dashboard.Environment, bytecode_cache=_Compiled())  # type: ignore[attr-defined]


class _Compiled(BytecodeCache):
    """Compiled templates, kept in memory: a hundred dashboards are made, and each would compile its pages anew."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], Any] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._codes.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._codes[bucket.key, bucket.checksum] = bucket.code


def _is_on_postgresql(item: pytest.Item) -> bool:
    """Return True for a test of each kind of database, in PostgreSQL's turn."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return any(isinstance(value, str) and value == "postgresql" for value in parameters)


def _needs_browser(item: pytest.Item) -> bool:
    return "playwright" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="session")
def _folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return an endless supply of new folders. (For each `tmp_path`, pytest lists all that there are.)"""
    root = tmp_path_factory.mktemp("default")
    return (root / str(number) for number in count())


@pytest.fixture(scope="session", autouse=True)
def _own_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps the user's data folder (spools for a server, notes on read-only databases) out of the tests and of the
    processes that they start.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(autouse=True)
def _own_database(_folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the tests from reading or writing the user's own database."""
    folder = next(_folders)
    folder.mkdir()
    monkeypatch.setenv("LOGS_UI_DB", str(folder / "logs-ui.db"))
    monkeypatch.delenv("LOGS_UI_RUN", raising=False)


@pytest.fixture(autouse=True)
def _helpers_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawn, "subprocess", zygote)


@pytest.fixture
def in_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a thread of this process write, for tests that take parts of the writing away, or look into it."""
    monkeypatch.setattr(writer, "is_wanted", lambda: False)


@pytest.fixture(autouse=True)
def _no_silent_failure(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a test if something failed in the writer's thread, where nothing can be raised, and the test did not
    allow it.
    """
    before = guard.errors
    yield
    if os.environ.get(RAISE_VARIABLE) == "1":
        assert guard.errors == before, guard.last


@pytest.fixture(scope="module", autouse=True)
def _writers_of_a_file_end() -> Iterator[None]:
    """Keeps the writers of a file's fixtures at work until the file's last test."""
    with ending_writers():
        yield


@pytest.fixture(autouse=True)
def _writers_end() -> Iterator[None]:
    with ending_writers():
        yield


@pytest.fixture(autouse=True)
def _nothing_left_open() -> Iterator[None]:
    """Fails a test that leaves a rollout open: calls of later tests in this process would be taken for its calls."""
    trees, here = tuple(strands._open), strands._here.get()
    yield
    deadline = time.monotonic() + 60  # of threads that are about to end
    while (left := [tree for tree in strands._open if tree not in trees]) and time.monotonic() < deadline:
        time.sleep(0.01)
    entered = strands._here.get()
    strands._open[:] = trees
    strands._here.set(here)
    assert not left, "a rollout function is still open"
    assert entered is here, "a rollout was entered, and not left"


@pytest.fixture
def postgres_url() -> Iterator[URL]:
    """Return the URL of a fresh PostgreSQL database, with all tables and nothing in them."""
    url = make_database()
    yield url
    drop_database(url)


@pytest.fixture(params=DATABASES)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Address]:
    """Return the address of a fresh database, once of each kind: for code that must do the same on both. Outside
    `_STORING`, PostgreSQL's turn is exhaustive.
    """
    with fresh_database(request.param, tmp_path) as address:
        yield address


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """Return the path of a database that is not there yet."""
    return tmp_path / "a.db"


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """Return a model's server whose replies a test gives."""
    with model_server() as server:
        yield server


@pytest.fixture
def client(server: ModelServer) -> Iterator["OpenAI"]:
    """Return a client of that server, which asks once."""
    from openai import OpenAI

    with OpenAI(base_url=f"{server.url}/v1", api_key="sk-secret", max_retries=0) as client:
        yield client


@pytest.fixture
def _asks_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps openai's client from waiting for seconds before it asks a server again."""
    monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.01)


@pytest.fixture(scope="module")
def game_url() -> Iterator[str]:
    """Return the address of an OpenEnv server of the demo's game."""
    from tests.support.training import guess_server

    with guess_server() as url:
        yield url


@pytest.fixture(scope="module")
def moody() -> Iterator[str]:
    """Return the address of an OpenEnv server whose environment fails as it is told to."""
    from tests.support.rollouts import moody_server

    with moody_server() as url:
        yield url


@pytest.fixture(scope="session")
def base_url() -> None:
    """Return None: tests write addresses in full. (pytest warns about pytest-playwright's own fixture.)"""


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    """Adds an installed Chromium, or one that is installed now, to pytest-playwright's own; never skips."""
    from playwright.sync_api import expect

    expect.set_options(timeout=_PATIENCE_MS)
    quiet = ["--disable-gpu", "--disable-background-networking"]
    as_root = ["--no-sandbox"] if os.geteuid() == 0 else []  # a sandbox within a container's needs rights it lacks
    return browser_type_launch_args | {"executable_path": chromium(), "args": [*quiet, *as_root]}


@pytest.fixture
def page(context: "BrowserContext") -> "Page":
    """Return pytest-playwright's page; its keys wait for the scripts that hear them, which run after the address has
    changed.
    """
    page = context.new_page()
    page.set_default_timeout(_PATIENCE_MS)
    press = page.keyboard.press

    def press_when_loaded(key: str, **options: Any) -> None:
        page.wait_for_load_state()
        press(key, **options)

    page.keyboard.press = press_when_loaded  # type: ignore[method-assign]
    return page


@pytest.fixture
def quiet_page(page: "Page") -> Iterator["Page"]:
    """Return a page on which nothing may be logged as an error: no script breaks, and no policy is violated."""
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    yield page
    assert said == []


@pytest.fixture
def scriptless_page(browser: "Browser") -> Iterator["Page"]:
    """Return a page of a browser that runs no scripts."""
    context = browser.new_context(java_script_enabled=False)
    yield context.new_page()
    context.close()
