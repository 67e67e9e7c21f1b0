"""What README and docs show: names, keywords, commands and options are those that there are."""

import ast
import importlib
import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from logs_ui.app.commands.cli import app
from logs_ui.recorder.api.open_rollout import OpenRollout
from logs_ui.recorder.api.start_run import OpenRun

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
KNOWN: dict[str, Any] = {"run": OpenRun, "row": OpenRollout}
"""What the docs call by these names, as in `with start_run("nightly") as run`."""
COMMAND = typer.main.get_command(app)


def blocks(language: str) -> Iterator[Any]:
    """Of all pages, with where each begins."""
    for page in PAGES:
        text = page.read_text()
        for found in re.finditer(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            line = text.count("\n", 0, found.start()) + 1
            yield pytest.param(found[1], id=f"{page.name}:{line}")


def calls_in(code: str) -> Iterator[tuple[Any, ast.Call]]:
    """The calls of what is logs_ui's."""
    tree = ast.parse(re.sub(r",\s*\.\.\.(?=\s*[,)\]}])", "", code))  # what stands for more may stand behind keywords
    nodes = list(ast.walk(tree))
    arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
    objects = {name: kind for name, kind in KNOWN.items() if name not in arguments}
    names: dict[str, Any] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("logs_ui"):
            module = importlib.import_module(node.module or "")
            names |= {alias.asname or alias.name: getattr(module, alias.name) for alias in node.names}
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        match call.func:
            case ast.Name(name) if name in names:
                yield names[name], call
            case ast.Attribute(ast.Name(name), attribute) if name in objects:
                yield getattr(objects[name], attribute), call


@pytest.mark.parametrize("code", [*blocks("python")])
def test_names_and_keywords_are_known(code: str) -> None:
    for what, call in calls_in(code):
        known = inspect.signature(what).parameters
        given = {keyword.arg for keyword in call.keywords if keyword.arg}
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
            assert given <= known.keys(), what


def commands() -> Iterator[Any]:
    """What begins with `logs-ui`, in blocks and in the middle of a sentence."""
    for page in PAGES:
        is_typed = False
        for number, line in enumerate(page.read_text().splitlines(), 1):
            is_typed = not is_typed if line.startswith("```") else is_typed
            found = re.findall(r"^(?:\$ )?(logs-ui .*)$" if is_typed else r"`(logs-ui [^`]+)`", line)
            for typed in (one.split(" #")[0].strip() for one in found):
                yield pytest.param(typed, id=f"{page.name}:{number} {typed[:40]}")


@pytest.mark.parametrize("typed", [*commands()])
def test_commands_and_options_are_known(typed: str) -> None:
    command, words = COMMAND, shlex.split(typed.replace("...", ""))[1:]
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        assert words[0] in command.commands, typed
        command = command.commands[words.pop(0)]
    if words and "allow_interspersed_args" in command.context_settings:  # what follows a script is the script's
        command.make_context(None, words)
        return
    options = {name for parameter in command.params for name in parameter.opts + parameter.secondary_opts} | {"--help"}
    given = {word.split("=")[0] for word in words if word.startswith("-") and not re.match(r"-\d", word)}
    assert given <= options, typed


def test_there_is_something_to_check() -> None:
    assert len(list(blocks("python"))) > 30
    assert len(list(commands())) > 50
    assert sum(1 for block in blocks("python") for _ in calls_in(block.values[0])) > 25
