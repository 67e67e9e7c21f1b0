"""Defines the settings of a run's diagnosis, and checks their values."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from logs_ui.recorder.errors import SettingsError
from logs_ui.recorder.spelling import nearest, shortened

Limits = tuple[float, float]
"""Least and greatest value of a threshold."""
SHARE: Limits = (0.0, 1.0)
FROM_NOTHING: Limits = (0.0, math.inf)
FROM_ONE: Limits = (1.0, math.inf)


@dataclass(frozen=True)
class Settings:
    """Settings of a diagnosis, by someone who knows the task. Values that are not set are computed from the run.

    Attributes:
        max_reward: Reward of a perfect rollout. None takes the run's 99th percentile.
        solved_at: Least reward of a solved rollout. None takes the highest value of `solved_by` if that is set, else
            the definition in docs/diagnosis.md.
        solved_by: Reward function that `solved_at` applies to. None: the whole reward.
        steps: Number of last steps that are diagnosed.
        thresholds: Thresholds by id of a diagnostic, which replace its default: see docs/diagnosis.md.

    Raises:
        SettingsError: a value is not a finite number, `steps` is below 1, or `solved_at` is above `max_reward`.

    Examples:
        >>> from logs_ui.recorder import Settings
        >>> Settings(max_reward=1.0, solved_at=0.9, thresholds={"truncation": 0.2}).as_dict()
        {'max_reward': 1.0, 'solved_at': 0.9, 'steps': 10, 'thresholds': {'truncation': 0.2}, 'solved_by': None}
    """

    max_reward: float | None = None
    solved_at: float | None = None
    steps: int = 10
    thresholds: Mapping[str, float] = field(default_factory=dict)
    solved_by: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.thresholds, Mapping):
            raise SettingsError(f"thresholds must be a dict of numbers by diagnostic, not {self.thresholds!r:.80}.")
        thresholds = {
            str(name): _number(f"thresholds[{str(name)!r:.80}]", value) for name, value in self.thresholds.items()
        }
        object.__setattr__(self, "thresholds", thresholds)
        for name in ("max_reward", "solved_at"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _number(name, getattr(self, name)))
        if not isinstance(self.solved_by, str | None):
            raise SettingsError(f"solved_by must be the name of a reward function, not {self.solved_by!r:.80}.")
        steps = _number("steps", self.steps)
        if not 1 <= steps == int(steps):
            raise SettingsError(f"steps must be a whole number from 1 on, not {self.steps!r:.80}.")
        object.__setattr__(self, "steps", int(steps))
        on_reward = self.solved_at if self.solved_by is None else None
        if self.max_reward is not None and on_reward is not None and on_reward > self.max_reward:
            raise SettingsError(
                f"solved_at {on_reward:g} is above max_reward {self.max_reward:g}, which no rollout could reach: "
                "lower the one, or raise the other."
            )

    def as_dict(self) -> dict[str, Any]:
        """Return the values by name, as JSON values."""
        return asdict(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Settings":
        """Make settings from values by name; unknown names are left out. Raises SettingsError, see `Settings`."""
        return cls(**{it.name: values[it.name] for it in fields(cls) if it.name in values})


def check_thresholds(settings: Settings, known: Mapping[str, Limits | None]) -> None:
    """Check the thresholds of settings; `known` has least and greatest value by id, None for any number. Raises
    SettingsError if a diagnostic is unknown (the message names the nearest), or a threshold is out of its range.
    """
    for name, value in settings.thresholds.items():
        if name not in known:
            raise unknown_diagnostic(name, known)
        least, most = known[name] or (-math.inf, math.inf)
        if not least <= value <= most:
            span = f"from {least:g} to {most:g}" if math.isfinite(most) else f"from {least:g} on"
            raise SettingsError(f"The threshold of {name} must be a number {span}, not {value:g}.")


def unknown_diagnostic(name: str, known: Iterable[str]) -> SettingsError:
    """Return the error for an unknown diagnostic, which names the nearest known one."""
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
