"""Computes the facts of a rollout: figures that the diagnosis needs. They are computed once, when the rollout is
written, so that no query has to open its texts and tokens again.

Texts and tokens of many rollouts are measured together: each call that releases the GIL has to wait for it again, and
releasing it once for each text costs a training as much as the measuring itself.
Every function is pure; None always means that the recorded data does not show the figure.
"""

import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import chain, groupby
from typing import Any

import numpy as np
import orjson
import zstandard

from logs_ui.recorder.action_text import ending_key, observation_key, observed_text, written_action
from logs_ui.recorder.capture.model_answers import Ids
from logs_ui.recorder.rows.chat_parser import calls_in
from logs_ui.recorder.rows.repetition import shares
from logs_ui.recorder.snapshot import column, plain
from logs_ui.recorder.storage.payload import Tokens

Facts = dict[str, Any]

FACTS = (
    *("env_steps", "env_errors", "parse_failures", "parse_streak", "parse_tail", "action_streak", "repeats"),
    *("tool_calls", "compression", "distinct_words", "trigram_repeats", "non_latin", "truncated_turns"),
    *("prompt_key", "completion_key", "mean_logprob"),
    *("cut_tokens", "cut_limit", "no_room", "asked_key", "env_success", "action_tail", "unsaid_actions"),
)
"""The columns that hold numbers."""
TEXTS = ("first_action", "last_action", "unsaid_action", "observation_keys")
"""The columns that hold texts."""

CALL = {"name", "arguments"}
"""The keys of an action that is a call of a tool."""

_ENTRY = {"turn", "observation", "metadata", "error"}  # keys of the entry that `actions.py` makes of a call
# TRL's call for the reward of a tool environment; the model did not make it.
_TRAINERS: dict[str, Any] = {"name": "get_reward", "arguments": {}}
_LAST_CHARACTERS = 10_000  # of an answer are compressed, to detect text that goes round in circles; from slime
_REPEATED = 5  # times smaller: if zstd reaches less, zlib does not reach 10 times
_LEAST_WORDS = 30  # shares of a shorter text show nothing; from rolloutscope
_NO_LETTERS = bytes(code for code in range(128) if not chr(code).isalpha())
_NO_ASCII = re.compile(r"[^\x00-\x7f]+")
# Letters, and from U+2000 on signs such as \u211d.
_LATIN = re.compile("[\u0080-\u024f\u1e00-\u1eff\u2000-\u2bff\u2c60-\u2c7f]+")
# In UTF-8: ASCII, the bytes that follow a first one, and first ones of U+0080 to U+023F and of U+2000 to U+2FFF, of
# which those from U+2C00 on may be others.
_LATIN_BYTES, _OTHERS = bytes([*range(0xC9), 0xE2]), re.compile(rb"\xe2[\xb0-\xbf]")
_ROUNDS = (2, 3, 4)  # actions in a round; our own choice
_SHOWN = 120  # characters of an action that are stored
_TOGETHER = 32  # rollouts whose log-probs are averaged together: arrays of more do not fit the processor's cache
_HASHED_AT_ONCE = 2_047  # bytes: hashlib releases the GIL for more
_KINDS, _ENDINGS = 16, 8  # of observations of a rollout whose keys are stored, and of their endings [ours]
_SHORT = 80  # characters of a value of an action: a longer one is often written otherwise in the answer

# Names under which environments report their verdict. "success" and the like often say only that a call went well, so
# the others, where there are any, are preferred. A number under `passed` or `correct` may be a count.
_VERDICTS = ("solved", "resolved", "correct", "is_correct", "passed", "won", "win")
_WEAK_VERDICTS = ("is_success", "success")
_COUNTS = ("passed", "correct")
_WITHIN, _SPOKEN = ("metadata", "info", "result"), ("text", "message", "output", "content")
_END = r"\s*(?:[.!,;*]|\n|$)"
_PASSED = re.compile(
    rf"[\W_]*(?:(?:(?:that is |that's )?correct|success|solved){_END}|congratulations\b|you (?:have )?w[io]n\b)",
    re.IGNORECASE,
)
_FAILED = re.compile(
    rf"[\W_]*(?:(?:incorrect|wrong(?: answer| guess)?)\s*:|(?:incorrect|wrong(?: answer| guess)?|fail(?:ed|ure)){_END}"
    r"|you (?:have )?los[te]\b"
    r"|game over\b(?!.*(?:\bw[io]n|\d|score|solved|correct|success|congratulations)))",
    re.IGNORECASE | re.DOTALL,
)


