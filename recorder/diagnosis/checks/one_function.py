"""Finds reward functions that tell no completion from another: constant ones, those that give a group the same, and
those that suddenly give many rollouts one value, such as the 0 or the 0.5 of a judge that cannot be reached; and those
that suddenly give values of another size.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.card import Below, Card, NotJudged, Outcome, Run, check, needs
from logs_ui.recorder.diagnosis.change_point import CHANCE, above, change
from logs_ui.recorder.diagnosis.checks.contradictions import measure_noise
from logs_ui.recorder.diagnosis.checks.one_figure import compared
from logs_ui.recorder.diagnosis.checks.reward_functions import describe_cut
from logs_ui.recorder.diagnosis.contrast import shift, spread
from logs_ui.recorder.diagnosis.error_lines import read_columns
from logs_ui.recorder.diagnosis.largest_differences import find_largest
from logs_ui.recorder.diagnosis.mean_difference import LEAST_UNITS, compare, is_beyond_chance
from logs_ui.recorder.diagnosis.measures import best, extent, list_figures, weigh_by_range
from logs_ui.recorder.diagnosis.opened_tags import find_closed_tag
from logs_ui.recorder.diagnosis.places import list_parts
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Floats, Ints, Rows, distinct, ends
from logs_ui.recorder.diagnosis.success import is_penalty, levels
from logs_ui.recorder.diagnosis.task_families import tasks_recur
from logs_ui.recorder.diagnosis.wording import exact_percent, figure, list_places, listed, percent
from logs_ui.recorder.settings import NO_THRESHOLD

_ROLLOUTS, _GROUPS = 32, 8  # that may be equal by chance: fewer tell nothing [ours]
_CHANCE = 0.001  # that so many groups in a row are equal, if each is as often as in the whole run [ours]
_UNKNOWN = 0.05  # of the range of rewards: puts a function in order that never showed what it can pay [ours]
_GRADED = 3  # different values: 0 and 1 would only be failed and passed
_SHARE, _BEFORE = 0.05, 0.2  # of the rollouts; of that share, at most, before [ours]
_LEVELS = 5  # other values: then it is graded [ours]
_STANDS_OUT = 5  # times as often as the next most frequent value [ours]
_RARER = 0.25  # as often in one half of a batch as in the other, at most [ours]
_MIXED = 0.5  # of the rollouts with it have others in their groups [ours]
_MOST_END = 0.8  # of the rollouts are neither truncated nor failed [ours]
_AT_FIRST = 3  # steps in which it has the following part of its last share: then it did not begin bit by bit [ours]
_SUDDEN = 0.4
_MOVED = 0.1  # of the way to the new value, by which the others may fall [ours]
_LARGER, _SMALLER = 3, 0.1  # times the largest value before, the smallest: values of another size [ours]
_TELLS = (
    "reward_parts",
    "dead_groups",
    "signal_cliff",
    "never_solved",
    "forgotten",
    "disagreement",
    "hacking",
    "length",
    "proxy",
)


def _check_constant(run: Run) -> Outcome:
    if extent(run.rows.reward) <= SAME:
        return NotJudged("The whole reward is constant, not one function alone.")
    finders = (_find_constant, _find_of_prompt, _find_in_places)
    outcomes = [next(filter(None, (find(run, name) for find in finders)), None) for name in run.rows.values]
    untold = [name for name, of in zip(run.rows.values, outcomes, strict=True) if not isinstance(of, Card)]
    last = compared(run.rows)
    if alike := [name for name in untold if _is_same_in_groups(last, name)]:  # else all rows are copied for nothing
        whole = replace(run, rows=last, all=compared(run.all))
        outcomes += [_find_beside_failed(run, whole, name) for name in alike]
    cards = [card for card in outcomes if isinstance(card, Card)]
    if cards:
        return max(cards, key=lambda card: card.cost or 0.0)
    if there := [part for part in outcomes if isinstance(part, str)]:
        return Below(f"There, at no cost: {listed(there)}.")
    if alike := [name for name in run.rows.values if _is_same_in_groups(run.rows, name)]:
        return Below(f"{listed(alike)}: equal within each group; nothing tells why.")
    if different := [name for name in run.rows.values if _is_same_in_groups(run.rows, name) is False]:
        return Below(f"{listed(different, len(different))}: not equal within each group.")
    return NotJudged("No function scored two rollouts of a group.")


def _is_same_in_groups(rows: Rows, name: str) -> bool | None:
    """Return None if it scored no two rollouts of a group."""
    count = len(rows.groups.size)
    low, high = ends(rows.group, rows.values[name], count)
    if not (np.bincount(rows.group[np.isfinite(rows.values[name])], minlength=count) > 1).any():
        return None
    return not (high - low > SAME).any()


def _find_beside_failed(run: Run, whole: Run, name: str) -> Card | None:
    """Return the card on a function that only truncated rollouts and those with an error make differ, which `whole`
    lacks. None for a penalty: it may be for these alone.
    """
    rows, is_penalty_of_these = whole.rows, np.nanmax(run.all.parts[name], initial=0.0) <= SAME
    if len(rows) < _MOST_END * len(run.rows) or is_penalty_of_these:
        return None
    card = _find_constant(whole, name) or _find_of_prompt(whole, name)
    if not isinstance(card, Card):
        return None
    own = np.isin(run.rows.id, rows.id if card.own is None else rows.id[card.own])
    evidence = ("Truncated rollouts and those with an error are left out.", *card.evidence)
    title = f"{card.title}, except in truncated and failed rollouts"
    return replace(card, title=title, own=own, where=links.ids(run.rows.id[own]), evidence=evidence)


def _find_constant(run: Run, name: str) -> Card | str | None:
    """Return the card on a function that gives all last rollouts one value; a sentence's part if that is no fault."""
    values, weight, every = run.rows.values[name], run.rows.weights.get(name, 1.0), run.all.values[name]
    is_known = np.isfinite(values)
    if is_known.sum() < _ROLLOUTS or extent(values) > SAME:
        return None
    value, part = float(values[is_known][0]), float(run.rows.parts[name][is_known][0])
    differs = np.abs(every - value) > SAME
    title = f"{name} gives {figure(value)} to every rollout{'' if is_known.all() else ' that it scores'}"
    if differs.any() and part >= np.nanmax(run.all.parts[name]) - SAME:
        return f"{title}, its best"
    if not differs.any() and (part > SAME or weight < 0 or is_penalty(name)):
        return title
    room = best(run.all, name) - part if weight else 0.0
    others = [other for other, parts in run.rows.parts.items() if other != name and extent(parts) > SAME]
    evidence = [f"Functions that differ between rollouts: {listed(others) or 'none'}."]
    suggestion = describe_cut(run, name) or (
        f"Call {name} by hand on a good and a bad completion: its values must differ. If they do, look at what "
        "it needs (a service, a file, a form of the answer), or no rollout has earned more."
    )
    if not differs.any() and (closed := find_closed_tag(run)) is not None:
        tag = closed.name
        evidence += closed.evidence
        mend = f"{name} looks for <{tag}>, let it look for </{tag}> alone, or put <{tag}> before the completion"
        suggestion = (
            f"The prompt ends with <{tag}>, and no reward function is given that: if {mend}."
            if closed.is_sent
            else f"If {mend}: chat templates may end the prompt with it, and no reward function is given that."
        )
    return _make_card(
        run, name, differs, title, *evidence,
        cost=float(is_known.mean()) * (room if differs.any() else min(room, _UNKNOWN * spread(run))),
        suggestion=suggestion,
        is_loss=bool(differs.any()),
    )  # fmt: skip


