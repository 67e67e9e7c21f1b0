"""Stores views of a run's table under names: filter, order and columns, for everybody who reads the database."""

from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse

from logs_ui.app.parts.filter_form import checked_filter
from logs_ui.app.parts.notes_forms import FormOfPages, WritableNotebook
from logs_ui.app.parts.view import View, address_of, parse_view, print_view, split
from logs_ui.app.web.open_database import SourceOfPages
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, print_filter

router = APIRouter()


def query_of(chosen: RolloutFilter, view: View) -> str:
    """Return the query of an address, as which a view is stored."""
    return urlencode([*print_filter(chosen), *print_view(view)])


@router.post("/runs/{run_reference}/views")
def save(source: SourceOfPages, notebook: WritableNotebook, form: FormOfPages, run_reference: str) -> Response:
    """Store the view `query` as `name`, in place of another of that name, or delete the one called `delete`. Raise
    FilterError if the query is not a view of this run's table.
    """
    with source.reading_run(run_reference) as (db, run):
        view_pairs, filter_pairs = split(parse_qsl(form.get("query", "")))
        query = query_of(checked_filter(db, run, filter_pairs), parse_view(view_pairs))
    if form.get("name", "").strip():
        notebook.view(run.uid, form["name"], query)
    if "delete" in form:
        notebook.view(run.uid, form["delete"], None)
    return RedirectResponse(address_of(run.uid, query), 303, headers={"Cache-Control": "no-store"})
