"""`record_environment()` records environments that TRL itself plays, by `GRPOTrainer(environment_factory=...)`."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar, Unpack, overload

from logs_ui.recorder.api.environment_factory import Factory
from logs_ui.recorder.api.options import RecordOptions, checked_options, default_name, takes_record_options
from logs_ui.recorder.api.trainer_batches import record_batches
from logs_ui.recorder.api.trainer_run import Recordings
from logs_ui.recorder.rows.task_names import Task
from logs_ui.recorder.snapshot import name as shortened

E = TypeVar("E")


@overload
def record_environment(
    factory: Mapping[str, Callable[[], E]], /, *, task: Task | None = None, **options: Unpack[RecordOptions]
) -> dict[str, Callable[[], E]]: ...
@overload
def record_environment(
    factory: Callable[[], E], /, *, task: Task | None = None, **options: Unpack[RecordOptions]
) -> Callable[[], E]: ...
@takes_record_options
def record_environment(factory: Any, /, *, task: Task | None = None, **options: Unpack[RecordOptions]) -> Any:
    """Record every rollout that TRL makes in an environment: resets, tool calls, `get_reward`, and the model's tokens.

    The environments that TRL gets are those that the factory makes. A failure of the recorder never reaches the
    training: it is logged once, and counted on the run.

    Args:
        factory: The value of `GRPOTrainer(environment_factory=...)`: a class, another function that makes
            environments, or a dict of such functions by name.
        task: Names the task of each rollout; see `record()`.
        **options: The options in `RecordOptions`. The default `eval_name` of a dict joins the names by "+".

    Returns:
        The value to pass to the trainer: a factory, or a dict of factories.

    Raises:
        DatabaseError: `db` is a URL of a database that is not supported.
        SettingsError: `diagnosis` names an unknown diagnostic, or a threshold is out of range.
        TypeError: `factory` is neither a function nor a dict of functions, `diagnosis` is not a `Settings`, or an
            option is unknown.

    Examples:
        ```python
        from trl import GRPOTrainer

        from logs_ui.recorder import record_environment

        factory = record_environment(Game, eval_name="game")  # or {"game": Game, "maze": Maze}
        trainer = GRPOTrainer(model, reward_funcs=[solved], train_dataset=dataset, environment_factory=factory)
        trainer.train()
        ```

        The trainer gets the factory's own environments:

        >>> from logs_ui.recorder import record_environment
        >>> isinstance(record_environment(Game, db="runs.db")(), Game)
        True
    """
    several = isinstance(factory, Mapping)
    makers = dict(factory) if several else {None: factory}
    for maker in makers.values():
        if not callable(maker):
            raise TypeError(
                "record_environment() takes a class, a function that makes environments, or a dict of these; "
                f"this is of type {type(maker).__name__}"
            )
    checked = checked_options(record_environment, options, offers_tools=True)
    plain = {name: maker.make if isinstance(maker, Factory) else maker for name, maker in makers.items()}
    names = (str(name or default_name(maker)) for name, maker in plain.items())
    eval_name = shortened(checked.eval_name or "+".join(dict.fromkeys(names)))
    recordings = Recordings(replace(checked, eval_name=eval_name, task=task))
    record_batches()
    factories = {name: Factory(maker, recordings, name) for name, maker in plain.items()}
    return factories if several else factories[None]
