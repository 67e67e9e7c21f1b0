"""Finds answers that are truncated at the token limit, or leave a tool's answer no room, which TRL then drops; and
rewards that follow the length of an answer.
"""

import math
from collections import Counter
from dataclasses import replace
from itertools import chain

import numpy as np

from logs_ui.recorder.diagnosis import contrast, links, measures
from logs_ui.recorder.diagnosis.answers import goes_on
from logs_ui.recorder.diagnosis.card import Below, Card, NotJudged, Outcome, Run, check, needs, quiet
from logs_ui.recorder.diagnosis.change_point import above
from logs_ui.recorder.diagnosis.checks.growing_answers import TIMES, find_growth
from logs_ui.recorder.diagnosis.checks.one_figure import FEW, Follows, R, follows
from logs_ui.recorder.diagnosis.checks.reward_functions import part_of
from logs_ui.recorder.diagnosis.contrast import added_by, given_by, rise
from logs_ui.recorder.diagnosis.measures import TOKENS, lengths, mean, shares
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Floats, Rows
from logs_ui.recorder.diagnosis.tables.action_sample import as_text, kind_names
from logs_ui.recorder.diagnosis.wording import figure, percent
from logs_ui.recorder.vocabulary import StopReason

_CUT = 0.05
_FEW_CUT = 2  # rollouts: one alone is an accident
_FULL = 0.98  # of max_completion_length: the rest had no room for another turn [ours]
_NEARLY_ALL = 0.9  # of the truncated generations have the length of a limit: then it cut them [ours]
_READ = 20  # truncated answers of which texts are read
_R = 0.8
_FEW = 8
_GROWN = 0.2  # of the first steps' length
_LESS = 0.3  # below _R is enough if the correlation holds in every part of the run [ours]
_PARTS = 5  # of the run, in each of which it must hold [ours]
_MUCH = 0.5  # of the first steps' length that answers must grow by then [ours]
_QUARTERS = 4  # of the range of rewards: rollouts in the same quarter are equally good
_ALIKE = 0.25  # r among equally good rollouts [ours]
_SHARE = 0.1  # of the reward's variance within groups: the least for a function to matter


def _completion_limit(run: Run) -> float | None:
    """Return the trainer's max_completion_length in tokens; None if it is not recorded."""
    length = run.config.get("max_completion_length")
    return float(length) if isinstance(length, int | float) and length > 0 else None


def _find_cut(rows: Rows, limit: float | None) -> Bools:
    """Return (N,) True for rollouts that the server reports as truncated, or, without reports, whose only answer has
    all tokens that the trainer allows.
    """
    return _find_cut_last(rows, limit) | (rows.facts["truncated_turns"] > 0)


def _find_cut_last(rows: Rows, limit: float | None) -> Bools:
    return (rows.truncated & ~_find_without_room(rows, limit)) | _used_all(rows, limit)


def _find_without_room(rows: Rows, limit: float | None) -> Bools:
    """Return (N,) True for rollouts that stop for length at what a tool answered: as recorded, or since all generations
    are whole, the last one gave an action, and there is room left, so that the trainer has cut nothing either.
    """
    facts = rows.facts
    is_full = rows.completion_tokens + np.nan_to_num(rows.env_tokens) >= (np.inf if limit is None else limit)
    acted = (facts["truncated_turns"] == 0) & (facts["parse_tail"] == 0) & (facts["env_steps"] > 0) & ~is_full
    return np.asarray((facts["no_room"] == 1) | (acted & (rows.stop_reason == StopReason.LENGTH)), bool)


def _used_all(rows: Rows, limit: float | None) -> Bools:
    is_full: Bools = rows.completion_tokens == (np.inf if limit is None else limit)
    return is_full & np.isnan(rows.facts["truncated_turns"]) & ~(rows.turns > 1)


def _missing(run: Run) -> str | None:
    is_told = ~np.isnan(run.rows.facts["truncated_turns"]) | (run.rows.stop_reason == StopReason.LENGTH)
    counted = _completion_limit(run) is not None and np.isfinite(run.rows.completion_tokens).any()
    return None if is_told.any() or counted else "why generations ended"


