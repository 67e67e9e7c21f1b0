"""`logs-ui db`: a look at a database, and what it needs now and then."""

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from logs_ui.app.commands.ingest_command import ingest
from logs_ui.app.commands.terminal import Database, RunName, out
from logs_ui.app.commands.upkeep_prompts import facts, interruptible, is_wanted, size, working
from logs_ui.app.parts.figures import moment, plural
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.storage.address import database_address, db_option, shown

if TYPE_CHECKING:
    from logs_ui.recorder.upkeep.info import Info
    from logs_ui.recorder.upkeep.merge import MergedRun

db = typer.Typer(help="Look at a database, check it, give its room back, merge others into it, or bring it up to date.")

_DELETE_STOPPED = "Stopped. What is gone stays gone; the same command goes on with the rest."
_MERGE_STOPPED = "Stopped. What was copied is there; the same command goes on with the rest."
_NO_RUN = "There is no run to merge."
_VACUUM_STOPPED = "Stopped. The database is as it was."
_DAMAGED = 1
_SKIPPED = 3  # tables that are named
_LEAST_SHARE = 0.005  # of the bytes, from which on a table has a line

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
db.command(short_help="Take in what waits on disk for it.")(ingest)

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@db.command(short_help="Say what is in it, and what takes its room.")
def info(
    as_json: AsJson = False,  # noqa: FBT002 - a flag
    db: Database = None,
) -> None:
    """Say where a database is, what is in it, what takes its room, and whether somebody records now."""
    from logs_ui.recorder.upkeep.info import look_at

    found = look_at(db)
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=2))
    else:
        facts(_lines(found, db_option(database_address(db))))


def _lines(it: "Info", db: str) -> list[tuple[str, str]]:
    behind = "" if it.schema >= it.known else f", this logs-ui works with {it.known}: logs-ui db migrate{db}"
    free = f"; {size(it.free)} are unused: logs-ui db vacuum{db}" if it.free > it.bytes * 0.05 else ""
    log = f", {size(it.log)} of them its write-ahead log" if it.log else ""
    disk = "" if it.disk_free is None else f"; {size(it.disk_free)} are free on the disk"
    lines = [
        ("where", it.where),
        ("what", f"{it.engine}, schema {it.schema}, made {_day(it.created)}{behind}"),
        ("size", f"{size(it.bytes)}{log}{free}{disk}"),
        ("beside it", f"search {size(it.search)}, notes {size(it.notes)}"),
        ("recorded now", ", ".join(it.under_way) or "nothing"),
        ("runs", f"{it.runs:,}"),
        *([("projects", ", ".join(it.projects))] if it.projects else []),
    ]
    if not it.rollouts:
        return [*lines, ("rollouts", "none")]
    pruned = f"; {it.pruned:,} of them pruned" if it.pruned else ""
    lines.append(("rollouts", f"{it.rollouts:,}, {_day(it.oldest)} to {_day(it.newest)}{pruned}"))
    if it.text is not None and it.tokens is not None:
        shared = f", beside {size(it.prompts)} of prompts that they share" if it.prompts else ""
        lines.append(("one with text", f"{size(it.text)} of text and {size(it.tokens)} of tokens, by a sample{shared}"))
    for table, taken in sorted(it.tables.items(), key=lambda one: -one[1]):
        if taken >= it.bytes * _LEAST_SHARE:
            lines.append((f"  {table}", f"{size(taken)}, {size(taken / it.rollouts)} a rollout"))
    return lines


def _day(microseconds: int | None) -> str:
    return moment(microseconds)[:10]


@db.command(short_help="Say whether it is whole.")
def check(
    thorough: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--thorough", help="Hold each index against its table, too: some times as long.")
    ] = False,
    as_json: AsJson = False,  # noqa: FBT002 - a flag
    db: Database = None,
) -> None:
    """Look at a database's pages, references, rollouts, figures and search index, and say of each whether it is whole,
    and what to do. Changes nothing. Exits with 1 where something is damaged.
    """
    from logs_ui.recorder.upkeep.check import check as checked

    findings = []
    with working() as progress:
        for one in checked(db, thorough=thorough, progress=progress):
            findings.append(one)
            if not as_json:
                mark = ("ok ", "green") if one.is_whole else ("BAD", "bold red")
                out.print(Text.assemble(mark, f"  {one.what}: {one.said}"), soft_wrap=True)
    if as_json:
        typer.echo(json.dumps([vars(one) for one in findings], indent=2))
    raise typer.Exit(0 if all(one.is_whole for one in findings) else _DAMAGED)


