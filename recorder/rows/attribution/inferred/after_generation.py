"""Which episodes follow the generations of one row alone."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from itertools import pairwise, zip_longest
from math import inf

from logs_ui.recorder.capture.strands import Strand
from logs_ui.recorder.rows.attribution.assignment import Assignment
from logs_ui.recorder.rows.attribution.inferred.by_action import Episode, has_failed
from logs_ui.recorder.rows.attribution.row_calls import Turn

_Orders = Mapping[Strand | None, list[int]]


def give_by_generations(state: Assignment, episodes: list[Episode], places: Seq[int]) -> list[Episode]:
    """Gives an episode to a row if each of its steps came right after a generation of that row alone, and no other
    episode stepped after the same one: a function that generates for all rows first gives no such evidence. Those of
    rows whose answers may have been exchanged are lost, since those answers tell nothing.

    Returns:
        The episodes that are left.
    """
    owners: dict[int, set[int]] = defaultdict(set)
    for place in places:
        for turn in state.rows[place].turns:
            owners[turn.order].add(place)
    beside = _orders_beside(state, {state.branches.of(call) for episode in episodes for call in episode})
    stepped = [_generations_before(state, episode, beside) for episode in episodes]
    followed = [found or waited for found, waited in zip(stepped, _waited_for(state, episodes, beside), strict=True)]
    candidates = [set().union(*(owners[order] for order in orders)) for orders in followed]
    likely = {i for i, found in enumerate(candidates) if len(found) == 1}
    if not likely:
        return episodes
    times = Counter(
        order for episode, orders in zip(episodes, stepped, strict=True) if not has_failed(episode) for order in orders
    )
    crowded = _crowded(state, beside)
    exchangeable = _exchangeable(state, episodes, stepped, owners)
    are_in_turns = any(stepped[i] - crowded for i in likely)
    left = []
    for i, (episode, orders) in enumerate(zip(episodes, followed, strict=True)):
        is_told = i in likely and (are_in_turns or not orders <= crowded)
        if is_told and not orders.isdisjoint(exchangeable):
            state.unattributed += len(episode)
        elif is_told and all(times[order] <= 1 for order in orders):
            state.add_calls(candidates[i].pop(), episode, "generation")
        else:
            left.append(episode)
    return left


def _orders_beside(state: Assignment, branches: set[Strand | None]) -> _Orders:
    """Of the generations of a branch, and of those above all branches; of all for what is in no branch. One that failed
    is followed by nothing.
    """
    made: dict[Strand | None, list[int]] = defaultdict(list)
    for generation in state.seen.generations:
        if generation.sequences:
            made[state.branches.of(generation)].append(generation.order)
    beside = {branch: sorted(made[None] + made[branch]) if branch in made else made[None] for branch in branches}
    return beside | {None: sorted(order for orders in made.values() for order in orders)}


def _generations_before(state: Assignment, episode: Episode, beside: _Orders) -> set[int]:
    """Of the generations beside each step, the last one before it."""
    found: set[int] = set()
    for step in (call for call in episode if call.kind != "reset"):
        orders = beside[state.branches.of(step)]
        place = bisect_left(orders, step.order) - 1
        found.update(orders[place : place + 1] if place >= 0 else ())
    return found


def _crowded(state: Assignment, beside: _Orders) -> set[int]:
    """Generations that came right after another one, with no environment call between: as where a function generates
    for all rows first, and then the steps after the last of them are anybody's.
    """
    of = state.branches.of
    of_generation = {one.order: of(one) for one in state.seen.generations}
    found: set[int] = set()
    for branch, orders in beside.items():
        called = [call.order for call in state.environment_calls if branch is None or of(call) in {None, branch}]
        for earlier, later in pairwise(orders):
            if of_generation[later] is branch and bisect_left(called, earlier) == bisect_left(called, later):
                found.add(later)
    return found


def _waited_for(state: Assignment, episodes: list[Episode], beside: _Orders) -> list[set[int]]:
    """The generation that came next after each episode without a step, where nothing else can be meant: where more
    environments had been reset by then, and wait for their rows' answers, it could be any of them.
    """
    begun = [next((call.order for call in episode if call.kind != "reset"), inf) for episode in episodes]
    found: list[set[int]] = [set() for _ in episodes]
    if max(begun, default=0) < inf:
        return found
    failed, have_all_turns = state.failed_orders, all(row.turns for row in state.rows)
    branches = [state.branch_of(episode) for episode in episodes]
    of_generation = {one.order: state.branches.of(one) for one in state.seen.generations}
    for i in (i for i, first in enumerate(begun) if first == inf):
        orders = beside[branches[i]]
        place = bisect_left(orders, episodes[i][-1].order)
        if place == len(orders):
            continue
        asked = orders[place]
        if any(episodes[i][-1].order < order < asked for order in failed):
            continue  # it waited for that one, and its row may have been given up
        if has_failed(episodes[i]) and any(episodes[i][-1].order < order < asked for order in begun):
            continue  # its row may have gone on with another environment
        own = {None, of_generation[asked]}
        waiting = [
            episode
            for j, episode in enumerate(episodes)
            if not found[j] and episode[0].order < asked < begun[j] and (len(own) == 1 or branches[j] in own)
        ]
        if len(waiting) == 1 or (have_all_turns and _is_one_tried_again(waiting)):
            found[i].add(asked)
    return found


def _is_one_tried_again(episodes: list[Episode]) -> bool:
    """Whether these are of one environment, the last of them, that was reset before or did not come up at first."""
    client = episodes[-1][0].client
    return not has_failed(episodes[-1]) and all(one[0].client == client or has_failed(one) for one in episodes)


def _exchangeable(
    state: Assignment, episodes: list[Episode], before: Seq[set[int]], owners: Mapping[int, set[int]]
) -> set[int]:
    """Generations that were asked the same and said the same for two rows, of which one goes on after both, and by no
    episode: its next turn goes on from either.
    """
    goes_on = _Continuations(state, episodes, before)
    ends: dict[object, list[tuple[Turn, float]]] = defaultdict(list)
    open_ended: set[int] = set()
    for row in state.rows:
        own = sorted(row.turns, key=lambda turn: turn.order)
        for turn, later in zip_longest(own, own[1:]):
            if len(owners.get(turn.order, ())) != 1:
                continue
            ends[_said(turn)].append((turn, later.order if later else inf))
            if later and not goes_on.by_episode(turn, later):
                open_ended.add(turn.order)
    found: set[int] = set()
    for alike in ends.values():
        for turn, end in (one for one in alike if one[0].order in open_ended):
            twins = [
                twin.order
                for twin, until in alike
                if twin.order != turn.order and twin.order < end and turn.order < until and _is_asked_alike(twin, turn)
            ]
            found.update([turn.order, *twins] if twins else ())
    return found


class _Continuations:
    """Which turns are known to go on from which by the episodes between them."""

    def __init__(self, state: Assignment, episodes: list[Episode], before: Seq[set[int]]) -> None:
        self._state = state
        self._after = {order: i for i, found in enumerate(before) for order in found}
        self._episode = {call.order: i for i, episode in enumerate(episodes) for call in episode}
        self._calls: dict[Strand | None, list[int]] = {}

    def by_episode(self, turn: Turn, later: Turn) -> bool:
        """Whether the episode that was stepped after a turn was stepped after the later one, too, or last before it."""
        episode = self._after.get(turn.order)
        if episode is None:
            return False
        if self._after.get(later.order) == episode:
            return True
        calls = self._beside(self._state.branches.of(later.generation))
        place = bisect_left(calls, later.order)
        return place > 0 and self._episode.get(calls[place - 1]) == episode

    def _beside(self, branch: Strand | None) -> list[int]:
        if branch not in self._calls:
            of = self._state.branches.of
            self._calls[branch] = [
                call.order for call in self._state.environment_calls if branch is None or of(call) in {None, branch}
            ]
        return self._calls[branch]


def _said(turn: Turn) -> object:
    context, sampled = turn.sequence.context, turn.sequence.sampled
    return None if context is None else len(context), turn.sequence.text if sampled is None else sampled.tobytes()


def _is_asked_alike(one: Turn, other: Turn) -> bool:
    return _asked(one) == _asked(other)


def _asked(turn: Turn) -> object:
    context = turn.sequence.context
    return turn.sequence.messages if context is None else context.tobytes()
