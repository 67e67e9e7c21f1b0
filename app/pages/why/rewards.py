"""Shows the reward functions of a run: their shares, their correlations within groups, and checks."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from sqlalchemy import Connection

from logs_ui.app.pages.why.reward_findings import Finding, findings
from logs_ui.app.pages.why.tab import StepWindow, WhyTab, cache_figure, fresh_of, tab_router
from logs_ui.app.parts import charts
from logs_ui.app.parts.figure_table import thinned
from logs_ui.app.parts.figures import signed_bin
from logs_ui.app.parts.safe_text import label
from logs_ui.app.parts.step_stacks import Bins, StepStack
from logs_ui.app.web import urls
from logs_ui.recorder.analysis.diagnose import Diagnosed
from logs_ui.recorder.diagnosis.card import Trend
from logs_ui.recorder.diagnosis.links import rewards
from logs_ui.recorder.diagnosis.measures import mean
from logs_ui.recorder.diagnosis.tables.rewards import (
    ENVIRONMENT,
    LENGTH,
    REWARD,
    Function,
    correlations,
    functions,
    key,
    shares_by,
    unscored,
)
from logs_ui.recorder.diagnosis.wording import figure, listed, percent
from logs_ui.recorder.queries import GroupSort, RunSummary
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter

_POINTS = 150  # of a sparkline
_MOST_STACKS = 50
_COLOURS = 8
_MOST_TOGETHER = 12  # functions whose correlations are shown: of 60, they would be 3,800 links
_BINS = (0.2, 0.5, 0.8)  # shades of an r; 0.8 is where answer_length.py calls it strong
OTHERS = {REWARD: "reward", ENVIRONMENT: "environment", LENGTH: "tokens/turn"}
MEANING = {
    REWARD: "The weighted sum of all reward functions",
    ENVIRONMENT: "The environment's own reward, summed over its steps",
    LENGTH: "Tokens that the model sampled per turn",
}
_FIELDS = {REWARD: "reward", ENVIRONMENT: "env_reward_sum", LENGTH: "completion_tokens"}
"""The column of each, in filters and in Rows."""


class CorrelationCell(NamedTuple):
    """Shows the correlation of two values within groups."""

    r: float | None  # None if it cannot be computed
    shade: str
    title: str
    address: str | None  # of the rollouts that have both; None on the diagonal


class Matrix(NamedTuple):
    """Holds the correlations: `heads` are (name, meaning), `lines` a function's name and its cells."""

    heads: list[tuple[str, str]]
    lines: list[tuple[str, list[CorrelationCell]]]


def matrix(run_uid: str, names: list[str], r_by_pair: dict[tuple[str, str], float], window: StepWindow) -> Matrix:
    columns = [(key(name), name, rewards(name)) for name in names]
    recorded_fields = {name: field for name, field in _FIELDS.items() if np.isfinite(getattr(window.rows, field)).any()}
    others = [(name, OTHERS[name], field) for name, field in recorded_fields.items()]
    return Matrix(
        heads=[(name, f"Value returned by {name}") for _, name, _ in columns]
        + [(title, MEANING[name]) for name, title, _ in others],
        lines=[
            (
                name,
                [
                    _cell(run_uid, window, r_by_pair, (column_key, name, field), column)
                    for column in (*columns, *others)
                ],
            )
            for column_key, name, field in columns
        ],
    )


def _cell(
    run_uid: str,
    window: StepWindow,
    r_by_pair: dict[tuple[str, str], float],
    first_column: tuple[str, str, str],
    second_column: tuple[str, str, str],
) -> CorrelationCell:
    if first_column == second_column:
        return CorrelationCell(None, "self", "Same value", None)
    r = r_by_pair[first_column[0], second_column[0]]
    names = listed([first_column[1], second_column[1]])
    # Only rollouts that were scored have a reward: `reward:none` is no term.
    terms = [f"-{field}:none" for field in (first_column[2], second_column[2]) if field != "reward"]
    address = urls.rollouts(run_uid, window.make_filter(" ".join(terms)))
    if math.isnan(r):
        return CorrelationCell(
            None, "unknown", f"{names}: one of them does not vary within groups, or too few rollouts have both", address
        )
    return CorrelationCell(r, signed_bin(r, _BINS), f"{names}: r = {figure(r)} within groups", address)


