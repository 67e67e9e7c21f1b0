"""Recorded for real, a planted fault has the cards of its columns."""

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from logs_ui.recorder import diagnose, load_run
from logs_ui.recorder.analysis import diagnosis_columns
from logs_ui.recorder.diagnosis import Card
from tests.faults import Fault
from tests.faults.columns import diagnosed
from tests.faults.realistic.registry import RUNS
from tests.faults.recording import record
from tests.faults.registry import FAULTS
from tests.support.exhaustive import marked_cases

GENERATED = [fault for fault in FAULTS if fault.made is not None]
TRAINED = [fault for fault in FAULTS if fault.train is not None]
FIRSTS = {fault.expected: fault for fault in reversed(GENERATED)}.values()  # one of each check
OTHERS = [*(fault for fault in GENERATED if fault not in FIRSTS), *(run.as_fault() for run in RUNS)]


@pytest.mark.parametrize("fault", marked_cases([*FIRSTS, *OTHERS], 6, 10), ids=lambda fault: fault.id)
def test_a_recorded_run_has_the_cards_of_its_columns(fault: Fault, tmp_path: Path) -> None:
    assert fault.made is not None
    run = fault.made()
    record(tmp_path / "a.db", run)
    report = diagnose(db=tmp_path / "a.db")
    # A habit is read from texts, which `columns.py` writes in a form of its own.
    cards, of_columns = report.cards, diagnosed(run).report.cards
    assert comparable(cards[:1]) == comparable(of_columns[:1])
    assert comparable(cards[1:], but="new_habit") == comparable(of_columns[1:], but="new_habit")
    for card in report.cards:
        if card.own is not None and card.own.any() and "step:" in report.scope:
            opened = load_run(str(report.run), db=tmp_path / "a.db", where=f"{card.where} {report.scope}")
            assert len(opened) == card.own.sum(), f"{card.id} opens exactly its rollouts"


def test_what_sent_prompts_end_with_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fault,) = (fault for fault in GENERATED if fault.id == "function at 0: opened tag")
    fault.record(tmp_path / "a.db")
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("UPDATE run SET tokenizer = 'own'")
    words = {"<think>" if number == 77 else f"word{number}": number for number in range(100)}
    tokenizer = Tokenizer(models.WordLevel(words)).to_str().encode()
    monkeypatch.setattr(diagnosis_columns, "tokenizer_json", lambda _, name: tokenizer if name == "own" else None)
    assert "60 of 60 prompts that were read end with <think>." in diagnose(db=tmp_path / "a.db").cards[0].evidence


def comparable(cards: Iterable[Card], but: str = "") -> list[Any]:
    """Return of each card what does not depend on ids, nor on the order in which a database returns rows."""
    some = [it for it in cards if it.id != but]
    return [(it.id, it.title, it.share, it.since_step, it.own is None or it.own.tolist()) for it in some]


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", TRAINED, ids=lambda fault: fault.id)
def test_the_first_card_names_what_was_trained(fault: Fault, tmp_path: Path) -> None:
    fault.record(tmp_path / "a.db")
    cards = diagnose(db=tmp_path / "a.db").cards
    assert [card.id for card in cards][:1] == [fault.expected]


def test_no_two_faults_share_an_id() -> None:
    assert len({fault.id for fault in FAULTS}) == len(FAULTS)
