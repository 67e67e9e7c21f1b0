"""Shows the settings of a run's diagnosis in a form, and stores them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse

from logs_ui.app.parts.figures import brief
from logs_ui.app.parts.notes_forms import FormOfPages, WritableNotebook
from logs_ui.app.web import urls
from logs_ui.app.web.open_database import SourceOfPages
from logs_ui.recorder.analysis.diagnose import Diagnosed, settings_of
from logs_ui.recorder.diagnosis import DIAGNOSTICS, Settings
from logs_ui.recorder.errors import SettingsError
from logs_ui.recorder.settings import check_thresholds

router = APIRouter()

_THRESHOLD = "threshold."
_NAMES = {diagnostic.id: diagnostic.name for diagnostic in DIAGNOSTICS}


class Field(NamedTuple):
    """Describes one number of the form."""

    name: str  # its name in the form
    label: str
    meaning: str
    value: str  # as set; empty if it is not
    default: str  # the default


class Panel(NamedTuple):
    """Holds the form."""

    fields: list[Field]
    thresholds: list[Field]  # of diagnostics that fired and have a single one, and of those that a user set
    is_saved: bool  # True if a user set any of it, here or on the command line
    place: str


def make_panel(diagnosis: Diagnosed, *, is_saved: bool, place: str) -> Panel:
    """Build the form from the settings in force."""
    settings, scale = diagnosis.settings, diagnosis.report.scale
    best = "" if scale.is_flat or scale.units else brief(round(scale.best, 6))
    limits = {card.id: card.limit for card in diagnosis.report.cards if card.limit is not None} | dict(
        settings.thresholds
    )
    return Panel(
        fields=[
            Field(
                "max_reward", "Best reward", "Reward of a perfect rollout.", _print_number(settings.max_reward), best
            ),
            Field(
                "solved_at",
                "Solved if ≥",
                f"In force: {scale.success.description}.",
                _print_number(settings.solved_at),
                "",
            ),
            Field("solved_by", "of", "Reward function; empty for the whole reward.", settings.solved_by or "", ""),
            Field(
                "reference", "Reference", "Dataset column with the right answers.", settings.reference or "", "by name"
            ),
            Field("steps", "Steps", "Number of last steps that the diagnosis covers.", str(settings.steps), ""),
        ],
        thresholds=[
            Field(
                f"{_THRESHOLD}{name}",
                _NAMES.get(name, name),
                name,
                _print_number(settings.thresholds.get(name)),
                brief(limit),
            )
            for name, limit in sorted(limits.items())
        ],
        is_saved=is_saved,
        place=place,
    )


@router.post("/runs/{run_reference}/why/settings")
def save(source: SourceOfPages, notebook: WritableNotebook, form: FormOfPages, run_reference: str) -> Response:
    """Store `max_reward`, `solved_at`, `solved_by`, `reference`, `steps` and `threshold.ID`, each of which may be
    empty; `reset` deletes all of them. Raise SettingsError if a value is not a number or out of range, or the values
    contradict each other.
    """
    with source.reading_run(run_reference) as (db, run):
        old_settings = settings_of(db, run)
    settings = None if "reset" in form else _settings(form, old_settings)
    if settings is not None:
        # Somebody's own diagnostics are known to the command line alone.
        check_thresholds(
            settings,
            dict.fromkeys(old_settings.thresholds) | {diagnostic.id: diagnostic.limits for diagnostic in DIAGNOSTICS},
        )
    notebook.diagnosis(run.uid, settings)
    return RedirectResponse(f"{urls.why(run.uid)}#settings", 303, headers={"Cache-Control": "no-store"})


def _settings(form: Mapping[str, str], old_settings: Settings) -> Settings:
    """Read the form; thresholds that it does not name are kept."""
    form_fields = {field.removeprefix(_THRESHOLD): field for field in form if field.startswith(_THRESHOLD)}
    kept_thresholds = {name: value for name, value in old_settings.thresholds.items() if name not in form_fields}
    new_thresholds = {name: value for name, field in form_fields.items() if (value := _number(form, field)) is not None}
    steps = _number(form, "steps")
    steps_setting: dict[str, Any] = {} if steps is None else {"steps": steps}
    return Settings(
        max_reward=_number(form, "max_reward"),
        solved_at=_number(form, "solved_at"),
        solved_by=form.get("solved_by", "").strip() or None,
        reference=form.get("reference", "").strip() or None,
        environments=old_settings.environments,
        muted=old_settings.muted,
        thresholds=kept_thresholds | new_thresholds,
        **steps_setting,
    )


def _number(form: Mapping[str, str], field: str) -> float | None:
    text = form.get(field, "").strip().replace("\u2212", "-")
    try:
        return float(text) if text else None
    except ValueError:
        name = field.removeprefix(_THRESHOLD)
        raise SettingsError(f"{name} {text[:40]!r} is not a number: write it as 0.5, or leave it empty.") from None


def _print_number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"
