"""Finds answers in which no action was found, and rollouts that end without a single action or tool call."""

import numpy as np

from logs_ui.recorder.diagnosis import contrast, links
from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Outcome, Run, quiet, too_few, uncovered
from logs_ui.recorder.diagnosis.change_point import above
from logs_ui.recorder.diagnosis.measures import mean
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Floats, Rows
from logs_ui.recorder.diagnosis.tables.action_table import OCCUR, Fallback, fallback_of
from logs_ui.recorder.diagnosis.waterfall import has_cause
from logs_ui.recorder.diagnosis.wording import percent
from logs_ui.recorder.settings import SHARE
from logs_ui.recorder.vocabulary import LossCause, StopReason

_SHARE = 0.1
_STREAK = 3
_BY_TOOLS = 0.5  # of the rollouts that act [ours]
_TENTH = 0.1  # of the loss: so much is worth a card, however few turns it was [ours]


def _failures(rows: Rows, fallback: Fallback | None) -> Floats:
    """Return (N,) turns without an action that were not truncated. If only stop reasons show one, it is 1 for such a
    rollout, and 0 for those that ended otherwise.
    """
    failures, cut = rows.facts["parse_failures"], np.nan_to_num(rows.facts["truncated_turns"])
    if fallback is not None:
        failures = np.fmax(failures, fallback.sent(rows))
    cut = np.maximum(cut, rows.stop_reason == StopReason.LENGTH)
    known: Floats = np.maximum(failures - cut, 0.0)
    without = rows.stop_reason == StopReason.NO_ACTION
    ended = np.isnan(known) & (rows.stop_reason != StopReason.NOT_RECORDED) & without.any()
    known[ended] = without[ended]
    return known


def _unparsed_end(rows: Rows) -> Bools:
    """Return (N,) True for rollouts that end with a whole answer without an action."""
    whole_tail = (rows.facts["parse_tail"] > 0) & (rows.stop_reason != StopReason.LENGTH)
    ended: Bools = whole_tail | (rows.stop_reason == StopReason.NO_ACTION)
    return ended


def _look_unparsed(run: Run) -> Outcome:
    rows, limit, fallback = run.rows, run.threshold("parse_failures", _SHARE), fallback_of(run.rows)
    failures, ended = _failures(rows, fallback), _unparsed_end(rows)
    known = ~np.isnan(failures)
    share = float(failures[known].sum() / max(np.fmax(rows.turns[known], 1).sum(), 1))
    bad, ends = (failures > 0) | ended, float(ended.mean())
    part, whole = run.cost_of("parse_failure"), contrast.cost(run, bad)
    is_costly = part > 0 and part >= _TENTH * run.fall.lost and "parse_failures" not in run.settings.thresholds
    if (max(share, ends) <= limit and not is_costly) or contrast.is_fine(run, bad):
        return too_few(known, "answers in which an action was looked for") or quiet(
            share, "of answers that are not truncated have no action", limit
        )
    streaks = percent(float((rows.facts["parse_streak"] >= _STREAK).mean()))
    trend: Floats | Bools = np.minimum(_failures(run.all, fallback) / np.fmax(run.all.turns, 1), 1.0)
    title = f"No action is found in {percent(share)} of the model's answers"
    more = f"{percent(ends)} of rollouts end with such an answer; {streaks} have {_STREAK}+ in a row."
    advice = "Open one and compare the answer with what the parser expects; show the format in the prompt."
    where = {"parse_failures>0": rows.facts["parse_failures"] > 0, "stop:no_action": rows.stop_reason == "no_action"}
    if share <= limit:
        title, trend = f"{percent(ends)} of rollouts end with an answer without an action", _unparsed_end(run.all)
    elif fallback is not None and np.nansum(sent := fallback.sent(rows)) > failures[known].sum() / 2:
        lacking = float(np.nansum(rows.facts["unsaid_actions"]) / np.nansum(rows.turns))
        title = f"In {percent(lacking)} of turns the answer lacks the action that was sent, such as `{fallback.action}`"
        more = f"{percent(fallback.occurring)} of all actions occur in the answer before them."
        advice = (
            f"Tell the model when no action is found, in place of `{fallback.action}`; show the format in the prompt."
        )
        where |= {fallback.where: sent > 0}
    return Card(
        id="parse_failures",
        title=title,
        cost=max(part, whole),
        evidence=(f"{int(bad.sum())} of {len(rows)} rollouts are affected.", more),
        suggestion=advice,
        where=links.selecting(rows.id, bad, where),
        is_part=part >= whole,
        **above(run.all.by_step(trend), limit),
        own=bad,
    )


