"""All diagnostics over one run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from logs_ui.recorder.diagnosis import (
    constant_reward,
    dead_groups,
    degenerate_text,
    diversity,
    infrastructure,
    invalid_reward,
    length,
    loops,
    mismatch,
    never_acted,
    no_update,
    parse_failures,
    reward_parts,
    signal_cliff,
    staleness,
    tasks,
    truncation,
    turn_limit,
    wiring,
)
from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, Trend
from logs_ui.recorder.diagnosis.rows import Rows
from logs_ui.recorder.diagnosis.settings import Scale, Settings
from logs_ui.recorder.diagnosis.waterfall import Waterfall, waterfall

DIAGNOSTICS: tuple[Diagnostic, ...] = (
    infrastructure.DIAGNOSTIC,
    invalid_reward.DIAGNOSTIC,
    wiring.DIAGNOSTIC,
    parse_failures.DIAGNOSTIC,
    truncation.DIAGNOSTIC,
    loops.DIAGNOSTIC,
    turn_limit.DIAGNOSTIC,
    never_acted.DIAGNOSTIC,
    constant_reward.DIAGNOSTIC,
    dead_groups.DIAGNOSTIC,
    signal_cliff.DIAGNOSTIC,
    reward_parts.DIAGNOSTIC,
    tasks.NEVER_SOLVED,
    tasks.TASK_MIX,
    length.DIAGNOSTIC,
    diversity.DIAGNOSTIC,
    degenerate_text.DIAGNOSTIC,
    mismatch.DIAGNOSTIC,
    staleness.DIAGNOSTIC,
    no_update.DIAGNOSTIC,
)
_FEW_ROLLOUTS, _FEW_STEPS = 32, 2
_CHEAP = 0.01  # of the way from the mean to the best: less is not worth a card


@dataclass(frozen=True)
class Missing:
    """A diagnostic that could not be made, and what it lacks."""

    id: str
    name: str
    what: str


@dataclass(frozen=True)
class Report:
    """Why the rewards of a run are low.

    Attributes:
        cards: what explains others first, then by cost, dearest first.
        missing: what was not recorded.
        fall: where the reward went.
        steps: first and last of those looked at; None without any.
        warming_up: whether there is too little to judge yet; there are no cards then.
    """

    cards: tuple[Card, ...]
    missing: tuple[Missing, ...]
    fall: Waterfall
    scale: Scale
    steps: tuple[int, int] | None
    warming_up: bool


def diagnose_rows(
    rows: Rows,
    settings: Settings | None = None,
    config: Mapping[str, Any] | None = None,
    scalars: Mapping[str, Trend] | None = None,
    diagnostics: tuple[Diagnostic, ...] = DIAGNOSTICS,
) -> Report:
    """What is wrong in the last steps.

    Args:
        rows: of all steps.
        settings: None: as each diagnostic has it.
        config: the trainer's arguments.
        scalars: what it logged.
        diagnostics: which to make.
    """
    settings = settings or Settings()
    last = rows.last_steps(settings.steps, _FEW_ROLLOUTS)
    scale = Scale.of(rows, settings)
    run = Run(last, rows, scale, waterfall(last, scale), settings, config or {}, scalars or {})
    steps = (int(last.steps[0]), int(last.steps[-1])) if len(last) else None
    if len(rows) < _FEW_ROLLOUTS or len(rows.steps) < _FEW_STEPS:
        return Report((), (), run.fall, scale, steps, warming_up=True)
    lacks = {it.id: Missing(it.id, it.name, what) for it in diagnostics if (what := it.missing(run)) is not None}
    found = [card for it in diagnostics if it.id not in lacks and (card := it.look(run)) is not None]
    worth = [card for card in found if card.cost > _CHEAP * max(run.fall.lost, 0)]
    return Report(_ordered(worth), tuple(lacks.values()), run.fall, scale, steps, warming_up=False)


def _ordered(cards: list[Card]) -> tuple[Card, ...]:
    """By cost; what another explains, right behind what explains it at the earliest."""
    by_cost = sorted(cards, key=lambda card: -card.cost)
    explained = {
        name: max(card.cost for card in by_cost if name in card.explains) for it in by_cost for name in it.explains
    }
    ceiling = {card.id: min(card.cost, explained.get(card.id, card.cost)) for card in by_cost}
    return tuple(sorted(by_cost, key=lambda card: (-ceiling[card.id], card.id in explained)))
