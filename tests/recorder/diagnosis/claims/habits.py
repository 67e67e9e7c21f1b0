"""Counts for what is said of habits: length, repetition, truncation, new words and calls."""

import math
import re
from statistics import fmean, median
from typing import Any

import numpy as np

from logs_ui.recorder.diagnosis.wording import figure, percent
from tests.faults.columns import stop_reason
from tests.faults.runs import Rollout
from tests.recorder.diagnosis.claims.case import (
    SAME,
    Case,
    Count,
    actions,
    compared,
    completion,
    covariance,
    grouped,
    has_habit,
    in_groups,
    is_cut,
    is_looping,
    leaves,
    length,
    means,
    out_of_turns,
    parts,
    repeats,
    reward,
    rewards,
    sample,
    surprise,
    tail,
    task,
    tasks,
    values,
    weight,
    windows,
)


def in_column_of_all(case: Case, column: str, _share: str, value: str, _rest: str) -> tuple[str, ...]:
    sides = [[it for it in case.run.rollouts if (it.metadata[column] == value) is is_in] for is_in in (True, False)]
    inside, rest = (percent(fmean(stop_reason(it) == "length" for it in side)) for side in sides)
    return column, inside, value, rest


def cut_tokens(case: Case) -> list[int]:
    return [len(it.tokens.completion_ids) for it in case.last if is_cut(it) and it.tokens is not None]


def course(case: Case, *groups: str) -> tuple[str, ...]:
    """Return a function's mean and the reward's, in the first steps and the last."""
    last, first = case.steps(*groups[:2]), case.steps(*groups[2:4])
    name = groups[4]
    return (
        *groups[:5], means(values(first, name)), means(values(last, name)),
        means(rewards(first)), means(rewards(last)),
    )  # fmt: skip


def most_often(case: Case, *groups: str) -> tuple[str, ...]:
    ended = {name: fmean(map(out_of_turns, mine)) for name, mine in tasks(case.last).items()}
    assert min(ended[name] for name in groups[::2]) >= sorted(ended.values())[-len(groups[::2]) :][0]
    return tuple(text for name in groups[::2] for text in (name, percent(ended[name])))


def correlation(case: Case, name: str) -> float:
    pairs = list[Any]()
    for group in case.groups:
        tokens = [(sum(turn.tokens or 0 for turn in it.turns) / len(it.turns)) or length(it) for it in group]
        paid = [reward(it) if name == "reward" else parts(it)[name] for it in group]
        pairs += zip(np.subtract(tokens, np.mean(tokens)), np.subtract(paid, np.mean(paid)), strict=True)  # type: ignore[arg-type]
    return float(np.corrcoef(np.array(pairs).T)[0, 1])


def follows_function(case: Case, name: str) -> str:
    """Return the correlation of the reward and a function within groups."""
    sides = [(np.array(rewards(group)), np.array([parts(it)[name] for it in group])) for group in case.groups]
    x, y = (np.concatenate([side - side.mean() for side in of]) for of in zip(*sides, strict=True))
    return figure(float(np.corrcoef(x, y)[0, 1]))


def entropies(case: Case, *_: str) -> tuple[str, str, str]:
    """Return the sampler's entropy at the last 3 steps, its share of the median at the first 10, and that."""
    steps = grouped(case.run.rollouts, lambda it: it.step)
    logprobs = [[it.tokens.logprobs for it in step if it.tokens and it.tokens.logprobs is not None] for step in steps]
    means = [fmean(-float(np.nanmean(it)) for it in step) for step in logprobs]
    now, before = fmean(means[-3:]), float(np.median(means[:10]))
    return figure(now), percent(now / before), figure(before)


