"""Holds prompts and answers of a model: as single sequences, or as a batch that is split when it is first read."""

from collections.abc import Container, Iterator
from collections.abc import Sequence as Several
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Ids = NDArray[np.int32]


class Sequence(Struct, frozen=True, array_like=True):
    """Holds one prompt and one answer of a generation call."""

    context: Ids | None  # (L,) Token ids of the prompt, without padding; None if the server returned no ids
    sampled: Ids | None  # (S,) Token ids of the answer, with its end token; None if the server returned no ids
    # "stop", "length" or "tool_calls", as OpenAI names them; None if neither the server nor the ids show it.
    finish: str | None
    # (S,) Log-probabilities of the sampled tokens; None if they were not requested.
    logprobs: NDArray[np.float32] | None = None
    text: str | None = None  # the answer's text; None if the server returned none
    messages: bytes | None = None  # JSON of the messages that were sent, or of the text; None if ids were sent
    reply: bytes | None = None  # JSON of the assistant's message; None if it is a text only
    prompt_tokens: int | None = None  # the server's count; None if it gave none
    completion_tokens: int | None = None  # likewise

    @property
    def tokens(self) -> int | None:
        """Return the number of tokens that were sampled; None if neither ids nor the server tell it."""
        return self.completion_tokens if self.sampled is None else len(self.sampled)

    @property
    def size(self) -> int:
        """Return the number of bytes that it keeps in memory."""
        size = 0 if self.context is None else self.context.nbytes
        size += 0 if self.sampled is None else self.sampled.nbytes
        size += 0 if self.logprobs is None else self.logprobs.nbytes
        return size + len(self.text or "") + len(self.messages or b"") + len(self.reply or b"")


def finish_of(sampled: Several[int] | Ids, ends: Container[int], limit: int | None) -> str | None:
    """Infer why an answer (S,) ended: "stop" at an end token, "length" at its limit; None if the ids show neither."""
    if len(sampled) and int(sampled[-1]) in ends:
        return "stop"
    return "length" if limit and len(sampled) >= limit else None


def end_tokens(*sources: Any) -> frozenset[int]:
    """Return the end tokens of models (by their generation config), tokenizers and processors. None has none."""
    ids: set[int] = set()
    for source in sources:
        inner = getattr(source, "generation_config", None) or getattr(source, "tokenizer", source)
        eos = getattr(inner, "eos_token_id", None)
        ids.update(eos if isinstance(eos, list | tuple) else () if eos is None else (eos,))
    return frozenset(ids)


class TokenBatch(Struct, eq=False, dict=True):
    """Holds the sequences of one call of a model. They are made when one is first read, as views of the arrays, so that
    the caller's thread does not pay for it. Each of the N prompts has M / N answers.
    """

    given: Ids  # (N, L) Token ids of the prompts, padded on either side
    kept: NDArray[np.bool_] | None  # (N, L) Attention mask of the prompts; None keeps all
    answers: Ids  # (M, S) Token ids of the answers, padded at the end
    ends: tuple[int, ...]  # the end tokens
    pad: int | None  # the padding token; None if there is none
    limit: int  # token limit of an answer; 0 if it is not known

    def __post_init__(self) -> None:
        """Raise a ValueError if the shapes of the arrays do not match."""
        shape = self.given.shape
        if len(shape) != 2 or self.answers.ndim != 2 or (self.kept is not None and self.kept.shape != shape):
            raise ValueError(f"ids, mask and answers are no batch: {shape}, {self.kept}, {self.answers.shape}")
        if not shape[0] or len(self.answers) % shape[0]:
            raise ValueError(f"{len(self.answers)} answers to {shape[0]} inputs")

    @property
    def size(self) -> int:
        """Return the number of bytes that it keeps in memory."""
        return self.given.nbytes + (0 if self.kept is None else self.kept.nbytes) + self.answers.nbytes

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, index: int) -> Sequence:
        return self._sequences[index]

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    @cached_property
    def _sequences(self) -> list[Sequence]:
        contexts, copies = self._contexts(), len(self.answers) // len(self.given)
        lengths, ended = self._lengths()
        # An answer that is shorter than the limit and has no end token was ended by something else, such as a stop
        # string: that is a stop, too.
        return [
            Sequence(
                contexts[index // copies],
                self.answers[index, :length],
                "length" if not ended[index] and length >= self.limit > 0 else "stop",
            )
            for index, length in enumerate(lengths)
        ]

    def _contexts(self) -> list[Ids]:
        """Return the ids of each prompt that the mask keeps. Usually they are adjacent: slicing is faster."""
        if self.kept is None:
            return list(self.given)
        counts = self.kept.sum(axis=1).tolist()
        if not (self.kept[:, 1:] < self.kept[:, :-1]).any():  # padded on the left, or not at all
            return [row[len(row) - count :] for row, count in zip(self.given, counts, strict=True)]
        return [row[mask] for row, mask in zip(self.given, self.kept, strict=True)]

    def _lengths(self) -> tuple[list[int], list[bool]]:
        """Return how many ids each answer has, up to its end token or else its padding, and if it has an end token."""
        answers = self.answers
        count, length = answers.shape
        ends = np.zeros(answers.shape, np.bool_)
        for end in self.ends:  # there are few: np.isin() takes three times as long
            ends |= answers == end
        is_text = np.ones(answers.shape, bool) if self.pad is None else answers != self.pad
        # An added column of True makes argmax find the end of a row that has no end token, or no padding.
        to_end = np.column_stack([ends, np.ones(count, bool)]).argmax(1) + 1
        to_padding = length - np.column_stack([is_text[:, ::-1], np.ones(count, bool)]).argmax(1)
        ended: NDArray[np.bool_] = np.any(ends, axis=1)
        return np.where(ended, to_end, to_padding).tolist(), ended.tolist()
