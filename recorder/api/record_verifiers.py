"""`record_verifiers()` records the episodes of an environment of verifiers, whatever trainer or evaluation runs them.

What is relied on (verifiers 0.4.0): `Env.run_episode(task, ctx)` returns an episode of finished traces, `.serving()`
ends with `.stop()`; a trace's `nodes`, `calls`, `branches`, `rewards`, `metrics`, `errors` and `stop_condition`.
"""

import functools
import itertools
import time
from typing import Any, TypeVar, Unpack

from logs_ui.recorder.api.open_rollout import OpenRollout
from logs_ui.recorder.api.options import RecordOptions, checked_options, takes_record_options
from logs_ui.recorder.api.start_run import OpenRun, start_run
from logs_ui.recorder.capture.calls import EnvironmentCall, Generation
from logs_ui.recorder.capture.http.replies import request_of
from logs_ui.recorder.guard import guard
from logs_ui.recorder.snapshot import one_line, snapshot

E = TypeVar("E")

_SEAM = "verifiers"
_STOPS = {"max_turns": "turn_limit", "max_input_tokens": "length", "max_output_tokens": "length"}
_STOPS |= {"max_total_tokens": "length", "compaction_failed": "length"}


@takes_record_options
def record_verifiers(
    env: E, /, *, name: str | None = None, tokenizer: Any = None, **options: Unpack[RecordOptions]
) -> E:
    """Record every episode that a verifiers environment plays in this process, when it ends: each trace is a row.

    The rollouts of one task object, as `env.slots(task, n)` plans them, are a group. A run begins with the first
    episode and ends with `env.serving()`.

    Args:
        env: A `verifiers.v1.Env`.
        name: Name of the run, for people. None shows the run's id.
        tokenizer: The policy's tokenizer; None stores token ids without their texts.
        **options: The options in `RecordOptions`.

    Returns:
        The same environment.

    Raises:
        DatabaseError: `db` is a URL of a database that is not supported.
        TypeError: `env` is no such environment, or an option is unknown.

    Examples:
        ```python
        from logs_ui.recorder import record_verifiers

        record_verifiers(env, eval_name="gsm8k")  # before `async with env.serving()` and `env.run_slot(...)`
        ```
    """
    checked_options(record_verifiers, options)
    play, stop = getattr(env, "run_episode", None), getattr(env, "stop", None)
    if play is None or stop is None:
        raise TypeError(f"record_verifiers() takes an Env of verifiers.v1, not a {type(env).__name__}")
    if hasattr(play, "__wrapped__"):
        return env  # it is recorded already
    runs: list[OpenRun] = []
    members: dict[Any, tuple[Any, str, Any]] = {}  # by task object: it, which keeps its id its own, name, numbers

    @functools.wraps(play)
    async def run_episode(task: Any, *args: Any, **kwargs: Any) -> Any:
        episode = await play(task, *args, **kwargs)
        with guard("recording an episode of verifiers"):
            if not runs:
                eval_name = options.get("eval_name") or env.config.env_id  # type: ignore[attr-defined]
                shared: RecordOptions = {**options, "eval_name": eval_name}
                runs.append(start_run(name, tokenizer=tokenizer, **shared))
            _, group, numbers = members.setdefault(id(task), (task, str(len(members)), itertools.count()))
            number = next(numbers)
            for trace in episode.traces:
                _record(runs[0], trace, f"{group} {trace.agent.name}", number)
        return episode

    @functools.wraps(stop)
    async def finish() -> None:
        try:
            await stop()
        finally:
            with guard("ending a run of verifiers"):
                while runs:
                    runs.pop().finish()

    vars(env).update(run_episode=run_episode, stop=finish)
    return env


