"""Determines which rollouts the policy was trained on, and why not on the others, by TRL's rules."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from typing import Any

import numpy as np

from logs_ui.recorder.diagnosis.links import exactly
from logs_ui.recorder.diagnosis.measures import dead
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Floats, Ints, Rows
from logs_ui.recorder.diagnosis.success import Success
from logs_ui.recorder.vocabulary import Status

_NOISE = 0.01  # the most that rounding, divided by TRL's 1e-4, leaves in the advantages of equal rewards


class Outcome(StrEnum):
    """Ways in which training can use a rollout, or leave it out."""

    TRAINED = "trained"
    """It has an advantage other than 0, and tokens to train on."""
    FAILED_GROUP = "failed_group"
    """Its advantage is 0: all rewards of its group are equal, and it did not solve the task."""
    PASSED_GROUP = "passed_group"
    """Its advantage is 0: all rewards of its group are equal, and it solved the task."""
    EQUAL_GROUP = "equal_group"
    """Its advantage is 0: all rewards of its group are equal; what counts as solved is not defined."""
    NO_ADVANTAGE = "no_advantage"
    """Its advantage is 0, though its group's rewards differ."""
    TRUNCATED = "truncated"
    """It was truncated, and mask_truncated_completions is on."""
    STALE = "stale"
    """An asynchronous trainer dropped it: the policy was ahead of it by more versions than max_staleness."""
    OVERSIZE = "oversize"
    """An asynchronous trainer dropped it: it did not fit into token_budget."""
    FILTERED = "filtered"
    """It is not in the trainer's dump of those that were trained on."""
    UNSAMPLED = "unsampled"
    """None of its tokens was sampled by the model."""
    ERRORED = "errored"
    """It raised or was aborted before it was scored."""
    RUN_ENDED = "run_ended"
    """It returned, and the run ended before it was scored."""
    AWAITED = "awaited"
    """It awaits its reward."""
    NO_REWARD = "no_reward"
    """It was scored, no reward function gave it a number, and it has no advantage."""
    NOT_RECORDED = "not_recorded"
    """It was scored, and its advantage is not recorded."""


OUTCOMES = tuple(Outcome)
_AWAITED = OUTCOMES.index(Outcome.AWAITED)


def outcomes(rows: Rows, *, success: Success, is_running: bool, config: Mapping[str, Any]) -> Ints:
    """Return (N,) index into OUTCOMES of each rollout of a training, of which `rows` are whole groups. The run still
    scores rollouts while `is_running`.
    """
    lacks = np.isnan(rows.advantage)
    masks = config.get("mask_truncated_completions") is True
    is_alike = (dead(rows.groups)[rows.group]) & (np.abs(rows.advantage) < _NOISE)
    # The first test that holds decides, so their order matters: a rollout that was dropped lacks an advantage, too.
    tests_of: dict[Outcome, Any] = {
        Outcome.STALE: rows.dropped == "stale",
        Outcome.OVERSIZE: rows.dropped == "oversize",
        Outcome.ERRORED: lacks & (rows.status != Status.OK) & ~rows.scored,
        Outcome.FILTERED: rows.dropped == "filtered",
        Outcome.AWAITED: lacks & ~rows.scored & is_running,
        Outcome.RUN_ENDED: lacks & ~rows.scored,
        Outcome.NO_REWARD: lacks & np.isnan(rows.reward),
        Outcome.NOT_RECORDED: lacks,
        Outcome.UNSAMPLED: rows.completion_tokens == 0,
        Outcome.TRUNCATED: rows.truncated & masks,
        Outcome.EQUAL_GROUP: is_alike & (not success.is_defined),
        Outcome.PASSED_GROUP: is_alike & success.solved(rows),
        Outcome.FAILED_GROUP: is_alike,
        Outcome.NO_ADVANTAGE: rows.advantage == 0,
    }
    tests = [np.asarray(test, bool) for test in tests_of.values()]
    return np.select(tests, [OUTCOMES.index(outcome) for outcome in tests_of], default=OUTCOMES.index(Outcome.TRAINED))


def counts(codes: Ints, weights: Floats | None = None) -> dict[Outcome, float]:
    """Return the number of rollouts of each outcome, or the sum of their weights; NaN counts as 0."""
    sums = np.bincount(codes, None if weights is None else np.nan_to_num(weights), len(OUTCOMES))
    return dict(zip(OUTCOMES, sums.tolist(), strict=True))


