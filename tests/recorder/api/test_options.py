"""The options that four functions have in common: what signatures show, and what a misspelt one raises."""

import inspect
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logs_ui import recorder
from logs_ui.recorder import RecordOptions, record, record_environment, record_worker, start_run

FUNCTIONS: list[Callable[..., Any]] = [record, record_environment, record_worker, start_run]
SHARED = ["eval_name", "edit", "server_log", "diagnosis", "project", "db"]


def play(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    return {}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_signatures_show_each_option_with_its_default_and_type(function: Callable[..., Any]) -> None:
    parameters = inspect.signature(function).parameters
    assert list(RecordOptions.__annotations__) == SHARED
    for name, annotation in typing.get_type_hints(RecordOptions).items():
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default is None
        assert parameters[name].annotation == annotation
    assert "options" not in parameters


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.skipif(sys.flags.optimize > 1, reason="python -OO has no docstrings")
def test_help_documents_each_option(function: Callable[..., Any]) -> None:
    described = inspect.getdoc(function) or ""
    assert "**options" not in described
    for name in inspect.signature(function).parameters:
        assert f"\n    {name}: " in described, name


ANY: Any = recorder  # what a type checker refuses is tried
MISSPELT: list[tuple[Callable[[], Any], str]] = [
    (lambda: ANY.record(play, projekt="a"), r"record\(\) has no option 'projekt': did you mean 'project'\?"),
    (lambda: ANY.record(evalname="a"), r"record\(\) has no option 'evalname': did you mean 'eval_name'\?"),
    (lambda: ANY.record(play, anounce=False), r"did you mean 'announce'\?"),
    (lambda: ANY.record_environment(object, parse=str), r"record_environment\(\) has no option 'parse'"),
    (lambda: ANY.record_worker(None, serverlog="a"), r"record_worker\(\) .* did you mean 'server_log'\?"),
    (lambda: ANY.start_run("a", modell="b"), r"start_run\(\) has no option 'modell': did you mean 'model'\?"),
    (
        lambda: ANY.start_run("a", xyzzy=1),
        r"no option 'xyzzy': choose from model, config, tokenizer, parse, eval_name,",
    ),
]


@pytest.mark.parametrize(("call", "message"), MISSPELT)
def test_a_misspelt_option_raises_and_names_the_nearest(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()


def test_options_can_be_shared_and_none_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGS_UI_DB", str(tmp_path / "default.db"))
    none: RecordOptions = {
        "eval_name": None, "edit": None, "server_log": None, "diagnosis": None, "project": None, "db": None
    }  # fmt: skip
    for options in (RecordOptions(), none):
        with start_run("a", **options) as run, run.rollout("go") as row:
            row.turn("gone")
        rows = recorder.load_run(run.id, db=tmp_path / "default.db")
        assert list(rows.eval_name) == ["rollouts"]