def _check_truncation(run: Run) -> Outcome:
    rows, limit, length = run.rows, run.threshold("truncation", _CUT), _completion_limit(run)
    cut = _find_cut(rows, length)
    share = float(cut.mean())
    if cut.sum() < _FEW_CUT or share <= limit or contrast.is_fine(run, cut):
        alone = ["one rollout alone may be an accident"] if cut.sum() < _FEW_CUT else []
        return quiet(share, "of rollouts are truncated", limit, *alone)
    part, whole = run.cost_of("truncation"), contrast.cost(run, cut)
    ended = _find_cut_last(rows, length)
    rewards = [figure(mean(rows.reward[of])) for of in (cut, ~cut)] if np.isfinite(rows.reward).any() else []
    lengths_said, advice = _limits_said(rows.where(cut), length)
    evidence = ["Mean reward: truncated {}, not truncated {}.".format(*rewards)] if rewards else []
    evidence.append(lengths_said)
    evidence += [] if (ended | ~cut).all() else [f"In {(ended & cut).sum()} of {cut.sum()} it was the last one."]
    if guessed := float((cut & ~_find_cut(rows, None)).sum() / cut.sum()):
        evidence += [f"For {percent(guessed)} of them no stop reason is recorded. The bars count those under others."]
    if LENGTH.missing(run) is None and isinstance(growth := _check_length(run), Card) and growth.own is not None:
        advice = "Stop answers from growing first: they grow into this limit, and would into a higher one"
    ended_last = _find_cut_last(run.all, length) & (run.all.step >= rows.steps[0])
    going_on = [goes_on(texts.messages) for texts in run.sample(ended_last, _READ).values()]
    if going_on and sum(going_on) >= _NEARLY_ALL * len(going_on):
        advice = "Check the token that ends a turn (eos), of the chat template and of the sampler: answers go on"
        count = f"Of {len(going_on)} of them that were read, {sum(going_on)} go on"
        evidence.append(f"{count} after a final answer, or as another speaker.")
    where = {"truncated_turns>0": rows.facts["truncated_turns"] > 0, "stop:length": rows.stop_reason == "length"}
    where |= {f"completion_tokens:{length:g} truncated_turns:none": _used_all(rows, length)} if length else {}
    cut_of_all = _find_cut(run.all, length)
    ends = "are truncated at the token limit" if (ended | ~cut).all() else "have a truncated generation"
    return Card(
        id="truncation",
        title=f"{percent(share)} of rollouts {ends}",
        cost=max(part, whole),
        evidence=tuple(evidence),
        suggestion=f"{advice}.",
        where=links.selecting(rows.id, cut, where),
        is_part=part >= whole,
        **above(run.all.by_step(cut_of_all), limit),
        own=cut,
        own_of_all=cut_of_all,
    )


