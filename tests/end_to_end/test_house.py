"""A stranger finds the way in the code: rooms, no circles, a light training, docstrings that are sentences."""

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from logs_ui.recorder.storage.database import writing_engine

ROOT = Path(__file__).parents[2]
PACKAGES = ("app", "recorder", "rollout")
FILES = {path: path.read_text() for top in PACKAGES for path in sorted((ROOT / top).rglob("*.py"))}
MODULES = {
    ".".join(("logs_ui", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in FILES
}
# A first sentence has a verb if its first word is one of these, as an imperative or in the third person ...
VERBS = """
accept act adapt add aggregate allow announce answer append apply ask assert assign attach attribute begin bring build
cache call cancel change check choose clear close collect come commit compare compile compress compute connect contain
convert copy correct count create cut decide decode define delete describe detach determine diagnose disable dispose
divide do draw drive drop encode end enter estimate evaluate expand explain export extract fill find flush follow format
gather generate give group guard hand handle hash have hear hide hold identify ignore implement import index infer
ingest insert interpolate invent join judge keep leave let limit link list load locate lock log look maintain make
manage map mark measure merge migrate move name note open order override pack pair parse pass patch place play prepare
print put query queue quote raise read rebuild receive recompute record redirect refresh refuse register release remove
render renew repeat replace report represent request resolve restore return rewrite run sample save say scan schedule
score search select send separate serve set shade show sleep sort spell split start stop store suggest sum summarise
support swallow take teach tell test total track train try turn undo unpack update upsert use wait warn wrap write yield
"""
# ... and no noun ("Names of ..."), or if it has a form of "be" and the like, or a clause with a verb of its own.
NOUN = re.compile(r"\w+ of ")
CLAUSE = re.compile(r"\b(is|are|was|were|has|have|does|do|can|cannot|may|must|that|which|who|if|when|while|because)\b")
QUESTION = re.compile(r"(What|Whose|Which|Whether|Who|Where|When|How)\b")


@cache
def trees() -> dict[Path, ast.Module]:
    """Parse all files; not at import, since each of the processes imports this file."""
    return {path: ast.parse(text) for path, text in FILES.items()}


@pytest.mark.parametrize(("folder", "most"), [("recorder", 10), ("app", 5), ("rollout", 5), ("tests", 10)])
def test_few_files_lie_outside_of_a_room(folder: str, most: int) -> None:
    assert len([*(ROOT / folder).glob("*.py")]) <= most


def test_a_file_name_occurs_once() -> None:
    names = Counter(path.name for path in FILES if path.name != "__init__.py")
    assert [name for name, times in names.items() if times > 1] == []


@pytest.mark.exhaustive
def test_no_file_imports_itself_through_others() -> None:
    try:
        TopologicalSorter({path: _imported(tree) - {path} for path, tree in trees().items()}).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(str(path.relative_to(ROOT)) for path in error.args[1]))


@pytest.mark.parametrize("there", ["nothing", "a database"])
def test_a_training_loads_few_modules_and_no_sql(db: Path, there: str) -> None:
    if there == "a database":
        writing_engine(db).dispose()
    record = f"from logs_ui.recorder import record; record(lambda prompts, trainer: {{}}, db={str(db)!r})"
    loaded = _modules_after(record)
    assert "sqlalchemy" not in loaded
    assert sum(name.startswith("logs_ui.") for name in loaded) <= 90


def test_a_helper_process_loads_few_modules() -> None:
    loaded = _modules_after("import logs_ui.recorder.delivery.helper.helper_process")
    assert sum(name.startswith("logs_ui.") for name in loaded) <= 90


def _modules_after(code: str) -> list[str]:
    code = f"{code}; import sys; print(*sys.modules)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_docstrings_begin_as_sentences_do() -> None:
    modules = [path for path, tree in trees().items() if QUESTION.match(ast.get_docstring(tree) or "")]
    assert [str(path.relative_to(ROOT)) for path in modules] == []
    all_of_them = [found for tree in trees().values() for found in _docstrings(tree)]
    questions = [text.partition("\n")[0] for text in all_of_them if QUESTION.match(text)]
    assert len(questions) <= 0.02 * len(all_of_them), questions[:10]


def test_first_sentences_have_a_verb() -> None:
    all_of_them = [found for tree in trees().values() for found in _docstrings(tree)]
    verbless = [text.partition("\n")[0] for text in all_of_them if not _has_verb(text)]
    assert len(verbless) <= 0.02 * len(all_of_them), verbless


def _has_verb(text: str) -> bool:
    """True for the contexts of templates, too, whose docstrings have a form of their own."""
    sentence = re.split(r"\.\s|\n\n", f"{text}\n")[0]
    word = re.match(r"\w*", sentence.lower())[0]  # type: ignore[index]
    stems = {word, word.removesuffix("s"), word.removesuffix("es"), re.sub("ies$", "y", word)}
    begins = bool(stems & {"is", *VERBS.split()}) and not NOUN.match(sentence)
    return begins or bool(CLAUSE.search(sentence)) or sentence.startswith("Context of `")


def _docstrings(tree: ast.Module) -> list[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds)]
    return [text for text in found if text]


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
