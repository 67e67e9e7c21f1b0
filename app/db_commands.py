"""`logs-ui db`: a look at a database, and what it needs now and then."""

from typing import Annotated

import typer

from logs_ui.app.figures import plural
from logs_ui.app.ingest import ingest
from logs_ui.app.terminal import Database, out
from logs_ui.app.upkeep import interruptible, is_wanted, size, working

db = typer.Typer(help="Look at a database, check it, give its room back, merge others into it, or bring it up to date.")

db.command(short_help="Take in what waits on disk for the database.")(ingest)

_STOPPED = "Stopped. What is gone stays gone; the same command goes on with the rest."


@db.command(short_help="Delete a run with all that belongs to it.")
def delete(
    run: Annotated[str, typer.Argument(metavar="RUN", help="An id, the beginning of one, or a name.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,  # noqa: FBT002 - a flag
    db: Database = None,
) -> None:
    """Delete a run: rollouts, figures, sources, stars, tags and notes, and the images that only it has. Says first what
    would go, and asks. Nothing but a copy brings it back. To keep its figures, prune it.
    """
    from logs_ui.recorder.upkeep.delete import delete_run

    found = delete_run(run, db, dry_run=True)
    out.print(
        f"Run {found.run}: {plural(found.rollouts, 'rollout')}, {size(found.bytes)} of text and tokens"
        + (f"; people starred, tagged or noted {found.said:,} of them." if found.said else "."),
        soft_wrap=True,
        markup=False,
    )
    if is_wanted(f"Delete it, and all that it measured? To keep its figures: logs-ui prune --run {found.run}", yes=yes):
        with interruptible(_STOPPED), working() as progress:
            delete_run(found.run, db, progress=progress)
        out.print(f"Run {found.run} is deleted.", soft_wrap=True, markup=False)
