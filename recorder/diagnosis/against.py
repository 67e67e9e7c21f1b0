"""Tells whether a run does what healthy runs of the same training do, and since which step it does not.

Runs are the independent units: seeds alone let two drift apart, and with enough groups any drift is beyond chance. Two
tests look at each figure, over at most ten equal parts of the steps that all runs have: at its level from a part to the
end, with the references' spread and R - 1 degrees of freedom; and at its change from three parts to three later ones,
with the spread of the references' changes, which all places share. A spread is at least that of groups. Chances are
corrected for figures (half of what is allowed is for the reward and what is solved), tests and places. [ours;
`benchmarks/references.py` measures it]
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from logs_ui.recorder.diagnosis.change_point import change
from logs_ui.recorder.diagnosis.largest_differences import list_columns
from logs_ui.recorder.diagnosis.mean_difference import LEAST_UNITS, student_tail
from logs_ui.recorder.diagnosis.measures import extent
from logs_ui.recorder.diagnosis.rollout_rows import SAME, Floats, Ints, Rows, Texts, means
from logs_ui.recorder.diagnosis.success import Success
from logs_ui.recorder.diagnosis.wording import figure, listed, percent

LEAST_REFERENCES = 3
_LEVEL, _PARTS, _SIDE, _NAMED, _NOTED = 0.05, 10, 3, 3, 6
_LOOKS, _POOLED = 2, 3  # levels that tell as much as independent ones; the same of changes, for their spread [measured]
_SHARE = " (share)"
_FIRST = ("reward", f"solved{_SHARE}")  # what is to be reached
_OF_MACHINES = "seconds"  # tells nothing of a policy


class RunGroups(NamedTuple):
    """Holds the G groups of a run. Each array has the shape (G,)."""

    step: Ints
    task: Texts  # names
    means: Mapping[str, Floats]  # of each recorded figure; NaN for a group without one

    @classmethod
    def of(cls, rows: Rows, success: Success) -> "RunGroups":
        """Return the groups of a run; `success` is that of the run that is compared with the references."""
        task = np.full(len(rows.groups.size), "", object)
        task[rows.group] = np.array([*rows.tasks, ""], object)[rows.task]
        columns = {name: values for name, values in list_columns(rows, success).items() if name != _OF_MACHINES}
        of_groups = {name: rows.group_means(values) for name, values in columns.items() if np.isfinite(values).any()}
        return cls(rows.groups.step, task, of_groups)


@dataclass(frozen=True)
class ComparedFigure:
    """Compares the mean of a figure with those of the references, over groups."""

    name: str  # of a reward function, or of another figure of rollouts
    value: float  # its mean since `since_step`, or else over the last third of the steps
    references: Sequence[float]  # that of each reference over the same steps
    is_share: bool  # True for a share of the rollouts, 0 to 1
    since_step: int | None = None  # the step at which it left the references; None if it did not, or is not judged

    @property
    def difference(self) -> str:
        """Return by how much it differs from the mean of the references, as in `+5 pp` or `\u22120.2`."""
        by = (self.value - float(np.mean(self.references))) * (100 if self.is_share else 1)
        return f"{'+' * (by > 0)}{figure(by)}{' pp' * self.is_share}"

    @property
    def description(self) -> str:
        """Return the figure as in `turns 3 (references 5.2 to 5.4)`."""
        written = percent if self.is_share else figure
        low, high = written(min(self.references)), written(max(self.references))
        references = f"reference{'s' * (len(self.references) > 1)} {low}{f' to {high}' * (low != high)}"
        return f"{self.name} {written(self.value)} ({references})"


@dataclass(frozen=True)
class Against:
    """Compares a run with references."""

    id: str  # `left` or `within` (what the references do); `not_judged`
    references: Sequence[str]  # the names of the runs
    steps: Sequence[int] | None = None  # the first and the last that all runs have; None if they share too few groups
    # Those that left the references in the order of that, then the others, the surest difference first. Without a
    # verdict: the reward, what is solved, and the others.
    figures: Sequence[ComparedFigure] = ()
    not_compared: Sequence[str] = ()  # names of the figures that a run lacks, or has in too few groups
    differing: Sequence[str] = ()  # names of the arguments and sources that differ

    @property
    def verdict(self) -> str:
        """Return the verdict, to follow "Against 4 references: "."""
        if self.steps is None:
            return "not compared, as the runs share too few groups by step"
        if not self.figures:
            return "not compared, as the runs have no figure in common that varies"
        within = f"steps {self.steps[0]:,} to {self.steps[1]:,}"
        left = [figure for figure in self.figures if figure.since_step is not None]
        if self.id == "not_judged":
            return f"no verdict, which needs {LEAST_REFERENCES} references; means over the last third of {within}"
        if not left:
            return f"within what they do ({within}, {len(self.figures)} figure{'s' * (len(self.figures) > 1)})"
        sentence, step = "", None
        for departure in left[:_NAMED]:
            begins = "differs from them from" if step is None else "; from"
            begins += f" step {departure.since_step:,} on: "
            begins = ", " if departure.since_step == step else begins
            sentence, step = sentence + begins + departure.description, departure.since_step
        return sentence + f"; and {len(left) - _NAMED} more" * (len(left) > _NAMED) + f" ({within})"

    @property
    def notes(self) -> str:
        """Return sentences on what limits the comparison; "" for nothing."""
        noted = {"Not compared": self.not_compared, "What differs": self.differing}
        return " ".join(f"{title}: {listed(list(names), _NOTED)}." for title, names in noted.items() if names)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields and `said`, for JSON."""
        return {**asdict(self), "said": self.verdict}


