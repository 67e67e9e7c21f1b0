"""`record_worker()`: rollouts that TRL's AsyncGRPO makes, in the process that makes them.

AsyncGRPOTrainer's worker spawns a process, where nothing that was patched in the trainer's is patched. So the worker is
told to run its loop as a subclass of that loop which records: `rollout_loop.py`. What happens to the rollouts in the
trainer's process is seen there: `instruments/trl_async.py`.

What is relied on (trl 1.16), without which `record_worker` raises:
    AsyncRolloutWorker._loop_cls, ._loop_kwargs, ._process
"""

import functools
import os
import pickle
from pathlib import Path
from typing import TypeVar

from logs_ui.recorder.api.async_grpo.rollout_loop import LoopOptions, make_loop
from logs_ui.recorder.api.async_grpo.trainer_channel import TrainerChannel
from logs_ui.recorder.api.options import settings_to_keep
from logs_ui.recorder.capture.instruments import trl_async
from logs_ui.recorder.guard import guard
from logs_ui.recorder.rows.rollout_call import Edit, Parse
from logs_ui.recorder.rows.task_names import Task
from logs_ui.recorder.settings import Settings
from logs_ui.recorder.storage.address import as_text, database_address

W = TypeVar("W")


def record_worker(
    worker: W,
    /,
    *,
    name: str | None = None,
    eval_name: str = "rollouts",
    task: Task | None = None,
    parse: Parse | None = None,
    edit: Edit | None = None,
    server_log: str | os.PathLike[str] | None = None,
    diagnosis: Settings | None = None,
    project: str | None = None,
    db: str | os.PathLike[str] | None = None,
) -> W:
    """Records every rollout that a worker of AsyncGRPO makes. Call it before the training begins.

    The run is written by the worker's process. `step` and `policy_step` are the version of the policy that the group
    was begun with; which versions answered each turn, and how many the policy was ahead when the rollout ended, are in
    `metadata["notes"]["policy"]`. Where a trainer of TRL's takes the rollouts, its arguments and what it logs are the
    run's, and `staleness` is how many versions its policy was ahead when it took the rollout; `dropped` is "stale" or
    "oversize" where it then dropped it, or a part of it, and None elsewhere. Both are None where it did not take the
    rollout before training ended.

    Args:
        worker: `trainer.rollout_worker`, or what is given to the trainer as such: an `AsyncRolloutWorker` or a subclass
            of it. None, as on all ranks but the first, is left alone.
        name: of the run, for people; None shows its id.
        eval_name: what the rollouts are an evaluation of.
        task: see `record()`. What is a function, as of the next two, goes to the worker's process as reward functions
            do: by its module and its name there, so that it is neither a lambda nor made within another function.
        parse: see `record()`.
        edit: see `record()`.
        server_log: see `record()`.
        diagnosis: see `record()`.
        project: see `record()`.
        db: see `record()`.

    Returns:
        The worker.

    Raises:
        DatabaseError: `db` is a URL of a database that is not supported.
        RuntimeError: its process was started already.
        SettingsError: see `record()`.
        TypeError: it is no worker of that kind, `diagnosis` is no Settings, or a function cannot be pickled.
    """
    if worker is None:
        return worker
    for part in ("_loop_cls", "_loop_kwargs", "_process"):
        if not hasattr(worker, part):
            raise TypeError(f"record_worker() takes an AsyncRolloutWorker of trl, not a {type(worker).__name__}")
    if worker._process is not None:  # type: ignore[attr-defined]  # noqa: SLF001 - see above
        raise RuntimeError("The rollout worker runs already: call record_worker() before trainer.train()")
    settings_to_keep(diagnosis)  # so that a mistake is told here, and not in the worker's process
    for given, function in (("task", task), ("parse", parse), ("edit", edit)):
        _check_that_it_travels(given, function)
    address = as_text(database_address(db))
    loop = worker._loop_cls  # type: ignore[attr-defined]  # noqa: SLF001
    if not isinstance(loop, functools.partial):  # else it is recorded already
        log = None if server_log is None else Path(server_log).absolute()
        channel = TrainerChannel()
        options = LoopOptions(name, eval_name, diagnosis, project, address, channel, task, parse, edit, log)
        worker._loop_cls = functools.partial(make_loop, loop, options)  # type: ignore[attr-defined]  # noqa: SLF001
        with guard("attaching to the trainer of a rollout worker"):
            trl_async.watch(worker, options.trainer)
    return worker


def _check_that_it_travels(given: str, function: object) -> None:
    """
    Raises:
        TypeError: it does not.
    """
    try:
        pickle.dumps(function)
    except Exception as error:
        raise TypeError(
            f"record_worker({given}=...) goes to the worker's process, and cannot be pickled ({error}): "
            "give a function that stands in a module by its name"
        ) from error
