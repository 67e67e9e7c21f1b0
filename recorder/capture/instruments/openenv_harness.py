"""OpenEnv's harness: the rollout functions that `build_harness_rollout_func` makes. They go through the prompts one by
one, and make a session for each: all that happens from there to the next session happens for that prompt's row.

What is relied on (openenv 0.4 to 0.10), and what is lost without it:
    `session_factory`, `harness_adapter`, `reward_key` in the function's closure   all of the below
    session_factory.create(task=prompt) -> session, in order                       rows are told by other evidence
    session.call_tool(name, arguments) -> a ToolResult                             the tool trace
    harness_adapter.run_white_box(...) -> a HarnessRolloutResult                   its metrics, what is said of prompts
The classes of these three are the user's or OpenEnv's: they are patched when they are met.
"""

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from logs_ui.recorder.capture.environment_call import Answer, RecordedCall
from logs_ui.recorder.capture.instruments.patch import patches
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
    """While the function runs: what is seen from the n-th session on is the n-th row's, if the harness made it."""
    rows = None
    with guard("preparing to see a harness"):
        rows = _prepared(rollout_func)
    token = _rows.set(rows)
    try:
        yield
    finally:
        _rows.reset(token)


def _prepared(rollout_func: Callable[..., Any]) -> Iterator[int] | None:
    """Counts the rows; None where the function is not one of the harness's."""
    parts = _parts(rollout_func)
    if not parts:
        return None
    _patch(parts["session_factory"], "create", _with_row)
    _patch(parts["harness_adapter"], "run_white_box", _with_result)
    return itertools.count()


def with_env_reward(rollout_func: Callable[..., Any], output: Any) -> Any:
    """What it returned, with the reward also under the name that the recorder knows, whatever its `reward_key` is."""
    name = _parts(rollout_func).get("reward_key", _REWARD)
    if name == _REWARD or not isinstance(output, Mapping) or name not in output:
        return output
    return {_REWARD: output[name], **output}


def _parts(rollout_func: Callable[..., Any]) -> Mapping[str, Any]:
    """What the function was built from; nothing where it is not one of the harness's."""
    home = str(getattr(rollout_func, "__module__", ""))
    if getattr(rollout_func, "__qualname__", "") != _NAME or not home.startswith(_HOME):
        return {}
    return inspect.getclosurevars(rollout_func).nonlocals


def _patch(instance: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """On each class of the instance that defines it: an override may call what it overrides."""
    for owner in type(instance).__mro__:
        if not getattr(owner.__dict__.get(name), "__isabstractmethod__", False):
            patches.method(owner, name, make)


def _with_row(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def create(self: Any, *args: Any, **kwargs: Any) -> Any:
        rows, strand = _rows.get(), current_strand()
        if rows is None or strand is None:
            return original(self, *args, **kwargs)
        with guard("beginning a row of a harness"):
            enter(strand.tree.child(strand.tree.root, row=next(rows)))
        token = _rows.set(None)  # a factory may go through another's
        try:
            session = original(self, *args, **kwargs)
        finally:
            _rows.reset(token)
        with guard("preparing to see a session's tools"):
            _patch(session, "call_tool", _with_call)
        return session

    return create


def _with_call(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call_tool(self: Any, name: str, arguments: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        strand = current_strand()
        if strand is None or strand.call is not None:  # of an override that is recorded
            return original(self, name, arguments, *args, **kwargs)
        sent = {"name": name, "arguments": arguments}
        with RecordedCall("tool", self, lambda: sent, _answer) as came_back:
            return came_back(original(self, name, arguments, *args, **kwargs))

    return call_tool


def _answer(result: Any) -> Answer:
    """Of a `ToolResult`. Its reward is where the harness looks for it; an error in it is one that the model is told."""
    data, metadata = result.data, dict(result.metadata)
    reward = metadata.get("reward")
    if reward is None and isinstance(data, dict):
        reward = data.get("reward")
    if result.error is not None:
        metadata["error"] = result.error
    return Answer(data, reward, result.done, metadata or None)


def _with_result(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run_white_box(self: Any, *args: Any, **kwargs: Any) -> Any:
        outer = _inside.set(True)
        try:
            result = original(self, *args, **kwargs)
        finally:
            _inside.reset(outer)
        strand = current_strand()
        if strand is not None and strand.row is not None and not _inside.get():  # an adapter may stand on another
            with guard("recording what a harness says of a rollout"):
                said = {"harness": dict(result.metrics), **_joined(strand, result)}
                strand.tree.log.note(strand, "note", snapshot(said))
        return result

    return run_white_box


def _joined(strand: Strand, result: Any) -> dict[str, str]:
    """Whether the prompts of all turns were strung together, as the harness's own adapter does."""
    generations = [call for call in strand.tree.log.generations if call.strand and call.strand.row == strand.row]
    contexts = [sequence.context for call in generations for sequence in call.sequences]
    if len(contexts) < 2 or any(context is None for context in contexts):
        return {}
    if not np.array_equal(np.concatenate(contexts), np.asarray(result.prompt_ids)):
        return {}
    return {
        "prompt_ids": f"The prompts of all {len(contexts)} turns, one after the other, and completion_ids all answers "
        "without what the environment said between them: no model call had this context, and training on it compares "
        "log-probs of different contexts."
    }
