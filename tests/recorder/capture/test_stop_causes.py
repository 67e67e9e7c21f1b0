"""What an exception tells of why a rollout ended."""

import asyncio

import httpx
import pytest
import requests
import websockets

from logs_ui.recorder.capture.stop_causes import reason_of
from logs_ui.recorder.vocabulary import StopReason

BROKEN = StopReason.ENVIRONMENT_ERROR


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionResetError("gone"), BROKEN),
        (OSError("no space left on device"), BROKEN),
        (EOFError(), BROKEN),
        (httpx.ReadError("gone"), BROKEN),
        (requests.ConnectionError("gone"), BROKEN),
        (websockets.ConnectionClosedError(None, None), BROKEN),
        (httpx.ReadTimeout("slow"), StopReason.TIMEOUT),
        (TimeoutError(), StopReason.TIMEOUT),
        (asyncio.CancelledError(), StopReason.TIMEOUT),
        (ValueError("Game over."), None),
        (TypeError("guess() got an unexpected keyword argument"), None),
        (KeyError("left"), None),
        (FileNotFoundError("no such file: notes.txt"), None),
    ],
)
def test_only_what_no_call_of_the_model_causes_is_a_failure(error: BaseException, reason: StopReason | None) -> None:
    assert reason_of(error) == reason
