"""The environment calls that a test plays, as the recorder collects them."""

from collections.abc import Callable
from typing import Any

from logs_ui.recorder.capture.calls import Collector, EnvironmentCall, collecting


def environment_calls(play: Callable[[], Any]) -> list[EnvironmentCall]:
    """The environment calls of what is played, in order; all of them came back."""
    log = Collector()
    with collecting(log):
        play()
    assert all(call.seconds is not None for call in log.so_far().environment_calls)
    log.close()
    log.records.sort()
    return log.records.environment_calls
