"""`record()`: the one line that a user adds."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, overload

from logs_ui.recorder.api.options import settings_to_keep
from logs_ui.recorder.api.trainer_run import Recordings, Wanted, one_opens
from logs_ui.recorder.capture.calls import collecting
from logs_ui.recorder.capture.instruments import install, openenv_harness, trl, trl_shapes
from logs_ui.recorder.delivery.writer import writer_for
from logs_ui.recorder.guard import guard
from logs_ui.recorder.rows.rollout_call import Edit, Parse, RolloutCall, RowOptions
from logs_ui.recorder.rows.task_names import Task
from logs_ui.recorder.settings import Settings
from logs_ui.recorder.snapshot import name as shortened
from logs_ui.recorder.storage.address import database_address

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "_logs_ui_recorded"


@overload
def record(
    rollout_func: F,
    /,
    *,
    eval_name: str | None = None,
    task: Task | None = None,
    parse: Parse | None = None,
    edit: Edit | None = None,
    server_log: str | os.PathLike[str] | None = None,
    diagnosis: Settings | None = None,
    project: str | None = None,
    db: str | os.PathLike[str] | None = None,
    announce: bool = True,
) -> F: ...
@overload
def record(
    rollout_func: None = None,
    /,
    *,
    eval_name: str | None = None,
    task: Task | None = None,
    parse: Parse | None = None,
    edit: Edit | None = None,
    server_log: str | os.PathLike[str] | None = None,
    diagnosis: Settings | None = None,
    project: str | None = None,
    db: str | os.PathLike[str] | None = None,
    announce: bool = True,
) -> Callable[[F], F]: ...
def record(
    rollout_func: Callable[..., Any] | None = None,
    /,
    *,
    eval_name: str | None = None,
    task: Task | None = None,
    parse: Parse | None = None,
    edit: Edit | None = None,
    server_log: str | os.PathLike[str] | None = None,
    diagnosis: Settings | None = None,
    project: str | None = None,
    db: str | os.PathLike[str] | None = None,
    announce: bool = True,
) -> Any:
    """Records every rollout that a TRL rollout function makes. Also a decorator, with or without arguments.

    The function gets the same arguments, and its result or exception is passed on untouched. Nothing that goes wrong in
    the recorder reaches the training: it is logged once, and counted on the run.

    Args:
        rollout_func: as `GRPOTrainer(rollout_func=...)` takes it, in any release of TRL from 0.25 on.
        eval_name: what the rollouts are an evaluation of; the function's name where it is None.
        task: names a rollout's task: a column of the dataset, or a function of the dataset row. None takes the column
            `task` or `task_id`, else a hash of the prompt.
        parse: your own parser, an answer's text to an action, or None: tells answers without an action where the
            function falls back to some other one. Called in a background thread, as the next.
        edit: gets each row before it is stored, as a dict of its columns, `messages`, `actions`, `sampling`,
            `metadata`, `prompt_ids`, `completion_ids`, `logprobs` and `mask`; returns what to store, or None to store
            nothing. If it raises, the row is stored without its text.
        server_log: log file of the environment's server; its last 4,000 bytes are kept with each error.
        diagnosis: what the run's diagnosis is held against, as `Settings(max_reward=1.0)`; the dashboard, or `logs-ui
            diagnose --save`, may set other things later. None: what each diagnostic has of itself.
        project: what the run belongs to, as the list of runs can be narrowed to it; None takes LOGS_UI_PROJECT.
        db: the database, a path or `postgresql://user@host/database`; None takes LOGS_UI_DB, else the one that `logs-ui
            serve` reads too.
        announce: whether to say on stderr, once a run, what it is called and how to browse it.

    Returns:
        A function to give to the trainer; with the `close()` of the rollout function, if that has one.

    Raises:
        DatabaseError: what `db` or LOGS_UI_DB names can never be recorded into: not a database of logs-ui, or of a
            newer one, or a URL of a database that is not supported. What may heal, as a full disk, is not raised.
        LogsUIError: LOGS_UI_QUEUE_MB, LOGS_UI_QUEUE_SECONDS or LOGS_UI_END_SECONDS is no number that it may be.
        SettingsError: `diagnosis` names a diagnostic that there is not.
        TypeError: `rollout_func` cannot be called, or `diagnosis` is no Settings.
    """
    if rollout_func is None:
        return functools.partial(
            record,
            eval_name=eval_name,
            task=task,
            parse=parse,
            edit=edit,
            server_log=server_log,
            diagnosis=diagnosis,
            project=project,
            db=db,
            announce=announce,
        )
    if not callable(rollout_func):
        raise TypeError(f"record() takes a rollout function, not a {type(rollout_func).__name__}")
    rollout_func = _without_recording(rollout_func)
    options = RowOptions(parse, edit, None if server_log is None else Path(server_log))
    name = eval_name or str(getattr(rollout_func, "__name__", type(rollout_func).__name__))
    kept = settings_to_keep(diagnosis)
    wanted = Wanted(shortened(name), task, options, announce=announce, diagnosis=kept, project=project)
    recorder = _Recorder(rollout_func, Recordings(writer_for(database_address(db)), wanted))

    @functools.wraps(rollout_func)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        return recorder.call(args, kwargs)

    setattr(recorded, _MARK, (recorded, rollout_func))
    if callable(close := getattr(rollout_func, "close", None)):  # a class's, which wraps() does not copy
        recorded.close = close  # type: ignore[attr-defined]
    return recorded


def _without_recording(rollout_func: Callable[..., Any]) -> Callable[..., Any]:
    """What is recorded already is recorded once. A decorator that copied the mark of what it wraps is not ours."""
    marked, original = getattr(rollout_func, _MARK, (None, None))
    return original if original is not None and marked is rollout_func else rollout_func


class _Recorder:
    """One wrapped rollout function, for all trainers that call it."""

    def __init__(self, rollout_func: Callable[..., Any], recordings: Recordings) -> None:
        self._rollout_func = rollout_func
        self._recordings = recordings
        install()

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The rollout function, recorded; the arguments are those of any age of TRL."""
        call: RolloutCall | None = None
        with guard("opening the rows of a rollout call"), one_opens():
            asked = trl_shapes.asked(args, kwargs, trl.generating())
            recording = self._recordings.of(asked.trainer)
            call = recording.open(asked.prompts, asked.trainer)
        if call is None:
            return self._rollout_func(*args, **kwargs)
        try:
            with collecting(call.calls), openenv_harness.a_row_for_each_session(self._rollout_func):
                output = self._rollout_func(*args, **kwargs)
        except BaseException as error:
            with guard("recording that the rollout function raised"):
                recording.failed(call, error)
            raise
        with guard("recording what the rollout function returned"):
            copy = openenv_harness.with_env_reward(self._rollout_func, output)
            recording.returned(call, asked.with_each_prompts_ids(copy))
        return output
