"""Finds rollouts that end without a single action or tool call, while others act."""

import numpy as np

from logs_ui.recorder.diagnosis import contrast
from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, above
from logs_ui.recorder.diagnosis.checks import parse_failures
from logs_ui.recorder.diagnosis.measures import mean
from logs_ui.recorder.diagnosis.rollout_rows import Floats, Rows
from logs_ui.recorder.diagnosis.waterfall import has_cause
from logs_ui.recorder.diagnosis.wording import percent
from logs_ui.recorder.settings import SHARE
from logs_ui.recorder.vocabulary import LossCause

_SHARE = 0.1
_BY_TOOLS = 0.5  # of the rollouts that act [ours]


def _idle(rows: Rows, every: Rows) -> Floats:
    """(N,) 1 without an action, 0 with some, NaN if no environment was seen, in this rollout or in any other."""
    steps = rows.facts["env_steps"]
    others_act = (every.facts["env_steps"] > 0).any()
    silent = np.isnan(steps) & (np.nan_to_num(rows.facts["tool_calls"], nan=1.0) == 0) & others_act
    return np.where(silent, 1.0, np.where(np.isnan(steps), np.nan, steps == 0))


def _missing(run: Run) -> str | None:
    known = (~np.isnan(run.rows.facts["env_steps"])).any() or (run.all.facts["env_steps"] > 0).any()
    return None if known else "an environment"


def _look(run: Run) -> Card | None:
    rows, limit = run.rows, run.threshold("never_acted", _SHARE)
    idle, acting = _idle(rows, run.all), run.all.facts["env_steps"] > 0
    # If rollouts act without tool calls, an action is looked for in every answer.
    by_text = acting.any() and (run.all.facts["tool_calls"][acting] > 0).mean() < _BY_TOOLS
    if by_text and parse_failures.DIAGNOSTIC.look(run) is not None:
        # No action was found in their first answer either.
        idle = np.where(np.isnan(rows.facts["env_steps"]), np.nan, idle)
    share = mean(idle)
    ended = (idle == 1) & has_cause(rows, LossCause.NEVER_SUBMITTED, LossCause.WRONG_ANSWER)  # and for no other reason
    if share is None or share <= limit or contrast.is_fine(run, ended):
        return None
    part, whole = run.cost_of("never_submitted"), contrast.cost(run, ended)
    return Card(
        id="never_acted",
        title=f"{percent(share)} of rollouts never act in their environment",
        cost=max(part, whole),
        evidence=("Their answers are only text, without an action or a tool call.",),
        suggestion="Show an example of an action in the prompt, and give no reward to answers without an action.",
        where="env_steps=0" if part else "",
        is_part=part >= whole,
        **above(run.all.by_step(_idle(run.all, run.all)), limit),
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
