"""Determines which rollouts solved their task: one definition for every page, card and command, which all print it.

Sums of rewards show no success by themselves: with a length penalty or a judge in the sum, hardly two are equal. So the
definition is, in this order: what the user set; the upper value of a two-valued reward function that counts most or is
named like an outcome; the environment's own report; a 1 of a graded function that is named like an outcome; else it is
not defined, and no statement that needs it is made. [ours]
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from logs_ui.recorder.diagnosis.rollout_rows import SAME, Bools, Floats, Rows
from logs_ui.recorder.diagnosis.wording import figure, listed
from logs_ui.recorder.queries.filters.terms import print_key, print_name
from logs_ui.recorder.settings import Settings
from logs_ui.recorder.vocabulary import Mark, StopReason

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
_OUTCOME = re.compile(
    r"correct|acc$|accura|(re)?solve|completed|success|right$|answer|pass|tests$|wins?$|won$|goal|exact|match|verif|"
    r"outcome|env$|environment"
)
_FORM = re.compile(r"format|style|tags?$|length|brev|short|long(er)?$|repe[at]|penal|xml|json|syntax|valid$|think")
_PENALTY = re.compile(r"penal|repe[at]|over(long|length)?$|too$|trunc|violat|toxic|errors?$|cost|invalid|illegal")
_NOT = re.compile(r"no$|not$|non$|un|in(?!t)|invalid|wrong|bad|mis")
_SHARED = 0.05  # of a function's rollouts that another one may score, too, if each has tasks of its own [ours]
_TOP, _LEVELS = 0.05, 5  # share of the rollouts on the highest level; levels that are few [ours]
_USUAL = 0.5  # of the rollouts have what the environment reports [ours]
_FAR_BELOW = 0.25  # of the run's mark: an eval's own, of one that never reaches the run's, is of another scale [ours]

ABOVE_0 = 2 * SAME
"""The mark of a function that is named like an outcome, and gave nothing but 0 so far."""
NOT_DEFINED = "not defined (no reward function or environment shows it; set solved_at)"


def is_form(function: str) -> bool:
    """Return True if a word of the function's name is one of form: format, style, length, ..."""
    return any(map(_FORM.match, _words(function)))


