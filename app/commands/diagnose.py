"""Implements `logs-ui diagnose`, which prints why the rewards of a run are low, for people or as JSON."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.padding import Padding
from rich.text import Text

from logs_ui.app.commands.terminal import SERVED, Database, RunName, err, out, say
from logs_ui.app.web.urls import matching, why
from logs_ui.recorder import queries
from logs_ui.recorder.analysis.diagnose import Diagnosis, muted_of, of_all, recorded_settings, settings_of
from logs_ui.recorder.analysis.opened_runs import opened
from logs_ui.recorder.analysis.user_modules import imported
from logs_ui.recorder.diagnosis import Card, Diagnostic, Report, Settings
from logs_ui.recorder.diagnosis.report import Line, lines
from logs_ui.recorder.diagnosis.run_checks import all_limits
from logs_ui.recorder.errors import LogsUIError, SettingsError
from logs_ui.recorder.queries.notebook import Notebook
from logs_ui.recorder.settings import check_environments, check_thresholds, make_unknown_error
from logs_ui.recorder.snapshot import visible
from logs_ui.recorder.storage.address import Address, database_address, db_option

_FAILED, _ILL = 1, 3  # 2 is a command line that is misspelt


def diagnose(
    run: RunName,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,  # noqa: FBT002 - a flag
    max_reward: Annotated[
        list[str] | None,
        typer.Option(metavar="X", help="Reward of a perfect rollout. Default: each environment's 99th percentile."),
    ] = None,
    solved_at: Annotated[
        list[str] | None,
        typer.Option(metavar="X", help="Lowest reward that counts as solved. Default: see docs/diagnosis.md."),
    ] = None,
    solved_by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Reward function that --solved-at applies to. For one eval: web=success, as with the two above.",
        ),
    ] = None,
    reference: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Dataset column with the right answers. Default: found by its name."),
    ] = None,
    threshold: Annotated[
        list[str] | None, typer.Option(metavar="ID=VALUE", help="Threshold of one diagnostic; may be repeated.")
    ] = None,
    mute: Annotated[
        list[str] | None, typer.Option(metavar="ID=REASON", help="Do not count this finding; may be repeated.")
    ] = None,
    steps: Annotated[int | None, typer.Option(metavar="N", min=1, help="Diagnose the last N steps.")] = None,
    diagnostics: Annotated[
        list[str] | None, typer.Option(metavar="MODULE:NAME", help="Your own diagnostics; may be repeated.")
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(metavar="OTHER", help="Compare with this run; three healthy ones or more give a verdict."),
    ] = None,
    everything: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--all", help="Read every rollout of a large run: a million take minutes and 1.2 GB.")
    ] = False,
    save: Annotated[bool, typer.Option("--save", help="Store these settings with the run.")] = False,  # noqa: FBT002 - a flag
    reset: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--reset", help="Delete the settings stored with the run.")
    ] = False,
    for_project: Annotated[  # noqa: FBT002 - a flag
        bool,
        typer.Option(
            "--for-project", help="With --save or --reset: only the muted findings, for all runs of its project."
        ),
    ] = False,
    db: Database = None,
) -> None:
    """Diagnose why the rewards of a run are low: findings, causes first, with evidence and rollouts.

    Exits with 3 if the verdict is a fault, a failure, or getting worse; else with 1 if a diagnostic raised or the run
    could not be judged; else with 0.
    docs/diagnosis.md describes each diagnostic.
    """
    own_checks = _import_diagnostics(diagnostics or ())
    limits = all_limits(own_checks)
    written = {"max_reward": max_reward, "solved_at": solved_at, "solved_by": solved_by, "reference": reference}
    thresholds = Settings(thresholds=_thresholds(threshold or ()), muted=_reasons(mute or ()))
    check_thresholds(thresholds, limits)
    with opened(run, db) as (engine, recording):
        names = queries.known_values(engine, recording.id or 0, ("eval", "rewards"))
        values, environments = _settings(written, names["rewards"])
        values |= {} if steps is None else {"steps": steps}
        options = replace(thresholds, **values, environments=environments)
        check_environments(options, names["eval"])
        of_project = muted_of(engine, recording.project)
        before = recorded_settings(recording) if reset else settings_of(engine, recording)
        settings = replace(
            before,
            **values,
            thresholds={**before.thresholds, **options.thresholds},
            muted={**before.muted, **options.muted},
            environments={
                name: {**before.environments.get(name, {}), **options.environments.get(name, {})}
                for name in {**before.environments, **options.environments}
            },
        )
        report = (
            Diagnosis(engine, recording, whole=everything)
            .now(engine, recording, settings, own_checks, against or ())
            .report
        )
    if save or reset:
        notebook = Notebook(database_address(db))
        # What is muted for the whole project is stored there, and not once more with the run.
        muted = {name_muted: why for name_muted, why in settings.muted.items() if of_project.get(name_muted) != why}
        subject, settings_to_store = recording.uid, replace(settings, muted=muted)
        if for_project:
            if not recording.project:
                raise SettingsError("--for-project: this run has no project, see record(project=...).")
            subject, settings_to_store = of_all(recording.project), Settings(muted={**of_project, **options.muted})
        notebook.diagnosis(subject, settings_to_store if save else None)
        owner = "project" if for_project else "run"
        sentence = f"Stored with the {owner}, in {notebook.place}" if save else f"The {owner}'s settings are reset."
        err.print(sentence, soft_wrap=True, markup=False)
    if as_json:
        typer.echo(json.dumps(report.as_dict(), indent=2, allow_nan=False))
    else:
        _show(report, database_address(db))
    raise typer.Exit(_code(report))


def _code(report: Report) -> int:
    """Return the exit code. A diagnostic that failed must not look like a run without findings."""
    if report.failed:
        worst = report.failed[0]
        say(f"The diagnostic {visible(worst.id)} failed: {visible(worst.error)}", _FAILED)
    if report.verdict.is_ill:
        return _ILL
    return _FAILED if report.failed else 0


def _settings(
    written: Mapping[str, Sequence[str] | None], functions: Sequence[str]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Read settings that are written as VALUE, for the run, or as EVAL=VALUE; a reward function's name may have an
    equals sign, too. Raise SettingsError for a reward function that the run does not have.
    """
    of_run, of_evals = dict[str, Any](), dict[str, dict[str, Any]]()
    for name, values in written.items():
        for text in values or ():
            eval_name, equals, value = ("", "", text) if text in functions else text.partition("=")
            value = value if equals else text
            setting: Any = value.strip()
            if name not in {"solved_by", "reference"}:
                with suppress(ValueError):  # Settings refuses what is no number
                    setting = float(setting)
            if name == "solved_by" and functions and setting not in functions:
                raise make_unknown_error("There is no reward function", setting, functions)
            (of_evals.setdefault(eval_name.strip(), {}) if equals else of_run)[name] = setting
    return of_run, of_evals


