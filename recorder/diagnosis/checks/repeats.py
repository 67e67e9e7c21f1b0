"""Finds rollouts that repeat: their actions, their text, or the answers of others; and episodes that end at the turn
limit before they are done.
"""

from typing import Any

import numpy as np

from logs_ui.recorder.diagnosis import contrast, links
from logs_ui.recorder.diagnosis.card import Below, Card, NotJudged, Outcome, Run, check, needs, quiet, too_few
from logs_ui.recorder.diagnosis.change_point import above
from logs_ui.recorder.diagnosis.checks.never_solved import never_solved
from logs_ui.recorder.diagnosis.contrast import rise, shift
from logs_ui.recorder.diagnosis.explanations import BEHAVIOUR
from logs_ui.recorder.diagnosis.mean_difference import LEAST_UNITS, compare
from logs_ui.recorder.diagnosis.measures import alike, dead, duplicated, mean, unsolved_groups
from logs_ui.recorder.diagnosis.places import families_of
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Floats, Ints, Rows, means
from logs_ui.recorder.diagnosis.tables.actions import loop_kinds, looping
from logs_ui.recorder.diagnosis.tables.movement import (
    ENTROPY_SHARE,
    FLOOR,
    GROWN,
    HIGH,
    LOW,
    STEPS,
    Entropy,
    entropy,
    logged,
)
from logs_ui.recorder.diagnosis.waterfall import has_cause, judged
from logs_ui.recorder.diagnosis.wording import exact_percent, figure, listed, percent
from logs_ui.recorder.vocabulary import LOOP, REPEATS, LossCause, StopReason

_LOOPING, _OUT_OF_TURNS = 0.1, 0.2
_MANY_OUT = 0.4  # of the rollouts at tasks that are solved run out of turns [ours]
_FELL = 0.1  # of the range of rewards [ours]
_GAINED = 0.1  # of the range of rewards: rollouts that run out of turns learn in spite of it [ours]
_SHARE = 0.1
_LITTLE = 0.05  # of the range of rewards: what is lost more may be chance [ours]
_COMPRESSION, _WORDS, _TRIGRAMS = 10.0, 0.25, 0.5
_HALF = 0.5
_LIMITS, _LONGEST = 3, 95  # numbers of turns that may be limits; percentile of the turns of others [ours]
_ALIKE = 0.75  # of a group's completions are duplicates: of 8, at most 2 are unlike any other
_DEAD = 0.8  # of such groups have zero variance; else equal completions are not the reason
_FAILED = 0.25  # of the groups: if nearly all are solved, a deterministic policy has learned them
_COLD = 0.3  # temperature [ours]
_OF_COLD = ("parse_failures", "truncation", "loops", "never_acted", "degenerate_text", "constant_reward")
_OF_EXPLODED = (*BEHAVIOUR, "constant_reward", "constant_function", "reward_parts", "proxy", "mismatch")
_UPDATES, _GROWN = ("grad_norm", "kl", "loss", "kl_loss", "ppo_kl"), 10  # figures that diverge; times [ours]
_NEAR_BEST = 0.2  # of the range of rewards: a policy that solves its tasks may be sure of them [ours]


def charged(run: Run) -> Bools:
    """Return (N,) True for rollouts of the last steps that the card is about; none if there is no card."""
    loops = looping(run.rows)
    is_silent = float(loops.mean()) <= run.threshold("loops", _LOOPING) or contrast.is_fine(run, loops)
    return np.zeros_like(loops) if is_silent else loops


