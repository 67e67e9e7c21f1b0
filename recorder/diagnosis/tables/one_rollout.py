"""Describes what training made of one rollout, by the same rules as the tables of all rollouts."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from logs_ui.recorder.diagnosis.rollout_rows import Rows
from logs_ui.recorder.diagnosis.success import Success
from logs_ui.recorder.diagnosis.tables.masks import masks
from logs_ui.recorder.diagnosis.tables.training_outcome import OUTCOMES, Outcome, outcomes
from logs_ui.recorder.vocabulary import Status


class Moved(StrEnum):
    """The answer to whether the policy was trained on a rollout."""

    YES = "yes"
    NO = "no"
    NOT_YET = "not yet"
    """It still runs, or awaits its reward."""
    NOT_RECORDED = "not recorded"


_WHY = {
    Outcome.STALE: "it was dropped as stale: the policy was ahead of it by more versions than max_staleness",
    Outcome.OVERSIZE: "it was dropped as oversize: it did not fit into token_budget",
    Outcome.FILTERED: "it is not in the trainer's dump of those that were trained on",
    Outcome.ERRORED: "it was aborted before it was scored",
    Outcome.AWAITED: "it awaits its reward",
    Outcome.RUN_ENDED: "the run ended before it was scored",
    Outcome.NO_REWARD: "no reward function gave it a number",
    Outcome.NOT_RECORDED: "its advantage is not recorded",
    Outcome.UNSAMPLED: "none of its tokens was sampled by the model",
    Outcome.TRUNCATED: "it was truncated, and mask_truncated_completions is on",
}
_UNSURE = {Outcome.AWAITED: Moved.NOT_YET, Outcome.NOT_RECORDED: Moved.NOT_RECORDED}


@dataclass(frozen=True)
class Training:
    """Describes the effect of one rollout on training."""

    moved: Moved  # the answer to whether the policy was trained on it
    why: str  # the reason, as a clause without a full stop; "" if it was trained on
    tokens: int | None = None  # number of tokens of its completion that have a gradient; None if that is not recorded
    unknown: tuple[str, ...] = ()  # clauses on TRL's masks that may have changed that, and are not recorded


def training(rows: Rows, rollout: int, *, is_evaluation: bool, is_running: bool, config: Mapping[str, Any]) -> Training:
    """Describe what training made of one rollout. `rows` are its group; its run scores rollouts while `is_running`."""
    mine = rows.id == rollout
    place = int(np.flatnonzero(mine)[0])
    tokens = rows.completion_tokens[place]
    if is_evaluation:
        return Training(Moved.NO, "it belongs to an evaluation", 0)
    # What counts as solved only divides groups of equal rewards into failed and passed ones.
    outcome = OUTCOMES[outcomes(rows, success=Success(), is_running=is_running, config=config)[place]]
    is_dropped = outcome in {Outcome.STALE, Outcome.OVERSIZE}
    if rows.status[place] == Status.RUNNING and is_running and np.isnan(rows.advantage[place]) and not is_dropped:
        return Training(Moved.NOT_YET, "it is still running")
    if outcome == Outcome.TRAINED:
        unknown = tuple(f"whether TRL {mask.effect}" for mask in masks(rows, mine, config, {}) if mask.rollouts)
        return Training(Moved.YES, "", None if np.isnan(tokens) else int(tokens), unknown)
    if outcome == Outcome.ERRORED and rows.status[place] == Status.ERROR:
        return Training(Moved.NO, "it raised before it was scored", 0)
    moved, why, beta = _UNSURE.get(outcome, Moved.NO), _WHY.get(outcome), config.get("beta")
    if why is None:
        alike = f": all {rows.groups.size[rows.group[place]]} rewards of its group are equal"
        kl = f"; only the KL penalty acts on it (beta {beta:g})" if isinstance(beta, float) and beta else ""
        why = f"its advantage is 0{'' if outcome == Outcome.NO_ADVANTAGE else alike}{kl}"
    return Training(moved, why, None if is_dropped or moved != Moved.NO else 0)
