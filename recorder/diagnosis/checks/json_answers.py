"""Finds fields of JSON answers that differ from their reference in form alone, and whose answers do not count."""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import orjson

from logs_ui.recorder.diagnosis import contrast
from logs_ui.recorder.diagnosis.answers import last_text, rank_of
from logs_ui.recorder.diagnosis.card import Card, Run, Texts
from logs_ui.recorder.diagnosis.change_point import above
from logs_ui.recorder.diagnosis.compared_answers import ENOUGH, OTHERS, SPREAD, choose_rows, extent
from logs_ui.recorder.diagnosis.references import kind_of, plain
from logs_ui.recorder.diagnosis.rollout_rows import Bools
from logs_ui.recorder.diagnosis.wording import listed, percent

_FEW = 16  # rollouts that tell whether answers are JSON [ours]
_LONGEST, _SHOWN = 200, 40  # characters of a field that is compared; of those that are shown [ours]
_VALUES = ("has a thousands separator", "is an integer", "has decimals", "is a date in words", "is a date in digits")
_FORM, _COUNT = 0.1, 0.02  # of the answers have a field in another form; of these count, at most [ours]

DEFINITION = (
    f"If answers and references are JSON objects: in at least {_FORM:.0%} of the answers one field has another form "
    "than the reference's (1234.50 for 1,234.50), and all fields have its value; at most "
    f"{_COUNT:.0%} of these count, in {ENOUGH} groups or more, and {OTHERS:.0%} of those that equal it, in as many."
)


def find_refused_field(run: Run, known: dict[int, Texts]) -> Card | None:
    """Return the card on a field. Texts that are known are not read again, and those that are read are added."""
    if not run.scale.success.is_defined:
        return None
    few = run.sample(run.all.step >= run.rows.steps[0], _FEW)
    known |= few
    if all(_read_forms(texts) is None for texts in few.values()):
        return None
    rows = choose_rows(run.rows)
    known |= run.read_texts([row for row in rows.id.tolist() if row not in known])
    forms = {row: _read_forms(known[row]) for row in rows.id.tolist() if row in known}
    rows = rows.where(np.array([forms.get(row) is not None for row in rows.id.tolist()], bool))
    forms_of, solved = [forms[row] or {} for row in rows.id.tolist()], run.scale.success.solved(rows)
    is_right = np.array([None not in of.values() for of in forms_of], bool)
    is_equal = np.array([not of for of in forms_of], bool)
    if len(np.unique(rows.group[is_equal])) < ENOUGH or solved[is_equal].mean() < OTHERS:
        return None
    for field, _ in Counter(field for of in forms_of for field in of).most_common():
        affected: Bools = is_right & [field in of for of in forms_of]
        is_frequent = affected.mean() >= _FORM and len(np.unique(rows.group[affected])) >= ENOUGH
        if not is_frequent or solved[affected].mean() > _COUNT:
            continue
        examples = dict.fromkeys(forms_of[row][field] or "" for row in np.flatnonzero(affected).tolist())
        return Card(
            id="final_answers",
            title=f"{solved[affected].sum()} of {affected.sum():,} answers count whose field {field[:_SHOWN]} has "
            "another form than the reference's; of those that equal it "
            f"{percent(float(solved[is_equal].mean()))} do",
            cost=contrast.spread(run) * float(affected.mean()),
            evidence=(
                f"{len(rows):,} answers of the last steps are JSON objects, and were compared field by field.",
                f"Such values: {listed(list(examples))}.",
            ),
            suggestion="Let the reward function compare values, not texts, or ask for the reference's form in the "
            "prompt.",
            **extent(run, rows, affected),
            **_find_onset(run, field),
            is_setup=True,
            is_loss=False,
        )
    return None


def _find_onset(run: Run, field: str) -> dict[str, Any]:
    """Return since when right answers with the field in another form do not count, as fields of a card."""
    read = {row: _read_forms(texts) for row, texts in run.sample(run.all.step >= 0, SPREAD).items()}
    has_form = {row: field in forms and None not in forms.values() for row, forms in read.items() if forms is not None}
    rows = run.all.where(np.isin(run.all.id, list(has_form)))
    affected = np.array([has_form[row] for row in rows.id.tolist()], bool)
    began = above(rows.by_step(np.where(affected, ~run.scale.success.solved(rows), np.nan)), 1 - _COUNT)
    return {name: began[name] for name in ("since_step", "since_range")}


def _read_forms(texts: Texts) -> dict[str, str | None] | None:
    """Return the fields of a JSON answer that are not as its reference has them: answer and reference for one that has
    its value in another form, None for one that has another value, or that the reference lacks; None if either is no
    object.
    """
    answer, reference = _parse(last_text(texts.messages)), _find_reference(texts.dataset)
    if answer is None or reference is None:
        return None
    forms = dict[str, str | None](dict.fromkeys(answer.keys() - reference.keys()))
    for name, true in reference.items():
        text, true_text = _write(answer.get(name)), _write(true)
        if text != true_text:
            forms[name] = f"{text} (for {true_text})" if _is_same(text, true_text) else None
    return forms


def _is_same(text: str, true_text: str) -> bool:
    """Return True for texts that differ in case and spaces alone, and for a number or a date in another form.

    >>> _is_same("1234.50", "1,234.5"), _is_same("7 May 2026", "2026-05-07"), _is_same("A-", "A+")
    (True, True, False)
    """
    if max(len(text), len(true_text)) > _LONGEST:
        return False
    if kind_of(text) in _VALUES and kind_of(true_text) in _VALUES:
        return plain(text) == plain(true_text)
    return text.casefold().split() == true_text.casefold().split()


def _find_reference(dataset: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the first column that is named like a reference and is an object, as a text or by its fields."""
    for column, text in dataset.items():
        prefix = column.rpartition(".")[0]
        if rank_of(column) is not None and (value := _parse(text)) is not None:
            return value
        if rank_of(prefix) is not None:
            start = f"{prefix}."
            return {name.removeprefix(start): of for name, of in dataset.items() if name.startswith(start)}
    return None


def _parse(text: str) -> dict[str, Any] | None:
    """Return the JSON object that a text holds, with or without other words around it; None for another text."""
    with suppress(orjson.JSONDecodeError):
        value = orjson.loads(text[text.find("{") : text.rfind("}") + 1])
        return value if isinstance(value, dict) else None
    return None


def _write(value: Any) -> str:
    """Return a value as text; "" for one that is too deep to be written."""
    with suppress(orjson.JSONEncodeError):
        return value if isinstance(value, str) else orjson.dumps(value).decode()
    return ""
