"""Stores stars, tags and notes on runs and rollouts, which is all the dashboard writes; forms need no JavaScript."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar
from urllib.parse import parse_qsl, urlsplit

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import Connection
from starlette.exceptions import HTTPException

from logs_ui.app.web import htmx, urls
from logs_ui.app.web.open_database import SourceOfPages, id_of, storable
from logs_ui.recorder import queries
from logs_ui.recorder.labels import tags_in
from logs_ui.recorder.queries import Annotation, Rollout
from logs_ui.recorder.queries.notebook import NOTE_LENGTH, Notebook, Subject
from logs_ui.recorder.storage.tables import Run
from logs_ui.recorder.vocabulary import TAG_LENGTH

router = APIRouter()

_BODY_BYTES = 16 * NOTE_LENGTH  # a character is at most 4 bytes, and each of them 3 in a form


@dataclass(frozen=True)
class Marks:
    """Fills the notes panel of a run or a rollout."""

    longest_note: ClassVar = NOTE_LENGTH
    longest_tag: ClassVar = TAG_LENGTH

    run: str  # uid; its rollouts are the target of a tag's link
    name: str  # for screen readers
    address: str  # where its forms post to
    notebook: Notebook
    annotation: Annotation
    known_tags: list[str]
    rollouts: queries.Annotated | None = None  # number of the run's rollouts that are marked; None on a rollout's page
    saved: bool = False  # True if the note was written just now


@dataclass(frozen=True)
class MarksPage:
    """Context of `_notes.html`, `_marks.html` and `_note-said.html`."""

    marks: Marks


@dataclass(frozen=True)
class StarPage:
    """Context of `_star.html`, which replaces the button `id`."""

    id: str
    marks: Marks


def of_rollout(db: Connection, notebook: Notebook, run: Run, rollout: Rollout) -> Marks:
    """Return the panel of a rollout's page."""
    row, recorded = rollout.row, tags_in(rollout.metadata)  # which are there while it runs, too
    return Marks(
        run=run.uid,
        name=f"rollout {row.id}",
        address=urls.of_run(run.uid, "rollouts", row.id or 0, "notes"),
        notebook=notebook,
        annotation=replace(queries.annotation(db, run, row), recorded=recorded),
        known_tags=queries.known_tags(db, id_of(run)),
    )


def of_run(db: Connection, notebook: Notebook, run: Run) -> Marks:
    """Return the panel of a run's overview."""
    return Marks(
        run=run.uid,
        name=f"run {run.name}",
        address=urls.of_run(run.uid, "notes"),
        notebook=notebook,
        annotation=queries.run_annotations(db).get(run.uid, queries.NOTHING),
        known_tags=queries.known_tags(db, id_of(run)),
        rollouts=queries.annotated(db, run.uid),
    )


async def read_form(request: Request, most: int, message: str) -> urls.Pairs:
    """Read a form, which may have `most` bytes: else it raises HTTPException. FastAPI's own parser needs another
    library, for file uploads, which do not occur here.
    """
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise HTTPException(413, message)
    return parse_qsl(body.decode("latin-1"), keep_blank_values=True)


async def _form(request: Request) -> Mapping[str, str]:
    message = f"A note has at most {NOTE_LENGTH:,} characters: shorten it."
    pairs = await read_form(request, _BODY_BYTES, message)
    form = {name: value.replace("\r\n", "\n") for name, value in pairs}  # as forms end lines
    if len(form.get("note", "")) > NOTE_LENGTH:
        raise HTTPException(413, message)
    return form


def _notebook(request: Request) -> Notebook:
    notebook: Notebook = request.app.state.notebook
    return notebook


def writable_notebook(request: Request, source: SourceOfPages) -> Notebook:
    """Return the notebook if it can be written. Raise HTTPException or DatabaseError."""
    source.rights()
    if (refusal := source.refusal()) is not None:
        raise HTTPException(403, refusal)
    return _notebook(request)


NotebookOfPages = Annotated[Notebook, Depends(_notebook)]
"""The notebook, for reading."""
WritableNotebook = Annotated[Notebook, Depends(writable_notebook)]
"""The notebook, for writing."""
FormOfPages = Annotated[Mapping[str, str], Depends(_form)]
"""The fields of a form, by name."""


@router.post("/runs/{run_reference}/rollouts/{row_id}/notes")
def annotate_rollout(
    request: Request,
    source: SourceOfPages,
    notebook: WritableNotebook,
    form: FormOfPages,
    run_reference: str,
    row_id: int,
) -> Response:
    """Write `star` (`1`, `0`), `tag` (to add), `untag` and `note` of a rollout; what the form does not name stays."""
    with source.reading_run(run_reference) as (db, run):
        rollout = queries.rollout(db, id_of(run), storable(row_id))
    _write(notebook, Subject(run.uid, rollout.row.uid), form)
    target = htmx.target(request)
    if target is None:
        return _back(request, urls.rollout(run.uid, row_id), f"row-{row_id}")
    with source.reading() as db:
        return _piece(request, of_rollout(db, notebook, run, rollout), target, form)


@router.post("/runs/{run_reference}/notes")
def annotate_run(
    request: Request, source: SourceOfPages, notebook: WritableNotebook, form: FormOfPages, run_reference: str
) -> Response:
    """Write star, tags and note of a run, as `annotate_rollout`."""
    with source.reading() as db:
        run = queries.find_run(db, run_reference)
    _write(notebook, Subject(run.uid), form)
    wanted = htmx.target(request)
    if wanted is None:
        return _back(request, urls.overview(run.uid), f"run-{run.id}")
    with source.reading() as db:
        return _piece(request, of_run(db, notebook, run), wanted, form)


def _write(notebook: Notebook, subject: Subject, form: Mapping[str, str]) -> None:
    if "star" in form:
        notebook.star(subject, starred=form["star"] == "1")
    if form.get("tag", "").strip():
        notebook.tag(subject, form["tag"])
    if "untag" in form:
        notebook.untag(subject, form["untag"])
    if "note" in form:
        notebook.note(subject, form["note"])


def _piece(request: Request, marks: Marks, wanted: str, form: Mapping[str, str]) -> Response:
    """Return the part of the page that replaces the one written to."""
    if wanted.startswith("star"):
        return htmx.fragment(request, "_star.html", StarPage(wanted, marks))
    page = MarksPage(replace(marks, saved="note" in form))
    return htmx.fragment(request, "_note-said.html" if "note" in form else "_marks.html", page)


def _back(request: Request, address: str, line: str) -> Response:
    """Redirect to the page with the form: to its line of a table, or to the notes panel, as without a referer."""
    came_from = urlsplit(request.headers.get("referer", ""))
    is_ours = came_from.netloc == request.headers.get("host") and came_from.path.startswith("/")
    page, place = address, "notes"
    # A path that begins with two slashes would lead to another site.
    if is_ours and not came_from.path.startswith("//"):
        page = came_from._replace(scheme="", netloc="", fragment="").geturl()
        place = "notes" if came_from.path == address else line
    return RedirectResponse(f"{page}#{place}", 303, headers={"Cache-Control": "no-store"})
