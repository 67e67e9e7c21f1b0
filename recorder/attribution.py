"""Which call belongs to which row. Pure functions over what was seen; nothing is forced: a call for which there is no
evidence stays unattributed, and is counted on the run.

Evidence, strongest first:
    context    the model was given exactly the row's tokens so far, and sampled exactly those that follow there
    tokens     what it sampled stands, in order, in the row's completion (the prompt was tokenised anew)
    position   only where the function raised, so that no row has tokens: see `attribute_unfinished`
For environment calls:
    generation the episode's steps follow generations of this row alone
    order      one episode for each row that is left, in the order in which they began
    position   one episode for all rows, with one step for each after all had answered
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from math import inf

import numpy as np

from logs_ui.recorder.calls import EnvironmentCall, Generation, Ids, Sequence

_WIDTH = np.dtype(np.int32).itemsize


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of the model within a row.

    Attributes:
        order: of the generation call.
        start: index of its first token in the completion; None where it does not stand there.
    """

    order: int
    generation: Generation
    sequence: Sequence
    start: int | None


@dataclass
class RowCalls:
    """The calls of one row.

    Attributes:
        evidence: the weakest evidence by which a call came here; None without calls.
    """

    turns: list[Turn] = field(default_factory=list)
    environment_calls: list[EnvironmentCall] = field(default_factory=list)
    evidence: str | None = None

    def note(self, evidence: str) -> None:
        """Keeps the weaker of this evidence and what the row rests on so far."""
        strength = ("context", "generation", "tokens", "order", "position")
        if self.evidence is None or strength.index(evidence) > strength.index(self.evidence):
            self.evidence = evidence


@dataclass(frozen=True)
class Attribution:
    """Calls by row, and how many found none."""

    rows: list[RowCalls]
    unattributed: int


@dataclass
class _Row:
    """A row's tokens as bytes, and how far generations have been matched in it."""

    prompt: int  # tokens
    data: bytes
    matched: int  # tokens, from the start of the prompt

    def extended_by(self, sequence: Sequence) -> int | None:
        """Where in the completion the sequence begins, if the row up to there is just its context."""
        start = len(sequence.context)
        if start < max(self.matched, self.prompt) or not self.data.startswith(sequence.context.tobytes()):
            return None
        return start - self.prompt if self._stands_at(sequence, start) else None

    def holds(self, sequence: Sequence) -> int | None:
        """Where in the completion, after what is matched already, the sampled tokens stand."""
        sampled = sequence.sampled.tobytes()
        at = self.data.find(sampled, self.matched * _WIDTH)
        while at % _WIDTH and at >= 0:
            at = self.data.find(sampled, at + 1)
        return at // _WIDTH - self.prompt if at >= 0 and len(sampled) else None

    def _stands_at(self, sequence: Sequence, start: int) -> bool:
        """Whole, without its end token, or cut off by the end of the row."""
        follows = self.data[start * _WIDTH :]
        sampled = sequence.sampled.tobytes()
        if not follows:
            return False
        return follows.startswith((sampled, sampled[:-_WIDTH] or sampled)) or sampled.startswith(follows)


def attribute(
    prompts: Seq[Ids], completions: Seq[Ids], generations: Seq[Generation], environment_calls: Seq[EnvironmentCall]
) -> Attribution:
    """Calls of a rollout function that returned.

    Args:
        prompts: (N) token ids as returned, one array a row.
        completions: (N) as returned.
        generations: in the order in which they began.
        environment_calls: in the order in which they began.
    """
    rows = [RowCalls() for _ in prompts]
    tokens = [
        _Row(len(prompt), prompt.tobytes() + completion.tobytes(), len(prompt))
        for prompt, completion in zip(prompts, completions, strict=True)
    ]
    lost = sum(_attribute_generation(generation, tokens, rows) for generation in generations)
    if _is_one_step_each(environment_calls, rows, generations):
        _one_step_each(environment_calls, rows)
    else:
        lost += _attribute_environment(environment_calls, rows)
    return Attribution(rows, lost)