@dataclass(frozen=True)
class Tokens:
    """Counts of tokens that the model sampled."""

    trained: int  # tokens with a gradient
    all: int  # all recorded tokens
    unknown: int  # tokens of rollouts for which it is not recorded whether they were trained on
    inserted: int  # tokens that the environment inserted; they are never trained on, and not part of the others

    @classmethod
    def of(cls, rows: Rows, codes: Ints) -> "Tokens":
        sums = counts(codes, rows.completion_tokens)
        unknown = sum(sums[outcome] for outcome in (Outcome.STALE, Outcome.OVERSIZE, Outcome.NOT_RECORDED))
        inserted = np.nansum(rows.env_tokens, initial=0)
        return cls(int(sums[Outcome.TRAINED]), int(sum(sums.values())), int(unknown), int(inserted))


def where(outcome: Outcome, rows: Rows, codes: Ints, *, success: Success) -> str:
    """Return the filter that selects exactly an outcome's rollouts among those of a training; "" if there is none.
    `codes` is the result of `outcomes` for the same rows.
    """
    mine, numbers = codes == OUTCOMES.index(outcome), counts(codes)
    test = _trained_filter(rows) if outcome == Outcome.TRAINED else _WHERE.get(outcome, "")
    # Outcomes that are tested before this one may have rollouts with the same columns, which the filter has to
    # leave out.
    before = [_LEFT_OUT[name] for name in takewhile(lambda name: name != outcome, _LEFT_OUT) if numbers[name]]
    if outcome in _LACKING:
        # A filter on `aborted` would also select rollouts that were still running when the run crashed; `scored:no`
        # selects rollouts that were never scored, too, unless they are awaited.
        chosen = rows.status == (Status.ERROR if outcome == Outcome.ERRORED else Status.OK)
        chosen &= np.isnan(rows.reward) & ~(rows.scored if outcome == Outcome.AWAITED else codes == _AWAITED)
        chosen = np.isfinite(rows.reward) if outcome == Outcome.NOT_RECORDED else chosen
        gone = [Outcome.STALE, Outcome.OVERSIZE, *([] if outcome == Outcome.ERRORED else [Outcome.FILTERED])]
        chosen &= np.isnan(rows.advantage) & ~np.isin(rows.dropped, gone)
        before = before[: sum(numbers[name] > 0 for name in gone)]
        return " ".join([_LACKING[outcome], *before]) if (chosen == mine).all() else exactly(rows.id[mine])
    if outcome == Outcome.FILTERED and numbers[Outcome.ERRORED]:
        chosen, test = (rows.dropped == "filtered") & (rows.status == Status.OK), f"{test} status:ok"
        test = test if (chosen == mine).all() else ""
    if not test or (outcome in {Outcome.PASSED_GROUP, Outcome.FAILED_GROUP} and not success.where):
        return exactly(rows.id[mine])
    end = {Outcome.PASSED_GROUP: [success.where], Outcome.FAILED_GROUP: [f"-{success.where}"]}.get(outcome, [])
    return " ".join([test, *end, *before])


def _trained_filter(rows: Rows) -> str:
    """Return the filter for rollouts that were trained on.

    The advantage alone is not enough if rounding left small ones in zero-variance groups. If such a group has large
    ones, as if the trainer had grouped differently, no filter can select them.
    """
    of_dead = np.abs(rows.advantage[dead(rows.groups)[rows.group]])
    if not ((of_dead > 0) & (of_dead < _NOISE)).any():
        return "-advantage:0,none"
    return "" if (of_dead >= _NOISE).any() else f"-advantage:0,none -spread<={SAME:f}"


_ALIKE = f"advantage>-{_NOISE:g} advantage<{_NOISE:g} spread<={SAME:f}"
_WHERE = {
    Outcome.STALE: "dropped:stale",
    Outcome.OVERSIZE: "dropped:oversize",
    Outcome.FILTERED: "dropped:filtered",
    Outcome.UNSAMPLED: "-advantage:none completion_tokens:0",
    Outcome.TRUNCATED: "-advantage:none stop:length",
    **dict.fromkeys((Outcome.PASSED_GROUP, Outcome.FAILED_GROUP, Outcome.EQUAL_GROUP), _ALIKE),
    Outcome.NO_ADVANTAGE: f"advantage:0 -spread<={SAME:f}",
}
_LACKING = {
    Outcome.ERRORED: "advantage:none status:error reward:none",
    Outcome.RUN_ENDED: "advantage:none status:ok scored:no",
    Outcome.AWAITED: "advantage:none status:ok scored:awaiting",
    Outcome.NO_REWARD: "advantage:none status:ok scored:no",
    Outcome.NOT_RECORDED: "advantage:none scored:yes",
}
"""Of rollouts without an advantage, where these filters select exactly theirs."""
_LEFT_OUT = {
    Outcome.STALE: "-dropped:stale",
    Outcome.OVERSIZE: "-dropped:oversize",
    Outcome.FILTERED: "-dropped:filtered",
    Outcome.UNSAMPLED: "-completion_tokens:0",
    Outcome.TRUNCATED: "-stop:length",
}
"""In the order in which `outcomes` tests them."""
