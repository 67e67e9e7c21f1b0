"""Finds tasks that regressed, tasks that are never solved, and a mix of tasks that became harder."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from logs_ui.recorder.action_text import observed_text
from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.answers import LAST_LINE, final_answer
from logs_ui.recorder.diagnosis.card import Below, Card, NotJudged, Outcome, Run, check, needs
from logs_ui.recorder.diagnosis.change_point import below
from logs_ui.recorder.diagnosis.checks.never_matches import holds, plain, reference_column
from logs_ui.recorder.diagnosis.checks.reward_variance import follows_prompt
from logs_ui.recorder.diagnosis.contrast import CHANCE, SURER, compare_successive, spread
from logs_ui.recorder.diagnosis.largest_differences import describe_jumped_habits
from logs_ui.recorder.diagnosis.mean_difference import LEAST_UNITS, Difference, compare
from logs_ui.recorder.diagnosis.measures import attempted, extent, mean, tried
from logs_ui.recorder.diagnosis.outcome import DIFFICULTY
from logs_ui.recorder.diagnosis.places import MACHINE, columns_of
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Floats, Ints, Rows, distinct, means
from logs_ui.recorder.diagnosis.scale import Scale
from logs_ui.recorder.diagnosis.tables.tasks import (
    ATTEMPTS,
    FALLEN,
    FORGOTTEN_CHANCE,
    PARTLY_FALLEN,
    UNSOLVED_CHANCE,
    Label,
    are_beyond_chance,
    expect_unsolved,
    find_falls,
    labels,
)
from logs_ui.recorder.diagnosis.task_families import tasks_recur
from logs_ui.recorder.diagnosis.waterfall import has_cause, losses
from logs_ui.recorder.diagnosis.wording import figure, list_places, listed, percent
from logs_ui.recorder.settings import FROM_ONE
from logs_ui.recorder.vocabulary import Lack, LossCause

_LENGTH = 60  # characters of an answer that is quoted
_READ, _TASKS_READ, _ANSWERS, _AGREE = 800, 40, 5, 0.6  # answers; tasks; answers of one; of these, that agree [ours]
_MOST = 0.5  # of the last rollouts are of tasks that are never solved [ours]
_HEARD, _HARDLY = 32, 0.1  # rollouts whose observations are read; of the others that have the same error [ours]
_PLACES = 8  # of one kind, with the most rollouts, that are compared [ours]
_ERROR = re.compile(r"^[^\w\n.]*([\w.]*?(?:Error|Exception)\b[^\n]*)$", re.MULTILINE)
_VERIFY = "Verify these references by hand first: the model may be right."
_RECOVERED = 0.8  # of the share of before, in the last steps, above which a family counts as recovered [ours]
_LIKEWISE = 0.5  # of the fall of the tasks named, from which on the others fell with them [ours]
_ENOUGH = f"{ATTEMPTS}+ attempts after their first step"
_SHIFT, _LEAST, _ERRORS, _CHANCE = 0.5, 0.05, 2.5, 0.01  # for the mix of tasks


def _check_forgotten(run: Run) -> Outcome:
    if not run.scale.success.is_defined:
        return _UNDEFINED
    rows, unit, labelled = run.all, "tasks", labels(run.all, run.scale, run.settings)
    if (grouped := run.families) is not None:
        whole = labels(grouped, run.scale, run.settings)
        lost = np.isin(grouped.task, np.flatnonzero(whole.label == Label.FORGOTTEN))
        alone = np.isin(rows.task, np.flatnonzero(labelled.label == Label.FORGOTTEN))
        # Of a family that regressed as a whole, few tasks may have attempts enough to be sure of each.
        still = (
            tried(rows, run.scale) & lost & (grouped.step >= whole.since[grouped.task]) & run.scale.success.solved(rows)
        )
        is_whole = len(np.unique(rows.task[still])) <= len(np.unique(rows.task[lost])) / 2
        if not tasks_recur(rows) or (lost.any() and is_whole and lost.sum() > (alone & ~lost).sum()):
            rows, unit, labelled = grouped, "task families", whole
    is_last = rows.step >= run.rows.steps[0]
    starts = np.where(labelled.label == Label.FORGOTTEN, labelled.since, -1)
    if grouped is not None:
        lost = np.isin(rows.task, np.intersect1d(np.flatnonzero(starts >= 0), rows.task[is_last]))
        # Others of a family must have fallen beside a task that regressed. Without one, what ended otherwise, such as
        # at a limit, has findings of its own.
        among = ~lost if lost.any() else has_cause(grouped, LossCause.WRONG_ANSWER)
        partly = _find_partly_fallen(run, grouped, np.where(among, run.scale.success.outcomes(grouped), np.nan))
        if (partly >= 0).any() and (partly >= 0)[grouped.task[lost]].all():
            rows, unit, starts = grouped, "task families", partly
    gone, count = np.flatnonzero(starts >= 0), _count_judged(rows, run.scale)
    of = tried(rows, run.scale) & np.isin(rows.task, gone)
    affected = np.isin(rows.task, gone)[is_last]
    if count == 0:
        return NotJudged(f"No task has {ATTEMPTS} attempts after its first step yet.", Lack.TASKS)
    judged = f"{count:,} {unit}" + f" with {_ENOUGH}" * (count < len(rows.tasks))
    if not affected.any():
        return Below(f"None of {judged} regressed.")
    if of.sum() == tried(rows, run.scale).sum():
        return Below(f"{len(gone):,} of {judged} fell, and there are no others to compare with.")
    is_late = rows.step >= starts[rows.task]
    won, loss = run.scale.success.solved(rows), losses(rows, run.scale)
    before, since = of & ~is_late, of & is_late
    share = float(won[since].mean())
    others = _compare_others(run, rows, starts)
    if others is not None and others.value <= _LIKEWISE * (share - float(won[before].mean())):
        subject = unit if len(gone) > 1 else {"tasks": "task"}.get(unit, "task family")
        return Below(
            f"{len(gone):,} {subject} fell for certain, and the others fell with {'them' if len(gone) > 1 else 'it'}: "
            f"solved {percent(others.others)} \u2192 {percent(others.chosen)}."
        )
    names, first = [rows.tasks[task] for task in gone.tolist()], int(starts[gone].min())
    sentence = (
        f"{listed(names)}: {won[before].sum()} of {before.sum()} attempts solved before, {won[since].sum()} of "
        f"{since.sum()} since. Solved: {run.scale.success.description}."
    )
    return Card(
        id="forgotten",
        title=f"{len(gone)} of {judged} regressed: {percent(share)} of attempts solve "
        f"{'it' if len(gone) == 1 else 'them'} now, {percent(float(won[before].mean()))} did before",
        cost=max(float((run.lost[affected] - loss[before].mean()).sum()), 0.0) / len(run.rows),
        than="before",
        evidence=(sentence,),
        suggestion="Return to an earlier checkpoint, then lower the learning rate, add a KL term, or sample these "
        "tasks more often.",
        where=links.tasks(names, "task" if unit == "tasks" else "family"),
        trend=rows.where(of).by_step(won[of]),
        since_step=first,
        own=affected,
    )


def _count_judged(rows: Rows, scale: Scale) -> int:
    """Return the number of tasks that have enough attempts on both sides of some step to have regressed."""
    firsts = np.full(len(rows.tasks), np.iinfo(np.int64).max)
    task, step = rows.task[of := tried(rows, scale)], rows.step[of]
    np.minimum.at(firsts, task, step)
    return int((np.bincount(task[step > firsts[task]], minlength=1) >= ATTEMPTS).sum())


def _compare_others(run: Run, rows: Rows, starts: Ints) -> Difference | None:
    """Compare what is solved of other tasks before any of those with (T,) `starts` fell, and since all have; None if
    they fell by no more than chance. In between their attempts tell nothing: the fall was somewhere there.
    """
    is_tried, gone = tried(rows, run.scale), np.flatnonzero(starts >= 0)
    is_early = is_tried & np.isin(rows.task, gone) & (rows.step < starts[rows.task])
    last = min(int(rows.step[is_early & (rows.task == task)].max()) for task in gone.tolist())
    late = rows.step >= starts.max()
    among = is_tried & ~np.isin(rows.task, gone) & ((rows.step <= last) | late)
    won = np.where(among, run.scale.success.solved(rows), np.nan)
    others = compare(won, late, rows.group, run.all.task if tasks_recur(run.all) else rows.task)
    is_fall = others is not None and others.chance is not None and others.chance <= SURER and others.value < 0
    return others if is_fall else None


def _find_partly_fallen(run: Run, grouped: Rows, won: Floats) -> Ints:
    """Return (F,) the step since which each family is solved far less often, though not as seldom as a task that counts
    as regressed; -1 for others. (N,) `won` is 1 for solved rollouts, NaN for those that are left out. Groups are the
    units; the same tasks must have fallen, too, since others may be harder, and other families must have fallen less,
    if at all.
    """
    scale = run.scale
    tries = np.bincount(grouped.task[tried(grouped, scale)], minlength=len(grouped.tasks))
    starts, before, _ = find_falls(grouped, scale, tries >= ATTEMPTS, run.threshold("forgotten", PARTLY_FALLEN))
    is_last = grouped.step >= run.rows.steps[0]
    for family in np.flatnonzero(starts >= 0).tolist():
        of, late = np.where(grouped.task == family, won, np.nan), grouped.step >= starts[family]
        fall, of_same = compare(of, late, grouped.group), compare(of, late, grouped.group, run.all.task)
        has_fallen = fall is not None and fall.chance is not None and fall.chance <= SURER
        has_fallen &= of_same is not None and of_same.value < 0
        rest = compare(np.where(grouped.task == family, np.nan, won), late, grouped.group)
        # What fell everywhere is no matter of one family.
        if fall is not None and rest is not None and rest.value < 0:
            has_fallen &= rest.value - fall.value > _ERRORS * math.hypot(fall.error, rest.error)
        if not has_fallen or not (mean(of[is_last]) or 0.0) <= _RECOVERED * before[family]:
            starts[family] = -1
    return starts


def _means(rows: Rows) -> tuple[Floats, Floats]:
    """Return (T,) number of rollouts with a reward, and (T,) their mean, NaN without any."""
    task, reward = rows.task[attempted(rows)], rows.reward[attempted(rows)]
    return np.bincount(task, minlength=len(rows.tasks)).astype(float), means(task, reward, len(rows.tasks))


def _count_groups(rows: Rows) -> Ints:
    """Return (T,) number of groups that have a rollout of a task with a reward."""
    chosen = attempted(rows)
    pairs = np.unique(np.stack([rows.task[chosen], rows.group[chosen]]), axis=1)
    return np.bincount(pairs[0], minlength=len(rows.tasks))


def never_solved(run: Run) -> Bools:
    """Return (T,) True for tasks that none of many attempts over the whole run solved."""
    is_never: Bools = labels(run.all, run.scale, run.settings).label == Label.NEVER
    return is_never


def _check_never(run: Run) -> Outcome:
    if not run.scale.success.is_defined:
        return _UNDEFINED
    rows, unsolved = run.rows, never_solved(run)
    hopeless = are_beyond_chance(run.all, run.scale, unsolved)
    expected = None
    if (hopeless < unsolved).any() and np.isin(rows.task, np.flatnonzero(unsolved)).mean() >= _MOST:
        expected = expect_unsolved(run.all, run.scale, unsolved)
        hopeless = hopeless if expected is None else unsolved
    place = _find_unsolved_place(run)
    if place is not None and not follows_prompt(rows):
        apart = np.isin(np.arange(len(unsolved)), run.all.task[place.inside], invert=True)
        own = place.inside[run.all.step >= rows.steps[0]]
        if own.sum() >= np.isin(rows.task, np.flatnonzero(hopeless & apart)).sum():
            return _make_place_card(run, place, own, unsolved & apart, hopeless & apart)
    affected = np.isin(rows.task, np.flatnonzero(hopeless))
    heard = run.all.env_reward_sum
    is_out_of_reach = np.isfinite(heard).any() and extent(heard) <= SAME  # the environment rewards no rollout either
    least = int(run.threshold("never_solved", ATTEMPTS))
    often = int((np.bincount(run.all.task[tried(run.all, run.scale)]) >= least).sum())
    if not often:
        return NotJudged(f"No task has {least} attempts yet.", Lack.TASKS)
    if not affected.any():
        why = "do not occur in the last steps" if hopeless.any() else "may be hard tasks that had too few attempts"
        rest = f", and {why}" if unsolved.any() else ""
        return Below(f"Of {often:,} tasks with {least}+ attempts, {unsolved.sum():,} were never solved{rest}.")
    is_unclear = hopeless.all() and not is_out_of_reach
    if is_unclear or follows_prompt(rows):
        prompt = "The reward depends on the prompt alone: no completion could have changed it."
        return NotJudged("No task is solved at all: the cause may be other than the tasks." if is_unclear else prompt)
    names = [rows.tasks[task] for task in np.flatnonzero(hopeless).tolist()]
    judged = f"{often:,} tasks" + ("" if often == len(rows.tasks) else f" with {least}+ attempts")
    attempts = int(np.isin(run.all.task, np.flatnonzero(hopeless)).sum())
    more = _count_unsure(unsolved, hopeless)
    title = f"{len(names)} of {judged} {'is' if len(names) == 1 else 'are'} never solved" + ", beyond chance" * len(
        more
    )
    by_chance = "" if expected is None else "fewer than 1" if expected < 1 else f"about {expected:.0f}"
    return Card(
        id="never_solved",
        title=title if expected is None else f"{title}, in {attempts / len(names):.0f} attempts each on average",
        cost=run.cost_of(LossCause.WRONG_ANSWER) if hopeless.all() else _cost(run, affected),
        evidence=(
            (
                f"{listed(names)}: none of {attempts} attempts over the whole run solved it "
                f"({run.scale.success.description})."
            ),
            *[f"If all tasks were equally hard, chance would leave {by_chance} unsolved."] * bool(by_chance),
            _describe_extent(affected),
            *more,
            *(agreed := _name_agreed(run, hopeless)),
        ),
        suggestion=_VERIFY
        if agreed
        else "Drop them, start with easier tasks (curriculum), or verify by hand that they are solvable.",
        where=links.tasks(names),
        own=affected,
    )


def _cost(run: Run, own: Bools) -> float:
    others = float(run.lost[~own].mean()) if (~own).any() else 0.0
    return float(max(run.lost[own].mean() - others, 0.0) * own.mean())


def _describe_extent(own: Bools) -> str:
    return f"{int(own.sum())} attempts are in the last steps: {percent(float(own.mean()))} of their rollouts."


def _count_unsure(unsolved: Bools, hopeless: Bools, where: str = "") -> list[str]:
    count = int((unsolved & ~hopeless).sum())
    were = "was" if count == 1 else "were"
    return [f"{count:,} more{where} {were} not solved, in so few attempts that it may be chance."] * (count > 0)


class _Place(NamedTuple):
    """Values of a filter's `field` of which no rollout was solved."""

    field: str
    names: list[str]
    inside: Bools  # (N,) of all steps


