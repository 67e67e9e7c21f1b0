"""The API reference: every public name has its entry, and the examples of its docstring hold."""

import ast
import doctest
import importlib
import inspect
import re
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import logs_ui.recorder
import logs_ui.rollout
from tests.support.evaluations import Echo
from tests.support.model_server import ModelServer, chat, chat_choice, completion, model_server
from tests.support.rollouts import Scripted, a_trainer

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PACKAGES = (logs_ui.recorder, logs_ui.rollout)
NAMES = [(package, name) for package in PACKAGES for name in package.__all__]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
FENCE = re.compile(r"^ *```python\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
ADDRESS = "http://127.0.0.1:8000"

NEEDS_A_TRAINER = {"record_verifiers", "record_worker"}
"""Names whose only example is checked, not run: a worker of AsyncGRPO starts a process, and requests a vLLM server."""

COVERED_BY = {
    "DatabaseError": "LogsUIError",
    "ImageNotFoundError": "LogsUIError",
    "RolloutNotFoundError": "LogsUIError",
    "RunNotFoundError": "LogsUIError",
}
"""Errors that have no example of their own, and the class whose example shows how they are caught."""

FROM_TRL = {"GRPOConfig": "trl", "GRPOTrainer": "trl"}
"""Names that a block may use without importing them, and their modules."""

OF_THE_READER = {"callback", "dataset", "env", "Game", "model", "rollout_func", "solved", "sums"}
"""Names that a block may use although it does not define them: parts of the reader's own program, or of the example
that runs above it."""


class Trainer(SimpleNamespace):
    """The part of a trainer that a recorded rollout function sees. Unlike its base, it can be referred to weakly."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__(**vars(a_trainer(Scripted(lambda *_: "5"))))
        vars(self.args).update(run_name=None, output_dir=".", to_dict=dict)
        vars(self.state).update(max_steps=1, epoch=0.0)
        vars(self).setdefault("reward_funcs", [])

    def add_callback(self, callback: Any) -> None:
        """Nothing is trained."""

    def _generate_and_score_completions(self, inputs: Any) -> None:
        """Nothing is sampled."""


class Games:
    """The session factory of the examples."""

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> Any:
        raise NotImplementedError


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """A model's server that always answers 5."""
    with model_server() as server:
        server.models = ["my-model"]
        choice = completion("5")["choices"][0] | chat_choice(content="5")
        server.gives(chat(choice))
        yield server


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
    server: ModelServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Doctests run, with a stand-in for the trainer and a server that always gives the same answer."""
    described = inspect.getdoc(getattr(package, name)) or ""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGS_UI_DB", str(tmp_path / "runs.db"))
    has = {"trainer": Trainer(), "Game": Echo, "Games": Games}
    example = doctest.DocTestParser().get_doctest(described.replace(ADDRESS, server.url), has, name, None, None)
    result = doctest.DocTestRunner(optionflags=FLAGS).run(example)
    assert not result.failed, capsys.readouterr().out
    if name in COVERED_BY:
        assert issubclass(getattr(package, name), getattr(package, COVERED_BY[name]))
        assert f"example of `{COVERED_BY[name]}`" in described
    assert bool(result.attempted) == (name not in NEEDS_A_TRAINER and name not in COVERED_BY)


def blocks() -> Iterator[Any]:
    for package, name in NAMES:
        for number, block in enumerate(FENCE.findall(inspect.getdoc(getattr(package, name)) or "")):
            yield pytest.param(textwrap.dedent(block), id=f"{name}-{number}")


def objects_in(tree: ast.Module) -> tuple[dict[str, Any], dict[str, type]]:
    """Return what the names of a block refer to, and the classes of the objects that it makes."""
    known: dict[str, Any] = {name: getattr(importlib.import_module(home), name) for name, home in FROM_TRL.items()}
    known |= {name: getattr(package, name) for package, name in NAMES if name != "Report"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module or "")
            known |= {alias.name: getattr(module, alias.name) for alias in node.names}
    made: dict[str, type] = {"sums": logs_ui.rollout.Evaluation}
    for node in ast.walk(tree):
        match node:
            case ast.Assign([ast.Name(name)], ast.Call(ast.Name(kind))) if inspect.isclass(known.get(kind)):
                made[name] = known[kind]
            case _:
                pass
    return known, made


def check_call(call: ast.Call, known: dict[str, Any], made: dict[str, type]) -> None:
    """Raise TypeError if the function does not take these arguments; others may be missing."""
    match call.func:
        case ast.Name(name):
            function, is_method = known[name], inspect.isclass(known[name])
            function = function.__init__ if is_method else function
        case ast.Attribute(ast.Name(name), attribute) if attribute != "__init__":
            function, is_method = getattr(made[name], attribute), True
        case _:
            pytest.fail(f"unknown: {ast.unparse(call)}")
    given: dict[str, Any] = {str(keyword.arg): None for keyword in call.keywords}
    signature = inspect.signature(function)
    signature.bind_partial(*[None] * (is_method + len(call.args)), **given)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            (options,) = typing.get_args(typing.get_type_hints(function, include_extras=True)[parameter.name])
            assert given.keys() <= signature.parameters.keys() | typing.get_type_hints(options).keys()


@pytest.mark.parametrize("block", list(blocks()))
def test_a_block_that_needs_a_trainer_uses_what_there_is(block: str) -> None:
    """Each name of a block is imported, defined or the reader's own; attributes and arguments are those that exist."""
    tree = ast.parse(re.sub(r",\s*\.\.\.(?=\s*[,)])|(?<=\()\.\.\.,", "", block))  # dots stand for other arguments
    known, made = objects_in(tree)
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(tree):
        match node:
            case ast.Name(name):
                assert name in OF_THE_READER | known.keys() | stored
            case ast.Attribute(ast.Name(name), attribute):
                assert hasattr(made[name], attribute) or f"self.{attribute} = " in inspect.getsource(made[name])
            case ast.Call():
                check_call(node, known, made)
            case _:
                pass


@pytest.mark.parametrize(
    "wrong",
    [
        "record(rollout_func, evalname='guess')",
        "from trl import GRPOTrainers",
        "GRPOTrainer(model, rollout_function=rollout_func)",
        "trainer = GRPOTrainer(model)\ntrainer.begin()",
        "sums.rollout_func(sample=1)",
        "record(unknown)",
    ],
)
def test_the_check_of_blocks_finds_mistakes(wrong: str) -> None:
    with pytest.raises((AssertionError, AttributeError, KeyError, TypeError)):
        test_a_block_that_needs_a_trainer_uses_what_there_is(wrong)