@db.command(short_help="Give the room of what was pruned or deleted back.")
def vacuum(db: Database = None) -> None:
    """Write a database anew without what it does not use. It is whole or as it was, whatever ends it. Nobody may
    record meanwhile, and SQLite takes twice the room of what is in use.
    """
    from logs_ui.recorder.upkeep.vacuum import vacuum as vacuumed

    with interruptible(_VACUUM_STOPPED), working() as progress:
        found = vacuumed(db, progress=progress)
    if len(found.skipped) < found.tables:
        out.print(f"{size(found.before)} before, {size(found.after)} now.")
    if found.skipped:
        names = ", ".join(found.skipped[:_SKIPPED]) + (", ..." if len(found.skipped) > _SKIPPED else "")
        raise LogsUIError(
            f"{len(found.skipped)} of {found.tables} tables were skipped ({names}), which this user may not vacuum: "
            "only their owner may, or since PostgreSQL 17 who was granted MAINTAIN on them."
        )


@db.command(short_help="Copy the runs of other databases into one.")
def merge(
    others: Annotated[list[str], typer.Argument(metavar="PATH|URL", help="The databases to copy from.")],
    into: Annotated[str, typer.Option("--into", metavar="PATH|URL", help="The one that gets them; made if missing.")],
    run: Annotated[
        list[str] | None, typer.Option("--run", metavar="RUN", help="Only this one; may be repeated.")
    ] = None,
) -> None:
    """Copy runs with their rollouts, figures, images, stars, tags and notes, from SQLite or PostgreSQL to either. Those
    that are there are brought up to date, and never doubled. What they are copied from stays as it is.
    """
    from logs_ui.recorder.upkeep.merge import merge as merged

    with interruptible(_MERGE_STOPPED), working() as progress:
        found = merged(others, into, run=run or (), progress=progress)
    facts([(it.uid, _became(it)) for it in found])
    said = f"{plural(len(found), 'run')} merged into {shown(database_address(into))}." if found else _NO_RUN
    out.print(said, soft_wrap=True, markup=False)


def _became(run: "MergedRun") -> str:
    if not run.was_there:
        return f"new, {plural(run.rollouts, 'rollout')}"
    return f"brought up to date, {plural(run.rollouts, 'rollout')}" if run.rollouts else "was there"


@db.command(short_help="Bring a database of an earlier logs-ui up to date.")
def migrate(db: Database = None) -> None:
    """Bring a database of an earlier schema up to date, each step whole or not at all. Most steps stop nobody; before
    one that does, nobody may record. In an empty PostgreSQL database make the tables.
    """
    from logs_ui.recorder.upkeep.migrate import migrate_database

    made: list[bool] = []
    version = migrate_database(
        db,
        applied=lambda step: out.print(f"schema {step.number}: {step.what}", soft_wrap=True, markup=False),
        made=lambda: made.append(True),
    )
    where = shown(database_address(db))
    said = f"{where} had no tables of logs-ui. They are made" if made else f"{where} is up to date"
    out.print(f"{said}: schema {version}.", soft_wrap=True, markup=False)


@db.command(short_help="Delete a run with all that belongs to it.")
def delete(
    run: RunName,
    yes: Yes = False,  # noqa: FBT002 - a flag
    db: Database = None,
) -> None:
    """Delete a run: rollouts, figures, sources, stars, tags and notes, and the images that only it has. Says first what
    would go, and asks. Nothing but a copy brings it back. To keep its figures, prune it.
    """
    from logs_ui.recorder.upkeep.delete import delete_run

    found = delete_run(run, db, dry_run=True)
    said = f"; people starred, tagged or noted {found.said:,} of them" if found.said else ""
    out.print(
        f"Run {found.run}: {plural(found.rollouts, 'rollout')}, {size(found.bytes)} of text and tokens{said}.",
        soft_wrap=True,
        markup=False,
    )
    prune = f"logs-ui prune --run {found.run}{db_option(database_address(db))}"
    if is_wanted(f"Delete it, figures and all? To keep those: {prune}", yes=yes):
        with interruptible(_DELETE_STOPPED), working() as progress:
            delete_run(found.run, db, progress=progress)
        out.print(f"Run {found.run} is deleted.", soft_wrap=True, markup=False)
