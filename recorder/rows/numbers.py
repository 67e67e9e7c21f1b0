"""Computes the numbers of a row: tokens, rewards, time."""

from collections.abc import Mapping
from collections.abc import Sequence as Seq

import numpy as np

from logs_ui.recorder.capture.calls import EnvironmentCall
from logs_ui.recorder.capture.stop_causes import reason_of_text
from logs_ui.recorder.rows.attribution import RowCalls
from logs_ui.recorder.storage.payload import Tokens

MOVES = ("step", "tool")
"""Kinds of environment calls that the model asked for; resets and the request for a reward are not among them."""

_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_new_tokens", "max_tokens")  # of a generation's tokens


def moves_of(row: RowCalls) -> list[EnvironmentCall]:
    """Return the environment calls that the model asked for."""
    return [call for call in row.environment_calls if call.kind in MOVES]


def is_answer(call: EnvironmentCall, row: RowCalls) -> bool:
    """Return True if a tool raised because of what the model asked: the model reads that, and no environment failed."""
    if call.kind != "tool" or not call.error or call.reason or reason_of_text(call.error):
        return False
    return not any(child.error for child in row.children if child.within == call.order)


def counts(row: RowCalls, tokens: Tokens | None) -> dict[str, int]:
    """Count the row's tokens by their ids; without ids, return the server's counts."""
    if tokens is not None:
        inserted = 0 if tokens.mask is None else len(tokens.mask) - int(np.count_nonzero(tokens.mask))
        return {
            "prompt_tokens": len(tokens.prompt_ids),
            "completion_tokens": len(tokens.completion_ids) - inserted,
            "env_tokens": inserted,
        }
    if not row.turns:
        return {}
    reported = [count for turn in row.turns if (count := turn.sequence.completion_tokens) is not None]
    counted = {"completion_tokens": sum(reported)} if len(reported) == len(row.turns) else {}
    first = row.turns[0].sequence.prompt_tokens
    return counted if first is None else {**counted, "prompt_tokens": first}


def cut(row: RowCalls, row_counts: Mapping[str, int]) -> dict[str, int | None]:
    """Return the tokens of the last generation that hit its limit, and that limit if its parameters have one.
    `row_counts` are the row's `counts`, which are those of its only answer.
    """
    last = next((turn for turn in reversed(row.turns) if turn.sequence.finish == "length"), None)
    if last is None:
        return {}
    answer, sampling = last.sequence, last.generation.sampling
    count = answer.tokens
    if count is None and len(row.turns) == 1:
        count = row_counts.get("completion_tokens")
    limits = [value for name in _LIMITS if type(value := sampling.get(name)) is int and value > 0]
    return {"cut_tokens": count, "cut_limit": limits[0] if limits else None}


def environment_rewards(row: RowCalls, moves: Seq[EnvironmentCall]) -> dict[str, float | None]:
    """Return sum and last of the moves' rewards. A tool's own reward replaces those of the steps that it made."""
    if row.children:
        inner = [child for child in row.children if child.kind in MOVES]
        by_call = [[call.reward, *(child.reward for child in inner if child.within == call.order)] for call in moves]
        counted = [value for values in by_call for value in (values[:1] if values[0] is not None else values)]
        rewards = [value for value in counted if value is not None]
    else:
        rewards = [call.reward for call in moves if call.reward is not None]
    return {"env_reward_sum": sum(rewards) if rewards else None, "env_reward_last": rewards[-1] if rewards else None}


def seconds(row: RowCalls) -> float | None:
    """Return the seconds from the beginning of the row's first call to the end of its last; None without calls, and if
    all were only reported, without their seconds.
    """
    calls = row.calls
    if not any(call.seconds for call in calls):
        return None
    return max([call.began + (call.seconds or 0.0) for call in calls]) - min([call.began for call in calls])
