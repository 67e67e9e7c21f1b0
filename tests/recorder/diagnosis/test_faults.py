"""The first card names what was planted, and a healthy run has none."""

import itertools
from pathlib import Path

import pytest

from tests.faults import Fault
from tests.faults.__main__ import found
from tests.faults.registry import FAULTS
from tests.support.exhaustive import cases


def _variants() -> list[Fault]:
    """Return one variant of each cause, another one from cause to cause, so that each kind of run occurs with some
    cause. Exhaustively, return all variants, and the runs that are really trained.
    """
    trained = [fault for fault in FAULTS if ", trained" in fault.id]
    chosen = [*cases(trained, 0)]
    others = [fault for fault in FAULTS if fault not in trained]
    for number, (_, found_with) in enumerate(itertools.groupby(others, lambda fault: fault.id.partition(":")[0])):
        variants = list(found_with)
        turn = number % len(variants)
        chosen += cases([*variants[turn:], *variants[:turn]], 1)
    return chosen


@pytest.mark.parametrize("fault", _variants(), ids=lambda fault: fault.id)
def test_the_first_card_names_what_was_planted(fault: Fault, tmp_path: Path) -> None:
    report = found(fault, tmp_path)
    assert not report.warming_up
    cards = [(card.id, card.cost, card.title) for card in report.cards]
    first = cards[0][0] if cards else None
    assert first == fault.expected, cards


def test_no_two_faults_share_an_id() -> None:
    assert len({fault.id for fault in FAULTS}) == len(FAULTS)
