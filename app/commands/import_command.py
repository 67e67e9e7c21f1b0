"""Implements `logs-ui import`, which reads what other trainers and tools wrote."""

import signal
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from logs_ui.app.commands.terminal import Database, err, say_plainly, weighted
from logs_ui.app.parts.figures import plural
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.snapshot import visible
from logs_ui.recorder.storage.address import database_address, db_option

if TYPE_CHECKING:
    from logs_ui.recorder.importing.import_run import Imported, Importer

_POLL = 1.0  # seconds between two looks at files that are followed
_LINES = 5.0  # seconds between two lines about new rollouts
_SHOWN = 5  # runs


def import_rollouts(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH...", help="Files, folders, or globs in quotes: a run, or a run per format."),
    ] = None,
    follow: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--follow", help="Go on for as long as the files grow; Ctrl-C ends it.")
    ] = False,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="RUN", help="Name of the run; the same name is the same run."),
    ] = None,
    rewards: Annotated[
        str | None,
        typer.Option("--rewards", metavar="A,B", help="Columns that are rewards, if the format does not say it."),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option("--weights", metavar="A=1,B=0.1", help="Weights of the rewards; 1 where none is given."),
    ] = None,
    as_: Annotated[
        str | None,
        typer.Option("--as", metavar="FORMAT", help="The format, if it is not recognized: docs/import.md lists all."),
    ] = None,
    mapping: Annotated[
        Path | None,
        typer.Option("--map", metavar="FILE", help="TOML that names the columns of any JSONL or Parquet."),
    ] = None,
    suggest: Annotated[
        Path | None,
        typer.Option("--suggest", metavar="FILE", help="Print such a mapping for a file, and import nothing."),
    ] = None,
    strict: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--strict", help="Stop at the first record that cannot be read.")
    ] = False,
    db: Database = None,
) -> None:
    """Import rollouts that another trainer or tool wrote: verifiers, prime-rl, verl, TRL, NeMo-RL, Inspect and others.
    The format is recognized by the content. An import that is repeated adds nothing.
    """
    from logs_ui.recorder.importing.import_run import Importer
    from logs_ui.recorder.importing.reader import ImportOptions

    if suggest is not None:
        if not suggest.is_file():
            raise LogsUIError(f"{suggest} is no file. Name one file of records; --suggest takes no folder.")
        from logs_ui.recorder.importing.formats.mapped import suggestion

        with suppress(RecursionError):
            say_plainly(suggestion(suggest))
            return
        raise LogsUIError(f"{suggest} has values that are nested too deeply for a mapping.")
    if not paths:
        raise LogsUIError("Name what to import: a file, a folder, or a glob in quotes.")
    reward_names = None if rewards is None else tuple(rewards.split(","))
    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(),
        TextColumn("rollouts: {task.fields[rollouts]:,}"),
    )  # fmt: skip
    bar = Progress(*columns, console=err, disable=not err.is_terminal)
    task, option = bar.add_task("importing", total=None, rollouts=0), db_option(database_address(db))

    def show(_: str, done: int, total: int) -> None:
        bar.update(task, completed=done, total=total, rollouts=importer.result.rollouts)

    parts = [weighted("--weights", part.strip()) for part in (weights or "").split(",") if part]
    options = ImportOptions(reward_names, {name: 1.0 if weight is None else weight for name, weight in parts}, mapping)
    if follow:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (
        Importer(
            paths, options, run=run, format=as_, strict=strict, db=db, is_followed=follow, progress=show
        ) as importer,
        suppress(KeyboardInterrupt) if follow else nullcontext(),
    ):
        with bar:
            importer.take()
        if follow:
            _follow(importer, option)
    _say(importer.result, option)
    if (importer.result.replaced and not follow) or (importer.result.bad_count and not importer.result.rollouts):
        raise typer.Exit(1)


def _follow(importer: "Importer", option: str) -> None:
    """Read what is new, once a second, until KeyboardInterrupt; print a line when rollouts came."""
    result = importer.result
    files = plural(sum(result.formats.values()), "file")
    say_plainly(f"Following {files}; Ctrl-C ends it. Browse it with: logs-ui serve{option}")
    runs, rollouts, printed = 0, 0, 0.0
    with err.status("") as status:
        while True:
            status.update(plural(result.rollouts, "rollout"))
            began = time.monotonic()
            if result.rollouts != rollouts and began - printed >= _LINES:
                _say_runs(result, option, runs)
                now, new = time.strftime("%H:%M:%S"), result.rollouts - rollouts
                say_plainly(f"{now}  {plural(result.rollouts, 'rollout')}, {new:+,}")
                runs, rollouts, printed = len(result.runs), result.rollouts, began
                sys.stdout.flush()  # it may be a file
            importer.take()
            # Files that are read anew each time may be large.
            time.sleep(max(_POLL, min(30.0, 4 * (time.monotonic() - began))))


def _say(result: "Imported", option: str) -> None:
    formats = ", ".join(f"{plural(count, 'file')} of {name}" for name, count in sorted(result.formats.items()))
    new = (
        "" if result.new in {None, result.rollouts} else f" ({f'{result.new:,}' if result.new else 'none'} of them new)"
    )
    say_plainly(f"Imported {plural(result.rollouts, 'rollout')}{new} from {formats or 'no file'}.")
    for bad in result.bad:
        err.print(f"{bad.place()}: {visible(bad.reason)}", soft_wrap=True, markup=False)
    if result.bad_count:
        more = result.bad_count - len(result.bad)
        also = f" ({more:,} more than are shown)" if more else ""
        faults = f"{plural(result.bad_count, 'fault')}{also}: what could not be read was left out."
        err.print(faults, soft_wrap=True, markup=False)
    for line in result.notes:
        err.print(line, soft_wrap=True, markup=False)
    if result.replaced:
        lost = f"{plural(result.replaced, 'record')} replaced others with the same key: {result.rollouts:,} are left."
        err.print(lost, soft_wrap=True, markup=False)
    if result.unknown:
        others = f" and {len(result.unknown) - 3:,} more" if len(result.unknown) > 3 else ""
        names = ", ".join(map(visible, result.unknown[:3])) + others
        err.print(f"Not recognized: {names}. Import one alone to see what to do.", soft_wrap=True, markup=False)
    for name, instead in result.unused.items():
        line = f"No rollout has a reward {visible(name)!r}: {visible(instead)}"
        err.print(line, soft_wrap=True, markup=False)
    _say_runs(result, option, 0)


def _say_runs(result: "Imported", option: str, first: int) -> None:
    for uid, name in [*zip(result.runs, result.names, strict=True)][first:_SHOWN]:
        called = f" ({visible(name)})" if name else ""
        say_plainly(
            f"Run {uid}{called}. Browse it with: logs-ui serve{option}   Diagnose it: logs-ui diagnose {uid}{option}"
        )
