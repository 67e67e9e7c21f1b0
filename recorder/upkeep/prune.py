"""Deletes messages, actions and tokens of old rollouts; their figures stay."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from functools import partial

from sqlalchemy import ColumnElement, Engine, case, delete, false, func, not_, or_, select, true, update
from sqlmodel import col

from logs_ui.recorder import queries
from logs_ui.recorder.analysis.chosen_rows import chosen_rows
from logs_ui.recorder.errors import FilterError, LogsUIError
from logs_ui.recorder.queries.filters.fields import SEARCHED
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, Sort
from logs_ui.recorder.queries.filters.values import read_time
from logs_ui.recorder.queries.search.full_text import planning
from logs_ui.recorder.queries.search.index import catch_up
from logs_ui.recorder.queries.sql.selection import Use, conditions
from logs_ui.recorder.storage.address import database_address
from logs_ui.recorder.storage.clock import now_us
from logs_ui.recorder.storage.notes_tables import Star
from logs_ui.recorder.storage.tables import EvaluationRow, RolloutPayload, Run
from logs_ui.recorder.storage.writes import run_writes
from logs_ui.recorder.upkeep import small_transactions
from logs_ui.recorder.upkeep.info import marked_rows, payload_bytes
from logs_ui.recorder.upkeep.sweeps import sweep_images, sweep_starts
from logs_ui.recorder.vocabulary import Status


class Unit(StrEnum):
    """Names the unit of a sample."""

    STEPS = "steps"
    """Whole groups stay, with all that is compared within them."""
    ROLLOUTS = "rollouts"
    """For rollouts of one step, such as an evaluation's."""


class Keep(StrEnum):
    """The rollouts that stay, whatever the rule selects."""

    STARRED = "starred"
    """Rollouts that people starred, tagged or noted, and all of a run that they starred."""
    NOTHING = "nothing"


_row, _payload = EvaluationRow, RolloutPayload


@dataclass(frozen=True)
class Pruned:
    """The rollouts and sizes that a rule deletes, or has deleted.

    Attributes:
        runs: number of pruned rollouts by uid of their run.
        bytes: stored size of their text and tokens.
        kept: number of further rollouts that the rule selects, but that stay because somebody starred, tagged or noted
            them, or starred their run.
        prompt_bytes: size of deleted prompts that no rollout shares any more; 0 after a dry run.
        images, image_bytes: number and size of deleted images that no rollout refers to any more; 0 after a dry run.
    """

    runs: dict[str, int]
    bytes: int
    kept: int
    prompt_bytes: int = 0
    images: int = 0
    image_bytes: int = 0

    @property
    def rollouts(self) -> int:
        """Return the number of pruned rollouts of all runs."""
        return sum(self.runs.values())


def prune(
    db: str | os.PathLike[str] | None = None,
    *,
    run: str | Sequence[str] = (),
    older_than: str | timedelta | None = None,
    keep_every: int | None = None,
    of: str = Unit.STEPS,
    where: str | RolloutFilter | None = None,
    keep: str = Keep.STARRED,
    dry_run: bool = False,
    progress: small_transactions.Progress = small_transactions.unseen,
) -> Pruned:
    """Delete messages, actions and tokens of the rollouts that satisfy all arguments. Each stays as a row with its
    figures: rewards, counts, times, the diagnosis's columns, the beginning of the last message. The text can be
    restored only from a backup of the database. Images that no rollout refers to any more are deleted, too. Words that
    the search had indexed before are still found.

    It works in short transactions while trainings record. It can be interrupted at any moment; the next call continues.
    Rollouts that run, or await their reward, are left alone. An SQLite file keeps its size and reuses the space: see
    `vacuum`.

    Args:
        db: the database's path or URL; by default LOGS_UI_DB or this user's own database.
        run: only rollouts of these runs, named as in `load_run`; all runs by default.
        older_than: only rollouts that began before an age, such as "30d", or a time, such as "2026-01-31".
        keep_every: keep every so many steps, counted from 0, with whole groups.
        of: "rollouts": keep every so many rollouts by id instead.
        where: a line of the filter language, or a RolloutFilter. Runs that lack a name in it are skipped if there are
            several.
        keep: "nothing": prune also what somebody starred, tagged or noted.
        dry_run: deletes nothing, and returns what would be deleted.
        progress: called with the name of the work, how much is done, and how much there is.

    Raises:
        LogsUIError: no rule is given, or one that makes no sense.
        RunNotFoundError: no such run.
        DatabaseError: the database is missing, or cannot be read or written.
        FilterError: the filter is misspelt, or has a name that no run has.
    """
    names = [run] if isinstance(run, str) else list(run)
    if not names and older_than is None and keep_every is None and where is None:
        raise LogsUIError("Say what to prune: older_than, keep_every, where or run. All of them must hold.")
    chosen, rule = chosen_rows(where, db=db), _conditions(older_than, keep_every, of, keep)
    address = database_address(db)
    with small_transactions.reading(address) as engine:
        runs = [_Chosen(engine, chosen_run, chosen, rule, keep) for chosen_run in _find_runs(engine, names, chosen)]
        # A term that searches texts finds only what the index has.
        if any(term.field in SEARCHED for term in chosen.terms):
            for chosen_run in runs:
                catch_up(address, engine, chosen_run.run_id, partial(progress, "indexing texts"))
        counts, size, all_spared = dict[str, int](), 0, 0
        for number, chosen_run in enumerate(runs, 1):
            count, of_run, spared = chosen_run.count()
            counts |= {chosen_run.run.uid: count} if count else {}
            size, all_spared = size + of_run, all_spared + spared
            progress("counting", number, len(runs))
        result = Pruned(counts, size, all_spared)
        if dry_run:
            return result
        with small_transactions.writing(address) as steady:
            done = 0
            for chosen_run in runs:
                while ids := chosen_run.following(steady.rows):
                    _take(steady, chosen_run.run_id, ids)
                    done += len(ids)
                    progress("pruning", min(done, result.rollouts), result.rollouts)
            prompts = sweep_starts(steady)
            images, image_bytes = sweep_images(engine, steady, progress)
    return replace(result, prompt_bytes=prompts, images=images, image_bytes=image_bytes)


