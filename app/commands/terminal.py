"""The consoles, the progress bar and the options that several commands share."""

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

RunName = Annotated[str, typer.Argument(metavar="RUN", help="Run id, the beginning of one, a name, or latest.")]


def say(message: str, code: int) -> int:
    """Prints an error on stderr and returns the code to exit with."""
    err.print(f"[bold red]logs-ui:[/] {escape(message)}", soft_wrap=True)
    return code


def say_without_terminal(line: str) -> None:
    """Prints a line on stderr if there is no terminal, where a progress bar would print nothing."""
    if not err.is_terminal:
        err.print(line, soft_wrap=True)


def progress_bar(*extra: TextColumn) -> Progress:
    """Returns a progress bar on stderr."""
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
