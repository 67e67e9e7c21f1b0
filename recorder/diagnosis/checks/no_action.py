"""Finds answers that lack something: an action, any text, or a form that they had at first; and rollouts that end
without a single action or tool call.
"""

import math
from dataclasses import replace

import numpy as np

from logs_ui.recorder.diagnosis import contrast, links
from logs_ui.recorder.diagnosis.card import (
    Below,
    Card,
    NotJudged,
    Outcome,
    Run,
    check,
    needs,
    quiet,
    read_nothing,
    too_few,
    uncovered,
)
from logs_ui.recorder.diagnosis.change_point import above
from logs_ui.recorder.diagnosis.mean_difference import compare, is_beyond_chance
from logs_ui.recorder.diagnosis.measures import find_empty, mean
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Floats, Rows
from logs_ui.recorder.diagnosis.success import is_outcome, levels
from logs_ui.recorder.diagnosis.tables.actions import OCCUR, Fallback, fallback_of
from logs_ui.recorder.diagnosis.unparsed_calls import describe_last_answers, describe_unparsed
from logs_ui.recorder.diagnosis.waterfall import has_cause
from logs_ui.recorder.diagnosis.wording import exact_percent, figure, percent
from logs_ui.recorder.vocabulary import LossCause, StopReason

_SHARE = 0.1
_MOST_TASKS = 0.9  # of the tasks of an eval have a rollout that acts: then all have an environment [ours]
_OTHERS = 16  # rollouts of other tasks at its step are enough to tell [ours]
_MOST_ACT, _CHANCE = 0.5, 0.01  # of the rollouts of others at its step; of none: then a task has no environment [ours]
_STREAK = 3
_BY_TOOLS = 0.5  # of the rollouts that act [ours]
_EMPTY, _LOST = 0.05, 0.1  # of the rollouts [ours]
_HAD = 0.8  # of the rollouts had the form before [ours]
_RARER = 0.5  # of the share since a step: then the policy acted before it [ours]
_LASTS = 0.75  # of the share in the first quarter of the steps: then training does not overcome it [ours]
_TENTH = 0.1  # of the loss: so much is worth a card, however few turns it was [ours]


def _failures(rows: Rows, fallback: Fallback | None) -> Floats:
    """Return (N,) turns without an action that were not truncated. If only stop reasons show one, it is 1 for such a
    rollout, and 0 for those that ended otherwise.
    """
    failures, cut = rows.facts["parse_failures"], np.nan_to_num(rows.facts["truncated_turns"])
    if fallback is not None:
        failures = np.fmax(failures, fallback.sent(rows))
    cut = np.maximum(cut, rows.stop_reason == StopReason.LENGTH)
    without_action: Floats = np.maximum(failures - cut, 0.0)
    without = rows.stop_reason == StopReason.NO_ACTION
    ended = np.isnan(without_action) & (rows.stop_reason != StopReason.NOT_RECORDED) & without.any()
    without_action[ended] = without[ended]
    return without_action


def _unparsed_end(rows: Rows) -> Bools:
    """Return (N,) True for rollouts that end with a whole answer without an action."""
    whole_tail = (rows.facts["parse_tail"] > 0) & (rows.stop_reason != StopReason.LENGTH)
    ended: Bools = whole_tail | (rows.stop_reason == StopReason.NO_ACTION)
    return ended


