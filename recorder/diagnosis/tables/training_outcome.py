"""Which rollouts moved the policy and why the others did not: the rules of `recorder.trained`, over columns."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from logs_ui.recorder.diagnosis.links import ids
from logs_ui.recorder.diagnosis.measures import dead
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Floats, Ints, Rows
from logs_ui.recorder.vocabulary import Status, StopReason

_NOISE = 0.01  # that TRL's division by a spread of 1e-4 leaves in the advantages of equal rewards: recorder.trained's


class Outcome(StrEnum):
    """What training made of a rollout."""

    TRAINED = "trained"
    """It has an advantage that is not 0, and tokens to train on."""
    FAILED_GROUP = "failed_group"
    """Its advantage is 0: all of its group were rewarded alike, below what counts as solved."""
    PASSED_GROUP = "passed_group"
    """Its advantage is 0: all of its group were rewarded alike, and solved it."""
    NO_ADVANTAGE = "no_advantage"
    """Its advantage is 0, though its group's rewards differ."""
    TRUNCATED = "truncated"
    """It was cut off at the token limit, and mask_truncated_completions is on."""
    STALE = "stale"
    """An asynchronous trainer dropped it: the policy had gone on by more versions than max_staleness."""
    OVERSIZE = "oversize"
    """An asynchronous trainer dropped it: it did not fit into token_budget."""
    UNSAMPLED = "unsampled"
    """None of its tokens was sampled by the model."""
    NOTHING_RETURNED = "nothing_returned"
    """It ended before it returned anything to train on."""
    RUN_ENDED = "run_ended"
    """The run ended before it was scored."""
    AWAITED = "awaited"
    """It awaits its reward."""
    NOT_RECORDED = "not_recorded"
    """Its advantage is not recorded."""


OUTCOMES = tuple(Outcome)
_UNTOUCHED = (Outcome.STALE, Outcome.OVERSIZE, Outcome.NOT_RECORDED)


def outcomes(rows: Rows, *, solved: float, is_running: bool, config: Mapping[str, Any]) -> Ints:
    """(N,) index into OUTCOMES of each rollout of a training; an evaluation's never train.

    Args:
        rows: whole groups.
        solved: the reward from which on a rollout solved its task.
        is_running: whether the run scores on.
        config: the trainer's arguments.
    """
    lacks = np.isnan(rows.advantage)
    masks = config.get("mask_truncated_completions") is True
    is_alike = (dead(rows.groups)[rows.group]) & (np.abs(rows.advantage) < _NOISE)
    passed = (rows.groups.mean >= solved - SAME)[rows.group]
    found: dict[Outcome, Any] = {
        Outcome.STALE: rows.dropped == "stale",
        Outcome.OVERSIZE: rows.dropped == "oversize",
        Outcome.NOTHING_RETURNED: lacks & (rows.status != Status.OK) & np.isnan(rows.completion_tokens),
        Outcome.AWAITED: lacks & ~rows.scored & is_running,
        Outcome.RUN_ENDED: lacks & ~rows.scored,
        Outcome.NOT_RECORDED: lacks,
        Outcome.UNSAMPLED: rows.completion_tokens == 0,
        Outcome.TRUNCATED: (rows.stop_reason == StopReason.LENGTH) & masks,
        Outcome.PASSED_GROUP: is_alike & passed,
        Outcome.FAILED_GROUP: is_alike,
        Outcome.NO_ADVANTAGE: rows.advantage == 0,
    }
    tests = [np.asarray(test, bool) for test in found.values()]
    return np.select(tests, [OUTCOMES.index(it) for it in found], default=OUTCOMES.index(Outcome.TRAINED))


def counts(found: Ints, weights: Floats | None = None) -> dict[Outcome, float]:
    """How many rollouts there are of each outcome, or the sum of their weights; a NaN counts nothing."""
    sums = np.bincount(found, None if weights is None else np.nan_to_num(weights), len(OUTCOMES))
    return dict(zip(OUTCOMES, sums.tolist(), strict=True))


@dataclass(frozen=True)
class Tokens:
    """Tokens that the model sampled.

    Attributes:
        trained: those that a gradient is of.
        all: all that are known.
        unknown: those of rollouts of which it is not recorded whether any was trained on.
        inserted: put into completions by the environment, which are never trained on; not among the others.
    """

    trained: int
    all: int
    unknown: int
    inserted: int

    @classmethod
    def of(cls, rows: Rows, found: Ints) -> "Tokens":
        sums = counts(found, rows.completion_tokens)
        unknown = sum(sums[it] for it in _UNTOUCHED)
        return cls(
            int(sums[Outcome.TRAINED]),
            int(sum(sums.values())),
            int(unknown),
            int(np.nansum(rows.env_tokens, initial=0)),
        )


def where(outcome: Outcome, rows: Rows, found: Ints, *, solved: float) -> str:
    """The filter that has exactly the rollouts of an outcome, among those of a training; "" where none says it.

    Args:
        outcome: any.
        rows: as `outcomes` has them.
        found: what it said.
        solved: as it has it.
    """
    mine, known = found == OUTCOMES.index(outcome), counts(found)
    test = _trained(rows) if outcome == Outcome.TRAINED else _WHERE.get(outcome, "")
    if not test or outcome == Outcome.NOTHING_RETURNED:  # of which a run that died has some more, that still ran
        return exactly(rows.id[mine]) or test
    before = [name for name in _LEFT_OUT if known[name]]
    if outcome in _LEFT_OUT:
        before = [name for name in before if [*_LEFT_OUT].index(name) < [*_LEFT_OUT].index(outcome)]
    return " ".join([test.format(edge=f"{solved - SAME:.9g}"), *(_LEFT_OUT[name] for name in before)])


def _trained(rows: Rows) -> str:
    """What an advantage alone does not say where rounding left some in dead groups; and where a dead group has real
    ones, as if the trainer had grouped otherwise, no filter does.
    """
    of_dead = np.abs(rows.advantage[dead(rows.groups)[rows.group]])
    if not ((of_dead > 0) & (of_dead < _NOISE)).any():
        return "-advantage:0,none"
    return "" if (of_dead >= _NOISE).any() else f"-advantage:0,none -spread<={SAME:f}"


def exactly(found: Ints) -> str:
    """The filter that names these rollouts; "" of none, and of more than an address holds."""
    apart = 1 + int((np.diff(np.sort(found)) != 1).sum())
    return ids(found) if len(found) and apart <= _RANGES else ""


_RANGES = 100  # of ids in an address: links.py's
_WHERE = {
    Outcome.STALE: "dropped:stale",
    Outcome.OVERSIZE: "dropped:oversize",
    Outcome.NOTHING_RETURNED: "advantage:none completion_tokens:none status:error,aborted",
    Outcome.UNSAMPLED: "-advantage:none completion_tokens:0",
    Outcome.TRUNCATED: "-advantage:none stop:length",
    Outcome.PASSED_GROUP: f"advantage>-{_NOISE:g} advantage<{_NOISE:g} spread<={SAME:f} reward>={{edge}}",
    Outcome.FAILED_GROUP: f"advantage>-{_NOISE:g} advantage<{_NOISE:g} spread<={SAME:f} reward<{{edge}}",
    Outcome.NO_ADVANTAGE: f"advantage:0 -spread<={SAME:f}",
}
_LEFT_OUT = {
    Outcome.STALE: "-dropped:stale",
    Outcome.OVERSIZE: "-dropped:oversize",
    Outcome.UNSAMPLED: "-completion_tokens:0",
    Outcome.TRUNCATED: "-stop:length",
}
"""In the order in which `outcomes` asks."""