def _limits_said(cut: Rows, length: float | None) -> tuple[str, str]:
    """Describe how long the truncated generations are, and the limit that they hit; return what to change, too.

    `length` is the trainer's max_completion_length, which is a limit of these generations only if they are that long.
    """
    tokens, limits = cut.facts["cut_tokens"], cut.facts["cut_limit"]
    tokens = np.where(np.isnan(tokens) & ~(cut.turns > 1), cut.completion_tokens, tokens)
    recorded, allowed = tokens[np.isfinite(tokens)], limits[np.isfinite(limits)]
    ends = f"; max_completion_length is {figure(length)}." if length else "."
    unknown = "Find what cuts them: the calls' max_tokens, the server's context length or max_completion_length"
    if not len(recorded):
        sentence = "The length and the limit of truncated generations are not recorded"
        if len(allowed):
            sentence = f"Truncated generations were allowed {_span(allowed)} tokens (max_tokens)"
        return f"{sentence}{ends}", unknown
    some = "" if len(recorded) == len(tokens) else f" of the {len(recorded)} of {len(tokens)} whose length is recorded"
    sentence = f"Truncated generations have {_span(recorded)} tokens ("
    sentence += (
        f"all{some or ' of them'})" if np.ptp(recorded) == 0 else f"median {figure(float(np.median(recorded)))}{some})"
    )
    whole, most = cut.completion_tokens + cut.env_tokens, length or 0.0
    is_shared = bool(((whole >= _FULL * most) & (whole <= most) & (cut.turns > 1)).mean() >= _NEARLY_ALL)
    if is_shared or (recorded == length).mean() >= _NEARLY_ALL:
        rest = "or reward completions that finish within the limit"
        if is_shared:
            sentence += f"; with the observations, these rollouts have {_span(whole[np.isfinite(whole)])}"
            rest = "shorten observations, or allow fewer turns: all turns share it"
        return f"{sentence}{ends}", f"Raise max_completion_length (now {figure(most)}), {rest}"
    if not len(allowed):
        return f"{sentence}. Their limit is not recorded{ends}", unknown
    if (tokens < limits).sum() > len(allowed) / 2:
        sentence += f", fewer than their calls allowed (max_tokens {_span(allowed)}){ends}"
        return sentence, "Find what cuts them: the server's context length, or another limit than the calls' max_tokens"
    if (room := _describe_room(cut, allowed)) is not None:
        advice = (
            "Shorten what the environment says, allow fewer turns, or raise the context length: calls get what is left"
        )
        return f"{sentence}. Their calls allowed {_span(allowed)} (max_tokens){room}{ends}", advice
    advice = f"Raise the calls' max_tokens (now {_span(allowed)})"
    if length and allowed.max() < length:
        advice += ", which is below the trainer's max_completion_length"
    else:
        advice += ", or reward completions that finish within the limit"
    return f"{sentence}. Their calls allowed {_span(allowed)} (max_tokens){ends}", advice


def _describe_room(cut: Rows, allowed: Floats) -> str | None:
    """Return words on what fills the context of truncated rollouts, if their calls were `allowed` what was left of it:
    not always as much, and in the median less than they sampled per turn. None if not, or if nothing tells.
    """
    sampled, heard = cut.completion_tokens, cut.env_tokens
    has_both = np.isfinite(sampled) & np.isfinite(heard) & (cut.turns > 1)
    if not has_both.all() or np.ptp(allowed) == 0 or np.median(allowed) >= np.median(sampled / cut.turns):
        return None
    share = percent(float(heard.sum() / (sampled + heard).sum()))
    less = ", in the median less than they sampled per turn"
    return f"{less}; {share} of their tokens after the prompt are the environment's"


def _span(values: Floats) -> str:
    low, high = figure(float(values.min())), figure(float(values.max()))
    return low if low == high else f"{low} to {high}"


def correlation(rows: Rows, values: Floats | None = None) -> float:
    """Return Pearson's r between reward (or other values) and length within groups; NaN if either does not vary."""
    return measures.correlation(rows, rows.reward if values is None else values, lengths(rows))


def _find_paid_length(run: Run, limit: float) -> tuple[str | None, float, float]:
    """Return the function that rewards length (None for the whole reward), its r and its share of the variance."""
    whole = correlation(run.rows)
    if abs(whole) >= limit:
        return None, whole, 1.0
    share = shares(run.rows)
    parts = {name: run.rows.parts[name] for name in share if share[name] >= _SHARE}
    able = {name: r for name, part in parts.items() if abs(r := correlation(run.rows, part)) >= limit}
    name = max(able, key=lambda name: abs(able[name]), default=None)
    return (name, able[name], share[name]) if name is not None else (None, float("nan"), 0.0)


