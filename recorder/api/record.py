"""`record()` wraps a rollout function so that every call of it is recorded."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, Unpack, overload

from logs_ui.recorder.api.options import RecordOptions, check_names, checked_options, default_name, takes_record_options
from logs_ui.recorder.api.trainer_run import Recordings, one_opens
from logs_ui.recorder.capture.calls import collecting
from logs_ui.recorder.capture.instruments import install, openenv_harness, trl, trl_shapes
from logs_ui.recorder.capture.strands import current_strand
from logs_ui.recorder.guard import guard
from logs_ui.recorder.rows.rollout_call import OpenCall, Parse
from logs_ui.recorder.rows.task_names import Task
from logs_ui.recorder.snapshot import name as shortened

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "_logs_ui_recorded"


@overload
def record(
    rollout_func: F, /, *,
    task: Task | None = None, parse: Parse | None = None, announce: bool = True, **options: Unpack[RecordOptions],
) -> F: ...  # fmt: skip
@overload
def record(
    rollout_func: None = None, /, *,
    task: Task | None = None, parse: Parse | None = None, announce: bool = True, **options: Unpack[RecordOptions],
) -> Callable[[F], F]: ...  # fmt: skip
@takes_record_options
def record(
    rollout_func: Callable[..., Any] | None = None,
    /,
    *,
    task: Task | None = None,
    parse: Parse | None = None,
    announce: bool = True,
    **options: Unpack[RecordOptions],
) -> Any:
    """Record every rollout that a TRL rollout function makes. It is a decorator too, with or without arguments.

    The function gets the same arguments, and its result or exception is passed on unchanged. A failure of the recorder
    never reaches the training: it is logged once, and counted on the run.

    Args:
        rollout_func: The function that is passed to `GRPOTrainer(rollout_func=...)`, for any release of TRL from 0.25.
        task: Names the task of each rollout: a column of the dataset, or a function of the dataset row that returns the
            name. None takes the column `task` or `task_id`, and a hash of the prompt if the dataset has neither.
        parse: Your own parser: a function from the text of an answer to an action, or to None if there is none. Give it
            where the rollout function replaces an unparsable answer by a default action; such answers are then
            recorded as having no action. Called in a background thread.
        announce: True prints the run's id, and the command that shows the run, on stderr once per run.
        **options: The options in `RecordOptions`.

    Returns:
        The function to pass to the trainer. It has the `close()` of the rollout function, if that has one.

    Raises:
        DatabaseError: `db` or LOGS_UI_DB can never be recorded into: the file is not a database of logs-ui or was
            written by a newer release, or the URL names a database that is not supported. A failure that may pass,
            such as a full disk, is not raised.
        LogsUIError: LOGS_UI_QUEUE_MB, LOGS_UI_QUEUE_SECONDS or LOGS_UI_END_SECONDS is not a number in its range.
        SettingsError: `diagnosis` names an unknown diagnostic, or a threshold is out of range.
        TypeError: `rollout_func` cannot be called, or is a reward function; `diagnosis` is not a `Settings`; or an
            option is unknown.

    Examples:
        ```python
        from trl import GRPOTrainer

        from logs_ui.recorder import record

        recorded = record(rollout_func, eval_name="guess", db="runs.db")
        trainer = GRPOTrainer(model, reward_funcs=[solved], train_dataset=dataset, rollout_func=recorded)
        trainer.train()
        ```

        The trainer calls the function, which is recorded:

        >>> from logs_ui.recorder import flush, load_run, record
        >>> @record(eval_name="echo", db="runs.db", announce=False)
        ... def rollout_func(prompts, trainer):
        ...     ids = trainer.processing_class(prompts)["input_ids"]
        ...     return {"prompt_ids": ids, "completion_ids": ids, "logprobs": [[-0.5] * len(row) for row in ids]}
        >>> output = rollout_func(["Guess 1.", "Guess 2."], trainer)
        >>> flush()
        True
        >>> [messages[0]["content"] for messages in load_run("latest", db="runs.db").messages]
        ['Guess 1.', 'Guess 2.']
    """
    if rollout_func is None:
        check_names(record, options)
        return functools.partial(record, task=task, parse=parse, announce=announce, **options)
    if not callable(rollout_func):
        raise TypeError(f"record() takes a rollout function, not a {type(rollout_func).__name__}")
    if trl_shapes.is_reward_function(rollout_func):
        raise TypeError(f"{trl_shapes.NO_ROLLOUTS} ({default_name(rollout_func)}() has a parameter `completions`)")
    checked = checked_options(record, options, parse=parse)
    # functools.wraps copies the mark to other wrappers of a recorded function; only on our own it names its carrier.
    marked, original = getattr(rollout_func, _MARK) if is_recorded(rollout_func) else (None, None)
    if original is not None and marked is rollout_func:
        rollout_func = original  # the user's function, so that it is recorded once
    name = shortened(checked.eval_name or default_name(rollout_func))
    recordings = Recordings(replace(checked, eval_name=name, task=task, announce=announce))
    install()

    @functools.wraps(rollout_func)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        return _recorded_call(rollout_func, recordings, args, kwargs)

    setattr(recorded, _MARK, (recorded, rollout_func))
    if callable(close := getattr(rollout_func, "close", None)):  # of an object's class: wraps() does not copy it
        recorded.close = close  # type: ignore[attr-defined]
    return recorded


def is_recorded(rollout_func: Any) -> bool:
    """Return True for what `record()` returned, and for a wrapper of it that `functools.wraps` made."""
    return type(getattr(rollout_func, _MARK, None)) is tuple  # a mock has every attribute


def _recorded_call(
    rollout_func: Callable[..., Any], recordings: Recordings, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call and record the rollout function with the arguments of any supported release of TRL."""
    if current_strand() is not None:  # a recorded function calls another: its rows are recorded already
        return rollout_func(*args, **kwargs)
    call: OpenCall | None = None
    with guard("opening the rows of a rollout call"), one_opens():
        arguments = trl_shapes.read_arguments(args, kwargs, trl.generating())
        recording = recordings.of(arguments.trainer)
        call = recording.open(arguments.prompts, arguments.trainer)
    if call is None:
        return rollout_func(*args, **kwargs)
    try:
        with collecting(call.collector), openenv_harness.a_row_for_each_session(rollout_func):
            output = rollout_func(*args, **kwargs)
    except BaseException as error:
        with guard("recording that the rollout function raised"):
            recording.failed(call, error)
        raise
    with guard("recording what the rollout function returned"):
        copy = openenv_harness.with_env_reward(rollout_func, output)
        recording.returned(call, arguments.with_each_prompts_ids(copy))
    return output
