"""Runs all checks, the users' own among them, over a run's rollouts and puts their cards in order.

The checks are discovered: every `Diagnostic` that a module of `checks/` defines is run, in the order of `EXPLAINS`.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isclose, isfinite
from typing import Any, TypeVar

import numpy as np

from logs_ui.recorder.diagnosis import checks
from logs_ui.recorder.diagnosis.advice import IN_EVALUATION, advise_in_order
from logs_ui.recorder.diagnosis.card import (
    Below,
    Card,
    Diagnostic,
    NotJudged,
    Outcome,
    ReadArithmetic,
    ReadEvaluated,
    ReadLabels,
    ReadPromptEnds,
    ReadTexts,
    Run,
    Trend,
    finite,
    read_nothing,
    uncovered,
)
from logs_ui.recorder.diagnosis.contrast import spread
from logs_ui.recorder.diagnosis.explanations import EXPLAINS, order_cards
from logs_ui.recorder.diagnosis.figure_differences import Contrast, list_differences
from logs_ui.recorder.diagnosis.largest_differences import (
    Compared,
    compare_families,
    compare_over_time,
    compare_places,
    compare_within_groups,
)
from logs_ui.recorder.diagnosis.links import ids
from logs_ui.recorder.diagnosis.places import describe_switches, place_of
from logs_ui.recorder.diagnosis.report import Checked, Failed, Report
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Rows
from logs_ui.recorder.diagnosis.scale import Scale
from logs_ui.recorder.diagnosis.scored_low import SCORED_LOW, scored_low
from logs_ui.recorder.diagnosis.verdict import TOO_EARLY, fades, is_slight, of_all, restate, verdict
from logs_ui.recorder.diagnosis.waterfall import waterfall
from logs_ui.recorder.errors import SettingsError
from logs_ui.recorder.queries.filters.rollout_filter import parse_where
from logs_ui.recorder.queries.filters.terms import print_name
from logs_ui.recorder.settings import Limits, Settings
from logs_ui.recorder.snapshot import error_line

FEW_ROLLOUTS, FEW_STEPS = 32, 2
_FEW_OF_ENDED = 8  # rollouts are enough if no more will come
_CHEAP = 0.01  # of the range of rewards: a finding that costs less is not worth a card
_ENVIRONMENTS = 8  # that are judged each
_MUCH = 0.1  # of what an eval could give: what a finding costs there that the whole run hides [ours]
_PRESENT = 0.05  # of the last rollouts, and half of those that were judged: a rarer eval says little of the run [ours]
_LONG = 2_000  # characters of a filter: one of so many names becomes a list of rollouts, which is a single term


def _discover() -> tuple[Diagnostic, ...]:
    """Return the diagnostics that the modules of `checks/` define, as a rollout lives."""
    names = [module.name for module in pkgutil.iter_modules(checks.__path__)]
    modules = [importlib.import_module(f"{checks.__name__}.{name}") for name in names]
    every = [value for module in modules for value in vars(module).values() if isinstance(value, Diagnostic)]
    by_id = {diagnostic.id: diagnostic for diagnostic in every}
    return tuple(sorted(by_id.values(), key=lambda diagnostic: list(EXPLAINS).index(diagnostic.id)))


DIAGNOSTICS = _discover()
_OURS = {diagnostic.id for diagnostic in DIAGNOSTICS} | {SCORED_LOW}
_OfEval = tuple[str, Rows, Report]
"""An eval, all of its rollouts, and what is said of it alone."""
T = TypeVar("T")


@np.errstate(over="ignore", invalid="ignore")  # squares of rewards of 1e200 are infinite
def diagnose_rows(
    rows: Rows,
    settings: Settings | None = None,
    config: Mapping[str, Any] | None = None,
    scalars: Mapping[str, Trend] | None = None,
    *,
    evaluations: Mapping[str, Trend] | None = None,
    evaluated: Rows | None = None,
    has_ended: bool = False,
    within: str = "",
    attributed: float = 1.0,
    scale: Scale | None = None,
    error: str | None = None,
    units: int = 1,
    in_full: bool = True,
    diagnostics: tuple[Diagnostic, ...] = DIAGNOSTICS,
    read_labels: ReadLabels = read_nothing,
    read_texts: ReadTexts = read_nothing,
    read_evaluated: ReadEvaluated = read_nothing,
    read_prompt_ends: ReadPromptEnds = read_nothing,
    read_arithmetic: ReadArithmetic | None = None,
) -> Report:
    """Diagnose the last steps of a run.

    Args:
        rows: rollouts of all steps.
        settings: None for the defaults of each diagnostic.
        config: the trainer's arguments.
        scalars: what the trainer logged, by name; NaN or infinite where that was no number.
        evaluations: see `Run`; None for none.
        evaluated: see `Run`.
        has_ended: True if no more rollouts will come, so that fewer are enough to judge.
        within: a filter that selects exactly `rows` among the rollouts of their run; empty if they are all of it.
        attributed: see `Run`.
        scale: the best reward and what counts as solved; None computes them from `rows`.
        error: the exception that ended the training; None if there was none.
        units: number of evals that are judged like this one.
        in_full: False leaves out `scored_low` and `contrasts`, which no finding and no verdict needs.
        diagnostics: the checks to run.
        read_labels: see `Run`.
        read_texts: see `Run`.
        read_evaluated: see `Run`.
        read_prompt_ends: see `Run`.
        read_arithmetic: see `Run`; None: it is not audited.
    """
    settings = settings or Settings()
    evals = rows.present
    if len(evals) == 1:
        settings = settings.of_environment(evals[0])
    last = rows.last_steps(settings.steps, FEW_ROLLOUTS)
    scale = (scale or Scale.of(rows, settings)).narrowed(rows)
    if units > 1:  # those of other environments say nothing of this one
        evaluations = {name: trend for name, trend in (evaluations or {}).items() if name in evals}
        evaluated = evaluated and evaluated.where(np.logical_or.reduce([evaluated.in_eval(name) for name in evals]))
    gaps = {name: [step for step, value in trend if not isfinite(value)] for name, trend in (scalars or {}).items()}
    run = Run(
        last, rows, scale, waterfall(last, scale), settings, config or {}, finite(scalars or {}), attributed,
        read_labels, read_texts, read_prompt_ends, read_arithmetic, gaps, evaluations or {}, read_evaluated,
        evaluated or None,
    )  # fmt: skip
    steps = (int(last.steps[0]), int(last.steps[-1])) if len(last) else None
    span = "" if steps is None else f"step:{steps[0]}" if steps[0] == steps[1] else f"step:{steps[0]}..{steps[1]}"
    scope = " ".join(filter(None, [within, span if len(last) < len(rows) else ""]))
    is_short = len(rows) < FEW_ROLLOUTS or len(rows.steps) < FEW_STEPS
    if len(rows) < _FEW_OF_ENDED if has_ended else is_short:
        early = TOO_EARLY if error is None else verdict(run, (), error)
        return Report((), run.fall, scale, steps, scope, warming_up=True, attributed=attributed, verdict=early)
    outcomes = [judge(diagnostic, run) for diagnostic in diagnostics]
    names = {diagnostic.id: diagnostic.name for diagnostic in diagnostics}
    of_each = partial(
        diagnose_rows, settings=settings, config=config, scalars=scalars, has_ended=has_ended, attributed=attributed,
        evaluations=evaluations, evaluated=evaluated, scale=scale, diagnostics=diagnostics, read_texts=read_texts,
        read_evaluated=read_evaluated, units=min(len(evals), _ENVIRONMENTS), in_full=False,
    )  # fmt: skip
    environments = _diagnose_evals(rows, evals, of_each, within) if len(evals) > 1 else []
    costly = _list_costly(run, outcomes, environments)
    listed_ids = {card.id for card in costly}
    checked = tuple(
        _make_unlisted(outcome, names[outcome.id], settings) if isinstance(outcome, Card) else outcome
        for outcome in outcomes
        if outcome.id not in listed_ids
    )
    cards = advise_in_order(
        [card if card.eval else _make_shown(card, run, within, scope) for card in order_cards(costly, run.lost)], names
    )
    over_time = compare_over_time(run) if in_full else None
    rest, unexplained = scored_low(run, cards, over_time) if in_full else (None, 0.0)
    of_run = verdict(run, cards, error, units)
    if any(check.state == "muted" for check in checked):
        of_run = restate(of_run, are_muted=True)
    # An eval is judged by fewer checks than the run.
    verdicts = tuple(
        (name, restate(report.verdict, are_muted=False) if cards else report.verdict)
        for name, _, report in environments
    )
    return Report(
        cards, run.fall, scale, steps, scope, warming_up=False, checked=checked, attributed=attributed,
        verdict=of_all(run, cards, of_run, verdicts),
        scored_low=rest and _make_shown(rest, run, within, scope), unexplained=unexplained,
        environments=verdicts, contrasts=_contrasts(run, over_time) if in_full else (),
        within=within,
    )  # fmt: skip


def _list_costly(run: Run, outcomes: Sequence[Card | Checked], environments: Sequence[_OfEval]) -> list[Card]:
    """Return the findings that cost enough and are not muted; where an eval shows more of one, what it shows."""
    least = _CHEAP * max(run.fall.lost, spread(run))
    costly = [
        replace(card, explains=(*card.explains, *EXPLAINS.get(card.id, ())))
        for card in outcomes
        if isinstance(card, Card) and (card.cost or 0.0) > least and card.id not in run.settings.muted
    ]
    hidden = _list_hidden(run, costly, environments)
    return [*hidden, *(card for card in costly if card.id not in {other.id for other in hidden})]


def _contrasts(run: Run, over_time: Compared | None) -> tuple[Contrast, ...]:
    """Return the tables that have a line."""
    families, places = compare_families(run), compare_places(run)
    tables = (
        Contrast("time", *list_differences(run.all, over_time, families)),
        Contrast("groups", *list_differences(run.rows, compare_within_groups(run))),
        Contrast("places", *list_differences(run.rows, *places)),
    )
    return tuple(table for table in tables if table.lines)


def _diagnose_evals(rows: Rows, evals: Sequence[str], diagnose: Callable[..., Report], within: str) -> list[_OfEval]:
    """Diagnose each eval, the largest first; of more than 8 the largest."""
    sizes = {name: int(rows.in_eval(name).sum()) for name in evals}
    largest = sorted(evals, key=lambda name: (-sizes[name], name))[:_ENVIRONMENTS]
    parts = {name: rows.of_part(rows.in_eval(name)) for name in largest}
    inside = {name: " ".join(filter(None, [within, f"eval:{print_name(name)}"])) for name in largest}
    return [(name, part, diagnose(part, within=inside[name])) for name, part in parts.items()]


def _list_hidden(run: Run, cards: Sequence[Card], environments: Sequence[_OfEval]) -> list[Card]:
    """Return the findings that make an eval sick and cost much of what it could give, where the whole run has them not,
    or as slight ones: its other evals are too many for a threshold, or have larger rewards.
    """
    listed_ids = {card.id for card in cards if not is_slight(run, card)}
    hidden: dict[str, Card] = {}
    for name, rows, report in environments:
        card = next((card for card in report.cards if card.id == report.verdict.card), None)
        if card is None or not report.verdict.is_ill or card.id in listed_ids or not card.cost or report.steps is None:
            continue
        judged, present = rows.where(rows.step >= report.steps[0]), run.rows.in_eval(name)
        is_rare = present.mean() < _PRESENT or present.sum() < len(judged) / 2
        least = _MUCH * (report.fall.best - float(rows.reward[np.isfinite(rows.reward)].min(initial=report.fall.best)))
        if is_rare or card.is_of_evaluations or card.cost < least or fades(run, card):
            continue
        affected = np.isin(run.rows.id, judged.id if card.own is None else judged.id[card.own])
        of_run = replace(
            card, title=f"{name}: {card.title}", cost=card.cost * float(present.mean()), share=float(affected.mean()),
            own=affected, eval=name, is_part=card.is_part and report.steps == (run.rows.steps[0], run.rows.steps[-1]),
            explains=EXPLAINS.get(card.id, ()),
        )  # fmt: skip
        hidden.setdefault(card.id, of_run)
    return list(hidden.values())


def _make_unlisted(card: Card, name: str, settings: Settings) -> Checked:
    """Return a finding that is not listed among the findings: it costs too little, or is muted."""
    reason = settings.muted.get(card.id)
    if reason is None:
        return Checked(card.id, name, "cheap", f"{card.title}.", card.where)
    return Checked(card.id, name, "muted", f"{card.title} ({reason}).", card.where)


def judge(diagnostic: Diagnostic, run: Run) -> Card | Checked:
    """Return what one diagnostic finds, or why it finds nothing."""
    lacks = diagnostic.missing(run)
    if lacks is not None:
        return Checked(diagnostic.id, diagnostic.name, "not_recorded", lacks)
    outcome = diagnostic.look(run)
    if isinstance(outcome, Card):
        return outcome
    if diagnostic.needs_calls and (unknown := uncovered(run)) is not None:
        outcome = unknown
    if isinstance(outcome, NotJudged):
        if outcome.for_lack is not None and (lacks := run.lacking(outcome.for_lack)) is not None:
            return Checked(diagnostic.id, diagnostic.name, "not_recorded", lacks)
        return Checked(diagnostic.id, diagnostic.name, "not_judged", outcome.said)
    return Checked(
        diagnostic.id, diagnostic.name, "below", *((outcome.said, outcome.where) if outcome else ("No finding.",))
    )


def _make_shown(card: Card, run: Run, within: str, scope: str) -> Card:
    """Return a card as reports have it: no cost above that of all causes, and none for what is no loss."""
    if card.own is not None and len(card.where) > _LONG:
        where = ids(run.rows.id[card.own])
    elif card.where.startswith(("id:", "mode:")) and card.id in _OURS:
        where = card.where
    else:  # A card whose filter names steps is about those steps, not about the last ones.
        where = " ".join(filter(None, [card.where, within if "step:" in card.where else scope]))
    cost = None if run.scale.is_flat or not card.is_loss else min(card.cost or 0.0, run.fall.lost + run.fall.above)
    share = 1.0 if card.own is None or not len(card.own) else float(card.own.mean())
    place = place_of(run, card)
    place = place.replace(": ", ": at least ", 1) if card.is_least else place
    first, last = card.since_range or (card.since_step or 0,) * 2
    switches = describe_switches(run, first, last) if last > min(run.all.steps) else []
    return replace(
        card,
        where=where,
        cost=cost,
        share=share if card.share is None else card.share,
        than=card.than or ("other rollouts" if _is_more(run, card) else ""),
        evidence=(*card.evidence, *filter(None, (place, *switches))),
        by_user=card.id not in _OURS,
        suggestion=IN_EVALUATION.get(card.id, card.suggestion) if run.rows.is_evaluation else card.suggestion,
    )


def _is_more(run: Run, card: Card) -> bool:
    """Return True if the cost is what a card's rollouts lose more than the others, and these lose something, too."""
    if card.own is None or card.own.all() or not card.own.any() or run.lost[~card.own].mean() <= SAME:
        return False
    more = float(card.own.mean()) * float(run.lost[card.own].mean() - run.lost[~card.own].mean())
    return isclose(card.cost or 0.0, more, rel_tol=1e-6)


