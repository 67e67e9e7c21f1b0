"""What templates ask of their pages."""

from pathlib import Path

from jinja2 import Environment, meta, nodes

_TEMPLATES = Path(__file__).parent.parent / "templates"


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
