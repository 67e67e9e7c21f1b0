"""`DiagnosisCallback` diagnoses a run while it trains: it prints new findings, and can stop the training."""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from logs_ui.recorder import queries
from logs_ui.recorder.analysis.diagnose import Diagnosis
from logs_ui.recorder.analysis.opened_runs import opened
from logs_ui.recorder.api.alerts import News, Webhook, print_card
from logs_ui.recorder.api.trainer_run import Recording
from logs_ui.recorder.capture.instruments import trl
from logs_ui.recorder.capture.instruments.trl_callback import as_trainer_callback, first_rank_says
from logs_ui.recorder.diagnosis import Card, Diagnostic, Report, Settings
from logs_ui.recorder.diagnosis.run_checks import all_limits
from logs_ui.recorder.errors import LogsUIError, SettingsError
from logs_ui.recorder.guard import guard
from logs_ui.recorder.settings import check_thresholds, make_unknown_error
from logs_ui.recorder.snapshot import error_line, visible
from logs_ui.recorder.storage.address import as_text, database_address, db_option

logger = logging.getLogger("logs_ui")

_REST = 20  # the thread rests this many times as long as the last diagnosis took: at most 5% of one core
_FLUSH_SECONDS = 5.0
_END_SECONDS = 20.0

StopOn = str | Collection[str] | Callable[[Card], bool]