def _find_of_prompt(run: Run, name: str) -> Card | str | None:
    """Return the card on a function that is the same within each group, and not between groups."""
    rows, every, count = run.rows, run.all, len(run.rows.groups.size)
    has = np.bincount(rows.group[np.isfinite(rows.values[name])], minlength=count) > 1
    keys = rows.facts["completion_key"]
    differ = has & (distinct(rows.group, keys, count=count) > 1) & np.isfinite(keys).any()
    low, high = ends(rows.group, rows.values[name], count)
    kinds = len(levels(low[has]))
    if differ.sum() < _GROUPS or kinds < _GRADED or (high - low)[has].max() > SAME:
        return None
    low, high = ends(every.group, every.values[name], len(every.groups.size))
    return _make_card(
        run, name, (high - low > SAME)[every.group] & np.isfinite(every.values[name]) & (every.step < rows.steps[0]),
        f"{name} does not depend on the completion: it is the same within each group",
        f"{differ.sum()} of {has.sum()} groups hold different completions; they have {kinds} different values.",
        cost=run.fall.lost * weigh_by_range(rows).get(name, 0.0),
        suggestion=f"Look at what {name} is computed from: the prompt or a column of the dataset in place of the "
        "completion, or one completion for all of a group.",
        is_loss=True,
    )  # fmt: skip


