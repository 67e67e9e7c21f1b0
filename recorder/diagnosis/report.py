"""Reports all findings of a run, as text, JSON and a DataFrame."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logs_ui.recorder.diagnosis.advice import explaining
from logs_ui.recorder.diagnosis.against import Against
from logs_ui.recorder.diagnosis.card import Card
from logs_ui.recorder.diagnosis.figure_differences import Contrast
from logs_ui.recorder.diagnosis.scale import Scale
from logs_ui.recorder.diagnosis.verdict import TOO_EARLY, Verdict
from logs_ui.recorder.diagnosis.waterfall import Waterfall
from logs_ui.recorder.diagnosis.wording import figure, percent
from logs_ui.recorder.errors import FilterError
from logs_ui.recorder.queries.filters.language import FINDING, READABLE
from logs_ui.recorder.snapshot import visible
from logs_ui.recorder.spelling import misspelt, shortened

if TYPE_CHECKING:
    import pandas as pd

_BAR = 24  # characters


@dataclass(frozen=True)
class Checked:
    """A diagnostic that has no card.

    Attributes:
        state: one of STATES. `cheap`: above its threshold, but it costs too little for a finding; `muted`: a finding
            that the settings mute; `not_judged`: as for
            too few rollouts.
        said: its figure and threshold, or the reason.
        where: a filter that opens the rollouts of that figure; empty for none.
    """

    id: str
    name: str
    state: str
    said: str
    where: str = ""


@dataclass(frozen=True)
class Failed:
    """A diagnostic that raised, and the error in one line."""

    id: str
    name: str
    error: str


@dataclass(frozen=True)
class Report:
    """Why the rewards of a run are low. `print(report)` shows it as text.

    Attributes:
        cards: the findings: faults of the set-up that cost at least a tenth of the loss first, then highest cost first;
            a card that others explain comes after those.
        checked: every diagnostic without a card, those that lack data among them.
        fall: the waterfall: the lost reward by cause.
        scale: the best reward, and what counts as solved.
        steps: the first and the last step that were looked at; None without any.
        scope: the filter that selects all rollouts that were looked at; each card's `where` includes it.
        warming_up: True if there are not enough rollouts yet to judge; there are no cards then.
        run: the run's id; None for rows that come from no database.
        failed: diagnostics that raised, the user's or our own.
        sample: for a large run, how many rollouts of which steps were looked at; None if all were.
        unattributed: model and environment calls that belong to no rollout, so that checks cannot see them.
        attributed: the share of all recorded calls that belong to a rollout, 0 to 1.
        scored_low: explains the loss of rollouts that ended normally; None if it is less than a tenth of the
            loss, if the run does well, or if all rewards are equal.
        verdict: the run in one line.
        environments: the same for each eval of several, the largest first, of at most 8.
        within: the filter that selects what was diagnosed of the run; empty for all of it.
        contrasts: the tables of differences: from the first steps to the last, of low rollouts and better ones within
            groups, and of each category and all others.
        finds: True if `finding:ID` stands for its cards' filters: it is of a whole run, by the settings in force.
        against: compares the run with references; None without any.
        unexplained: the part of that loss in rollouts that no card is about, in reward per rollout; 0 if the rollouts
            of one card lose more.

    Examples:
        >>> import tempfile
        >>> from logs_ui.recorder import diagnose, start_run
        >>> db = f"{tempfile.mkdtemp()}/runs.db"
        >>> with start_run(db=db) as run:
        ...     for i in range(16):
        ...         with run.rollout("What is 1 + 1?") as row:
        ...             row.score(i % 2)
        >>> report = diagnose(run.id, db)
        >>> [card.id for card in report.cards]
        []
        >>> sorted(report.as_dict())[:4]
        ['against', 'best', 'best_is', 'cards']
    """

    cards: tuple[Card, ...]
    fall: Waterfall
    scale: Scale
    steps: tuple[int, int] | None
    scope: str
    warming_up: bool
    run: str | None = None
    failed: tuple[Failed, ...] = ()
    sample: str | None = None
    unattributed: int = 0
    checked: tuple[Checked, ...] = ()
    attributed: float = 1.0
    scored_low: Card | None = None
    unexplained: float = 0.0
    verdict: Verdict = TOO_EARLY
    environments: tuple[tuple[str, Verdict], ...] = ()
    finds: bool = False
    within: str = ""
    contrasts: tuple[Contrast, ...] = ()
    against: Against | None = None

    def opens(self, name: str) -> str:
        """Return the filter that `finding:NAME` stands for. Raise FilterError if there is no such finding."""
        cards = {card.id: card for card in (*self.cards, *([self.scored_low] if self.scored_low else []))}
        if name in cards:
            return cards[name].where
        for check in self.checked:
            if check.id == name:
                needs = "needs " * (check.state == "not_recorded")
                raise FilterError(FINDING, f"{name} is no finding of this run: {needs}{check.said}")
        raise misspelt(FINDING, f"this run has no finding {shortened(name)!r}", name, list(cards))

    def where_of(self, card: Card) -> str:
        """Return a card's filter, to be read or put into an address: `finding:ID` in place of a long one."""
        return f"{FINDING}:{card.id}" if self.finds and not card.by_user and len(card.where) > READABLE else card.where

    @property
    def missing(self) -> tuple[Checked, ...]:
        """Return the diagnostics that lack data; each `said` is what it needs."""
        return tuple(check for check in self.checked if check.state == "not_recorded")

    @property
    def headline(self) -> Card | None:
        """Return the cause with the largest share of the loss: a card that no other one with a cost explains, or
        `scored_low`, if the cards leave most of that unexplained. If no card has a cost it is the first one; None
        without any.
        """
        causes = [card for card in self.cards if card.cost is not None]
        causes = [card for card in causes if explaining(causes, card) is None]
        most = max(causes, key=lambda card: card.cost or 0.0, default=None)
        cost, rest = (candidate.cost or 0.0 if candidate else 0.0 for candidate in (most, self.scored_low))
        if self.unexplained > max(cost, rest / 2):
            return self.scored_low
        return most or next(iter(self.cards), None)

    @property
    def costliest(self) -> Card | None:
        """Return the headline; None if it is `scored_low`, which names no cause."""
        return None if self.headline is self.scored_low else self.headline

    @property
    def basis(self) -> str:
        """Return how many of the checks could judge, and what most of the others lack, as recorded."""
        of, judged = (
            len(self.cards) + len(self.checked),
            [check for check in self.checked if not check.state.startswith("not_")],
        )
        needs = Counter(
            re.split(r",? (?:as|which|that|of|in|one) ", check.said)[0] for check in self.missing
        ).most_common(1)
        count = len(self.cards) + len(judged)
        more = f"; {needs[0][1]} of the others need{'s' * (needs[0][1] == 1)} {needs[0][0]}" if needs else ""
        return f"{count} of {of} checks judged{more}"

    def __str__(self) -> str:
        return "\n".join(" " * line.indent + line.text for line in lines(self))

    def as_dict(self) -> dict[str, Any]:
        """Return what `logs-ui diagnose --json` prints: lists, dicts and finite numbers; see docs/diagnosis.md."""
        fall, first = self.fall, self.scale.success.marks[:1]
        return {
            "run": self.run,
            "cards": [card_values(card) | {"behind": explaining(self.cards, card)} for card in self.cards],
            "warming_up": self.warming_up,
            "verdict": {"id": self.verdict.id, "said": self.verdict.said},
            "environments": [
                {"eval": name, "verdict": {"id": verdict.id, "said": verdict.said}}
                for name, verdict in self.environments
            ],
            "mean": _finite(fall.mean) if self.steps else None,
            "best": None if fall.is_flat else _finite(fall.best),
            "best_is": self.scale.source,
            "solved_at": first[0].at if first and first[0].eval is None else None,
            "solved_is": self.scale.success.description,
            "lost": _finite(fall.lost) if self.steps and not fall.is_flat else None,
            "steps": list(self.steps) if self.steps else None,
            "waterfall": [
                {
                    "id": share.cause.id,
                    "name": share.cause.name,
                    "cost": None if fall.is_flat else share.cost,
                    "rollouts": share.rollouts,
                    "where": " ".join(filter(None, [share.where, self.scope])),
                }
                for share in fall.shares
            ],
            "missing": [{"id": check.id, "name": check.name, "what": check.said} for check in self.missing],
            "checked": [
                {name: getattr(check, name) for name in ("id", "name", "state", "said")} for check in self.checked
            ],
            "failed": [vars(failure) for failure in self.failed],
            "scored_low": card_values(self.scored_low) if self.scored_low else None,
            "sample": self.sample,
            "unattributed_calls": self.unattributed,
            "against": self.against.as_dict() if self.against else None,
        }

    def frame(self) -> "pd.DataFrame":
        """Return the cards as a DataFrame, one row each, in their order.

        The columns are there even without a card: `run`, `id`, `title`, `suggestion` and `where` (`string`), `cost`
        (`float64`, reward lost per rollout; absent if it is no loss), `share` (`float64`, of the rollouts),
        `since_step` (`Int64`, absent if it cannot be told), `evidence` (lists of sentences),
        `is_part` (`bool`, True if the cost is a part of the waterfall), `behind` (`string`, the id of the
        card that may have caused this one; absent without one).
        """
        import pandas as pd

        dtypes = {"run": "string", "id": "string", "title": "string", "cost": "float64", "since_step": "Int64"}
        dtypes |= {"share": "float64", "evidence": "object", "suggestion": "string", "where": "string"}
        dtypes |= {"is_part": "bool", "behind": "string"}
        rows = [
            {**card_values(card), "run": self.run, "is_part": card.is_part, "behind": explaining(self.cards, card)}
            for card in self.cards
        ]
        return pd.DataFrame({name: pd.Series([row[name] for row in rows], dtype=kind) for name, kind in dtypes.items()})


