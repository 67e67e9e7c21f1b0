"""Finds rollouts that end without a single action or tool call, while others act."""

import numpy as np

from logs_ui.recorder.diagnosis import contrast
from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, since
from logs_ui.recorder.diagnosis.checks import parse_failures
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Floats, Rows
from logs_ui.recorder.diagnosis.waterfall import CAUSES, causes
from logs_ui.recorder.diagnosis.wording import percent
from logs_ui.recorder.settings import SHARE

_SHARE = 0.1
_BY_TOOLS = 0.5  # of the rollouts that act [ours]
_CAUSE = next(place for place, cause in enumerate(CAUSES) if cause.id == "never_submitted")


def _idle(rows: Rows, *, others_act: bool) -> Floats:
    """(N,) 1 without an action, 0 with some, NaN if no environment was seen, in this rollout or in others."""
    steps = rows.facts["env_steps"]
    silent = np.isnan(steps) & (np.nan_to_num(rows.facts["tool_calls"], nan=1.0) == 0) & others_act
    return np.where(silent, 1.0, np.where(np.isnan(steps), np.nan, steps == 0))


def _others_act(run: Run) -> bool:
    return bool((run.all.facts["env_steps"] > 0).any())


def _act_by_text(rows: Rows) -> bool:
    """Return True if rollouts act without tool calls, so that an action is looked for in every answer."""
    acting = rows.facts["env_steps"] > 0
    return bool(acting.any()) and float((rows.facts["tool_calls"][acting] > 0).mean()) < _BY_TOOLS


def _missing(run: Run) -> str | None:
    known = (~np.isnan(run.rows.facts["env_steps"])).any() or _others_act(run)
    return None if known else "an environment"


def _look(run: Run) -> Card | None:
    rows, limit = run.rows, run.threshold("never_acted", _SHARE)
    idle = _idle(rows, others_act=_others_act(run))
    if np.isnan(idle).all():
        return None
    if _act_by_text(run.all) and parse_failures.DIAGNOSTIC.look(run) is not None:
        # No action was found in their first answer either.
        idle = np.where(np.isnan(rows.facts["env_steps"]), np.nan, idle)
        if np.isnan(idle).all():
            return None
    share = float(np.nanmean(idle))
    ended: Bools = (idle == 1) & np.isin(causes(rows), (_CAUSE, len(CAUSES) - 1))  # and for no other reason
    if share <= limit or contrast.is_fine(run, ended):
        return None
    trend = run.all.by_step(_idle(run.all, others_act=_others_act(run)))
    part, whole = run.cost_of("never_submitted"), contrast.cost(run, ended)
    return Card(
        id="never_acted",
        title=f"{percent(share)} of rollouts never act in their environment",
        cost=max(part, whole),
        evidence=("Their answers are only text, without an action or a tool call.",),
        suggestion="Show an example of an action in the prompt, and give no reward to answers without an action.",
        where="env_steps=0" if part else "",
        is_part=part >= whole,
        trend=trend,
        since_step=since(trend, lambda value: value > limit),
        limit=limit,
        own=ended,
    )


DIAGNOSTIC = Diagnostic(
    "never_acted",
    "Never acted",
    f"Share of rollouts with an environment and without a step in it, above {_SHARE:.0%}, unless they do as well as "
    "the others. If actions are parsed from text and many answers have none, rollouts that never reach the environment "
    "count as parse failures.",
    "NeMo Gym PR 1304; the threshold is ours",
    _missing,
    _look,
    limits=SHARE,
    position=150,
    explained_by=("infrastructure", "parse_failures", "truncation", "diversity:cold", "degenerate_text"),
    is_behaviour=True,
)
