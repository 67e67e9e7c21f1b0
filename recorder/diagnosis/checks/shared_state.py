"""Finds rollouts of a group that share a state of the environment: the first that acts wins.

Exactly one of n independent rollouts with the chance p each is solved with the probability n p (1 - p)^(n - 1). That
is at most (1 - 1/n)^(n - 1), at p = 1/n: 39% of 8. More such groups are beyond chance, however hard their tasks are.
"""

import re

import numpy as np

from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.card import SOLVED_UNDEFINED, Below, Card, NotJudged, Outcome, Run, check, needs
from logs_ui.recorder.diagnosis.change_point import above
from logs_ui.recorder.diagnosis.checks.never_solved import cost_beside, quote_line
from logs_ui.recorder.diagnosis.contrast import SURER
from logs_ui.recorder.diagnosis.places import list_kinds
from logs_ui.recorder.diagnosis.rollout_rows import ends
from logs_ui.recorder.diagnosis.wording import kind_of, list_places, percent

_SHARE, _GROUPS, _SIZE = 0.6, 16, 4  # of the groups, of which there are so many, of so many rollouts [ours]
_READ = 0.25  # of the failed rollouts that have the same line [ours]
# An error that says that another one was first: no reward that ranks a group makes it.
_TAKEN = re.compile(r"\b(already|in use|locked|exists|taken|occupied|conflict|duplicate|busy)\b", re.IGNORECASE)
_WORDS = "failed rollouts that were read (of groups with a solved one)", "solved ones"


def _check(run: Run) -> Outcome:
    if not run.scale.success.is_defined:
        return SOLVED_UNDEFINED
    rows, limit, won = run.all, run.threshold("shared_state", _SHARE), run.scale.success.outcomes(run.all)
    has_outcome, is_last, count = np.isfinite(won), rows.step >= run.rows.steps[0], len(rows.groups.size)
    size, hits = (np.bincount(rows.group[has_outcome], weights, count) for weights in (None, won[has_outcome]))
    is_whole, most = size >= _SIZE, (1 - 1 / np.maximum(size, 2)) ** (size - 1)
    is_one, kinds = is_whole & (hits == 1), [("", [""], np.zeros(len(rows), np.int64)), *list_kinds(run)]
    field, chosen, inside, affected, highest = "", list[str](), np.zeros(count, bool), has_outcome, 0.0
    for name, names, codes in kinds:  # the one with the most such groups beyond the bound is named
        low, high = ends(rows.group, codes.astype(float), count)
        place = np.where(is_whole & (low == high), low, -1).astype(int)
        groups, ones = (np.bincount(place[of] + 1, minlength=len(names) + 1)[1:] for of in (is_whole, is_one))
        excess = ones - np.bincount(place + 1, most, len(names) + 1)[1:]
        # Hoeffding's bound on the binomial tail holds for groups of different chances, too.
        chance = np.exp(-2 * np.maximum(excess, 0) ** 2 / np.maximum(groups, 1)) * sum(len(of) for _, of, _ in kinds)
        sure = np.flatnonzero((groups >= _GROUPS) & (ones >= limit * groups) & (chance <= SURER))
        if (total := float(excess[sure].sum())) > highest:
            field, chosen, highest = name, [names[code] for code in sure.tolist()], total
            inside, affected = np.isin(place, sure), np.isin(codes, sure)
    late = inside[rows.group] & is_last
    if not late.any() or is_one[rows.group[late]].mean() < limit:
        clause = f"do {percent(limit)} of the groups have exactly one solved rollout, beyond chance"
        return Below(f"In no part of the last steps {clause}.")
    rest = is_whole & ~inside & np.isin(np.arange(count), rows.group[np.isin(rows.eval, rows.eval[affected])])
    text = f" of {list_places(chosen, field if field != 'family' else '')}" if field else ""
    sizes = np.unique(size[inside]).astype(int)
    bound = percent(float(most[inside].mean()))
    span = f"{sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else f"{sizes[0]}"
    title = f"Exactly one of {span} rollouts is solved in {is_one[inside].sum():,} of {inside.sum():,} groups{text}"
    of = (inside & is_one)[rows.group]
    line, quotation = quote_line(run, of & (won == 0), of & (won == 1), _name_kind, _WORDS, _READ)
    is_taken = line == _TAKEN.pattern
    is_apart = rest.sum() >= _GROUPS and is_one[rest].mean() <= most[rest].mean() and (hits[rest] == 0).any()
    if not is_taken and not (is_apart and run.scale.success.find_deciding(rows)):
        return NotJudged(f"{title}: the reward may rank a group, or groups without a solved rollout may be left out.")
    return Card(
        id="shared_state",
        title=title,
        cost=cost_beside(run, affected[is_last]),
        evidence=(
            f"Independent rollouts with equal chances give exactly one solved in at most {bound} of groups.",
            f"None is solved in {inside[hits == 0].sum():,} of these groups, several in {inside[hits > 1].sum():,}.",
            *[f"Elsewhere exactly one is solved in {is_one[rest].sum():,} of {rest.sum():,} groups."]
            * bool(rest.any()),
            *filter(None, [quotation]),
        ),
        suggestion="Give each rollout its own state: a reset, a port, a directory, a copy of the database."
        + " First look whether the reward ranks the rollouts of a group." * (not is_taken),
        where=links.tasks(chosen, field) if field else "",
        **above(rows.by_step(np.where(inside[rows.group], is_one[rows.group], np.nan)), limit),
        own=affected[is_last],
        is_setup=is_taken,
    )


def _name_kind(line: str) -> str:
    return _TAKEN.pattern if _TAKEN.search(line) else kind_of(line)


DIAGNOSTIC = check(
    "shared_state",
    "Shared state",
    f"At least {_SHARE:.0%} of the groups of the run, an eval, a family or a value of a column have exactly one "
    f"solved rollout, in the last steps, too; only groups of {_SIZE} rollouts or more count, and {_GROUPS} are "
    f"needed. The probability by chance is below {SURER:.1%}, corrected for the number of places. A reward that ranks "
    "a group, or a filter that leaves out groups without a solved rollout, looks the same. So one of these is needed, "
    f"too: {_READ:.0%} of the failed rollouts of groups with a solved one, and hardly any solved ones, have an "
    "observation with an error that says that something is taken; or one function decides what is solved, and other "
    "groups of the same evals do not show the pattern, some of them without a solved rollout.",
    needs(f"groups of {_SIZE} rollouts", lambda run: run.all.groups.size >= _SIZE),
    _check,
)