def _check_length(run: Run) -> Outcome:
    limit, whole = run.threshold("length", _R), follows(run)
    is_alone = isinstance(whole, Follows) and whole.figure == TOKENS and whole.is_whole and abs(whole.r) >= limit
    name, r, share = (
        (whole.function, whole.r, whole.share)
        if isinstance(whole, Follows) and is_alone
        else _find_paid_length(run, limit)
    )
    # This is the second case of the definition: a weaker correlation that holds in all parts of the run.
    if not abs(r) >= limit and _holds(run, limit - _LESS):
        limit, name, r, share = limit - _LESS, None, correlation(run.rows), 1.0
    # This is the third case of the definition: a function of any share that pays for length.
    bonus = None if abs(r) >= limit else _paid_beside(run, limit)
    if bonus is not None:
        name, r, share, _ = bonus
    if run.windows is None and not is_alone:
        return NotJudged("The run has a single step.")
    of_reward = correlation(run.rows)
    if not np.isfinite(of_reward):
        return NotJudged("The reward or the length does not vary within groups.")
    grown = rise(run, lengths)
    of_function = "" if name is None else f", {name}: r = {figure(r)}"
    calm = Below(
        f"Reward and tokens per turn: r = {figure(of_reward)} within groups{of_function} (threshold "
        f"{run.threshold('length', _R):g}); mean tokens per turn {figure(grown.before)} \u2192 {figure(grown.after)}."
    )
    changes = [rise(run, given_by(name)) for name in run.all.values]
    # Shorter answers alone may well be an improvement.
    follow = grown.value * r > 0 and grown.is_sure and abs(grown.value) > _GROWN * max(grown.before, 1)
    follow = follow and (r > 0 or any(change.is_sure and change.value < 0 for change in changes))
    if not abs(r) >= limit or not (follow or is_alone):
        # This is the fourth case of the definition: answers grow, and nothing pays for that.
        is_cut = _find_cut(run.rows, _completion_limit(run)).mean() > run.threshold("truncation", _CUT)
        return find_growth(run, is_cut=bool(is_cut)) or calm
    paid, tokens = run.all.reward if name is None else run.all.parts[name], lengths(run.rows)
    trend = measures.correlations_by_step(run.all, paid, lengths(run.all))
    began = above(tuple((step, abs(value)) for step, value in trend), limit)
    began |= {"trend": trend, "limit": None, "half_step": None}
    if bonus is not None:
        began = above(run.all.by_step(lengths(run.all)), (1 + _GROWN) * grown.before)
    middle = np.nanmedian(tokens)
    ends = f"{math.ceil(middle):,}+" if r > 0 else f"at most {math.floor(middle):,}"
    far = tokens >= middle if r > 0 else tokens <= middle
    where = f"completion_tokens>={math.ceil(middle)}" if r > 0 else f"completion_tokens<={math.floor(middle)}"
    if not np.array_equal(tokens, run.rows.completion_tokens, equal_nan=True):
        where = links.ids(run.rows.id[far])
    return Card(
        id="length",
        title=f"Answers follow what {name} pays for length, and nothing else gets better"
        if bonus
        else f"{'Longer' if r > 0 else 'Shorter'} answers get higher rewards, and answers follow"
        if follow
        else f"{name or 'The reward'} follows the length of answers alone (r = {figure(r)} within groups)",
        cost=bonus[3] if bonus else run.fall.lost * abs(r) * share,
        evidence=(
            f"Correlation of {name or 'reward'} and tokens within groups: r = {figure(r)}."
            + (f" It explains {part_of(share)} of the reward's variance." if name and share > 0 else ""),
            f"Mean tokens per turn, first to last steps: {figure(grown.before)} \u2192 {figure(grown.after)}.",
            *([f"{name} adds {figure(bonus[3])} more to the reward than at first."] if bonus else []),
        ),
        suggestion=f"Compare two answers of one length and different quality. If {name or 'the reward'} rates them "
        "alike, repair it before training goes on."
        if is_alone
        else "Remove length from the reward, or reward it only if the answer is correct.",
        where="" if is_alone else where,
        **began,
        own=None if is_alone else far,
        clause="" if is_alone else f"have {ends} tokens per turn",
        measure="tokens per turn",
        is_setup=is_alone,
        is_loss=follow and bonus is None,
        explains=("hacking",),  # growth that nothing pays for comes with hacking, and does not cause it
    )


