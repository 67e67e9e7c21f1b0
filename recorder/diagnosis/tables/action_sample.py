"""Summarises the actions of a sample of rollouts: kinds of similar ones, and the environment's answers."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import orjson

from logs_ui.recorder.action_text import bare, tool_of, written_action
from logs_ui.recorder.diagnosis.wording import kind_of
from logs_ui.recorder.vocabulary import LOOP

SHOWN = 160
"""Characters of an action, an observation or an error that are compared and shown."""

_FEW = 12  # distinct values that each become a kind
_SHORT = 24  # characters of a value that may name a kind
_MORE, _SOME = " …", "any "  # after the first word of several texts; before a type's name
_WORD = re.compile(r"\W*(\w[\w.-]*)")
_ERROR_KEYS = ("error", "error_message", "last_action_error", "is_error", "isError")
_EXIT_KEYS = ("exit_code", "returncode", "return_code")


@dataclass(frozen=True)
class Played:
    """Describes one rollout of a sample; `actions` as `queries.Rollout` has them."""

    id: int
    reward: float | None
    actions: Sequence[Mapping[str, Any]]


@dataclass
class ActionKind:
    """Counts similar actions: calls of one tool, texts with the same first word, dicts of one shape."""

    name: str
    times: int = 0  # how often they were sent
    values: Counter[str] = field(default_factory=Counter)  # how often each was sent, by its text
    failed: int = 0  # how many were answered with an error
    rollouts: list[int] = field(default_factory=list)  # ids of the rollouts that contain one
    first_in: list[int] = field(default_factory=list)  # ids of those that start with one
    last_in: list[int] = field(default_factory=list)  # ids of those that end with one
    failed_in: list[int] = field(default_factory=list)  # ids of those in which one failed
    looped_in: list[int] = field(default_factory=list)  # ids of those in which one was sent LOOP times in a row
    last_rewards: list[float] = field(default_factory=list)  # the rewards of `last_in`


@dataclass
class Seen:
    """A text, how often and in which rollouts it occurred, and after which kinds of action."""

    text: str
    times: int = 0
    rollouts: list[int] = field(default_factory=list)
    after: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Sample:
    """Describes the actions of some rollouts."""

    rollouts: int  # how many there are
    actions: int  # how many there are
    kinds: list[ActionKind]  # most frequent first
    errors: list[Seen]  # the environment's errors, most frequent first; those that differ only in numbers are one
    repeated: list[Seen]  # observations that occurred twice or more in one rollout; `times` leaves out the first one


def sampled(played: Sequence[Played]) -> Sample:
    """Return the summary of these rollouts."""
    moves = [[entry for entry in rollout.actions if entry["action"] is not None] for rollout in played]
    kind_name = iter(kind_names([entry["action"] for of_one in moves for entry in of_one]))
    kinds: dict[str, ActionKind] = {}
    errors: dict[str, Seen] = {}
    repeated: dict[str, Seen] = {}
    for rollout, entries in zip(played, moves, strict=True):
        names = [next(kind_name) for _ in entries]
        _add_actions(kinds, errors, rollout, entries, names)
        _add_observations(repeated, rollout)
    return Sample(
        rollouts=len(played),
        actions=sum(map(len, moves)),
        kinds=sorted(kinds.values(), key=lambda kind: -kind.times),
        errors=sorted(errors.values(), key=lambda seen: -seen.times),
        repeated=sorted(repeated.values(), key=lambda seen: -seen.times),
    )


def _add_actions(
    kinds: dict[str, ActionKind],
    errors: dict[str, Seen],
    rollout: Played,
    entries: Sequence[Mapping[str, Any]],
    names: Sequence[str],
) -> None:
    texts = [as_text(entry["action"]) for entry in entries]
    for entry, name in zip(entries, names, strict=True):
        kind = kinds.setdefault(name, ActionKind(name))
        kind.times += 1
        kind.values[written_action(entry["action"])[:SHOWN]] += 1
        _once(kind.rollouts, rollout.id)
        if (error := failure(entry)) is not None:
            kind.failed += 1
            _once(kind.failed_in, rollout.id)
            _see(errors, error, rollout.id, kind_of(error)).after[name] += 1
    for _, repeats in groupby(zip(texts, names, strict=True)):
        run = list(repeats)
        if len(run) >= LOOP:
            _once(kinds[run[0][1]].looped_in, rollout.id)
    if names:
        kinds[names[0]].first_in.append(rollout.id)
        kinds[names[-1]].last_in.append(rollout.id)
        kinds[names[-1]].last_rewards += [] if rollout.reward is None else [rollout.reward]


def _add_observations(repeated: dict[str, Seen], rollout: Played) -> None:
    seen: set[str] = set()
    for text in (as_text(entry["observation"]) for entry in rollout.actions if entry["observation"] is not None):
        if text in seen:
            _see(repeated, text[:SHOWN], rollout.id)
        seen.add(text)


def _see(by_kind: dict[str, Seen], text: str, rollout: int, kind: str = "") -> Seen:
    seen = by_kind.setdefault(kind or text, Seen(text))
    seen.times += 1
    _once(seen.rollouts, rollout)
    return seen


def _once(ids: list[int], rollout: int) -> None:
    """Append a rollout once; they come one after the other."""
    if not ids or ids[-1] != rollout:
        ids.append(rollout)


def failure(entry: Mapping[str, Any]) -> str | None:
    """Return an action's error in one line; None without one.

    It is the exception, or an observation's `error`, or its `exit_code` if that is not 0.
    """
    if entry["error"] is not None:
        return _first_line(entry["error"])
    observation = entry["observation"]
    if not isinstance(observation, Mapping):
        return None
    for key in _ERROR_KEYS:
        if value := observation.get(key):
            message = value.get("message") or value.get("error_type") if isinstance(value, Mapping) else value
            return _first_line(key if message is True or not message else message)
    return next((f"{key} {code}" for key, code in _exit_codes(observation) if code), None)


def exit_code(observation: Any) -> int | None:
    """Return the exit code that a field of an observation has, the first that is not 0; None if no field has one."""
    codes = [code for _, code in _exit_codes(observation)]
    return next((code for code in codes if code), 0 if codes else None)


def _exit_codes(observation: Any) -> list[tuple[str, int]]:
    fields = observation if isinstance(observation, Mapping) else {}
    return [(key, code) for key in _EXIT_KEYS if isinstance(code := fields.get(key), int)]


def _first_line(text: Any) -> str:
    return (str(text).strip().splitlines() or [""])[0][:SHOWN]


def as_text(value: Any) -> str:
    """Return an action or observation as text, the same for equal ones; OpenEnv's metadata is left out."""
    if isinstance(value, str):
        return value.strip()
    return orjson.dumps(_bare(value), option=orjson.OPT_SORT_KEYS).decode()


