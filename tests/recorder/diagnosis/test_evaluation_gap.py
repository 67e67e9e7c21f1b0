"""One lucky evaluation decides neither which checkpoint is kept nor since when the training runs ahead; and a gap that
was there from the first evaluation on did not begin later.
"""

from collections.abc import Sequence

import numpy as np

from logs_ui.recorder.diagnosis import Card, Report, diagnose_rows
from logs_ui.recorder.diagnosis.report import card_lines
from tests.recorder.diagnosis.test_diagnosis import rows_of

COUNT, STEPS = 960, 60
PLACE, CHANCE = np.arange(COUNT) / COUNT, np.random.default_rng(5).random(COUNT)
LEARNED = np.clip(0.45 + 1.2 * np.maximum(PLACE - 0.35, 0), 0, 0.95)  # from step 22 on
LEVEL = (0.02, 0.06, 0.03, 0.04, 0.00, 0.05, 0.08, 0.02, 0.03, 0.06, 0.01, 0.05)
LUCKY = (0.52, 0.36, 0.42, 0.44, 0.45, 0.41, 0.35, 0.33, 0.30, 0.27, 0.26, 0.24)


def looked(means: Sequence[float]) -> tuple[Report, Card]:
    rewards = (CHANCE < LEARNED).astype(float)
    rows = rows_of(COUNT, steps=STEPS, reward=rewards, task=[f"riddle {group % 24}" for group in range(COUNT)])
    report = diagnose_rows(rows, evaluations={"riddles": tuple(zip(range(5, 65, 5), means, strict=True))})
    return report, next(card for card in report.cards if card.id == "evaluation_gap")


def test_a_lucky_evaluation_decides_nothing() -> None:
    report, found = looked(LUCKY)
    assert "Best 3 evaluations in a row: mean 0.437, steps 15 to 25." in found.evidence
    assert "eep the checkpoint of step 20." in found.suggestion
    assert found.since_step in {25, 30}
    assert found.half_step in {35, 40}
    assert found.is_of_evaluations
    assert card_lines(report, found)[0].text.startswith("in the evaluations \N{MIDDLE DOT} since step")


def test_a_gap_from_the_first_evaluation_on_begins_there() -> None:
    report, found = looked(LEVEL)
    lines = [line.text for line in card_lines(report, found)]
    assert lines[0] == "in the evaluations \N{MIDDLE DOT} from the first evaluation on"
    assert not any("heckpoint" in line or "in a row" in line for line in lines), "they do not differ beyond chance"
