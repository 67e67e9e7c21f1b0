"""Packs the rows of one transaction into a batch: measures texts and tokens, and compresses payloads.

It does so for all rows together: each call of numpy or zstd releases the GIL, and waits for it about as long again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from logs_ui.recorder.guard import guard
from logs_ui.recorder.rows.text_facts import Facts, text_facts, token_facts
from logs_ui.recorder.storage.changes import Batch, Change, PayloadStartChange, RowChange
from logs_ui.recorder.storage.payload import Tokens, Unpacked, pack_together, unpacked_tokens


@dataclass(slots=True)
class RowDraft:
    """A row that is built but not packed yet. Without `tokens` the stored ones stay unchanged."""

    change: RowChange
    content: Unpacked
    tokens: Tokens | None
    answers: Sequence[str] | None  # as `text_facts` takes them; None if texts and tokens are measured already


def packed(changes: Iterable[Change | RowDraft]) -> Batch:
    """Make one batch of changes; several changes of one row are merged."""
    changes = list(changes)
    drafts = [draft for draft in changes if isinstance(draft, RowDraft)]
    payloads: list[Unpacked] = []
    for draft in drafts:
        payloads.append(draft.content)
        if draft.tokens is not None:
            payloads.append(unpacked_tokens(draft.tokens))
    # `small` has the packed payloads in the same order: for each draft its content, and then its tokens if it has
    # any.
    small, starts = pack_together(payloads)
    following = iter(small)
    for draft, facts in zip(drafts, _measure(drafts), strict=True):
        change, content = draft.change, next(following)
        change.columns = {**facts, **change.columns}
        change.content, change.content_start = content.data, content.start
        if draft.tokens is not None:
            tokens = next(following)
            change.tokens, change.tokens_start = tokens.data, tokens.start
    rows = [change.change if isinstance(change, RowDraft) else change for change in changes]
    return Batch.merged([*rows, *(PayloadStartChange(*start) for start in starts.items())])


def _measure(drafts: Sequence[RowDraft]) -> list[Facts]:
    """Return for each draft the columns that are measured for all drafts together; none if that fails."""
    facts: list[Facts] = [{} for _ in drafts]
    texts = {place: draft.answers for place, draft in enumerate(drafts) if draft.answers is not None}
    tokens = {place: arrays for place in texts if (arrays := drafts[place].tokens) is not None}
    with guard("measuring texts"):
        for place, of_texts in zip(texts, text_facts([*texts.values()]), strict=True):
            facts[place].update(of_texts)
    with guard("measuring tokens"):
        for place, of_tokens in zip(tokens, token_facts([*tokens.values()]), strict=True):
            facts[place].update(of_tokens)
    return facts
