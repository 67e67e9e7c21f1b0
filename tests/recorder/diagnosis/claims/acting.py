"""Counts for what is said of actions, of observations and of failed calls."""

import re
from collections import Counter
from statistics import fmean, median
from typing import Any

import pytest

from logs_ui.recorder.diagnosis.wording import figure, percent
from tests.faults.runs import Rollout, Turn
from tests.recorder.diagnosis.claims.case import (
    Case,
    Count,
    about,
    actions,
    error,
    errors,
    failed,
    grouped,
    is_cut,
    is_looping,
    kind_read,
    kinds_read,
    recounted,
    sample,
    short,
    tasks,
    told,
    values,
)


def affected(case: Case, text: str) -> tuple[str, ...]:
    every, broken = tasks(case.last), tasks(it for it in case.last if failed(it))
    return (recounted(text, {name: f"{name} ({len(broken[name])} of {len(every[name])})" for name in broken}),)


def errors_read(case: Case, _: str, name: str, __: str, message: str) -> tuple[str, ...]:
    """Return what a sample must have where each rollout has one error, of one kind."""
    known = [turn.error for it in case.last if not error(it) for turn in it.turns if turn.error]
    read = str(min(32, len(known)))
    return read, name, read, message if f"{name}: {message}" in known else ""


def unparsed(it: Rollout) -> int:
    return sum(turn.action is None and turn.finish != "length" for turn in it.turns)


def streak(it: Rollout) -> int:
    return max(map(len, "".join("x" if turn.action is None else " " for turn in it.turns).split()), default=0)


def unsaid(turn: Turn) -> bool:
    return turn.action is not None and spoken(turn) not in turn.text


def spoken(turn: Turn) -> str:
    """Return an action as an answer writes it."""
    return str(next(iter(turn.action.values())) if isinstance(turn.action, dict) else turn.action)


def turns(case: Case) -> list[Turn]:
    return [turn for it in case.last for turn in it.turns]


def without_room(it: Rollout) -> bool:
    return it.stop == "length" and it.turns[-1].action is not None


def heard_last(case: Case, _count: str, _read: str, name: str, *_: str) -> tuple[str, ...]:
    read = sample([it for it in case.last if without_room(it)], 20)
    called = [action["name"] if isinstance(action := it.turns[-1].action, dict) else action for it in read]
    last, earlier = ([len(turn.observation.strip()) for it in read for turn in it.turns[of]] for of in PARTS)
    return str(called.count(name)), str(len(read)), name, figure(median(last)), figure(median(earlier))


PARTS = (slice(-1, None), slice(-1))


def writes(it: Rollout, line: str) -> bool:
    """Return whether a rollout says a line, which may be cut, and hears nothing like that."""
    spoken, told = (" ".join(text.split()) for text in ("\n".join(t.text for t in it.turns), str(it.prompt)))
    return line in spoken and line not in told


def without_numbers(text: str) -> str:
    return " ".join(word for word in text.split() if not re.search(r"\d", word) or word.strip("(),.:") == "0")


def hears(it: Rollout, quoted: str, *, most: bool = False) -> bool:
    """Return whether a rollout hears a text that is like it but for numbers, or hears hardly anything else."""
    like = [hears_turn(turn, quoted) for turn in it.turns if turn.action]
    return any(like) if not most else sum(like) > len(like) / 2


def heard_by(case: Case, quoted: str, *groups: str, most: bool = False) -> tuple[str, ...]:
    before = [it for it in case.run.rollouts if it.step < int(groups[-1])]
    shares = (percent(fmean(hears(it, quoted, most=most) for it in of)) for of in (case.last, before))
    every = (told(turn.observation) for it in case.run.rollouts for turn in it.turns)
    is_heard = any(text.endswith(quoted[1:]) if quoted.startswith("\u2026") else text == quoted for text in every)
    return quoted if is_heard else "", *shares, groups[-1]


def heard_by_kinds(case: Case, quoted: str, *groups: str) -> tuple[str, ...]:
    """Return the same of observations that all hold a text, which more kinds have behind other words."""
    heard = [told(turn.observation) for it in case.run.rollouts for turn in it.turns if hears_turn(turn, quoted)]
    more = len({text.partition(quoted[:-1])[0] for text in heard}) - 1
    return quoted if heard else "", str(more), *heard_by(case, quoted, *groups[1:])[1:]


