"""Taking the text of old rollouts: their messages, actions and tokens go, their figures stay."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Engine, case, delete, false, func, not_, or_, select, true, union_all, update
from sqlmodel import col

from logs_ui.recorder import queries
from logs_ui.recorder.analysis.frames import chosen_rows
from logs_ui.recorder.errors import FilterError, LogsUIError
from logs_ui.recorder.queries.filters.filter_values import read_time
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, Sort
from logs_ui.recorder.queries.search.full_text import planning
from logs_ui.recorder.queries.search.search_index import catch_up
from logs_ui.recorder.queries.sql.selection import Use, conditions
from logs_ui.recorder.storage.address import database_address
from logs_ui.recorder.storage.clock import now_us
from logs_ui.recorder.storage.notes_tables import Note, PersonalTag, Star
from logs_ui.recorder.storage.tables import EvaluationRow, RolloutPayload, Run
from logs_ui.recorder.storage.writes import run_writes
from logs_ui.recorder.upkeep.payload_starts import sweep_starts
from logs_ui.recorder.upkeep.small_transactions import (
    Progress,
    Steady,
    reading,
    under_way,
    unseen,
    writing,
)
from logs_ui.recorder.upkeep.unused_images import sweep_images
from logs_ui.recorder.vocabulary import Status


class Unit(StrEnum):
    """What a sample is taken of."""

    STEPS = "steps"
    """Whole groups stay, and all that is compared within them."""
    ROLLOUTS = "rollouts"
    """Also where all are of one step, as an evaluation's."""


class Keep(StrEnum):
    """What stays, whatever the rule says."""

    STARRED = "starred"
    """What people starred, tagged or noted, and all of a run that they starred."""
    NOTHING = "nothing"


_row, _payload = EvaluationRow, RolloutPayload


@dataclass(frozen=True)
class Pruned:
    """What a rule takes, or has taken.

    Attributes:
        runs: of which anything went, by uid, with how many of their rollouts.
        bytes: of their text and tokens, as they are stored.
        kept: further ones that the rule would take, and that stay as somebody starred, tagged or noted them or starred
            their run.
        prompt_bytes: of the prompts that rollouts shared, and none has any more; 0 where nothing was taken yet.
        images, image_bytes: that nothing refers to any more; likewise.
    """

    runs: dict[str, int]
    bytes: int
    kept: int
    prompt_bytes: int = 0
    images: int = 0
    image_bytes: int = 0

    @property
    def rollouts(self) -> int:
        """Of all runs."""
        return sum(self.runs.values())


@dataclass(frozen=True)
class Rule:
    """Which rollouts lose their text: those that satisfy all of it.

    Attributes:
        until: they began by then, µs since the epoch; None: whenever.
        every: not those of each so many steps, counted from 0, or of each so many rollouts, by id; None: all of them.
        unit: which of the two, a Unit.
        where: they satisfy this.
        keep: what stays all the same, a Keep.

    Raises:
        LogsUIError: it cannot be meant so.
    """

    until: int | None
    every: int | None
    unit: str
    where: RolloutFilter
    keep: str

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 2:
            raise LogsUIError(f"To keep every {self.every} of them takes none: give 2 or more.")
        if self.unit not in set(Unit):
            raise LogsUIError(f"A sample is of steps or of rollouts, not of {self.unit!r}.")
        if self.keep not in set(Keep):
            raise LogsUIError(f"What is starred can be kept, or nothing, not {self.keep!r}.")

    def takes(self, run: Run, *, is_under_way: bool) -> list[ColumnElement[bool]]:
        """Conditions of a run's rollouts that it takes, whatever people said of them."""
        found = conditions(run.id or 0, replace(self.where, sort=Sort.OLDEST), Use.ROWS)
        found += [col(_row.pruned).is_(None), col(_row.status) != Status.RUNNING]
        found += [col(_row.created) <= self.until] if self.until is not None else []
        if self.every is not None:
            counted = col(_row.step) if self.unit == Unit.STEPS else col(_row.id)
            found.append(counted % self.every != 0)
        if is_under_way:  # what awaits its reward may yet be written anew
            found.append(or_(col(_row.scored).is_not(None), col(_row.status) == Status.ERROR))
        return found


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
    progress: Progress = unseen,
) -> Pruned:
    """Takes messages, actions and tokens of the rollouts that satisfy all that is given, and leaves each as a row with
    its figures: rewards, counts, times, the diagnosis's columns, the last words. Nothing but a copy brings them back.
    Images that no rollout refers to any more go, too. Words that the search has indexed before are still found.

    It goes in short transactions, beside trainings that record, and can be ended at any moment: asked again, it goes
    on. What runs, or awaits its reward, is left alone. The file keeps its size, and fills its room again: see `vacuum`.

    Args:
        db: where the database is; LOGS_UI_DB or this user's own by default.
        run: of these alone, each as `load_run` takes it; of all by default.
        older_than: began before so long, as "30d", or before a time, as "2026-01-31".
        keep_every: not those of each so many steps, counted from 0, which keeps whole groups.
        of: "rollouts": each so many rollouts by id instead.
        where: a line of the filter language, or a RolloutFilter. Of several runs, those that lack what it names are
            passed over.
        keep: "nothing": also what somebody starred, tagged or noted.
        dry_run: takes nothing, and says what would go.
        progress: called with what is being done, how much of it is, and of how much.

    Raises:
        LogsUIError: no rule is given, or one that cannot be.
        RunNotFoundError: no such run.
        DatabaseError: the database is missing, or cannot be read or written.
        FilterError: the filter is misspelt, or names what no run has.
    """
    names = [run] if isinstance(run, str) else list(run)
    if not names and older_than is None and keep_every is None and where is None:
        raise LogsUIError("Say what to prune: older_than, keep_every, where or run. All of them must hold.")
    rule = Rule(_moment(older_than), keep_every, of, chosen_rows(where), keep)
    address = database_address(db)
    with reading(address) as engine:
        runs = [_Chosen(engine, each, rule) for each in _named(engine, names, rule)]
        if any(term.field == "text" for term in rule.where.terms):
            for each in runs:
                catch_up(address, engine, each.run_id, partial(progress, "indexing texts"))
        found = _counted(runs, progress)
        if dry_run:
            return found
        with writing(address) as steady:
            done = 0
            for each in runs:
                while ids := each.following(steady.rows):
                    _take(steady, each.run_id, ids)
                    done += len(ids)
                    progress("pruning", min(done, found.rollouts), found.rollouts)
            prompts = sweep_starts(steady)
            images, size = sweep_images(engine, steady, progress)
    return replace(found, prompt_bytes=prompts, images=images, image_bytes=size)


