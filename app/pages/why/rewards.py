"""Shows the reward functions of a run: their shares, their correlations within groups, and checks."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from sqlalchemy import Connection

from logs_ui.app.pages.why.reward_findings import Finding, findings
from logs_ui.app.pages.why.tab import StepWindow, WhyTab, fresh_of, kept, tab_router
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
_BINS = (0.2, 0.5, 0.8)  # shades of an r; 0.8 is where length.py calls it strong
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


def matrix(run: str, names: list[str], found: dict[tuple[str, str], float], here: StepWindow) -> Matrix:
    columns = [(key(name), name, rewards(name)) for name in names]
    known = {name: field for name, field in _FIELDS.items() if np.isfinite(getattr(here.rows, field)).any()}
    others = [(name, OTHERS[name], field) for name, field in known.items()]
    return Matrix(
        heads=[(name, f"Value returned by {name}") for _, name, _ in columns]
        + [(title, MEANING[name]) for name, title, _ in others],
        lines=[
            (name, [_cell(run, here, found, (own, name, field), other) for other in (*columns, *others)])
            for own, name, field in columns
        ],
    )


def _cell(
    run: str,
    here: StepWindow,
    found: dict[tuple[str, str], float],
    one: tuple[str, str, str],
    other: tuple[str, str, str],
) -> CorrelationCell:
    if one == other:
        return CorrelationCell(None, "self", "Same value", None)
    r = found[one[0], other[0]]
    names = listed([one[1], other[1]])
    # Only rollouts that were scored have a reward: `reward:none` is no term.
    terms = [f"-{field}:none" for field in (one[2], other[2]) if field != "reward"]
    address = urls.rollouts(run, here.only(" ".join(terms)))
    if math.isnan(r):
        return CorrelationCell(
            None, "unknown", f"{names}: one of them does not vary within groups, or too few rollouts have both", address
        )
    return CorrelationCell(r, signed_bin(r, _BINS), f"{names}: r = {figure(r)} within groups", address)


class FunctionLine(NamedTuple):
    """Describes one reward function."""

    it: Function
    sparkline: charts.Sparkline | None  # of its raw mean by step
    change: float | None  # of its raw mean, from as many steps before; None without any
    bar: charts.Bar | None  # of its share of the variance
    all: str  # address of the rollouts for which it returned a number
    below: str | None  # of those with less than its best value; None if that is unknown
    nothing: str  # of those without a number


class SumLine(NamedTuple):
    """Compares the reward, or the environment's own reward, with the functions."""

    name: str
    meaning: str
    mean: float | None
    nothing: float | None  # share of the scored rollouts without one
    left: float | None  # what is left to gain, up to the best known value; None without one
    below: str | None  # address of the rollouts below that value; None likewise
    sparkline: charts.Sparkline | None
    all: str
    without: str


@dataclass(frozen=True)
class WhyRewardsPage(WhyTab):
    """Context of `why/why_rewards.html`."""

    verdict: str
    lines: list[FunctionLine]  # the reward functions, largest variance share first
    sums: list[SumLine]  # the rewards to compare them with
    unscored: tuple[int, str]  # number of rollouts without a number from any function, and their address
    matrix: Matrix | None  # of the first functions; None without any
    # (colour class, name) of each function, in the order of the chart; those beyond the colours are one.
    kinds: list[tuple[str, str]]
    # Variance shares by step, for the whole run; empty for one function, and fewer than two steps.
    stacks: list[StepStack]
    findings: list[Finding]
    spread: str  # address of the groups, largest standard deviation first


def _page(db: Connection, summary: RunSummary, known: Diagnosed, here: StepWindow) -> WhyRewardsPage:  # noqa: ARG001
    run = summary.run
    found, together, looked_for = kept(
        known,
        ("rewards", here.first, here.last),
        lambda: (functions(here.rows, known.rows), correlations(here.rows), findings(known, here)),
    )
    drawn = _drawn([it.name for it in found])
    return WhyRewardsPage(
        summary=summary,
        window=here,
        fresh=fresh_of(summary),
        verdict=_verdict(found, here),
        lines=[_line(run.uid, it, here) for it in found],
        sums=_sums(run.uid, here, known) if found else [],
        unscored=(int(unscored(here.rows).sum()), urls.rollouts(run.uid, here.only("scored:no"))),
        matrix=matrix(run.uid, [it.name for it in found[:_MOST_TOGETHER]], together, here) if found else None,
        kinds=[(f"c{at + 1}", title) for at, title in enumerate(drawn)],
        stacks=_stacks(run.uid, known, drawn, here),
        findings=looked_for,
        spread=urls.groups(run.uid, here.only(), sort=GroupSort.LARGEST_STD),
    )