def _check_loops(run: Run) -> Outcome:
    loops, sentences = charged(run), list[str]()
    if not loops.any():
        is_known, limit = ~np.isnan(run.rows.facts["action_tail"]), run.threshold("loops", _LOOPING)
        share = float(looping(run.rows).mean())
        return too_few(is_known, "recorded actions") or quiet(share, "of rollouts repeat their actions", limit)
    kinds = loop_kinds(run.rows)
    at_end, around = kinds.values()
    if at_end.any():
        most = figure(float(run.rows.facts["action_tail"][at_end].max()))
        sentences.append(
            f"Same action {LOOP}+ times in a row at the end: {at_end.sum()} of {len(loops)}, longest {most}."
        )
    if around.any():
        sentences.append(
            f"More than {REPEATS:.0%} of actions taken before at the same observation, or going round the same few: "
            f"{around.sum()} of {len(loops)}, mean {percent(float(run.rows.facts['repeats'][around].mean()))}."
        )
    return Card(
        id="loops",
        title=f"{percent(float(loops.mean()))} of rollouts repeat the same actions",
        cost=contrast.cost(run, loops),
        evidence=(*sentences, _paid(run, loops)),
        suggestion="Say in the observation that nothing changed, penalise repeats, or end the episode after N of them.",
        where=links.selecting(run.rows.id, loops, kinds),
        **above(run.all.by_step(looping(run.all)), run.threshold("loops", _LOOPING)),
        own=loops,
    )


def _paid(run: Run, chosen: Bools) -> str:
    reward = np.nan_to_num(run.rows.reward)
    if chosen.all():
        return f"All rollouts do; their mean reward is {figure(float(reward.mean()))}."
    mine, others = float(reward[chosen].mean()), float(reward[~chosen].mean())
    is_sure = contrast.shift(reward, chosen, run.rows.group).is_sure
    chance = "" if is_sure or mine == others else "; the difference may be chance"
    return f"Their mean reward is {figure(mine)}, that of the others {figure(others)}{chance}."


def _check_turns(run: Run) -> Outcome:
    rows, limit = run.rows, run.threshold("turn_limit", _OUT_OF_TURNS)
    ended: Bools = rows.stop_reason == StopReason.TURN_LIMIT
    share = float(ended.mean())
    cost = _cost(run, ended)
    if share <= limit or cost <= 0 or contrast.is_fine(run, ended):
        lacking = too_few(rows.stop_reason != StopReason.NOT_RECORDED, "a recorded end")
        why = ["their lost reward is counted under loops"] if cost <= 0 else []
        return lacking or quiet(share, "of rollouts run out of turns", limit, *why)
    if not _is_limited(rows, ended):
        least, most = (figure(float(end(rows.turns[ended]))) for end in (np.nanmin, np.nanmax))
        return Below(
            f"{exact_percent(share)} of rollouts stop before their episode ends, after {least} to {most} turns; "
            "others have as many, so no turn limit shows."
        )
    turns, repeats = mean(rows.turns[ended]), rows.facts["repeats"]
    alone = mean(np.where(np.isnan(repeats), np.nan, (repeats == 0) & (rows.facts["action_tail"] < 2))[ended])
    # If solvable tasks end in time, of the same evals and families if there are any, the others run out of turns as
    # they are unsolvable; if many of them do not, the others may only need more turns.
    others = ~np.isin(rows.task, np.flatnonzero(never_solved(run)))
    for codes in (rows.eval, *(families.task for families, *_ in families_of(run))):
        others = beside if (beside := others & np.isin(codes, codes[ended])).any() else others
    of_others = float(ended[others].mean()) if others.any() else 1.0
    explained = ["task_mix", "forgotten", *["never_solved"] * (of_others >= _MANY_OUT)] if of_others > limit else []
    sentences = [] if turns is None else [_describe_turns(rows, ended, turns)]
    if alone is not None:
        sentences.append(
            f"{percent(alone)} of them repeat no action, neither at the same observation, nor in turn, nor at the end."
        )
    sentences += _tasks(rows, ended)
    ended_of_all: Bools = run.all.stop_reason == StopReason.TURN_LIMIT
    began = above(run.all.by_step(ended_of_all), limit)
    advice = "Allow more turns, or make the task smaller: nothing after the last turn can be rewarded."
    first = began["since_step"]
    if first is not None and _were_enough(run, ended, first):
        before = percent(float(ended_of_all[run.all.step < first].mean()))
        advice = f"Find what changed: before step {first:,} {before} ran out of turns, and their tasks were paid more."
    return Card(
        id="turn_limit",
        title=f"{percent(share)} of rollouts run out of turns",
        cost=cost,
        evidence=tuple(sentences),
        suggestion=advice,
        where="stop:turn_limit",
        is_part=True,
        **began,
        own=ended,
        own_of_all=ended_of_all,
        may_remain=first == run.all.steps[0] and _learns_at_limit(run),
        explains=tuple(explained),
    )


