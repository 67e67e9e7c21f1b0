"""`logs-ui db ingest`: stores recordings that wait on disk in the database."""

import threading
from typing import Annotated

import typer

from logs_ui.app.commands.terminal import Database, out
from logs_ui.app.parts.figures import plural
from logs_ui.recorder.storage.address import Address, database_address, shown
from logs_ui.recorder.storage.spool.spool_ingest import Ingester, TakenIn

_PAUSE = 1.0  # seconds between two looks


def ingest(
    db: Database = None,
    watch: Annotated[bool, typer.Option("--watch", help="Keep ingesting until Ctrl-C.")] = False,  # noqa: FBT002 - a flag
) -> None:
    """Store recordings that wait on disk in the database: made on a network file system, or while the database was
    away. The dashboard and load_run() do the same.
    """
    address = database_address(db)
    ingester = Ingester(address)
    taken = ingester.take_in()
    if taken.is_all and not taken.entries:
        out.print(f"Nothing waits for {shown(address)} in {ingester.folder}.", soft_wrap=True, markup=False)
    else:
        _say(address, taken)
    if watch:
        stop = threading.Event()
        while not stop.wait(_PAUSE):
            taken = ingester.take_in()
            if taken.entries:
                _say(address, taken)


def _say(address: Address, taken: TakenIn) -> None:
    said = f"{plural(taken.rollouts, 'change')} of rollouts stored in {shown(address)}"
    if taken.refused:
        said += f"; the database refused {taken.refused:,}"
    out.print(said + ("." if taken.is_all else "; another process is storing the rest."), soft_wrap=True, markup=False)