def updates(case: Case, said: str) -> tuple[str]:
    """Return the named scalars, each with its medians before the card's step and at the last steps."""
    since, pairs = case.card.since_step or 0, list[str]()
    for name in re.findall(r"(\S+) \S+ \u2192", said):
        points = case.run.scalars[name]
        before = [abs(value) for step, value in points.items() if step < since]
        now = [abs(value) for step, value in points.items() if step >= max(since, case.last[0].step)]
        assert median(now) > 10 * median(before)
        pairs.append(f"{name} {figure(median(before))} \u2192 {figure(median(now))}")
    return ("; ".join(pairs),)


def sides_of_course(case: Case) -> tuple[list[Rollout], list[Rollout]]:
    """Return the earlier and the later ones of the steps that the card says it compares."""
    later, last, first, before = map(int, re.findall(r"\d+", case.card.evidence[0])[:4])
    return case.steps(first, before), case.steps(later, last)


def agree_within(case: Case, side: list[Rollout], *names: str) -> str:
    """Return the correlation of two functions within groups, without rollouts that get the least of both."""
    least = [min(values(case.run.rollouts, n)) for n in names]
    some = [it for it in side if any(values([it], n)[0] > low for n, low in zip(names, least, strict=True))]
    columns = [
        [values([it], n)[0] - fmean(values(group, n)) for group in in_groups(some) for it in group] for n in names
    ]
    return figure(float(np.corrcoef(columns[0], columns[1])[0, 1]))


def grows(case: Case) -> bool:
    first, last = (fmean(map(length, side)) for side in windows(case))
    return last > first and correlation(case, "reward") > 0


def below_first(case: Case, _share: str, name: str, _low: str, payer: str | None, _high: str | None) -> tuple[Any, ...]:
    """Return the share of rollouts below a function's first mean, and above another's; or in half of its fall."""
    means = [[fmean(values(side, of)) for side in sides_of_course(case)] for of in (name, payer or name)]
    low = means[0][0] if payer else fmean(means[0])

    def is_low(rollout: Rollout) -> bool:
        is_paid = payer is None or values([rollout], payer)[0] > means[1][0] + SAME
        return is_paid and values([rollout], name)[0] < low - SAME

    return case.share(is_low), name, figure(low), payer, payer and figure(means[1][0])


def longer(case: Case, *_: str) -> tuple[str, str]:
    """Return the share of rollouts of the median's length or more, or of twice the first length or more."""
    first = fmean(map(length, windows(case)[0]))
    least = 2 * first if case.card.title.startswith("Answers grow") else median(map(length, case.last))
    return case.share(lambda rollout: length(rollout) >= least), f"{math.ceil(least):,}"


def hacked(case: Case, name: str, how: str) -> tuple[str, ...]:
    sides = sides_of_course(case)
    assert fmean(rewards(sides[1])) > fmean(rewards(sides[0]))
    assert fmean(values(sides[1], name)) < fmean(values(sides[0], name))
    first, last = ({it: fmean(parts(r)[it] for r in side) for it in parts(side[0])} for side in sides)
    payer = max(first, key=lambda it: last[it] - first[it])
    return name, how if how.startswith("which") else f"and {payer} rises instead"


def light(case: Case) -> tuple[str, ...]:
    name = re.findall(r"while (\S+) falls", case.card.title)[0]
    ranges = {it: float(np.ptp([parts(r)[it] for r in case.run.rollouts])) for it in parts(case.last[0])}
    return figure(weight(case, name)), percent(ranges[name] / sum(ranges.values()))


def duplicates(case: Case) -> float:
    """Return the share of completions that are like another one of their group."""
    each = [[tuple(it.tokens.completion_ids.tolist()) for it in group if it.tokens] for group in case.groups]
    return fmean(group.count(it) > 1 for group in each for it in group)


def same_paid(case: Case) -> tuple[str, ...]:
    """Return the mean reward of the card's rollouts, which loop or are like others of their group, and of the rest."""
    is_twin = {
        id(it): completion(it) is not None and [*map(completion, group)].count(completion(it)) > 1
        for group in case.groups
        for it in group
    }
    chosen = {id(it): is_twin[id(it)] if case.card.id == "diversity" else is_looping(it) for it in case.last}
    return tuple(means(reward(it) or 0.0 for it in case.last if chosen[id(it)] is side) for side in (True, False))