def _find_in_places(run: Run, name: str) -> Card | str | None:
    """Return the card on a graded function that since a step gives one value to all rollouts of an eval, a family of
    tasks or a value of a column, below its best there; None if there is no such place.
    """
    low, high = ends(run.rows.group, run.rows.values[name], len(run.rows.groups.size))
    equal = low[high - low <= SAME]
    values = [value for value in levels(equal) if (np.abs(equal - value) <= SAME).sum() >= LEAST_UNITS]
    if not values or len(levels(run.all.values[name])) <= _LEVELS:
        return None
    parts, is_last = list_parts(run)[1:], run.all.step >= run.rows.steps[0]
    tried = sum(len(names) for names, _ in parts)
    for value in values:
        places, of = list[str](), np.zeros(len(run.all), bool)
        for names, codes in parts:  # the largest first: what is in one of them says nothing new
            for code in _list_constant(codes, run.all.values[name], value, is_last):
                inside = codes == code
                if (inside & is_last & ~of).any() and _gives_only(run, name, value, inside, tried):
                    places.append(names[code])
                    of |= inside
        if places:
            room = float(np.nanmax(run.all.parts[name][of])) - value * run.all.weights.get(name, 1.0)
            return _make_card(
                run, name, of & (np.abs(run.all.values[name] - value) > SAME),
                f"{name} gives {figure(value)} to every rollout of {listed(places)}",
                cost=float(of[is_last].mean()) * room,
                suggestion=f"Call {name} by hand on a good and a bad completion from there: its values must differ. If "
                "they do, look at what it needs there (a service, a file, a form of the answer).",
                is_loss=True,
                among=of,
            )  # fmt: skip
    return None


def _list_constant(codes: Ints, values: Floats, value: float, is_last: Bools) -> list[int]:
    """Return the codes all of whose last values are this one; there may be thousands of codes."""
    has_number = np.isfinite(values) & is_last & (codes >= 0)
    numbers, equal = (
        np.bincount(codes[some], minlength=1) for some in (has_number, has_number & (np.abs(values - value) <= SAME))
    )
    equal = np.pad(equal, (0, len(numbers) - len(equal)))
    return np.flatnonzero((numbers >= _ROLLOUTS) & (numbers == equal)).tolist()


