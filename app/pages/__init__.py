"""Collects all pages of the dashboard: a new page's router is added to `ROUTERS`, and nowhere else."""

from typing import Final

from fastapi import APIRouter

from logs_ui.app.pages.compare import compare_runs_page
from logs_ui.app.pages.groups import compare_rollouts_page, group_page, groups_page
from logs_ui.app.pages.overview import overview_page
from logs_ui.app.pages.rollout import rollout_page
from logs_ui.app.pages.rollouts import export_page, rollouts_page, saved_views, suggestions
from logs_ui.app.pages.runs import runs_page
from logs_ui.app.pages.why import why_actions, why_page, why_rewards, why_settings, why_tab, why_tasks, why_trained
from logs_ui.app.parts import notes_forms

# The order matters where one path matches another's pattern: /runs/ID/groups/live before /runs/ID/groups/{row_id}.
ROUTERS: Final[tuple[APIRouter, ...]] = (
    runs_page.router,
    compare_runs_page.router,
    overview_page.router,
    why_page.router,
    why_settings.router,
    why_tasks.router,
    why_rewards.router,
    why_actions.router,
    why_trained.router,
    why_tab.router,
    rollouts_page.router,
    export_page.router,
    suggestions.router,
    saved_views.router,
    rollout_page.router,
    groups_page.router,
    group_page.router,
    compare_rollouts_page.router,
    notes_forms.router,
)
