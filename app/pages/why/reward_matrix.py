"""Correlations within groups: reward functions with each other, and with reward, environment and length."""

import math
from typing import NamedTuple

import numpy as np

from logs_ui.app.pages.why.why_tab import StepWindow
from logs_ui.app.web import urls
from logs_ui.recorder.diagnosis.links import rewards
from logs_ui.recorder.diagnosis.tables.reward_table import ENVIRONMENT, LENGTH, REWARD, key
from logs_ui.recorder.diagnosis.wording import figure, listed

_BINS = (0.2, 0.5, 0.8)  # shades of an r; 0.8 is where length.py calls it strong
OTHERS = {REWARD: "reward", ENVIRONMENT: "environment", LENGTH: "tokens/turn"}
MEANING = {
    REWARD: "The weighted sum of all reward functions",
    ENVIRONMENT: "The environment's own reward, summed over its steps",
    LENGTH: "Tokens that the model sampled per turn",
}


class CorrelationCell(NamedTuple):
    """The correlation of two values within groups.

    Attributes:
        r: None if it cannot be computed.
        shade: colour class.
        title: description in words.
        address: of the rollouts that have both; None on the diagonal.
    """

    r: float | None
    shade: str
    title: str
    address: str | None


class Matrix(NamedTuple):
    """The correlations: `heads` are (name, meaning), `lines` a function's name and its cells."""

    heads: list[tuple[str, str]]
    lines: list[tuple[str, list[CorrelationCell]]]


def matrix(run: str, names: list[str], found: dict[tuple[str, str], float], here: StepWindow) -> Matrix:
    columns = [(key(name), name, rewards(name)) for name in names]
    fields = {REWARD: "reward", ENVIRONMENT: "env_reward_sum", LENGTH: "completion_tokens"}
    known = {REWARD: here.rows.reward, ENVIRONMENT: here.rows.env_reward_sum, LENGTH: here.rows.completion_tokens}
    others = [(name, OTHERS[name], fields[name]) for name in fields if np.isfinite(known[name]).any()]
    return Matrix(
        heads=[(name, f"Value returned by {name}") for _, name, _ in columns]
        + [(title, MEANING[name]) for name, title, _ in others],
        lines=[
            (name, [_cell(run, here, found, (own, name, field), other) for other in (*columns, *others)])
            for own, name, field in columns
        ],
    )


def _cell(
    run: str,
    here: StepWindow,
    found: dict[tuple[str, str], float],
    one: tuple[str, str, str],
    other: tuple[str, str, str],
) -> CorrelationCell:
    if one == other:
        return CorrelationCell(None, "self", "Same value", None)
    r = found[one[0], other[0]]
    names = listed([one[1], other[1]])
    # Only rollouts that were scored have a reward: `reward:none` is no term.
    terms = [f"-{field}:none" for field in (one[2], other[2]) if field != "reward"]
    address = urls.rollouts(run, here.only(" ".join(terms)))
    if math.isnan(r):
        return CorrelationCell(
            None, "unknown", f"{names}: one of them does not vary within groups, or too few rollouts have both", address
        )
    return CorrelationCell(r, _shade(r), f"{names}: r = {figure(r)} within groups", address)


def _shade(r: float) -> str:
    bin_ = sum(abs(r) >= edge for edge in _BINS)
    return f"{'p' if r > 0 else 'n'}{bin_}" if bin_ else "zero"
