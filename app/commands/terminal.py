"""What the commands share: where they write, how they show progress, and what names the database and the run."""

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

Database = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="PATH|URL",
        help="A file, or postgresql://user@host/database. Default: LOGS_UI_DB, else the file that record() writes.",
    ),
]

RunName = Annotated[str, typer.Argument(metavar="RUN", help="An id, the beginning of one, a name, or latest.")]


def say(message: str, code: int) -> int:
    """Tells on stderr what went wrong; gives the code to exit with."""
    err.print(f"[bold red]logs-ui:[/] {escape(message)}", soft_wrap=True)
    return code


def say_without_terminal(line: str) -> None:
    """Where a progress bar would leave nothing, or a mess."""
    if not err.is_terminal:
        err.print(line, soft_wrap=True)


def progress_bar(*extra: TextColumn) -> Progress:
    """On stderr."""
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