def all_limits(custom: Sequence[Diagnostic] = ()) -> dict[str, Limits | None]:
    """Return the allowed range of each diagnostic's threshold by id, for the built-in ones and the user's. Raises
    SettingsError if two diagnostics have the same id, TypeError if an item is not a Diagnostic.
    """
    for diagnostic in custom:
        if not isinstance(diagnostic, Diagnostic):
            raise TypeError(f"diagnostics takes Diagnostic(...), not a {type(diagnostic).__name__}")
    ids = [diagnostic.id for diagnostic in (*DIAGNOSTICS, *custom)]
    for name in ids:
        if ids.count(name) > 1:
            raise SettingsError(f"Two diagnostics are called {name!r}: give yours another id.")
    return {diagnostic.id: diagnostic.limits for diagnostic in (*DIAGNOSTICS, *custom)}


def guarded(diagnostic: Diagnostic, failed: list[Failed]) -> Diagnostic:
    """Return a diagnostic that never raises: if it does, or returns something else than a card, `failed` gets it."""

    def tried(make: Callable[[], T]) -> T | None:
        try:
            return make()
        except Exception as error:  # noqa: BLE001 - of any kind, as the user's code may raise it
            failed.append(Failed(diagnostic.id, diagnostic.name, error_line(error)))
            return None

    def look_guarded(run: Run) -> Outcome:
        has_failed = any(failure.id == diagnostic.id for failure in failed)
        outcome = None if has_failed else tried(lambda: _check_outcome(diagnostic, diagnostic.look(run)))
        return (
            NotJudged("The check raised an error.")
            if any(failure.id == diagnostic.id for failure in failed)
            else outcome
        )

    return replace(diagnostic, missing=lambda run: tried(lambda: diagnostic.missing(run)), look=look_guarded)


def _check_outcome(diagnostic: Diagnostic, card: Outcome) -> Outcome:
    """Return the outcome if it is valid; else raise TypeError or ValueError, or FilterError because of its filter."""
    if card is None or isinstance(card, Below | NotJudged):
        return card
    if not isinstance(card, Card):
        raise TypeError(f"it returned a {type(card).__name__}, not a Card or None")
    if card.id != diagnostic.id:
        raise ValueError(f"its card has the id {card.id!r}: give it the diagnostic's, {diagnostic.id!r}")
    if isinstance(card.evidence, str):
        raise TypeError("its card's evidence is one text: give a tuple of sentences")
    if card.cost is None or not np.isfinite(card.cost):
        raise ValueError(f"its card costs {card.cost}: give a finite number")
    parse_where(card.where)
    return replace(card, cost=float(card.cost), evidence=tuple(map(str, card.evidence)))