class FunctionLine(NamedTuple):
    """Describes one reward function."""

    function: Function
    sparkline: charts.Sparkline | None  # of its raw mean by step
    change: float | None  # of its raw mean, from as many steps before; None without any
    bar: charts.Bar | None  # of its share of the variance
    all_address: str  # address of the rollouts for which it returned a number
    below_address: str | None  # of those with less than its best value; None if that is unknown
    without_address: str  # of those without a number


class SumLine(NamedTuple):
    """Compares the reward, or the environment's own reward, with the functions."""

    name: str
    meaning: str
    mean: float | None
    nothing: float | None  # share of the scored rollouts without one
    left: float | None  # what is left to gain, up to the best known value; None without one
    below_address: str | None  # address of the rollouts below that value; None likewise
    sparkline: charts.Sparkline | None
    all_address: str
    without_address: str


@dataclass(frozen=True)
class WhyRewardsPage(WhyTab):
    """Context of `why/why_rewards.html`."""

    verdict: str
    lines: list[FunctionLine]  # the reward functions, largest variance share first
    sums: list[SumLine]  # the rewards to compare them with
    unscored_rollouts: tuple[int, str]  # number of rollouts without a number from any function, and their address
    matrix: Matrix | None  # of the first functions; None without any
    # (colour class, name) of each function, in the order of the chart; those beyond the colours are one.
    kinds: list[tuple[str, str]]
    # Variance shares by step, for the whole run; empty for one function, and fewer than two steps.
    stacks: list[StepStack]
    findings: list[Finding]
    spread_address: str  # address of the groups, largest standard deviation first


def _page(db: Connection, summary: RunSummary, diagnosis: Diagnosed, window: StepWindow) -> WhyRewardsPage:  # noqa: ARG001
    run = summary.run
    reward_functions, r_by_pair, check_findings = cache_figure(
        diagnosis,
        ("rewards", window.first, window.last),
        lambda: (functions(window.rows, diagnosis.rows), correlations(window.rows), findings(diagnosis, window)),
    )
    functions_by_title = _group_functions([function.name for function in reward_functions])
    return WhyRewardsPage(
        summary=summary,
        window=window,
        fresh=fresh_of(summary),
        verdict=_verdict(reward_functions, window),
        lines=[_line(run.uid, function, window) for function in reward_functions],
        sums=_sums(run.uid, window, diagnosis) if reward_functions else [],
        unscored_rollouts=(int(unscored(window.rows).sum()), urls.rollouts(run.uid, window.make_filter("scored:no"))),
        matrix=matrix(run.uid, [function.name for function in reward_functions[:_MOST_TOGETHER]], r_by_pair, window)
        if reward_functions
        else None,
        kinds=[(f"c{place + 1}", title) for place, title in enumerate(functions_by_title)],
        stacks=_stacks(run.uid, diagnosis, functions_by_title, window),
        findings=check_findings,
        spread_address=urls.groups(run.uid, window.make_filter(), sort=GroupSort.LARGEST_STD),
    )


def _verdict(reward_functions: list[Function], window: StepWindow) -> str:
    if not reward_functions:
        return "No reward function values are recorded."
    varying_functions = [function for function in reward_functions if function.share is not None]
    most_left = max(
        (function for function in reward_functions if function.left is not None),
        key=lambda function: function.left or 0.0,
        default=None,
    )
    if not varying_functions:
        return f"All groups of {window.steps_text} have zero variance: no reward function explains a difference."
    if len(reward_functions) == 1:
        gain_text = f"; {figure(most_left.left or 0.0)} is left to gain" if most_left else ""
        name = reward_functions[0].name
        return f"{name} is the only reward function and explains all within-group reward variance{gain_text}."
    first = reward_functions[0]
    explanation = f"{first.name} explains {percent(first.share or 0.0)} of within-group reward variance"
    if most_left is None or not most_left.left:
        return f"{explanation}; no function has anything left to gain."
    if most_left is first:
        return f"{explanation} and has most left to gain ({figure(most_left.left)})."
    return f"{explanation}; {most_left.name} has most left to gain ({figure(most_left.left)})."


