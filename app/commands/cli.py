"""Defines the command `logs-ui`: its options, and the subcommands that have no file of their own."""

import logging
import re
import shlex
import sys
import time
from enum import StrEnum
from functools import partial
from importlib.metadata import version as installed_version
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import TextColumn

from logs_ui.app.commands.audit import audit
from logs_ui.app.commands.db import db as db_commands
from logs_ui.app.commands.diagnose import diagnose
from logs_ui.app.commands.eval import evaluate
from logs_ui.app.commands.import_command import import_rollouts
from logs_ui.app.commands.prune import prune
from logs_ui.app.commands.rescore import rescore
from logs_ui.app.commands.run import run
from logs_ui.app.commands.terminal import Database, RunName, err, out, progress_bar, say, say_without_terminal, working
from logs_ui.app.parts.figures import plural
from logs_ui.recorder.errors import DatabaseError, LogsUIError, NoDatabaseError, RefusedDatabaseError
from logs_ui.recorder.queries.run_totals import RECENT_STEPS
from logs_ui.recorder.storage.address import Address, as_text, database_address, masked_address, without_password
from logs_ui.recorder.storage.database import reading_engine, refuse_hopeless, writing_engine
from logs_ui.recorder.storage.schema import Purpose

app = typer.Typer(
    help="See why GRPO rewards stay low: record every rollout, browse it live, load it into pandas.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its boxes call a flag a <bool>
)
_UsageError: Any = typer.BadParameter.__base__  # typer has no name for it, and brings a click of its own or imports it

Port = Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="Port to listen on; 0 picks a free one.")]


class Format(StrEnum):
    """The file formats that `export` writes."""

    PARQUET = "parquet"
    CSV = "csv"
    JSONL = "jsonl"
    VERIFIERS = "verifiers"
    ATIF = "atif"
    EVAL_PROTOCOL = "eval-protocol"
    OTLP = "otlp"


def main() -> None:
    """Run the command line. An error that the user can fix is one line on stderr and exit code 1, or 2 for a wrong
    command line.
    """
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except LogsUIError as error:
        code = say(str(error), 1)
    except _UsageError as error:
        command = error.ctx.command_path if error.ctx else "logs-ui"
        message = " ".join(error.format_message().split())
        code = say(f"{message}{'' if message.endswith(('.', '?')) else '.'} Try: {command} --help", 2)
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
    host: Annotated[
        str, typer.Option(metavar="HOST", help="Address to listen on; beyond this machine, a token is required.")
    ] = "127.0.0.1",
    port: Port = 7070,
    root_path: Annotated[
        str,
        typer.Option(
            metavar="PATH", help="Path under which a proxy serves the dashboard, such as /user/ann/proxy/7070."
        ),
    ] = "",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST",
            help="Host name under which browsers reach the dashboard, as behind a proxy; may be repeated.",
        ),
    ] = None,
    read_only: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--read-only", help="Write nothing: no stars, tags, notes or settings.")
    ] = False,
) -> None:
    """Serve the dashboard; it follows a training live."""
    from logs_ui.app.commands.serve import serve as serve_dashboard

    address = database_address(db)
    _wait_for(address)
    prefix = _prefix(root_path)
    serve_dashboard(address, host=host, port=port, prefix=prefix, names=allow_host or (), read_only=read_only)


@app.command(short_help="Train a tiny model and watch its rollouts arrive.")
def demo(
    db: Database = None,
    steps: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Number of optimizer steps; the default takes a minute or two."),
    ] = None,
    port: Port = 0,
    serve: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--serve/--no-serve", help="Serve the dashboard during the training and after it.")
    ] = True,
) -> None:
    """Train a tiny model on a guessing game and watch every rollout arrive. Downloads nothing."""
    from logs_ui.recorder.delivery.writer import check_settings

    check_settings()  # before a model is made
    address = database_address(db)
    if not serve:
        writing_engine(address).dispose()
        _train_demo(address, steps)
        _say_how_to_browse(address)
        return
    from logs_ui.app.commands.serve import BackgroundServer

    with BackgroundServer(address, port=port) as server:  # before anything is made: its port may be in use
        writing_engine(address).dispose()
        out.print(f"Dashboard: [bold link={server.url}]{server.url}[/]", soft_wrap=True)
        _train_demo(address, steps)
        out.print(f"The dashboard stays up at [bold]{server.url}[/] · Stop it with Ctrl-C.", soft_wrap=True)
        while True:
            time.sleep(3600)


