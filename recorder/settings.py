"""Defines the settings of a run's diagnosis, and checks their values."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from logs_ui.recorder.errors import SettingsError
from logs_ui.recorder.spelling import nearest, shortened

Limits = tuple[float, float]
"""Least and greatest value of a threshold."""
SHARE: Limits = (0.0, 1.0)
FROM_NOTHING: Limits = (0.0, math.inf)
FROM_ONE: Limits = (1.0, math.inf)
NO_THRESHOLD: Limits = (math.inf, -math.inf)
"""Those of a check that has no threshold: no number is within them."""
_SOLVED = ("solved_at", "solved_by")
_PER_ENVIRONMENT = ("max_reward", *_SOLVED, "reference")
"""Settings that may be set for one environment alone."""


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
        reference: Column of the dataset with the right answers, such as `reward_model.ground_truth`. None: the one that
            is named most like a reference answer.
        environments: `max_reward`, `solved_at`, `solved_by` and `reference` for the rollouts of one eval, by its name,
            in place of those above: `{"web": {"solved_by": "success"}}`.
        muted: Reasons by id of a diagnostic whose finding is not one here: it is listed below the findings.

    Raises:
        SettingsError: a value is not a finite number, `steps` is below 1, `solved_at` is above `max_reward`, or an
            environment has another setting than these four.

    Examples:
        >>> from logs_ui.recorder import Settings
        >>> Settings(max_reward=1.0, environments={"game": {"max_reward": 21}}).of_environment("game").max_reward
        21.0
    """

    max_reward: float | None = None
    solved_at: float | None = None
    steps: int = 10
    thresholds: Mapping[str, float] = field(default_factory=dict)
    solved_by: str | None = None
    reference: str | None = None
    environments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    muted: Mapping[str, str] = field(default_factory=dict)

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
        if not isinstance(self.reference, str | None):
            raise SettingsError(f"reference must be the name of a dataset column, not {self.reference!r:.80}.")
        object.__setattr__(self, "reference", (self.reference or "").removeprefix("metadata.") or None)
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
        if not isinstance(self.muted, Mapping) or not all(str(reason).strip() for reason in self.muted.values()):
            raise SettingsError(f"muted must be a dict of reasons by diagnostic, not {self.muted!r:.80}.")
        object.__setattr__(self, "muted", {str(name): shortened(str(reason)) for name, reason in self.muted.items()})
        if not isinstance(self.environments, Mapping):
            raise SettingsError(f"environments must be a dict of settings by eval, not {self.environments!r:.80}.")
        checked = {str(name): self._of_one(str(name), changes) for name, changes in self.environments.items()}
        object.__setattr__(self, "environments", checked)

    def of_environment(self, name: str) -> "Settings":
        """Return the settings that apply to the rollouts of one eval."""
        return self._with(self.environments.get(name, {}))

    def _with(self, changes: Mapping[str, Any]) -> "Settings":
        together = {} if changes.keys().isdisjoint(_SOLVED) else dict.fromkeys(_SOLVED)  # they define solved together
        return replace(self, **{**together, **changes}, environments={})

    def _of_one(self, name: str, changes: Any) -> dict[str, Any]:
        """Check the settings of one environment, together with the run's."""
        if not isinstance(changes, Mapping) or not changes.keys() <= set(_PER_ENVIRONMENT):
            raise SettingsError(
                f"environments[{name!r:.80}] must be a dict of {', '.join(_PER_ENVIRONMENT)}, not {changes!r:.80}."
            )
        try:
            settings = self._with(changes)
        except SettingsError as error:
            raise SettingsError(f"environments[{name!r:.80}]: {error}") from None
        return {key: getattr(settings, key) for key in changes}

    def as_dict(self) -> dict[str, Any]:
        """Return the values by name, as JSON values."""
        return asdict(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Settings":
        """Make settings from values by name; unknown names are left out. Raise SettingsError, see `Settings`."""
        return cls(**{field.name: values[field.name] for field in fields(cls) if field.name in values})


def check_thresholds(settings: Settings, limits: Mapping[str, Limits | None]) -> None:
    """Check the thresholds of settings; `limits` has least and greatest value by id, None for any number.

    Raises SettingsError if a diagnostic is unknown, also one that is muted (the message names the nearest), if it has
    no threshold, or if this is out of its range.
    """
    for name in settings.muted:
        if name not in limits:
            raise make_unknown_error("There is no diagnostic", name, limits)
    for name, value in settings.thresholds.items():
        if name not in limits:
            raise make_unknown_error("There is no diagnostic", name, limits)
        if limits[name] == NO_THRESHOLD:
            raise SettingsError(f"{name} has no threshold. To leave its finding out, mute it.")
        least, most = limits[name] or (-math.inf, math.inf)
        if not least <= value <= most:
            span = f"from {least:g} to {most:g}" if math.isfinite(most) else f"from {least:g} on"
            raise SettingsError(f"The threshold of {name} must be a number {span}, not {value:g}.")


def make_unknown_error(lack: str, name: str, known: Iterable[str]) -> SettingsError:
    """Return the error for an unknown name, which names the nearest known one; `lack` begins it, as in "There is no
    diagnostic".
    """
    names = sorted(known)
    near = nearest(name, names)
    meant = f"did you mean {near!r}?" if near else f"choose from {', '.join(names)}."
    return SettingsError(f"{lack} {shortened(name)!r}: {meant}")


def check_environments(settings: Settings, evals: Iterable[str]) -> None:
    """Check that settings name evals of the run only. Raise SettingsError, which names the nearest."""
    names = set(evals)
    for name in settings.environments:
        if name not in names:
            raise make_unknown_error("The run has no eval", name, names)


def _number(name: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise SettingsError(f"{name} must be a finite number, not {value!r:.80}.")
    return number
