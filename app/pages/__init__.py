"""Collects all pages of the dashboard: a new page's router is added to `ROUTERS`, and nowhere else."""

from typing import Final

from fastapi import APIRouter

from logs_ui.app.pages.compare import compare_runs_page
from logs_ui.app.pages.groups import compare_rollouts_page, group_page, groups_page
from logs_ui.app.pages.overview import overview_page
from logs_ui.app.pages.rollout import rollout_page
from logs_ui.app.pages.rollouts import export_page, rollouts_page, saved_views, suggestions
from logs_ui.app.pages.runs import runs_page
from logs_ui.app.pages.why import (
    why_actions,
    why_audit,
    why_page,
    why_rewards,
    why_settings,
    why_tab,
    why_tasks,
    why_trained,
)
from logs_ui.app.parts import notes_forms

# The order matters where one path matches another's pattern: /runs/ID/groups/live before /runs/ID/groups/{row_id}.
ROUTERS: Final[tuple[APIRouter, ...]] = tuple(
    page.router
    for page in (
        runs_page, compare_runs_page, overview_page, why_page, why_settings, why_tasks, why_rewards, why_actions,
        why_trained, why_audit, why_tab, rollouts_page, export_page, suggestions, saved_views, rollout_page,
        groups_page, group_page, compare_rollouts_page, notes_forms,
    )
)  # fmt: skip
