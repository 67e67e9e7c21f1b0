"""Finds rollouts that repeat the same actions."""

import numpy as np

from logs_ui.recorder.diagnosis import contrast
from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, since
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Rows
from logs_ui.recorder.diagnosis.waterfall import losses
from logs_ui.recorder.diagnosis.wording import figure, percent
from logs_ui.recorder.settings import SHARE
from logs_ui.recorder.vocabulary import LOOP, REPEATS

_SHARE = 0.1


def looping(rows: Rows) -> Bools:
    """(N,) True for LOOP equal actions in a row, or a share above REPEATS repeated at an observation seen before."""
    found: Bools = (rows.facts["action_streak"] >= LOOP) | (rows.facts["repeats"] > REPEATS)
    return found


def _missing(run: Run) -> str | None:
    has_actions = (~np.isnan(run.rows.facts["action_streak"])).any()
    return None if has_actions else "actions, as record_environment() or trace_env() records them"


def charged(run: Run) -> Bools:
    """(N,) True for rollouts of the last steps that the card is about; none if there is no card."""
    loops = looping(run.rows)
    is_silent = float(loops.mean()) <= run.threshold("loops", _SHARE) or contrast.is_fine(run, loops)
    return np.zeros_like(loops) if is_silent else loops


def _look(run: Run) -> Card | None:
    rows, limit = run.rows, run.threshold("loops", _SHARE)
    loops = charged(run)
    if not loops.any():
        return None
    share = float(loops.mean())
    trend = run.all.by_step(looping(run.all).astype(float))
    failed = loops & (losses(rows, run.scale) > 0)
    return Card(
        id="loops",
        title=f"{percent(share)} of rollouts repeat the same actions",
        cost=contrast.cost(run, loops),
        evidence=(*_kinds(rows, loops), _paid(run, loops)),
        suggestion="Say in the observation that nothing changed, penalise repeats, or end the episode after N of them.",
        where=_where(rows, loops),
        trend=trend,
        since_step=since(trend, lambda value: value > limit),
        limit=limit,
        own=failed,
    )


def _kinds(rows: Rows, loops: Bools) -> list[str]:
    streak, repeats = rows.facts["action_streak"], rows.facts["repeats"]
    equal = loops & (streak >= LOOP)
    said = []
    if equal.any():
        said.append(
            f"{int(equal.sum())} repeat an action {LOOP}+ times in a row, at most {figure(float(streak[equal].max()))}."
        )
    around = loops & ~equal
    if around.any():
        share = percent(float(repeats[around].mean()))
        said.append(
            f"{int(around.sum())} go back and forth: {share} of their actions repeat at an observation seen before."
        )
    return said


def _paid(run: Run, loops: Bools) -> str:
    more = contrast.gap(run, loops)
    if loops.all():
        return f"All rollouts do; their mean reward is {figure(float(np.nan_to_num(run.rows.reward).mean()))}."
    return (
        f"Their mean reward is {figure(more)} lower." if more else "Their mean reward is as low as that of the others."
    )


def _where(rows: Rows, loops: Bools) -> str:
    equal = f"action_streak>={LOOP}"
    around = f"repeats>{REPEATS:g}"
    streaks = (rows.facts["action_streak"][loops] >= LOOP).mean()
    return equal if streaks >= REPEATS else around


DIAGNOSTIC = Diagnostic(
    "loops",
    "Loops",
    f"Share of rollouts with {LOOP} equal actions in a row, or with more than half of their actions taken before at "
    f"the same observation, above {_SHARE:.0%}, unless they do as well as the others.",
    "ours",
    _missing,
    _look,
    limits=SHARE,
    position=110,
    explained_by=("infrastructure", "disagreement", "parse_failures", "diversity:cold"),
    is_behaviour=True,
)