@dataclass(frozen=True)
class Line:
    """Holds one line of a report's text."""

    text: str = ""
    style: str = ""  # a style of rich
    indent: int = 0
    is_copied: bool = False  # True if the line must not be wrapped, as an address or a filter


def lines(report: Report, address: Callable[[Card], str | None] = lambda _: None) -> Iterator[Line]:
    """Yield the report's text, from the mean reward to what was not recorded. `address` returns the address of the page
    with a card's rollouts; None if there is none.
    """
    yield from _headline(report)
    if report.against is not None:
        yield from _against(report.against)
    if report.fall.shares:
        yield Line()
        yield from _waterfall(report)
    rest = [report.scored_low] if report.scored_low is not None else []
    for number, card in enumerate([*report.cards, *rest], 1):
        yield Line()
        name = card.id + ", your own diagnostic" * card.by_user
        yield Line(f"{f'{number}. ' if card not in rest else ''}{visible(card.title)} [{name}]", "bold")
        for line in card_lines(report, card):
            yield Line(line.text, line.style, 3, line.is_copied)
        if opens := address(card):
            yield Line(opens, "cyan", 3, is_copied=True)
    yield from _unfound(report)
    if report.sample is not None:
        yield Line(f"Large run, diagnosed from a sample: {report.sample}.", "dim")
    if report.unattributed:
        yield Line(f"{unattributed_said(report.unattributed)} docs/recording.md, 'How calls find their row'.", "yellow")
    for failed in report.failed:
        yield Line(f"The diagnostic {visible(failed.id)} failed: {visible(failed.error)}", "red")


