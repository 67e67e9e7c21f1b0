"""Records resets, steps and tool calls of OpenEnv's clients, of all its releases.

    0.1            `HTTPEnvClient.reset/step`, of `openenv_core`
    0.2.0, 0.2.1   `EnvClient.reset/step`
    0.2.2 to 0.3   the same as coroutines; `.sync()` goes through them
    0.4 on         `EnvClient._reset_async/_step_async`: sync, bare and async calls all go through these two. In a
                   running loop a bare call that is not awaited runs, and is recorded, when its result is first read.

`MCPToolClient.call_tool` makes a step, which is its child, or in newer clients' "production" mode none. `list_tools`
may make one too, which is not an action of the model.

What is relied on (run on openenv 0.4 and 0.10), besides these methods, and what is lost without it:
    StepResult.observation, .reward, .done     the parts of an answer: all of it is stored as the observation
    StepResult.metadata                        metadata (from 0.4 on)
    ListToolsAction, the name of a class       steps of `list_tools` are recorded as actions
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from logs_ui.recorder.capture.environment_call import Answer, RecordedCall, recorded_function
from logs_ui.recorder.capture.instruments.patch import Method, patches

Sent = Callable[[tuple[Any, ...], dict[str, Any]], Any]


def install() -> None:
    """Patch the clients, now or when their modules are imported."""
    patches.when_imported("openenv_core.http_env_client", lambda module: _attach(module.HTTPEnvClient))
    patches.when_imported("openenv.core.env_client", lambda module: _attach(module.EnvClient))
    patches.when_imported(
        "openenv.core.mcp_client", lambda module: patches.method(module.MCPToolClient, "call_tool", _tool)
    )


def _attach(client: type) -> None:
    by_coroutines = hasattr(client, "_step_async")
    patches.method(client, "_reset_async" if by_coroutines else "reset", _reset)
    patches.method(client, "_step_async" if by_coroutines else "step", _step)


def _action(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs.get("action")


def _called(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    # With the tool's name as a positional argument, a keyword `name` is an argument of the tool itself.
    name = args[0] if args else kwargs.get("name")
    return {"name": name, "arguments": {key: value for key, value in kwargs.items() if args or key != "name"}}


def _step_result(result: Any) -> Answer:
    """Read a `StepResult`, which has metadata from 0.4 on."""
    return Answer(result.observation, result.reward, result.done, getattr(result, "metadata", None))


def _recorded(kind: str, sent: Sent, read: Callable[[Any], Answer], original: Method) -> Method:
    def around(client: Any, /, *args: Any, **kwargs: Any) -> AbstractContextManager[Callable[[Any], Any]]:
        if type(_action(args, kwargs)).__name__ == "ListToolsAction":
            return nullcontext(lambda result: result)
        return RecordedCall(kind, client, functools.partial(sent, args, kwargs), read)

    return recorded_function(original, around)


_reset = functools.partial(_recorded, "reset", lambda _, kwargs: kwargs, _step_result)
_step = functools.partial(_recorded, "step", _action, _step_result)
_tool = functools.partial(_recorded, "tool", _called, Answer)