@app.command()
def export(
    run: RunName,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The file, or folder, to write.")
    ] = None,
    format: Annotated[  # noqa: A002
        Format | None,
        typer.Option(
            "--format",
            "-f",
            "--as",
            metavar="|".join(Format),
            help="The file's suffix names parquet, csv or jsonl; name the others, which other tools read.",
        ),
    ] = None,
    otlp: Annotated[
        str | None,
        typer.Option("--otlp", metavar="URL", help="Send traces to a server, as at http://127.0.0.1:4318/v1/traces."),
    ] = None,
    db: Database = None,
    where: Annotated[
        str,
        typer.Option(
            "--where",
            metavar="FILTER",
            help="Only rollouts that match, such as 'reward<0.2 status:error': docs/filters.md.",
        ),
    ] = "",
    partition_by: Annotated[
        str | None,
        typer.Option(
            "--partition-by",
            metavar="step[:N]",
            help="Write a folder of Parquet files for DuckDB and Spark, one partition per N steps: docs/pandas.md.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file, or a partitioned run.")] = False,  # noqa: FBT002 - a flag
) -> None:
    """Write a run's rollouts to a file, one row per rollout, or to a folder of Parquet files."""
    from logs_ui.recorder.analysis.export.files import export_run
    from logs_ui.recorder.analysis.export.partitions import export_partitions

    if (output is None) == (otlp is None):
        raise LogsUIError("Name a file with --output, or a server with --otlp.")
    if otlp and (format not in {None, Format.OTLP} or not otlp.startswith(("http://", "https://"))):
        raise LogsUIError("--otlp takes an address that begins with http, and no format but otlp.")
    if partition_by is not None and (otlp or format not in {None, Format.PARQUET}):
        raise LogsUIError(f"Only Parquet can be partitioned: leave out --partition-by or --format {format or 'otlp'}.")
    place = Path() if output is None else output
    if output is not None and partition_by is None and place.exists() and not force:
        raise LogsUIError(f"{output} already exists. Name another; --force overwrites a file.")
    kind = Format.PARQUET if partition_by else Format.OTLP if otlp else format or _format_of(place)
    with working() as progress:
        show = partial(progress, "rollouts")
        if partition_by is None:
            rows = export_run(run, kind.value, otlp or place, db, where=where, progress=show)
        else:
            rows = export_partitions(run, place, db, by=partition_by, where=where, replace=force, progress=show)
    out.print(f"{plural(rows, 'rollout')} {'at' if otlp else 'in'} {escape(str(otlp or output))}", soft_wrap=True)


app.command("diagnose", short_help="Diagnose why the rewards of a run are low.")(diagnose)
app.command("audit", short_help="Recompute what the trainer said: is its arithmetic right?")(audit)
app.command("import", short_help="Import rollouts of another trainer or tool, once or live.")(import_rollouts)
app.command("eval", short_help="Evaluate a model on any server with an @evaluation.")(evaluate)
app.command(
    short_help="Run a script, and record every trainer that it makes.",
    context_settings={"allow_interspersed_args": False},
)(run)
app.command(short_help="Show what another reward function would change.")(rescore)
app.command(short_help="Delete the text of old rollouts and keep their figures.")(prune)
app.add_typer(db_commands, name="db")


