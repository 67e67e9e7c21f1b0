"""Whose environment calls are whose, once it is known whose the generations are."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from math import inf

from logs_ui.recorder.capture.calls import Generation, Ids
from logs_ui.recorder.capture.strands import Strand
from logs_ui.recorder.rows.attribution.assignment import Assignment
from logs_ui.recorder.rows.attribution.branches import place_of
from logs_ui.recorder.rows.attribution.inferred.after_generation import give_by_generations
from logs_ui.recorder.rows.attribution.inferred.by_action import (
    Contents,
    Episode,
    has_failed,
    is_plausible,
    is_stepped,
)
from logs_ui.recorder.rows.attribution.inferred.by_observation_reward import Outcomes
from logs_ui.recorder.rows.attribution.inferred.row_order import are_in_line, are_of_one_prompt, is_in_order
from logs_ui.recorder.rows.attribution.row_calls import RowCalls

Decode = Callable[[Ids], str]


def give_environment_calls(state: Assignment, decode: Decode, *, finished: bool) -> None:
    """Branch by branch where branches tell rows apart, then all that are left together. Where the function did not
    finish, its last rows have no episode yet.
    """
    if finished and _is_one_step_each(state):
        _give_one_step_each(state, decode)
        return
    homes = state.rows_by_branch()
    together: list[Episode] = []
    for episode in _episodes(state):
        branch = state.branch_of(episode)
        rows = homes.get(branch, [])
        if len(rows) == 1 and branch is not None and (finished or not _is_beyond(episode, state.rows[rows[0]])):
            state.add_calls(rows[0], episode, "strand")
        else:
            together.append(episode)
    together = _give_by_numbers(state, together, homes, finished=finished)
    for branch in _of_several(state, together, homes):
        own = [episode for episode in together if state.branch_of(episode) is branch]
        together = [episode for episode in together if state.branch_of(episode) is not branch]
        _give_by_order(state, own, homes[branch], decode, finished=finished)
    _give_by_order(state, together, list(range(len(state.rows))), decode, finished=finished)


def _is_beyond(episode: Episode, row: RowCalls) -> bool:
    """Whether it was begun after the row's last turn, and took no step yet: a worker may have gone to the next row."""
    return not is_stepped(episode) and episode[0].order > max((turn.order for turn in row.turns), default=inf)


def _of_several(state: Assignment, episodes: list[Episode], homes: Mapping[Strand | None, list[int]]) -> set[Strand]:
    """The branches that are a home of rows, and in which there are such episodes."""
    branches = {branch for branch in homes if branch}
    return branches and {branch for episode in episodes if (branch := state.branch_of(episode)) in branches and branch}


def _give_by_numbers(
    state: Assignment, episodes: list[Episode], homes: Mapping[Strand | None, list[int]], *, finished: bool
) -> list[Episode]:
    """Where there is a branch for each row, in the order in which they were started. Returns the episodes of others."""
    ranked = state.branch_of_each_row()
    if not ranked or not all(homes.get(branch, [place]) == [place] for place, branch in enumerate(ranked)):
        return episodes
    if not finished:
        bare = [place for place, row in enumerate(state.rows) if not row.turns]
        known = [homes.get(branch, [None])[0] for branch in ranked]
        if not are_of_one_prompt(state, bare) and not are_in_line(state, known):
            return episodes
    places: dict[Strand | None, int] = {branch: place for place, branch in enumerate(ranked)}
    left = []
    for episode in episodes:
        place = places.get(state.branch_of(episode))
        if place is None:
            left.append(episode)
        else:
            state.add_calls(place, episode, "order")
    return left


def _episodes(state: Assignment) -> list[Episode]:
    """A client's calls from one reset to the next, in the order in which they began; of each branch apart, where the
    client is stepped in several: it then has a session for each.
    """
    calls = [call for call in state.environment_calls if state.is_unassigned(call)]
    stepped: dict[int, set[Strand | None]] = defaultdict(set)
    reset: dict[int, set[Strand | None]] = defaultdict(set)
    for call in calls:
        (reset if call.kind == "reset" else stepped)[call.client].add(state.branches.of(call))
    in_sessions = {client for client, own in stepped.items() if len(reset[client]) > 1 and own <= reset[client]}
    current: dict[object, Episode] = {}
    episodes: list[Episode] = []
    for call in calls:
        session = (call.client, state.branches.of(call) if call.client in in_sessions else None)
        if call.kind == "reset" or session not in current:
            current[session] = []
            episodes.append(current[session])
        current[session].append(call)
    return episodes