def _conditions(
    older_than: str | timedelta | None, every: int | None, unit: str, keep: str
) -> list[ColumnElement[bool]]:
    """Return the conditions on age and sample; raise LogsUIError if an argument makes no sense."""
    conditions = list[ColumnElement[bool]]()
    if isinstance(older_than, timedelta):
        conditions.append(col(_row.created) <= now_us() - older_than // timedelta(microseconds=1))
    elif older_than is not None:
        conditions.append(col(_row.created) <= read_time("older_than", older_than, None))
    if every is not None and every < 2:
        raise LogsUIError(f"keep_every must be at least 2, not {every}.")
    if unit not in set(Unit):
        raise LogsUIError(f"of must be 'steps' or 'rollouts', not {unit!r}.")
    if keep not in set(Keep):
        raise LogsUIError(f"keep must be 'starred' or 'nothing', not {keep!r}.")
    if every is not None:
        conditions.append((col(_row.step) if unit == Unit.STEPS else col(_row.id)) % every != 0)
    return conditions


class _Chosen:
    """The rollouts of one run that a filter and further conditions select, read in the order of their ids."""

    def __init__(self, db: Engine, run: Run, where: RolloutFilter, rule: list[ColumnElement[bool]], keep: str) -> None:
        self.run = run
        self.run_id = run.id or 0
        self._db = db
        self._last = 0
        with db.connect() as connection:
            is_under_way = run.uid in small_transactions.under_way(connection)
            starred_run = select(col(Star.run)).where(col(Star.run) == run.uid, col(Star.row) == "")
            is_starred = connection.scalar(starred_run) is not None
        self._taken = conditions(self.run_id, replace(where, sort=Sort.OLDEST), Use.ROWS) + rule
        self._taken += [col(_row.pruned).is_(None), col(_row.status) != Status.RUNNING]
        if is_under_way:  # a rollout that awaits its reward may still be written
            self._taken.append(or_(col(_row.scored).is_not(None), col(_row.status) == Status.ERROR))
        marked = true() if is_starred else col(_row.uid).in_(marked_rows(run.uid))
        # Selects rollouts that stay because people marked them, or starred the run.
        self.spared = false() if keep == Keep.NOTHING else marked

    def count(self) -> tuple[int, int, int]:
        """Return how many are pruned, their bytes, and how many stay because people marked them."""
        spared, size = case((self.spared, 1), else_=0).label("spared"), payload_bytes().label("size")
        rows = select(spared, size).select_from(_row).join(_payload).where(*self._taken).subquery()
        counted = select(rows.c.spared, func.count(), func.sum(rows.c.size)).group_by(rows.c.spared)
        with self._db.connect() as connection, planning(connection):
            by_kind = {kind: (count, size) for kind, count, size in connection.execute(counted)}
        # By `spared`: 0 are the rollouts that are pruned, 1 those that stay.
        return *by_kind.get(0, (0, 0)), by_kind.get(1, (0, 0))[0]

    def following(self, count: int) -> list[int]:
        """Return the next `count` ids at most."""
        row_id = col(_row.id)
        query = select(row_id).join(_payload).where(*self._taken, not_(self.spared), row_id > self._last)
        with self._db.connect() as connection, planning(connection):
            ids = [row_number or 0 for row_number in connection.scalars(query.order_by(row_id).limit(count))]
        self._last = ids[-1] if ids else self._last
        return ids


def _take(steady: small_transactions.Steady, run_id: int, ids: Sequence[int]) -> None:
    with steady.piece() as connection:
        run_writes.take_runs(connection, [run_id])
        still = update(_row).where(col(_row.id).in_(ids), col(_row.pruned).is_(None))  # another process may prune, too
        count = connection.execute(still.values(pruned=now_us())).rowcount
        connection.execute(update(Run).where(col(Run.id) == run_id).values(pruned=col(Run.pruned) + count))
        connection.execute(delete(_payload).where(col(_payload.row_id).in_(ids)))


def _find_runs(db: Engine, names: Iterable[str], where: RolloutFilter) -> list[Run]:
    """Return the runs to prune: those that are named, or all, if they have all names of the filter. Raise
    RunNotFoundError, or FilterError if a named run, or every run, lacks a name of the filter.
    """
    chosen = [queries.find_run(db, name) for name in names]
    runs = chosen or [summary.run for summary in reversed(queries.all_runs(db))]
    complete, lacking = [], None
    for run in {run.uid: run for run in runs}.values():
        try:
            queries.check_names(db, run.id or 0, where)
        except FilterError as error:
            if chosen:
                raise
            lacking = error
        else:
            complete.append(run)
    if lacking is not None and not complete:
        raise lacking
    return complete
