"""`record()`: the one line that a user adds."""

import functools
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from logs_ui.recorder.calls import collecting
from logs_ui.recorder.clean import column
from logs_ui.recorder.database import database_path
from logs_ui.recorder.guard import guard
from logs_ui.recorder.instruments import openenv, transformers, trl
from logs_ui.recorder.recording import Recording, Task
from logs_ui.recorder.rows import RolloutCall
from logs_ui.recorder.writer import Writer, writer_for

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "_logs_ui_recorded"


@overload
def record(
    rollout_func: F,
    /,
    *,
    eval_name: str | None = None,
    task: Task | None = None,
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
    db: str | os.PathLike[str] | None = None,
    announce: bool = True,
) -> Callable[[F], F]: ...
def record(
    rollout_func: Callable[..., Any] | None = None,
    /,
    *,
    eval_name: str | None = None,
    task: Task | None = None,
    db: str | os.PathLike[str] | None = None,
    announce: bool = True,
) -> Any:
    """Records every rollout that a TRL rollout function makes. Also a decorator, with or without arguments.

    The function gets the same arguments, and its result or exception is passed on untouched. Nothing that goes wrong in
    the recorder reaches the training: it is logged once, and counted on the run.

    Args:
        rollout_func: as `GRPOTrainer(rollout_func=...)` takes it.
        eval_name: what the rollouts are an evaluation of; the function's name where it is None.
        task: names a rollout's task: a column of the dataset, or a function of the dataset row. None takes the column
            `task` or `task_id`, else a hash of the prompt.
        db: the database's path; None takes LOGS_UI_DB, else the one that `logs-ui serve` reads too.
        announce: whether to say on stderr, once a run, what it is called and how to browse it.

    Returns:
        A function to give to the trainer.

    Raises:
        DatabaseError: what `db` or LOGS_UI_DB names can never be recorded into: not a database of logs-ui, or of a
            newer one, or a URL of a database that is not supported. What may heal, as a full disk, is not raised.
        TypeError: `rollout_func` cannot be called.
    """
    if rollout_func is None:
        return functools.partial(record, eval_name=eval_name, task=task, db=db, announce=announce)
    if not callable(rollout_func):
        raise TypeError(f"record() takes a rollout function, not a {type(rollout_func).__name__}")
    rollout_func = _without_recording(rollout_func)
    name = eval_name or str(getattr(rollout_func, "__name__", type(rollout_func).__name__))
    recorder = _Recorder(rollout_func, writer_for(database_path(db)), column(name) or "", task, announce=announce)

    @functools.wraps(rollout_func)
    def recorded(prompts: Sequence[Any], trainer: Any, *args: Any, **kwargs: Any) -> Any:
        return recorder.call(prompts, trainer, *args, **kwargs)

    setattr(recorded, _MARK, (recorded, rollout_func))
    return recorded


def _without_recording(rollout_func: Callable[..., Any]) -> Callable[..., Any]:
    """What is recorded already is recorded once. A decorator that copied the mark of what it wraps is not ours."""
    marked, original = getattr(rollout_func, _MARK, (None, None))
    return original if original is not None and marked is rollout_func else rollout_func


class _Recorder:
    """One wrapped rollout function, for all trainers that call it."""

    def __init__(
        self, rollout_func: Callable[..., Any], writer: Writer, eval_name: str, task: Task | None, *, announce: bool
    ) -> None:
        self._rollout_func = rollout_func
        self._writer = writer
        self._eval_name = eval_name
        self._task = task
        self._announce = announce
        self._recordings: weakref.WeakKeyDictionary[Any, Recording] = weakref.WeakKeyDictionary()
        with guard("preparing to attach"):
            for library in (trl, transformers, openenv):
                library.install()

    def call(self, prompts: Sequence[Any], trainer: Any, *args: Any, **kwargs: Any) -> Any:
        """The rollout function, recorded."""
        call: RolloutCall | None = None
        recording: Recording | None = None
        with guard("opening the rows of a rollout call"):
            recording = self._recording(trainer)
            call = recording.open(prompts, trainer)
        if recording is None or call is None:
            return self._rollout_func(prompts, trainer, *args, **kwargs)
        try:
            with collecting(call.calls):
                output = self._rollout_func(prompts, trainer, *args, **kwargs)
        except BaseException as error:
            with guard("recording that the rollout function raised"):
                recording.failed(call, error)
            raise
        with guard("recording what the rollout function returned"):
            recording.returned(call, output)
        return output

    def _recording(self, trainer: Any) -> Recording:
        recording = self._recordings.get(trainer)
        if recording is None or recording.is_over(trainer):
            recording = Recording(trainer, self._writer, self._eval_name, self._task, announce=self._announce)
            self._recordings[trainer] = recording
        return recording