def _find_unsolved_place(run: Run) -> _Place | None:
    """Return the evals, families of tasks or values of a column of the dataset that have several tasks, occur in the
    last steps, and of which nothing was solved, beyond chance: those of one kind, with the most rollouts, and of
    these the largest.
    """
    rows, is_tried, families = run.all, tried(run.all, run.scale), run.families
    won = np.where(is_tried, run.scale.success.outcomes(rows), np.nan)
    fails, is_last = 1 - (mean(won) or 0.0), rows.step >= run.rows.steps[0]
    kinds = [("eval", rows.evals, rows.eval)]
    kinds += [] if families is None else [("family", families.tasks, families.task)]
    columns = columns_of(rows, run.labels_of_all) if fails < 1 else []
    # A machine is judged by worse_place, and hard tasks are no fault.
    others = (entry for entry in columns if not (MACHINE.search(entry[2]) or DIFFICULTY.search(entry[2])))
    kinds += [(name, of.tasks, of.task) for of, _, name in others]
    candidates, compared = list[tuple[str, Sequence[str], Ints, Ints, int]](), 0
    for field, names, codes in kinds:
        of = is_tried & (codes >= 0)
        has_several = distinct(codes[of], rows.task[of], count=len(names)) >= LEAST_UNITS
        compared += int(has_several.sum())
        tries, wins, last = (
            np.bincount(codes[among], weights, len(names))
            for among, weights in ((of, None), (of, won[of]), (is_last & (codes >= 0), None))
        )
        unsolved = np.flatnonzero(has_several & (wins == 0) & (fails**tries <= SURER) & (last > 0))
        most = unsolved[np.argsort(-tries[unsolved], kind="stable")][:_PLACES]
        candidates.append((field, names, codes, np.sort(most), int(tries[unsolved].sum())))
    for field, names, codes, most, _ in sorted(candidates, key=lambda candidate: -candidate[-1]):
        differences = [(code, compare(won, codes == code, rows.task)) for code in most.tolist()]
        sure = [
            code
            for code, difference in differences
            if difference is not None and difference.chance is not None and difference.chance <= SURER / compared
        ]
        if sure:
            return _Place(field, [names[code] for code in sure], np.isin(codes, sure))
    return None


