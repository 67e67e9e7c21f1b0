"""Finds rollouts that repeat the same actions."""

import numpy as np

from logs_ui.recorder.diagnosis import contrast
from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, above
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Rows
from logs_ui.recorder.diagnosis.wording import figure, percent
from logs_ui.recorder.settings import SHARE
from logs_ui.recorder.vocabulary import LOOP, REPEATS

_SHARE = 0.1


def looping(rows: Rows) -> Bools:
    """(N,) True for LOOP equal actions in a row, or a share above REPEATS repeated at an observation seen before."""
    return (rows.facts["action_streak"] >= LOOP) | (rows.facts["repeats"] > REPEATS)


def _missing(run: Run) -> str | None:
    has_actions = (~np.isnan(run.rows.facts["action_streak"])).any()
    return None if has_actions else "actions, as record_environment() or trace_env() records them"


def charged(run: Run) -> Bools:
    """(N,) True for rollouts of the last steps that the card is about; none if there is no card."""
    loops = looping(run.rows)
    is_silent = float(loops.mean()) <= run.threshold("loops", _SHARE) or contrast.is_fine(run, loops)
    return np.zeros_like(loops) if is_silent else loops


def _look(run: Run) -> Card | None:
    loops, streak, repeats = charged(run), run.rows.facts["action_streak"], run.rows.facts["repeats"]
    if not loops.any():
        return None
    equal, around, said = loops & (streak >= LOOP), loops & ~(streak >= LOOP), list[str]()
    if equal.any():
        most = figure(float(streak[equal].max()))
        said.append(f"{int(equal.sum())} repeat an action {LOOP}+ times in a row, at most {most}.")
    if around.any():
        share = percent(float(repeats[around].mean()))
        said.append(f"{around.sum()} go back and forth: {share} of their actions repeat at an observation seen before.")
    return Card(
        id="loops",
        title=f"{percent(float(loops.mean()))} of rollouts repeat the same actions",
        cost=contrast.cost(run, loops),
        evidence=(*said, _paid(run, loops)),
        suggestion="Say in the observation that nothing changed, penalise repeats, or end the episode after N of them.",
        where=f"action_streak>={LOOP}" if equal.sum() >= REPEATS * loops.sum() else f"repeats>{REPEATS:g}",
        **above(run.all.by_step(looping(run.all)), run.threshold("loops", _SHARE)),
        own=loops & (run.lost > 0),
    )


def _paid(run: Run, loops: Bools) -> str:
    if loops.all():
        return f"All rollouts do; their mean reward is {figure(float(np.nan_to_num(run.rows.reward).mean()))}."
    more = contrast.gap(run, loops)
    return f"Their mean reward is {f'{figure(more)} lower' if more else 'as low as that of the others'}."


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
