"""The commands `logs-ui db ...`, which show and maintain a database."""

import json
import threading
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from logs_ui.app.commands import terminal
from logs_ui.app.parts.figures import plural
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.storage.address import Address, database_address, db_option, masked_address

if TYPE_CHECKING:
    from logs_ui.recorder.storage.spool.ingest import TakenIn
    from logs_ui.recorder.upkeep.info import Info
    from logs_ui.recorder.upkeep.merge import MergedRun
    from logs_ui.recorder.upkeep.recover import Recovered

db = typer.Typer(help="Show, check, vacuum, merge, recover or migrate a database, or delete a run.")

_DELETE_STOPPED = "Stopped. What is deleted stays deleted; the same command continues with the rest."
_MERGE_STOPPED = "Stopped. What was copied stays; the same command continues with the rest."
_FACTS_STOPPED = "Stopped. What was computed stays; the same command computes the rest."
_NO_RUN = "There is no run to merge."
_VACUUM_STOPPED = "Stopped. The database is as it was."
_RECOVER_STOPPED = "Stopped. Nothing was written; the same command begins anew."
_DAMAGED = 1
_INCOMPLETE = 3
_PAUSE = 1.0  # seconds between two looks for recordings
_SKIPPED = 3  # skipped tables that are named

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@db.command(short_help="Store recordings that wait on disk.")
def ingest(
    db: terminal.Database = None,
    watch: Annotated[bool, typer.Option("--watch", help="Keep ingesting until Ctrl-C.")] = False,  # noqa: FBT002 - a flag
) -> None:
    """Store recordings that wait on disk in the database: made on a network file system, or while the database was
    away. The dashboard and load_run() do the same.
    """
    from logs_ui.recorder.delivery.committer import entry_of
    from logs_ui.recorder.storage.spool.ingest import Ingester

    address = database_address(db)
    ingester = Ingester(address, entry_of)
    stored = ingester.take_in()
    if stored.is_all and not stored.entries:
        terminal.say_plainly(f"Nothing waits for {masked_address(address)} in {ingester.folder}.")
    else:
        _say_stored(address, stored)
    if watch:
        stop = threading.Event()
        while not stop.wait(_PAUSE):
            stored = ingester.take_in()
            if stored.entries:
                _say_stored(address, stored)


def _say_stored(address: Address, stored: "TakenIn") -> None:
    sentence = f"{plural(stored.rollouts, 'change')} of rollouts stored in {masked_address(address)}"
    if stored.refused:
        sentence += f"; the database refused {stored.refused:,}"
    terminal.say_plainly(sentence + ("." if stored.is_all else "; another process is storing the rest."))


@db.command(short_help="Show the contents and the size of a database.")
def info(
    as_json: AsJson = False,  # noqa: FBT002 - a flag
    db: terminal.Database = None,
) -> None:
    """Show where a database is, how large it is, how much is in it, and whether a run is being recorded now."""
    from logs_ui.recorder.upkeep.info import look_at

    facts = look_at(db)
    if as_json:
        typer.echo(json.dumps(vars(facts), indent=2))
    else:
        terminal.facts(_lines(facts, db_option(database_address(db))))


def _lines(facts: "Info", db: str) -> list[tuple[str, str]]:
    behind = "" if facts.schema >= facts.known else f" (this logs-ui uses {facts.known}; run: logs-ui db migrate{db})"
    free = f"; {terminal.size(facts.free)} are unused: logs-ui db vacuum{db}" if facts.free > facts.bytes * 0.05 else ""
    pruned = f"; {facts.pruned:,} of them pruned" if facts.pruned else ""
    return [
        ("database", facts.where),
        ("version", f"{facts.engine}, schema {facts.schema}{behind}"),
        ("size", f"{terminal.size(facts.bytes)}{free}"),
        ("recording now", ", ".join(facts.under_way) or "nothing"),
        ("runs", f"{facts.runs:,}"),
        ("rollouts", f"{facts.rollouts:,}{pruned}"),
        ("images", f"{facts.images:,}"),
        ("shared prompts", f"{facts.prompts:,}"),
    ]


@db.command(short_help="Check a database for damage.")
def check(
    thorough: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--thorough", help="Compare each index with its table, too; takes several times as long.")
    ] = False,
    as_json: AsJson = False,  # noqa: FBT002 - a flag
    db: terminal.Database = None,
) -> None:
    """Check a database's pages, and whether everything that its rows refer to exists; if not, print what to do.
    Changes nothing. Exits with 1 if something is damaged.
    """
    from logs_ui.recorder.upkeep.integrity_check import check as checked

    findings = []
    for finding in checked(db, thorough=thorough):
        findings.append(finding)
        if not as_json:
            mark = ("ok ", "green") if finding.is_whole else ("BAD", "bold red")
            terminal.out.print(Text.assemble(mark, f"  {finding.what}: {finding.said}"), soft_wrap=True)
    if as_json:
        typer.echo(json.dumps([vars(finding) for finding in findings], indent=2))
    raise typer.Exit(0 if all(finding.is_whole for finding in findings) else _DAMAGED)