def facts(
    messages: Sequence[Mapping[str, Any]],
    actions: Sequence[Mapping[str, Any]],
    finishes: Sequence[str | None],
    tokens: Tokens | None,
    *,
    by_tools: bool = False,
) -> Facts:
    """Compute all facts of one rollout, as columns. `messages` and `actions` are in the form of `queries.Rollout`.

    If the rollout can only act `by_tools`, an answer without a call is a valid last one.
    """
    (of_texts,) = text_facts([answers(messages)])
    (of_tokens,) = ({},) if tokens is None else token_facts([tokens])
    return {**call_facts(messages, actions, finishes, by_tools=by_tools), **of_texts, **of_tokens}


def call_facts(
    messages: Sequence[Mapping[str, Any]],
    actions: Sequence[Mapping[str, Any]],
    finishes: Sequence[str | None],
    *,
    by_tools: bool = False,
    keyed: bool = True,
) -> Facts:
    """Compute the facts of one rollout alone. If not `keyed`, without the keys, which `token_facts` makes of ids."""
    calls = [message.get("tool_calls") or () for message in messages if message.get("role") == "assistant"]
    recorded = [finish for finish in finishes if finish is not None]
    return {
        **_of_actions(actions, messages, by_tools=by_tools),
        # A harness may read calls from answers in a form of its own: then only those that were made show them.
        "tool_calls": max(sum(map(len, calls)), sum(map(_is_tool_call, actions))) if calls else None,
        "truncated_turns": recorded.count("length") if recorded else None,
        **(_of_messages(messages) if keyed else {}),
    }


def _is_tool_call(entry: Mapping[str, Any]) -> bool:
    action = entry["action"]
    return isinstance(action, dict) and action.keys() == CALL and action != _TRAINERS


