"""Drives OpenEnv's harness token-exactly: `ExactHarnessAdapter`."""

from collections.abc import Callable
from typing import Any

from logs_ui.rollout.models.token_episode import Answer, Trajectory


class ExactHarnessAdapter:
    """Adapts OpenEnv's harness with exact tokens. Its `prompt_ids` are what the model was given first; its
    `completion_ids` are everything that followed: answers, and the messages between them (log-prob 0.0).

    Args:
        adapter: the one that drives the session; None uses `MCPHarnessAdapter`.

    Examples:
        >>> from logs_ui.rollout import ExactHarnessAdapter, harness_model_step
        >>> from openenv.core.harness import build_harness_rollout_func
        >>> rollout_func = build_harness_rollout_func(
        ...     session_factory=Games(), harness_adapter=ExactHarnessAdapter(), model_step_builder=harness_model_step()
        ... )
    """

    def __init__(self, adapter: Any = None) -> None:
        self._adapter = adapter

    def run_white_box(self, model_step: Callable[..., Any], session: Any, limits: Any = None) -> Any:
        """Return a `HarnessRolloutResult`.

        Raises:
            ValueError: a context does not continue the one before it with its answer, or log-probs are missing.
        """
        from openenv.core.harness import MCPHarnessAdapter

        trajectory = Trajectory([])

        def step(*args: Any, **kwargs: Any) -> Any:
            result = model_step(*args, **kwargs)
            if result.completion_ids:
                _continue(trajectory, result)
            return result

        result = (self._adapter or MCPHarnessAdapter()).run_white_box(step, session, limits)
        result.prompt_ids, result.completion_ids = trajectory.prompt_ids, trajectory.completion_ids
        result.logprobs = trajectory.logprobs
        if getattr(model_step, "is_out_of_tokens", False):
            _take_back_silence(result)
        return result

    def run_black_box(self, session: Any, limits: Any = None) -> Any:
        """Call the inner adapter, which does not use the trainer's model."""
        from openenv.core.harness import MCPHarnessAdapter

        return (self._adapter or MCPHarnessAdapter()).run_black_box(session, limits)


def _continue(trajectory: Trajectory, result: Any) -> None:
    """Add a model step's result."""
    if len(result.logprobs) != len(result.completion_ids):
        raise ValueError(f"The model gave {len(result.logprobs)} log-probs for {len(result.completion_ids)} tokens")
    context = trajectory.context
    if not context:
        trajectory.prompt_ids = list(result.prompt_ids)
    elif list(result.prompt_ids[: len(context)]) == context:
        trajectory.insert(result.prompt_ids[len(context) :])
    else:
        raise ValueError(
            "A turn's prompt does not continue the tokens of the turns before it, so the model step tokenised them "
            "anew: build it with harness_model_step()"
        )
    trajectory.sample(Answer(list(result.completion_ids), list(result.logprobs), "stop", ""))


def _take_back_silence(result: Any) -> None:
    """Remove the empty response that ended the loop when tokens ran out."""
    result.done = False
    result.metrics["truncated"] = True
    if result.messages and result.messages[-1] == {"role": "assistant", "content": ""}:
        result.messages.pop()
    if result.events and result.events[-1].type == "model_response":
        result.events.pop()
        result.metrics["turns"] = result.metrics.get("turns", 1) - 1
