"""Counts for what is said of reward functions and their values."""

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from itertools import combinations
from statistics import fmean, median
from typing import Any

import numpy as np

from logs_ui.recorder.diagnosis.wording import figure, listed, percent
from tests.faults.columns import stop_reason
from tests.faults.runs import Rollout
from tests.recorder.diagnosis.claims.case import (
    SAME,
    Case,
    Count,
    cancels,
    ended,
    error,
    first,
    grouped,
    hears_error,
    in_groups,
    is_cut,
    kind_of,
    length,
    means,
    near,
    part,
    parts,
    place_in,
    read_evenly,
    recounted,
    reward,
    rewards,
    task,
    tasks,
    told,
    values,
    weight,
    windows,
    within,
)


def heard(it: Rollout) -> float:
    return sum(turn.reward or 0.0 for turn in it.turns)


def unscored(case: Case) -> list[Rollout]:
    return [it for it in case.last if it.values is not None and reward(it) is None and not error(it)]


@cache
def stopped(case: Case, name: str) -> list[Rollout]:
    """Return the scored rollouts of families, or of kinds, that a function scored until a step, from that step on."""
    found: list[Rollout] = []
    families = grouped(case.run.rollouts, kind_of)
    for mine in families:
        scored = [it.step for it in mine if name in parts(it)]
        if scored and max(scored) < case.last[-1].step - 1:
            found += [it for it in mine if it.step > max(scored)]
    return found


def explained(case: Case, first: str, _all: str, whole: str | None, second: str, _rest: str) -> tuple[Any, ...]:
    rollouts = case.run.rollouts if whole else case.last
    return first, part(rollouts, first), whole, second, part(rollouts, second)


def differ_most(case: Case, text: str) -> tuple[str]:
    """Return what the generator measured, or which errors were heard, of all groups, as far as it is near."""
    name, low = new_value(case)
    said = []
    for entry in text.split(" and "):
        label, *shown = re.findall(r"(.+) \((\S+), others (\S+)\)", entry)[0]
        line = "".join(re.findall("\u201c(.*)\u201d", label))
        metric = label.removeprefix("metrics.")
        means_of = within(
            case.groups,
            lambda it: values([it], name)[0] == low,
            lambda it: float(hears_error(it, line) if line else it.metadata["metrics"][metric]),  # noqa: B023
        )
        mine, others = near(shown, means_of)
        said.append(f"{label} ({mine}, others {others})")
    return (" and ".join(said),)


def like_others(case: Case, count: str, names: str) -> tuple[str | None, ...]:
    more = re.findall(r"and (\d+) more$", names)
    return "" if are_alike(case) else str(3 + int(more[0])), names


def sampled_same(case: Case, name: str) -> list[list[float]]:
    """Return the values that a function gave to each completion that there is twice, of the same prompt and task."""
    same: dict[Any, list[float]] = defaultdict(list)
    for it in case.last:
        assert it.tokens is not None
        key = task(it), it.tokens.prompt_ids.tolist().__repr__(), it.tokens.completion_ids.tolist().__repr__()
        same[key].append((it.values or {})[name] or 0.0)
    return [given for given in same.values() if len(given) > 1]


def scored_differently(case: Case, *_: str) -> tuple[str, ...]:
    name = case.card.title.split(" scores ")[0]
    known = np.array(values(case.last, name))
    same = sampled_same(case, name)
    odd = [given for given in same if np.ptp(given) > 0.01 * np.ptp(known)]
    return str(sum(map(len, same))), str(sum(map(len, odd)))


def completions_scored_differently(case: Case, name: str, *_: str) -> tuple[str, ...]:
    known, same = np.array(values(case.last, name)), sampled_same(case, name)
    return name, str(sum(np.ptp(given) > 0.01 * np.ptp(known) for given in same)), str(len(same))


def of_one_completion(case: Case, _count: str, name: str, *_: str) -> tuple[str, ...]:
    given = {(str(len(set(it))), name, figure(min(it)), figure(max(it))) for it in sampled_same(case, name)}
    return next(iter(it for it in given if it[0] == _count and it[2:] == _), ())


def room(case: Case, name: str) -> str:
    given = [parts(it)[name] for it in case.run.rollouts]
    most = max(given) if np.ptp(given) > 0 or max(given) > 0 else weight(case, name)
    return figure(max(most, 0.0) - fmean(parts(it)[name] for it in case.last))


def apart(case: Case, name: str) -> list[Rollout]:
    """Return the rollouts on which a function and the environment disagree: in any pair, where they are graded."""
    if {heard(it) for it in case.last} <= {0.0, 1.0}:
        return [it for it in case.last if abs(heard(it) - values([it], name)[0]) > 0.5]
    return [it for group in case.groups for it in group if any(ordered(it, other, name) < 0 for other in group)]


