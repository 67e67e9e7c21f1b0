"""What the commands that look after a database share: progress, sizes, and being asked before anything goes."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.filesize import decimal

from logs_ui.app.commands.terminal import err, out, progress_bar


@contextmanager
def working() -> Iterator[Callable[[str, int, int], None]]:
    """Gives a function that is told what is being done, how much of it is, and of how much: a bar for each."""
    with progress_bar() as progress:
        bars: dict[str, int] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in bars:
                bars[what] = progress.add_task(what)
            progress.update(bars[what], completed=done, total=total)  # type: ignore[arg-type]

        yield show


def size(of: float) -> str:
    """Of bytes, as disks are sold: 1 kB is 1,000 of them."""
    return decimal(int(of))


def is_wanted(question: str, *, yes: bool) -> bool:
    """Asks, unless it was said beforehand. Where nobody can be asked, nothing is wanted, and a line says how to."""
    if yes:
        return True
    if sys.stdin.isatty() and err.is_terminal:
        return typer.confirm(question, default=False, err=True)
    out.print("Nothing was changed. To do it, add --yes.")
    return False


@contextmanager
def interruptible(said: str) -> Iterator[None]:
    """Says what Ctrl-C leaves behind."""
    try:
        yield
    except KeyboardInterrupt:
        err.print(said, soft_wrap=True, markup=False)
        raise


def facts(lines: list[tuple[str, str]]) -> None:
    """A line a fact, in two columns."""
    width = max((len(what) for what, _ in lines), default=0)
    for what, said in lines:
        out.print(f"{what:<{width}}  {said}".rstrip(), soft_wrap=True, markup=False)
