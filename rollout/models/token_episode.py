"""Holds one rollout's tokens while it is played. They only ever grow: nothing that was sampled is tokenised again."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Answer:
    """Holds one sampled answer to a context.

    Attributes:
        ids: (S,) token ids, the end-of-turn token included if it was sampled.
        logprobs: (S,) natural logarithms, of the distribution that was sampled from; None if the model's server does
            not return them.
        finish: "length" if the answer was truncated at its token limit.
        text: the answer's text, without special tokens.

    Examples:
        >>> from logs_ui.rollout import Answer
        >>> answer = Answer(ids=[791, 4320, 2], logprobs=[-0.1, -0.7, -0.0], finish="stop", text="the answer")
        >>> answer.finish
        'stop'
    """

    ids: list[int]
    logprobs: list[float] | None
    finish: Finish
    text: str


@dataclass
class Trajectory:
    """Holds a rollout as the trainer gets it. `mask` and `logprobs` are as long as `completion_ids`."""

    prompt_ids: list[int]  # the ids that the model was given first
    completion_ids: list[int] = field(default_factory=list)  # all ids that followed, sampled or inserted
    mask: list[int] = field(default_factory=list)  # 1 for a sampled token, 0 for an inserted one
    logprobs: list[float] | None = field(default_factory=list)  # 0.0 if inserted; None once an answer had none
    rewards: list[float | None] = field(default_factory=list)  # one per step; None for a step without one

    @property
    def context(self) -> list[int]:
        """Return the ids that the model is given next."""
        return self.prompt_ids + self.completion_ids

    def sample(self, answer: Answer) -> None:
        """Append the ids that the model sampled."""
        self.completion_ids += answer.ids
        self.mask += [1] * len(answer.ids)
        if self.logprobs is not None:
            self.logprobs = None if answer.logprobs is None else self.logprobs + answer.logprobs

    def insert(self, ids: Sequence[int]) -> None:
        """Append the environment's message, as tokens that are not trained on."""
        self.completion_ids += ids
        self.mask += [0] * len(ids)
        if self.logprobs is not None:
            self.logprobs = self.logprobs + [0.0] * len(ids)
