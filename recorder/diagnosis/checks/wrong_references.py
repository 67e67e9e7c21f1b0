"""Finds references that are wrong: groups agree on another answer, in one place or on another task's reference."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from logs_ui.recorder.diagnosis import contrast
from logs_ui.recorder.diagnosis.card import Card, Run, Texts
from logs_ui.recorder.diagnosis.change_point import above
from logs_ui.recorder.diagnosis.compared_answers import (
    AGREE,
    CHANCE,
    ENOUGH,
    GROUPS,
    OTHERS,
    Answers,
    Parts,
    choose_rows,
    extent,
    read_answers,
    tail,
    tell_reading,
)  # fmt: skip
from logs_ui.recorder.diagnosis.outcome import DIFFICULTY
from logs_ui.recorder.diagnosis.references import holds, plain
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Ints, distinct, means
from logs_ui.recorder.diagnosis.wording import listed, percent

_SELDOM, _PLACES = 20, 3  # groups that a place has read at least; places of which more are read [ours]
_LESS = 0.5  # as often solved as the run: of no other places more is read [ours]
_HARDLY = 0.05  # of the groups of a place give most often their reference [ours]
_SOLVED = 0.3  # of the first half of these tasks' attempts: then their references are right [ours]
_LABELS, _OF_EACH = (3, 8), 3  # different references, from and to; groups of each, on average [ours]
_MANY, _RARE = 0.4, 0.05  # of the tasks of a place agree on another answer; of the tasks elsewhere [ours]

_SINCE = (
    "Look first at what changed there at this step: what the tools return, the prompt, the references; else the policy "
    "learned this answer."
)

DEFINITION = (
    f"In at least half of the groups without a right answer, and in {ENOUGH} or more, more than {AGREE:.0%} of the "
    "rollouts give one answer, which is another task's reference; the probability of that is below "
    f"{CHANCE:.0%}, given how often other wrong answers are another task's reference. Or "
    f"in at least {ENOUGH} groups of such a place the most frequent answer of a group is the reference in at most "
    f"{_HARDLY:.0%}, and elsewhere in at least {OTHERS:.0%}; with a probability below {CHANCE:.0%}, corrected for "
    "the number of places, of so few by chance, if answers had nothing to do with references. Where most answers and "
    f"references differ, most rollouts must agree in {OTHERS:.0%} of the groups, and so few be improbable if they "
    f"were as often right as elsewhere. If fewer than {_SELDOM} groups of a place are among those that are read, and "
    f"its share of solved rollouts in the last or in all steps is at most {_LESS:.0%} of the run's, its newest "
    f"{_SELDOM} groups of all steps are read and compared likewise; so are at most {_PLACES} such places, those with "
    "the lowest shares. "
    f"Or, of references with {_LABELS[0]} to {_LABELS[1]} different values, in at least {AGREE:.0%} of the groups of "
    f"a place ({_OF_EACH} for each value) the most frequent answer is the same other value for each reference, another "
    f"one for each, and elsewhere in at least {OTHERS:.0%} the reference, with a probability below {CHANCE:.0%}, "
    "corrected likewise. "
    f"Or, if none is so, most answers to at least {_MANY:.0%} of its tasks, and {ENOUGH}, agree on another one than "
    f"the reference, and elsewhere to at most {_RARE:.0%}, with a probability below {CHANCE:.0%}, corrected likewise; "
    f"and they agree on any answer {OTHERS:.0%} as often as elsewhere, since answers to hard tasks scatter. "
    f"Levels of difficulty are no places here, and a place is left out if {_SOLVED:.0%} of the first half of "
    f"the attempts at these tasks were solved. {GROUPS} groups of the place, of all steps, say since when."
)


def find_shuffled(run: Run, answers: Answers) -> Card | None:
    """Return the card if groups without a right answer agree on the reference of another task."""
    group: Ints = np.unique(answers.rows.group, return_inverse=True)[1]
    unsolved = [
        number for number in range(int(group.max()) + 1) if not (answers.solved | answers.equal)[group == number].any()
    ]
    most = _find_most_frequent(answers, group)
    agreed = {number: most[number][0] for number in unsolved if number in most and most[number][1]}
    if len(agreed) < max(ENOUGH, AGREE * len(unsolved)):
        return None
    references = {plain(reference) for reference in set(run.labels_of_all[answers.column]) if reference is not None}
    swapped = [number for number, answer in agreed.items() if answer in references]
    is_agreed = np.array([answers.answer[row] == agreed.get(int(group[row])) for row in range(len(group))], bool)
    # Wrong answers on which no group agrees show how often one is another task's reference by chance.
    others = ~answers.equal & ~is_agreed
    by_chance = float(answers.is_another(references)[others].mean()) if others.any() else 0.0
    is_varied = len({agreed[number] for number in swapped}) > len(swapped) / 2  # and not one answer to all
    chance = tail(len(swapped), len(agreed), by_chance)
    if len(swapped) < max(ENOUGH, AGREE * len(unsolved)) or chance > CHANCE or not is_varied:
        return None
    scattered = [number for number in unsolved if number not in agreed]
    likely = [number for number in scattered if number in most and most[number][0] in references]
    affected = np.isin(group, swapped + likely)
    examples = [_quote(answers, group == number, agreed[number]) for number in swapped[:3]]
    groups = f"the {len(unsolved):,} groups without a right answer among {int(group.max()) + 1:,} that were read"
    title = f"In {len(swapped):,} of {groups}, most answers give another task's reference"
    return Card(
        id="final_answers",
        title=title,
        cost=contrast.spread(run) * float(affected.mean()),
        evidence=(
            tell_reading(answers),
            f"Answers of these groups: {listed(examples)}.",
            f"Of other wrong answers, {percent(by_chance)} are another task's reference.",
            *[f"Of {len(scattered):,} without a majority answer, {len(likely):,} give such a reference most often."]
            * bool(scattered),
        ),
        suggestion="Check the dataset: references may stand beside other tasks than their own, as after a shuffle or a "
        "join of one column.",
        **extent(run, answers.rows, affected),
        is_setup=True,
        is_loss=False,
        is_least=True,
    )


def compare_places(run: Run, parts: Parts, answers: Answers, places: list[tuple[str, Bools]]) -> Card | None:
    """Return the card if the most frequent answer of a group is hardly ever the reference in one place, and nearly
    always elsewhere.
    """
    return _find_in_places(run, parts, answers, places, len(places))


def compare_seldom_places(
    run: Run, parts: Parts, answers: Answers, texts: dict[int, Texts], places: int
) -> Card | None:
    """Return the same card for a place that has few groups among the answers, and is seldom solved in the last steps,
    by its newest groups of all steps. `places`: how many were compared already.
    """
    won, group = run.scale.success.solved(run.all), run.all.group
    is_last, is_read = (np.isin(run.all.id, rows.id) for rows in (run.rows, answers.rows))
    seldom = list[tuple[float, int, str, Ints, int]]()
    for names, codes in parts:
        has_place, is_there = is_read & (codes >= 0), codes >= 0
        groups, every = (distinct(codes[of], group[of], count=len(names)) for of in (has_place, is_there))
        # Few rollouts of the last steps may do well by chance: those of all steps count, too.
        shares = (
            means(codes[is_there & of], won[is_there & of], len(names)) / won[of].mean() for of in (is_last, won >= 0)
        )
        share = np.minimum(*shares)
        few = np.flatnonzero((every >= ENOUGH) & (groups < _SELDOM) & (share <= _LESS)).tolist()
        seldom += [(share[code], -groups[code], names[code], codes, code) for code in few]
    for _, _, name, codes, code in sorted(seldom, key=lambda place: place[:2])[:_PLACES]:
        inside = codes == code
        newest = list(dict.fromkeys(group[inside][::-1].tolist()))[:_SELDOM]
        chosen = inside & np.isin(group, newest)
        more = read_answers(run, run.all.where(chosen | (is_read & ~inside)), answers.column, texts)
        of = np.isin(more.rows.id, run.all.id[chosen])
        card, steps = _find_in_places(run, parts, more, [(name, of)], places + _PLACES), run.all.step[chosen]
        if card is not None:
            weight = float(inside[is_last].mean() / of.mean())  # of the place more was read than of others
            read = f"Few of these are in {name}, so its newest {len(newest)} groups were read, of steps"
            return replace(
                card,
                cost=(card.cost or 0.0) * weight,
                share=card.share and card.share * weight,
                evidence=(tell_reading(answers), f"{read} {steps[0]:,} to {steps[-1]:,}.", *card.evidence[1:]),
            )
    return None


def _find_in_places(
    run: Run, parts: Parts, answers: Answers, places: list[tuple[str, Bools]], count: int
) -> Card | None:
    """Return the card if the most frequent answer of a group is hardly ever the reference in one place, and nearly
    always elsewhere. `count`: of places that are compared.
    """
    group: Ints = np.unique(answers.rows.group, return_inverse=True)[1]
    most, first = _find_most_frequent(answers, group), np.unique(group, return_index=True)[1]
    answer = {number: text for number, (text, _) in most.items()}
    reference = {number: answers.reference[first[number]] for number in most}
    for name, of in places:
        mine, others = ([number for number in most if of[first[number]] == side] for side in (True, False))
        hits, others_hits = (sum(answer[number] == reference[number] for number in side) for side in (mine, others))
        if len(mine) < ENOUGH or hits > _HARDLY * len(mine) or others_hits < max(OTHERS * len(others), ENOUGH):
            continue
        # Of letters and labels some are right by chance, so that it tells something if none is. Of answers that could
        # be anything none may be, and it is their agreement that tells.
        answers_by_text, references_by_text = (
            Counter(texts[number] for number in mine) for texts in (answer, reference)
        )
        pairs_alike = sum(count * references_by_text[text] for text, count in answers_by_text.items())
        share = pairs_alike / len(mine) ** 2
        if 2 * min(len(answers_by_text), len(references_by_text)) > len(mine):
            agreeing = sum(most[number][1] for number in mine)
            share = others_hits / len(others) if agreeing >= OTHERS * len(np.unique(group[of])) else 0.0
        if (1 - tail(hits + 1, len(mine), share)) * count > CHANCE:
            continue
        wrong = [number for number in mine if answer[number] != reference[number]]
        affected = np.isin(group, wrong)
        if _were_solved(run, answers, affected):
            continue
        since, before = _find_begin(run, answers, parts, of)
        pairs = dict.fromkeys(_quote(answers, group == number, answer[number]) for number in wrong)
        return Card(
            id="final_answers",
            title=f"In {name} the most frequent answer of {len(wrong):,} of {len(mine):,} groups is not the "
            f"reference; elsewhere of {len(others) - others_hits:,} of {len(others):,}",
            cost=contrast.spread(run) * float(affected.mean()),
            evidence=(tell_reading(answers), f"Answers of these groups: {listed(list(pairs))}.", *before),
            suggestion=_SINCE
            if before
            else "Verify these references by hand first: the model may be right, and they may be shifted, "
            "inverted or in another unit.",
            **extent(run, answers.rows, affected),
            **since,
            is_setup=True,
            is_loss=False,
        )
    return _find_relabelled(run, answers, places, count) or _find_often_wrong(run, parts, answers, places, count)


def _find_relabelled(run: Run, answers: Answers, places: list[tuple[str, Bools]], count: int) -> Card | None:
    """Return the card if in one place each label of the references stands for another one, and elsewhere for itself.
    `count`: of places that are compared.
    """
    labels: set[str] = {*answers.reference}
    if not _LABELS[0] <= len(labels) <= _LABELS[1]:
        return None
    group: Ints = np.unique(answers.rows.group, return_inverse=True)[1]
    most, first = _find_most_frequent(answers, group), np.unique(group, return_index=True)[1]
    pairs = {number: (answers.reference[first[number]], answer) for number, (answer, _) in most.items()}
    for name, of in places:
        mine, others = ([pair for number, pair in pairs.items() if of[first[number]] == side] for side in (True, False))
        usual = {
            label: Counter(answer for reference, answer in mine if reference == label).most_common(1)[0][0]
            for label in {reference for reference, _ in mine}
        }
        is_other = all(label != answer for label, answer in usual.items()) and len({*usual.values()}) == len(usual)
        right = sum(reference == answer for reference, answer in others)
        if len(usual) < _LABELS[0] or not is_other or right < max(OTHERS * len(others), ENOUGH):
            continue
        chosen = [number for number, (label, answer) in pairs.items() if of[first[number]] and usual[label] == answer]
        is_sure = tail(len(chosen), len(mine), 1 / len(labels)) * count <= CHANCE
        if len(mine) < _OF_EACH * len(usual) or len(chosen) < AGREE * len(mine) or not is_sure:
            continue
        gives_usual = [usual.get(reference) == answer for reference, answer in answers.pairs]
        affected = np.isin(group, chosen) & gives_usual
        examples = dict.fromkeys(_quote(answers, group == number, most[number][0]) for number in chosen)
        return Card(
            id="final_answers",
            title=f"In {name} the most frequent answer of {len(chosen):,} of {len(mine):,} groups is another label "
            f"than the reference, the same for each; elsewhere it is the reference of {right:,} of {len(others):,}",
            cost=contrast.spread(run) * float(affected.mean()),
            evidence=(tell_reading(answers), f"Answers of these groups: {listed(list(examples))}."),
            suggestion="Verify these references by hand: their labels may be shifted, as where one side counts from 0 "
            "and the other from 1, or be in another order.",
            **extent(run, answers.rows, affected),
            is_setup=True,
            is_loss=False,
        )
    return None


def _find_often_wrong(
    run: Run, parts: Parts, answers: Answers, places: list[tuple[str, Bools]], count: int
) -> Card | None:
    """Return the card if in many tasks of a place most answers agree on another one than the reference, elsewhere in
    hardly any, and answers there agree as often. `count`: of places that are compared.
    """
    rows, best = answers.rows, (0, "", (0, 0, 0), np.zeros(0, bool))
    task: Ints = np.unique(np.where(rows.task < 0, len(rows.tasks) + rows.group, rows.task), return_inverse=True)[1]
    most, first = _find_most_frequent(answers, task), np.unique(task, return_index=True)[1]
    agrees, is_wrong = _find_agreed(answers, task, most)
    for name, of in places:
        inside = of[first]
        wrong, tasks, others, elsewhere = (
            int(side.sum()) for side in (is_wrong & inside, inside, is_wrong & ~inside, ~inside)
        )
        is_varied = 2 * len({most[number][0] for number in np.flatnonzero(is_wrong & inside).tolist()}) > wrong
        if wrong < max(ENOUGH, _MANY * tasks, best[0] + 1) or elsewhere < ENOUGH or others > _RARE * elsewhere:
            continue
        is_scattered = agrees[inside].mean() < OTHERS * agrees[~inside].mean() or DIFFICULTY.search(name)
        is_varied &= not _were_solved(run, answers, (is_wrong & inside)[task])
        if is_varied and not is_scattered and tail(wrong, tasks, (others + 0.5) / (elsewhere + 1)) * count <= CHANCE:
            best = wrong, name, (tasks, others, elsewhere), is_wrong & inside
    wrong, name, (tasks, others, elsewhere), chosen = best
    if not wrong:
        return None
    examples = [_quote(answers, task == number, most[number][0]) for number in np.flatnonzero(chosen).tolist()]
    since, before = _find_begin(run, answers, parts, of)
    return Card(
        id="final_answers",
        title=f"In {name} most answers to {wrong:,} of {tasks:,} tasks agree on another one than the reference; "
        f"elsewhere to {others:,} of {elsewhere:,}",
        cost=contrast.spread(run) * float(chosen[task].mean()),
        evidence=(tell_reading(answers), f"Answers to these tasks: {listed(examples)}.", *before),
        suggestion=_SINCE
        if before
        else "Verify these references by hand first: the model may be right, or these tasks may be harder, and "
        "most rollouts make the same mistake.",
        **extent(run, answers.rows, np.asarray(chosen[task], bool)),
        **since,
        is_loss=False,
        is_least=True,
    )


def _find_agreed(answers: Answers, task: Ints, most: dict[int, tuple[str, bool]]) -> tuple[Bools, Bools]:
    """Return two columns by the task's code: True if most answers agree, and if they agree on another one than the
    reference, of which neither holds the other.
    """
    agrees = np.array([most.get(number, ("", False))[1] for number in range(int(task.max(initial=-1)) + 1)], bool)
    is_wrong = agrees.copy()
    for number in np.flatnonzero(agrees).tolist():
        row = next(row for row in np.flatnonzero(task == number) if answers.answer[row] == most[number][0])
        answer, target = answers.written[row], answers.target[row]
        is_wrong[number] = not (answers.equal[row] or holds(answer, target) or holds(target, answer))
    return agrees, is_wrong


def _find_begin(run: Run, answers: Answers, parts: Parts, of: Bools) -> tuple[dict[str, Any], list[str]]:
    """Return since when groups of a place agree on another answer than the reference, as fields of a card, and a
    sentence on those before; none if they always did, or ever more do, or too few groups of before were read. `of` is
    (M) True for the answers of the place.
    """
    is_read = np.isin(run.all.id, answers.rows.id)
    there = next(
        codes == code
        for _, codes in parts
        for code in np.unique(codes[is_read][of]).tolist()
        if np.array_equal(codes[is_read] == code, of)
    )
    answers = read_answers(run, choose_rows(run.all.where(there)), answers.column, {})
    group: Ints = np.unique(answers.rows.group, return_inverse=True)[1]
    agrees, is_wrong = _find_agreed(answers, group, _find_most_frequent(answers, group))
    rows, group = answers.rows.where(agrees[group]), group[agrees[group]]  # at first answers may scatter
    if not len(rows):
        return {}, []
    fields = above(rows.by_step(is_wrong[group].astype(float)), _MANY / 2)
    is_early = rows.step < (fields["since_step"] or 0)
    before, since = (np.unique(group[of]) for of in (is_early, ~is_early))
    wrong, wrong_since = (int(is_wrong[of].sum()) for of in (before, since))
    is_gradual = fields.get("half_step") is not None
    if is_gradual or len(before) < ENOUGH or wrong / len(before) > wrong_since / len(since) / 2:
        return {}, []
    first = f"{wrong:,} of {len(before):,} agree on another than the reference before step {fields['since_step']:,}"
    later = f"{wrong_since:,} of {len(since):,} since"
    fields["measure"] = "groups that agree on another answer"
    return fields, [f"Of the groups there that were read and agree on an answer, {first}, {later}."]


def _were_solved(run: Run, answers: Answers, of: Bools) -> bool:
    """Return True if the first half of attempts at the tasks of these answers, with the references that they have now,
    solved them: then it is the answers that changed.
    """
    tasks_of = answers.rows.task.tolist()
    now = {(tasks_of[row], answers.reference[row]) for row in np.flatnonzero(of).tolist()}
    every = zip(run.all.task.tolist(), run.labels_of_all[answers.column], strict=True)
    tasks = {task for task, _ in now} - {-1}
    attempts = np.flatnonzero([task in tasks and (task, plain(text or "")) in now for task, text in every])
    first = run.all.where(np.isin(np.arange(len(run.all)), attempts[: len(attempts) // 2]))
    return len(first) > 0 and bool(run.scale.success.solved(first).mean() >= _SOLVED)


def _quote(answers: Answers, of: Bools, answer: str) -> str:
    """Return an answer and its reference as they are written in the first of these rollouts that gives it."""
    row = next(row for row in np.flatnonzero(of) if answers.answer[row] == answer)
    return f"{answers.written[row]} (not {answers.target[row]})"


def _find_most_frequent(answers: Answers, group: Ints) -> dict[int, tuple[str, bool]]:
    """Return the answer that more rollouts of a group give than any other, and whether most of two or more do, by the
    group's code.
    """
    most = dict[int, tuple[str, bool]]()
    for number in range(int(group.max(initial=-1)) + 1):
        mine = np.flatnonzero(group == number)
        (answer, count), *others = Counter(answers.answer[row] for row in mine).most_common(2)
        if not others or others[0][1] < count:
            most[number] = answer, len(mine) > 1 and count > AGREE * len(mine)
    return most