def _gives_only(run: Run, name: str, value: float, inside: Bools, tried: int) -> bool:
    """Return True if a function gives one value to the last rollouts of a place, whose completions differ, and gave
    many values, one of them better, before. `tried`: number of places, for which chance is corrected.
    """
    rows, every = run.all, run.all.values[name]
    of = inside & np.isfinite(every)
    differs, is_last = of & (np.abs(every - value) > SAME), rows.step >= run.rows.steps[0]
    if (of & is_last).sum() < _ROLLOUTS or (differs & is_last).any() or len(levels(every[of])) <= _LEVELS:
        return False
    kinds = distinct(rows.group[of & is_last], rows.facts["completion_key"][of & is_last], count=len(rows.groups.size))
    has_keys = np.isfinite(rows.facts["completion_key"][of & is_last]).all()
    if not has_keys or (kinds > 1).sum() < LEAST_UNITS:  # equal completions earn the same
        return False
    is_best = value * rows.weights.get(name, 1.0) >= np.nanmax(rows.parts[name][of]) - SAME
    return not is_best and _count_groups(rows, of, differs)[-1] < _CHANCE / tried


def _count_groups(rows: Rows, of: Bools, differs: Bools) -> tuple[int, int, int, int, float]:
    """Return the first step after the last of the rollouts that `differs`; the number of groups with any rollout `of`
    a place before, of those among them with one that differs, and of those since; and the chance of none since.
    """
    first = int(rows.steps[rows.steps > rows.step[differs].max(initial=-1)][0])
    scored, has = (np.bincount(rows.group[some], minlength=len(rows.groups.size)) > 0 for some in (of, differs))
    late = rows.groups.step >= first
    before, others, since = int(scored[~late].sum()), int(has[~late].sum()), int(scored[late].sum())
    return first, before, others, since, (1 - others / (before + since)) ** since if before else 0.0


def _make_card(
    run: Run, name: str, differs: Bools, title: str, *evidence: str, cost: float, suggestion: str, is_loss: bool,
    among: Bools | None = None,
) -> Card | str:  # fmt: skip
    """Return the card on a function that tells nothing since the last of all rollouts that `differs`, which is (N,) of
    all steps; a sentence's part if that may be chance. `among`: (N,) True for the rollouts of some places; None: all.
    """
    rows, is_scored = run.all, np.isfinite(run.all.values[name])
    of = is_scored if among is None else is_scored & among
    first, before, others, since, chance = _count_groups(rows, of, differs)
    own = of[rows.step >= run.rows.steps[0]]
    if chance >= _CHANCE:
        return f"{title} (it may be chance)"
    course = f"It told rollouts apart in none of {since} groups of the whole run."
    if before:
        subject = "It" if among is None else "There it"
        course = f"{subject} told rollouts apart in {others} of {before} groups before, and in none of {since} since."
    return Card(
        id="constant_function",
        title=title,
        cost=cost,
        evidence=(course, *evidence),
        suggestion=suggestion,
        where="" if own.all() else f"-{links.rewards(name)}:none" if among is None else links.ids(run.rows.id[own]),
        trend=rows.by_step(differs if among is None else np.where(of, differs, np.nan)),
        since_step=first,
        own=None if own.all() else own,
        # A function that is constant from the first step on explains no new value.
        explains=(*_TELLS * is_loss, *["new_value"] * int(first > rows.steps[0])),
        is_loss=is_loss,
    )


def _check_new(run: Run) -> Outcome:
    scaled = [card for name in run.all.values if (card := _find_other_scale(run, name)) is not None]
    if scaled:
        return max(scaled, key=lambda card: card.cost or 0.0)
    graded = [name for name, part in run.rows.parts.items() if len(levels(part)) > _LEVELS]
    if not graded:
        return NotJudged(f"No reward function gives more than {_LEVELS} different values in the last steps.")
    cards = [card for name in graded if (card := _judge(run, name)) is not None]
    if cards:
        return max(cards, key=lambda card: card.cost or 0.0)
    shares = [
        f"{name} {exact_percent(float(_has_part(run.rows, name, _find_part(run, name)[0]).mean()))}" for name in graded
    ]
    return Below(f"Share of one value: {', '.join(shares[:3])} (threshold {_SHARE:.0%}, if it is new).")