class _Chosen:
    """What a rule takes of one run, read in the order of their ids.

    Attributes:
        spared: what people said something of, and that stays for it; all of it where they starred the run.
    """

    def __init__(self, db: Engine, run: Run, rule: Rule) -> None:
        self.run = run
        self.run_id = run.id or 0
        self._db = db
        self._last = 0
        with db.connect() as connection:
            self._taken = rule.takes(run, is_under_way=run.uid in under_way(connection))
            starred_run = select(col(Star.run)).where(col(Star.run) == run.uid, col(Star.row) == "")
            is_starred = connection.scalar(starred_run) is not None
        tables: tuple[Any, ...] = (Star, PersonalTag, Note)
        said = union_all(*(select(col(table.row)).where(col(table.run) == run.uid) for table in tables))
        self.spared = false() if rule.keep == Keep.NOTHING else true() if is_starred else col(_row.uid).in_(said)

    def count(self) -> tuple[int, int, int]:
        """How many go, their bytes, and how many stay for what people said."""
        size = func.coalesce(func.length(col(_payload.content)), 0) + func.coalesce(
            func.length(col(_payload.tokens)), 0
        )
        spared = case((self.spared, 1), else_=0)
        of_all = select(spared.label("spared"), size.label("size")).select_from(_row).join(_payload).where(*self._taken)
        rows = of_all.subquery()
        counted = select(rows.c.spared, func.count(), func.sum(rows.c.size)).group_by(rows.c.spared)
        with self._db.connect() as connection, planning(connection):
            by_kind = {kind: (count, size) for kind, count, size in connection.execute(counted)}
        return *by_kind.get(0, (0, 0)), by_kind.get(1, (0, 0))[0]

    def following(self, count: int) -> list[int]:
        """The next ids, so many at most."""
        row_id = col(_row.id)
        query = select(row_id).join(_payload).where(*self._taken, not_(self.spared), row_id > self._last)
        with self._db.connect() as connection, planning(connection):
            ids = [found or 0 for found in connection.scalars(query.order_by(row_id).limit(count))]
        self._last = ids[-1] if ids else self._last
        return ids


def _counted(runs: list[_Chosen], progress: Progress) -> Pruned:
    counts: dict[str, int] = {}
    size = kept = 0
    for number, each in enumerate(runs, 1):
        counts[each.run.uid], of_run, spared = each.count()
        size, kept = size + of_run, kept + spared
        progress("counting", number, len(runs))
    counts = {uid: count for uid, count in counts.items() if count}
    return Pruned(counts, size, kept)


def _take(steady: Steady, run_id: int, ids: Sequence[int]) -> None:
    with steady.piece() as connection:
        run_writes.take_runs(connection, [run_id])
        still = update(_row).where(col(_row.id).in_(ids), col(_row.pruned).is_(None))  # another may do the same
        count = connection.execute(still.values(pruned=now_us())).rowcount
        connection.execute(update(Run).where(col(Run.id) == run_id).values(pruned=col(Run.pruned) + count))
        connection.execute(delete(_payload).where(col(_payload.row_id).in_(ids)))


def _named(db: Engine, names: Iterable[str], rule: Rule) -> list[Run]:
    """Runs that are meant, and that have all that the filter names: one that was named must, of all some must.

    Raises:
        RunNotFoundError: no such run.
        FilterError: they have not.
    """
    chosen = [queries.find_run(db, name) for name in names]
    runs = chosen or [it.run for it in reversed(queries.all_runs(db))]
    found, lacking = [], None
    for run in {run.uid: run for run in runs}.values():
        try:
            queries.check_names(db, run.id or 0, rule.where)
        except FilterError as error:
            if chosen:
                raise
            lacking = error
        else:
            found.append(run)
    if lacking is not None and not found:
        raise lacking
    return found


def _moment(older_than: str | timedelta | None) -> int | None:
    """µs since the epoch.

    Raises:
        LogsUIError: it is no time, and no age.
    """
    if isinstance(older_than, timedelta):
        return now_us() - older_than // timedelta(microseconds=1)
    return None if older_than is None else read_time("older_than", older_than, None)
