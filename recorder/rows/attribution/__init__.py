"""Which call belongs to which row. Pure functions over what was seen; nothing is forced: a call for which there is no
evidence stays unattributed, and is counted on the run.

Evidence, strongest first:
    scope      made inside the row's own scope, or by a request id that names the row
    context    the model was given exactly the row's tokens so far, and sampled exactly those that follow there
    strand     made in the task or thread of this row's calls, or of one of its turns, and of no other row's
    generation the steps of the episode follow generations of this row alone
    tokens     what was sampled stands, in order, in the row's completion (the prompt was tokenised anew)
    text       the same, of texts, where the server returned no ids
    observation what the environment showed stands in what the model was given next in this row alone
    reward     what the environment gave was returned for this row alone
    action     what was sent to the environment stands in the answers of this row alone
    prompt     what the model was given holds the prompt of this row's group, in a function that did not finish: its
               rows have no tokens, and those of a group are alike
    order      as many episodes, or tasks, as rows are left, in the order in which they began
    position   one episode for all rows, with one step for each after all had answered; or the order of a function that
               did not finish

The last two are evidence only where nothing speaks against them: where generations show that rows were begun in another
order, or were played more than once, or one answer was sent as several actions, what they would tell is nobody's. As
many episodes as rows are one for each only if they were begun before the answers, or each took its steps: where one
failed, it may have been tried again, and a row's answer never sent.

Environments that were all reset ahead are in order only if they were stepped in that order, too, and one answer was not
sent as several actions, or what was sent goes with what was said far better than if rows were shuffled. In a function
that did not finish, order tells only rows of one prompt, whichever it is, or what stands in line behind so many rows in
the order of their prompts that it is no accident. What was begun after a failed generation may be another row's. While
a function runs its rows are taken to be begun in order: an environment that hangs in its first reset is then seen.

What came back is held against rows only where the model was given most of what some environment showed, or where the
rewards of all were returned, in whatever order: else what stands there does so by accident.

An episode without a step goes with the generation that came next only where no other environment was waiting for one.
`action` needs nearly all that was sent to stand in answers: an index into a list stands in some by accident.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from types import MappingProxyType

from logs_ui.recorder.capture.calls import Ids
from logs_ui.recorder.rows.attribution.assignment import Assignment
from logs_ui.recorder.rows.attribution.exact.chains import link_chains
from logs_ui.recorder.rows.attribution.exact.n_samples import one_of_each
from logs_ui.recorder.rows.attribution.exact.one_scope import of_one_scope, of_rows
from logs_ui.recorder.rows.attribution.exact.row_match import RowTokens
from logs_ui.recorder.rows.attribution.exact.token_match import Matching
from logs_ui.recorder.rows.attribution.inferred.episodes import (
    give_environment_calls,
    give_functions,
    give_leftovers,
)
from logs_ui.recorder.rows.attribution.inferred.failed_generations import give_failures
from logs_ui.recorder.rows.attribution.inferred.row_order import part_twins
from logs_ui.recorder.rows.attribution.inferred.unfinished import give_unfinished, place_turns
from logs_ui.recorder.rows.attribution.row_calls import Attribution, Returned, RowCalls, Seen, Turn

__all__ = ["Attribution", "RowCalls", "Seen", "Turn", "attribute", "attribute_unfinished"]

Decode = Callable[[Ids], str]


def attribute(
    prompts: Seq[Ids],
    completions: Seq[Ids],
    seen: Seen,
    decode: Decode = lambda _: "",
    returned: Returned = MappingProxyType({}),
) -> Attribution:
    """Calls of a rollout function that returned.

    Args:
        prompts: (N) token ids as returned, one array a row.
        completions: (N) as returned.
        seen: its calls.
        decode: token ids to text; asked only where ids do not tell.
        returned: numbers that it returned beside them; asked only where nothing else tells.
    """
    if found := of_one_scope(len(prompts), seen):
        return found
    tokens = [RowTokens(prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)]
    seen, strange = of_rows(seen, len(tokens))
    branches, chains = link_chains(seen, finished=True)
    state = Assignment(seen, len(tokens), branches, strange)
    state.returned = returned
    matching = Matching(tokens, state, lambda index: decode(completions[index]), lambda index: decode(prompts[index]))
    state.add_scoped_calls()
    outside = []
    for chain in chains:
        if chain.row is None or chain.row >= len(tokens):
            outside.append(chain)
        else:
            fit = matching.fit(chain, chain.row)
            state.add_chain(chain.row, chain, fit.starts if fit else [None] * len(chain.parts), "scope")
    state.unmatched = matching.match([part for chain in matching.match(outside) for part in chain.split()])
    state.join_branches()
    give_environment_calls(state, decode, finished=True)
    give_functions(state)
    give_leftovers(state)
    part_twins(state, [(row.data, row.prompt) for row in tokens])
    give_failures(state)
    return _told(state)


def attribute_unfinished(
    count: int, seen: Seen, prompts: Seq[str] = (), decode: Decode = lambda _: "", *, is_running: bool = False
) -> Attribution:
    """Calls of a rollout function that raised, or has not returned yet: no tokens tell the rows apart.

    Args:
        count: rows.
        seen: the calls so far.
        prompts: (N) what a person said last in each prompt, to be found in what the model was given; empty where that
            is not known.
        decode: token ids to text; asked only where prompts differ.
        is_running: the rows are shown while they run, until more is known: rows are then taken to be begun in order.
    """
    if found := of_one_scope(count, seen):
        return found
    state = give_unfinished(count, *of_rows(seen, count), prompts, decode)
    state.is_running = is_running
    state.join_branches()
    give_environment_calls(state, decode, finished=False)
    give_functions(state)
    give_leftovers(state)
    give_failures(state)
    found = _told(state)
    for row in found.rows:
        place_turns(row)
    return found


def _told(state: Assignment) -> Attribution:
    found = state.result()
    for row in found.rows:
        one_of_each(row)
    return found
