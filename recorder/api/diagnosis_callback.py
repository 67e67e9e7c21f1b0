"""`DiagnosisCallback`: the diagnosis while a training runs."""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from logs_ui.recorder import queries
from logs_ui.recorder.analysis.diagnose import Diagnosis
from logs_ui.recorder.analysis.frames import opened
from logs_ui.recorder.api.alerts import News, Webhook, print_card
from logs_ui.recorder.api.trainer_run import Recording
from logs_ui.recorder.capture.instruments import trl
from logs_ui.recorder.capture.instruments.trl_callback import as_trainer_callback, first_rank_says
from logs_ui.recorder.diagnosis import Card, Diagnostic, Report, Settings
from logs_ui.recorder.diagnosis.report import visible
from logs_ui.recorder.diagnosis.user_checks import all_limits
from logs_ui.recorder.errors import LogsUIError, SettingsError
from logs_ui.recorder.guard import guard
from logs_ui.recorder.settings import check_thresholds, unknown_diagnostic
from logs_ui.recorder.snapshot import error_line
from logs_ui.recorder.storage.address import as_text, database_address, db_option

logger = logging.getLogger("logs_ui")

_REST = 20  # times what a look took, until the next: at most 5% of one core
_FLUSH_SECONDS = 5.0
_END_SECONDS = 20.0

StopOn = str | Collection[str] | Callable[[Card], bool]


class DiagnosisCallback:
    """A callback for the trainer that diagnoses the run while it trains: `GRPOTrainer(callbacks=[DiagnosisCallback()])`
    beside `record()`. What it makes is a `transformers.TrainerCallback`.

    A card is printed on stderr when it first fires; again only if it went away and came back. While there is too little
    to judge nothing fires. Works on the main process alone, in a thread of its own, which reads what has changed in the
    database. Of 100,000 rollouts the first look takes one to two seconds of one core, a later one a third of one; then
    the thread rests twenty times as long as it looked. Nothing that goes wrong in it reaches the training.

    Args:
        every_steps: optimizer steps from look to look; None: by time alone. There is a last look when training ends.
        every_seconds: the same in seconds, whichever comes first; None: by steps alone.
        quiet_steps: for so many a card that was told is not told again.
        stop_on: ids of diagnostics, or a function of a `Card`, True where its card is to end the training after the
            step at which it is found or the one behind it. The run's `error` says so then, and its state is `finished`.
        webhook: an address that is sent, by POST, each card that fires, as the JSON `{"run": uid, "step": int, "text":
            str, "card": {...}}`, where `card` is as `logs-ui diagnose --json` has it. A failure is logged once.
        webhook_headers: sent along, as `{"Authorization": "Bearer ..."}`.
        webhook_timeout: seconds.
        settings: in place of the run's own.
        diagnostics: your own, beside those that there are.
        run: None: the one that `record()` or `record_environment()` records in this process; else, as for
            `record_worker()`, what `diagnose()` takes.
        db: of `run`.

    Raises:
        SettingsError: `stop_on` or a threshold names no diagnostic, a number is not above 0, or the webhook is none.
        TypeError: `diagnostics` holds something else.
    """

    _watch: "_Watch | None"
    _stopped: bool

    def __new__(cls, *_: Any, **__: Any) -> Self:
        made: Self = object.__new__(as_trainer_callback(cls))  # type: ignore[arg-type]  # a class can be hashed
        return made

    def __init__(
        self,
        *,
        every_steps: int | None = 10,
        every_seconds: float | None = None,
        quiet_steps: int = 50,
        stop_on: StopOn = (),
        webhook: str | None = None,
        webhook_headers: Mapping[str, str] | None = None,
        webhook_timeout: float = 5.0,
        settings: Settings | None = None,
        diagnostics: Sequence[Diagnostic] = (),
        run: str | None = None,
        db: str | os.PathLike[str] | None = None,
    ) -> None:
        numbers = {"every_steps": every_steps, "every_seconds": every_seconds, "webhook_timeout": webhook_timeout}
        for name, value in numbers.items():
            if value is not None and not value > 0:
                raise SettingsError(f"{name} must be above 0, not {value!r}.")
        known = all_limits(diagnostics)
        check_thresholds(settings or Settings(), known)
        self._every_steps, self._every_seconds = every_steps, every_seconds
        self._stops, self._stop_on = bool(stop_on), _predicate(stop_on, known)
        headers = dict(webhook_headers or {})
        self._told = None if webhook is None else Webhook(webhook, headers, webhook_timeout)
        self._quiet_steps, self._settings, self._own = quiet_steps, settings, tuple(diagnostics)
        self._run, self._db = run, db
        self._begin(0)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Another training is another run."""
        self._begin(int(state.global_step))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Asks for a look where one is due, and stops where one found that it should."""
        if state.is_world_process_zero:
            with guard("asking for a diagnosis"):
                self._ask_if_due(state)
        found = self._watch.stopped_by if self._watch is not None else None
        if self._stops and first_rank_says(found is not None):
            control.should_training_stop = True
            if found is not None and not self._stopped:
                self._stopped = True
                with guard("saying why training stops"):
                    self._say_why(found, state)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """A last look; waits for it 20 seconds at most."""
        if state.is_world_process_zero:
            with guard("diagnosing a run at its end"):
                watch = self._watching(state)
                if watch is not None:
                    watch.finish()

    def _begin(self, step: int) -> None:
        self._watch, self._stopped = None, False
        self._last_step, self._last_time = step, time.monotonic()

    def _ask_if_due(self, state: Any) -> None:
        step, now = int(state.global_step), time.monotonic()
        by_steps = self._every_steps is not None and step - self._last_step >= self._every_steps
        by_time = self._every_seconds is not None and now - self._last_time >= self._every_seconds
        watch = self._watching(state) if by_steps or by_time else None
        if watch is not None:
            self._last_step, self._last_time = step, now
            watch.ask()

    def _watching(self, state: Any) -> "_Watch | None":
        """None as long as nothing is recorded."""
        if self._watch is None:
            recording = trl.listener_of(state)
            if self._run is not None:
                place = _Place(self._run, self._db, None)
            elif isinstance(recording, Recording):
                place = _Place(recording.run, as_text(recording.db), recording)
            else:
                return None
            self._watch = _Watch(place, self._settings, self._own, News(self._quiet_steps), self._told, self._stop_on)
        return self._watch

    def _say_why(self, card: Card, state: Any) -> None:
        """Once, on the main process."""
        watch = self._watch
        assert watch is not None  # noqa: S101 - it found the card
        why = f"Stopped by its diagnosis at step {state.global_step}: {visible(card.title)} [{card.id}]"
        db = db_option(database_address(watch.place.db))
        sys.stderr.write(f"logs-ui: {why}. All of it: logs-ui diagnose {watch.place.run}{db}\n")
        if watch.place.recording is not None:
            watch.place.recording.stops(why)


