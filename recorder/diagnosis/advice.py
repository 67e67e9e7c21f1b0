"""Says what to do about a finding where the advice of its check is about training, which is no help in an evaluation,
or while another finding causes it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from logs_ui.recorder.diagnosis.card import Card

IN_EVALUATION = {
    "truncation": "Find what cuts them: the calls' max_tokens, or the server's context length.",
    "loops": "Say in the observation that nothing changed, or end the episode after N repeats.",
    "infrastructure": "Fix the environment and evaluate again: the policy is not at fault where it failed.",
    "degenerate_text": "Read some of them, and evaluate with other sampling parameters.",
    "diversity": "Sample at a higher temperature, or ask each prompt once.",
    "never_solved": "Verify by hand that they are solvable.",
    "forgotten": "Compare rollouts of these tasks from before and after.",
    "signal_cliff": "Compare rollouts from before and after.",
    "constant_reward": "Call the reward functions by hand on a good and a bad completion: their rewards must differ.",
    "length": "Compare two answers of one length and different quality: their rewards must differ.",
    "proxy": "Compare two completions that differ in quality but not in this figure: their rewards must differ.",
    "reward_parts": "Judge each reward function by itself: nothing is trained on their sum.",
    "hacking": "Read the rollouts of highest reward in which the other function is low.",
}
"""By id of the diagnostic."""
_TRAIN_OTHERWISE = re.compile(r"checkpoint|learning rate|KL ")


def explaining(cards: Sequence[Card], card: Card) -> str | None:
    """Return the id of the first card that explains this one; None if none does."""
    return next((other.id for other in cards if card.id in other.explains), None)


def advise_in_order(cards: Sequence[Card], names: Mapping[str, str]) -> tuple[Card, ...]:
    """Put advice to train otherwise after that of the card that explains this one; `names` of the diagnostics by id."""
    causes = {
        card.id: explaining(cards, card)
        for card in cards
        if not card.by_user and _TRAIN_OTHERWISE.search(card.suggestion)
    }
    return tuple(
        replace(card, suggestion=f"Fix first what {names[cause]} found. If this finding stays: {card.suggestion}")
        if (cause := causes.get(card.id)) is not None
        else card
        for card in cards
    )