def _make_place_card(run: Run, place: _Place, own: Bools, unsolved: Bools, hopeless: Bools) -> Card:
    """Return the card of a place; (T,) `unsolved` and `hopeless` are tasks elsewhere."""
    rows, text = run.all, list_places(place.names, place.field if place.field != "family" else "")
    of = place.inside & tried(rows, run.scale)
    rest = mean(np.where(place.inside | ~tried(rows, run.scale), np.nan, run.scale.success.outcomes(rows))) or 0.0
    others = [rows.tasks[task] for task in np.flatnonzero(hopeless).tolist()]
    is_there = np.isin(np.arange(len(rows.tasks)), rows.task[of])
    agreed, error = _name_agreed(run, is_there), _quote_error(run, place.inside)
    return Card(
        id="never_solved",
        title=f"None of the {of.sum():,} rollouts of {text} ({is_there.sum():,} tasks) was solved; elsewhere "
        f"{percent(rest)} were",
        cost=_cost(run, own),
        evidence=(
            f"Solved: {run.scale.success.description}.",
            *error,
            _describe_extent(own),
            *[f"Never solved elsewhere, beyond chance: {listed(others)}."] * bool(others),
            *_count_unsure(unsolved, hopeless, " elsewhere"),
            *agreed,
        ),
        suggestion=_VERIFY
        if agreed
        else f"Look first at the environment, tests, tools and references that only {list_places(place.names)} "
        f"{'has' if len(place.names) == 1 else 'have'}. Drop these tasks only if nothing is wrong there.",
        where=links.tasks(place.names, place.field),
        own=own,
        may_remain=not error,  # they may be hard
    )  # fmt: skip


