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
    with opened(run, db) as (engine, found):
        result = audited(engine, found)
    if as_json:
        typer.echo(json.dumps(result.as_dict(), indent=2, allow_nan=False))
    else:
        _show(result, db_option(database_address(db)))
    raise typer.Exit(_WRONG if result.findings else 0)


def _show(result: Audited, db: str) -> None:
    for number, it in enumerate(result.findings, 1):
        out.print(Text(f"{number}. {it.title} [{it.id}]", "bold"), soft_wrap=True)
        if it.evidence:
            say_plainly(f"   {it.evidence}")
        if path := matching(result.run, it.where):
            say_plainly(f"   all: {SERVED}{path}")
        for row in it.first:
            say_plainly(f"   {SERVED}{rollout(result.run, row)}")
    if not result.findings:
        is_compared = any(it.rows for it in result.checks)
        say_plainly("No rollout differs in what was compared." if is_compared else "Nothing could be compared.")
    say_plainly("")
    for checked in result.checks:
        say_plainly(f"{checked.check.name}: {_outcome(checked)}")
    say_plainly(f"\n{NOT_SHOWN}\nWith links: logs-ui serve{db}, then {SERVED}{why(result.run, 'audit')}")


def _outcome(looked: Checked) -> str:
    if looked.lacking:
        return f"not recorded ({looked.lacking})"
    said = ", ".join(f"{it.rows:,} differ [{it.id}]" for it in looked.findings) or "none differs"
    return " ".join(filter(None, [f"{looked.rows:,} rollouts compared, {said}.", looked.note]))
