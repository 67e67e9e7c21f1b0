"""Shows how rollouts were used in training: what each contributed, and whether the policy is updating."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from sqlalchemy import Connection

from logs_ui.app.pages.why.tab import StepWindow, WhyTab, cache_figure, fresh_of, tab_router
from logs_ui.app.parts import charts, words
from logs_ui.app.parts.figure_table import thinned
from logs_ui.app.parts.step_stacks import Bins, StepStack
from logs_ui.app.parts.words import Word
from logs_ui.app.web import urls
from logs_ui.app.web.open_database import id_of
from logs_ui.app.web.page_cache import rested
from logs_ui.recorder import queries
from logs_ui.recorder.analysis.diagnose import Diagnosed
from logs_ui.recorder.diagnosis.card import finite
from logs_ui.recorder.diagnosis.rollout_rows import Ints, Rows
from logs_ui.recorder.diagnosis.success import Success
from logs_ui.recorder.diagnosis.tables.masks import Mask, masks
from logs_ui.recorder.diagnosis.tables.movement import Signal, signals
from logs_ui.recorder.diagnosis.tables.training_outcome import OUTCOMES, Outcome, Tokens, counts, outcomes, where
from logs_ui.recorder.diagnosis.waterfall import has_cause
from logs_ui.recorder.diagnosis.wording import percent
from logs_ui.recorder.queries import Count, RunSummary
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter
from logs_ui.recorder.storage.tables import Run
from logs_ui.recorder.vocabulary import LossCause, Mode, RunState, Status

_MOST_STACKS = 100
_POINTS = 150  # of a sparkline
_ARGUMENTS = ("beta", "mask_truncated_completions", "scale_rewards", "max_staleness", "token_budget")


class Broken(NamedTuple):
    """Describes the rollouts that were trained on though an error ended them."""

    rollouts: int
    advantage: float  # their mean
    address: str | None


class OutcomeLine(NamedTuple):
    """Counts rollouts with the same outcome, their share of all, from 0 to 1, and their sampled tokens."""

    outcome: Outcome
    word: Word
    rollouts: int
    share: float
    tokens: int
    address: str | None


@dataclass(frozen=True)
class Aside:
    """Rollouts that the page does not cover."""

    word: Word
    description: str
    count: Count
    address: str


@dataclass(frozen=True)
class WhyTrainedPage(WhyTab):
    """Context of `why/why_trained.html`; `window` has the steps of the page, except for the chart."""

    verdict: str
    is_bad: bool  # True if the verdict is a warning
    broken: Broken | None  # None without such rollouts
    lines: list[OutcomeLine]  # outcomes, rollouts that were trained on first, then the most frequent
    kinds: list[tuple[Outcome, Word]]  # outcomes that occur in the run, in the order of the chart
    stacks: list[StepStack]  # by step, for the whole run; empty for fewer than two steps
    tokens: Tokens | None  # None without training
    signals: list[tuple[Signal, charts.Sparkline | None]]  # the trainer's metrics, and the course of each
    masks: list[tuple[Mask, str | None]]  # masks that may have excluded rollouts, and their address; None without any
    knows_masks: bool  # True if the trainer's arguments are recorded, which say whether there are masks
    remarks: list[str]
    asides: list[Aside]
    config: list[tuple[str, str]]  # relevant arguments of the trainer, as (name, value)


def _page(db: Connection, summary: RunSummary, diagnosis: Diagnosed, window: StepWindow) -> WhyTrainedPage:
    run = summary.run
    is_trained = window.mode == Mode.TRAIN
    is_running, success = summary.state == RunState.RUNNING, diagnosis.report.scale.success
    make_outcomes = partial(outcomes, diagnosis.rows, success=success, is_running=is_running, config=diagnosis.config)
    run_codes = (
        cache_figure(diagnosis, ("outcomes", is_running), make_outcomes) if is_trained else np.zeros(0, np.int64)
    )
    is_within = (diagnosis.rows.step >= (window.first or 0)) & (diagnosis.rows.step <= (window.last or 0))
    window_codes = run_codes[is_within] if is_trained else run_codes
    lines = _lines(run.uid, window, window_codes, success) if is_trained else []
    kinds = [(outcome, words.OUTCOMES[outcome]) for outcome in OUTCOMES if counts(run_codes)[outcome]]
    policy_signals = (
        list(
            signals(
                finite(diagnosis.scalars), diagnosis.config, diagnosis.report.steps[0] if diagnosis.report.steps else 0
            )
        )
        if is_trained
        else []
    )
    verdict, is_bad = _verdict(summary, window, lines, policy_signals)
    return WhyTrainedPage(
        summary=summary,
        window=window,
        fresh=fresh_of(summary),
        verdict=verdict,
        is_bad=is_bad,
        broken=_broken(run.uid, window, window_codes, success) if is_trained else None,
        lines=lines,
        kinds=kinds,
        stacks=_stacks(run.uid, diagnosis.rows, run_codes, [outcome for outcome, _ in kinds]) if is_trained else [],
        tokens=Tokens.of(window.rows, window_codes) if is_trained else None,
        signals=[(signal, charts.sparkline(thinned(signal.trend, _POINTS))) for signal in policy_signals],
        masks=_masks(run.uid, window, window_codes, diagnosis) if is_trained else [],
        knows_masks="use_vllm" in diagnosis.config,
        remarks=_remarks(diagnosis, lines),
        asides=_asides(db, run) if is_trained else [],
        config=[(name, str(diagnosis.config[name])) for name in _ARGUMENTS if name in diagnosis.config]
        if is_trained
        else [],
    )


def _lines(run_uid: str, window: StepWindow, codes: Ints, success: Success) -> list[OutcomeLine]:
    rollouts, tokens = counts(codes), counts(codes, window.rows.completion_tokens)
    lines = [
        OutcomeLine(
            outcome,
            words.OUTCOMES[outcome],
            int(count),
            count / len(codes),
            int(tokens[outcome]),
            _address(run_uid, window, where(outcome, window.rows, codes, success=success)),
        )
        for outcome, count in rollouts.items()
        if count
    ]
    return sorted(lines, key=lambda line: (line.outcome != Outcome.TRAINED, -line.rollouts))


def _broken(run_uid: str, window: StepWindow, codes: Ints, success: Success) -> Broken | None:
    is_broken = (codes == OUTCOMES.index(Outcome.TRAINED)) & has_cause(window.rows, LossCause.INFRASTRUCTURE)
    terms = where(Outcome.TRAINED, window.rows, codes, success=success)
    address = _address(run_uid, window, terms and f"{terms} cause:{LossCause.INFRASTRUCTURE}")
    return (
        Broken(int(is_broken.sum()), float(window.rows.advantage[is_broken].mean()), address)
        if is_broken.any()
        else None
    )


def _address(run_uid: str, window: StepWindow, terms: str) -> str | None:
    return urls.rollouts(run_uid, window.make_filter(terms)) if terms else None


def _stacks(run_uid: str, rows: Rows, codes: Ints, kinds: list[Outcome]) -> list[StepStack]:
    """Build the chart of outcomes; many steps are binned."""
    if len(rows.steps) < 2:
        return []
    bins = Bins.of(int(rows.steps[0]), int(rows.steps[-1]), _MOST_STACKS)
    bin_places = (rows.step - bins.first) // bins.together
    table = np.bincount(bin_places * len(OUTCOMES) + codes, minlength=bins.number * len(OUTCOMES)).reshape(
        bins.number, -1
    )
    lines = table[:, [OUTCOMES.index(outcome) for outcome in kinds]].tolist()
    return [
        bins.stack(
            place,
            [f"outcome-{outcome.value}" for outcome in kinds],
            line,
            [(words.OUTCOMES[outcome].text, f"{count:,}") for outcome, count in zip(kinds, line, strict=True)],
            urls.rollouts(run_uid, RolloutFilter(modes=(Mode.TRAIN,), **bins.ends(place))),
        )
        for place, line in enumerate(lines)
        if sum(line)
    ]


def _verdict(
    summary: RunSummary, window: StepWindow, lines: list[OutcomeLine], policy_signals: list[Signal]
) -> tuple[str, bool]:
    """Return the verdict, and True if it is a warning."""
    if window.mode != Mode.TRAIN and summary.rollouts:
        return "This run trains no policy: it is an evaluation.", False
    total = sum(line.rollouts for line in lines)
    if not total:
        return "No rollout has ended yet." if summary.state == RunState.RUNNING else "No rollout ended.", False
    trained_line = next((line for line in lines if line.outcome == Outcome.TRAINED), None)
    unknown_count = sum(line.rollouts for line in lines if line.outcome == Outcome.NOT_RECORDED)
    if trained_line is None and unknown_count:
        rollouts_text = f"{unknown_count:,} of {total:,} rollouts of {window.steps_text}"
        return f"Of {rollouts_text} it is not recorded whether they were trained on.", False
    if trained_line is None:
        return f"None of the {total:,} rollouts of {window.steps_text} contributed to the gradient.", True
    subject = f"{trained_line.rollouts:,} of {total:,} rollouts of {window.steps_text} ({percent(trained_line.share)})"
    bad_signal = next((signal for signal in policy_signals if signal.is_bad and signal.name != "entropy"), None)
    if bad_signal is not None:
        return f"{subject} could be trained on, but the policy is not updating: {bad_signal.clause}.", True
    return f"{subject} contributed to the gradient.", trained_line.share < 0.5


def _masks(run_uid: str, window: StepWindow, codes: Ints, diagnosis: Diagnosed) -> list[tuple[Mask, str | None]]:
    is_trained = codes == OUTCOMES.index(Outcome.TRAINED)
    terms = where(Outcome.TRAINED, window.rows, codes, success=diagnosis.report.scale.success)
    return [
        (mask, None if mask.where is None or not terms else _address(run_uid, window, f"{terms} {mask.where}".strip()))
        for mask in masks(window.rows, is_trained, diagnosis.config, finite(diagnosis.scalars))
    ]


def _remarks(diagnosis: Diagnosed, lines: list[OutcomeLine]) -> list[str]:
    line_outcomes, beta = {line.outcome for line in lines}, diagnosis.config.get("beta")
    dead_outcomes = {Outcome.FAILED_GROUP, Outcome.PASSED_GROUP, Outcome.EQUAL_GROUP}
    remarks = [f"Solved: {diagnosis.report.scale.success.description}."] if line_outcomes & dead_outcomes else []
    if isinstance(beta, float) and beta and line_outcomes & {*dead_outcomes, Outcome.NO_ADVANTAGE}:
        remarks.append(f"beta is {beta:g}: the KL penalty also applies to rollouts with advantage 0.")
    return remarks


def _asides(db: Connection, run: Run) -> list[Aside]:
    running_filter = RolloutFilter(modes=(Mode.TRAIN,), statuses=(Status.RUNNING,))
    evaluation_filter = RolloutFilter(modes=(Mode.EVAL,))
    kinds = (
        (words.STATUSES[Status.RUNNING], "still running", running_filter),
        (
            Word("evaluation", "flag", "quiet", "Never trained on."),
            "of evaluations, never trained on",
            evaluation_filter,
        ),
    )
    counted_kinds = [
        (word, description, rested(db, id_of(run), queries.count, rollout_filter), rollout_filter)
        for word, description, rollout_filter in kinds
    ]
    return [
        Aside(word, description, count, urls.rollouts(run.uid, rollout_filter))
        for word, description, count, rollout_filter in counted_kinds
        if count.value
    ]


router = tab_router("trained", _page)
