"""An OpenEnv server of BrowserGym's MiniWoB++ tasks: real web pages in a real Chromium, offline.

BrowserGym pins an old Playwright, so it runs in an environment of its own, which `.ci/environments miniwob` makes:

    python=$(.ci/environments miniwob)
    $python -m examples.miniwob_server --port 8000

A client (`examples.miniwob_env.BrowserGymEnv`, or openenv's generic one) opens a session for each rollout, and names a
task at reset: `reset(task="click-button", seed=3)`.
"""

import argparse
import importlib.util
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import browsergym.core.action.highlevel
import browsergym.core.chat
import browsergym.core.env
import browsergym.miniwob
import gymnasium
import uvicorn
from browsergym.utils.obs import (
    IGNORED_AXTREE_PROPERTIES,
    IGNORED_AXTREE_ROLES,
    flatten_axtree_to_str,
    flatten_dom_to_str,
    prune_html,
)
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from playwright.sync_api import Browser, sync_playwright

from examples.miniwob_env import BrowserGymAction, BrowserGymObservation, BrowserGymState

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_of_thread = threading.local()
"""Holds the browser of each thread: Playwright is used in the thread that started it, and in no other."""

_idle: list[ThreadPoolExecutor] = []
"""Threads, with a browser each, that no session uses. Launching one takes a second of a core."""


@dataclass(frozen=True)
class Settings:
    """Settings that all sessions share.

    Attributes:
        task: the task of a reset that names none.
        chromium: path of the browser; None takes Playwright's own.
        screenshots: if True, observations contain one.
        settle: seconds from an action to its observation, in which the page's scripts run.
    """

    task: str = "click-test"
    chromium: str | None = None
    screenshots: bool = False
    settle: float = 0.5


class MiniWobEnvironment(Environment):  # type: ignore[misc]  # openenv carries no types
    """One session, played on a browser's thread."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings
        self._thread = _take_thread()
        self._closed = False
        self._gym: Any = None
        self._done = True
        self._state = BrowserGymState()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> BrowserGymObservation:
        """Open a task's page. `task` (or `task_name`) and `seed` decide it: the same two give the same page.

        Raises ValueError for a task that MiniWoB++ does not have.
        """
        return self._thread.submit(self._reset, seed, episode_id, options).result()

    def _reset(self, seed: int | None, episode_id: str | None, options: dict[str, Any]) -> BrowserGymObservation:
        task = options.get("task") or options.get("task_name") or self._settings.task
        if task not in _tasks():
            raise ValueError(f"Unknown task {task!r}; MiniWoB++ has {', '.join(sorted(_tasks()))}.")
        if self._gym is None or task != self._state.task_name:
            self._close_page()
            self._gym = _open(task, self._settings)
        try:
            page, _ = self._gym.reset(seed=seed)
        except Exception:
            self._close_page()  # it is half open, and no later reset would do
            raise
        self._done = False
        self._state = BrowserGymState(episode_id=episode_id or str(uuid4()), task_name=task, goal=page["goal"])
        return self._observe(page)

    def step(self, action: BrowserGymAction, timeout_s: float | None = None, **_: Any) -> BrowserGymObservation:  # noqa: ARG002
        """Carry one action out. One that cannot be is an observation with its `error`; the episode goes on.

        Raises RuntimeError where no episode is under way.
        """
        return self._thread.submit(self._step, action).result()

    def _step(self, action: BrowserGymAction) -> BrowserGymObservation:
        if self._done:
            raise RuntimeError("No episode is under way (none was begun, or it is over): call reset() first.")
        page, reward, self._done, _, _ = self._gym.step(action.action_str)
        self._state.step_count += 1
        self._state.cum_reward += reward
        return self._observe(page, reward=float(reward), done=self._done)

    @property
    def state(self) -> BrowserGymState:
        """The episode."""
        return self._state

    def close(self) -> None:
        """Close the page. The browser is kept for the next session, unless the page would not close."""
        if not self._closed:  # OpenEnv closes again what would not close
            self._closed = True
            self._thread.submit(self._close_page).result()
            _idle.append(self._thread)

    def _close_page(self) -> None:
        gym, self._gym, self._done = self._gym, None, True
        if gym is not None:
            gym.close()

    def _observe(self, page: dict[str, Any], **outcome: Any) -> BrowserGymObservation:
        self._state.current_url = page["url"]
        text = flatten_axtree_to_str(
            page["axtree_object"],
            ignored_roles=[*IGNORED_AXTREE_ROLES, "InlineTextBox"],  # today's Chromium repeats each text by lines
            ignored_properties=[*IGNORED_AXTREE_PROPERTIES, "url"],  # a path of this machine, in every prompt
        )
        return BrowserGymObservation(
            text=text,
            axtree_txt=text,
            url=page["url"],
            goal=page["goal"],
            pruned_html=prune_html(flatten_dom_to_str(page["dom_object"])),
            screenshot=page["screenshot"].tolist() if self._settings.screenshots else None,
            error=page["last_action_error"],
            last_action_error=bool(page["last_action_error"]),
            **outcome,
        )


def _take_thread() -> ThreadPoolExecutor:
    try:
        return _idle.pop()
    except IndexError:
        return ThreadPoolExecutor(max_workers=1)


class SilentChat(browsergym.core.chat.Chat):  # type: ignore[misc]
    """BrowserGym's chat with its user, without the second Chromium that shows it."""

    def __init__(self, **_: Any) -> None:
        self.messages: list[dict[str, Any]] = []

    def add_message(self, role: str, msg: str) -> None:
        """Keep it: BrowserGym and its tasks read the list."""
        self.messages.append({"role": role, "timestamp": time.time(), "message": msg})

    def close(self) -> None:
        """Nothing was opened."""