def _quote_error(run: Run, inside: Bools) -> list[str]:
    """Return a sentence on the error in observations of at least half of the (N,) rollouts `inside`, and of hardly any
    others.
    """
    sides = [run.sample(of, _HEARD).values() for of in (inside, ~inside)]
    heard = [
        ["\n".join(observed_text(action.get("observation")) or "" for action in texts.actions) for texts in side]
        for side in sides
    ]
    mine, others = (Counter(line for text in side for line in _list_errors(text)) for side in heard)
    line, count = next(iter(mine.most_common(1)), ("", 0))
    if not line or count < len(sides[0]) / 2 or others[line] > _HARDLY * len(sides[1]):
        return []
    said = f"In {count} of {len(sides[0])} of them that were read, and {others[line]} of {len(sides[1])} others"
    return [f"{said}, an observation says \u201c{line[:_LENGTH]}\u201d."]


def _list_errors(text: str) -> set[str]:
    """Return the lines that name an error, without signs before it."""
    return {line.rstrip() for line in _ERROR.findall(text)}


def _name_agreed(run: Run, hopeless: Bools) -> list[str]:
    """Return a sentence on those of (T,) `hopeless` tasks whose final answers agree, and not with the reference, if
    these are half of the tasks that can be compared, and not all get the same answer; else none. Answers without a mark
    are no answers here, and those of one letter agree by chance.
    """
    column = reference_column(run.rows, run.labels, run.settings.reference)
    of = np.isin(run.all.task, np.flatnonzero(hopeless)[:_TASKS_READ])
    finals = {row: final_answer(texts.messages) for row, texts in (run.sample(of, _READ) if column else {}).items()}
    written = {
        row: final.text[:_LENGTH] for row, final in finals.items() if final is not None and final.place != LAST_LINE
    }
    rows = run.all.where(np.isin(run.all.id, list(written)))
    if not len(rows):
        return []
    answers_of, references = defaultdict(list), defaultdict(set)
    columns = run.read_labels(rows).get(column or "", [None] * len(rows))
    for row, task, reference in zip(rows.id.tolist(), rows.task.tolist(), columns, strict=True):
        answers_of[task].append(written[row])
        references[task].add(reference)
    often = [task for task, answers in answers_of.items() if len(answers) >= _ANSWERS and len(references[task]) == 1]
    agreed: dict[int, tuple[str, int, str]] = {}
    for task in often:
        answer, count = Counter(map(plain, answers_of[task])).most_common(1)[0]
        (reference,) = references[task]
        if reference and len(answer) > 1 and count >= _AGREE * len(answers_of[task]):
            first = next(final for final in answers_of[task] if plain(final) == answer)
            if not holds(first, reference) and not holds(reference, first):
                agreed[task] = first, count, reference[-_LENGTH:]
    if len({answer for answer, *_ in agreed.values()}) < 2 or 2 * len(agreed) < len(often):
        return []
    task, (answer, count, reference) = next(iter(agreed.items()))
    return [(
        f"{len(often)} of them have {_ANSWERS} or more marked answers that were read; in {len(agreed)} most agree on "
        f"one that is not the reference. {rows.tasks[task]}: {answer} in {count} of {len(answers_of[task])}, the "
        f"reference is {reference}."
    )]  # fmt: skip


