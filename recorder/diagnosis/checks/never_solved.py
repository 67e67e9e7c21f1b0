"""Finds tasks that are never solved, and places in which nothing, or hardly anything, is solved."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from logs_ui.recorder.diagnosis import links
from logs_ui.recorder.diagnosis.answers import LAST_LINE, final_answer
from logs_ui.recorder.diagnosis.card import SOLVED_UNDEFINED, Below, Card, NotJudged, Outcome, Run, Texts, check, needs
from logs_ui.recorder.diagnosis.checks.reward_variance import follows_prompt
from logs_ui.recorder.diagnosis.contrast import SURER, shift
from logs_ui.recorder.diagnosis.error_lines import list_cuts, list_errors
from logs_ui.recorder.diagnosis.mean_difference import LEAST_UNITS, compare, is_beyond_chance
from logs_ui.recorder.diagnosis.measures import extent, mean, tried
from logs_ui.recorder.diagnosis.outcome import DIFFICULTY
from logs_ui.recorder.diagnosis.places import MACHINE, list_kinds
from logs_ui.recorder.diagnosis.references import holds, plain, reference_column
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Floats, Ints, distinct
from logs_ui.recorder.diagnosis.tables.tasks import (
    ATTEMPTS,
    UNSOLVED_CHANCE,
    Label,
    are_beyond_chance,
    expect_unsolved,
    labels,
)
from logs_ui.recorder.diagnosis.wording import exact_percent, kind_of, list_places, listed, percent
from logs_ui.recorder.settings import FROM_ONE
from logs_ui.recorder.vocabulary import Lack, LossCause

_READ, _TASKS_READ, _ANSWERS, _AGREE = 800, 40, 5, 0.6  # answers; tasks; answers of one; of these, that agree [ours]
_LENGTH = 60  # characters of an answer that is quoted
_MOST = 0.5  # of the last rollouts are of tasks that are never solved [ours]
_HEARD = 32  # rollouts of either side whose observations are read
_HALF, _HARDLY = 0.5, 0.1  # of these, that have the same line; of the others, at most [ours]
_WORDS = "of them that were read", "others"
_PLACES = 8  # of one kind, with the most rollouts, that are compared [ours]
_NEARLY_ALL, _NUMBER = 0.9, re.compile(r"-?\d{1,15}(?:\.\d{1,15})?")  # of their rollouts have such a level [ours]
_FEW = 0.25  # of the last rollouts: a run that improves has so many of tasks that are too hard [ours]
_RARELY = 0.1  # of the share that is solved elsewhere: hardly anything is solved [ours]
_VERIFY = "Verify these references by hand first: the model may be right."


class _Place(NamedTuple):
    """Values of a filter's `field` of which no rollout was solved, or hardly any."""

    field: str
    names: list[str]
    inside: Bools  # (N,) of all steps
    error: str  # a sentence on what its observations say; "" for none


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
    place = _find_place(run, 0.0) or _find_place(run, _RARELY)
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
        why = "which may be hard tasks that had too few attempts"
        if hopeless.any():
            why = f"{hopeless.sum():,} of them beyond chance, of which the last steps have none"
        rest = f", {why}" if unsolved.any() else ""
        return Below(f"Of {often:,} tasks with {least}+ attempts, {unsolved.sum():,} never solved{rest}.")
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
        cost=run.cost_of(LossCause.WRONG_ANSWER) if hopeless.all() else cost_beside(run, affected),
        evidence=(
            (
                f"{listed(names)}: none of {attempts} attempts over the whole run solved it "
                f"({run.scale.success.description})."
            ),
            *[f"If all tasks were equally hard, chance would leave {by_chance} unsolved."] * bool(by_chance),
            _describe_extent(affected),
            *more,
            *_describe_levels(run, np.isin(run.all.task, np.flatnonzero(hopeless))),
            *(agreed := _name_agreed(run, hopeless)),
        ),
        suggestion=_VERIFY
        if agreed
        else f"Drop {'it' if len(names) == 1 else 'them'}, start with easier tasks (curriculum), or verify by "
        f"hand that {'it is' if len(names) == 1 else 'they are'} solvable.",
        where=links.tasks(names),
        own=affected,
        may_remain=not agreed and bool(affected.mean() <= _FEW),  # they may be hard
    )


