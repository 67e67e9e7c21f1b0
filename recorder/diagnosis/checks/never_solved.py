"""Finds tasks that are never solved, and places in which nothing is solved."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.answers import LAST_LINE, final_answer
from logs_ui.recorder.diagnosis.card import SOLVED_UNDEFINED, Below, Card, NotJudged, Outcome, Run, check, needs
from logs_ui.recorder.diagnosis.checks.never_matches import holds, plain, reference_column
from logs_ui.recorder.diagnosis.checks.reward_variance import follows_prompt
from logs_ui.recorder.diagnosis.contrast import SURER
from logs_ui.recorder.diagnosis.error_lines import list_errors
from logs_ui.recorder.diagnosis.mean_difference import LEAST_UNITS, compare
from logs_ui.recorder.diagnosis.measures import extent, mean, tried
from logs_ui.recorder.diagnosis.outcome import DIFFICULTY
from logs_ui.recorder.diagnosis.places import MACHINE, columns_of
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Ints, distinct
from logs_ui.recorder.diagnosis.tables.tasks import (
    ATTEMPTS,
    UNSOLVED_CHANCE,
    Label,
    are_beyond_chance,
    expect_unsolved,
    labels,
)
from logs_ui.recorder.diagnosis.wording import list_places, listed, percent
from logs_ui.recorder.settings import FROM_ONE
from logs_ui.recorder.vocabulary import Lack, LossCause

_READ, _TASKS_READ, _ANSWERS, _AGREE = 800, 40, 5, 0.6  # answers; tasks; answers of one; of these, that agree [ours]
_LENGTH = 60  # characters of an answer that is quoted
_MOST = 0.5  # of the last rollouts are of tasks that are never solved [ours]
_HEARD, _HARDLY = 32, 0.1  # rollouts whose observations are read; of the others that have the same error [ours]
_PLACES = 8  # of one kind, with the most rollouts, that are compared [ours]
_VERIFY = "Verify these references by hand first: the model may be right."


class _Place(NamedTuple):
    """Values of a filter's `field` of which no rollout was solved."""

    field: str
    names: list[str]
    inside: Bools  # (N,) of all steps


def never_solved(run: Run) -> Bools:
    """Return (T,) True for tasks that none of many attempts over the whole run solved."""
    is_never: Bools = labels(run.all, run.scale, run.settings).label == Label.NEVER
    return is_never


def _check_never(run: Run) -> Outcome:
    if not run.scale.success.is_defined:
        return SOLVED_UNDEFINED
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
    mine, others = (Counter(line for texts in side for line in list_errors(texts)) for side in sides)
    line, count = next(iter(mine.most_common(1)), ("", 0))
    if not line or count < len(sides[0]) / 2 or others[line] > _HARDLY * len(sides[1]):
        return []
    said = f"In {count} of {len(sides[0])} of them that were read, and {others[line]} of {len(sides[1])} others"
    return [f"{said}, an observation says \u201c{line[:_LENGTH]}\u201d."]


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
    needs("tasks", lambda run: run.rows.task >= 0),
    _check_never,
    source="verifiers",
    limits=FROM_ONE,
)
