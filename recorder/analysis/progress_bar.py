"""A progress bar for what may take long, in a terminal or a notebook."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

_SECONDS = 1.0  # before which a bar would only flicker


@contextmanager
def waiting(what: str) -> Iterator[Callable[[int, int], None]]:
    """Gives a function that is told how much is done, and of how much. From the first second on it shows a bar on
    stderr.
    """
    from rich.console import Console
    from rich.progress import Progress

    began = time.monotonic()
    with ExitStack() as stack:
        bars: list[Progress] = []

        def show(done: int, total: int) -> None:
            if not bars and time.monotonic() - began < _SECONDS:
                return
            if not bars:
                bars.append(stack.enter_context(Progress(console=Console(stderr=True), transient=True)))
                bars[0].add_task(what)
            bars[0].update(bars[0].task_ids[0], completed=done, total=total)

        yield show