def attribute_unfinished(
    count: int, generations: Seq[Generation], environment_calls: Seq[EnvironmentCall]
) -> Attribution:
    """Calls of a rollout function that raised, so that no tokens tell the rows apart.

    A generation whose context goes on where another ended continues its row. So does one whose context was tokenised
    anew, if it came within the episode of the generation before it. Any other begins the next row, unless its context
    shows that it is a later turn: then nothing tells whose.
    """
    rows = [RowCalls() for _ in range(count)]
    begun: list[_BegunRow] = []
    current: int | None = None  # whose turn the generation before was, if it was of one sequence
    lost = 0
    for before, generation, after in _neighbours(generations):
        alone = len(generation.sequences) == 1
        if not alone or not _same_episode(environment_calls, before, generation.order, after):
            current = None
        taken: set[int] = set()
        for sequence in generation.sequences:
            index = _begun_row_of(sequence, begun, taken, current)
            if index is None or index >= count:
                lost += 1
                continue
            if index == len(begun):
                begun.append(_BegunRow(sequence.context.tobytes()))
            taken.add(index)
            rows[index].turns.append(Turn(generation.order, generation, sequence, begun[index].add(sequence)))
            rows[index].note("position")
        current = next(iter(taken), None) if alone else None
    lost += _attribute_environment(environment_calls, rows, finished=False)
    return Attribution(rows, lost)


@dataclass
class _BegunRow:
    """What is known of the tokens of a row that never returned: its first context, and all up to its last answer."""

    prompt: bytes
    data: bytes = b""

    def add(self, sequence: Sequence) -> int | None:
        """Its next turn. Returns where that begins in the completion, if the context is no shorter than the prompt."""
        context = sequence.context.tobytes()
        self.data = context + sequence.sampled.tobytes()
        return (len(context) - len(self.prompt)) // _WIDTH if len(context) >= len(self.prompt) else None


def _neighbours(generations: Seq[Generation]) -> Iterator[tuple[float, Generation, float]]:
    """Each with the order of the one before it and of the one after it."""
    orders = [-inf, *(generation.order for generation in generations), inf]
    return zip(orders, generations, orders[2:], strict=False)


def _begun_row_of(sequence: Sequence, begun: list[_BegunRow], taken: set[int], current: int | None) -> int | None:
    """The row that the sequence continues, `current` being the one whose episode goes on; the number of rows if it
    begins the next one; None where neither shows.
    """
    context = sequence.context.tobytes()
    for index, row in enumerate(begun):
        if index not in taken and context.startswith(row.data):
            return index
    if any(context == row.prompt for row in begun):  # the same prompt again: the next of its group
        return len(begun)
    if current is not None:
        return current
    later = any(context.startswith(row.prompt) for row in begun)
    return None if later else len(begun)


def _same_episode(calls: Seq[EnvironmentCall], before: float, order: float, after: float) -> bool:
    """Whether the generation at `order` answers what the one `before` it had brought about: between the two, one
    client was stepped and none reset, and that client is called next, or is the only one.
    """
    first, middle, end = (bisect_left(calls, at, key=_order) for at in (before, order, after))
    between = calls[first:middle]
    stepped = {call.client for call in between}
    if len(stepped) != 1 or any(call.kind == "reset" for call in between):
        return False
    following = calls[middle : middle + 1] if middle < end else calls
    return {call.client for call in following} == stepped


def _order(call: EnvironmentCall) -> float:
    return call.order


def _attribute_generation(generation: Generation, tokens: list[_Row], rows: list[RowCalls]) -> int:
    """Returns how many of its sequences found no row."""
    lost = 0
    taken: set[int] = set()
    for sequence in generation.sequences:
        found = _row_of(sequence, tokens, taken)
        if found is None:
            lost += 1
            continue
        index, start, evidence = found
        taken.add(index)
        rows[index].turns.append(Turn(generation.order, generation, sequence, start))
        rows[index].note(evidence)
        tokens[index].matched = tokens[index].prompt + start + len(sequence.sampled)
    return lost


def _row_of(sequence: Sequence, tokens: list[_Row], taken: set[int]) -> tuple[int, int, str] | None:
    """The first row that fits: rows with the same tokens so far are asked in order, as functions go through them."""
    for evidence, place in (("context", _Row.extended_by), ("tokens", _Row.holds)):
        for index, row in enumerate(tokens):
            if index not in taken and (start := place(row, sequence)) is not None:
                return index, start, evidence
    return None


