"""Whose the generations are that brought no answer, once the rows have all that was answered."""

from collections import defaultdict
from collections.abc import Iterator

from logs_ui.recorder.capture.strands import Strand
from logs_ui.recorder.rows.attribution.assignment import Assignment
from logs_ui.recorder.rows.attribution.branches import row_of
from logs_ui.recorder.rows.attribution.row_calls import Turn


def give_failures(state: Assignment) -> None:
    """To the row in whose scope they were made; whose task or thread they were made in; that was asked the same, as
    when it tries again; or whose turn it is among tasks that were started in order. Others are nobody's, and so are
    those that cannot be a turn of that row.
    """
    failed = [generation for generation in state.seen.generations if generation.is_failure]
    if not failed:
        return
    homes, askers, ranked = _homes(state), _askers(state), state.branch_of_each_row()
    for generation in failed:
        index, evidence = row_of(generation), "scope"
        if index is None:
            branch = state.branches.of(generation)
            index, evidence = _only(homes.get(branch)), "strand"
            if index is None and branch not in homes and generation.asked is not None:
                index, evidence = _only(askers.get(generation.asked)), "context"
            if index is None and branch not in homes:
                index, evidence = _by_number(branch, ranked, homes, len(state.rows)), "order"
        if index is None or not 0 <= index < len(state.rows) or not state.rows[index].may_hold(generation):
            state.unattributed += 1
        else:
            state.rows[index].failures.append(generation)
            state.rows[index].lower_evidence(evidence)


def _homes(state: Assignment) -> dict[Strand | None, set[int]]:
    """Rows by the branches that their calls were made in."""
    homes: dict[Strand | None, set[int]] = defaultdict(set)
    for index, row in enumerate(state.rows):
        for call in row.calls:
            if (branch := state.branches.of(call)) is not None:
                homes[branch].add(index)
    return homes


def _askers(state: Assignment) -> dict[bytes, set[int]]:
    """Rows by what their generations were given. Where a row has none, it may be one that was given the same as
    another's first: the prompts of a group are alike.
    """
    askers: dict[bytes, set[int]] = defaultdict(set)
    first = 0 if all(row.turns for row in state.rows) else 1
    for index, row in enumerate(state.rows):
        turns = sorted(row.turns, key=lambda turn: turn.order)
        for asked in (asked for turn in turns[first:] for asked in _given(turn)):
            askers[asked].add(index)
    return askers


def _given(turn: Turn) -> Iterator[bytes]:
    if turn.sequence.messages is not None:
        yield turn.sequence.messages
    if turn.sequence.context is not None:
        yield turn.sequence.context.tobytes()


def _only(rows: set[int] | None) -> int | None:
    return next(iter(rows)) if rows is not None and len(rows) == 1 else None


def _by_number(
    branch: Strand | None, ranked: list[Strand], homes: dict[Strand | None, set[int]], count: int
) -> int | None:
    """The row whose place the branch has, where there is one for each row; or the only row."""
    if count == 1:
        return 0
    if branch is None or branch not in ranked:
        return None
    fits = all(homes.get(other, {place}) == {place} for place, other in enumerate(ranked))
    return ranked.index(branch) if fits else None