class DiagnosisCallback:
    """A trainer callback that diagnoses the run during training. It is a `transformers.TrainerCallback`.

    A card is printed on stderr when it first fires, and again only if it went away and came back. As long as there are
    too few rollouts to judge, none fires. The callback works on the main process only, in a thread of its own that
    reads what has changed in the database. With 100,000 rollouts the first diagnosis takes one to two seconds of one
    core, and each later one a third of a second; then the thread rests for twenty times as long. A failure of the
    diagnosis never reaches the training.

    Args:
        every_steps: Optimizer steps between two diagnoses. None: only `every_seconds` counts. A last diagnosis is made
            when training ends.
        every_seconds: Seconds between two diagnoses, if that comes first. None: only `every_steps` counts.
        quiet_steps: Number of steps for which a card that was printed is not printed again.
        stop_on: Ids of diagnostics, or a function of a `Card` that returns True, which end the training after the step
            at which the card is found, or after the next one. The run's `error` says so then, and its state is
            `finished`.
        webhook: An http or https address to which each card that fires is sent by POST, as the JSON `{"run": uid,
            "step": int, "text": str, "card": {...}}`; `card` is as in `logs-ui diagnose --json`. A failure is logged
            once. None sends nothing.
        webhook_headers: Headers to send along, such as `{"Authorization": "Bearer ..."}`.
        webhook_timeout: Timeout of the webhook in seconds.
        settings: Settings of the diagnosis. None takes those that are stored with the run.
        diagnostics: Your own diagnostics, in addition to the built-in ones.
        run: The run to diagnose. None: the one that `record()` or `record_environment()` records in this process. For
            `record_worker()`, whose run is written elsewhere, an id or a name as `diagnose()` takes it.
        db: Database of `run`. None takes LOGS_UI_DB or the default database.

    Raises:
        SettingsError: `stop_on` or a threshold names an unknown diagnostic, a number is not above 0, or the webhook is
            not an http or https address.
        TypeError: `diagnostics` holds something else than diagnostics.

    Examples:
        >>> from logs_ui.recorder import DiagnosisCallback
        >>> callback = DiagnosisCallback(every_steps=20, stop_on="degenerate_text")

        ```python
        from trl import GRPOTrainer

        from logs_ui.recorder import Settings, record

        recorded = record(rollout_func, diagnosis=Settings(max_reward=1.0))
        trainer = GRPOTrainer(model, [solved], train_dataset=dataset, rollout_func=recorded, callbacks=[callback])
        trainer.train()
        ```
    """

    _watch: "_Watch | None"
    _stopped: bool
    _last_step: int
    _last_time: float

    def __new__(cls, *_: Any, **__: Any) -> Self:
        callback: Self = object.__new__(as_trainer_callback(cls))  # type: ignore[arg-type]  # a class can be hashed
        return callback

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
        limits = all_limits(diagnostics)
        check_thresholds(settings or Settings(), limits)
        self._every_steps, self._every_seconds = every_steps, every_seconds
        self._stops, self._stop_on = bool(stop_on), _predicate(stop_on, limits)
        headers = dict(webhook_headers or {})
        self._webhook = None if webhook is None else Webhook(webhook, headers, webhook_timeout)
        self._quiet_steps, self._settings, self._diagnostics = quiet_steps, settings, tuple(diagnostics)
        self._run, self._db = run, db
        self._begin(0)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Begin anew: each training is a run of its own."""
        self._begin(int(state.global_step))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Request a diagnosis if one is due, and stop the training if one found a card to stop on."""
        if state.is_world_process_zero:
            with guard("requesting a diagnosis"):
                step, now = int(state.global_step), time.monotonic()
                by_steps = self._every_steps is not None and step - self._last_step >= self._every_steps
                by_time = self._every_seconds is not None and now - self._last_time >= self._every_seconds
                if (by_steps or by_time) and (watch := self._watching(state)) is not None:
                    self._last_step, self._last_time = step, now
                    watch.request()
        card = self._watch.stopped_by if self._watch is not None else None
        # Only the first rank diagnoses, but all ranks have to stop after the same step, so each asks the first one.
        # Without `stop_on` they exchange nothing.
        if self._stops and first_rank_says(card is not None):
            control.should_training_stop = True
            if card is not None and not self._stopped:
                self._stopped = True
                with guard("reporting why training stops"):
                    self._report_stop(card, state)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Diagnose a last time; wait for it, 20 seconds at most."""
        if state.is_world_process_zero:
            with guard("diagnosing a run at its end"):
                watch = self._watching(state)
                if watch is not None:
                    watch.finish()

    def _begin(self, step: int) -> None:
        self._watch, self._stopped = None, False
        self._last_step, self._last_time = step, time.monotonic()

    def _watching(self, state: Any) -> "_Watch | None":
        """Return the watch of the run; None as long as nothing is recorded."""
        if self._watch is None:
            recording = trl.listener_of(state)
            if self._run is not None:
                run, db, recording = self._run, self._db, None
            elif isinstance(recording, Recording):
                run, db = recording.run, as_text(recording.db)
            else:
                return None
            news = News(self._quiet_steps)
            self._watch = _Watch(
                run, db, recording, self._settings, self._diagnostics, news, self._webhook, self._stop_on
            )
        return self._watch

    def _report_stop(self, card: Card, state: Any) -> None:
        """Print why training stops, and store it with the run."""
        watch = self._watch
        assert watch is not None  # noqa: S101 - it found the card
        why = f"Stopped by its diagnosis at step {state.global_step}: {visible(card.title)} [{card.id}]"
        db = db_option(database_address(watch.db))
        sys.stderr.write(f"logs-ui: {why}. Show all cards: logs-ui diagnose {watch.run}{db}\n")
        if watch.recording is not None:
            watch.recording.stops(why)


@dataclass
class _Watch:
    """Diagnoses one run again and again, in a thread of its own."""

    run: str
    db: str | os.PathLike[str] | None  # the database to read the run from
    recording: Recording | None  # the recording of this process; None if another process writes the run
    settings: Settings | None
    diagnostics: Sequence[Diagnostic]
    news: News
    webhook: Webhook | None
    stop_on: Callable[[Card], bool]
    stopped_by: Card | None = None  # the first card that is to end the training; None as long as there is none
    _diagnosis: Diagnosis | None = None
    _last_warning: str | None = None
    _requested: threading.Event = field(default_factory=threading.Event)
    _ending: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def request(self) -> None:
        """Have the run diagnosed soon; do not wait for it."""
        self._requested.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="logs-ui diagnosis", daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Diagnose a last time, and wait for it, but not for ever."""
        self._ending.set()
        self.request()
        if self._thread is not None:
            self._thread.join(_END_SECONDS)

    def _work(self) -> None:
        is_last = False
        while not is_last:
            self._requested.wait()
            self._requested.clear()
            is_last = self._ending.is_set()
            began = time.monotonic()
            with guard("diagnosing the run"):
                self._diagnose()
            # The end of the training ends this rest, too.
            self._ending.wait(_REST * (time.monotonic() - began))

    def _diagnose(self) -> None:
        try:
            report = self._report()
        except LogsUIError as error:  # such as: no row is written yet
            self._warn(str(error))
            return
        for failed in report.failed:
            self._warn(f"The diagnostic {visible(failed.id)} failed: {visible(failed.error)}")
        step = report.steps[1] if report.steps else 0  # the training may be further by now
        for card in self.news.of(report.cards, step):
            print_card(report, card, step)
            if self.webhook is not None:
                self.webhook.send(report, card, step)
        self.stopped_by = self.stopped_by or next(filter(self._is_to_stop, report.cards), None)

    def _is_to_stop(self, card: Card) -> bool:
        try:
            return bool(self.stop_on(card))
        except Exception as error:  # noqa: BLE001 - the user's function may raise anything
            self._warn(f"stop_on failed: {error_line(error)}")
            return False

    def _report(self) -> Report:
        if self.recording is not None:
            self.recording.flush(_FLUSH_SECONDS)
        with opened(self.run, self.db) as (engine, run):
            if self._diagnosis is None or self._diagnosis.columns.mode != queries.mode_of(engine, run.id or 0):
                self._diagnosis = Diagnosis(engine, run)
            return self._diagnosis.now(engine, run, self.settings, self.diagnostics, in_full=False).report

    def _warn(self, sentence: str) -> None:
        if sentence != self._last_warning:
            self._last_warning = sentence
            logger.warning("logs-ui: %s The training goes on.", sentence)


def _predicate(stop_on: StopOn, all_ids: Collection[str]) -> Callable[[Card], bool]:
    """Return `stop_on` as a function; raise a SettingsError if it names an unknown diagnostic."""
    if callable(stop_on):
        return stop_on
    ids = {stop_on} if isinstance(stop_on, str) else set(stop_on)
    for name in ids:
        if name not in all_ids:
            raise make_unknown_error("There is no diagnostic", name, all_ids)
    return lambda card: card.id in ids