def _reasons(written: Sequence[str]) -> dict[str, str]:
    """Read what is muted, written as ID=REASON. Raise SettingsError."""
    reasons = {name.strip(): reason.strip() for name, _, reason in (text.partition("=") for text in written)}
    if not all(reasons.values()):
        raise SettingsError('--mute needs a reason: write it as dead_groups="easy tasks, on purpose".')
    return reasons


def _thresholds(written: Sequence[str]) -> dict[str, float]:
    """Read thresholds that are written as ID=VALUE. Raise SettingsError."""
    thresholds = {}
    for text in written:
        name, equals, value = text.partition("=")
        try:
            thresholds[name.strip()] = float(value)
        except ValueError:
            problem = "not a number" if equals else "not a threshold"
            raise SettingsError(f"--threshold {text!r:.100} is {problem}: write it as truncation=0.1.") from None
    return thresholds


def _import_diagnostics(paths: Sequence[str]) -> list[Diagnostic]:
    """Import the user's diagnostics by name. Raise LogsUIError."""
    diagnostics: list[Diagnostic] = []
    for path in paths:
        value = _import_name(path)
        several = list(value) if isinstance(value, list | tuple) else [value]
        if not all(isinstance(diagnostic, Diagnostic) for diagnostic in several):
            raise LogsUIError(f"--diagnostics {path} is neither a Diagnostic nor a list of them.")
        diagnostics += several
    return diagnostics


def _import_name(path: str) -> Any:
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` would
    module, _, name = path.partition(":")
    value = getattr(imported(module, "checks:SLOW"), name, None)
    if value is None:
        raise LogsUIError(f"--diagnostics {path}: the module has no such name. Write it as module:name.")
    return value


def _show(report: Report, database: Address) -> None:
    run_uid = report.run or ""
    quoted_uid = shlex.quote(run_uid)

    def address(card: Card) -> str | None:
        path = matching(run_uid, report.where_of(card))
        return path and f"{SERVED}{path}"

    for line in lines(report, address):
        _print(line)
    db = db_option(database)
    hints = {
        "\nFull diagnosis, with charts": f"{SERVED}{why(run_uid)}",
        **({"With every rollout": f"logs-ui diagnose {quoted_uid}{db} --all"} if report.sample else {}),
        "The links work while this runs": f"logs-ui serve{db}",
        "A finding's rollouts as a file": f"logs-ui export {quoted_uid}{db} -o rollouts.parquet --where 'FILTER'",
    }
    for title, how in hints.items():
        out.print(Text(f"{title}: ").append(how, "bold"), soft_wrap=True)


def _print(line: Line) -> None:
    """Print a line; without a terminal it is never wrapped."""
    text = Text(line.text, line.style)
    if line.is_copied or not out.is_terminal:
        out.print(Text(" " * line.indent).append_text(text), soft_wrap=True)
    else:
        out.print(Padding(text, (0, 0, 0, line.indent)))