def ordered(a: Rollout, b: Rollout, name: str) -> float:
    return float(np.sign(heard(a) - heard(b)) * np.sign(values([a], name)[0] - values([b], name)[0]))


def pairs(case: Case, name: str) -> list[float]:
    found = (ordered(a, b, name) for group in case.groups for a, b in combinations(group, 2))
    return [it for it in found if it]


def scored_by(rollouts: Iterable[Rollout], name: str) -> list[float]:
    return [it for it in values(rollouts, name) if it is not None]


def constant_of(case: Case, name: str, *_: str) -> tuple[str, str]:
    return name, " or ".join({figure(it) for it in scored_by(case.last, name)})


def constant_in(case: Case, name: str, _: str, places: str) -> tuple[str, str, str]:
    key = place_in(places)
    said = dict.fromkeys((key(it) for it in case.run.rollouts if it.is_hit), "")
    mine = [it for it in case.last if key(it) in said]
    return name, " or ".join({figure(it) for it in values(mine, name)}), recounted(places, {it: it for it in said})


def whole_of(case: Case, rollouts: Iterable[Rollout]) -> list[Rollout]:
    """Return the rollouts that a card on a function is about: except truncated and failed ones, if it says so."""
    return [it for it in rollouts if ended(it) or "truncated and failed" not in case.card.title]


def told_apart(case: Case, *groups: str) -> tuple[str, ...]:
    """Return in how many groups a function's value was another one before, or differed, of how many, and how many there
    are since.
    """
    name, first = case.card.title.split()[0], case.card.since_step or 0
    key = place_in(case.card.title)
    kinds = {key(it) for it in case.run.rollouts if it.is_hit or "rollout of" not in case.card.title}
    mine = [it for it in whole_of(case, case.run.rollouts) if key(it) in kinds]
    usual = None if "depend" in case.card.title else values(mine, name)[-1]
    told = [
        (group[0].step < first, any(it != (given[0] if usual is None else usual) for it in given))
        for group in in_groups(mine)
        for given in (values(group, name),)
    ]
    before, since = ([has for is_early, has in told if is_early is side] for side in (True, False))
    assert not any(since)
    return (str(sum(before)), str(len(before)), str(len(since)))[-len(groups) :]


def same_in_groups(case: Case, *_: str) -> tuple[str, str, str]:
    name = case.card.title.split()[0]
    texts = [{tuple(turn.text for turn in it.turns) for it in group} for group in case.groups]
    assert all(len(set(values(whole_of(case, group), name))) == 1 for group in case.groups)
    kinds = set(values(whole_of(case, case.last), name))
    return str(sum(len(it) > 1 for it in texts)), str(len(case.groups)), str(len(kinds))


def new_value(case: Case) -> tuple[str, float]:
    name, _, _, value, *_ = case.card.title.replace("\N{MINUS SIGN}", "-").split()
    return name, float(value)


def sides(case: Case) -> tuple[list[Rollout], list[Rollout]]:
    """Return the rollouts before the card's first step, and those since."""
    first = case.card.since_step or 0
    return case.steps(0, first - 1), case.steps(first, case.last[-1].step)


def other_values(case: Case, *_: str) -> tuple[str, ...]:
    name, low = new_value(case)
    return tuple(means(it for it in values(side, name) if it != low) for side in sides(case))


def new_values(case: Case, step: str, *_: str) -> tuple[str, ...]:
    name, low = new_value(case)
    counts = ((sum(it == low for it in given), len(given)) for given in (values(side, name) for side in sides(case)))
    return step, *(str(it) for pair in counts for it in pair)


def other_scale(case: Case, name: str, *_: str) -> tuple[str, ...]:
    since, before = (values((it for it in case.run.rollouts if it.is_hit is side), name) for side in (True, False))
    first = min(it.step for it in case.run.rollouts if it.is_hit)
    ends = [figure(end) for side in (since, before) for end in (min(side), max(side))]
    return name, *ends[:2], str(first), *ends[2:]


def medians_of_sizes(case: Case, step: str, *_: str) -> tuple[str, ...]:
    name = case.card.title.split()[0]
    sides = [values((it for it in case.run.rollouts if it.is_hit is hit), name) for hit in (False, True)]
    return step, *(text for side in sides for text in (figure(median(side)), str(len(side))))


