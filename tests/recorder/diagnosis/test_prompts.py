"""Labels of prompts are read with what stands behind them, and only some that lack a value are a finding."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from logs_ui.recorder.diagnosis import Card, Report, Rows, diagnose_rows
from logs_ui.recorder.diagnosis.card import Texts
from logs_ui.recorder.diagnosis.prompt_fields import is_unfilled, list_fields, prompt_of
from tests.recorder.diagnosis.test_diagnosis import rows_of
from tests.recorder.diagnosis.test_states import checked


@pytest.mark.parametrize(("prompt", "label"), [
    ("Table:\nNone\n\nQuestion: how many?", "Table"),
    ("Read this. Table: a | b\nTable: null", "Table"),
    ("**Unit:** nan\nGo.", "Unit"),
    ("## Context\n\nundefined\n\n## Question\nWhy?", "Context"),
    ("<document>None</document>\nWhy?", "document"),
    ("<document>\nNone\n</document>\nWhy?", "document"),
    ("Goal: {{ row.goal }}\nGo.", "Goal"),
    ("- Goal: `{goal}`", "Goal"),
    ("Passage:\n\nQuestion: why?", "Passage"),
    ("<document>\n\n</document>\nQuestion: why?", "document"),
    ("<document></document>\nWhy?", "document"),
])  # fmt: skip
def test_a_value_that_is_lacking_is_seen(prompt: str, label: str) -> None:
    assert [name for name, value in list_fields(prompt) if is_unfilled(name, value)] == [label]


@pytest.mark.parametrize("prompt", [
    'Return the JSON {"table": null}',
    '{\n  "table": null,\n  "unit": null\n}',
    "```python\ntable:\nNone\n```\nGo.",
    "def f(x: int = 0) -> None:\n    return None",
    ">>> f(3)\nNone",
    "The answer may be: none of them.",
    "Table: None of the rows is empty.",
    "Previous moves: None\nHint: None\nOutput: None",
    "End with a line\nAnswer: {answer}",
    "Time: 12:30\nRatio: 1:2",
    "Question: why?\nThought:",
])  # fmt: skip
def test_what_may_rightly_be_so_is_not(prompt: str) -> None:
    assert [name for name, value in list_fields(prompt) if is_unfilled(name, value)] == []


def test_a_prompt_is_what_comes_before_the_first_answer() -> None:
    parts: list[Any] = [{"type": "text", "text": "Table:"}, {"type": "image"}, {"type": "text", "text": "None"}]
    said: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
    assert prompt_of([*said, {"role": "assistant", "content": "?"}, {"role": "user"}]) == "Be brief.\nTable:\nNone"
    assert len(prompt_of([{"role": "user", "content": "x" * 10**6}])) < 30_000
    assert prompt_of([{"role": "user", "content": None}]) == ""


COUNT = 1_600  # rollouts, in groups of 4
PLACE = np.arange(COUNT)


def told(rows: Rows, prompt: Callable[[int], str]) -> Report:
    """Return the report of a run whose rollouts were asked this, by their place."""

    def read(ids: Sequence[int]) -> Mapping[int, Texts]:
        return {it: Texts([{"role": "user", "content": prompt(it - 1)}], []) for it in ids}

    return diagnose_rows(rows, read_texts=read)


def found(report: Report) -> list[Card]:
    return [it for it in report.cards if it.id == "unfilled_prompts"]


def table(place: int) -> str:
    return f"Table:\n{None if place // 4 % 2 else place}\n\nQuestion {place}?"


HALF = (PLACE // 4 % 2).astype(bool)
SOLVED = np.where(HALF, 0.0, PLACE % 4 != 0)


def test_of_many_groups_a_family_that_is_all_so_is_found_as_a_whole() -> None:
    names = [f"{'table' if it else 'text'}/{place // 4 % 80}" for place, it in zip(PLACE, HALF, strict=True)]
    rows = rows_of(COUNT, steps=10, task=names, reward=SOLVED)
    (card,) = found(told(rows, table))
    assert card.own is not None
    assert card.own.tolist() == HALF.tolist()
    assert card.evidence[0].startswith("Of 120 prompts that were read, each of another group, ")
    assert "By families of tasks: 100% of the rollouts in table/, 0% elsewhere." in card.evidence
    unnamed = replace(rows, task=np.full(COUNT, -1), tasks=[])
    (card,) = found(told(unnamed, table))
    assert card.own is None
    assert card.share == pytest.approx(0.5, abs=0.1)


def test_only_a_loss_beyond_chance_is_a_finding() -> None:
    rows = rows_of(COUNT, steps=10, reward=PLACE // 2 % 2)
    assert found(told(rows, table)) == []
    assert checked(told(rows, table), "unfilled_prompts").said == (
        "Of 120 prompts that were read, none lacks a value at a cost."
    )
    assert checked(diagnose_rows(rows), "unfilled_prompts").said == "Too few texts of prompts are stored."


def test_where_no_other_prompt_has_a_value_there_hardly_any_may_be_solved() -> None:
    def keys(place: int) -> str:
        return "Keys: None\nGo." if place // 4 % 2 else "What is it?"

    some = np.where(HALF, PLACE % 16 == 4, PLACE % 4 != 0)
    assert found(told(rows_of(COUNT, steps=10, reward=SOLVED), keys))
    assert not found(told(rows_of(COUNT, steps=10, reward=some), keys))
    assert found(told(rows_of(COUNT, steps=10, reward=some), table))


@pytest.mark.parametrize(("value", "solved", "is_found"), [("None", 0.0, True), ("None", 0.5, False),
                                                          ("{table}", 0.0, False)])  # fmt: skip
def test_where_all_prompts_are_so_hardly_any_is_solved(value: str, solved: float, *, is_found: bool) -> None:
    reward = PLACE % 100 == 0 if solved == 0 else PLACE % 2
    report = told(rows_of(COUNT, steps=10, reward=reward), lambda _: f"Table: {value}\nWhy?")
    assert bool(found(report)) == is_found


@pytest.mark.parametrize(("empty", "is_found"), [("Question: why?", True), ("A: red\nB: green", False)])
def test_an_empty_place_is_before_a_label_that_others_have_too(empty: str, *, is_found: bool) -> None:
    def options(place: int) -> str:
        return f"Options:\n{empty}" if place // 4 % 2 else "Options:\n1) red\n2) green\nQuestion: why?"

    assert bool(found(told(rows_of(COUNT, steps=10, reward=SOLVED), options))) == is_found


def cut(tokens: object, **config: object) -> list[str]:
    names = [f"task {it // 4 % 80}" for it in PLACE]
    rows = rows_of(COUNT, steps=10, task=names, reward=SOLVED, prompt_tokens=tokens)
    return [it.title for it in diagnose_rows(rows, config=config).cards if it.id == "cut_prompts"]


VARIED = 200.0 + PLACE // 4 % 80


@pytest.mark.parametrize(("tokens", "limit", "title"), [
    (np.where(HALF, 512, VARIED), 512, "50% of prompts are cut at max_prompt_length (512 tokens)"),
    (np.where(HALF, 512, VARIED), None, "50% of prompts have exactly 512 tokens, none has more: they seem to be cut"),
    (np.where(HALF, 512, VARIED), 1024, "50% of prompts have exactly 512 tokens, none has more: they seem to be cut"),
    (np.where(HALF, 512, 300), 512, None),  # two lengths
    (np.where(HALF, 279, VARIED), 279, "50% of prompts are cut at max_prompt_length (279 tokens)"),
    (np.where(PLACE // 4 % 80 == 79, 900, np.where(HALF, 512, VARIED)), 512, None),  # one is longer
    (np.where(HALF, 512, np.where(PLACE // 4 % 4 == 0, 500, VARIED)), 512, None),  # another length is as frequent
    (np.where(HALF, 512, np.where(PLACE // 4 % 4 == 0, 200, VARIED)), 512,
     "50% of prompts are cut at max_prompt_length (512 tokens)"),
    (np.where(HALF, 512, np.where(PLACE // 4 % 4 == 0, 200, VARIED)), None, None),
    (np.where(~HALF, 512, VARIED), 512, None),  # they do better than the others
    (512, None, None),
])  # fmt: skip
def test_cut_prompts_have_the_longest_length_of_all(tokens: object, limit: int | None, title: str | None) -> None:
    assert cut(tokens, max_prompt_length=limit) == [title] * (title is not None)
