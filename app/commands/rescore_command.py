"""Implements `logs-ui rescore`, which applies another reward function to a run and prints what it would change."""

import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from logs_ui.app.commands import terminal
from logs_ui.app.parts import safe_text
from logs_ui.app.web import urls
from logs_ui.recorder.errors import LogsUIError

if TYPE_CHECKING:
    from logs_ui.recorder.analysis.rescore.rescore_comparison import Comparison
    from logs_ui.recorder.analysis.rescore.reward_inputs import PromptForm

_SHOWN = 5  # groups, and failures
_NOTHING = "No rollout was scored: the reward functions returned None or NaN, or raised."


def rescore(
    run: terminal.RunName,
    reward: Annotated[
        list[str],
        typer.Option(
            "--reward", metavar="MODULE:NAME[=WEIGHT]", help="Reward function with TRL's signature; several are summed."
        ),
    ],
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="NAME[=WEIGHT]", help="Recorded reward function that still counts."),
    ] = None,
    where: Annotated[
        str,
        typer.Option(
            "--where",
            metavar="FILTER",
            help="Only rollouts that match, such as 'mode:train step>=100': docs/filters.md.",
        ),
    ] = "",
    prompts: Annotated[
        str | None,
        typer.Option(
            "--prompts",
            metavar="messages|text",
            help="Form of the dataset's prompts. Default: inferred from their tokens.",
        ),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Rollouts per call, in whole groups.")] = 1,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write all rewards to a .csv, .parquet or .jsonl file."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,  # noqa: FBT002 - a flag
    db: terminal.Database = None,
) -> None:
    """Run another reward function over the rollouts of a run and show what it would change. The recording is not
    changed. Modules are imported from the current folder first.
    """
    from logs_ui.recorder.analysis.export.export_files import FORMATS, write_table
    from logs_ui.recorder.analysis.rescore.rescore import PRUNED, RESCORED_COLUMNS
    from logs_ui.recorder.analysis.rescore.rescore import rescore as rescored
    from logs_ui.recorder.analysis.rescore.rescore_comparison import compare

    ending = "" if output is None else output.suffix.lstrip(".").lower()
    if output is not None and ending not in FORMATS:
        raise LogsUIError(f"The suffix of {output} names no format: use .csv, .parquet or .jsonl.")
    sys.path.insert(0, "")  # as `python -m` would
    functions = [terminal.weighted("--reward", it) for it in reward]
    kept = dict(terminal.weighted("--keep", it) for it in keep or ())
    with terminal.working() as show:
        frame = rescored(
            run,
            [name for name, _ in functions],
            db,
            where=where,
            weights=[1.0 if weight is None else weight for _, weight in functions],
            keep=kept,
            prompts=_form(prompts),
            batch=batch,
            progress=partial(show, "rollouts"),
        )
    if output is not None:
        rows: Any = frame.astype(object).where(frame.notna(), None).to_dict("records")
        write_table(ending, output, RESCORED_COLUMNS, rows)
    uid = str(frame["run"].iloc[0]) if len(frame) else run
    found = compare(frame)
    if found.new is None and len(frame) and set(frame["failed"]) == {PRUNED}:
        raise LogsUIError(f"All {len(frame):,} rollouts were pruned, so there are no messages to score.")
    if found.new is None:
        raise LogsUIError(
            _NOTHING if len(frame) else f"No rollout of {run} matches {where!r}: there is nothing to score."
        )
    if as_json:
        terminal.say_plainly(_json(uid, [name for name, _ in functions], found))
        return
    _show(uid, found)
    if output is not None:
        terminal.say_without_terminal(f"{len(frame):,} rollouts in {output}")


def _form(written: str | None) -> "PromptForm | None":
    """Checks the form of the prompts that the user named. Raises LogsUIError."""
    forms: dict[str | None, PromptForm | None] = {None: None, "messages": "messages", "text": "text"}
    if written in forms:
        return forms[written]
    raise LogsUIError(f"--prompts {written!r}: must be messages or text.")