def _describe_turns(rows: Rows, ended: Bools, turns: float) -> str:
    """Return a sentence on the turns after which rollouts end, whose mean is `turns`; of several evals, of each."""
    if len(rows.present) < 2:
        return f"They have {figure(turns)} turns on average."
    inside = {name: rows.in_eval(name) for name in rows.present}
    shares = {name: share for name, of in inside.items() if (share := float(ended[of].mean()))}
    parts = [
        f"{name} {percent(shares[name])} of its rollouts (after {figure(mean(rows.turns[ended & inside[name]]))} turns)"
        for name in sorted(shares, key=lambda name: (-shares[name], name))
    ]
    return f"Out of turns, by eval: {listed(parts)}."


def _learns_at_limit(run: Run) -> bool:
    """Return True if the rollouts at the turn limit get clearly more in the last steps than in the first, and are no
    more of them: what they reach before the last turn is rewarded.
    """
    paid = rise(run, lambda rows: np.where(rows.stop_reason == StopReason.TURN_LIMIT, rows.reward, np.nan))
    more = rise(run, lambda rows: (rows.stop_reason == StopReason.TURN_LIMIT).astype(float))
    return paid.is_sure and paid.value >= _GAINED * contrast.spread(run) and not (more.is_sure and more.value > 0)


def _is_limited(rows: Rows, ended: Bools) -> bool:
    """Return False if the (N,) `ended` rollouts stop after many numbers of turns, and most of them after no more than
    others of their evals have: whoever stops them, it is no limit of turns.
    """
    turns, longest = rows.turns, np.full(len(rows), -np.inf)
    of = ended & np.isfinite(turns)
    counts = np.sort(np.unique(turns[of], return_counts=True)[1])
    for code in np.unique(rows.eval).tolist():
        others = turns[(rows.eval == code) & ~ended & np.isfinite(turns)]
        longest[rows.eval == code] = np.percentile(others, _LONGEST) if len(others) else -np.inf
    is_long = (turns[ended] >= longest[ended]).mean() >= _HALF
    has_few = counts[-_LIMITS:].sum() >= _HALF * counts.sum()
    return bool(has_few or is_long or _have_own_limits(rows.task[of], turns[of]))


def _have_own_limits(tasks: Ints, turns: Floats) -> bool:
    """Return True if of the (K,) rollouts of tasks that have several, most stop after the most frequent number of turns
    of their task.
    """
    pairs, times = np.unique(np.stack([tasks, turns]), axis=1, return_counts=True)
    task = np.unique(pairs[0], return_inverse=True)[1].reshape(-1)
    tries = np.bincount(task, times)
    most = np.zeros(len(tries))
    np.maximum.at(most, task, times)
    several = tries >= _LIMITS
    return bool(several.any() and most[several].sum() >= _HALF * tries[several].sum())


def _were_enough(run: Run, ended: Bools, first: int) -> bool:
    """Return True if the tasks of these rollouts of the last steps were paid more before a step than since."""
    rows, weights = run.all, np.bincount(run.rows.task[ended & (run.rows.task >= 0)], minlength=len(run.all.tasks))
    before, since = (
        means(rows.task[of], rows.reward[of], len(rows.tasks))
        for of in ((rows.task >= 0) & (rows.step < first), (rows.task >= 0) & (rows.step >= first))
    )
    fall = np.nan_to_num(before - since) @ weights
    return bool(fall >= _FELL * contrast.spread(run) * max(weights.sum(), 1))


def _cost(run: Run, ended: Bools) -> float:
    """Return their part of the waterfall, without what the card on loops counts already."""
    is_judged = judged(run.rows)
    affected = ended & has_cause(run.rows, LossCause.LOOP) & is_judged & ~charged(run)
    return float(run.lost[affected].sum() / max(int(is_judged.sum()), 1))


