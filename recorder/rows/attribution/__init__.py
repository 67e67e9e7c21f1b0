"""Decide which row each recorded call belongs to.

Input is what was seen while a rollout function ran (`Seen`: generations, environment calls, notes, each with its time,
its strand and its client) and what the function returned: prompt and completion ids of each row. Output is an
`Attribution`: the calls of each row, the kind of evidence that it rests on, and the number of unattributed calls. All
functions here are pure.

1. Proof (`exact/`). Calls in a row's scope are that row's. So are those whose ids make up the row's: prompts of all
   turns one after the other, and so the answers. Generations are linked into chains: each context begins with
   all of the turn before. A chain belongs to the row whose tokens it is a prefix of.
2. Inference (`inferred/`), for what proof leaves open, from the strongest evidence to the weakest. A client's calls
   from one reset to the next, an episode, are assigned together.
3. Rows that cannot be told apart lose their episodes again: twins with equal tokens but unlike episodes, and rows for
   which there are more generations than turns. Failed generations and notes come last.

Evidence, strongest first; a row is marked with the weakest that it rests on:
    scope       made inside `with row_scope(i)`, or by a request whose id names the row
    context     the prompt was exactly the row's tokens so far, and the answer is what follows there
    strand      made in the task or thread of this row's calls, and of no other row's
    generation  each step of the episode came right after a generation of this row alone
    tokens      the answer occurs, in order, in the row's completion; its prompt was tokenised anew
    text        the same by text, where the server returned no ids
    observation what the environment showed occurs in the next prompt of this row alone
    reward      what the environment returned was returned for this row alone
    action      what was sent to the environment occurs in the answers of this row alone
    prompt      the first context holds the prompt of the row's group, in a function that did not return
    order       as many episodes, or asyncio tasks, as rows are left, in the order in which they began
    position    one environment, with one step for each row after all had answered; or the order of a function that did
                not return

When the weaker kinds are trusted:
- `observation` and `reward` only if most observations reappear in prompts, or the rewards of all episodes were
  returned, `action` only if nearly all actions occur in answers. Otherwise a match is a coincidence.
- `generation` for a reset without a step only if no other environment had been reset and not stepped.
- `order` and `position` only if nothing contradicts them: if rows started in another order, were played twice, or one
  answer was sent as several actions, the call stays unattributed. If all environments were reset before any generation,
  trust reset order only if steps came in the same order and equal answers led to equal actions, or if a permutation
  test shows that the pairing is not random: then a parser's fallback or a stuck action in some rows does no harm. If
  environments were reset after the answers, a failed episode may have been tried again: then only rows that have one
  possible episode get it. Nothing that began after a failed generation is in order.
- In a function that did not return, order places only rows of one prompt, or episodes behind so many rows in the order
  of their prompts that it is no accident. While a function runs, its rows are taken to be in order.

A call without evidence is never forced on a row: it is counted on the run as unattributed. `with row_scope(i)` around
the code that plays row i makes attribution exact.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from itertools import accumulate
from types import MappingProxyType

from logs_ui.recorder.capture.model_answers import Ids
from logs_ui.recorder.rows.attribution.assignment import Assignment
from logs_ui.recorder.rows.attribution.exact.chains import link_chains
from logs_ui.recorder.rows.attribution.exact.joined_turns import take_joined
from logs_ui.recorder.rows.attribution.exact.n_samples import one_of_each
from logs_ui.recorder.rows.attribution.exact.one_scope import of_one_scope, without_outside
from logs_ui.recorder.rows.attribution.exact.row_match import RowTokens
from logs_ui.recorder.rows.attribution.exact.token_match import Matching
from logs_ui.recorder.rows.attribution.inferred.episodes import add_environment_calls, add_function_calls, add_leftovers
from logs_ui.recorder.rows.attribution.inferred.failed_generations import add_failures
from logs_ui.recorder.rows.attribution.inferred.row_order import part_twins
from logs_ui.recorder.rows.attribution.inferred.unfinished import add_unfinished, place_turns
from logs_ui.recorder.rows.attribution.row_calls import Attribution, Returned, RowCalls, Seen, Turn

__all__ = ["Attribution", "RowCalls", "Seen", "Turn", "attribute", "attribute_unfinished"]

Decode = Callable[[Ids], str]


def attribute(
    prompts: Seq[Ids],
    completions: Seq[Ids],
    seen: Seen,
    decode: Decode = lambda _: "",
    returned: Returned = MappingProxyType({}),
    texts: Seq[str] = (),
) -> Attribution:
    """Assign all calls of a rollout function that returned these token ids, an array of each for each of N rows.

    `decode` is called only where ids leave something open. `returned` are numbers that the function returned for each
    row; they are used only where stronger evidence is missing. `texts` are (N) the last text of each row's prompt;
    only failed generations need them.
    """
    if scope_attribution := of_one_scope(len(prompts), seen):
        return scope_attribution
    tokens = [RowTokens(prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)]
    seen, outside_count = without_outside(seen, len(tokens))
    branches, chains = link_chains(seen, finished=True)
    chains, chain_by_row = take_joined(chains, tokens)
    state = Assignment(seen, len(tokens), branches, outside_count)
    state.returned, state.texts = returned, texts
    matching = Matching(tokens, state, lambda row: decode(completions[row]), lambda row: decode(prompts[row]))
    state.add_scoped_calls()
    for row, chain in chain_by_row.items():
        # The answers stand one after the other in the completion, so each begins where the lengths of those before
        # it end.
        lengths = [len(sequence.sampled) for _, sequence in chain.parts if sequence.sampled is not None]
        state.add_chain(row, chain, [0, *accumulate(lengths[:-1])], "context")
        tokens[row].matched = tokens[row].length
    unscoped = []
    for chain in chains:
        if chain.row is None or chain.row >= len(tokens):
            unscoped.append(chain)
        else:
            fit = matching.fit(chain, chain.row)
            state.add_chain(chain.row, chain, fit.starts if fit else [None] * len(chain.parts), "scope")
    # Whole chains are matched first. Of those that fit no row, each turn is then tried by itself.
    state.unmatched = matching.match([part for chain in matching.match(unscoped) for part in chain.split()])
    return _infer(state, decode, tokens)


def attribute_unfinished(
    count: int, seen: Seen, prompts: Seq[str] = (), decode: Decode = lambda _: "", *, is_running: bool = False
) -> Attribution:
    """Assign the calls of a rollout function that raised, or has not returned yet: no tokens tell the rows apart.

    `prompts` are (N) the last user message of each prompt, to be found in contexts; empty where it is unknown. `decode`
    is called only where they differ. If `is_running`, the rows are shown while they run: they are then taken to be in
    order, so that an environment that hangs in its first reset is on a row.
    """
    if attribution := of_one_scope(count, seen):
        return attribution
    state = add_unfinished(count, *without_outside(seen, count), prompts, decode)
    state.is_running = is_running
    attribution = _infer(state, decode, None)
    for row in attribution.rows:
        place_turns(row)
    return attribution


def _infer(state: Assignment, decode: Decode, tokens: Seq[RowTokens] | None) -> Attribution:
    """Assign what proof left open. `tokens` are the rows'; None if the function did not return."""
    # Branches that are turns tell rows apart, once generations have rows.
    state.branches.join([[turn.generation for turn in row.turns] for row in state.rows])
    add_environment_calls(state, decode, finished=tokens is not None)
    add_function_calls(state)
    add_leftovers(state)
    if tokens is not None:
        part_twins(state, [(row.data, row.prompt) for row in tokens])
    add_failures(state)
    attribution = state.result()
    for row in attribution.rows:
        one_of_each(row)
    return attribution
