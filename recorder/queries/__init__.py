"""Contains the SELECTs of pages, DataFrames and commands, one subject per file; connections come from
`storage/database.py`. `storage/`, `upkeep/` and `analysis/diagnosis_columns.py` have some of their own.

Rows are returned as `common.as_shown` makes them: a rollout that was running when its process died is aborted.

What this file imports is what the package exports (pyproject.toml tells ruff and mypy so).
"""

from logs_ui.recorder.queries.common import LARGE, MANY, WINDOW, Count, Database
from logs_ui.recorder.queries.comparison import (
    CurvePoint,
    GroupResult,
    StepSize,
    figure_points,
    reward_points,
    reward_weights,
    scalar_names,
    scalar_points,
    step_sizes,
    task_results,
)
from logs_ui.recorder.queries.facets import MOST_TASKS, Facets, Histogram, facets, kinds, reward_histogram
from logs_ui.recorder.queries.group_survey import GroupSort, Survey, Tally, beside_in_survey, survey, surveyed_groups
from logs_ui.recorder.queries.groups import (
    DEAD,
    Group,
    Kind,
    beside,
    by_reward,
    group_rows,
    groups_of_rows,
    new_groups,
    newest_groups,
    opened,
    reward_ends,
    rows_called,
    run_of,
)
from logs_ui.recorder.queries.headers import headers
from logs_ui.recorder.queries.notes import (
    NOTHING,
    Annotated,
    Annotation,
    annotated,
    annotation,
    annotations,
    annotations_between,
    known_tags,
    load_sets,
    run_annotations,
    saved_settings,
    saved_views,
)
from logs_ui.recorder.queries.pivot import MOST_COLUMNS, MOST_ROWS, Cell, Dimension, Heading, Measure, pivot
from logs_ui.recorder.queries.rollout_list import (
    Cursor,
    Neighbours,
    Page,
    Rollout,
    count,
    exact_count,
    image,
    mean_reward,
    neighbours,
    new_since,
    newest_row,
    page,
    rollout,
    rollouts,
    window,
)
from logs_ui.recorder.queries.run_list import (
    ListedRun,
    RunCounts,
    RunFilter,
    count_runs,
    list_runs,
    newest_run,
    run_configs,
    run_marks,
    runs_since,
    these_runs,
)
from logs_ui.recorder.queries.run_names import check_names, in_full, known_values, own_columns
from logs_ui.recorder.queries.run_sources import run_sources, source_texts, tokenizer_json
from logs_ui.recorder.queries.run_steps import Series, Step, last_steps, lowest_tasks, mean_rewards, step_series, steps
from logs_ui.recorder.queries.runs import RunSummary, all_runs, find_run, mode_of, run_summary
from logs_ui.recorder.queries.scalars import ScalarCurve, last_logged_step, scalar_curves, scalars
from logs_ui.recorder.queries.sql.liveness import DIED, state_of
from logs_ui.recorder.queries.sql.matching import ALIKE
from logs_ui.recorder.queries.time_boxed import neighbours_in_time, page_in_time
from logs_ui.recorder.storage.clock import now
