"""The command `logs-ui`."""

import logging
import re
import shlex
import sys
import time
from enum import StrEnum
from importlib.metadata import version as installed_version
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import TextColumn

from logs_ui.app.commands.db_commands import db as db_commands
from logs_ui.app.commands.diagnose_command import diagnose
from logs_ui.app.commands.eval_command import evaluate
from logs_ui.app.commands.prune_command import prune
from logs_ui.app.commands.rescore_command import rescore
from logs_ui.app.commands.terminal import (
    Database,
    RunName,
    err,
    out,
    progress_bar,
    say,
    say_without_terminal,
)
from logs_ui.app.parts.figures import plural
from logs_ui.recorder.errors import DatabaseError, LogsUIError, NoDatabaseError, RefusedDatabaseError
from logs_ui.recorder.queries.run_totals import RECENT_STEPS
from logs_ui.recorder.storage.address import Address, as_text, database_address, shown, without_password
from logs_ui.recorder.storage.database import reading_engine, refuse_hopeless, writing_engine
from logs_ui.recorder.storage.schema import Purpose

app = typer.Typer(
    help="See why GRPO rewards stay low: record every rollout, browse it live, take it to pandas.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its boxes call a flag a <bool>
)
_UsageError: Any = typer.BadParameter.__base__  # typer has no name for it, and brings a click of its own or imports it

Port = Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="0 takes a free one.")]


class Format(StrEnum):
    """What `export` writes."""

    PARQUET = "parquet"
    CSV = "csv"
    JSONL = "jsonl"


def main() -> None:
    """Runs the command; whatever a user can mend is one line on stderr, and exit code 1, or 2 for a command line that
    is misspelt.
    """
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except LogsUIError as error:
        code = say(str(error), 1)
    except _UsageError as error:
        command = error.ctx.command_path if error.ctx else "logs-ui"
        what = " ".join(error.format_message().split())
        code = say(f"{what}{'' if what.endswith(('.', '?')) else '.'} Try: {command} --help", 2)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    sys.exit(code)


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it with one argument
    if wanted:
        out.print(f"logs-ui {installed_version('logs-ui')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[  # noqa: ARG001, FBT002 - a flag whose callback acts
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    logging.basicConfig(format="%(message)s", level=logging.WARNING)


@app.command()
def serve(
    db: Database = None,
    host: Annotated[str, typer.Option(metavar="HOST", help="Beyond this machine a token is asked for.")] = "127.0.0.1",
    port: Port = 7070,
    root_path: Annotated[
        str, typer.Option(metavar="PATH", help="Where a proxy serves it, such as /user/ann/proxy/7070.")
    ] = "",
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="A name that a proxy asks by; may be repeated.")
    ] = None,
    read_only: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--read-only", help="Nobody stars, tags, notes or sets anything; nothing is written.")
    ] = False,
) -> None:
    """Browse what was recorded, live while a training writes it."""
    from logs_ui.app.commands.serve_command import serve as serve_dashboard

    address = database_address(db)
    _wait_for(address)
    prefix = _prefix(root_path)
    serve_dashboard(address, host=host, port=port, prefix=prefix, names=allow_host or (), read_only=read_only)


@app.command(short_help="Train a tiny model for real, and watch its rollouts arrive.")
def demo(
    db: Database = None,
    steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Optimizer steps; the default takes a minute or two.")
    ] = None,
    port: Port = 0,
    serve: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--serve/--no-serve", help="Serve the dashboard meanwhile, and stay up at the end.")
    ] = True,
) -> None:
    """Train a tiny model on a guessing game, for real, and watch every rollout arrive. Downloads nothing."""
    from logs_ui.recorder.delivery.writer import check_settings

    check_settings()  # before a model is made
    address = database_address(db)
    if not serve:
        writing_engine(address).dispose()
        _train_demo(address, steps)
        _say_how_to_browse(address)
        return
    from logs_ui.app.commands.serve_command import BackgroundServer

    with BackgroundServer(address, port=port) as server:  # before anything is made: its port may be in use
        writing_engine(address).dispose()
        out.print(f"Dashboard: [bold link={server.url}]{server.url}[/]", soft_wrap=True)
        _train_demo(address, steps)
        out.print(f"The dashboard stays up at [bold]{server.url}[/] · Ctrl-C ends it.", soft_wrap=True)
        while True:
            time.sleep(3600)


