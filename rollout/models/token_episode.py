"""One rollout's tokens while it is played. They only ever grow: nothing that was sampled is tokenised again."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model sampled after a context.

    Attributes:
        ids: (S,) token ids, the end-of-turn token included if it came.
        logprobs: (S,) natural logarithms, of the distribution that was sampled from; None where the model's server does
            not return them.
        finish: "length" where it hit its token limit.
        text: its text, without special tokens.
    """

    ids: list[int]
    logprobs: list[float] | None
    finish: Finish
    text: str


@dataclass
class Trajectory:
    """A rollout as the trainer gets it.

    Attributes:
        prompt_ids: what the model was given at first.
        completion_ids: all that followed, sampled or inserted.
        mask: 1 for a token that was sampled, 0 for one that was inserted; as long as `completion_ids`.
        logprobs: as long as `completion_ids`, 0.0 for inserted tokens; None once an answer came without them.
        rewards: the environment's, one for each step; None where it gave none.
    """

    prompt_ids: list[int]
    completion_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] | None = field(default_factory=list)
    rewards: list[float | None] = field(default_factory=list)

    @property
    def context(self) -> list[int]:
        """What the model is given next."""
        return self.prompt_ids + self.completion_ids

    def sample(self, answer: Answer) -> None:
        """Appends what the model sampled."""
        self.completion_ids += answer.ids
        self.mask += [1] * len(answer.ids)
        if self.logprobs is not None:
            self.logprobs = None if answer.logprobs is None else self.logprobs + answer.logprobs

    def insert(self, ids: Sequence[int]) -> None:
        """Appends what the environment says, as tokens that are not trained on."""
        self.completion_ids += ids
        self.mask += [0] * len(ids)
        if self.logprobs is not None:
            self.logprobs = self.logprobs + [0.0] * len(ids)
