"""Shared parts of the commands that maintain a database: progress, sizes, and questions before anything is deleted."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.filesize import decimal

from logs_ui.app.commands.terminal import err, out, progress_bar


@contextmanager
def working() -> Iterator[Callable[[str, int, int], None]]:
    """Yields a function that shows progress: the name of the work, how much is done, how much there is. Each name has a
    bar.
    """
    with progress_bar() as progress:
        bars: dict[str, int] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in bars:
                bars[what] = progress.add_task(what)
            progress.update(bars[what], completed=done, total=total)  # type: ignore[arg-type]

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


@contextmanager
def interruptible(said: str) -> Iterator[None]:
    """Prints what Ctrl-C leaves behind."""
    try:
        yield
    except KeyboardInterrupt:
        err.print(said, soft_wrap=True, markup=False)
        raise


def facts(lines: list[tuple[str, str]]) -> None:
    """Prints one line for each fact, in two columns."""
    width = max((len(what) for what, _ in lines), default=0)
    for what, said in lines:
        out.print(f"{what:<{width}}  {said}".rstrip(), soft_wrap=True, markup=False)
