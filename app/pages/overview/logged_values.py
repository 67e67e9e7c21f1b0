"""The metrics that a trainer or an evaluation logged, and its configuration; all of it can be searched."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from logs_ui.app.parts import charts, safe_text
from logs_ui.recorder.queries import ScalarCurve
from logs_ui.recorder.storage.tables import Run

_TRAINING, _EVALUATION, _OTHERS = "training", "evaluation", "others"
_GROUPS = (_TRAINING, "rewards", "completions")
_SHORT_VALUE = 40  # characters
_FIRST = ("reward", "reward_std", "reward_stderr", "loss", "grad_norm", "kl", "entropy", "learning_rate")
"""Metrics that come first; the others follow by name."""


class ConfigEntry(NamedTuple):
    """Holds a name and its value; `is_structured` for an object or list too long to stand beside the name."""

    name: str
    value: str
    is_structured: bool


class Logged(NamedTuple):
    """Holds the metrics and settings of a run whose name or value contains `search`."""

    search: str
    # Prefix and metrics by step, those of the training first. Metrics whose prefix no other one has are one group.
    groups: list[tuple[str, list[charts.Curve]]]
    # Metrics that were logged once: a trainer's at its end, or all of an evaluation's.
    single: list[tuple[str, float | None]]
    config: list[ConfigEntry]  # arguments of the trainer or the evaluation, structured ones last
    versions: list[ConfigEntry]


def make_logged(run: Run, curves: Sequence[ScalarCurve], search: str) -> Logged:
    matching = [curve for curve in curves if search.lower() in curve.name.lower()]
    return Logged(
        search=search,
        groups=_groups(curve for curve in matching if len(curve.points) > 1),
        single=[(curve.name, curve.points[0][1]) for curve in sorted(matching, key=_rank) if len(curve.points) == 1],
        config=_match_settings(run.config, search),
        versions=_match_settings(run.versions, search),
    )


def _groups(curves: Iterable[ScalarCurve]) -> list[tuple[str, list[charts.Curve]]]:
    """Return the charts of each group of metrics, by its name, in the page's order."""
    curves_by_group: dict[str, list[ScalarCurve]] = defaultdict(list)
    for curve in curves:
        curves_by_group[_group_of(curve.name)].append(curve)
    lone_names = [name for name, group_curves in curves_by_group.items() if len(group_curves) == 1]
    for group_name in lone_names:
        if group_name not in _GROUPS:  # a row of its own would be nearly empty
            curves_by_group[_OTHERS] = [*curves_by_group.get(_OTHERS, []), *curves_by_group.pop(group_name)]
    return [
        (
            group_name,
            [
                charts.curve(scalar.name, tuple(scalar.points))
                for scalar in sorted(curves_by_group[group_name], key=_rank)
            ],
        )
        for group_name in sorted(curves_by_group, key=_group_rank)
    ]


def _group_rank(name: str) -> tuple[bool, int, str]:
    return name == _EVALUATION, _GROUPS.index(name) if name in _GROUPS else len(_GROUPS), name


def _group_of(name: str) -> str:
    """Return the group of a metric: evaluations log `eval_...`, related ones `completions/mean_length`."""
    if name.startswith("eval_"):
        return _EVALUATION
    prefix, slash, _ = name.partition("/")
    return prefix if slash else _TRAINING


def _rank(curve: ScalarCurve) -> tuple[int, str]:
    bare = curve.name.removeprefix("eval_")
    return (_FIRST.index(bare) if bare in _FIRST else len(_FIRST), curve.name)


def _match_settings(values: dict[str, Any], search: str) -> list[ConfigEntry]:
    """Return the matching settings, simple ones first, then by name. None is shown: leaving out is a decision too."""
    settings = (_setting(name, value) for name, value in values.items())
    matching = (
        setting
        for setting in settings
        if search.lower() in setting.name.lower() or search.lower() in setting.value.lower()
    )
    return sorted(matching, key=lambda setting: (setting.is_structured, setting.name))


def _setting(name: str, value: Any) -> ConfigEntry:
    written = safe_text.as_json(value) if value is None else safe_text.as_text(value)
    return ConfigEntry(name, written, isinstance(value, dict | list) and len(written) > _SHORT_VALUE)
