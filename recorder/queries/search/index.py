"""Fills the full-text index of a database. Readers do that, in short reads and without the lock that trainings write
under. One process fills at a time; the others use the index as it is.

Only final rollouts are indexed, since the index cannot remove texts: those that have a reward, and those that will
never get one.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Row, Table, bindparam, delete, func, insert, select, update
from sqlmodel import col

from logs_ui.recorder.queries.payloads import with_contents
from logs_ui.recorder.queries.search.dialects import Texts, texts_of
from logs_ui.recorder.queries.search.full_text import search_state
from logs_ui.recorder.queries.search.rollout_texts import Parts, parts_of
from logs_ui.recorder.storage import clock
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.search_tables import FORMAT, INDEXED_RUN, SOURCE
from logs_ui.recorder.storage.tables import EvaluationRow, RolloutPayload, Run, SchemaVersion, StepStatistics
from logs_ui.recorder.vocabulary import RunState

Reading = Callable[[], AbstractContextManager[Connection]]
"""Opens a reading transaction of the database."""

_AT_ONCE = 200  # rollouts per read
_CHARACTERS = 4_000_000  # of texts in memory; a longer one ends its step
_PAYLOADS, _USUAL = 20, _CHARACTERS // _AT_ONCE  # payloads per SELECT, if texts have no more characters than this
_SILENT_US = 600_000_000  # after so long without a heartbeat a run will not change its rollouts any more
_END = 2**63 - 1  # above all ids: everything was read
_WAIT_SECONDS = 0.1


@dataclass(frozen=True)
class _Place:
    """Describes the progress of indexing a run: a row of `indexed_run`, whose columns search_tables.py explains."""

    run_id: int
    uid: str
    changed: int = -1
    row_id: int = _END
    texts: int = 0
    swept: int = 0


@dataclass(frozen=True)
class _Run:
    """A run as it is now."""

    id: int
    uid: str
    changed: int  # the highest of its rows
    ended: int  # µs since the epoch: rows without a reward that began before it will never get one


_Texts = list[tuple[int, Parts]]  # (id of the rollout, texts)
CONTENTS = with_contents(
    select(col(EvaluationRow.id), col(EvaluationRow.turns), col(EvaluationRow.error))
    .outerjoin(RolloutPayload, col(RolloutPayload.row_id) == col(EvaluationRow.id))
    .where(col(EvaluationRow.id).in_(bindparam("ids", expanding=True)))
)
"""Reads ids and the arguments of `parts_of`. It is built once: building it takes longer than running it."""


class SearchIndex:
    """Maintains the full-text index of one database."""

    def __init__(self, db: Address, reading: Reading) -> None:
        self._texts = texts_of(db)
        self._reading = reading

    def fill(
        self,
        *,
        run_id: int | None = None,
        stopped: Callable[[], bool] = lambda: False,
        grown: Callable[[int], None] = lambda _: None,
    ) -> bool:
        """Index all final rollouts that are missing, of one run or of all, the newest first. Return False if another
        process or thread is filling the index.

        After each step, which takes a fraction of a second, `grown` is called with the number of rollouts that it
        added; then it stops if `stopped` returns True. Raise DatabaseError if the database cannot be read, or the
        index cannot be written.
        """
        with self._texts.opened() as engine:
            if engine is None:
                return False
            while not stopped():
                with engine.begin() as index:
                    if not self._texts.is_alone(index):
                        return False
                    added = self._step(index, run_id)
                if added is None:
                    break
                grown(added)
        return True

    def settle(self) -> None:
        """Remove the files that SQLite keeps beside an open index. Raise DatabaseError if it cannot be written."""
        self._texts.settle()

    def _step(self, index: Connection, run_id: int | None) -> int | None:
        """Do one step. Return the number of rollouts added; None if there was nothing to read."""
        with self._reading() as db:
            places = _places(index, self._texts, db)
            runs = [run for run in _runs(db) if run_id in {None, run.id}]
            steps = (_next(index, self._texts, db, run, places.get(run.id)) for run in runs)
            result = next((step for step in steps if step), None)
        if result is None:
            return None
        place, texts = result
        if texts:
            self._texts.add(index, texts)
        _put(index, INDEXED_RUN, vars(place) | {"texts": place.texts + len(texts)})
        index.execute(update(SOURCE).values(version=SOURCE.c.version + 1))
        return len(texts)


def catch_up(db: Address, engine: Engine, run_id: int, progress: Callable[[int, int], None]) -> None:
    """Wait until any process has indexed all final rollouts of a run. New connections of the engine then see them.

    `progress` is called now and then with the numbers of indexed rollouts and of all rollouts. Raise DatabaseError if
    the database cannot be read, or the index cannot be written.
    """
    index = SearchIndex(db, engine.begin)
    rollouts = select(func.sum(col(StepStatistics.rollouts))).where(col(StepStatistics.run_id) == run_id)
    total = done = 0

    def show(added: int) -> None:
        nonlocal done
        done += added
        progress(done, max(total, done))

    while True:
        with engine.connect() as connection:
            total = int(connection.scalar(rollouts) or 0)
            done = search_state(connection, run_id).indexed
        filled = index.fill(run_id=run_id, grown=show)
        engine.dispose()  # only new connections attach the file
        with engine.connect() as connection:
            if filled or not search_state(connection, run_id).behind:
                return
        show(0)
        time.sleep(_WAIT_SECONDS)


def _runs(db: Connection) -> list[_Run]:
    """Return all runs, newest first."""
    silent = clock.now(db) - _SILENT_US
    columns = (Run.id, Run.uid, Run.changed, Run.state, Run.finished, Run.heartbeat)
    query: Any = select(*(col(column) for column in columns)).order_by(col(Run.created).desc())
    return [
        # Rollouts that began after the run's end, as an evaluation's, may still get a reward.
        _Run(id_, uid, changed, _END if heard < silent else finished or 0 if state != RunState.RUNNING else 0)
        for id_, uid, changed, state, finished, heard in db.execute(query)
    ]


def _places(index: Connection, texts: Texts, db: Connection) -> dict[int, _Place]:
    """Return the places of all runs, by run. The index is emptied if it was made for another database, or if a run was
    deleted since: its ids may now belong to other rollouts.
    """
    created = db.execute(select(col(SchemaVersion.created))).scalar() or 0
    source = index.execute(select(SOURCE.c.format, SOURCE.c.created)).first()
    columns = [INDEXED_RUN.c[field.name] for field in fields(_Place)]
    places = {row.run_id: _Place(*row) for row in index.execute(select(*columns))}
    runs = db.execute(select(col(Run.id), col(Run.uid), col(Run.changed)))
    changes = {(run_id, uid): changed for run_id, uid, changed in runs}
    is_ours = source is not None and tuple(source) == (FORMAT, created)
    if is_ours and all(changes.get((place.run_id, place.uid), -2) >= place.changed for place in places.values()):
        return places
    texts.clear(index)
    index.execute(delete(INDEXED_RUN))
    version = index.scalar(select(SOURCE.c.version)) or 0
    _put(index, SOURCE, {"id": 1, "format": FORMAT, "created": created, "version": version + 1})
    return {}


def _next(
    index: Connection, store: Texts, db: Connection, run: _Run, place: _Place | None
) -> tuple[_Place, _Texts] | None:
    """Return the texts of the run's next rollouts, and the place after them; None if there are none."""
    place = place or _Place(run.id, run.uid)
    row, of_run = EvaluationRow, col(EvaluationRow.run_id) == run.id
    if place.changed < run.changed or place.row_id != _END:
        # Rows are read in the order of (changed, id): first those that changed at the same time as the last one
        # that was read, then those that changed later.
        ties = [col(row.changed) == place.changed, col(row.id) > place.row_id]
        rows = _rows(db, [of_run, *ties], _AT_ONCE) if place.row_id != _END else []
        rows += _rows(db, [of_run, col(row.changed) > place.changed], _AT_ONCE - len(rows))
        texts, last = _texts(index, store, db, [entry for entry in rows if entry.scored is not None])
        # The place goes on behind the row at which the budget of characters ran out, or behind the last row of a
        # full read; otherwise everything was read.
        end = next((entry for entry in rows if entry.id == last), rows[-1] if len(rows) == _AT_ONCE else None)
        changed, row_id = (end.changed, end.id) if end is not None else (run.changed, _END)
        return replace(place, changed=changed, row_id=row_id, swept=0), texts
    if run.ended and place.swept != _END:
        # A row without `scored` has no reward: the condition on the reward lets the index of rewards find it.
        without = [col(row.reward).is_(None), col(row.scored).is_(None), col(row.created) <= run.ended]
        rows = _rows(db, [of_run, *without, col(row.id) > place.swept], _AT_ONCE, by_id=True)
        texts, last = _texts(index, store, db, rows)
        return replace(place, swept=last or (rows[-1].id if len(rows) == _AT_ONCE else _END)), texts
    return None


