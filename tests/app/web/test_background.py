"""Threads that work now and then log a lasting error once."""

import logging
from pathlib import Path

import pytest

from logs_ui.app.web.background import Ingesting
from logs_ui.recorder.storage.spool.ingest import Ingester


def test_an_error_without_a_text_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(Ingester, "take_in", fail)
    ingesting = Ingesting(tmp_path / "runs.db")
    with caplog.at_level(logging.WARNING):
        assert [ingesting._try() for _ in range(3)] == [False] * 3
    assert len(caplog.records) == 1
    assert ingesting.trouble == "OSError"
