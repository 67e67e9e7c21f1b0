"""Takes the log-probs of a row from its recorded calls, if its function returned none."""

from dataclasses import replace

import numpy as np

from logs_ui.recorder.rows.attribution import RowCalls
from logs_ui.recorder.storage.payload import Tokens


def with_logprobs(row: RowCalls, tokens: Tokens | None) -> Tokens | None:
    """Return the tokens with the log-probs of the row's turns, and NaN at all tokens that no turn sampled. Tokens that
    have log-probs stay as they are; so do all if no turn has any.
    """
    if tokens is None or tokens.logprobs is not None or not row.turns:
        return tokens
    ids = tokens.completion_ids
    logprobs = None
    for turn in row.turns:
        sampled, seen, start = turn.sequence.sampled, turn.sequence.logprobs, turn.start
        if seen is None or sampled is None or start is None or len(seen) != len(sampled):
            continue
        returned = ids[start : start + len(sampled)]
        length = len(returned)  # less if the row's end cut it off
        if length == len(sampled) and not np.array_equal(returned, sampled):
            length -= 1  # without its end token
        if not length or not np.array_equal(returned[:length], sampled[:length]):
            continue  # the function returned other ids there
        if logprobs is None:
            logprobs = np.full(len(ids), np.nan, np.float16)
        with np.errstate(over="ignore"):  # float16 has no number below -65,504: such a log-prob becomes -inf
            logprobs[start : start + length] = seen[:length]
    return tokens if logprobs is None else replace(tokens, logprobs=logprobs)