def _rows(
    db: Connection, selected: list[ColumnElement[bool]], limit: int, *, by_id: bool = False
) -> list[Row[tuple[int, int, int | None]]]:
    columns = (col(EvaluationRow.id), col(EvaluationRow.changed), col(EvaluationRow.scored))
    order = columns[:1] if by_id else (columns[1], columns[0])
    return list(db.execute(select(*columns).where(*selected).order_by(*order).limit(max(limit, 0))))


def _texts(
    index: Connection, store: Texts, db: Connection, rows: list[Row[tuple[int, int, int | None]]]
) -> tuple[_Texts, int | None]:
    """Return texts of rows that are not indexed yet, and the last one's id if the budget of characters ran out."""
    indexed = store.indexed_ids(index, [row.id for row in rows])
    row_ids = [row.id for row in rows if row.id not in indexed]
    texts: _Texts = []
    size = 0
    while row_ids[len(texts) :]:
        # As long as texts are longer than usual, payloads are read one by one, so that they do not fill the memory.
        is_usual = texts and size <= len(texts) * _USUAL
        part = row_ids[len(texts) :][: _PAYLOADS if is_usual else 1]
        payloads = {row_id: packed for row_id, *packed in db.execute(CONTENTS, {"ids": part})}
        for row_id in part:
            texts.append((row_id, parts_of(*payloads[row_id])))
            size += sum(map(len, texts[-1][1]))
            if size > _CHARACTERS:
                return texts, row_id
    return texts, None


def _put(index: Connection, table: Table, values: dict[str, Any]) -> None:
    """Update or insert a row, whose first value is its key; no other process writes to the table meanwhile."""
    key = next(iter(values))
    if not index.execute(update(table).where(table.c[key] == values[key]).values(**values)).rowcount:
        index.execute(insert(table).values(**values))
