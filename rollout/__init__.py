"""Makes rollouts of OpenEnv environments, for `trl.GRPOTrainer`; and the demo's."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logs_ui.rollout.backends import GenerationError, Model, Sampling
    from logs_ui.rollout.episode import Answer
    from logs_ui.rollout.evaluations import Evaluation, evaluation
    from logs_ui.rollout.harness import harness_model_step, harness_rollout_func
    from logs_ui.rollout.harness_adapter import ExactHarnessAdapter
    from logs_ui.rollout.openenv import environment_reward, openenv_rollout_func
    from logs_ui.rollout.processor import Processor
    from logs_ui.rollout.report import Report
    from logs_ui.rollout.scoring import EvaluationRow
    from logs_ui.rollout.server_model import ServerModel
    from logs_ui.rollout.text import TextEnv, text_rollout_func

__all__ = [
    "Answer",
    "Evaluation",
    "EvaluationRow",
    "ExactHarnessAdapter",
    "GenerationError",
    "Model",
    "Processor",
    "Report",
    "Sampling",
    "ServerModel",
    "TextEnv",
    "environment_reward",
    "evaluation",
    "harness_model_step",
    "harness_rollout_func",
    "openenv_rollout_func",
    "text_rollout_func",
]

_HOMES = {
    "Answer": "episode",
    "Evaluation": "evaluations",
    "EvaluationRow": "scoring",
    "ExactHarnessAdapter": "harness_adapter",
    "GenerationError": "backends",
    "Model": "backends",
    "Processor": "processor",
    "Report": "report",
    "Sampling": "backends",
    "ServerModel": "server_model",
    "TextEnv": "text",
    "environment_reward": "openenv",
    "evaluation": "evaluations",
    "harness_model_step": "harness",
    "harness_rollout_func": "harness",
    "openenv_rollout_func": "openenv",
    "text_rollout_func": "text",
}


def __getattr__(name: str) -> Any:
    """Imported when it is first asked for: the demo's environment, whose server lives here too, needs none of it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