def _find_other_scale(run: Run, name: str) -> Card | None:
    """Return the card on a function whose values are of another size since a step, in the run or in some evals."""
    rows, values = run.all, run.all.values[name]
    if is_penalty(name) or rows.weights.get(name, 1.0) < 0 or np.nanmax(values, initial=0.0) <= 0:
        return None  # penalties may be made to grow
    begins = {place: _step_of_other_scale(run, values, rows.in_eval(place)) for place in rows.present}
    steps = [step for step in begins.values() if step is not None]
    if not steps:
        return None
    first = max(steps, key=steps.count)
    places = [place for place, step in begins.items() if step == first]
    is_known = np.isfinite(values)
    of = is_known & np.logical_or.reduce([rows.in_eval(place) for place in places])
    where = "" if np.array_equal(of, is_known) else f" in {list_places(places)}"
    before, since = (values[of & side] for side in (rows.step < first, rows.step >= first))
    ranges = [f"{figure(side.min())} to {figure(side.max())}" for side in (since, before)]
    medians = [f"{figure(float(np.median(side)))} of {len(side):,}" for side in (before, since)]
    affected = of[rows.step >= run.rows.steps[0]]
    if not affected.any():
        return None
    return Card(
        id="new_value",
        title=f"{name} gives {ranges[0]}{where} since step {first:,}, {ranges[1]} before: another scale",
        cost=max(run.fall.lost, spread(run)),
        evidence=(f"Before step {first:,}: median {medians[0]} rollouts; since then: {medians[1]}.",),
        suggestion=f"Look at what changed in {name}, or in what it asks, at step {first:,}, and give all steps one "
        "scale: means and thresholds of before do not hold for the values since.",
        where=f"-{links.rewards(name)}:none" if not where else links.ids(run.rows.id[affected]),
        trend=rows.by_step(np.where(of, values, np.nan)),
        measure=f"mean {name}",
        since_step=first,
        explains=(*_TELLS, "task_mix", "proxy", "length"),
        own=affected,
        is_setup=True,
        is_loss=False,
    )


def _step_of_other_scale(run: Run, values: Floats, of: Bools) -> int | None:
    """Return the step since which a graded function's values of some rollouts are of another size; None if there is
    none. Values of 0, which has no size, are left out, and tasks, or families of them, that only one side has.
    """
    rows, has_size = run.all, of & np.isfinite(values) & (np.abs(values) > SAME)
    sizes = np.abs(np.where(has_size, values, np.nan))
    trend = rows.by_step(np.log(sizes))
    jump = change(trend)
    if jump is None:
        return None
    first = trend[jump.place][0]
    late = rows.step >= first
    placed = rows if tasks_recur(rows) else run.families
    if placed is not None:
        has_size &= np.isin(placed.task, np.intersect1d(placed.task[has_size & late], placed.task[has_size & ~late]))
    before, since = (sizes[has_size & side] for side in (~late, late))
    if min(len(before), len(since)) < _ROLLOUTS or min(len(levels(before)), len(levels(since))) <= _LEVELS:
        return None
    is_larger = np.percentile(since, 10) > _LARGER * before.max()
    return first if is_larger or np.median(since) < _SMALLER * before.min() else None


def _find_part(run: Run, name: str) -> tuple[float, bool]:
    """Return what a function's failures may be paid in the last steps, weighted: one value below the highest, which is
    earned, that is far more frequent than any other, or grew far more since the first steps; else the lowest. Also
    return True if it may grow bit by bit: not so what is no more frequent than others, as learning shifts values.
    """
    first = run.windows[0] if run.windows else run.rows
    before, last = (np.round(side[np.isfinite(side)] / SAME) for side in (first.parts[name], run.rows.parts[name]))
    kinds, counts = np.unique(last, return_counts=True)
    place = np.searchsorted(kinds, before).clip(max=len(kinds) - 1)
    earlier = np.bincount(place[kinds[place] == before], minlength=len(kinds)) / max(len(before), 1)
    for shares, may_creep in ((counts / counts.sum(), True), (counts / counts.sum() - earlier, False)):
        *_, second, most = np.argsort(shares[:-1])
        if shares[most] >= _STANDS_OUT * max(shares[second], 0.0):
            return float(kinds[most] * SAME), may_creep
    return float(kinds[0] * SAME), False


