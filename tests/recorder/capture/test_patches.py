"""What is patched is undone by the same object, also where it is yet to be imported."""

import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

import pytest

from logs_ui.recorder.capture.instruments.patch import Patches, patch
from logs_ui.recorder.guard import RAISE_VARIABLE


def test_what_is_imported_after_the_undo_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_late.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    attached: list[str] = []
    own = Patches()
    own.when_imported("imported_late", lambda _: attached.append("before the undo"))
    own.undo()
    own.when_imported("imported_late", lambda _: attached.append("after it"))
    import imported_late  # type: ignore[import-not-found]

    assert attached == ["after it"]
    own.when_imported("imported_late", lambda _: attached.append("at once"))
    assert attached == ["after it", "at once"]
    assert sys.modules["imported_late"] is imported_late


def test_a_library_that_cannot_be_attached_to_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def attach(module: ModuleType) -> None:
        raise AttributeError("a release that looks otherwise")

    (tmp_path / "imported_anyway.py").write_text("value = 7")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(RAISE_VARIABLE, "0")
    Patches().when_imported("imported_anyway", attach)
    import imported_anyway  # type: ignore[import-not-found]

    assert imported_anyway.value == 7
    assert "AttributeError while attaching to imported_anyway" in caplog.text


def test_a_mock_in_place_of_a_method_is_left_alone() -> None:
    class Model:
        generate = MagicMock()

    mock, patched = Model.generate, Patches()
    patched.method(Model, "generate", patch(lambda method, *args, **kwargs: method(*args, **kwargs)))
    assert Model.generate is mock
    Model().generate(input_ids=1)
    mock.assert_called_once_with(input_ids=1)
