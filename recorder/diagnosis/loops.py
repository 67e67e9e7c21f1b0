"""The same action again and again, or no end before the turns run out."""

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, since
from logs_ui.recorder.diagnosis.rows import Bools, Rows
from logs_ui.recorder.diagnosis.say import figure, percent
from logs_ui.recorder.diagnosis.waterfall import LOOP, REPEATS

_SHARE = 0.1


def looping(rows: Rows) -> Bools:
    """(N,) that did the same three times in a row, or most of it at the same observation twice."""
    found: Bools = (rows.facts["action_streak"] >= LOOP) | (rows.facts["repeats"] > REPEATS)
    return found


def _missing(run: Run) -> str | None:
    return None if (~np.isnan(run.rows.facts["action_streak"])).any() else "actions"


def _look(run: Run) -> Card | None:
    rows, limit = run.rows, run.threshold("loops", _SHARE)
    loops = looping(rows)
    share = float(loops.mean())
    if share <= limit:
        return None
    lost = run.scale.best - np.nan_to_num(rows.reward)
    gap = float(lost[loops].mean()) - (float(lost[~loops].mean()) if (~loops).any() else 0.0)
    if gap <= 0:
        return None
    trend = run.all.by_step(looping(run.all).astype(float))
    return Card(
        id="loops",
        title=f"{percent(share)} of rollouts go round in circles",
        cost=share * gap,
        evidence=(
            f"The longest run of equal actions is {figure(float(np.nanmax(rows.facts['action_streak'])))}.",
            f"They get {figure(gap)} less than the others.",
        ),
        suggestion="Say in the observation that nothing changed, punish repeats, or stop the episode after some.",
        where=f"action_streak>={LOOP}",
        trend=trend,
        since_step=since(trend, lambda value: value > limit),
        explains=("dead_groups", "never_solved", "turn_limit", "diversity", "degenerate_text"),
    )


DIAGNOSTIC = Diagnostic(
    "loops",
    "Loops",
    f"Share of rollouts with {LOOP} equal actions in a row, or more than half of their moves made before at the same "
    f"observation, above {_SHARE:.0%}.",
    "ours",
    _missing,
    _look,
)
