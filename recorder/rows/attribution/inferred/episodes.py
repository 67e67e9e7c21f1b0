"""Assign environment calls to rows, once generations have rows.

Calls are taken by episode: what one client did from one reset to the next. Kinds of evidence are tried from the
strongest to the weakest: strand, generation, then observation, reward, order and action.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from collections.abc import Sequence as Seq
from math import inf
from operator import itemgetter

from logs_ui.recorder.capture.calls import EnvironmentCall, Generation
from logs_ui.recorder.capture.model_answers import Ids
from logs_ui.recorder.capture.strands import Strand
from logs_ui.recorder.rows.attribution.assignment import Assignment
from logs_ui.recorder.rows.attribution.branches import Branches, place_of
from logs_ui.recorder.rows.attribution.inferred.after_generation import add_by_generations
from logs_ui.recorder.rows.attribution.inferred.by_action import Actions
from logs_ui.recorder.rows.attribution.inferred.by_observation_reward import Outcomes
from logs_ui.recorder.rows.attribution.inferred.episode_comparison import Episode, has_failed, is_plausible, is_stepped
from logs_ui.recorder.rows.attribution.inferred.row_order import are_in_line, are_of_one_prompt, is_in_order
from logs_ui.recorder.rows.attribution.row_calls import RowCalls

Decode = Callable[[Ids], str]


def add_environment_calls(state: Assignment, decode: Decode, *, finished: bool) -> None:
    """Assign episodes branch by branch, if branches tell rows apart, then all that are left together. If the function
    is not `finished`, its last rows may have no episode yet.
    """
    if finished and _is_one_step_each(state):
        _add_one_step_each(state, decode)
        return
    rows_of = state.rows_by_branch()
    together: list[Episode] = []
    for episode in _list_unassigned(state):
        branch = state.branch_of(episode)
        rows = rows_of.get(branch, [])
        if len(rows) == 1 and (finished or not _is_beyond(episode, state.rows[rows[0]])):
            state.add_calls(rows[0], episode, "strand")
        else:
            together.append(episode)
    for branch in {state.branch_of(episode) for episode in together} & rows_of.keys():
        of_branch = [episode for episode in together if state.branch_of(episode) is branch]
        together = [episode for episode in together if state.branch_of(episode) is not branch]
        _add_together(state, of_branch, rows_of[branch], decode, finished=finished)
    _add_together(state, together, list(range(len(state.rows))), decode, finished=finished)


def _is_beyond(episode: Episode, row: RowCalls) -> bool:
    """Return True if it began after the row's last turn, without a step: a worker may have begun the next row."""
    return not is_stepped(episode) and episode[0].order > max((turn.order for turn in row.turns), default=inf)


def _list_unassigned(state: Assignment) -> list[Episode]:
    return episodes_of([call for call in state.environment_calls if state.is_unassigned(call)], state.branches)


def episodes_of(calls: Seq[EnvironmentCall], branches: Branches) -> list[Episode]:
    """Return the episodes as they began. A client that is reset and stepped in several branches has one in each."""
    stepped: dict[int, set[Strand | None]] = defaultdict(set)
    reset: dict[int, set[Strand | None]] = defaultdict(set)
    for call in calls:
        (reset if call.kind == "reset" else stepped)[call.client].add(branches.of(call))
    # A client that is stepped only in branches in which it was also reset plays an episode of its own in each of
    # them.
    in_sessions = {
        client for client, sessions in stepped.items() if len(reset[client]) > 1 and sessions <= reset[client]
    }
    current: dict[object, Episode] = {}
    episodes: list[Episode] = []
    for call in calls:
        session = (call.client, branches.of(call) if call.client in in_sessions else None)
        if call.kind == "reset" or session not in current:
            current[session] = []
            episodes.append(current[session])
        current[session].append(call)
    return episodes


def _is_one_step_each(state: Assignment) -> bool:
    """Return True if one environment was stepped once for each row, after all rows' only answers, if any were seen."""
    steps = [call for call in state.environment_calls if call.kind == "step"]
    if (
        not len(steps) == len(state.rows) > 1
        or not all(map(state.is_unassigned, state.environment_calls))
        or len(_list_unassigned(state)) != 1
    ):
        return False
    answers = [turn.order for row in state.rows for turn in row.turns]
    answered_once = all(len(row.turns) == 1 for row in state.rows) and max(answers) < steps[0].order
    return answered_once or not state.seen.generations


def _add_one_step_each(state: Assignment, decode: Decode) -> None:
    """Assign one step to each row, by position; the reset belongs to all rows."""
    steps = [[call] for call in state.environment_calls if call.kind == "step"]
    resets = [call for call in state.environment_calls if call.kind == "reset"]
    _add_in_order(state, steps, range(len(state.rows)), decode, "position")
    with_step = [row for row in state.rows if row.environment_calls]
    for row in with_step:
        row.environment_calls = [*resets, *row.environment_calls]
    state.unattributed += 0 if with_step else len(resets)