def answers(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the ends of the model's answers, for `text_facts`; white space alone is no answer."""
    texts = [_text(message) for message in messages if message.get("role") == "assistant"]
    return [text for text in texts if text and not text.isspace()]


def text_facts(rollouts: Sequence[Sequence[str]]) -> list[Facts]:
    """Measure the `answers` of each rollout; the figures are those of the answer that repeats itself most. Answers are
    measured one by one: several that are alike are a loop, and not degenerate text.
    """
    texts = list(chain.from_iterable(rollouts))
    squeezed, repeated = iter(_compressions(texts)), iter(shares(texts, _LEAST_WORDS))
    of_rollouts = []
    for texts_of_one in rollouts:
        words = [share for _ in texts_of_one if (share := next(repeated)) is not None]
        of_rollouts.append(
            {
                "compression": max([next(squeezed) for _ in texts_of_one], default=None),
                "distinct_words": min([distinct for distinct, _ in words], default=None),
                "trigram_repeats": max([threes for _, threes in words], default=None),
                "non_latin": _non_latin(texts_of_one),
            }
        )
    return of_rollouts


def token_facts(rollouts: Sequence[Tokens]) -> list[Facts]:
    """Compute the keys of the token ids, and the mean log-probability of the sampled ones."""
    prompts = _keys([rollout.prompt_ids.tobytes() for rollout in rollouts])
    completions = _keys([rollout.completion_ids.tobytes() for rollout in rollouts])
    return [
        {"prompt_key": prompt, "completion_key": completion, "mean_logprob": mean}
        for prompt, completion, mean in zip(prompts, completions, _mean_logprobs(rollouts), strict=True)
    ]


def prompt_key(context: Ids) -> Facts:
    """Return the key of another prompt than the one that the function returned."""
    return {"prompt_key": _key(context.tobytes())}


def _of_actions(
    entries: Sequence[Mapping[str, Any]], messages: Sequence[Mapping[str, Any]], *, by_tools: bool
) -> Facts:
    entries = [entry for entry in entries if entry["action"] != _TRAINERS]
    actions = [action for entry in entries if (action := entry["action"]) is not None]
    sent = [_canonical(action) for action in actions]
    are_different = len(set(sent)) == len(sent)
    streaks = [sum(1 for _ in repeats) for _, repeats in groupby(sent)]
    unsaid = _list_unsaid(entries, messages)
    is_played = bool(sent) or any(entry["turn"] == 0 for entry in entries)
    return {
        "env_steps": len(sent) if is_played else None,
        "env_errors": sum(map(_has_failed, entries)) if is_played else None,
        **_of_failures(_failures(entries, by_tools=by_tools)),
        "env_success": _verdict(entries),
        "action_streak": max(streaks, default=None),
        "action_tail": streaks[-1] if streaks else None,
        "repeats": None if len(sent) < 2 else 0.0 if are_different else _repeats(entries, sent),
        "first_action": _shorten_action(actions[0]) if sent else None,
        "last_action": _shorten_action(actions[-1]) if sent else None,
        "unsaid_actions": None if unsaid is None else len(unsaid),
        "unsaid_action": Counter(unsaid).most_common(1)[0][0] if unsaid else None,
        "observation_keys": _list_observation_keys(entries),
    }


def _list_observation_keys(entries: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the keys of the observations, each once, the most frequent 16; the first one once more if it stands for
    most of three or more; after a blank the 8 most frequent keys of their endings. Older rows have no blank: these of
    theirs are not known. What follows an answer without an action shows nothing about the environment.
    """
    heard = [entry["observation"] for entry in entries if entry["action"] is not None or entry["text"] is None]
    texts = [text for observation in reversed(heard) if (text := observed_text(observation)) is not None]
    if not texts:
        return None
    keys = list(map(observation_key, texts))
    kinds, endings = _by_frequency(keys), _by_frequency(list(filter(None, map(ending_key, texts))))
    is_usual = len(keys) > 2 and 2 * keys.count(kinds[0]) > len(keys)
    written = "".join(kinds[:_KINDS]) + kinds[0] * is_usual
    return f"{written} {''.join(endings[:_ENDINGS])}"


def _by_frequency(keys: Sequence[str]) -> list[str]:
    """Return each key once, the most frequent first, and of equal ones the first."""
    return [key for key, _ in Counter(keys).most_common()]


def _has_failed(entry: Mapping[str, Any]) -> bool:
    """Return True if a call, or one at any depth that it made, raised. An error with an observation is a tool's answer
    to what the model asked.
    """
    if entry["error"] is not None and entry["observation"] is None:
        return True
    calls = (entry.get("metadata") or {}).get("calls")  # an environment may have metadata of its own under this name
    if not isinstance(calls, list):
        return False
    return any(_has_failed(call) for call in calls if isinstance(call, dict) and call.keys() >= _ENTRY)


def _failures(entries: Sequence[Mapping[str, Any]], *, by_tools: bool) -> list[bool] | None:
    """Return for each turn True if it gave no action; None if neither an environment nor a parser shows that."""
    by_turn: dict[int, bool] = {}
    is_known = False
    last = max((entry["turn"] for entry in entries), default=0)  # no turn may have been left to run its call in
    for entry in entries:
        text, turn, acted = entry["text"], entry["turn"], entry["action"] is not None
        is_known = is_known or acted or turn == 0
        if text is not None:
            parsed = (entry["metadata"] or {}).get("parsed")
            is_known = is_known or parsed is not None
            mistaken = "tool_call" in text and not (turn == last and calls_in(text))
            failed = parsed is False or (parsed is None and not acted and (not by_tools or mistaken))
            # A turn with several entries failed only if each of them did.
            by_turn[turn] = failed and by_turn.get(turn, True)
    return list(by_turn.values()) if by_turn and is_known else None


def _of_failures(failures: Sequence[bool] | None) -> Facts:
    if failures is None:
        return {"parse_failures": None, "parse_streak": None, "parse_tail": None}
    runs = [sum(1 for _ in repeats) for failed, repeats in groupby(failures) if failed]
    tail = runs[-1] if failures[-1] else 0  # back to the last turn that did not fail
    return {"parse_failures": sum(failures), "parse_streak": max(runs, default=0), "parse_tail": tail}


def _verdict(entries: Sequence[Mapping[str, Any]]) -> int | None:
    """Return 1 if the environment ended the episode and says that it was a success, 0 if it says that it failed; None
    if it did not end it, or says nothing that is unmistakable.
    """
    last = next((entry for entry in reversed(entries) if entry.get("done") or entry["turn"] == 0), None)
    if last is None or not last.get("done") or last["error"] is not None:
        return None
    metadata = last["metadata"] or {}
    return _first_verdict(
        [last["observation"], metadata, *[call["observation"] for call in metadata.get("calls") or ()]]
    )


def _first_verdict(heard: Sequence[Any]) -> int | None:
    return next((verdict for observation in heard if (verdict := _verdict_of(observation)) is not None), None)


def _verdict_of(heard: Any) -> int | None:
    if isinstance(heard, str):
        if not heard.lstrip().startswith("{"):
            return 1 if _PASSED.match(heard) else 0 if _FAILED.match(heard) else None
        with suppress(orjson.JSONDecodeError):
            heard = orjson.loads(heard)
    if not isinstance(heard, dict):
        return None
    parts = [heard, *[part for name in _WITHIN if isinstance(part := heard.get(name), dict)]]
    for names in (_VERDICTS, _WEAK_VERDICTS):
        words = [(name, part[name]) for part in parts for name in names if name in part]
        verdicts = {
            int(word) for name, word in words if isinstance(word, bool) or (word in (0, 1) and name not in _COUNTS)
        }
        if verdicts:
            return verdicts.pop() if len(verdicts) == 1 else None
    return _first_verdict([text for name in _SPOKEN if isinstance(text := heard.get(name), str)])


def _list_unsaid(entries: Sequence[Mapping[str, Any]], messages: Sequence[Mapping[str, Any]]) -> list[str] | None:
    """Return the beginnings of those actions that do not occur in the answer before them, as if the rollout function
    had sent an action of its own; None if no action follows an answer. Of a tool that an answer without tool calls
    asks for, only the name has to occur: its text may write the arguments in a form of its own.
    """
    sent = [entry for entry in entries if entry["action"] is not None and entry["text"] is not None]
    if not sent:
        return None
    calls = [
        "\n".join(map(str, _leaves(message.get("tool_calls"))))
        for message in messages
        if message.get("role") == "assistant"
    ]
    turns = list(dict.fromkeys(entry["turn"] for entry in entries if entry["text"] is not None))
    # The prompt may have answers, too; where messages are missing, a call is looked for in all of them.
    of_turns = calls[-len(turns) :] if len(calls) >= len(turns) else ["\n".join(calls)] * len(turns)
    called = dict(zip(turns, of_turns, strict=True))
    actions = []
    for entry in sent:
        action, calls_of_turn = entry["action"], called[entry["turn"]]
        is_named = not calls_of_turn and isinstance(action, dict) and action.keys() == CALL
        if not occurs([action["name"]] if is_named else action, f"{entry['text']}\n{calls_of_turn}"):
            actions.append(_shorten_action(action))
    return actions


def occurs(action: Any, answer: str) -> bool:
    """Return True if all short values of an action, or the text that it is, occur in what the model said."""
    values = [action] if isinstance(action, str) else [leaf for leaf in _leaves(action) if len(str(leaf)) <= _SHORT]
    answer = answer.lower()
    return all(
        value.strip().lower() in answer
        if isinstance(value, str)
        else re.search(rf"(?<![\d.]){re.escape(f'{value:.12g}')}(?!\d)", answer)
        for value in values
    )


def _leaves(value: Any) -> Iterator[str | float]:
    """Yield the texts and numbers in an action or a tool call, without its metadata. Texts that JSON escapes are left
    out: they are written otherwise in an answer.
    """
    if isinstance(value, str) and value[:1] == "{":  # arguments of a call, as JSON
        with suppress(orjson.JSONDecodeError):
            value = orjson.loads(value)
    if isinstance(value, dict):
        value = [inner for name, inner in value.items() if name != "metadata"]
    if isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    elif isinstance(value, str):
        if value.isprintable() and '"' not in value and "\\" not in value:
            yield value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def _repeats(entries: Sequence[Mapping[str, Any]], sent: Sequence[str]) -> float:
    """Return the share (0 to 1) of moves that repeat an earlier one at the same observation, or the share of moves that
    go round the same actions; the larger of the two.
    """
    distinct_moves: set[tuple[bytes, str]] = set()
    observation, moves = b"", iter(sent)
    for entry in entries:
        if entry["action"] is not None:
            distinct_moves.add((observation, next(moves)))
        if entry["observation"] is not None:
            observation = orjson.dumps(entry["observation"], option=orjson.OPT_SORT_KEYS)
    return max(len(sent) - len(distinct_moves), _in_rounds(sent)) / len(sent)


def _in_rounds(sent: Sequence[str]) -> int:
    """Count the moves of the longest stretch that repeats the same 2 to 4 actions, such as A B A B."""
    longest = 0
    for period in _ROUNDS:
        stretch = period
        for place in range(period, len(sent)):
            stretch = stretch + 1 if sent[place] == sent[place - period] else period
            # A stretch of one and the same action is no round.
            if stretch >= 2 * period and stretch > longest and len(set(sent[place - period + 1 : place + 1])) > 1:
                longest = stretch
    return longest


def _canonical(action: Any) -> str:
    """Write equal actions alike."""
    return action.strip() if isinstance(action, str) else orjson.dumps(action, option=orjson.OPT_SORT_KEYS).decode()


def _text(message: Mapping[str, Any]) -> str:
    thought, content = message.get("reasoning_content"), message.get("content")
    text = "\n".join([part for part in (thought, content) if isinstance(part, str)]) if thought is not None else content
    return text[-_LAST_CHARACTERS:] if isinstance(text, str) else ""


def _non_latin(texts: Sequence[str]) -> float | None:
    """Return the share of the letters that are of another script than Latin, 0 to 1; None without letters."""
    whole = "".join(texts)
    encoded = whole.encode(errors="replace")
    # Most texts have letters of ASCII, and others of Latin script at most: bytes show that six times as fast.
    is_latin = not encoded.translate(None, _LATIN_BYTES) and not _OTHERS.search(encoded)
    if is_latin and encoded.upper() != encoded.lower():
        return 0.0
    others = "".join(filter(str.isalpha, "".join(re.findall(_NO_ASCII, whole))))
    letters = len(whole.encode("ascii", "ignore").translate(None, _NO_LETTERS)) + len(others)
    return len(re.sub(_LATIN, "", others)) / letters if letters else None


def _compressions(texts: Sequence[str]) -> Iterator[float]:
    """Yield how many times smaller zlib, at its fastest level, makes each text. If zstd makes it less than 5 times
    smaller, yields zstd's factor, which takes a quarter of the time: zlib makes no such text 10 times smaller.
    """
    data = [text.encode("utf-8", "replace") for text in texts]
    compressor: Any = zstandard.ZstdCompressor(level=1)
    for encoded, small in zip(data, compressor.multi_compress_to_buffer(data) if data else (), strict=True):
        times = len(encoded) / len(small)
        yield times if times < _REPEATED else len(encoded) / len(zlib.compress(encoded, 1))


def _of_messages(messages: Sequence[Mapping[str, Any]]) -> Facts:
    """Compute the keys of a rollout without token ids, from its messages."""
    prompt_length = next((i for i, message in enumerate(messages) if message.get("role") == "assistant"), len(messages))
    prompt, completion = _sorted_json(messages[:prompt_length]), _sorted_json(messages[prompt_length:])
    return {"prompt_key": _key(prompt), "completion_key": _key(completion), "mean_logprob": None}


def _sorted_json(messages: Sequence[Mapping[str, Any]]) -> bytes:
    """Write messages as JSON with sorted keys; empty bytes if there are none."""
    if not messages:
        return b""
    try:
        return orjson.dumps(messages, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # a lone surrogate
        return orjson.dumps(plain(messages), option=orjson.OPT_SORT_KEYS)


def _key(data: bytes) -> int | None:
    """Hash bytes to a key of 48 bits, which a float can represent exactly; None if there are no bytes."""
    if not data:
        return None
    digest = blake2b(digest_size=6)
    for start in range(0, len(data), _HASHED_AT_ONCE):
        digest.update(data[start : start + _HASHED_AT_ONCE])
    return int.from_bytes(digest.digest())


def _keys(data: Sequence[bytes]) -> list[int | None]:
    """Return the key of each; equal neighbours, such as the prompts of a group, are hashed once."""
    keys: list[int | None] = []
    before = b""
    for item in data:
        keys.append(keys[-1] if keys and item == before else _key(item))
        before = item
    return keys


def _mean_logprobs(rollouts: Sequence[Tokens]) -> list[float | None]:
    """Return the mean log-probability of each rollout's sampled tokens; None without log-probs."""
    means: list[float | None] = [None] * len(rollouts)
    places = [i for i, tokens in enumerate(rollouts) if tokens.logprobs is not None and len(tokens.logprobs)]
    for start in range(0, len(places), _TOGETHER):
        together = places[start : start + _TOGETHER]
        for i, mean in zip(together, _means([rollouts[i] for i in together]), strict=True):
            means[i] = mean
    return means


def _means(rollouts: Sequence[Tokens]) -> Iterator[float | None]:
    """Yield the means of rollouts that all have log-probs."""
    logprobs = [rollout.logprobs for rollout in rollouts if rollout.logprobs is not None]
    recorded = [rollout.mask for rollout in rollouts]
    masks = [
        np.ones(len(array), np.uint8) if mask is None else mask for mask, array in zip(recorded, logprobs, strict=True)
    ]
    values = np.concatenate(logprobs).astype(np.float64)
    counted = np.isfinite(values) & (np.concatenate(masks) == 1)
    np.copyto(values, 0.0, where=~counted)
    starts = np.cumsum([0, *map(len, logprobs[:-1])])
    sums, numbers = np.add.reduceat(values, starts).tolist(), np.add.reduceat(counted, starts, dtype=np.intp).tolist()
    return (total / number if number else None for total, number in zip(sums, numbers, strict=True))


def _shorten_action(action: Any) -> str:
    return column(written_action(action)[:_SHOWN]) or ""