def _tasks(rows: Rows, ended: Bools) -> list[str]:
    """Name the tasks that run out of turns most often, if there are several tasks."""
    has_task = rows.task >= 0
    share = means(rows.task[has_task], ended[has_task], len(rows.tasks))
    if np.isfinite(share).sum() < 2:
        return []
    worst = [t for t in np.argsort(-np.nan_to_num(share), kind="stable")[:3].tolist() if np.isfinite(share[t])]
    return [f"Most often {listed([f'{rows.tasks[t]} ({percent(float(share[t]))})' for t in worst])}."]


def _signs(rows: Rows) -> dict[str, Bools]:
    """Return (N,) rollouts that show each sign of repetition, by the filter that selects them."""
    return {
        f"trigram_repeats>={_TRIGRAMS:g}": rows.facts["trigram_repeats"] >= _TRIGRAMS,
        f"distinct_words<={_WORDS:g}": rows.facts["distinct_words"] <= _WORDS,
        f"compression>{_COMPRESSION:g}": rows.facts["compression"] > _COMPRESSION,
    }


def repeating(rows: Rows) -> Bools:
    """Return (N,) True for rollouts that repeat their own text."""
    is_repeating: Bools = np.logical_or.reduce(list(_signs(rows).values()))
    return is_repeating


def _lose_more(run: Run, uncut: Bools, others: Bools, bad: Bools) -> bool:
    """Return True if those that repeat their text and are not truncated lose more than others; where they are most of
    those that repeat it: beyond chance, or much more.
    """
    more = compare(np.where(uncut | others, run.lost, np.nan), uncut, run.rows.group, run.rows.group)
    if more is None or more.chance is None or 2 * uncut.sum() < bad.sum():
        return bool(run.lost[uncut].mean() > run.lost[others].mean())
    return more.value > (0 if more.chance < contrast.CHANCE else _LITTLE * contrast.spread(run))


def _check_degenerate(run: Run) -> Outcome:
    rows, limit, signs = run.rows, run.threshold("degenerate_text", _SHARE), _signs(run.rows)
    bad = repeating(rows)
    share = float(bad.mean())
    if share <= limit or contrast.is_fine(run, bad):
        is_known = ~np.isnan(rows.facts["compression"])
        return too_few(is_known, "recorded texts") or quiet(share, "of rollouts repeat their own text", limit)
    uncut, others = bad & ~rows.truncated, ~bad & ~rows.truncated
    if uncut.sum() >= LEAST_UNITS and others.any() and not _lose_more(run, uncut, others, bad):
        text = f"{percent(share)} of rollouts repeat their own text"
        return Below(f"{text}; without truncated ones they lose no more beyond chance.")
    compression, repeats = rows.facts["compression"][bad], rows.facts["trigram_repeats"][bad]
    evidence = [f"Median compression ratio: {figure(float(np.nanmedian(compression)))}."]
    if (~np.isnan(repeats)).any():
        evidence.append(f"Median share of repeated three-word sequences: {percent(float(np.nanmedian(repeats)))}.")
    return Card(
        id="degenerate_text",
        title=f"{percent(share)} of rollouts repeat their own text",
        cost=contrast.cost(run, bad),
        evidence=tuple(evidence),
        suggestion="Look for a reward that grows with the number of words; lower the learning rate, or add a KL term.",
        where=links.selecting(rows.id, bad, signs),
        **above(run.all.by_step(repeating(run.all)), limit),
        own=bad,
    )


