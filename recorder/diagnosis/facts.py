"""What the diagnosis asks of a rollout, worked out once of its texts and tokens, so that nobody opens them again.

Runs in the writer's thread. Every function is pure; None always means that what was recorded does not tell.
"""

import zlib
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import groupby, islice, takewhile
from typing import Any

import numpy as np
import orjson

from logs_ui.recorder.payload import Tokens

Facts = dict[str, Any]

FACTS = (
    *("env_steps", "env_errors", "parse_failures", "parse_streak", "parse_tail", "action_streak", "repeats"),
    *("tool_calls", "compression", "distinct_words", "trigram_repeats", "truncated_turns"),
    *("prompt_key", "completion_key", "mean_logprob"),
)
"""The columns that hold numbers."""
TEXTS = ("first_action", "last_action")
"""And those that hold texts."""

_TRAINERS = {"name": "get_reward", "arguments": {}}  # asks a tool environment for its reward; none of the model's
_LAST_CHARACTERS = 10_000  # whose compression tells a text that goes round in circles: slime's
_FEW_WORDS = 30  # fewer repeat nothing by accident: rolloutscope's
_ROUNDS = (2, 3, 4)  # actions: ours
_SHOWN = 120  # characters of an action


def facts(
    messages: Sequence[Mapping[str, Any]],
    actions: Sequence[Mapping[str, Any]],
    finishes: Sequence[str | None],
    tokens: Tokens | None,
    *,
    by_tools: bool = False,
) -> Facts:
    """Columns of one rollout.

    Args:
        messages: as `queries.Rollout` has them.
        actions: as there.
        finishes: why each generation ended.
        tokens: None where none are known.
        by_tools: whether all that it can do is to call tools, and a text may be its last word.
    """
    return {
        **_of_actions(actions, by_tools=by_tools),
        **_of_texts(messages),
        **_of_finishes(finishes),
        **_of_tokens(messages, tokens),
    }


def _of_actions(entries: Sequence[Mapping[str, Any]], *, by_tools: bool) -> Facts:
    entries = [entry for entry in entries if entry["action"] != _TRAINERS]
    moves = [entry for entry in entries if entry["action"] is not None]
    sent = [_canonical(entry["action"]) for entry in moves]
    failures = _failures(entries, by_tools=by_tools)
    return {
        "env_steps": len(moves) if moves or any(entry["turn"] == 0 for entry in entries) else None,
        "env_errors": sum(entry["error"] is not None for entry in entries) if moves else None,
        "parse_failures": None if failures is None else sum(failures),
        "parse_streak": None if failures is None else _longest_run(failures),
        "parse_tail": None if failures is None else _tail(failures),
        "action_streak": max((sum(1 for _ in same) for _, same in groupby(sent)), default=None),
        "repeats": _repeats(entries, sent),
        "first_action": sent[0][:_SHOWN] if sent else None,
        "last_action": sent[-1][:_SHOWN] if sent else None,
    }


def _failures(entries: Sequence[Mapping[str, Any]], *, by_tools: bool) -> list[bool] | None:
    """Whether each turn gave no action, in order; None where no environment and no parser tells."""
    answers = [entry for entry in entries if entry["text"] is not None]
    said = [(entry["metadata"] or {}).get("parsed") for entry in answers]
    acts = any(entry["action"] is not None or entry["turn"] == 0 for entry in entries)
    if not answers or not (acts or any(parsed is not None for parsed in said)):
        return None
    by_turn: dict[int, bool] = {}
    for entry, parsed in zip(answers, said, strict=True):
        tried = not by_tools or "tool_call" in entry["text"]
        failed = parsed is False or (parsed is None and entry["action"] is None and tried)
        by_turn[entry["turn"]] = by_turn.get(entry["turn"], True) and failed
    return list(by_turn.values())


def _longest_run(failures: Sequence[bool]) -> int:
    return max((sum(1 for _ in same) for failed, same in groupby(failures) if failed), default=0)


def _tail(failures: Sequence[bool]) -> int:
    """How many of the last turns failed, without one between them that did not."""
    return sum(1 for _ in takewhile(bool, reversed(failures)))


