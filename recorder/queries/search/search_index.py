"""Fills the full-text index of a database: done by whoever reads, in short reads, without ever taking the lock that a
training writes under. One fills at a time; the others read what there is.

Only rollouts that are final are indexed, as the index cannot take out again what it holds: those that have their
reward, and those without one of which nothing more will be heard.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Row, Table, bindparam, delete, func, insert, select, update
from sqlmodel import col

from logs_ui.recorder.queries.payloads import with_contents
from logs_ui.recorder.queries.search.full_text import search_state
from logs_ui.recorder.queries.search.search_text import text_of
from logs_ui.recorder.queries.search.search_texts import Texts, texts_of
from logs_ui.recorder.storage import clock
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.search_tables import FORMAT, INDEXED_RUN, SOURCE
from logs_ui.recorder.storage.tables import EvaluationRow, RolloutPayload, Run, SchemaVersion, StepStatistics
from logs_ui.recorder.vocabulary import RunState

Reading = Callable[[], AbstractContextManager[Connection]]
"""Opens one moment of the database."""

_AT_ONCE = 200  # rollouts that are looked at in one read
_CHARACTERS = 4_000_000  # of texts that are held together; a rollout that has more comes last of its step
_PAYLOADS, _USUAL = 20, _CHARACTERS // _AT_ONCE  # that are read together, where they are no longer than that
_SILENT_US = 600_000_000  # a run that was not heard of for so long will not change its rollouts any more
_END = 2**63 - 1  # in place of an id: there is none beyond it
_WAIT_SECONDS = 0.1


@dataclass(frozen=True)
class _Place:
    """How far a run is indexed: a row of `indexed_run`."""

    run_id: int
    uid: str
    changed: int = -1
    row_id: int = _END
    texts: int = 0
    swept: int = 0


@dataclass(frozen=True)
class _Run:
    """A run as it is now: the highest `changed` of its rows; and up to when those began that have no reward and will
    get none, in µs since the epoch.
    """

    id: int
    uid: str
    changed: int
    ended: int


_Said = list[tuple[int, str]]
_CONTENTS = with_contents(
    select(col(EvaluationRow.id), col(EvaluationRow.error))
    .outerjoin(RolloutPayload, col(RolloutPayload.row_id) == col(EvaluationRow.id))
    .where(col(EvaluationRow.id).in_(bindparam("ids", expanding=True)))
)  # made once: for each rollout anew it would take longer than what it finds


class SearchIndex:
    """The index of one database."""

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
        """Goes on where it, or another process, ended, until all is indexed that is final, or `stopped` says so.

        Args:
            run_id: of the only run that is wanted; all by default, the newest first.
            stopped: asked after each step, of a fraction of a second.
            grown: called after each step with the rollouts that it added.

        Returns:
            False where another process or thread fills it, and nothing was done.

        Raises:
            DatabaseError: the database cannot be read, or the index not be written.
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
        """For whoever lets go of it: nothing is left beside its file that SQLite keeps there while it is open.

        Raises:
            DatabaseError: it cannot be written.
        """
        self._texts.settle()

    def _step(self, index: Connection, run_id: int | None) -> int | None:
        """How many rollouts were added; None where there was nothing to look at."""
        with self._reading() as db:
            places = _places(index, self._texts, db)
            wanted = [run for run in _runs(db) if run_id in {None, run.id}]
            steps = (_next(index, self._texts, db, run, places.get(run.id)) for run in wanted)
            found = next((step for step in steps if step), None)
        if found is None:
            return None
        place, said = found
        if said:
            self._texts.add(index, said)
        _store(index, replace(place, texts=place.texts + len(said)))
        return len(said)


def catch_up(db: Address, engine: Engine, run_id: int, progress: Callable[[int, int], None]) -> None:
    """Returns when all of a run is indexed that is final, whoever did it. The engine's connections see it then.

    Args:
        db: the database.
        engine: that reads it.
        run_id: in it.
        progress: called now and then with the run's rollouts that are indexed, and that there are.

    Raises:
        DatabaseError: the database cannot be read, or the index not be written.
    """
    index = SearchIndex(db, engine.begin)
    rollouts = select(func.coalesce(func.sum(col(StepStatistics.rollouts)), 0)).where(
        col(StepStatistics.run_id) == run_id
    )
    while True:
        with engine.connect() as connection:
            total = int(connection.scalar(rollouts) or 0)
            done = search_state(connection, run_id).indexed
        count = [done]

        def show(added: int, count: list[int] = count, total: int = total) -> None:
            count[0] += added
            progress(count[0], max(total, count[0]))

        filled = index.fill(run_id=run_id, grown=show)
        engine.dispose()  # connections that are made from now on find the file
        with engine.connect() as connection:
            if filled or not search_state(connection, run_id).behind:
                return
        show(0)
        time.sleep(_WAIT_SECONDS)