def noop(wait_ms: float = 1000):  # type: ignore[no-untyped-def]  # noqa: ANN201 (BrowserGym runs this source text)
    """
    Do nothing, and optionally wait for the given time (in milliseconds, five seconds at most).

    Examples:
        noop()
        noop(500)
    """
    page.wait_for_timeout(min(wait_ms, 5000))  # type: ignore[name-defined]  # noqa: F821


class KeptBrowser:
    """Playwright and its Chromium of one thread, as BrowserGym drives them: what it launches and closes at each reset
    is launched once. A reset still opens a context of its own, with no cookies or storage of the last.
    """

    def __init__(self) -> None:
        self._playwright = sync_playwright().start()
        self._browser: Browser | None = None
        self.selectors = self._playwright.selectors
        self.chromium = self

    def launch(self, **options: Any) -> Self:
        """Launch it, unless it runs."""
        if self._browser is None or not self._browser.is_connected():
            self._browser = self._playwright.chromium.launch(**options)
        return self

    def new_context(self, **options: Any) -> Any:
        """Does the same as Playwright's `new_context`."""
        assert self._browser is not None  # noqa: S101 (for the type checker)
        return self._browser.new_context(**options)

    def close(self) -> None:
        """Kept."""


def _browser_of_thread() -> KeptBrowser:
    if not hasattr(_of_thread, "browser"):
        _of_thread.browser = KeptBrowser()
    return _of_thread.browser  # type: ignore[no-any-return]


def _adapt_browsergym() -> None:
    """BrowserGym is made for one environment a process, with a window: its parts that are in the way are replaced."""
    browsergym.core.env._get_global_playwright = _browser_of_thread  # noqa: SLF001 (no public word for it)
    browsergym.core.env.Chat = SilentChat
    browsergym.core.action.highlevel.noop = noop
    logging.getLogger("browsergym").setLevel(logging.ERROR)  # it warns at each reset of the slow motion taken out


def _actions() -> Any:
    """All that a page can be done to. Not: other addresses, tabs, files of this machine. The text is a model's."""
    highlevel = browsergym.core.action.highlevel
    known = highlevel.ACTION_SUBSETS["bid"] + highlevel.ACTION_SUBSETS["coord"]
    allowed = [function for function in known if "upload" not in function.__name__]
    return highlevel.HighLevelActionSet(subsets=["custom"], custom_actions=allowed)


def _open(task: str, settings: Settings) -> Any:
    return gymnasium.make(
        f"browsergym/miniwob.{task}",
        disable_env_checker=True,
        action_mapping=_actions().to_python_code,
        slow_mo=0,
        pre_observation_delay=settings.settle,
        pw_chromium_kwargs={"executable_path": settings.chromium},
        task_kwargs={"base_url": _pages()},
    )


def _pages() -> str:
    """Returns where MiniWoB++'s pages are: in its package, unless MINIWOB_URL names another place."""
    package = importlib.util.find_spec("miniwob")
    if package is None or package.origin is None:
        raise ImportError("MiniWoB++'s pages are missing. Install: pip install miniwob")
    return os.environ.get("MINIWOB_URL") or (Path(package.origin).parent / "html" / "miniwob").as_uri() + "/"


def _tasks() -> list[str]:
    return [task.get_task_id().removeprefix("miniwob.") for task in browsergym.miniwob.ALL_MINIWOB_TASKS]


def serve(settings: Settings, *, port: int, sessions: int) -> None:
    """Serve on 127.0.0.1 until told to stop. Port 0 takes a free one; the line printed says which."""
    _adapt_browsergym()
    app = create_app(
        partial(MiniWobEnvironment, settings),
        BrowserGymAction,
        BrowserGymObservation,
        env_name="browsergym",
        max_concurrent_envs=sessions,
    )
    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", ws_ping_interval=None)
    listener = config.bind_socket()
    listener.listen()  # from here on a connection waits instead of being refused, so the address may be told
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(config).run(sockets=[listener])


def _end_with_parent() -> None:
    """End this process, and the browsers with it, when standard input closes: a parent that was killed says no more."""
    sys.stdin.buffer.read()
    os._exit(0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.miniwob_server", description=(__doc__ or "").partition("\n")[0]
    )
    chromium = os.environ.get("CHROME_PATH") or next(filter(None, map(shutil.which, CHROMIUMS)), None)
    task = os.environ.get("BROWSERGYM_TASK_NAME", Settings.task)
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0 takes a free one (default)")
    parser.add_argument("--sessions", type=int, default=8, help="rollouts at once, each a browser (default 8)")
    parser.add_argument("--task", default=task, help="of a reset that names none (default BROWSERGYM_TASK_NAME)")
    parser.add_argument("--chromium", default=chromium, help="path of the browser (default CHROME_PATH, or one found)")
    parser.add_argument("--screenshots", action="store_true", help="observations carry one")
    parser.add_argument("--settle", type=float, default=Settings.settle, help="seconds from an action to what is seen")
    parser.add_argument("--until-stdin-closes", action="store_true", help="end when standard input is closed")
    options = parser.parse_args(arguments)
    if options.until_stdin_closes:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    if options.task not in _tasks():
        parser.error(f"unknown task {options.task!r}; MiniWoB++ has {', '.join(sorted(_tasks()))}")
    settings = Settings(options.task, options.chromium, options.screenshots, options.settle)
    serve(settings, port=options.port, sessions=options.sessions)


if __name__ == "__main__":
    main()
