"""What a run is held against."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from logs_ui.recorder.errors import SettingsError
from logs_ui.recorder.spelling import nearest, shortened

Limits = tuple[float, float]
"""The least and the most that a threshold may be."""
SHARE: Limits = (0.0, 1.0)
FROM_NOTHING: Limits = (0.0, math.inf)
FROM_ONE: Limits = (1.0, math.inf)


@dataclass(frozen=True)
class Settings:
    """Set by whoever knows the task; the rest is worked out of the run.

    Attributes:
        max_reward: what a perfect rollout gets; None: the run's 99th percentile.
        solved_at: the reward from which on a rollout solved its task; None: `max_reward`.
        steps: the last so many are looked at.
        thresholds: in place of a diagnostic's own, by its id: see `DIAGNOSTICS` and docs/diagnosis.md.

    Raises:
        SettingsError: a number that is none, or not finite; `steps` below 1; `solved_at` above `max_reward`.
    """

    max_reward: float | None = None
    solved_at: float | None = None
    steps: int = 10
    thresholds: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.thresholds, Mapping):
            raise SettingsError(f"thresholds must be a dict of numbers by diagnostic, not {self.thresholds!r:.80}.")
        of = {str(name): _number(f"thresholds[{str(name)!r:.80}]", value) for name, value in self.thresholds.items()}
        object.__setattr__(self, "thresholds", of)
        for name in ("max_reward", "solved_at"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _number(name, getattr(self, name)))
        steps = _number("steps", self.steps)
        if not 1 <= steps == int(steps):
            raise SettingsError(f"steps must be a whole number from 1 on, not {self.steps!r:.80}.")
        object.__setattr__(self, "steps", int(steps))
        if self.max_reward is not None and self.solved_at is not None and self.solved_at > self.max_reward:
            raise SettingsError(
                f"solved_at {self.solved_at:g} is above max_reward {self.max_reward:g}, which no rollout could reach: "
                "lower the one, or raise the other."
            )

    def as_dict(self) -> dict[str, Any]:
        """As JSON has them, by name."""
        return asdict(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Settings":
        """From such values; those of another name are left out.

        Raises:
            SettingsError: as for `Settings`.
        """
        return cls(**{it.name: values[it.name] for it in fields(cls) if it.name in values})


def check_thresholds(settings: Settings, known: Mapping[str, Limits | None]) -> None:
    """Holds its thresholds against the diagnostics that there are.

    Args:
        settings: whose thresholds.
        known: what each may be, by its diagnostic's id; None: any number.

    Raises:
        SettingsError: one is of none of them, and names the nearest; or is out of its range, and says which that is.
    """
    for name, value in settings.thresholds.items():
        if name not in known:
            raise unknown_diagnostic(name, known)
        least, most = known[name] or (-math.inf, math.inf)
        if not least <= value <= most:
            span = f"from {least:g} to {most:g}" if math.isfinite(most) else f"from {least:g} on"
            raise SettingsError(f"The threshold of {name} is a number {span}, not {value:g}.")


def unknown_diagnostic(name: str, known: Iterable[str]) -> SettingsError:
    """What is wrong with a name that no diagnostic has."""
    names = sorted(known)
    near = nearest(name, names)
    meant = f"did you mean {near!r}?" if near else f"choose from {', '.join(names)}."
    return SettingsError(f"There is no diagnostic {shortened(name)!r}: {meant}")


def _number(name: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise SettingsError(f"{name} must be a finite number, not {value!r:.80}.")
    return number
