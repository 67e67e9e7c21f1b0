"""Assign failed generations to rows, after the successful ones are assigned."""

from collections import defaultdict

from logs_ui.recorder.capture.strands import Strand
from logs_ui.recorder.rows.attribution.assignment import Assignment
from logs_ui.recorder.rows.attribution.branches import row_of
from logs_ui.recorder.rows.attribution.prefixes import bytes_of


def add_failures(state: Assignment) -> None:
    """Assigns each to the row of its scope; of its task or thread; that was asked the same, as when it tries again; or
    that has its task's place, among tasks started in order. Others, and those that are no turn of it, are unattributed.
    """
    failed = [generation for generation in state.seen.generations if generation.is_failure]
    if not failed:
        return
    rows_of, askers, ranked = _rows_by_branch(state), _askers(state), state.branch_of_each_row()
    for generation in failed:
        index, evidence = row_of(generation), "scope"
        if index is None:
            branch = state.branches.of(generation)
            index, evidence = _only(rows_of.get(branch)), "strand"
            if index is None and branch not in rows_of and generation.asked is not None:
                index, evidence = _only(askers.get(generation.asked)), "context"
            if index is None and branch not in rows_of:
                index, evidence = _by_number(branch, ranked, rows_of, len(state.rows)), "order"
        if index is None or not 0 <= index < len(state.rows) or not state.rows[index].may_hold(generation):
            state.unattributed += 1
        else:
            state.rows[index].failures.append(generation)
            state.rows[index].lower_evidence(evidence)


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
        turns = sorted(row.turns, key=lambda turn: turn.order)
        for sequence in (turn.sequence for turn in turns[first:]):
            for asked in (sequence.messages, bytes_of(sequence.context)):
                if asked is not None:
                    askers[asked].add(index)
    return askers


def _only(rows: set[int] | None) -> int | None:
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
