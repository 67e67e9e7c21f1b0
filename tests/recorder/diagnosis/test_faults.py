"""The first card names what was planted, and a healthy run has none."""

from pathlib import Path

import pytest

from tests.faults import Fault
from tests.faults.__main__ import found
from tests.faults.registry import FAULTS


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_the_first_card_names_what_was_planted(fault: Fault, tmp_path: Path) -> None:
    report = found(fault, tmp_path)
    assert not report.warming_up
    cards = [(card.id, round(card.cost, 3), card.title) for card in report.cards]
    first = cards[0][0] if cards else None
    assert first == fault.expected, cards


def test_no_two_faults_share_an_id() -> None:
    assert len({fault.id for fault in FAULTS}) == len(FAULTS)
