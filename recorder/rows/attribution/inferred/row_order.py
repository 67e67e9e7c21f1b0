"""Find out if a function went through its rows in the order of their prompts; all evidence by order rests on this."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from operator import attrgetter

from logs_ui.recorder.capture.model_answers import Sequence
from logs_ui.recorder.rows.attribution.assignment import Assignment
from logs_ui.recorder.rows.attribution.branches import Branches, place_of
from logs_ui.recorder.rows.attribution.inferred.thresholds import CHANCE
from logs_ui.recorder.rows.attribution.row_calls import RowCalls

_what_came = attrgetter("kind", "sent", "observation", "reward", "done", "error")


def is_in_order(state: Assignment) -> bool:
    """Return True if rows began in the order of the prompts, as far as their generations show it."""
    rows = [row for row in state.rows if row.turns]
    return not state.contested and _began_in_order(rows, state.branches)


def are_of_one_prompt(state: Assignment, places: Iterable[int]) -> bool:
    """Return True if these rows need not be told apart: they were asked the same, or are shown while they run."""
    prompts = state.prompts
    return state.is_running or not prompts or len({prompts[place] for place in places}) <= 1


def are_in_line(state: Assignment, begun: Seq[int | None]) -> bool:
    """Return True if rows of a function that did not finish began in the order of their prompts, and so many of them
    that it is no accident. `begun` are the rows in the order in which they began; None for one that is unknown.
    """
    if state.is_running:
        return True
    prompts = state.prompts
    known_prompts = [prompts[place] if place in state.with_known_prompt else None for place in begun] if prompts else []
    # `likelihood` is the probability that rows in a random order show these prompts at these places: of the rows
    # that are left at a place, `left[prompt]` have the prompt that was seen there.
    left, likelihood = Counter(prompts), 1.0
    for place, prompt in enumerate(known_prompts):
        if place >= len(prompts) or prompt not in {None, prompts[place]}:
            return False
        likelihood *= 1 if prompt is None else left[prompt] / (len(prompts) - place)
        left[prompts[place]] -= 1
    return likelihood < CHANCE


def part_twins(state: Assignment, identities: Seq[object]) -> None:
    """Take the episodes from rows with equal tokens, if the episodes differ and the order of the rows does not tell
    which is whose; and from contested rows. A row without an episode differs, too, if some are unattributed.
    `identities` (N) are the prompt and completion of each row, which are equal for twins.
    """
    rows = state.rows
    are_lost = any(map(state.is_unassigned, state.environment_calls))
    for identity in (identity for identity, times in Counter(identities).items() if times > 1):
        alike = [row for row, other in zip(rows, identities, strict=True) if other == identity]
        twins = [row for row in alike if _has_unscoped(state, row)]
        bare = [row for row in alike if are_lost and not row.environment_calls]
        if len({tuple(map(_what_came, row.environment_calls)) for row in [*twins, *bare]}) <= 1:
            continue
        in_order = _are_twins_in_order(state, [*twins, *bare])
        for row in twins:
            if in_order:
                row.lower_evidence("order")
            else:
                _take_calls(state, row)
    for index in sorted(state.contested):
        if _has_unscoped(state, rows[index]):
            _take_calls(state, rows[index])


def _are_twins_in_order(state: Assignment, twins: Seq[RowCalls]) -> bool:
    """Return True if order tells twins of one strand apart; or of several strands, if each row has its own.

    Not of workers that take rows from a queue, in an order that is unknown, nor of rows that were asked again later.
    """
    if state.failed_orders:
        return False
    places = [branch for row in state.rows if (branch := state.branch_of(row.calls)) is not None]
    of_twins = {state.branch_of(row.calls) for row in twins}
    if len(of_twins) == 1:
        rows = [row for row in state.rows if row.turns and state.branch_of(row.calls) in of_twins]
        return _began_in_order(rows, state.branches)
    return len(set(places)) == len(places) and None not in of_twins and is_in_order(state)


def _has_unscoped(state: Assignment, row: RowCalls) -> bool:
    """Return True if its environment calls rest on evidence that a twin of the row would have, too."""
    return any(call.order not in state.scoped for call in row.environment_calls)


def _take_calls(state: Assignment, row: RowCalls) -> None:
    scoped = [call for call in row.environment_calls if call.order in state.scoped]
    state.unattributed += len(row.environment_calls) - len(scoped)
    row.environment_calls = scoped


def _began_in_order(rows: Seq[RowCalls], branches: Branches) -> bool:
    """Return True if the rows' first turns were made in the rows' order: by strands as these were started, then by
    time, then by place in the batch. Not if one was made in a strand whose start was not seen.
    """
    by_content: dict[tuple[object, ...], list[tuple[int, int, int]]] = defaultdict(list)
    first = [min(row.turns, key=lambda turn: turn.order) for row in rows]
    for turn in first:
        strand = branches.of(turn.generation)
        if strand is not None and strand.is_stray:
            return False
        place = next((i for i, sequence in enumerate(turn.generation.sequences) if sequence is turn.sequence), 0)
        by_content[_content(turn.sequence)].append((place_of(strand), turn.order, place))
    # Equal first turns are interchangeable: rows that have them take them in the order in which they were made.
    for places in by_content.values():
        places.sort(reverse=True)
    of_rows = [by_content[_content(turn.sequence)].pop() for turn in first]
    return of_rows == sorted(of_rows)


def _content(sequence: Sequence) -> tuple[object, ...]:
    ids = (sequence.context, sequence.sampled)
    return (*(None if array is None else array.tobytes() for array in ids), sequence.text)
