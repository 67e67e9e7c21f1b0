"""Answers are read of the rollouts that a page shows, and of no others."""

from pathlib import Path

import pytest
from sqlalchemy import Engine, update
from sqlmodel import col

from logs_ui.recorder import queries
from logs_ui.recorder.analysis.rollout_answers import read_answers
from logs_ui.recorder.diagnosis.answers import Answer, Told
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter
from logs_ui.recorder.settings import Settings
from logs_ui.recorder.storage.database import writing_engine
from logs_ui.recorder.storage.payload import pack
from logs_ui.recorder.storage.tables import EvaluationRow, RolloutPayload
from tests.support.answered import record_answers


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    record_answers(tmp_path / "a.db", "documents")
    return writing_engine(tmp_path / "a.db")


def rows_of(engine: Engine) -> list[EvaluationRow]:
    return queries.page(engine, 1, RolloutFilter(), limit=12).rows


def test_damaged_pruned_and_odd_rollouts_have_no_answer(engine: Engine) -> None:
    rows = rows_of(engine)[:4]
    whole, damaged, pruned, odd = (row.id or 0 for row in rows)
    with engine.begin() as db:
        for row_id, content in ((damaged, b"no zstd"), (pruned, None), (odd, pack([b'{"messages":["x"]}'])[0])):
            of_row = col(RolloutPayload.row_id) == row_id
            db.execute(update(RolloutPayload).where(of_row).values(content=content, content_start=None))
    expected = Answer(Told("Paris", "reward_model.ground_truth"), Told("The capital is Wellington.", "the last line"))
    assert read_answers(engine, rows, Settings()) == {whole: expected}


def test_reading_ends_when_its_time_is_over(engine: Engine) -> None:
    assert read_answers(engine, rows_of(engine), Settings(), seconds=-1) == {}


def test_an_environment_may_have_a_column_of_its_own(engine: Engine) -> None:
    rows = rows_of(engine)[:1]
    settings = Settings(environments={"documents": {"reference": "level"}})
    assert [it.reference for it in read_answers(engine, rows, settings).values()] == [None]
