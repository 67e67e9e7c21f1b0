"""Assign an episode to the row whose generations its steps came right after.

Trusted only where each answer is sent before the next one is asked for: a function that generates for all rows first
steps every environment after the same generation.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from itertools import pairwise, zip_longest
from math import inf

from logs_ui.recorder.capture.strands import Strand
from logs_ui.recorder.rows.attribution.assignment import Assignment
from logs_ui.recorder.rows.attribution.inferred.episode_comparison import Episode, has_failed
from logs_ui.recorder.rows.attribution.row_calls import Turn

_Orders = Mapping[Strand | None, list[int]]


def add_by_generations(state: Assignment, episodes: list[Episode], places: Seq[int]) -> list[Episode]:
    """Assign an episode to a row if each of its steps came right after a generation of that row alone, and no other
    episode stepped after the same one. Return the episodes that are left. Those of rows whose answers are
    interchangeable are not among them, but unattributed: later evidence rests on the answers, too.
    """
    owners: dict[int, set[int]] = defaultdict(set)
    for place in places:
        for turn in state.rows[place].turns:
            owners[turn.order].add(place)
    # `stepped` are the generations right before the steps of each episode. An episode without a step is judged by
    # the generation that it waited for. `likely` are the episodes for which these generations are of one row alone.
    near = _orders_near(state, {state.branches.of(call) for episode in episodes for call in episode})
    stepped = [_generations_before(state, episode, near) for episode in episodes]
    followed = [
        orders or waited for orders, waited in zip(stepped, _find_waited_for(state, episodes, near), strict=True)
    ]
    candidates = [set().union(*(owners[order] for order in orders)) for orders in followed]
    likely = {number for number, rows in enumerate(candidates) if len(rows) == 1}
    if not likely:
        return episodes
    times = Counter(
        order for episode, orders in zip(episodes, stepped, strict=True) if not has_failed(episode) for order in orders
    )
    # A generation right after another one shows nothing by itself, since the function may generate for all rows
    # first. It counts if another episode shows that each answer is sent before the next one is asked for.
    crowded = _find_crowded(state, near)
    exchangeable = _find_exchangeable(state, episodes, stepped, owners)
    are_in_turns = any(stepped[number] - crowded for number in likely)
    left = []
    for number, (episode, orders) in enumerate(zip(episodes, followed, strict=True)):
        is_clear = number in likely and (are_in_turns or not orders <= crowded)
        if is_clear and not orders.isdisjoint(exchangeable):
            state.unattributed += len(episode)
        elif is_clear and all(times[order] <= 1 for order in orders):
            state.add_calls(candidates[number].pop(), episode, "generation")
        else:
            left.append(episode)
    return left


def _orders_near(state: Assignment, branches: set[Strand | None]) -> _Orders:
    """Return the orders of the successful generations of each branch and above all branches; of all for no branch."""
    by_branch: dict[Strand | None, list[int]] = defaultdict(list)
    for generation in state.seen.generations:
        if generation.sequences:
            by_branch[state.branches.of(generation)].append(generation.order)
    near = {
        branch: sorted(by_branch[None] + by_branch[branch]) if branch in by_branch else by_branch[None]
        for branch in branches
    }
    return near | {None: sorted(order for orders in by_branch.values() for order in orders)}


def _generations_before(state: Assignment, episode: Episode, near: _Orders) -> set[int]:
    """Return the last generation before each step, among those near it."""
    nearest: set[int] = set()
    for step in (call for call in episode if call.kind != "reset"):
        orders = near[state.branches.of(step)]
        place = bisect_left(orders, step.order) - 1
        nearest.update(orders[place : place + 1] if place >= 0 else ())
    return nearest


def _find_crowded(state: Assignment, near: _Orders) -> set[int]:
    """Return the generations that came right after another one, with no environment call between.

    If a function generates for all rows first, the steps after the last generation may be any row's.
    """
    of = state.branches.of
    of_generation = {generation.order: of(generation) for generation in state.seen.generations}
    crowded: set[int] = set()
    for branch, orders in near.items():
        called = _calls_near(state, branch)
        for earlier, later in pairwise(orders):
            if of_generation[later] is branch and bisect_left(called, earlier) == bisect_left(called, later):
                crowded.add(later)
    return crowded


def _calls_near(state: Assignment, branch: Strand | None) -> list[int]:
    """Return the orders of the environment calls of a branch and above all branches; of all for no branch."""
    of = state.branches.of
    return [call.order for call in state.environment_calls if branch is None or of(call) in {None, branch}]


def _find_waited_for(state: Assignment, episodes: list[Episode], near: _Orders) -> list[set[int]]:
    """Return the generation that came next after each episode without a step, if no other environment had been reset
    and not stepped by then: else it could be the answer for any of them.
    """
    begun = [next((call.order for call in episode if call.kind != "reset"), inf) for episode in episodes]
    answers: list[set[int]] = [set() for _ in episodes]
    if max(begun, default=0) < inf:
        return answers
    failed, have_all_turns = state.failed_orders, all(row.turns for row in state.rows)
    branches = [state.branch_of(episode) for episode in episodes]
    of_generation = {generation.order: state.branches.of(generation) for generation in state.seen.generations}
    for number in (number for number, first in enumerate(begun) if first == inf):
        reset = episodes[number][-1].order
        orders = near[branches[number]]
        place = bisect_left(orders, reset)
        if place == len(orders):
            continue
        answer = orders[place]
        if any(reset < order < answer for order in failed):
            continue  # it waited for the failed one, and its row may have been given up
        if has_failed(episodes[number]) and any(reset < order < answer for order in begun):
            continue  # its row may have continued with another environment
        nearby = {None, of_generation[answer]}
        waiting = [
            episode
            for other, episode in enumerate(episodes)
            if not answers[other]
            and episode[0].order < answer < begun[other]
            and (len(nearby) == 1 or branches[other] in nearby)
        ]
        if len(waiting) == 1 or (have_all_turns and _is_one_tried_again(waiting)):
            answers[number].add(answer)
    return answers


def _is_one_tried_again(episodes: list[Episode]) -> bool:
    """Return True if all are of the last one's environment, which was reset again, or did not come up."""
    client = episodes[-1][0].client
    return not has_failed(episodes[-1]) and all(
        episode[0].client == client or has_failed(episode) for episode in episodes
    )


