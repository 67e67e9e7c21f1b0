"""Plants small faults in one room of the code, and counts how many of them its own tests find.

    python benchmarks/mutants.py diagnosis filters attribution storage --count 25 --seed 1 --jobs 2

Each mutant changes one place: a comparison, an arithmetic or logical operator, a number, a condition, or what a
function returns. Of the room's tests those run that reach the place in their own process; the mutant is killed if one
fails or takes too long. The mutants depend on the code and the seed alone, so that two states of the tests are compared
by running both with the same code (`--tests COMMIT` takes another one's).
"""

import argparse
import ast
import io
import itertools
import os
import random
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from coverage import CoverageData

ROOT = Path(__file__).parents[1]
ROOMS = {
    "diagnosis": ("recorder/diagnosis", ["tests/recorder/diagnosis"]),
    "filters": ("recorder/queries/filters", ["tests/recorder/queries"]),
    "attribution": ("recorder/rows/attribution", ["tests/recorder/rows"]),
    "storage": ("recorder/storage", ["tests/recorder/storage"]),
}
_SECONDS = 900  # of one mutant's tests
_OPERATORS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


class Mutant(NamedTuple):
    """One change: the file, the lines of the statement up to the change, both texts, and the whole changed file."""

    path: Path
    lines: range
    before: str
    after: str
    source: str


def mutants(room: str) -> Iterator[Mutant]:
    """Yield all mutants of a room's files, in a fixed order."""
    for path in sorted((ROOT / ROOMS[room][0]).rglob("*.py")):
        data = path.read_bytes()
        starts = [0, *itertools.accumulate(map(len, data.splitlines(keepends=True)))]
        tree: Any = ast.parse(data)
        tree.statement = 1
        node: Any
        for node in ast.walk(tree):
            child: Any
            for child in ast.iter_child_nodes(node):
                child.statement = child.lineno if isinstance(child, ast.stmt) else node.statement
            for changed in _changes(node):
                begin = starts[node.lineno - 1] + node.col_offset
                end = starts[node.end_lineno - 1] + node.end_col_offset
                after = ast.unparse(changed) if isinstance(node, ast.stmt) else f"({ast.unparse(changed)})"
                source = (data[:begin] + after.encode() + data[end:]).decode()
                lines = range(node.statement, node.end_lineno + 1)
                yield Mutant(path.relative_to(ROOT), lines, data[begin:end].decode(), after, source)


def _changes(node: Any) -> Iterator[Any]:
    """Yield each changed copy of a node; none for most kinds of nodes."""
    match node:
        case ast.Compare(left, [operator], comparators) if type(operator) in _OPERATORS:
            yield _placed(node, ast.Compare(left, [_OPERATORS[type(operator)]()], comparators))
        case ast.BinOp(left, operator, right) if type(operator) in _OPERATORS and not _is_type(node):
            yield _placed(node, ast.BinOp(left, _OPERATORS[type(operator)](), right))
        case ast.BoolOp(operator, values):
            yield _placed(node, ast.BoolOp(_OPERATORS[type(operator)](), values))
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.IfExp(test, body, orelse):
            yield _placed(node, ast.IfExp(ast.UnaryOp(ast.Not(), test), body, orelse))
        case ast.Constant(bool() as value):
            yield _placed(node, ast.Constant(not value))
        case ast.Constant(int() | float() as value):
            yield _placed(node, ast.Constant(value + 1))
        case ast.Return(ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield _placed(node, ast.Return(ast.Constant(None)))


def _placed(node: ast.AST, changed: ast.AST) -> ast.AST:
    return ast.fix_missing_locations(ast.copy_location(changed, node))


def _is_type(node: ast.BinOp) -> bool:
    """Return True for strings, and for types such as `int | None`, which nothing evaluates twice."""
    return any(isinstance(side, ast.Constant) and isinstance(side.value, str) for side in (node.left, node.right))


@contextmanager
def copied(commit: str | None) -> Iterator[Path]:
    """Yield a copy of the tree; its tests are those of a commit, or None: the tree's."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines():
            if (ROOT / file).exists() and not (commit and file.startswith("tests/")):
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / file, folder / file, follow_symlinks=False)
        if commit:
            packed = subprocess.check_output(["git", "archive", commit, "tests"], cwd=ROOT)
            with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
                archive.extractall(folder, filter="data")
        yield folder


def run_tests(folder: Path, *arguments: str) -> tuple[bool, str]:
    """Run tests in a copy of the tree. Return True if one failed, or took too long, and what pytest printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-W", "default", "-p", "no:cacheprovider", *arguments]
    environment = os.environ | {"PYTHONPATH": f"{folder}/.dev"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return True, ""
    return done.returncode != 0, done.stdout


def tests_by_line(folder: Path, tests: list[str]) -> dict[str, dict[int, set[str]]]:
    """Return for each file, and each line of it, the tests that run it; without those that fail unchanged."""
    _, printed = run_tests(folder, "-n", "2", "--cov", "--cov-context=test", "--cov-report=", *tests)
    failing = set(re.findall(r"^(?:FAILED|ERROR) (\S+)", printed, re.MULTILINE))
    print("fail unchanged, and are left out:", *failing, flush=True)
    data = CoverageData(str(folder / ".coverage"))
    data.read()
    reached: dict[str, dict[int, set[str]]] = {}
    for file in data.measured_files():
        by_line = data.contexts_by_lineno(file).items()
        names = {line: {it.partition("|")[0] for it in contexts if it} - failing for line, contexts in by_line}
        reached[os.path.relpath(os.path.realpath(file), os.path.realpath(folder))] = names
    return reached


def is_killed(mutant: Mutant, reached: dict[str, dict[int, set[str]]], commit: str | None) -> bool:
    """Run the tests that reach a mutant."""
    by_line = reached.get(str(mutant.path), {})
    tests = sorted({test for line in mutant.lines for test in by_line.get(line, ())})
    if not tests:
        return False
    with copied(commit) as folder:
        (folder / mutant.path).write_text(mutant.source)
        return run_tests(folder, "-x", "-n", "0", *tests)[0]


def main() -> None:
    """Print each mutant that lives, and a line for each room."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rooms", nargs="+", choices=[*ROOMS])
    parser.add_argument("--count", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--tests", metavar="COMMIT", help="take the tests of this commit")
    options = parser.parse_args()
    for room in options.rooms:
        every = [*mutants(room)]
        chosen = random.Random(options.seed).sample(every, options.count)
        with copied(options.tests) as folder:
            reached = tests_by_line(folder, ROOMS[room][1])
        with ThreadPoolExecutor(options.jobs) as pool:
            killed = [*pool.map(partial(is_killed, reached=reached, commit=options.tests), chosen)]
        for mutant, is_dead in zip(chosen, killed, strict=True):
            if not is_dead:
                print(f"lives: {mutant.path}:{mutant.lines[-1]}  {mutant.before!r} -> {mutant.after!r}", flush=True)
        print(f"{room}: {sum(killed)} of {len(killed)} killed, of {len(every)} that could be made", flush=True)


if __name__ == "__main__":
    main()
