"""`record_worker()` records rollouts of TRL's AsyncGRPO, in the process that makes them.

The worker of AsyncGRPOTrainer spawns a process, in which nothing is patched that was patched in the trainer's. So the
worker is made to run a subclass of its loop that records: see `rollout_loop.py`. What the trainer does with the
rollouts is seen in its own process: see `instruments/trl_async.py`.

What is relied on (trl 1.16), without which `record_worker` raises:
    AsyncRolloutWorker._loop_cls, ._loop_kwargs, ._process
"""

import functools
import pickle
from typing import TypeVar, Unpack

from logs_ui.recorder.api.async_grpo.rollout_loop import LoopOptions, make_loop
from logs_ui.recorder.api.async_grpo.trainer_channel import TrainerChannel
from logs_ui.recorder.api.options import RecordOptions, checked_options, takes_record_options
from logs_ui.recorder.capture.instruments import trl_async
from logs_ui.recorder.guard import guard
from logs_ui.recorder.rows.rollout_call import Parse
from logs_ui.recorder.rows.task_names import Task
from logs_ui.recorder.storage.address import as_text

W = TypeVar("W")


@takes_record_options
def record_worker(
    worker: W,
    /,
    *,
    name: str | None = None,
    task: Task | None = None,
    parse: Parse | None = None,
    **options: Unpack[RecordOptions],
) -> W:
    """Record every rollout that a worker of AsyncGRPO makes. Call it before the training begins.

    The worker's process writes the run. A row's `step` and `policy_step` are the version of the policy at the beginning
    of its group. `metadata["notes"]["policy"]` has the versions that answered each turn, and by how many versions the
    policy was ahead when the rollout ended.

    If a trainer of TRL takes the rollouts, the run has the trainer's arguments and scalars. `staleness` is then the
    number of versions by which its policy was ahead when it took the rollout, and `dropped` is "stale" or "oversize" if
    it left out the rollout or a part of it, and None otherwise. Both are None for a rollout that was not taken before
    the training ended.

    Args:
        worker: `trainer.rollout_worker`, or the worker that is passed to the trainer: an `AsyncRolloutWorker` or a
            subclass of it. None, as on all ranks but the first, is returned as it is.
        name: Name of the run, for people. None shows the run's id.
        task: Names the task of each rollout; see `record()`. A function is sent to the worker's process by its module
            and name, as reward functions are, so it must not be a lambda or be defined in another function. The same
            holds for `parse` and `edit`.
        parse: Your own parser; see `record()`.
        **options: The options in `RecordOptions`.

    Returns:
        The same worker.

    Raises:
        DatabaseError: `db` is a URL of a database that is not supported.
        RuntimeError: the worker's process is running already.
        SettingsError: `diagnosis` names an unknown diagnostic, or a threshold is out of range.
        TypeError: `worker` is not such a worker, `diagnosis` is not a `Settings`, a function cannot be pickled, or an
            option is unknown.

    Examples:
        ```python
        from trl.experimental.async_grpo import AsyncGRPOTrainer

        from logs_ui.recorder import record_worker

        trainer = AsyncGRPOTrainer(model, reward_funcs=[solved], environment_factory=Game, ...)
        record_worker(trainer.rollout_worker, eval_name="game")
        trainer.train()
        ```
    """
    checked = checked_options(record_worker, options)  # here, so that a mistake is not raised in the worker's process
    if worker is None:
        return worker
    for part in ("_loop_cls", "_loop_kwargs", "_process"):
        if not hasattr(worker, part):
            raise TypeError(f"record_worker() takes an AsyncRolloutWorker of trl, not a {type(worker).__name__}")
    if worker._process is not None:  # type: ignore[attr-defined]  # noqa: SLF001 - see above
        raise RuntimeError("The rollout worker is running already: call record_worker() before trainer.train()")
    for option, function in (("task", task), ("parse", parse), ("edit", checked.rows.edit)):
        _check_picklable(option, function)
    loop = worker._loop_cls  # type: ignore[attr-defined]  # noqa: SLF001
    if not isinstance(loop, functools.partial):  # else it is recorded already
        server_log = checked.rows.server_log
        shared: RecordOptions = {
            **options,
            "db": as_text(checked.address),
            "server_log": server_log and server_log.absolute(),
        }
        loop_options = LoopOptions(name, task, parse, shared, TrainerChannel())
        worker._loop_cls = functools.partial(make_loop, loop, loop_options)  # type: ignore[attr-defined]  # noqa: SLF001
        with guard("attaching to the trainer of a rollout worker"):
            trl_async.watch(worker, loop_options.trainer)
    return worker


def _check_picklable(option: str, function: object) -> None:
    """Raise a TypeError if the function cannot be pickled."""
    try:
        pickle.dumps(function)
    except Exception as error:
        raise TypeError(
            f"record_worker({option}=...) goes to the worker's process, and cannot be pickled ({error}): "
            "define the function at the top level of a module"
        ) from error
