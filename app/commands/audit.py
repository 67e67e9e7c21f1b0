"""Implements `logs-ui audit`, which recomputes what a trainer said of its rollouts, for people or as JSON."""

import json
from typing import Annotated

import typer
from rich.text import Text

from logs_ui.app.commands.terminal import SERVED, Database, RunName, out, say_plainly
from logs_ui.app.web.urls import matching, rollout, why
from logs_ui.recorder.analysis.audit import audit as audited
from logs_ui.recorder.analysis.opened_runs import opened
from logs_ui.recorder.audit.finding import NOT_SHOWN, Audited, Checked
from logs_ui.recorder.storage.address import database_address, db_option

_WRONG = 3  # as of diagnose: 1 is an error, 2 a command line that is misspelt


def audit(
    run: RunName,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,  # noqa: FBT002 - a flag
    db: Database = None,
) -> None:
    """Recompute rewards, advantages, masks and prompts from what is recorded: is the training's arithmetic right?

    Exits with 3 if something differs, else with 0. docs/audit.md describes each check.
    """
    with opened(run, db) as (engine, recording):
        result = audited(engine, recording)
    if as_json:
        typer.echo(json.dumps(result.as_dict(), indent=2, allow_nan=False))
    else:
        _show(result, db_option(database_address(db)))
    raise typer.Exit(_WRONG if result.findings else 0)


def _show(result: Audited, db: str) -> None:
    for number, finding in enumerate(result.findings, 1):
        out.print(Text(f"{number}. {finding.title} [{finding.id}]", "bold"), soft_wrap=True)
        if finding.evidence:
            say_plainly(f"   {finding.evidence}")
        if path := matching(result.run, finding.where):
            say_plainly(f"   all: {SERVED}{path}")
        for row in finding.first:
            say_plainly(f"   {SERVED}{rollout(result.run, row)}")
    if not result.findings:
        is_compared = any(checked.rows for checked in result.checks)
        say_plainly("No rollout differs in what was compared." if is_compared else "Nothing could be compared.")
    say_plainly("")
    for checked in result.checks:
        say_plainly(f"{checked.check.name}: {_outcome(checked)}")
    say_plainly(f"\n{NOT_SHOWN}\nWith links: logs-ui serve{db}, then {SERVED}{why(result.run, 'audit')}")


def _outcome(checked: Checked) -> str:
    if checked.lacking:
        return f"not recorded ({checked.lacking})"
    differences = ", ".join(f"{finding.rows:,} differ [{finding.id}]" for finding in checked.findings) or "none differs"
    return " ".join(filter(None, [f"{checked.rows:,} rollouts compared, {differences}.", checked.note]))