def _line(run_uid: str, function: Function, window: StepWindow) -> FunctionLine:
    field = rewards(function.name)
    best_value = function.best / function.weight if function.weight > 0 else None
    scored_term = "" if window.rows.scored.all() else " scored:yes"
    return FunctionLine(
        function=function,
        sparkline=_sparkline(function.trend),
        change=None if function.mean is None or function.before is None else function.mean - function.before,
        bar=None if function.share is None else charts.Scale(min(0.0, function.share), 1.0).bar(function.share),
        all_address=urls.rollouts(run_uid, window.make_filter(f"-{field}:none")),
        below_address=None
        if best_value is None
        else urls.rollouts(run_uid, window.make_filter(f"{field}<{best_value:.9g}")),
        without_address=urls.rollouts(run_uid, window.make_filter(f"{field}:none{scored_term}")),
    )


def _sums(run_uid: str, window: StepWindow, diagnosis: Diagnosed) -> list[SumLine]:
    rows, run_rows = window.rows, diagnosis.rows
    scale = diagnosis.report.scale
    best_mean, below_term = float(scale.bests(rows).mean()), "" if scale.units else f"reward<{scale.best:.9g}"
    columns = [(name, _FIELDS[name], getattr(rows, _FIELDS[name])) for name in (REWARD, ENVIRONMENT)]
    return [
        SumLine(
            name=OTHERS[name],
            meaning=MEANING[name],
            mean=average,
            nothing=mean(np.where(rows.scored, np.isnan(values), np.nan)),
            left=max(best_mean - average, 0.0) if name == REWARD else None,
            below_address=urls.rollouts(run_uid, window.make_filter(below_term))
            if name == REWARD and below_term
            else None,
            sparkline=_sparkline(run_rows.by_step(getattr(run_rows, field))),
            all_address=urls.rollouts(
                run_uid, window.make_filter("scored:yes" if name == REWARD else f"-{field}:none")
            ),
            without_address=urls.rollouts(
                run_uid, window.make_filter("scored:no" if name == REWARD else f"{field}:none")
            ),
        )
        for name, field, values in columns
        if (average := mean(values)) is not None
    ]


def _group_functions(names: list[str]) -> dict[str, list[str]]:
    """Return the functions of each colour of the chart, by its title: those beyond the colours are together."""
    if len(names) <= _COLOURS:
        return {name: [name] for name in names}
    rest = names[_COLOURS - 1 :]
    return {**{name: [name] for name in names[: _COLOURS - 1]}, f"{len(rest)} others": rest}


def _stacks(
    run_uid: str, diagnosis: Diagnosed, functions_by_title: dict[str, list[str]], window: StepWindow
) -> list[StepStack]:
    """Build the chart of variance shares. Many steps are binned, since a step has few groups."""
    if len(functions_by_title) < 2 or len(diagnosis.rows.steps) < 2:
        return []
    bins = Bins.of(int(diagnosis.rows.steps[0]), int(diagnosis.rows.steps[-1]), _MOST_STACKS)
    shares = cache_figure(
        diagnosis, "shares", lambda: shares_by((diagnosis.rows.step - bins.first) // bins.together, diagnosis.rows)
    )
    return [
        bins.stack(
            place,
            [f"c{place + 1}" for place in range(len(functions_by_title))],
            line,
            [
                (label(name, 40), percent(value).replace("-", "\u2212"))
                for name, value in zip(functions_by_title, line, strict=True)
            ],
            urls.groups(run_uid, RolloutFilter(modes=(window.mode,), **bins.ends(place))),
        )
        for place, line in enumerate(
            np.stack([sum(shares[name] for name in names) for names in functions_by_title.values()], 1).tolist()
        )
        if not any(map(math.isnan, line))
    ]


def _sparkline(trend: Trend) -> charts.Sparkline | None:
    return charts.sparkline(thinned(trend, _POINTS))


router = tab_router("rewards", _page)
