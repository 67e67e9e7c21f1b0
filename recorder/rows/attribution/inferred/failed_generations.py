"""Assign failed generations to rows, after the successful ones are assigned."""

from collections import defaultdict
from collections.abc import Sequence as Seq
from itertools import pairwise
from operator import attrgetter, itemgetter

import orjson

from logs_ui.recorder.capture.calls import Generation
from logs_ui.recorder.capture.strands import Strand
from logs_ui.recorder.rows.attribution.assignment import Assignment
from logs_ui.recorder.rows.attribution.branches import row_of
from logs_ui.recorder.rows.attribution.prefixes import bytes_of
from logs_ui.recorder.rows.attribution.row_calls import Turn


def add_failures(state: Assignment) -> None:
    """Assign each to the row of its scope; of its task or thread; that was asked the same, as when it tries again;
    that has its task's place, among tasks started in order; or between whose calls it lies, in a loop that plays one
    row after the other. Others, and those that are no turn of it, are unattributed.
    """
    failed = [generation for generation in state.seen.generations if generation.is_failure]
    if not failed:
        return
    rows_of, askers, ranked = _rows_by_branch(state), _askers(state), state.branch_of_each_row()
    left = defaultdict(list)
    for generation in failed:
        index, evidence, branch = row_of(generation), "scope", state.branches.of(generation)
        if index is None:
            index, evidence = _only_row(rows_of.get(branch)), "strand"
            if index is None and branch not in rows_of and generation.prompt is not None:
                index, evidence = _only_row(askers.get(generation.prompt)), "context"
            if index is None and branch not in rows_of:
                index, evidence = _by_number(branch, ranked, rows_of, len(state.rows)), "order"
        if index is None:
            left[branch].append(generation)
        else:
            _assign(state, index, generation, evidence)
    for branch, several in left.items():
        placed = _in_between(state, branch, several)
        for generation in several:
            _assign(state, placed.get(generation.order, -1), generation, "order")


def _assign(state: Assignment, index: int, generation: Generation, evidence: str) -> None:
    if not 0 <= index < len(state.rows) or not state.rows[index].may_hold(generation):
        state.unattributed += 1
    else:
        state.rows[index].failures.append(generation)
        state.rows[index].lower_evidence(evidence)


def _in_between(state: Assignment, branch: Strand | None, failed: Seq[Generation]) -> dict[int, int]:
    """Return the rows of failed generations of a branch, by their order, if all turns are made there, one row after the
    other. Between two rows lie calls that go on from the first one's last turn, and then those of rows without turns,
    one of each; without such rows, those that ask what the second one then asked again.
    """
    rows, row_of_order = state.rows, dict[int, int]()
    turns = sorted(
        [(turn.order, number, turn) for number, row in enumerate(rows) for turn in row.turns], key=itemgetter(0)
    )
    in_turn = all(order < after and row <= later for (order, row, _), (after, later, _) in pairwise(turns))
    if not in_turn or any(state.branches.of(turn.generation) is not branch for _, _, turn in turns):
        return row_of_order
    failed = [
        generation for generation in failed if not turns or any(row.may_hold(generation) for row in rows if row.turns)
    ]
    for (before, first, last), (after, second, then) in pairwise([(-1, -1, None), *turns, (1 << 62, len(rows), None)]):
        between = [generation for generation in failed if before < generation.order < after]
        row_of_order |= {
            generation.order: first for generation in between if first == second or _goes_on(generation, last)
        }
        rest = [generation for generation in between if generation.order not in row_of_order]
        absent = [number for number in range(first + 1, second) if not rows[number].turns and not rows[number].failures]
        if not absent and all(generation.prompt in _list_requests(then) for generation in rest):
            row_of_order |= {generation.order: second for generation in rest}
        elif len(rest) == len(absent) and all(
            map(_may_ask, rest, (state.texts[number : number + 1] for number in absent))
        ):
            row_of_order |= {generation.order: number for generation, number in zip(rest, absent, strict=True)}
    return row_of_order


def _may_ask(failed: Generation, texts: Seq[str]) -> bool:
    """Return True unless the messages of a request do not hold the text of the row's prompt: a judge's, for example."""
    request = failed.prompt or b""
    return not request.startswith(b"[{") or all(
        orjson.dumps(text.strip())[1:-1] in request for text in texts
    )  # else ids


def _goes_on(failed: Generation, turn: Turn | None) -> bool:
    """Return True if a request continues the one that a turn answered."""
    request = failed.prompt or b""
    # Without its closing brackets and quotes, the JSON of a conversation is the beginning of a longer one's.
    return any(request != before and request.startswith(before.rstrip(b']"')) for before in _list_requests(turn))


def _list_requests(turn: Turn | None) -> set[bytes]:
    """Return what a turn answered: messages, ids, or both."""
    both = () if turn is None else (turn.sequence.messages, bytes_of(turn.sequence.context))
    return {request for request in both if request is not None}


def _rows_by_branch(state: Assignment) -> dict[Strand | None, set[int]]:
    """Return the rows that have calls in each branch."""
    rows_of: dict[Strand | None, set[int]] = defaultdict(set)
    for index, row in enumerate(state.rows):
        for call in row.calls:
            if (branch := state.branches.of(call)) is not None:
                rows_of[branch].add(index)
    return rows_of


def _askers(state: Assignment) -> dict[bytes, set[int]]:
    """Return the rows by what they asked. First turns count only if all rows have one: others may ask the same."""
    askers: dict[bytes, set[int]] = defaultdict(set)
    first = 0 if all(row.turns for row in state.rows) else 1
    for index, row in enumerate(state.rows):
        for turn in sorted(row.turns, key=attrgetter("order"))[first:]:
            for request in _list_requests(turn):
                askers[request].add(index)
    return askers


def _only_row(rows: set[int] | None) -> int | None:
    return next(iter(rows)) if rows is not None and len(rows) == 1 else None


def _by_number(
    branch: Strand | None, ranked: list[Strand], rows_of: dict[Strand | None, set[int]], count: int
) -> int | None:
    """Return the row that has the branch's place, if there is a branch for each row; or the only row."""
    if count == 1:
        return 0
    if branch is None or branch not in ranked:
        return None
    fits = all(rows_of.get(other, {place}) == {place} for place, other in enumerate(ranked))
    return ranked.index(branch) if fits else None
