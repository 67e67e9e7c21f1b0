"""Determines which rollouts solved their task: one definition for every page, card and command, which all print it.

Sums of rewards show no success by themselves: with a length penalty or a judge in the sum, hardly two are equal. So the
definition is, in this order: what the user set; the upper value of a two-valued reward function that counts most or is
named like an outcome; the environment's own report; a 1 of a graded function that is named like an outcome; a gap in
the rewards; else it is not defined, and no statement that needs it is made. [ours]
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Floats, Rows
from logs_ui.recorder.diagnosis.wording import figure, listed
from logs_ui.recorder.queries.filters.terms import print_key
from logs_ui.recorder.settings import Settings
from logs_ui.recorder.vocabulary import StopReason

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
_OUTCOME = re.compile(
    r"correct|accura|solve|success|right$|answer|pass|wins?$|won$|goal|exact|match|verif|outcome|env$|environment"
)
_FORM = re.compile(r"format|style|tags?$|length|brev|short|long(er)?$|repe[at]|penal|xml|json|syntax|valid$|think")
_NOT = re.compile(r"no$|not$|non$|un|in(?!t)|invalid|wrong|bad|mis")
_SHARED = 0.05  # of a function's rollouts that another one may score, too, if each has tasks of its own [ours]
_TOP, _LEVELS = 0.05, 5  # share of the rollouts on the highest level; levels that are few [ours]
_GAP, _OTHERS, _SIDE, _FEW = 0.3, 2.0, 0.05, 32  # of the range; times the next gap; of the rollouts; rollouts [ours]

ABOVE_0 = 2 * SAME
"""The mark of a function that is named like an outcome, and gave nothing but 0 so far."""
NOT_DEFINED = "not defined (no reward function, environment or gap in the rewards shows it; set solved_at)"


def is_form(function: str) -> bool:
    """Return True if a word of the function's name is one of form: format, style, length, ..."""
    return any(map(_FORM.match, _words(function)))


def is_outcome(function: str) -> bool:
    """Return True if a word of the function's name is an outcome: correct, solved, ... but not format_correct, and not
    incorrect or no_answer.
    """
    words = _words(function)
    return any(map(_OUTCOME.match, words)) and not any(map(_NOT.match, words)) and not is_form(function)


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name)]


@dataclass(frozen=True)
class Success:
    """Defines which rollouts solved their task.

    Attributes:
        marks: (column, least value of a solved rollout), the columns named as in filters: `rewards.correct`,
            `env_success`, `env_reward_last` or `reward`. The first column that has a value for a rollout decides. Empty
            if success is not defined.
        said: the definition in words, to follow "Solved:".

    Examples:
        >>> Success((("rewards.correct", 1.0),), "correct \u2265 1").where
        'rewards.correct>=0.999999'
    """

    marks: tuple[tuple[str, float], ...] = ()
    said: str = NOT_DEFINED

    @classmethod
    def of(cls, rows: Rows, settings: Settings) -> "Success":
        """Return the definition for a run; `rows` are the rollouts of all its steps."""
        by, at = settings.solved_by, settings.solved_at
        if by is not None and by not in rows.values:
            return cls(said=f"not defined: solved_by names {by}, which is no reward function of this run")
        if by is not None:
            source = "the highest value recorded" if at is None else "as set"
            at = float(np.nanmax(rows.values[by], initial=SAME)) if at is None else at
            return cls(((_key(by), at),), f"{by} \u2265 {figure(at)}, {source}")
        if at is not None:
            return cls((("reward", at),), f"reward \u2265 {figure(at)}, as set")
        found = _by_functions(rows, _upper) or _by_environment(rows)
        found = found or _by_functions(rows, lambda name, values: _top(name, values) if is_outcome(name) else None)
        return found or _by_gap(rows) or cls()

    @property
    def is_defined(self) -> bool:
        return bool(self.marks)

    @property
    def where(self) -> str:
        """Return the filter that selects the solved rollouts; "" if no single term does."""
        if len(self.marks) != 1:
            return ""
        ((column, at),) = self.marks
        return f"{column}:1" if column == "env_success" else f"{column}>={at - SAME:.9g}"

    def known(self, rows: Rows) -> Bools:
        """Return (N,) True for rollouts that count as solved or not: if functions decide, those that one scored."""
        columns = [values for name, values in _columns(rows).items() if name in dict(self.marks)]
        by_function = all(name.startswith("rewards.") for name, _ in self.marks) and bool(columns)
        if not by_function:
            return np.ones(len(rows), bool)
        found: Bools = np.logical_or.reduce([np.isfinite(values) for values in columns])
        return found

    def solved(self, rows: Rows) -> Bools:
        """Return (N,) True for solved rollouts; all False if success is not defined."""
        found, is_open = np.zeros(len(rows), bool), np.ones(len(rows), bool)
        for column, at in self.marks:
            values = _columns(rows)[column]
            known = is_open & np.isfinite(values)
            found |= known & (values >= at - SAME)
            is_open &= ~known
        return found


def _key(function: str) -> str:
    return f"rewards.{print_key(function)}"


