"""The messages between a client and `miniwob_server.py`, and the client. Fields are named as in OpenEnv's own
BrowserGym one.

Needs `openenv` alone: a training imports this, and the browser runs in the server's process.
"""

from typing import Any

from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server.types import Action, Observation, State


class BrowserGymAction(Action):  # type: ignore[misc]  # openenv carries no types
    """One action in BrowserGym's words, such as `click('13')` or `fill('15', 'Ann')`; `noop()` waits a second."""

    action_str: str


class BrowserGymObservation(Observation):  # type: ignore[misc]
    """The page as it is now.

    Attributes:
        text: the accessibility tree; `[13] button 'Ok'` is the element that `click('13')` clicks.
        url: of the page.
        screenshot: (height, width, 3) RGB values as nested lists; None unless the server was started with screenshots.
        goal: what the task asks for.
        axtree_txt: the same as `text`.
        pruned_html: the page without scripts and styles.
        error: what was wrong with the last action; "" where it could be carried out.
        last_action_error: whether `error` says anything.
    """

    text: str = ""
    url: str = ""
    screenshot: list[list[list[int]]] | None = None
    goal: str = ""
    axtree_txt: str = ""
    pruned_html: str = ""
    error: str = ""
    last_action_error: bool = False


class BrowserGymState(State):  # type: ignore[misc]
    """The episode as the server knows it. `task_name` is MiniWoB++'s, such as `click-test`."""

    benchmark: str = "miniwob"
    task_name: str = ""
    goal: str = ""
    current_url: str = ""
    cum_reward: float = 0.0


class BrowserGymEnv(EnvClient):  # type: ignore[misc]
    """A session with the server: one WebSocket, one browser. `reset(task="click-button", seed=3)` opens an episode."""

    def _step_payload(self, action: BrowserGymAction) -> dict[str, Any]:
        return {"action_str": action.action_str}

    def _parse_result(self, payload: dict[str, Any]) -> Any:
        reward, done = payload.get("reward"), payload.get("done", False)
        observation = BrowserGymObservation(**payload["observation"], reward=reward, done=done)
        return StepResult(observation=observation, reward=reward, done=done)

    def _parse_state(self, payload: dict[str, Any]) -> BrowserGymState:
        return BrowserGymState(**payload)
