"""What goes together within groups: reward functions with each other, and with what they are held against."""

import math
from dataclasses import dataclass

import numpy as np

from logs_ui.app.pages.why.why_window import Window
from logs_ui.app.web import urls
from logs_ui.recorder.diagnosis.links import rewards
from logs_ui.recorder.diagnosis.tables.reward_table import ENVIRONMENT, LENGTH, REWARD, key
from logs_ui.recorder.diagnosis.wording import figure, listed

_BINS = (0.2, 0.5, 0.8)  # shades of an r; 0.8 is where length.py calls it strong
OTHERS = {REWARD: "reward", ENVIRONMENT: "environment", LENGTH: "tokens a turn"}
MEANING = {
    REWARD: "The weighted sum of all reward functions",
    ENVIRONMENT: "The environment's own reward, summed over its steps",
    LENGTH: "Tokens that the model sampled, for each of its turns",
}


@dataclass(frozen=True)
class Cell:
    """How two things go together within groups.

    Attributes:
        r: None where it cannot be told.
        shade: class of its colour.
        title: the same in words.
        address: of the rollouts that have both; None in the diagonal.
    """

    r: float | None
    shade: str
    title: str
    address: str | None


@dataclass(frozen=True)
class Matrix:
    """Correlations within groups: `heads` are (name, what it is), `lines` a function's name and its cells."""

    heads: list[tuple[str, str]]
    lines: list[tuple[str, list[Cell]]]


def matrix(run: str, names: list[str], found: dict[tuple[str, str], float], here: Window) -> Matrix:
    columns = [(key(name), name, rewards(name)) for name in names]
    fields = {REWARD: "reward", ENVIRONMENT: "env_reward_sum", LENGTH: "completion_tokens"}
    known = {REWARD: here.rows.reward, ENVIRONMENT: here.rows.env_reward_sum, LENGTH: here.rows.completion_tokens}
    others = [(name, OTHERS[name], fields[name]) for name in fields if np.isfinite(known[name]).any()]
    return Matrix(
        heads=[(name, f"What {name} returned") for _, name, _ in columns]
        + [(title, MEANING[name]) for name, title, _ in others],
        lines=[
            (name, [_cell(run, here, found, (own, name, field), other) for other in (*columns, *others)])
            for own, name, field in columns
        ],
    )


def _cell(
    run: str,
    here: Window,
    found: dict[tuple[str, str], float],
    one: tuple[str, str, str],
    other: tuple[str, str, str],
) -> Cell:
    if one == other:
        return Cell(None, "self", "The same", None)
    r = found[one[0], other[0]]
    names = listed([one[1], other[1]])
    # Only rollouts that were scored have a reward: `reward:none` is no term.
    terms = [f"-{field}:none" for field in (one[2], other[2]) if field != "reward"]
    address = urls.rollouts(run, here.only(" ".join(terms)))
    if math.isnan(r):
        return Cell(None, "unknown", f"{names}: one of them does not vary within groups, or too few have both", address)
    return Cell(r, _shade(r), f"{names}: r = {figure(r)} within groups", address)


def _shade(r: float) -> str:
    bin_ = sum(abs(r) >= edge for edge in _BINS)
    return f"{'p' if r > 0 else 'n'}{bin_}" if bin_ else "zero"
