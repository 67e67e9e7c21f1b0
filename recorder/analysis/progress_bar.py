"""Shows a progress bar for work that may take long, in a terminal or a notebook."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

_SECONDS = 1.0  # before a bar appears: shorter work would only flicker


@contextmanager
def waiting(title: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that takes (done, total). After the first second it shows a bar on stderr."""
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
                bars[0].add_task(title)
            bars[0].update(bars[0].task_ids[0], completed=done, total=total)

        yield show
