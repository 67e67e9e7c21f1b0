"""Applies another reward function to a run's stored rollouts, without changing them."""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine

from logs_ui.recorder.analysis.chosen_rows import chosen_rows
from logs_ui.recorder.analysis.frames import frame_of
from logs_ui.recorder.analysis.opened_runs import opened
from logs_ui.recorder.analysis.rescore.reward_calls import AskedFunction, RewardFunction, Waiting
from logs_ui.recorder.analysis.rescore.reward_inputs import PromptForm, Rebuilding
from logs_ui.recorder.analysis.user_modules import named_function
from logs_ui.recorder.capture.instruments.trl_parts import distinct
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.queries import Rollout
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter
from logs_ui.recorder.queries.group_batches import Place, places, reward_names, rollouts_called
from logs_ui.recorder.queries.rollout_columns import BY_NAME, Column, Kind

if TYPE_CHECKING:
    import pandas as pd

NO_TEXT = "its messages were not recorded"
PRUNED = "its messages were pruned"
_OF_ROW = ("id", "group", "generation", "eval_name", "mode", "step", "task")

RESCORED_COLUMNS = (
    *(BY_NAME[name] for name in ("run", "id", "group", "generation", "eval_name", "mode", "step", "task")),
    Column("old", Kind.NUMBER, "the reward that is stored; absent without one"),
    Column("new", Kind.NUMBER, "the new reward; absent if no function returned one, or one failed"),
    Column("rewards", Kind.NESTED, "what each function of the new reward returned, by name; None without a number"),
    Column("failed", Kind.TEXT, "what a function raised, or why it was not called; absent without a failure"),
)


