"""Options that several functions of the API take."""

from typing import Any

from logs_ui.recorder.settings import Settings, check_thresholds


def settings_to_keep(settings: Settings | None) -> dict[str, Any] | None:
    """The diagnosis' settings as they are stored with a run; None where none were given.

    Raises:
        SettingsError: they name a diagnostic that there is not, or a threshold is out of range.
        TypeError: they are no Settings.
    """
    if settings is None:
        return None
    if not isinstance(settings, Settings):
        raise TypeError(f"diagnosis takes Settings(...), not a {type(settings).__name__}")
    # Imported here: only a training that was given settings pays for loading the diagnostics, which check them.
    from logs_ui.recorder.diagnosis.run_checks import DIAGNOSTICS

    check_thresholds(settings, {it.id: it.limits for it in DIAGNOSTICS})
    return settings.as_dict()
