"""Reads the filters that Python and the command line are given."""

import os

from logs_ui.recorder import queries
from logs_ui.recorder.analysis.opened_runs import opened, opened_database
from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries.filters.language import with_findings
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, parse_where


def chosen_rows(
    where: str | RolloutFilter | None, run: str | None = None, db: str | os.PathLike[str] | None = None
) -> RolloutFilter:
    """Read a filter. Short names of what a run defines, as in `difficulty:hard`, and findings need the run; sets need
    the database. Raise FilterError.
    """
    if isinstance(where, RolloutFilter):
        return where
    try:
        return parse_where(where or "")
    except FilterError:
        if run is None and "set" not in str(where):
            raise
        if run is None:
            with opened_database(db) as engine:
                queries.load_sets(engine, where or "")
            return parse_where(where or "")
        with opened(run, db) as (engine, stored_run):

            def opens(name: str) -> str:
                from logs_ui.recorder.analysis.diagnose import Diagnosis  # which nothing else here needs

                return Diagnosis(engine, stored_run).now(engine, stored_run).report.opens(name)

            return parse_where(queries.in_full(engine, stored_run.id or 0, with_findings(where or "", opens)))
