"""Imports objects that a user names as `module:name`."""

import importlib
import traceback
from typing import Any

from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.snapshot import error_line


class NoModuleError(LogsUIError):
    """A module or an object in it does not exist, or cannot be imported."""


def imported(name: str, example: str) -> Any:
    """Import the module of that name. Raise NoModuleError, whose message has the example of a valid name."""
    if not name or name.endswith(".py") or "/" in name:
        raise NoModuleError(f"{name!r} is no module: write it as in an import, such as {example}")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise NoModuleError(f"There is no module {error.name} in the current folder or on Python's path") from error
        raise NoModuleError(_failed(name, error)) from error
    except SystemExit as error:
        raise NoModuleError(
            f"Importing {name} raised SystemExit: "
            'move the code that only a script should run under if __name__ == "__main__":'
        ) from error
    except Exception as error:
        raise NoModuleError(_failed(name, error)) from error


def named_function(spec: str) -> Any:
    """Return the callable that "module:function" names. Raise NoModuleError, also if there is no such callable."""
    module_name, _, name = spec.partition(":")
    module = imported(module_name, "rewards:accuracy")
    if not name:
        raise NoModuleError(f"{spec} names no function: write it as {module_name}:function.")
    target = module
    for part in name.split("."):
        target = getattr(target, part, None)
    if not callable(target):
        problem = "nothing of that name" if target is None else f"a {type(target).__name__} of that name"
        raise NoModuleError(f"{module_name} has {problem}: {name} should be a function.")
    return target


def _failed(name: str, error: Exception) -> str:
    """Return the message for a module that raised, with the line in the user's own file."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    of_module = [frame for frame in frames if "importlib" not in frame.filename and frame.name == "<module>"]
    where = f" (line {of_module[-1].lineno} of {of_module[-1].filename})" if of_module else ""
    return f"{name} cannot be imported{where}: {error_line(error)}"
