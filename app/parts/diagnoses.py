"""The diagnoses that the pages show, whole and in short. They are cached, so that only what changed is read again."""

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from sqlalchemy import Connection, Engine

from logs_ui.app.parts import figures
from logs_ui.app.parts.loss_waterfall import Fall, make_fall
from logs_ui.app.web.open_database import id_of
from logs_ui.recorder import queries
from logs_ui.recorder.analysis.diagnose import Diagnosed, Diagnosis, settings_of
from logs_ui.recorder.diagnosis import Card, Report, Rows
from logs_ui.recorder.diagnosis.measures import mean
from logs_ui.recorder.diagnosis.success import Success
from logs_ui.recorder.diagnosis.verdict import Verdict
from logs_ui.recorder.diagnosis.waterfall import judged
from logs_ui.recorder.queries.run_totals import RECENT_STEPS
from logs_ui.recorder.storage.tables import Run

_REST = 20  # times as long as it took to make that of a large run, it is shown as it is
_TOP = 3  # cards on the overview
_RUNS = 8  # of one database: those that were asked for last, more than Compare shows; 100,000 rollouts take some 40 MB


@dataclass
class _Known:
    diagnosis: Diagnosis
    lock: threading.Lock = field(default_factory=threading.Lock)
    moment: tuple[object, ...] = ()
    diagnosed: Diagnosed | None = None
    until: float = 0.0  # of time.monotonic

    def holds(self, moment: tuple[object, ...]) -> bool:
        """Return True if the diagnosis is current, or, for a large run that is being written, was made a short while
        ago.
        """
        # From the fourth part on, a moment has the run's state and settings; the parts before change with each
        # rollout.
        return self.moment == moment or (time.monotonic() < self.until and self.moment[3:] == moment[3:])


_known: "WeakKeyDictionary[Engine, OrderedDict[str, _Known]]" = WeakKeyDictionary()
_outlines: "WeakKeyDictionary[Engine, dict[str, tuple[object, Outline]]]" = WeakKeyDictionary()
_lock = threading.Lock()


def diagnosed(db: Connection, run: Run) -> Diagnosed:
    """Return the current diagnosis of a run."""
    entry = _of(db, run)
    moment = version_of(db, run)
    with entry.lock:
        if entry.diagnosed is None or not entry.holds(moment):
            began = time.monotonic()
            entry.diagnosed, entry.moment = entry.diagnosis.now(db, run), moment
            now = time.monotonic()
            entry.until = now + _REST * (now - began) if entry.diagnosis.columns.sample is not None else 0.0
        return entry.diagnosed


def cached_diagnosis(db: Connection, run: Run) -> Diagnosed | None:
    """Return the cached diagnosis; None if there is none, or it is out of date."""
    entry = _known.get(db.engine, OrderedDict()).get(run.uid)
    return entry.diagnosed if entry is not None and entry.holds(version_of(db, run)) else None


def success_of(db: Connection, run: Run) -> Success:
    """Return the current definition of solved."""
    return diagnosed(db, run).report.scale.success


class Outline(NamedTuple):
    """Describes a run in a line of a list: its verdict, and since when the finding is there that the verdict names.

    `solved` is the share of the last steps' rollouts with a reward that are solved, of those that can count as solved;
    None if there are none, or solved is not defined.
    """

    verdict: Verdict
    began: str
    solved: float | None


def outline(db: Connection, run: Run) -> Outline:
    """Return the current outline of a run, and keep it for longer than its diagnosis."""
    version, current = version_of(db, run), outline_of(diagnosed(db, run))
    _outlines.setdefault(db.engine, {})[run.uid] = version, current
    return current


def cached_outline(db: Connection, run: Run) -> tuple[Outline | None, bool]:
    """Return the last outline, None without any, and True if nothing of the run changed since."""
    version, last = _outlines.get(db.engine, {}).get(run.uid, (None, None))
    return last, last is not None and version == version_of(db, run)


def outline_of(diagnosis: Diagnosed) -> Outline:
    """Return the outline of a diagnosis."""
    card = card_of_verdict(diagnosis.report)
    return Outline(diagnosis.report.verdict, card.began if card else "", _solved_share(diagnosis))