def _holds(run: Run, limit: float) -> bool:
    """Return True if the reward follows length in every part of the run, also among equally good rollouts.

    If right answers merely are longer than wrong ones, length says little among the right ones. And if another reward
    function rises that does not follow length, the policy learns more than to write long answers.
    """
    if len(run.all.steps) < _PARTS:
        return False
    parts = (run.all.where(np.isin(run.all.step, steps)) for steps in np.array_split(run.all.steps, _PARTS))
    if not all(correlation(part) >= limit for part in parts) or not _among_alike(run.all) >= _ALIKE:
        return False
    gain = rise(run, lambda rows: rows.reward)
    return _grows_much(run) and gain.is_sure and gain.value > 0 and not _learns_more(run, limit)


def _grows_much(run: Run) -> bool:
    grown = rise(run, lengths)
    return grown.is_sure and grown.value >= _MUCH * grown.before


def _learns_more(run: Run, limit: float) -> bool:
    """Return True if a function rises that does not follow length."""
    others = [name for name in run.all.values if not correlation(run.all, run.all.values[name]) >= limit]
    rises = (rise(run, given_by(name)) for name in others)
    return any(gain.is_sure and gain.value > 0 for gain in rises)


def _paid_beside(run: Run, limit: float) -> tuple[str, float, float, float] | None:
    """Return a function of whatever share that follows length and rises, while answers grow by half or more, and
    neither solved nor another function rises: what is learned is its bonus. With it r, its share of the reward's
    variance within groups, and what it adds to the reward more than in the first steps.
    """
    share, solved = shares(run.rows), rise(run, run.scale.success.outcomes)
    if not _grows_much(run) or (solved.is_sure and solved.value > 0) or _learns_more(run, limit):
        return None
    bonuses = []
    for name, part in run.rows.parts.items():
        r, gain = correlation(run.rows, part), rise(run, added_by(name))
        if r >= limit and gain.is_sure and gain.value > 0:
            bonuses.append((name, r, share.get(name, 0.0), gain.value))
    return max(bonuses, key=lambda bonus: bonus[3], default=None)


def _among_alike(rows: Rows) -> float:
    """Return the correlation among rollouts of a group whose rewards lie in the same quarter of the run's range.

    The range goes from the 1st to the 99th percentile. NaN if the reward says only right or wrong.
    """
    rewards = rows.reward[np.isfinite(rows.reward)]
    if not len(rewards):
        return float("nan")
    low, high = np.percentile(rewards, (1, 99)).tolist()
    place = np.searchsorted(np.linspace(low, high, _QUARTERS + 1)[1:-1], rows.reward)
    return correlation(replace(rows, group=_QUARTERS * rows.group + place))


def _check_no_room(run: Run) -> Outcome:
    most, limit = _completion_limit(run), run.threshold("no_room", _CUT)
    affected, recorded = _find_without_room(run.rows, most), run.rows.facts["no_room"] == 1
    share = float(affected.mean())
    if share <= limit or contrast.is_fine(run, affected):
        return quiet(share, "of rollouts end because a tool's answer had no room", limit)
    length = f", of max_completion_length={most:g} tokens," if most else ""
    half, total = (most or 0.0) / 2, run.rows.completion_tokens + np.nan_to_num(run.rows.env_tokens)
    # Where less than half of the room was used, it is the tool's answer that is too long, whoever calls it.
    early, is_recorded = int((total[affected] <= half).sum()), bool(recorded[affected].all())
    is_setup = bool(is_recorded and early >= _NEARLY_ALL * affected.sum())
    used = f"{early} of them had used at most {figure(half)} tokens: what the tool answered needs more than that."
    return Card(
        id="no_room",
        title=f"{percent(share)} of rollouts end because a tool's answer had no room",
        cost=float(run.lost[affected].sum()) / len(affected) if is_setup else contrast.cost(run, affected),
        evidence=(
            f"In {affected.sum()} of {len(affected)} rollouts the last answer is whole and gives an action.",
            *([f"The completion{length} had no room for what the tool answered."] * is_recorded),
            *([used] * is_setup),
            *_describe_last_heard(run, affected),
        ),
        suggestion="Raise max_completion_length, shorten what tools answer, or allow fewer turns.",
        where=links.selecting(run.rows.id, affected, {"no_room:1": recorded}),
        **above(run.all.by_step(_find_without_room(run.all, most)), limit),
        own=affected,
        is_setup=is_setup,
    )


