"""Finds advantages that do not follow the rewards of their groups, as where they stand beside other rollouts."""

import numpy as np

from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.card import Below, Card, NotJudged, Outcome, Run, check, needs
from logs_ui.recorder.diagnosis.change_point import below
from logs_ui.recorder.diagnosis.contrast import spread
from logs_ui.recorder.diagnosis.measures import within_groups
from logs_ui.recorder.diagnosis.places import list_kinds
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Floats, Rows, ends
from logs_ui.recorder.diagnosis.wording import figure, list_places

_HARDLY = 0.3  # mean correlation, at most [ours]
_FOLLOWS = 0.8  # of the other groups, at least, if a part is named; TRL's own ways give 1 [ours]
_GROUPS, _ERRORS = 8, 3  # with different rewards and advantages, at least; standard errors below twice the limit [ours]


def _check(run: Run) -> Outcome:
    limit, of_group = run.threshold("advantages", _HARDLY), correlate_advantages(run.all)
    is_last = np.bincount(run.all.group, run.all.step >= run.rows.steps[0]).astype(bool) & np.isfinite(of_group)
    if is_last.sum() < _GROUPS:
        return NotJudged(f"Fewer than {_GROUPS} groups of the last steps have different rewards and advantages.")
    parts = [("", "", np.ones(len(of_group), bool))]
    for field, names, codes in list_kinds(run):
        low, high = ends(run.all.group, codes.astype(float), len(of_group))
        parts += [(field, name, (low == code) & (high == code)) for code, name in enumerate(names)]
    sure = [
        (field, name, of)
        for field, name, of in parts
        if _is_low(of_group[of & is_last], limit)
        if not (is_last & ~of).any() or of_group[is_last & ~of].mean() >= _FOLLOWS
    ]
    if not sure:
        mean = figure(float(of_group[is_last].mean()))
        return Below(f"Mean correlation of advantages and rewards within {is_last.sum():,} groups: {mean}.")
    return _make_card(run, *max(sure, key=lambda part: part[2].sum()), of_group, is_last, limit)


def correlate_advantages(rows: Rows) -> Floats:
    """Return (G,) the correlation of advantages and rewards within each group; NaN where either does not vary."""
    is_known = np.isfinite(rows.reward) & np.isfinite(rows.advantage)
    reward, advantage = (
        np.nan_to_num(within_groups(np.where(is_known, values, np.nan), rows))
        for values in (rows.reward, rows.advantage)
    )
    pairs = ((reward, advantage), (reward, reward), (advantage, advantage))
    both, of_reward, of_advantage = (np.bincount(rows.group, a * b, len(rows.groups.size)) for a, b in pairs)
    varies = np.minimum(of_reward, of_advantage) > SAME
    return np.where(varies, both / np.sqrt(np.where(varies, of_reward * of_advantage, 1.0)), np.nan)


def _is_low(of_group: Floats, limit: float) -> bool:
    """Return True if the mean over groups is low, and surely not twice as high."""
    if len(of_group) < _GROUPS:
        return False
    error = float(of_group.std(ddof=1)) / np.sqrt(len(of_group))
    return bool(of_group.mean() <= limit and of_group.mean() + _ERRORS * error <= 2 * limit)


def _make_card(run: Run, field: str, name: str, of: Bools, of_group: Floats, is_last: Bools, limit: float) -> Card:
    there = of[run.all.group]
    affected = there[run.all.step >= run.rows.steps[0]]
    mine, others = of_group[of & is_last], of_group[is_last & ~of]
    mean = float(mine.mean())
    place = f"In {list_places([name], field)} advantages" if field else "Advantages"
    verb = "run against" if mean <= -limit else "hardly follow"
    elsewhere = f"; elsewhere {figure(float(others.mean()))}" if len(others) else ""
    return Card(
        id="advantages",
        title=f"{place} {verb} the rewards of their groups: correlation {figure(mean)}{elsewhere}",
        cost=spread(run) * float(affected.mean()),
        evidence=(f"Means over {len(mine):,} groups; 1 where an advantage is the reward less the mean of its group.",),
        suggestion="Compute the advantages of one group by hand. Look at how they are put beside their rollouts, as "
        "after a gather, a sort or a reshape: use an index, not the order in which they come.",
        where=links.tasks([name], field) if field else "",
        **below(run.all.by_step(np.where(there, of_group[run.all.group], np.nan)), (limit + _FOLLOWS) / 2),
        own=affected,
        is_setup=True,
        is_loss=False,
    )


DIAGNOSTIC = check(
    "advantages",
    "Advantages against rewards",
    f"Over the groups of the last steps, or those of an eval, a family of tasks or a value of a column, advantages and "
    f"rewards have a mean correlation of {_HARDLY:g} or less within groups, which lies {_ERRORS} standard errors below "
    f"twice that; if it is a part, that of all others is {_FOLLOWS:g} or more. {_GROUPS} groups are needed, in which "
    "both differ. The parts of a sum that a trainer takes off, such as a charge for length, lower the correlation, but "
    "seldom as far.",
    needs("advantages", lambda run: np.isfinite(run.rows.advantage) & np.isfinite(run.rows.reward)),
    _check,
)