def cost_beside(run: Run, own: Bools) -> float:
    """Return what the (N,) rollouts of the last steps lose more than the others, per rollout of these steps."""
    others = float(run.lost[~own].mean()) if (~own).any() else 0.0
    return float(max(run.lost[own].mean() - others, 0.0) * own.mean())


def _describe_extent(own: Bools) -> str:
    return f"{int(own.sum())} attempts are in the last steps: {percent(float(own.mean()))} of the rollouts there."


def _describe_levels(run: Run, hopeless: Bools) -> list[str]:
    """Return a sentence on the level of difficulty from which on nothing is solved, if nearly all of the `hopeless`
    rollouts, (N,) of all steps, have it; none if there is none.
    """
    won = run.scale.success.solved(run.all)
    for field, names, codes in list_kinds(run):
        if not DIFFICULTY.search(field) or not all(_NUMBER.fullmatch(name) for name in names):
            continue
        level = np.array([*map(float, names), -np.inf])[codes]  # a code of -1 is the last
        best = level[won].max(initial=-np.inf)
        beyond = level > best
        if beyond.any() and best > -np.inf and (beyond & hopeless).sum() >= _NEARLY_ALL * hopeless.sum():
            first, share = float(level[beyond].min()), percent(float(won[~beyond & (level > -np.inf)].mean()))
            return [f"Of {field} {first:g} and more no rollout was solved, of lower ones {share} were."]
    return []


def _count_unsure(unsolved: Bools, hopeless: Bools, where: str = "") -> list[str]:
    count = int((unsolved & ~hopeless).sum())
    were = "was" if count == 1 else "were"
    return [f"{count:,} more{where} {were} not solved, in so few attempts that it may be chance."] * (count > 0)


def _find_place(run: Run, most: float) -> _Place | None:
    """Return the evals, families of tasks or values of a column of the dataset that have several tasks, occur in the
    last steps, and of which nothing was solved (or at most the share `most` of what is solved elsewhere, if that does
    not rise, and observations say what may be why), beyond chance: those of one kind, with the most rollouts, and of
    these the largest.
    """
    rows, is_tried = run.all, tried(run.all, run.scale)
    won = np.where(is_tried, run.scale.success.outcomes(rows), np.nan)
    fails, is_last = 1 - (mean(won) or 0.0), rows.step >= run.rows.steps[0]
    if fails == 1:
        return None
    candidates, compared = list[tuple[str, Sequence[str], Ints, Ints, int]](), 0
    for field, names, codes in list_kinds(run):
        # A machine is judged by worse_place, and hard tasks are no fault.
        if MACHINE.search(field) or DIFFICULTY.search(field):
            continue
        of = is_tried & (codes >= 0)
        has_several = distinct(codes[of], rows.task[of], count=len(names)) >= LEAST_UNITS
        compared += int(has_several.sum())
        tries, wins, last = (
            np.bincount(codes[among], weights, len(names))
            for among, weights in ((of, None), (of, won[of]), (is_last & (codes >= 0), None))
        )
        elsewhere = (np.nansum(won) - wins) / np.maximum(is_tried.sum() - tries, 1)
        is_low = (wins <= most * elsewhere * tries) & (fails**tries <= SURER)
        unsolved = np.flatnonzero(has_several & is_low & (last > 0))
        largest = unsolved[np.argsort(-tries[unsolved], kind="stable")][:_PLACES]
        candidates.append((field, names, codes, np.sort(largest), int(tries[unsolved].sum())))
    for field, names, codes, largest, _ in sorted(candidates, key=lambda candidate: -candidate[-1]):
        differences = [(code, compare(won, codes == code, rows.task)) for code in largest.tolist()]
        sure = [code for code, difference in differences if is_beyond_chance(difference, SURER / compared)]
        if most:
            sure = [code for code in sure if _is_hindered(run, codes == code, won)]
        inside = np.isin(codes, sure)
        _, error = quote_line(run, inside, ~inside) if sure else ("", "")
        if sure and (error or not most):
            return _Place(field, [names[code] for code in sure], inside, error)
    return None