def _describe_last_heard(run: Run, affected: Bools) -> list[str]:
    """Return a sentence on the last of what rollouts heard, beside what they heard before."""
    read = run.sample(np.isin(run.all.id, run.rows.id[affected]), _READ).values()
    heard = [[entry for entry in texts.actions if entry["observation"] is not None] for texts in read]
    last = [entries.pop() for entries in heard if entries]
    sizes = [[len(as_text(entry["observation"])) for entry in of] for of in (last, chain.from_iterable(heard))]
    if not all(sizes):
        return []
    ((name, count),) = Counter(kind_names([entry["action"] for entry in last])).most_common(1)
    long, usual = (figure(float(np.median(of))) for of in sizes)
    characters = f"the last answers have {long} characters (median), earlier ones {usual}"
    return [f"In {count} of {len(last)} that were read, {name} answered last; {characters}."]


TRUNCATION = check(
    "truncation",
    "Truncation",
    "Share of rollouts with a turn that ended at the token limit, or, if no stop reason is recorded, whose only answer "
    f"has max_completion_length tokens, above {_CUT:.0%}.",
    _missing,
    _check_truncation,
    source="AReaL's no_eos_ratio",
    needs_calls=True,
)
LENGTH = check(
    "length",
    "Length bias",
    "Pearson's r within groups between tokens per turn and the reward, or a function that explains at least "
    f"{_SHARE:.0%} of its variance. (1) |r| is at least {_R:g}, and answers grow by more than {_GROWN:.0%}; or r is "
    f"negative, answers shrink by more than {_GROWN:.0%}, and a reward function falls; or |r| is at least {R:g} over "
    f"{FEW} rollouts, as in `proxy`, whether answers grow or not. (2) r is at least "
    f"{_R - _LESS:g} in each fifth of the run and {_ALIKE:g} among rollouts of a group with similar rewards (the same "
    f"quarter of the range), answers grow by {_MUCH:.0%} or more, the reward rises, and each reward function that "
    f"rises follows length. (3) r is at least {_R:g} for a function of any share, which rises, answers grow by "
    f"{_MUCH:.0%} or more, and neither the share of solved rollouts rises nor a function that does not follow length. "
    f"(4) Answers grow to {TIMES:g} times their length or more, also at the same tasks, the outcome does not rise, "
    "and longer answers of a "
    "group are not better paid. A function that is never above 0, or above what short answers get, and falls with "
    "length, is a penalty: that it follows length is no finding.",
    lambda run: None if np.isfinite(run.rows.completion_tokens).sum() >= _FEW else "completion tokens",
    _check_length,
    source="diagnosis literature: |r| \u2265 0.8 at n \u2265 8; the rest is ours",
)
NO_ROOM = check(
    "no_room",
    "Room for tools' answers",
    f"Share of rollouts that end because the completion had no room for a tool's answer, above {_CUT:.0%}, unless "
    "they do as well as the others: as recorded, or since the loop stops for length after an action, though its "
    "generations are whole and max_completion_length is not reached. A fault of the set-up, which costs all that they "
    f"lost, if all are recorded so and {_NEARLY_ALL:.0%} of them had used at most half of max_completion_length.",
    needs(
        "tool calls",
        lambda run: (
            _find_without_room(run.rows, _completion_limit(run))
            | ((run.rows.facts["no_room"] >= 0) & (run.rows.facts["tool_calls"] > 0))
        ),
    ),
    _check_no_room,
    needs_calls=True,
)