def _is_one_step_each(state: Assignment) -> bool:
    """Whether one environment was stepped once for each row, after all rows had given their one answer; or, where no
    generation was seen, as often as there are rows.
    """
    steps = [call for call in state.environment_calls if call.kind == "step"]
    if (
        not len(steps) == len(state.rows) > 1
        or not all(map(state.is_unassigned, state.environment_calls))
        or len(_episodes(state)) != 1
    ):
        return False
    answers = [turn.order for row in state.rows for turn in row.turns]
    answered_once = all(len(row.turns) == 1 for row in state.rows) and max(answers) < steps[0].order
    return answered_once or not state.seen.generations


def _give_one_step_each(state: Assignment, decode: Decode) -> None:
    """One environment, reset once, stepped once for each row: the reset belongs to all of them."""
    steps = [[call] for call in state.environment_calls if call.kind == "step"]
    resets = [call for call in state.environment_calls if call.kind == "reset"]
    _give_as_they_stand(state, steps, range(len(state.rows)), decode, "position")
    given = [row for row in state.rows if row.environment_calls]
    for row in given:
        row.environment_calls = [*resets, *row.environment_calls]
    state.unattributed += 0 if given else len(resets)


def _give_by_order(
    state: Assignment, episodes: list[Episode], places: Seq[int], decode: Decode, *, finished: bool
) -> None:
    """By the generations that steps follow, then as many as there are rows left, in order."""
    left = give_by_generations(state, episodes, places)
    open_places = [place for place in places if not state.rows[place].environment_calls]
    enough = len(left) == len(open_places) if finished else _are_the_next(state, left, open_places)
    told = finished or _are_in_line(state, episodes, open_places)
    _give_as_they_stand(state, left, open_places if enough else (), decode, "order", open_places, told=told)


def _are_the_next(state: Assignment, episodes: Seq[Episode], places: Seq[int]) -> bool:
    """Whether these can be those of the next rows of a function that did not finish: as many as there are rows left; or
    all rows before have theirs, these were reset above all branches, before their rows answered, and none of them in
    place of one that failed.
    """
    if state.unmatched or len(episodes) >= len(places):
        return not state.unmatched and len(episodes) == len(places)
    if any(state.branches.of(episode[0]) for episode in episodes):
        return False
    begun = [place for place, row in enumerate(state.rows) if row.environment_calls]
    if not begun == list(range(len(begun))) == [*range(places[0] if places else 0)]:
        return False
    pairs = list(zip(episodes, places, strict=False))
    stepped_unanswered = any(is_stepped(episode) and not state.rows[place].turns for episode, place in pairs)
    return _is_ahead(state, pairs) and not stepped_unanswered and not any(map(has_failed, episodes[:-1]))


def _are_in_line(state: Assignment, episodes: Seq[Episode], places: Seq[int]) -> bool:
    """Whether a function that did not finish is seen to go through its rows in order, or it does not matter: the rows
    that have no call yet are of one prompt.
    """
    if are_of_one_prompt(state, places) and not any(state.rows[place].turns for place in places):
        return True
    of = {call.order: place for place, row in enumerate(state.rows) for call in row.environment_calls}
    return are_in_line(state, [of.get(episode[0].order) for episode in episodes])


