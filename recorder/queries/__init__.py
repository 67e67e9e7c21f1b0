"""Every SELECT, one subject a file. Connections come from `database.py`; pages, pandas and the command line read here.

Rows are given as `common.shown` has them: what ran when its process died was aborted.
"""

from logs_ui.recorder.queries.common import COUNT_CAP, Count, Database
from logs_ui.recorder.queries.facets import MOST_TASKS, Facets, Histogram, facets, reward_histogram
from logs_ui.recorder.queries.rows import (
    Cursor,
    Neighbours,
    Page,
    Rollout,
    count,
    exact_count,
    group_of,
    image,
    mean_reward,
    neighbours,
    new_since,
    page,
    rollout,
    rollouts,
)
from logs_ui.recorder.queries.runs import (
    RunSummary,
    all_runs,
    find_run,
    known_values,
    last_change,
    run_summary,
    run_uids,
)
from logs_ui.recorder.queries.scalars import ScalarCurve, last_logged_step, scalar_curves, scalars

__all__ = [
    "COUNT_CAP",
    "MOST_TASKS",
    "Count",
    "Cursor",
    "Database",
    "Facets",
    "Histogram",
    "Neighbours",
    "Page",
    "Rollout",
    "RunSummary",
    "ScalarCurve",
    "all_runs",
    "count",
    "exact_count",
    "facets",
    "find_run",
    "group_of",
    "image",
    "known_values",
    "last_change",
    "last_logged_step",
    "mean_reward",
    "neighbours",
    "new_since",
    "page",
    "reward_histogram",
    "rollout",
    "rollouts",
    "run_summary",
    "run_uids",
    "scalar_curves",
    "scalars",
]