def _attribute_environment(calls: Seq[EnvironmentCall], rows: list[RowCalls], *, finished: bool = True) -> int:
    """Returns how many calls found no row. Where the function did not finish, its last rows have no episode yet."""
    if not calls:
        return 0
    episodes = _episodes(calls)
    left = _by_generations(episodes, rows)
    open_rows = [row for row in rows if not row.environment_calls]
    pairs = list(zip(left, open_rows, strict=False))
    enough = len(left) == len(open_rows) if finished else len(left) <= len(open_rows)
    if not enough or not all(_plausible(episode, row) for episode, row in pairs):
        return sum(len(episode) for episode in left)
    for episode, row in pairs:
        row.environment_calls.extend(episode)
        row.note("order")
    return 0


def _plausible(episode: list[EnvironmentCall], row: RowCalls) -> bool:
    """Whether a row could have made these steps: no more of them than answers, and none before its first."""
    steps = [call for call in episode if call.kind == "step" and call.error is None]
    if not row.turns or not steps:
        return True
    return len(steps) <= len(row.turns) and steps[0].order > row.turns[0].order


def _episodes(calls: Seq[EnvironmentCall]) -> list[list[EnvironmentCall]]:
    """A client's calls from one reset to the next, in the order in which they began."""
    current: dict[int, list[EnvironmentCall]] = {}
    episodes: list[list[EnvironmentCall]] = []
    for call in calls:
        if call.kind == "reset" or call.client not in current:
            current[call.client] = []
            episodes.append(current[call.client])
        current[call.client].append(call)
    return episodes


def _by_generations(episodes: list[list[EnvironmentCall]], rows: list[RowCalls]) -> list[list[EnvironmentCall]]:
    """Gives an episode to a row if each of its steps came right after a generation of that row alone, and no other
    episode stepped after the same one: a function that generates for all rows first gives no such evidence.

    Returns:
        The episodes that are left.
    """
    owners: dict[int, set[int]] = defaultdict(set)
    for index, row in enumerate(rows):
        for turn in row.turns:
            owners[turn.order].add(index)
    orders = sorted(owners)
    before = [_generations_of(episode, orders) for episode in episodes]
    stepped = Counter(
        order
        for episode, found in zip(episodes, before, strict=True)
        if not any(call.error for call in episode)
        for order in found
    )
    left = []
    for episode, found in zip(episodes, before, strict=True):
        candidates = set().union(*(owners[order] for order in found))
        if len(candidates) == 1 and all(stepped[order] <= 1 for order in found):
            row = rows[candidates.pop()]
            row.environment_calls.extend(episode)
            row.note("generation")
        else:
            left.append(episode)
    return left


def _generations_of(episode: list[EnvironmentCall], orders: list[int]) -> set[int]:
    """The generations that an episode goes with: the last one before each step; the next one where it took no step."""
    steps = [call for call in episode if call.kind == "step"]
    if steps:
        places = [int(np.searchsorted(orders, step.order)) - 1 for step in steps]
    else:
        places = [int(np.searchsorted(orders, episode[-1].order))]
    return {orders[place] for place in places if 0 <= place < len(orders)}


def _is_one_step_each(calls: Seq[EnvironmentCall], rows: list[RowCalls], generations: Seq[Generation]) -> bool:
    """Whether one environment was stepped once for each row, after all rows had given their one answer; or, where no
    generation was seen, as often as there are rows.
    """
    steps = [call.order for call in calls if call.kind == "step"]
    if len(_episodes(calls)) != 1 or not len(steps) == len(rows) > 1:
        return False
    answers = [turn.order for row in rows for turn in row.turns]
    answered_once = all(len(row.turns) == 1 for row in rows) and max(answers) < steps[0]
    return answered_once or not generations


def _one_step_each(calls: Seq[EnvironmentCall], rows: list[RowCalls]) -> None:
    """One environment, reset once, stepped once for each row: the reset belongs to all of them."""
    resets = [call for call in calls if call.kind == "reset"]
    steps = [call for call in calls if call.kind == "step"]
    for row, step in zip(rows, steps, strict=True):
        row.environment_calls.extend([*resets, step])
        row.note("position")