class _Flat(NamedTuple):
    """Holds the groups of all runs, in the steps that all have, one after another. Each array has the shape (N,)."""

    run: Ints  # 0 for the run, then 1 to R for the references
    step: Ints
    task: Ints
    columns: Mapping[str, Floats]  # of the figures that all have
    size: int  # number of runs

    @classmethod
    def of(cls, runs: Sequence[RunGroups]) -> "_Flat":
        run = np.repeat(np.arange(len(runs)), [len(run.step) for run in runs])
        step = np.concatenate([run.step for run in runs])
        among = np.all([(step >= run.step.min()) & (step <= run.step.max()) for run in runs if len(run.step)], axis=0)
        task = np.unique(np.concatenate([run.task for run in runs]).astype(str), return_inverse=True)[1]
        names = [name for name in runs[0].means if all(name in run.means for run in runs)]
        columns = {name: np.concatenate([run.means[name] for run in runs])[among] for name in names}
        return cls(run[among], step[among], task[among], columns, len(runs))

    def compare(self, name: str, since: int) -> ComparedFigure:
        """Compare the means of a figure from a step on."""
        late = self.step >= since
        value, *others = means(self.run[late], self.columns[name][late], self.size).tolist()
        return ComparedFigure(name.removesuffix(_SHARE), value, others, name.endswith(_SHARE))

    def find_departure(self, name: str, values: Floats, since: int, near: int) -> ComparedFigure | None:
        """Return the figure since the step at which it left the references, up to `near` steps from `since`; None if it
        is in their range since then. `values` are those without what tasks add.
        """
        steps, place = np.unique(self.step, return_inverse=True)
        of_each = means(self.run * len(steps) + place, values, self.size * len(steps)).reshape(self.size, -1)
        differences = zip(steps.tolist(), (of_each[0] - of_each[1:].mean(axis=0)).tolist(), strict=True)
        trend = tuple(
            difference
            for difference in differences
            if np.isfinite(difference[1]) and abs(difference[0] - since) <= near
        )
        if since > steps[0] and (point := change(trend)) is not None:
            since = trend[point.place][0]
        departure = self.compare(name, since)
        is_outside = departure.value < min(departure.references) or departure.value > max(departure.references)
        return replace(departure, since_step=since) if is_outside else None

    def without_tasks(self, values: Floats) -> Floats:
        """Return (N,) values less what their task adds in the references, where these have it often enough."""
        is_known = np.isfinite(values) & (self.run > 0)
        often = np.bincount(self.task[is_known], minlength=int(self.task.max()) + 1) >= LEAST_UNITS
        adds = means(self.task[is_known], values[is_known], len(often)) - values[is_known].mean()
        return values - np.where(often, adds, 0.0)[self.task]