def _check_unparsed(run: Run) -> Outcome:
    rows, limit, fallback = run.rows, run.threshold("parse_failures", _SHARE), fallback_of(run.rows)
    failures, ended = _failures(rows, fallback), _unparsed_end(rows)
    is_known = ~np.isnan(failures)
    share = float(failures[is_known].sum() / max(np.fmax(rows.turns[is_known], 1).sum(), 1))
    bad, ends = (failures > 0) | ended, float(ended.mean())
    part, whole = run.cost_of("parse_failure"), contrast.cost(run, bad)
    is_costly = part > 0 and part >= _TENTH * run.fall.lost and "parse_failures" not in run.settings.thresholds
    if (max(share, ends) <= limit and not is_costly) or contrast.is_fine(run, bad):
        return too_few(is_known, "answers in which an action was looked for") or quiet(
            share, "of answers that are not truncated have no action", limit
        )
    streaks = percent(float((rows.facts["parse_streak"] >= _STREAK).mean()))
    trend: Floats | Bools = np.minimum(_failures(run.all, fallback) / np.fmax(run.all.turns, 1), 1.0)
    title = f"No action is found in {percent(share)} of the model's answers"
    more = f"{percent(ends)} of rollouts end with such an answer; {streaks} have {_STREAK}+ in a row."
    advice = "Open one and compare the answer with what the parser expects; show the format in the prompt."
    where = {"parse_failures>0": rows.facts["parse_failures"] > 0, "stop:no_action": rows.stop_reason == "no_action"}
    if share <= limit:
        title = f"No action is found in the last answer of {percent(ends)} of rollouts"
        trend = _unparsed_end(run.all)
    elif fallback is not None and np.nansum(sent := fallback.sent(rows)) > failures[is_known].sum() / 2:
        lacking = float(np.nansum(rows.facts["unsaid_actions"]) / np.nansum(rows.turns))
        title = f"In {percent(lacking)} of turns the answer lacks the action that was sent, such as `{fallback.action}`"
        more = f"{percent(fallback.occurring)} of all actions occur in the answer before them."
        advice = (
            f"Tell the model when no action is found, in place of `{fallback.action}`; show the format in the prompt."
        )
        where |= {fallback.where: sent > 0}
    is_last, began = ended.sum() >= bad.sum() / 2, above(run.all.by_step(trend), limit)
    of_text = _advise_policy(run, trend, began["since_step"])
    answers = (
        describe_last_answers(run, ended, advice, of_text)
        if is_last
        else describe_unparsed(run, bad, of_text or advice)
    )
    first, last = run.all.step <= run.all.steps[len(run.all.steps) // 4], run.all.step >= rows.steps[0]
    early, late = (mean(np.asarray(trend[of], float)) or 0.0 for of in (first, last))
    is_refused = answers.is_readable or (answers.tool != "" and began["since_step"] == run.all.steps[0])
    return Card(
        id="parse_failures",
        title=f"{title}, mostly calls of {answers.tool}" if answers.tool else title,
        cost=max(part, whole),
        evidence=(f"{int(bad.sum())} of {len(rows)} rollouts are affected.", more, *answers.evidence),
        suggestion=answers.advice,
        where=links.selecting(rows.id, bad, where),
        is_part=part >= whole,
        **began,
        own=bad,
        own_of_all=(_failures(run.all, fallback) > 0) | _unparsed_end(run.all),
        is_setup=is_refused and late >= _LASTS * early,
    )


def _advise_policy(run: Run, lacking: Floats | Bools, first: int | None) -> str | None:
    """Return advice about the policy if it acted before a step; None if it did not, or hardly more than since.
    `lacking` is (N,) of all steps: the share of a rollout that is without an action.
    """
    if first is None or first <= run.all.steps[0]:
        return None
    values = np.asarray(lacking, float)
    before, since = (mean(values[of]) for of in (run.all.step < first, run.all.step >= first))
    if before is None or since is None or before > _RARER * since:
        return None
    return (
        f"It acted before step {first:,}, so look at the policy: compare what rollouts of a group are paid with and "
        "without an action; lower the learning rate, add a KL term, or return to a checkpoint of before."
    )


def _idle(every: Rows) -> Floats:
    """Return (N,) 1 without an action, 0 with some, NaN if no environment was seen: none acts in its eval; or none in
    its task, beside tasks of that eval and step in which most do, so that this is no chance, nor one of few such tasks.
    """
    steps, evals = every.facts["env_steps"], every.eval
    acting = steps > 0
    has_environment = np.isin(every.task, every.task[acting])
    place = evals * len(every.steps) + np.searchsorted(every.steps, every.step)
    count = np.bincount(place, has_environment)
    beside = np.where(count >= _OTHERS, np.bincount(place, acting) / np.maximum(count, 1), 0.0)[place]
    none = np.bincount(every.task + 1, np.log1p(-np.minimum(beside, 0.99)))[every.task + 1]
    has_none = (beside >= _MOST_ACT) & (none < math.log(_CHANCE))
    for code in np.unique(evals[acting]):
        of_eval = evals == code
        tasks = np.unique(every.task[of_eval])
        is_all = np.isin(tasks, every.task[acting]).mean() >= _MOST_TASKS
        has_environment |= of_eval & (is_all | ~has_none)
    silent = np.isnan(steps) & (np.nan_to_num(every.facts["tool_calls"], nan=1.0) == 0) & has_environment
    return np.where(silent, 1.0, np.where(np.isnan(steps), np.nan, steps == 0))


def _check_idle(run: Run) -> Outcome:
    if (unknown := uncovered(run)) is not None:
        return unknown  # an unattributed action would look like none
    rows, limit = run.rows, run.threshold("never_acted", _SHARE)
    every, acting = _idle(run.all), run.all.facts["env_steps"] > 0
    idle = every[run.all.step >= rows.steps[0]]
    # If rollouts act without tool calls, an action is looked for in every answer.
    by_text = acting.any() and (run.all.facts["tool_calls"][acting] > 0).mean() < _BY_TOOLS
    if by_text and isinstance(_check_unparsed(replace(run, read_texts=read_nothing)), Card):
        # No action was found in their first answer either.
        idle = np.where(np.isnan(rows.facts["env_steps"]), np.nan, idle)
    share = mean(idle)
    ended = (idle == 1) & has_cause(rows, LossCause.NEVER_SUBMITTED, LossCause.WRONG_ANSWER)  # and for no other reason
    if share is None:
        return too_few(~np.isnan(idle), "a recorded environment")
    if share <= limit or contrast.is_fine(run, ended):
        return quiet(share, "of rollouts never act in their environment", limit)
    part, whole = run.cost_of("never_submitted"), contrast.cost(run, ended)
    began = above(run.all.by_step(every), limit)
    of_text = _advise_policy(run, every, began["since_step"])
    evidence, advice, *_ = describe_last_answers(
        run, ended, "Open some. If their answers hold a call, the parser expects another form; if not, "
        f"{'this is what the policy learned' if of_text else 'show an action in the prompt'}.", of_text,
    )  # fmt: skip
    steps = rows.facts["env_steps"]
    title = "with an environment never act in it" if np.isnan(idle).any() else "never act in their environment"
    if acting.any() and not by_text and np.isnan(steps[idle == 1]).all():
        title = "with tools never call one"
    kinds = {"env_steps:0": steps == 0, "env_steps:none": np.isnan(steps)}
    return Card(
        id="never_acted",
        title=f"{percent(share)} of rollouts {title}",
        cost=max(part, whole),
        evidence=("No action of theirs was parsed and executed, and no tool call.", *evidence),
        suggestion=advice,
        where=links.selecting(rows.id, ended, kinds),
        is_part=part >= whole,
        **began,
        own=ended,
    )


def _check_empty(run: Run) -> Outcome:
    rows, limit, every = run.rows, run.threshold("empty_answers", _EMPTY), find_empty(run.all)
    empty = every[run.all.step >= rows.steps[0]]
    affected = empty == 1
    share = float(affected.mean())
    if (lacking := too_few(np.isfinite(empty), "answers whose text is recorded")) is not None:
        return lacking
    cost = contrast.cost(run, affected)
    if share <= limit or cost == 0:
        return quiet(share, "of rollouts have no text in any answer", limit)
    rewards = [figure(mean(rows.reward[some])) for some in (affected, ~affected)]
    return Card(
        id="empty_answers",
        title=f"{percent(share)} of rollouts say nothing: their answers are empty",
        cost=cost,
        evidence=(
            f"{int(affected.sum())} of {len(rows)} rollouts have neither a tool call nor text, but for white space.",
            f"Mean reward: empty {rewards[0]}, others {rewards[1]}.",
        ),
        suggestion="Open one with its tokens. If it ends at once, look at the end-of-turn token and the chat template; "
        "if it holds tokens, at what they say, or at what strips their text.",
        where=links.ids(rows.id[affected]),
        **above(run.all.by_step(every), limit),
        own=affected,
    )


def _check_format(run: Run) -> Outcome:
    forms = [name for name in run.rows.values if _is_form(run, name)]
    if not forms:
        return NotJudged("No function of two values says whether answers have a form.")
    cards = [card for name in forms if (card := _find_lost_form(run, name)) is not None]
    if cards:
        return max(cards, key=lambda card: card.cost or 0.0)
    shares = [f"{name} {exact_percent(mean(_mark_lacking(run, name)) or 0.0)}" for name in forms]
    return Below(f"Share of rollouts without: {', '.join(shares[:3])} (threshold {_LOST:.0%}, if it grew and costs).")


def _is_form(run: Run, name: str) -> bool:
    """Return True for a function of two values that is no outcome."""
    decides = {mark.column for mark in run.scale.success.marks}
    is_free = not is_outcome(name) and links.rewards(name) not in decides
    return is_free and len(levels(run.all.values[name])) == 2 and run.all.weights.get(name, 1.0) >= 0


def _mark_lacking(run: Run, name: str) -> Floats:
    """Return (N,) of all steps: 1 for rollouts that ended normally and got the lower value of a function, 0 for others,
    NaN without any value.
    """
    values = run.all.values[name]
    lacks = (values < np.nanmean(levels(values))) & has_cause(run.all, LossCause.WRONG_ANSWER)
    return np.where(np.isfinite(values), lacks, np.nan)


def _find_lost_form(run: Run, name: str) -> Card | None:
    """Return a card if rollouts lose a form that most had, and what other functions pay with it."""
    rows, limit, every = run.rows, run.threshold("lost_format", _LOST), _mark_lacking(run, name)
    affected = every[run.all.step >= rows.steps[0]] == 1
    share, fields = float(affected.mean()), above(run.all.by_step(every), limit)
    first = fields["since_step"]
    if share <= limit or first is None or first <= run.all.steps[0]:
        return None
    before = float(np.nanmean(every[run.all.step < first]))
    others_paid = rows.reward - np.nan_to_num(rows.parts[name])
    others_paid = np.where(has_cause(rows, LossCause.WRONG_ANSWER), others_paid, np.nan)
    rest = compare(others_paid, affected, rows.group, rows.group)
    if before > min(1 - _HAD, share / 2) or not is_beyond_chance(rest, contrast.SURER, sign=-1):
        return None
    low, least = figure(float(levels(run.all.values[name])[0])), float(np.nanmin(run.all.values[name]))
    paid = f"{figure(rest.chosen)} with {name} at {low}, {figure(rest.others)} to the others that end normally"
    return Card(
        id="lost_format",
        title=f"{percent(share)} of rollouts end normally and lack a form: {name} is {low}, as for {percent(before)} "
        "before",
        cost=contrast.cost(run, affected),
        evidence=(f"Within groups, other functions pay {paid}.",),
        suggestion=f"Compare a rollout with {name} at {low} with one of its group that has the form: if its answer is "
        "right and is not read, the parser is too strict; if not, show the form in the prompt, or pay more for it.",
        where=f"cause:{LossCause.WRONG_ANSWER} {links.rewards(name)}<={least + SAME:.9g}",
        own=affected,
        **fields,
    )


PARSE_FAILURES = check(
    "parse_failures",
    "Parse failures",
    f"Share of turns whose answer gave no action, and was not truncated, above {_SHARE:.0%}; or the same share of "
    f"rollouts that end so, or {_TENTH:.0%} of the lost reward. If most actions that do not occur in the answer before "
    f"them are one and the same, and {OCCUR:.0%} of the others occur in theirs, the loop sent it in place of one. "
    "It is a fault of the set-up if most of such answers are whole calls but for raw line breaks in strings; or "
    "if nearly all are calls of one tool from the "
    f"first step on, beyond chance; and if their share is at least {_LASTS:.0%} of that in the first quarter of the "
    "steps.",
    needs("actions, as record(parse=...) finds them", lambda run: _failures(run.rows, fallback_of(run.rows)) >= 0),
    _check_unparsed,
    source="evalscope's budget, verl PR 7697",
    needs_calls=True,
)
NEVER_ACTED = check(
    "never_acted",
    "Never acted",
    f"Share of rollouts with an environment or tools and without a step or call, above {_SHARE:.0%}, unless they do as "
    "well as the others. Where others of an eval act, all of it count, but for tasks without a single action beside "
    f"tasks of which at least {_MOST_ACT:.0%} act at the same steps (of {_OTHERS} rollouts or more; by chance: below "
    f"{_CHANCE:.0%}). If actions are parsed from text and many answers have none, rollouts that never reach the "
    "environment count as parse failures.",
    needs("an environment", lambda run: (run.rows.facts["env_steps"] >= 0).any() or run.all.facts["env_steps"] > 0),
    _check_idle,
    source="NeMo Gym PR 1304; the threshold is ours",
)
EMPTY_ANSWERS = check(
    "empty_answers",
    "Empty answers",
    f"Share of rollouts without any text, but for white space, and tool call in their answers, above {_EMPTY:.0%}, "
    "unless they do as well as the others.",
    needs("texts of answers", lambda run: np.isfinite(find_empty(run.all))),
    _check_empty,
)
LOST_FORMAT = check(
    "lost_format",
    "Lost format",
    "Share of rollouts that end normally and get the lower value of a function with two values, which is no outcome, "
    f"above {_LOST:.0%} since a change point, before which at least {_HAD:.0%} had the upper one, and at most half as "
    "many not; if other functions pay them less than others of their groups, with a probability below "
    f"{contrast.SURER:.1%} by chance.",
    lambda run: None if len(run.rows.values) > 1 else "two reward functions",
    _check_format,
)
