"""Reads a run's rollouts as columns for the diagnosis, and updates them while a training writes more."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, cast, func, or_, select
from sqlalchemy.orm import Session
from sqlalchemy.types import String
from sqlmodel import col
from tokenizers import Tokenizer

from logs_ui.recorder.audit.token_faults import decode
from logs_ui.recorder.diagnosis.answers import dataset_columns
from logs_ui.recorder.diagnosis.card import Texts
from logs_ui.recorder.diagnosis.rollout_rows import Floats, Rows
from logs_ui.recorder.labels import attribute_text
from logs_ui.recorder.queries.common import LARGE, Database, bounded
from logs_ui.recorder.queries.rollout_list import read_rollouts
from logs_ui.recorder.queries.run_sources import tokenizer_json
from logs_ui.recorder.rows.text_facts import FACTS, TEXTS
from logs_ui.recorder.storage.tables import EvaluationRow, Run, StepStatistics
from logs_ui.recorder.vocabulary import Mode, Status

_WHOLE = ("id", "step", "policy_step")
_CODED = ("group", "task", "eval_name", "reward_weights")
_WORDS = ("status", "stop_reason", "error", "dropped")
_ENVIRONMENT = ("env_reward_sum", "env_reward_last")
_NUMBERS = ("reward", "advantage", "turns", "completion_tokens", "env_tokens", "seconds", "staleness", *_ENVIRONMENT)
_FACTS = (*FACTS, "unsampled_tokens", "prompt_tokens")
_TEXTS = (*TEXTS, "sent_prompt")
_END = 8  # tokens of a prompt
_JSON = ("rewards", "reward_weights", "odd_rewards")
_NAMES = (*_WHOLE, *_CODED, *_WORDS, *_NUMBERS, *_FACTS, *_TEXTS, "scored", "rewards", "odd_rewards")
_KINDS: dict[str, Any] = {
    **dict.fromkeys((*_WHOLE, *_CODED), np.int64),
    **dict.fromkeys((*_WORDS, *_TEXTS), object),
    **dict.fromkeys((*_NUMBERS, *_FACTS), np.float64),
    **dict.fromkeys(("scored", "odd_rewards"), bool),
}

SAMPLED = 30_000
"""Rollouts that are read of a large run, about: a thousand take 0.4 MB, and 15 ms per diagnosis."""

_EVALUATED = 60  # of evaluations, that are read
_ROWS_AT_ONCE, _STEPS_AT_ONCE = 10_000, 500
_Row = EvaluationRow

Columns = dict[str, NDArray[Any]]


class Sample(NamedTuple):
    """The steps of a large run that are read: all from `recent` on, and before that one in `every`."""

    recent: int
    every: int
    rollouts: int  # number of rollouts of all steps

    def has(self, steps: NDArray[Any]) -> NDArray[np.bool_]:
        """Return True for each step that is read."""
        chosen: NDArray[np.bool_] = (steps >= self.recent) | (steps % self.every == 0)
        return chosen

    def condition(self) -> ColumnElement[bool]:
        """Return the same as an SQL condition."""
        step = col(EvaluationRow.step)
        return or_(step >= self.recent, step % self.every == 0)

    def __str__(self) -> str:
        return f"all steps from {self.recent:,} on, and one in {self.every:,} before"


class RunColumns:
    """Holds the ended rollouts of one run and mode, ordered by step and id. For use by one thread at a time.

    Of more than LARGE rollouts, only some steps are read, at least half of SAMPLED rollouts from the newest ones.
    Reading is incremental: `refresh` queries only rows that have changed since.
    """

    def __init__(self, run_id: int, mode: Mode, *, whole: bool = False) -> None:
        """Prepare reading a run; `whole`: read all of its rollouts, however many there are."""
        self.mode = mode
        self.sample: Sample | None = None  # the steps that are read; None for all
        self._whole = whole
        self._run_id, self._changed = run_id, -1
        self._codes: dict[str, dict[Any, int]] = {name: {} for name in _CODED}
        self._columns: Columns = {name: np.empty(0, kind) for name, kind in _KINDS.items()}
        self._values: dict[str, Floats] = {}
        self._rows: Rows | None = None

    @property
    def nbytes(self) -> int:
        """Return the memory in bytes, without texts."""
        return sum(array.nbytes for array in (*self._columns.values(), *self._values.values()))

    def refresh(self, db: Database) -> Rows:
        """Read what has changed, and return the columns."""
        if self._rows is None or len(self._columns["id"]) > LARGE:
            self.sample = None if self._whole else _sample(db, self._run_id, self.mode)
            if self.sample is not None:
                self._take(self.sample.has(self._columns["step"]))
        before, is_new = self._changed, self._rows is None
        with Session(db) as session:
            last = session.scalar(select(func.max(col(_Row.changed))).where(col(_Row.run_id) == self._run_id))
            self._changed = before if last is None else last
            if self._changed != before:
                for part in _read_parts(session, self._run_id, self.mode, before, self.sample):
                    self.add(part)
                    is_new = True
        if is_new or self._rows is None:
            self._rows = self.build_rows()
        return self._rows

    def _take(self, rows: NDArray[Any]) -> None:
        """Keep only these rows, in this order; `rows` is a mask or an index."""
        self._columns = {name: values[rows] for name, values in self._columns.items()}
        self._values = {name: values[rows] for name, values in self._values.items()}

    def add(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add values of _NAMES; they replace those of the same rollouts."""
        values = dict(zip(_NAMES, zip(*rows, strict=True) if rows else [()] * len(_NAMES), strict=True))
        new = {name: self._column(name, values[name]) for name in self._columns}
        by_function = _by_function(values["rewards"])
        unchanged = ~np.isin(self._columns["id"], new["id"])
        number = int(unchanged.sum())
        for name in self._values.keys() | by_function.keys():
            before = self._values[name][unchanged] if name in self._values else np.full(number, np.nan)
            self._values[name] = np.concatenate([before, by_function.get(name, np.full(len(rows), np.nan))])
        self._columns = {name: np.concatenate([self._columns[name][unchanged], new[name]]) for name in new}
        order = np.lexsort((self._columns["id"], self._columns["step"]))
        if (np.diff(order) != 1).any():
            self._take(order)

    def _column(self, name: str, values: Sequence[Any]) -> NDArray[Any]:
        if name in _CODED:
            codes = self._codes[name]
            values = [-1 if value is None else codes.setdefault(value, len(codes)) for value in values]
        elif name == "scored":
            values = [value is not None for value in values]
        elif name == "odd_rewards":
            values = [value not in {None, "null"} for value in values]
        elif _KINDS[name] is object:  # most texts repeat: each distinct one is stored once
            stored: dict[Any, Any] = {}
            values = [stored.setdefault(value, value) for value in values]
        column: NDArray[Any] = np.array(values, _KINDS[name])
        return _bounded(column) if name in _NUMBERS else column

    def build_rows(self) -> Rows:
        """Return what was added so far."""
        columns: Mapping[str, Any] = self._columns
        values = dict(sorted(self._values.items()))
        weighed: list[dict[str, float]] = [orjson.loads(text) or {} for text in self._codes["reward_weights"]]
        # Weights may differ by row. The last place is for rows without weights, whose code is -1.
        factors = {name: np.array([*(of.get(name, 1.0) for of in weighed), 1.0]) for name in values}
        latest = {name: weight for of in weighed for name, weight in of.items()}
        return Rows(
            **{name: columns[name] for name in (*_WHOLE, *_WORDS, *_NUMBERS, "task", "scored")},
            group=np.unique(columns["group"], return_inverse=True)[1],
            eval=columns["eval_name"],
            odd=columns["odd_rewards"],
            parts={
                name: _bounded(numbers * factors[name][columns["reward_weights"]]) for name, numbers in values.items()
            },
            values=values,
            weights={name: latest.get(name, 1.0) for name in values},
            facts={name: columns[name] for name in (*_FACTS, *_TEXTS)},
            tasks=list(self._codes["task"]),
            evals=list(self._codes["eval_name"]),
            is_evaluation=self.mode != Mode.TRAIN,
        )


