"""Exports a filter's rollouts to a file: starts the export, shows its progress, and serves the file."""

import re
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse

from logs_ui.app.pages.rollouts.export_jobs import ExportNotFoundError, Format, Job, Jobs
from logs_ui.app.parts.filter_form import checked_filter
from logs_ui.app.parts.view import parse_view, print_view, split
from logs_ui.app.web import htmx, urls
from logs_ui.app.web.open_database import SourceOfPages
from logs_ui.recorder import queries
from logs_ui.recorder.analysis.export.files import FORMATS
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter, check_word, print_where
from logs_ui.recorder.storage.tables import Run

_AT_ONCE_SECONDS = 1.0  # what is ready by then is downloaded without a page in between
_LONGEST_NAME = 100
_MEDIA_TYPES: dict[Format, str] = {
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
}

router = APIRouter()


@dataclass(frozen=True)
class ExportPage:
    """Context of `rollouts/export.html` and `rollouts/_job.html`; `back` and `cancel` lead to the rollouts as shown."""

    run: Run
    job: Job
    address: str
    back: str
    cancel: str


@router.post("/runs/{run_reference}/exports")
def begin(request: Request, source: SourceOfPages, run_reference: str) -> Response:
    """Start an export; a file that is ready within a second is downloaded at once."""
    format = request.query_params.get("format", "")  # noqa: A001 - the parameter's name
    check_word("format", "format", format, FORMATS)
    file_format: Format = next(kind for kind in _MEDIA_TYPES if kind == format)
    with source.reading_run(run_reference) as (db, run):
        pairs = _filter_pairs(request)
        chosen = checked_filter(db, run, pairs)
    job = _jobs(request).start(run.uid, file_format, file_name(run, chosen, file_format), chosen)
    job.wait(_AT_ONCE_SECONDS)
    is_ready = job.size is not None
    address = urls.of_run(run.uid, "exports", job.id, "file") if is_ready else urls.exported(run.uid, job.id, pairs)
    return RedirectResponse(address, 303)


@router.get("/runs/{run_reference}/exports/{job_id}")
def watch(request: Request, source: SourceOfPages, run_reference: str, job_id: str) -> Response:
    """Show the progress, and lead to the file."""
    job = _find_job(request, run_reference, job_id)
    with source.reading() as db:
        run = queries.find_run(db, run_reference)
    pairs = _filter_pairs(request)
    page = ExportPage(
        run=run,
        job=job,
        address=urls.exported(run.uid, job.id, pairs),
        back=urls.rollouts_said(run.uid, pairs),
        cancel=urls.exported(run.uid, job.id, pairs, do="/cancel"),
    )
    return htmx.render(request, "rollouts/export.html", page, fragments=("job",))


@router.get("/runs/{run_reference}/exports/{job_id}/file")
def fetch(request: Request, run_reference: str, job_id: str) -> Response:
    """Return the file."""
    job = _find_job(request, run_reference, job_id)
    if job.size is None:
        return RedirectResponse(urls.exported(run_reference, job_id, _filter_pairs(request)), 303)
    headers = {
        "Content-Disposition": f'attachment; filename="{job.name}"',
        "Content-Length": str(job.size),
        "Content-Encoding": "identity",  # not compressed on its way: the browser shows how much of its size has come
        "Cache-Control": "no-store",
    }
    return StreamingResponse(job.blocks(), media_type=_MEDIA_TYPES[job.format], headers=headers)


@router.post("/runs/{run_reference}/exports/{job_id}/cancel")
def cancel(request: Request, run_reference: str, job_id: str) -> Response:
    """Cancel the export."""
    _find_job(request, run_reference, job_id)
    _jobs(request).cancel(job_id)
    return RedirectResponse(urls.rollouts_said(run_reference, _filter_pairs(request)), 303)


def file_name(run: Run, chosen: RolloutFilter, ending: str) -> str:
    """Build a portable file name from run and filter: `my-run_status-error_reward-below-0.2.csv`."""
    where = print_where(chosen)
    for sign, word in (("<=", "-max-"), (">=", "-min-"), ("<", "-below-"), (">", "-above-"), ("..", "-to-")):
        where = where.replace(sign, word)
    parts = [run.uid, *where.split()]
    plain = "_".join(filter(None, (re.sub(r"[^A-Za-z0-9.]+", "-", part).strip("-.") for part in parts)))
    return f"{plain[:_LONGEST_NAME].rstrip('-_.') or 'rollouts'}.{ending}"


def _filter_pairs(request: Request) -> urls.Pairs:
    """Return the filter's parameters; addresses of this request show rollouts in the same view."""
    view, rest = split(request.query_params.multi_items())
    urls.showing(print_view(parse_view(view)))
    return [pair for pair in rest if pair[0] != "format"]


def _jobs(request: Request) -> Jobs:
    jobs: Jobs = request.app.state.jobs
    return jobs


def _find_job(request: Request, run_reference: str, job_id: str) -> Job:
    job = _jobs(request).find(run_reference, job_id)
    if job is None:
        raise ExportNotFoundError("This file no longer exists: the export was cancelled or has expired. Export again.")
    return job