def read_of(case: Case, *groups: str) -> tuple[str, ...]:
    """Return of how many answers to these actions a sample must be about the same share as of all."""
    quoted = "".join(re.findall("\u201c(.*)\u201d", case.card.title))
    mine = [it for it, own in case.of_card() if own]
    before = case.steps(1, (case.card.since_step or 0) - 1)

    def is_so(it: Rollout, turn: Turn) -> bool:
        if "mostly one text" in case.card.title:
            return told(turn.observation) == unchanging(it)
        return hears_turn(turn, quoted)

    kinds = {kind(turn) for it in mine for turn in it.turns if turn.action and is_so(it, turn)}
    assert all(name.split(" \u2026")[0] in kinds for name in re.split(", | and (?!\\d)", groups[3].split(" and ")[0]))
    shares = [
        fmean(is_so(it, turn) for it in of for turn in it.turns if turn.action and kind(turn) in kinds)
        for of in (mine, before)
    ]
    now, then = (about(groups[at], groups[at + 1], share) for at, share in zip((1, 5), shares, strict=True))
    return groups[0], *now, groups[3], groups[4], *then


def kind(turn: Turn) -> str:
    """Return the kind of an action: its tool, or its only key and value."""
    return str(turn.action.get("name") or ": ".join(*turn.action.items()))


def unchanging(it: Rollout) -> str | None:
    """Return the text that is most of what a rollout hears."""
    heard = [told(turn.observation) for turn in it.turns if turn.observation is not None]
    text, times = Counter(heard).most_common(1)[0] if len(heard) > 2 else ("", 0)
    return text if 2 * times > len(heard) else None


def unchanged_of(case: Case, _now: str, _before: str, step: str) -> tuple[str, ...]:
    return *(
        percent(fmean(unchanging(it) is not None and not is_looping(it) for it in of))
        for of in (case.last, case.steps(1, int(step) - 1))
    ), step


def hears_turn(turn: Turn, quoted: str) -> bool:
    heard = told(turn.observation)
    if quoted.endswith("\u2026"):
        return quoted[:-1] in heard
    if quoted.startswith("\u2026"):
        return without_numbers(heard).endswith(without_numbers(quoted[1:]))
    return heard == quoted or (bool(quoted) and without_numbers(heard) == without_numbers(quoted))


def lose_within(case: Case, _: str, among: str) -> tuple[str, ...]:
    """Return how much more the card's rollouts lose than others of their groups, or than their tasks did before."""
    of = dict(zip(map(id, case.last), (own for _, own in case.of_card()), strict=True))
    pairs = [[[it for it in group if of[id(it)] is side] for side in (True, False)] for group in case.groups]
    if not among.startswith("others"):
        since, quoted = case.card.since_step or 0, "".join(re.findall("\u201c(.*)\u201d", case.card.title))
        heard = tasks(it for it in case.last if hears(it, quoted))
        before = tasks(it for it in case.run.rollouts if it.step < since)
        pairs = [[mine, before.get(name, [])] for name, mine in heard.items()]
        if column := re.findall(r"earlier rollouts with the same metadata\.(\S+)", among):
            sides = ([it for mine in side.values() for it in mine] for side in (heard, before))
            of_value = [
                {mine[0].metadata[column[0]]: mine for mine in grouped(side, lambda it: it.metadata[column[0]])}
                for side in sides
            ]
            pairs = [[mine, of_value[1].get(value, [])] for value, mine in of_value[0].items()]
        if among == "earlier rollouts of all tasks":
            pairs = [[[it for mine in side.values() for it in mine] for side in (heard, before)]]
    sums, whole = 0.0, 0.0
    for mine, others in pairs:
        if mine and others:
            weight = len(mine) * len(others) / (len(mine) + len(others))
            sums += weight * (fmean(short(case, it) for it in mine) - fmean(short(case, it) for it in others))
            whole += weight
    assert case.card.cost == pytest.approx(fmean(of.values()) * sums / whole), "of the same rollouts"
    return figure(sums / whole), among


def lacks_within(case: Case, name: str) -> str:
    """Return how much less of a function the card's rollouts get than others of their groups."""
    of = dict(zip(map(id, case.last), (own for _, own in case.of_card()), strict=True))
    sums, whole = 0.0, 0.0
    for group in case.groups:
        mine, others = ([it for it in group if of[id(it)] is side] for side in (True, False))
        if mine and others:
            weight = len(mine) * len(others) / len(group)
            sums += weight * (fmean(values(others, name)) - fmean(values(mine, name)))
            whole += weight
    return figure(sums / whole)


def last_answers(case: Case, *said: Any) -> tuple[Any, ...]:
    counts = kinds_read(it for it, is_own in case.of_card() if is_own)
    return str(counts.total()), *(it for kind in said[2::2] for it in (kind and str(counts[kind]), kind))


def refused_calls(case: Case, *said: str) -> tuple[str, ...]:
    """Count the refused calls of the tool that is told, and the executed calls of 200 rollouts."""
    refused = [it.turns[-1] for it in sample([it for it, is_own in case.of_card() if is_own], 200)]
    executed = [turn.action["name"] for it in sample(case.last, 200) for turn in it.turns if turn.action is not None]
    calls = sum(f'"name": "{said[2]}"' in turn.text and turn.action is None for turn in refused)
    return str(calls), str(len(refused)), said[2], f"{len(executed):,}", str(executed.count(said[2]))


