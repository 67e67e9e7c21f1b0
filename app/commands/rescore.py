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
    from logs_ui.recorder.analysis.rescore.comparison import Comparison
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
    from logs_ui.recorder.analysis.export.files import FORMATS, write_table
    from logs_ui.recorder.analysis.rescore.comparison import compare
    from logs_ui.recorder.analysis.rescore.rescore import PRUNED, RESCORED_COLUMNS
    from logs_ui.recorder.analysis.rescore.rescore import rescore as rescored

    ending = "" if output is None else output.suffix.lstrip(".").lower()
    if output is not None and ending not in FORMATS:
        raise LogsUIError(f"The suffix of {output} names no format: use .csv, .parquet or .jsonl.")
    sys.path.insert(0, "")  # as `python -m` would
    functions = [terminal.weighted("--reward", text) for text in reward]
    kept_weights = dict(terminal.weighted("--keep", text) for text in keep or ())
    with terminal.working() as show_progress:
        frame = rescored(
            run,
            [name for name, _ in functions],
            db,
            where=where,
            weights=[1.0 if weight is None else weight for _, weight in functions],
            keep=kept_weights,
            prompts=_form(prompts),
            batch=batch,
            progress=partial(show_progress, "rollouts"),
        )
    if output is not None:
        rows: Any = frame.astype(object).where(frame.notna(), None).to_dict("records")
        write_table(ending, output, RESCORED_COLUMNS, rows)
    run_uid = str(frame["run"].iloc[0]) if len(frame) else run
    comparison = compare(frame)
    if comparison.new is None and len(frame) and set(frame["failed"]) == {PRUNED}:
        raise LogsUIError(f"All {len(frame):,} rollouts were pruned, so there are no messages to score.")
    if comparison.new is None:
        raise LogsUIError(
            _NOTHING if len(frame) else f"No rollout of {run} matches {where!r}: there is nothing to score."
        )
    if as_json:
        terminal.say_plainly(_json(run_uid, [name for name, _ in functions], comparison))
        return
    _show(run_uid, comparison)
    if output is not None:
        terminal.say_without_terminal(f"{len(frame):,} rollouts in {output}")


def _form(written: str | None) -> "PromptForm | None":
    """Check the form of the prompts that the user named. Raise LogsUIError."""
    forms: dict[str | None, PromptForm | None] = {None: None, "messages": "messages", "text": "text"}
    if written in forms:
        return forms[written]
    raise LogsUIError(f"--prompts {written!r}: must be messages or text.")


def _json(run_uid: str, functions: list[str], comparison: "Comparison") -> str:
    largest = [{**asdict(change), "change": change.change} for change in comparison.largest]
    failures = [{"failed": reason, "rollouts": count, "first": first} for reason, count, first in comparison.failures]
    fields = {"run": run_uid, "reward": functions, **asdict(comparison), "largest": largest, "failures": failures}
    return orjson.dumps(fields, option=orjson.OPT_INDENT_2).decode()


def _show(run_uid: str, comparison: "Comparison") -> None:
    screen = terminal.wide()
    figures = Table(box=None, show_header=False, pad_edge=False)
    for name, value in _lines(comparison):
        figures.add_row(Text(name), Text(value))
    screen.print(figures)
    if len(comparison.tasks) > 1:
        screen.print(_by_task(comparison))
    if comparison.largest:
        screen.print(_largest_table(run_uid, comparison))
    for title, firsts in (
        ("dead before, mixed after", comparison.woken),
        ("mixed before, dead after", comparison.dulled),
    ):
        for first in firsts[:_SHOWN]:
            terminal.out.print(f"{title}: {terminal.SERVED}{escape(urls.group(run_uid, first))}", soft_wrap=True)
        if len(firsts) > _SHOWN:
            terminal.out.print(f"  and {len(firsts) - _SHOWN:,} more")
    for reason, count, first in comparison.failures[:_SHOWN]:
        line = f"{count:,} failed, first rollout {first}: {safe_text.label(reason, 300)}"
        terminal.out.print(f"[bold red]{escape(line)}[/]", soft_wrap=True)


def _lines(comparison: "Comparison") -> list[tuple[str, str]]:
    compared = comparison.compared
    change = "" if comparison.old is None or comparison.new is None else f" ({comparison.new - comparison.old:+.3f})"
    means = f"{terminal.figure(comparison.old)} -> {terminal.figure(comparison.new)}{change}"
    groups = {
        "mixed with both": comparison.teach,
        "dead with both": comparison.dead,
        "dead before, mixed after": len(comparison.woken),
        "mixed before, dead after": len(comparison.dulled),
    }
    lines = [
        ("mean reward", f"{means} over {_of(compared, comparison.rollouts, 'rollouts')}"),
        ("different reward", _of(comparison.changed, compared, "rollouts")),
        ("crossed their group's mean", _of(comparison.turned, compared, "rollouts")),
        ("groups", "; ".join(f"{count:,} {kind}" for kind, count in groups.items())),
        ("different best rollout", _of(comparison.best_changed, comparison.teach, "groups mixed with both")),
        ("pairs in the same order", _of(comparison.pairs_alike, comparison.pairs, "pairs that differ with both")),
    ]
    if compared < comparison.rollouts:
        failed = f"; a function failed for {comparison.failed:,}" if comparison.failed else ""
        lines.append(("not compared", f"{comparison.lost:,} lose their reward, {comparison.gained:,} gain one{failed}"))
    return lines


def _of(part: int, whole: int, unit: str) -> str:
    share = f" ({part / whole:.1%})" if whole else ""
    return f"{part:,} of {whole:,} {unit}{share}"


def _by_task(comparison: "Comparison") -> Table:
    table = terminal.table_of("task", ("rollouts", "old", "new", "change", "changed"))
    for row in comparison.tasks[:20]:
        change = "" if row.old is None or row.new is None else f"{row.new - row.old:+.3f}"
        name = "none" if row.task is None else safe_text.label(row.task, 120)
        table.add_row(
            Text(name),
            f"{row.rollouts:,}",
            terminal.figure(row.old),
            terminal.figure(row.new),
            change,
            f"{row.changed:,}",
        )
    if len(comparison.tasks) > 20:
        table.add_row(Text(f"and {len(comparison.tasks) - 20:,} more"))
    return table


def _largest_table(run_uid: str, comparison: "Comparison") -> Table:
    table = terminal.table_of("largest changes", ("step", "old", "new", "change"))
    for row in comparison.largest:
        address = Text(f"{terminal.SERVED}{urls.rollout(run_uid, row.id)}", overflow="fold")
        table.add_row(
            address, f"{row.step:,}", terminal.figure(row.old), terminal.figure(row.new), f"{row.change:+.3f}"
        )
    return table