def _add_together(
    state: Assignment, episodes: list[Episode], places: Seq[int], decode: Decode, *, finished: bool
) -> None:
    """Assign episodes by the generations before their steps, then in order, if there is one for each row left."""
    left = add_by_generations(state, episodes, places)
    open_places = [place for place in places if not state.rows[place].environment_calls]
    enough = len(left) == len(open_places) if finished else _are_the_next(state, left, open_places)
    is_known = finished or _are_rows_in_line(state, episodes, open_places)
    _add_in_order(state, left, open_places if enough else (), decode, "order", open_places, is_known=is_known)


def _are_the_next(state: Assignment, episodes: Seq[Episode], places: Seq[int]) -> bool:
    """Return True if these can be the next rows' episodes, in a function that did not finish: as many as rows are left;
    or all earlier rows have theirs, and these were reset above all branches, before their rows answered, none of them
    in place of one that failed.
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


def _are_rows_in_line(state: Assignment, episodes: Seq[Episode], places: Seq[int]) -> bool:
    """Return True if an unfinished function went through its rows in order, or its idle rows have one prompt."""
    if are_of_one_prompt(state, places) and not any(state.rows[place].turns for place in places):
        return True
    of = {call.order: place for place, row in enumerate(state.rows) for call in row.environment_calls}
    return are_in_line(state, [of.get(episode[0].order) for episode in episodes])


def _add_in_order(
    state: Assignment, episodes: list[Episode], places: Seq[int], decode: Decode, evidence: str,
    instead: Seq[int] = (), *, is_known: bool = True,
) -> None:  # fmt: skip
    """Assign episodes by observations and rewards, the others in the order in which they began. If order is not to be
    trusted, assigns those that actions place alone; the rest is unattributed.

    `places` are rows, one for each episode; where order shows nothing they are empty, and the rows `instead` are chosen
    from. `evidence` is "order" or "position". If it is not `is_known` that rows are gone through in order, actions or
    outcomes must confirm it.
    """
    rows = {place: state.rows[place] for place in places or instead}
    actions = Actions(episodes, rows, decode)
    # Rows that run are assigned again and again; a search for observations each time would cost too much.
    outcomes = Outcomes([] if state.is_running else episodes, rows, decode, state.returned, actions)
    # What observations and rewards place alone is sure. The order of all episodes is judged beside it: where the
    # two agree, the order places the rest; where they do not, it is judged again for the rest alone.
    sure = [*outcomes.alone(episodes)]
    is_all = 0 < len(sure) == len(episodes)
    pairs = None if is_all else _in_order(state, episodes, places, actions, outcomes, is_known=is_known)
    for episode, place, how in sure:
        state.add_calls(place, episode, how)
    if sure:
        episodes = [episode for episode in episodes if state.is_unassigned(episode[0])]
        rows = {place: row for place, row in rows.items() if not row.environment_calls}
        if pairs is not None and _agree(pairs, sure):
            pairs = [pair for pair in pairs if pair[1] in rows]
        else:
            actions = Actions(episodes, rows, decode)
            pairs = _in_order(
                state, episodes, [place for place in places if place in rows], actions, outcomes, is_known=is_known
            )
    if pairs is None:
        pairs, evidence = list(actions.alone(episodes)), "action"
    state.unattributed += sum(map(len, episodes)) - sum(len(episode) for episode, _ in pairs)
    for episode, place in pairs:
        state.add_calls(place, episode, evidence)


def _agree(pairs: Seq[tuple[Episode, int]], sure: Seq[tuple[Episode, int, str]]) -> bool:
    """Return True if these pairs give no episode to two rows, and no row two."""
    places = {episode[0].order: place for episode, place, _ in sure}
    episodes = {place: episode[0].order for episode, place, _ in sure}
    return all(
        places.get(episode[0].order, place) == place and episodes.get(place, episode[0].order) == episode[0].order
        for episode, place in pairs
    )


def _in_order(
    state: Assignment, episodes: list[Episode], places: Seq[int], actions: Actions, outcomes: Outcomes, *,
    is_known: bool,
) -> list[tuple[Episode, int]] | None:  # fmt: skip
    """Return the episodes with the rows that order gives them: all, or, if one that failed may have been tried again,
    those that have one possible row all the same. Return None if order is not to be trusted.
    """
    started = _in_start_order(state, episodes)
    # If one began after a failed generation, a row may have been given up, or asked again.
    after_failure = min(state.failed_orders, default=inf) < max((episode[0].order for episode in episodes), default=-1)
    if started is None or len(places) < len(started) or not is_in_order(state) or after_failure:
        return None
    pairs = list(zip(started, places, strict=False))
    if not all(is_plausible(episode, state.rows[place]) for episode, place in pairs) or not _is_ascending(state, pairs):
        return None
    ahead = _is_ahead(state, pairs)
    if actions.contradict(pairs, ahead=ahead) or outcomes.contradict(pairs):
        return None
    is_trusted = is_known and _is_stepped_as_reset(state, pairs)
    if not is_trusted and not actions.confirm(pairs) and not outcomes.confirm(pairs):
        return None
    if ahead or not any(has_failed(episode) or not is_stepped(episode) for episode in started):
        return pairs
    return list(actions.certain(started, places))


def _is_ahead(state: Assignment, pairs: Seq[tuple[Episode, int]]) -> bool:
    """Return True if each environment was reset before its row had answered: then there is one for each row."""
    answered = [min((turn.order for turn in state.rows[place].turns), default=None) for _, place in pairs]
    if not state.seen.generations and any(is_stepped(episode) for episode, _ in pairs):
        return False
    return all(
        episode[0].kind == "reset" and (order is None or episode[0].order < order)
        for (episode, _), order in zip(pairs, answered, strict=True)
    )


def _is_stepped_as_reset(state: Assignment, pairs: Seq[tuple[Episode, int]]) -> bool:
    """Return True if between any two generations environments were stepped in the order in which they were reset."""
    orders = sorted(generation.order for generation in state.seen.generations)
    rounds: dict[int, list[tuple[tuple[int, int], int]]] = defaultdict(list)
    for place, (episode, _) in enumerate(pairs):
        for call in episode:
            if call.kind != "reset":
                key = place_of(state.branches.of(call)), call.order
                rounds[bisect_right(orders, call.order)].append((key, place))
    stepped = [[place for _, place in sorted(steps)] for steps in rounds.values()]
    return all(places == sorted(places) for places in stepped)


def _in_start_order(state: Assignment, episodes: list[Episode]) -> list[Episode] | None:
    """Return the episodes in the order in which their rows began, as their strands were started; None if unknown."""
    started = [state.branches.of(episode[0]) for episode in episodes]
    if len(set(started)) <= 1:
        return episodes
    branches = {branch for branch in started if branch is not None and not branch.is_stray}
    if len(branches) < len(episodes):  # several in one, or some above all, or the start of a strand was not seen
        return None
    return [episodes[i] for i in sorted(range(len(episodes)), key=lambda i: place_of(started[i]))]


def _is_ascending(state: Assignment, pairs: Seq[tuple[Episode, int]]) -> bool:
    """Return True if these, and the episodes that other rows have in the same strands, began in the rows' order."""
    branches = {state.branches.of(episode[0]) for episode, _ in pairs}
    begun = [(place, episode[0]) for episode, place in pairs]
    for place, row in enumerate(state.rows):
        first = min(row.environment_calls, key=lambda call: call.order, default=None)
        if first is not None and state.branches.of(first) in branches:
            begun.append((place, first))
    orders = [(place_of(state.branches.of(call)), call.order) for _, call in sorted(begun, key=itemgetter(0))]
    return orders == sorted(orders)


