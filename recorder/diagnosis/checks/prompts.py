"""Finds prompts that lack what they should hold: cut at a limit of tokens, or without a value of the dataset's row."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

import numpy as np

from logs_ui.recorder.diagnosis import contrast, links
from logs_ui.recorder.diagnosis.answers import rank_of
from logs_ui.recorder.diagnosis.card import Below, Card, NotJudged, Outcome, Run, Texts, check, needs, quiet
from logs_ui.recorder.diagnosis.change_point import above
from logs_ui.recorder.diagnosis.mean_difference import LEAST_UNITS
from logs_ui.recorder.diagnosis.measures import mean
from logs_ui.recorder.diagnosis.places import evals_of, families_of
from logs_ui.recorder.diagnosis.prompt_changes import shorten
from logs_ui.recorder.diagnosis.prompt_fields import (
    NOTHING,
    PICTURE,
    is_unfilled,
    list_fields,
    list_lines_behind,
    list_pictures,
    prompt_of,
)
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Floats, Rows, distinct
from logs_ui.recorder.diagnosis.wording import figure, percent

_CUT = 0.05
_LENGTHS, _AS_OFTEN, _NEAR = 5, 0.5, 0.9  # of other prompts; of the tasks of the longest length; of that length
_PILE, _TASKS = 0.1, 10  # without a limit: of the rollouts, and tasks, that must have the longest length [ours]
_SHARE, _READ = 0.05, 120  # of the rollouts; prompts that are read, each of another group
_BEGIN, _TEXT, _WHOLE = 200, 20, 20_000  # characters of a column's text that are looked for; that it needs; of prompts
_LAST = "the message before the model begins"
_HALF, _LITTLE, _UNSOLVED = 0.5, 0.1, 0.05  # of what others reach: with a value there; without; of all [ours]


def _tokens(rows: Rows) -> Floats:
    return rows.facts.get("prompt_tokens", np.full(len(rows), np.nan))


def _check_cut(run: Run) -> Outcome:
    rows, limit, tokens = run.rows, run.threshold("cut_prompts", _CUT), _tokens(run.rows)
    longest, configured = float(np.nanmax(tokens)), run.config.get("max_prompt_length")
    cut, is_limit = tokens == longest, longest == configured
    share, count = float(cut.mean()), figure(longest)
    if cut.all() and not is_limit:
        return Below(f"All prompts have {count} tokens.")
    if share <= limit or contrast.is_fine(run, cut):
        return quiet(share, f"of prompts have the longest length, {count} tokens", limit)
    if _is_natural(rows, _NEAR * longest if is_limit else 0.0) or not (is_limit or _is_beyond_doubt(run, cut)):
        return Below(f"{percent(share)} of prompts have the longest length, {count} tokens: it may be their own.")
    others = tokens[~cut & np.isfinite(tokens)]
    of = f"of {len(np.unique(rows.task[cut])):,} tasks" if (rows.task[cut] >= 0).all() else "of any task"
    rest = f"; the longest other one has {figure(float(others.max()))}" if len(others) else ""
    rewards = [figure(mean(rows.reward[some])) for some in (cut, ~cut)]
    sentences = [f"{cut.sum():,} of {np.isfinite(tokens).sum():,} prompts, {of}, have exactly {count} tokens{rest}."]
    sentences += ["Mean reward: cut {}, others {}.".format(*rewards)] if not cut.all() else []
    shorten = "or shorten what the prompt holds."
    return Card(
        id="cut_prompts",
        title=f"{percent(share)} of prompts are cut at max_prompt_length ({count} tokens)"
        if is_limit
        else f"{percent(share)} of prompts have exactly {count} tokens, none has more: they seem to be cut",
        cost=contrast.cost(run, cut),
        evidence=tuple(sentences),
        suggestion=f"Raise max_prompt_length (now {count}), {shorten}"
        if is_limit
        else f"Find what cuts them, such as a limit of the server or of the tokenizer; raise it, {shorten}",
        where=links.selecting(rows.id, cut, {f"prompt_tokens:{longest:.0f}": cut}),
        **above(run.all.by_step(_tokens(run.all) == longest), limit),
        own=cut,
        is_setup=True,
    )


def _is_natural(rows: Rows, least: float) -> bool:
    """Return True if prompts have few lengths, as those of boards have, or if of the lengths from `least` on another
    one is half as frequent as the longest.
    """
    tokens = _tokens(rows)
    is_known = np.isfinite(tokens)
    lengths, code = np.unique(tokens[is_known], return_inverse=True)
    tasks = distinct(code.reshape(-1), rows.task[is_known], count=len(lengths))
    near = tasks[:-1][lengths[:-1] >= least]
    return 1 < len(lengths) <= _LENGTHS or int(near.max(initial=0)) >= max(2, _AS_OFTEN * int(tasks[-1]))


def _is_beyond_doubt(run: Run, cut: Bools) -> bool:
    """Return True if so many tasks cannot have the longest length by chance, and rollouts with it lose more."""
    more = contrast.shift(run.lost, cut, run.rows.group, chance=contrast.SURER)
    return (
        bool(cut.mean() >= _PILE)
        and len(np.unique(run.rows.task[cut])) >= _TASKS
        and not cut.all()
        and more.is_sure
        and more.value > 0
    )


def _check_unfilled(run: Run) -> Outcome:
    groups, first = np.unique(run.rows.group, return_index=True)
    read = run.sample(np.isin(run.all.id, run.rows.id[first]), _READ)
    group_of = dict(zip(run.rows.id.tolist(), run.rows.group.tolist(), strict=True))
    written = {group_of[row]: prompt_of(texts.messages) for row, texts in read.items()}
    fields_of = _empty_values({group: list_fields(text) for group, text in written.items()}, written)
    prompts = {
        group_of[row]: [*fields_of[group_of[row]], *_list_blank(texts), *list_pictures(texts.messages)]
        for row, texts in read.items()
    }
    if len(prompts) < min(LEAST_UNITS, len(groups)):
        return NotJudged("Too few texts of prompts are stored.")
    # `lacks` has the groups whose prompt lacks a value, by its label, by what stands there, and, where that is
    # nothing, by the label that follows: only prompts with both labels are of the same form. `has` has those with a
    # value.
    lacks, has = defaultdict[tuple[str, str, str], set[int]](set), defaultdict[str, set[int]](set)
    labels = {group: {label for label, _ in fields} for group, fields in prompts.items()}
    for group, fields in prompts.items():
        for (label, value), (following, _) in zip(fields, [*fields[1:], ("", None)], strict=False):
            if (is_so := is_unfilled(label, value)) is not None:
                (lacks[label, value or "", "" if value else following] if is_so else has[label]).add(group)
    part = replace(run, rows=run.rows.where(is_read := np.isin(run.rows.group, list(prompts))))
    group, limit = run.rows.group[is_read], run.threshold("unfilled_prompts", _SHARE)
    cards = list[Card]()
    for (label, value, following), groups_of in lacks.items():
        chosen = np.isin(group, list(groups_of))
        filled = {other for other in has[label] - groups_of if not following or following in labels[other]}
        has_others = len(filled) >= LEAST_UNITS
        if chosen.mean() > limit and (value or has_others) and _is_worse(part, chosen, value, has_others=has_others):
            cards.append(_unfilled_card(part, chosen, label, value, (len(prompts), len(groups_of), len(filled))))
    # A part has other numbers of groups.
    of_part = dict(zip(part.rows.id.tolist(), part.rows.group.tolist(), strict=True))
    cards += _list_lacking_columns(part, {of_part[row]: texts for row, texts in read.items()}, limit)
    best = max(cards, key=lambda card: card.cost or 0.0, default=None)
    if best is None:
        return Below(f"Of {len(prompts):,} prompts that were read, none lacks a value at a cost.")
    affected = np.isin(run.rows.id, part.rows.id[best.own])
    whole = affected if len(groups) <= _READ else _extend_to_places(run, affected, is_read)
    return replace(best, where=links.ids(run.rows.id[affected if whole is None else whole]), own=whole)


def _empty_values(
    fields_of: Mapping[int, list[tuple[str, str | None]]], written: Mapping[int, str]
) -> dict[int, list[tuple[str, str | None]]]:
    """Return the fields of each group's prompt, with nothing for a value that is missing: the next line of the prompt
    stands where the value should be. That is a line that comes after the value in most other prompts with this label.
    """
    behind = {group: list_lines_behind(text) for group, text in written.items()}
    having = defaultdict[str, dict[int, list[str]]](dict)
    for group, lines_of in behind.items():
        for label, lines in lines_of.items():
            having[label][group] = lines
    missing = set[tuple[str, str]]()
    for label, lines_by_group in having.items():
        firsts = Counter(lines[0] for lines in lines_by_group.values() if lines)
        for line, count in firsts.items():
            others = [lines for lines in lines_by_group.values() if lines and lines[0] != line]
            is_frequent = min(count, len(others)) >= LEAST_UNITS
            if line and is_frequent and sum(line in lines[1:] for lines in others) > _HALF * len(others):
                missing.add((label, line))
    return {
        group: [
            (label, "" if (label, value) in missing and behind[group].get(label, [])[:1] == [value] else value)
            for label, value in fields
        ]
        for group, fields in fields_of.items()
    }


def _lacks(prompt: str, text: str) -> bool:
    """Return True if a prompt has neither a text nor half of its words: else it may be written otherwise there."""
    words = set(text.split())
    return text not in prompt and len(words & set(prompt.split())) < _HALF * len(words)


def _list_blank(texts: Texts) -> list[tuple[str, str | None]]:
    """Return what the last message before the first answer holds, as a field: it may hold nothing."""
    before = list(takewhile(lambda message: message.get("role") != "assistant", texts.messages))
    return [(_LAST, prompt_of(before[-1:]).strip()[:_BEGIN])] if before else []


def _list_lacking_columns(run: Run, read: Mapping[int, Texts], limit: float) -> list[Card]:
    """Return the card on each column of the dataset whose text most prompts hold, and those of some groups do not.
    `read` has the texts of one rollout of each group. References may stand in the prompts of some tasks alone.
    """
    written = {group: prompt_of(texts.messages) for group, texts in read.items()}
    # Of a long one only both ends are read.
    prompts = {group: " ".join(text.split()) for group, text in written.items() if 0 < len(text) < _WHOLE}
    names = dict.fromkeys(name for texts in read.values() for name in texts.dataset if rank_of(name) is None)
    cards = list[Card]()
    for name in names:
        begins = {group: " ".join(texts.dataset.get(name, "").split())[:_BEGIN] for group, texts in read.items()}
        long = [group for group, begin in begins.items() if len(begin) >= _TEXT and group in prompts]
        others = sum(begins[group] in prompts[group] for group in long)
        lacking = [group for group in long if _lacks(prompts[group], begins[group])]
        chosen = np.isin(run.rows.group, lacking)
        if not lacking or others < max(LEAST_UNITS, len(lacking)) or chosen.mean() <= limit:
            continue
        if not _is_worse(run, chosen, "", has_others=True):
            continue
        means = [figure(mean(run.rows.reward[some])) for some in (chosen, ~chosen)]
        counts = f"{others:,} hold its beginning, and {len(lacking):,} do not"
        sentences = (
            f"Of {len(long):,} prompts that were read and have a {name}, each of another group, {counts}.",
            "Mean reward: without it {}, others {}.".format(*means),
        )
        title = f"In {percent(float(chosen.mean()))} of rollouts the prompt lacks the dataset's {name}"
        title += f" (\u201c{shorten(begins[lacking[0]])}\u201d)"
        advice = f"Look at how these prompts are built: a template may leave {name} out, or change its text."
        cards.append(_make_card(run, chosen, title, sentences, advice))
    return cards


def _extend_to_places(run: Run, affected: Bools, is_read: Bools) -> Bools | None:
    """Return (N,) True for rollouts of the families or evals of which all that were read are so, whether read or not;
    None if others are so, too.
    """
    for rows, _, _ in [*families_of(run), evals_of(run)]:
        of_place = [
            np.bincount(rows.task[some] + 1, minlength=len(rows.tasks) + 1) for some in (affected, is_read & ~affected)
        ]
        whole: Bools = ((of_place[0] > 0) & (of_place[1] == 0))[rows.task + 1]
        if whole[affected].all():
            return whole
    return None


def _is_worse(run: Run, chosen: Bools, value: str, *, has_others: bool) -> bool:
    """Return True if rollouts reach at most half of what the others do, beyond chance; a tenth, if no other prompt has
    a value there. If all are chosen: if hardly any is solved, and they hold no placeholder.
    """
    success, rows = run.scale.success, run.rows
    if chosen.all():
        return success.is_defined and value in NOTHING and success.solved(rows).mean() <= _UNSOLVED
    more = contrast.shift(run.lost, chosen, rows.group, chance=contrast.SURER)
    reached = success.outcomes(rows) if success.is_defined else rows.reward - np.nanmin(run.all.reward)
    mine, others = mean(reached[chosen]) or 0.0, mean(reached[~chosen]) or 0.0
    return more.is_sure and more.value > 0 and mine <= (_HALF if has_others else _LITTLE) * others


def _unfilled_card(run: Run, chosen: Bools, label: str, value: str, counts: tuple[int, int, int]) -> Card:
    read, lacking, filled = counts
    rewards = [figure(mean(run.rows.reward[some])) for some in (chosen, ~chosen)]
    sentences = [f"Of {read:,} prompts that were read, each of another group, {lacking:,} say so."]
    sentences += [f"{filled:,} of the others have a value there."] if filled else []
    sentences += ["Mean reward: with it {}, others {}.".format(*rewards)] if not chosen.all() else []
    line, share = f"{label}: {value}".strip(), percent(float(chosen.mean()))
    title = f"In {share} of rollouts the prompt says {value or 'nothing'} where a value belongs (\u201c{line}\u201d)"
    advice = (
        "Compare the names in the prompt's template with the dataset's columns, and look at rows of these tasks: the "
        "column may have another name, or be empty."
    )
    if label == _LAST:
        title = f"In {share} of rollouts {_LAST} is empty"
        advice = "Look at what writes it there: the dataset's row, the template, or what reset() returned."
    if label.startswith(PICTURE):
        word = label.removeprefix(PICTURE)
        title = f"In {share} of rollouts the prompt names a {word}, and holds only text"
        others = f"{filled:,} that name one hold an image, audio or video"
        sentences = [
            f"Of {read:,} prompts that were read, each of another group, {lacking:,} do so; {others}.",
            "Mean reward: without one {}, others {}.".format(*rewards),
        ]
        advice = f"Look at how these prompts are built: the file of the {word} may be missing, or of a kind that is "
        advice += "not loaded."
    return _make_card(run, chosen, title, sentences, advice)


def _make_card(run: Run, chosen: Bools, title: str, sentences: Sequence[str], advice: str) -> Card:
    return Card(
        id="unfilled_prompts",
        title=title,
        cost=contrast.cost(run, chosen),
        evidence=tuple(sentences),
        suggestion=advice,
        where="",
        own=chosen,
        is_setup=True,
        share=float(chosen.mean()),
    )


CUT = check(
    "cut_prompts",
    "Cut prompts",
    "Share of rollouts whose prompt has max_prompt_length tokens, the longest length of all, above "
    f"{_CUT:.0%}, unless they do as well as the others. Of another longest length, only if {_PILE:.0%} of the "
    f"rollouts and {_TASKS} tasks have it, and they lose more beyond chance. Silent if prompts have at most {_LENGTHS} "
    f"lengths, or another one (with a limit: within {1 - _NEAR:.0%} of it) has {_AS_OFTEN:.0%} as many tasks or more.",
    needs("prompt lengths", lambda run: np.isfinite(_tokens(run.rows)) & np.isfinite(run.rows.reward)),
    _check_cut,
)
UNFILLED = check(
    "unfilled_prompts",
    "Unfilled prompts",
    f"Share of rollouts above {_SHARE:.0%} whose prompt has, behind a label such as `Table:`, a heading or in a tag, "
    f"{', '.join(NOTHING)}, a placeholder in braces, or nothing where other prompts have a value (or where the next "
    "line of the prompt stands), or "
    f"whose last message is empty where others' is not, or which names a picture and holds only text where others that "
    "name one hold an image, audio or video. Only if they reach "
    f"at most {_HALF:.0%} of what the others do, beyond chance ({_LITTLE:.0%}, if no other prompt has a value there); "
    f"where all prompts are so, only if at most {_UNSOLVED:.0%} are solved. At most {_READ} prompts of the last steps "
    f"are read, each of another group. Likewise for prompts without the text ({_TEXT} characters or more) that a "
    "column of the dataset, other than the reference, has for them, if more prompts hold theirs. "
    "Labels behind which nothing may be right, or a form, such as `History:` or "
    "`Answer:`, do not count, nor does code between fences.",
    needs("a reward", lambda run: np.isfinite(run.rows.reward)),
    _check_unfilled,
)