def _is_hindered(run: Run, inside: Bools, won: Floats) -> bool:
    """Return True if the (N,) outcomes `inside` do not rise, and an observation says why, which most others can."""
    late = run.all.step > np.median(run.all.steps)
    rise = shift(np.where(inside, won, np.nan), late, run.all.group)
    can_hear = (run.all.facts["env_steps"][~inside] > 0).mean() >= _HALF
    return not (rise.is_sure and rise.value > 0) and can_hear and quote_line(run, inside, ~inside) != ("", "")


def _make_place_card(run: Run, place: _Place, own: Bools, unsolved: Bools, hopeless: Bools) -> Card:
    """Return the card of a place; (T,) `unsolved` and `hopeless` are tasks elsewhere."""
    rows, text = run.all, list_places(place.names, place.field if place.field != "family" else "")
    of = place.inside & tried(rows, run.scale)
    rest = mean(np.where(place.inside | ~tried(rows, run.scale), np.nan, run.scale.success.outcomes(rows))) or 0.0
    others = [rows.tasks[task] for task in np.flatnonzero(hopeless).tolist()]
    is_there = np.isin(np.arange(len(rows.tasks)), rows.task[of])
    agreed, share = _name_agreed(run, is_there), float(run.scale.success.solved(rows)[of].mean())
    return Card(
        id="never_solved",
        title=f"{exact_percent(share) if share else 'None'} of the {of.sum():,} rollouts of {text} ({is_there.sum():,} "
        f"tasks) {'were' if share else 'was'} solved; elsewhere {percent(rest)} were",
        cost=cost_beside(run, own),
        evidence=(
            f"Solved: {run.scale.success.description}.",
            *[place.error] * bool(place.error),
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
        may_remain=not place.error,  # they may be hard
    )  # fmt: skip


def quote_line(
    run: Run, mine: Bools, others: Bools, key: Callable[[str], str] = kind_of, words: tuple[str, str] = _WORDS,
    least: float = _HALF,
) -> tuple[str, str]:  # fmt: skip
    """Return what observations of the share `least` of the (N,) rollouts `mine` say of an error, or of what was cut,
    and of hardly any `others`: its key, which lines alike share, and a sentence, in which `words` name both sides;
    ("", "") for none.
    """
    sides = [
        [{key(line): line for line in _list_lines(texts)} for texts in run.sample(of, _HEARD).values()]
        for of in (mine, others)
    ]
    counts, rest = (Counter(kind for lines in side for kind in lines) for side in sides)
    kinds = [kind for kind in sorted(counts) if rest[kind] <= _HARDLY * len(sides[1])]
    kind = max(kinds, key=counts.__getitem__, default="")
    if not kind or counts[kind] < least * len(sides[0]):
        return "", ""
    lines = [lines[kind] for lines in sides[0] if kind in lines]
    shares = f"In {counts[kind]} of {len(sides[0])} {words[0]}, and {rest[kind]} of {len(sides[1])} {words[1]}"
    return kind, f"{shares}, the environment says \u201c{lines[0]}\u201d{', or the like' * (len(set(lines)) > 1)}."


def _list_lines(texts: Texts) -> list[str]:
    """Return what observations say of an error, without signs before it, or of what was cut, in order."""
    return sorted({line.strip()[:_LENGTH] for line in list_errors(texts) | list_cuts(texts)})


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
    f"these (the {_PLACES} largest of one kind are looked at); with the error, or the notice that something was cut, "
    "that half of its rollouts read and hardly any others. With such a line, a place is named also if the share solved "
    f"there is at most {_RARELY:.0%} of that elsewhere, as surely, and does not rise in the second half of the steps. "
    "If no task at all is solved, they are shown only if the environment gives no rewards either. Silent if the reward "
    "depends on the prompt alone. Where most answers to half of the tasks agree, and not with the reference, the "
    "references are to be verified first.",
    needs("tasks", lambda run: run.rows.task >= 0),
    _check_never,
    source="verifiers",
    limits=FROM_ONE,
)
