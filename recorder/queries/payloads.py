"""Adds the columns of payloads, and of their shared prompts, to a query."""

from typing import Any

from sqlmodel import col

from logs_ui.recorder.storage.tables import EvaluationRow, PayloadStart, RolloutPayload

_payload = RolloutPayload
_starts = PayloadStart.metadata.tables[str(PayloadStart.__tablename__)]
_before_content, _before_tokens = _starts.alias("before_content"), _starts.alias("before_tokens")


def with_contents(query: Any) -> Any:
    """Add two columns to a query of `rollout_payload`: the arguments of `payload.unpack_content`."""
    query = query.add_columns(col(_payload.content), _before_content.c.data.label("before_content"))
    return query.outerjoin(_before_content, _before_content.c.id == col(_payload.content_start))


def with_payloads(query: Any) -> Any:
    """Add those, and the arguments of `payload.unpack_tokens`, to a query of `evaluation_row`; each is None if the
    rollout has no such payload.
    """
    query = with_contents(query.outerjoin(_payload, col(_payload.row_id) == col(EvaluationRow.id)))
    query = query.add_columns(col(_payload.tokens), _before_tokens.c.data.label("before_tokens"))
    return query.outerjoin(_before_tokens, _before_tokens.c.id == col(_payload.tokens_start))
