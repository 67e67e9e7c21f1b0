"""Assign generations of a rollout function that raised, or has not returned yet: no returned tokens tell rows apart.

Rows of one prompt are alike then: it does not matter which of them a chain is on, as long as it is there alone.
"""

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from math import inf

import numpy as np
import orjson

from logs_ui.recorder.capture.model_answers import Ids
from logs_ui.recorder.capture.strands import Strand
from logs_ui.recorder.rows.attribution.assignment import Assignment
from logs_ui.recorder.rows.attribution.branches import place_of
from logs_ui.recorder.rows.attribution.chain import Chain
from logs_ui.recorder.rows.attribution.exact.chains import link_chains
from logs_ui.recorder.rows.attribution.prefixes import bytes_of
from logs_ui.recorder.rows.attribution.row_calls import RowCalls, Seen, Turn
from logs_ui.recorder.rows.text_compare import plain, texts_in

_WIDTH = np.dtype(np.int32).itemsize


def add_unfinished(
    row_count: int, seen: Seen, outside_count: int, prompts: Seq[str], decode: Callable[[Ids], str]
) -> Assignment:
    """Return the rows with their chains: by the start of their branches, if there is one for each row; else by the
    prompt that the first context holds; else in the order in which they began, up to the first failed generation, of
    which the row is unknown.

    Chains that begin with a later turn stay unmatched. For `outside` see `Assignment`.
    """
    branches, chains = link_chains(seen, finished=False)
    state = Assignment(seen, row_count, branches, outside_count, [*map(plain, prompts)])
    state.add_scoped_calls()
    free_rows = list(range(row_count))
    rows_by_prompt: dict[str, list[int]] = {}
    for index, prompt in enumerate(state.prompts):
        rows_by_prompt.setdefault(prompt, []).append(index)
    first_chains: list[Chain] = []
    for chain in chains:
        if chain.row is not None and 0 <= chain.row < row_count:
            state.add_chain(chain.row, chain, [None] * len(chain.parts), "scope")
            free_rows = [row for row in free_rows if row != chain.row]
            continue
        chain.candidate_rows = _find_prompted_rows(chain, rows_by_prompt, decode)
        (first_chains if chain.begins else state.unmatched).append(chain)
    row_by_branch, first_failure = _match_rows_to_branches(state, chains), _first_failure(state)
    for chain in sorted(first_chains, key=Chain.key):
        candidates = chain.candidate_rows
        if row_by_branch:
            candidates = [row_by_branch[chain.branch]]
        elif candidates is None and chain.key() > first_failure:
            candidates = []
        row = next((row for row in free_rows if candidates is None or row in candidates), None)
        if row is None:
            state.unmatched.append(chain)
        else:
            free_rows.remove(row)
            if chain.candidate_rows is not None:
                state.with_known_prompt.add(row)
            evidence = "prompt" if chain.candidate_rows is not None else "order" if row_by_branch else "position"
            state.add_chain(row, chain, [None] * len(chain.parts), evidence)
    return state


def _match_rows_to_branches(state: Assignment, chains: Seq[Chain]) -> dict[Strand | None, int]:
    """Return the rows by branch, if each has one; nothing if these were not seen to start in the order of the rows."""
    row_branches = state.branch_of_each_row()
    if any(branch.is_stray for branch in row_branches):
        return {}
    row_by_branch: dict[Strand | None, int] = {branch: row for row, branch in enumerate(row_branches)}
    for chain in chains:
        candidates = chain.candidate_rows if chain.row is None else [chain.row]
        if candidates is not None and row_by_branch.get(chain.branch) not in candidates:
            return {}
    return row_by_branch


def _first_failure(state: Assignment) -> tuple[float, float]:
    """Return the key, as of a chain, of the first failed generation; infinite for a single row, which has them all."""
    failed = [failure for failure in state.seen.generations if failure.is_failure] if len(state.rows) > 1 else []
    return min(((place_of(state.branches.of(failure)), failure.order) for failure in failed), default=(inf, inf))


def place_turns(row: RowCalls) -> None:
    """Set where each turn begins in the row's completion: the longest run of turns that continue one another.

    Of several runs the last one counts. Turns of other runs, such as a planner's, have no place, nor have those that a
    later context does not repeat as they were sampled.
    """
    run = max(_runs(row.turns), key=lambda run: (len(run), run[-1].order), default=[])
    if not run:
        return
    prompt, data = _length(run[0]), _ids_of(run[-1])
    of_run = set(map(id, run))
    row.turns = [
        replace(turn, start=_length(turn) - prompt if id(turn) in of_run and _is_in(turn, data) else None)
        for turn in row.turns
    ]


def _runs(turns: Seq[Turn]) -> list[list[Turn]]:
    """Return the runs of turns with known ids; a context continues only shorter ones."""
    runs: list[list[Turn]] = []
    for turn in turns:
        context = bytes_of(turn.sequence.context)
        if context is None or turn.sequence.sampled is None:
            continue
        before = [run for run in runs if _length(run[-1]) < _length(turn) and context.startswith(_context(run[-1]))]
        if before:
            max(before, key=lambda run: _length(run[-1])).append(turn)
        else:
            runs.append([turn])
    return runs


def _context(turn: Turn) -> bytes:
    return bytes_of(turn.sequence.context) or b""


def _length(turn: Turn) -> int:
    """Return the length of its context, in tokens."""
    return 0 if turn.sequence.context is None else len(turn.sequence.context)


def _ids_of(turn: Turn) -> bytes:
    return _context(turn) + (bytes_of(turn.sequence.sampled) or b"")


def _is_in(turn: Turn, data: bytes) -> bool:
    """Return True if the turn begins `data`, with or without its end token."""
    whole = _ids_of(turn)
    return data.startswith(whole) or (len(whole) > len(_context(turn)) + _WIDTH and data.startswith(whole[:-_WIDTH]))


def _find_prompted_rows(
    chain: Chain, rows_by_prompt: Mapping[str, list[int]], decode: Callable[[Ids], str]
) -> list[int] | None:
    """Return the rows of the longest prompt that the chain's first context holds; None if none does, or all are equal.

    `rows` are the indices of the rows by their prompt.
    """
    for text in map(plain, _first_texts(chain, decode) if len(rows_by_prompt) > 1 else ()):
        if occurring := [prompt for prompt in rows_by_prompt if prompt and prompt in text]:
            return rows_by_prompt[max(occurring, key=len)]
    return None


def _first_texts(chain: Chain, decode: Callable[[Ids], str]) -> Iterator[str]:
    _, first = chain.parts[0]
    if first.context is not None:
        yield decode(first.context)
    if first.messages:
        yield " ".join(texts_in(orjson.loads(first.messages)))
