"""Shows whether what the trainer computed follows from what is recorded: an audit of the page's steps."""

from dataclasses import dataclass

from sqlalchemy import Connection

from logs_ui.app.pages.why.tab import StepWindow, WhyTab, fresh_of, kept, tab_router
from logs_ui.app.web import urls
from logs_ui.recorder.analysis.audit import audit, find_mixed
from logs_ui.recorder.analysis.diagnose import Diagnosed
from logs_ui.recorder.audit.finding import NOT_SHOWN, Audited, Finding
from logs_ui.recorder.queries import RunSummary
from logs_ui.recorder.queries.filters.rollout_filter import parse_where

_MOST = 5_000  # rollouts that are audited while somebody waits: a thousand take about a second


@dataclass(frozen=True)
class WhyAuditPage(WhyTab):
    """Context of `why/why_audit.html`."""

    audited: Audited | None  # None for more rollouts than a page waits for, and for none
    # Each finding with the address of its rollouts, None where no address holds them, and those of the first five.
    findings: list[tuple[Finding, str | None, list[tuple[int, str]]]]
    not_shown: str


def _page(db: Connection, summary: RunSummary, known: Diagnosed, here: StepWindow) -> WhyAuditPage:
    run, audited = summary.run, None
    if here.first is not None and len(here.rows) <= _MOST:
        steps = parse_where(f"step:{here.first}..{here.last}")
        audited = kept(
            known, ("audit", here.first, here.last), lambda: audit(db, run, steps, mixed_ids=find_mixed(known.rows))
        )
    return WhyAuditPage(
        summary=summary,
        window=here,
        fresh=fresh_of(summary),
        audited=audited,
        findings=[
            (it, urls.matching(run.uid, it.where), [(row, urls.rollout(run.uid, row)) for row in it.first])
            for it in (audited.findings if audited else ())
        ],
        not_shown=NOT_SHOWN,
    )


router = tab_router("audit", _page)
