"""Decide which row a call of a reward function belongs to.

A reward function gets all rows at once, and may call an environment, a judge or a sandbox for each of them. The calls
of each function are looked at by themselves, in units: an environment's episode, or a single call with its retries.
Evidence, strongest first:
    scope   made inside `with row_scope(i)`
    order   as many tasks, or as many units of one kind, as there are rows, in the order in which they were started
    text    what was sent holds this row's completion, or is a part of it or of its dataset columns, and of no other's
Order is not trusted if a text that was sent belongs to other rows. What is left is unattributed.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import orjson

from logs_ui.recorder.capture.calls import EnvironmentCall, Generation, Note
from logs_ui.recorder.capture.strands import Strand
from logs_ui.recorder.rows.attribution.branches import Branches, place_of, row_of
from logs_ui.recorder.rows.attribution.inferred.episodes import episodes_of
from logs_ui.recorder.rows.attribution.row_calls import Seen
from logs_ui.recorder.rows.text_compare import is_in, plain, texts_in

Call = Generation | EnvironmentCall

_LEAST = 16  # characters of a text that occurs by accident in no other row's


@dataclass
class ScoredRow:
    """The calls that reward functions made for one row."""

    # Name of the function, evidence, and call, in the order of the calls.
    calls: list[tuple[str, str, Call]] = field(default_factory=list)
    # Those of environments and functions, with the calls that these made themselves.
    environment_calls: list[EnvironmentCall] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)  # recorded in a scope of the row


class _Unit:
    """An episode, or a single call with its retries."""

    def __init__(self, calls: Seq[Call]) -> None:
        self.calls = [*calls]
        self.sent = [asked_of(call) for call in calls if getattr(call, "kind", "") != "reset"]
        self.texts = {plain(text) for call in calls for text in texts_in(asked_of(call))}

    @property
    def kind(self) -> object:
        """Return what units have in common of which there is one for each row."""
        first = self.calls[0]
        if isinstance(first, Generation):
            return first.sampling.get("model")
        return asked_of(first).get("name") if first.client < 0 else True

    def is_retried_by(self, later: "_Unit") -> bool:
        return bool(self.calls[-1].error and self.sent) and later.sent[: len(self.sent)] == self.sent


def asked_of(call: Call) -> Any:
    """Return what was sent: to an environment, or the messages to a model; None if it is not known."""
    if isinstance(call, EnvironmentCall):
        return orjson.loads(call.sent)
    with suppress(ValueError):  # the bytes of token ids are no JSON
        sent = dict.fromkeys(sequence.messages for sequence in call.sequences) or [call.prompt]
        messages = [orjson.loads(text) for text in sent if text]
        return messages[0] if len(messages) == 1 else messages or None
    return None


def attribute_scoring(
    seen: Seen, functions: Mapping[int, str], completions: Seq[Any], inputs: Seq[Any]
) -> tuple[list[ScoredRow], int]:
    """Return the rows with their calls, and the number of calls that are unattributed.

    `seen` are the calls of all functions, sorted; `functions` are names by the strand in which each ran; `completions`
    are (N) the text or messages of each row, as the functions got them, and `inputs` (N) its prompt and dataset
    columns.
    """
    rows, texts = [ScoredRow() for _ in completions], _Texts(completions, inputs)
    ordered_calls: list[Call] = sorted([*seen.generations, *seen.environment_calls], key=lambda call: call.order)
    calls_by_function: dict[str, list[Call]] = defaultdict(list)
    for call in ordered_calls:
        if _order_of_caller(call) is None:
            calls_by_function[_function(call, functions)].append(call)
    owners: dict[int | None, tuple[int, str, str]] = {}  # row, function and evidence, by the order of a call
    for function, calls in calls_by_function.items():
        for row, evidence, unit in _place_calls(calls, texts) if function else ():
            owners |= {call.order: (row, function, evidence) for call in unit}
    for call in ordered_calls:
        owner = owners.get(call.order) or owners.get(_order_of_caller(call))
        if owner is not None:
            row, function, evidence = owners[call.order] = owner
            if isinstance(call, EnvironmentCall):
                rows[row].environment_calls.append(call)
            if isinstance(call, Generation) or call.within is None:  # also a judge that a traced function asks
                rows[row].calls.append((function, evidence, call))
    for row, scored_row in enumerate(rows):
        scored_row.notes = [note for note in seen.notes if row_of(note) == row]
    lost_calls = sum(_order_of_caller(call) is None and call.order not in owners for call in ordered_calls)
    return rows, lost_calls + len(seen.notes) - sum(len(scored_row.notes) for scored_row in rows)


def _order_of_caller(call: Call) -> int | None:
    """Return the order of the environment call that made this one."""
    return None if call.strand is None else call.strand.call


def _function(call: Call, functions: Mapping[int, str]) -> str:
    """Return the function that made a call; if the start of its thread was not seen, the only function, or none."""
    path = () if call.strand is None else call.strand.path
    names = {functions[strand.number] for strand in path if strand.number in functions} or {*functions.values()}
    return names.pop() if len(names) == 1 else ""


def _place_calls(calls: list[Call], texts: "_Texts") -> Iterator[tuple[int, str, Seq[Call]]]:
    """Yield the calls of one function with their row and the evidence for it."""
    row_count = len(texts.answers)
    unscoped = []
    for call in calls:
        row = row_of(call)
        if row is None:
            unscoped.append(call)
        elif 0 <= row < row_count:
            yield row, "scope", [call]
    if row_count == 1:
        yield 0, "order", unscoped
        return
    branches = Branches(unscoped)
    client_calls = [call for call in unscoped if isinstance(call, EnvironmentCall) and call.client >= 0]
    units = [_Unit([call]) for call in unscoped if isinstance(call, Generation) or call.client < 0]
    for episode in episodes_of(client_calls, branches):
        # Calls of a client that was not reset form no episode, so each of them is a unit.
        units += [_Unit(episode)] if episode[0].kind == "reset" else [_Unit([call]) for call in episode]
    units.sort(key=lambda unit: (place_of(branches.of(unit.calls[0])), unit.calls[0].order))
    units_by_kind = _by_kind(units)
    texts.compare_units([unit for alike_units in units_by_kind for unit in alike_units])
    # One task for each row. Calls of a client that makes a task for each of them are in as many tasks by accident.
    branches_by_unit = [{branches.of(call) for call in unit.calls} for unit in units]
    all_branches = list(dict.fromkeys(branch for unit_branches in branches_by_unit for branch in unit_branches))
    if (
        len(all_branches) == row_count
        and _are_in_order(all_branches)
        and all(len(unit_branches) == 1 for unit_branches in branches_by_unit)
    ):
        rows_with_units = [
            (all_branches.index(next(iter(unit_branches))), unit)
            for unit, unit_branches in zip(units, branches_by_unit, strict=True)
        ]
        if texts.allow(rows_with_units):
            yield from ((row, "order", unit.calls) for row, unit in rows_with_units)
            return
    for alike_units in units_by_kind:
        first_branches = [branches.of(unit.calls[0]) for unit in alike_units]
        is_order_known = len(set(first_branches)) == 1 or (
            len(set(first_branches)) == len(first_branches) and _are_in_order(first_branches)
        )
        if len(alike_units) == row_count and is_order_known and texts.allow(enumerate(alike_units)):
            yield from ((row, "order", unit.calls) for row, unit in enumerate(alike_units))
        else:
            rows_and_units = [(texts.rows_of(unit) or set(), unit) for unit in alike_units]
            yield from ((row, "text", unit.calls) for rows, unit in rows_and_units for row in rows if len(rows) == 1)


def _are_in_order(strands: Seq[Strand | None]) -> bool:
    """Return True if their numbers are the order in which they were started."""
    return all(strand is not None and not strand.is_stray for strand in strands)


def _by_kind(units: Iterable[_Unit]) -> list[list[_Unit]]:
    """Return the units of each kind; one that failed and was tried again is one with those that followed."""
    units_by_kind: dict[object, list[_Unit]] = defaultdict(list)
    for unit in units:
        alike_units = units_by_kind[unit.kind]
        is_retry = alike_units and alike_units[-1].is_retried_by(unit)
        alike_units.append(_Unit([*alike_units.pop().calls, *unit.calls]) if is_retry else unit)
    return [*units_by_kind.values()]


class _Texts:
    """Finds the rows whose texts occur in what was sent, or that hold what was sent."""

    def __init__(self, completions: Seq[Any], inputs: Seq[Any]) -> None:
        self.answers = [plain(_answer(completion)) for completion in completions]
        self._inputs = ["\n".join(map(plain, texts_in(columns))) for columns in inputs]

    @cached_property
    def _telling_answers(self) -> list[str]:
        """Return the different answers, longest first, without those that a prompt or a dataset row contains."""
        joined = "\n".join(dict.fromkeys(self._inputs))
        long = {text for text in self.answers if len(text) >= _LEAST and text not in joined}
        return sorted(long, key=len, reverse=True)

    def compare_units(self, units: Seq[_Unit]) -> None:
        """Compare these units from now on: a text that too many of them sent says nothing about a row."""
        self._times, self._units = Counter(text for unit in units for text in unit.texts), len(units)

    def allow(self, pairs: Iterable[tuple[int, _Unit]]) -> bool:
        """Return True unless a unit sent something that only other rows can have. Short texts, such as an action that
        was parsed from an answer, count if not all units sent them, and none is in the row's own answer or data.
        """
        return all(
            ((rows := self.rows_of(unit)) is None or row in rows) and not self._is_of_others(row, unit)
            for row, unit in pairs
        )

    def _is_of_others(self, row: int, unit: _Unit) -> bool:
        short = {text for text in unit.texts if text and len(text) < _LEAST and self._times[text] < self._units}
        is_own = any(is_in(short_text, f"{self.answers[row]}\n{self._inputs[row]}") for short_text in short)
        return not is_own and any(is_in(short_text, answer) for short_text in short for answer in self.answers)

    def rows_of(self, unit: _Unit) -> set[int] | None:
        """Return the rows that what it sent allows; None if it allows all."""
        common: set[int] | None = None
        for text in unit.texts:
            rows = self._rows_with(text)
            # The share of the units that sent the text must not exceed the share of the rows that it allows: a text
            # that nearly all send, such as an instruction, tells no rows apart.
            if rows and self._times[text] * len(self.answers) <= len(rows) * max(self._units, len(self.answers)):
                common = rows if common is None else common & rows
        return common

    def _rows_with(self, text: str) -> set[int]:
        """Return the rows of which the text holds the answer; else those whose dataset row, or answer, holds the text.
        Nothing if those are all.
        """
        # The longest answers come first and are cut out of the text, so that an answer that is a part of a longer
        # one is not found within that.
        contained, rest = set(), text
        for answer in self._telling_answers:
            if answer in rest:
                contained.add(answer)
                rest = rest.replace(answer, "\0")
        rows = {row for row, answer in enumerate(self.answers) if answer in contained}
        for of_rows in (self._inputs, self.answers) if len(text) >= _LEAST else ():
            rows = rows or {row for row, of_row in enumerate(of_rows) if text in of_row}
        return rows if len(rows) < len(self.answers) else set()


def _answer(completion: Any) -> str:
    """Return the last text that the model wrote: messages are also those of tools and environments."""
    if isinstance(completion, list):
        completion = [message.get("content") for message in completion if message.get("role") == "assistant"][-1:]
    return "\n".join(texts_in(completion))
