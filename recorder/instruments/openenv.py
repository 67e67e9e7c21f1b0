"""OpenEnv: resets and steps of its clients. From 0.4 on, sync, bare and async calls all go through two coroutines."""

import functools
import time
from collections.abc import Awaitable, Callable
from typing import Any

from logs_ui.recorder.calls import CallLog, EnvironmentCall, active_calls
from logs_ui.recorder.clean import snapshot, text
from logs_ui.recorder.guard import guard
from logs_ui.recorder.instruments.patch import patches

Coroutine = Callable[..., Awaitable[Any]]


def install() -> None:
    """Patches `EnvClient`, now or when openenv is imported."""
    patches.when_imported("openenv.core.env_client", _attach)


def _attach(module: Any) -> None:
    patches.method(module.EnvClient, "_reset_async", functools.partial(_recorded, "reset"))
    patches.method(module.EnvClient, "_step_async", functools.partial(_recorded, "step"))


def _recorded(kind: str, original: Coroutine) -> Coroutine:
    @functools.wraps(original)
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        log = active_calls()
        if log is None:
            return await original(self, *args, **kwargs)
        order, began = log.begin()
        sent = b"null"
        with guard("recording what was sent to an environment"):
            sent = snapshot(args[0] if kind == "step" and args else kwargs.get("action", kwargs))
        try:
            result = await original(self, *args, **kwargs)
        except BaseException as error:  # also where a timeout cancels it
            with guard("recording an environment's error"):
                _add(log, order, began, self, kind, sent, None, f"{type(error).__name__}: {error}".removesuffix(": "))
            raise
        with guard("recording an environment's answer"):
            _add(log, order, began, self, kind, sent, result, None)
        return result

    return call


def _add(
    log: CallLog, order: int, began: float, client: Any, kind: str, sent: bytes, result: Any, error: str | None
) -> None:
    reward = getattr(result, "reward", None)
    metadata = getattr(result, "metadata", None)
    log.add(
        EnvironmentCall(
            order=order,
            began=began,
            seconds=time.perf_counter() - began,
            client=log.client(client),
            kind=kind,
            sent=sent,
            observation=None if result is None else snapshot(result.observation),
            reward=None if reward is None else float(reward),
            done=None if result is None else bool(result.done),
            metadata=None if metadata is None else snapshot(metadata),
            error=None if error is None else text(error),
        )
    )
