"""Runs the diagnostics that users wrote, so that an error in one does not hide the cards of others."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from logs_ui.recorder.diagnosis.card import Card, Diagnostic, Run
from logs_ui.recorder.diagnosis.report import Failed
from logs_ui.recorder.diagnosis.run_checks import DIAGNOSTICS
from logs_ui.recorder.errors import SettingsError
from logs_ui.recorder.queries.filters.rollout_filter import parse_where
from logs_ui.recorder.settings import Limits
from logs_ui.recorder.snapshot import error_line

T = TypeVar("T")


def all_limits(own: Sequence[Diagnostic] = ()) -> dict[str, Limits | None]:
    """Return the allowed range of each diagnostic's threshold by id, for the built-in ones and the user's.

    Raises:
        SettingsError: two diagnostics have the same id.
        TypeError: an item is not a Diagnostic.
    """
    for it in own:
        if not isinstance(it, Diagnostic):
            raise TypeError(f"diagnostics takes Diagnostic(...), not a {type(it).__name__}")
    ids = [it.id for it in (*DIAGNOSTICS, *own)]
    for name in ids:
        if ids.count(name) > 1:
            raise SettingsError(f"Two diagnostics are called {name!r}: give yours another id.")
    return {it.id: it.limits for it in (*DIAGNOSTICS, *own)}


def guarded(it: Diagnostic, failed: list[Failed]) -> Diagnostic:
    """Return a diagnostic that never raises: if it does, or returns something else than a card, `failed` gets it."""

    def tried(make: Callable[[], T]) -> T | None:
        try:
            return make()
        except Exception as error:  # noqa: BLE001 - of any kind, as the user's code may raise it
            failed.append(Failed(it.id, it.name, error_line(error)))
            return None

    def look(run: Run) -> Card | None:
        if any(each.id == it.id for each in failed):
            return None
        return tried(lambda: _checked(it, it.look(run)))

    return replace(it, missing=lambda run: tried(lambda: it.missing(run)), look=look)


def _checked(it: Diagnostic, card: Card | None) -> Card | None:
    """Return the card if it is valid.

    Raises:
        TypeError, ValueError: the card is invalid; the message says why.
        FilterError: its filter cannot be parsed.
    """
    if card is None:
        return None
    if not isinstance(card, Card):
        raise TypeError(f"it returned a {type(card).__name__}, not a Card or None")
    if card.id != it.id:
        raise ValueError(f"its card has the id {card.id!r}: give it the diagnostic's, {it.id!r}")
    if isinstance(card.evidence, str):
        raise TypeError("its card's evidence is one text: give a tuple of sentences")
    if not np.isfinite(card.cost):
        raise ValueError(f"its card costs {card.cost}: give a finite number")
    parse_where(card.where)
    return replace(card, cost=float(card.cost), evidence=tuple(map(str, card.evidence)))