_UNFOUND: Mapping[str, tuple[str, str, Callable[[Checked], str]]] = {
    "below": ("Checked, no finding", ", ", lambda check: check.name),
    "cheap": ("Above threshold, at little cost", " ", lambda check: check.said),
    "muted": ("Muted", " ", lambda check: check.said),
    "not_judged": ("Not judged", "; ", lambda check: f"{check.name} ({check.said.rstrip('.')})"),
    "not_recorded": ("Not recorded, so not checked", "; ", lambda check: f"{check.name} (needs {check.said})"),
}
STATES = tuple(_UNFOUND)


def _unfound(report: Report) -> Iterator[Line]:
    """Yield the checks without a card: names of those below their threshold, and why others could not judge."""
    if report.checked or report.failed:
        yield Line()
    for state, (words, join, write) in _UNFOUND.items():
        if texts := [write(check) for check in report.checked if check.state == state]:
            yield Line(f"{words}: {visible(join.join(texts).rstrip('.'))}.", "dim")


def unattributed_said(calls: int) -> str:
    """Return the warning that a run has unattributed calls."""
    text = "1 model or environment call" if calls == 1 else f"{calls:,} model or environment calls"
    return f"{text} could not be matched to a rollout: some rollouts lack actions or turns, and checks may miss faults."


