"""Reads final answers and the references that they are held against, in a plain form in which equal ones are equal."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import comb
from typing import Any

import numpy as np

from logs_ui.recorder.diagnosis.answers import LAST_LINE, Told, final_answer, last_text
from logs_ui.recorder.diagnosis.card import Run, Texts
from logs_ui.recorder.diagnosis.links import ids
from logs_ui.recorder.diagnosis.prompt_changes import prompt_of
from logs_ui.recorder.diagnosis.references import are_equal, bare, plain, reference_column
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Ints, Rows, distinct

GROUPS, SPREAD = 120, 300  # groups of the last steps, and rollouts of all steps, that are read [ours]
ENOUGH = 5  # groups or answers, at least [ours]
AGREE = 0.5  # of a group give one answer; of such groups, it is another task's reference; of lists, count [ours]
OTHERS = 0.8  # of the other right answers count, or of the other groups give their reference, at least [ours]
CHANCE = 0.01  # that so many groups agree on the reference of another task, or so few give theirs [ours]
_KINDS, _FEWEST = 8, 0.15  # values of a column, at least; of the answers are it [ours]
_SURE, _LESS = 0.9, 0.7  # of these are solved; of the others, at most [ours]
NUMBER = re.compile(r"-?\d+(/\d+)?")
_LABEL = re.compile(r"((?:final |correct )?(?:answer|result|solution)(?: is)?:?)[\s*$]*$", re.IGNORECASE)
_TAG = re.compile(r"</?\w+>")
# Bold text that begins right before the answer, but for a box, a currency or a bracket, and ends right behind it.
_OPENS, _CLOSES = re.compile(r"(?<![\w*])\*\*[^\w*]*(?:boxed\{)?[^\w*]*$"), re.compile(r"[^\w*]*\*\*(?![\w*])")

Parts = list[tuple[Sequence[str], Ints]]
"""As `places.list_parts` returns them."""


@dataclass(frozen=True)
class Answers:
    """The final answers of M rollouts."""

    column: str  # that has the references
    rows: Rows  # (M)
    written: list[str]  # (M)
    around: list[list[str]]  # (M) the forms in which its line has it: in bold, after a label
    mark: list[str]  # (M) what stands before it, the tags in the message, and the label if the prompt asks for it
    answer: list[str]  # (M) in plain form
    reference: list[str]  # (M) likewise
    target: list[str]  # (M) the reference as it is written
    solved: Bools  # (M)

    @property
    def name(self) -> str:
        """The column's name in the dataset."""
        return self.column.removeprefix("metadata.")

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The (M) references and answers, in plain form."""
        return list(zip(self.reference, self.answer, strict=True))

    @cached_property
    def equal(self) -> Bools:
        """(M) True for an answer that is the reference."""
        return np.array([reference == answer for reference, answer in self.pairs], bool)

    def is_another(self, references: set[str]) -> Bools:
        """Return (M) True for an answer that is not the rollout's reference, but that of another task."""
        return np.array([answer in references for answer in self.answer], bool) & ~self.equal

    @property
    def is_other_number(self) -> Bools:
        """Return (M) True where answer and reference are numbers that differ."""
        return np.array([all(map(NUMBER.fullmatch, pair)) for pair in self.pairs], bool) & ~self.equal


