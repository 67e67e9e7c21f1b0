"""What each page is given, and what its template asks for, are the same."""

import dataclasses
import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment, meta, nodes

import logs_ui.app
from logs_ui.app.main import make_templates

_TEMPLATES = Path(__file__).parents[2] / "templates"


def contexts() -> dict[str, Any]:
    """Every class of a module of the dashboard that is called a page, by its name."""
    found_modules = pkgutil.walk_packages(logs_ui.app.__path__, "logs_ui.app.")
    # Python itself imports that one, in a program that `logs-ui run` starts.
    modules = [importlib.import_module(it.name) for it in found_modules if not it.name.endswith(".sitecustomize")]
    return {
        name: found
        for module in modules
        for name, found in inspect.getmembers(module, dataclasses.is_dataclass)
        if name.endswith("Page") and found.__module__ == module.__name__
    }


def template_of(page: str) -> str:
    """The first template that the docstring of a page's class names: "Context of `runs/runs.html` ..."."""
    named = re.match(r"Context of `([^`]+)`", contexts()[page].__doc__ or "")
    assert named, f"the docstring of {page} begins with: Context of `TEMPLATE`"
    return named[1]


@pytest.mark.parametrize("page", sorted(contexts()))
def test_every_field_of_a_page_is_shown_and_nothing_else_is_asked_for(page: str) -> None:
    asked = names_asked_for(make_templates(), template_of(page))
    assert asked == {field.name for field in dataclasses.fields(contexts()[page])}


@pytest.mark.parametrize("page", sorted(contexts()))
def test_a_page_names_the_template_that_it_is_the_context_of(page: str) -> None:
    assert (_TEMPLATES / template_of(page)).is_file()


def names_asked_for(environment: Environment, template: str) -> set[str]:
    """What a template, and all that it is made of, takes from its context."""
    return _names(environment, template) - set(environment.globals)


def _names(environment: Environment, template: str) -> set[str]:
    tree = environment.parse((_TEMPLATES / template).read_text())
    names = meta.find_undeclared_variables(tree)
    set_above = {node.name for node in tree.find_all(nodes.Name) if node.ctx == "store"}
    imported = {node.target for node in tree.find_all(nodes.Import)}
    for other in meta.find_referenced_templates(tree):
        if other and other != "macros.html":
            names |= _names(environment, other) - set_above
    return names - imported - set_above - {"ui"}