def halves(case: Case, *_: str) -> tuple[str, ...]:
    batches = grouped(case.last, lambda it: it.step)
    parts_of = [[it for b in batches for it in b[: len(b) // 2]], [it for b in batches for it in b[len(b) // 2 :]]]
    name, low = new_value(case)
    return tuple(percent(fmean(it == low for it in values(part, name))) for part in parts_of)


def are_alike(case: Case) -> tuple[str, ...]:
    name, low = new_value(case)
    mine, others = ([it for it in case.last if (values([it], name)[0] == low) is side] for side in (True, False))
    ratios = [fmean(map(of, mine)) / fmean(map(of, others)) for of in (length, lambda it: len(it.turns))]
    return () if all(0.8 < it < 1.25 for it in ratios) else ("",)


def lost_form(case: Case, _: str, name: str, *__: str) -> tuple[str, ...]:
    low = min(values(case.run.rollouts, name))
    lost = [
        percent(fmean(values([it], name)[0] == low and not is_cut(it) for it in side))
        for side in (case.last, sides(case)[0])
    ]
    return lost[0], name, figure(low), lost[1]


def paid_without(case: Case, _: str, name: str, *__: str) -> tuple[str, ...]:
    """Return what other functions pay within groups, each weighted by what it tells."""
    low, sums, whole = min(values(case.run.rollouts, name)), [0.0, 0.0], 0.0
    for group in ([it for it in some if not is_cut(it)] for some in case.groups):
        rest = {
            side: [(reward(it) or 0.0) - parts(it)[name] for it in group if (values([it], name)[0] == low) is side]
            for side in (True, False)
        }
        if all(rest.values()):
            weight = len(rest[True]) * len(rest[False]) / len(group)
            sums = [total + weight * fmean(rest[side]) for total, side in zip(sums, (True, False), strict=True)]
            whole += weight
    return figure(sums[0] / whole), name, figure(low), figure(sums[1] / whole)


def told_passed(it: Rollout) -> float:
    """Return the share of tests that its last observation tells; of checks, 1 if all pass."""
    heard = [told(turn.observation) for turn in it.turns if turn.observation]
    passed, count = re.findall(r"(\d+)(?:/| of )(\d+) (?:tests passed|checks pass)", heard[-1])[0]
    return int(passed) / int(count) if "tests" in heard[-1] else float(passed == count)


def differs(it: Rollout, name: str) -> bool:
    return abs(told_passed(it) - values([it], name)[0]) > 0.01


def told_otherwise(case: Case, name: str, _now: str, step: str, _before: str) -> tuple[str, ...]:
    before = [it for it in case.run.rollouts if it.step < int(step)]
    now, earlier = (percent(fmean(differs(it, name) for it in side)) for side in (case.last, before))
    return name, now, step, earlier


COUNTS: dict[str, Count] = {
    "# differs from the tests' results in the last observations in # of rollouts, before step # in #": told_otherwise,
    "Of the rollouts that were read # of the last steps hold results of tests, # before.": lambda c, *_: (
        str(len(c.last)), str(sum(it.step < (c.card.since_step or 0) for it in c.run.rollouts)),
    ),
    "Mean where they differ: expected #, # #.": lambda c, _, name, *__: (
        means(told_passed(it) for it in c.last if differs(it, name)), name,
        means(values([it], name)[0] for it in c.last if differs(it, name)),
    ),
    "@ stopped: no number for # of rollouts": lambda c, name, _: (
        name, percent(len([it for it in stopped(c, name) if it in c.last]) / len(c.last)),
    ),
    "@: no number for any of # scored rollouts[ of @] since step #.": lambda c, name, *g: (
        name, str(len(stopped(c, name))), g[1], str(min(it.step for it in stopped(c, name))),
    ),
    "Where it gave one, it added # on average.": lambda c, *_: (
        means(parts(it).get(c.card.title.split()[0]) for it in c.run.rollouts),
    ),
    "The reward functions returned no number for # of rollouts": lambda c, *_: (
        percent(len(unscored(c)) / len(c.last)),
    ),
    "# rollouts, # of them because of NaN or an infinity.": lambda c, *_: (
        str(len(unscored(c))), str(sum(any(v is not None for v in (it.values or {}).values()) for it in unscored(c))),
    ),
    "No number from #.": lambda c, *_: (listed(sorted({n for it in unscored(c) for n in it.values or ()})),),
    "Tasks: @.": lambda c, text: (recounted(text, {it: it for it in tasks(unscored(c))}),),
    "Every rollout gets the reward #": lambda c, _: (" or ".join({figure(it) for it in rewards(c.last)}),),
    "# rollouts in # groups have equal rewards.": lambda c, *_: (
        str(len(rewards(c.last))), str(len(c.groups)),
    ),
    "Reward functions: @.": lambda c, _: (", ".join(sorted({n for it in c.last for n in it.values or ()})),),
    "Stop reasons: @.": lambda c, _: (listed(sorted({str(stop_reason(it)) for it in c.last}), 4),),
    "The environment rewards # of them above its minimum.": lambda c, _: (
        c.share(lambda it: heard(it) > min(map(heard, c.last)) + SAME),
    ),
    "@ and the environment disagree on # of rollouts": lambda c, name, _: (
        name, percent(fmean(abs(heard(it) - values([it], name)[0]) > 0.5 for it in c.last)),
    ),
    "# rollouts were compared.": lambda c, _: (str(len(c.last)),),
    "# scores the same completion differently: # of # that occur more than once": completions_scored_differently,
    "# rollouts have a duplicate (same prompt, task and completion tokens); for # of them the values differ.": (
        scored_differently
    ),
    "One completion received # values from #, # to #.": of_one_completion,
    "# explains # of the reward variance within groups over the whole run, and rises while # falls": (
        lambda c, first, _, name: (first, part(c.run.rollouts, first), name)
    ),
    "@ explains # of the reward variance within groups[@], # @": explained,
    "Reward functions cancel out in # of groups": lambda c, _: (percent(fmean(map(cancels, c.groups))),),
    "In # groups they differ between rollouts, but their sum does not.": lambda c, _: (
        str(sum(map(cancels, c.groups))),
    ),
    "Steps #\u2013# vs #\u2013#: # # \u2192 #, # # \u2192 #.": lambda c, *g: (
        *g[:4], *(cell for n in (g[4], g[7]) for cell in (n, *(means(values(side, n)) for side in windows(c)))),
    ),
    "# explains # of that variance, which the policy learns from.": lambda c, name, _: (
        name, part(c.run.rollouts, name),
    ),
    "# of # first answers that were read hold </@>, and none holds <@>.": lambda c, *g: (
        str(sum(f"</{g[2]}>" in first(it) for it in read_evenly(c, 60))), str(len(read_evenly(c, 60))), g[2],
        g[2] * all(f"<{g[2]}>" not in first(it) for it in read_evenly(c, 60)),
    ),
    "Weights: # #, # #.": lambda c, *g: (
        g[0], figure(weight(c, g[0])), g[2], figure(weight(c, g[2])),
    ),
    "Left to gain: # in #, # in #.": lambda c, *g: (room(c, g[1]), g[1], room(c, g[3]), g[3]),
    "Mean where they disagree: environment #, # #.": lambda c, _, name, *__: (
        means(heard(it) for it in apart(c, name)), name, means(values(apart(c, name), name)),
    ),
    "# and the environment disagree on # of pairs of rollouts within groups": lambda c, name, _: (
        name, percent(fmean(it < 0 for it in pairs(c, name))),
    ),
    "# pairs of rollouts within groups were compared.": lambda c, _: (
        str(len(pairs(c, c.card.title.split(" and ")[0]))),
    ),
    "# gives # to every rollout": constant_of,
    "# gives # to every rollout, except in truncated and failed rollouts": lambda c, name, _: (
        name, " or ".join({figure(it) for it in values(filter(ended, c.last), name)}),
    ),
    "# gives # to every rollout of @": constant_in,
    "{It|There it} told rollouts apart in # of # groups before, and in none of # since.": told_apart,
    "It told rollouts apart in none of # groups of the whole run.": told_apart,
    "Functions that differ between rollouts: @.": lambda c, _: (
        listed([it for it in sorted(parts(c.last[0])) if np.ptp(values(whole_of(c, c.last), it)) > SAME])
        or "none",
    ),
    "Truncated rollouts and those with an error are left out.": lambda _: (),
    "# does not depend on the completion: it is the same within each group": lambda c, name: (
        name if all(np.ptp(values(group, name)) == 0 for group in c.groups) else "",
    ),
    "# does not depend on the completion: it is the same within each group, except in truncated and failed rollouts": (
        lambda c, name: (
            name if all(np.ptp(values(filter(ended, group), name)) == 0 for group in c.groups) else "",
        )
    ),
    "# of # groups hold different completions; they have # different values.": same_in_groups,
    "# gives exactly # to # of rollouts, and hardly ever did before": lambda c, name, *_: (
        name, figure(new_value(c)[1]), c.share(lambda it: values([it], name)[0] == new_value(c)[1]),
    ),
    "Before step #: # of # rollouts; since then: # of #.": new_values,
    "# gives # to # since step #, # to # before: another scale": other_scale,
    "Before step #: median # of # rollouts; since then: # of #.": medians_of_sizes,
    "Its other values have not fallen: mean # before, # since.": other_values,
    "These rollouts are like others of their groups: none of # figures differs clearly (@).": like_others,
    "These rollouts differ from others of their groups most in @.": differ_most,
    "By place in the batch: # of each step's first half, # of its second.": halves,
    "# of rollouts end normally and lack a form: # is #, as for # before": lost_form,
    "Within groups, other functions pay # with # at #, # to the others that end normally.": paid_without,
    "# of rollouts are in their groups: one with an infinity gets no finite advantages.": lambda c, _: (
        percent(
            sum(len(group) for group in c.groups if any(it.is_hit for it in group)) / sum(map(len, c.groups))
        ),
    ),
}  # fmt: skip
