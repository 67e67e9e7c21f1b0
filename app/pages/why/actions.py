"""Shows the actions of a run: the most frequent ones, first and last, errors and repeats."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from sqlalchemy import Connection

from logs_ui.app.pages.why.sampled_actions import SampledActions, make_sampled_actions
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
    remark: str
    address: str | None


class ActionLine(NamedTuple):
    """Counts rollouts with the same first, or last, action."""

    action: str | None  # None for rollouts without one
    text: str
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
    distinct_actions: int
    more_rollouts: int  # number of rollouts whose action is in no line
    contrast: str  # a sentence on the last action typical of unsolved rollouts; empty if it may be chance


@dataclass(frozen=True)
class WhyActionsPage(WhyTab):
    """Context of `why/why_actions.html`."""

    tiles: list[ActionTile]  # empty if no action was recorded
    habits: list[tuple[HabitFound, str]]  # see `tables.actions.HabitFound`, and the address of the rollouts with each
    first_actions: ActionTable | None  # None if no action was recorded
    last_actions: ActionTable | None  # None if no action was recorded
    sampled_actions: SampledActions | None  # None if the newest rollouts have no action


def _page(db: Connection, summary: RunSummary, diagnosis: Diagnosed, window: StepWindow) -> WhyActionsPage:
    run = summary.run
    tallies_by_column = {
        name: tallies(window.rows, diagnosis.report.scale, name) for name in ("first_action", "last_action")
    }
    has_actions = bool((window.rows.facts["env_steps"] > 0).any())
    sampled_actions = make_sampled_actions(db, run, diagnosis, window)
    return WhyActionsPage(
        summary=summary,
        window=window,
        fresh=fresh_of(summary),
        tiles=_tiles(run.uid, window, tallies_by_column["first_action"], sampled_actions) if has_actions else [],
        habits=[
            (habit_count, urls.rollouts(run.uid, window.make_filter(habit_count.habit.where)))
            for habit_count in habits(window.rows)
        ],
        first_actions=_table(run.uid, window, "first_action", tallies_by_column["first_action"])
        if has_actions
        else None,
        last_actions=_table(run.uid, window, "last_action", tallies_by_column["last_action"]) if has_actions else None,
        sampled_actions=sampled_actions,
    )


def _tiles(
    uid: str, window: StepWindow, first_actions: Sequence[Tally], sampled_actions: SampledActions | None
) -> list[ActionTile]:
    rows = window.rows
    steps, calls = (rows.facts[name] for name in ("env_steps", "tool_calls"))
    acted_count, recorded_count = int((steps > 0).sum()), int((~np.isnan(steps)).sum())
    distinct_actions = [tally for tally in first_actions if tally.value is not None]
    return [
        ActionTile(
            "Rollouts that act",
            percent(acted_count / recorded_count) if recorded_count else None,
            f"{acted_count:,} of {recorded_count:,}",
            urls.rollouts(uid, window.make_filter("env_steps>0")),
        ),
        ActionTile("Actions per rollout", _figure(steps), "on average", None),
        ActionTile(
            "Distinct first actions",
            f"{len(distinct_actions):,}" if distinct_actions else None,
            f"{percent(distinct_actions[0].rollouts / acted_count)} begin with the same one"
            if distinct_actions and acted_count
            else "",
            _link_action(uid, window.make_filter(), "first_action", distinct_actions[0].value)
            if distinct_actions
            else None,
        ),
        ActionTile(
            "Actions with an error",
            percent(sampled_actions.failed_actions / sampled_actions.sample.actions) if sampled_actions else None,
            f"{sampled_actions.failed_actions:,} of {sampled_actions.sample.actions:,},"
            f" newest {sampled_actions.sample.rollouts:,} rollouts"
            if sampled_actions
            else "",
            sampled_actions.failed_in.address if sampled_actions else None,
        ),
        ActionTile(
            "Tool calls per rollout",
            _figure(calls) if np.nansum(calls) else None,
            "in the model's messages" if np.nansum(calls) else "none recorded as tool calls",
            urls.rollouts(uid, window.make_filter("tool_calls>0")) if np.nansum(calls) else None,
        ),
    ]


def _figure(values: Floats) -> str | None:
    recorded_values = values[~np.isnan(values)]
    return (f"{recorded_values.mean():.1f}" if recorded_values.any() else "0") if len(recorded_values) else None


def _table(uid: str, window: StepWindow, column: str, action_tallies: Sequence[Tally]) -> ActionTable:
    top_tallies, window_filter = action_tallies[:_MOST_LINES], window.make_filter()
    means = charts.Scale.over([tally.mean for tally in top_tallies if tally.mean is not None])
    return ActionTable(
        title="First action" if column == "first_action" else "Last action",
        lines=[
            ActionLine(
                action=tally.value,
                text=written_action(tally.value or ""),
                rollouts=tally.rollouts,
                share=tally.rollouts / len(window.rows),
                mean=tally.mean,
                bar=None if tally.mean is None else means.bar(tally.mean),
                solved=tally.solved / tally.scored if tally.scored and tally.solved is not None else None,
                address=_link_action(uid, window_filter, column, tally.value),
            )
            for tally in top_tallies
        ],
        distinct_actions=sum(tally.value is not None for tally in action_tallies),
        more_rollouts=sum(tally.rollouts for tally in action_tallies[_MOST_LINES:]),
        contrast=_contrast([(tally, tally.solved) for tally in action_tallies if tally.solved is not None])
        if column == "last_action"
        else "",
    )


def _contrast(tallies_with_wins: Sequence[tuple[Tally, int]]) -> str:
    """Describe the last action most typical of unsolved rollouts, if it is so by _SURE standard errors; else empty."""
    solved = sum(wins for _, wins in tallies_with_wins)
    unsolved = sum(tally.scored - wins for tally, wins in tallies_with_wins)
    if not solved or not unsolved:
        return ""
    most_typical, wins = max(
        tallies_with_wins, key=lambda pair: (pair[0].scored - pair[1]) / unsolved - pair[1] / solved
    )
    of_unsolved, of_solved = (most_typical.scored - wins) / unsolved, wins / solved
    pooled = most_typical.scored / (solved + unsolved)
    error = math.sqrt(pooled * (1 - pooled) * (1 / solved + 1 / unsolved))
    if of_unsolved - of_solved <= _SURE * error:
        return ""
    ending = "without any action" if most_typical.value is None else f"with {written_action(most_typical.value)}"
    return (
        f"{percent(of_unsolved)} of the unsolved rollouts end {ending},"
        f" against {percent(of_solved)} of the solved ones."
    )


def _link_action(uid: str, window_filter: RolloutFilter, column: str, action: str | None) -> str:
    return urls.rollouts(uid, window_filter.with_terms(Term(column, (action,))))


router = tab_router("actions", _page)
