"""Summarises the actions of a sample of rollouts: their kinds, and the environment's answers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from logs_ui.recorder.diagnosis.tables.action_kinds import SHOWN, as_text, kind_names
from logs_ui.recorder.vocabulary import LOOP

_ERROR_KEYS = ("error", "error_message", "last_action_error", "is_error", "isError")
_EXIT_KEYS = ("exit_code", "returncode", "return_code")


@dataclass(frozen=True)
class Played:
    """One rollout of a sample; `actions` as `queries.Rollout` has them."""

    id: int
    reward: float | None
    actions: Sequence[Mapping[str, Any]]


@dataclass
class ActionKind:
    """Similar actions: calls of one tool, texts with the same first word, dicts of one shape.

    Attributes:
        times: how often they were sent.
        values: how often each was sent, by its text.
        failed: how many were answered with an error.
        rollouts, first_in, last_in, failed_in, looped_in: ids of the rollouts that contain one; that start with one;
            that end with one; in which one failed; in which one was sent LOOP times in a row.
        last_rewards: the rewards of `last_in`.
    """

    name: str
    times: int = 0
    values: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    rollouts: list[int] = field(default_factory=list)
    first_in: list[int] = field(default_factory=list)
    last_in: list[int] = field(default_factory=list)
    failed_in: list[int] = field(default_factory=list)
    looped_in: list[int] = field(default_factory=list)
    last_rewards: list[float] = field(default_factory=list)


@dataclass
class Seen:
    """A text, how often and in which rollouts it occurred, and after which kinds of action."""

    text: str
    times: int = 0
    rollouts: list[int] = field(default_factory=list)
    after: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Sample:
    """The actions of some rollouts.

    Attributes:
        rollouts, actions: how many there are.
        kinds: most frequent first.
        errors: the environment's errors, most frequent first.
        repeated: observations that occurred twice or more in one rollout; `times` leaves out the first one.
    """

    rollouts: int
    actions: int
    kinds: list[ActionKind]
    errors: list[Seen]
    repeated: list[Seen]


def sampled(played: Sequence[Played]) -> Sample:
    """Return the summary of these rollouts."""
    moves = [[entry for entry in it.actions if entry["action"] is not None] for it in played]
    named = iter(kind_names([entry["action"] for of_one in moves for entry in of_one]))
    kinds: dict[str, ActionKind] = {}
    errors: dict[str, Seen] = {}
    repeated: dict[str, Seen] = {}
    for it, entries in zip(played, moves, strict=True):
        names = [next(named) for _ in entries]
        _add_actions(kinds, errors, it, entries, names)
        _add_observations(repeated, it)
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
    it: Played,
    entries: Sequence[Mapping[str, Any]],
    names: Sequence[str],
) -> None:
    texts = [as_text(entry["action"]) for entry in entries]
    for entry, name, text in zip(entries, names, texts, strict=True):
        kind = kinds.setdefault(name, ActionKind(name))
        kind.times += 1
        kind.values[text[:SHOWN]] += 1
        _once(kind.rollouts, it.id)
        if (error := failure(entry)) is not None:
            kind.failed += 1
            _once(kind.failed_in, it.id)
            _see(errors, error, it.id).after[name] += 1
    for _, same in groupby(zip(texts, names, strict=True)):
        run = list(same)
        if len(run) >= LOOP:
            _once(kinds[run[0][1]].looped_in, it.id)
    if names:
        kinds[names[0]].first_in.append(it.id)
        kinds[names[-1]].last_in.append(it.id)
        kinds[names[-1]].last_rewards += [] if it.reward is None else [it.reward]


def _add_observations(repeated: dict[str, Seen], it: Played) -> None:
    seen: set[str] = set()
    for text in (as_text(entry["observation"]) for entry in it.actions if entry["observation"] is not None):
        if text in seen:
            _see(repeated, text[:SHOWN], it.id)
        seen.add(text)


def _see(found: dict[str, Seen], text: str, rollout: int) -> Seen:
    seen = found.setdefault(text, Seen(text))
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
        if said := observation.get(key):
            message = said.get("message") or said.get("error_type") if isinstance(said, Mapping) else said
            return _first_line(key if message is True or not message else message)
    for key in _EXIT_KEYS:
        if isinstance(code := observation.get(key), int) and code != 0:
            return f"{key} {code}"
    return None


def _first_line(text: Any) -> str:
    return (str(text).strip().splitlines() or [""])[0][:SHOWN]
