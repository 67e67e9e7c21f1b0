"""`record_trainer()` records a trainer of TRL; `LogsUICallback` does it from within."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self, TypeVar, Unpack

import msgspec

from logs_ui.recorder.api.async_grpo.record_worker import record_worker
from logs_ui.recorder.api.environment_factory import record_environments
from logs_ui.recorder.api.options import RecordOptions, checked_options, default_name, takes_record_options
from logs_ui.recorder.api.record import is_recorded, record
from logs_ui.recorder.api.trainer_batches import record_batches, recordings_of
from logs_ui.recorder.api.trainer_run import Recordings
from logs_ui.recorder.capture.instruments import install, trl, trl_online_dpo
from logs_ui.recorder.capture.instruments.trl_callback import as_trainer_callback
from logs_ui.recorder.delivery.writer import writer_for
from logs_ui.recorder.guard import guard
from logs_ui.recorder.rows.rollout_call import Parse
from logs_ui.recorder.rows.task_names import Task
from logs_ui.recorder.snapshot import name as shortened

T = TypeVar("T")


@takes_record_options
def record_trainer(
    trainer: T,
    /,
    *,
    task: Task | None = None,
    parse: Parse | None = None,
    announce: bool = True,
    **options: Unpack[RecordOptions],
) -> T:
    """Record every completion that a trainer of TRL samples, with its rewards by function and its advantage.

    It takes a GRPOTrainer, an RLOOTrainer, or a subclass or copy of them (such as Unsloth's), that has reward functions
    only, `tools`, an `environment_factory` or a `rollout_func`; an OnlineDPOTrainer, which computes no advantages; and
    an AsyncGRPOTrainer, whose worker it passes to `record_worker()`. Call it before `train()`. A failure of the
    recorder never reaches the training: it is logged once, and counted on the run. A trainer that is recorded already,
    by this function, `record()` or `record_environment()`, is recorded once, with the options of the first.

    Args:
        trainer: The trainer.
        task: Names the task of each rollout; see `record()`.
        parse: Your own parser; see `record()`.
        announce: True prints the run's id, and the command that shows the run, on stderr once per run; it has no effect
            for an AsyncGRPOTrainer.
        **options: The options in `RecordOptions`. The default `eval_name` is the name of the rollout function, of the
            environments, or of the dataset, and "rollouts" if there is none.

    Returns:
        The same trainer.

    Raises:
        DatabaseError: `db` or LOGS_UI_DB can never be recorded into; see `record()`.
        LogsUIError: a setting in LOGS_UI_* is out of its range; see `record()`.
        RuntimeError: the worker of an AsyncGRPOTrainer is running already.
        SettingsError: `diagnosis` names an unknown diagnostic, or a threshold is out of range.
        TypeError: `trainer` is no such trainer, `diagnosis` is not a `Settings`, or an option is unknown.

    Examples:
        ```python
        from trl import GRPOConfig, GRPOTrainer

        from logs_ui.recorder import record_trainer

        trainer = GRPOTrainer(model, reward_funcs=[solved], args=GRPOConfig(...), train_dataset=dataset)
        record_trainer(trainer, eval_name="gsm8k")
        trainer.train()
        ```

        >>> from logs_ui.recorder import record_trainer
        >>> record_trainer(trainer, db="runs.db") is trainer
        True
    """
    checked = replace(checked_options(record_trainer, options, parse=parse), task=task, announce=announce)
    if not samples_completions(trainer):
        description = (
            f"the class {trainer.__name__}: pass the trainer" if isinstance(trainer, type) else type(trainer).__name__
        )
        raise TypeError(
            "record_trainer() takes a GRPOTrainer, RLOOTrainer, OnlineDPOTrainer or AsyncGRPOTrainer, or a subclass or "
            f"copy of one of them, not {description}"
        )
    if is_recorded_trainer(trainer):
        return trainer
    if hasattr(trainer, "rollout_worker"):
        record_worker(trainer.rollout_worker, task=task, parse=parse, **options)
    elif getattr(trainer, "rollout_func", None) is not None:
        recorded = record(trainer.rollout_func, task=task, parse=parse, announce=announce, **options)  # type: ignore[attr-defined]
        trainer.rollout_func = recorded  # type: ignore[attr-defined]
    else:
        rows = msgspec.structs.replace(checked.rows, offers_tools=bool(getattr(trainer, "tools", None)))
        name = shortened(checked.eval_name or _eval_name(trainer))
        recordings = Recordings(replace(checked, eval_name=name, rows=rows))
        record_environments(trainer, recordings)
        record_batches(trainer, recordings)
    return trainer


def samples_completions(trainer: object) -> bool:
    """Return True if it is a trainer that `record_trainer` takes."""
    if hasattr(trainer, "rollout_worker"):  # None on all ranks but the first
        return trainer.rollout_worker is None or hasattr(trainer.rollout_worker, "_loop_cls")
    scores = hasattr(trainer, "_generate_and_score_completions") and hasattr(trainer, "reward_funcs")
    return not isinstance(trainer, type) and (scores or trl_online_dpo.compares_pairs(trainer))


def is_recorded_trainer(trainer: Any) -> bool:
    """Return True if the trainer's rollouts are recorded, by whatever door."""
    worker = getattr(trainer, "rollout_worker", None)
    if worker is not None:
        return hasattr(getattr(worker, "_loop_cls", None), "func")  # a partial of ours
    return is_recorded(getattr(trainer, "rollout_func", None)) or recordings_of(trainer) is not None


def record_every_trainer(**options: Unpack[RecordOptions]) -> None:
    """Record each trainer of this process that samples completions, from its first `train()` or `evaluate()` on.

    For the options, and what is raised, see `record_trainer()`.
    """
    checked_options(record_every_trainer, options)
    trl.at_start(lambda trainer: _record_by_callback(trainer, options))
    install()


def make_known(module: Any) -> None:
    """Let transformers' `integration_utils` know `LogsUICallback` as `report_to="logs_ui"`."""
    with guard("registering report_to"):
        module.INTEGRATION_TO_CALLBACK.setdefault("logs_ui", LogsUICallback)


def _eval_name(trainer: Any) -> str:
    """Return the name of the trainer's environments, or of its dataset."""
    factories = getattr(trainer, "environment_factories", None) or {}
    makers = [str(key or default_name(make)) for key, make in factories.items()]
    kinds = [type(environment).__name__ for environment in trl.environments(trainer)]
    info = getattr(getattr(trainer, "train_dataset", None), "info", None)
    return "+".join(dict.fromkeys(makers or kinds)) or getattr(info, "dataset_name", None) or "rollouts"


@takes_record_options
class LogsUICallback:
    """A trainer callback that records the trainer it is handed to. It is a `transformers.TrainerCallback`.

    It does what `record_trainer()` does, with `task`, `parse` and `announce` as there, for those who hand callbacks to
    a trainer that another program makes. A trainer that samples no completions trains as without it, unrecorded. Of
    several the first with options counts. `report_to="logs_ui"` in a trainer's arguments hands over one without options
    in each program that has imported `logs_ui.recorder`, and under `logs-ui run`.

    Args:
        **options: The options in `RecordOptions`.

    Raises:
        DatabaseError: `db` or LOGS_UI_DB can never be recorded into; see `record()`.
        SettingsError: `diagnosis` names an unknown diagnostic, or a threshold is out of range.
        TypeError: `diagnosis` is not a `Settings`, or an option is unknown.

    Examples:
        >>> from logs_ui.recorder import LogsUICallback
        >>> callbacks = [LogsUICallback(eval_name="gsm8k", db="runs.db")]
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        callback: Self = object.__new__(as_trainer_callback(cls))  # type: ignore[arg-type]  # a class can be hashed
        return callback

    def __init__(
        self,
        *,
        task: Task | None = None,
        parse: Parse | None = None,
        announce: bool = True,
        **options: Unpack[RecordOptions],
    ) -> None:
        # A wrong option or database raises here, where the user wrote it, and not when the training starts.
        writer_for(checked_options(type(self), options).address)
        # True is the default of `announce`: it becomes None here and is left out, so that this callback counts as
        # one without options.
        all_options = {"task": task, "parse": parse, "announce": announce and None, **options}
        self._options: dict[str, Any] = {name: value for name, value in all_options.items() if value is not None}
        trl.at_start(_record_by_callback)
        install()


def _record_by_callback(trainer: Any, otherwise: Mapping[str, Any] | None = None) -> None:
    """Record a trainer as its callbacks say, or as `otherwise` does; the first options that are given count."""
    callbacks = getattr(getattr(trainer, "callback_handler", None), "callbacks", ())
    all_options = [callback._options for callback in callbacks if isinstance(callback, LogsUICallback)]  # noqa: SLF001 - of this file
    all_options += [] if otherwise is None else [dict(otherwise)]
    if all_options and samples_completions(trainer):
        record_trainer(trainer, **next(filter(None, all_options), {}))
