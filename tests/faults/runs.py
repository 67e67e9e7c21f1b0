"""A run as it is generated: what the recorder is told of it, and what the diagnosis gets as columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from logs_ui.recorder.storage.payload import Tokens
from logs_ui.recorder.vocabulary import Mode


@dataclass(frozen=True)
class Turn:
    """One answer of the model, and what came of it.

    Attributes:
        tokens: number of tokens that were sampled for it; None: not known.
        finish: the reason why the answer ended, as the server reports it.
        limit: `max_tokens` of this call, which is then made by a traced HTTP client; None: the answer is recorded by
            hand, and no limit of the call is known.
    """

    text: str
    action: Any = None
    observation: Any = None
    done: bool | None = None
    reward: float | None = None
    error: str | None = None
    tokens: int | None = None
    finish: str | None = None
    limit: int | None = None

    @property
    def is_move(self) -> bool:
        """True if the environment took part."""
        return any(it is not None for it in (self.action, self.observation, self.reward, self.done, self.error))


@dataclass(frozen=True)
class Rollout:
    """One rollout of a generated run.

    Attributes:
        prompt: its messages.
        sent: the messages that the model was sent in their place; None: those. Only calls of a client tell.
        values: by reward function; None: it is not scored.
        stop: why it ended, where its turns do not show it.
        raises: what the RuntimeError that ended it says; its tokens are lost then.
        policy_step, staleness, dropped: as `EvaluationRow` has them; None: not known.
        is_hit: True if the planted fault changed what is recorded of it.
        eval: the name of its environment, if the run has several; None: the run's.
    """

    step: int
    group: int
    generation: int
    task: str | None
    prompt: Sequence[Mapping[str, Any]]
    turns: Sequence[Turn]
    values: Mapping[str, float | None] | None
    weights: Mapping[str, float] | None = None
    advantage: float | None = None
    tokens: Tokens | None = None
    stop: str | None = None
    raises: str | None = None
    policy_step: int | None = None
    staleness: int | None = None
    dropped: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    is_hit: bool = False
    sent: Sequence[Mapping[str, Any]] | None = None
    eval: str | None = None


@dataclass(frozen=True)
class Run:
    """A generated run.

    Attributes:
        rollouts: in the order in which they are recorded.
        scalars: what the trainer logs, by name and step.
        has_ended: False if it is still running.
        evaluation: rollouts of evaluations between the steps of the training.
    """

    name: str
    eval_name: str
    rollouts: Sequence[Rollout]
    scalars: Mapping[str, Mapping[int, float]]
    config: Mapping[str, Any]
    mode: Mode = Mode.TRAIN
    model: str | None = None
    has_ended: bool = True
    evaluation: Sequence[Rollout] = ()
