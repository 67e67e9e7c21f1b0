"""Finds an `@evaluation` by the name of its module."""

import importlib
import inspect
import traceback
from collections.abc import Mapping
from typing import Any

from logs_ui.rollout.evaluations import Evaluation, Wiring
from logs_ui.rollout.openenv import OpenEnvRollouts, openenv_rollout_func
from logs_ui.rollout.play import one_line


class DefinitionError(ValueError):
    """There is no such evaluation: what was looked for, what there is, what to do."""


def find_evaluation(path: str) -> Evaluation:
    """The one of "module:name", or the only one of "module".

    Raises:
        DefinitionError: there is none, or several, or the module cannot be imported.
    """
    module_name, _, name = path.partition(":")
    module = _imported(module_name)
    found = {each: value for each, value in vars(module).items() if isinstance(value, Evaluation)}
    if not found:
        raise DefinitionError(f"{module_name} holds no @evaluation")
    names = ", ".join(found)
    if name:
        if name not in found:
            raise DefinitionError(f"{module_name} holds no evaluation {name}: it has {names}")
        return found[name]
    if len(set(map(id, found.values()))) > 1:
        raise DefinitionError(
            f"{module_name} holds several evaluations: {names}. Say which, as {module_name}:{next(iter(found))}"
        )
    return next(iter(found.values()))


def rollouts_of(path: str, given: Mapping[str, Any]) -> OpenEnvRollouts:
    """Those of an evaluation.

    Args:
        path: see `find_evaluation`.
        given: arguments of `openenv_rollout_func`.

    Raises:
        DefinitionError: see `find_evaluation`.
        ValueError: there is wiring among the arguments.
    """
    parameters = inspect.signature(openenv_rollout_func).parameters
    wiring = [name for name in Wiring.__annotations__ if name in parameters and name != "sampling"]
    odd = [name for name in wiring if given[name] is not parameters[name].default]
    if odd:
        raise ValueError(f"env_path brings the whole wiring: leave out {', '.join(odd)}, or set it in the @evaluation")
    evaluation = find_evaluation(path)
    return evaluation.rollouts(**{name: given[name] for name in ("model", "model_url", "api_key", "sampling")})


def _imported(name: str) -> Any:
    if not name or name.endswith(".py") or "/" in name:
        raise DefinitionError(f"{name!r} is no module: write it as in an import, such as evals.guess:guess")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise DefinitionError(f"There is no module {error.name}, looked for from the current folder on") from error
        raise DefinitionError(_failed(name, error)) from error
    except SystemExit as error:
        raise DefinitionError(
            f"{name} ends the program when it is imported by SystemExit: "
            'put what only a script does under if __name__ == "__main__"'
        ) from error
    except Exception as error:
        raise DefinitionError(_failed(name, error)) from error


def _failed(name: str, error: Exception) -> str:
    """Where a module broke, as far as it is in its own file."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    own = [frame for frame in frames if "importlib" not in frame.filename and frame.name == "<module>"]
    where = f" (line {own[-1].lineno} of {own[-1].filename})" if own else ""
    return f"{name} cannot be imported{where}: {one_line(error)}"
