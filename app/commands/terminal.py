"""The parts that several commands share: consoles, options, progress, sizes, and questions before a deletion."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from logs_ui.recorder.errors import LogsUIError

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)
SERVED = "http://127.0.0.1:7070"
"""Where `logs-ui serve` answers by default: what commands print begins its addresses like this."""

Database = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="PATH|URL",
        help="A file, or postgresql://user@host/database. Default: LOGS_UI_DB, else the file that record() writes.",
    ),
]

RunNames = Annotated[list[str] | None, typer.Option("--run", metavar="RUN", help="Only this run; may be repeated.")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="Run id, the beginning of one, a name, or latest.")]


def say_plainly(text: str) -> None:
    """Print a text on stdout as it is, without wrapping it."""
    out.print(text, soft_wrap=True, markup=False)


def wide() -> Console:
    """Return the console for tables; it is 200 columns wide if there is no terminal."""
    return out if out.is_terminal else Console(width=200, highlight=False)


def table_of(first: str, others: Iterable[str]) -> Table:
    """Return an empty table: a column of names, and columns of numbers."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(Text(first), overflow="fold")
    for head in others:
        table.add_column(Text(head), justify="right", no_wrap=True)
    return table


def figure(value: float | None) -> str:
    """Format a number for a table; empty for None."""
    return "" if value is None else f"{value:.3f}"


def say(message: str, code: int) -> int:
    """Print an error on stderr and return the code to exit with."""
    err.print(f"[bold red]logs-ui:[/] {escape(message)}", soft_wrap=True)
    return code


def say_without_terminal(line: str) -> None:
    """Print a line on stderr if there is no terminal, where a progress bar would print nothing."""
    if not err.is_terminal:
        err.print(line, soft_wrap=True)


def progress_bar(*extra: TextColumn) -> Progress:
    """Return a progress bar on stderr."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        *extra,
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=err,
        disable=not err.is_terminal,  # else it would leave an empty line in a log
    )


@contextmanager
def working() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function that shows a bar for each name: the name of the work, how much is done, how much there is."""
    with progress_bar() as progress:
        bars: dict[str, int] = {}

        def show(name: str, done: int, total: int) -> None:
            if name not in bars:
                bars[name] = progress.add_task(name)
            progress.update(bars[name], completed=done, total=total)  # type: ignore[arg-type]

        yield show


def size(of: float) -> str:
    """Return a number of bytes as text; 1 kB is 1,000 bytes."""
    return decimal(int(of))


def is_wanted(question: str, *, yes: bool) -> bool:
    """Return True if the user agrees, or has agreed by `yes`. Without a terminal, print how to, and return False."""
    if yes:
        return True
    if sys.stdin.isatty() and err.is_terminal:
        return typer.confirm(question, default=False, err=True)
    out.print("Nothing was changed. To do it, add --yes.")
    return False


def weighted(option: str, written: str) -> tuple[str, float | None]:
    """Split NAME=WEIGHT into name and weight; the weight is None if it is left out. Raise LogsUIError."""
    name, equals, weight = written.partition("=")
    try:
        return name, float(weight) if equals else None
    except ValueError:
        raise LogsUIError(f"{option} {written}: {weight!r} is not a weight. Write it as {name}=0.5.") from None


@contextmanager
def interruptible(sentence: str) -> Iterator[None]:
    """Print what Ctrl-C leaves behind."""
    try:
        yield
    except KeyboardInterrupt:
        err.print(sentence, soft_wrap=True, markup=False)
        raise


def facts(lines: list[tuple[str, str]]) -> None:
    """Print one line for each fact, in two columns."""
    width = max((len(name) for name, _ in lines), default=0)
    for name, text in lines:
        say_plainly(f"{name:<{width}}  {text}".rstrip())
