"""Shows the actions of the newest rollouts, read one by one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import NamedTuple

import numpy as np
from sqlalchemy import Connection

from logs_ui.app.pages.why.tab import StepWindow, cache_figure
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
class LinkedRollouts:
    """Holds a number of sampled rollouts, and their address: None for none; of more than _MOST_NAMED, the last ones."""

    count: int
    address: str | None


class KindLine(NamedTuple):
    """Describes similar actions; see `action_sample.ActionKind`."""

    kind: ActionKind
    example: tuple[str, int] | None  # the most frequent of them, and its count; None if all are identical
    distinct_actions: int
    share: float  # of all actions, from 0 to 1
    failed_share: float  # share that the environment answered with an error
    rollouts: LinkedRollouts
    first_in: LinkedRollouts
    last_in: LinkedRollouts
    failed_in: LinkedRollouts
    looped_in: LinkedRollouts
    last_mean: float | None  # mean reward of the rollouts that ended with one; None without any
    address: str | None  # of all rollouts that mention it; None if its words cannot be searched for


class ObservationLine(NamedTuple):
    """Describes an error, or a repeated observation; `kinds_before` are the most frequent kinds of action before it."""

    observation: Seen
    rollouts: LinkedRollouts
    kinds_before: list[str]


class SampledActions(NamedTuple):
    """Describes the newest rollouts: the most frequent actions, errors and repeats; `more_kinds` counts other ones."""

    sample: Sample
    failed_actions: int  # number of actions with an error: see `action_sample.failure`
    failed_in: LinkedRollouts
    kinds: list[KindLine]
    more_kinds: int
    errors: list[ObservationLine]
    repeats: list[ObservationLine]


def make_sampled_actions(db: Connection, run: Run, diagnosis: Diagnosed, window: StepWindow) -> SampledActions | None:
    """Return the sample, None if no rollout has an action."""
    uid = run.uid
    sample = cache_figure(
        diagnosis,
        ("sample", window.first, window.last),
        lambda: sampled(list(_read_newest(db, id_of(run), window)) if len(window.rows) else []),
    )
    if not sample.actions:
        return None
    return SampledActions(
        sample=sample,
        failed_actions=sum(kind.failed for kind in sample.kinds),
        failed_in=_link_rollouts(uid, sorted({rollout_id for kind in sample.kinds for rollout_id in kind.failed_in})),
        kinds=[_describe_kind(uid, window.make_filter(), sample, kind) for kind in sample.kinds[:_MOST_LINES]],
        more_kinds=max(len(sample.kinds) - _MOST_LINES, 0),
        errors=[_describe_observation(uid, observation) for observation in sample.errors[:_MOST_LINES]],
        repeats=[_describe_observation(uid, observation) for observation in sample.repeated[:_MOST_LINES]],
    )


def _read_newest(db: Connection, run_id: int, window: StepWindow) -> Iterator[Played]:
    """Yield the rollouts of the window with the highest ids."""
    ids = np.sort(window.rows.id)[-SAMPLE:]
    window_filter = window.make_filter()
    newest_filter = window_filter.with_terms(Term("id", (Range(low=int(ids[0])),)))
    ended_ids = set(ids.tolist())
    rollouts: Iterator[Rollout] = chain.from_iterable(queries.rollouts(db, run_id, newest_filter, chunk=SAMPLE))
    return (
        Played(rollout.row.id or 0, rollout.row.reward and bounded(rollout.row.reward), rollout.own_actions)
        for rollout in rollouts
        if rollout.row.id in ended_ids
    )


def _describe_kind(uid: str, window_filter: RolloutFilter, sample: Sample, kind: ActionKind) -> KindLine:
    return KindLine(
        kind=kind,
        example=kind.values.most_common(1)[0] if len(kind.values) > 1 else None,
        distinct_actions=len(kind.values),
        share=kind.times / sample.actions,
        failed_share=kind.failed / kind.times,
        **{name: _link_rollouts(uid, getattr(kind, name)) for name in _LINKED},
        last_mean=fmean(kind.last_rewards) if kind.last_rewards else None,
        address=_link_mentions(uid, window_filter, kind.name),
    )


def _describe_observation(uid: str, observation: Seen) -> ObservationLine:
    return ObservationLine(
        observation, _link_rollouts(uid, observation.rollouts), [name for name, _ in observation.after.most_common(2)]
    )


def _link_rollouts(uid: str, ids: Sequence[int]) -> LinkedRollouts:
    ranges = tuple(Range(rollout_id, rollout_id) for rollout_id in ids[-_MOST_NAMED:])
    return LinkedRollouts(len(ids), urls.rollouts(uid, RolloutFilter(terms=[Term("id", ranges)])) if ranges else None)


def _link_mentions(uid: str, window_filter: RolloutFilter, name: str) -> str | None:
    words = words_of(name)
    try:
        return urls.rollouts(uid, window_filter.with_terms(Term("text", (words or "",))))
    except FilterError:  # nothing that could be looked for
        return None