def columns_of(rows: Sequence[EvaluationRow]) -> Rows:
    """Return some stored rollouts of one run as columns, ordered by step and id."""
    columns = RunColumns(0, Mode.TRAIN)
    columns.add([[_json_text(getattr(row, n)) if n in _JSON else getattr(row, n) for n in _NAMES] for row in rows])
    return columns.build_rows()


def labels_of(db: Database, run_id: int, rows: Rows) -> dict[str, list[str | None]]:
    """Return (N,) the rank and the attributes of some rollouts, as `Run.labels` has them."""
    row, place = EvaluationRow, {row_id: number for number, row_id in enumerate(rows.id.tolist())}
    query = select(col(row.id), col(row.process), cast(col(row.attributes), String)).where(
        col(row.run_id) == run_id, col(row.step) >= int(rows.steps[0]), col(row.step) <= int(rows.steps[-1])
    )
    kinds: dict[tuple[int, str | None], int] = {}  # most rollouts of a group have the same
    kind = [0] * len(place)
    with Session(db) as session:
        for row_id, rank, written in session.execute(query):
            if row_id in place:
                kind[place[row_id]] = kinds.setdefault((rank, written), len(kinds))
    labels: dict[str, list[str | None]] = {"rank": [str(rank) for rank, _ in kinds]}
    for number, (_, text) in enumerate(kinds):
        for name, value in (orjson.loads(text or "null") or {}).items():
            if (field := f"metadata.{name}") not in labels:
                labels[field] = [None] * len(kinds)
            labels[field][number] = attribute_text(value)
    return {name: [values[number_of_kind] for number_of_kind in kind] for name, values in labels.items()}