def repeating(case: Case) -> Any:
    texts = case.texts
    return (texts["trigram_repeats"] >= 0.5) | (texts["distinct_words"] <= 0.25) | (texts["compression"] > 10)


def is_silent(it: Rollout) -> bool:
    return not any(turn.text.strip() for turn in it.turns)


def follows_bonus(case: Case, name: str) -> tuple[str, ...]:
    first, last = windows(case)
    rises = [it for it in parts(last[0]) if fmean(values(last, it)) > fmean(values(first, it)) + 0.05]
    return (name,) if rises == [name] and correlation(case, name) >= 0.8 else ("",)


def outcomes(case: Case, named: str, *_: str) -> tuple[str, ...]:
    """Return the outcome of the first steps and of the last, of the tasks of both where these recur."""
    name = {"Solved": "solved (share)"}.get(named.removesuffix(" at the same tasks"), named.removeprefix("Mean "))
    by = task if named.endswith("same tasks") else lambda _: 0
    first, last = windows(case)
    now, before = compared(case, name, last, first, by)
    return named, before, now


def takes_more(case: Case, name: str, _: str) -> tuple[str, str]:
    first, last = (fmean(parts(it)[name] for it in side) for side in windows(case))
    return name, figure(first - last)


def habits(case: Case, _: str, habit: str, __: str, first: str, until: str) -> tuple[str, ...]:
    early = [has_habit(it, habit) for it in case.steps(first, until)]
    return case.share(lambda it: has_habit(it, habit)), habit, percent(fmean(early)), first, until


def loses_by_habit(case: Case, _: str) -> tuple[str, ...]:
    """Return what the groups of all steps tell, each with the weight of a difference of its two means."""
    habit = re.fullmatch(r"\S+ of rollouts (.+), \S+ in steps \S+", case.card.title)
    assert habit
    told = list[tuple[float, float]]()
    for group in in_groups(case.run.rollouts):
        sides = [[reward(it) or 0.0 for it in group if has_habit(it, habit[1]) is side] for side in (False, True)]
        if all(sides):
            told.append((fmean(sides[0]) - fmean(sides[1]), len(sides[0]) * len(sides[1]) / len(group)))
    return (figure(sum(lost * weight for lost, weight in told) / sum(weight for _, weight in told)),)


def loses_since_habit(case: Case, _: str, first: str, until: str) -> tuple[str, ...]:
    """Return how much more the last steps lose than these, at the same tasks."""
    last, before = [it for it in windows(case)[1] if it.step > int(until)], case.steps(first, until)
    sums, whole = 0.0, 0.0
    for name, mine in tasks(last).items():
        others = [reward(it) or 0.0 for it in before if task(it) == name]
        if others:
            weight = len(mine) * len(others) / (len(mine) + len(others))
            sums += weight * (fmean(others) - fmean(reward(it) or 0.0 for it in mine))
            whole += weight
    return figure(sums / whole), first, until


def answered_so(case: Case, text: str) -> tuple[str, ...]:
    heard = (" ".join(leaves(turn.observation).split()) for it, own in case.of_card() if own for turn in it.turns)
    return (text if any(of.startswith(text.rstrip("\u2026")) for of in heard) else "",)


def habit_rewards(case: Case, _own: str, _others: str, first: str, until: str, _all: str) -> tuple[str, ...]:
    own, others = ([reward(it) for it, is_own in case.of_card() if is_own is side] for side in (True, False))
    return means(own), means(others), first, until, means(reward(it) for it in case.steps(first, until))


def lengths_within(case: Case, *_: str) -> tuple[str, ...]:
    unsolved, solved = ([it for it in case.last if case.solved(it) is is_solved] for is_solved in (False, True))
    return compared(case, "tokens per turn", unsolved, solved, lambda it: (it.step, it.group))