def _json(run: str, functions: list[str], found: "Comparison") -> str:
    largest = [{**asdict(it), "change": it.change} for it in found.largest]
    failures = [{"failed": said, "rollouts": count, "first": first} for said, count, first in found.failures]
    said = {"run": run, "reward": functions, **asdict(found), "largest": largest, "failures": failures}
    return orjson.dumps(said, option=orjson.OPT_INDENT_2).decode()


def _show(run: str, found: "Comparison") -> None:
    screen = terminal.wide()
    figures = Table(box=None, show_header=False, pad_edge=False)
    for name, value in _lines(found):
        figures.add_row(Text(name), Text(value))
    screen.print(figures)
    if len(found.tasks) > 1:
        screen.print(_by_task(found))
    if found.largest:
        screen.print(_largest(run, found))
    for title, firsts in (("dead before, mixed after", found.woken), ("mixed before, dead after", found.dulled)):
        for first in firsts[:_SHOWN]:
            terminal.out.print(f"{title}: {terminal.SERVED}{escape(urls.group(run, first))}", soft_wrap=True)
        if len(firsts) > _SHOWN:
            terminal.out.print(f"  and {len(firsts) - _SHOWN:,} more")
    for said, count, first in found.failures[:_SHOWN]:
        line = f"{count:,} failed, first rollout {first}: {safe_text.label(said, 300)}"
        terminal.out.print(f"[bold red]{escape(line)}[/]", soft_wrap=True)


def _lines(found: "Comparison") -> list[tuple[str, str]]:
    compared = found.compared
    change = "" if found.old is None or found.new is None else f" ({found.new - found.old:+.3f})"
    means = f"{terminal.figure(found.old)} -> {terminal.figure(found.new)}{change}"
    groups = {
        "mixed with both": found.teach,
        "dead with both": found.dead,
        "dead before, mixed after": len(found.woken),
        "mixed before, dead after": len(found.dulled),
    }
    lines = [
        ("mean reward", f"{means} over {_of(compared, found.rollouts, 'rollouts')}"),
        ("different reward", _of(found.changed, compared, "rollouts")),
        ("crossed their group's mean", _of(found.turned, compared, "rollouts")),
        ("groups", "; ".join(f"{count:,} {what}" for what, count in groups.items())),
        ("different best rollout", _of(found.best_changed, found.teach, "groups mixed with both")),
        ("pairs in the same order", _of(found.pairs_alike, found.pairs, "pairs that differ with both")),
    ]
    if compared < found.rollouts:
        failed = f"; a function failed for {found.failed:,}" if found.failed else ""
        lines.append(("not compared", f"{found.lost:,} lose their reward, {found.gained:,} gain one{failed}"))
    return lines


def _of(part: int, whole: int, what: str) -> str:
    share = f" ({part / whole:.1%})" if whole else ""
    return f"{part:,} of {whole:,} {what}{share}"


def _by_task(found: "Comparison") -> Table:
    table = terminal.table_of("task", ("rollouts", "old", "new", "change", "changed"))
    for it in found.tasks[:20]:
        change = "" if it.old is None or it.new is None else f"{it.new - it.old:+.3f}"
        name = "none" if it.task is None else safe_text.label(it.task, 120)
        table.add_row(
            Text(name), f"{it.rollouts:,}", terminal.figure(it.old), terminal.figure(it.new), change, f"{it.changed:,}"
        )
    if len(found.tasks) > 20:
        table.add_row(Text(f"and {len(found.tasks) - 20:,} more"))
    return table


def _largest(run: str, found: "Comparison") -> Table:
    table = terminal.table_of("largest changes", ("step", "old", "new", "change"))
    for it in found.largest:
        address = Text(f"{terminal.SERVED}{urls.rollout(run, it.id)}", overflow="fold")
        table.add_row(address, f"{it.step:,}", terminal.figure(it.old), terminal.figure(it.new), f"{it.change:+.3f}")
    return table