def _solved_share(diagnosis: Diagnosed) -> float | None:
    rows, success = diagnosis.rows, diagnosis.report.scale.success
    has_reward = np.isfinite(rows.reward)
    recent = rows.where(has_reward & np.isin(rows.step, np.unique(rows.step[has_reward])[-RECENT_STEPS:]))
    return mean(success.outcomes(recent)) if success.is_defined else None


def is_diagnosed(db: Connection, run: Run) -> bool:
    """Return True if a diagnosis was made already, so that only later changes have to be read."""
    entry = _known.get(db.engine, OrderedDict()).get(run.uid)
    return entry is not None and entry.diagnosed is not None


def _of(db: Connection, run: Run) -> _Known:
    with _lock:
        of_database = _known.setdefault(db.engine, OrderedDict())
        entry = of_database.get(run.uid)
        if entry is None or entry.diagnosis.columns.mode != queries.mode_of(db, id_of(run)):
            entry = of_database[run.uid] = _Known(Diagnosis(db, run))
        of_database.move_to_end(run.uid)
        while len(of_database) > _RUNS:
            of_database.popitem(last=False)
        return entry


def version_of(db: Connection, run: Run) -> tuple[object, ...]:
    """Return the versions of everything that a diagnosis depends on."""
    logged = queries.last_logged_step(db, id_of(run))
    return run.id, run.changed, logged, queries.state_of(run, queries.now(db)), settings_of(db, run)


class Coverage(NamedTuple):
    """The rollouts that a report covers."""

    steps: tuple[int, int] | None  # first and last; None without any, or without real steps
    rollouts: int  # number of rollouts with a loss
    unscored: int  # number of those without a reward, which count as 0
    evals: int  # number of evals that they are of

    @property
    def window(self) -> str:
        return figures.window(self.steps)


class ShortDiagnosis(NamedTuple):
    """Sums up the last steps: the cards of highest cost that no other one explains, and the number of further cards."""

    fall: Fall
    coverage: Coverage
    first: Card | None  # the card that the verdict is about
    cards: list[Card]  # others
    more: int
    too_few: bool
    verdict: Verdict

    @property
    def findings(self) -> int:
        """Number of all cards."""
        return (self.first is not None) + len(self.cards) + self.more


def in_short(run_uid: str, diagnosis: Diagnosed) -> ShortDiagnosis:
    """Return the short diagnosis of the run with that uid."""
    report = diagnosis.report
    coverage = looked_at(diagnosis.rows, report)
    first = card_of_verdict(report)
    cards = [card for card in top_cards(report.cards) if card is not first]
    return ShortDiagnosis(
        fall=make_fall(report.fall, report.scale.source, run_uid, report.scope, coverage.rollouts),
        coverage=coverage,
        first=first,
        cards=cards[:_TOP],
        more=len(report.cards) - len(cards[:_TOP]) - (first is not None),
        too_few=report.warming_up,
        verdict=report.verdict,
    )


def card_of_verdict(report: Report) -> Card | None:
    """Return the card whose title the verdict says; None if it says something else."""
    return next((card for card in report.cards if card.id == report.verdict.card), None)


def looked_at(rows: Rows, report: Report) -> Coverage:
    """Count the rows that a report covers."""
    first, last = report.steps or (0, -1)
    covered = rows.where((rows.step >= first) & (rows.step <= last))  # few of them: what follows is slow on many
    can_tell = judged(covered)
    unscored = can_tell & np.isnan(covered.reward)
    counts = (int(can_tell.sum()), int(unscored.sum()), len(np.unique(covered.eval)))
    return Coverage(report.steps if last > 0 else None, *counts)


def top_cards(cards: tuple[Card, ...]) -> list[Card]:
    """Return the cards without those that follow from others."""
    return [card for card in cards if not parents(card, cards)]


def parents(card: Card, cards: tuple[Card, ...]) -> list[Card]:
    """Return the cards above this one that explain it."""
    return [parent for parent in cards[: cards.index(card)] if card.id in parent.explains]
