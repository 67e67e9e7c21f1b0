"""Finds rollouts that repeat the same actions, and episodes that end at the turn limit before they are done."""

import numpy as np

from logs_ui.recorder.diagnosis import contrast, links
from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Outcome, Run, quiet, too_few
from logs_ui.recorder.diagnosis.change_point import above
from logs_ui.recorder.diagnosis.checks.tasks import never_solved
from logs_ui.recorder.diagnosis.measures import mean
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Rows, means
from logs_ui.recorder.diagnosis.tables.action_table import loop_kinds, looping
from logs_ui.recorder.diagnosis.waterfall import has_cause, judged
from logs_ui.recorder.diagnosis.wording import figure, listed, percent
from logs_ui.recorder.settings import SHARE
from logs_ui.recorder.vocabulary import LOOP, REPEATS, LossCause, StopReason

_LOOPING, _OUT_OF_TURNS = 0.1, 0.2


def _missing(run: Run) -> str | None:
    has_actions = (~np.isnan(run.rows.facts["action_tail"])).any()
    return None if has_actions else "actions, as record_environment() or trace_env() records them"


def charged(run: Run) -> Bools:
    """Return (N,) True for rollouts of the last steps that the card is about; none if there is no card."""
    loops = looping(run.rows)
    is_silent = float(loops.mean()) <= run.threshold("loops", _LOOPING) or contrast.is_fine(run, loops)
    return np.zeros_like(loops) if is_silent else loops


def _look_loops(run: Run) -> Outcome:
    loops, said = charged(run), list[str]()
    if not loops.any():
        known, limit = ~np.isnan(run.rows.facts["action_tail"]), run.threshold("loops", _LOOPING)
        found = float(looping(run.rows).mean())
        return too_few(known, "recorded actions") or quiet(found, "of rollouts repeat their actions", limit)
    kinds = loop_kinds(run.rows)
    at_end, around = kinds.values()
    if at_end.any():
        most = figure(float(run.rows.facts["action_tail"][at_end].max()))
        said.append(f"Same action {LOOP}+ times in a row at the end: {at_end.sum()} of {len(loops)}, longest {most}.")
    if around.any():
        said.append(
            f"More than {REPEATS:.0%} of actions taken before at the same observation, or going round the same few: "
            f"{around.sum()} of {len(loops)}, mean {percent(float(run.rows.facts['repeats'][around].mean()))}."
        )
    return Card(
        id="loops",
        title=f"{percent(float(loops.mean()))} of rollouts repeat the same actions",
        cost=contrast.cost(run, loops),
        evidence=(*said, _paid(run, loops)),
        suggestion="Say in the observation that nothing changed, penalise repeats, or end the episode after N of them.",
        where=links.selecting(run.rows.id, loops, kinds),
        **above(run.all.by_step(looping(run.all)), run.threshold("loops", _LOOPING)),
        own=loops & (run.lost > 0),
    )


def _paid(run: Run, loops: Bools) -> str:
    reward = np.nan_to_num(run.rows.reward)
    if loops.all():
        return f"All rollouts do; their mean reward is {figure(float(reward.mean()))}."
    mine, others = float(reward[loops].mean()), float(reward[~loops].mean())
    chance = "" if contrast.gap(run, loops) or mine == others else "; the difference may be chance"
    return f"Their mean reward is {figure(mine)}, that of the others {figure(others)}{chance}."


def _look_turns(run: Run) -> Outcome:
    rows, limit = run.rows, run.threshold("turn_limit", _OUT_OF_TURNS)
    ended: Bools = rows.stop_reason == StopReason.TURN_LIMIT
    share = float(ended.mean())
    cost = _cost(run, ended)
    if share <= limit or cost <= 0 or contrast.is_fine(run, ended):
        known = too_few(rows.stop_reason != StopReason.NOT_RECORDED, "a recorded end")
        why = ["their loss is counted under loops"] if cost <= 0 else []
        return known or quiet(share, "of rollouts run out of turns", limit, *why)
    turns, alone = mean(rows.turns[ended]), percent(float((ended & ~looping(rows)).sum() / ended.sum()))
    # If solvable tasks end in time, the others run out of turns because they are unsolvable.
    others = ~np.isin(rows.task, np.flatnonzero(never_solved(run)))
    is_of_hopeless = bool(others.any()) and float(ended[others].mean()) <= limit
    said = [] if turns is None else [f"They have {figure(turns)} turns on average."]
    said += [f"{alone} of them did not repeat their actions.", *_tasks(rows, ended)]
    return Card(
        id="turn_limit",
        title=f"{percent(share)} of rollouts run out of turns",
        cost=cost,
        evidence=tuple(said),
        suggestion="Allow more turns, or make the task smaller: nothing after the last turn can be rewarded.",
        where="stop:turn_limit",
        is_part=True,
        **above(run.all.by_step(run.all.stop_reason == StopReason.TURN_LIMIT), limit),
        own=ended,
        aspects=() if is_of_hopeless else ("decides",),
    )


def _cost(run: Run, ended: Bools) -> float:
    """Return their part of the waterfall, without what the card on loops counts already."""
    known = judged(run.rows)
    own = ended & has_cause(run.rows, LossCause.LOOP) & known & ~charged(run)
    return float(run.lost[own].sum() / max(int(known.sum()), 1))


def _tasks(rows: Rows, ended: Bools) -> list[str]:
    """Name the tasks that run out of turns most often, if there are several tasks."""
    known = rows.task >= 0
    share = means(rows.task[known], ended[known], len(rows.tasks))
    if np.isfinite(share).sum() < 2:
        return []
    worst = [t for t in np.argsort(-np.nan_to_num(share), kind="stable")[:3].tolist() if np.isfinite(share[t])]
    return [f"Most often {listed([f'{rows.tasks[t]} ({percent(float(share[t]))})' for t in worst])}."]


LOOPS = Diagnostic(
    "loops",
    "Loops",
    f"Share of rollouts that end with {LOOP} equal actions in a row, or with more than half of their actions taken "
    f"before at the same observation, or going round the same 2 to 4, above {_LOOPING:.0%}, unless they do as well as "
    "the others.",
    "ours",
    _missing,
    _look_loops,
    limits=SHARE,
    position=110,
    explained_by=("infrastructure", "disagreement", "parse_failures", "diversity:cold"),
    is_behaviour=True,
    needs_calls=True,
)
TURN_LIMIT = Diagnostic(
    "turn_limit",
    "Turn limit",
    f"Share of rollouts that ended at the turn limit, above {_OUT_OF_TURNS:.0%}, unless they do as well as the others. "
    "The loss of those that repeat their actions is counted under loops.",
    "NeMo Gym PR 1304; the threshold is ours",
    lambda run: None if (run.rows.stop_reason != StopReason.NOT_RECORDED).any() else "why rollouts ended",
    _look_turns,
    limits=SHARE,
    position=140,
    explained_by=(
        *("infrastructure", "disagreement", "parse_failures", "truncation", "loops", "task_mix", "never_solved"),
        *("diversity", "degenerate_text", "reward_parts:decides", "forgotten"),
    ),
    is_behaviour=True,
    needs_calls=True,
)