def _wait_for(address: Address) -> None:
    """Raise DatabaseError if waiting for the database would not help. The dashboard itself waits for a file that does
    not exist yet and for a server that is down.
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
        err.print(f"{error}\nThe pages appear as soon as it can be reached.", soft_wrap=True, markup=False)


def _prefix(root_path: str) -> str:
    """Return `root_path` as it begins every address: with a slash in front and none at its end. Raise LogsUIError."""
    path = root_path.strip("/")
    if not re.fullmatch(r"[\w.~@%/-]*", path, re.ASCII) or ".." in path.split("/") or "//" in path:
        raise LogsUIError(f"--root-path {root_path!r} is not a path: write it as /user/ann/proxy/7070.")
    return f"/{path}" if path else ""


def _format_of(output: Path) -> Format:
    """Return the format that the file's suffix names. Raise LogsUIError."""
    ending = output.suffix.lstrip(".").lower()
    if ending not in {Format.PARQUET, Format.CSV, Format.JSONL}:
        raise LogsUIError(f"The suffix of {output} names no format: add --format parquet, csv or jsonl, or --as.")
    return Format(ending)


def _train_demo(address: Address, steps: int | None) -> None:
    """Train and record, with a progress bar, or with a line now and then if there is no terminal. Raise LogsUIError
    if a package that the demo needs is missing, or its environment does not start.
    """
    from logs_ui.recorder import Settings, flush, record
    from logs_ui.rollout.demo.demo import DemoSettings, train_demo

    settings = DemoSettings() if steps is None else DemoSettings(steps=steps)
    rewards: list[float] = []
    with progress_bar(TextColumn("reward {task.fields[reward]}")) as progress:
        beginning = "creating the model, starting the environment"
        bar = progress.add_task(beginning, total=settings.steps, reward="...")
        say_without_terminal(beginning)

        def show(step: int, total: int, reward: float) -> None:
            rewards.append(reward)
            reached = _reward_over_the_last(rewards)
            progress.update(bar, completed=step, total=total, reward=reached, description="training")
            if step % max(1, total // 10) == 0:
                say_without_terminal(f"step {step} of {total}, mean reward {reached}")

        try:
            # A right guess pays 0.8 or more, whichever turn it comes in, and wrong ones at most 0.3 together.
            solved = Settings(solved_by="solved", solved_at=0.5)
            wrap = record(eval_name="guess", db=as_text(address), announce=False, diagnosis=solved)
            train_demo(settings, wrap=wrap, on_step=show)
        except (ImportError, RuntimeError) as error:
            raise LogsUIError(str(error)) from error
        except KeyboardInterrupt:
            flush()
            progress.stop()
            out.print(f"Stopped after {len(rewards)} of {settings.steps} steps. Everything recorded so far is stored.")
            _say_how_to_browse(address)
            raise
    if not flush():
        raise LogsUIError(f"Not everything could be written to {masked_address(address)}; the lines above say why.")
    _say_what_happened(address, rewards)


def _reward_over_the_last(rewards: list[float]) -> str:
    """Return the mean reward that the dashboard shows for a run, and over how many steps."""
    recent = rewards[-RECENT_STEPS:]
    return f"{fmean(recent):.2f} (last {plural(len(recent), 'step')})"


def _say_how_to_browse(address: Address) -> None:
    out.print(
        f"Browse it with: [bold]logs-ui serve --db {escape(shlex.quote(without_password(address)))}[/]", soft_wrap=True
    )


def _say_what_happened(address: Address, rewards: list[float]) -> None:
    before = rewards[:-RECENT_STEPS][:RECENT_STEPS]
    went = f" went from {fmean(before):.2f} (first {plural(len(before), 'step')}) to" if before else ":"
    mean = _reward_over_the_last(rewards)
    out.print(f"Mean reward{went} {mean}. Every rollout is in {escape(masked_address(address))}", soft_wrap=True)
    code = escape(f"from logs_ui.recorder import load_run; load_run(db={without_password(address)!r})")
    out.print(f"In Python: [bold]{code}[/]", soft_wrap=True)


if __name__ == "__main__":
    main()
