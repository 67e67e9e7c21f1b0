"""Whose environment calls are whose, once it is known whose the generations are."""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from math import inf

from logs_ui.recorder.attribution.chains import place_of
from logs_ui.recorder.attribution.contents import Contents, Episode
from logs_ui.recorder.attribution.found import RowCalls
from logs_ui.recorder.attribution.work import Work
from logs_ui.recorder.calls import Generation, Ids
from logs_ui.recorder.strands import Strand

Decode = Callable[[Ids], str]


def give_environment_calls(work: Work, decode: Decode, *, finished: bool) -> None:
    """Branch by branch where branches tell rows apart, then all that are left together. Where the function did not
    finish, its last rows have no episode yet.
    """
    if finished and _is_one_step_each(work):
        _give_one_step_each(work, decode)
        return
    homes = work.homes()
    together: list[Episode] = []
    for episode in _episodes(work):
        branch = work.branch_of(episode)
        rows = homes.get(branch, [])
        if len(rows) == 1 and branch is not None:
            work.give_calls(rows[0], episode, "strand")
        else:
            together.append(episode)
    together = _give_by_numbers(work, together, homes)
    for branch in _of_several(work, together, homes):
        own = [episode for episode in together if work.branch_of(episode) is branch]
        together = [episode for episode in together if work.branch_of(episode) is not branch]
        _give_by_order(work, own, homes[branch], decode, finished=True)
    _give_by_order(work, together, list(range(len(work.rows))), decode, finished=finished)


def _of_several(work: Work, episodes: list[Episode], homes: Mapping[Strand | None, list[int]]) -> set[Strand]:
    """The branches that are a home of rows, and in which there are such episodes."""
    branches = {branch for branch in homes if branch}
    return branches and {branch for episode in episodes if (branch := work.branch_of(episode)) in branches and branch}


def _give_by_numbers(work: Work, episodes: list[Episode], homes: Mapping[Strand | None, list[int]]) -> list[Episode]:
    """Where there is a branch for each row, in the order in which they were started. Returns the episodes of others."""
    ranked = work.numbered()
    if not ranked or not all(homes.get(branch, [place]) == [place] for place, branch in enumerate(ranked)):
        return episodes
    places: dict[Strand | None, int] = {branch: place for place, branch in enumerate(ranked)}
    left = []
    for episode in episodes:
        place = places.get(work.branch_of(episode))
        if place is None:
            left.append(episode)
        else:
            work.give_calls(place, episode, "order")
    return left


def _episodes(work: Work) -> list[Episode]:
    """A client's calls from one reset to the next, in the order in which they began; of each branch apart, where the
    client is stepped in several: it then has a session for each.
    """
    calls = [call for call in work.own if work.is_open(call)]
    stepped: dict[int, set[Strand | None]] = defaultdict(set)
    reset: dict[int, set[Strand | None]] = defaultdict(set)
    for call in calls:
        (reset if call.kind == "reset" else stepped)[call.client].add(work.branches.of(call))
    in_sessions = {client for client, own in stepped.items() if len(own) > 1 and own == reset[client]}
    current: dict[object, Episode] = {}
    episodes: list[Episode] = []
    for call in calls:
        session = (call.client, work.branches.of(call) if call.client in in_sessions else None)
        if call.kind == "reset" or session not in current:
            current[session] = []
            episodes.append(current[session])
        current[session].append(call)
    return episodes


def _is_one_step_each(work: Work) -> bool:
    """Whether one environment was stepped once for each row, after all rows had given their one answer; or, where no
    generation was seen, as often as there are rows.
    """
    steps = [call for call in work.own if call.kind == "step"]
    if not len(steps) == len(work.rows) > 1 or not all(map(work.is_open, work.own)) or len(_episodes(work)) != 1:
        return False
    answers = [turn.order for row in work.rows for turn in row.turns]
    answered_once = all(len(row.turns) == 1 for row in work.rows) and max(answers) < steps[0].order
    return answered_once or not work.seen.generations


