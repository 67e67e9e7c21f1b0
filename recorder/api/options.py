"""The options that all ways to record have in common."""

import functools
import inspect
import os
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from logs_ui.recorder.rows.rollout_call import Edit, Parse, RowOptions
from logs_ui.recorder.rows.task_names import Task
from logs_ui.recorder.settings import Settings, check_thresholds
from logs_ui.recorder.spelling import nearest
from logs_ui.recorder.storage.address import Address, database_address

F = TypeVar("F", bound=Callable[..., Any])


class RecordOptions(TypedDict, total=False):
    """Lists keyword options of `record_trainer`, `LogsUICallback`, `record`, `record_environment`, `record_worker` and
    `start_run`. Each may be left out or None.

    Attributes:
        eval_name: Name of the evaluation that the rollouts belong to, such as "guess" or "held-out". None takes the
            name of the rollout function, of the environments or of the dataset, and "rollouts" if there is none.
        edit: A function that gets each row before it is stored, as a dict of its columns, `messages`, `actions`,
            `sampling`, `metadata`, `prompt_ids`, `completion_ids`, `logprobs` and `mask`. It returns the dict to store,
            or None to store nothing. If it raises, the row is stored without its text. Called in a background thread.
        server_log: Path of the log file of the environment's server. The last 4,000 bytes of the file are stored with
            each error of a rollout. None stores nothing.
        diagnosis: Settings of the run's diagnosis, such as `Settings(max_reward=1.0)`. None takes the defaults of each
            diagnostic. The dashboard and `logs-ui diagnose --save` can change them later.
        project: Name of the project that the run belongs to; the list of runs can be filtered by it. None takes the
            environment variable LOGS_UI_PROJECT, and no project if that is not set.
        db: The database: the path of an SQLite file, or `postgresql://user@host/database`. None takes LOGS_UI_DB, and
            the default database, which `logs-ui serve` reads too, if that is not set.

    Examples:
        >>> from logs_ui.recorder import RecordOptions, start_run
        >>> options: RecordOptions = {"eval_name": "guess", "project": "games", "db": "runs.db"}
        >>> with start_run("shared options", **options) as run:
        ...     run
        <OpenRun ... 'shared options' in project 'games', running>
    """

    eval_name: str | None
    edit: Edit | None
    server_log: str | os.PathLike[str] | None
    diagnosis: Settings | None
    project: str | None
    db: str | os.PathLike[str] | None


def takes_record_options(function: F) -> F:
    """Write the options out in the signature and the docstring of a function that takes `**options`.

    Type checkers and editors read them from the annotation (PEP 692). `inspect.signature`, `help()` and completion in
    notebooks do not, and would show nothing but `**options`.
    """
    is_class = isinstance(function, type)  # whose `__new__` may say nothing of its options
    signature = inspect.signature(function.__init__ if is_class else function)
    own_parameters = [
        parameter for parameter in signature.parameters.values() if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    parameters = own_parameters[1:] if is_class else own_parameters
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in typing.get_type_hints(RecordOptions).items()
    ]
    function.__signature__ = signature.replace(parameters=[*parameters, *shared])  # type: ignore[attr-defined]
    if function.__doc__ and RecordOptions.__doc__:  # python -OO has none
        before, _, after = function.__doc__.partition("        **options:")
        description = RecordOptions.__doc__.partition("Attributes:\n")[2].partition("\n\n")[0]
        function.__doc__ = before + description + "\n" + after.partition("\n")[2]
    return function


@dataclass(frozen=True)
class CheckedOptions:
    """The options of one call after they were checked."""

    eval_name: str  # empty if the caller gave none
    rows: RowOptions  # functions and files that are applied to each row
    # Settings of the diagnosis as JSON values, as they are stored with the run; None without any.
    settings: dict[str, Any] | None
    project: str | None  # as given; see `project_of`
    address: Address  # address of the database
    task: Task | None = None  # see `record()`
    announce: bool = True  # see `record()`


def checked_options(
    function: Callable[..., Any], options: RecordOptions, *, parse: Parse | None = None, offers_tools: bool = False
) -> CheckedOptions:
    """Check the `**options` of a call of `function`; `parse` and `offers_tools` are passed on to `RowOptions`.

    Raise TypeError if an option is unknown; for `db` and `diagnosis` see `database_address` and `settings_to_keep`.
    """
    check_names(function, options)
    server_log = options.get("server_log")
    return CheckedOptions(
        options.get("eval_name") or "",
        RowOptions(
            parse, options.get("edit"), None if server_log is None else Path(server_log), offers_tools=offers_tools
        ),
        settings_to_keep(options.get("diagnosis")),
        options.get("project"),
        database_address(options.get("db")),
    )


def default_name(function: Any) -> str:
    """Return the name of a function or class; for a lambda that of its module, or of the script that has it."""
    while isinstance(function, functools.partial):
        function = function.func
    name = str(getattr(function, "__name__", type(function).__name__))
    if name != "<lambda>":
        return name
    module = str(getattr(function, "__module__", ""))
    script = getattr(sys.modules["__main__"], "__file__", None) if module == "__main__" else f"{module}.py"
    return Path(script or "rollouts").stem.rpartition(".")[2] or "rollouts"


def check_names(function: Callable[..., Any], options: RecordOptions) -> None:
    """Raise a TypeError for an option that `RecordOptions` lacks; it names the one that is spelt most alike."""
    for name in options:
        if name not in RecordOptions.__annotations__:
            names = [
                parameter.name
                for parameter in inspect.signature(function).parameters.values()
                if parameter.kind is parameter.KEYWORD_ONLY
            ]
            near = nearest(name, names)
            hint = f"did you mean {near!r}?" if near else f"choose from {', '.join(names)}"
            raise TypeError(f"{function.__name__}() has no option {name!r}: {hint}")


def settings_to_keep(settings: Settings | None) -> dict[str, Any] | None:
    """Return the settings of a diagnosis as they are stored with a run; None for None. Raise SettingsError if they
    name an unknown diagnostic, or a threshold is out of range; TypeError if they are not a `Settings`.
    """
    if settings is None:
        return None
    if not isinstance(settings, Settings):
        raise TypeError(f"diagnosis takes Settings(...), not a {type(settings).__name__}")
    # Imported here: only a training that was given settings pays for loading the diagnostics, which check them.
    from logs_ui.recorder.diagnosis.run_checks import DIAGNOSTICS

    check_thresholds(settings, {diagnostic.id: diagnostic.limits for diagnostic in DIAGNOSTICS})
    return settings.as_dict()
