"""Implements `logs-ui prune`, which deletes the text of old rollouts and keeps their figures."""

from typing import Annotated

import typer

from logs_ui.app.commands import terminal
from logs_ui.app.parts.figures import plural
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.storage.address import database_address, db_option
from logs_ui.recorder.upkeep.prune import Keep, Pruned, Unit
from logs_ui.recorder.upkeep.prune import prune as pruned

_SHOWN = 20  # runs
_STOPPED = "Stopped. Rollouts pruned so far stay pruned; run the same command again for the rest."


def prune(
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than", metavar="AGE", help="Only rollouts older than 30d (or any age), or from before a date."
        ),
    ] = None,
    keep_every: Annotated[
        int | None, typer.Option("--keep-every", metavar="N", help="Keep steps 0, N, 2N, ... complete, as a sample.")
    ] = None,
    of: Annotated[Unit, typer.Option("--of", metavar="steps|rollouts", help="Unit of --keep-every.")] = Unit.STEPS,
    where: Annotated[
        str | None,
        typer.Option(
            "--where", metavar="FILTER", help="Only rollouts that match, such as 'reward>=1': docs/filters.md."
        ),
    ] = None,
    run: terminal.RunNames = None,
    keep: Annotated[
        Keep,
        typer.Option("--keep", metavar="starred|nothing", help="starred keeps what people starred, tagged or noted."),
    ] = Keep.STARRED,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,  # noqa: FBT002 - a flag
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,  # noqa: FBT002 - a flag
    db: terminal.Database = None,
) -> None:
    """Delete messages, actions and tokens of the rollouts that match all given options. Their figures stay, and so
    does every curve and count. Shows first what would be deleted, and asks. It can be restored only from a backup of
    the database. A training may record at the same time.
    """
    if older_than is None and keep_every is None and where is None and not run:
        raise LogsUIError(
            "Choose what to prune: --older-than, --keep-every, --where or --run. Rollouts must match all."
        )

    def take(*, dry_run: bool) -> Pruned:
        with terminal.working() as progress:
            return pruned(
                db,
                run=run or (),
                older_than=older_than,
                keep_every=keep_every,
                of=of,
                where=where,
                keep=keep,
                dry_run=dry_run,
                progress=progress,
            )

    preview = take(dry_run=True)
    _show(preview)
    if not preview.rollouts or dry_run:
        return
    if terminal.is_wanted(f"Delete the text of {plural(preview.rollouts, 'rollout')}?", yes=yes):
        with terminal.interruptible(_STOPPED):
            _say(take(dry_run=False), db_option(database_address(db)))


def _show(preview: Pruned) -> None:
    if not preview.rollouts:
        terminal.out.print("There is nothing to prune.")
    else:
        total = f"{plural(preview.rollouts, 'rollout')}, {terminal.size(preview.bytes)} of text and tokens"
        lines = [(uid, plural(count, "rollout")) for uid, count in list(preview.runs.items())[:_SHOWN]]
        more = len(preview.runs) - len(lines)
        terminal.facts([*lines, *([(f"and {more:,} more runs", "")] if more else []), ("in all", total)])
    if preview.kept:
        terminal.out.print(
            f"{plural(preview.kept, 'further rollout')} match but are kept: people starred, tagged or noted them, or "
            "starred their run. --keep nothing prunes them, too.",
            soft_wrap=True,
        )


def _say(gone: Pruned, db: str) -> None:
    freed = [f"{terminal.size(gone.bytes)} of text and tokens"]
    freed += [f"{terminal.size(gone.prompt_bytes)} of shared prompts"] if gone.prompt_bytes else []
    freed += [f"{plural(gone.images, 'image')} of {terminal.size(gone.image_bytes)}"] if gone.images else []
    terminal.say_plainly(
        f"Pruned {plural(gone.rollouts, 'rollout')}: {', and '.join(freed)}.\n"
        f"New rollouts reuse the space. To return it to the disk: logs-ui db vacuum{db}"
    )