def _runs(db: Connection) -> list[_Run]:
    """Newest first."""
    silent = clock.now(db) - _SILENT_US
    columns = (Run.id, Run.uid, Run.changed, Run.state, Run.finished, Run.heartbeat)
    query: Any = select(*(col(column) for column in columns)).order_by(col(Run.created).desc())
    return [
        # Rollouts that follow a run's end, as an evaluation's, are not over with it.
        _Run(id_, uid, changed, _END if heard < silent else finished or 0 if state != RunState.RUNNING else 0)
        for id_, uid, changed, state, finished, heard in db.execute(query)
    ]


def _places(index: Connection, texts: Texts, db: Connection) -> dict[int, _Place]:
    """By run. An index of another database, or of one in which runs are no longer what they were, is emptied: an id may
    have come to name another rollout.
    """
    created = db.execute(select(col(SchemaVersion.created))).scalar() or 0
    source = index.execute(select(SOURCE.c.format, SOURCE.c.created)).first()
    columns = [INDEXED_RUN.c[name] for name in ("run_id", "uid", "changed", "row_id", "texts", "swept")]
    places = {row.run_id: _Place(*row) for row in index.execute(select(*columns))}
    there = {run.id: run for run in db.execute(select(col(Run.id), col(Run.uid), col(Run.changed)))}
    stands = source is not None and tuple(source) == (FORMAT, created)
    if stands and all(
        (run := there.get(place.run_id)) is not None and run.uid == place.uid and run.changed >= place.changed
        for place in places.values()
    ):
        return places
    texts.clear(index)
    index.execute(delete(INDEXED_RUN))
    version = index.scalar(select(SOURCE.c.version)) or 0
    _put(index, SOURCE, {"id": 1}, {"format": FORMAT, "created": created, "version": version + 1})
    return {}


def _next(
    index: Connection, known: Texts, db: Connection, run: _Run, place: _Place | None
) -> tuple[_Place, _Said] | None:
    """The run's next rollouts to look at, and the place behind them; None where there are none."""
    place = place or _Place(run.id, run.uid)
    row, of_run = EvaluationRow, col(EvaluationRow.run_id) == run.id
    if place.changed < run.changed or place.row_id != _END:
        ties = [col(row.changed) == place.changed, col(row.id) > place.row_id]
        found = _looked_at(db, [of_run, *ties], _AT_ONCE) if place.row_id != _END else []
        found += _looked_at(db, [of_run, col(row.changed) > place.changed], _AT_ONCE - len(found))
        texts, last = _texts(index, known, db, [it for it in found if it.scored is not None])
        end = next((it for it in found if it.id == last), found[-1] if len(found) == _AT_ONCE else None)
        changed, row_id = (end.changed, end.id) if end is not None else (run.changed, _END)
        return replace(place, changed=changed, row_id=row_id, swept=0), texts
    if run.ended and place.swept != _END:
        # What has no `scored` has no reward: the index of rewards leads to it.
        without = [col(row.reward).is_(None), col(row.scored).is_(None), col(row.created) <= run.ended]
        found = _looked_at(db, [of_run, *without, col(row.id) > place.swept], _AT_ONCE, by_id=True)
        texts, last = _texts(index, known, db, found)
        return replace(place, swept=last or (found[-1].id if len(found) == _AT_ONCE else _END)), texts
    return None


def _looked_at(
    db: Connection, selected: list[ColumnElement[bool]], limit: int, *, by_id: bool = False
) -> list[Row[tuple[int, int, int | None]]]:
    columns = (col(EvaluationRow.id), col(EvaluationRow.changed), col(EvaluationRow.scored))
    order = columns[:1] if by_id else (columns[1], columns[0])
    return list(db.execute(select(*columns).where(*selected).order_by(*order).limit(max(limit, 0))))


def _texts(
    index: Connection, known: Texts, db: Connection, rows: list[Row[tuple[int, int, int | None]]]
) -> tuple[_Said, int | None]:
    """Of those that are not indexed yet; and the id of the last one where so much text came together that the others
    have to wait.
    """
    has = known.known(index, [it.id for it in rows])
    wanted = [it.id for it in rows if it.id not in has]
    texts: _Said = []
    size = 0
    while wanted[len(texts) :]:
        is_usual = texts and size <= len(texts) * _USUAL
        some = wanted[len(texts) :][: _PAYLOADS if is_usual else 1]
        payloads = {row_id: packed for row_id, *packed in db.execute(_CONTENTS, {"ids": some})}
        for row_id in some:
            texts.append((row_id, text_of(*payloads[row_id])))
            size += len(texts[-1][1])
            if size > _CHARACTERS:
                return texts, row_id
    return texts, None


def _store(index: Connection, place: _Place) -> None:
    values = dict(vars(place))
    _put(index, INDEXED_RUN, {"run_id": values.pop("run_id")}, values)
    index.execute(update(SOURCE).values(version=SOURCE.c.version + 1))


def _put(index: Connection, table: Table, key: dict[str, int], values: dict[str, int | str]) -> None:
    """Nobody else writes there meanwhile."""
    there = update(table).where(*(table.c[name] == value for name, value in key.items())).values(**values)
    if not index.execute(there).rowcount:
        index.execute(insert(table).values(**key, **values))