def compare_runs(run: RunGroups, references: Mapping[str, RunGroups]) -> Against:
    """Compare a run with references over the steps that all of them have. No verdict under three references.

    The tests allow for the tasks that a run happened to get, by how hard they are in the references; the figures have
    plain means.
    """
    flat, runs = _Flat.of([run, *references.values()]), list(references)
    sizes = np.bincount(flat.run, minlength=flat.size)
    if sizes.min() < LEAST_UNITS:
        return Against("not_judged", runs)
    first, last = int(flat.step.min()), int(flat.step.max())
    parts = int(min(_PARTS, last - first + 1, sizes.min() // LEAST_UNITS))
    # (N,) `place` numbers the part of the steps that a group lies in, for each run apart, so that one pass computes
    # the means of all runs and parts.
    place, shape = flat.run * parts + (flat.step - first) * parts // (last - first + 1), (flat.size, parts)
    names = dict.fromkeys(name for reference in (run, *references.values()) for name in reference.means)
    tested, lacking, equal = dict[str, tuple[float, int, Floats]](), list[str](), set[bytes]()
    for name in sorted(names, key=lambda name: name not in _FIRST):
        values = flat.columns.get(name, np.full(len(place), np.nan))
        groups = np.bincount(place[np.isfinite(values)], minlength=flat.size * parts)
        if groups.min() < 2:
            lacking.append(name.removesuffix(_SHARE))
        elif extent(values) > SAME and values.tobytes() not in equal:
            equal.add(values.tobytes())
            adjusted = flat.without_tasks(values)
            mean = means(place, adjusted, len(groups))
            variance = means(place, (adjusted - mean[place]) ** 2, len(groups)) / (groups - 1)
            chance, part = _find_surest(mean.reshape(shape), variance.reshape(shape), groups.reshape(shape))
            tested[name] = chance, part, adjusted
    is_judged, figures = len(runs) >= LEAST_REFERENCES and bool(tested), list[tuple[float, ComparedFigure]]()
    for name, (chance, part, adjusted) in tested.items():
        alike = sum((other in _FIRST) == (name in _FIRST) for other in tested)
        # The first figures have half of the level, and the others the other half; each half is divided by the
        # number of its figures.
        is_sure = is_judged and chance * 2 * alike < _LEVEL
        begins = first - (-part * (last - first + 1) // parts)
        left = flat.find_departure(name, adjusted, begins, _SIDE * (last - first + 1) // parts) if is_sure else None
        figures.append((chance, left or flat.compare(name, last - (last - first) // 3)))
    if is_judged:
        figures.sort(key=lambda pair: (pair[1].since_step is None, pair[1].since_step, pair[0]))
    judged = "left" if any(compared.since_step is not None for _, compared in figures) else "within"
    return Against(
        judged if is_judged else "not_judged", runs, [first, last], [compared for _, compared in figures], lacking
    )


def _find_surest(mean: Floats, variance: Floats, groups: Ints) -> tuple[float, int]:
    """Return the chance of the figure's least likely level or change, and the part that it begins with. All arrays have
    the shape (R + 1, P), for P parts.
    """
    parts = np.arange(mean.shape[1])
    starts, cuts = parts[: max(len(parts) - 1, 1)], parts[_SIDE:-_SIDE]  # a cut's own part is on neither side
    # Weights (P,) make one number of the parts: the mean from a part to the end, or the mean of three later parts
    # less that of three earlier ones.
    levels = [(parts >= start) / (parts >= start).sum() for start in starts]
    changes = [(abs(parts - cut) <= _SIDE) * np.sign(parts - cut) / _SIDE for cut in cuts]
    chances = [
        (float(chance) * looks * 2, int(part))  # of two tests
        for weights, places, looks, pooled in ((levels, starts, _LOOKS, 0), (changes, cuts, len(cuts), _POOLED))
        if len(places)
        for chance, part in zip(_chances(np.array(weights), mean, variance, groups, pooled), places, strict=True)
    ]
    return min(chances)


def _chances(weights: Floats, mean: Floats, variance: Floats, groups: Ints, pooled: int) -> list[float]:
    """Return (K,) chances of the K sums of parts with these (K, P) weights: t tests of the run against the references.
    `pooled`: all sums share their variance between runs, which then has so many times the degrees of freedom.
    """
    sums, count, of_groups = mean @ weights.T, len(mean) - 1, variance @ (weights**2).T
    gap = np.abs(sums[0] - sums[1:].mean(axis=0))
    between = sums[1:].var(axis=0, ddof=1) if count > 1 else np.zeros(len(weights))
    between = np.full(len(weights), between.mean()) if pooled else between
    within = (of_groups[0] + of_groups[1:].mean(axis=0)) / 2
    # Groups that are all equal show no spread: it is that of half an event at least.
    least = (gap / (groups.min(axis=0) @ (weights != 0).T)) ** 2 / 2
    error = np.sqrt(np.maximum.reduce([between, within, least]) * (1 + 1 / count))
    t = gap / np.where(gap > SAME**2, error, np.inf)
    return [student_tail(float(value), max(count - 1, 1) * max(pooled, 1)) for value in t]
