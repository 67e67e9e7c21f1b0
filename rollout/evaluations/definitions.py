"""Finds an `@evaluation` by the name of its module."""

import inspect
from collections.abc import Mapping
from typing import Any

from logs_ui.recorder.analysis.user_modules import NoModuleError, imported
from logs_ui.rollout.evaluations.evaluations import Evaluation, Wiring
from logs_ui.rollout.functions.openenv_rollouts import OpenEnvRollouts, openenv_rollout_func


class DefinitionError(ValueError):
    """There is no such evaluation. The message says what was looked for, what exists, and what to do."""


def find_evaluation(path: str) -> Evaluation:
    """Return the evaluation of "module:name", or the only one of "module". Raise DefinitionError if there is none, or
    several, or if the module cannot be imported.
    """
    module_name, _, name = path.partition(":")
    try:
        module = imported(module_name, "evals.guess:guess")
    except NoModuleError as error:
        raise DefinitionError(str(error)) from error
    evaluations = {attribute: value for attribute, value in vars(module).items() if isinstance(value, Evaluation)}
    if not evaluations:
        raise DefinitionError(f"{module_name} has no @evaluation")
    names = ", ".join(evaluations)
    if name:
        if name not in evaluations:
            raise DefinitionError(f"{module_name} has no evaluation {name}: it has {names}")
        return evaluations[name]
    if len(set(map(id, evaluations.values()))) > 1:
        raise DefinitionError(
            f"{module_name} has several evaluations: {names}. Name one, such as {module_name}:{next(iter(evaluations))}"
        )
    return next(iter(evaluations.values()))


def rollouts_of(path: str, arguments: Mapping[str, Any]) -> OpenEnvRollouts:
    """Return the rollout function of an evaluation, with these arguments of `openenv_rollout_func`. Raise
    DefinitionError as `find_evaluation` does, and ValueError if an argument of the environment is among them.
    """
    parameters = inspect.signature(openenv_rollout_func).parameters
    wiring = [name for name in Wiring.__annotations__ if name in parameters and name != "sampling"]
    odd = [name for name in wiring if arguments[name] is not parameters[name].default]
    if odd:
        raise ValueError(f"With env_path, set {', '.join(odd)} in the @evaluation, not here")
    evaluation = find_evaluation(path)
    return evaluation.rollouts(**{name: arguments[name] for name in ("model", "model_url", "api_key", "sampling")})
