"""Stores views of a run's table under names: filter, order and columns, for everybody who reads the database."""

from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import Connection

from logs_ui.app.parts.filter_form import checked_filter
from logs_ui.app.parts.notes_forms import FormOfPages, WritableNotebook
from logs_ui.app.parts.view import View, parse_view, print_view, split
from logs_ui.app.web import urls
from logs_ui.app.web.open_database import SourceOfPages
from logs_ui.recorder import queries
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, print_filter
from logs_ui.recorder.storage.notes_tables import SavedView
from logs_ui.recorder.storage.tables import Run

router = APIRouter()


def query_of(chosen: RolloutFilter, view: View) -> str:
    """Returns the query of an address, as which a view is stored."""
    return urlencode([*print_filter(chosen), *print_view(view)])


def named_views(db: Connection, run: Run) -> list[tuple[SavedView, str]]:
    """Returns the saved views of a run, each with its address."""
    return [(it, _address(run.uid, it.query)) for it in queries.saved_views(db, run.uid)]


@router.post("/runs/{name}/views")
def save(source: SourceOfPages, notebook: WritableNotebook, form: FormOfPages, name: str) -> Response:
    """Stores the view `query` as `name`, in place of another of that name, or deletes the one called `delete`.

    Raises:
        FilterError: the query is not a view of this run's table.
    """
    with source.reading_run(name) as (db, run):
        shown, given = split(parse_qsl(form.get("query", "")))
        query = query_of(checked_filter(db, run, given), parse_view(shown))
    if form.get("name", "").strip():
        notebook.view(run.uid, form["name"], query)
    if "delete" in form:
        notebook.view(run.uid, form["delete"], None)
    return RedirectResponse(_address(run.uid, query), 303, headers={"Cache-Control": "no-store"})


def _address(run: str, query: str) -> str:
    pairs = parse_qsl(query)
    # A view without columns has the default ones, and not those that this browser remembers.
    return urls.rollouts(run, view=[*pairs, *([] if "cols" in dict(pairs) else [("choose", "1")])])
