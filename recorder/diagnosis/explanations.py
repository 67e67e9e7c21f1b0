"""Puts findings in order: by cost, and each one below those that may have caused it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from logs_ui.recorder.diagnosis.card import Card
from logs_ui.recorder.diagnosis.rollout_rows import Floats

_TENTH = 0.1  # of the loss: a fault of the set-up below this share is an accident beside the policy's faults [ours]
_HALF = 0.5  # of a card's loss: the cards that hold this share explain it

_RESULTS = "new_habit never_solved forgotten signal_cliff dead_groups"
_REWARDS = "constant_function constant_reward reward_parts"
_BEHAVIOUR = f"""invented_observations empty_answers parse_failures lost_format truncation loops turn_limit never_acted
    diversity degenerate_text length {_RESULTS}"""
_TABLE = {
    "arithmetic": "advantages",
    "advantages": _BEHAVIOUR,
    "infrastructure": f"""new_observation invalid_reward new_value worse_place never_matches empty_answers
        parse_failures lost_format truncation no_room loops task_mix turn_limit never_acted diversity degenerate_text
        constant_function constant_reward {_RESULTS}""",
    "new_observation": """new_value worse_place unseeded parse_failures loops new_habit never_solved turn_limit
        never_acted forgotten dead_groups""",
    "invalid_reward": f"worse_place new_value never_matches task_mix proxy length {_REWARDS} {_RESULTS}",
    "new_value": "",
    "worse_place": f"final_answers constant_function {_BEHAVIOUR}",
    "shared_state": f"loops turn_limit {_RESULTS}",
    "wiring": f"task_mix {_BEHAVIOUR}",
    "first_prompt": f"unseeded {_BEHAVIOUR}",
    "unseeded": "",
    "unsent_prompts": f"never_matches final_answers task_mix {_REWARDS} {_BEHAVIOUR}",
    "unfilled_prompts": f"never_matches final_answers task_mix {_REWARDS} {_BEHAVIOUR}",
    "cut_prompts": f"unsent_prompts never_matches final_answers task_mix {_REWARDS} {_BEHAVIOUR}",
    "never_matches": "final_answers new_habit never_solved dead_groups",
    "final_answers": "new_habit never_solved forgotten signal_cliff dead_groups",
    "not_finite": f"mismatch staleness no_update {_BEHAVIOUR}",
    "mismatch": _BEHAVIOUR,
    "staleness": f"worse_place {_BEHAVIOUR}",
    "no_update": _BEHAVIOUR,
    "disagreement": f"new_value never_matches loops turn_limit constant_function proxy reward_parts {_RESULTS}",
    "inconsistent": "new_value never_matches never_solved constant_function reward_parts forgotten signal_cliff",
    "invented_observations": f"""parse_failures lost_format truncation loops turn_limit never_acted degenerate_text
        length {_RESULTS}""",
    "empty_answers": f"new_value lost_format constant_function {_RESULTS}",
    "parse_failures": f"""new_value never_matches lost_format loops turn_limit never_acted diversity {_REWARDS}
        {_RESULTS}""",
    "lost_format": f"new_value constant_function {_RESULTS}",
    "truncation": f"""new_value never_matches empty_answers lost_format turn_limit never_acted diversity {_REWARDS}
        {_RESULTS}""",
    "no_room": f"new_value never_matches constant_function constant_reward {_RESULTS}",
    "loops": f"turn_limit diversity degenerate_text {_REWARDS} {_RESULTS}",
    "task_mix": f"turn_limit constant_function length {_RESULTS}",
    "turn_limit": "constant_function constant_reward signal_cliff dead_groups",
    "never_solved": "turn_limit signal_cliff dead_groups",
    "never_acted": f"diversity {_REWARDS} {_RESULTS}",
    "diversity": f"turn_limit constant_function {_RESULTS}",
    "degenerate_text": f"parse_failures lost_format truncation turn_limit never_acted diversity {_REWARDS} {_RESULTS}",
    "new_habit": "length never_solved turn_limit never_acted forgotten signal_cliff dead_groups",
    "constant_function": "",
    "constant_reward": "never_solved dead_groups",
    "hacking": "task_mix new_habit never_solved forgotten signal_cliff evaluation_gap",
    "proxy": "",
    "length": "truncation never_solved degenerate_text proxy reward_parts forgotten",
    "reward_parts": "never_solved constant_function signal_cliff dead_groups",
    "evaluation_ends": "evaluation_gap",
    "evaluation_gap": "",
    "forgotten": "never_solved turn_limit dead_groups",
    "signal_cliff": "dead_groups",
    "dead_groups": "",
}
EXPLAINS = {name: tuple(others.split()) for name, others in _TABLE.items()}
"""The diagnostics by id, as a rollout lives; of each those whose findings may be caused by its own, besides what
`Card.explains` says. Of two that explain each other, the first does."""
BEHAVIOUR = tuple(_BEHAVIOUR.split())
"""Diagnostics of what the policy does, or of a result of that: what keeps it from learning may explain them all."""


def order_cards(cards: Sequence[Card], lost: Floats) -> tuple[Card, ...]:
    """Sort cards: faults of the set-up first, then by cost; a card that others explain comes after the first of them.
    Of two cards that explain each other, the first does. `lost` is (N,) the reward that each rollout lost.
    """
    place = {card.id: number for number, card in enumerate(cards)}
    all_behind = {card.id: _list_explaining(card, cards, lost) for card in cards}
    behind = {
        name: [other for other in others if name not in all_behind[other] or place[other] < place[name]]
        for name, others in all_behind.items()
    }
    cost = {card.id: card.cost or 0.0 for card in cards}
    places: dict[str, tuple[float, int]] = {}

    def place_of(name: str) -> tuple[float, int]:
        if name not in places:
            # A card is placed by its cost, but not before the first card that explains it. The depth puts it below
            # that one where both have the same place.
            places[name] = (-cost[name], 0)  # ends the recursion if cards explain each other in a circle
            if behind[name]:
                before, depth = min(place_of(other) for other in behind[name])
                places[name] = (max(before, -cost[name]), depth + 1)
        return places[name]

    linked = [
        replace(
            card,
            explains=tuple(other.id for other in cards if card.id in behind[other.id] and not _is_later(card, other)),
        )
        for card in cards
    ]
    least = _TENTH * float(lost.mean()) if len(lost) else 0.0
    return tuple(
        sorted(
            linked,
            key=lambda card: (
                not (card.is_setup and (card.eval or cost[card.id] >= least) and not behind[card.id]),
                *place_of(card.id),
                -cost[card.id],
            ),
        )
    )


def _is_later(card: Card, other: Card) -> bool:
    """Return True if a card's figure rose only after the other card's: it cannot be the cause."""
    first, last = card.since_range or (card.since_step, card.since_step), other.since_range or (0, other.since_step)
    return first[0] is not None and last[1] is not None and first[0] > last[1]


def _list_explaining(card: Card, cards: Sequence[Card], lost: Floats) -> list[str]:
    """Return the ids of those cards that may explain this one and whose rollouts hold enough of its loss."""
    affected = {card.id: np.ones(len(lost), bool) if card.own is None else card.own for card in cards}
    able = {
        other.id: affected[card.id] & affected[other.id]
        for other in cards
        if card.id in other.explains and card.id != other.id and not (other.is_setup and _is_later(other, card))
    }
    total = lost[affected[card.id]].sum()
    if card.needs is not None:
        return [name for name, shared in able.items() if lost[shared].sum() >= card.needs * total]
    together = np.logical_or.reduce([np.zeros(len(lost), bool), *able.values()])
    return list(able) if lost[together].sum() >= _HALF * total else []