def is_penalty(function: str) -> bool:
    """Return True if a word of the function's name is a penalty's: penalty, repetition, overlong, ..."""
    return any(map(_PENALTY.match, _words(function)))


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
        marks: the first column that has a value for a rollout decides. Empty if success is not defined.
        description: the definition in words, to follow "Solved:".
        by_eval: the definition of each eval, by its name; empty if all have the same.

    Examples:
        >>> Success((Mark("rewards.correct", 1.0),), "correct \u2265 1").where
        'rewards.correct>=0.999999'
    """

    marks: tuple[Mark, ...] = ()
    description: str = NOT_DEFINED
    by_eval: tuple[tuple[str, "Success"], ...] = field(default=(), repr=False, compare=False)

    @classmethod
    def of(cls, rows: Rows, settings: Settings) -> "Success":
        """Return the definition for a run; `rows` are the rollouts of all its steps.

        Evals with settings of their own, that the run's definition says nothing of, or whose values of the same
        function are far smaller, have one of their own.
        """
        if len(rows.present) < 2:
            return cls._of_all(rows, settings.of_environment(next(iter(rows.present), "")))
        whole, by_eval = cls._of_all(rows, settings), dict[str, Success]()
        for name in rows.present:
            here, of_eval = rows.where(rows.in_eval(name)), settings.of_environment(name)
            is_set, alone = name in settings.environments, cls._of_all(here, of_eval)
            is_told = not is_set and _covers(whole, here) and not _is_of_smaller_scale(alone, whole, here)
            by_eval[name] = whole if is_told else alone
        definitions = list(dict.fromkeys(by_eval.values()))
        if len(definitions) < 2:
            return definitions[0]
        limited = (
            _limit_to_eval(mark, name, rows, by_eval)
            for name, definition in by_eval.items()
            for mark in definition.marks
        )
        marks = tuple(dict.fromkeys(limited))
        names = {
            definition: ", ".join(name for name, of_eval in by_eval.items() if of_eval == definition)
            for definition in definitions
        }
        source = "; ".join(
            f"{names[definition]}: {'not defined' if definition == cls() else definition.description}"
            for definition in definitions
        )
        return cls(marks, source, tuple(by_eval.items()))

    def narrowed(self, rows: Rows) -> "Success":
        """Return the definition for the evals of these rollouts alone."""
        present = rows.present if self.by_eval else []
        definitions = list(dict.fromkeys(definition for name, definition in self.by_eval if name in present))
        return definitions[0] if len(definitions) == 1 else self

    @classmethod
    def _of_all(cls, rows: Rows, settings: Settings) -> "Success":
        """Return one definition for all of these rollouts."""
        by, at = settings.solved_by, settings.solved_at
        if by is not None and not np.isfinite(rows.values.get(by, np.full(1, np.nan))).any():
            return cls(description=f"not defined: solved_by names {by}, which scored no rollout")
        if by is not None:
            source = "the highest value recorded" if at is None else "as set"
            at = float(np.nanmax(rows.values[by], initial=SAME)) if at is None else at
            return cls((Mark(_key(by), at),), f"{by} \u2265 {figure(at)}, {source}")
        if at is not None:
            return cls((Mark("reward", at),), f"reward \u2265 {figure(at)}, as set")
        definition = _by_functions(rows, _upper_value) or _by_environment(rows)
        definition = definition or _by_functions(
            rows, lambda name, values: _top(name, values) if is_outcome(name) else None
        )
        return definition or cls()

    @property
    def is_defined(self) -> bool:
        return bool(self.marks)

    @property
    def where(self) -> str:
        """Return the filter that selects the solved rollouts; "" if no single term does."""
        if len(self.marks) != 1:
            return ""
        ((column, at, name),) = self.marks
        where = f"{column}:1" if column == "env_success" else f"{column}>={at - SAME:.9g}"
        return where if name is None else f"eval:{print_name(name)} {where}"

    def countable(self, rows: Rows) -> Bools:
        """Return (N,) True for rollouts that count as solved or not: where functions decide, those that one scored."""
        is_known = np.zeros(len(rows), bool) if self.marks else np.ones(len(rows), bool)
        for mark, values in self._deciding_values(rows):
            by_function = mark.column.startswith("rewards.")
            is_known |= _in_eval(rows, mark) & (np.isfinite(values) | (not by_function))
        return is_known

    def is_decided_by(self, function: str) -> bool:
        """Return True if what a function gives decides of any rollout."""
        return _key(function) in {mark.column for mark in self.marks}

    def find_deciding(self, rows: Rows) -> tuple[str, Floats] | None:
        """Return the one function whose values decide, and these, (N,), where they do; None if several or none do."""
        only = [(name, values) for name, values in rows.values.items() if self.is_decided_by(name)]
        if len(rows.values) < 2 and [mark.column for mark in self.marks] == ["reward"]:
            only = [("reward", rows.reward)]
        if len(self.marks) != 1 or len(only) != 1:
            return None
        return only[0][0], np.where(self.countable(rows), only[0][1], np.nan)

    def solved(self, rows: Rows) -> Bools:
        """Return (N,) True for solved rollouts; all False if success is not defined."""
        is_solved, is_open = np.zeros(len(rows), bool), np.ones(len(rows), bool)
        for mark, values in self._deciding_values(rows):
            decided = is_open & np.isfinite(values) & _in_eval(rows, mark)
            is_solved |= decided & (values >= mark.at - SAME)
            is_open &= ~decided
        return is_solved

    def _deciding_values(self, rows: Rows) -> list[tuple[Mark, Floats]]:
        """Return each mark with the (N,) values of its column; of a column that these rollouts lack, without any."""
        columns = _columns(rows)
        return [(mark, columns.get(mark.column, np.full(len(rows), np.nan))) for mark in self.marks]

    def outcomes(self, rows: Rows) -> Floats:
        """Return (N,) 1 for solved rollouts, 0 for others, NaN for those that cannot count."""
        return np.where(self.countable(rows), self.solved(rows), np.nan)


def _covers(success: Success, rows: Rows) -> bool:
    """Return True if any of these rollouts has a value that decides, or none has a reward yet."""
    decide = {mark.column for mark in success.marks}
    has_value = (np.isfinite(values).any() for name, values in _columns(rows).items() if name in decide)
    return any(has_value) or not np.isfinite(rows.reward).any()


def _is_of_smaller_scale(alone: Success, whole: Success, rows: Rows) -> bool:
    """Return True if an eval has a far lower mark than the run, by the same column, and its `rows` never reach that."""
    if len(alone.marks) != 1 or len(whole.marks) != 1 or alone.marks[0].column != whole.marks[0].column:
        return False
    at, most = alone.marks[0].at, whole.marks[0].at
    return ABOVE_0 < at <= _FAR_BELOW * most and not whole.solved(rows).any()


def _limit_to_eval(mark: Mark, name: str, rows: Rows, by_eval: Mapping[str, Success]) -> Mark:
    """Return the mark of an eval, for its rollouts alone unless no other definition could use it for the others."""
    others = [other for other, definition in by_eval.items() if mark not in definition.marks]
    values = _columns(rows)[mark.column][np.isin(rows.eval, [rows.evals.index(other) for other in others])]
    is_own = mark.column.startswith("rewards.") and not np.isfinite(values).any()
    return mark if is_own else mark._replace(eval=name)


def _in_eval(rows: Rows, mark: Mark) -> Bools:
    return np.ones(len(rows), bool) if mark.eval is None else rows.in_eval(mark.eval)


def _key(function: str) -> str:
    return f"rewards.{print_key(function)}"


def _columns(rows: Rows) -> Mapping[str, Floats]:
    columns = {"reward": rows.reward, "env_reward_last": rows.env_reward_last}
    if (reported := rows.facts.get("env_success")) is not None:
        columns["env_success"] = reported
    return columns | {_key(name): values for name, values in rows.values.items()}


def levels(values: Floats) -> Floats:
    """Return the distinct finite values, in order; those that rounding tells apart are one."""
    distinct_values: Floats = np.unique(np.round(values[np.isfinite(values)], 6))
    return distinct_values


def _upper_value(name: str, values: Floats) -> float | None:
    """Return the upper value of a function that says only yes or no; None for any other function.

    A function of any name may give 0 (or -1) and 1; one that is named like an outcome any two values, or only 0 so far.
    """
    distinct = levels(values)
    if len(distinct) == 2 and (
        distinct.tolist() in ([0, 1], [-1, 1]) or (is_outcome(name) and distinct[0] <= distinct[1] / 2)
    ):
        return float(distinct[1]) if distinct[1] > 0 else None
    if is_outcome(name) and len(distinct) == 1 and distinct[0] in {0, 1}:
        return float(distinct[0]) or ABOVE_0
    return None


def _top(_: str, values: Floats) -> float | None:
    """Return the highest level of a function if many rollouts reach it, and it is 1 or one of a few; else None."""
    distinct = levels(values)
    if len(distinct) < 2 or distinct[-1] <= 0 or not (distinct[-1] == 1 or len(distinct) <= _LEVELS):
        return None
    finite = values[np.isfinite(values)]
    return float(distinct[-1]) if (finite >= distinct[-1] - SAME).mean() >= _TOP else None


def _by_functions(rows: Rows, mark: Callable[[str, Floats], float | None]) -> Success | None:
    """Return a definition by the function that counts most, and by others that score other rollouts than it.

    A function that counts is named like an outcome, or has the largest range of those that score the same rollouts.
    """
    counted = {name: values for name, values in rows.values.items() if rows.weights.get(name, 1.0) >= 0}
    counted = counted if rows.values else {"reward": rows.reward}
    is_known = {name: np.isfinite(values) for name, values in counted.items()}
    worth = {name: _worth(rows, name, values) for name, values in counted.items()}

    def counts(name: str) -> bool:
        return is_outcome(name) or (
            not is_form(name)
            and not is_penalty(name)
            and all(worth[name] >= worth[other] for other in counted if (is_known[name] & is_known[other]).any())
        )

    covered, marks, names = np.zeros(len(rows), bool), list[Mark](), list[str]()
    for name in sorted(filter(counts, counted), key=lambda name: (not is_outcome(name), -worth[name], name)):
        at = mark(name, counted[name])
        if at is None or (is_known[name] & covered).sum() > _SHARED * is_known[name].sum():
            continue
        covered |= is_known[name]
        marks.append(Mark(_key(name) if rows.values else name, at))
        names.append(f"{name} > 0" if at == ABOVE_0 else f"{name} \u2265 {figure(at)}")
    by_each = ", by the function that scores the rollout" if len(names) > 1 else ""
    return Success(tuple(marks), listed(names) + by_each) if marks else None


def _worth(rows: Rows, name: str, values: Floats) -> float:
    """Return the most that a function can change the reward; of one with a single value, its value's size."""
    finite = values[np.isfinite(values)]
    extent = float(np.ptp(finite)) or float(abs(finite[0])) if len(finite) else 0.0
    return extent * abs(rows.weights.get(name, 1.0))


def _is_usual(rows: Rows, values: Floats) -> bool:
    """Return True if most rollouts of the evals that have any of these values have one."""
    is_known = np.isfinite(values)
    return bool(is_known[np.isin(rows.eval, rows.eval[is_known])].mean() >= _USUAL)


def _by_environment(rows: Rows) -> Success | None:
    """Return a definition by what the environment said when it ended the episode, or by its last reward, 0 or 1."""
    reported = rows.facts.get("env_success")
    # One that never says otherwise is no verdict, nor one that failures alone have.
    if reported is not None and (reported == 0).any() and ((reported == 1).any() or _is_usual(rows, reported)):
        return Success((Mark("env_success", 1.0),), "the environment's last observation reports success")
    done = rows.stop_reason == StopReason.DONE
    is_clear = levels(rows.env_reward_last[done]).tolist() in ([0, 1], [-1, 1])
    if not is_clear or (rows.env_reward_last[~done] >= 1 - SAME).any():
        return None
    return Success((Mark("env_reward_last", 1.0),), "the environment ended the episode with a reward of 1")
