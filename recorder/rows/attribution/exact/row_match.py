"""Find a chain of generations in a row's tokens, or in its text where the server returned no ids."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from logs_ui.recorder.capture.model_answers import Ids, Sequence
from logs_ui.recorder.rows.attribution.chain import Chain
from logs_ui.recorder.rows.attribution.prefixes import texts_after_prompt
from logs_ui.recorder.rows.text_compare import plain

_END_BACKWARDS = re.compile(r"(\s*>[^<>\s]*<)+")
"""Matches end tokens in reversed text: from the front, each place would be tried, in quadratic time."""
_WIDTH = np.dtype(np.int32).itemsize


class RowTokens:
    """A row's tokens as bytes, and how far generations were matched in them."""

    def __init__(self, prompt: Ids, completion: Ids) -> None:
        self.prompt = len(prompt)  # tokens
        self.prompt_data = prompt.tobytes()
        self.data = self.prompt_data + completion.tobytes()
        self.matched = self.prompt  # tokens, from the start of the prompt
        self.text_matched = 0  # characters

    @property
    def length(self) -> int:
        """Return the length in tokens."""
        return len(self.data) // _WIDTH

    def extended_by(self, sequence: Sequence, matched: int) -> int | None:
        """Return where the answer begins, in tokens, if the row up to there is exactly the context, and the answer is
        there whole, without its end token, or cut off by the row's end.
        """
        assert sequence.context is not None  # noqa: S101 - for the type checker
        assert sequence.sampled is not None  # noqa: S101
        start, sampled = len(sequence.context), sequence.sampled.tobytes()
        at = start * _WIDTH
        # In the completion an answer must begin after what was matched before; in the prompt it may begin anywhere.
        is_free = not self.prompt <= start < matched and at < len(self.data)
        if not is_free or not self.data.startswith(sequence.context.tobytes()):
            return None
        is_there = self.data.startswith((sampled, sampled[:-_WIDTH] or sampled), at)
        return start if is_there or sampled.startswith(self.data[at:]) else None

    def holds(self, sequence: Sequence, matched: int) -> int | None:
        """Return where the answer occurs after what was matched already, in tokens."""
        assert sequence.sampled is not None  # noqa: S101 - for the type checker
        sampled = sequence.sampled.tobytes()
        at = self.data.find(sampled, matched * _WIDTH)
        # A token id takes four bytes, so bytes that are found between two ids are no match.
        while at % _WIDTH and at >= 0:
            at = self.data.find(sampled, at + 1)
        return at // _WIDTH if at >= 0 and len(sampled) else None


@dataclass(frozen=True)
class Fit:
    """Locates a chain in a row."""

    # Index of each answer in the completion, beyond its end where the row was cut off before; None for an answer in the
    # prompt or without ids.
    starts: list[int | None]
    end: int  # tokens from the start of the prompt
    text_end: int  # characters from the start of the completion's text, where the server returned no ids
    evidence: str  # "context", "tokens" or "text"
    is_whole: bool  # True if it reaches the row's end; of text, if it is all of the row's text


def fit(chain: Chain, row: RowTokens, text: Callable[[], str]) -> Fit | None:
    """Return the place of a chain in a row; None where the row does not hold its answers in order.

    Answers may be in the row's prompt, if only the last turn was returned; at least one must be in the completion.
    """
    return _whole_fit(chain, row) or _fit_by_parts(chain, row, text) or _cut_fit(chain, row)


def _whole_fit(chain: Chain, row: RowTokens) -> Fit | None:
    """Return what `_fit_by_parts` would, by one comparison: most chains are a prefix of their row."""
    begin = len(chain.head) // _WIDTH
    if not chain.is_unbroken or chain.tail is None or begin < max(row.prompt, row.matched):
        return None
    if not row.data.startswith(chain.tail):
        return None
    end = len(chain.tail) // _WIDTH
    return Fit(_starts(chain, row), end, row.text_matched, "context", end >= row.length)


def _cut_fit(chain: Chain, row: RowTokens) -> Fit | None:
    """Return the place of a chain in a row that was cut off between two answers: the row is a prefix of the chain."""
    begin = len(chain.head) // _WIDTH
    if not chain.is_unbroken or chain.tail is None or not max(row.prompt, row.matched) <= begin < row.length:
        return None
    # A try that was not returned may begin as the row does: any exact fit comes before this.
    return Fit(_starts(chain, row), row.length, 0, "tokens", False) if chain.tail.startswith(row.data) else None


def _starts(chain: Chain, row: RowTokens) -> list[int | None]:
    return [len(sequence.context) - row.prompt for _, sequence in chain.parts if sequence.context is not None]


def _fit_by_parts(chain: Chain, row: RowTokens, text: Callable[[], str]) -> Fit | None:
    starts: list[int | None] = []
    matched, text_matched, evidence = row.matched, row.text_matched, "context"
    for _, sequence in chain.parts:
        if sequence.sampled is None or sequence.context is None:
            place = text().find(sequence.text, text_matched) if sequence.text else -1
            if place < 0:
                return None
            starts.append(None)
            text_matched, evidence = place + len(sequence.text or ""), "text"
            continue
        start = row.extended_by(sequence, matched)
        if start is None:
            start, evidence = row.holds(sequence, matched), "tokens"
        if start is None:
            return None
        starts.append(start - row.prompt if start >= row.prompt else None)
        matched = max(matched, start + len(sequence.sampled))
    if starts and evidence == "context" and starts[-1] is None:
        return None
    is_whole = _is_whole_text(chain, text()) if evidence == "text" else matched >= row.length
    return Fit(starts, min(matched, row.length), text_matched, evidence, is_whole)


def _is_whole_text(chain: Chain, text: str) -> bool:
    """Return True if the chain's texts are all of the row's text, in order, but for an end token."""
    _, last = chain.parts[-1]
    before = texts_after_prompt(last.messages or b"[]") or [sequence.text or "" for _, sequence in chain.parts[:-1]]
    left, end = plain(_without_end(text)), plain(_without_end(last.text or ""))
    at = 0
    # The texts before the last answer must occur in this order, and the first of them at the very beginning.
    for i, text_before in enumerate([*map(plain, filter(None, before))]):
        place = left.find(text_before, at)
        if place < 0 or (place > 0 and not i):
            return False
        at = place + len(text_before)
    return left == end if not at else left.endswith(end) and len(left) - len(end) >= at


def _without_end(text: str) -> str:
    end = _END_BACKWARDS.match(text[::-1])
    return text[: len(text) - end.end()] if end else text
