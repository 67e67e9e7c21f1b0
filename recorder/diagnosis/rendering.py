"""A report as text, as a dict for JSON, and as a table."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logs_ui.recorder.diagnosis.card import Card
from logs_ui.recorder.diagnosis.waterfall import LITTLE
from logs_ui.recorder.diagnosis.wording import figure

if TYPE_CHECKING:
    import pandas as pd

    from logs_ui.recorder.diagnosis.report import Report

_BAR = 24  # characters


@dataclass(frozen=True)
class Line:
    """One of a report's text.

    Attributes:
        style: as rich calls it.
        is_copied: whether it must not be broken, as an address or a filter.
    """

    text: str = ""
    style: str = ""
    indent: int = 0
    is_copied: bool = False


def lines(report: "Report", address: Callable[[Card], str | None] = lambda _: None) -> Iterator[Line]:
    """What it says, from the mean reward to what was not recorded.

    Args:
        report: of a run.
        address: of the page that has a card's rollouts; None where there is none.
    """
    yield from _headline(report)
    if report.fall.shares:
        yield Line()
        yield from _waterfall(report)
    for number, card in enumerate(report.cards, 1):
        yield Line()
        yield from _card(report, number, card, address(card))
    if report.missing or report.failed:
        yield Line()
    if report.missing:
        said = "; ".join(f"{it.name} (needs {it.what})" for it in report.missing)
        yield Line(f"Not recorded, so not judged: {visible(said)}.", "dim")
    if report.sample is not None:
        yield Line(f"So large a run is looked at in part: {report.sample}.", "dim")
    if report.unattributed:
        yield Line(f"{unattributed_said(report.unattributed)} docs/recording.md, 'How calls find their row'.", "yellow")
    for failed in report.failed:
        yield Line(f"The diagnostic {visible(failed.id)} failed: {visible(failed.error)}", "red")


def unattributed_said(calls: int) -> str:
    """What a reader of the diagnosis has to know of calls that are no rollout's."""
    said = "1 call of the model or an environment belongs" if calls == 1 else f"{calls:,} calls belong"
    return f"{said} to no rollout: some rollouts lack actions or turns, and checks that go by these may miss something."


def as_text(report: "Report") -> str:
    """For `print`."""
    return "\n".join(" " * line.indent + line.text for line in lines(report))


def as_dict(report: "Report") -> dict[str, Any]:
    """See `Report.as_dict`."""
    fall = report.fall
    return {
        "run": report.run,
        "cards": [card_values(card) for card in report.cards],
        "warming_up": report.warming_up,
        "mean": _finite(fall.mean) if report.steps else None,
        "best": _finite(fall.best),
        "best_is": report.scale.said,
        "solved_at": _finite(report.scale.solved),
        "lost": _finite(fall.lost) if report.steps else None,
        "steps": list(report.steps) if report.steps else None,
        "waterfall": [
            {
                "id": it.cause.id,
                "name": it.cause.name,
                "cost": it.cost,
                "rollouts": it.rollouts,
                "where": " ".join(filter(None, [it.where, report.scope])),
            }
            for it in fall.shares
        ],
        "missing": [vars(it) for it in report.missing],
        "failed": [vars(it) for it in report.failed],
        "sample": report.sample,
        "unattributed_calls": report.unattributed,
    }


def as_frame(report: "Report") -> "pd.DataFrame":
    """See `Report.frame`."""
    import pandas as pd

    dtypes = {"run": "string", "id": "string", "title": "string", "cost": "float64", "since_step": "Int64"}
    dtypes |= {"evidence": "object", "suggestion": "string", "where": "string", "is_part": "bool", "behind": "string"}
    rows = [
        {**card_values(card), "run": report.run, "is_part": card.is_part, "behind": explaining(report.cards, card)}
        for card in report.cards
    ]
    return pd.DataFrame({name: pd.Series([row[name] for row in rows], dtype=kind) for name, kind in dtypes.items()})


def explaining(cards: Iterable[Card], card: Card) -> str | None:
    """The id of the first card above it that this one is only a consequence of."""
    return next((it.id for it in cards if card.id in it.explains), None)


def card_lines(card: Card, behind: str | None = None) -> list[Line]:
    """What a card says below its title."""
    facts = [f"costs {figure(card.cost)} for each rollout"]
    facts += [card.began] if card.began else []
    facts += ["part of the waterfall" if card.is_part else "overlaps with others"]
    facts += [f"may follow from {behind}"] if behind else []
    said = [Line(" · ".join(facts), "dim")]
    said += [Line(visible(one)) for one in card.evidence]
    said.append(Line(f"→ {visible(card.suggestion)}", "green"))
    if card.where:
        said.append(Line(visible(card.where), "cyan", is_copied=True))
    return said


def visible(said: object) -> str:
    """In one line, without what a terminal would obey: tasks and errors are other people's texts."""
    line = " ".join(str(said).split())
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line)


def _headline(report: "Report") -> Iterator[Line]:
    if report.steps is None:
        yield Line(f"Run {visible(report.run)}: no rollout has come to its end yet.", "bold")
        return
    first, last = report.steps
    of = f"step {first}" if first == last else f"steps {first} to {last}"
    yield Line(f"Run {visible(report.run)}, {of}", "bold")
    fall, said = report.fall, report.scale.said
    yield Line(
        f"Mean reward {figure(fall.mean)}, best {figure(fall.best)} ({said}): {figure(fall.lost)} is lost.", "bold"
    )
    if report.warming_up:
        yield Line("Warming up: too little is recorded yet to judge it.", "yellow")
    elif not report.cards and fall.lost <= LITTLE * abs(fall.best):
        yield Line("Healthy: no diagnostic is above its threshold.", "green")
    elif not report.cards:
        yield Line("No diagnostic is above its threshold; what was lost went to the causes below.", "yellow")


def _waterfall(report: "Report") -> Iterator[Line]:
    shares = report.fall.shares
    name = max(len(share.cause.name) for share in shares)
    costs = [f"\N{MINUS SIGN}{figure(share.cost)}" for share in shares]
    counts = [f"{share.rollouts:,} rollouts" for share in shares]
    yield Line("Where it went, for each rollout:")
    for share, cost, count in zip(shares, costs, counts, strict=True):
        bar = "█" * max(1, round(_BAR * share.cost / max(it.cost for it in shares)))
        figures = f"{cost:>{max(map(len, costs))}}  {count:>{max(map(len, counts))}}"
        yield Line(f"{share.cause.name:<{name}}  {bar:<{_BAR}}  {figures}", indent=2, is_copied=True)


def _card(report: "Report", number: int, card: Card, address: str | None) -> Iterator[Line]:
    yield Line(f"{number}. {visible(card.title)} [{card.id}]", "bold")
    for line in card_lines(card, explaining(report.cards, card)):
        yield Line(line.text, line.style, 3, line.is_copied)
    if address:
        yield Line(address, "cyan", 3, is_copied=True)


def card_values(card: Card) -> dict[str, Any]:
    """As JSON has it."""
    return {
        "id": card.id,
        "title": card.title,
        "cost": card.cost,
        "since_step": card.since_step,
        "evidence": list(card.evidence),
        "suggestion": card.suggestion,
        "where": card.where,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
