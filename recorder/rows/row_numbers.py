"""The numbers of a row: tokens, rewards, time."""

from collections.abc import Sequence as Seq

import numpy as np

from logs_ui.recorder.capture.calls import EnvironmentCall
from logs_ui.recorder.rows.attribution import RowCalls
from logs_ui.recorder.storage.payload import Tokens

MOVES = ("step", "tool")
"""Kinds of calls that the model asked for, unlike a reset or the environment's last word."""


def moves_of(row: RowCalls) -> list[EnvironmentCall]:
    """The environment calls that the model asked for."""
    return [call for call in row.environment_calls if call.kind in MOVES]


def counts(row: RowCalls, tokens: Tokens | None) -> dict[str, int]:
    """Count tokens by the ids; without ids, as the server counted them."""
    if tokens is not None:
        inserted = 0 if tokens.mask is None else len(tokens.mask) - int(np.count_nonzero(tokens.mask))
        return {
            "prompt_tokens": len(tokens.prompt_ids),
            "completion_tokens": len(tokens.completion_ids) - inserted,
            "env_tokens": inserted,
        }
    if not row.turns:
        return {}
    given = [count for turn in row.turns if (count := turn.sequence.completion_tokens) is not None]
    counted = {"completion_tokens": sum(given)} if len(given) == len(row.turns) else {}
    first = row.turns[0].sequence.prompt_tokens
    return counted if first is None else {**counted, "prompt_tokens": first}


def environment_rewards(row: RowCalls, moves: Seq[EnvironmentCall]) -> dict[str, float | None]:
    """Rewards of the calls that the model asked for, and of the calls that these made. A tool's own reward replaces
    those of the steps that it took.
    """
    if row.children:
        inner = [child for child in row.children if child.kind in MOVES]
        by_call = [[call.reward, *(child.reward for child in inner if child.within == call.order)] for call in moves]
        given = [value for own in by_call for value in (own[:1] if own[0] is not None else own)]
        rewards = [value for value in given if value is not None]
    else:
        rewards = [call.reward for call in moves if call.reward is not None]
    return {
        "env_reward_sum": sum(rewards) if rewards else None,
        "env_reward_last": rewards[-1] if rewards else None,
    }


def seconds(row: RowCalls) -> float | None:
    """Seconds from the beginning of its first call to the end of its last; None without calls."""
    calls = row.calls
    if not calls:
        return None
    return max([call.began + (call.seconds or 0.0) for call in calls]) - min([call.began for call in calls])