def _find_exchangeable(
    state: Assignment, episodes: list[Episode], before: Seq[set[int]], owners: Mapping[int, set[int]]
) -> set[int]:
    """Return the equal generations of two rows, one of which continues after both, if no episode tells which."""
    after = {order: i for i, orders in enumerate(before) for order in orders}
    episode_of = {call.order: i for i, episode in enumerate(episodes) for call in episode}
    called: dict[Strand | None, list[int]] = {}

    def is_continued(turn: Turn, later: Turn) -> bool:
        """Return True if one episode was stepped after both turns, or after the first and last before the later."""
        episode = after.get(turn.order)
        if episode is None or after.get(later.order) == episode:
            return episode is not None
        branch = state.branches.of(later.generation)
        if branch not in called:
            called[branch] = _calls_near(state, branch)
        place = bisect_left(called[branch], later.order)
        return place > 0 and episode_of.get(called[branch][place - 1]) == episode

    ends: dict[object, list[tuple[Turn, float]]] = defaultdict(list)
    open_ended: set[int] = set()
    for row in state.rows:
        turns = sorted(row.turns, key=lambda turn: turn.order)
        for turn, later in zip_longest(turns, turns[1:]):
            if len(owners.get(turn.order, ())) != 1:
                continue
            ends[_answer(turn)].append((turn, later.order if later else inf))
            if later and not is_continued(turn, later):
                open_ended.add(turn.order)
    exchangeable: set[int] = set()
    for alike in ends.values():
        for turn, end in (pair for pair in alike if pair[0].order in open_ended):
            twins = [
                twin.order
                for twin, until in alike
                if twin.order != turn.order
                and twin.order < end
                and turn.order < until
                and _prompt_of(twin) == _prompt_of(turn)
            ]
            exchangeable.update([turn.order, *twins] if twins else ())
    return exchangeable


def _answer(turn: Turn) -> object:
    """Return the answer with the context's length: whole contexts are compared only of turns that agree in these."""
    context, sampled = turn.sequence.context, turn.sequence.sampled
    return None if context is None else len(context), turn.sequence.text if sampled is None else sampled.tobytes()


def _prompt_of(turn: Turn) -> object:
    context = turn.sequence.context
    return turn.sequence.messages if context is None else context.tobytes()