def _record(run: OpenRun, trace: Any, group: str, number: int) -> None:
    prompt = [_message(node) for node in itertools.takewhile(lambda node: not node.sampled, trace.nodes)]
    about = {"agent": trace.agent.name, "data": trace.task.data.model_dump(mode="json"), "info": trace.info}
    task = getattr(trace.task.data, "name", None) or trace.task.key
    with run.rollout(prompt, task=task, group=group, generation=number, metadata=about) as row:
        _record_calls(row, trace)
        for metric, value in trace.metrics.items():
            if value is not None:
                row.metric(metric, value)
        if trace.errors and not trace.ok:
            row.failed(f"{trace.errors[-1].type}: {trace.errors[-1].message}")
        elif reason := "timeout" if trace.is_timeout else _STOPS.get(trace.stop_condition):
            row.stop(reason)
        branches = [branch for branch in trace.branches if any(branch.sampled_mask)]
        if len(branches) == 1:  # several are several samples: the row has the longest chain of its calls
            ids, mask, logprobs = branches[0].token_ids, branches[0].sampled_mask, branches[0].logprobs
            start = mask.index(True)
            row.tokens(ids[:start], ids[start:], logprobs=logprobs[start:], mask=[int(flag) for flag in mask[start:]])
    if trace.rewards:
        rewards = {name: reward and reward.score for name, reward in trace.rewards.items()}
        row.score(rewards=rewards, weights={name: scored.weight for name, scored in trace.rewards.items() if scored})


def _record_calls(row: OpenRollout, trace: Any) -> None:
    """Record the model's calls, as if they were replies of a server, and the tools' answers between them."""
    strand = row._strand  # noqa: SLF001
    # A trace has times of the day, and records have those of `perf_counter`: `clock` converts the one to the other.
    collector, clock = strand.tree.collector, time.perf_counter() - time.time()
    by_node = {call.node: call for call in trace.calls if call.node is not None}
    for call in (call for call in trace.calls if call.error is not None and call.node is None):
        begun, error = (
            collector.begin(strand, "generation", seam=_SEAM),
            f"{call.error.type}: {one_line(call.error.message)}",
        )
        collector.add(
            Generation(begun.order, call.time.start + clock, call.time.duration, [], {}, _SEAM, strand, error)
        )
    tools: dict[str, Any] = {}
    for index, node in enumerate(trace.nodes):
        message = _message(node)
        tools |= {call["id"]: call["function"] for call in message.get("tool_calls") or ()}
        if node.sampled:
            begun, model_call = collector.begin(strand, "generation", seam=_SEAM), by_node.get(index)
            request = request_of("/chat/completions", {"messages": list(map(_message, _above(trace.nodes, node)))})
            sequences = request.sequences(_reply(trace.nodes, node, message, model_call)) if request else []
            began, seconds = (
                (model_call.time.start + clock, model_call.time.duration) if model_call else (begun.began, 0.0)
            )
            sampling = model_call.sampling.model_dump(exclude_none=True) if model_call and model_call.sampling else {}
            collector.add(Generation(begun.order, began, seconds, sequences, sampling, _SEAM, strand))
        elif message["role"] == "tool":
            sent = snapshot(tools.get(message["tool_call_id"]))
            begun, heard = collector.begin(strand, "tool", None, sent), snapshot(message["content"])
            tool_call = EnvironmentCall(
                begun.order, begun.began, 0.0, -1, "tool", sent, heard, None, None, None, None, strand
            )
            collector.add(tool_call)


def _above(nodes: Any, node: Any) -> list[Any]:
    """Return the nodes from the root to the one before `node`."""
    path: list[Any] = []
    while node.parent is not None:
        node = nodes[node.parent]
        path.insert(0, node)
    return path


def _reply(nodes: Any, node: Any, message: dict[str, Any], call: Any) -> dict[str, Any]:
    """Return a sampled node as the choice of a chat completion, with vLLM's ids if the trace has them."""
    choice = {"index": 0, "message": message, "finish_reason": call and call.finish_reason}
    if sampled := sum(node.mask):
        # The sampled tokens are the last ones of the node. All before them, in this node and those above, are the
        # context.
        ids = [token for part in (*_above(nodes, node), node) for token in part.token_ids]
        logprobs = {"tokens": ids[-sampled:], "token_logprobs": list(node.logprobs)}
        choice |= {"prompt_token_ids": ids[:-sampled], "token_ids": ids[-sampled:], "logprobs": logprobs}
    usage = call and call.usage
    counts = {"prompt_tokens": usage.input_tokens, "completion_tokens": usage.completion_tokens} if usage else {}
    return {"choices": [choice], "usage": counts}


def _message(node: Any) -> dict[str, Any]:
    """Return a node's message in the form of chat completions."""
    message = {"content": None, **node.message.model_dump(mode="json", exclude_none=True, exclude={"provider_state"})}
    calls = message.pop("tool_calls", None) or []
    function_calls = [
        {"id": call["id"], "type": "function", "function": {key: call[key] for key in ("name", "arguments")}}
        for call in calls
    ]
    return message | ({"tool_calls": function_calls} if function_calls else {})