def _has_part(rows: Rows, name: str, part: float) -> Bools:
    return np.asarray(np.abs(rows.parts[name] - part) <= SAME, bool)


def _judge(run: Run, name: str) -> Card | None:
    rows, limit = run.all, run.threshold("new_value", _SHARE)
    (paid, may_creep), parts = _find_part(run, name), rows.parts[name]
    affected, has = (_has_part(some, name, paid) for some in (run.rows, rows))
    share, lowest = float(affected.mean()), float(np.nanmin(parts))
    fields = above(rows.by_step(np.where(np.isfinite(parts), has, np.nan)), limit)
    late = rows.step >= (fields["since_step"] or 0)
    first_steps = rows.steps[rows.steps >= (fields["since_step"] or 0)][:_AT_FIRST]
    is_sudden = bool(len(first_steps)) and has[np.isin(rows.step, first_steps)].mean() >= _SUDDEN * share
    # A policy may learn to fail bit by bit, but not at once, nor to get one value amid many others.
    grew = fields.get("half_step") is not None and not is_sudden and (paid <= lowest + SAME or not may_creep)
    if share <= limit or grew or late.all() or has[~late].mean() > _BEFORE * share:
        return None
    rest = shift(np.where(has, np.nan, parts), late, rows.group)
    has_fallen = rest.value < -_MOVED * (rest.before - lowest)
    if has_fallen or _differs_within_groups(run, name, affected):  # the policy may have learned to fail
        return None
    weight = rows.weights.get(name, 1.0)
    value = float(run.rows.values[name][affected][0])
    counts = [f"{has[side].sum()} of {np.isfinite(parts[side]).sum()}" for side in (~late, late)]
    # Equal completions may be paid apart because some calls fail.
    is_noise = 2 * measure_noise(run.rows, {name: affected}) < measure_noise(run.rows, {})
    means = [figure(mean / weight) for mean in (rest.before, rest.after)]
    return Card(
        id="new_value",
        title=f"{name} gives exactly {figure(value)} to {percent(share)} of rollouts, and hardly ever did before",
        cost=max(share * (float(np.nanmean(run.rows.parts[name][~affected])) - paid), 0.0),
        evidence=(
            f"Before step {fields['since_step']}: {counts[0]} rollouts; since then: {counts[1]}.",
            f"Its other values have not fallen: mean {means[0]} before, {means[1]} since.",
            _compare_with_group(run, name, affected),
            *_tell_position(run.rows, affected),
        ),
        suggestion=f"Look into {name}'s log for calls that failed (a rate limit, a timeout, an answer that could not "
        f"be read), and let it try again, or return None, in place of {figure(value)}.",
        where=links.selecting(
            run.rows.id, affected, {f"{links.rewards(name)}:{value!r}": run.rows.values[name] == value}
        ),
        own=affected,
        is_setup=True,
        explains=("inconsistent",) * is_noise,
        **fields,
    )


def _tell_position(rows: Rows, affected: Bools) -> Iterator[str]:
    """Say whether the rollouts are in one half of the steps' batches, in the order in which they were recorded."""
    step = np.searchsorted(rows.steps, rows.step)
    place = np.arange(len(rows)) - np.searchsorted(step, step)
    is_late = 2 * place >= np.bincount(step)[step]
    halves = compare(affected.astype(float), is_late, rows.group)
    if is_beyond_chance(halves, CHANCE) and min(halves[:2]) <= _RARER * max(halves[:2]):
        first, second = percent(halves.others), percent(halves.chosen)
        yield f"By place in the batch: {first} of each step's first half, {second} of its second."