def words_of(name: str) -> str | None:
    """Return the words that a text search finds each action of a kind by; None if there are none."""
    if name.startswith("{"):
        return None
    return name.removesuffix(_MORE).partition(f": {_SOME}")[0]


def kind_names(actions: Sequence[Any]) -> list[str]:
    """Return the kind of each action.

    It is the tool's name; for other dicts a value that distinguishes them, or their keys; for texts the text itself, or
    its first word if there are many.
    """
    names: list[str] = [(tool_of(action) or "")[:SHOWN] for action in actions]
    by_shape: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, action in enumerate(actions):
        if not names[place]:
            by_shape[_shape(action)].append(place)
    for shape, places in by_shape.items():
        for place, name in zip(places, _name_actions(shape, [_bare(actions[place]) for place in places]), strict=True):
            names[place] = name
    return names


def _bare(value: Any) -> Any:
    return bare(value) if isinstance(value, Mapping) else value


def _shape(action: Any) -> tuple[str, ...]:
    return (type(action).__name__, *(sorted(map(str, bare(action))) if isinstance(action, Mapping) else ()))


def _name_actions(shape: tuple[str, ...], actions: list[Any]) -> Iterable[str]:
    if not isinstance(actions[0], Mapping):
        return _values(actions)
    keys = shape[1:]
    if len(keys) == 1:
        return (f"{keys[0]}: {value}" for value in _values([action[keys[0]] for action in actions]))
    key = _find_telling_key(keys, actions)
    if key is not None:
        return (f"{key}: {action[key]}" for action in actions)
    return [f"{{{', '.join(keys)}}}"[:SHOWN]] * len(actions)


def _find_telling_key(keys: Sequence[str], actions: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the key whose short texts divide actions of one shape into the fewest kinds; None without one."""
    counts: dict[str, int] = {}
    for key in keys:
        values = [action[key] for action in actions]
        if all(isinstance(value, str) and len(value) <= _SHORT for value in values):
            counts[key] = len(set(values))
    several = {key: count for key, count in counts.items() if 1 < count <= _FEW and 2 * count <= len(actions)}
    return min(several, key=lambda key: several[key]) if several else None


def _values(values: Sequence[Any]) -> list[str]:
    """Return the values themselves if they are few, else the first word of a text or the name of the type."""
    texts = [as_text(value) for value in values]
    if len(set(texts)) <= _FEW:
        return [text[:SHOWN] for text in texts]
    names = []
    for value, text in zip(values, texts, strict=True):
        word = _WORD.match(text)
        of_type = f"{_SOME}number" if isinstance(value, int | float) else f"{_SOME}{type(value).__name__}"
        first = f"{word[1][:_SHORT]}{_MORE}" if word else text[:_SHORT]
        names.append(first if isinstance(value, str) else of_type)
    return names
