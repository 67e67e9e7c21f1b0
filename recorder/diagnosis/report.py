"""All diagnostics over one run."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run, Trend
from logs_ui.recorder.diagnosis.checks import (
    constant_reward,
    dead_groups,
    degenerate_text,
    disagreement,
    diversity,
    forgotten,
    hacking,
    inconsistent,
    infrastructure,
    invalid_reward,
    length,
    loops,
    mismatch,
    never_acted,
    no_update,
    parse_failures,
    reward_functions,
    signal_cliff,
    staleness,
    task_mix,
    truncation,
    turn_limit,
    wiring,
)
from logs_ui.recorder.diagnosis.contrast import spread
from logs_ui.recorder.diagnosis.rendering import as_dict, as_frame, as_text
from logs_ui.recorder.diagnosis.rollout_rows import Bools, Floats, Rows
from logs_ui.recorder.diagnosis.scale import Scale
from logs_ui.recorder.diagnosis.waterfall import Waterfall, losses, waterfall
from logs_ui.recorder.settings import Settings

if TYPE_CHECKING:
    import pandas as pd

DIAGNOSTICS: tuple[Diagnostic, ...] = (
    infrastructure.DIAGNOSTIC,
    invalid_reward.DIAGNOSTIC,
    wiring.DIAGNOSTIC,
    mismatch.DIAGNOSTIC,
    staleness.DIAGNOSTIC,
    no_update.DIAGNOSTIC,
    disagreement.DIAGNOSTIC,
    inconsistent.DIAGNOSTIC,
    parse_failures.DIAGNOSTIC,
    truncation.DIAGNOSTIC,
    loops.DIAGNOSTIC,
    task_mix.TASK_MIX,
    task_mix.NEVER_SOLVED,
    turn_limit.DIAGNOSTIC,
    never_acted.DIAGNOSTIC,
    diversity.DIAGNOSTIC,
    degenerate_text.DIAGNOSTIC,
    constant_reward.DIAGNOSTIC,
    hacking.DIAGNOSTIC,
    length.DIAGNOSTIC,
    reward_functions.DIAGNOSTIC,
    forgotten.DIAGNOSTIC,
    signal_cliff.DIAGNOSTIC,
    dead_groups.DIAGNOSTIC,
)
FEW_ROLLOUTS, FEW_STEPS = 32, 2
_FEW_OF_ENDED = 8  # rollouts: no more are to come
_CHEAP = 0.01  # of the way from the worst reward to the best: less is not worth a card
_TENTH = 0.1  # of the loss: a fault of the set-up that holds less is an accident beside what the policy does; ours
_HALF = 0.5  # of what a card's rollouts lost: who holds that explains it


@dataclass(frozen=True)
class Missing:
    """A diagnostic that could not be made, and what it lacks."""

    id: str
    name: str
    what: str


@dataclass(frozen=True)
class Failed:
    """A user's diagnostic that broke, and how, in one line."""

    id: str
    name: str
    error: str


@dataclass(frozen=True)
class Report:
    """Why the rewards of a run are low. `print` says it in words.

    Attributes:
        cards: faults of the set-up first, then what explains others, then by cost, dearest first.
        missing: what was not recorded.
        fall: where the reward went.
        steps: first and last of those looked at; None without any.
        scope: the filter that has all rollouts that were looked at; each card's `where` holds it.
        warming_up: whether there is too little to judge yet; there are no cards then.
        run: uid; None of rows that come from no database.
        failed: of the diagnostics that the user gave, those that broke.
        sample: how many rollouts of a large run were looked at, and of which steps, in words; None where all were.
        unattributed: calls of the run that are no rollout's: what is told by actions or turns lacks them.
    """

    cards: tuple[Card, ...]
    missing: tuple[Missing, ...]
    fall: Waterfall
    scale: Scale
    steps: tuple[int, int] | None
    scope: str
    warming_up: bool
    run: str | None = None
    failed: tuple[Failed, ...] = ()
    sample: str | None = None
    unattributed: int = 0

    def __str__(self) -> str:
        return as_text(self)

    def as_dict(self) -> dict[str, Any]:
        """What `logs-ui diagnose --json` prints: lists, dicts and finite numbers. docs/diagnosis.md explains it."""
        return as_dict(self)

    def frame(self) -> "pd.DataFrame":
        """Its cards, one a row, in their order.

        The columns, all there even without a card: `run`, `id`, `title`, `suggestion` and `where` (`string`), `cost`
        (`float64`, reward for each rollout), `since_step` (`Int64`, absent where it cannot be told), `evidence` (lists
        of sentences), `is_part` (`bool`, whether the cost is a part of the waterfall), `behind` (`string`, the id of
        the card that this one may only be a consequence of; absent without one).
        """
        return as_frame(self)