def _verdict(found: list[Function], here: StepWindow) -> str:
    if not found:
        return "No reward function values are recorded."
    shared = [it for it in found if it.share is not None]
    left = max((it for it in found if it.left is not None), key=lambda it: it.left or 0.0, default=None)
    if not shared:
        return f"All groups of {here.said} have zero variance: no reward function explains a difference."
    if len(found) == 1:
        rest = f"; {figure(left.left or 0.0)} is left to gain" if left else ""
        return f"{found[0].name} is the only reward function and explains all within-group reward variance{rest}."
    first = found[0]
    explains = f"{first.name} explains {percent(first.share or 0.0)} of within-group reward variance"
    if left is None or not left.left:
        return f"{explains}; no function has anything left to gain."
    if left is first:
        return f"{explains} and has most left to gain ({figure(left.left)})."
    return f"{explains}; {left.name} has most left to gain ({figure(left.left)})."


def _line(run: str, it: Function, here: StepWindow) -> FunctionLine:
    field = rewards(it.name)
    top = it.best / it.weight if it.weight > 0 else None
    scored = "" if here.rows.scored.all() else " scored:yes"
    return FunctionLine(
        it=it,
        sparkline=_sparkline(it.trend),
        change=None if it.mean is None or it.before is None else it.mean - it.before,
        bar=None if it.share is None else charts.Scale(min(0.0, it.share), 1.0).bar(it.share),
        all=urls.rollouts(run, here.only(f"-{field}:none")),
        below=None if top is None else urls.rollouts(run, here.only(f"{field}<{top:.9g}")),
        nothing=urls.rollouts(run, here.only(f"{field}:none{scored}")),
    )


def _sums(run: str, here: StepWindow, known: Diagnosed) -> list[SumLine]:
    rows, every = here.rows, known.rows
    scale = known.report.scale
    best, below = float(scale.bests(rows).mean()), "" if scale.units else f"reward<{scale.best:.9g}"
    wanted = [(name, _FIELDS[name], getattr(rows, _FIELDS[name])) for name in (REWARD, ENVIRONMENT)]
    return [
        SumLine(
            name=OTHERS[name],
            meaning=MEANING[name],
            mean=average,
            nothing=mean(np.where(rows.scored, np.isnan(values), np.nan)),
            left=max(best - average, 0.0) if name == REWARD else None,
            below=urls.rollouts(run, here.only(below)) if name == REWARD and below else None,
            sparkline=_sparkline(every.by_step(getattr(every, field))),
            all=urls.rollouts(run, here.only("scored:yes" if name == REWARD else f"-{field}:none")),
            without=urls.rollouts(run, here.only("scored:no" if name == REWARD else f"{field}:none")),
        )
        for name, field, values in wanted
        if (average := mean(values)) is not None
    ]


def _drawn(names: list[str]) -> dict[str, list[str]]:
    """Return the functions of each colour of the chart, by its title: those beyond the colours are together."""
    if len(names) <= _COLOURS:
        return {name: [name] for name in names}
    rest = names[_COLOURS - 1 :]
    return {**{name: [name] for name in names[: _COLOURS - 1]}, f"{len(rest)} others": rest}


def _stacks(run: str, known: Diagnosed, drawn: dict[str, list[str]], here: StepWindow) -> list[StepStack]:
    """Build the chart of variance shares. Many steps are binned, since a step has few groups."""
    if len(drawn) < 2 or len(known.rows.steps) < 2:
        return []
    bins = Bins.of(int(known.rows.steps[0]), int(known.rows.steps[-1]), _MOST_STACKS)
    share = kept(known, "shares", lambda: shares_by((known.rows.step - bins.first) // bins.together, known.rows))
    return [
        bins.stack(
            at,
            [f"c{at + 1}" for at in range(len(drawn))],
            line,
            [(label(name, 40), percent(value).replace("-", "\u2212")) for name, value in zip(drawn, line, strict=True)],
            urls.groups(run, RolloutFilter(modes=(here.mode,), **bins.ends(at))),
        )
        for at, line in enumerate(np.stack([sum(share[it] for it in of) for of in drawn.values()], 1).tolist())
        if not any(map(math.isnan, line))
    ]


def _sparkline(trend: Trend) -> charts.Sparkline | None:
    return charts.sparkline(thinned(trend, _POINTS))


router = tab_router("rewards", _page)