def _differs_within_groups(run: Run, name: str, affected: Bools) -> bool:
    """Return True if these rollouts differ from others of their groups in what they did or in what other functions
    gave, or if most have no others in their groups: then they may have earned it.
    """
    rows = run.rows
    mixed = distinct(rows.group, affected.astype(float), count=len(rows.groups.size)) > 1
    if mixed[rows.group][affected].mean() < _MIXED:
        return True
    every = {**list_figures(rows), **rows.values}
    figures = {other: values for other, values in every.items() if other not in {name, "seconds"}}
    return bool(find_largest(figures, affected, rows.group, rows.group, np.isfinite(rows.reward))[0])


def _compare_with_group(run: Run, name: str, affected: Bools) -> str:
    """Say in what they differ most from others of their groups, also in what the policy did not do."""
    rows, (metrics, errors) = run.rows, read_columns(run, affected.astype(float))
    every = {**metrics, "seconds": rows.seconds, **list_figures(rows), **rows.values, **errors}
    figures = {other: values for other, values in every.items() if other != name}
    largest, compared = find_largest(figures, affected, rows.group, rows.group, np.isfinite(rows.reward))
    if not largest:
        alike = f"none of {len(compared)} figures differs clearly ({listed(list(compared))})"
        return f"These rollouts are like others of their groups: {alike}."
    different = [f"{other} ({figure(more.chosen)}, others {figure(more.others)})" for other, more in largest]
    return f"These rollouts differ from others of their groups most in {listed(different)}."


CONSTANT_FUNCTION = check(
    "constant_function",
    "Constant function",
    f"A reward function that gives all rollouts of the last steps (at least {_ROLLOUTS}) one value: below its best, "
    "while it gave other values before, in so many groups that the probability of none since then is below "
    f"{_CHANCE:.1%}; or never more than 0, unless its name is that of a penalty. Or one that is the same within each "
    f"group of different completions (at least {_GROUPS} groups), with {_GRADED} or more values between groups. Also "
    f"one that only truncated rollouts and those with an error make differ, if these are at most {1 - _MOST_END:.0%}. "
    f"Or a function of more than {_LEVELS} values that does the first to an eval, a family of tasks or a value of a "
    "column, whose completions differ: below its best there, and by the same chance, divided by the number of places. "
    "Silent if the whole "
    "reward is constant.",
    needs("reward functions", lambda run: np.isfinite(list(run.rows.values.values()))),
    _check_constant,
    limits=NO_THRESHOLD,
)
NEW_VALUE = check(
    "new_value",
    "New value of a function",
    f"More than {_SHARE:.0%} of rollouts get exactly the same value of a reward function that has at least {_LEVELS} "
    f"other values: the one that is {_STANDS_OUT} times as frequent as any other below the highest, or whose "
    "share grew so much more than any other's since the first steps, else the lowest. "
    "It is at least five times as frequent as before a jump (or before a rise, if it is not the lowest, or if its "
    f"first {_AT_FIRST} steps have {_SUDDEN:.0%} of its last share), while the other "
    f"values have not fallen by {_MOVED:.0%} of the way to the lowest, and the rollouts that get it differ from others "
    "of their groups in no other figure. Seconds, metrics and errors in observations may differ, and are told. Not "
    "judged for functions of few values: their failures look like wrong answers. "
    f"Or a function of more than {_LEVELS} values, no penalty, gives values of another size to an eval since a step, "
    "at tasks (or families of tasks) that came before, too: nine in ten of them, but for 0, are above "
    f"{_LARGER} times the largest before, or half of them below {_SMALLER:.0%} of the smallest.",
    needs("reward functions", lambda run: np.isfinite(list(run.rows.values.values()))),
    _check_new,
)
