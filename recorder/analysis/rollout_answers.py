"""Reads references and final answers of the rollouts that a page shows."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy.orm import Session

from logs_ui.recorder.diagnosis.answers import Answer, final_answer, reference_of
from logs_ui.recorder.queries.common import Database
from logs_ui.recorder.queries.search.index import CONTENTS
from logs_ui.recorder.settings import Settings
from logs_ui.recorder.storage.payload import unpack_content
from logs_ui.recorder.storage.tables import EvaluationRow

_AT_ONCE = 10  # payloads per SELECT


def answer_of(settings: Settings, row: EvaluationRow, content: Mapping[str, Any]) -> Answer:
    """Return reference and final answer of a rollout; `content` has its messages and its metadata."""
    reference = reference_of(content.get("metadata") or {}, settings.of_environment(row.eval_name).reference)
    return Answer(reference, final_answer(content.get("messages") or (), row.turns))


def read_answers(
    db: Database, rows: Sequence[EvaluationRow], settings: Settings, *, seconds: float = 0.15
) -> dict[int, Answer]:
    """Return answers by id, of those of the rollouts that it reads within `seconds`, and that have a payload."""
    by_id, deadline = {row.id or 0: row for row in rows}, time.monotonic() + seconds
    ids, answers = list(by_id), dict[int, Answer]()
    with Session(db) as session:
        for begin in range(0, len(ids), _AT_ONCE):
            if time.monotonic() > deadline:
                break
            for row_id, _, _, *packed in session.execute(CONTENTS, {"ids": ids[begin : begin + _AT_ONCE]}):
                # zstd and JSON each raise errors of their own for damaged bytes.
                with suppress(Exception):
                    content = unpack_content(*packed)
                    if content:  # a rollout that runs has none yet, and one that was pruned has none any more
                        answers[row_id] = answer_of(settings, by_id[row_id], content)
    return answers
