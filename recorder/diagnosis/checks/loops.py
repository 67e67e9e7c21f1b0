"""The same action again and again."""

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
    """(N,) that did the same three times in a row, or most of it at the same observation twice."""
    found: Bools = (rows.facts["action_streak"] >= LOOP) | (rows.facts["repeats"] > REPEATS)
    return found


def _missing(run: Run) -> str | None:
    has_actions = (~np.isnan(run.rows.facts["action_streak"])).any()
    return None if has_actions else "actions, as record_environment() or trace_env() records them"


def charged(run: Run) -> Bools:
    """(N,) of the rows that are looked at, those that the card is about; none where there is no card."""
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
        title=f"{percent(share)} of rollouts go round in circles",
        cost=contrast.cost(run, loops),
        evidence=(*_kinds(rows, loops), _paid(run, loops)),
        suggestion="Say in the observation that nothing changed, punish repeats, or stop the episode after some.",
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
        said.append(f"{int(equal.sum())} do the same up to {figure(float(streak[equal].max()))} times in a row.")
    around = loops & ~equal
    if around.any():
        share = percent(float(repeats[around].mean()))
        said.append(f"{int(around.sum())} go back and forth: {share} of their moves were made before.")
    return said


def _paid(run: Run, loops: Bools) -> str:
    more = contrast.gap(run, loops)
    if loops.all():
        return f"All do, and get {figure(float(np.nan_to_num(run.rows.reward).mean()))} at the mean."
    return (
        f"They get {figure(more)} less than the others." if more else "They get no more than the others, who fail too."
    )


def _where(rows: Rows, loops: Bools) -> str:
    equal = f"action_streak>={LOOP}"
    around = f"repeats>{REPEATS:g}"
    streaks = (rows.facts["action_streak"][loops] >= LOOP).mean()
    return equal if streaks >= REPEATS else around


DIAGNOSTIC = Diagnostic(
    "loops",
    "Loops",
    f"Share of rollouts with {LOOP} equal actions in a row, or more than half of their moves made before at the same "
    f"observation, above {_SHARE:.0%}, unless they do as well as the others.",
    "ours",
    _missing,
    _look,
    limits=SHARE,
    position=110,
    explained_by=(
        "infrastructure",
        "disagreement",
        "parse_failures",
        "diversity:cold",
    ),
    is_behaviour=True,
)
