"""A real OpenEnv environment of real web pages: the example's server, its client, and openenv's generic one."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.late import miniwob_env, openenv
from tests.support.miniwob import miniwob_server

pytestmark = pytest.mark.exhaustive  # it makes an environment of its own, and drives two browsers
SESSIONS = 2


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with miniwob_server("--sessions", str(SESSIONS), "--settle", "0.1") as url:
        yield url


def bid_of_button(page: str, name: str) -> str:
    found = re.search(rf"\[(\d+)\] button '{re.escape(name)}'", page)
    assert found, page
    return found[1]


def test_an_action_that_cannot_be_carried_out_is_told_and_the_episode_goes_on(server: str) -> None:
    with miniwob_env.BrowserGymEnv(base_url=server).sync() as client:
        button = bid_of_button(client.reset(task="click-test").observation.text, "Click Me!")
        for action, error in (
            ("click('999')", "Could not find element"),
            ("I shall click", "empty action"),
            ("goto('file:///etc/passwd')", "Invalid action type 'goto'"),
        ):
            result = client.step(miniwob_env.BrowserGymAction(action_str=action))
            assert error in result.observation.error
            assert (result.observation.last_action_error, result.done, result.reward) == (True, False, 0.0)
        assert client.step(miniwob_env.BrowserGymAction(action_str=f"click('{button}')")).reward == 1.0
        state = client.state()
        assert (state.task_name, state.step_count, state.cum_reward) == ("click-test", 4, 1.0)


def test_sessions_play_at_once_and_a_seed_is_the_same_page_in_each(server: str) -> None:
    def page(seed: int) -> tuple[str, str]:
        with openenv.GenericEnvClient(base_url=server).sync() as client:
            observation = client.reset(task="click-button", seed=seed).observation
            return observation["goal"], observation["text"]

    with ThreadPoolExecutor(SESSIONS) as pool:
        same = list(pool.map(page, [3] * SESSIONS))
    assert len(set(same)) == 1
    assert page(4) != same[0]


def test_an_unknown_task_is_refused_and_the_session_goes_on(server: str) -> None:
    with openenv.GenericEnvClient(base_url=server).sync() as client:
        with pytest.raises(RuntimeError, match=r"Unknown task 'click-tset'; MiniWoB\+\+ has ascending-numbers, "):
            client.reset(task="click-tset")
        assert client.reset(task_name="click-test").observation["goal"] == "Click the button."
