"""The tokens of rows, and the texts that they spell, which are made together."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from logs_ui.recorder.capture.calls import Ids
from logs_ui.recorder.rows import chat_parser
from logs_ui.recorder.rows.attribution import RowCalls
from logs_ui.recorder.rows.rollout_call import RolloutCall
from logs_ui.recorder.storage.payload import Tokens


def spelling_of(call: RolloutCall) -> chat_parser.Spelling | None:
    """Knows the texts of all answers that were seen, made together; None without a tokenizer."""
    if call.tokenizer is None:
        return None
    answers = (sequence.sampled for generation in call.calls.generations for sequence in generation.sequences)
    spelling = chat_parser.Spelling(call.tokenizer)
    spelling.learn([ids for ids in answers if ids is not None], [])
    return spelling


def spell_rows(
    spelling: chat_parser.Spelling | None, rows: Sequence[RowCalls], tokens: Sequence[Tokens | None]
) -> None:
    """Makes the texts of the rows' completions together, for `encoded`. Nothing without a spelling."""
    if spelling is None:
        return
    spans: dict[bool, list[Ids]] = {True: [], False: []}
    for row, own in zip(rows, tokens, strict=True):
        for sampled, ids in () if own is None else chat_parser.spans(own.completion_ids, known_mask(row, own)):
            spans[sampled].append(ids)
    spelling.learn(spans[True], spans[False])


def unfinished_tokens(row: RowCalls) -> Tokens | None:
    """Tokens of a row that returned none, from its generations: the first context and all that followed it, in the
    longest chain of generations, the last of several. What was sampled in other
    calls, as in a planner's before an actor's, or before a window moved on, is no part of it. None where the server
    returned no ids.
    """
    standing = [turn for turn in row.turns if turn.start is not None]
    if not standing:
        return None
    context, sampled, start = standing[-1].sequence.context, standing[-1].sequence.sampled, standing[-1].start
    if context is None or sampled is None or start is None:
        return None
    prompt = len(context) - start
    completion: Ids = np.concatenate([context[prompt:], sampled])
    return Tokens(context[:prompt], completion, None, _mask(row, completion))


def all_sampled(row: RowCalls) -> dict[str, int]:
    """The column of tokens that were sampled in all calls of such a row; without it where a call does not tell."""
    sequences = [one for turn in row.turns for one in (turn.sequence, *turn.others)]
    counts = [one.completion_tokens if one.sampled is None else len(one.sampled) for one in sequences]
    known = [count for count in counts if count is not None]
    return {"completion_tokens": sum(known)} if known and len(known) == len(counts) else {}


def known_mask(row: RowCalls, tokens: Tokens) -> NDArray[np.uint8] | None:
    """The mask that was returned, else the one that the turns show; None if there is neither."""
    if tokens.mask is None and row.turns and all(turn.start is not None for turn in row.turns):
        return _mask(row, tokens.completion_ids)
    return tokens.mask


def _mask(row: RowCalls, completion: Ids) -> NDArray[np.uint8]:
    """(C,) 1 where a turn of the row stands in its completion; a context that was tokenised anew hides where."""
    mask = np.zeros(len(completion), np.uint8)
    for turn in row.turns:
        if turn.start is not None and turn.sequence.sampled is not None:
            end = turn.start + len(turn.sequence.sampled)
            is_whole = np.array_equal(completion[turn.start : end], turn.sequence.sampled)
            mask[turn.start : end if is_whole else end - 1] = 1  # without its end token
    return mask
