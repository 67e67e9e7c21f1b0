"""What a model was given, and what it answered: sequence by sequence, or as a whole batch until somebody asks."""

from collections.abc import Container, Iterator
from collections.abc import Sequence as Several
from functools import cached_property
from typing import Any, overload

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Ids = NDArray[np.int32]


class Sequence(Struct, frozen=True, array_like=True):
    """What one generation call did for one of its sequences.

    Attributes:
        context: (L,) what the model was given, without padding; None where the server returned no ids.
        sampled: (S,) what it answered, up to and with its end token; None as above.
        finish: "stop", "length" or "tool_calls", as OpenAI names them; None where neither server nor ids say it.
        logprobs: (S,) of the sampled tokens; None where they were not asked for.
        text: what it answered, where the server returned text; None elsewhere.
        messages: JSON of the messages that were sent; None where ids or a text were.
        reply: JSON of the assistant's message; None where it is a text alone.
        prompt_tokens, completion_tokens: as the server counted them; None where it did not.
    """

    context: Ids | None
    sampled: Ids | None
    finish: str | None
    logprobs: NDArray[np.float32] | None = None
    text: str | None = None
    messages: bytes | None = None
    reply: bytes | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None

    @property
    def size(self) -> int:
        """Bytes that it keeps alive."""
        size = 0 if self.context is None else self.context.nbytes
        size += 0 if self.sampled is None else self.sampled.nbytes
        size += 0 if self.logprobs is None else self.logprobs.nbytes
        return size + len(self.text or "") + len(self.messages or b"") + len(self.reply or b"")


def finish_of(sampled: Several[int] | Ids, ends: Container[int], limit: int | None) -> str | None:
    """Why an answer ended, where the server did not say it: "stop" where it ends with an end token, "length" where it
    is as long as it may be; None where its ids do not show it.

    Args:
        sampled: (S,)
        ends: the end tokens, as far as they are known.
        limit: tokens that it may have; None where that is not known.
    """
    if len(sampled) and int(sampled[-1]) in ends:
        return "stop"
    return "length" if limit and len(sampled) >= limit else None


def end_tokens(*sources: Any) -> frozenset[int]:
    """Of models, by their generation config, of tokenizers and of processors; of None, or what has none, nothing."""
    found: set[int] = set()
    for source in sources:
        inner = getattr(source, "generation_config", None) or getattr(source, "tokenizer", source)
        eos = getattr(inner, "eos_token_id", None)
        found.update(eos if isinstance(eos, list | tuple) else () if eos is None else (eos,))
    return frozenset(found)


class TokenBatch(Struct, eq=False, dict=True):
    """The sequences of one call of a model, made when somebody first asks for one, and parts of the arrays then: not in
    the time of who made the call. Of N inputs and M answers, a whole number of them for each input.

    Attributes:
        given: (N, L) what the model was given, padded on either side.
        kept: (N, L) its attention mask; None: all is kept.
        answers: (M, S) what it answered, padded at the end.
        ends: the end tokens.
        pad: the padding token; None where there is none.
        limit: tokens that an answer may have; 0 where that is not known.
    """

    given: Ids
    kept: NDArray[np.bool_] | None
    answers: Ids
    ends: tuple[int, ...]
    pad: int | None
    limit: int

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError: the arrays do not fit each other.
        """
        shape = self.given.shape
        if len(shape) != 2 or self.answers.ndim != 2 or (self.kept is not None and self.kept.shape != shape):
            raise ValueError(f"ids, mask and answers are no batch: {shape}, {self.kept}, {self.answers.shape}")
        if not shape[0] or len(self.answers) % shape[0]:
            raise ValueError(f"{len(self.answers)} answers to {shape[0]} inputs")

    @property
    def size(self) -> int:
        """Bytes that it keeps alive."""
        return self.given.nbytes + (0 if self.kept is None else self.kept.nbytes) + self.answers.nbytes

    def __len__(self) -> int:
        return len(self.answers)

    @overload
    def __getitem__(self, index: int) -> Sequence: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sequence]: ...
    def __getitem__(self, index: Any) -> Any:
        return self._made[index]

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._made)

    @cached_property
    def _made(self) -> list[Sequence]:
        contexts, copies = self._contexts(), len(self.answers) // len(self.given)
        lengths, ended = self._lengths()
        return [
            Sequence(
                contexts[i // copies],
                self.answers[i, :length],
                "length" if not ended[i] and length >= self.limit > 0 else "stop",
            )
            for i, length in enumerate(lengths)
        ]

    def _contexts(self) -> list[Ids]:
        """Of each input: the ids that the mask keeps. Most often they stand together, and slicing takes a third of the
        time of choosing.
        """
        if self.kept is None:
            return list(self.given)
        counts = self.kept.sum(axis=1).tolist()
        if not (self.kept[:, 1:] < self.kept[:, :-1]).any():  # padded on the left, or not at all
            return [row[len(row) - count :] for row, count in zip(self.given, counts, strict=True)]
        return [row[own] for row, own in zip(self.given, self.kept, strict=True)]

    def _lengths(self) -> tuple[list[int], list[bool]]:
        """Of each answer: how many ids were sampled, up to and with the first end token, and whether there is one; else
        those before the padding at the end.
        """
        answers = self.answers
        count, length = answers.shape
        ends = np.zeros(answers.shape, np.bool_)
        for end in self.ends:  # a few: np.isin() takes three times as long
            ends |= answers == end
        kept = np.ones(answers.shape, bool) if self.pad is None else answers != self.pad
        # With a column more, the first of it counts where no other does.
        to_end = np.column_stack([ends, np.ones(count, bool)]).argmax(1) + 1
        to_padding = length - np.column_stack([kept[:, ::-1], np.ones(count, bool)]).argmax(1)
        ended: NDArray[np.bool_] = np.any(ends, axis=1)
        return np.where(ended, to_end, to_padding).tolist(), ended.tolist()
