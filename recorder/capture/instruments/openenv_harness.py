"""Follows OpenEnv's harness: the rollout functions that `build_harness_rollout_func` makes.

They go through the prompts one by one, and make a session for each: all calls from there to the next session belong to
that prompt's row. AsyncGRPO's `HarnessRolloutWorker` plays each session in a thread, within one row.

What is relied on (openenv 0.4 to 0.10), and what is lost without it:
    `session_factory`, `harness_adapter`, `reward_key` in the function's closure   all of the below
    session_factory.create(task=prompt) -> session, in order                       rows are found by other evidence
    session.call_tool(name, arguments) -> a ToolResult                             the tool trace
    harness_adapter.run_white_box(...) -> a HarnessRolloutResult                 its metrics
    session.verify(transcript), .wait_for_completion()             the worker's environment reward; why it ended
    session.fetch_training_trace().turns                           turns of an agent that owns its loop
The classes of these are the user's or OpenEnv's: they are patched when they are first seen.
"""

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from msgspec.structs import replace

from logs_ui.recorder.capture.calls import Generation, answered, generating
from logs_ui.recorder.capture.environment_call import Answer, RecordedCall
from logs_ui.recorder.capture.http.replies import request_of
from logs_ui.recorder.capture.instruments.patch import Method, patch, patches
from logs_ui.recorder.capture.model_answers import Sequence
from logs_ui.recorder.capture.stop_causes import reason_of
from logs_ui.recorder.capture.strands import Strand, current_strand, enter
from logs_ui.recorder.guard import guard
from logs_ui.recorder.snapshot import error_line, snapshot
from logs_ui.recorder.vocabulary import StopReason

_HOME = "openenv.core.harness"
_NAME = "build_harness_rollout_func.<locals>.rollout_func"
_REWARD = "env_reward"

_rows: ContextVar["Iterator[int] | None"] = ContextVar("logs_ui_harness_rows", default=None)
_inside: ContextVar[bool] = ContextVar("logs_ui_harness_inside", default=False)


@contextmanager
def a_row_for_each_session(rollout_func: Callable[..., Any]) -> Iterator[None]:
    """Assign calls from the n-th session on to the n-th row while the function runs, if the harness made it."""
    rows = None
    with guard("preparing to record a harness"):
        if parts := _parts(rollout_func):
            watch(parts["session_factory"], parts["harness_adapter"])
            rows = itertools.count()
    token = _rows.set(rows)
    try:
        yield
    finally:
        _rows.reset(token)


def watch(session_factory: Any, harness_adapter: Any) -> None:
    """Record the sessions of AsyncGRPO's harness worker; the adapter is None if the agent owns its loop."""
    _patch(session_factory, "create", _with_row)
    if harness_adapter is not None:
        _patch(harness_adapter, "run_white_box", _with_result)


def with_env_reward(rollout_func: Callable[..., Any], output: Any) -> Any:
    """Return the output with the reward also under the name `env_reward`, which the recorder reads."""
    name = _parts(rollout_func).get("reward_key", _REWARD)
    if name == _REWARD or not isinstance(output, Mapping) or name not in output:
        return output
    return {_REWARD: output[name], **output}


def _parts(rollout_func: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the parts that the function was built from; {} if it is not one of the harness's, maybe decorated."""
    rollout_func = inspect.unwrap(rollout_func)
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
    if strand is None or (rows is None and _workers_strand() is None):
        return create(factory, *args, **kwargs)
    # In the row of AsyncGRPO's worker, making the session is the environment's reset. In the harness's own rollout
    # function each session begins the next row, which is entered and not left: it lasts until the next session.
    if rows is None:
        with RecordedCall("reset", None, lambda: kwargs, lambda _: Answer(None)) as came_back:
            session = came_back(create(factory, *args, **kwargs))
    else:
        with guard("beginning a row of a harness"):
            enter(strand.tree.child(strand.tree.root, row=next(rows)))
        token = _rows.set(None)  # a factory may call another's create, which is no further row
        try:
            session = create(factory, *args, **kwargs)
        finally:
            _rows.reset(token)
    with guard("preparing to record a session"):
        for name, make in _OF_SESSIONS.items():
            _patch(session, name, make)
    return session


def _workers_strand() -> Strand | None:
    """Return the strand in a row of AsyncGRPO's worker, where nothing else tells of the session's end; else None."""
    strand = current_strand()
    return strand if strand is not None and strand.tree.is_one_row and strand.call is None else None


@patch
def _with_verdict(verify: Method, session: Any, /, *args: Any, **kwargs: Any) -> Any:
    if _workers_strand() is None:
        return verify(session, *args, **kwargs)
    with RecordedCall("reward", session, lambda: None, _verdict) as came_back:
        return came_back(verify(session, *args, **kwargs))


def _verdict(result: Any) -> Answer:
    return Answer(None, result.env_reward, result.done or None, dict(result.metrics) or None)


@patch
def _with_end(wait_for_completion: Method, session: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Record why the agent did not end by itself. Its calls of the model are those of its trace."""
    strand = _workers_strand()
    if strand is None:
        return wait_for_completion(session, *args, **kwargs)
    try:
        with generating():
            return wait_for_completion(session, *args, **kwargs)
    except TimeoutError:  # its turns are trained on
        strand.tree.collector.note(strand, "stop", snapshot({"reason": StopReason.TIMEOUT}))
        raise
    except Exception as error:
        strand.tree.collector.note(strand, "error", snapshot({"error": error_line(error), "reason": reason_of(error)}))
        raise


@patch
def _with_turns(fetch_training_trace: Method, session: Any, /, *args: Any, **kwargs: Any) -> Any:
    trace = fetch_training_trace(session, *args, **kwargs)
    strand = _workers_strand()
    # The trace is read only if no instrument has seen the calls of the model.
    if strand is not None and not strand.tree.collector.records.generations:
        with guard("recording the turns of an agent"):
            for turn in trace.turns:
                _record_turn(strand, turn)
    return trace


def _record_turn(strand: Strand, turn: Any) -> None:
    """Record a call of the model from an OpenEnv `TrainingTurn`: request and reply as chat completions, and its ids."""
    collector = strand.tree.collector
    begun = collector.begin(strand, "generation", seam="openenv")
    with answered(begun):
        request = request_of("/chat/completions", turn.request)
        (sequence,) = (request.sequences(turn.response) if request else [])[:1] or [Sequence(None, None, None)]
        context, sampled = (np.array(row, np.int32) for row in (turn.prompt_token_ids, turn.completion_token_ids))
        sequence = replace(
            sequence, context=context, sampled=sampled, logprobs=np.array(turn.per_token_logps, np.float32)
        )
        sampling = request.sampling if request else {}
        collector.add(Generation(begun.order, begun.began, 0.0, [sequence], sampling, "openenv", strand))


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
            strand.tree.collector.note(strand, "note", snapshot({"harness": dict(result.metrics)}))
    return result


_OF_SESSIONS: dict[str, Callable[[Method], Method]] = {
    "call_tool": _with_call,
    "verify": _with_verdict,
    "wait_for_completion": _with_end,
    "fetch_training_trace": _with_turns,
}
