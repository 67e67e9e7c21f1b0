"""What each page is given, and what its template asks for, are the same."""

import dataclasses
import importlib
import inspect
import pkgutil
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment, meta, nodes

import logs_ui.app
from logs_ui.app.main import make_templates

_TEMPLATES = Path(__file__).parents[2] / "templates"


_OF_PAGES = {
    "ColumnPage": "groups/_column.html",
    "CompareRolloutsPage": "groups/compare_rollouts.html",
    "ComparePage": "compare/compare_runs.html",
    "ErrorPage": "error.html",
    "ExportPage": "rollouts/export.html",
    "GroupPage": "groups/group.html",
    "GroupsPage": "groups/groups.html",
    "LiveGroupsPage": "groups/_groups_live.html",
    "LivePage": "rollouts/_live.html",
    "LoggedPage": "overview/_logged.html",
    "MarksPage": "_notes.html",
    "MoreGroupsPage": "groups/_more_groups.html",
    "MorePage": "rollouts/_more.html",
    "MoreRunsPage": "runs/_more_runs.html",
    "OverviewPage": "overview/overview.html",
    "PreviewPage": "overview/_preview.html",
    "RolloutPage": "rollout/rollout.html",
    "RolloutsPage": "rollouts/rollouts.html",
    "RunsLivePage": "runs/_runs_live.html",
    "RunsPage": "runs/runs.html",
    "StarPage": "_star.html",
    "SuggestionsPage": "rollouts/_suggestions.html",
    "TablePage": "overview/steps.html",
    "WaitingPage": "waiting.html",
    "WhyPage": "why/why.html",
    "FreshPage": "why/_why_fresh.html",
    "WhyShortPage": "why/_why-short.html",
    "WhyActionsPage": "why/why_actions.html",
    "WhyTasksPage": "why/why_tasks.html",
    "WhyRewardsPage": "why/why_rewards.html",
    "WhyTrainedPage": "why/why_trained.html",
}


def contexts() -> dict[str, Any]:
    """Every class of a module of the dashboard that is called a page, by its name."""
    modules = [importlib.import_module(it.name) for it in pkgutil.walk_packages(logs_ui.app.__path__, "logs_ui.app.")]
    return {
        name: found
        for module in modules
        for name, found in inspect.getmembers(module, dataclasses.is_dataclass)
        if name.endswith("Page") and found.__module__ == module.__name__
    }


@pytest.mark.parametrize("page", sorted(contexts()))
def test_every_field_of_a_page_is_shown_and_nothing_else_is_asked_for(page: str) -> None:
    asked = names_asked_for(make_templates(), _OF_PAGES[page])
    assert asked == {field.name for field in dataclasses.fields(contexts()[page])}


@pytest.mark.parametrize("page", sorted(contexts()))
def test_a_page_says_what_its_fields_are(page: str) -> None:
    assert _OF_PAGES[page].rpartition("/")[2].removeprefix("_") in (contexts()[page].__doc__ or "")


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