def _repeats(entries: Sequence[Mapping[str, Any]], sent: Sequence[str]) -> float | None:
    """Share of the moves that were made before at the same observation, or that lie in rounds of the same actions;
    whichever is more, 0 to 1. None below two moves.
    """
    if len(sent) < 2:
        return None
    seen: set[tuple[bytes, str]] = set()
    observation, moves = b"", iter(sent)
    for entry in entries:
        if entry["action"] is not None:
            seen.add((observation, next(moves)))
        if entry["observation"] is not None:
            observation = orjson.dumps(entry["observation"], option=orjson.OPT_SORT_KEYS)
    return max(len(sent) - len(seen), _in_rounds(sent)) / len(sent)


def _in_rounds(sent: Sequence[str]) -> int:
    """Moves of the longest stretch that goes through the same 2 to 4 actions twice or more often, as A B A B."""
    longest = 0
    for period in _ROUNDS:
        stretch = period
        for place in range(period, len(sent)):
            stretch = stretch + 1 if sent[place] == sent[place - period] else period
            if stretch >= 2 * period and stretch > longest and len(set(sent[place - period + 1 : place + 1])) > 1:
                longest = stretch
    return longest


def _canonical(action: Any) -> str:
    """Equal actions are written alike."""
    if isinstance(action, str):
        return action.strip()
    return orjson.dumps(action, option=orjson.OPT_SORT_KEYS).decode()


def _of_texts(messages: Sequence[Mapping[str, Any]]) -> Facts:
    """Of the answer that repeats itself most: that answers are alike is no degenerate text, but a loop."""
    said = [message for message in messages if message.get("role") == "assistant"]
    calls = [call for message in said for call in message.get("tool_calls") or ()]
    texts = [text for message in said if (text := _text(message)[-_LAST_CHARACTERS:])]
    words = [found for text in texts if len(found := text.lower().split()) >= _FEW_WORDS]
    return {
        "tool_calls": len(calls) if said else None,
        "compression": max(map(_compression, texts), default=None),
        "distinct_words": min((len(set(own)) / len(own) for own in words), default=None),
        "trigram_repeats": max(map(_trigram_repeats, words), default=None),
    }


def _text(message: Mapping[str, Any]) -> str:
    parts = (message.get("reasoning_content"), message.get("content"))
    return "\n".join(part for part in parts if isinstance(part, str))


def _compression(text: str) -> float:
    """How many times smaller zlib makes it, at its fastest."""
    data = text.encode("utf-8", "replace")
    return len(data) / len(zlib.compress(data, 1))


def _trigram_repeats(words: Sequence[str]) -> float:
    """Share of the runs of three words that were there before."""
    threes = list(zip(words, islice(words, 1, None), islice(words, 2, None), strict=False))
    return 1 - len(set(threes)) / len(threes)


def _of_finishes(finishes: Sequence[str | None]) -> Facts:
    known = [finish for finish in finishes if finish is not None]
    return {"truncated_turns": known.count("length") if known else None}


def _of_tokens(messages: Sequence[Mapping[str, Any]], tokens: Tokens | None) -> Facts:
    """Keys of the ids; where there are none, of the messages."""
    if tokens is not None:
        prompt, completion = tokens.prompt_ids.tobytes(), tokens.completion_ids.tobytes()
        return {"prompt_key": _key(prompt), "completion_key": _key(completion), "mean_logprob": _mean_logprob(tokens)}
    asked = list(takewhile(lambda message: message.get("role") != "assistant", messages))
    said = messages[len(asked) :]
    prompt, completion = (orjson.dumps(part, option=orjson.OPT_SORT_KEYS) if part else b"" for part in (asked, said))
    return {"prompt_key": _key(prompt), "completion_key": _key(completion), "mean_logprob": None}


def _key(data: bytes) -> int | None:
    """Equal bytes have equal keys; of 48 bits, which a float holds exactly. None of none."""
    return int.from_bytes(blake2b(data, digest_size=6).digest()) if data else None


def _mean_logprob(tokens: Tokens) -> float | None:
    """Over what the model sampled; None without log-probs."""
    if tokens.logprobs is None:
        return None
    logprobs = tokens.logprobs.astype(np.float64)
    sampled = logprobs if tokens.mask is None else logprobs[tokens.mask == 1]
    finite = sampled[np.isfinite(sampled)]
    return float(finite.mean()) if len(finite) else None