def _check_diversity(run: Run) -> Outcome:
    twins, chosen = duplicated(run.rows), _choose_groups(run)
    sampled = run.all.by_step(-run.all.facts["mean_logprob"])  # in nats per token
    trends = [trend for trend in (logged(run.current), sampled) if trend]
    trend = next((trend for trend in trends if (fall := entropy(trend)) and fall.word), trends[-1] if trends else ())
    fallen, share = entropy(trend), mean(twins)
    sentences = [] if share is None else [f"{percent(share)} of completions duplicate another of their group."]
    source = "the sampler's mean of -log p" if trend is sampled else "logged by the trainer"
    if fallen is not None or trend:
        sentences.append(
            f"Entropy ({source}): {fallen.description if fallen else f'{figure(trend[-1][1])} nats per token'}."
        )
    if not chosen.any():
        if fallen is not None and fallen.word:
            begun = fallen.tell_onset(trend)
            gain = rise(run, lambda rows: rows.reward)
            has_learned = fallen.is_exploded and gain.is_sure and gain.value > 0
            if not has_learned and not _is_well(run, begun):
                return _entropy_card(run, fallen, source, begun)
            sentences.append("The mean reward still rises, or is near the best.")
        return Below(" ".join(sentences)) if sentences else NotJudged("No group has two completions to compare.")
    temperature = run.config.get("temperature")
    sentences += [f"Temperature: {figure(temperature)}."] if isinstance(temperature, int | float) else []
    sentences[1:1] = [_paid(run, twins == 1)] * bool((twins == 1).any())
    return Card(
        id="diversity",
        title=f"{percent(share or 0.0)} of completions duplicate another in their group",
        cost=float(run.lost[chosen[run.rows.group]].sum()) / len(run.rows),
        evidence=tuple(sentences),
        suggestion="Sample at temperature 1: duplicates teach nothing."
        if isinstance(temperature, int | float) and temperature < 1
        else "Add an entropy bonus or a KL term, or return to an earlier checkpoint.",
        where="twins>0",
        **above(run.all.by_step(duplicated(run.all)), run.threshold("diversity", _HALF)),
        own=twins == 1,
        is_loss=False,  # equal completions are no worse, but teach nothing
        explains=_OF_COLD if _is_cold(run) else (),
        needs=np.inf if _is_cold(run) else None,
    )


def _entropy_card(run: Run, change: Entropy, source: str, begun: dict[str, Any]) -> Card:
    sentence, advice = (
        "The policy samples almost only its likeliest tokens: it no longer explores.",
        ("Add an entropy bonus or a KL term, lower the learning rate, or return to an earlier checkpoint."),
    )
    grown = _list_grown(run, begun["since_step"]) if change.is_exploded else ""
    if change.is_exploded:
        sentence = f"It is that of a choice among {np.exp(change.now):,.0f} equally likely tokens."
        advice = "Return to an earlier checkpoint, lower the learning rate, clip the gradient's norm, or add a KL term."
    return Card(
        id="diversity",
        title=f"Entropy {change.word}: {change.description}",
        cost=run.fall.lost,
        evidence=(f"It is {source}.", sentence, *filter(None, [grown])),
        suggestion=advice,
        where="",
        **begun,
        is_loss=False,
        explains=_OF_EXPLODED if change.is_exploded else (),
        needs=np.inf if change.is_exploded else None,
        is_setup=change.is_exploded,
    )


def _list_grown(run: Run, since: int | None) -> str:
    """Return a sentence on what the trainer logs of its updates, and grew with the entropy; "" without any."""
    grown, since = list[str](), run.all.steps[0] if since is None else since
    for name, trend in run.current.items():
        before = [abs(value) for step, value in trend if step < since]
        now = [abs(value) for step, value in run.recent(trend) if step >= since]
        first, last = (float(np.median(values or [np.nan])) for values in (before, now))
        if name.rpartition("/")[2] in _UPDATES and last > _GROWN * first:
            grown.append(f"{name} {figure(first)} \u2192 {figure(last)}")
    return f"Median sizes before it and in the last steps: {'; '.join(grown)}." if grown else ""


