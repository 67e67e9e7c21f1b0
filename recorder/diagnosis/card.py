"""Defines the diagnosis' three basic types: a run to check, a check (`Diagnostic`) and its finding (`Card`)."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from logs_ui.recorder.diagnosis.rollout_rows import Bools, Floats, Rows
from logs_ui.recorder.diagnosis.scale import Scale
from logs_ui.recorder.diagnosis.setting_switches import Switch, list_switches
from logs_ui.recorder.diagnosis.task_families import with_families
from logs_ui.recorder.diagnosis.waterfall import Waterfall, losses
from logs_ui.recorder.diagnosis.wording import exact_percent, percent
from logs_ui.recorder.settings import SHARE, Limits, Settings
from logs_ui.recorder.vocabulary import Lack

_ENOUGH = 16  # rollouts [ours]
_COVERED = 0.8  # of the calls [ours]

Trend = tuple[tuple[int, float], ...]
"""(step, value), oldest first."""


ReadLabels = Callable[[Rows], Mapping[str, Sequence[str | None]]]
"""Returns (N,) texts of some rollouts, by name: see `Run.labels`."""


class Texts(NamedTuple):
    """Holds what a rollout said and heard, as `queries.Rollout` has it."""

    messages: Sequence[Mapping[str, Any]]
    actions: Sequence[Mapping[str, Any]]  # without the calls of reward functions
    sampling: Mapping[str, Any] = MappingProxyType({})  # parameters of its generations
    metrics: Mapping[str, float | None] = MappingProxyType({})
    dataset_prompt: Sequence[Mapping[str, Any]] = ()  # where another was sent
    dataset: Mapping[str, str] = MappingProxyType({})  # texts among the columns of the dataset


ReadTexts = Callable[[Sequence[int]], Mapping[int, Texts]]
"""Returns the texts of rollouts by id; those that are not stored are left out."""
ReadEvaluated = Callable[[str], Mapping[int, Texts]]
"""Returns the same of some rollouts of the evaluations, by the name of the eval."""

ReadPromptEnds = Callable[[Sequence[int]], Mapping[int, str]]
"""Returns what the last tokens of prompts decode to, by the rollout's id; those that are not known are left out."""


def read_nothing(_: Any) -> Mapping[Any, Any]:
    """Return no labels and no texts: of rollouts that are not read from a database."""
    return {}