def diagnose_rows(
    rows: Rows,
    settings: Settings | None = None,
    config: Mapping[str, Any] | None = None,
    scalars: Mapping[str, Trend] | None = None,
    *,
    has_ended: bool = False,
    within: str = "",
    diagnostics: tuple[Diagnostic, ...] = DIAGNOSTICS,
) -> Report:
    """What is wrong in the last steps.

    Args:
        rows: of all steps.
        settings: None: as each diagnostic has it.
        config: the trainer's arguments.
        scalars: what it logged.
        has_ended: whether no more rollouts are to come, so that few must do.
        within: a filter that has `rows` and no others of their run; empty where they are all of it.
        diagnostics: which to make.
    """
    settings = settings or Settings()
    last = rows.last_steps(settings.steps, FEW_ROLLOUTS)
    scale = Scale.of(rows, settings)
    run = Run(last, rows, scale, waterfall(last, scale), settings, config or {}, scalars or {})
    steps = (int(last.steps[0]), int(last.steps[-1])) if len(last) else None
    scope = " ".join(filter(None, [within, _steps_of(last) if len(last) < len(rows) else ""]))
    if _is_warm_up(rows, has_ended=has_ended):
        return Report((), (), run.fall, scale, steps, scope, warming_up=True)
    lacks = {it.id: Missing(it.id, it.name, what) for it in diagnostics if (what := it.missing(run)) is not None}
    found = [card for it in diagnostics if it.id not in lacks and (card := it.look(run)) is not None]
    worth = [card for card in found if card.cost > _CHEAP * max(run.fall.lost, spread(run))]
    cards = tuple(
        replace(card, where=_scoped(card.where, within, scope))
        for card in _ordered(worth, np.maximum(losses(last, scale), 0))
    )
    return Report(cards, tuple(lacks.values()), run.fall, scale, steps, scope, warming_up=False)


def _steps_of(rows: Rows) -> str:
    first, last = rows.steps[0], rows.steps[-1]
    return f"step:{first}" if first == last else f"step:{first}..{last}"


def _scoped(where: str, within: str, scope: str) -> str:
    """A card that names steps of its own is about those."""
    return " ".join(filter(None, [where, within if "step:" in where else scope]))


def _is_warm_up(rows: Rows, *, has_ended: bool) -> bool:
    if has_ended:
        return len(rows) < _FEW_OF_ENDED
    return len(rows) < FEW_ROLLOUTS or len(rows.steps) < FEW_STEPS


def _ordered(cards: list[Card], lost: Floats) -> tuple[Card, ...]:
    """Faults of the set-up first, which no training mends; then by cost; what others explain, right behind the dearest
    of them at the earliest.

    Args:
        cards: in the order of their diagnostics: of two that explain each other, the first does.
        lost: (N,) reward of each rollout that was looked at.
    """
    behind = _explained(cards, lost)
    cost = {card.id: card.cost for card in cards}
    place: dict[str, tuple[float, int]] = {}

    def placed(name: str) -> tuple[float, int]:
        if name not in place:
            place[name] = (-cost[name], 0)  # what a circle comes back to
            if behind[name]:
                before, depth = min(placed(other) for other in behind[name])
                place[name] = (max(before, -cost[name]), depth + 1)
        return place[name]

    kept = [replace(card, explains=tuple(name for name in behind if card.id in behind[name])) for card in cards]
    least = _TENTH * float(lost.mean()) if len(lost) else 0.0
    return tuple(
        sorted(kept, key=lambda card: (not (card.is_setup and card.cost >= least), *placed(card.id), -card.cost))
    )


def _explained(cards: list[Card], lost: Floats) -> dict[str, list[str]]:
    """Of each card, the ids of those that hold enough of what its rollouts lost to explain it."""
    behind = {card.id: _holders(card, cards, lost) for card in cards}
    place = {card.id: number for number, card in enumerate(cards)}
    return {
        name: [it for it in others if name not in behind[it] or place[it] < place[name]]
        for name, others in behind.items()
    }


def _holders(card: Card, cards: list[Card], lost: Floats) -> list[str]:
    able = [it for it in cards if card.id in it.explains and card.id != it.id]
    total = _loss(lost, card.own)
    if card.needs is not None:
        return [it.id for it in able if _loss(lost, _both(card.own, it.own)) >= card.needs * total]
    held = np.zeros(len(lost), bool)
    for it in able:
        held |= True if it.own is None else it.own
    return [it.id for it in able] if _loss(lost, _both(card.own, held)) >= _HALF * total else []


def _loss(lost: Floats, own: Bools | None) -> float:
    return float(lost.sum() if own is None else lost[own].sum())


def _both(a: Bools | None, b: Bools | None) -> Bools | None:
    if a is None or b is None:
        return b if a is None else a
    return a & b