def _give_as_they_stand(
    state: Assignment,
    episodes: list[Episode],
    places: Seq[int],
    decode: Decode,
    evidence: str,
    instead: Seq[int] = (),
    *,
    told: bool = True,
) -> None:
    """Those of which what came back tells whose they are; the others in the order in which they began, unless rows were
    not begun in theirs, or what was sent is against it. Then only those of which this tells alone; the rest is lost.

    `places` are those of the rows, one for each episode; empty where order says nothing. `instead` are rows to look
    among then. Where it is not `told` that rows are gone through in order, what was sent must show it.
    """
    rows = {place: state.rows[place] for place in places or instead}
    contents = Contents(episodes, rows, decode)
    # Rows that run are looked at again and again, and given by order until more is known.
    outcomes = Outcomes([] if state.is_running else episodes, rows, decode, state.returned, contents)
    sure = [*outcomes.alone(episodes)]
    is_all = 0 < len(sure) == len(episodes)
    pairs = None if is_all else _in_order(state, episodes, places, contents, outcomes, told=told)
    for episode, place, how in sure:
        state.add_calls(place, episode, how)
    if sure:
        episodes = [one for one in episodes if state.is_unassigned(one[0])]
        rows = {place: row for place, row in rows.items() if not row.environment_calls}
        if pairs is not None and _agree(pairs, sure):
            pairs = [pair for pair in pairs if pair[1] in rows]
        else:
            contents = Contents(episodes, rows, decode)
            pairs = _in_order(state, episodes, [one for one in places if one in rows], contents, outcomes, told=told)
    if pairs is None:
        pairs, evidence = list(contents.alone(episodes)), "action"
    state.unattributed += sum(map(len, episodes)) - sum(len(episode) for episode, _ in pairs)
    for episode, place in pairs:
        state.add_calls(place, episode, evidence)


def _agree(pairs: Seq[tuple[Episode, int]], sure: Seq[tuple[Episode, int, str]]) -> bool:
    """Whether these give no episode to two rows, and no row two."""
    places = {episode[0].order: place for episode, place, _ in sure}
    episodes = {place: episode[0].order for episode, place, _ in sure}
    return all(
        places.get(episode[0].order, place) == place and episodes.get(place, episode[0].order) == episode[0].order
        for episode, place in pairs
    )


def _in_order(
    state: Assignment,
    episodes: list[Episode],
    places: Seq[int],
    contents: Contents,
    outcomes: Outcomes,
    *,
    told: bool,
) -> list[tuple[Episode, int]] | None:
    """The episodes of which order tells whose they are: all, or, where one that failed may have been tried again for
    the same row, those that this leaves where they are. None where order tells nothing.
    """
    started = _as_started(state, episodes)
    if started is None or len(places) < len(started) or not is_in_order(state) or _may_be_anothers(state, started):
        return None
    pairs = list(zip(started, places, strict=False))
    if not all(is_plausible(episode, state.rows[place]) for episode, place in pairs) or not _is_ascending(state, pairs):
        return None
    ahead = _is_ahead(state, pairs)
    if contents.contradict(pairs, ahead=ahead) or outcomes.contradict(pairs):
        return None
    is_trusted = told and _is_stepped_as_reset(state, pairs)
    if not is_trusted and not contents.confirm(pairs) and not outcomes.confirm(pairs):
        return None
    if ahead or not any(has_failed(episode) or not is_stepped(episode) for episode in started):
        return pairs
    return list(contents.certain(started, places))


def _is_ahead(state: Assignment, pairs: Seq[tuple[Episode, int]]) -> bool:
    """Whether each environment was reset before its row had answered: then there is one for each row, whatever came of
    the answers. Of answers that were made later one may have had no episode, and another two.
    """
    answered = [min((turn.order for turn in state.rows[place].turns), default=None) for _, place in pairs]
    if not state.seen.generations and any(is_stepped(episode) for episode, _ in pairs):
        return False
    return all(
        episode[0].kind == "reset" and (order is None or episode[0].order < order)
        for (episode, _), order in zip(pairs, answered, strict=True)
    )


def _may_be_anothers(state: Assignment, episodes: Seq[Episode]) -> bool:
    """Whether one was begun after a generation failed: an environment may have been reset again to ask again, and a row
    been given up.
    """
    return min(state.failed_orders, default=inf) < max((episode[0].order for episode in episodes), default=-1)


