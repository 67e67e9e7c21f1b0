"""Defines the columns of the list of runs, its order and its groups, and how they are written in a URL."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from statistics import fmean
from typing import Any, NamedTuple

from logs_ui.app.parts import charts, figures, safe_text, words
from logs_ui.app.parts.diagnoses import Outline
from logs_ui.app.web.urls import Pairs
from logs_ui.recorder.queries import ListedRun, RunSummary
from logs_ui.recorder.queries.filters.rollout_filter import check_word

_ARGUMENT = "config."
_TOLD = 4  # arguments under a run's name
_FIRST = ("learning_rate", "num_generations", "beta", "temperature", "loss_type", "max_completion_length", "epsilon")
_NO_CHOICE = ("_dir", "_path", "run_name", "_id")  # ends of names whose values differ in any two runs
_LONGEST = 40  # characters of an argument under a run's name


def spelt(value: Any) -> str:
    """Write an argument as its author would: `1e-06`, `["a"]`."""
    return "none" if value is None else safe_text.as_text(figures.tidy(value))


class RunLine(NamedTuple):
    """Describes one row of the table."""

    listed: ListedRun
    sparkline: charts.Sparkline | None
    # From start to end; to the last heartbeat if it crashed, otherwise to now. None for imported files with one time.
    seconds: float | None
    is_open: bool  # True if more may come
    outline: Outline | None  # None if the run was not diagnosed yet
    is_judged: bool  # True if `outline` is current
    differences: list[tuple[str, str]]  # names and values of the arguments in which it differs from the other runs

    @property
    def summary(self) -> RunSummary:
        return self.listed.summary

    @property
    def curve_label(self) -> str:
        """The curve of the reward in words."""
        curve = self.summary.reward_curve
        first, last = (figures.number(curve[place][1]) if curve else figures.NOTHING for place in (0, -1))
        return f"Reward over {len(curve)} steps, from {first} to {last}"

    @property
    def solved(self) -> float | None:
        """The share solved of the last steps; None if it is not defined, or not computed yet."""
        return self.outline and self.outline.solved


class RunColumn(NamedTuple):
    """Describes a column: its value, by which runs are sorted, and how a value, or a mean of several, is written."""

    key: str  # its name in a URL; `config.NAME` for an argument of the trainer
    value: Callable[[RunLine], Any]
    written: Callable[[Any], str] = spelt
    style: str = ""  # classes of its cells; empty for its key
    hint: str = ""
    where: str = ""  # filter of the rollouts that its share counts

    @property
    def title(self) -> str:
        """Its name in the head: `Duration`; of an argument its name alone."""
        is_argument = self.key.startswith(_ARGUMENT)
        return _TITLES.get(self.key) or (self.key.removeprefix(_ARGUMENT) if is_argument else self.key.capitalize())

    @property
    def classes(self) -> str:
        return self.style or ("argument" if "." in self.key else self.key)

    def cell_classes(self, value: Any) -> str:
        """Return the classes of a value's cell; a large share of faults stands out."""
        least, tone = _FAULTS.get(self.key, (None, _TONES.get(self.key, "")))
        return self.classes if least is not None and (value or 0) < least else f"{self.classes} {tone}".strip()


class RunGroup(NamedTuple):
    """Describes runs that have the same value in a column; `means` are by column, as text."""

    value: str
    runs: int
    means: dict[str, str]


_TITLES = {"curve": "Reward curve"}
_TONES = {"reward": "strong", "duration": "quiet", "started": "quiet"}
_FAULTS = {"truncated": (0.2, "tone-warn"), "errors": (0.05, "tone-bad")}  # share from which it stands out, and how
_REWARD = "Mean reward of the last 10 training steps that have one; for an evaluation, of all rollouts"
_SOLVED = (
    "Share of the last 10 steps\u2019 scored rollouts that solved their task, by each run\u2019s definition; reload if "
    "some are not computed yet"
)
_TRUNCATED = "Share of ended rollouts that stopped at their token limit"
_ERRORS = "Share of ended rollouts that raised an error"
_whole = partial(figures.number, digits=0)
_COLUMNS = (
    RunColumn("model", attrgetter("summary.run.model")),
    RunColumn("eval", lambda line: ", ".join(line.summary.eval_names) or None),
    RunColumn("state", lambda line: words.run_state(line.summary.state).text),
    RunColumn("steps", lambda line: line.summary.steps if line.summary.has_steps else None, _whole, "num steps"),
    RunColumn("rollouts", attrgetter("summary.rollouts"), _whole, "num count"),
    RunColumn("reward", attrgetter("summary.reward"), figures.number, "num reward", _REWARD),
    RunColumn("solved", attrgetter("solved"), figures.percent, "num solved", _SOLVED),
    RunColumn("curve", lambda line: len(line.summary.reward_curve), style="spark"),
    RunColumn(
        "truncated", attrgetter("summary.truncated"), figures.percent, "num truncated", _TRUNCATED, "stop:length"
    ),
    RunColumn("errors", attrgetter("summary.errors"), figures.percent, "num errors", _ERRORS, "status:error"),
    RunColumn("duration", attrgetter("seconds"), figures.duration, "num lasted"),
    RunColumn("started", attrgetter("summary.run.created")),
)
_FIGURES = {column.key: column for column in _COLUMNS}
_DEFAULT = tuple(key for key in _FIGURES if key not in {"eval", "solved"})
_GROUPS = ("model", "eval", "state")


