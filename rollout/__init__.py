"""Makes rollouts for `trl.GRPOTrainer`: of OpenEnv and text environments, OpenEnv's harness and evaluations."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logs_ui.rollout.evaluations.evaluations import Evaluation, evaluation
    from logs_ui.rollout.evaluations.report import Report
    from logs_ui.rollout.evaluations.scoring import EvaluationRow
    from logs_ui.rollout.functions.harness_adapter import ExactHarnessAdapter
    from logs_ui.rollout.functions.harness_rollouts import harness_model_step, harness_rollout_func
    from logs_ui.rollout.functions.openenv_rollouts import environment_reward, openenv_rollout_func
    from logs_ui.rollout.functions.text_rollouts import TextEnv, text_rollout_func
    from logs_ui.rollout.models.backends import GenerationError, Model, Sampling
    from logs_ui.rollout.models.server_model import ServerModel
    from logs_ui.rollout.models.token_episode import Answer
    from logs_ui.rollout.play.processor import Processor

if __name__ == "rollout":  # from the root of the source: a second copy, whose classes are not those of the first
    raise ImportError("Import logs_ui.rollout: the folder rollout is a part of the package logs_ui.")

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

_NAMES = {
    "evaluations.report": ("Report",),
    "evaluations.evaluations": ("Evaluation", "evaluation"),
    "evaluations.scoring": ("EvaluationRow",),
    "functions.harness_adapter": ("ExactHarnessAdapter",),
    "functions.harness_rollouts": ("harness_model_step", "harness_rollout_func"),
    "functions.openenv_rollouts": ("environment_reward", "openenv_rollout_func"),
    "functions.text_rollouts": ("TextEnv", "text_rollout_func"),
    "models.backends": ("GenerationError", "Model", "Sampling"),
    "models.server_model": ("ServerModel",),
    "models.token_episode": ("Answer",),
    "play.processor": ("Processor",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: the demo's environment, whose server lives here too, needs none of it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """Return all names, also those that were not used yet: for completion and help()."""
    return sorted({*globals(), *__all__})