COUNTS: dict[str, Count] = {
    "The length and the limit of truncated generations are not recorded; max_completion_length is #.": lambda c, _: (
        figure(c.run.config["max_completion_length"]),
    ),
    "# of rollouts @, # in steps #\u2013#": habits,
    "In groups that have both, they lose # more than the others.": loses_by_habit,
    "It begins as all rollouts lose # more than in steps #\u2013#.": loses_since_habit,
    "One is answered: @": answered_so,
    "Their mean reward is #, that of others #, of all in steps #\u2013# #.": habit_rewards,
    "Over all steps, by metadata.#: # of the rollouts in @, # elsewhere.": in_column_of_all,
    "# of rollouts repeat the same actions": lambda c, *_: (c.share(is_looping),),
    "Same action 3+ times in a row at the end: # of #, longest #.": lambda c, *_: (
        str(sum(tail(it) >= 3 for it in c.last)), str(len(c.last)), str(max(map(tail, c.last))),
    ),
    "More than 50% of actions taken before at the same observation, or going round the same few: # of #, mean #.": (
        lambda c, *_: (
        str(sum(repeats(it) > 0.5 for it in c.last)), str(len(c.last)),
        percent(fmean(it for it in map(repeats, c.last) if it > 0.5)),
    )),
    "Their mean reward is #, that of the others #[; the difference may be chance].": (
        lambda c, *_: same_paid(c)
    ),
    "All rollouts do; their mean reward is #.": lambda c, _: (means(reward(it) or 0.0 for it in c.last),),
    "# of rollouts run out of turns": lambda c, *_: (c.share(out_of_turns),),
    "They have # turns on average.": lambda c, *_: (means(len(it.turns) for it in c.last if out_of_turns(it)),),
    "# of them repeat no action, neither at the same observation, nor in turn, nor at the end.": lambda c, *_: (
        percent(fmean(tail(it) < 2 and not repeats(it) for it in c.last if out_of_turns(it) and len(actions(it)) > 1)),
    ),
    "Most often @ (#), @ (#) and @ (#).": most_often,
    "# of rollouts are truncated at the token limit": lambda c, *_: (c.share(is_cut),),
    "Mean reward: truncated #, not truncated #.": lambda c, *_: tuple(
        means(rewards(it for it in c.last if is_cut(it) is side)) for side in (True, False)
    ),
    "Steps #\u2013# vs #\u2013#: # # \u2192 #, reward # \u2192 #.": course,
    "Correlation of # and tokens within groups: r = #.": lambda c, name, _: (name, figure(correlation(c, name))),
    "Correlation of # and tokens within groups: r = #. It explains # of the reward's variance.": lambda c, name, *_: (
        name, figure(correlation(c, name)), percent(covariance(c.last, name)),
    ),
    "Entropy (the sampler's mean of -log p): # nats per token.": lambda c, _: (
        figure(surprise(c, per_rollout=True)),
    ),
    "Entropy (the sampler's mean of -log p): # nats per token, # of the initial median (#).": entropies,
    "It is that of a choice among # equally likely tokens.": lambda c, shown: (
        shown if abs(float(shown) / np.exp(float(entropies(c)[0])) - 1) < 0.01 else "",
    ),
    "Median sizes before it and in the last steps: @.": updates,
    "Entropy exploded: # nats per token, # of the initial median (#)": entropies,
    "Longer answers get higher rewards, and answers follow": lambda c: () if grows(c) else ("",),
    "Mean tokens per turn, first to last steps: # \u2192 #.": lambda c, *_: tuple(
        means(map(length, side)) for side in windows(c)
    ),
    "Answers grow from # to # tokens per turn, and the outcome does not rise": lambda c, *_: tuple(
        means(map(length, side)) for side in windows(c)
    ),
    "@, first to last steps: # \u2192 #[; the difference may be chance].": outcomes,
    "# takes # more from the reward than at first.": takes_more,
    "Within groups, unsolved answers have # tokens per turn, solved ones #.": lengths_within,
    "The reward follows the length of answers alone (r = # within groups)": lambda c, _: (
        figure(correlation(c, "reward")),
    ),
    "The reward follows # alone (r = # within groups)": lambda c, name, _: (name, follows_function(c, name)),
    "# rollouts in # groups were compared, without truncated and failed ones.": lambda c, *_: (
        str(len(c.last)), str(len(c.groups)),
    ),
    "Suspected reward hacking: the reward rises while # falls, @": hacked,
    "Suspected reward hacking: # falls, and # rises instead": lambda c, name, _: (
        name, hacked(c, name, "")[1].split()[1],
    ),
    "Its weight is #: it can make # of the difference in reward.": lambda c, *_: light(c),
    "In these steps # added # to the reward at first, and # at last.": lambda c, name, *_: (
        name, *(means(parts(it)[name] for it in side) for side in sides_of_course(c)),
    ),
    "Within groups # and # went together at first (correlation #), and against each other at last (#), "
    "without rollouts that got the least of both.": (
        lambda c, name, payer, *_: (name, payer, *(agree_within(c, side, name, payer) for side in sides_of_course(c)))
    ),
    "# of completions duplicate another {in|of} their group[.]": lambda c, _: (percent(duplicates(c)),),
    "# of rollouts repeat their own text": lambda c, _: (percent(float(repeating(c).mean())),),
    "Median compression ratio: #.": lambda c, _: (
        figure(float(np.nanmedian(c.texts["compression"][repeating(c)]))),
    ),
    "Median share of repeated three-word sequences: #.": lambda c, _: (
        percent(float(np.nanmedian(c.texts["trigram_repeats"][repeating(c)]))),
    ),
    "Of # of them that were read, # go on after a final answer, or as another speaker.": lambda c, *_: (
        str(min(sum(map(is_cut, c.last)), 20)),
        str(sum(it.is_hit for it in sample([it for it in c.last if is_cut(it)], 20))),
    ),
    "Truncated generations have # tokens (all of them); max_completion_length is #.": lambda c, *_: (
        *{f"{it.turns[-1].tokens}" for it in c.last if is_cut(it)}, f"{c.run.config['max_completion_length']}",
    ),
    "Truncated generations have # tokens (all of them). Their limit is not recorded.": lambda c, _: (
        " or ".join(map(figure, set(cut_tokens(c)))),
    ),
    "Truncated generations have # to # tokens (median #). Their limit is not recorded.": lambda c, *_: (
        figure(min(cut_tokens(c))), figure(max(cut_tokens(c))), figure(median(cut_tokens(c))),
    ),
    "# of rollouts say nothing: their answers are empty": lambda c, _: (c.share(is_silent),),
    "# of # rollouts have neither a tool call nor text, but for white space.": lambda c, *_: (
        str(sum(map(is_silent, c.last))), str(len(c.last)),
    ),
    "Mean reward: empty #, others #.": lambda c, *_: tuple(
        means(rewards(it for it in c.last if is_silent(it) is side)) for side in (True, False)
    ),
    "Answers follow what # pays for length, and nothing else gets better": follows_bonus,
    "# adds # more to the reward than at first.": lambda c, name, _: (
        name, figure(fmean(parts(it)[name] for it in windows(c)[1]) - fmean(parts(it)[name] for it in windows(c)[0])),
    ),
    "The cost is in #: # less of it per rollout.": lambda c, name, _: (
        name, figure(fmean(values(sides_of_course(c)[0], name)) - fmean(values(sides_of_course(c)[1], name))),
    ),
    "# of rollouts have # below #[ and # above #, their means at first]": below_first,
    "# of rollouts have #+ tokens per turn": longer,
    "Out of turns, by eval: # # of its rollouts (after # turns).": lambda c, name, *_: (
        name, percent(fmean(it.is_hit for it in c.last if it.eval == name)),
        figure(fmean(len(it.turns) for it in c.last if it.is_hit)),
    ),
}  # fmt: skip
