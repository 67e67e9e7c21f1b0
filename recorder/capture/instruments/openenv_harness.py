"""Follows OpenEnv's harness: the rollout functions that `build_harness_rollout_func` makes.

They go through the prompts one by one, and make a session for each: all calls from there to the next session belong to
that prompt's row.

What is relied on (openenv 0.4 to 0.10), and what is lost without it:
    `session_factory`, `harness_adapter`, `reward_key` in the function's closure   all of the below
    session_factory.create(task=prompt) -> session, in order                       rows are found by other evidence
    session.call_tool(name, arguments) -> a ToolResult                             the tool trace
    harness_adapter.run_white_box(...) -> a HarnessRolloutResult                 its metrics, a note on joined prompts
The classes of these three are the user's or OpenEnv's: they are patched when they are first seen.
"""

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from logs_ui.recorder.capture.environment_call import Answer, RecordedCall
from logs_ui.recorder.capture.instruments.patch import Method, patch, patches
from logs_ui.recorder.capture.strands import Strand, current_strand, enter
from logs_ui.recorder.guard import guard
from logs_ui.recorder.snapshot import snapshot

_HOME = "openenv.core.harness"
_NAME = "build_harness_rollout_func.<locals>.rollout_func"
_REWARD = "env_reward"

_rows: ContextVar["Iterator[int] | None"] = ContextVar("logs_ui_harness_rows", default=None)
_inside: ContextVar[bool] = ContextVar("logs_ui_harness_inside", default=False)


@contextmanager
def a_row_for_each_session(rollout_func: Callable[..., Any]) -> Iterator[None]:
    """Assigns calls from the n-th session on to the n-th row while the function runs, if the harness made it."""
    rows = None
    with guard("preparing to record a harness"):
        if parts := _parts(rollout_func):
            _patch(parts["session_factory"], "create", _with_row)
            _patch(parts["harness_adapter"], "run_white_box", _with_result)
            rows = itertools.count()
    token = _rows.set(rows)
    try:
        yield
    finally:
        _rows.reset(token)


def with_env_reward(rollout_func: Callable[..., Any], output: Any) -> Any:
    """Return the output with the reward also under the name `env_reward`, which the recorder reads."""
    name = _parts(rollout_func).get("reward_key", _REWARD)
    if name == _REWARD or not isinstance(output, Mapping) or name not in output:
        return output
    return {_REWARD: output[name], **output}


def _parts(rollout_func: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the parts that the function was built from; {} if it is not one of the harness's."""
    home = str(getattr(rollout_func, "__module__", ""))
    if getattr(rollout_func, "__qualname__", "") != _NAME or not home.startswith(_HOME):
        return {}
    return inspect.getclosurevars(rollout_func).nonlocals


def _patch(instance: Any, name: str, make: Callable[[Method], Method]) -> None:
    """Patch each class of the instance that defines the method: an override may call what it overrides."""
    for owner in type(instance).__mro__:
        if not getattr(owner.__dict__.get(name), "__isabstractmethod__", False):
            patches.method(owner, name, make)


@patch
def _with_row(create: Method, factory: Any, /, *args: Any, **kwargs: Any) -> Any:
    rows, strand = _rows.get(), current_strand()
    if rows is None or strand is None:
        return create(factory, *args, **kwargs)
    with guard("beginning a row of a harness"):
        enter(strand.tree.child(strand.tree.root, row=next(rows)))
    token = _rows.set(None)  # a factory may call another's create, which is no further row
    try:
        session = create(factory, *args, **kwargs)
    finally:
        _rows.reset(token)
    with guard("preparing to record a session's tools"):
        _patch(session, "call_tool", _with_call)
    return session


@patch
def _with_call(
    call_tool: Method, session: Any, /, name: str, arguments: dict[str, Any], *args: Any, **kwargs: Any
) -> Any:
    strand = current_strand()
    if strand is None or strand.call is not None:  # an override of it is being recorded
        return call_tool(session, name, arguments, *args, **kwargs)
    sent = {"name": name, "arguments": arguments}
    with RecordedCall("tool", session, lambda: sent, _answer) as came_back:
        return came_back(call_tool(session, name, arguments, *args, **kwargs))


def _answer(result: Any) -> Answer:
    """Read a `ToolResult`: its reward where the harness reads it, and its error, which the model gets as text."""
    data, metadata = result.data, dict(result.metadata)
    reward = metadata.get("reward")
    if reward is None and isinstance(data, dict):
        reward = data.get("reward")
    if result.error is not None:
        metadata["error"] = result.error
    return Answer(data, reward, result.done, metadata or None)


@patch
def _with_result(run_white_box: Method, adapter: Any, /, *args: Any, **kwargs: Any) -> Any:
    outer = _inside.set(True)
    try:
        result = run_white_box(adapter, *args, **kwargs)
    finally:
        _inside.reset(outer)
    strand = current_strand()
    if strand is not None and strand.row is not None and not _inside.get():  # an adapter may call another's
        with guard("recording a harness's metrics"):
            values = {"harness": dict(result.metrics), **_joined(strand, result)}
            strand.tree.log.note(strand, "note", snapshot(values))
    return result


def _joined(strand: Strand, result: Any) -> dict[str, str]:
    """Return a note if the prompts of all turns were joined, which OpenEnv's own adapter does."""
    generations = [
        call for call in strand.tree.log.records.generations if call.strand and call.strand.row == strand.row
    ]
    contexts = [sequence.context for call in generations for sequence in call.sequences]
    if len(contexts) < 2 or any(context is None for context in contexts):
        return {}
    if not np.array_equal(np.concatenate(contexts), np.asarray(result.prompt_ids)):
        return {}
    return {
        "prompt_ids": f"These are the prompts of all {len(contexts)} turns, joined, and completion_ids are all answers "
        "without the environment's messages between them. No model call had this context, so training on it compares "
        "log-probs of different contexts."
    }
