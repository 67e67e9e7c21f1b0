"""Shows how rollouts were used in training: what each contributed, and whether the policy is updating."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from sqlalchemy import Connection

from logs_ui.app.pages.why.tab import StepWindow, WhyTab, fresh_of, kept, tab_router
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
    said: str
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


def _page(db: Connection, summary: RunSummary, known: Diagnosed, here: StepWindow) -> WhyTrainedPage:
    run = summary.run
    is_trained = here.mode == Mode.TRAIN
    is_running, solved = summary.state == RunState.RUNNING, known.report.scale.success
    made = partial(outcomes, known.rows, success=solved, is_running=is_running, config=known.config)
    every = kept(known, ("outcomes", is_running), made) if is_trained else np.zeros(0, np.int64)
    among = (known.rows.step >= (here.first or 0)) & (known.rows.step <= (here.last or 0))
    found = every[among] if is_trained else every
    lines = _lines(run.uid, here, found, solved) if is_trained else []
    kinds = [(it, words.OUTCOMES[it]) for it in OUTCOMES if counts(every)[it]]
    shown = (
        list(signals(finite(known.scalars), known.config, known.report.steps[0] if known.report.steps else 0))
        if is_trained
        else []
    )
    verdict, is_bad = _verdict(summary, here, lines, shown)
    return WhyTrainedPage(
        summary=summary,
        window=here,
        fresh=fresh_of(summary),
        verdict=verdict,
        is_bad=is_bad,
        broken=_broken(run.uid, here, found, solved) if is_trained else None,
        lines=lines,
        kinds=kinds,
        stacks=_stacks(run.uid, known.rows, every, [it for it, _ in kinds]) if is_trained else [],
        tokens=Tokens.of(here.rows, found) if is_trained else None,
        signals=[(it, charts.sparkline(thinned(it.trend, _POINTS))) for it in shown],
        masks=_masks(run.uid, here, found, known) if is_trained else [],
        knows_masks="use_vllm" in known.config,
        remarks=_remarks(known, lines),
        asides=_asides(db, run) if is_trained else [],
        config=[(name, str(known.config[name])) for name in _ARGUMENTS if name in known.config] if is_trained else [],
    )


def _lines(run: str, here: StepWindow, found: Ints, success: Success) -> list[OutcomeLine]:
    number, tokens = counts(found), counts(found, here.rows.completion_tokens)
    lines = [
        OutcomeLine(
            outcome,
            words.OUTCOMES[outcome],
            int(count),
            count / len(found),
            int(tokens[outcome]),
            _address(run, here, where(outcome, here.rows, found, success=success)),
        )
        for outcome, count in number.items()
        if count
    ]
    return sorted(lines, key=lambda line: (line.outcome != Outcome.TRAINED, -line.rollouts))


def _broken(run: str, here: StepWindow, found: Ints, success: Success) -> Broken | None:
    mine = (found == OUTCOMES.index(Outcome.TRAINED)) & has_cause(here.rows, LossCause.INFRASTRUCTURE)
    said = where(Outcome.TRAINED, here.rows, found, success=success)
    address = _address(run, here, said and f"{said} cause:{LossCause.INFRASTRUCTURE}")
    return Broken(int(mine.sum()), float(here.rows.advantage[mine].mean()), address) if mine.any() else None


def _address(run: str, here: StepWindow, said: str) -> str | None:
    return urls.rollouts(run, here.only(said)) if said else None


def _stacks(run: str, rows: Rows, found: Ints, kinds: list[Outcome]) -> list[StepStack]:
    """Build the chart of outcomes; many steps are binned."""
    if len(rows.steps) < 2:
        return []
    bins = Bins.of(int(rows.steps[0]), int(rows.steps[-1]), _MOST_STACKS)
    place = (rows.step - bins.first) // bins.together
    table = np.bincount(place * len(OUTCOMES) + found, minlength=bins.number * len(OUTCOMES)).reshape(bins.number, -1)
    lines = table[:, [OUTCOMES.index(it) for it in kinds]].tolist()
    return [
        bins.stack(
            at,
            [f"outcome-{it.value}" for it in kinds],
            line,
            [(words.OUTCOMES[it].text, f"{count:,}") for it, count in zip(kinds, line, strict=True)],
            urls.rollouts(run, RolloutFilter(modes=(Mode.TRAIN,), **bins.ends(at))),
        )
        for at, line in enumerate(lines)
        if sum(line)
    ]


def _verdict(summary: RunSummary, here: StepWindow, lines: list[OutcomeLine], shown: list[Signal]) -> tuple[str, bool]:
    if here.mode != Mode.TRAIN and summary.rollouts:
        return "This run trains no policy: it is an evaluation.", False
    total = sum(line.rollouts for line in lines)
    if not total:
        return "No rollout has ended yet." if summary.state == RunState.RUNNING else "No rollout ended.", False
    trained = next((line for line in lines if line.outcome == Outcome.TRAINED), None)
    unknown = sum(line.rollouts for line in lines if line.outcome == Outcome.NOT_RECORDED)
    if trained is None and unknown:
        return (
            f"Of {unknown:,} of {total:,} rollouts of {here.said} it is not recorded whether they were trained on.",
            False,
        )
    if trained is None:
        return f"None of the {total:,} rollouts of {here.said} contributed to the gradient.", True
    said = f"{trained.rollouts:,} of {total:,} rollouts of {here.said} ({percent(trained.share)})"
    still = next((it for it in shown if it.is_bad and it.name != "entropy"), None)
    if still is not None:
        return f"{said} could be trained on, but the policy is not updating: {still.clause}.", True
    return f"{said} contributed to the gradient.", trained.share < 0.5


def _masks(run: str, here: StepWindow, found: Ints, known: Diagnosed) -> list[tuple[Mask, str | None]]:
    trained = found == OUTCOMES.index(Outcome.TRAINED)
    said = where(Outcome.TRAINED, here.rows, found, success=known.report.scale.success)
    return [
        (mask, None if mask.where is None or not said else _address(run, here, f"{said} {mask.where}".strip()))
        for mask in masks(here.rows, trained, known.config, finite(known.scalars))
    ]


def _remarks(known: Diagnosed, lines: list[OutcomeLine]) -> list[str]:
    found, beta = {line.outcome for line in lines}, known.config.get("beta")
    dead = {Outcome.FAILED_GROUP, Outcome.PASSED_GROUP, Outcome.EQUAL_GROUP}
    said = [f"Solved: {known.report.scale.success.description}."] if found & dead else []
    if isinstance(beta, float) and beta and found & {*dead, Outcome.NO_ADVANTAGE}:
        said.append(f"beta is {beta:g}: the KL penalty also applies to rollouts with advantage 0.")
    return said


def _asides(db: Connection, run: Run) -> list[Aside]:
    running = RolloutFilter(modes=(Mode.TRAIN,), statuses=(Status.RUNNING,))
    evaluated = RolloutFilter(modes=(Mode.EVAL,))
    wanted = (
        (words.STATUSES[Status.RUNNING], "still running", running),
        (Word("evaluation", "flag", "quiet", "Never trained on."), "of evaluations, never trained on", evaluated),
    )
    found = [(word, said, rested(db, id_of(run), queries.count, chosen), chosen) for word, said, chosen in wanted]
    return [
        Aside(word, said, count, urls.rollouts(run.uid, chosen)) for word, said, count, chosen in found if count.value
    ]


router = tab_router("trained", _page)