def _check_mix(run: Run) -> Outcome:
    """Split the change of the mean reward into change within tasks and change of their mix.

    The first is taken at the mean of both mixes, the second at the mean of both task means (Kitagawa 1955).
    """
    if run.windows is None:
        return NotJudged("The run has a single step.")
    for field, rows in _list_mixes(run):
        spans = [(rows.step >= of.steps[0]) & (rows.step <= of.steps[-1]) for of in run.windows]
        sides = before, after = run.windows if field == "task" else (rows.where(spans[0]), rows.where(spans[1]))
        (n0, m0), (n1, m1) = _means(before), _means(after)
        # A mean of a task that one side lacks would be a guess, and make of a collapse a harder mix. A family of which
        # one side has a few groups only would be judged by these few tasks.
        is_shared = (n0 > 0) & (n1 > 0)
        if field != "task":
            is_shared &= np.minimum(*(_count_groups(some) for some in (before, after))) >= LEAST_UNITS
        shared = min(float((n * is_shared).sum() / max(n.sum(), 1)) for n in (n0, n1))
        if shared >= _SHIFT:
            break
    else:
        before, after = run.windows
        (n0, _), (n1, _) = _means(before), _means(after)
        return _check_others(run, before, after, (n0 > 0) & (n1 > 0))
    n0, n1, m0, m1 = (np.where(is_shared, column, 0.0) for column in (n0, n1, m0, m1))
    w0, w1 = n0 / n0.sum(), n1 / n1.sum()
    mix, within = float(((w1 - w0) * (m0 + m1) / 2).sum()), float(((m1 - m0) * (w0 + w1) / 2).sum())
    mean = (m0 + m1) / 2
    between = float(np.average((mean - np.average(mean, weights=n0 + n1)) ** 2, weights=n0 + n1))
    draws = (len(np.unique(rows.group[np.isin(rows.task, np.flatnonzero(is_shared))])) for rows in sides)  # of a task
    chance = _ERRORS * np.sqrt(between * sum(1 / max(number, 1) for number in draws))
    limit = run.threshold("task_mix", _SHIFT)
    if -mix <= max(_LEAST * spread(run), chance) or -mix < limit * (abs(mix) + abs(min(within, 0))):
        return Below(f"Since the first steps: task-mix change {figure(mix)}, within-task change {figure(within)}.")
    of_both = "" if shared > 1 - SAME else f" among tasks of both, which have {percent(shared)} of the rollouts"
    grown = np.flatnonzero(w1 > w0)
    # These are the three tasks that lower the mean most: their larger share times their distance below the first
    # mix's mean.
    more = grown[np.argsort((w0 - w1)[grown] * (np.average(mean, weights=w0) - mean[grown]))][:3]
    changes = [f"{rows.tasks[t]} {percent(float(w0[t]))} \u2192 {percent(float(w1[t]))}" for t in more]
    course = (
        f"Steps {after.steps[0]}\u2013{after.steps[-1]} vs {before.steps[0]}\u2013{before.steps[-1]}: "
        f"within-task change {figure(within)}, task-mix change {figure(mix)}."
    )
    return Card(
        id="task_mix",
        title=f"The task mix became harder: it lowers the mean reward by {figure(-mix)}{of_both}",
        cost=-mix * shared,
        than="at first",
        evidence=(course, f"More frequent{of_both}: {', '.join(changes)}."),
        suggestion="Compare task by task: only the mean within tasks tells whether the policy changed.",
        where=links.tasks([rows.tasks[t] for t in more], field),
        **below(
            rows.by_step(np.append(np.where(is_shared, mean, np.nan), np.nan)[rows.task]),
            float(np.dot(w0 + w1, mean)) / 2,
        ),
        own=np.isin(rows.task[rows.step >= run.rows.steps[0]], grown),
    )


