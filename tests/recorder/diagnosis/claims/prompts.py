"""Counts for what is said of prompts: the generator says which are hit, and what they lack is in their text."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from statistics import correlation, fmean
from typing import Any

from logs_ui.recorder.diagnosis.wording import figure, percent
from logs_ui.recorder.vocabulary import FIRST_PROMPT
from tests.faults.runs import Rollout
from tests.recorder.diagnosis.claims.case import (
    Case,
    Count,
    about,
    given,
    in_line,
    logged,
    loses_more,
    means,
    rewards,
    right,
    task,
    tasks,
)


def has_several_prompts(group: list[Rollout]) -> bool:
    return len({(it.task, it.tokens and tuple(it.tokens.prompt_ids.tolist())) for it in group}) > 1


def shares_prompt(case: Case) -> list[bool]:
    """Return of each rollout of the last steps whether rollouts of other tasks have its prompt."""
    of: dict[Any, set[str]] = defaultdict(set)
    for it in case.last:
        assert it.tokens is not None
        of[tuple(it.tokens.prompt_ids.tolist())].add(task(it))
    return [len(of[tuple(it.tokens.prompt_ids.tolist())]) > 1 for it in case.last if it.tokens is not None]


def on_machines(place: str | None) -> Callable[[Rollout], bool]:
    """Return what tells whether a rollout is of the machines that a title names; of all, if it names none."""
    if place is None:
        return lambda it: True
    column, names = place.removeprefix("metadata.").split(" ", 1)
    return lambda it: it.metadata[column] in re.split(", | and ", names)


def machines_of(case: Case) -> Callable[[Rollout], bool]:
    return on_machines((re.findall(r"^In (metadata.*?), \d", case.card.title) or [None])[0])


def equals_another(case: Case, it: Rollout, step: int) -> bool:
    return given(it) != right(it) and given(it) in {right(one) for one in case.run.rollouts if one.step == step}


def mixed(case: Case, rollouts: Iterable[Rollout], *, by_words: bool) -> tuple[str, str]:
    """Return how many completions match another task of their step, and of how many."""
    mine = [it for it in rollouts if by_words or given(it) != right(it)]
    hits = sum(it.is_hit if by_words else equals_another(case, it, it.step) for it in mine)
    return str(hits), str(len(mine))


def mixed_on(case: Case, place: str | None, *, by_words: bool) -> tuple[str | None, ...]:
    of = machines_of(case)
    return place, *mixed(case, filter(of, case.last), by_words=by_words)


def mixed_elsewhere(case: Case, *_: str) -> tuple[str, str]:
    of = machines_of(case)
    return mixed(case, (it for it in case.last if not of(it)), by_words="words" in case.card.title)


def mixed_before(case: Case, step: str, part: str, whole: str) -> tuple[str, ...]:
    mine = [it for it in filter(machines_of(case), case.run.rollouts) if it.step < (case.card.since_step or 0)]
    hits, of = mixed(case, mine, by_words="words" in case.card.title)
    return str(case.card.since_step), *about(part, whole, int(hits) / int(of))


def mixed_by_chance(case: Case, _: str) -> tuple[str]:
    steps = sorted({it.step for it in case.last})
    mine = [] if "words" in case.card.title else list(filter(machines_of(case), case.last))
    pairs = [(it, steps[(steps.index(it.step) + shift) % len(steps)]) for it in mine for shift in range(1, 5)]
    return (percent(fmean([0, *(equals_another(case, it, step) for it, step in pairs)])),)


def prompt_length(it: Rollout) -> str:
    assert it.tokens is not None
    return figure(len(it.tokens.prompt_ids))


def by_hit(case: Case) -> tuple[str, str]:
    """Return the mean rewards of the rollouts that suffer, and of the others."""
    mine, others = (means(rewards(it for it in case.last if it.is_hit is side)) for side in (True, False))
    return mine, others


def lacking(case: Case, _: str, said: str, label: str) -> tuple[str, ...]:
    """Return the share of rollouts whose prompt has the label with nothing behind it but what the title names."""
    name, value = (it.strip() for it in label.split(":"))
    texts = [re.sub(r" \([^()]*\):", ":", str(it.prompt[0]["content"])) for it in case.last]
    lines = [re.sub(r"[\s*]+", " ", text) for text in texts]
    ends = [value] if value else ["Question", "Your moves", "Summarise it", "What is it"]
    are_so = [any(f"{name}: {end}" in line for end in ends) for line in lines]
    assert are_so == [it.is_hit for it in case.last]
    return percent(fmean(are_so)), value or "nothing", label if said == (value or "nothing") else ""


def unsent(case: Case, role: str, text: str, *, is_whole: bool) -> tuple[str, ...]:
    """Return the share of those that are hit, whose message of that role holds the text in the dataset alone."""
    hits, begin = [it for it in case.last if it.is_hit], text.removesuffix("\u2026")
    assert all(begin in in_line(it.prompt, role) and begin not in in_line(it.sent or ()) for it in hits)
    assert any(in_line(it.sent or (), role) for it in hits) is not is_whole
    return case.share(lambda it: it.is_hit), role, text


def lacks_message(case: Case, _: str, role: str, text: str) -> tuple[str, ...]:
    """Return the share of those that are hit, whose first message of that role is not in what was sent."""
    hits, begin = [it for it in case.last if it.is_hit], text.removesuffix("\u2026")
    lost = [next(message["content"] for message in it.prompt if message["role"] == role) for it in hits]
    assert not any(of in in_line(it.sent or ()) for of, it in zip(lost, hits, strict=True))
    is_one = any(" ".join(of.split()).startswith(begin) for of in lost)
    return case.share(lambda it: it.is_hit), role, text if is_one else ""


def lacks_column(case: Case, _: str, name: str, text: str) -> tuple[str, ...]:
    """Return the share of those that are hit, in whose prompt the text of a column does not stand, as in others."""
    begin = text.removesuffix("\u2026")
    for it in case.last:
        value = it.metadata["dataset"][name]
        assert it.is_hit is not any(value in str(message["content"]) for message in it.prompt)
    is_one = any(it.metadata["dataset"][name].startswith(begin) for it in case.last if it.is_hit)
    return case.share(lambda it: it.is_hit), name, text if is_one else ""


def sent_whole(case: Case, of_message: Callable[[Mapping[str, Any]], bool]) -> tuple[str, ...]:
    """Return how many have such a message: of those that are hit, and of the others."""
    sides = [[it for it in case.run.rollouts if it.is_hit is side] for side in (True, False)]
    have = [sum(any(map(of_message, it.sent or ())) for it in side) * 32 / len(side) for side in sides]
    return f"{have[0]:g}", "32", f"{have[1]:g}", "32"


def correlated(case: Case, place: str | None, *_: str) -> tuple[str | None, ...]:
    """Return the mean correlation of advantages and rewards over the groups that are hit, and over the others."""
    sides: dict[bool, list[float]] = {True: [], False: []}
    for group in case.groups:
        pairs = [rewards(group), [it.advantage for it in group if it.advantage is not None]]
        if len(set(pairs[0])) > 1 and len(set(pairs[1])) > 1:
            sides[group[0].is_hit].append(correlation(*pairs))
    mine, others = (figure(fmean(side)) if side else None for side in (sides[True], sides[False]))
    return place, mine, others


COUNTS: dict[str, Count] = {
    "[In @ ]{a|A}dvantages hardly follow the rewards of their groups: correlation #[; elsewhere #]": correlated,
    "Means over # groups; 1 where an advantage is the reward less the mean of its group.": lambda c, _: (
        str(sum(len(set(rewards(group))) > 1 for group in c.groups if group[0].is_hit)),
    ),
    "# of groups mix different prompts": lambda c, _: (percent(fmean(map(has_several_prompts, c.groups))),),
    "# groups of up to # rollouts hold more than one prompt or task.": lambda c, *_: (
        str(sum(map(has_several_prompts, c.groups))), str(max(map(len, c.groups))),
    ),
    "In # of groups, rollouts of one task have different prompts": lambda c, _: (
        percent(fmean(map(has_several_prompts, c.groups))),
    ),
    "# of rollouts are trained on an answer to another rollout's prompt": lambda c, _: (
        percent(logged(c, FIRST_PROMPT)),
    ),
    "# of rollouts answer a prompt that several tasks share": lambda c, _: (percent(fmean(shares_prompt(c))),),
    "# rollouts answer a prompt that several tasks share: it can be that of one of them at most.": lambda c, _: (
        str(sum(shares_prompt(c))),
    ),
    "[In @, ]# of # wrong answers equal the reference of another task of their step[.]": lambda c, place, *_: (
        mixed_on(c, place, by_words=False)
    ),
    "[In @, ]# of # completions have more words of another prompt of their step than of their own[.]": (
        lambda c, place, *_: mixed_on(c, place, by_words=True)
    ),
    "Elsewhere: # of #.": mixed_elsewhere,
    "Before step #: # of # that were read there.": mixed_before,
    "With tasks of other steps in their place, # of the rollouts would match another.": mixed_by_chance,
    "# of rollouts are not sent one of the dataset's # messages (such as \u201c@\u201d)": lacks_message,
    "Of their prompts that were read, # of # lack a whole message, and have nothing in its place; the others have all "
    "messages.": lambda *_: ("32", "32"),
    "# of rollouts are not sent the dataset's # message (\u201c@\u201d)": lambda c, _, *it: (
        unsent(c, *it, is_whole=True)
    ),
    "# of rollouts are not sent a line of the dataset's # message (\u201c@\u201d)": lambda c, _, *it: (
        unsent(c, *it, is_whole=False)
    ),
    "Of their prompts that were read, # of # have a system message; of those of others, # of # do.": lambda c, *_: (
        sent_whole(c, lambda it: it["role"] == "system")
    ),
    "Of their prompts that were read, # of # hold this line; of those of others, # of # do.": lambda c, *_: (
        sent_whole(c, lambda it: "\nEnd with a line" in it["content"])
    ),
    "Each loses # more on average than {others at the same tasks|other rollouts}.": lambda c, _: (
        figure(loses_more(c, c.card.than)),
    ),
    "# of prompts are cut at max_prompt_length (# tokens)": lambda c, *_: (
        c.share(lambda it: it.is_hit), figure(c.run.config["max_prompt_length"]),
    ),
    "# of prompts have exactly # tokens, none has more: they seem to be cut": lambda c, *_: (
        c.share(lambda it: it.is_hit), figure(max(len(it.tokens.prompt_ids) for it in c.last if it.tokens)),
    ),
    "# of # prompts, of # tasks, have exactly # tokens; the longest other one has #.": lambda c, *_: (
        str(sum(it.is_hit for it in c.last)), str(len(c.last)), str(len(tasks(it for it in c.last if it.is_hit))),
        " or ".join({prompt_length(it) for it in c.last if it.is_hit}),
        figure(max(len(it.tokens.prompt_ids) for it in c.last if it.tokens and not it.is_hit)),
    ),
    "Mean reward: cut #, others #.": lambda c, *_: by_hit(c),
    "In # of rollouts the message before the model begins is empty": lambda c, _: (c.share(lambda it: it.is_hit),),
    "In # of rollouts the prompt lacks the dataset's # (\u201c@\u201d)": lacks_column,
    "Of # prompts that were read and have a #, each of another group, # hold its beginning, and # do not.": (
        lambda c, _, name, *__: (str(len(c.groups)), name, str(sum(not group[0].is_hit for group in c.groups)),
        str(sum(group[0].is_hit for group in c.groups)))
    ),
    "Mean reward: without it #, others #.": lambda c, *_: by_hit(c),
    "In # of rollouts the prompt says @ where a value belongs (\u201c@\u201d)": lacking,
    "Of # prompts that were read, each of another group, # say so.": lambda c, *_: (
        str(len(c.groups)), str(sum(group[0].is_hit for group in c.groups)),
    ),
    "# of the others have a value there.": lambda c, _: (str(sum(not group[0].is_hit for group in c.groups)),),
    "Mean reward: with{ it|out one} #, others #.": lambda c, *_: by_hit(c),
    "In # of rollouts the prompt names a #, and holds only text": lambda c, _, name: (
        c.share(lambda it: name in it.prompt[0]["content"]), name,
    ),
    "Of # prompts that were read, each of another group, # do so; # that name one hold an image, audio or video.": (
        lambda c, *_: (
            str(len(c.groups)), *(str(sum(group[0].is_hit is side for group in c.groups)) for side in (True, False)),
        )
    ),
}  # fmt: skip