def _give_one_step_each(work: Work, decode: Decode) -> None:
    """One environment, reset once, stepped once for each row: the reset belongs to all of them."""
    steps = [[call] for call in work.own if call.kind == "step"]
    resets = [call for call in work.own if call.kind == "reset"]
    _give_as_they_stand(work, steps, range(len(work.rows)), decode, "position")
    given = [row for row in work.rows if row.environment_calls]
    for row in given:
        row.environment_calls = [*resets, *row.environment_calls]
    work.lost += 0 if given else len(resets)


def _give_by_order(work: Work, episodes: list[Episode], places: Seq[int], decode: Decode, *, finished: bool) -> None:
    """By the generations that steps follow, then as many as there are rows left, in order."""
    left = _give_by_generations(work, episodes, places)
    open_places = [place for place in places if not work.rows[place].environment_calls]
    enough = len(left) == len(open_places) if finished else len(left) <= len(open_places)
    _give_as_they_stand(work, left, open_places if enough else (), decode, "order", [*open_places])


def _give_as_they_stand(
    work: Work, episodes: list[Episode], places: Seq[int], decode: Decode, evidence: str, instead: Seq[int] = ()
) -> None:
    """In the order in which they began, unless rows were not begun in theirs, or what was sent is against it. Then only
    those of which this tells alone whose they are; the others are lost.

    `places` are those of the rows, one for each episode; empty where order says nothing. `instead` are rows to look
    among then.
    """
    rows = {place: work.rows[place] for place in places or instead}
    contents = Contents(episodes, rows, decode)
    started = _as_started(work, episodes)
    if started is not None and len(places) >= len(started) and work.is_in_order():
        pairs = list(zip(started, places, strict=False))
        likely = all(_is_plausible(episode, work.rows[place]) for episode, place in pairs)
        if likely and _is_ascending(work, pairs) and not contents.contradict(pairs):
            for episode, place in pairs:
                work.give_calls(place, episode, evidence)
            return
    work.lost += sum(len(episode) for episode in episodes)
    for episode, place in contents.alone(episodes):
        work.lost -= len(episode)
        work.give_calls(place, episode, "action")


def _as_started(work: Work, episodes: list[Episode]) -> list[Episode] | None:
    """In the order in which rows were begun: episodes of strands that ran side by side in the order in which these were
    started. None where that is not known.
    """
    started = [work.branches.of(episode[0]) for episode in episodes]
    if len(set(started)) <= 1:
        return episodes
    known = {branch for branch in started if branch is not None and not branch.is_stray}
    if len(known) < len(episodes):  # several in one, or some above all, or of strands that nobody saw start
        return None
    return [episodes[i] for i in sorted(range(len(episodes)), key=lambda i: place_of(started[i]))]


def _is_ascending(work: Work, pairs: Seq[tuple[Episode, int]]) -> bool:
    """Whether these, and what other rows were given in the same strands, began in the order of the rows."""
    mine = {work.branches.of(episode[0]) for episode, _ in pairs}
    begun = [(place, episode[0]) for episode, place in pairs]
    for place, row in enumerate(work.rows):
        first = min(row.environment_calls, key=lambda call: call.order, default=None)
        if first is not None and work.branches.of(first) in mine:
            begun.append((place, first))
    orders = [(place_of(work.branches.of(call)), call.order) for _, call in sorted(begun, key=lambda one: one[0])]
    return orders == sorted(orders)