def _list_mixes(run: Run) -> Iterator[tuple[str, Rows]]:
    """Yield what a mix may be of: a filter's field, and the rollouts with that in place of tasks: tasks, and where
    these do not come again, their families or the evals.
    """
    rows = run.all
    yield "task", rows
    if run.families is not None:
        yield "family", run.families
    if len(rows.present) > 1:
        yield "eval", replace(rows, task=rows.eval, tasks=rows.evals)


def _check_others(run: Run, before: Rows, after: Rows, is_shared: Bools) -> Outcome:
    """Tell of other tasks in place of the first ones; nothing shows if these are harder, or the policy is worse."""
    rows, early, late = run.all, run.all.step <= before.steps[-1], run.all.step >= after.steps[0]
    chosen = (early | late) & attempted(rows)
    is_of_both = chosen & np.append(is_shared, False)[rows.task]
    apart, alike = (compare(rows.reward[of], late[of], rows.group[of]) for of in (chosen & ~is_of_both, is_of_both))
    has_fallen = alike is not None and alike.chance is not None and alike.chance <= _CHANCE and alike.value < 0
    # If the same tasks lost half as much, too, the new ones do not explain it.
    has_fallen = has_fallen or (alike is not None and apart is not None and alike.value <= apart.value / 2)
    # Tasks of the middle may tell what the first and the last ones cannot.
    course = compare_successive(run, np.where(attempted(rows), rows.reward, np.nan))
    is_sure = course is not None and (course.change.chance or 0.0) < CHANCE
    has_fallen = has_fallen or (course is not None and is_sure and course.change.value < 0)
    new = float((chosen & late & ~is_of_both).sum() / max((chosen & late).sum(), 1))
    is_new = tasks_recur(rows) and new >= run.threshold("task_mix", _SHIFT) and not has_fallen
    if not is_new or apart is None or apart.chance is None:
        return NotJudged(
            "The first steps and the last have too few tasks in common to tell a change of the mix from one of the "
            "policy.",
            Lack.TASKS,
        )
    if apart.chance > _CHANCE or -apart.value < _LEAST * spread(run):
        return Below(
            f"{percent(new)} of the last rollouts are of tasks that the first steps lack; their mean reward is "
            f"{figure(apart.chosen)}, of those in their place {figure(apart.others)}."
        )
    if course is not None and is_sure:
        return Below(
            f"{percent(new)} of the last rollouts are of new tasks: mean reward lower by {figure(-apart.value)}, but "
            f"in the tasks that two parts share it rises from each of {course.parts} parts of the run to the next: on "
            f"average {figure(course.change.others)} \u2192 {figure(course.change.chosen)}."
        )
    names = [rows.tasks[task] for task in np.unique(rows.task[chosen & late & ~is_of_both]).tolist()]
    trend = rows.by_step(np.where(attempted(rows), rows.reward, np.nan))
    sentence = (
        f"Mean reward {figure(apart.chosen)} in {apart.groups[0]} groups of tasks that the first steps lack, "
        f"{figure(apart.others)} in {apart.groups[1]} groups of the tasks in whose place they came."
    )
    began = below(trend, (apart.chosen + apart.others) / 2)
    habits = describe_jumped_habits(run, *(began["since_range"] or (began["since_step"] or 0,) * 2))
    return Card(
        id="task_mix",
        title=f"{percent(new)} of the last rollouts are of new tasks: mean reward lower by {figure(-apart.value)}",
        cost=-apart.value * new,
        evidence=(
            sentence,
            "These steps do not show whether the new tasks are harder or the policy became worse.",
            *habits,
            f"New: {listed(names)}.",
        ),
        suggestion="Evaluate one checkpoint on the tasks of the first steps and on those of the last.",
        where=links.tasks(names),
        **began,
        own=np.isin(run.rows.task, np.unique(rows.task[chosen & late & ~is_of_both])),
    )


