"""`logs-ui prune`: takes the text of old rollouts, and leaves their figures."""

from typing import Annotated

import typer

from logs_ui.app.commands.terminal import Database, out
from logs_ui.app.commands.upkeep_prompts import facts, interruptible, is_wanted, size, working
from logs_ui.app.parts.figures import plural
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.storage.address import database_address, db_option
from logs_ui.recorder.upkeep.prune import Keep, Pruned, Unit
from logs_ui.recorder.upkeep.prune import prune as pruned

_SHOWN = 20  # runs
_STOPPED = "Stopped. What was pruned until then stays so; the same command goes on with the rest."


def prune(
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="AGE", help="Began before so long, as 30d, or before a date.")
    ] = None,
    keep_every: Annotated[
        int | None, typer.Option("--keep-every", metavar="N", help="Keep steps 0, N, 2N, ... whole, as a sample.")
    ] = None,
    of: Annotated[Unit, typer.Option("--of", metavar="steps|rollouts", help="What --keep-every counts.")] = Unit.STEPS,
    where: Annotated[
        str | None, typer.Option("--where", metavar="FILTER", help="Only these, as 'reward>=1': docs/filters.md.")
    ] = None,
    run: Annotated[
        list[str] | None, typer.Option("--run", metavar="RUN", help="Only of this one; may be repeated.")
    ] = None,
    keep: Annotated[
        Keep, typer.Option("--keep", metavar="starred|nothing", help="What people starred, tagged or noted stays.")
    ] = Keep.STARRED,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,  # noqa: FBT002 - a flag
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,  # noqa: FBT002 - a flag
    db: Database = None,
) -> None:
    """Take messages, actions and tokens of the rollouts that satisfy all that is given. Their figures stay, and with
    them every curve and count. Says first what would go, and asks. Nothing but a copy brings it back. A training may
    record meanwhile.
    """
    if older_than is None and keep_every is None and where is None and not run:
        raise LogsUIError("Say what to prune: --older-than, --keep-every, --where or --run; all of them must hold.")

    def take(*, dry_run: bool) -> Pruned:
        with working() as progress:
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

    found = take(dry_run=True)
    _show(found)
    if not found.rollouts or dry_run:
        return
    if is_wanted(f"Take the text of {plural(found.rollouts, 'rollout')}?", yes=yes):
        with interruptible(_STOPPED):
            _say(take(dry_run=False), db_option(database_address(db)))


def _show(found: Pruned) -> None:
    """What would go."""
    if not found.rollouts:
        out.print("There is nothing to prune.")
    else:
        total = f"{plural(found.rollouts, 'rollout')}, {size(found.bytes)} of text and tokens"
        lines = [(uid, plural(count, "rollout")) for uid, count in list(found.runs.items())[:_SHOWN]]
        more = len(found.runs) - len(lines)
        facts([*lines, *([(f"and {more:,} more runs", "")] if more else []), ("in all", total)])
    if found.kept:
        out.print(
            f"{plural(found.kept, 'further rollout')} would go, and stay: people starred, tagged or noted them, or "
            "starred their run. --keep nothing takes them, too.",
            soft_wrap=True,
        )


def _say(gone: Pruned, db: str) -> None:
    taken = [f"{size(gone.bytes)} of text and tokens"]
    taken += [f"{size(gone.prompt_bytes)} of prompts that they shared"] if gone.prompt_bytes else []
    taken += [f"{plural(gone.images, 'image')} of {size(gone.image_bytes)}"] if gone.images else []
    out.print(
        f"Pruned {plural(gone.rollouts, 'rollout')}: {', and '.join(taken)}.\n"
        f"New rollouts fill the room. To give it back to the disk: logs-ui db vacuum{db}",
        soft_wrap=True,
        markup=False,
    )