def _columns(rows: Rows) -> Mapping[str, Floats]:
    own = {"reward": rows.reward, "env_reward_last": rows.env_reward_last}
    if (reported := rows.facts.get("env_success")) is not None:
        own["env_success"] = reported
    return own | {_key(name): values for name, values in rows.values.items()}


def _levels(values: Floats) -> Floats:
    """Return the distinct finite values, in order; those that rounding tells apart are one."""
    found: Floats = np.unique(np.round(values[np.isfinite(values)], 6))
    return found


def _upper(name: str, values: Floats) -> float | None:
    """Return the upper value of a function that says only yes or no; None for any other function.

    A function of any name may give 0 (or -1) and 1; one that is named like an outcome any two values, or only 0 so far.
    """
    levels = _levels(values)
    if len(levels) == 2 and (levels.tolist() in ([0, 1], [-1, 1]) or (is_outcome(name) and levels[0] <= levels[1] / 2)):
        return float(levels[1]) if levels[1] > 0 else None
    if is_outcome(name) and len(levels) == 1 and levels[0] in {0, 1}:
        return float(levels[0]) or ABOVE_0
    return None


def _top(_: str, values: Floats) -> float | None:
    """Return the highest level of a function if many rollouts reach it, and it is 1 or one of a few; else None."""
    levels = _levels(values)
    if len(levels) < 2 or levels[-1] <= 0 or not (levels[-1] == 1 or len(levels) <= _LEVELS):
        return None
    known = values[np.isfinite(values)]
    return float(levels[-1]) if (known >= levels[-1] - SAME).mean() >= _TOP else None


def _by_functions(rows: Rows, mark: Callable[[str, Floats], float | None]) -> Success | None:
    """Return a definition by the function that counts most, and by others that score other rollouts than it.

    A function that counts is named like an outcome, or has the largest range of those that score the same rollouts.
    """
    given = {name: values for name, values in rows.values.items() if rows.weights.get(name, 1.0) >= 0}
    given = given if rows.values else {"reward": rows.reward}
    known = {name: np.isfinite(values) for name, values in given.items()}
    worth = {name: _worth(rows, name, values) for name, values in given.items()}

    def counts(name: str) -> bool:
        return is_outcome(name) or (
            not is_form(name) and all(worth[name] >= worth[it] for it in given if (known[name] & known[it]).any())
        )

    covered, marks, names = np.zeros(len(rows), bool), list[tuple[str, float]](), list[str]()
    for name in sorted(filter(counts, given), key=lambda it: (not is_outcome(it), -worth[it], it)):
        at = mark(name, given[name])
        if at is None or (known[name] & covered).sum() > _SHARED * known[name].sum():
            continue
        covered |= known[name]
        marks.append((_key(name) if rows.values else name, at))
        names.append(f"{name} > 0" if at == ABOVE_0 else f"{name} \u2265 {figure(at)}")
    by_each = ", by the function that scores the rollout" if len(names) > 1 else ""
    return Success(tuple(marks), listed(names) + by_each) if marks else None


def _worth(rows: Rows, name: str, values: Floats) -> float:
    """Return the most that a function can change the reward; of one with a single value, its value's size."""
    known = values[np.isfinite(values)]
    extent = float(np.ptp(known)) or float(abs(known[0])) if len(known) else 0.0
    return extent * abs(rows.weights.get(name, 1.0))


def _by_environment(rows: Rows) -> Success | None:
    """Return a definition by what the environment said when it ended the episode, or by its last reward, 0 or 1."""
    reported = rows.facts.get("env_success")
    if reported is not None and (reported == 0).any():  # one that never says otherwise is no verdict
        return Success((("env_success", 1.0),), "the environment's last observation reports success")
    done = rows.stop_reason == StopReason.DONE
    is_clear = _levels(rows.env_reward_last[done]).tolist() in ([0, 1], [-1, 1])
    if not is_clear or (rows.env_reward_last[~done] >= 1 - SAME).any():
        return None
    return Success((("env_reward_last", 1.0),), "the environment ended the episode with a reward of 1")


def _by_gap(rows: Rows) -> Success | None:
    """Return the reward above the one wide gap between the rewards of rollouts that ended normally."""
    ended = np.isin(rows.stop_reason, (StopReason.DONE, StopReason.STOP, StopReason.NOT_RECORDED))
    reward = rows.reward[ended & np.isfinite(rows.reward)]
    varying = [name for name, values in rows.values.items() if len(_levels(values)) > 1]
    if len(reward) < _FEW or (rows.values and all(map(is_form, varying))):
        return None
    low, high = np.percentile(reward, (1, 99))
    levels = np.unique(np.clip(reward, low, high))
    gaps = np.diff(levels)
    if not len(gaps):
        return None
    place = int(np.argmax(gaps))
    below, at = levels[place : place + 2].tolist()
    is_wide = gaps[place] >= max(_GAP * (high - low), _OTHERS * np.delete(gaps, place).max(initial=0.0))
    if not is_wide or not _SIDE <= (reward >= at - SAME).mean() <= 1 - _SIDE:
        return None
    return Success((("reward", at),), f"reward \u2265 {figure(at)}, above the gap from {figure(below)} in the rewards")