@db.command(short_help="Return the space of pruned or deleted data to the disk.")
def vacuum(db: terminal.Database = None) -> None:
    """Rewrite a database without its unused pages. If it is interrupted, the database stays as it was. No run may be
    recorded meanwhile, and SQLite needs twice the disk space that is in use.
    """
    from logs_ui.recorder.upkeep.vacuum import vacuum as vacuumed

    with terminal.interruptible(_VACUUM_STOPPED), terminal.working() as progress:
        result = vacuumed(db, progress=progress)
    if len(result.skipped) < result.tables:
        terminal.out.print(f"{terminal.size(result.before)} before, {terminal.size(result.after)} now.")
    if result.skipped:
        names = ", ".join(result.skipped[:_SKIPPED]) + (", ..." if len(result.skipped) > _SKIPPED else "")
        raise LogsUIError(
            f"{len(result.skipped)} of {result.tables} tables were skipped ({names}), because this user may not vacuum "
            "them. Only their owner may, or since PostgreSQL 17 a user with the right MAINTAIN on them."
        )


@db.command(short_help="Copy the runs of other databases into one.")
def merge(
    others: Annotated[list[str], typer.Argument(metavar="PATH|URL", help="The databases to copy from.")],
    into: Annotated[
        str, typer.Option("--into", metavar="PATH|URL", help="The database to copy into; created if missing.")
    ],
    run: terminal.RunNames = None,
) -> None:
    """Copy runs with their rollouts, figures, images, stars, tags and notes, from SQLite or PostgreSQL to either. Runs
    that exist are brought up to date, and never doubled. The other databases stay as they are.
    """
    from logs_ui.recorder.upkeep.merge import merge as merged

    with terminal.interruptible(_MERGE_STOPPED), terminal.working() as progress:
        copies = merged(others, into, run=run or (), progress=progress)
    terminal.facts([(copy.uid, _became(copy)) for copy in copies])
    sentence = (
        f"{plural(len(copies), 'run')} merged into {masked_address(database_address(into))}." if copies else _NO_RUN
    )
    terminal.say_plainly(sentence)


def _became(run: "MergedRun") -> str:
    if not run.was_there:
        return f"new, {plural(run.rollouts, 'rollout')}"
    return f"brought up to date, {plural(run.rollouts, 'rollout')}" if run.rollouts else "already up to date"


@db.command(short_help="Read what can be read of a damaged SQLite file into a new one.")
def recover(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The damaged file; it stays as it is.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The file to write, which must not exist.")],
) -> None:
    """Read what can be read of a damaged SQLite file, and of the -wal beside it, row by row into a new file, and print
    what is missing. Exits with 3 if something is.
    """
    from logs_ui.recorder.upkeep.recover import recover as recovered

    with terminal.interruptible(_RECOVER_STOPPED), terminal.working() as progress:
        tables = recovered(old, new, progress)
    terminal.facts([(table.name, _read_of(table)) for table in tables])
    is_all = all(table.is_sure and not table.missing for table in tables)
    terminal.say_plainly(
        f"{'Everything was' if is_all else 'What can be read is'} written to {masked_address(database_address(new))}."
    )
    raise typer.Exit(0 if is_all else _INCOMPLETE)


def _read_of(table: "Recovered") -> str:
    missing = f"; {table.missing:,} missing" if table.missing else ""
    return f"{plural(table.rows, 'row')}{missing}" + ("" if table.is_sure else "; more may be missing")


@db.command(short_help="Bring a database of an earlier logs-ui up to date.")
def migrate(
    facts: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--facts", help="Compute facts that were not recorded from the stored texts, too.")
    ] = False,
    db: terminal.Database = None,
) -> None:
    """Bring a database of an earlier logs-ui up to date. Each change is one transaction. Most can run while a
    training records; for the others, stop all recording first. In an empty PostgreSQL database, create the tables.
    """
    from logs_ui.recorder.upkeep.fill_facts import fill_facts
    from logs_ui.recorder.upkeep.migrate import migrate_database

    creations: list[bool] = []
    version = migrate_database(
        db,
        applied=lambda migration: terminal.say_plainly(
            f"schema {migration.number}: {migration.what}" if migration.number > 1 else f"added: {migration.what}"
        ),
        made=lambda: creations.append(True),
    )
    where = masked_address(database_address(db))
    sentence = f"{where} had no tables of logs-ui. They are created" if creations else f"{where} is up to date"
    terminal.say_plainly(f"{sentence}: schema {version}.")
    if facts:
        with terminal.interruptible(_FACTS_STOPPED), terminal.working() as progress:
            filled = fill_facts(db, progress=progress)
        terminal.say_plainly(f"Facts of {plural(filled, 'rollout')} computed from their texts.")


@db.command(short_help="Delete a run with everything that belongs to it.")
def delete(
    run: terminal.RunName,
    yes: Yes = False,  # noqa: FBT002 - a flag
    db: terminal.Database = None,
) -> None:
    """Delete a run: rollouts, figures, sources, stars, tags and notes, and the images that only it has. First shows
    what would be deleted, and asks. It can be restored only from a backup of the database. To keep its figures, prune
    it.
    """
    from logs_ui.recorder.upkeep.delete import delete_run

    contents = delete_run(run, db, dry_run=True)
    notes = f"; people starred, tagged or noted {contents.said:,} of them" if contents.said else ""
    terminal.say_plainly(
        f"Run {contents.run}: {plural(contents.rollouts, 'rollout')}, {terminal.size(contents.bytes)} of text and "
        f"tokens{notes}."
    )
    prune = f"logs-ui prune --run {contents.run}{db_option(database_address(db))}"
    if terminal.is_wanted(f"Delete it, with its figures? To keep these: {prune}", yes=yes):
        with terminal.interruptible(_DELETE_STOPPED), terminal.working() as progress:
            delete_run(contents.run, db, progress=progress)
        terminal.say_plainly(f"Run {contents.run} is deleted.")
