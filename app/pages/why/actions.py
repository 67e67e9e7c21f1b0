"""Shows the actions of a run: the most frequent ones, first and last, errors and repeats."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from sqlalchemy import Connection

from logs_ui.app.pages.why.sampled_actions import Sampled, make_sampled
from logs_ui.app.pages.why.tab import StepWindow, WhyTab, fresh_of, tab_router
from logs_ui.app.parts import charts
from logs_ui.app.web import urls
from logs_ui.recorder.action_text import written_action
from logs_ui.recorder.analysis.diagnose import Diagnosed
from logs_ui.recorder.diagnosis.rollout_rows import Floats
from logs_ui.recorder.diagnosis.tables.actions import HabitFound, Tally, habits, tallies
from logs_ui.recorder.diagnosis.wording import percent
from logs_ui.recorder.queries import RunSummary
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter
from logs_ui.recorder.queries.filters.terms import Term

_MOST_LINES = 10  # of a table
_SURE = 3


class ActionTile(NamedTuple):
    """Shows one figure of all rollouts; `text` is None if it was not recorded."""

    title: str
    text: str | None
    rest: str
    address: str | None


class ActionLine(NamedTuple):
    """Counts rollouts with the same first, or last, action."""

    action: str | None  # None for rollouts without one
    shown: str
    rollouts: int
    share: float  # of all rollouts, from 0 to 1
    mean: float | None
    bar: charts.Bar | None
    solved: float | None  # share of those for which that is known; None without any
    address: str


class ActionTable(NamedTuple):
    """Shows the first, or the last, actions."""

    title: str
    lines: list[ActionLine]
    different: int
    beyond: int  # number of rollouts whose action is in no line
    contrast: str  # a sentence on the last action typical of unsolved rollouts; empty if it may be chance


@dataclass(frozen=True)
class WhyActionsPage(WhyTab):
    """Context of `why/why_actions.html`."""

    tiles: list[ActionTile]  # empty if no action was recorded
    habits: list[tuple[HabitFound, str]]  # see `tables.actions.HabitFound`, and the address of the rollouts with each
    firsts: ActionTable | None  # None if no action was recorded
    lasts: ActionTable | None  # None if no action was recorded
    sampled: Sampled | None  # None if the newest rollouts have no action


def _page(db: Connection, summary: RunSummary, known: Diagnosed, here: StepWindow) -> WhyActionsPage:
    run = summary.run
    found = {name: tallies(here.rows, known.report.scale, name) for name in ("first_action", "last_action")}
    has_any = bool((here.rows.facts["env_steps"] > 0).any())
    read = make_sampled(db, run, known, here)
    return WhyActionsPage(
        summary=summary,
        window=here,
        fresh=fresh_of(summary),
        tiles=_tiles(run.uid, here, found["first_action"], read) if has_any else [],
        habits=[(it, urls.rollouts(run.uid, here.only(it.habit.where))) for it in habits(here.rows)],
        firsts=_table(run.uid, here, "first_action", found["first_action"]) if has_any else None,
        lasts=_table(run.uid, here, "last_action", found["last_action"]) if has_any else None,
        sampled=read,
    )


def _tiles(uid: str, here: StepWindow, firsts: Sequence[Tally], read: Sampled | None) -> list[ActionTile]:
    rows = here.rows
    steps, calls = (rows.facts[name] for name in ("env_steps", "tool_calls"))
    acted, known = int((steps > 0).sum()), int((~np.isnan(steps)).sum())
    taken = [it for it in firsts if it.value is not None]
    return [
        ActionTile(
            "Rollouts that act",
            percent(acted / known) if known else None,
            f"{acted:,} of {known:,}",
            urls.rollouts(uid, here.only("env_steps>0")),
        ),
        ActionTile("Actions per rollout", _figure(steps), "on average", None),
        ActionTile(
            "Distinct first actions",
            f"{len(taken):,}" if taken else None,
            f"{percent(taken[0].rollouts / acted)} begin with the same one" if taken and acted else "",
            _of_action(uid, here.only(), "first_action", taken[0].value) if taken else None,
        ),
        ActionTile(
            "Actions with an error",
            percent(read.failed / read.sample.actions) if read else None,
            f"{read.failed:,} of {read.sample.actions:,}, newest {read.sample.rollouts:,} rollouts" if read else "",
            read.failed_in.address if read else None,
        ),
        ActionTile(
            "Tool calls per rollout",
            _figure(calls) if np.nansum(calls) else None,
            "in the model's messages" if np.nansum(calls) else "none recorded as tool calls",
            urls.rollouts(uid, here.only("tool_calls>0")) if np.nansum(calls) else None,
        ),
    ]


def _figure(values: Floats) -> str | None:
    known = values[~np.isnan(values)]
    return (f"{known.mean():.1f}" if known.any() else "0") if len(known) else None


def _table(uid: str, here: StepWindow, column: str, found: Sequence[Tally]) -> ActionTable:
    shown, only = found[:_MOST_LINES], here.only()
    means = charts.Scale.over([it.mean for it in shown if it.mean is not None])
    return ActionTable(
        title="First action" if column == "first_action" else "Last action",
        lines=[
            ActionLine(
                action=it.value,
                shown=written_action(it.value or ""),
                rollouts=it.rollouts,
                share=it.rollouts / len(here.rows),
                mean=it.mean,
                bar=None if it.mean is None else means.bar(it.mean),
                solved=it.solved / it.scored if it.scored and it.solved is not None else None,
                address=_of_action(uid, only, column, it.value),
            )
            for it in shown
        ],
        different=sum(it.value is not None for it in found),
        beyond=sum(it.rollouts for it in found[_MOST_LINES:]),
        contrast=_contrast([(it, it.solved) for it in found if it.solved is not None])
        if column == "last_action"
        else "",
    )


def _contrast(found: Sequence[tuple[Tally, int]]) -> str:
    """Describe the last action most typical of unsolved rollouts, if it is so by _SURE standard errors; else empty."""
    solved = sum(wins for _, wins in found)
    unsolved = sum(it.scored - wins for it, wins in found)
    if not solved or not unsolved:
        return ""
    most, wins = max(found, key=lambda it: (it[0].scored - it[1]) / unsolved - it[1] / solved)
    of_unsolved, of_solved = (most.scored - wins) / unsolved, wins / solved
    pooled = most.scored / (solved + unsolved)
    error = math.sqrt(pooled * (1 - pooled) * (1 / solved + 1 / unsolved))
    if of_unsolved - of_solved <= _SURE * error:
        return ""
    what = "without any action" if most.value is None else f"with {written_action(most.value)}"
    return (
        f"{percent(of_unsolved)} of the unsolved rollouts end {what}, against {percent(of_solved)} of the solved ones."
    )


def _of_action(uid: str, only: RolloutFilter, column: str, action: str | None) -> str:
    return urls.rollouts(uid, only.with_terms(Term(column, (action,))))


router = tab_router("actions", _page)