@dataclass(frozen=True)
class _Place:
    """Where a run is read.

    Attributes:
        recording: in this process; None where another writes it.
    """

    run: str
    db: str | os.PathLike[str] | None
    recording: Recording | None


class _Watch:
    """Looks at one run, in a thread of its own.

    Attributes:
        stopped_by: the card that is to end the training; None while there is none.
    """

    def __init__(
        self,
        place: _Place,
        settings: Settings | None,
        own: Sequence[Diagnostic],
        news: News,
        webhook: Webhook | None,
        stop_on: Callable[[Card], bool],
    ) -> None:
        self.place = place
        self.stopped_by: Card | None = None
        self._settings, self._own, self._stop_on = settings, own, stop_on
        self._news, self._webhook = news, webhook
        self._diagnosis: Diagnosis | None = None
        self._trouble: str | None = None
        self._asked, self._over = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def ask(self) -> None:
        """For a look, soon; does not wait."""
        self._asked.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="logs-ui diagnosis", daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """A last look; waits for it, but not for ever."""
        self._over.set()
        self.ask()
        if self._thread is not None:
            self._thread.join(_END_SECONDS)

    def _work(self) -> None:
        is_last = False
        while not is_last:
            self._asked.wait()
            self._asked.clear()
            is_last = self._over.is_set()
            began = time.monotonic()
            with guard("diagnosing the run"):
                self._look()
            self._over.wait(_REST * (time.monotonic() - began))

    def _look(self) -> None:
        try:
            report = self._report()
        except LogsUIError as error:  # as before the first row is written
            self._say_trouble(str(error))
            return
        for failed in report.failed:
            self._say_trouble(f"The diagnostic {visible(failed.id)} failed: {visible(failed.error)}")
        step = report.steps[1] if report.steps else 0  # which the training may have left behind
        for card in self._news.of(report.cards, step):
            print_card(report, card, step)
            if self._webhook is not None:
                self._webhook.send(report, card, step)
        self.stopped_by = self.stopped_by or next(filter(self._is_to_stop, report.cards), None)

    def _is_to_stop(self, card: Card) -> bool:
        try:
            return bool(self._stop_on(card))
        except Exception as error:  # noqa: BLE001 - of any kind, as the user's function may raise it
            self._say_trouble(f"stop_on failed: {error_line(error)}")
            return False

    def _report(self) -> Report:
        if self.place.recording is not None:
            self.place.recording.flush(_FLUSH_SECONDS)
        with opened(self.place.run, self.place.db) as (engine, run):
            if self._diagnosis is None or self._diagnosis.columns.mode != queries.mode_of(engine, run.id or 0):
                self._diagnosis = Diagnosis.of(engine, run)
            return self._diagnosis.now(engine, run, self._settings, self._own).report

    def _say_trouble(self, what: str) -> None:
        if what != self._trouble:
            self._trouble = what
            logger.warning("logs-ui: %s The training goes on.", what)


def _predicate(stop_on: StopOn, known: Collection[str]) -> Callable[[Card], bool]:
    """
    Raises:
        SettingsError: it names no diagnostic.
    """
    if callable(stop_on):
        return stop_on
    ids = {stop_on} if isinstance(stop_on, str) else set(stop_on)
    for name in ids:
        if name not in known:
            raise unknown_diagnostic(name, known)
    return lambda card: card.id in ids
