"""A recorded setting that changes when something begins is named, as a fact."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from logs_ui.recorder.diagnosis import Report, diagnose_rows
from logs_ui.recorder.diagnosis.card import Texts
from logs_ui.recorder.diagnosis.rollout_rows import Rows
from tests.faults.columns import diagnosed
from tests.faults.registry import FAULTS, UNEXPLAINED
from tests.recorder.diagnosis.test_diagnosis import rows_of

COUNT = 640  # 20 steps of 32 rollouts, in groups of four
STEP = np.arange(COUNT) // 32 + 1
NOISE = np.random.default_rng(3).uniform(size=COUNT)
FALLEN = np.where(STEP >= 13, 0.2, 0.6) + 0.2 * NOISE


def judged(labels: Mapping[str, Sequence[Any]], sampling: Any = lambda _: {}) -> Report:
    def read_labels(rows: Rows) -> Mapping[str, Sequence[str | None]]:
        return {f"metadata.{name}": [values[it - 1] for it in rows.id.tolist()] for name, values in labels.items()}

    def read_texts(ids: Sequence[int]) -> Mapping[int, Texts]:
        return {it: Texts([], [], sampling(int(STEP[it - 1]))) for it in ids}

    rows = rows_of(COUNT, steps=20, reward=FALLEN, parts={"score": FALLEN})
    return diagnose_rows(rows, read_labels=read_labels, read_texts=read_texts)


def switched(report: Report) -> list[str]:
    assert report.scored_low is not None
    return [it for it in report.scored_low.evidence if "changes from" in it]


def test_a_setting_is_named_beside_the_step_of_the_fall_and_in_the_verdict() -> None:
    report = judged({"top_p": np.where(STEP >= 13, "0.9", "1.0").tolist()})
    assert switched(report) == ["At step 13 metadata.top_p changes from 1.0 to 0.9."]
    assert report.verdict.said.endswith("; at step 13 metadata.top_p changes from 1.0 to 0.9")


@pytest.mark.parametrize("values", [
    np.where(STEP >= 9, "b", "a"),  # at another step
    STEP.astype(str),  # at every step
    np.where((STEP >= 13) & (np.arange(COUNT) % 2 == 0), "b", "a"),  # of some rollouts
    np.where(STEP // 2 % 2, "b", "a"),  # every other time
])  # fmt: skip
def test_what_is_no_setting_or_changes_elsewhere_is_not_named(values: Any) -> None:
    assert switched(judged({"kind": values.tolist()})) == []


def test_a_value_that_some_rollouts_lack_is_one_value() -> None:
    values = [None if place % 8 == 0 else "new" if step >= 13 else "old" for place, step in enumerate(STEP)]
    assert switched(judged({"host": values})) == ["At step 13 metadata.host changes from old to new."]


def test_parameters_of_generations_are_compared_on_both_sides() -> None:
    report = judged({}, lambda step: {"temperature": 0.7 if step < 13 else 1.2, "seed": step, "max_tokens": 9})
    assert switched(report) == ["At step 13 sampling.temperature changes from 0.7 to 1.2."]
    assert switched(judged({}, lambda step: {"temperature": 0.7 if step < 9 else 1.2})) == []


def test_a_finding_names_the_setting_that_changes_when_it_begins() -> None:
    (fault,) = (fault for fault in FAULTS if fault.id == "silence: setting")
    assert fault.made is not None
    (found,) = (card for card in diagnosed(fault.made()).report.cards if card.id == "empty_answers")
    assert found.evidence[-1] == "At step 11 metadata.penalty changes from 1.0 to 1.4."


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("variant", "change"),
    [
        ("agent", "at step 10 prompts lose \u201cYou are a careful clerk. Look up each\u2026\u201d"),
        ("form", "at step 8 prompts lose \u201cEnd with a line that says ANSWER: and\u2026\u201d"),
        ("other", "at step 9 prompts gain \u201cMind spelling, tone, and what the law\u2026\u201d"),
    ],
)
def test_instructions_that_prompts_lose_or_gain_when_the_outcome_falls_are_told(variant: str, change: str) -> None:
    (fault,) = (fault for fault in UNEXPLAINED if fault.id == f"lost instructions: {variant}")
    assert fault.made is not None
    report = diagnosed(fault.made()).report
    before, since = ("0", "16") if "gain" in change else ("16", "0")
    counts = f"{before} of 16 that were read before, {since} of 16 since"
    assert (report.verdict.id, report.verdict.said.partition("; ")[2]) == ("worse", change)
    assert len(report.verdict.said.split()) <= 30
    assert report.scored_low is not None
    assert report.scored_low.evidence[1] == f"A{change[1:]} ({counts})."


@pytest.mark.parametrize("before", [
    "What is {it}?",  # too little is shared
    "Rules of the game are as they were. {it}",  # and remain
])  # fmt: skip
def test_prompts_that_are_as_before_change_nothing(before: str) -> None:
    def read_texts(ids: Sequence[int]) -> Mapping[int, Texts]:
        prompts = {it: before.format(it=it if STEP[it - 1] < 13 else -it) for it in ids}
        return {it: Texts([{"role": "user", "content": prompt}], []) for it, prompt in prompts.items()}

    report = diagnose_rows(rows_of(COUNT, steps=20, reward=FALLEN, parts={"score": FALLEN}), read_texts=read_texts)
    assert "prompts" not in report.verdict.said
