"""How a query gets payloads: each as it is stored, with what it begins with."""

from typing import Any

from sqlmodel import col

from logs_ui.recorder.storage.tables import EvaluationRow, PayloadStart, RolloutPayload

_payload = RolloutPayload
_starts = PayloadStart.metadata.tables[str(PayloadStart.__tablename__)]
_before_content, _before_tokens = _starts.alias("before_content"), _starts.alias("before_tokens")


def with_contents(query: Any) -> Any:
    """A query of `rollout_payload` with two columns more, which `payload.unpack_content` takes."""
    query = query.add_columns(col(_payload.content), _before_content.c.data.label("before_content"))
    return query.outerjoin(_before_content, _before_content.c.id == col(_payload.content_start))


def with_tokens(query: Any) -> Any:
    """A query of `rollout_payload` with two columns more, which `payload.unpack_tokens` takes."""
    query = query.add_columns(col(_payload.tokens), _before_tokens.c.data.label("before_tokens"))
    return query.outerjoin(_before_tokens, _before_tokens.c.id == col(_payload.tokens_start))


def with_payloads(query: Any) -> Any:
    """A query of `evaluation_row` with all four, each None where the rollout has none."""
    return with_tokens(with_contents(query.outerjoin(_payload, col(_payload.row_id) == col(EvaluationRow.id))))