def column_of(key: str) -> RunColumn:
    """Return the column with that key."""
    name = key.removeprefix(_ARGUMENT)
    return _FIGURES.get(key, RunColumn(key, lambda line: line.summary.run.config.get(name)))


@dataclass(frozen=True)
class RunsView:
    """Describes what the list shows of its runs."""

    column_keys: tuple[str, ...] = _DEFAULT  # keys of the columns
    # Key of the column that orders the list, `-KEY` for its highest value first; empty for the newest first.
    sort: str = ""
    by: str = ""  # key of the column that groups the list; empty for no groups

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> "RunsView":
        """Read the view from the parameters of an address. Raise FilterError: there is no such column."""
        parameters = [(name, value) for name, value in pairs if value.strip()]
        column_keys = tuple(dict.fromkeys(value for name, value in parameters if name == "col"))
        view = cls(column_keys or _DEFAULT, dict(parameters).get("sort", ""), dict(parameters).get("by", ""))
        choices = [*(("col", key) for key in view.column_keys), ("sort", view.sort.removeprefix("-")), ("by", view.by)]
        for name, key in choices:
            if key and not key.startswith(_ARGUMENT):
                check_word(name, "column", key, _GROUPS if name == "by" else list(_FIGURES))
        return view

    @property
    def columns(self) -> list[RunColumn]:
        return [column_of(key) for key in self.column_keys]

    @property
    def is_newest_first(self) -> bool:
        return not self.sort and not self.by

    @property
    def group_title(self) -> str:
        return column_of(self.by).title

    def order_of(self, key: str) -> str:
        """Return `ascending` or `descending` if a column orders the list, otherwise an empty text."""
        return {key: "ascending", f"-{key}": "descending"}.get(self.sort, "")

    def next_sort(self, key: str) -> str:
        """Return the order that a click on a head selects: highest first, lowest first, newest first."""
        return {f"-{key}": key, key: ""}.get(self.sort, f"-{key}")

    @property
    def is_chosen(self) -> bool:
        return self.column_keys != _DEFAULT

    def pairs(self, **parts: Any) -> Pairs:
        """Return the parameters of the view, or of the same with some parts changed."""
        view = RunsView(**vars(self) | parts)
        single = (("sort", view.sort), ("by", view.by))
        return [*(("col", key) for key in view.column_keys if view.is_chosen), *(pair for pair in single if pair[1])]

    def offered(self, arguments: Sequence[str], *, to_group: bool = False) -> list[RunColumn]:
        """Return the columns to choose from, or to group by: figures, these arguments, and what is chosen already."""
        first, chosen = (_GROUPS, (self.by,)) if to_group else (tuple(_FIGURES), self.column_keys)
        keys = dict.fromkeys([*first, *(_ARGUMENT + argument for argument in arguments), *chosen])
        return [column_of(key) for key in keys if key]

    def ordered(self, lines: Sequence[RunLine]) -> list[RunLine]:
        """Return the runs in the view's order, group by group; equal runs keep their order."""
        value = column_of(self.sort.removeprefix("-")).value
        with_value = [line for line in lines if value(line) is not None]
        with_value.sort(key=lambda line: _order(value(line)), reverse=self.sort.startswith("-"))
        by = column_of(self.by).value
        return sorted(
            [*with_value, *(line for line in lines if value(line) is None)], key=lambda line: _order(by(line))
        )

    def groups(self, lines: Sequence[RunLine]) -> dict[str, RunGroup]:
        """Return each group of ordered runs, by the uid of its first run."""
        if not self.by:
            return {}
        by, by_first_run = column_of(self.by), {}
        for _, part in groupby(lines, lambda line: _order(by.value(line))):
            runs = list(part)
            means = {
                column.key: column.written(fmean(values))
                for column in self.columns
                if column.written is not spelt
                and (values := [value for run in runs if (value := column.value(run)) is not None])
            }
            by_first_run[runs[0].summary.run.uid] = RunGroup(spelt(by.value(runs[0])), len(runs), means)
        return by_first_run


def _order(value: Any) -> tuple[int, Any]:
    if value is None:
        return 2, ""
    return (0, value) if isinstance(value, int | float) else (1, spelt(value))


def differing(configs: Sequence[dict[str, Any]]) -> list[str]:
    """Return the names of the arguments that tell the runs apart, the best known first."""
    names = {name for config in configs for name in config if not name.endswith(_NO_CHOICE)}
    different = [name for name in names if len({repr(config.get(name)) for config in configs}) > 1]
    return sorted(different, key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name))


def told_apart(config: dict[str, Any], names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the first of these arguments that a run has, and their values, for the line under its name."""
    recorded = [(name, spelt(config[name])) for name in names if config.get(name) is not None]
    return [(name, value) for name, value in recorded if len(value) <= _LONGEST and "\n" not in value][:_TOLD]