def _idle(rows: Rows, every: Rows) -> Floats:
    """Return (N,) 1 without an action, 0 with some, NaN if no environment was seen, in any rollout of the task."""
    steps = rows.facts["env_steps"]
    others_act = np.zeros(len(rows.tasks) + 1, bool)  # the last: of rollouts without a task, whose number is -1
    others_act[every.task[every.facts["env_steps"] > 0]] = True
    others_act = others_act[rows.task]
    silent = np.isnan(steps) & (np.nan_to_num(rows.facts["tool_calls"], nan=1.0) == 0) & others_act
    return np.where(silent, 1.0, np.where(np.isnan(steps), np.nan, steps == 0))


def _missing(run: Run) -> str | None:
    known = (~np.isnan(run.rows.facts["env_steps"])).any() or (run.all.facts["env_steps"] > 0).any()
    return None if known else "an environment"


def _look_idle(run: Run) -> Outcome:
    if (unknown := uncovered(run)) is not None:
        return unknown  # an unattributed action would look like none
    rows, limit = run.rows, run.threshold("never_acted", _SHARE)
    idle, acting = _idle(rows, run.all), run.all.facts["env_steps"] > 0
    # If rollouts act without tool calls, an action is looked for in every answer.
    by_text = acting.any() and (run.all.facts["tool_calls"][acting] > 0).mean() < _BY_TOOLS
    if by_text and isinstance(_look_unparsed(run), Card):
        # No action was found in their first answer either.
        idle = np.where(np.isnan(rows.facts["env_steps"]), np.nan, idle)
    share = mean(idle)
    ended = (idle == 1) & has_cause(rows, LossCause.NEVER_SUBMITTED, LossCause.WRONG_ANSWER)  # and for no other reason
    if share is None:
        return too_few(~np.isnan(idle), "a recorded environment")
    if share <= limit or contrast.is_fine(run, ended):
        return quiet(share, "of rollouts never act in their environment", limit)
    part, whole = run.cost_of("never_submitted"), contrast.cost(run, ended)
    steps = rows.facts["env_steps"]
    kinds = {"env_steps:0": steps == 0, "env_steps:none": np.isnan(steps)}
    return Card(
        id="never_acted",
        title=f"{percent(share)} of rollouts never act in their environment",
        cost=max(part, whole),
        evidence=("No action of theirs was parsed and executed, and no tool call.",),
        suggestion="Open some. If their answers hold a call, it is not in the form that the parser expects; if not, "
        "show an example of an action in the prompt.",
        where=links.selecting(rows.id, ended, kinds),
        is_part=part >= whole,
        **above(run.all.by_step(_idle(run.all, run.all)), limit),
        own=ended,
    )


PARSE_FAILURES = Diagnostic(
    "parse_failures",
    "Parse failures",
    f"Share of turns whose answer gave no action, and was not truncated, above {_SHARE:.0%}; or the same share of "
    f"rollouts that end so, or {_TENTH:.0%} of the loss. If most actions that do not occur in the answer before "
    f"them are one and the same, and {OCCUR:.0%} of the others occur in theirs, the loop sent it in place of one.",
    "evalscope's budget, verl PR 7697",
    lambda run: (
        None
        if np.isfinite(_failures(run.rows, fallback_of(run.rows))).any()
        else "actions, as record(parse=...) finds them"
    ),
    _look_unparsed,
    limits=SHARE,
    position=90,
    explained_by=("infrastructure", "diversity:cold", "degenerate_text"),
    is_behaviour=True,
    needs_calls=True,
)
NEVER_ACTED = Diagnostic(
    "never_acted",
    "Never acted",
    f"Share of rollouts with an environment and without a step in it, above {_SHARE:.0%}, unless they do as well as "
    "the others. If actions are parsed from text and many answers have none, rollouts that never reach the environment "
    "count as parse failures.",
    "NeMo Gym PR 1304; the threshold is ours",
    _missing,
    _look_idle,
    limits=SHARE,
    position=150,
    explained_by=("infrastructure", "parse_failures", "truncation", "diversity:cold", "degenerate_text"),
    is_behaviour=True,
)
