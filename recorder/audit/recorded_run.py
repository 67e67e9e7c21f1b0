"""Gathers the rows of a run as numpy columns, with the faults of their tokens, chunk by chunk."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from logs_ui.recorder.audit.token_faults import Seen, Sources, token_faults
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Floats, Ints
from logs_ui.recorder.queries import Rollout
from logs_ui.recorder.storage.tables import EvaluationRow
from logs_ui.recorder.vocabulary import Mode, Status


@dataclass(frozen=True, eq=False)
class Recorded:
    """Holds N ended rollouts of a run, ordered by id, and F reward functions. Arrays have the shape (N,) unless it says
    otherwise.
    """

    id: Ints  # as in the dashboard's URLs
    is_evaluation: Bools
    group: Ints  # its number, from 0 on
    batch: Ints  # likewise; -1 where the group's name shows none
    place: Ints  # index in the batch, over all ranks
    reward: Floats  # NaN without one
    advantage: Floats  # NaN without one
    values: Floats  # (N, F) NaN where a function gave none
    weights: Floats  # (N, F) NaN where not recorded
    has_infinity: Bools  # True where a function gave an infinity
    prompt_key: Floats  # NaN where not known
    completion_key: Floats  # NaN where not known
    has_environment: Bools  # True where an environment acted or rewarded
    names: Sequence[str]  # (F) of the functions
    tokens: Sequence[Seen]  # (N) what the tokens show
    config: Mapping[str, Any] = field(default_factory=dict)  # the trainer's arguments
    versions: Mapping[str, str] = field(default_factory=dict)  # of packages
    # Rollouts in a group of the training (False) and of an evaluation (True); None where not known.
    group_size: Mapping[bool, int | None] = field(default_factory=dict)
    mixed: frozenset[int] = frozenset()  # ids of rollouts in groups that mix prompts
    lost_calls: int = 0  # that are no rollout's

    def whole_groups(self) -> Bools:
        """Return (N,) True for rollouts of groups that are recorded completely."""
        sizes = np.array([self.group_size.get(bool(is_one)) or -1 for is_one in self.is_evaluation])
        return np.asarray(np.bincount(self.group)[self.group] == sizes, bool)

    def whole_batches(self) -> Bools:
        """Return (N,) True for rollouts of batches of which no group is missing; in training these have as many
        rollouts as the trainer's `generation_batch_size`.
        """
        is_whole, in_whole_group = np.zeros(len(self.id), bool), self.whole_groups() & (self.batch >= 0)
        for batch in np.unique(self.batch[in_whole_group]):
            chosen = self.batch == batch
            count = int(chosen.sum())
            size = None if self.is_evaluation[chosen][0] else self.config.get("generation_batch_size")
            # Places are numbered from 0, so that a group is missing in between if the highest is not below the
            # count.
            is_whole[chosen] = in_whole_group[chosen].all() and self.place[chosen].max() < count == (size or count)
        return is_whole


class Gathering:
    """Takes the rollouts of a run in chunks, and keeps their columns."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._rows: list[dict[str, Any]] = []
        self._tokens: list[Seen] = []
        self._groups: dict[str, int] = {}
        self._batches: dict[str, int] = {}

    def add(self, rollouts: Sequence[Rollout]) -> None:
        """Take the next rollouts; those that still run are left out."""
        for rollout in rollouts:
            if rollout.row.status != Status.RUNNING:
                self._tokens.append(token_faults(rollout, self._sources))
                self._rows.append(self._columns(rollout.row))

    def recorded(self, **of_run: Any) -> Recorded:
        """Return the columns of all that were taken; `of_run` are the fields of `Recorded` that are the run's."""
        rows, sizes = self._rows, of_run["group_size"]
        names = [*dict.fromkeys(name for row in rows for name in row["values"])]
        for row in rows:
            row["place"] = row["index"] * (sizes[row["is_evaluation"]] or 0) + row["generation"]
        columns: dict[str, Any] = {name: np.array([row[name] for row in rows], kind) for name, kind in _KINDS.items()}
        for name in ("values", "weights"):
            table = [[row[name].get(function) for function in names] for row in rows]
            columns[name] = np.array(table, np.float64).reshape(len(rows), len(names))
        return Recorded(**columns, names=names, tokens=self._tokens, **of_run)

    def _columns(self, row: EvaluationRow) -> dict[str, Any]:
        name, _, index = row.group.rpartition("/")
        is_numbered = index.isdecimal() and name.count("/") > 1  # run/mode/batch/index
        return {
            "id": row.id,
            "is_evaluation": row.mode == Mode.EVAL,
            "group": self._groups.setdefault(row.group, len(self._groups)),
            "batch": self._batches.setdefault(name, len(self._batches)) if is_numbered else -1,
            "index": int(index) if is_numbered else 0,
            "generation": row.generation,
            "reward": row.reward,
            "advantage": row.advantage,
            "values": row.rewards or {},
            "weights": row.reward_weights or {},
            "has_infinity": any("inf" in value for value in (row.odd_rewards or {}).values()),
            "prompt_key": row.prompt_key,
            "completion_key": row.completion_key,
            "has_environment": bool(row.env_steps) or row.env_reward_sum is not None,
        }


# The columns with one number for each row, by type.
_KINDS: dict[str, Any] = {
    **dict.fromkeys(("id", "group", "batch", "place"), np.int64),
    **dict.fromkeys(("is_evaluation", "has_infinity", "has_environment"), bool),
    **dict.fromkeys(("reward", "advantage", "prompt_key", "completion_key"), np.float64),
}
