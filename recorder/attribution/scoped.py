"""One row alone, all of whose calls said themselves that they are its own, as in an explicit run: there is nothing to
find out, and the searching takes ten times as long.
"""

from logs_ui.recorder.attribution.chains import row_of
from logs_ui.recorder.attribution.found import Attribution, RowCalls, Seen, Turn


def of_one_scope(count: int, seen: Seen) -> Attribution | None:
    """What the search would find; None where there is something to find out: calls without a scope, or generations with
    token ids, which have a place in the row's.
    """
    if count != 1 or not (seen.generations or seen.environment_calls) or any(row_of(call) != 0 for call in seen.calls):
        return None
    turns = [Turn(made.order, made, sequence, None) for made in seen.generations for sequence in made.sequences]
    if any(turn.sequence.sampled is not None or turn.sequence.context is not None for turn in turns):
        return None
    own = [call for call in seen.environment_calls if call.within is None]
    children = [call for call in seen.environment_calls if call.within is not None]
    orders = {call.order for call in seen.environment_calls}
    if any(call.within not in orders for call in children):
        return None
    row = RowCalls(turns, own, children, [*seen.notes], "scope" if turns or own else None)
    row.sort()
    row.children.sort(key=lambda call: call.order)
    return Attribution([row], 0)
