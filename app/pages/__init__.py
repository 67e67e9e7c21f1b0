"""Collects all pages of the dashboard: a new page's router is added to `ROUTERS`, and nowhere else."""

from typing import Final

from fastapi import APIRouter

from logs_ui.app.pages.compare import page as compare_runs_page
from logs_ui.app.pages.groups import compare_rollouts_page, group_page
from logs_ui.app.pages.groups import page as groups_page
from logs_ui.app.pages.overview import page as overview_page
from logs_ui.app.pages.rollout import page as rollout_page
from logs_ui.app.pages.rollouts import apply_filter, export_page, saved_views, suggestions
from logs_ui.app.pages.rollouts import page as rollouts_page
from logs_ui.app.pages.runs import page as runs_page
from logs_ui.app.pages.why import actions, audit, rewards, settings, tab, tasks, trained
from logs_ui.app.pages.why import page as why_page
from logs_ui.app.parts import notes_forms

# The order matters where one path matches another's pattern: /runs/ID/groups/live before /runs/ID/groups/{row_id}.
ROUTERS: Final[tuple[APIRouter, ...]] = tuple(
    page.router
    for page in (
        runs_page, compare_runs_page, overview_page, why_page, settings, tasks, rewards, actions,
        trained, audit, tab, rollouts_page, export_page, suggestions, saved_views, apply_filter, rollout_page,
        groups_page, group_page, compare_rollouts_page, notes_forms,
    )
)  # fmt: skip
