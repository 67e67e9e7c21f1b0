"""Makes a batch ready for storage: measures texts and tokens, and compresses payloads, of all its rows together."""

from collections.abc import Sequence
from dataclasses import replace

from logs_ui.recorder.guard import guard
from logs_ui.recorder.rows.text_facts import Facts, text_facts, token_facts
from logs_ui.recorder.storage.changes import Batch, RowChange, StartChange
from logs_ui.recorder.storage.payload import Packed, Tokens, Unpacked, pack_together, unpacked_tokens


def packed(batch: Batch) -> Batch:
    """A batch with all texts and tokens measured, and all payloads compressed, together."""
    measured = _measured(batch.rows)
    tokens = [unpacked_tokens(row.tokens) if isinstance(row.tokens, Tokens) else row.tokens for row in batch.rows]
    whole = [payload for row, own in zip(batch.rows, tokens, strict=True) for payload in (row.content, own)]
    packed, starts = pack_together([payload for payload in whole if isinstance(payload, Unpacked)])
    following = iter(packed)
    small = [next(following) if isinstance(payload, Unpacked) else None for payload in whole]
    rows = [
        _stored(row, facts, content, own)
        for row, facts, content, own in zip(batch.rows, measured, small[::2], small[1::2], strict=True)
    ]
    return replace(batch, rows=rows, starts=[*batch.starts, *(StartChange(*it) for it in starts.items())])


def _stored(row: RowChange, facts: Facts, content: Packed | None, tokens: Packed | None) -> RowChange:
    """With what was found of it; None leaves a payload as it is."""
    return RowChange(
        row.run,
        row.uid,
        row.identity,
        {**row.columns, **facts},
        row.content if content is None else content.data,
        row.tokens if tokens is None else tokens.data,
        row.images,
        row.tags,
        None,
        row.content_start if content is None else content.start,
        row.tokens_start if tokens is None else tokens.start,
    )


def _measured(rows: Sequence[RowChange]) -> list[Facts]:
    """Columns of each that are found of all together; none of them where that fails."""
    found: list[Facts] = [{} for _ in rows]
    said = [(facts, row.answers) for facts, row in zip(found, rows, strict=True) if row.answers is not None]
    known = [(facts, row.tokens) for facts, row in zip(found, rows, strict=True) if isinstance(row.tokens, Tokens)]
    with guard("measuring texts"):
        for (facts, _), of_texts in zip(said, text_facts([answers for _, answers in said]), strict=True):
            facts.update(of_texts)
    with guard("measuring tokens"):
        for (facts, _), of_tokens in zip(known, token_facts([tokens for _, tokens in known]), strict=True):
            facts.update(of_tokens)
    return found