def _is_stepped_as_reset(state: Assignment, pairs: Seq[tuple[Episode, int]]) -> bool:
    """Whether environments were stepped in the order in which they were reset, wherever several were between two
    generations: else one of both is not the rows' order.
    """
    made = sorted(generation.order for generation in state.seen.generations)
    rounds: dict[int, list[tuple[tuple[int, int], int]]] = defaultdict(list)
    for place, (episode, _) in enumerate(pairs):
        for call in episode:
            if call.kind != "reset":
                key = place_of(state.branches.of(call)), call.order
                rounds[bisect_right(made, call.order)].append((key, place))
    stepped = [[place for _, place in sorted(steps)] for steps in rounds.values()]
    return all(places == sorted(places) for places in stepped)


def _as_started(state: Assignment, episodes: list[Episode]) -> list[Episode] | None:
    """In the order in which rows were begun: episodes of strands that ran side by side in the order in which these were
    started. None where that is not known.
    """
    started = [state.branches.of(episode[0]) for episode in episodes]
    if len(set(started)) <= 1:
        return episodes
    known = {branch for branch in started if branch is not None and not branch.is_stray}
    if len(known) < len(episodes):  # several in one, or some above all, or of strands that nobody saw start
        return None
    return [episodes[i] for i in sorted(range(len(episodes)), key=lambda i: place_of(started[i]))]


def _is_ascending(state: Assignment, pairs: Seq[tuple[Episode, int]]) -> bool:
    """Whether these, and what other rows were given in the same strands, began in the order of the rows."""
    mine = {state.branches.of(episode[0]) for episode, _ in pairs}
    begun = [(place, episode[0]) for episode, place in pairs]
    for place, row in enumerate(state.rows):
        first = min(row.environment_calls, key=lambda call: call.order, default=None)
        if first is not None and state.branches.of(first) in mine:
            begun.append((place, first))
    orders = [(place_of(state.branches.of(call)), call.order) for _, call in sorted(begun, key=lambda one: one[0])]
    return orders == sorted(orders)


def give_functions(state: Assignment) -> None:
    """Tools that are functions, and have no episode: by their strand, else by the generation that they follow."""
    left = [call for call in state.tool_functions if state.is_unassigned(call)]
    homes = state.rows_by_branch() if left else {}
    for call in left:
        branch = state.branches.of(call)
        rows = homes.get(branch, []) if branch is not None else []
        if len(rows) == 1:
            state.add_calls(rows[0], [call], "strand")
            continue
        before = [g for g in state.seen.generations if g.order < call.order and state.branches.of(g) is branch]
        asked = before[-1].order if before else -1
        found = {i for i, row in enumerate(state.rows) for turn in row.turns if turn.order == asked}
        if len(found) == 1:
            state.add_calls(found.pop(), [call], "generation")
        else:
            state.unattributed += 1


def give_leftovers(state: Assignment) -> None:
    """Generations whose tokens stand in no row, as where only the last turn is returned: by their strand, else by the
    row whose environment was stepped next.
    """
    homes = state.rows_by_branch() if state.unmatched else {}
    for turn in [part for chain in state.unmatched for part in chain.split()]:
        generation, branch = turn.parts[0][0], state.branches.of(turn.parts[0][0])
        rows = homes.get(branch, []) if branch is not None else []
        index = rows[0] if len(rows) == 1 else _answered_by(state, generation)
        if (
            index is None
            or index not in (turn.candidate_rows or [index])
            or not state.is_of_its_model(generation, index)
        ):
            state.unattributed += 1
        else:
            state.add_chain(index, turn, [None], "strand" if len(rows) == 1 else "generation")


def _answered_by(state: Assignment, generation: Generation) -> int | None:
    """The row whose environment was stepped between this generation and the next; None unless it is one alone."""
    if len(generation.sequences) != 1:
        return None
    branch = state.branches.of(generation)
    orders = [other.order for other in state.seen.generations]
    place = bisect_right(orders, generation.order)
    end = orders[place] if place < len(orders) else inf
    found = {
        index
        for index, row in enumerate(state.rows)
        for call in row.environment_calls
        if call.kind != "reset" and generation.order < call.order < end
        if branch is None or state.branches.of(call) in {None, branch}
    }
    return found.pop() if len(found) == 1 else None