@app.command()
def export(
    run: RunName,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file, or folder, to write.")],
    format: Annotated[  # noqa: A002
        Format | None,
        typer.Option("--format", "-f", metavar="parquet|csv|jsonl", help="Default: by the file's ending."),
    ] = None,
    db: Database = None,
    where: Annotated[
        str,
        typer.Option("--where", metavar="FILTER", help="Only these, as 'reward<0.2 status:error': docs/filters.md."),
    ] = "",
    partition_by: Annotated[
        str | None,
        typer.Option(
            "--partition-by",
            metavar="step[:N]",
            help="Write a folder of Parquet, a partition a step, or N steps, for DuckDB and Spark: docs/pandas.md.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,  # noqa: FBT002 - a flag
) -> None:
    """Write a run's rollouts to a file, one row each, or to a folder of them."""
    from logs_ui.recorder.analysis.export.export_files import export_run
    from logs_ui.recorder.analysis.export.partitions import export_partitions

    if partition_by is not None and format not in {None, Format.PARQUET}:
        raise LogsUIError(f"Partitions are Parquet's: leave out --partition-by, or --format {format}.")
    if partition_by is None and output.exists() and not force:
        raise LogsUIError(f"{output} is there already. Name another file, or replace it with --force.")
    kind = Format.PARQUET if partition_by else format or _format_of(output)
    with progress_bar() as progress:
        bar = progress.add_task("rollouts", total=None, visible=False)

        def show(done: int, total: int) -> None:
            progress.update(bar, completed=done, total=total, visible=True)

        if partition_by is None:
            rows = export_run(run, kind.value, output, db, where=where, progress=show)
        else:
            rows = export_partitions(run, output, db, by=partition_by, where=where, replace=force, progress=show)
    out.print(f"{plural(rows, 'rollout')} in {escape(str(output))}", soft_wrap=True)


app.command("diagnose", short_help="Say why the rewards of a run are low.")(diagnose)
app.command("eval", short_help="Evaluate a model by an @evaluation, on any server.")(evaluate)
app.command(short_help="See what another reward function would change.")(rescore)
app.command(short_help="Take the text of old rollouts, and leave their figures.")(prune)
app.add_typer(db_commands, name="db")


def _wait_for(address: Address) -> None:
    """The dashboard does, of itself, for a file that is yet to be made and for a server that is away.

    Raises:
        DatabaseError: waiting would be no use.
    """
    try:
        reading_engine(address).dispose()
    except NoDatabaseError:
        return
    except RefusedDatabaseError:
        raise
    except DatabaseError as error:
        if isinstance(address, Path):
            raise
        refuse_hopeless(address, Purpose.READ)  # a wrong password, no such database
        err.print(f"{error}\nThe pages come alive when it can be reached.", soft_wrap=True, markup=False)


def _prefix(root_path: str) -> str:
    """As it begins every address: with a slash in front, and none at its end.

    Raises:
        LogsUIError: it is no path.
    """
    path = root_path.strip("/")
    if not re.fullmatch(r"[\w.~@%/-]*", path, re.ASCII) or ".." in path.split("/") or "//" in path:
        raise LogsUIError(f"--root-path {root_path!r} is no path: write it as /user/ann/proxy/7070.")
    return f"/{path}" if path else ""


def _format_of(output: Path) -> Format:
    """By the file's ending.

    Raises:
        LogsUIError: the ending tells nothing.
    """
    ending = output.suffix.lstrip(".").lower()
    if ending not in set(Format):
        raise LogsUIError(f"{output} does not tell a format: add --format parquet, csv or jsonl.")
    return Format(ending)


def _train_demo(address: Address, steps: int | None) -> None:
    """Trains and records, with a progress bar, or a line now and then where there is no terminal.

    Raises:
        LogsUIError: a package that the demo needs is missing, or its environment does not start.
        KeyboardInterrupt: as it came, after a line that says what is kept.
    """
    from logs_ui.recorder import flush, record
    from logs_ui.rollout.demo.demo import DemoSettings, train_demo

    settings = DemoSettings() if steps is None else DemoSettings(steps=steps)
    rewards: list[float] = []
    with progress_bar(TextColumn("reward {task.fields[reward]}")) as progress:
        beginning = "making a model, starting the environment"
        bar = progress.add_task(beginning, total=settings.steps, reward="...")
        say_without_terminal(beginning)

        def show(step: int, total: int, reward: float) -> None:
            rewards.append(reward)
            reached = _reward_over_the_last(rewards)
            progress.update(bar, completed=step, total=total, reward=reached, description="training")
            if step % max(1, total // 10) == 0:
                say_without_terminal(f"step {step} of {total}, mean reward {reached}")

        try:
            train_demo(settings, wrap=record(eval_name="guess", db=as_text(address), announce=False), on_step=show)
        except (ImportError, RuntimeError) as error:
            raise LogsUIError(str(error)) from error
        except KeyboardInterrupt:
            flush()
            progress.stop()
            out.print(f"Stopped after {len(rewards)} of {settings.steps} steps. What was recorded is kept.")
            _say_how_to_browse(address)
            raise
    if not flush():
        raise LogsUIError(f"{shown(address)} could not be written to the end; the lines above say why.")
    _say_what_happened(address, rewards)


def _reward_over_the_last(rewards: list[float]) -> str:
    """The figure that the dashboard shows of a run, and over how many steps."""
    recent = rewards[-RECENT_STEPS:]
    return f"{fmean(recent):.2f} (last {plural(len(recent), 'step')})"


def _quoted(address: Address) -> str:
    """For a shell."""
    return shlex.quote(without_password(address))


def _say_how_to_browse(address: Address) -> None:
    out.print(f"Browse it with: [bold]logs-ui serve --db {escape(_quoted(address))}[/]", soft_wrap=True)


def _say_what_happened(address: Address, rewards: list[float]) -> None:
    before = rewards[:-RECENT_STEPS][:RECENT_STEPS]
    went = f" went from {fmean(before):.2f} (first {plural(len(before), 'step')}) to" if before else ":"
    mean = _reward_over_the_last(rewards)
    out.print(f"Mean reward{went} {mean}. Every rollout is in {escape(shown(address))}", soft_wrap=True)
    said = escape(f"from logs_ui.recorder import load_run; load_run(db={without_password(address)!r})")
    out.print(f"In Python: [bold]{said}[/]", soft_wrap=True)


if __name__ == "__main__":
    main()
