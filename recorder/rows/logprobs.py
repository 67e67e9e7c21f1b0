"""The log-probs that were seen at the calls of a row whose function returned none."""

from dataclasses import replace

import numpy as np

from logs_ui.recorder.rows.attribution import RowCalls
from logs_ui.recorder.storage.payload import Tokens


def with_logprobs(row: RowCalls, tokens: Tokens | None) -> Tokens | None:
    """With those of its turns, where they were sampled; NaN at all other tokens. As it is where it has any, or no turn
    does.
    """
    if tokens is None or tokens.logprobs is not None or not row.turns:
        return tokens
    ids = tokens.completion_ids
    logprobs = None
    for turn in row.turns:
        sampled, own, start = turn.sequence.sampled, turn.sequence.logprobs, turn.start
        if own is None or sampled is None or start is None or len(own) != len(sampled):
            continue
        standing = ids[start : start + len(sampled)]
        length = len(standing)  # fewer where the row's end cut it off
        if length == len(sampled) and not np.array_equal(standing, sampled):
            length -= 1  # without its end token
        if not length or not np.array_equal(standing[:length], sampled[:length]):
            continue  # the function returned something else there
        if logprobs is None:
            logprobs = np.full(len(ids), np.nan, np.float16)
        with np.errstate(over="ignore"):
            logprobs[start : start + length] = own[:length]
    return tokens if logprobs is None else replace(tokens, logprobs=logprobs)
