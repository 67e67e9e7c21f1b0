"""Implements `logs-ui eval`, which runs an `@evaluation` against a model's server."""

import math
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import TextColumn
from rich.table import Table
from rich.text import Text

from logs_ui.app.commands.terminal import (
    SERVED,
    Database,
    figure,
    out,
    progress_bar,
    say,
    say_without_terminal,
    table_of,
    wide,
)
from logs_ui.app.web.urls import rollouts
from logs_ui.recorder.errors import LogsUIError
from logs_ui.recorder.snapshot import visible
from logs_ui.recorder.storage.address import absolute, database_address, db_option

if TYPE_CHECKING:
    from logs_ui.rollout.evaluations.evaluations import Evaluation
    from logs_ui.rollout.evaluations.report import Figures, Report, Sample


def evaluate(
    evaluation: Annotated[
        str,
        typer.Argument(metavar="MODULE:NAME", help="The evaluation; NAME may be left out if the module has only one."),
    ],
    base_url: Annotated[str, typer.Option(metavar="URL", help="URL of the model's server, up to /v1.")],
    model: Annotated[str, typer.Option(metavar="NAME", help="Name of the model on the server.")],
    samples: Annotated[int, typer.Option(metavar="N", min=1, help="Rollouts per prompt.")] = 1,
    concurrency: Annotated[int, typer.Option(metavar="N", min=1, help="Rollouts that run at the same time.")] = 16,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Use only the first N prompts.")] = None,
    temperature: Annotated[float | None, typer.Option(metavar="X", min=0, help="Default: the evaluation's.")] = None,
    max_tokens: Annotated[int | None, typer.Option(metavar="N", min=1, help="Token limit of an answer.")] = None,
    min_score: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Exit with 1 if the mean score is lower, or more rollouts failed than --max-errors allows.",
        ),
    ] = None,
    max_errors: Annotated[int, typer.Option(metavar="N", min=0, help="Failed rollouts that --min-score allows.")] = 0,
    db: Database = None,
) -> None:
    """Evaluate a model on any server with OpenAI's API, with an @evaluation; every rollout is recorded.

    OPENAI_API_KEY is used if it is set. Exits with 0 on success, with 1 if --min-score is missed, and with 2 if there
    was nothing to evaluate or the evaluation could not run.
    """
    sys.path.insert(0, "")  # as `python -m` would
    sampling = {"temperature": temperature, "max_tokens": max_tokens}
    settings = {"model": model, "model_url": base_url, "samples": samples, "concurrency": concurrency, "limit": limit}
    settings["sampling"] = {name: value for name, value in sampling.items() if value is not None}
    report = _report(evaluation, {**settings, "db": db})
    wide().print(_table(report))
    serve = escape(f"logs-ui serve{db_option(absolute(database_address(db)))}")
    out.print(f"Browse it with: [bold]{serve}[/]", soft_wrap=True)
    out.print(f"Its page: {SERVED}{escape(rollouts(report.run))}", soft_wrap=True)
    code, reason = _verdict(report, min_score, max_errors)
    if reason is not None:
        say(visible(reason), code)
    raise typer.Exit(code)


def _verdict(report: "Report", min_score: float | None, max_errors: int) -> tuple[int, str | None]:
    """Return the exit code and the message for it; None without a message."""
    failed, all_rows = len(report.errors), len(report.samples)
    first = f"First error: {report.errors[0]}" if failed else ""
    if failed == all_rows:
        return 2, f"All rollouts failed. {first}"
    if failed and math.isnan(report.mean):
        return 2, f"{failed} of {all_rows} rollouts failed, and the others have no score. {first}"
    short = None if min_score is None else report.shortfall(min_score, max_errors=max_errors)
    if short is not None:
        return 1, short
    return 0, f"{failed} of {all_rows} rollouts failed. {first}" if failed else None


def _report(name: str, settings: dict[str, Any]) -> "Report":
    """Run the evaluation. Raise typer.Exit with code 2, after a line that says what is missing."""
    try:
        from logs_ui.rollout.environments.sessions import SessionError
        from logs_ui.rollout.evaluations.definitions import find_evaluation
        from logs_ui.rollout.models.backends import GenerationError
    except ImportError as error:
        raise typer.Exit(say(str(error), 2)) from error
    try:
        return _run(find_evaluation(name), settings)
    except (GenerationError, SessionError, LogsUIError, ImportError, ValueError) as error:
        raise typer.Exit(say(visible(error), 2)) from error


def _run(evaluation: "Evaluation", settings: dict[str, Any]) -> "Report":
    """Run the evaluation with a progress bar, or with a line now and then if there is no terminal."""
    rewards: list[float] = []
    done = 0
    with progress_bar(TextColumn("reward {task.fields[reward]}")) as progress:
        bar = progress.add_task(escape(evaluation.name), total=None, reward="...")

        def show(sample: "Sample", total: int) -> None:
            nonlocal done
            done += 1
            if sample.reward is not None:
                rewards.append(sample.reward)
            mean = f"{sum(rewards) / len(rewards):.2f}" if rewards else "..."
            progress.update(bar, completed=done, total=total, reward=mean)
            if done % max(1, total // 10) == 0:
                say_without_terminal(f"rollout {done} of {total}, reward {mean}")

        return evaluation.run(**settings, progress=show)


def _table(report: "Report") -> Table:
    ks = sorted({1, report.per_prompt})
    parts = list(report.scores) if len(report.scores) > 1 else []
    heads = ("rollouts", "reward", "±", *(f"pass@{k}" for k in ks), *map(visible, parts), "failed")
    table = table_of(visible(report.name), heads)

    def add(name: str, figures: "Figures") -> None:
        numbers = [figures.mean, figures.stderr, *map(figures.pass_at, ks)]
        numbers += [figures.scores.get(part, float("nan")) for part in parts]
        cells = ("" if math.isnan(number) else figure(number) for number in numbers)
        table.add_row(Text(name), str(len(figures.samples)), *cells, str(len(figures.errors) or ""))

    for task, figures in report.tasks.items():
        add(visible(task), figures)
    table.add_section()
    add("all", report)
    return table