def _is_well(run: Run, begun: dict[str, Any]) -> bool:
    """Return True if the mean reward is near the best, or has risen since the entropy fell: it may have learned."""
    rewards = run.all.reward[np.isfinite(run.all.reward)]
    if run.fall.lost <= _NEAR_BEST * (run.scale.best - float(rewards.min(initial=run.scale.best))):
        return True
    since = run.all.where(run.all.step >= (begun["since_step"] or run.rows.steps[0]))
    is_late = since.step >= since.steps[len(since.steps) // 2]
    gain = shift(since.reward, is_late, since.group)
    return gain.is_sure and gain.value > 0


def _choose_groups(run: Run) -> Bools:
    """Return (G,) True for groups whose rewards are equal because their completions are.

    If sampling is known to be cold, that is every group with zero variance. If the sampler's log-probs show a
    near-deterministic policy, it is every group with zero variance or duplicate completions.
    """
    twins, is_dead = alike(run.rows), dead(run.rows.groups)
    is_known, has_twins = ~np.isnan(twins), twins >= _ALIKE
    limit = run.threshold("diversity", _HALF)
    is_alike = is_known.any() and float(twins[is_known].mean()) >= limit
    if is_known.any() and _is_cold(run):
        chosen, is_enough = is_dead, is_alike
    # If the policy samples almost only its likeliest tokens, duplicates follow from that.
    elif is_alike and (surprise := mean(-run.rows.facts["mean_logprob"])) is not None and surprise < FLOOR:
        chosen = is_dead | has_twins
        failed = chosen & unsolved_groups(run.rows, run.scale)
        is_enough = failed.sum() >= _FAILED * is_known.sum()
    else:
        chosen = is_dead & has_twins
        is_enough = is_known.any() and has_twins.sum() / is_known.sum() >= limit and is_dead[has_twins].mean() >= _DEAD
    return chosen & is_enough


def _is_cold(run: Run) -> bool:
    """Return True if sampling is known to be nearly greedy; completions may be equal for other reasons, too."""
    temperature = run.config.get("temperature")
    return isinstance(temperature, int | float) and temperature <= _COLD


LOOPS = check(
    "loops",
    "Loops",
    f"Share of rollouts that end with {LOOP} equal actions in a row, or with more than half of their actions taken "
    f"before at the same observation, or going round the same 2 to 4, above {_LOOPING:.0%}, unless they do as well as "
    "the others.",
    needs(
        "actions, as record_environment() or trace_env() records them", lambda run: run.rows.facts["action_tail"] >= 0
    ),
    _check_loops,
    needs_calls=True,
)
TURN_LIMIT = check(
    "turn_limit",
    "Turn limit",
    f"Share of rollouts that ended at the turn limit, above {_OUT_OF_TURNS:.0%}, unless they do as well as the others, "
    f"or no limit shows: the {_LIMITS} most frequent numbers of turns cover less than {_HALF:.0%} of them, and less "
    f"than {_HALF:.0%} have as many turns as the longest {100 - _LONGEST}% of the others. "
    "The lost reward of those that repeat their actions is counted under loops. No fault of a run that improves, if it "
    "is so from the first step on, of no more rollouts since, and if what these get rises beyond chance, by "
    f"{_GAINED:.0%} of the range of rewards.",
    needs("why rollouts ended", lambda run: run.rows.stop_reason != StopReason.NOT_RECORDED),
    _check_turns,
    source="NeMo Gym PR 1304; the threshold is ours",
    needs_calls=True,
)
DEGENERATE_TEXT = check(
    "degenerate_text",
    "Degenerate text",
    f"zlib makes the last 10,000 characters of an answer more than {_COMPRESSION:g} times smaller; or, from 30 words "
    f"on, at most {_WORDS:.0%} of its words are distinct, or {_TRIGRAMS:.0%} of its three-word sequences repeat; in "
    f"more than {_SHARE:.0%} of rollouts, unless they do as well as the others, or, without truncated ones, lose no "
    f"more beyond chance, and less than {_LITTLE:.0%} of the range of rewards.",
    needs("messages", lambda run: ~np.isnan(run.rows.facts["compression"])),
    _check_degenerate,
    source="slime, rolloutscope",
)
DIVERSITY = check(
    "diversity",
    "Entropy and diversity",
    f"Groups in which at least {_ALIKE:.0%} of completions duplicate another, from {_HALF:.0%} of groups on, if "
    f"{_DEAD:.0%} of those groups have zero variance, or if the mean of -log p is below {FLOOR:g} and "
    f"{_FAILED:.0%} of groups fail. Or an entropy (the sampler's mean of -log p, else what the trainer logs) below "
    f"half of the first {STEPS} steps' median and {FLOOR:g} nats, or below {ENTROPY_SHARE:.0%} of it and {LOW:g} nats, "
    f"or above {GROWN:g} times it and {HIGH:g} nats, unless the mean reward still rises, or is within "
    f"{_NEAR_BEST:.0%} of the best.",
    needs(
        "token ids, texts, or the trainer's entropy",
        lambda run: logged(run.current) or np.isfinite(run.rows.facts["completion_key"]),
    ),
    _check_diversity,
    source="ours; there is no agreed floor",
)