def find_column(run: Run) -> str | None:
    """Return the column that has the references: the one that is set, or else named like one; else, where something
    defines what is solved, the one that answers are, letter by letter, in the first third of the steps only where they
    are solved, as those that are something else seldom are.
    """
    named = reference_column(run.rows, run.labels, run.settings.reference)
    if named is not None or run.settings.reference is not None or not run.scale.success.is_defined:
        return named
    first = run.all.step <= run.all.steps[(len(run.all.steps) - 1) // 3]
    read = run.sample(first, SPREAD)
    ends = {row: end for row, texts in read.items() if (end := final_answer(texts.messages)) is not None}
    if len(ends) < len(read) / 2:
        return None
    chosen = np.flatnonzero(np.isin(run.all.id, list(ends)))
    ordered = (ends[row] for row in run.all.id[chosen].tolist())
    answers = [bare(end.text, is_line=end.place == LAST_LINE).casefold() for end in ordered]
    solved, group = run.scale.success.solved(run.all)[chosen], run.all.group
    for name, values in run.labels_of_all.items():
        written = [bare(values[row] or "").casefold() for row in chosen.tolist()]
        equal = np.array([bool(a) and a == b for a, b in zip(answers, written, strict=True)], bool)
        is_told = len(set(written)) >= _KINDS and _FEWEST <= equal.mean() < 1
        if not is_told or solved[equal].mean() < _SURE or solved[~equal].mean() > _LESS:
            continue
        codes = np.unique([value or "" for value in values], return_inverse=True)[1]
        if (distinct(group, codes, count=len(run.all.groups.size)) <= 1).all():
            return name
    return None


def read_answers(run: Run, rows: Rows, column: str, known: dict[int, Texts]) -> Answers:
    """Read the answers of some rollouts; those that give none are left out. Texts that are known are not read again."""
    labels = dict(zip(run.all.id.tolist(), run.labels_of_all[column], strict=True))
    if rows.id.size and int(rows.id[0]) not in labels:  # rollouts of evaluations are not in `Run.all`
        labels = dict(zip(rows.id.tolist(), run.read_labels(rows).get(column, [None] * len(rows)), strict=True))
    references = {row: labels[row] for row in rows.id.tolist()}
    known |= run.read_texts([row for row in references if row not in known])
    ends = {row: end for row in references if row in known and (end := final_answer(known[row].messages)) is not None}
    written = {row: bare(end.text, is_line=end.place == LAST_LINE) for row, end in ends.items()}
    plain_answers = {row: plain(text) for row, text in written.items()}
    some = rows.where(
        np.array([bool(plain_answers.get(row)) and references[row] is not None for row in rows.id.tolist()], bool)
    )
    of = some.id.tolist()
    frames = [_read_frame(known[row], ends[row], written[row]) for row in of]
    plain_references = [plain(references[row] or "") for row in of]
    return Answers(
        column, some, [written[row] for row in of], [forms for forms, _ in frames], [mark for _, mark in frames],
        [_round_like(plain_answers[row], reference) for row, reference in zip(of, plain_references, strict=True)],
        plain_references, [bare(references[row] or "") for row in of],
        run.scale.success.solved(some),
    )  # fmt: skip


def _round_like(answer: str, reference: str) -> str:
    """Return the reference for an answer that is the same number but for rounding, else the answer."""
    are_numbers = NUMBER.fullmatch(answer) and NUMBER.fullmatch(reference)
    return reference if are_numbers and are_equal(Fraction(answer), Fraction(reference)) else answer


def _read_frame(texts: Texts, end: Told, written: str) -> tuple[list[str], str]:
    """Return in which forms the line of an answer has it, and its mark: see `Answers`."""
    before, _, after = last_text(texts.messages).rpartition(written)
    line, rest, prompt = before.rpartition("\n")[2], after.partition("\n")[0], prompt_of(texts)
    label = match[1] if (match := _LABEL.search(line)) else ""
    is_asked = label != "" and (label.rstrip(":") in prompt or label.casefold() in prompt.casefold())
    last = [message for message in texts.messages if message.get("role") == "assistant"][-1]
    # Reasoning in tags is stored apart from the answer.
    tags = {*_TAG.findall(str(last.get("content"))), *["<think>", "</think>"] * bool(last.get("reasoning_content"))}
    is_bold = bool(_OPENS.search(line) and _CLOSES.match(rest))
    forms = ["is in bold"] * is_bold + [f"follows \u201c{label}\u201d"] * bool(label)
    return forms, " ".join([end.place, *sorted(tags), label.casefold() * is_asked])


def read_spread(run: Run, column: str) -> Answers:
    """Read the answers of some rollouts over all steps, of those that have a reference."""
    known = np.flatnonzero([reference is not None for reference in run.labels_of_all[column]])
    places = known[np.unique(np.linspace(0, len(known) - 1, SPREAD).astype(int))]
    return read_answers(run, run.all.where(np.isin(np.arange(len(run.all)), places)), column, {})


def choose_rows(rows: Rows) -> Rows:
    """Return those of these rollouts whose texts are read: those of some groups."""
    groups = np.unique(rows.group)
    groups = groups[np.unique(np.linspace(0, len(groups) - 1, GROUPS).astype(int))]
    return rows.where(np.isin(rows.group, groups))


def extent(run: Run, rows: Rows, affected: Bools) -> dict[str, Any]:
    """Return the fields of a card about some of the rollouts that were read: these alone, if all were read."""
    chosen = rows.id[affected]
    is_all = len(np.unique(run.rows.group)) <= GROUPS
    extent = {"own": np.isin(run.rows.id, chosen)} if is_all else {"share": float(affected.mean())}
    return {"where": ids(chosen), **extent}


def tell_reading(answers: Answers) -> str:
    count = f"{len(answers.answer):,} final answers of the last steps"
    return f"{count} were read, and compared with the column {answers.name}."


def tail(hits: int, of: int, share: float) -> float:
    """Return the chance of at least so many hits, where each has this chance."""
    return sum(comb(of, k) * share**k * (1 - share) ** (of - k) for k in range(hits, of + 1))
