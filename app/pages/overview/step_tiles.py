"""Makes the tiles at the top of an overview: figures of the last steps, compared with the steps before."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from logs_ui.app.parts import charts, figures
from logs_ui.app.parts.step_charts import Form, mean, written
from logs_ui.recorder.analysis.diagnose import Diagnosed
from logs_ui.recorder.diagnosis.rollout_rows import Ints
from logs_ui.recorder.queries import Step
from logs_ui.recorder.vocabulary import StopReason

RECENT = 10
_SPARKLINE = 100  # points, at most

Figure = Callable[[Sequence[Step]], float | None]


class TileWindow(NamedTuple):
    """The last steps that have a reward, and as many before them; `before` may be empty."""

    recent: list[Step]
    before: list[Step]

    @classmethod
    def of(cls, last: Sequence[Step]) -> "TileWindow":
        """Split `last`, which has at least twice RECENT steps if the run has so many."""
        scored = [step.step for step in last if step.scored] or [step.step for step in last]
        start = scored[-RECENT:][0] if scored else 0
        before = scored[:-RECENT][-RECENT:]
        return cls(
            [step for step in last if step.step >= start],
            [step for step in last if before and before[0] <= step.step < start],
        )


class StepTile(NamedTuple):
    """Shows one figure, and its signed change from the steps before; None without any. The tone is `positive` or
    `negative` if the change is better or worse, else `quiet`.
    """

    name: str
    value: str
    change: str | None
    tone: str
    sparkline: charts.Sparkline | None
    meaning: str


class _Kind(NamedTuple):
    name: str
    form: Form
    figure: Figure
    meaning: str
    is_better_high: bool = False
    usual: float | None = None  # a figure that is this at every step says nothing


def make_tiles(
    window: TileWindow, steps: Sequence[Step], eval_name: str | None = "", judged: Diagnosed | None = None
) -> list[StepTile]:
    """Build the tiles whose figure is known and not the usual one at every step; the sparklines cover `steps`.

    `judged` has these steps' rollouts with that eval name (None for all), among others, and says which are solved.
    """
    kinds = [
        _Kind("Mean reward", Form.NUMBER, _reward, "Mean over the rollouts that have a reward.", is_better_high=True),
        *([] if judged is None or not judged.report.scale.success.is_defined else [_make_solved(judged, eval_name)]),
        _Kind(
            "Truncated",
            Form.SHARE,
            _truncated_share,
            "Share of the ended rollouts that hit their token limit.",
            usual=0,
        ),
        _Kind(
            "Zero-variance groups",
            Form.SHARE,
            lambda steps: mean(_sum(steps, "dead_groups"), int(_sum(steps, "groups"))),
            "Groups with zero reward variance: their advantages are 0, so they give no learning signal.",
            usual=0,
        ),
        _Kind("Tokens", Form.COUNT, _mean_of("tokens"), "Mean number of tokens that the model sampled per rollout."),
        _Kind("Turns", Form.COUNT, _mean_of("turns"), "Mean number of generations per rollout.", usual=1),
        _Kind(
            "Duration", Form.DURATION, _mean_of("seconds"), "Mean time from the first to the last call of a rollout."
        ),
    ]
    return [tile for kind in kinds if (tile := _tile(kind, window, steps)) is not None]


def _tile(kind: _Kind, window: TileWindow, steps: Sequence[Step]) -> StepTile | None:
    figure_now, figure_before = kind.figure(window.recent), kind.figure(window.before)
    if figure_now is None:
        return None
    thinned = steps[:: -(-len(steps) // _SPARKLINE) or 1]
    points = [(step.step, value) for step in thinned if (value := kind.figure([step])) is not None]
    if figure_now == kind.usual and all(value == kind.usual for _, value in points):
        return None
    change = None if figure_before is None else figure_now - figure_before
    tone = "quiet"
    if change is not None and kind.is_better_high:
        tone = "positive" if change > 0 else "negative" if change < 0 else "quiet"
    return StepTile(
        kind.name,
        written(figure_now, kind.form),
        None if change is None else _format_change(change, kind.form) or None,
        tone,
        charts.sparkline(points),
        kind.meaning,
    )


def _format_change(change: float, form: Form) -> str:
    """Format a change; empty if it rounds to nothing."""
    if form == Form.SHARE:
        points = round(100 * change)
        return f"{figures.signed(points, 0)} pp" if points else ""
    text = written(abs(change), form)
    sign = "+" if change > 0 else "\u2212"
    return f"{sign}{text}" if text.strip("0. ms") else ""


def _sum(steps: Sequence[Step], name: str) -> float:
    return float(sum(getattr(step, name) for step in steps))


def _reward(steps: Sequence[Step]) -> float | None:
    return mean(_sum(steps, "reward_sum"), int(_sum(steps, "scored")))


def _truncated_share(steps: Sequence[Step]) -> float | None:
    cut = sum(step.stop_reasons.get(StopReason.LENGTH, 0) for step in steps)
    return mean(cut, sum(step.ended for step in steps))


def _mean_of(name: str) -> Figure:
    return lambda steps: mean(_sum(steps, f"{name}_sum"), int(_sum(steps, f"{name}_known")))


def _make_solved(judged: Diagnosed, eval_name: str | None) -> _Kind:
    rows, success = judged.rows, judged.report.scale.success
    is_of_eval = eval_name is None or np.array([*rows.evals, ""])[rows.eval] == eval_name
    is_counted = np.isfinite(rows.reward) & success.countable(rows) & is_of_eval
    number, solved = _by_step(rows.step[is_counted]), _by_step(rows.step[is_counted & success.solved(rows)])

    def share(steps: Sequence[Step]) -> float | None:
        return mean(sum(solved[step.step] for step in steps), sum(number[step.step] for step in steps))

    meaning = f"Share of the rollouts that solved their task. Solved: {success.description}."
    return _Kind("Solved", Form.SHARE, share, meaning, is_better_high=True)


def _by_step(steps: Ints) -> Counter[int]:
    """Return how often each step occurs."""
    values, counts = np.unique(steps, return_counts=True)
    return Counter(dict(zip(values.tolist(), counts.tolist(), strict=True)))
