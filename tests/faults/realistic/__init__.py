"""Generated runs of the kinds that people train, healthy and with one or two planted causes, each with its truth.

What the generator meant is kept beside it, so that a test can count without the
product: which rollouts were solved, truncated, failed or stale, and what each reward function gave.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.faults import Fault, runs
from tests.faults.recording import record


@dataclass(frozen=True)
class Turn(runs.Turn):
    """One answer of the model and the environment's response.

    Attributes:
        heard: number of tokens of the observation in the next prompt.
        is_fallback: True if the answer has no action, and the loop sent a default one.
    """

    tokens: int = 40
    finish: str | None = "stop"
    heard: int = 40
    is_fallback: bool = False


@dataclass(frozen=True)
class Rollout:
    """One rollout as the generator means it.

    Attributes:
        values: what each reward function returns; None: it is not scored.
        solved: whether it solved its task; None: the kind of run has no outcome.
        prompt: the messages of the prompt.
        raises: the message of the RuntimeError that ends it.
        staleness: policy versions that passed before it was trained on, from an asynchronous trainer; None without one.
        dropped: True if the asynchronous trainer left it out for that.
        nll: mean of -log p of its tokens; None: no log-probs are recorded.
        ids: the sampled token ids; None: random ones.
        causes: ids of the planted causes that this rollout suffers from.
        dataset: the dataset's columns besides the prompt.
        metrics: what the rollout function measured.
    """

    task: str
    prompt: Sequence[Mapping[str, Any]]
    turns: Sequence[Turn]
    values: Mapping[str, float | None] | None
    solved: bool | None
    family: str = ""
    raises: str | None = None
    staleness: int | None = None
    dropped: bool = False
    nll: float | None = None
    ids: Sequence[int] | None = None
    causes: frozenset[str] = frozenset()
    dataset: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Truth:
    """What is true of a run.

    Attributes:
        run: its id; empty until it is recorded.
        expected: id of the card that must come first; None: there must be no card.
        since: the step from which the cause acts; None: from the first on, or there is no cause.
        also: ids of other causes that were planted, and their steps.
        rollouts: one dict per rollout, in the order in which they were recorded: `group`, `generation`, `step`, `task`,
            `family`, `values`, `reward` (None without one), `advantage`, `solved` (None: no outcome), `truncated`,
            `cut_tokens` (sampled tokens of the truncated generation), `limit` (its max_tokens), `errored`, `error`,
            `staleness`, `dropped`, `turns`, `tokens` (sampled), `actions` (number sent), `fallbacks` (default actions
            that the loop sent), `streak` (equal actions in a row), `ends_in_streak`, `done`, `text` (all answers),
            `causes`.
        weights: by reward function.
        scalars: what was logged, by name and step.
        size: rollouts of a group.
    """

    id: str
    kind: str
    run: str
    expected: str | None
    since: int | None
    also: Mapping[str, int | None]
    rollouts: Sequence[Mapping[str, Any]]
    weights: Mapping[str, float]
    scalars: Mapping[str, Mapping[int, float]]
    size: int

    def of(self, cause: str) -> list[Mapping[str, Any]]:
        """Return the rollouts that suffer from a planted cause."""
        return [it for it in self.rollouts if cause in it["causes"]]


@dataclass(frozen=True)
class Realistic:
    """A run of the second shelf.

    Attributes:
        id: `kind-cause`.
        planted: what was planted, in one sentence.
        expected, since, also: see `Truth`.
        make: generates it, and what is true of it.
    """

    id: str
    kind: str
    planted: str
    expected: str | None
    make: Callable[["Realistic"], tuple[runs.Run, Truth]] = field(repr=False)
    since: int | None = None
    also: Mapping[str, int | None] = field(default_factory=dict)

    def as_fault(self) -> Fault:
        """Return it as the first shelf has it, without its truth."""
        return Fault(self.id, self.planted, self.expected, lambda: self.make(self)[0])

    def record(self, db: Path) -> Truth:
        """Record it, and return what is true of it."""
        run, truth = self.make(self)
        return replace(truth, run=record(db, run))
