"""Shows whether what the trainer computed follows from what is recorded: an audit of the page's steps."""

from dataclasses import dataclass

from sqlalchemy import Connection

from logs_ui.app.pages.why.tab import StepWindow, WhyTab, cache_figure, fresh_of, tab_router
from logs_ui.app.web import urls
from logs_ui.recorder.analysis.audit import audit, find_mixed
from logs_ui.recorder.analysis.diagnose import Diagnosed
from logs_ui.recorder.audit.finding import NOT_SHOWN, Audited, Finding
from logs_ui.recorder.queries import RunSummary
from logs_ui.recorder.queries.filters.rollout_filter import parse_where

_MOST_ROLLOUTS = 5_000  # rollouts that are audited while somebody waits: a thousand take about a second


@dataclass(frozen=True)
class WhyAuditPage(WhyTab):
    """Context of `why/why_audit.html`."""

    audit_result: Audited | None  # None for more rollouts than a page waits for, and for none
    # Each finding with the address of its rollouts, None where no address holds them, and those of the first five.
    findings: list[tuple[Finding, str | None, list[tuple[int, str]]]]
    not_shown: str


def _page(db: Connection, summary: RunSummary, diagnosis: Diagnosed, window: StepWindow) -> WhyAuditPage:
    run, audit_result = summary.run, None
    if window.first is not None and len(window.rows) <= _MOST_ROLLOUTS:
        steps = parse_where(f"step:{window.first}..{window.last}")
        audit_result = cache_figure(
            diagnosis,
            ("audit", window.first, window.last),
            lambda: audit(db, run, steps, mixed_ids=find_mixed(diagnosis.rows)),
        )
    return WhyAuditPage(
        summary=summary,
        window=window,
        fresh=fresh_of(summary),
        audit_result=audit_result,
        findings=[
            (
                finding,
                urls.matching(run.uid, finding.where),
                [(row, urls.rollout(run.uid, row)) for row in finding.first],
            )
            for finding in (audit_result.findings if audit_result else ())
        ],
        not_shown=NOT_SHOWN,
    )


router = tab_router("audit", _page)
