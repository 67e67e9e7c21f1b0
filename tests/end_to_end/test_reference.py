"""The API reference: every public name has its entry, and the examples of its docstring hold."""

import ast
import doctest
import inspect
import re
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import logs_ui.recorder
import logs_ui.rollout

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PACKAGES = (logs_ui.recorder, logs_ui.rollout)
NAMES = [(package, name) for package in PACKAGES for name in package.__all__]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
FENCE = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda it: str(it.__name__))
def test_every_public_name_has_an_entry(package: ModuleType) -> None:
    page = (REFERENCE / f"{package.__name__.rpartition('.')[2]}.md").read_text()
    entries = re.findall(r"^::: (\S+)$", page, re.MULTILINE)
    assert sorted(entry.rpartition(".")[2] for entry in entries) == sorted(package.__all__)
    for entry in entries:
        home, _, name = entry.rpartition(".")
        value = getattr(package, name, None)
        assert value is None or value.__module__ == home


@pytest.mark.parametrize(("package", "name"), NAMES, ids=lambda it: it if isinstance(it, str) else "")
def test_each_public_name_has_an_example_that_holds(
    package: ModuleType,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Doctests run. Examples that need a trainer are blocks of Python; `examples/` has whole ones."""
    value: Any = getattr(package, name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGS_UI_DB", str(tmp_path / "runs.db"))
    described = inspect.getdoc(value) or ""
    fragments = [textwrap.dedent(fragment) for fragment in FENCE.findall(described)]
    for fragment in fragments:
        ast.parse(re.sub(r",\s*\.\.\.(?=\s*[,)])", "", fragment))  # three dots stand for other arguments
    example = doctest.DocTestParser().get_doctest(described, {}, name, None, None)
    result = doctest.DocTestRunner(optionflags=FLAGS).run(example)
    assert not result.failed, capsys.readouterr().out
    is_error = inspect.isclass(value) and issubclass(value, Exception)
    assert fragments or result.attempted or is_error, "it has no example"
