"""The page of a run's audit."""

from pathlib import Path
from typing import Any

import pytest

from logs_ui.app.pages.why import audit as why_audit
from logs_ui.app.web import htmx
from logs_ui.recorder import start_run
from tests.support.dashboard import dashboard


@pytest.mark.parametrize(
    ("completion", "names", "sentence"),
    [
        ([4, 5, 6], ["repeated_prompt"], "The completion ids begin with the prompt (2 rollouts)"),
        ([6, 7], [], "No rollout differs in what was compared"),
    ],
)
def test_findings_and_checks_are_listed(
    db: Path, monkeypatch: pytest.MonkeyPatch, completion: list[int], names: list[str], sentence: str
) -> None:
    with start_run(db=db) as run:
        for _ in range(2):
            with run.rollout("What is 1 + 1?") as row:
                row.tokens([4, 5], completion)
                row.score(1.0)
    pages: list[Any] = []
    render = htmx.render

    def noted(request: Any, name: str, page: Any) -> Any:
        pages.append(page)
        return render(request, name, page)

    monkeypatch.setattr(htmx, "render", noted)
    with dashboard(db) as client:
        text = client.get(f"/runs/{run.id}/why/audit").text
    (page,) = pages
    assert isinstance(page, why_audit.WhyAuditPage)
    assert [(finding.id, finding.first, [row for row, _ in first]) for finding, _, first in page.findings] == [
        (name, (1, 2), [1, 2]) for name in names
    ]
    assert sentence in text
    assert "not recorded: token ids, or numbers of tokens, of the generations" in text