def refused_tool(case: Case, tool: str | None) -> str | None:
    """Return the tool if most of the last answers of the card's rollouts call that, and were not executed."""
    last = [it.turns[-1] for it, is_own in case.of_card() if is_own]
    calls = sum(f'"name": "{tool}"' in turn.text and turn.action is None for turn in last)
    return tool and (tool if 2 * calls > len(last) else "none")


def unparsed_answers(case: Case, *said: str) -> tuple[str, ...]:
    """Return of how many answers without an action most are of the kind that is told: of 200 rollouts at most."""
    mine = [it for it, is_own in case.of_card() if is_own]
    texts = [turn.text for it in sample(mine, 200) for turn in it.turns[:-1] if turn.text and turn.action is None]
    return str(len(texts)), str(sum(kind_read(text) == said[2] for text in texts)), said[2]


def never_acting(case: Case, _: str) -> tuple[str, ...]:
    """Of an eval in which tasks without any action are no worse than the others of their steps."""
    return (case.share(lambda it: not actions(it)),)


COUNTS: dict[str, Count] = {
    "Of # that were read, # end with @[, # end with @][, # end with @].": last_answers,
    "Of # answers without an action that were read, # are @.": unparsed_answers,
    "The model writes observations itself in at least # of # rollouts": lambda c, *_: (
        c.share(lambda it: it.is_hit), f"{len(c.last):,}",
    ),
    "One writes: @": lambda c, line: (line if any(writes(it, line) for it in c.last if it.is_hit) else "",),
    "# of rollouts end because a tool's answer had no room": lambda c, *_: (c.share(without_room),),
    "In # of # rollouts the last answer is whole and gives an action.": lambda c, *_: (
        str(sum(map(without_room, c.last))), str(len(c.last)),
    ),
    "In # of # that were read, @ answered last; the last answers have # characters (median), earlier ones #.":
        heard_last,
    "# of rollouts failed with an environment error": lambda c, *_: (c.share(failed),),
    "# \u00d7#, such as: @.": errors,
    "In # of those with failed calls that were read: @ \u00d7#, such as: @.": errors_read,
    "Affected tasks: @.": affected,
    "# of rollouts never act in their environment": lambda c, _: (c.share(lambda it: not actions(it)),),
    "# of rollouts with {an environment never act in it|tools never call one}": never_acting,
    "No action is found in # of the model's answers[, mostly calls of #]": lambda c, _, tool: (
        percent(sum(map(unparsed, c.last)) / sum(len(it.turns) for it in c.last)), refused_tool(c, tool),
    ),
    "No action is found in the last answer of # of rollouts[, mostly calls of #]": lambda c, _, tool: (
        c.share(lambda it: it.turns[-1].action is None and not is_cut(it)), refused_tool(c, tool),
    ),
    "# of # such calls are of #; of # executed ones that were read, #.": refused_calls,
    "# of rollouts end with such an answer; # have 3+ in a row.": lambda c, *_: (
        c.share(lambda it: it.turns[-1].action is None and not is_cut(it)), c.share(lambda it: streak(it) >= 3),
    ),
    "In # of turns the answer lacks the action that was sent, such as `#`": lambda c, _, sent: (
        percent(fmean(map(unsaid, turns(c)))), sent if sent in map(spoken, filter(unsaid, turns(c))) else "",
    ),
    "# of all actions occur in the answer before them.": lambda c, _: (
        percent(fmean(not unsaid(turn) for turn in turns(c) if turn.action is not None)),
    ),
    "In # rollouts some calls raised, and rollouts with an error do worse than the others. Lost reward by "
    "cause counts them under what ended them, so costs overlap.": lambda c, _: (
        str(sum(failed(it) and not error(it) for it in c.last)),
    ),
    "\u201c@\u201d is answered to # of rollouts, # before step #": heard_by,
    "\u201c@\u201d (or one of # more) is answered to # of rollouts, # before step #": heard_by_kinds,
    "# of rollouts get mostly one text as observation, not all the same, # before step #": unchanged_of,
    "An empty text is answered to # of rollouts, # before step #": lambda c, *g: heard_by(c, "", *g)[1:],
    "\u201c@\u201d is most of what # of rollouts get as observations, # before step #": lambda c, *g: (
        heard_by(c, *g, most=True)
    ),
    "In # of them that were read, # of # answers to @ are so (equal actions count once); in # rollouts before, # of "
    "#.": read_of,
    "They lose # more than @.": lose_within,
    "Their mean # is # lower than that of others of their groups.": lambda c, name, _: (name, lacks_within(c, name)),
    "# of # rollouts are affected.": lambda c, *_: (
        str(sum(own for _, own in c.of_card())), str(len(c.last)),
    ),
}  # fmt: skip
