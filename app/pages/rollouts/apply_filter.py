"""Leads from the filter's form to its page. Terms that are too long for an address are stored as sets."""

import math
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse

from logs_ui.app.parts.filter_form import checked_filter
from logs_ui.app.parts.notes_forms import read_form, writable_notebook
from logs_ui.app.web import urls
from logs_ui.app.web.open_database import SourceOfPages
from logs_ui.recorder.queries.filters.language import WHERE, keep_set

_LONG, _LONG_TERM = 2_000, 20  # characters; the name of a set has 16
_MOST_BYTES = 4_000_000  # of a form

router = APIRouter()


async def _typed(request: Request) -> urls.Pairs:
    return await read_form(request, _MOST_BYTES, f"A filter has at most {_MOST_BYTES // 1_000_000} MB: shorten it.")


@router.post("/runs/{run_reference}")
@router.post("/runs/{run_reference}/groups")
def apply_filter(
    request: Request, source: SourceOfPages, run_reference: str, typed: Annotated[urls.Pairs, Depends(_typed)]
) -> Response:
    """Lead from the filter's form to its page. Of a long line, long terms are stored as sets: the address names them.
    Raise FilterError, and HTTPException or DatabaseError if they cannot be stored.
    """
    line = dict(typed).get(WHERE, "")
    if len(line) > _LONG:
        with source.reading_run(run_reference) as (db, run):
            chosen = checked_filter(db, run, [(WHERE, line)], longest=math.inf)
        words = []
        for words_of_term in map(str, chosen.terms):
            term = written_term = words_of_term.removeprefix("-")
            if len(term) > _LONG_TERM:
                written_term = f"set:{keep_set(term)}"
                writable_notebook(request, source).view(run.uid, written_term, term)
            words.append(words_of_term.replace(term, written_term))
        line = " ".join(words)
    pairs = [(key, line if key == WHERE else value) for key, value in typed]
    return RedirectResponse(urls.with_query(request.url.path, pairs), 303, headers={"Cache-Control": "no-store"})