@dataclass(frozen=True)
class Run:
    """The run that a check looks at.

    Attributes:
        rows: rollouts of the last steps (`Settings.steps`, or more until there are enough rollouts).
        all: rollouts of all steps.
        scale: the best reward, and what counts as solved.
        fall: the waterfall of `rows`: the reward that was lost, by cause.
        settings: the user's settings.
        config: the trainer's arguments.
        scalars: what the trainer logged, by name: the finite values.
        attributed: the share of the recorded model and environment calls that belong to a rollout, 0 to 1.
        read_labels: reads the `labels` of rollouts.
        read_texts: reads the texts of rollouts, which takes some 0.1 ms each.
        read_prompt_ends: reads the last tokens of rollouts' prompts, as they were sent, which takes a second.
        read_arithmetic: audits the newest of `rows`, which takes about 1 ms each.
        not_finite: the steps at which the trainer logged NaN or an infinity, by name.
        evaluations: mean rewards of the evaluations during the training, by the name of the eval.
        read_evaluated: reads the texts of some rollouts of these.
        evaluated: ended rollouts of the evaluations during the training; None without any.
    """

    rows: Rows
    all: Rows
    scale: Scale
    fall: Waterfall
    settings: Settings
    config: Mapping[str, Any] = field(default_factory=dict)
    scalars: Mapping[str, Trend] = field(default_factory=dict)
    attributed: float = 1.0
    read_labels: ReadLabels = read_nothing
    read_texts: ReadTexts = read_nothing
    read_prompt_ends: ReadPromptEnds = read_nothing
    read_arithmetic: "ReadArithmetic | None" = None
    not_finite: Mapping[str, Sequence[int]] = field(default_factory=dict)
    evaluations: Mapping[str, Trend] = field(default_factory=dict)
    read_evaluated: ReadEvaluated = read_nothing
    evaluated: Rows | None = None

    def sample(self, of: Bools, count: int) -> Mapping[int, Texts]:
        """Return the texts of at most `count` rollouts, spread evenly over those of all steps of which (N,) `of` is
        True.
        """
        ids = self.all.id[of].tolist()
        places = np.unique(np.linspace(0, len(ids) - 1, count).astype(int)).tolist()
        return self.read_texts([ids[place] for place in places]) if ids else {}

    @cached_property
    def labels(self) -> Mapping[str, Sequence[str | None]]:
        """Return the rank and the attributes of each of `rows`, (N,) by the name that a filter has for them: `rank`,
        `metadata.level`. None for a rollout without it. They are read when they are first asked for.
        """
        return self.read_labels(self.rows)

    @cached_property
    def labels_of_all(self) -> Mapping[str, Sequence[str | None]]:
        """Return the same of each of `all`."""
        return self.read_labels(self.all)

    @cached_property
    def has_observations(self) -> bool:
        """Return True if any rollout's observations are recorded."""
        return any(self.all.facts["observation_keys"].tolist())

    @cached_property
    def families(self) -> Rows | None:
        """Return `all` with families in place of tasks; None if names show none."""
        return with_families(self.all)

    @cached_property
    def switches(self) -> Sequence[Switch]:
        """Return the changes of recorded settings during the run."""
        return tuple(list_switches(self.all, self.labels_of_all))

    @cached_property
    def lost(self) -> Floats:
        """Return (N,) reward that each of `rows` lost; 0 above the best."""
        lost: Floats = np.maximum(losses(self.rows, self.scale), 0.0)
        return lost

    @cached_property
    def windows(self) -> tuple[Rows, Rows] | None:
        """Return the rollouts of the first steps and of as many last steps; None for a single step. If the last steps
        are more than half of the run, its first and its last third are compared.
        """
        steps, count = self.all.steps, len(self.rows.steps)
        if len(steps) < 2:
            return None
        if 2 * count <= len(steps):
            return self.all.where(self.all.step <= steps[count - 1]), self.rows
        third = max(len(steps) // 3, 1)
        return self.all.where(self.all.step <= steps[third - 1]), self.all.where(self.all.step >= steps[-third])

    @cached_property
    def current(self) -> Mapping[str, Trend]:
        """Return those of `scalars` that are numbers now: not those that are NaN or infinite at all of the last steps
        at which they were logged, whose earlier values say nothing about these.
        """
        first = self.rows.steps[0] if len(self.rows) else 0
        broken = {name for name, steps in self.not_finite.items() if steps and steps[-1] >= first}
        return {name: trend for name, trend in self.scalars.items() if name not in broken or trend[-1][0] >= first}

    def threshold(self, diagnostic: str, default: float) -> float:
        """Return the user's threshold for a diagnostic, or the default if none is set."""
        return self.settings.thresholds.get(diagnostic, default)

    @property
    def imported(self) -> Mapping[str, Any] | None:
        """Return what is known about the files of an imported run; None for a recorded one."""
        files = self.config.get("import")
        return files if isinstance(files, dict) and "format" in files else None

    def lacking(self, data: Lack) -> str | None:
        """Return a sentence's part for `Diagnostic.missing` if the run's files do not hold this; else None."""
        is_lacking = self.imported is not None and data in self.imported.get("lacks", ())
        return f"{data}, which the imported files do not hold" if is_lacking else None

    def recent(self, trend: Trend) -> Trend:
        """Return the finite points of the last steps; the latest one before if nothing was logged at those."""
        points = tuple(point for point in trend if math.isfinite(point[1]))
        return tuple(point for point in points if point[0] >= self.rows.steps[0]) or points[-1:]

    def cost_of(self, cause: str) -> float:
        """Return the reward per rollout that the waterfall counts under a cause; 0 if it has none."""
        return sum(share.cost for share in self.fall.shares if share.cause.id == cause)


@dataclass(frozen=True)
class Card:
    """Describes one finding: a reason why rewards are low.

    Attributes:
        id: the id of its diagnostic.
        title: the problem in one line, with its figure.
        cost: reward lost per rollout of the last steps, at most the whole loss. Costs that are part of the waterfall
            add up; others overlap. In a report it is None if all rewards are equal, or the finding is no loss.
        evidence: sentences with the figures that support the finding.
        suggestion: what to change.
        where: the filter that opens its rollouts; empty for all of them.
        is_part: True if the cost is a part of the waterfall.
        trend: the figure that is compared with the threshold, by step.
        since_step: the step since which the figure is beyond the threshold, or worse than before: a change point, or
            the trend's first step; None if it cannot be told, or if it is no longer so.
        since_range: the steps between which that change lies with 95% confidence; None without a change.
        by_user: True in a report if a diagnostic of the user's found it, whose text is not ours.
        half_step: of a figure that rose bit by bit, the step since which at least half of the rise of `trend` is there,
            from its mean over the first steps to that over the last; else None.
        limit: the threshold, if it is one number that `trend` can be drawn against.
        explains: ids of cards that may be caused by this one, besides those of `explanations.EXPLAINS`. Such a card is
            listed below this one if the rollouts of all cards that explain it hold at least half of its loss. In a
            report only the ids of cards that are really below are left.
        own: (N,) True for the rollouts of the last steps that the card is about; None for all.
        own_of_all: the same of each rollout of the run, where a check can tell it; else None.
        is_setup: True for a fault of the training's set-up, which training cannot repair. It is listed before the
            policy's own faults if it costs at least a tenth of the loss.
        needs: the share of its loss that one single card must hold to explain it (infinity: none ever does); None for
            the usual half, which several cards may hold together.
        is_loss: False for a fault that costs no reward by itself (such as noise in a reward, or rows in the wrong
            groups): a report gives the share of its rollouts, and the cost given here only puts it in order.
        share: share of the rollouts of the last steps that it is about, 0 to 1; None: a report
            computes it from `own`.
        clause: what those rollouts have in common, as "have 501+ tokens per turn", where the title does not say it.
        measure: what `trend` is a figure of, where that is no share of rollouts, as "tokens per turn".
        than: what the cost is more than, as "before", if it is not lost against the best reward; a report adds "other
            rollouts" where they lose so much less.
        is_of_evaluations: True for a finding about the evaluations, which has none of these rollouts.
        may_remain: True for a finding that is no fault of a run whose outcome rises: it learns in spite of it.
        is_least: True if it may be about more rollouts than can be told.
        eval: the eval that it was found in alone, where the whole run of several hides it; empty for others.

    Examples:
        >>> from logs_ui.recorder import Card
        >>> card = Card("gave_up", "30% of rollouts end after one turn", 0.2, ("12 of 40.",), "Read them.", "turns<=1")
        >>> card.is_part, card.since_step
        (False, None)
    """

    id: str
    title: str
    cost: float | None
    evidence: tuple[str, ...]
    suggestion: str
    where: str
    is_part: bool = False
    trend: Trend = ()
    since_step: int | None = None
    limit: float | None = None
    explains: tuple[str, ...] = ()
    own: Bools | None = field(default=None, repr=False, compare=False)
    own_of_all: Bools | None = field(default=None, repr=False, compare=False)
    is_setup: bool = False
    needs: float | None = None
    is_loss: bool = True
    share: float | None = None
    since_range: tuple[int, int] | None = None
    half_step: int | None = None
    by_user: bool = False
    clause: str = ""
    measure: str = ""
    than: str = ""
    is_of_evaluations: bool = False
    may_remain: bool = False
    is_least: bool = False
    eval: str = ""

    @property
    def extent(self) -> str:
        """Return the share of rollouts that it is about, and what they have in common."""
        share = f"{'at least ' * self.is_least}{percent(self.share or 0.0)} of rollouts {self.clause}".rstrip()
        return "in the evaluations" if self.is_of_evaluations else share

    @property
    def began(self) -> str:
        """Return `since step 16 (between 14 and 19)`, `worse since ...` if it was beyond the threshold before, too, or
        `from the first step on`; of a figure that rose bit by bit, also since when half of the rise was there; "" if
        the step is not known.
        """
        if self.since_step is None:
            return ""
        before = [value for step, value in self.trend if step < self.since_step]
        if self.trend and not before:
            return f"from the first {'evaluation' if self.is_of_evaluations else 'step'} on"
        is_worse = self.limit is not None and bool(before) and float(np.median(before)) > self.limit
        first, last = self.since_range or (self.since_step, self.since_step)
        between = f" (between {first:,} and {last:,})" if first < last else ""
        rise = f"half of the rise{self.measure and f' in {self.measure}'}"
        half = "" if self.half_step in {None, self.since_step} else f", {rise} since step {self.half_step:,}"
        return f"{'worse ' if is_worse else ''}since step {self.since_step:,}{between}{half}"


@dataclass(frozen=True)
class Below:
    """A check that looked and found nothing: its figure and threshold in one sentence.

    Attributes:
        where: a filter that opens the rollouts of that figure; empty for none.
    """

    said: str
    where: str = ""


@dataclass(frozen=True)
class NotJudged:
    """A check that could not judge, such as for too few rollouts: the reason in one sentence.

    Attributes:
        for_lack: what the check would need to judge; if an imported run's files do not hold it, that is the reason.
    """

    said: str
    for_lack: Lack | None = None


SOLVED_UNDEFINED = NotJudged("What counts as solved is not defined: set solved_at.")

Outcome = Card | Below | NotJudged | None
"""Of a check; None is `Below` without a figure."""
ReadArithmetic = Callable[[Run], Outcome]
"""Returns what an audit says of the newest of `Run.rows`."""


@dataclass(frozen=True)
class Diagnostic:
    """Defines one check: a known way for rewards to be low, and how to recognise it. The files in `checks/` define
    them.

    Attributes:
        id: its name in settings, filters and reports.
        name: its heading.
        definition: what it computes, with its threshold.
        source: where the threshold comes from.
        missing: returns what the check needs that was not recorded, in words; None if everything is there.
        look: returns the card; if nothing is wrong, `Below` with its figure, or None; `NotJudged` with the reason if
            it cannot tell.
        limits: the lowest and the highest value that its threshold may have; None for any number.
        needs_calls: True if it looks at actions, turns or their ends. If under 80% of the calls are attributed, it is
            not judged unless it returns a card.

    Examples:
        A check that reports rollouts of a single turn:

        >>> import numpy as np
        >>> from logs_ui.recorder import Card, Diagnostic
        >>> def look(run):
        ...     gave_up = run.rows.turns <= 1
        ...     share = float(gave_up.mean())
        ...     if share <= run.threshold("gave_up", 0.2):
        ...         return None
        ...     title = f"{share:.0%} of rollouts end after one turn"
        ...     return Card("gave_up", title, run.fall.lost * share, (), "Read their only answers.", "turns<=1")
        >>> check = Diagnostic(
        ...     id="gave_up",
        ...     name="Gave up",
        ...     definition="Share of rollouts with a single turn, above 20%.",
        ...     source="ours",
        ...     missing=lambda run: None if np.isfinite(run.rows.turns).any() else "turns",
        ...     look=look,
        ... )

        Pass it as `diagnose(diagnostics=[check])`, or as `logs-ui diagnose --diagnostics module:check`.
    """

    id: str
    name: str
    definition: str
    source: str
    missing: Callable[[Run], str | None]
    look: Callable[[Run], Outcome]
    limits: Limits | None = None
    needs_calls: bool = False


def check(
    id: str, name: str, definition: str, missing: Callable[[Run], str | None], look: Callable[[Run], Outcome], *,  # noqa: A002
    source: str = "ours", limits: Limits | None = SHARE, needs_calls: bool = False,
) -> Diagnostic:  # fmt: skip
    """Return a diagnostic that comes with logs-ui: most thresholds are shares, and ours."""
    return Diagnostic(id, name, definition, source, missing, look, limits, needs_calls)


def needs(data: str, has: Callable[[Run], Any], lack: Lack | None = None) -> Callable[[Run], str | None]:
    """Return a diagnostic's `missing`: what it needs, unless `has` is true of the run, or of any of its rollouts; and
    what the files of an imported run do not hold, if that is `lack`.
    """
    return lambda run: data if not np.any(has(run)) else run.lacking(lack) if lack else None


def finite(scalars: Mapping[str, Trend]) -> dict[str, Trend]:
    """Return the finite points of each curve; without any, the curve is left out."""
    points = {name: tuple(point for point in trend if math.isfinite(point[1])) for name, trend in scalars.items()}
    return {name: trend for name, trend in points.items() if trend}


def since(trend: Trend, is_bad: Callable[[float], bool]) -> int | None:
    """Return the first step of the last unbroken run of bad values; None if the last value is good."""
    first = None
    for step, value in reversed(trend):
        if not is_bad(value):
            break
        first = step
    return first


def quiet(share: float, clause: str, limit: float, why: str = "they do as well as the others") -> Below:
    """Return the outcome of a check whose share is below its threshold, or that is silent for another reason."""
    reason = f"; {why}" if share > limit else ""
    return Below(f"{exact_percent(share)} {clause} (threshold {exact_percent(limit)}){reason}.")


def too_few(is_known: Bools, data: str) -> NotJudged | None:
    """Return the outcome if fewer than 16 of the rollouts, and not all of them, have what a check looks at."""
    count = int(is_known.sum())
    if count >= min(_ENOUGH, len(is_known)):
        return None
    return NotJudged(f"Only {count:,} of {len(is_known):,} rollouts have {data}.")


def uncovered(run: Run) -> NotJudged | None:
    """Return the outcome of a check of actions or turns if too many calls are unattributed; None if it can judge."""
    if run.attributed >= _COVERED:
        return None
    return NotJudged(f"Only {percent(run.attributed)} of the model and environment calls are attributed to a rollout.")