def _give_by_generations(work: Work, episodes: list[Episode], places: Seq[int]) -> list[Episode]:
    """Gives an episode to a row if each of its steps came right after a generation of that row alone, and no other
    episode stepped after the same one: a function that generates for all rows first gives no such evidence.

    Returns:
        The episodes that are left.
    """
    owners: dict[int, set[int]] = defaultdict(set)
    for place in places:
        for turn in work.rows[place].turns:
            owners[turn.order].add(place)
    branches = [work.branch_of(episode) for episode in episodes]
    beside = {branch: _orders_beside(work, branch) for branch in set(branches)}
    before = [_generations_of(episode, beside[branch]) for episode, branch in zip(episodes, branches, strict=True)]
    stepped = Counter(
        order
        for episode, found in zip(episodes, before, strict=True)
        if not any(call.error for call in episode) and any(call.kind != "reset" for call in episode)
        for order in found
    )
    left = []
    for episode, found in zip(episodes, before, strict=True):
        candidates = set().union(*(owners[order] for order in found))
        if len(candidates) == 1 and all(stepped[order] <= 1 for order in found):
            work.give_calls(candidates.pop(), episode, "generation")
        else:
            left.append(episode)
    return left


def _orders_beside(work: Work, branch: Strand | None) -> list[int]:
    """Of the generations of a branch, and of those above all branches; of all for what is in no branch."""
    return [one.order for one in work.seen.generations if branch is None or work.branches.of(one) in {None, branch}]


def _generations_of(episode: Episode, orders: list[int]) -> set[int]:
    """The generations that an episode goes with: the last one before each step; the next one where it took no step."""
    steps = [call for call in episode if call.kind != "reset"]
    if steps:
        places = [bisect_left(orders, step.order) - 1 for step in steps]
    else:
        places = [bisect_left(orders, episode[-1].order)]
    return {orders[place] for place in places if 0 <= place < len(orders)}


def _is_plausible(episode: Episode, row: RowCalls) -> bool:
    """Whether a row could have made these steps: no more of them than answers, and none before its first."""
    steps = [call for call in episode if call.kind != "reset" and call.error is None]
    if not row.turns or not steps:
        return True
    return len(steps) <= len(row.turns) and steps[0].order > row.turns[0].order


def give_functions(work: Work) -> None:
    """Tools that are functions, and have no episode: by their strand, else by the generation that they follow."""
    left = [call for call in work.functions if work.is_open(call)]
    homes = work.homes() if left else {}
    for call in left:
        branch = work.branches.of(call)
        rows = homes.get(branch, []) if branch is not None else []
        if len(rows) == 1:
            work.give_calls(rows[0], [call], "strand")
            continue
        before = [g for g in work.seen.generations if g.order < call.order and work.branches.of(g) is branch]
        asked = before[-1].order if before else -1
        found = {i for i, row in enumerate(work.rows) for turn in row.turns if turn.order == asked}
        if len(found) == 1:
            work.give_calls(found.pop(), [call], "generation")
        else:
            work.lost += 1


def give_leftovers(work: Work) -> None:
    """Generations whose tokens stand in no row, as where only the last turn is returned: by their strand, else by the
    row whose environment was stepped next.
    """
    homes = work.homes() if work.left else {}
    for turn in [part for chain in work.left for part in chain.split()]:
        rows = homes.get(turn.branch, []) if turn.branch is not None else []
        index = rows[0] if len(rows) == 1 else _answered_by(work, turn.parts[0][0])
        if index is None or not work.is_of_its_model(turn.parts[0][0], index):
            work.lost += 1
        else:
            work.give(index, turn, [None], "strand" if len(rows) == 1 else "generation")


def _answered_by(work: Work, generation: Generation) -> int | None:
    """The row whose environment was stepped between this generation and the next; None unless it is one alone."""
    if len(generation.sequences) != 1:
        return None
    orders = [other.order for other in work.seen.generations]
    place = bisect_right(orders, generation.order)
    end = orders[place] if place < len(orders) else inf
    found = {
        index
        for index, row in enumerate(work.rows)
        for call in row.environment_calls
        if call.kind != "reset" and generation.order < call.order < end
    }
    return found.pop() if len(found) == 1 else None