def card_lines(report: Report, card: Card) -> list[Line]:
    """Return the text of one of a report's cards, below its title."""
    behind = ", ".join(other.id for other in report.cards if card.id in other.explains)
    than = card.than and f", more than {card.than}"
    lost = "" if card.cost is None else f"reward lost per rollout{than}: {figure(card.cost)}"
    overlap = lost and ("in the bars above" if card.is_part else "no bar of its own")
    caused = behind and f"may be caused by {behind}"
    lines = [Line(" · ".join(filter(None, (lost or card.extent, card.began, overlap, caused))), "dim")]
    lines += [Line(visible(sentence)) for sentence in card.evidence]
    lines.append(Line(f"→ {visible(card.suggestion)}", "green"))
    if card.where:
        lines.append(Line(visible(report.where_of(card)), "cyan", is_copied=True))
    return lines


def card_values(card: Card) -> dict[str, Any]:
    """Return the card as JSON has it."""
    names = (
        "id", "title", "cost", "than", "share", "since_step", "half_step", "evidence", "suggestion", "where", "by_user",
    )  # fmt: skip
    between = list(card.since_range) if card.since_range else None
    return {name: getattr(card, name) for name in names} | {"evidence": list(card.evidence), "since_range": between}


def _headline(report: Report) -> Iterator[Line]:
    if report.steps is None:
        yield Line(f"Run {visible(report.run)}: no rollout has ended yet.", "bold")
        return
    first, last = report.steps
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    yield Line(f"Run {visible(report.run)}, {steps}", "bold")
    yield Line(f"{visible(report.verdict.said)}.", "bold green" if report.verdict.is_good else "bold yellow")
    for name, verdict in report.environments:
        yield Line(f"{visible(name)}: {visible(verdict.said)}.", "green" if verdict.is_good else "yellow", 2)
    if report.checked:
        yield Line(f"{visible(report.basis)}.", "dim")
    fall, best_is = report.fall, visible(report.scale.source)
    mean, best, lost = figure(fall.mean), f"{fall.best:.4g}", figure(fall.lost)
    if math.isnan(fall.mean):
        yield Line("Without a reward it cannot be said why rewards are low.", "yellow")
    elif fall.is_flat:
        yield Line(f"Mean reward {mean}, no scale: {best_is}. Shares of rollouts take the place of costs.", "bold")
    else:
        yield Line(f"Mean reward {mean}, best {best} ({best_is}): {lost} lost per rollout.", "bold")
    yield Line(f"Solved: {visible(report.scale.success.description)}.", "dim")
    most = report.costliest
    if most is not None and most is not report.cards[0]:
        yield Line(f"Largest cause: {visible(most.title)}.", "bold")


def _against(against: Against) -> Iterator[Line]:
    count = len(against.references)
    yield Line(f"Against {count} reference{'s' * (count != 1)}: {visible(against.verdict)}.", "bold")
    for compared_figure in against.figures if against.id == "not_judged" else ():
        yield Line(f"{compared_figure.difference:>9}  {visible(compared_figure.description)}", "", 2, is_copied=True)
    if against.notes:
        yield Line(visible(against.notes), "dim")


def _waterfall(report: Report) -> Iterator[Line]:
    shares = report.fall.shares
    name = max(len(share.cause.name) for share in shares)
    costs = [percent(share.cost) if report.fall.is_flat else f"\N{MINUS SIGN}{figure(share.cost)}" for share in shares]
    counts = [f"{share.rollouts:,} rollouts" for share in shares]
    yield Line("Rollouts, by what ended them:" if report.fall.is_flat else "Reward lost per rollout, by cause:")
    for share, cost, count in zip(shares, costs, counts, strict=True):
        bar = "█" * max(1, round(_BAR * share.cost / max(share.cost for share in shares)))
        figures = f"{cost:>{max(map(len, costs))}}  {count:>{max(map(len, counts))}}"
        yield Line(f"{share.cause.name:<{name}}  {bar:<{_BAR}}  {figures}", indent=2, is_copied=True)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