_TASKS = needs("tasks", lambda run: run.rows.task >= 0)
_UNDEFINED = NotJudged("What counts as solved is not defined: set solved_at.")


FORGOTTEN = check(
    "forgotten",
    "Regressed tasks",
    f"Tasks that were solved, and then in {ATTEMPTS} or more attempts with at most {FALLEN:.0%} of the earlier success "
    f"rate, if the chance of that in any task is below {FORGOTTEN_CHANCE:.0%} at unchanged rates (corrected for the "
    "number of tasks and splits, and for groups that end alike). The step named is the one that splits a task's "
    "attempts best. A family "
    "that regressed as a whole is named in place of its tasks; and so is one that is solved at most "
    f"{PARTLY_FALLEN:.0%} as often as before, if it holds all tasks that regressed, if the rest of its tasks is "
    "solved less, too, and other families fell less beyond chance. Silent if the other tasks fell at least "
    f"{_LIKEWISE:.0%} as far, with a probability below {SURER:.1%} by chance, or if there are no others: that is no "
    "matter of a few.",
    _TASKS,
    _check_forgotten,
    source="ours; the number of attempts is verifiers'",
)
NEVER_SOLVED = check(
    "never_solved",
    "Never solved",
    f"Tasks that none of {ATTEMPTS} or more attempts solved, if the probability is below {UNSOLVED_CHANCE:.0%} that a "
    "task as hard as the hardest tenth of the solved tasks stays unsolved for so many attempts. All tasks that "
    f"none of so many solved, if they have {_MOST:.0%} of the last rollouts, if chance would leave at most a tenth of "
    f"equally hard tasks unsolved, and so many with a probability below {UNSOLVED_CHANCE:.0%}. In place of tasks an "
    "eval, a family or a value of a column (but of a level of difficulty) of which nothing is solved, if it has "
    f"{LEAST_UNITS} tasks or more and the probability by chance is below {SURER:.1%}, corrected for the number of "
    f"these (the {_PLACES} largest of one kind are looked at); with the error that half of its rollouts read "
    "and hardly any others. If no task at all is solved, they are shown only if the environment gives no rewards "
    "either. Silent if the reward depends on the prompt alone. Where most answers to half of the tasks "
    "agree, and not with the reference, the references are to be verified first.",
    _TASKS,
    _check_never,
    source="verifiers",
    limits=FROM_ONE,
)
TASK_MIX = check(
    "task_mix",
    "Task mix",
    "The change of the mean reward since the first steps, split into change within tasks and change of the mix; shown "
    f"if the mix caused at least {_SHIFT:.0%} of the lost reward, at least {_LEAST:.0%} of the range of rewards, and "
    f"{_ERRORS:g} times the standard error of drawing as many tasks at random. Only tasks of both the first and the "
    f"last steps are compared; or families or evals with {LEAST_UNITS} groups on both sides, if tasks do not come "
    "again. If these common tasks have less than "
    f"{_SHIFT:.0%} of the rollouts of the first or of the last steps, new tasks are looked at: shown if they have at "
    f"least {_SHIFT:.0%} of the last rollouts, and a mean reward that is lower by {_LEAST:.0%} of the range, with a "
    f"probability below {_CHANCE:.0%} of that by chance, if most tasks come again, and unless the reward rises in the "
    "tasks that successive parts of the run share.",
    _TASKS,
    _check_mix,
    source="ours, with Kitagawa's decomposition",
)
