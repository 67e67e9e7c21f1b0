"""What the scopes that calls were made in say alone: that all are one row's, or that some are nobody's."""

from logs_ui.recorder.capture.calls import Call, EnvironmentCall
from logs_ui.recorder.rows.attribution.branches import row_of
from logs_ui.recorder.rows.attribution.exact.n_samples import one_of_each
from logs_ui.recorder.rows.attribution.row_calls import Attribution, RowCalls, Seen, Turn


def of_one_scope(count: int, seen: Seen) -> Attribution | None:
    """One row alone, all of whose calls said themselves that they are its own, as in an explicit run: what the search
    would find, in a tenth of its time. None where there is something to find out: calls without a scope, or generations
    with token ids, which have a place in the row's.
    """
    if count != 1 or not (seen.generations or seen.environment_calls):
        return None
    if set(map(row_of, seen.calls)) != {0}:
        return None
    turns = []
    for made in seen.generations:
        for sequence in made.sequences:
            if sequence.sampled is not None or sequence.context is not None:
                return None
            turns.append(Turn(made.order, made, sequence, None))
    own = [call for call in seen.environment_calls if call.within is None]
    children: list[EnvironmentCall] = []
    if len(own) < len(seen.environment_calls):
        children = [call for call in seen.environment_calls if call.within is not None]
        orders = {call.order for call in seen.environment_calls}
        if any(call.within not in orders for call in children):
            return None
    row = RowCalls(turns, own, children, [*seen.notes])
    failed = [made for made in seen.generations if made.is_failure]
    row.failures = [made for made in failed if row.may_hold(made)] if failed else []
    row.evidence = "scope" if turns or own or row.failures else None
    one_of_each(row)
    return Attribution([row], len(failed) - len(row.failures))


def of_rows(seen: Seen, count: int) -> tuple[Seen, int]:
    """Without the calls that were made in the scope of a row that is none, and how many these were: whatever else
    speaks for a row, they said themselves that they are not its own.
    """
    strange = {call.order for call in seen.calls if _is_outside(call, count)}
    if not strange:
        return seen, 0
    generations = [call for call in seen.generations if call.order not in strange]
    calls = [call for call in seen.environment_calls if call.order not in strange]
    notes = [note for note in seen.notes if note.order not in strange]
    children = sum(call.within is not None for call in seen.environment_calls if call.order in strange)
    return Seen(generations, calls, notes), len(strange) - children


def _is_outside(call: Call, count: int) -> bool:
    row = None if call.strand is None else call.strand.row
    return row is not None and not 0 <= row < count