def add_function_calls(state: Assignment) -> None:
    """Assign calls of tools that are functions, by their strand, else by the generation that they follow."""
    left = [call for call in state.tool_functions if state.is_unassigned(call)]
    rows_of = state.rows_by_branch() if left else {}
    for call in left:
        branch = state.branches.of(call)
        rows = rows_of.get(branch, [])
        if len(rows) == 1:
            state.add_calls(rows[0], [call], "strand")
            continue
        before = [g for g in state.seen.generations if g.order < call.order and state.branches.of(g) is branch]
        order = before[-1].order if before else -1
        places = {i for i, row in enumerate(state.rows) for turn in row.turns if turn.order == order}
        if len(places) == 1:
            state.add_calls(places.pop(), [call], "generation")
        else:
            state.unattributed += 1


def add_leftovers(state: Assignment) -> None:
    """Assign generations whose tokens occur in no row: by their strand, else to the row that was stepped next."""
    rows_of = state.rows_by_branch() if state.unmatched else {}
    for turn in [part for chain in state.unmatched for part in chain.split()]:
        generation = turn.parts[0][0]
        rows = rows_of.get(state.branches.of(generation), [])
        index = rows[0] if len(rows) == 1 else _answered_by(state, generation)
        is_possible = not turn.candidate_rows or index in turn.candidate_rows
        if index is None or not is_possible or not state.is_of_its_model(generation, index):
            state.unattributed += 1
        else:
            state.add_chain(index, turn, [None], "strand" if len(rows) == 1 else "generation")


def _answered_by(state: Assignment, generation: Generation) -> int | None:
    """Return the only row whose environment was stepped between this generation and the next; else None."""
    if len(generation.sequences) != 1:
        return None
    branch = state.branches.of(generation)
    orders = [other.order for other in state.seen.generations]
    place = bisect_right(orders, generation.order)
    end = orders[place] if place < len(orders) else inf
    rows = {
        index
        for index, row in enumerate(state.rows)
        for call in row.environment_calls
        if call.kind != "reset" and generation.order < call.order < end
        if branch is None or state.branches.of(call) in {None, branch}
    }
    return rows.pop() if len(rows) == 1 else None
