"""Shows the actions of the newest rollouts, read one by one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import NamedTuple

import numpy as np
from sqlalchemy import Connection

from logs_ui.app.pages.why.tab import StepWindow, kept
from logs_ui.app.web import urls
from logs_ui.app.web.open_database import id_of
from logs_ui.recorder import queries
from logs_ui.recorder.analysis.diagnose import Diagnosed
from logs_ui.recorder.diagnosis.tables.action_sample import ActionKind, Played, Sample, Seen, sampled, words_of
from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries import Rollout
from logs_ui.recorder.queries.common import bounded
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter
from logs_ui.recorder.queries.filters.terms import Range, Term
from logs_ui.recorder.storage.tables import Run

SAMPLE = 200
"""Number of newest rollouts whose actions are read."""

_MOST_LINES = 10  # of a table
_LINKED = ("rollouts", "first_in", "last_in", "failed_in", "looped_in")
_MOST_NAMED = 60  # rollouts that a link names one by one


@dataclass(frozen=True)
class Linked:
    """Holds a number of sampled rollouts, and their address: None for none; of more than _MOST_NAMED, the last ones."""

    count: int
    address: str | None


class KindLine(NamedTuple):
    """Describes similar actions; see `action_sample.ActionKind`."""

    kind: ActionKind
    example: tuple[str, int] | None  # the most frequent of them, and its count; None if all are identical
    different: int
    share: float  # of all actions, from 0 to 1
    failed: float  # share that the environment answered with an error
    rollouts: Linked
    first_in: Linked
    last_in: Linked
    failed_in: Linked
    looped_in: Linked
    last_mean: float | None  # mean reward of the rollouts that ended with one; None without any
    address: str | None  # of all rollouts that mention it; None if its words cannot be searched for


class SeenLine(NamedTuple):
    """Describes an error, or a repeated observation; `after` are the most frequent kinds of action before it."""

    seen: Seen
    rollouts: Linked
    after: list[str]


class Sampled(NamedTuple):
    """Describes the newest rollouts: the most frequent actions, errors and repeats; `beyond` counts other actions."""

    sample: Sample
    failed: int  # number of actions with an error: see `action_sample.failure`
    failed_in: Linked
    kinds: list[KindLine]
    beyond: int
    errors: list[SeenLine]
    repeated: list[SeenLine]


def make_sampled(db: Connection, run: Run, known: Diagnosed, here: StepWindow) -> Sampled | None:
    """Return the sample, None if no rollout has an action."""
    uid = run.uid
    sample = kept(
        known,
        ("sample", here.first, here.last),
        lambda: sampled(list(_newest(db, id_of(run), here)) if len(here.rows) else []),
    )
    if not sample.actions:
        return None
    return Sampled(
        sample=sample,
        failed=sum(kind.failed for kind in sample.kinds),
        failed_in=_linked(uid, sorted({it for kind in sample.kinds for it in kind.failed_in})),
        kinds=[_kind(uid, here.only(), sample, kind) for kind in sample.kinds[:_MOST_LINES]],
        beyond=max(len(sample.kinds) - _MOST_LINES, 0),
        errors=[_seen(uid, seen) for seen in sample.errors[:_MOST_LINES]],
        repeated=[_seen(uid, seen) for seen in sample.repeated[:_MOST_LINES]],
    )


def _newest(db: Connection, run_id: int, here: StepWindow) -> Iterator[Played]:
    """Yield the rollouts of the window with the highest ids."""
    ids = np.sort(here.rows.id)[-SAMPLE:]
    only = here.only()
    newest = only.with_terms(Term("id", (Range(low=int(ids[0])),)))
    ended = set(ids.tolist())
    found: Iterator[Rollout] = chain.from_iterable(queries.rollouts(db, run_id, newest, chunk=SAMPLE))
    return (
        Played(it.row.id or 0, it.row.reward and bounded(it.row.reward), it.own_actions)
        for it in found
        if it.row.id in ended
    )


def _kind(uid: str, only: RolloutFilter, sample: Sample, kind: ActionKind) -> KindLine:
    return KindLine(
        kind=kind,
        example=kind.values.most_common(1)[0] if len(kind.values) > 1 else None,
        different=len(kind.values),
        share=kind.times / sample.actions,
        failed=kind.failed / kind.times,
        **{name: _linked(uid, getattr(kind, name)) for name in _LINKED},
        last_mean=fmean(kind.last_rewards) if kind.last_rewards else None,
        address=_mentioned(uid, only, kind.name),
    )


def _seen(uid: str, seen: Seen) -> SeenLine:
    return SeenLine(seen, _linked(uid, seen.rollouts), [name for name, _ in seen.after.most_common(2)])


def _linked(uid: str, ids: Sequence[int]) -> Linked:
    named = tuple(Range(it, it) for it in ids[-_MOST_NAMED:])
    return Linked(len(ids), urls.rollouts(uid, RolloutFilter(terms=[Term("id", named)])) if named else None)


def _mentioned(uid: str, only: RolloutFilter, name: str) -> str | None:
    words = words_of(name)
    try:
        return urls.rollouts(uid, only.with_terms(Term("text", (words or "",))))
    except FilterError:  # nothing that could be looked for
        return None
