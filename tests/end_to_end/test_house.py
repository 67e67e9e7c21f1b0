"""A stranger finds the way in the code: rooms, no circles, and a light training."""

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from logs_ui.recorder.storage.database import writing_engine
from tests.end_to_end.test_package import TRAINING, WEB

ROOT = Path(__file__).parents[2]
PACKAGES = ("app", "recorder", "rollout")
FILES = {path: path.read_text() for top in PACKAGES for path in sorted((ROOT / top).rglob("*.py"))}
MODULES = {
    ".".join(("logs_ui", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in FILES
}


@cache
def trees() -> dict[Path, ast.Module]:
    """Parse all files; not at import, since each of the processes imports this file."""
    return {path: ast.parse(text) for path, text in FILES.items()}


@pytest.mark.parametrize(("folder", "most"), [("recorder", 10), ("app", 5), ("rollout", 5), ("tests", 10)])
def test_few_files_lie_outside_of_a_room(folder: str, most: int) -> None:
    assert len([*(ROOT / folder).glob("*.py")]) <= most


@pytest.mark.exhaustive
def test_no_file_imports_itself_through_others() -> None:
    try:
        TopologicalSorter({path: _imported(tree) - {path} for path, tree in trees().items()}).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(str(path.relative_to(ROOT)) for path in error.args[1]))


@pytest.mark.parametrize("there", ["nothing", "a database"])
def test_a_training_loads_few_modules_and_neither_sql_nor_a_web_server_nor_a_trainer(db: Path, there: str) -> None:
    if there == "a database":
        writing_engine(db).dispose()
    record = f"from logs_ui.recorder import record; record(lambda prompts, trainer: {{}}, db={str(db)!r})"
    loaded = _modules_after(record)
    assert not {"sqlalchemy", "pandas", "pyarrow", *TRAINING, *WEB} & {*loaded}
    assert sum(name.startswith("logs_ui.") for name in loaded) <= 90


def test_a_helper_process_loads_few_modules() -> None:
    loaded = _modules_after("import logs_ui.recorder.delivery.helper.process")
    assert sum(name.startswith("logs_ui.") for name in loaded) <= 90


def _modules_after(code: str) -> list[str]:
    code = f"{code}; import sys; print(*sys.modules)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def _imported(tree: ast.Module) -> set[Path]:
    """The files that a file imports, at any depth of its code; imports for type checkers alone are left out."""
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in typing_only:
            for name in node.names:
                module = MODULES.get(f"{node.module}.{name.name}") or MODULES.get(node.module or "")
                found |= {module} if module else set()
    return found


def test_lines_of_templates_are_short() -> None:
    """What a long line decides stands in a page's dataclass, which has a test of it."""
    templates = (ROOT / "templates").rglob("*.html")
    lines = [(it.name, number, line) for it in templates for number, line in enumerate(it.read_text().split("\n"), 1)]
    assert [(name, number) for name, number, line in lines if len(line) > 120] == []