def texts_of(db: Database, run_id: int, ids: Sequence[int]) -> dict[int, Texts]:
    """Return the texts of rollouts, as `Run.read_texts` has them."""
    with Session(db) as session:
        rollouts = read_rollouts(session, run_id, col(EvaluationRow.id).in_(ids))
    return {
        rollout.row.id or 0: Texts(
            rollout.messages,
            rollout.own_actions,
            rollout.sampling,
            rollout.row.metrics or {},
            [message for message in rollout.metadata.get("dataset_prompt") or () if isinstance(message, dict)],
            dataset_columns(rollout.metadata),
        )
        for rollout in rollouts
        if rollout.messages or rollout.actions
    }


def evaluated_texts_of(db: Database, run_id: int, eval_name: str) -> dict[int, Texts]:
    """Return the texts of some rollouts of the evaluations, as `Run.read_evaluated` has them."""
    row = EvaluationRow
    of = [col(row.run_id) == run_id, col(row.mode) == Mode.EVAL, col(row.eval_name) == eval_name]
    query = select(col(row.id)).where(*of, col(row.status) != Status.RUNNING).order_by(col(row.id))
    with Session(db) as session:
        ids = [row_id for row_id in session.scalars(query) if row_id is not None]
    return texts_of(db, run_id, ids[:: -(-len(ids) // _EVALUATED) or 1])


def prompt_ends_of(db: Database, run: Run, ids: Sequence[int]) -> dict[int, str]:
    """Return what the last tokens of prompts decode to, as `Run.read_prompt_ends` has them."""
    source = tokenizer_json(db, run.tokenizer) if run.tokenizer else None
    if source is None:
        return {}
    tokenizer = Tokenizer.from_buffer(source)
    with Session(db) as session:
        rollouts = read_rollouts(session, run.id or 0, col(EvaluationRow.id).in_(ids))
    return {
        rollout.row.id or 0: decode(tokenizer, rollout.tokens.prompt_ids[-_END:])
        for rollout in rollouts
        if rollout.tokens is not None
    }


def _json_text(value: Any) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


def _by_function(rewards: Sequence[str | None]) -> dict[str, Floats]:
    """Return (N,) values of each reward function, by name."""
    values: dict[str, Floats] = {}
    for place, text in enumerate(rewards):
        for name, value in (orjson.loads(text) or {} if text else {}).items():
            if name not in values:
                values[name] = np.full(len(rewards), np.nan)
            if value is not None:
                values[name][place] = bounded(value)
    return values


def _bounded(values: Floats) -> Floats:
    """Return the values within the limits of `bounded`, so that their squares can be added up."""
    return np.clip(values, bounded(-math.inf), bounded(math.inf))


def _sample(db: Database, run_id: int, mode: Mode) -> Sample | None:
    """Choose the steps of a large run; None for other runs."""
    sums = StepStatistics
    step, rollouts = col(sums.step), func.sum(col(sums.rollouts))
    query = select(step, rollouts).where(col(sums.run_id) == run_id, col(sums.mode) == mode).group_by(step)
    with Session(db) as session:
        steps = session.execute(query.order_by(step.desc())).all()
    all_of_it = sum(number for _, number in steps)
    # Half of the sample is for the newest steps, and the older steps share the other half. `every` is a power of
    # two, so that a later sample contains only steps of the earlier one: `refresh` then only drops rows.
    left = all_of_it - SAMPLED // 2
    if left <= LARGE - SAMPLED // 2:
        return None
    newest = accumulate(number for _, number in steps)
    recent = next(step for (step, _), so_far in zip(steps, newest, strict=True) if so_far >= SAMPLED // 2)
    return Sample(recent, 2 ** math.ceil(math.log2(left / (SAMPLED // 2))), all_of_it)


def _read_parts(
    session: Session, run_id: int, mode: Mode, after: int, sample: Sample | None
) -> Iterator[Sequence[Any]]:
    """Yield the values of _NAMES of rows that have changed since, part by part."""
    row = EvaluationRow
    # JSON is read as text: most values repeat, and each distinct text is parsed once.
    wanted = [cast(getattr(row, n), String) if n in _JSON else col(getattr(row, n)) for n in _NAMES]
    chosen = [col(row.run_id) == run_id, col(row.mode) == mode, col(row.status) != Status.RUNNING]
    parts: list[list[Any]] = [[]]
    if after >= 0:
        parts = [[col(row.changed) > after, *([] if sample is None else [sample.condition()])]]
    elif sample is None:
        # Keeps SQLite from using an index: reading the table in its own order is faster if nearly all of it is read.
        parts = [[col(row.id) + 0 > 0]]
    else:
        older = range(0, sample.recent, sample.every)
        some = [older[place : place + _STEPS_AT_ONCE] for place in range(0, len(older), _STEPS_AT_ONCE)]
        parts = [[col(row.step) >= sample.recent], *([col(row.step).in_(steps)] for steps in some)]
    for part in parts:
        cursor = session.connection().execute(select(*wanted).where(*chosen, *part)).cursor
        while rows := cursor.fetchmany(_ROWS_AT_ONCE):
            yield rows
