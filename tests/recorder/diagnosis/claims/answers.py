"""Counts for what is said of final answers and their references."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from statistics import fmean

import orjson

from logs_ui.recorder.diagnosis.wording import figure, listed, percent
from tests.faults.runs import Rollout
from tests.recorder.diagnosis.claims.case import (
    ANSWER,
    Case,
    Count,
    about,
    given,
    in_groups,
    place_in,
    recounted,
    reward,
    right,
    spread_of,
    target,
    task,
    tasks,
    valued,
)


def paid_within_groups(case: Case, *_: str) -> tuple[str, ...]:
    """Weights each group by what it tells of the difference: right times wrong, over all."""
    told = list[tuple[float, float, float]]()
    for group in case.groups:
        paid, unpaid = (
            [float(reward(it) or 0.0) for it in group if (given(it) == right(it)) is side] for side in (True, False)
        )
        if paid and unpaid:
            told.append((len(paid) * len(unpaid) / len(group), fmean(paid), fmean(unpaid)))
    whole = sum(weight for weight, *_ in told)
    means_of_sides = [sum(weight * side[i] for weight, *side in told) / whole for i in (0, 1)]
    assert ("hardly" if means_of_sides[0] > means_of_sides[1] else "no") in case.card.title
    return *map(figure, means_of_sides), str(len(told))


def of_kind(case: Case, *, is_same: bool = True) -> list[Rollout]:
    """Return the rollouts of tasks that the generator made unmatched, or the others."""
    unmatched = {task(it) for it in case.run.rollouts if it.is_hit}
    return [it for it in case.run.rollouts if (task(it) in unmatched) is is_same]


def named_references(case: Case, _: str, text: str) -> tuple[str, ...]:
    given = list(dict.fromkeys(str(target(it)) for it in of_kind(case)))
    return "metadata.answer", listed(given[:3])


def answers_that_hold(case: Case, *groups: str) -> tuple[str, ...]:
    """Return of how many answers a sample must hold the reference: right ones hold a number, or are of a few words."""
    sides = [[it for it in of_kind(case, is_same=it_is) if not case.solved(it)] for it_is in (True, False)]
    shares = [
        fmean(bool(re.search(r"answer is .*\d", it.turns[-1].text)) or given(it) == right(it) for it in side)
        for side in sides
    ]
    mine, others = (about(groups[at + 1], groups[at], share) for at, share in zip((0, 2), shares, strict=True))
    return mine[1], mine[0], others[1], others[0] if int(groups[3]) > 3 else groups[3]


def written(it: Rollout) -> str:
    """Return an answer as it is written."""
    match = re.search(ANSWER, it.turns[-1].text)
    return str(next(filter(None, match.groups()))) if match else ""


def lacks_reference(it: Rollout) -> bool:
    return not target(it).strip()


def in_form(case: Case) -> list[Rollout]:
    """Return the rollouts with a right answer in the form that the card names."""
    title = case.card.title
    if "answers such as" in title:
        return [it for it in case.last if re.search(" h |\u266d", written(it))]
    if " count in " in title or "LaTeX" in title or "has \\" in title:
        return [it for it in case.last if it.is_hit and given(it) == right(it)]
    forms = {
        "thousands separator": r"\d,\d{3}",
        "unit": r"\d \w",
        "decimals": r"\d\.\d",
        "AM or PM": "[AP]M",
        "date in words": "[a-z] ",
        "is a fraction": "/",
    }
    forms["minus sign"] = "\u2212"
    around = re.search("\u201c(.*)\u201d|in bold", title)
    if around:
        return [it for it in case.last if given(it) == right(it) and (around[1] or "**") in it.turns[-1].text]
    form = next(pattern for name, pattern in forms.items() if name in title)
    return [it for it in case.last if given(it) == right(it) and re.search(form, written(it))]


def counted_before(case: Case, step: str) -> tuple[str, ...]:
    """Return how many of those right answers of all steps that were read and came before a step count."""
    early, case.last = case.last, [it for it in spread_of(case) if it.step < int(step)]
    mine, case.last = in_form(case), early
    return step, str(len(mine)), str(sum(map(case.solved, mine)))


def shown(case: Case) -> list[str]:
    """Return the answers in the form that the card names."""
    is_bold = "in bold" in case.card.title
    return [f"**{written(it).strip('*')}**" if is_bold else written(it) for it in in_form(case)]


def inside(case: Case, place: str) -> list[list[Rollout]]:
    """Return the groups of a value of a column, or of a family."""
    return [it for it in case.groups if place_in(place)(it[0]) == place]


def refused_in(case: Case, _right: str, _all: str, place: str) -> tuple[str, ...]:
    mine = [it for group in inside(case, place) for it in group if given(it) == right(it)]
    return str(sum(map(case.solved, mine))), str(len(mine)), place


def most_frequent(groups: list[list[Rollout]]) -> list[tuple[str, str]]:
    """Return the answer that more rollouts of a group give than any other, and the reference."""
    ranked = [(Counter(map(given, group)).most_common(2), right(group[0])) for group in groups]
    return [(it[0][0], of) for it, of in ranked if len(it) < 2 or it[0][1] > it[1][1]]


def compared_in(case: Case, place: str) -> list[list[Rollout]]:
    """Return the groups of a place whose answers are compared: of one that comes seldom, the newest of all steps."""
    if not any(it.startswith("Few of these") for it in case.card.evidence):
        return inside(case, place)
    return [it for it in in_groups(case.run.rollouts) if place_in(place)(it[0]) == place][-20:]


def newest_in(case: Case, place: str, *_: str) -> tuple[str, ...]:
    steps = [group[0].step for group in compared_in(case, place)]
    return place, str(len(steps)), str(min(steps)), str(max(steps))


def mistaken(case: Case, place: str, *_: str) -> tuple[str, ...]:
    """Return of how many groups of a place, and of others, the most frequent answer is not the reference."""
    mine, others = compared_in(case, place), [group for group in case.groups if place_in(place)(group[0]) != place]
    sides = [most_frequent(mine), most_frequent(others)]
    return place, *(str(it) for side in sides for it in (sum(a != b for a, b in side), len(side)))


def relabelled(case: Case, place: str, *_: str) -> tuple[str, ...]:
    """Return of how many groups of a place the most frequent answer is the letter after the reference, and of how many
    others it is the reference.
    """
    there = place_in(place)
    mine, others = (
        most_frequent([it for it in case.groups if (there(it[0]) == place) is side]) for side in (True, False)
    )
    shifted = sum("abcda".find(b + a) >= 0 for a, b in mine)
    return place, str(shifted), str(len(mine)), str(sum(a == b for a, b in others)), str(len(others))


def counted(case: Case, *groups: str) -> tuple[str, ...]:
    mine = in_form(case)
    return str(sum(map(case.solved, mine))), str(len(mine)), groups[2]


def of_shape(case: Case, _hits: str, _all: str, text: str, _others: str) -> tuple[str, ...]:
    """Return how many answers with hours count, of all that have them, and the share of others in their groups."""
    mine = in_form(case)
    beside = [it for group in case.groups if any(it in mine for it in group) for it in group if it not in mine]
    shown = text if text in map(written, mine) else ""
    return str(sum(map(case.solved, mine))), str(len(mine)), shown, percent(fmean(map(case.solved, beside)))


def otherwise_counted(case: Case, *_: str) -> tuple[str | None, ...]:
    mine = in_form(case)
    others = [it for it in case.last if given(it) == right(it) and it not in mine]
    same = [it for it in others if (it.step, it.group) in {(one.step, one.group) for one in mine}]
    counts = (str(sum(map(case.solved, same))), str(len(same))) if same else (None, None)
    return percent(fmean(map(case.solved, others))), *counts


@cache
def references(case: Case) -> set[str]:
    return {right(it) for it in case.last if is_compared(it)}


def is_compared(it: Rollout) -> bool:
    return bool({"answer", "closing_balance", "species"} & set(it.metadata))


def candidates(it: Rollout) -> set[str]:
    return {valued(text) for text in re.split(", | / | or ", written(it))}


def lists_several(it: Rollout) -> bool:
    return len(candidates(it)) > 1 and right(it) in candidates(it)


def is_fragment(it: Rollout) -> bool:
    return given(it) in right(it) and 2 * len(given(it)) <= len(right(it))


def counted_fragments(case: Case, part: str, whole: str) -> tuple[str, str]:
    fifth = [it for it in case.run.rollouts if is_compared(it)][: len(case.run.rollouts) // 5]
    return about(part, whole, fmean(is_fragment(it) and case.solved(it) for it in fifth))


def such_answers(case: Case, text: str, *_: str) -> tuple[str, ...]:
    is_such = lists_several if "several candidates" in case.card.title else is_fragment
    if not re.search("several candidates|small part", case.card.title):
        return recounted(text, {it: it for it in dict.fromkeys(shown(case))}), *_[:1]
    named = re.findall(r"(?:^|, )(.*?) \(for (.*?)\)", text)
    known = {(written(it), target(it)) for it in case.last if is_such(it) and case.solved(it)}
    is_right = known >= set(named) and text.endswith(f" and {len(known) - len(named)} more")
    return (text if is_right else str(known)), *_[:1]


def counted_over_time(case: Case, kind: str, *groups: str) -> tuple[str, ...]:
    """Return of how many right or wrong answers that were read those before a step count, and those since."""
    every = [it for it in case.run.rollouts if is_compared(it)]
    mine = [it for it in every if (given(it) == right(it) if kind == "right" else contradicts(case, it))]
    before, since = (
        fmean(case.solved(it) for it in mine if (it.step < (case.card.since_step or 0)) is side)
        for side in (True, False)
    )
    return kind, *about(groups[0], groups[1], before), *about(groups[2], groups[3], since)


def contradicts(case: Case, it: Rollout) -> bool:
    are_numbers = all(part[:1].isdigit() for part in (given(it), right(it)))
    return given(it) != right(it) and (are_numbers or given(it) in references(case))


def of_answers(case: Case, is_so: Callable[[Rollout], bool], *, counts: bool) -> tuple[str, str]:
    mine = [it for it in case.last if is_compared(it) and is_so(it)]
    return f"{sum(case.solved(it) is counts for it in mine):,}", f"{len(mine):,}"


def contradicted(case: Case, *_: str) -> tuple[str, str]:
    mine = [it for it in case.last if is_compared(it)]
    wrong = sum(contradicts(case, it) if case.solved(it) else given(it) == right(it) for it in mine)
    return f"{wrong:,}", f"{len(mine):,}"


def shared_verdicts(case: Case, *_: str) -> tuple[str, str, str, str]:
    groups = [[it for it in group if is_compared(it)] for group in case.groups]
    mixed = [group for group in groups if any(contradicts(case, it) for it in group)]
    mixed = [group for group in mixed if any(given(it) == right(it) for it in group)]
    solved = [[case.solved(it) for it in group] for group in mixed]
    every, none = sum(map(all, solved)), sum(not any(of) for of in solved)
    return str(every + none), str(len(mixed)), str(every), str(none)


def another_notation(case: Case, _count: str, shown: str, reference: str) -> tuple[str, str, str]:
    unpaid = [it for it in case.last if is_compared(it) and given(it) == right(it) and not case.solved(it)]
    others = {written(it): target(it) for it in unpaid if written(it) != target(it)}
    number = sum(written(it) != target(it) for it in unpaid)
    return str(number), shown if others.get(shown) == reference else "none", reference


@cache
def unanswered(case: Case) -> list[list[Rollout]]:
    return [it for it in case.groups if not any(case.solved(one) or given(one) == right(one) for one in it)]


def most_given(group: list[Rollout]) -> str | None:
    """Return the answer of more than half of a group."""
    texts = [given(it) for it in group]
    return next((it for it in texts if texts.count(it) > len(texts) / 2), None)


def swapped_groups(case: Case, *_: str) -> tuple[str, str, str]:
    known, none = {right(it) for it in case.run.rollouts}, unanswered(case)
    return str(sum(most_given(it) in known for it in none)), str(len(none)), str(len(case.groups))


def scattered_groups(case: Case, *_: str) -> tuple[str, str]:
    known, counts = {right(it) for it in case.run.rollouts}, [Counter(map(given, it)) for it in unanswered(case)]
    scattered = [answers.most_common(2) for answers in counts if 2 * max(answers.values()) <= answers.total()]
    likely = [first for (first, most), *rest in scattered if first in known and (not rest or rest[0][1] < most)]
    return str(len(scattered)), str(len(likely))


def swapped_examples(case: Case, text: str) -> tuple[str]:
    if "most frequent answer" in case.card.title:
        pairs_of = most_frequent(compared_in(case, case.card.title[len("In ") :].partition(" the most")[0]))
        examples = listed(list(dict.fromkeys(f"{a} (not {b})" for a, b in pairs_of if a != b)))
        return (text if text.lower() == examples else examples,)
    pairs = {(most_given(it), right(it[0])) for it in unanswered(case)}
    shown = re.findall(r"(?:^|, | and )(.*?) \(not (.*?)\)", text)
    return (text if len(shown) == 3 and pairs >= {(valued(a), valued(b)) for a, b in shown} else str(pairs),)


def by_other_mistakes(case: Case, _: str) -> tuple[str]:
    known, agreed = {right(it) for it in case.run.rollouts}, unanswered(case)
    common = {id(it) for group in agreed for it in group if given(it) == most_given(group)}
    rest = [it for it in case.last if given(it) != right(it) and id(it) not in common]
    return (percent(fmean(given(it) in known for it in rest)),)


@cache
def same_answer(case: Case) -> str:
    return Counter(map(given, case.last)).most_common(1)[0][0]


def early_answers(case: Case, part: str, whole: str) -> tuple[str, str]:
    first = case.run.rollouts[: len(case.run.rollouts) // 5]
    return about(part, whole, fmean(given(it) == same_answer(case) for it in first))


def near_answers(case: Case, *said: str) -> tuple[str, ...]:
    """Count the wrong numbers that count, and those of the same groups that do not: all within a share, and as near."""
    far = {id(it): abs(float(given(it)) / float(right(it)) - 1) for it in case.last}
    paid = [it for it in case.last if contradicts(case, it) and case.solved(it)]
    places = {(it.step, it.group) for it in paid}
    rest = [it for it in case.last if contradicts(case, it) and not case.solved(it) and (it.step, it.group) in places]
    most = max(far[id(it)] for it in paid)
    is_within = most <= float(said[1].rstrip("%")) / 100 <= most + 0.001
    as_near = sum(far[id(it)] <= most for it in rest)
    return f"{len(paid):,}", said[1] if is_within else str(most), f"{len(rest):,}", str(as_near)


def agreed_wrong(case: Case, rollouts: Iterable[Rollout]) -> list[str]:
    """Return for each task of which most answers agree, and not on the reference, these two; "" for other tasks."""
    pairs = [(most_given(mine), right(mine[0])) for mine in tasks(rollouts).values()]
    return [f"{a} (not {b})" if a not in {None, b} else "" for a, b in pairs]


def often_wrong(case: Case, place: str, *_: str) -> tuple[str, ...]:
    sides = ([it for it in case.last if (place_in(place)(it) == place) is side] for side in (True, False))
    found = [agreed_wrong(case, side) for side in sides]
    return place, *(str(it) for side in found for it in (sum(map(bool, side)), len(side)))


def often_wrong_since(case: Case, _wrong: str, _count: str, step: str, *_: str) -> tuple[str, ...]:
    place = place_in(case.card.title)
    there = [
        group for group in in_groups(case.run.rollouts) if place(group[0]) in case.card.title and most_given(group)
    ]
    sides = [[mine for mine in there if (mine[0].step >= int(step)) is late] for late in (False, True)]
    (wrong, before), late = ((str(sum(any(agreed_wrong(case, of)) for of in side)), str(len(side))) for side in sides)
    return wrong, before, step, *late


def fields_in_another_form(it: Rollout) -> dict[str, str]:
    """Return answer and reference of each field of a JSON answer that is written otherwise; none if a value differs."""
    reference = it.metadata["reference"]
    true = orjson.loads(reference) if isinstance(reference, str) else reference
    given = orjson.loads(re.findall(r"\{.*\}", it.turns[-1].text)[0])
    unlike = {name: f"{given.get(name)} (for {value})" for name, value in true.items() if given.get(name) != value}
    plain = {name: [re.sub(r"\W", "", str(of.get(name))).casefold() for of in (given, true)] for name in unlike}
    return unlike if all(a == b for a, b in plain.values()) else {}


def counted_fields(case: Case, _hits: str, _count: str, field: str, _share: str) -> tuple[str, ...]:
    mine = [it for it in case.last if field in fields_in_another_form(it)]
    solved = [case.solved(it) for it in case.last if it not in mine and "INV-2026" in it.turns[-1].text]
    return str(sum(map(case.solved, mine))), str(len(mine)), field, percent(fmean(solved))


COUNTS: dict[str, Count] = {
    "# of # answers count whose field # has another form than the reference's; of those that equal it # do": (
        counted_fields
    ),
    "# answers of the last steps are JSON objects, and were compared field by field.": lambda c, _: (str(len(c.last)),),
    "Such values: @.": lambda c, text: (
        recounted(text, {it.partition(" (")[0]: it for of in c.last for it in fields_in_another_form(of).values()}),
    ),
    "Right answers are paid {hardly|no} more than wrong ones: # and # within # groups": paid_within_groups,
    "# of # answers to the # tasks whose reference {has|is} @ count as right": lambda c, *g: (
        str(sum(map(c.solved, of_kind(c)))), str(len(of_kind(c))), str(len(tasks(of_kind(c)))), g[-1],
    ),
    "Of other tasks # do (@).": lambda c, *g: (percent(fmean(map(c.solved, of_kind(c, is_same=False)))), g[-1]),
    "References, as # has them: @.": named_references,
    "Of # of their answers that were read, # end with the reference, in some form; of # to other tasks that do not "
    "count, #.": answers_that_hold,
    "# that count are within # of their reference; of # wrong ones in the same groups that do not count, #.": (
        near_answers
    ),
    "# of # answers that contradict their reference count as right[.]": lambda c, *_: of_answers(
        c, lambda it: contradicts(c, it), counts=True
    ),
    "# of # answers that equal their reference do not count as right[.]": lambda c, *_: of_answers(
        c, lambda it: given(it) == right(it), counts=False
    ),
    "The verdicts on # of # final answers contradict their references": contradicted,
    "In # of # groups with right and wrong answers all that were read get one verdict: all count as right in #, none "
    "in #": (
        shared_verdicts
    ),
    "# of rollouts have an empty reference: # of # are solved": lambda c, *_: (
        percent(sum(lacks_reference(it) for it in c.last) / len(c.last)),
        str(sum(lacks_reference(it) and c.solved(it) for it in c.last)), str(sum(map(lacks_reference, c.last))),
    ),
    "Of those with a reference (answer), # are solved.": lambda c, *_: (
        percent(fmean(c.solved(it) for it in c.last if not lacks_reference(it))),
    ),
    "# of # right answers count where the answer @": counted,
    "Before step #: of # such answers that were read, # counted.": lambda c, step, *_: counted_before(c, step),
    "# of # answers such as \u201c@\u201d count; of others as long in their groups # do": of_shape,
    "# of # right answers count in @ where the answer has @": lambda c, _, __, place, form: (
        *counted(c, "", "", form)[:2], place_in(place)(in_form(c)[0]), form,
    ),
    "# of # right answers count in @": refused_in,
    "Of the right answers elsewhere, # count.": lambda c, _: (
        percent(fmean(c.solved(it) for it in c.last if given(it) == right(it) and not it.is_hit)),
    ),
    "In @ the most frequent answer of # of # groups is another label than the reference, the same for each; elsewhere "
    "it is the reference of # of #": relabelled,
    "In @ the most frequent answer of # of # groups is not the reference; elsewhere of # of #": mistaken,
    "Few of these are in @, so its newest # groups were read, of steps # to #.": newest_in,
    "Such answers: @[.]": such_answers,
    "Of the right answers that are written otherwise[, or elsewhere], # count"
    "[; of those in the same groups, # of #].": otherwise_counted,
    "# final answers of the last steps were read, and compared with the column @.": (
        lambda c, _, name: (str(sum(map(is_compared, c.last))), name if name in c.last[0].metadata else "")
    ),
    "# of # answers that list several candidates, one of them their reference, count as right": lambda c, *_: (
        of_answers(c, lists_several, counts=True)
    ),
    "# of # answers that are a small part of their reference count as right": lambda c, *_: (
        of_answers(c, is_fragment, counts=True)
    ),
    "In the first fifth of the run # of # that were read were so, and counted.": counted_fragments,
    "# of them equal their reference.": lambda c, _: (percent(fmean(given(it) == right(it) for it in c.last)),),
    "Of the answers that count as right, # equal their reference.": lambda c, _: (
        percent(fmean(given(it) == right(it) for it in c.last if c.solved(it))),
    ),
    "Of # answers of all steps that were read, # of # counted before, and # of # since.": counted_over_time,
    "# equal their reference; # are another number, or another task's reference; # could not be "
    "compared.": lambda c, *_: (
        str(sum(given(it) == right(it) for it in c.last if is_compared(it))),
        str(sum(contradicts(c, it) for it in c.last if is_compared(it))),
        str(sum(given(it) != right(it) and not contradicts(c, it) for it in c.last if is_compared(it))),
    ),
    "Of the right ones that do not count, # are written otherwise than the reference: @ for @.": another_notation,
    "In # of the # groups without a right answer among # that were read, most answers give another task's reference": (
        swapped_groups
    ),
    "Of # without a majority answer, # give such a reference most often.": scattered_groups,
    "Answers of these groups: @.": swapped_examples,
    "Of other wrong answers, # are another task's reference.": by_other_mistakes,
    "# of the answers are \u201c@\u201d, whatever is asked": lambda c, *_: (
        c.share(lambda it: given(it) == same_answer(c)), same_answer(c),
    ),
    "It is the reference of # of these rollouts; # of those that give it are solved.": lambda c, *_: (
        c.share(lambda it: right(it) == same_answer(c)),
        percent(fmean(c.solved(it) for it in c.last if given(it) == same_answer(c))),
    ),
    "In the first fifth of the run # of # answers that were read were this one.": early_answers,
    "In @ most answers to # of # tasks agree on another one than the reference; elsewhere to # of #": often_wrong,
    "Of the groups there that were read and agree on an answer, # of # agree on another than the reference before step "
    "#, # of # since.": often_wrong_since,
    "Answers to these tasks: @.": lambda c, text: (
        recounted(text, {it.partition(" (")[0]: it for it in filter(None, agreed_wrong(c, c.last))}),
    ),
}  # fmt: skip