def rescore(
    run: str,
    reward: str | RewardFunction | Sequence[str | RewardFunction],
    db: str | os.PathLike[str] | None = None,
    *,
    where: str | RolloutFilter | None = None,
    weights: Sequence[float] | None = None,
    keep: Sequence[str] | Mapping[str, float | None] = (),
    prompts: PromptForm | None = None,
    batch: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> "pd.DataFrame":
    """Compute the rewards that a run would have had with other reward functions. Stored data does not change.

    The functions are called as TRL's trainer calls them, on whole groups, with the prompts, completions, token ids and
    columns that can be rebuilt: see docs/rescore.md. Rollouts that are running, or ended in an error without a reward,
    are left out.

    Args:
        run: a run's id, the beginning of one, a name (its newest run), or `latest`.
        reward: one or several functions with TRL's signature, plain or async, or "module:function".
        db: the database's path or address; LOGS_UI_DB or the user's default by default.
        where: selects rollouts, as in `load_run`. Functions that compare rollouts of a group see only these.
        weights: one per function, as GRPOConfig's `reward_weights`; 1 each by default.
        keep: names of recorded reward functions whose stored values are added, with the recorded or the given weight.
        prompts: "messages" or "text", the form of the dataset's prompts; None to infer it from the tokens.
        batch: the least number of rollouts per call; a call has whole groups of one step.
        progress: called with the number of rollouts done so far, and of all.

    Returns:
        A DataFrame with one row per rollout, group by group. The columns are listed in `RESCORED_COLUMNS`.

    Raises:
        RunNotFoundError: there is no such run.
        DatabaseError: the database is missing or cannot be read, or a rollout is damaged.
        FilterError: the filter is invalid, or names a task, an eval, ... that the run does not have.
        NoModuleError: there is no such module or function.
        RewardFunctionError: a function cannot be called with the columns that there are, or fails for every rollout.
        LogsUIError: the number of weights is wrong, or a reward to keep was not recorded.

    Examples:
        >>> import tempfile
        >>> from logs_ui.recorder import rescore, start_run
        >>> db = f"{tempfile.mkdtemp()}/runs.db"
        >>> with start_run(db=db) as run:
        ...     with run.rollout("What is 1 + 1?") as row:
        ...         row.turn("2")
        ...         row.score(0.0)
        >>> def has_two(prompts, completions, **kwargs):
        ...     return [float("2" in str(completion)) for completion in completions]
        >>> rescore(run.id, has_two, db)[["old", "new"]].to_dict("records")
        [{'old': 0.0, 'new': 1.0}]
    """
    functions = [reward] if isinstance(reward, str) or callable(reward) else list(reward)
    chosen = chosen_rows(where, run, db)
    with opened(run, db, chosen) as (engine, stored_run), Waiting() as waiting:
        new_functions = _prepare_functions(functions, waiting)
        recorded = _find_kept(engine, stored_run.id or 0, chosen, keep)
        weight_of = _weights(new_functions, weights)
        rebuilding = Rebuilding(engine, stored_run, prompts)
        rows: list[dict[str, Any]] = []
        all_places = places(engine, stored_run.id or 0, chosen)
        total = sum(len(place.ids) for place in all_places)
        for group in _batches(all_places, batch):
            rollouts = _read_batch(engine, stored_run.id or 0, group)
            scores = _scores(new_functions, rebuilding, rollouts)
            for rollout in rollouts:
                identity = {name: getattr(rollout.row, name) for name in _OF_ROW} | {
                    "run": stored_run.uid,
                    "old": rollout.row.reward,
                }
                rows.append(identity | _scored(rollout, scores.get(rollout.row.id), weight_of, recorded))
            if progress is not None:
                progress(len(rows), total)
        for rescored in new_functions:
            rescored.check()
    return frame_of(RESCORED_COLUMNS, rows)


def _scores(
    functions: Sequence[AskedFunction], rebuilding: Rebuilding, rollouts: Sequence[Rollout]
) -> dict[int | None, list[float | str]]:
    """Return the functions' scores or errors by rollout, for those of one step that have messages."""
    with_messages = [rollout for rollout in rollouts if rollout.messages]
    if not with_messages:
        return {}
    inputs = rebuilding.inputs(with_messages)
    by_function = [function.scores(inputs) for function in functions]
    return {item.row.id: list(of_rollout) for item, *of_rollout in zip(with_messages, *by_function, strict=True)}


def _scored(
    rollout: Rollout,
    scores: Sequence[float | str] | None,
    weights: Mapping[str, float],
    recorded_weights: Mapping[str, float | None],
) -> dict[str, Any]:
    """Return the result's columns of one rollout; for `recorded_weights` see `_find_kept`."""
    if scores is None:
        return {"new": None, "rewards": None, "failed": NO_TEXT if rollout.row.pruned is None else PRUNED}
    failures = [
        f"{name}: {score_or_error}"
        for name, score_or_error in zip(weights, scores, strict=True)
        if isinstance(score_or_error, str)
    ]
    finite = (None if isinstance(score, str) or math.isnan(score) else score for score in scores)
    rewards = dict(zip(weights, finite, strict=True))
    worth = [(value, weights[name]) for name, value in rewards.items()]
    stored, recorded = rollout.row.rewards or {}, rollout.row.reward_weights or {}
    for name, weight in recorded_weights.items():
        rewards[name] = stored.get(name)
        worth.append((rewards[name], recorded.get(name, 1.0) if weight is None else weight))
    # As in TRL: a function that gave None is left out of the sum, and a row that none scored has no reward.
    counted = [value * weight for value, weight in worth if value is not None]
    new = math.fsum(counted) if counted and not failures else None
    return {"new": new, "rewards": rewards, "failed": failures[0] if failures else None}


def _prepare_functions(functions: Sequence[str | RewardFunction], waiting: Waiting) -> list[AskedFunction]:
    if not functions:
        raise LogsUIError("There is no reward function to rescore with: name one, such as rewards:accuracy.")
    callables = [
        named_function(asked_function) if isinstance(asked_function, str) else asked_function
        for asked_function in functions
    ]
    inner = [getattr(asked_function, "func", asked_function) for asked_function in callables]  # of functools.partial
    names = distinct(
        str(getattr(asked_function, "__name__", None) or type(asked_function).__name__) for asked_function in inner
    )
    return [AskedFunction(name, function, waiting) for name, function in zip(names, callables, strict=True)]


def _weights(functions: Sequence[AskedFunction], weights: Sequence[float] | None) -> dict[str, float]:
    numbers = [1.0] * len(functions) if weights is None else [float(weight) for weight in weights]
    if len(numbers) != len(functions):
        raise LogsUIError(
            f"{len(numbers)} weights do not fit {len(functions)} reward functions: give one for each, or none."
        )
    return {function.name: weight for function, weight in zip(functions, numbers, strict=True)}


def _find_kept(
    engine: Engine, run_id: int, chosen: RolloutFilter, keep: Sequence[str] | Mapping[str, float | None]
) -> dict[str, float | None]:
    wanted = dict(keep) if isinstance(keep, Mapping) else dict.fromkeys(keep)
    names = reward_names(engine, run_id, chosen) if wanted else []
    odd = [name for name in wanted if name not in names]
    if odd:
        there = ", ".join(names) or "none"
        raise LogsUIError(f"Cannot keep {odd[0]!r}: no such reward function was recorded. Recorded: {there}.")
    return wanted


def _batches(groups: Sequence[Place], size: int) -> Iterator[list[Place]]:
    """Yield batches of whole groups of one step."""
    for _, of_step in groupby(groups, lambda place: place.step):
        batch: list[Place] = []
        for place in of_step:
            batch.append(place)
            if sum(len(rollout.ids) for rollout in batch) >= size:
                yield batch
                batch = []
        if batch:
            yield batch


def _read_batch(engine: Engine, run_id: int, batch: Sequence[Place]) -> list[Rollout]:
    """Read the rollouts in the order of their groups, and within a group by generation."""
    order = {row_id: i for i, place in enumerate(batch) for row_id in place.ids}
    rollouts = rollouts_called(engine, run_id, list(order))
    return sorted(
        rollouts, key=lambda rollout: (order[rollout.row.id or 0], rollout.row.generation, rollout.row.id or 0)
    )
