"""The examples in the docstrings of the recorder's public names run, or are Python where they need a trainer."""

import ast
import doctest
import inspect
import re
import textwrap
from pathlib import Path

import pytest

from logs_ui import recorder

ROOMS = tuple(f"logs_ui.recorder.{room}" for room in ("analysis.", "api.", "capture.", "diagnosis.", "settings"))
NAMES = [name for name in recorder.__all__ if getattr(recorder, name).__module__.startswith(ROOMS)]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
FENCE = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("name", NAMES)
def test_each_public_name_has_an_example_that_holds(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    described = inspect.getdoc(getattr(recorder, name)) or ""
    fragments = [textwrap.dedent(fragment) for fragment in FENCE.findall(described)]
    for fragment in fragments:
        ast.parse(re.sub(r",\s*\.\.\.(?=\s*[,)])", "", fragment))  # three dots stand for other arguments
    example = doctest.DocTestParser().get_doctest(described, {}, name, None, None)
    result = doctest.DocTestRunner(optionflags=FLAGS).run(example)
    assert not result.failed, capsys.readouterr().out
    assert fragments or result.attempted, "it has no example"
